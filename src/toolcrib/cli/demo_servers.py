"""The demo's servers: five from PyPI at pinned versions, the settings that name them, and something to work on."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolcrib.errors import MissingExtra

PINS: Final[Mapping[str, tuple[str, ...]]] = {
    "time": ("mcp-server-time==2026.10.19", "mcp==2.3.0"),
    "git": ("mcp-server-git==2026.10.19", "mcp==2.3.0"),
    "calculator": ("mcp-server-calculator==0.2.1", "mcp==1.30.0"),
    "sqlite": ("mcp-server-sqlite==2025.4.25", "mcp==1.30.0"),
    "math": ("chuk-mcp-math-server==0.3.3", "chuk-mcp-math==0.2.3", "chuk-mcp-server==0.26.1"),
}
"""Each server's package, and what else of it must not drift: a new major version of the SDK broke several servers."""

START_TIMEOUT_S: Final = 180
"""The first start downloads and installs."""

_PASSED_ON: Final = ("UV_", "SSL_CERT_", "XDG_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "TMPDIR", "LANG")
"""Beginnings of the variables that uvx may need to reach the package index."""

_ORDERS: Final = (
    ("2026-03-02", "Ada", "torque wrench", 2, 89.0),
    ("2026-03-05", "Grace", "dial indicator", 1, 120.5),
    ("2026-03-05", "Ada", "end mill 6 mm", 10, 14.2),
    ("2026-03-09", "Edsger", "edge finder", 1, 33.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the demo plays with."""

    settings: Path
    """The settings file: the servers, as any MCP client would name them."""
    repository: Path
    database: Path


@contextmanager
def prepared() -> Iterator[Scene]:
    """The scene, in a temporary folder that goes away. Raises `MissingExtra` without uvx."""
    uvx = find_uvx()
    with tempfile.TemporaryDirectory(prefix="toolcrib-demo-") as name:
        folder = Path(name)
        database = folder / "shop.db"
        _fill(database)
        repository = _repository(folder)
        settings = folder / "mcp.json"
        settings.write_text(json.dumps(_settings(uvx, repository, database), indent=2), encoding="utf-8")
        yield Scene(settings=settings, repository=repository, database=database)


def find_uvx() -> str:
    """uvx beside this Python, or in PATH. Raises `MissingExtra`."""
    beside = shutil.which("uvx", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("uvx")
    if found is None:
        raise MissingExtra(
            "The demo starts its servers with uvx, which is not installed.",
            hint="Install it: pip install uv",
        )
    return found


def _settings(uvx: str, repository: Path, database: Path) -> dict[str, Any]:
    own = {"git": ["--repository", str(repository)], "sqlite": ["--db-path", str(database)], "math": ["--quiet"]}
    passed_on = {key: f"${{{key}}}" for key in sorted(os.environ) if key.upper().startswith(_PASSED_ON)}
    names = [name for name in PINS if name != "git" or shutil.which("git")]
    return {
        "mcpServers": {
            name: {"command": uvx, "args": [*uvx_arguments(PINS[name]), *own.get(name, ())], "env": passed_on}
            for name in names
        },
        "toolcrib": {"timeouts": {"start": START_TIMEOUT_S}},
    }


def uvx_arguments(pins: Sequence[str]) -> list[str]:
    """What makes uvx run the first package, with the others pinned, on this Python.

    >>> uvx_arguments(("mcp-server-time==1", "mcp==2"))[2:]
    ['--with', 'mcp==2', '--from', 'mcp-server-time==1', 'mcp-server-time']
    """
    package = pins[0].partition("==")[0]
    pinned = [word for pin in pins[1:] for word in ("--with", pin)]
    return ["--python", sys.executable, *pinned, "--from", pins[0], package]


def _fill(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE orders (day TEXT, customer TEXT, item TEXT, quantity INTEGER, price REAL)")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", _ORDERS)


def _repository(folder: Path) -> Path:
    """The repository around the current folder, if it has a commit; else a small one of its own."""
    top = _git(Path.cwd(), "rev-parse", "--show-toplevel")
    if top and _git(Path.cwd(), "rev-parse", "--verify", "HEAD"):
        return Path(top)
    repository = folder / "workshop"
    repository.mkdir()
    _git(repository, "init", "--quiet")
    for note in ("Sharpen the chisels", "Oil the vise", "Sort the drill bits"):
        (repository / "log.txt").write_text(f"{note}\n", encoding="utf-8")
        _git(repository, "add", "--all")
        who = ("-c", "user.name=Demo", "-c", "user.email=demo@example.com", "-c", "commit.gpgsign=false")
        _git(repository, *who, "commit", "--quiet", "--message", note)
    return repository


def _git(folder: Path, *arguments: str) -> str:
    """What git says; empty when it fails or is not there."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *arguments],  # noqa: S607 - whichever git the user has
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
