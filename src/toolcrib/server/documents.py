"""Prompts, resources, completion and messages for logs: MCP requests to the gateway's library, and answers back."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import mcp_types
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from toolcrib.catalog.paging import Page, page
from toolcrib.errors import UpstreamError
from toolcrib.gateway.documents import Document, Kind
from toolcrib.gateway.gateway import Gateway
from toolcrib.model import Object, ToolResult
from toolcrib.protocols import PATH_META, Context
from toolcrib.server.context import RequestContext, answering, to_context
from toolcrib.server.failures import guarded, isolated
from toolcrib.server.rounds import in_rounds
from toolcrib.upstream.trail import VIA_KEY
from toolcrib.wire import document_to_wire, is_modern

_PAGE_BYTES: Final = 524_288
_TTL_MS: Final = 5_000
"""How long a client may keep a list: servers come and go."""
_ENTRIES: Final[Mapping[Kind, str]] = {
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resourceTemplates",
}


class DocumentHandlers:
    """One function a method."""

    def __init__(self, gateway: Gateway) -> None:
        """Over a gateway."""
        self._gateway = gateway
        self._library = gateway.library

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
        self, kind: Kind, request: RequestContext, params: mcp_types.PaginatedRequestParams
    ) -> HandlerResult:
        """One page of a list."""
        ctx = to_context(request)
        part = await guarded(isolated(partial(self._page, ctx, kind, params.cursor)))
        entries = [document.entry for document in part.items]
        if PATH_META in ctx.meta and self._gateway.gateway_id:
            entries = [_passed(entry, self._gateway.gateway_id) for entry in entries]
        result: dict[str, Any] = {_ENTRIES[kind]: entries}
        if part.cursor:
            result["nextCursor"] = part.cursor
        if is_modern(request.protocol_version):
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": _TTL_MS}
        return result

    async def _page(self, ctx: Context, kind: Kind, cursor: str | None) -> Page[Document]:
        collection = await self._library.collection(ctx)
        documents = tuple(collection.listed(kind).values())
        sizes = [document.size for document in documents]
        return page(documents, view_version=collection.marks[kind], cursor=cursor, sizes=sizes, max_size=_PAGE_BYTES)

    async def get(self, request: RequestContext, params: mcp_types.GetPromptRequestParams) -> HandlerResult:
        """`prompts/get`."""
        ctx = answering(request, params)
        return await _answered(
            request, lambda: in_rounds(ctx, lambda one: self._library.get(one, params.name, params.arguments))
        )

    async def read(self, request: RequestContext, params: mcp_types.ReadResourceRequestParams) -> HandlerResult:
        """`resources/read`."""
        ctx = answering(request, params)
        return await _answered(request, lambda: in_rounds(ctx, lambda one: self._library.read(one, params.uri)))

    async def complete(self, request: RequestContext, params: mcp_types.CompleteRequestParams) -> HandlerResult:
        """`completion/complete`."""
        wanted = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        wanted.pop("_meta", None)
        return await _answered(request, lambda: self._library.complete(to_context(request), wanted))


async def _answered(request: RequestContext, work: Callable[[], Awaitable[ToolResult]]) -> HandlerResult:
    """What a server answered, in the version of this client; a server's own error keeps its code."""

    async def answer() -> dict[str, Any]:
        return document_to_wire(request.method, await work(), request.protocol_version)

    try:
        return await guarded(isolated(answer))
    except MCPError as error:
        cause = error.__cause__
        if isinstance(cause, UpstreamError) and cause.rpc_code is not None:
            raise MCPError(cause.rpc_code, str(cause), cause.payload()) from cause
        raise


def _passed(entry: Object, gateway_id: str) -> Object:
    """An entry for another gateway, which must know it again when it comes back to this one."""
    meta = entry.get("_meta")
    known = meta if isinstance(meta, Mapping) else {}
    via = known.get(VIA_KEY)
    return {**entry, "_meta": {**known, VIA_KEY: [*(via if isinstance(via, list) else ()), gateway_id]}}
