"""Other contracts for providers, as `ToolProvider`.

Three shapes are taken, each with methods that are async or plain functions; plain ones run in threads:

- our own: `list_tools`, `call_tool`;
- one that lists metadata first: `list_tool_metadata`, `get_tool`, `call_tool`;
- one that gives tools and executes them: `get_tools`, `execute_tool`.
"""

import inspect
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeGuard
from weakref import WeakValueDictionary

import anyio

from toolcrib.errors import InvalidRequest, InvalidTool, ToolcribError
from toolcrib.model import Tool, Visibility
from toolcrib.protocols import Context, ToolProvider
from toolcrib.providers.adapter import Adapter, Finder, Keyed, Lookup
from toolcrib.providers.definitions import ToolMetadata, metadata_from, tool_from
from toolcrib.providers.passing import FINDER, KEYED, LOOKUP, PLAIN

logger = logging.getLogger(__name__)

SCHEMAS_AT_ONCE: Final = 16
"""Schemas that are fetched from one provider at the same time."""

_OWN: Final = ("list_tools", "call_tool")
_METADATA: Final = ("list_tool_metadata", "get_tool", "call_tool")
_EXECUTE: Final = ("get_tools", "execute_tool")

_adapters: WeakValueDictionary[int, "Adapter"] = WeakValueDictionary()
_lock: Final = threading.Lock()


def adapt(provider: object) -> ToolProvider:
    """The object as a `ToolProvider`: itself where it is one already, else an adapter, always the same one.

    Raises `InvalidRequest`, naming the methods that are missing, for an object of none of the three shapes.
    """
    if _is_own(provider):
        return provider
    kind = _kind(provider)
    with _lock:
        # An adapter keeps its object alive, so that the number of a living one stands for that object alone.
        adapter = _adapters.get(id(provider))
        if adapter is None:
            adapter = _adapters[id(provider)] = kind(provider)
        return adapter


def original(provider: object) -> object:
    """What an adapter stands for; any other provider is itself."""
    return provider.inner if isinstance(provider, Adapter) else provider


def _is_own(provider: object) -> TypeGuard[ToolProvider]:
    """Whether the methods of our own contract are there, and are awaited."""
    return not isinstance(provider, type) and all(
        inspect.iscoroutinefunction(getattr(provider, name, None)) for name in _OWN
    )


def _kind(provider: object) -> "type[Adapter]":
    """The class of the adapter that the object needs."""
    if isinstance(provider, type):
        raise InvalidRequest(f"{provider.__name__} is a class.", hint=f"Give an instance of it: {provider.__name__}().")
    if _has(provider, _OWN):
        return _Own
    if _has(provider, _METADATA):
        return _Metadata
    if _has(provider, _EXECUTE):
        return _Execute
    raise _no_provider(provider)


def _has(provider: object, methods: Iterable[str]) -> bool:
    return all(callable(getattr(provider, name, None)) for name in methods)


def _no_provider(provider: object) -> InvalidRequest:
    """Says what the shape to which the object is closest still lacks."""
    shapes = (_OWN, _METADATA, _EXECUTE)
    present = {name for shape in shapes for name in shape if _has(provider, (name,))}
    nearest = max(shapes, key=lambda shape: len(present.intersection(shape)) / len(shape))
    missing = " and ".join(f"{name}()" for name in nearest if name not in present)
    return InvalidRequest(
        f"{type(provider).__name__} is no tool provider: it has no {missing}.",
        hint="A provider has list_tools(ctx) and call_tool(ctx, name, arguments).",
    )


class _Own(Adapter):
    """Our own contract, with methods of which some are plain functions."""

    _parts = ((KEYED, Keyed), (LOOKUP, Lookup), (FINDER, Finder), *PLAIN)


class _Execute(Adapter):
    """`get_tools` and `execute_tool`: a tool that says nothing of its visibility is native."""

    _parts = ((LOOKUP, Lookup), (FINDER, Finder), *PLAIN)
    _list = "get_tools"
    _call = "execute_tool"
    _visibility = Visibility.NATIVE


class _Metadata(Lookup):
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
            return metadata_from(value)
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


__all__ = ["Adapter", "ToolMetadata", "adapt", "original", "tool_from"]
