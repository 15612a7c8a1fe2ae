"""Gateways behind this one: servers that hide their tools behind a search of their own, such as another toolcrib.

Tools that such a server lists by name are listed here. The rest is found through its `tool_search` and run through
its `execute_tool`; nothing about it is known before a search.

Search replies may be toolcrib's own, or of servers like it: a list of entries with `name`, `description`, `score` and
`input_schema` or `inputSchema`, as structured content or as JSON in a text block.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    SearchRequest,
    Tool,
    ToolResult,
    Visibility,
)
from toolcrib.upstream.catalog.cache import CatalogCache
from toolcrib.upstream.catalog.listing import EXECUTE_TOOL, META_TOOLS, SEARCH_TOOL, RemoteTool
from toolcrib.upstream.deadlines import Deadline
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.remote_server import Logins
from toolcrib.upstream.server import UpstreamServer
from toolcrib.wire import forwarded_context, read_tool

_MAX_REMEMBERED: Final = 8192
"""Remembered names of tools, two per tool, for all callers together."""
_REMEMBERED_S: Final = 300.0
_LOOKUP_LIMIT: Final = 10
"""Hits searched for an exact name."""
_INVALID_REQUEST: Final = "invalid_request:"
"""Prefix of a refusal because the request asks for something the server does not have, such as an unknown tag."""
_ENTRY_KEYS: Final = ("hits", "tools", "results", "result")
"""Where a reply object may have its list of entries."""
_MAX_ENTRIES: Final = 100
"""Entries read from one reply."""
_DEFAULT_SCORE: Final = 0.5
"""The score of an entry without one."""
_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHit:
    """One entry of a search reply."""

    tool: Tool
    score: float
    """0..1."""
    raw: float
    """The score in the reply."""
    has_schema: bool
    """Whether the entry has the tool's schema; otherwise the tool takes any object."""
    weak: bool


class ChainedServer(UpstreamServer):
    """A server that is another toolcrib: its own search finds the tools that it does not list."""

    def __init__(
        self,
        options: ServerOptions,
        fleet: FleetOptions,
        cache: CatalogCache | None = None,
        logins: Logins | None = None,
    ) -> None:
        super().__init__(options, fleet, cache, logins)
        self._found = _FoundTools()

    # -- finding ---------------------------------------------------------------------------------------------------

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """Search with the server's own search, best first; empty if the request has passed this gateway before.

        Raises `ServerUnavailable` if the server cannot be reached, fails, or takes longer than `find_timeout_s`.
        """
        forwarded = self._forwarded(ctx)
        if forwarded is None or not self._may_have(request.filters):
            return ()
        search = await self._meta_tool(SEARCH_TOOL)
        if search is None or (request.filters.tags and "tags" not in _search_parameters(search)):
            return ()
        asked = [_search_arguments(search, query, request.filters, request.limit) for query in request.queries]
        replies = await self._search_all(forwarded, search, asked)
        hits: list[Hit] = []
        for query, reply in enumerate(replies):
            usable = await self._without_held(self._usable(reply, request.filters))
            hits += [self._hit(ctx, found, query) for found in usable]
        return sorted(hits, key=lambda hit: (-hit.score, hit.tool.id))

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """Return the tool of that name: listed, found before, or searched for now.

        The name may be bare, prefixed with our namespace and a colon, or the wire name of a tool found before.
        """
        own = name.removeprefix(f"{self.namespace}:")
        if own in META_TOOLS or not _is_name(own):
            return None
        listed = self._supervisor.tool_list.by_name.get(own)
        if listed is not None:
            return listed.tool
        return self._found.get(ctx.caller, name, own) or await self._search_name(ctx, own)

    async def _search_name(self, ctx: Context, name: str) -> Tool | None:
        forwarded, search = self._forwarded(ctx), await self._meta_tool(SEARCH_TOOL)
        if forwarded is None or search is None:
            return None
        (reply,) = await self._search_all(
            forwarded, search, [_search_arguments(search, name, Filters(), _LOOKUP_LIMIT)]
        )
        for found in await self._without_held(self._usable(reply, Filters())):
            if found.tool.name == name:
                return self._found.keep(ctx.caller, found.tool)
        return None

    # -- calling ---------------------------------------------------------------------------------------------------

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run a listed tool as `UpstreamServer` does, and any other through the server's `execute_tool`."""
        if name in META_TOOLS:
            return None
        if name in await self._listed_tools(ctx):
            return await super().call_tool(ctx, name, arguments)
        forwarded, execute = forwarded_context(ctx, self.gateway_id), await self._meta_tool(EXECUTE_TOOL)
        if forwarded is None or execute is None or (tool := await self.get_tool(ctx, name)) is None:
            return None
        result = await self._run(forwarded, execute, {"name": tool.name, "arguments": dict(arguments)}, name)
        if result.is_error:
            # Its definition may have changed.
            self._found.drop(ctx.caller, tool)
        return result

    # -- asking its search -----------------------------------------------------------------------------------------

    def _forwarded(self, ctx: Context) -> Context | None:
        """Return the context of our own request on behalf of `ctx`: only who asked first, and through which
        gateways.
        """
        passed = forwarded_context(ctx, self.gateway_id)
        if passed is None:
            return None
        return Context(caller=ctx.caller, session=ctx.session, meta={PATH_META: passed.meta[PATH_META]})

    async def _meta_tool(self, name: str) -> RemoteTool | None:
        """Return the server's own meta-tool, if it has it. Raises `ServerUnavailable`; does not wait for a
        connection.
        """
        if self._supervisor.connection is None:
            raise self._unavailable()
        return self._supervisor.tool_list.by_name.get(name)

    def _may_have(self, filters: Filters) -> bool:
        in_namespace = not filters.namespaces or self.namespace in filters.namespaces
        return in_namespace and (not filters.visibility or Visibility.DISCOVERABLE in filters.visibility)

    async def _search_all(self, ctx: Context, search: RemoteTool, asked: Sequence[dict[str, Any]]) -> list[ToolResult]:
        """Send all searches at once. Returns one reply per search, in order."""
        replies: dict[int, ToolResult] = {}
        failures: list[ExecutionFailed] = []

        async def ask(place: int, arguments: dict[str, Any]) -> None:
            try:
                replies[place] = await self._run(ctx, search, arguments, search.own_name, Deadline(math.inf))
            except ExecutionFailed as error:
                failures.append(error)

        with anyio.move_on_after(self.options.find_timeout_s):
            async with anyio.create_task_group() as group:
                for place, arguments in enumerate(asked):
                    group.start_soon(ask, place, arguments)
        if failures:
            raise self._search_failed(failures[0].message) from failures[0]
        if len(replies) < len(asked):
            raise self._search_failed(f"no answer within {self.options.find_timeout_s:g} s")
        return [replies[place] for place in range(len(asked))]

    def _search_failed(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(
            f'The search of "{self.name}" failed: {reason.rstrip(".")}.',
            hint="Its hidden tools could not be searched.",
            data={"server": self.name, "reason": reason},
        )

    # -- reading its replies ---------------------------------------------------------------------------------------

    def _hit(self, ctx: Context, found: RemoteHit, query: int) -> Hit:
        tool = self._listed_tool(found)
        if tool is None:
            tool = self._found.keep(ctx.caller, found.tool) if found.has_schema else found.tool
        return to_hit(found, tool=tool, query=query, signature=signature(tool))

    async def _without_held(self, found: Iterable[RemoteHit]) -> list[RemoteHit]:
        """Leave out the tools that are held for what the lint finds in them. A listed one is shown as it is listed."""
        usable = list(found)
        new = [one.tool for one in usable if self._listed_tool(one) is None]
        held = await self._supervisor.pins.held_findings(new)
        return [one for one in usable if one.tool.name not in held]

    def _usable(self, reply: ToolResult, filters: Filters) -> Iterator[RemoteHit]:
        if refusal := refusal_reason(reply):
            if refusal.startswith(_INVALID_REQUEST):
                return
            raise self._search_failed(refusal)
        for found in parse_search_reply(reply, namespace=self.namespace, tags=filters.tags):
            name = found.tool.name
            if name not in META_TOOLS and self.options.offers(name) and _matches(found.tool, filters):
                yield found

    def _listed_tool(self, found: RemoteHit) -> Tool | None:
        """Return the listed tool that this hit is, if any; a toolcrib lists tools by their wire name."""
        namespace, _, name = found.tool.name.rpartition(":")
        listed = self._supervisor.tool_list.by_name
        tool = listed.get(found.tool.name) or listed.get(wire_name(Key(namespace, name)))
        return tool.tool if tool is not None else None


def _search_parameters(search: RemoteTool) -> frozenset[str]:
    properties = search.tool.input_schema.get("properties")
    return frozenset(properties) if isinstance(properties, dict) else frozenset()


def _search_arguments(search: RemoteTool, query: str, filters: Filters, limit: int | None) -> dict[str, Any]:
    """Return arguments for `tool_search`, as far as its schema has them."""
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
    """Tools that were found recently, per caller. The least recently found are dropped first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Caller, str], tuple[Tool, float]] = OrderedDict()

    def get(self, caller: Caller, *names: str) -> Tool | None:
        """Return the tool of the first known name; a tool is known by its own name and by its wire name."""
        for name in names:
            tool, until = self._kept.get((caller, name), (None, 0.0))
            if tool is not None and time.monotonic() < until:
                return tool
        return None

    def keep(self, caller: Caller, tool: Tool) -> Tool:
        """Remember the tool. Returns the known object if it has not changed."""
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


def parse_search_reply(
    result: ToolResult, *, namespace: str, tags: frozenset[str] = frozenset()
) -> tuple[RemoteHit, ...]:
    """Return the usable entries, in order. `tags` are those that the search required of every entry.

    The entry's name is used as it is: `github:create_issue` of a server `far` has the id `far:github:create_issue`.
    Fallback entries, which match nothing, are left out.

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
    """Convert the entry to a hit of the query at that index."""
    return Hit(tool=tool, score=found.score, raw=found.raw, query=query, signature=signature, weak=found.weak)


def refusal_reason(result: ToolResult) -> str:
    """Return why the server refused the search, with a code before a colon if it has one; empty if it did not."""
    if not result.is_error:
        return ""
    error = result.structured.get("error") if isinstance(result.structured, dict) else None
    if isinstance(error, dict):
        return f"{error.get('code')}: {error.get('message')}"
    return next((text for text in _texts(result)), "it returned an error")


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
    given = {key: value for key, value in definition.items() if value is not None}
    tool = read_tool(given, namespace=namespace).tool
    if tool is None or not _has_valid_name(tool):
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
