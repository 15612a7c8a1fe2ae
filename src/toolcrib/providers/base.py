"""The provider contract: look up and call one tool of any provider, and notify listeners of changes."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache, lru_cache
from typing import Any, Final, cast

from toolcrib.providers.definitions import parse_tools
from toolcrib.types import (
    JSON,
    Context,
    Key,
    KeyedCalls,
    Object,
    ServerStatus,
    Tool,
    ToolLookup,
    ToolProvider,
    ToolResult,
    Unsubscribe,
)


@lru_cache(maxsize=4096)
def implements(kind: type, protocol: type) -> bool:
    """Whether providers of a class have an optional protocol: found out once, as that takes a while."""
    return issubclass(kind, protocol)


async def call_by_key(provider: ToolProvider, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
    """Run the provider's tool of that key; None when it has none."""
    if implements(type(provider), KeyedCalls):
        return await cast("KeyedCalls", provider).call_key(ctx, key, arguments)
    return await provider.call_tool(ctx, key.name, arguments)


async def find_tool(provider: ToolProvider, ctx: Context, key: Key) -> Tool | None:
    """The provider's tool of exactly that key; None when it has none. Lists all where it cannot look one up."""
    if not isinstance(provider, ToolLookup):
        return next((tool for tool in parse_tools(await provider.list_tools(ctx)) if tool.key == key), None)
    for name in dict.fromkeys((key_id(key), key.name)):
        tool = await provider.get_tool(ctx, name)
        if tool is not None and tool.key == key:
            return tool
    return None


def key_id(key: Key) -> str:
    """The canonical id of a key.

    >>> key_id(Key("git", "log")), key_id(Key("", "log"))
    ('git:log', 'log')
    """
    return f"{key.namespace}:{key.name}" if key.namespace else key.name


def possible_keys(name: str) -> tuple[Key, ...]:
    """The keys that a name given to a look-up may stand for: with its namespace, and as a bare name.

    >>> possible_keys("git:log")
    (Key(namespace='git', name='log'), Key(namespace='', name='git:log'))
    """
    namespace, colon, rest = name.partition(":")
    bare = Key("", name)
    return (Key(namespace, rest), bare) if colon and namespace and rest else (bare,)


def display_name(provider: object) -> str:
    """A short name of the provider for people: its `name` where that is a text, else the name of its class.

    >>> class Garden: ...
    >>> display_name(Garden())
    'Garden'
    """
    try:
        name = getattr(provider, "name", None)
    except Exception:  # noqa: BLE001 - it is foreign code, and may compute its name
        name = None
    return name if isinstance(name, str) and name else type(provider).__name__


MixinRule = tuple[tuple[str, ...], type]
"""What a protocol asks for, and the class that answers for it."""


KEYED: Final = ("call_key",)


LOOKUP: Final = ("get_tool",)


FINDER: Final = ("find_tools",)


CHANGES: Final = ("subscribe",)


STATUSES: Final = ("statuses",)


CACHE: Final = ("cache_for_s", "cache_key")


def with_mixins(cls: Any, parts: tuple[type, ...]) -> Any:
    """The class with these parts; what it defines itself stands before them."""
    return _mixed_class(cls, parts) if parts else cls


@cache
def _mixed_class(cls: type, parts: tuple[type, ...]) -> type:
    fields = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    bases = parts if any(issubclass(part, cls) for part in parts) else (cls, *parts)
    return type(cls.__name__, bases, fields)


def mixins_for(inner: object, known: Sequence[MixinRule]) -> tuple[type, ...]:
    """The parts whose protocol the object has."""
    # `isinstance` with a protocol costs ten times as much, and wrappers are made for each request.
    return tuple(part for names, part in known if all(getattr(inner, name, None) is not None for name in names))


class ForwardChanges:
    """`Changes`, as they come."""

    inner: Any

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever something changed inside."""
        unsubscribe: Unsubscribe = self.inner.subscribe(callback)
        return unsubscribe


class ForwardStatuses:
    """`StatusSource`, as it is."""

    inner: Any

    def statuses(self) -> Sequence[ServerStatus]:
        """Those of what is inside."""
        return tuple(self.inner.statuses())


class ForwardCacheHints:
    """`Cacheable`, as it is."""

    inner: Any

    @property
    def cache_for_s(self) -> float:
        """As long as what is inside, in seconds."""
        seconds: float = self.inner.cache_for_s
        return seconds

    @property
    def cache_key(self) -> Hashable:
        """As inside, for providers of that class alone."""
        return (type(self.inner), self.inner.cache_key)


PLAIN: Final[Sequence[MixinRule]] = ((CHANGES, ForwardChanges), (STATUSES, ForwardStatuses), (CACHE, ForwardCacheHints))
"""What an adapter passes on unchanged."""


logger = logging.getLogger(__name__)


class _NotificationPath(threading.local):
    """Where the change that is being told in this thread has been passed on already."""

    passed: frozenset[int] = frozenset()


_path = _NotificationPath()


class ThreadSafeCallback:
    """A callback that is called in whichever thread tells, and is bound to no event loop."""

    def __init__(self, callback: Callable[[], None]) -> None:
        """The callback must be safe to call from any thread."""
        self._callback = callback

    def __call__(self) -> None:
        """Call it."""
        self._callback()


class CallbackList:
    """Callbacks without arguments."""

    def __init__(self) -> None:
        """Nobody listens yet."""
        self._lock = threading.Lock()
        self._callbacks: dict[object, tuple[Callable[[], None], asyncio.AbstractEventLoop | None]] = {}

    def add(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call it back from now on, until what this returns is called.

        Given while an event loop runs, it is called in that loop; given without one, or as `ThreadSafeCallback`, in the thread
        that tells.
        """
        place = object()
        with self._lock:
            self._callbacks[place] = (callback, None if isinstance(callback, ThreadSafeCallback) else _running_loop())

        def remove() -> None:
            with self._lock:
                self._callbacks.pop(place, None)

        return remove

    def notify(self) -> None:
        """Tell of a change that was made here. Calls all back; one that raises is logged."""
        self._tell(frozenset())

    def forward(self) -> None:
        """Tell of a change that was told by something else; not again, where it began here or has been here already.

        So those that tell each other may stand in a circle.
        """
        if id(self) not in _path.passed:
            self._tell(_path.passed)

    def _tell(self, passed: frozenset[int]) -> None:
        before, _path.passed = _path.passed, passed | {id(self)}
        try:
            self._call_all()
        finally:
            _path.passed = before

    def _call_all(self) -> None:
        with self._lock:
            callbacks = tuple(self._callbacks.values())
        here = _running_loop()
        for callback, loop in callbacks:
            if loop is None or loop is here:
                call_logged(callback)
            else:
                with contextlib.suppress(RuntimeError):  # a loop that was closed has nobody left to tell
                    loop.call_soon_threadsafe(call_logged, callback)


def call_logged(callback: Callable[[], None]) -> None:
    """Call it; where it raises, that is logged."""
    try:
        callback()
    except (Exception, asyncio.CancelledError):
        # It is foreign code, and must not end whoever made the change.
        logger.exception("a listener for changes raised")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
