"""Adapt objects of other shapes to `Provider`.

Three shapes are accepted, each with methods that are async or plain functions; plain ones run in threads:

- our own: `list_tools`, `call_tool`;
- metadata providers: `list_tool_metadata`, `get_tool`, `call_tool`;
- tools and execution: `get_tools`, `execute_tool`.

The optional methods of `Provider` are found by name on objects of any shape.
"""

import copy
import inspect
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

import anyio

from toolcrib.containment import WorkerThreads, is_nested_call_error
from toolcrib.errors import InvalidRequest, InvalidTool, ToolcribError, ToolNotFound
from toolcrib.providers.base import Provider, ProviderFeature, display_name, features_of, identity_of
from toolcrib.providers.definitions import ToolMetadata, parse_metadata, parse_tool, parse_tools
from toolcrib.types import JSON, Context, Hit, Key, Object, Rejected, SearchRequest, Tool, ToolResult, Visibility

logger = logging.getLogger(__name__)
THREADS: Final = 16
"""Plain functions of one provider that may run at once; one that hangs counts until it ends."""
SCHEMAS_AT_ONCE: Final = 16
"""Schemas that are fetched from one provider at the same time."""
_PRUNE_ABOVE: Final = 1024
_MAX_NAME_CHARS: Final = 80
"""Characters of a name that a reason repeats."""
_MAX_CAUSES: Final = 16
_PASSED_ON: Final = (
    "subscribe",
    "statuses",
    "documents",
    "request_document",
    "extensions",
    "request_extension",
    "notify_extension",
    "watch_resource",
    "subscribe_notifications",
)
"""Optional methods that an adapter takes from its object as they are."""
_OWN_METHODS: Final = ("list_tools", "call_tool")
_METADATA_METHODS: Final = ("list_tool_metadata", "get_tool", "call_tool")
_EXECUTE_METHODS: Final = ("get_tools", "execute_tool")
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "list_tools": ("ctx",),
    "call_tool": ("ctx", "name", "arguments"),
    "list_tool_metadata": ("ctx",),
    "get_tool": ("ctx", "name"),
    "get_tools": ("ctx",),
    "execute_tool": ("ctx", "name", "arguments"),
}
"""What each method is called with."""
_adapters: WeakValueDictionary[int, "Adapter"] = WeakValueDictionary()
_adapters_lock: Final = threading.Lock()


def adapt(provider: object) -> Provider:
    """Return the object as a `Provider`: itself if it is one, else an adapter, the same one each time.

    Raises `InvalidRequest`, which names the missing methods, for an object of none of the three shapes, and for one
    whose methods take other arguments.
    """
    if isinstance(provider, Provider):
        _check_class(type(provider))
        return provider
    kind = _adapter_class(provider)
    with _adapters_lock:
        # An adapter keeps its object alive, so the id of a living adapter's object is never reused.
        adapter = _adapters.get(id(provider))
        if adapter is None:
            _check_methods(provider, kind.methods)
            adapter = _adapters[id(provider)] = kind(provider)
        return adapter


def unadapted(provider: object) -> object:
    """Return the object behind an adapter; any other provider is returned as it is."""
    return provider.inner if isinstance(provider, Adapter) else provider


def _adapter_class(provider: object) -> "type[Adapter]":
    if isinstance(provider, type):
        raise InvalidRequest(f"{provider.__name__} is a class.", hint=f"Give an instance of it: {provider.__name__}().")
    if _has_methods(provider, _OWN_METHODS):
        is_async = all(inspect.iscoroutinefunction(getattr(provider, name)) for name in _OWN_METHODS)
        return _VerbatimAdapter if is_async else Adapter
    if _has_methods(provider, _METADATA_METHODS):
        return _MetadataAdapter
    if _has_methods(provider, _EXECUTE_METHODS):
        return _ExecuteAdapter
    raise _not_a_provider(provider)


@lru_cache(maxsize=1024)
def _check_class(kind: type[Provider]) -> None:
    """Check the methods of a provider's class once."""
    _check_methods(kind, _OWN_METHODS, "self")


def _check_methods(owner: object, methods: Iterable[str], *first: str) -> None:
    """Raise `InvalidRequest` for a method that cannot be called with the arguments that it gets."""
    for name in methods:
        method = getattr(owner, name)
        arguments = _ARGUMENTS[name]
        try:
            found = inspect.signature(method)
        except (TypeError, ValueError):  # a callable that does not say what it takes
            continue
        try:
            found.bind(*first, *arguments)
        except TypeError as error:
            kind = owner if isinstance(owner, type) else type(owner)
            raise InvalidRequest(
                f"{kind.__name__}.{name} cannot be called as {name}({', '.join(arguments)}): {error}.",
                hint=f"Write it as: async def {name}(self, {', '.join(arguments)})",
            ) from None


def _has_methods(provider: object, methods: Iterable[str]) -> bool:
    return all(callable(getattr(provider, name, None)) for name in methods)


def _not_a_provider(provider: object) -> InvalidRequest:
    """Say what the object lacks of the shape that it comes closest to."""
    shapes = (_OWN_METHODS, _METADATA_METHODS, _EXECUTE_METHODS)
    present = {name for shape in shapes for name in shape if _has_methods(provider, (name,))}
    nearest = max(shapes, key=lambda shape: len(present.intersection(shape)) / len(shape))
    missing = " and ".join(f"{name}()" for name in nearest if name not in present)
    return InvalidRequest(
        f"{type(provider).__name__} is not a tool provider: it has no {missing}.",
        hint="A provider has list_tools(ctx) and call_tool(ctx, name, arguments).",
    )


class Adapter(Provider):
    """A provider of another shape; made by `adapt`. It parses definitions, and runs plain functions in threads."""

    methods: ClassVar[tuple[str, ...]] = _OWN_METHODS
    """The methods that the object must have."""
    _list_method: ClassVar[str] = "list_tools"
    _call_method: ClassVar[str] = "call_tool"
    _default_visibility: ClassVar[Visibility] = Visibility.DISCOVERABLE

    def __init__(self, inner: object) -> None:
        self.inner: Any = inner
        self._features = features_of(lambda name: _has_methods(inner, (name,)))
        self._has_call_key = _has_methods(inner, ("call_key",))
        for method in _PASSED_ON:
            if _has_methods(inner, (method,)):
                setattr(self, method, getattr(inner, method))
        self.left_out: tuple[Rejected, ...] = ()
        """What was listed last and cannot be used."""
        self._workers = WorkerThreads(THREADS)
        self._tools: dict[Key, Tool] = {}
        self._definitions: dict[object, tuple[Mapping[str, Any], Tool]] = {}
        """By name, the last definition and the tool it became."""

    @property
    def name(self) -> str:
        """Name of the adapted object."""
        return display_name(self.inner)

    @property
    def namespace(self) -> str:
        """Namespace of the object's tools; empty if it does not say."""
        namespace = getattr(self.inner, "namespace", "")
        return namespace if isinstance(namespace, str) else ""

    @property
    def features(self) -> ProviderFeature:
        """The optional methods that the object has."""
        return self._features

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """List the tools; a broken definition is left out, and named in `left_out`."""
        self.left_out = ()
        values = self._check_list(await self._ask(getattr(self.inner, self._list_method), ctx))
        return self._unchanged([tool for value in values if (tool := self._parse_or_warn(value)) is not None])

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Call the tool; `ToolNotFound`, or an error caused by it, counts as None."""
        return await self._called(getattr(self.inner, self._call_method), ctx, name, arguments)

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Call the tool of that key."""
        if not self._has_call_key:
            return await self.call_tool(ctx, key.name, arguments)
        return await self._called(self.inner.call_key, ctx, key, arguments)

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """Look up one tool."""
        if ProviderFeature.LOOKUP not in self._features:
            tools = parse_tools(await self.list_tools(ctx))
            return next((tool for tool in tools if name in (tool.id, tool.name)), None)
        found = await self._called(self.inner.get_tool, ctx, name)
        return None if found is None else self._parse(found)

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """Search with the object's own search."""
        if ProviderFeature.SEARCH not in self._features:
            return ()
        found: Sequence[Hit] = await self._ask(self.inner.find_tools, ctx, request)
        return found if isinstance(found, list | tuple) else tuple(found or ())

    @property
    def cache_for_s(self) -> float | None:
        """How long the list may be kept, in seconds, if the object says so."""
        seconds: float | None = _said(self.inner, "cache_for_s")
        return seconds

    @property
    def cache_key(self) -> Hashable:
        """The object's cache key, for objects of its class only."""
        key: Hashable = _said(self.inner, "cache_key")
        return None if key is None else (type(self.inner), key)

    @property
    def cache_owner(self) -> Hashable:
        """That of the object."""
        return identity_of(self.inner)

    async def _ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Await the method, or run it in a thread if it is a plain function."""
        if inspect.iscoroutinefunction(method):
            return await method(*arguments)
        value = await self._workers.run(partial(method, *arguments))
        return await value if inspect.isawaitable(value) else value

    async def _called(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self._ask(method, *arguments)
        except Exception as error:
            if _is_not_found(error):
                return None
            raise

    def _check_list(self, values: object) -> Iterable[object]:
        """Return what was listed; the other shapes may say None for nothing. Raises `InvalidTool` for no list."""
        return () if values is None and self.methods != _OWN_METHODS else check_list(values, self.name)

    def _parse_or_warn(self, value: object) -> Tool | None:
        try:
            return self._parse_once(value) if isinstance(value, dict) else self._parse(value)
        except InvalidTool as error:
            self._leave_out(value, error)
            return None

    def _leave_out(self, value: object, error: ToolcribError) -> None:
        logger.warning("a tool of %s was left out: %s", self.name, error)
        self.left_out = (*self.left_out, Rejected(tool=name_of(value), reason=error.message))

    def _parse_once(self, definition: dict[str, Any]) -> Tool:
        """Parse a definition, unless it equals the last one of its name."""
        name = definition.get("name")
        seen = self._definitions.get(name) if isinstance(name, str) else None
        if seen is not None and seen[0] == definition:
            return seen[1]
        try:
            own = copy.deepcopy(definition)  # the provider may still change it in place
        except (TypeError, ValueError, RecursionError):
            return self._parse(definition)
        tool = self._parse(own)
        self._definitions[name] = (own, tool)
        return tool

    def _parse(self, value: object) -> Tool:
        return parse_tool(value, visibility=self._default_visibility)

    def _unchanged(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """Reuse the tool objects of last time that are equal: snapshots detect changes by identity."""
        known = self._tools
        same = tuple(old if (old := known.get(tool.key)) == tool and old is not None else tool for tool in tools)
        present = {tool.key: tool for tool in same}
        if len(known) > 2 * len(same) + _PRUNE_ABOVE:
            self._tools, self._definitions = present, {}
        else:
            self._tools = {**known, **present}
        return same


class _VerbatimAdapter(Adapter):
    """Our own shape with async methods: lists and errors are passed on as they are, for the gateway to check."""

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        listed: Sequence[Tool] = await self.inner.list_tools(ctx)
        return listed

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        if ProviderFeature.LOOKUP not in self._features:
            return await super().get_tool(ctx, name)
        found: Tool | None = await self._ask(self.inner.get_tool, ctx, name)
        return found

    async def _called(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return await self._ask(method, *arguments)


class _ExecuteAdapter(Adapter):
    """`get_tools` and `execute_tool`: a tool without a visibility is native."""

    methods = _EXECUTE_METHODS
    _list_method = "get_tools"
    _call_method = "execute_tool"
    _default_visibility = Visibility.NATIVE


class _MetadataAdapter(Adapter):
    """`list_tool_metadata`, `get_tool` and `call_tool`: a tool without a visibility is discoverable."""

    methods = _METADATA_METHODS

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """Look up each tool of the metadata, in its order; those that cannot be had are left out."""
        self.left_out = ()
        listed = await self._ask(self.inner.list_tool_metadata, ctx)
        entries = [entry for value in self._check_list(listed) if (entry := self._metadata(value)) is not None]
        found: dict[int, Tool] = {}
        limiter = anyio.Semaphore(SCHEMAS_AT_ONCE)
        async with anyio.create_task_group() as group:
            for place, entry in enumerate(entries):
                group.start_soon(self._fetch, ctx, entry, place, found, limiter)
        return self._unchanged([found[place] for place in sorted(found)])

    def _metadata(self, value: object) -> ToolMetadata | None:
        try:
            return parse_metadata(value)
        except InvalidTool as error:
            self._leave_out(value, error)
            return None

    async def _fetch(
        self, ctx: Context, entry: ToolMetadata, place: int, found: dict[int, Tool], limiter: anyio.Semaphore
    ) -> None:
        """Put the tool into `found`, or log why it is left out."""
        async with limiter:
            try:
                tool = await self.get_tool(ctx, entry.name)
            except Exception as error:
                why = str(error) if isinstance(error, ToolcribError) else type(error).__name__
                logger.warning('"%s" of %s was left out: %s', entry.name, self.name, why, exc_info=True)
                self.left_out = (*self.left_out, Rejected(tool=entry.name, reason=f"it could not be looked up: {why}"))
                return
        if tool is None:
            why = "it is listed, but there is no such tool"
            logger.warning('"%s" of %s was left out: %s', entry.name, self.name, why)
            self.left_out = (*self.left_out, Rejected(tool=entry.name, reason=why))
            return
        found[place] = replace(
            tool,
            name=entry.name,
            description=tool.description or entry.description,
            keywords=tuple(dict.fromkeys((*entry.keywords, *tool.keywords))),
        )

    def _parse(self, value: object) -> Tool:
        tool = super()._parse(value)
        is_built = not isinstance(value, Tool) and callable(getattr(value, "to_tool", None))
        # Builders default to native; in this shape the default is discoverable.
        defaulted = is_built and tool.visibility is Visibility.NATIVE
        return replace(tool, visibility=self._default_visibility) if defaulted else tool


def check_list(values: object, who: str) -> Iterable[object]:
    """Return what a provider listed. Raises `InvalidTool` for what is not a list of tools.

    >>> check_list(None, "Billing")
    Traceback (most recent call last):
    toolcrib.errors.InvalidTool: Billing listed None as its tools. Give a list.
    """
    if values is None or isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        what = "None" if values is None else f"a {type(values).__name__}"
        raise InvalidTool(f"{who} listed {what} as its tools.", hint="Give a list.")
    return values


def name_of(item: object) -> str:
    """The name of something that is no tool, as far as it has one."""
    try:
        found = item.get("name") if isinstance(item, Mapping) else getattr(item, "name", None)
        return str(found)[:_MAX_NAME_CHARS] if found else "(unnamed)"
    except Exception:  # noqa: BLE001 - third-party code; the item is left out anyway
        return "(unnamed)"


def _is_not_found(error: BaseException) -> bool:
    """Whether the error, or what caused it, is a `ToolNotFound` of this call and not of one nested in it."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None or isinstance(cause, ToolNotFound):
            break
        cause = cause.__cause__
    return isinstance(cause, ToolNotFound) and not is_nested_call_error(cause)


def _said(provider: object, name: str) -> Any:
    """The value of an attribute, which may be a method without arguments; None if there is none."""
    value = getattr(provider, name, None)
    return value() if inspect.ismethod(value) else value
