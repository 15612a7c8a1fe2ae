"""Where the state that should survive a restart is kept, and how large it may become."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from toolcrib.checks import Seconds, checked, whole_from
from toolcrib.errors import SettingsError
from toolcrib.file_values import InFiles, Text, file_problem

DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024
_FILE: Final = "state.sqlite"


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """Where state is kept."""

    path: Annotated[Path | None, InFiles(file_problem, raw=True)] = None
    """An SQLite file for what should survive a restart; None keeps everything in memory, or in Redis."""
    max_bytes: Annotated[int, whole_from(1024 * 1024)] = DEFAULT_MAX_BYTES
    """About how large the file may become; beyond it, its largest table drops the least recently used values."""
    url: Text | None = field(default=None, repr=False)
    """Where Redis is, such as `redis://host:6379/0` or `rediss://host`: it keeps everything, for all replicas."""
    password: Text | None = field(default=None, repr=False)
    """The password for Redis."""
    prefix: Text = "toolcrib"
    """How the keys in Redis begin. Replicas of one gateway have the same prefix; other gateways need another one."""
    timeout_s: Seconds = 0.5
    """How long an operation waits for Redis at most."""

    def __post_init__(self) -> None:
        """Refuse an address that no store is for."""
        if self.url is not None and not self.url.startswith(REDIS_SCHEMES):
            raise SettingsError(
                "The state's url is not one of Redis.", hint="Write redis://HOST:PORT/DATABASE, or rediss:// for TLS."
            )


REDIS_SCHEMES: Final = ("redis://", "rediss://", "unix://")
"""How the address of a Redis server begins."""


def default_state_file(environ: Mapping[str, str] = os.environ, *, platform: str = sys.platform) -> Path | None:
    """The state file of this user: below `$XDG_STATE_HOME`, else where the system keeps such files.

    None for a user without a home, as in some containers.

    >>> print(default_state_file({"HOME": "/home/ann"}, platform="linux"))
    /home/ann/.local/state/toolcrib/state.sqlite
    >>> print(default_state_file({"HOME": "/Users/ann"}, platform="darwin"))
    /Users/ann/Library/Application Support/toolcrib/state.sqlite
    """
    base = environ.get("XDG_STATE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "toolcrib" / _FILE
    home = environ.get("HOME") or environ.get("USERPROFILE")
    try:
        user = Path(home) if home else Path.home()
    except RuntimeError:
        return None
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else user / "AppData" / "Local") / "toolcrib" / _FILE
    if platform == "darwin":
        return user / "Library" / "Application Support" / "toolcrib" / _FILE
    return user / ".local" / "state" / "toolcrib" / _FILE
