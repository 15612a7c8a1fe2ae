"""The protocol side of toolcrib: MCP requests to the front, results and errors back, in the client's version.

Built on the SDK's low-level server. It knows nothing of transports.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import mcp_types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp_types import SERVER_INFO_META_KEY, methods

from toolcrib._version import VERSION
from toolcrib.errors import AmbiguousName, NotFound, ToolcribError
from toolcrib.gateway.library import Offered
from toolcrib.model import ToolResult
from toolcrib.protocols import Context
from toolcrib.server.changes import ListChanges
from toolcrib.server.context import RequestContext, answering, to_context
from toolcrib.server.documents import DocumentHandlers
from toolcrib.server.failures import guarded, isolated
from toolcrib.server.followers import Followers
from toolcrib.server.fragments import Fragments
from toolcrib.server.lean import set_aside
from toolcrib.server.rounds import in_rounds
from toolcrib.surfaces.front import Front
from toolcrib.surfaces.results import error_result
from toolcrib.wire import is_modern, result_to_wire

logger = logging.getLogger(__name__)

_LIST_TTL_MS: Final = 5_000
"""How long a client may keep a list: servers come and go."""
_OPENING: Final = ("initialize", "server/discover")
_CAPABILITIES: Final = {
    "prompts": "prompts",
    "resources": "resources",
    "completions": "completions",
    "logging": "says",
}
"""Capabilities that depend on the servers behind, with what the library calls them."""


class ToolServer(Server[Any]):
    """The SDK's server, which says in every transport that it tells of changes, where it does."""

    def __init__(self, name: str, *, changes: ListChanges | None, **about: Any) -> None:
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
    front: Front,
    *,
    name: str = "toolcrib",
    version: str = VERSION,
    title: str | None = "toolcrib",
    description: str | None = None,
    website_url: str | None = None,
    changes: ListChanges | None = None,
) -> ToolServer:
    """An MCP server over a front, for any transport of the SDK.

    With `changes`, which somebody has to run, clients are told when their list of tools changed: sessions of versions
    before 2026-07-28 by a notification, later clients by `subscriptions/listen`.
    """
    server = ToolServer(
        name, changes=changes, version=version, title=title, description=description, website_url=website_url
    )
    handlers = Handlers(front, lambda: server.server_info_stamp)
    server.add_request_handler("tools/list", mcp_types.PaginatedRequestParams, handlers.list_tools)
    server.add_request_handler("tools/call", mcp_types.CallToolRequestParams, handlers.call_tool)
    server.middleware[:] = [handlers.introduce, handlers.list_lean]
    DocumentHandlers(front.gateway).register(server)
    if changes is not None:
        Followers(changes, front.gateway.library).register(server)
    return server


def end_streams(server: Server[Any]) -> None:
    """End the answers of a server that never end by themselves."""
    if isinstance(server, ToolServer) and server.changes is not None:
        server.changes.end_streams()


class Handlers:
    """One function a method."""

    def __init__(self, front: Front, stamp: Callable[[], dict[str, Any]] = dict) -> None:
        """Over a front; `stamp` is what an answer in the SDK's place says of the server."""
        self._front = front
        self._stamp = stamp
        self._fragments = Fragments()

    async def introduce(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Put the caller's own digest, and what he may ask for, into the opening answer."""
        result = await call_next(ctx)
        if ctx.method in _OPENING and isinstance(result, dict):
            asker = to_context(ctx)
            words, offered = await self._words(asker), await self._offered(asker)
            capabilities = _offered_only(result.get("capabilities", {}), offered)
            return {**result, "capabilities": capabilities, **({"instructions": words} if words else {})}
        return result

    async def _offered(self, ctx: Context) -> Offered:
        """What the caller may ask for; everything, where that cannot be found out."""
        try:
            return await isolated(partial(self._front.gateway.library.offered, ctx))
        except Exception:
            logger.exception("what a client may read could not be found out")
            return Offered(prompts=True, resources=True, completions=True, watches=True, says=True)

    async def _words(self, ctx: Context) -> str:
        """The digest; nothing where it cannot be had: requests will say what is wrong."""
        try:
            return await isolated(partial(self._front.instructions, ctx))
        except Exception:
            logger.exception("the instructions for a client could not be made")
            return ""

    async def list_lean(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Answer `tools/list` in the SDK's place, which would check and copy all entries once more."""
        if ctx.method != "tools/list" or not ctx.session._connection.initialize_accepted:  # noqa: SLF001 - no other way
            return await call_next(ctx)
        methods.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        params = mcp_types.PaginatedRequestParams.model_validate(ctx.params or {}, by_name=False)
        result = await self.list_tools(ctx, params, lean=True)
        if isinstance(result, dict) and is_modern(ctx.protocol_version):
            return {**result, "_meta": {SERVER_INFO_META_KEY: self._stamp()}}
        return result

    async def list_tools(
        self, request: RequestContext, params: mcp_types.PaginatedRequestParams, *, lean: bool = False
    ) -> HandlerResult:
        """One page of `tools/list`; lean, with a mark in place of the entries where that will be filled in."""
        ctx = to_context(request)
        page = await guarded(isolated(partial(self._front.page, ctx, params.cursor)))
        version = request.protocol_version
        made = [one for one in (self._fragments.of(entry, version) for entry in page.items) if one is not None]
        mark = set_aside(request.request.scope, (one.encoded for one in made)) if lean and request.request else None
        result: dict[str, Any] = {"tools": mark or [one.entry for one in made]}
        if page.cursor:
            result["nextCursor"] = page.cursor
        if is_modern(version):
            ttl = 0 if ctx.show_all or ctx.providers or ctx.overriding else _LIST_TTL_MS
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": ttl}
        return result

    async def call_tool(self, request: RequestContext, params: mcp_types.CallToolRequestParams) -> HandlerResult:
        """A meta-tool, or a tool by its public name."""
        result = await guarded(self._call(answering(request, params), params))
        return result_to_wire(result, request.protocol_version)

    async def _once(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> ToolResult:
        return await isolated(partial(self._front.call, ctx, params.name, params.arguments or {}))

    async def _call(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> ToolResult:
        try:
            return await in_rounds(ctx, lambda one: self._once(one, params))
        except (NotFound, AmbiguousName):
            raise
        except ToolcribError as error:
            return error_result(error)


def _offered_only(capabilities: dict[str, Any], offered: Offered) -> dict[str, Any]:
    """The capabilities without those that the servers behind give nobody."""
    kept = {
        name: part
        for name, part in capabilities.items()
        if name not in _CAPABILITIES or getattr(offered, _CAPABILITIES[name])
    }
    if "resources" in kept and not offered.watches:
        kept["resources"] = {**kept["resources"], "subscribe": False}
    return kept
