"""The gateway: list, search, describe and call tools, for one caller at a time.

Every method takes the request's `Context` first. A tool that the policy denies is treated as if it did not exist.
A request that makes several calls, such as a script, makes them in a `nested_context`.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from toolcrib.catalog import SEARCH_HINT, page
from toolcrib.checks import checked
from toolcrib.errors import (
    ExecutionFailed,
    HandlerNotFound,
    InvalidArguments,
    ServerUnavailable,
    SettingsError,
    ToolcribError,
    ToolNotFound,
)
from toolcrib.gateway.federation import FederatedSearch, RequestToolLister, merge_hits
from toolcrib.gateway.indexing import EmbeddedRequest, RequestEmbedder
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.past import PastRecorder
from toolcrib.gateway.policy import ReplaceablePolicy, allows_everything, check_step_up, decide
from toolcrib.gateway.refresh import CatalogRefresher
from toolcrib.gateway.search_pages import SearchPage
from toolcrib.gateway.server_states import describe_state, namespace_of, unavailable_servers, unready_server
from toolcrib.gateway.sessions import ResultShapes, Sessions
from toolcrib.gateway.startup import StartupWait, missing_note
from toolcrib.gateway.tasks import TaskManager
from toolcrib.gateway.view import OverlayCache, ResolvedTool, ToolDescription, View, ViewCache
from toolcrib.gateway.visibility import (
    ExclusionReasons,
    explain_rejected,
    filters_digest,
    has_tools,
    namespace_counts,
    no_exclusions,
    searchable_tags,
    searchable_tools,
    visible_servers,
)
from toolcrib.middleware.admission import CountRefusal
from toolcrib.middleware.approval import ApprovalDesk
from toolcrib.middleware.audit import AuditSink
from toolcrib.middleware.breaker import BreakerState
from toolcrib.middleware.observers import DefinitionObserver, EndedSearch, GatewayObserver, request_number
from toolcrib.middleware.pipeline import CallPipeline
from toolcrib.providers.accounts import choose_account, is_group_tool
from toolcrib.providers.base import BackendSelector, ProviderSource
from toolcrib.resources.manager import ResourceManager
from toolcrib.resources.router import URI_BLOCKS
from toolcrib.resources.uris import with_public_apps
from toolcrib.schema import example, signature
from toolcrib.schema.arguments import merge_arguments
from toolcrib.search.embedder import Embedder
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.search.text import CUT_NOTE, parse_query, read_queries
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.state.saved_index import SavedIndex
from toolcrib.tracing import TRACING
from toolcrib.types import (
    PATH_META,
    Action,
    BackendKind,
    Caller,
    CallMiddleware,
    Context,
    Decision,
    Filters,
    Hit,
    Object,
    Policy,
    SearchReply,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
)

SEARCH_ELSEWHERE_HINT: Final = "Search for a tool of another server, or try again once this server works."
"""Hint for an unavailable server."""


_VIEW_MEMO: Final = "gateway.view"
_NO_TEXTS: Final[tuple[str, ...]] = ()
_NONE_FAILED: Final[tuple[ServerStatus, ...]] = ()
_NO_TOOLS_NOTE: Final = "There are no tools to search."

_MAX_VIOLATIONS: Final = 4096
"""Tools whose violation of their output schema is remembered."""


@checked
class Gateway:
    """Tools of all sources, for every caller."""

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
        observer: GatewayObserver | None = None,
        definitions: DefinitionObserver | None = None,
        gateway_id: str = "",
        mask_errors: bool = False,
        state: StateStore | None = None,
        desk: ApprovalDesk | None = None,
        saved_index: SavedIndex | None = None,
        refused: CountRefusal | None = None,
    ) -> None:
        """Serve the tools of these sources; run `refresher.run` in a task group to keep them current.

        Without `run`, the next request after a change polls the providers and waits. Without an embedder, meanings are
        compared with the built-in table. The embedder that the options name is not loaded here, because that takes
        time. `middleware` runs around every call, the first one outermost; `selector` orders the backends of a tool,
        by default local functions first and remote servers last; `audit` gets an event for every call, search and
        list, `observer` learns of every call and search, and `definitions` of the tools that clients are shown.
        `mask_errors` hides the messages of providers' exceptions from callers. `state` keeps what several processes
        share, by default in memory. At the `desk`, people approve calls of clients that cannot ask their user.
        `saved_index` keeps the search index across restarts. `refused` counts refused searches and lists, by the
        setting. `gateway_id` lets a search that comes back through
        other gateways find nothing.
        """
        self.options = options or GatewayOptions()
        self.state: StateStore = state or MemoryStore()
        if self.options.engine != "memory" and not allows_everything(policy):
            raise SettingsError(
                "The engine tantivy is for tools that every caller may see: its scores depend on all of them.",
                hint="Remove the policy, or use search.engine memory.",
            )
        self.refresher = CatalogRefresher(sources, self.options, saved_index)
        self._policy = policy if isinstance(policy, ReplaceablePolicy) else ReplaceablePolicy(policy)
        self._observer = observer
        self.definitions = definitions
        self._lexicon = Lexicon.default().with_pairs(self.options.synonyms) if self.options.synonyms else None
        self._embedder: RequestEmbedder | None = None
        if embedder is not None:
            self.use_embedder(embedder)
        self._views = ViewCache(self.refresher.snapshot, self._policy)
        self._overlays = OverlayCache(self.options.request_tools)
        self._request_tools = RequestToolLister(self._policy, self.options.list_timeout_s, self._overlays.is_cached)
        self.federation = FederatedSearch(self.refresher.backends, self._policy, self.options.find_timeout_s)
        self._pipeline = CallPipeline(
            self.options.calls,
            self._policy,
            middleware=middleware,
            selector=selector,
            audit=audit,
            observer=observer,
            mask_errors=mask_errors,
            state=self.state,
            desk=desk,
            refused=refused,
        )
        self.runs_own_code = not middleware and selector is None
        """Whether nothing of the application runs in the pipeline of a call but its policy and its providers."""
        self.admission = self._pipeline.admission
        """What searches and lists pass."""
        self.first_search = StartupWait(self.refresher, self.options.search_wait_s, self._known_servers)
        self.first_list = StartupWait(self.refresher, self.options.list_wait_s, self._known_servers)
        self.resources = ResourceManager(
            self.refresher, self._policy, self._pipeline, self.options, self.state, self.first_list.wait
        )
        """Prompts and resources of the servers."""
        self.sessions = Sessions(self.options.sessions, self.state)
        self.past = PastRecorder(self.options.past_requests, self.state, sessions=self.options.sessions.sessions)
        """Past requests of each tenant; run `past.run` in a task group to save them in the background."""
        self.tasks = TaskManager(
            self.state,
            self._policy,
            backends=self.refresher.backends,
            view=self.view,
            run=partial(self.run, verbatim=True),
            finish=self._finish,
        )
        self.result_shapes = ResultShapes(self.state)
        self.gateway_id = gateway_id
        self.exclusions: ExclusionReasons = no_exclusions
        """The tools that a surface cannot list, with the reasons that the statuses show."""
        self._violating_tools: dict[int, Tool] = {}
        self.schema_violations = 0
        """How many tools declared an output schema but returned no structured content."""

    async def end_session(self, ctx: Context) -> None:
        """Forget what belongs to the session of this context, which has ended here.

        What other processes share, which may go on with the session, is dropped once it was not used for long.
        """
        await self.resources.end_session(ctx, forget=not self.state.shared)
        if not self.state.shared:
            await self.sessions.forget(ctx)

    def use_embedder(self, embedder: Embedder, tools: Embedder | None = None) -> None:
        """Compare meanings with this embedder as well; if it fails, only words and the built-in table are compared.

        `tools` embeds tools, by default the same: there a cache belongs. They must be thread-safe. The caller closes
        them.
        """
        self._embedder = RequestEmbedder(embedder, self.options.embed_timeout_s)
        self.refresher.use_embedder(embedder, tools)

    # -- views -----------------------------------------------------------------------------------------------------

    async def view(self, ctx: Context) -> View:
        """Return what the caller sees at this moment."""
        view = self.settled_view(ctx)
        return (await self._view_and_failures(ctx))[0] if view is None else view

    def settled_view(self, ctx: Context) -> View | None:
        """What the caller sees; None if that takes time: for a change, or for providers that came with the request."""
        if ctx.providers or ctx.overriding or not self.refresher.is_ready:
            return None
        return self._shared_view(ctx.caller)

    def _shared_view(self, caller: Caller) -> View:
        """Return what the caller sees of the current snapshot."""
        snapshot = self.refresher.builder.snapshot
        if self._views.snapshot is not snapshot:
            self._views = self._views.rebase(snapshot)
        return self._views.for_caller(caller)

    async def _view_and_failures(self, ctx: Context) -> tuple[View, tuple[ServerStatus, ...]]:
        """Return the caller's view, and the statuses of request providers that failed to list their tools."""
        await self.refresher.wait_ready()
        view = self._shared_view(ctx.caller)
        if not ctx.providers and not ctx.overriding:
            return view, ()
        wanted = (ctx.caller, ctx.providers, ctx.overriding)
        known = ctx.memo.get(_VIEW_MEMO) if ctx.memo is not None else None
        if known is not None and known[0] is view and known[1] == wanted:
            return known[2], known[3]
        listed = await self._request_tools.list_all(ctx)
        for offer in (*listed.plain, *listed.overriding):
            await self.refresher.maintenance.embed_request_tools(offer.tools)
        extended = self._overlays.apply(view, listed.plain, listed.overriding)
        if ctx.memo is not None:
            ctx.memo[_VIEW_MEMO] = (view, wanted, extended, listed.failed)
        return extended, listed.failed

    # -- finding ---------------------------------------------------------------------------------------------------

    async def search(self, ctx: Context, request: SearchRequest) -> SearchReply:
        """Return the tools that match, best first; a request without words lists all by id. A cursor continues either.

        A session's first search waits for servers that are still starting. The reply says how many are missing.
        Raises `StaleCursor` for the cursor of another search or view, and `RateLimited`.
        """
        if PATH_META in ctx.meta and self._is_own_request(ctx):
            return SearchReply()
        started = time.monotonic()
        async with self.admission.admitted(ctx, "search"):
            with TRACING.search(len(request.queries)):
                reply = await self._search_all(ctx, request)
        if self._observer is not None and any(query.strip() for query in request.queries):
            took = time.monotonic() - started
            self._observer.search_ended(
                EndedSearch(
                    ctx=ctx, request=request, reply=reply, started=started, duration_s=took, number=request_number(ctx)
                )
            )
        return reply

    async def _search_all(self, ctx: Context, request: SearchRequest) -> SearchReply:
        """Search the caller's view, and the providers that search by themselves."""
        await self.first_search.wait(ctx, request.filters.namespaces)
        view, failed = self.settled_view(ctx), _NONE_FAILED
        if view is None:
            view, failed = await self._view_and_failures(ctx)
        servers = unavailable_servers(self._servers(ctx, view), request.filters)
        note = missing = missing_note(servers) if servers else ""
        read, is_cut = read_queries(request.queries[: self.options.search.max_queries])
        if is_cut:  # what searches elsewhere reads no more than this either
            request = replace(request, queries=(*read, *request.queries[len(read) :]))
            note = f"{missing} {CUT_NOTE}".strip()
        if any(parse_query(query).words for query in read):
            part = SearchPage.of(request, view.version, self.options.search)
            reply = await part.fill(partial(self._rank, ctx, view, complete=not missing))
            failed = (*failed, *reply.servers)
            if self.past.enabled:
                await self.past.searched(ctx, request.needs, [hit for hit in reply.hits if view.get(hit.tool.key)])
        else:
            reply = await self.admission.queue.run(ctx.caller, partial(self._list, view, request))
        known = {status.name for status in servers}
        more = tuple(status for status in failed if status.name not in known)
        return replace(reply, note=f"{note} {reply.note}".strip(), servers=(*servers, *more))

    async def _rank(self, ctx: Context, view: View, request: SearchRequest, *, complete: bool) -> SearchReply:
        """Rank what the caller sees and what searching providers find; `servers` has those that failed."""
        reply = await self._search(ctx, view, request, complete=complete)
        asked = await self.federation.search(ctx, view, request)
        if asked is not None:
            limit = min(request.limit or self.options.search.default_limit, self.options.search.max_limit)
            reply = replace(merge_hits(reply, asked.hits, request, max(1, limit)), servers=asked.failed)
        if all(hit.weak for hit in reply.hits):
            self.refresher.doubt()  # a search does not wait, but the next one may find more
        if asked is None and not reply.hits and not has_tools(view, request.filters):
            return SearchReply(note=_NO_TOOLS_NOTE if complete else "")
        return reply

    async def rehearse(self, ctx: Context, request: SearchRequest, options: SearchOptions | None = None) -> SearchReply:
        """Search what the caller sees, with other options if given, and leave no trace: nothing learns of it."""
        return await self._search(ctx, await self.view(ctx), request, complete=True, options=options)

    async def _search(
        self,
        ctx: Context,
        view: View,
        request: SearchRequest,
        *,
        complete: bool,
        options: SearchOptions | None = None,
    ) -> SearchReply:
        """Search a view. A note says if the embedder failed, or has yet to embed tools in view."""
        options = options or self.options.search
        boosts = await self.sessions.boosts(ctx)
        texts, asked = _NO_TEXTS, EmbeddedRequest({})
        if self._embedder is not None:
            texts = view.request_texts(request, options, self._lexicon)
            # The index of the view may still have the vectors of an earlier embedder.
            if texts and view.snapshot.index.model.embedder is self._embedder.embedder:
                asked = await self._embedder.embed(texts)
        rank = partial(
            view.search,
            request,
            options,
            lexicon=self._lexicon,
            boosts=boosts,
            embedded=asked.vectors,
            past=await self.past.of(ctx) if self.past.enabled else None,
            complete=complete,
        )
        reply = await self.admission.queue.run(ctx.caller, rank)
        note = ""
        if asked.failure:
            note = f"The embedder failed ({asked.failure}), so only words were compared."
        elif texts and view.lacks_vectors():
            note = "Some tools are not embedded yet, so only their words were compared."
        return replace(reply, note=f"{reply.note} {note}".strip()) if note else reply

    def _is_own_request(self, ctx: Context) -> bool:
        path = ctx.meta[PATH_META]
        return bool(self.gateway_id) and isinstance(path, list) and self.gateway_id in path

    def _list(self, view: View, request: SearchRequest) -> SearchReply:
        """Return one page of all tools that pass the filters."""
        filters = request.filters
        tools = searchable_tools(view) if filters == Filters() else view.listing(filters)
        limit = self.options.page_size if request.limit is None else min(request.limit, self.options.search.max_limit)
        part = page(tools, view_version=f"{view.version}{filters_digest(filters)}", cursor=request.cursor, limit=limit)
        hits = tuple(
            Hit(tool=tool, score=0.0, raw=0.0, signature=signature(tool), detail=request.detail) for tool in part.items
        )
        return SearchReply(hits=hits, total=len(tools), cursor=part.cursor)

    async def tools(self, ctx: Context) -> tuple[Tool, ...]:
        """Return every tool the caller sees, by id, except hidden ones; wait for servers as `search` does."""
        async with self.admission.admitted(ctx, "list"):
            await self.first_search.wait(ctx)
            return searchable_tools(await self.view(ctx))

    async def describe(self, ctx: Context, name: str) -> ToolDescription:
        """Return how to call a tool. Raises like `find`, and `RateLimited`."""
        async with self.admission.admitted(ctx, "describe", name):
            found = await self.find(ctx, name)
        tool = found.tool
        return ToolDescription(
            tool=tool,
            id=tool.id,
            wire_name=found.wire_name,
            signature=signature(tool),
            example=example(tool),
        )

    # -- calling ---------------------------------------------------------------------------------------------------

    async def call(self, ctx: Context, name: str, arguments: Any = None, *, loose: Object | None = None) -> ToolResult:
        """Call the tool that a spelling names.

        `arguments` is an object, a JSON string of one, or None; `loose` holds keys that were given beside it. Raises
        `ToolNotFound`, `AmbiguousName`, `InvalidArguments`, or an `ExecutionFailed`; an error that the tool itself
        reports is a result with `is_error`.
        """
        return await self.run(ctx, await self.find(ctx, name), arguments, loose=loose)

    async def run(
        self,
        ctx: Context,
        found: ResolvedTool,
        arguments: Any,
        *,
        loose: Object | None = None,
        verbatim: bool = False,
    ) -> ToolResult:
        """Call a tool that was found in the caller's own view; raises like `call`.

        With `verbatim`, a remote server gets an object of arguments as it is, and decides itself whether it is valid.
        """
        tool = found.tool
        self.admission.queue.note(ctx.caller)
        try:
            settled = self._settle(ctx, found, arguments, loose or {}, verbatim=verbatim)
            if tool.meta and is_group_tool(tool):
                found, settled = await self._choose_account(ctx, tool, settled)
        except ToolcribError as error:
            self._pipeline.audit_refused(ctx, tool.id, error)
            raise
        try:
            result = await self._pipeline.call(ctx, found, settled)
        except ExecutionFailed:
            await self.sessions.record(ctx, tool.id, success=False)
            raise
        except HandlerNotFound:
            self.refresher.invalidate(found.backends)
            raise
        return await self._finish(ctx, tool, result, found.tool.namespace)

    async def _choose_account(self, ctx: Context, tool: Tool, arguments: Object) -> tuple[ResolvedTool, dict[str, Any]]:
        """Return the tool of the account that a call names, and its arguments. Raises `InvalidArguments`."""
        view = await self.view(ctx)
        key, left = choose_account(tool, arguments, view.account_keys(tool))
        found = view.find_exact(key.id)
        if found is None or decide(self._policy, ctx.caller, found.tool, Action.CALL) is Decision.HIDE:
            raise ToolNotFound(f'No tool is called "{key.id}".', hint=SEARCH_HINT)
        return found, left

    async def _finish(self, ctx: Context, tool: Tool, result: ToolResult, namespace: str | None = None) -> ToolResult:
        """Record a complete result, and rewrite the addresses in it that only its own server knows.

        `namespace` is that of the server, if the tool is that of a group.
        """
        if result.kind == "complete":
            await self.sessions.record(ctx, tool.id, success=not result.is_error)
            if self.past.enabled and not result.is_error and self._is_shared(tool):
                await self.past.called(ctx, tool.id)
            await self.result_shapes.record(ctx, tool, result)
            if tool.output_schema is not None and result.structured is None and not result.is_error:
                self._note_violation(tool)
        namespace = tool.namespace if namespace is None else namespace
        if result.meta and (meta := with_public_apps(namespace, result.meta)) != result.meta:
            result = replace(result, meta=meta)
        if any(block.get("type") in URI_BLOCKS for block in result.content):
            return await self.resources.rewrite_uris(ctx, namespace, result)
        return result

    def _settle(
        self, ctx: Context, found: ResolvedTool, arguments: Any, loose: Object, *, verbatim: bool
    ) -> dict[str, Any]:
        """Return the arguments to send, if the caller may call the tool and its schema accepts them."""
        tool = found.tool
        if not self._policy.allows_everything and (
            decide(self._policy, ctx.caller, tool, Action.CALL) is Decision.HIDE
        ):
            check_step_up(self._policy, ctx, tool)
            raise ToolNotFound(f'No tool is called "{tool.id}".', hint=SEARCH_HINT)
        if verbatim and all(backend.kind is BackendKind.MCP for backend in found.backends):
            return dict(arguments)
        merged = merge_arguments(arguments, loose, tool.input_schema, tool=tool.id, known=found.schema.properties)
        try:
            return found.schema.accept(merged)
        except InvalidArguments as error:
            changes = (backend.provider.explain_change(tool.key, merged) for backend in found.backends)
            error.hint = " ".join(filter(None, (error.hint, next(filter(None, changes), ""))))
            raise

    def _note_violation(self, tool: Tool) -> None:
        """Note that a tool gave no structured content, although its output schema promises it."""
        if self._is_shared(tool) and self.honors_output_schema(tool):
            # By identity: two tenants may have different tools of one key.
            self._violating_tools[id(tool)] = tool
            if len(self._violating_tools) > _MAX_VIOLATIONS:
                self._violating_tools.pop(next(iter(self._violating_tools)))
            self.schema_violations += 1

    def breakers(self) -> tuple[BreakerState, ...]:
        """Return the circuit breaker's view of each backend, by name; empty without a breaker."""
        return self._pipeline.breaker_states()

    def _is_shared(self, tool: Tool) -> bool:
        """Whether the tool is in the snapshot; nothing is remembered of a request's own tools."""
        catalog = self.refresher.snapshot.catalog
        position = catalog.by_id(tool.id)
        return position is not None and (catalog.tools[position] is tool or is_group_tool(tool))

    def honors_output_schema(self, tool: Tool) -> bool:
        """Whether this definition has always returned the structured content that its output schema promises."""
        return id(tool) not in self._violating_tools

    async def find(self, ctx: Context, name: str) -> ResolvedTool:
        """Return the tool that a spelling names in the caller's view.

        If the spelling gives the namespace of a server that is still connecting, waits for that server for a while.
        Raises `ToolNotFound`, `AmbiguousName` or `ServerUnavailable`.
        """
        view, failed = self.settled_view(ctx), _NONE_FAILED
        if view is None:
            if (ctx.providers or ctx.overriding) and (shared := await self._shared(ctx, name)) is not None:
                return shared
            view, failed = await self._view_and_failures(ctx)
        try:
            return view.find(name)
        except ToolNotFound as missing:
            return await self._find_missing(ctx, name, view, failed, missing)

    async def _find_missing(
        self, ctx: Context, name: str, view: View, failed: Sequence[ServerStatus], missing: ToolNotFound
    ) -> ResolvedTool:
        """Return a tool that is not in view, from where it may be. Raises like `find`; `missing` is the last resort."""
        found = await self.federation.look_up(ctx, view, name)
        if found is not None or (found := await self._find_in_new_lists(ctx, name)) is not None:
            return found
        server = unready_server(self._servers(ctx, view), name)
        if server is not None:
            return await self._find_when_connected(ctx, name, server)
        if (refusal := self._explain_rejected(ctx, name)) is not None:
            self._pipeline.audit_refused(ctx, name, refusal)
            raise refusal from None
        late = [status.name for status in self._servers(ctx, view) if status.is_missing]
        if late:
            missing.hint = f"{missing.hint} Still connecting: {', '.join(late)}.".strip()
        for status in failed:
            missing.hint = f"{missing.hint} {status.name} may have it: {status.reason}.".strip()
        self._pipeline.audit_refused(ctx, name, missing)
        raise missing

    async def _find_in_new_lists(self, ctx: Context, name: str) -> ResolvedTool | None:
        """Ask providers that do not report changes for their tools again, and return the tool if one has it now."""
        if not self.refresher.doubt():
            return None
        with anyio.move_on_after(self.options.find_timeout_s):
            await self.refresher.wait_current()
        try:
            return (await self.view(replace(ctx, memo=None))).find(name)
        except ToolNotFound:
            return None

    async def _shared(self, ctx: Context, name: str) -> ResolvedTool | None:
        """Return the shared tool of exactly that id or wire name.

        It takes precedence over the request's plain providers, so a call of it need not wait for them.
        """
        if ctx.overriding:
            return None
        view = await self.view(replace(ctx, providers=(), memo=None))
        return view.find_exact(name)

    async def _find_when_connected(self, ctx: Context, name: str, server: str) -> ResolvedTool:
        """Return the tool of a server that is still connecting, or raise why it is not available.

        One that has failed is tried again soon, as it is at a call of a tool that is known.
        """
        for backend in self.refresher.backends():
            if any(status.name == server for status in backend.provider.statuses()):
                backend.provider.wake()
        with anyio.move_on_after(self.options.call_grace_s):
            while (status := await self._status(ctx, server)) and status.is_missing:
                await self.refresher.wait_changed()
        try:
            return (await self.view(ctx)).find(name)
        except ToolNotFound as still:
            status = await self._status(ctx, server)
            if status is None or status.state is ServerState.READY:
                raise self._explain_rejected(ctx, name) or still from None
            raise ServerUnavailable(
                f"{name} cannot be looked up: server {server} {describe_state(status)}.",
                hint=SEARCH_ELSEWHERE_HINT,
                data={"server": server, "state": str(status.state), "reason": status.reason},
            ) from None

    def _explain_rejected(self, ctx: Context, name: str) -> ToolNotFound | None:
        """Return why a listed tool cannot be used; None if the caller may not know of it."""
        return explain_rejected(name, self.refresher.rejected_definitions(), self._policy, ctx.caller)

    # -- servers ---------------------------------------------------------------------------------------------------

    async def servers(self, ctx: Context, view: View | None = None) -> tuple[ServerStatus, ...]:
        """Return the servers that the caller may know of, by name; the same tuple while nothing changes.

        A caller that already has the view passes it.
        """
        return self._servers(ctx, await self.view(ctx) if view is None else view)

    def _known_servers(self, ctx: Context) -> tuple[ServerStatus, ...]:
        return self._servers(ctx, self._shared_view(ctx.caller))

    def _servers(self, ctx: Context, view: View) -> tuple[ServerStatus, ...]:
        return visible_servers(view, self.refresher.statuses(), self._policy, ctx.caller, self.exclusions)

    async def namespaces(self, ctx: Context) -> frozenset[str]:
        """Return the namespaces of the caller's tools, and of the servers that the caller may know of."""
        view = await self.view(ctx)
        return frozenset((*namespace_counts(view), *map(namespace_of, self._servers(ctx, view)))) - {""}

    async def tags(self, ctx: Context) -> frozenset[str]:
        """Return the tags of the tools that the caller can find."""
        return searchable_tags(await self.view(ctx))

    async def _status(self, ctx: Context, name: str) -> ServerStatus | None:
        return next((status for status in await self.servers(ctx) if status.name == name), None)
