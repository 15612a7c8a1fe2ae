"""What all adapters of other contracts share: asking, reading what comes back, and passing on the rest."""

import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Self

from toolcrib.errors import InvalidTool, ToolNotFound
from toolcrib.model import JSON, Hit, Key, Object, SearchRequest, Tool, ToolResult, Visibility
from toolcrib.protocols import Context
from toolcrib.providers.definitions import tool_from
from toolcrib.providers.foreign import left_one_inside
from toolcrib.providers.keyed import label
from toolcrib.providers.passing import PLAIN, Part, parts_for, variant
from toolcrib.providers.workers import Workers

logger = logging.getLogger(__name__)

THREADS: Final = 16
"""Plain functions of one provider that run at the same time; one that hangs counts until it ends."""

_FORGET_ABOVE: Final = 1024
_CAUSES: Final = 16


class Adapter:
    """Another contract as `ToolProvider`; made by `adapt`."""

    _parts: ClassVar[Sequence[Part]] = PLAIN
    _list: ClassVar[str] = "list_tools"
    _call: ClassVar[str] = "call_tool"
    _visibility: ClassVar[Visibility] = Visibility.DISCOVERABLE
    """Of tools that do not say."""

    def __new__(cls, inner: object) -> Self:
        """With the optional protocols that the object has."""
        adapter: Self = object.__new__(variant(cls, parts_for(inner, cls._parts)))
        return adapter

    def __init__(self, inner: object) -> None:
        """Use `adapt`."""
        self.inner: Any = inner
        self._workers = Workers(THREADS)
        self._kept: dict[Key, Tool] = {}
        self._seen: dict[object, tuple[Mapping[str, Any], Tool]] = {}
        """What was written under a name, and the tool it gave."""

    @property
    def name(self) -> str:
        """That of what it stands for."""
        return label(self.inner)

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
            if _means_not_found(error):
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
        return tool_from(value, visibility=self._visibility)

    def _same(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """The tools, each as the very object it was last time where nothing in it changed."""
        kept = self._kept
        same = tuple(old if (old := kept.get(tool.key)) == tool and old is not None else tool for tool in tools)
        present = {tool.key: tool for tool in same}
        if len(kept) > 2 * len(same) + _FORGET_ABOVE:
            self._kept, self._seen = present, {}
        else:
            self._kept = {**kept, **present}
        return same


def _means_not_found(error: BaseException) -> bool:
    """Whether the error, or what caused it, says that there is no such tool; not one that was called inside."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if cause is None or isinstance(cause, ToolNotFound):
            break
        cause = cause.__cause__
    return isinstance(cause, ToolNotFound) and not left_one_inside(cause)


class Keyed(Adapter):
    """`KeyedCalls`."""

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """What its own method says."""
        return await self._called(self.inner.call_key, ctx, key, arguments)


class Lookup(Adapter):
    """`ToolLookup`."""

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """What its own method says; None where it says that there is no such tool."""
        found = await self._called(self.inner.get_tool, ctx, name)
        return None if found is None else self._read(found)


class Finder(Adapter):
    """`ToolFinder`."""

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """What its own method says."""
        return tuple(await self._ask(self.inner.find_tools, ctx, request) or ())


__all__ = ["THREADS", "Adapter", "Finder", "Keyed", "Lookup"]
