"""Where the settings are looked for when no file is named."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "TOOLCRIB_CONFIG"
"""Names the settings file; it comes before every place."""

NEARBY: Final = ("toolcrib.toml", "toolcrib.json", ".mcp.json", ".vscode/mcp.json", ".cursor/mcp.json")
"""Places in the current folder, in order."""

OF_THE_USER: Final = ("config.toml", "config.json")
"""Places in the user's own folder, in order."""


def places(environ: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """The places, the first that exists wins: the variable's file alone, else the folder's, then the user's."""
    named = environ.get(VARIABLE)
    if named:
        return (cwd / Path(named).expanduser(),)
    return tuple(cwd / name for name in NEARBY) + tuple(user_folder(environ) / name for name in OF_THE_USER)


def user_folder(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/toolcrib`, or `~/.config/toolcrib`."""
    base = environ.get("XDG_CONFIG_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "toolcrib"
    home = environ.get("HOME") or environ.get("USERPROFILE")
    return (Path(home) if home else Path.home()) / ".config" / "toolcrib"


def shown(path: Path, cwd: Path) -> str:
    """The path as messages name it: relative below the current folder."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
