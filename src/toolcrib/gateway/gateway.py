"""Browse, search, describe and call, for one caller at a time.

Every method takes the request's `Context` first. A tool that the policy denies is treated as if it did not exist.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar
from zlib import crc32

import anyio
import anyio.to_thread

from toolcrib.catalog.paging import page
from toolcrib.errors import (
    ExecutionFailed,
    HandlerNotFound,
    InvalidRequest,
    ServerUnavailable,
    ToolcribError,
    ToolNotFound,
)
from toolcrib.gateway.arguments import settle
from toolcrib.gateway.live import Live
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import AllowAll
from toolcrib.gateway.states import stands
from toolcrib.gateway.steady import watched
from toolcrib.gateway.view import Found, View, Views, may_see, overlaid
from toolcrib.model import (
    Action,
    Decision,
    Filters,
    Hit,
    Key,
    Object,
    SearchReply,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
)
from toolcrib.protocols import Context, Policy, ProviderSource, ToolProvider
from toolcrib.schema import example, signature
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.query import read
from toolcrib.search.semantic import Embedder

logger = logging.getLogger(__name__)

_SEPARATORS = (":", "__", ".", "/")
_T = TypeVar("_T")
_AT_ONCE: Final = 8
"""Searches with an embedder that run at once; others wait, so that they never take all threads of the process."""


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
    ) -> None:
        """A gateway over providers that come and go; run `live.run` in a task group to keep it current.

        Without an embedder, meanings are those of the table in the package. The one that the options name is not
        loaded here: that takes time, and is left to whoever starts the gateway.
        """
        self.options = options or GatewayOptions()
        self.live = Live(sources, self.options)
        self._policy: Policy = policy or AllowAll()
        self._lexicon = Lexicon.default().with_pairs(self.options.synonyms) if self.options.synonyms else None
        self._threads: anyio.CapacityLimiter | None = None
        if embedder is not None:
            self.embed_with(embedder)
        self._views = Views(self.live.snapshot, self._policy)
        self._unstructured: dict[Key, Tool] = {}
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
        snapshot = self.live.snapshot
        if self._views.snapshot is not snapshot:
            self._views = self._views.on(snapshot)
        view = self._views.of(ctx.caller)
        if not ctx.providers:
            return view
        offers = [(provider, await self._offered(ctx, provider)) for provider in ctx.providers]
        return await self._run(view, overlaid, view, offers)

    async def _offered(self, ctx: Context, provider: ToolProvider) -> list[Tool]:
        """What a request's provider offers to this caller; nothing when it fails or hangs."""
        try:
            with anyio.fail_after(self.options.list_timeout_s):
                tools = await provider.list_tools(ctx)
        except Exception:
            logger.warning("%s could not list its tools", type(provider).__name__, exc_info=True)
            return []
        return [tool for tool in tools if may_see(self._policy, ctx.caller, tool)]

    # -- finding ---------------------------------------------------------------------------------------------------

    async def search(self, ctx: Context, request: SearchRequest) -> SearchReply:
        """The tools that fit; a request without words lists all, a page at a time."""
        await self.live.grace()
        view = await self.view(ctx)
        if any(read(query).words for query in request.queries):
            if request.cursor:
                raise InvalidRequest(
                    "A cursor continues a list, not a search.", hint="Leave the query or the cursor out."
                )
            reply = await self._run(view, self._search, view, request)
        else:
            reply = self._list(view, request)
        return replace(reply, servers=await self._troubled(ctx, request))

    def _search(self, view: View, request: SearchRequest) -> SearchReply:
        """The hits of a view; with a note where they could not be compared in meaning."""
        with watched() as failures:
            reply = view.search(request, self.options.search, lexicon=self._lexicon)
        if not failures:
            return reply
        note = f"The embedder failed ({failures[0]}), so that only words were compared."
        return replace(reply, note=f"{reply.note} {note}".strip())

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
        tools = self._all(view) if filters == Filters() else view.listing(filters)
        limit = self.options.page_size if request.limit is None else min(request.limit, self.options.search.max_limit)
        part = page(tools, view_version=f"{view.version}{_mark(filters)}", cursor=request.cursor, limit=limit)
        hits = tuple(
            Hit(tool=tool, score=0.0, raw=0.0, signature=signature(tool), detail=request.detail) for tool in part.items
        )
        return SearchReply(hits=hits, total=len(tools), cursor=part.cursor)

    async def tools(self, ctx: Context) -> tuple[Tool, ...]:
        """Every tool the caller sees, by id; without the hidden ones."""
        await self.live.grace()
        return self._all(await self.view(ctx))

    @staticmethod
    def _all(view: View) -> tuple[Tool, ...]:
        """Every tool a search could find, kept with the view."""
        if "listing" not in view.memo:
            view.memo["listing"] = view.listing(Filters())
        found: tuple[Tool, ...] = view.memo["listing"]
        return found

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
        self._permit(ctx, tool)
        settled = settle(arguments, loose or {}, tool.input_schema, tool=tool.id)
        found.schema.check(settled)
        result = await self._ask(ctx, found, settled)
        promised = tool.output_schema is not None and result.kind == "complete" and not result.is_error
        if promised and result.structured is None and self.keeps_promise(tool):
            self._unstructured[tool.key] = tool
            self.broken_promises += 1
        return result

    def keeps_promise(self, tool: Tool) -> bool:
        """Whether this very definition was never seen to break what its output schema promises."""
        return self._unstructured.get(tool.key) is not tool

    def _permit(self, ctx: Context, tool: Tool) -> None:
        decision = self._policy.decide(ctx.caller, tool, Action.CALL)
        if decision is Decision.HIDE:
            raise ToolNotFound(f"No tool is called {tool.id}.")
        if decision is Decision.APPROVE:
            raise ExecutionFailed(f"{tool.id} needs an approval that nobody here can give.")

    @staticmethod
    async def _ask(ctx: Context, found: Found, arguments: dict[str, Any]) -> ToolResult:
        tool = found.tool
        try:
            result = await found.provider.call_tool(ctx, tool.name, arguments)
        except ToolcribError:
            raise
        except Exception as error:
            logger.exception("the provider of %s raised", tool.id)
            raise ExecutionFailed(f"{tool.id} failed inside its provider.", hint="Its log has the cause.") from error
        if result is None:
            raise HandlerNotFound(f"{tool.id} is listed, but its provider does not run it any more.")
        return result

    async def find(self, ctx: Context, name: str) -> Found:
        """The tool that a spelling names in the caller's view.

        Waits a while for a server that is still connecting, when the spelling gives its namespace. Raises
        `ToolNotFound`, `AmbiguousName` or `ServerUnavailable`.
        """
        view = await self.view(ctx)
        try:
            return view.find(name)
        except ToolNotFound as missing:
            server = await self._server_meant(ctx, name)
            if server is not None:
                return await self._find_late(ctx, name, server, missing)
            late = [status.name for status in await self.servers(ctx) if status.state in _CONNECTING]
            if late:
                missing.hint = f"{missing.hint} Still connecting: {', '.join(late)}.".strip()
            raise

    async def _find_late(self, ctx: Context, name: str, server: str, missing: ToolNotFound) -> Found:
        """The tool of a server that is still connecting, or why that server cannot be asked."""
        with anyio.move_on_after(self.options.call_grace_s):
            while (status := await self._status(ctx, server)) and status.state in _CONNECTING:
                await self.live.changed()
        await self.live.fresh()
        try:
            return (await self.view(ctx)).find(name)
        except ToolNotFound:
            status = await self._status(ctx, server)
            if status is None or status.state is ServerState.READY:
                raise missing from None
            raise ServerUnavailable(
                f"{name} cannot be looked up: server {server} {stands(status)}.",
                hint="Search for a tool of another server, or try again once this one is mended.",
                data={"server": server, "state": str(status.state), "reason": status.reason},
            ) from None

    # -- servers ---------------------------------------------------------------------------------------------------

    async def servers(self, ctx: Context) -> tuple[ServerStatus, ...]:
        """The servers that the caller may know of, by name; the same tuple while nothing changed."""
        view, statuses = await self.view(ctx), self.live.statuses()
        known = view.memo.get("servers")
        if known is None or known[0] is not statuses:
            seen = tuple(_as_seen(view, status) for status in statuses if self._may_know(ctx, view, status))
            known = view.memo["servers"] = (statuses, seen)
        found: tuple[ServerStatus, ...] = known[1]
        return found

    async def namespaces(self, ctx: Context) -> frozenset[str]:
        """The namespaces of the caller's tools, and the names of the servers he may know of."""
        found = _namespaces(await self.view(ctx))
        return frozenset((*found, *(status.name for status in await self.servers(ctx)))) - {""}

    async def tags(self, ctx: Context) -> frozenset[str]:
        """The tags of the tools that the caller could find."""
        view = await self.view(ctx)
        if "tags" not in view.memo:
            view.memo["tags"] = frozenset(tag for tool in self._all(view) for tag in tool.tags)
        found: frozenset[str] = view.memo["tags"]
        return found

    def _may_know(self, ctx: Context, view: View, status: ServerStatus) -> bool:
        """A server is known through a tool of it, or, while it has none, where a nameless tool of it would be seen."""
        if view.mask is None:
            return True
        if status.name in _namespaces(view):
            return True
        return not status.tools and may_see(self._policy, ctx.caller, Tool(name="", namespace=status.name))

    async def _status(self, ctx: Context, name: str) -> ServerStatus | None:
        return next((status for status in await self.servers(ctx) if status.name == name), None)

    async def _server_meant(self, ctx: Context, name: str) -> str | None:
        """The server, not ready, whose namespace the spelling gives."""
        for status in await self.servers(ctx):
            start = status.name.casefold()
            named = any(name.casefold().startswith(start + separator) for separator in _SEPARATORS)
            if named and status.state is not ServerState.READY:
                return status.name
        return None

    async def _troubled(self, ctx: Context, request: SearchRequest) -> tuple[ServerStatus, ...]:
        """Servers that could have answered and could not, or whose tools are stale."""
        wanted = request.filters.namespaces
        return tuple(
            status
            for status in await self.servers(ctx)
            if (status.state is not ServerState.READY or status.stale) and (not wanted or status.name in wanted)
        )


_CONNECTING = (ServerState.CONFIGURED, ServerState.CONNECTING)


def _namespaces(view: View) -> Mapping[str, int]:
    """How many tools of each namespace are in view."""
    if "namespaces" not in view.memo:
        view.memo["namespaces"] = Counter(tool.namespace for tool in view.tools())
    found: Mapping[str, int] = view.memo["namespaces"]
    return found


def _as_seen(view: View, status: ServerStatus) -> ServerStatus:
    """The status without figures of what the caller does not see."""
    if view.mask is None:
        return status
    return replace(status, tools=_namespaces(view).get(status.name, 0), rejected=())


def _mark(filters: Filters) -> str:
    """Tells the lists of different filters apart, in a cursor; empty for the whole list."""
    if filters == Filters():
        return ""
    parts = (sorted(filters.namespaces), sorted(filters.tags), filters.read_only, sorted(filters.visibility))
    return f"/{crc32(repr(parts).encode('utf-8', 'replace')):x}"
