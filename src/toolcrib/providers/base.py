"""Helpers for the `Provider` contract: keys and ids, exact look-ups, names for logs, and lists of callbacks."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from toolcrib.providers.definitions import parse_tools
from toolcrib.types import Context, Key, Provider, ProviderFeature, Tool, Unsubscribe

logger = logging.getLogger(__name__)


async def find_tool(provider: Provider, ctx: Context, key: Key) -> Tool | None:
    """Find the tool of exactly this key, by a look-up if the provider has one, else in its list."""
    if ProviderFeature.LOOKUP not in provider.features:
        return next((tool for tool in parse_tools(await provider.list_tools(ctx)) if tool.key == key), None)
    for name in dict.fromkeys((key.id, key.name)):
        tool = await provider.get_tool(ctx, name)
        if tool is not None and tool.key == key:
            return tool
    return None


def possible_keys(name: str) -> tuple[Key, ...]:
    """The keys that a name may mean: with the part before the colon as its namespace, and as a bare name.

    >>> possible_keys("git:log")
    (Key(namespace='git', name='log'), Key(namespace='', name='git:log'))
    """
    namespace, colon, rest = name.partition(":")
    bare = Key("", name)
    return (Key(namespace, rest), bare) if colon and namespace and rest else (bare,)


def display_name(provider: object) -> str:
    """Short name of a provider for logs and statuses: its `name` if that is text, else the name of its class.

    >>> class Garden: ...
    >>> display_name(Garden())
    'Garden'
    """
    try:
        name = getattr(provider, "name", None)
    except Exception:  # noqa: BLE001 - third-party code may compute its name
        name = None
    return name if isinstance(name, str) and name else type(provider).__name__


class _NotificationPath(threading.local):
    """The callback lists that the change being reported in this thread has passed through."""

    passed: frozenset[int] = frozenset()


_path = _NotificationPath()


class ThreadSafeCallback:
    """A callback that may run in any thread, and is not bound to the event loop in which it was added."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def __call__(self) -> None:
        self._callback()


class CallbackList:
    """Callbacks without arguments: notified from any thread, called in the loop in which they were added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[object, tuple[Callable[[], None], asyncio.AbstractEventLoop | None]] = {}

    def add(self, callback: Callable[[], None]) -> Unsubscribe:
        """Add a callback; return the function that removes it.

        Added while an event loop runs, it is called in that loop. Added without one, or as `ThreadSafeCallback`, it is
        called in the thread that notifies.
        """
        token = object()
        with self._lock:
            self._callbacks[token] = (callback, None if isinstance(callback, ThreadSafeCallback) else _running_loop())

        def remove() -> None:
            with self._lock:
                self._callbacks.pop(token, None)

        return remove

    def notify(self) -> None:
        """Report a change made here: call all callbacks, and log those that raise."""
        self._notify(frozenset())

    def forward(self) -> None:
        """Report a change reported by something else, unless it started here or has passed through already.

        This ends the notifications of lists that forward to each other in a circle.
        """
        if id(self) not in _path.passed:
            self._notify(_path.passed)

    def _notify(self, passed: frozenset[int]) -> None:
        before, _path.passed = _path.passed, passed | {id(self)}
        try:
            self._call_all()
        finally:
            _path.passed = before

    def _call_all(self) -> None:
        with self._lock:
            callbacks = tuple(self._callbacks.values())
        current = _running_loop()
        for callback, loop in callbacks:
            if loop is None or loop is current:
                call_logged(callback)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and its listener gone with it
                    loop.call_soon_threadsafe(call_logged, callback)


def call_logged(callback: Callable[[], None]) -> None:
    """Call it, and log the exception if it raises one: third-party code must not fail the change it is notified of."""
    try:
        callback()
    except (Exception, asyncio.CancelledError):
        logger.exception("a change listener raised")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
