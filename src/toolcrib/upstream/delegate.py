"""A server that hides its tools behind a search of its own, such as another toolcrib, as a provider that searches.

What it lists by name is listed here. The rest is found by its `tool_search` and run by its `execute_tool`, under the
name that it gives; nothing of it is known before it was looked for.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import anyio

from toolcrib.errors import ExecutionFailed, InvalidName, ServerUnavailable
from toolcrib.model import Caller, Filters, Hit, Key, Object, SearchRequest, Tool, ToolResult, Visibility
from toolcrib.names import check_name, wire_name
from toolcrib.protocols import PATH_META, Context
from toolcrib.schema import signature
from toolcrib.upstream.found import Found, read_reply, refused, to_hit
from toolcrib.upstream.http import Network
from toolcrib.upstream.listing import EXECUTE, META_TOOLS, SEARCH, Offer
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.server import Server
from toolcrib.upstream.trail import passed_on

_KEPT: Final = 8192
"""Names of tools remembered, two a tool, of all callers together."""
_KEPT_S: Final = 300.0
_LOOKED_AT: Final = 10
"""Hits among which an exact name is looked for."""
_NOT_UNDERSTOOD: Final = "invalid_request:"
"""How the refusal of a request begins that asks for what the server does not have, such as an unknown tag."""


class Delegate(Server):
    """A `ToolProvider` that is also a `ToolFinder` and a `ToolLookup`."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions, network: Network) -> None:
        """Nothing is tried before `run`."""
        super().__init__(options, fleet, network)
        self._memory = _Memory()

    # -- finding ---------------------------------------------------------------------------------------------------

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """What its own search finds, best first; nothing where the request has been here before.

        Raises `ServerUnavailable` when the server cannot be asked, fails, or takes longer than `find_timeout_s`.
        """
        onward = self._onward(ctx)
        if onward is None or not self._may_have(request.filters):
            return ()
        search = await self._meta_tool(SEARCH)
        if search is None or (request.filters.tags and "tags" not in _parameters(search)):
            return ()
        asked = [_arguments(search, query, request.filters, request.limit) for query in request.queries]
        replies = await self._searched(onward, search, asked)
        hits = [hit for query, reply in enumerate(replies) for hit in self._hits(ctx, reply, query, request.filters)]
        return sorted(hits, key=lambda hit: (-hit.score, hit.tool.id))

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """The tool of that name: listed, found before, or looked for now.

        The name may stand alone, after our namespace and a colon, or as the wire name of what was found before.
        """
        own = name.removeprefix(f"{self.namespace}:")
        if own in META_TOOLS or not _can_be_a_name(own):
            return None
        offer = self._supervisor.listing.offers.get(own)
        if offer is not None:
            return offer.tool
        return self._memory.get(ctx.caller, name, own) or await self._looked_up(ctx, own)

    async def _looked_up(self, ctx: Context, name: str) -> Tool | None:
        onward, search = self._onward(ctx), await self._meta_tool(SEARCH)
        if onward is None or search is None:
            return None
        (reply,) = await self._searched(onward, search, [_arguments(search, name, Filters(), _LOOKED_AT)])
        for found in self._usable(reply, Filters()):
            if found.tool.name == name:
                return self._memory.keep(ctx.caller, found.tool)
        return None

    # -- calling ---------------------------------------------------------------------------------------------------

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run a listed tool as `Server` does, and any other through the server's `execute_tool`."""
        if name in META_TOOLS:
            return None
        if await self._offer(name) is not None:
            return await super().call_tool(ctx, name, arguments)
        onward, execute = passed_on(ctx, self.gateway_id), await self._meta_tool(EXECUTE)
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
        passed = passed_on(ctx, self.gateway_id)
        if passed is None:
            return None
        return Context(caller=ctx.caller, session=ctx.session, meta={PATH_META: passed.meta[PATH_META]})

    async def _meta_tool(self, name: str) -> Offer | None:
        """Its own meta-tool, where it has one now. Raises `ServerUnavailable`; does not wait for a connection."""
        if self._supervisor.session is None:
            raise self._unavailable()
        return self._supervisor.listing.offers.get(name)

    def _may_have(self, filters: Filters) -> bool:
        in_namespace = not filters.namespaces or self.namespace in filters.namespaces
        return in_namespace and (not filters.visibility or Visibility.DISCOVERABLE in filters.visibility)

    async def _searched(self, ctx: Context, search: Offer, asked: Sequence[dict[str, Any]]) -> list[ToolResult]:
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
                tool = self._memory.keep(ctx.caller, found.tool) if found.whole else found.tool
            yield to_hit(found, tool=tool, query=query, signature=signature(tool))

    def _usable(self, reply: ToolResult, filters: Filters) -> Iterator[Found]:
        if refusal := refused(reply):
            if refusal.startswith(_NOT_UNDERSTOOD):
                return
            raise self._unsearched(refusal)
        for found in read_reply(reply, namespace=self.namespace, tags=filters.tags):
            if self._is_allowed(found.tool.name) and _passes(found.tool, filters):
                yield found

    def _is_allowed(self, name: str) -> bool:
        allowed = self.options.allowed_tools
        return name not in META_TOOLS and (allowed is None or name in allowed)

    def _listed_as(self, found: Found) -> Tool | None:
        """The tool as it is listed by name, where it is: there a toolcrib gives it its wire name."""
        namespace, _, name = found.tool.name.rpartition(":")
        offers = self._supervisor.listing.offers
        offer = offers.get(found.tool.name) or offers.get(wire_name(Key(namespace, name)))
        return offer.tool if offer is not None else None


def _parameters(search: Offer) -> frozenset[str]:
    properties = search.tool.input_schema.get("properties")
    return frozenset(properties) if isinstance(properties, dict) else frozenset()


def _arguments(search: Offer, query: str, filters: Filters, limit: int | None) -> dict[str, Any]:
    """Arguments of `tool_search`: what there is to say, as far as its schema knows it."""
    wanted: dict[str, Any] = {"detail": "full", "group": False, "budget": 0}
    if limit is not None:
        wanted["max_results"] = limit
    if filters.tags:
        wanted["tags"] = sorted(filters.tags)
    if filters.read_only is not None:
        wanted["read_only"] = filters.read_only
    known = _parameters(search)
    return {"query": query, **{key: value for key, value in wanted.items() if key in known}}


def _passes(tool: Tool, filters: Filters) -> bool:
    return filters.read_only is None or (tool.annotations.get("readOnlyHint") is True) is filters.read_only


def _can_be_a_name(text: str) -> bool:
    try:
        check_name(text)
    except InvalidName:
        return False
    return True


class _Memory:
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
        entry = (known if known == tool else tool, time.monotonic() + _KEPT_S)
        for name in (tool.name, wire_name(tool.key)):
            self._kept[caller, name] = entry
            self._kept.move_to_end((caller, name))
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return entry[0]

    def drop(self, caller: Caller, tool: Tool) -> None:
        for name in (tool.name, wire_name(tool.key)):
            self._kept.pop((caller, name), None)
