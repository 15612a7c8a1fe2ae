"""Browse, search, describe and call, for one caller at a time.

Every method takes the request's `Context` first. A tool that the policy denies is treated as if it did not exist.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from toolcrib.catalog.misses import SEARCH
from toolcrib.catalog.paging import page
from toolcrib.discovery.arguments import settle
from toolcrib.errors import (
    ExecutionFailed,
    HandlerNotFound,
    InvalidRequest,
    ServerUnavailable,
    ToolcribError,
    ToolNotFound,
)
from toolcrib.gateway.calls.audit import AuditSink
from toolcrib.gateway.calls.breaker import BreakerState
from toolcrib.gateway.elsewhere import Elsewhere, merged
from toolcrib.gateway.known import (
    CONNECTING,
    Withheld,
    findable,
    mark_of,
    namespaces,
    none_withheld,
    servers,
    set_aside,
    space_of,
    tags,
    troubled_for,
    unready,
)
from toolcrib.gateway.library import Library
from toolcrib.gateway.live import Live
from toolcrib.gateway.offered import Offered
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.overlays import Overlays
from toolcrib.gateway.policy import AllowAll
from toolcrib.gateway.road import Road
from toolcrib.gateway.sessions import Sessions
from toolcrib.gateway.shapes import Shapes
from toolcrib.gateway.states import stands
from toolcrib.gateway.steady import watched
from toolcrib.gateway.view import Found, View, Views
from toolcrib.model import (
    Action,
    Decision,
    Filters,
    Hit,
    Object,
    SearchReply,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
)
from toolcrib.protocols import (
    PATH_META,
    BackendSelector,
    CallMiddleware,
    Context,
    Policy,
    ProviderSource,
)
from toolcrib.schema import example, signature
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.query import read
from toolcrib.search.semantic import Embedder

SEARCH_ELSEWHERE: Final = "Search for a tool of another server, or try again once this one is mended."
"""The hint where a server cannot be asked."""

_T = TypeVar("_T")
_AT_ONCE: Final = 8
"""Searches with an embedder that run at once; others wait, so that they never take all threads of the process."""
_SEEN: Final = "gateway.seen"
_BROKEN: Final = 4096
"""Tools that are remembered to break what their output schemas promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """How to call one tool."""

    tool: Tool
    id: str
    wire_name: str
    signature: str
    example: Object
    """Arguments that fit the schema, ready to send."""


class Gateway:
    """All tools behind one door."""

    def __init__(
        self,
        sources: Sequence[ProviderSource],
        *,
        policy: Policy | None = None,
        options: GatewayOptions | None = None,
        embedder: Embedder | None = None,
        middleware: Sequence[CallMiddleware] = (),
        selector: BackendSelector | None = None,
        audit: AuditSink | None = None,
        gateway_id: str = "",
        mask_errors: bool = False,
    ) -> None:
        """A gateway over providers that come and go; run `live.run` in a task group to keep it current.

        Without `run` it works too: whoever asks after a change waits until it is in. Without an embedder, meanings
        are those of the table in the package. The one that the options name is not loaded here: that takes time, and
        is left to whoever starts the gateway. `middleware` stands in the way of every call, the first outermost;
        `selector` orders those who can run a tool, by default local functions first and remote servers last; `audit`
        is told of every call. With `mask_errors`, what a provider raises is kept from its caller. A search that
        `gateway_id` has passed on already, and that comes back to it through other gateways, finds nothing.
        """
        self.options = options or GatewayOptions()
        self.live = Live(sources, self.options)
        self._policy: Policy = policy or AllowAll()
        self._lexicon = Lexicon.default().with_pairs(self.options.synonyms) if self.options.synonyms else None
        self._threads: anyio.CapacityLimiter | None = None
        if embedder is not None:
            self.embed_with(embedder)
        self._views = Views(self.live.snapshot, self._policy)
        self._overlays = Overlays(self.options.request_tools)
        self._offered = Offered(self._policy, self.options.list_timeout_s, self._overlays.knows)
        self.elsewhere = Elsewhere(self.live.backends, self._policy, self.options.find_timeout_s)
        self._road = Road(
            self.options.calls,
            self._policy,
            middleware=middleware,
            selector=selector,
            audit=audit,
            mask_errors=mask_errors,
        )
        self.library = Library(self.live, self._policy, self._road, self.options)
        """What the servers offer to read."""
        self.sessions = Sessions(self.options.sessions)
        self.shapes = Shapes()
        self.gateway_id = gateway_id
        self.withheld: Withheld = none_withheld
        """What a surface lists under no name, and why; the statuses tell it."""
        self._unstructured: dict[int, Tool] = {}
        self.broken_promises = 0
        """Counts up with each tool found to answer without the structured content that its output schema promises."""

    def embed_with(self, embedder: Embedder) -> None:
        """Compare meanings with this embedder from now on; where it fails, words alone are compared.

        It must be safe to use from several threads. Closing it is left to the caller.
        """
        self.live.embed_with(embedder)

    # -- views -----------------------------------------------------------------------------------------------------

    async def view(self, ctx: Context) -> View:
        """What the caller sees at this moment."""
        return (await self._seen(ctx))[0]

    async def _seen(self, ctx: Context) -> tuple[View, tuple[ServerStatus, ...]]:
        """The caller's view, and the providers of his request that could not be asked."""
        await self.live.ready()
        snapshot = self.live.snapshot
        if self._views.snapshot is not snapshot:
            self._views = self._views.on(snapshot)
        view = self._views.of(ctx.caller)
        if not ctx.providers and not ctx.overriding:
            return view, ()
        brought = (ctx.caller, ctx.providers, ctx.overriding)
        known = ctx.memo.get(_SEEN) if ctx.memo is not None else None
        if known is not None and known[0] is view and known[1] == brought:
            return known[2], known[3]
        heard = await self._offered.hear(ctx)
        seen = await self._run(view, self._overlays.over, view, heard.plain, heard.overriding)
        if ctx.memo is not None:
            ctx.memo[_SEEN] = (view, brought, seen, heard.troubled)
        return seen, heard.troubled

    # -- finding ---------------------------------------------------------------------------------------------------

    async def search(self, ctx: Context, request: SearchRequest) -> SearchReply:
        """The tools that fit; a request without words lists all, a page at a time."""
        await self.live.grace()
        if self._comes_back(ctx):
            return SearchReply()
        view, troubled = await self._seen(ctx)
        if any(read(query).words for query in request.queries):
            if request.cursor:
                raise InvalidRequest(
                    "A cursor continues a list, not a search.", hint="Leave the query or the cursor out."
                )
            reply = await self._run(view, self._search, view, request, self.sessions.boosts(ctx))
            asked = await self.elsewhere.search(ctx, view, request)
            if asked is not None:
                limit = min(request.limit or self.options.search.default_limit, self.options.search.max_limit)
                reply, troubled = merged(reply, asked.hits, request, max(1, limit)), (*troubled, *asked.troubled)
        else:
            reply = self._list(view, request)
        return replace(reply, servers=(*troubled_for(self._servers(ctx, view), request.filters), *troubled))

    def _search(self, view: View, request: SearchRequest, boosts: Mapping[str, float]) -> SearchReply:
        """The hits of a view; with a note where they could not be compared in meaning."""
        with watched() as failures:
            reply = view.search(request, self.options.search, lexicon=self._lexicon, boosts=boosts)
        if not failures:
            return reply
        note = f"The embedder failed ({failures[0]}), so that only words were compared."
        return replace(reply, note=f"{reply.note} {note}".strip())

    def _comes_back(self, ctx: Context) -> bool:
        path = ctx.meta.get(PATH_META)
        return bool(self.gateway_id) and isinstance(path, list) and self.gateway_id in path

    async def _run(self, view: View, work: Callable[..., _T], *arguments: Any) -> _T:
        """What the work gives: done at once, or in a thread where an embedder takes part, which takes milliseconds."""
        if view.snapshot.index.meaning.embedder is None:
            return work(*arguments)
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_AT_ONCE)
        return await anyio.to_thread.run_sync(partial(work, *arguments), limiter=self._threads, abandon_on_cancel=True)

    def _list(self, view: View, request: SearchRequest) -> SearchReply:
        """One page of all tools that pass the filters."""
        filters = request.filters
        tools = findable(view) if filters == Filters() else view.listing(filters)
        limit = self.options.page_size if request.limit is None else min(request.limit, self.options.search.max_limit)
        part = page(tools, view_version=f"{view.version}{mark_of(filters)}", cursor=request.cursor, limit=limit)
        hits = tuple(
            Hit(tool=tool, score=0.0, raw=0.0, signature=signature(tool), detail=request.detail) for tool in part.items
        )
        return SearchReply(hits=hits, total=len(tools), cursor=part.cursor)

    async def tools(self, ctx: Context) -> tuple[Tool, ...]:
        """Every tool the caller sees, by id; without the hidden ones."""
        await self.live.grace()
        return findable(await self.view(ctx))

    async def describe(self, ctx: Context, name: str) -> Description:
        """How to call the tool. Raises like `call` for a name."""
        found = await self.find(ctx, name)
        tool = found.tool
        return Description(
            tool=tool,
            id=tool.id,
            wire_name=found.wire_name,
            signature=signature(tool),
            example=example(tool),
        )

    # -- calling ---------------------------------------------------------------------------------------------------

    async def call(self, ctx: Context, name: str, arguments: Any = None, *, loose: Object | None = None) -> ToolResult:
        """Call the tool that a spelling names.

        `arguments` is an object, a JSON string of one, or None; `loose` holds keys that stood beside it. Raises
        `ToolNotFound`, `AmbiguousName`, `InvalidArguments`, or an `ExecutionFailed`; a tool that fails in its own way
        gives a result with `is_error`.
        """
        return await self.run(ctx, await self.find(ctx, name), arguments, loose=loose)

    async def run(self, ctx: Context, found: Found, arguments: Any, *, loose: Object | None = None) -> ToolResult:
        """Call a tool that was found in the caller's own view."""
        tool = found.tool
        try:
            if self._policy.decide(ctx.caller, tool, Action.CALL) is Decision.HIDE:
                raise ToolNotFound(f'No tool is called "{tool.id}".', hint=SEARCH)
            settled = settle(arguments, loose or {}, tool.input_schema, tool=tool.id)
            found.schema.check(settled)
        except ToolcribError as error:
            self._road.refused(ctx, tool.id, error)
            raise
        result = await self._travelled(ctx, found, settled)
        promised = tool.output_schema is not None and result.kind == "complete" and not result.is_error
        if promised and result.structured is None and self._is_shared(tool) and self.keeps_promise(tool):
            # By the very object: two tenants may have tools of one key, and what one breaks is not the other's.
            self._unstructured[id(tool)] = tool
            if len(self._unstructured) > _BROKEN:
                self._unstructured.pop(next(iter(self._unstructured)))
            self.broken_promises += 1
        return result

    async def _travelled(self, ctx: Context, found: Found, settled: dict[str, Any]) -> ToolResult:
        """The result of the call; the session remembers how it went."""
        try:
            result = await self._road.travel(ctx, found, settled)
        except ExecutionFailed:
            self.sessions.record(ctx, found.tool.id, success=False)
            raise
        except HandlerNotFound:
            self.live.doubt(found.backends)
            raise
        if result.kind == "complete":
            self.sessions.record(ctx, found.tool.id, success=not result.is_error)
            self.shapes.record(ctx, found.tool, result)
        return self.library.readdressed(ctx, found.tool.namespace, result)

    def breakers(self) -> tuple[BreakerState, ...]:
        """How the circuit breaker sees each of those that run tools, by name; empty without one."""
        return self._road.states()

    def _is_shared(self, tool: Tool) -> bool:
        """Whether it is in the snapshot: what a request's own tool does is remembered for nobody."""
        catalog = self.live.snapshot.catalog
        position = catalog.by_id(tool.id)
        return position is not None and catalog.tools[position] is tool

    def keeps_promise(self, tool: Tool) -> bool:
        """Whether this very definition was never seen to break what its output schema promises."""
        return id(tool) not in self._unstructured

    async def find(self, ctx: Context, name: str) -> Found:
        """The tool that a spelling names in the caller's view.

        Waits a while for a server that is still connecting, when the spelling gives its namespace. Raises
        `ToolNotFound`, `AmbiguousName` or `ServerUnavailable`.
        """
        if (ctx.providers or ctx.overriding) and (shared := await self._shared(ctx, name)) is not None:
            return shared
        view, troubled = await self._seen(ctx)
        try:
            return view.find(name)
        except ToolNotFound as missing:
            found = await self.elsewhere.look_up(ctx, view, name)
            if found is not None:
                return found
            server = unready(self._servers(ctx, view), name)
            if server is not None:
                return await self._find_late(ctx, name, server, missing)
            if (aside := self._set_aside(ctx, name)) is not None:
                self._road.refused(ctx, name, aside)
                raise aside from None
            late = [status.name for status in self._servers(ctx, view) if status.state in CONNECTING]
            if late:
                missing.hint = f"{missing.hint} Still connecting: {', '.join(late)}.".strip()
            for status in troubled:
                missing.hint = f"{missing.hint} It may be one of {status.name}: {status.reason}.".strip()
            self._road.refused(ctx, name, missing)
            raise

    async def _shared(self, ctx: Context, name: str) -> Found | None:
        """The shared tool of exactly that id or wire name, which no plain provider of the request comes before: so
        that one of those which hangs costs a call of it nothing.
        """
        if ctx.overriding:
            return None
        view = await self.view(replace(ctx, providers=(), memo=None))
        return view.exact(name)

    async def _find_late(self, ctx: Context, name: str, server: str, missing: ToolNotFound) -> Found:
        """The tool of a server that is still connecting, or why that server cannot be asked."""
        with anyio.move_on_after(self.options.call_grace_s):
            while (status := await self._status(ctx, server)) and status.state in CONNECTING:
                await self.live.changed()
        try:
            return (await self.view(ctx)).find(name)
        except ToolNotFound:
            status = await self._status(ctx, server)
            if status is None or status.state is ServerState.READY:
                raise self._set_aside(ctx, name) or missing from None
            raise ServerUnavailable(
                f"{name} cannot be looked up: server {server} {stands(status)}.",
                hint=SEARCH_ELSEWHERE,
                data={"server": server, "state": str(status.state), "reason": status.reason},
            ) from None

    def _set_aside(self, ctx: Context, name: str) -> ToolNotFound | None:
        """Why a tool that some provider lists cannot be used; None where the caller may not know of such a one."""
        return set_aside(name, self.live.set_aside(), self._policy, ctx.caller)

    # -- servers ---------------------------------------------------------------------------------------------------

    async def servers(self, ctx: Context) -> tuple[ServerStatus, ...]:
        """The servers that the caller may know of, by name; the same tuple while nothing changed."""
        return self._servers(ctx, await self.view(ctx))

    def _servers(self, ctx: Context, view: View) -> tuple[ServerStatus, ...]:
        return servers(view, self.live.statuses(), self._policy, ctx.caller, self.withheld)

    async def namespaces(self, ctx: Context) -> frozenset[str]:
        """The namespaces of the caller's tools, and of the servers he may know of."""
        view = await self.view(ctx)
        return frozenset((*namespaces(view), *map(space_of, self._servers(ctx, view)))) - {""}

    async def tags(self, ctx: Context) -> frozenset[str]:
        """The tags of the tools that the caller could find."""
        return tags(await self.view(ctx))

    async def _status(self, ctx: Context, name: str) -> ServerStatus | None:
        return next((status for status in await self.servers(ctx) if status.name == name), None)
