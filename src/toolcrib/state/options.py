"""Where the state that should survive a restart is kept, and how large it may become."""

import os
import stat
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final, Protocol

from toolcrib.checks import checked
from toolcrib.ranges import whole_from
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore

DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024
_FILE: Final = "state.sqlite"


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """Where state is kept."""

    path: Path | None = None
    """An SQLite file for what should survive a restart; None keeps everything in memory."""
    max_bytes: Annotated[int, whole_from(1024 * 1024)] = DEFAULT_MAX_BYTES
    """About how large the file may become; beyond it, its largest table drops the least recently used values."""


class OpenableStore(StateStore, AbstractAsyncContextManager[StateStore], Protocol):
    """A store that `async with` opens and closes."""


def make_store(options: StateOptions) -> OpenableStore:
    """The store that the options describe. `toolcrib.state.sqlite` is imported only if a file is named."""
    if options.path is None:
        return MemoryStore()
    store: OpenableStore = import_module("toolcrib.state.sqlite").SqliteStore(options.path, max_bytes=options.max_bytes)
    return store


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


def create_private(path: Path) -> None:
    """Create the file, and the folders above it, for this user only; an existing file is made private."""
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        # An existing file is not opened: closing it would release the locks that this process has on it.
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) != stat.S_IRUSR | stat.S_IWUSR:
            path.chmod(0o600)
