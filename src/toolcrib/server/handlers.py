"""MCP request handlers: tools, prompts, resources and completion, in the client's protocol version.

Built on the SDK's low-level server. Knows nothing of transports.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import mcp_types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types import SERVER_INFO_META_KEY, methods
from pydantic import ValidationError

from toolcrib._version import VERSION
from toolcrib.catalog.paging import Page, page
from toolcrib.errors import AmbiguousName, ExecutionFailed, NotFound, ToolcribError, UpstreamError
from toolcrib.gateway.gateway import Gateway
from toolcrib.resources.listing import DocumentKind, ListedDocument
from toolcrib.resources.manager import DocumentCapabilities
from toolcrib.server.context import RequestClient, RequestContext, to_call_context, to_context
from toolcrib.server.error_responses import as_mcp_errors, isolate
from toolcrib.server.notifications import ListChangeNotifier, SubscriptionHandlers
from toolcrib.server.sdk_workarounds import EntryCache, defer_entries
from toolcrib.surfaces.base import error_result
from toolcrib.surfaces.facade import ToolFacade
from toolcrib.types import PATH_META, Context, Object, ToolResult
from toolcrib.upstream.loop_detection import VIA_KEY
from toolcrib.wire import document_to_wire, is_modern, result_to_wire

logger = logging.getLogger(__name__)


_LIST_TTL_MS: Final = 5_000
"""How long a client may keep a list: servers come and go."""


_INITIALIZE_METHODS: Final = ("initialize", "server/discover")


_CAPABILITY_FIELDS: Final = {
    "prompts": "prompts",
    "resources": "resources",
    "completions": "completions",
    "logging": "logging",
}
"""Capabilities that depend on the servers behind, with what the library calls them."""


class ToolServer(Server[Any]):
    """The SDK's server, which says in every transport that it tells of changes, where it does."""

    def __init__(self, name: str, *, changes: ListChangeNotifier | None, **about: Any) -> None:
        """`about` goes to the SDK's server."""
        # Without the look-up the SDK lists all tools before each call of the modern era.
        super().__init__(name, get_tool_input_schema=lambda _: None, **about)
        self.changes = changes

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """What the opening answer says; the SDK's HTTP transports ask for it without arguments."""
        tells = self.changes is not None
        told_of = notification_options or NotificationOptions(
            tools_changed=tells, prompts_changed=tells, resources_changed=tells
        )
        return super().create_initialization_options(told_of, experimental_capabilities, extensions)


def make_server(
    front: ToolFacade,
    *,
    name: str = "toolcrib",
    version: str = VERSION,
    title: str | None = "toolcrib",
    description: str | None = None,
    website_url: str | None = None,
    changes: ListChangeNotifier | None = None,
) -> ToolServer:
    """An MCP server over a front, for any transport of the SDK.

    With `changes`, which somebody has to run, clients are told when their list of tools changed: sessions of versions
    before 2026-07-28 by a notification, later clients by `subscriptions/listen`.
    """
    server = ToolServer(
        name, changes=changes, version=version, title=title, description=description, website_url=website_url
    )
    handlers = ToolHandlers(front, lambda: server.server_info_stamp)
    server.add_request_handler("tools/list", mcp_types.PaginatedRequestParams, handlers.list_tools)
    server.add_request_handler("tools/call", mcp_types.CallToolRequestParams, handlers.call_tool)
    server.middleware[:] = [handlers.complete_initialize, handlers.list_tools_encoded]
    ResourceHandlers(front.gateway).register(server)
    if changes is not None:
        SubscriptionHandlers(changes, front.gateway.resources).register(server)
    return server


def end_streams(server: Server[Any]) -> None:
    """End the answers of a server that never end by themselves."""
    if isinstance(server, ToolServer) and server.changes is not None:
        server.changes.end_streams()


class ToolHandlers:
    """One function a method."""

    def __init__(self, front: ToolFacade, stamp: Callable[[], dict[str, Any]] = dict) -> None:
        """Over a front; `stamp` is what an answer in the SDK's place says of the server."""
        self._facade = front
        self._server_info = stamp
        self._entries = EntryCache()

    async def complete_initialize(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Put the caller's own digest, and what he may ask for, into the opening answer."""
        result = await call_next(ctx)
        if ctx.method in _INITIALIZE_METHODS and isinstance(result, dict):
            asker = to_context(ctx)
            words, offered = await self._instructions(asker), await self._capabilities(asker)
            capabilities = _filter_capabilities(result.get("capabilities", {}), offered)
            return {**result, "capabilities": capabilities, **({"instructions": words} if words else {})}
        return result

    async def _capabilities(self, ctx: Context) -> DocumentCapabilities:
        """What the caller may ask for; everything, where that cannot be found out."""
        try:
            return await isolate(partial(self._facade.gateway.resources.capabilities, ctx))
        except Exception:
            logger.exception("what a client may read could not be found out")
            return DocumentCapabilities(
                prompts=True, resources=True, completions=True, subscriptions=True, logging=True
            )

    async def _instructions(self, ctx: Context) -> str:
        """The digest; nothing where it cannot be had: requests will say what is wrong."""
        try:
            return await isolate(partial(self._facade.instructions, ctx))
        except Exception:
            logger.exception("the instructions for a client could not be made")
            return ""

    async def list_tools_encoded(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Answer `tools/list` in the SDK's place, which would check and copy all entries once more."""
        if ctx.method != "tools/list" or not ctx.session._connection.initialize_accepted:  # noqa: SLF001 - no other way
            return await call_next(ctx)
        methods.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        params = mcp_types.PaginatedRequestParams.model_validate(ctx.params or {}, by_name=False)
        result = await self.list_tools(ctx, params, lean=True)
        if isinstance(result, dict) and is_modern(ctx.protocol_version):
            return {**result, "_meta": {SERVER_INFO_META_KEY: self._server_info()}}
        return result

    async def list_tools(
        self, request: RequestContext, params: mcp_types.PaginatedRequestParams, *, lean: bool = False
    ) -> HandlerResult:
        """One page of `tools/list`; lean, with a mark in place of the entries where that will be filled in."""
        ctx = to_context(request)
        page = await as_mcp_errors(isolate(partial(self._facade.page, ctx, params.cursor)))
        version = request.protocol_version
        made = [one for one in (self._entries.get(entry, version) for entry in page.items) if one is not None]
        mark = defer_entries(request.request.scope, (one.encoded for one in made)) if lean and request.request else None
        result: dict[str, Any] = {"tools": mark or [one.entry for one in made]}
        if page.cursor:
            result["nextCursor"] = page.cursor
        if is_modern(version):
            ttl = 0 if ctx.show_all or ctx.providers or ctx.overriding else _LIST_TTL_MS
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": ttl}
        return result

    async def call_tool(self, request: RequestContext, params: mcp_types.CallToolRequestParams) -> HandlerResult:
        """A meta-tool, or a tool by its public name."""
        result = await as_mcp_errors(self._call(to_call_context(request, params), params))
        return result_to_wire(result, request.protocol_version)

    async def _call_once(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> ToolResult:
        return await isolate(partial(self._facade.call, ctx, params.name, params.arguments or {}))

    async def _call(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> ToolResult:
        try:
            return await resolve_input_required(ctx, lambda one: self._call_once(one, params))
        except (NotFound, AmbiguousName):
            raise
        except ToolcribError as error:
            return error_result(error)


def _filter_capabilities(capabilities: dict[str, Any], offered: DocumentCapabilities) -> dict[str, Any]:
    """The capabilities without those that the servers behind give nobody."""
    kept = {
        name: part
        for name, part in capabilities.items()
        if name not in _CAPABILITY_FIELDS or getattr(offered, _CAPABILITY_FIELDS[name])
    }
    if "resources" in kept and not offered.subscriptions:
        kept["resources"] = {**kept["resources"], "subscribe": False}
    return kept


_PAGE_BYTES: Final = 524_288


_RESOURCE_TTL_MS: Final = 5_000
"""How long a client may keep a list: servers come and go."""


_RESULT_KEYS: Final[Mapping[DocumentKind, str]] = {
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resourceTemplates",
}


class ResourceHandlers:
    """One function a method."""

    def __init__(self, gateway: Gateway) -> None:
        """Over a gateway."""
        self._gateway = gateway
        self._library = gateway.resources

    def register(self, server: Server[Any]) -> None:
        """Have a server answer these methods."""
        pages = mcp_types.PaginatedRequestParams
        server.add_request_handler("prompts/list", pages, partial(self.list, "prompts"))
        server.add_request_handler("resources/list", pages, partial(self.list, "resources"))
        server.add_request_handler("resources/templates/list", pages, partial(self.list, "templates"))
        server.add_request_handler("prompts/get", mcp_types.GetPromptRequestParams, self.get)
        server.add_request_handler("resources/read", mcp_types.ReadResourceRequestParams, self.read)
        server.add_request_handler("completion/complete", mcp_types.CompleteRequestParams, self.complete)

    async def list(
        self, kind: DocumentKind, request: RequestContext, params: mcp_types.PaginatedRequestParams
    ) -> HandlerResult:
        """One page of a list."""
        ctx = to_context(request)
        part = await as_mcp_errors(isolate(partial(self._page, ctx, kind, params.cursor)))
        entries = [document.entry for document in part.items]
        if PATH_META in ctx.meta and self._gateway.gateway_id:
            entries = [_with_via(entry, self._gateway.gateway_id) for entry in entries]
        result: dict[str, Any] = {_RESULT_KEYS[kind]: entries}
        if part.cursor:
            result["nextCursor"] = part.cursor
        if is_modern(request.protocol_version):
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": _RESOURCE_TTL_MS}
        return result

    async def _page(self, ctx: Context, kind: DocumentKind, cursor: str | None) -> Page[ListedDocument]:
        collection = await self._library.collection(ctx)
        documents = tuple(collection.listed(kind).values())
        sizes = [document.size for document in documents]
        return page(documents, view_version=collection.digests[kind], cursor=cursor, sizes=sizes, max_size=_PAGE_BYTES)

    async def get(self, request: RequestContext, params: mcp_types.GetPromptRequestParams) -> HandlerResult:
        """`prompts/get`."""
        ctx = to_call_context(request, params)
        return await _respond(
            request,
            lambda: resolve_input_required(
                ctx, lambda one: self._library.get_prompt(one, params.name, params.arguments)
            ),
        )

    async def read(self, request: RequestContext, params: mcp_types.ReadResourceRequestParams) -> HandlerResult:
        """`resources/read`."""
        ctx = to_call_context(request, params)
        return await _respond(
            request, lambda: resolve_input_required(ctx, lambda one: self._library.read_resource(one, params.uri))
        )

    async def complete(self, request: RequestContext, params: mcp_types.CompleteRequestParams) -> HandlerResult:
        """`completion/complete`."""
        wanted = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        wanted.pop("_meta", None)
        return await _respond(request, lambda: self._library.complete(to_context(request), wanted))


async def _respond(request: RequestContext, work: Callable[[], Awaitable[ToolResult]]) -> HandlerResult:
    """What a server answered, in the version of this client; a server's own error keeps its code."""

    async def answer() -> dict[str, Any]:
        return document_to_wire(request.method, await work(), request.protocol_version)

    try:
        return await as_mcp_errors(isolate(answer))
    except MCPError as error:
        cause = error.__cause__
        if isinstance(cause, UpstreamError) and cause.rpc_code is not None:
            raise MCPError(cause.rpc_code, str(cause), cause.payload()) from cause
        raise


def _with_via(entry: Object, gateway_id: str) -> Object:
    """An entry for another gateway, which must know it again when it comes back to this one."""
    meta = entry.get("_meta")
    known = meta if isinstance(meta, Mapping) else {}
    via = known.get(VIA_KEY)
    return {**entry, "_meta": {**known, VIA_KEY: [*(via if isinstance(via, list) else ()), gateway_id]}}


_MAX_ROUNDS: Final = 20
"""More are taken for a server that asks without end."""


_MAX_QUESTIONS: Final = 20
"""That one call may put to a client, in all its rounds."""


RunCall = Callable[[Context], Awaitable[ToolResult]]


async def resolve_input_required(ctx: Context, work: RunCall) -> ToolResult:
    """The outcome of the work, once the client was asked whatever it needs; modern clients are answered with that.

    Raises what the work raises, and `ExecutionFailed` where the client fails to answer.
    """
    result = await work(ctx)
    client = ctx.client
    if result.kind != "input_required" or not isinstance(client, RequestClient) or client.is_modern:
        return result
    asked = 0
    for _ in range(_MAX_ROUNDS):
        requests = result.input_requests or {}
        asked += len(requests)
        if asked > _MAX_QUESTIONS:
            raise ExecutionFailed(
                f"More than {_MAX_QUESTIONS} questions were asked for one call.", hint="Nothing more was asked or run."
            )
        if not all(map(client.can_answer, requests.values())):
            break
        answers = {key: await _ask_client(client, request) for key, request in requests.items()}
        result = await work(replace(ctx, input_responses=answers, request_state=result.request_state, memo={}))
        if result.kind == "complete":
            break
    return result


async def _ask_client(client: RequestClient, request: Object) -> Object:
    try:
        return await client.answer(request)
    except (MCPError, ValidationError) as error:
        method = str(request.get("method"))
        raise ExecutionFailed(
            f"More was asked for ({method}), which the client failed to answer.", hint="Nothing more was run."
        ) from error
