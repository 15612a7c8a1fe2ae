"""The protocol side of toolcrib: MCP requests to the front, results and errors back, in the client's version.

Built on the SDK's low-level server. It knows nothing of transports.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import anyio
import mcp_types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from pydantic import BaseModel

from toolcrib._version import VERSION
from toolcrib.errors import AmbiguousName, NotFound, ToolcribError
from toolcrib.model import Object, ToolResult
from toolcrib.protocols import Context
from toolcrib.server.changes import ListChanges
from toolcrib.server.context import RequestContext, kept, to_context
from toolcrib.server.failures import guarded, isolated
from toolcrib.server.fragments import Fragments
from toolcrib.surfaces.front import Front
from toolcrib.surfaces.results import error_result
from toolcrib.wire import is_modern, result_to_wire

logger = logging.getLogger(__name__)

_LIST_TTL_MS: Final = 5_000
"""How long a client may keep a list: servers come and go."""
_OPENING: Final = ("initialize", "server/discover")
_CHANGED: Final = "notifications/tools/list_changed"


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
        told_of = notification_options or NotificationOptions(tools_changed=self.changes is not None)
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
    handlers = Handlers(front)
    server = ToolServer(
        name, changes=changes, version=version, title=title, description=description, website_url=website_url
    )
    server.add_request_handler("tools/list", mcp_types.PaginatedRequestParams, handlers.list_tools)
    server.add_request_handler("tools/call", mcp_types.CallToolRequestParams, handlers.call_tool)
    server.middleware[:] = [handlers.introduce]
    if changes is not None:
        followers = _Followers(changes)
        server.add_request_handler("subscriptions/listen", mcp_types.SubscriptionsListenRequestParams, followers.listen)
        server.middleware.append(followers.follow_session)
    return server


def end_streams(server: Server[Any]) -> None:
    """End the answers of a server that never end by themselves."""
    if isinstance(server, ToolServer) and server.changes is not None:
        server.changes.end_streams()


class Handlers:
    """One function a method."""

    def __init__(self, front: Front) -> None:
        """Over a front."""
        self._front = front
        self._fragments = Fragments()

    async def introduce(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Put the caller's own digest into the instructions of the opening answer."""
        result = await call_next(ctx)
        if ctx.method in _OPENING and isinstance(result, dict):
            words = await self._words(to_context(ctx))
            return {**result, "instructions": words} if words else result
        return result

    async def _words(self, ctx: Context) -> str:
        """The digest; nothing where it cannot be had: requests will say what is wrong."""
        try:
            return await isolated(partial(self._front.instructions, ctx))
        except Exception:
            logger.exception("the instructions for a client could not be made")
            return ""

    async def list_tools(self, request: RequestContext, params: mcp_types.PaginatedRequestParams) -> HandlerResult:
        """One page of `tools/list`."""
        ctx = to_context(request)
        page = await guarded(isolated(partial(self._front.page, ctx, params.cursor)))
        version = request.protocol_version
        result: dict[str, Any] = {"tools": [self._fragments.entry(entry, version) for entry in page.items]}
        if page.cursor:
            result["nextCursor"] = page.cursor
        if is_modern(version):
            ttl = 0 if ctx.show_all or ctx.providers or ctx.overriding else _LIST_TTL_MS
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": ttl}
        return result

    async def call_tool(self, request: RequestContext, params: mcp_types.CallToolRequestParams) -> HandlerResult:
        """A meta-tool, or a tool by its public name."""
        result = await guarded(self._call(self.context(request, params), params))
        return result_to_wire(result, request.protocol_version)

    @staticmethod
    def context(request: RequestContext, params: mcp_types.CallToolRequestParams) -> Context:
        """The context of a call, with what answers an earlier question of the tool."""
        responses = params.input_responses
        return to_context(
            request,
            input_responses=_plain(responses) if responses is not None else None,
            request_state=params.request_state,
        )

    async def _call(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> ToolResult:
        try:
            return await isolated(partial(self._front.call, ctx, params.name, params.arguments or {}))
        except (NotFound, AmbiguousName):
            raise
        except ToolcribError as error:
            return error_result(error)


class _Followers:
    """Who wants to be told of changes, and how he is told."""

    def __init__(self, changes: ListChanges) -> None:
        self._changes = changes

    async def follow_session(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Tell the session that opens here of changes, until its connection ends."""
        result = await call_next(ctx)
        if ctx.method == "initialize":
            try:
                await isolated(partial(self._follow, ctx))
            except Exception:
                logger.exception("a session is not told when its tools change")
        return result

    async def _follow(self, ctx: ServerRequestContext[Any, Any]) -> None:
        # The SDK shows handlers neither the notifications of a connection nor its end; a request's session does.
        connection = ctx.session._connection  # noqa: SLF001 - the one way to both
        if _CHANGED in connection.state:
            return
        connection.state[_CHANGED] = True
        tell = partial(connection.notify, _CHANGED, None)
        follower = await self._changes.follow(kept(to_context(ctx)), tell, connection.initialized)
        if follower is None:
            logger.warning("too many sessions: one is not told when its tools change")
        else:
            connection.exit_stack.callback(self._changes.leave, follower)

    async def listen(
        self, request: RequestContext, params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        """One stream of changes; it ends when its client goes, or the server does."""
        number = request.request_id
        if number is None:
            raise MCPError(mcp_types.INVALID_REQUEST, "subscriptions/listen needs a request id.")
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: number}
        wants_tools = params.notifications.tools_list_changed is True
        acknowledged, known = mcp_types.SubscriptionFilter(tools_list_changed=wants_tools or None), anyio.Event()

        async def send(notification: mcp_types.ServerNotification) -> None:
            await request.session.send_notification(notification, related_request_id=number)

        async def tell() -> None:
            if wants_tools:
                params = mcp_types.NotificationParams(_meta=meta)
                await send(mcp_types.ToolListChangedNotification(params=params))

        follow = partial(self._changes.follow, kept(to_context(request)), tell, known)
        follower = await guarded(isolated(follow))
        if follower is None:
            raise MCPError(mcp_types.INTERNAL_ERROR, "Too many subscriptions are open; try again later.")
        try:
            opening = mcp_types.SubscriptionsAcknowledgedNotificationParams(notifications=acknowledged, _meta=meta)
            await send(mcp_types.SubscriptionsAcknowledgedNotification(params=opening))
            known.set()
            await follower.ended.wait()
        finally:
            self._changes.leave(follower)
        return mcp_types.SubscriptionsListenResult(_meta=meta)


def _plain(responses: Mapping[str, Any]) -> Object:
    """Input responses as wire JSON."""
    return {
        key: value.model_dump(by_alias=True, mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
        for key, value in responses.items()
    }
