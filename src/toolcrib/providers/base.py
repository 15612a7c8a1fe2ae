"""The `Provider` contract: what a source of tools offers, and helpers for those that hold providers.

A provider lists and runs tools. Its optional parts are methods with defaults, and `ProviderFeature` says which of them
it has. The helpers find tools by key, name providers in logs, and keep lists of callbacks.
"""

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Any, ClassVar, Final, Protocol

from toolcrib.checks import checked
from toolcrib.errors import ExecutionFailed
from toolcrib.providers.definitions import parse_tools
from toolcrib.types import (
    JSON,
    BackendKind,
    Caller,
    Context,
    Hit,
    Key,
    Object,
    SameObject,
    SearchRequest,
    ServerStatus,
    Tool,
    ToolProvider,
    ToolResult,
    Unsubscribe,
)

logger = logging.getLogger(__name__)


class ProviderFeature(Flag):
    """The optional parts of a provider."""

    NONE = 0
    LOOKUP = auto()
    """`get_tool` finds tools that `list_tools` may leave out, because there are too many to list."""
    SEARCH = auto()
    """`find_tools` searches."""
    CHANGES = auto()
    """`subscribe` reports every change, so that the list need not be polled."""
    STATUS = auto()
    """`statuses` reports on servers."""
    DOCUMENTS = auto()
    """It has prompts and resources, all of one namespace."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Prompts and resources as a server last listed them: wire JSON, in its order, by the server's own names."""

    prompts: Mapping[str, Object] = field(default_factory=dict)
    resources: Mapping[str, Object] = field(default_factory=dict)
    """Resources by their URI."""
    templates: Mapping[str, Object] = field(default_factory=dict)
    """Resource templates, by `uriTemplate`."""
    reads: bool = False
    """Whether it has any resources, listed or not."""
    completes: bool = False
    """Whether it completes arguments of prompts and templates."""
    watches: bool = False
    """Whether clients can subscribe to single resources."""


LogAudience = tuple[Caller, str | None]
"""A caller, and the session if it is known to belong to that caller alone."""
OnNotification = Callable[[LogAudience | None, str, Object], None]
"""Learns of a server's notification: its audience, None if that is not a single caller, its method, and its params."""


class Provider(ABC):
    """Where tools come from. A subclass has `list_tools` and `call_tool`, and overrides what else it supports.

    Objects of other shapes become one by `toolcrib.providers.adapters.adapt`.
    """

    _own_features: ClassVar[ProviderFeature] = ProviderFeature.NONE
    runs_elsewhere: ClassVar[bool] = False
    """Whether its tools run in another process, so that a call runs no code of others in this one."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._own_features = features_of(lambda name: getattr(cls, name) is not getattr(Provider, name))

    @property
    def features(self) -> ProviderFeature:
        """The optional parts that it has: those whose methods the class overrides."""
        return self._own_features

    @abstractmethod
    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """List the tools on offer, in any order."""

    @abstractmethod
    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that name (without namespace); return None if there is none.

        Any other value becomes a result: text as it is, everything else as JSON.
        """

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that key; return None if there is none. Override it if there are several namespaces."""
        return await self.call_tool(ctx, key.name, arguments)

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """Look up one tool by its name, with or without its namespace."""
        return next((tool for tool in await self.list_tools(ctx) if name in (tool.id, tool.name)), None)

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:  # noqa: ARG002 - to override
        """Search: the best hits, best first, with scores from 0 to 1. Their tools are called by key."""
        return ()

    @property
    def cache_for_s(self) -> float | None:
        """How long the list of tools may be kept, in seconds; None if it does not say."""
        return None

    @property
    def cache_key(self) -> Hashable:
        """What the list of this provider depends on; None means that it is not kept between requests."""
        return None

    @property
    def cache_owner(self) -> Hashable:
        """Whose list it is: a kept list is only shown for the same object, or for one that is equal to it."""
        return identity_of(self)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:  # noqa: ARG002 - to override
        """Call back, from the event loop and without arguments, whenever the list or a status changed."""
        return do_nothing

    def statuses(self) -> Sequence[ServerStatus]:
        """One status for each server that it speaks for, by name."""
        return ()

    def documents(self) -> Documents | None:
        """Its prompts and resources; the same object while nothing changed, None before they are known."""
        return None

    async def request_document(self, ctx: Context, method: str, params: Object) -> ToolResult:  # noqa: ARG002 - to override
        """Answer `prompts/get`, `resources/read` or `completion/complete`; the whole answer is structured content."""
        raise ExecutionFailed(f"{getattr(self, 'name', type(self).__name__)} does not answer {method}.")

    def extensions(self) -> Mapping[str, Object]:
        """The extensions of the protocol that it declares, by name, with what it says of each."""
        return {}

    async def request_extension(self, ctx: Context, method: str, params: Object) -> ToolResult:  # noqa: ARG002 - to override
        """Answer a method of an extension; the whole answer is structured content."""
        raise ExecutionFailed(f"{getattr(self, 'name', type(self).__name__)} does not answer {method}.")

    async def notify_extension(self, ctx: Context, method: str, params: Object) -> None:  # noqa: B027 - to override
        """Take a client's notification of an extension."""

    async def request_task(self, ctx: Context, method: str, task_id: str) -> ToolResult:  # noqa: ARG002 - to override
        """Answer `tasks/get`, `tasks/cancel` or `tasks/result` for a task that a call has created, by its own id."""
        raise ExecutionFailed(f"{getattr(self, 'name', type(self).__name__)} does not answer {method}.")

    async def watch_resource(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:  # noqa: ARG002 - to override
        """Call back with its URI, on behalf of a caller, whenever that resource or one below it changed."""
        raise ExecutionFailed(f"{getattr(self, 'name', type(self).__name__)} does not report changes of resources.")

    def subscribe_notifications(self, callback: OnNotification) -> Unsubscribe:  # noqa: ARG002 - to override
        """Call back with each log message (`notifications/message`) and notification of an extension."""
        return do_nothing

    def roots_changed(self, ctx: Context) -> None:  # noqa: B027 - to override
        """Pass on that the client of the context's session has other roots now."""

    def end_session(self, ctx: Context) -> None:  # noqa: B027 - to override
        """Release what belongs to the session of this context, which has ended."""

    def explain_change(self, key: Key, arguments: Object) -> str:  # noqa: ARG002 - to override
        """What changed in a tool, if the arguments fit an earlier version of it; empty if that is not known."""
        return ""

    def wake(self) -> None:  # noqa: B027 - to override
        """Try to connect now instead of later: a caller wants a tool that it may have."""


def identity_of(provider: object) -> Hashable:
    """The object, to compare with others: by its own `==` if it can be hashed, else as one object.

    >>> identity_of("garden") == identity_of("garden"), identity_of([1]) == identity_of([1])
    (True, False)
    """
    try:
        hash(provider)
    except Exception:  # noqa: BLE001 - third-party code
        return SameObject(provider)
    return provider


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


_FEATURE_METHODS: Final = {
    "get_tool": ProviderFeature.LOOKUP,
    "find_tools": ProviderFeature.SEARCH,
    "subscribe": ProviderFeature.CHANGES,
    "statuses": ProviderFeature.STATUS,
    "documents": ProviderFeature.DOCUMENTS,
}


def features_of(has_method: Callable[[str], bool]) -> ProviderFeature:
    """The features of a provider, given which methods it has of its own."""
    features = ProviderFeature.NONE
    for method, feature in _FEATURE_METHODS.items():
        if has_method(method):
            features |= feature
    return features


def do_nothing() -> None:
    """End a subscription that nothing comes from."""


def end_all(subscriptions: Sequence[Unsubscribe]) -> Unsubscribe:
    """One function that ends all of these subscriptions."""

    def end() -> None:
        for one in subscriptions:
            one()

    return end


class ChangeSource(Protocol):
    """Anything that reports changes."""

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, from the event loop and without arguments, on each change."""


class ProviderSource(Protocol):
    """A changing set of shared providers, such as a fleet of servers."""

    @property
    def kind(self) -> BackendKind:
        """The kind of its providers."""

    def providers(self) -> Sequence[ToolProvider]:
        """Return the current providers, in order of precedence."""

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, from the event loop, whenever a provider is added or removed, or changes its tools or status."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A provider that can run a tool."""

    kind: BackendKind
    name: str
    provider: Provider


BackendSelector = Callable[[Sequence[Backend]], Sequence[Backend] | Backend]
"""Orders the backends of a tool; those it leaves out are not tried. It may return a single backend."""
