"""The store that the options describe: in memory, in an SQLite file or in Redis."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from toolcrib.errors import SettingsError
from toolcrib.state.base import ListedStore, StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.state.options import StateOptions


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
    if options.url is not None:
        from toolcrib.state.redis import RedisStore

        return RedisStore(options.url, password=options.password, prefix=options.prefix, timeout_s=options.timeout_s)
    if options.path is None:
        raise SettingsError("State is kept in memory only.", hint="Give the state a path or a url.")
    from toolcrib.state.sqlite import SqliteStore

    return SqliteStore(options.path, max_bytes=options.max_bytes, must_open=must_open)
