"""MCP request handlers: tools, prompts, resources and completion, in the client's protocol version.

Built on the SDK's low-level server. Knows nothing of transports.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio.lowlevel
import mcp_types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import validate_mcp_param_headers
from mcp_types import LOG_LEVEL_META_KEY, SERVER_INFO_META_KEY, methods

from toolcrib._version import VERSION
from toolcrib.catalog import Page, page
from toolcrib.containment import isolate
from toolcrib.errors import AmbiguousName, NotFound, ToolcribError, UpstreamError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.nested_calls import RunCall, resolve_input_required
from toolcrib.gateway.view import ResolvedTool
from toolcrib.middleware.admission import CountRefusal
from toolcrib.protocol.versions import is_modern
from toolcrib.resources.listing import DocumentCollection, DocumentKind, ListedDocument
from toolcrib.resources.manager import DocumentCapabilities
from toolcrib.server.auth.authentication import ask_for_scopes
from toolcrib.server.context import (
    IdleClient,
    RequestContext,
    as_mcp_errors,
    as_server_errors,
    detach,
    note_refusal,
    server_error,
    to_call_context,
    to_context,
    with_replica,
)
from toolcrib.server.dormant import DormantChannel, DormantSessions
from toolcrib.server.notifications import ListChangeNotifier
from toolcrib.server.sdk_workarounds import (
    EntryCache,
    NotifyingServer,
    connection_of,
    defer_entries,
    defer_large_parts,
    may_send_requests,
    restore_large_parts,
)
from toolcrib.server.subscriptions import SubscriptionHandlers
from toolcrib.server.tasks import TaskHandlers, has_tasks
from toolcrib.surfaces.facade import ListedTool, ToolFacade
from toolcrib.surfaces.reply import error_result
from toolcrib.tracing import TRACING
from toolcrib.types import LACKING_SCOPES, PATH_META, Caller, Context, Object, ToolResult
from toolcrib.upstream.negotiation import TASKS_CAPABILITY
from toolcrib.wire import VIA_KEY, document_to_wire, result_to_wire

logger = logging.getLogger(__name__)

_LIST_TTL_MS: Final = 5_000
"""How long a client may cache a list. Short, because servers come and go."""
_PAGE_BYTES: Final = 524_288
_INITIALIZE_METHODS: Final = ("initialize", "server/discover")
_OPTIONAL_CAPABILITIES: Final = ("prompts", "resources", "completions", "logging")
"""Capabilities that depend on the upstream servers; fields of `DocumentCapabilities`."""
_RESULT_KEYS: Final[Mapping[DocumentKind, str]] = {
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resourceTemplates",
}
_DOCUMENT_PARTS: Final = {"prompts/get": "messages", "resources/read": "contents"}
_LARGE_METHODS: Final = ("tools/call", "tasks/result", *_DOCUMENT_PARTS)
"""Methods whose results can be large."""
_BLOCKS_PER_STEP: Final = 200

_Rule = tuple[Callable[[RequestContext], bool], ServerMiddleware[Any]]
"""Which requests a middleware is for."""
DeferEntries = Callable[[Iterable[bytes]], Any]
"""Keeps the encoded entries of a list for the response; returns their placeholder, or None if it keeps nothing."""
ObserveRequest = Callable[[str, str, float], None]
"""Learns of the end of a request: its method, its outcome, and how many seconds it took. Must not raise."""


class ToolServer(NotifyingServer):
    """An MCP server, with the notifier that it needs to announce changes, and what else answers its requests."""

    def __init__(
        self,
        name: str,
        facade: ToolFacade,
        *,
        changes: ListChangeNotifier | None,
        observe: "ObserveRequest | None" = None,
        **options: Any,
    ) -> None:
        super().__init__(name, notifies=changes is not None, **options)
        self.changes = changes
        self.dormant = DormantSessions()
        """What lets its sessions over HTTP become dormant."""
        self.connections: dict[str, Connection] = {}
        """Those of sessions over HTTP, by id."""
        self.tools = ToolHandlers(facade, lambda: self.server_info_stamp)
        self.observe = observe
        """Gets the method, the outcome and the duration in seconds of each request."""
        self._admission = facade.gateway.admission
        self._own_middleware: tuple[ServerMiddleware[Any], ...] = ()
        self.add_request_handler("tools/list", mcp_types.PaginatedRequestParams, self.tools.list_tools)
        self.add_request_handler("tools/call", mcp_types.CallToolRequestParams, self.tools.call_tool)
        self._own_handlers = self._tool_handlers()

    def _tool_handlers(self) -> tuple[object, object]:
        return self.get_request_handler("tools/list"), self.get_request_handler("tools/call")

    async def note_session(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware: know the connection of a session that opens, until it ends."""
        result = await call_next(ctx)
        connection = connection_of(ctx)
        if connection.session_id is not None and not isinstance(connection.outbound, DormantChannel):
            self.connections[connection.session_id] = connection
            connection.exit_stack.callback(self._forget_session, connection.session_id, connection)
        return result

    def _forget_session(self, session_id: str, connection: Connection) -> None:
        if self.connections.get(session_id) is connection:  # a session that was dormant has another one by now
            del self.connections[session_id]

    def report_refusal(self, caller: Caller, action: str, error: ToolcribError) -> None:
        """Report a request that was refused before a handler saw it."""
        self._admission.report_refusal(Context(caller=caller), action, error)

    @property
    def count_refusal(self) -> CountRefusal | None:
        """What counts refusals, by the setting; None if nothing does."""
        return self._admission.count

    async def observed(self, method: str, work: Awaitable[HandlerResult]) -> HandlerResult:
        """Await what answers a request, and report its end."""
        return await work if self.observe is None else await _observe(self.observe, method, work)

    def complete(self, middleware: Sequence[ServerMiddleware[Any]]) -> None:
        """Use this middleware."""
        self.middleware[:] = self._own_middleware = tuple(middleware)

    @property
    def is_unchanged(self) -> bool:
        """Whether requests about tools are answered by nothing but what it was made with."""
        return tuple(self.middleware) == self._own_middleware and self._tool_handlers() == self._own_handlers


def make_server(
    facade: ToolFacade,
    *,
    name: str = "toolcrib",
    version: str = VERSION,
    title: str | None = "toolcrib",
    description: str | None = None,
    website_url: str | None = None,
    changes: ListChangeNotifier | None = None,
    observe: ObserveRequest | None = None,
) -> ToolServer:
    """An MCP server for a facade, for any transport of the SDK.

    With `changes`, which the caller has to run, clients are notified when their list of tools changed: sessions of
    versions before 2026-07-28 by a notification, later clients by `subscriptions/listen`. `observe` learns of the end
    of each request.
    """
    server = ToolServer(
        name,
        facade,
        changes=changes,
        observe=observe,
        version=version,
        title=title,
        description=description,
        website_url=website_url,
    )
    handlers = server.tools
    tasks = TaskHandlers(facade, handlers.run_call, _large_result_to_wire)
    rules: list[_Rule] = [
        *((lambda _: TRACING.is_on, middleware) for middleware in server.middleware),
        (lambda ctx: ctx.method in _INITIALIZE_METHODS, handlers.complete_initialize),
        (lambda ctx: ctx.method == "initialize", server.note_session),
        (lambda ctx: ctx.method == "tools/list" and may_send_requests(ctx), handlers.list_tools_encoded),
        (lambda ctx: ctx.method in _LARGE_METHODS, restore_large_parts),
        (tasks.is_task_call, tasks.start),
    ]
    tasks.register(server)
    ResourceHandlers(facade.gateway).register(server)
    if changes is not None:
        subscriptions = SubscriptionHandlers(changes, facade.gateway, server.dormant)
        subscriptions.register(server)
        rules += [
            (lambda ctx: ctx.method == "initialize", subscriptions.subscribe_session),
            (lambda ctx: LOG_LEVEL_META_KEY in (ctx.meta or {}), subscriptions.forward_logs),
        ]
    server.complete([*([] if observe is None else [_observed(observe)]), _where_applicable(rules)])
    return server


def _observed(observe: ObserveRequest) -> ServerMiddleware[Any]:
    return lambda ctx, call_next: _observe(observe, ctx.method, call_next(ctx))


async def _observe(observe: ObserveRequest, method: str, work: Awaitable[HandlerResult]) -> HandlerResult:
    started, outcome = time.monotonic(), "cancelled"
    try:
        result = await work
        outcome = outcome_of(result)
    except Exception as error:
        outcome = error_outcome(error)
        raise
    else:
        return result
    finally:
        observe(method, outcome, time.monotonic() - started)


def outcome_of(result: HandlerResult) -> str:
    """The outcome of a request with this result, for metrics."""
    failed = result.get("isError") if isinstance(result, dict) else getattr(result, "is_error", None)
    return "tool_error" if failed else "ok"


def error_outcome(error: Exception) -> str:
    """The outcome of a request that failed, for metrics."""
    return str(error.error.code) if isinstance(error, MCPError) else "internal_error"


def _where_applicable(rules: Sequence[_Rule]) -> ServerMiddleware[Any]:
    """Run each middleware, the first one outermost, for the requests that its rule names.

    Most requests are calls, which need few of them; a middleware that is not needed should cost nothing.
    """
    innermost_first = tuple(reversed(rules))

    async def run(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        for applies, middleware in innermost_first:
            if applies(ctx):
                call_next = _bound(middleware, call_next)
        try:
            return await call_next(ctx)
        except MCPError as error:
            note_refusal(ctx, error)
            raise

    return run


def _bound(middleware: ServerMiddleware[Any], call_next: CallNext) -> CallNext:
    return lambda ctx: middleware(ctx, call_next)


def end_streams(server: Server[Any]) -> None:
    """End the responses of a server that never end by themselves."""
    if isinstance(server, ToolServer) and server.changes is not None:
        server.changes.end_streams()


class ToolHandlers:
    """Request handlers for tools, and middleware for the handshake."""

    def __init__(self, facade: ToolFacade, server_info: Callable[[], dict[str, Any]] = dict) -> None:
        """`server_info` returns what a modern result says of the server, for results that bypass the SDK."""
        self._facade = facade
        self._admission = facade.gateway.admission
        self._server_info = server_info
        self._entries = EntryCache()

    async def complete_initialize(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware: add the caller's own instructions and capabilities to the result of the handshake."""
        result = await call_next(ctx)
        if not isinstance(result, dict):
            return result
        caller_ctx = to_context(ctx)
        instructions = await self._instructions(caller_ctx)
        available = await self._capabilities(caller_ctx)
        capabilities = _filter_capabilities(result.get("capabilities", {}), available)
        has_session = caller_ctx.session is not None or connection_of(ctx).session_id is not None
        if has_session and has_tasks(result.get("protocolVersion")) and await self._offers_tasks(caller_ctx):
            capabilities["tasks"] = TASKS_CAPABILITY
        return {**result, "capabilities": capabilities, **({"instructions": instructions} if instructions else {})}

    async def _capabilities(self, ctx: Context) -> DocumentCapabilities:
        """What the caller may request; everything if that cannot be determined."""
        try:
            return await isolate(partial(self._facade.gateway.resources.capabilities, ctx))
        except Exception:
            logger.exception("cannot determine the capabilities for a client")
            return DocumentCapabilities(
                prompts=True, resources=True, completions=True, subscriptions=True, logging=True
            )

    async def _offers_tasks(self, ctx: Context) -> bool:
        try:
            return await isolate(partial(self._facade.offers_tasks, ctx))
        except Exception:
            logger.exception("cannot determine whether a client may run tasks")
            return False

    async def _instructions(self, ctx: Context) -> str:
        """The caller's instructions; empty on failure, because later requests will report the problem."""
        try:
            return await isolate(partial(self._facade.instructions, ctx))
        except Exception:
            logger.exception("cannot build the instructions for a client")
            return ""

    async def list_tools_encoded(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:  # noqa: ARG002 - SDK middleware
        """Middleware: answer `tools/list` without the SDK, which would validate and copy all entries again."""
        methods.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        params = mcp_types.PaginatedRequestParams.model_validate(ctx.params or {}, by_name=False)
        result = await self.list_tools(ctx, params, encoded=True)
        if isinstance(result, dict) and is_modern(ctx.protocol_version):
            return {**result, "_meta": {SERVER_INFO_META_KEY: self._server_info()}}
        return result

    async def list_tools(
        self, request: RequestContext, params: mcp_types.PaginatedRequestParams, *, encoded: bool = False
    ) -> HandlerResult:
        """One page of `tools/list`. With `encoded`, a placeholder for the entries where the transport supports that."""
        ctx = to_context(request)
        page = await as_mcp_errors(isolate(partial(self._facade.page, ctx, params.cursor)))
        version = request.protocol_version
        defer = partial(defer_entries, request.request.scope) if encoded and request.request else None
        write = partial(self._write_page, page, version, defer)
        result: dict[str, Any] = {"tools": await as_mcp_errors(self._admission.queue.run(ctx.caller, write))}
        if page.cursor:
            result["nextCursor"] = page.cursor
        if is_modern(version):
            ttl = 0 if ctx.show_all or ctx.providers or ctx.overriding else _LIST_TTL_MS
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": ttl}
        return result

    def _write_page(self, page: Page[ListedTool], version: str, defer: DeferEntries | None) -> Any:
        """The entries of a page, or their placeholder."""
        entries = [entry for entry in (self._entries.get(tool, version) for tool in page.items) if entry is not None]
        placeholder = None if defer is None else defer(entry.encoded for entry in entries)
        return placeholder or [entry.entry for entry in entries]

    async def call_tool(self, request: RequestContext, params: mcp_types.CallToolRequestParams) -> HandlerResult:
        """`tools/call`, for a meta-tool or a tool by its public name."""
        result = await self.call(request, to_call_context(request, params), params.name, params.arguments)
        return await defer_large_parts(await self.to_wire(request, result))

    async def call(self, request: RequestContext, ctx: Context, name: str, arguments: Object | None) -> ToolResult:
        """The result of a call, of any size. Raises `MCPError`."""
        found = self._facade.plain_tool(ctx, name)
        if found is not None:
            result = await as_mcp_errors(self._run_plain(found, ctx, arguments or {}, request.protocol_version))
        else:
            http = request.request if is_modern(request.protocol_version) else None
            run = partial(self._run, name, arguments or {}, None if http is None else http.headers)
            result = await as_mcp_errors(self.run_call(ctx, run))
        if result.is_error and ctx.memo and (lacking := ctx.memo.get(LACKING_SCOPES)):
            ask_for_scopes(request.request, lacking)
        return result if result.request_state is None else with_replica(request, result)

    async def _run_plain(self, found: ResolvedTool, ctx: Context, arguments: Object, version: str) -> ToolResult:
        """Run a call for which `plain_tool` has found a tool. Raises as `run_call` does."""
        run = partial(self._facade.call_found, found, arguments)
        return await _errors_as_results(run(ctx) if is_modern(version) else resolve_input_required(ctx, run))

    async def to_wire(self, request: RequestContext, result: ToolResult) -> dict[str, Any]:
        """The result in the client's protocol version."""
        return await _result_in_steps(result, request.protocol_version)

    async def _run(self, name: str, arguments: Object, headers: Mapping[str, str] | None, ctx: Context) -> ToolResult:
        """Run the call. Raises `MCPError` if an `Mcp-Param-*` header is not what the arguments say.

        The SDK's own check of the headers knows no callers, and would show what is hidden from some.
        """
        if headers is not None and (schema := await self._facade.header_schema(ctx, name)) is not None:
            rejection = validate_mcp_param_headers(schema, arguments, headers)
            if rejection is not None:
                raise MCPError(rejection.code, rejection.message, rejection.data)
        return await self._facade.call(ctx, name, arguments)

    async def run_call(self, ctx: Context, run: RunCall) -> ToolResult:
        """Run a call; an error becomes a result, unless it concerns the request. Raises such errors and `MCPError`."""
        return await _errors_as_results(resolve_input_required(ctx, lambda round_ctx: isolate(partial(run, round_ctx))))


async def _errors_as_results(work: Awaitable[ToolResult]) -> ToolResult:
    """Await a call; its error becomes a result, unless it concerns the request. Raises such errors and `MCPError`."""
    try:
        return await work
    except (NotFound, AmbiguousName):
        raise
    except UpstreamError as error:
        if error.rpc_code is None:
            return error_result(error)
        raise server_error(error, error.rpc_code) from error
    except ToolcribError as error:
        return error_result(error)


async def _large_result_to_wire(result: ToolResult, version: str) -> dict[str, Any]:
    return await defer_large_parts(await _result_in_steps(result, version))


async def _result_in_steps(result: ToolResult, version: str) -> dict[str, Any]:
    """The result for a client of the version; other requests are served between the checks of many blocks."""
    content = result.content
    if len(content) <= _BLOCKS_PER_STEP:
        return result_to_wire(result, version)
    checked: list[Object] = []
    for start in range(0, len(content), _BLOCKS_PER_STEP):
        part = ToolResult(content=content[start : start + _BLOCKS_PER_STEP])
        checked += result_to_wire(part, version)["content"]
        await anyio.lowlevel.checkpoint()
    return {**result_to_wire(replace(result, content=()), version), "content": checked}


def _filter_capabilities(capabilities: dict[str, Any], available: DocumentCapabilities) -> dict[str, Any]:
    """The capabilities without those that no upstream server provides."""
    filtered = {
        name: part
        for name, part in capabilities.items()
        if name not in _OPTIONAL_CAPABILITIES or getattr(available, name)
    }
    if "resources" in filtered and not available.subscriptions:
        filtered["resources"] = {**filtered["resources"], "subscribe": False}
    return filtered


class ResourceHandlers:
    """Request handlers for prompts, resources and completion."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._resources = gateway.resources

    def register(self, server: Server[Any]) -> None:
        """Add the handlers to a server."""
        pages = mcp_types.PaginatedRequestParams
        server.add_request_handler("prompts/list", pages, partial(self.list, "prompts"))
        server.add_request_handler("resources/list", pages, partial(self.list, "resources"))
        server.add_request_handler("resources/templates/list", pages, partial(self.list, "templates"))
        server.add_request_handler("prompts/get", mcp_types.GetPromptRequestParams, self.get)
        server.add_request_handler("resources/read", mcp_types.ReadResourceRequestParams, self.read)
        server.add_request_handler("completion/complete", mcp_types.CompleteRequestParams, self.complete)
        changed = "notifications/roots/list_changed"
        server.add_notification_handler(changed, mcp_types.NotificationParams, self.roots_changed)

    async def list(
        self, kind: DocumentKind, request: RequestContext, params: mcp_types.PaginatedRequestParams
    ) -> HandlerResult:
        """One page of `prompts/list`, `resources/list` or `resources/templates/list`."""
        ctx = to_context(request)
        part = await as_mcp_errors(isolate(partial(self._page, ctx, kind, request.method, params.cursor)))
        entries = [document.entry for document in part.items]
        if PATH_META in ctx.meta and self._gateway.gateway_id:
            entries = [_with_via(entry, self._gateway.gateway_id) for entry in entries]
        result: dict[str, Any] = {_RESULT_KEYS[kind]: entries}
        if part.cursor:
            result["nextCursor"] = part.cursor
        if is_modern(request.protocol_version):
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": _LIST_TTL_MS}
        return result

    async def _page(self, ctx: Context, kind: DocumentKind, method: str, cursor: str | None) -> Page[ListedDocument]:
        admission = self._gateway.admission
        async with admission.admitted(ctx, method):
            collection = await self._resources.collection(ctx)
            return await admission.queue.run(ctx.caller, partial(_page_of, collection, kind, cursor))

    async def get(self, request: RequestContext, params: mcp_types.GetPromptRequestParams) -> HandlerResult:
        """`prompts/get`."""
        ctx = to_call_context(request, params)
        run = partial(self._resources.get_prompt, name=params.name, arguments=params.arguments)
        return await _respond(request, lambda: resolve_input_required(ctx, run))

    async def read(self, request: RequestContext, params: mcp_types.ReadResourceRequestParams) -> HandlerResult:
        """`resources/read`."""
        ctx = to_call_context(request, params)
        run = partial(self._resources.read_resource, uri=params.uri)
        try:
            return await _respond(request, lambda: resolve_input_required(ctx, run))
        except MCPError as error:
            if not isinstance(error.__cause__, NotFound):
                raise
            raise MCPError(error.code, error.message, {**error.__cause__.payload(), "uri": params.uri}) from error

    async def complete(self, request: RequestContext, params: mcp_types.CompleteRequestParams) -> HandlerResult:
        """`completion/complete`."""
        wanted = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        wanted.pop("_meta", None)
        return await _respond(request, lambda: self._resources.complete(to_context(request), wanted))

    async def roots_changed(self, request: RequestContext, params: mcp_types.NotificationParams) -> None:  # noqa: ARG002 - SDK handler
        """`notifications/roots/list_changed`: forward it to the servers that the session uses."""
        self._resources.roots_changed(replace(detach(to_context(request)), client=IdleClient(request)))


def _page_of(collection: DocumentCollection, kind: DocumentKind, cursor: str | None) -> Page[ListedDocument]:
    documents = tuple(collection.listed(kind).values())
    sizes = [document.size for document in documents]
    return page(documents, view_version=collection.digests[kind], cursor=cursor, sizes=sizes, max_size=_PAGE_BYTES)


async def _respond(request: RequestContext, work: Callable[[], Awaitable[ToolResult]]) -> HandlerResult:
    """The result of a server in the client's protocol version. An error of the server keeps its JSON-RPC code."""

    async def respond() -> dict[str, Any]:
        result = with_replica(request, await work())
        return await _document_in_steps(request.method, result, request.protocol_version)

    return await defer_large_parts(await as_server_errors(respond))


async def _document_in_steps(method: str, result: ToolResult, version: str) -> dict[str, Any]:
    """The same as `_result_in_steps` for a prompt or a resource. Raises `UpstreamError`."""
    key = _DOCUMENT_PARTS.get(method, "")
    parts = result.structured.get(key, ()) if isinstance(result.structured, Mapping) else ()
    if len(parts) <= _BLOCKS_PER_STEP:
        return document_to_wire(method, result, version)
    checked: list[Object] = []
    for start in range(0, len(parts), _BLOCKS_PER_STEP):
        part = replace(result, structured={key: parts[start : start + _BLOCKS_PER_STEP]})
        checked += document_to_wire(method, part, version)[key]
        await anyio.lowlevel.checkpoint()
    rest = document_to_wire(method, replace(result, structured={**result.structured, key: []}), version)
    return {**rest, key: checked}


def _with_via(entry: Object, gateway_id: str) -> Object:
    """An entry for another gateway, with the id of this one, so that this gateway recognizes it if it comes back."""
    meta = entry.get("_meta")
    known = meta if isinstance(meta, Mapping) else {}
    via = known.get(VIA_KEY)
    return {**entry, "_meta": {**known, VIA_KEY: [*(via if isinstance(via, list) else ()), gateway_id]}}
