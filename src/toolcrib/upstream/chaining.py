"""Gateways behind this one: servers that hide their tools behind a search of their own, such as another toolcrib.

Tools that such a server lists by name are listed here. The rest is found through its `tool_search` and run through
its `execute_tool`; nothing about it is known before a search.

Search replies may be toolcrib's own, or of servers like it: a list of entries with `name`, `description`, `score` and
`input_schema` or `inputSchema`, as structured content or as JSON in a text block.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio
from pydantic_core import from_json

from toolcrib.errors import ExecutionFailed, InvalidName, ServerUnavailable
from toolcrib.names import check_key, check_name, wire_name
from toolcrib.schema import signature
from toolcrib.types import (
    PATH_META,
    Caller,
    Context,
    Filters,
    Hit,
    Key,
    Object,
    Rejected,
    SearchRequest,
    Tool,
    ToolResult,
    Visibility,
)
from toolcrib.upstream.http import HttpNetwork
from toolcrib.upstream.listing import EXECUTE_TOOL, META_TOOLS, SEARCH_TOOL, RemoteTool
from toolcrib.upstream.loop_detection import forwarded_context
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.server import UpstreamServer
from toolcrib.wire import read_tool

_MAX_REMEMBERED: Final = 8192
"""Names of tools remembered, two a tool, of all callers together."""


_REMEMBERED_S: Final = 300.0


_LOOKUP_LIMIT: Final = 10
"""Hits among which an exact name is looked for."""


_INVALID_REQUEST: Final = "invalid_request:"
"""How the refusal of a request begins that asks for what the server does not have, such as an unknown tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHit:
    """One entry."""

    tool: Tool
    score: float
    """0..1."""
    raw: float
    """As the entry says."""
    has_schema: bool
    """Whether the entry has the tool's schema; where it has not, the tool takes any object."""
    weak: bool


class ChainedServer(UpstreamServer):
    """A `ToolProvider` that is also a `ToolFinder` and a `ToolLookup`."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions, network: HttpNetwork) -> None:
        """Nothing is tried before `run`."""
        super().__init__(options, fleet, network)
        self._memory = _FoundTools()

    # -- finding ---------------------------------------------------------------------------------------------------

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """What its own search finds, best first; nothing where the request has been here before.

        Raises `ServerUnavailable` when the server cannot be asked, fails, or takes longer than `find_timeout_s`.
        """
        onward = self._onward(ctx)
        if onward is None or not self._may_have(request.filters):
            return ()
        search = await self._meta_tool(SEARCH_TOOL)
        if search is None or (request.filters.tags and "tags" not in _search_parameters(search)):
            return ()
        asked = [_search_arguments(search, query, request.filters, request.limit) for query in request.queries]
        replies = await self._searched(onward, search, asked)
        hits = [hit for query, reply in enumerate(replies) for hit in self._hits(ctx, reply, query, request.filters)]
        return sorted(hits, key=lambda hit: (-hit.score, hit.tool.id))

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """The tool of that name: listed, found before, or looked for now.

        The name may stand alone, after our namespace and a colon, or as the wire name of what was found before.
        """
        own = name.removeprefix(f"{self.namespace}:")
        if own in META_TOOLS or not _is_name(own):
            return None
        offer = self._supervisor.tool_list.by_name.get(own)
        if offer is not None:
            return offer.tool
        return self._memory.get(ctx.caller, name, own) or await self._looked_up(ctx, own)

    async def _looked_up(self, ctx: Context, name: str) -> Tool | None:
        onward, search = self._onward(ctx), await self._meta_tool(SEARCH_TOOL)
        if onward is None or search is None:
            return None
        (reply,) = await self._searched(onward, search, [_search_arguments(search, name, Filters(), _LOOKUP_LIMIT)])
        for found in self._usable(reply, Filters()):
            if found.tool.name == name:
                return self._memory.keep(ctx.caller, found.tool)
        return None

    # -- calling ---------------------------------------------------------------------------------------------------

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run a listed tool as `UpstreamServer` does, and any other through the server's `execute_tool`."""
        if name in META_TOOLS:
            return None
        if await self._offer(name) is not None:
            return await super().call_tool(ctx, name, arguments)
        onward, execute = forwarded_context(ctx, self.gateway_id), await self._meta_tool(EXECUTE_TOOL)
        if onward is None or execute is None or (tool := await self.get_tool(ctx, name)) is None:
            return None
        result = await self._run(onward, execute, {"name": tool.name, "arguments": dict(arguments)}, name)
        if result.is_error:
            # Perhaps because its definition is another one by now.
            self._memory.drop(ctx.caller, tool)
        return result

    # -- asking its search -----------------------------------------------------------------------------------------

    def _onward(self, ctx: Context) -> Context | None:
        """The context of a request of ours on behalf of that one: who asked first, and through whom; nothing else."""
        passed = forwarded_context(ctx, self.gateway_id)
        if passed is None:
            return None
        return Context(caller=ctx.caller, session=ctx.session, meta={PATH_META: passed.meta[PATH_META]})

    async def _meta_tool(self, name: str) -> RemoteTool | None:
        """Its own meta-tool, where it has one now. Raises `ServerUnavailable`; does not wait for a connection."""
        if self._supervisor.connection is None:
            raise self._unavailable()
        return self._supervisor.tool_list.by_name.get(name)

    def _may_have(self, filters: Filters) -> bool:
        in_namespace = not filters.namespaces or self.namespace in filters.namespaces
        return in_namespace and (not filters.visibility or Visibility.DISCOVERABLE in filters.visibility)

    async def _searched(self, ctx: Context, search: RemoteTool, asked: Sequence[dict[str, Any]]) -> list[ToolResult]:
        """A reply a query, all asked at once."""
        replies: dict[int, ToolResult] = {}
        failures: list[ExecutionFailed] = []

        async def ask(place: int, arguments: dict[str, Any]) -> None:
            try:
                replies[place] = await self._call(ctx, search, arguments)
            except ExecutionFailed as error:
                failures.append(error)

        with anyio.move_on_after(self.options.find_timeout_s):
            async with anyio.create_task_group() as group:
                for place, arguments in enumerate(asked):
                    group.start_soon(ask, place, arguments)
        if failures:
            raise self._unsearched(failures[0].message) from failures[0]
        if len(replies) < len(asked):
            raise self._unsearched(f"no answer within {self.options.find_timeout_s:g} s")
        return [replies[place] for place in range(len(asked))]

    def _unsearched(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(
            f'The search of "{self.name}" failed: {reason.rstrip(".")}.',
            hint="Its hidden tools could not be looked for.",
            data={"server": self.name, "reason": reason},
        )

    # -- reading its replies ---------------------------------------------------------------------------------------

    def _hits(self, ctx: Context, reply: ToolResult, query: int, filters: Filters) -> Iterator[Hit]:
        for found in self._usable(reply, filters):
            tool = self._listed_as(found)
            if tool is None:
                tool = self._memory.keep(ctx.caller, found.tool) if found.has_schema else found.tool
            yield to_hit(found, tool=tool, query=query, signature=signature(tool))

    def _usable(self, reply: ToolResult, filters: Filters) -> Iterator[RemoteHit]:
        if refusal := refusal_reason(reply):
            if refusal.startswith(_INVALID_REQUEST):
                return
            raise self._unsearched(refusal)
        for found in parse_search_reply(reply, namespace=self.namespace, tags=filters.tags):
            if self._is_allowed(found.tool.name) and _matches(found.tool, filters):
                yield found

    def _is_allowed(self, name: str) -> bool:
        allowed = self.options.allowed_tools
        return name not in META_TOOLS and (allowed is None or name in allowed)

    def _listed_as(self, found: RemoteHit) -> Tool | None:
        """The tool as it is listed by name, where it is: there a toolcrib gives it its wire name."""
        namespace, _, name = found.tool.name.rpartition(":")
        offers = self._supervisor.tool_list.by_name
        offer = offers.get(found.tool.name) or offers.get(wire_name(Key(namespace, name)))
        return offer.tool if offer is not None else None


def _search_parameters(search: RemoteTool) -> frozenset[str]:
    properties = search.tool.input_schema.get("properties")
    return frozenset(properties) if isinstance(properties, dict) else frozenset()


def _search_arguments(search: RemoteTool, query: str, filters: Filters, limit: int | None) -> dict[str, Any]:
    """Arguments of `tool_search`: what there is to say, as far as its schema knows it."""
    wanted: dict[str, Any] = {"detail": "full", "group": False, "budget": 0}
    if limit is not None:
        wanted["max_results"] = limit
    if filters.tags:
        wanted["tags"] = sorted(filters.tags)
    if filters.read_only is not None:
        wanted["read_only"] = filters.read_only
    known = _search_parameters(search)
    return {"query": query, **{key: value for key, value in wanted.items() if key in known}}


def _matches(tool: Tool, filters: Filters) -> bool:
    return filters.read_only is None or (tool.annotations.get("readOnlyHint") is True) is filters.read_only


def _is_name(text: str) -> bool:
    try:
        check_name(text)
    except InvalidName:
        return False
    return True


class _FoundTools:
    """Tools that were found a short while ago, for whoever found them. The least recently found go first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Caller, str], tuple[Tool, float]] = OrderedDict()

    def get(self, caller: Caller, *names: str) -> Tool | None:
        """What is known by the first of the names that is known at all, its own or its wire name."""
        for name in names:
            tool, until = self._kept.get((caller, name), (None, 0.0))
            if tool is not None and time.monotonic() < until:
                return tool
        return None

    def keep(self, caller: Caller, tool: Tool) -> Tool:
        """The tool, as the same object as before where it did not change."""
        known = self.get(caller, tool.name)
        entry = (known if known == tool else tool, time.monotonic() + _REMEMBERED_S)
        for name in (tool.name, wire_name(tool.key)):
            self._kept[caller, name] = entry
            self._kept.move_to_end((caller, name))
        while len(self._kept) > _MAX_REMEMBERED:
            self._kept.popitem(last=False)
        return entry[0]

    def drop(self, caller: Caller, tool: Tool) -> None:
        for name in (tool.name, wire_name(tool.key)):
            self._kept.pop((caller, name), None)


_ENTRY_KEYS: Final = ("hits", "tools", "results", "result")
"""Where an object holds the list of entries."""


_MAX_ENTRIES: Final = 100
"""Entries read of one reply."""


_DEFAULT_SCORE: Final = 0.5
"""The score of an entry that has none."""


_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


def parse_search_reply(
    result: ToolResult, *, namespace: str, tags: frozenset[str] = frozenset()
) -> tuple[RemoteHit, ...]:
    """The usable entries, in their order; `tags` are those that every one of them was asked to have.

    The tool's name is the entry's, as it is: `github:create_issue` of a server `far` has the id
    `far:github:create_issue`. What is shown although nothing fits is left out.

    >>> text = '[{"name": "git:log", "description": "Show commits.", "score": 7}]'
    >>> (found,) = parse_search_reply(ToolResult(content=({"type": "text", "text": text},)), namespace="far")
    >>> found.tool.id, found.score, found.raw
    ('far:git:log', 1.0, 7.0)
    """
    return tuple(
        found
        for entry in _entries(result)[:_MAX_ENTRIES]
        if isinstance(entry, dict)
        and entry.get("fallback") is not True
        and (found := _remote_hit(entry, namespace, tags)) is not None
    )


def to_hit(found: RemoteHit, *, tool: Tool, query: int, signature: str) -> Hit:
    """The entry as a hit, for the query at that place."""
    return Hit(tool=tool, score=found.score, raw=found.raw, query=query, signature=signature, weak=found.weak)


def refusal_reason(result: ToolResult) -> str:
    """Why the search was not done, with a code before a colon where there is one; empty where it was."""
    if not result.is_error:
        return ""
    error = result.structured.get("error") if isinstance(result.structured, dict) else None
    if isinstance(error, dict):
        return f"{error.get('code')}: {error.get('message')}"
    return next((text for text in _texts(result)), "it answered with an error")


def _entries(result: ToolResult) -> Sequence[Any]:
    return next((entries for value in _values(result) if (entries := _entry_list(value)) is not None), ())


def _values(result: ToolResult) -> Iterator[Any]:
    yield result.structured
    for text in _texts(result):
        try:
            yield from_json(text)
        except ValueError:
            continue


def _texts(result: ToolResult) -> Iterator[str]:
    for block in result.content:
        if block.get("type") == "text" and isinstance(text := block.get("text"), str):
            yield text


def _entry_list(value: Any) -> list[Any] | None:
    if isinstance(value, dict):
        value = next((value[key] for key in _ENTRY_KEYS if isinstance(value.get(key), list)), None)
    return value if isinstance(value, list) else None


def _remote_hit(entry: dict[str, Any], namespace: str, tags: frozenset[str]) -> RemoteHit | None:
    schema = entry.get("input_schema") or entry.get("inputSchema")
    definition = {
        "name": entry.get("name"),
        "title": entry.get("title"),
        "description": entry.get("description"),
        "inputSchema": schema or _ANY_OBJECT,
        "annotations": entry.get("annotations"),
    }
    tool = read_tool({key: value for key, value in definition.items() if value is not None}, namespace=namespace)
    if isinstance(tool, Rejected) or not _has_valid_name(tool):
        return None
    raw = _number(entry.get("score"))
    return RemoteHit(
        tool=replace(
            tool,
            keywords=_strings(entry.get("keywords")),
            tags=tuple(sorted({*_strings(entry.get("tags")), *tags})),
        ),
        score=_DEFAULT_SCORE if raw is None else min(1.0, max(0.0, raw)),
        raw=raw or 0.0,
        has_schema=schema is not None,
        weak=entry.get("weak") is True,
    )


def _has_valid_name(tool: Tool) -> bool:
    try:
        check_key(tool.key)
    except InvalidName:
        return False
    return True


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
