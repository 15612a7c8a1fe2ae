"""Where the state that should survive a restart is kept, and how large it may become."""

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final, Protocol

from toolcrib.checks import Seconds, checked, whole_from
from toolcrib.errors import SettingsError
from toolcrib.state.base import ListedStore, StateStore
from toolcrib.state.memory import MemoryStore

DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024
_FILE: Final = "state.sqlite"


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """Where state is kept."""

    path: Path | None = None
    """An SQLite file for what should survive a restart; None keeps everything in memory, or in Redis."""
    max_bytes: Annotated[int, whole_from(1024 * 1024)] = DEFAULT_MAX_BYTES
    """About how large the file may become; beyond it, its largest table drops the least recently used values."""
    url: str | None = field(default=None, repr=False)
    """Where Redis is, such as `redis://host:6379/0` or `rediss://host`: it keeps everything, for all replicas."""
    password: str | None = field(default=None, repr=False)
    """The password for Redis."""
    prefix: str = "toolcrib"
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


class OpenableStore(StateStore, AbstractAsyncContextManager[StateStore], Protocol):
    """A store that `async with` opens and closes."""


class OpenableListedStore(ListedStore, AbstractAsyncContextManager[ListedStore], Protocol):
    """A store outside this process that `async with` opens and closes."""


def has_store(options: StateOptions) -> bool:
    """Whether there is a store outside this process already; a file is not created for it."""
    return options.url is not None or (options.path is not None and options.path.is_file())


def make_store(options: StateOptions, *, must_open: bool = False) -> OpenableStore:
    """The store that the options describe; its module is imported only if it is named. Raises `MissingExtra`.

    A file that cannot be opened is replaced by memory, unless it `must_open`.
    """
    if options.url is None and options.path is None:
        return MemoryStore()
    return make_listed_store(options, must_open=must_open)


def make_listed_store(options: StateOptions, *, must_open: bool = True) -> OpenableListedStore:
    """The store in a file or in Redis that the options describe. Raises `MissingExtra`."""
    store: OpenableListedStore
    if options.url is not None:
        store = import_module("toolcrib.state.redis").RedisStore(
            options.url, password=options.password, prefix=options.prefix, timeout_s=options.timeout_s
        )
    else:
        store = import_module("toolcrib.state.sqlite").SqliteStore(
            options.path, max_bytes=options.max_bytes, must_open=must_open
        )
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
