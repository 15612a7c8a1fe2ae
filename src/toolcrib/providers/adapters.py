"""Adapt other provider contracts to `ToolProvider`.

Three shapes are accepted, each with methods that are async or plain functions; plain ones run in threads:

- our own: `list_tools`, `call_tool`;
- metadata first: `list_tool_metadata`, `get_tool`, `call_tool`;
- tools and execution: `get_tools`, `execute_tool`.
"""

import copy
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, Self, TypeGuard
from weakref import WeakValueDictionary

import anyio

from toolcrib.containment import WorkerThreads, is_nested_call_error
from toolcrib.errors import InvalidRequest, InvalidTool, ToolcribError, ToolNotFound
from toolcrib.providers.base import FINDER, KEYED, LOOKUP, PLAIN, MixinRule, display_name, mixins_for, with_mixins
from toolcrib.providers.definitions import ToolMetadata, parse_metadata, parse_tool
from toolcrib.types import JSON, Context, Hit, Key, Object, SearchRequest, Tool, ToolProvider, ToolResult, Visibility

logger = logging.getLogger(__name__)


SCHEMAS_AT_ONCE: Final = 16
"""Schemas that are fetched from one provider at the same time."""


_OWN_METHODS: Final = ("list_tools", "call_tool")


_METADATA_METHODS: Final = ("list_tool_metadata", "get_tool", "call_tool")


_EXECUTE_METHODS: Final = ("get_tools", "execute_tool")


_adapters: WeakValueDictionary[int, "Adapter"] = WeakValueDictionary()


_adapters_lock: Final = threading.Lock()


def adapt(provider: object) -> ToolProvider:
    """The object as a `ToolProvider`: itself where it is one already, else an adapter, always the same one.

    Raises `InvalidRequest`, naming the methods that are missing, for an object of none of the three shapes.
    """
    if _is_tool_provider(provider):
        return provider
    kind = _adapter_class(provider)
    with _adapters_lock:
        # An adapter keeps its object alive, so that the number of a living one stands for that object alone.
        adapter = _adapters.get(id(provider))
        if adapter is None:
            adapter = _adapters[id(provider)] = kind(provider)
        return adapter


def unadapted(provider: object) -> object:
    """What an adapter stands for; any other provider is itself."""
    return provider.inner if isinstance(provider, Adapter) else provider


def _is_tool_provider(provider: object) -> TypeGuard[ToolProvider]:
    """Whether the methods of our own contract are there, and are awaited."""
    return not isinstance(provider, type) and all(
        inspect.iscoroutinefunction(getattr(provider, name, None)) for name in _OWN_METHODS
    )


def _adapter_class(provider: object) -> "type[Adapter]":
    """The class of the adapter that the object needs."""
    if isinstance(provider, type):
        raise InvalidRequest(f"{provider.__name__} is a class.", hint=f"Give an instance of it: {provider.__name__}().")
    if _has_methods(provider, _OWN_METHODS):
        return _OwnShapeAdapter
    if _has_methods(provider, _METADATA_METHODS):
        return _MetadataAdapter
    if _has_methods(provider, _EXECUTE_METHODS):
        return _ExecuteAdapter
    raise _not_a_provider(provider)


def _has_methods(provider: object, methods: Iterable[str]) -> bool:
    return all(callable(getattr(provider, name, None)) for name in methods)


def _not_a_provider(provider: object) -> InvalidRequest:
    """Says what the shape to which the object is closest still lacks."""
    shapes = (_OWN_METHODS, _METADATA_METHODS, _EXECUTE_METHODS)
    present = {name for shape in shapes for name in shape if _has_methods(provider, (name,))}
    nearest = max(shapes, key=lambda shape: len(present.intersection(shape)) / len(shape))
    missing = " and ".join(f"{name}()" for name in nearest if name not in present)
    return InvalidRequest(
        f"{type(provider).__name__} is no tool provider: it has no {missing}.",
        hint="A provider has list_tools(ctx) and call_tool(ctx, name, arguments).",
    )


class Adapter:
    """Another contract as `ToolProvider`; made by `adapt`."""

    _parts: ClassVar[Sequence[MixinRule]] = PLAIN
    _list: ClassVar[str] = "list_tools"
    _call: ClassVar[str] = "call_tool"
    _visibility: ClassVar[Visibility] = Visibility.DISCOVERABLE
    """Of tools that do not say."""

    def __new__(cls, inner: object) -> Self:
        """With the optional protocols that the object has."""
        adapter: Self = object.__new__(with_mixins(cls, mixins_for(inner, cls._parts)))
        return adapter

    def __init__(self, inner: object) -> None:
        """Use `adapt`."""
        self.inner: Any = inner
        self._workers = WorkerThreads(THREADS)
        self._kept: dict[Key, Tool] = {}
        self._seen: dict[object, tuple[Mapping[str, Any], Tool]] = {}
        """What was written under a name, and the tool it gave."""

    @property
    def name(self) -> str:
        """That of what it stands for."""
        return display_name(self.inner)

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """What its own method lists."""
        return self._tools(await self._ask(getattr(self.inner, self._list), ctx))

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """What its own method gives; None where it says that there is no such tool."""
        return await self._called(getattr(self.inner, self._call), ctx, name, arguments)

    async def _ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """What the method gives: awaited, or in a thread where it is a plain function."""
        if inspect.iscoroutinefunction(method):
            return await method(*arguments)
        value = await self._workers.run(partial(method, *arguments))
        return await value if inspect.isawaitable(value) else value

    async def _called(self, method: Callable[..., Any], *arguments: Any) -> ToolResult | JSON | None:
        """What a call gives; None where it says that there is no such tool."""
        try:
            return await self._ask(method, *arguments)
        except Exception as error:
            if _is_not_found(error):
                return None
            raise

    def _tools(self, values: object) -> tuple[Tool, ...]:
        """The definitions as tools; a broken one is left out, alone."""
        read = (self._tool(value) for value in self._listed(values))
        return self._same([tool for tool in read if tool is not None])

    def _listed(self, values: object) -> Iterable[object]:
        """What was listed; nothing for None."""
        if values is None:
            return ()
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise InvalidTool(f"{self.name} listed a {type(values).__name__} as its tools.", hint="Give a list.")
        return values

    def _tool(self, value: object) -> Tool | None:
        try:
            return self._read_again(value) if isinstance(value, dict) else self._read(value)
        except InvalidTool as error:
            logger.warning("a tool of %s was left out: %s", self.name, error)
            return None

    def _read_again(self, value: dict[str, Any]) -> Tool:
        """The tool of a definition; that of last time where it is written the same."""
        name = value.get("name")
        seen = self._seen.get(name) if isinstance(name, str) else None
        if seen is not None and seen[0] == value:
            return seen[1]
        try:
            written = copy.deepcopy(value)  # whoever gave it may still change it
        except (TypeError, ValueError, RecursionError):
            return self._read(value)
        tool = self._read(written)
        self._seen[name] = (written, tool)
        return tool

    def _read(self, value: object) -> Tool:
        return parse_tool(value, visibility=self._visibility)

    def _same(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """The tools, each as the very object it was last time where nothing in it changed."""
        kept = self._kept
        same = tuple(old if (old := kept.get(tool.key)) == tool and old is not None else tool for tool in tools)
        present = {tool.key: tool for tool in same}
        if len(kept) > 2 * len(same) + _PRUNE_ABOVE:
            self._kept, self._seen = present, {}
        else:
            self._kept = {**kept, **present}
        return same


class KeyedAdapter(Adapter):
    """`KeyedCalls`."""

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """What its own method says."""
        return await self._called(self.inner.call_key, ctx, key, arguments)


class LookupAdapter(Adapter):
    """`ToolLookup`."""

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """What its own method says; None where it says that there is no such tool."""
        found = await self._called(self.inner.get_tool, ctx, name)
        return None if found is None else self._read(found)


class FinderAdapter(Adapter):
    """`ToolFinder`."""

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """What its own method says."""
        return tuple(await self._ask(self.inner.find_tools, ctx, request) or ())


class _OwnShapeAdapter(Adapter):
    """Our own contract, with methods of which some are plain functions."""

    _parts = ((KEYED, KeyedAdapter), (LOOKUP, LookupAdapter), (FINDER, FinderAdapter), *PLAIN)


class _ExecuteAdapter(Adapter):
    """`get_tools` and `execute_tool`: a tool that says nothing of its visibility is native."""

    _parts = ((LOOKUP, LookupAdapter), (FINDER, FinderAdapter), *PLAIN)
    _list = "get_tools"
    _call = "execute_tool"
    _visibility = Visibility.NATIVE


class _MetadataAdapter(LookupAdapter):
    """`list_tool_metadata`, `get_tool` and `call_tool`: a tool that says nothing of its visibility is discoverable."""

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """The tools of the metadata, in its order, without those that cannot be had."""
        listed = await self._ask(self.inner.list_tool_metadata, ctx)
        entries = [entry for value in self._listed(listed) if (entry := self._entry(value)) is not None]
        found: dict[int, Tool] = {}
        places = anyio.Semaphore(SCHEMAS_AT_ONCE)
        async with anyio.create_task_group() as group:
            for place, entry in enumerate(entries):
                group.start_soon(self._fetch, ctx, entry, place, found, places)
        return self._same([found[place] for place in sorted(found)])

    def _entry(self, value: object) -> ToolMetadata | None:
        try:
            return parse_metadata(value)
        except InvalidTool as error:
            logger.warning("a tool of %s was left out: %s", self.name, error)
            return None

    async def _fetch(
        self, ctx: Context, entry: ToolMetadata, place: int, found: dict[int, Tool], places: anyio.Semaphore
    ) -> None:
        """Put the tool in its place; leave it out, with a word in the log, where it cannot be had."""
        async with places:
            try:
                tool = await self.get_tool(ctx, entry.name)
            except Exception as error:
                why = str(error) if isinstance(error, ToolcribError) else type(error).__name__
                logger.warning('"%s" of %s was left out: %s', entry.name, self.name, why, exc_info=True)
                return
        if tool is None:
            logger.warning('"%s" of %s was left out: it is listed, but there is no such tool', entry.name, self.name)
            return
        found[place] = replace(
            tool,
            name=entry.name,
            description=tool.description or entry.description,
            keywords=tuple(dict.fromkeys((*entry.keywords, *tool.keywords))),
        )

    def _read(self, value: object) -> Tool:
        tool = super()._read(value)
        untagged = not isinstance(value, Tool) and callable(getattr(value, "to_tool", None))
        # A builder makes native tools unless it is told otherwise; in this shape, nothing said means discoverable.
        native = untagged and tool.visibility is Visibility.NATIVE
        return replace(tool, visibility=self._visibility) if native else tool


THREADS: Final = 16
"""Plain functions of one provider that run at the same time; one that hangs counts until it ends."""


_PRUNE_ABOVE: Final = 1024


_MAX_CAUSES: Final = 16


def _is_not_found(error: BaseException) -> bool:
    """Whether the error, or what caused it, says that there is no such tool; not one that was called inside."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None or isinstance(cause, ToolNotFound):
            break
        cause = cause.__cause__
    return isinstance(cause, ToolNotFound) and not is_nested_call_error(cause)
