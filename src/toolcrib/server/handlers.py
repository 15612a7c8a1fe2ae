"""The engine behind the SDK's own transports over HTTP and HTTP+SSE."""

import logging
import secrets
from functools import partial
from typing import Any, Final

import mcp_types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import Notification, Request
from pydantic import RootModel
from pydantic_core import from_json, to_json

from toolcrib.protocol.failures import RpcError
from toolcrib.protocol.messages import RawJson, encode_notification
from toolcrib.protocol.params import check_request
from toolcrib.protocol.serving import ServerSession
from toolcrib.protocol.versions import PROGRESS_KEY, is_modern
from toolcrib.server.context import refusal_status
from toolcrib.server.dormant import DormantChannel, DormantSessions
from toolcrib.server.engine import Engine
from toolcrib.server.exchange import NO_HEAD, SESSION_HEADER, Exchange, http_head, request_caller
from toolcrib.server.methods import encoded_in_steps
from toolcrib.server.sdk_workarounds import (
    SPLICES_KEY,
    RequestContext,
    connection_of,
    may_send_requests,
)
from toolcrib.tracing import TRACING
from toolcrib.types import Object

logger = logging.getLogger(__name__)

BACK_CHANNEL_KEY: Final = "toolcrib.back_channel"
"""ASGI scope key: a function that returns whether the client holds a stream open for server requests."""
EVENTS_KEY: Final = "toolcrib.events"
"""ASGI scope key: a coroutine function that sends a JSON-RPC notification on the response to a session's request."""
REFUSALS_KEY: Final = "toolcrib.refusals"
"""ASGI scope key: a list that gets the HTTP status and the headers of a request's refusal, for its response."""
_SESSION: Final = "toolcrib.session"
"""Where the state of a connection keeps its `ServerSession`."""

_AnyObject = RootModel[dict[str, Any]]


class ToolServer(Server[Any]):
    """An SDK server whose requests the engine answers."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(
            engine.info["name"],
            version=engine.info["version"],
            title=engine.info.get("title"),
            # Without this look-up, the SDK lists all tools before each call of 2026-07-28.
            get_tool_input_schema=lambda _: None,
        )
        self.engine = engine
        self.dormant = DormantSessions()
        """What lets its sessions over HTTP become dormant."""
        self.connections: dict[str, Connection] = {}
        """Those of sessions over HTTP, by id."""
        for method in engine.methods:
            if method not in ("initialize", "ping"):
                self.add_request_handler(method, mcp_types.RequestParams, _not_reached)
        self.add_notification_handler("notifications/roots/list_changed", mcp_types.NotificationParams, self._notified)
        spans = tuple(self.middleware)
        self.middleware[:] = self._own_middleware = (partial(_traced, spans), self._answer)
        self._own_handlers = self._tool_handlers()

    def _tool_handlers(self) -> tuple[object, object]:
        return self.get_request_handler("tools/list"), self.get_request_handler("tools/call")

    @property
    def is_unchanged(self) -> bool:
        """Whether requests about tools are answered by nothing but what it was made with."""
        return tuple(self.middleware) == self._own_middleware and self._tool_handlers() == self._own_handlers

    async def _notified(self, ctx: RequestContext, _: object) -> None:
        await self.engine.notified(exchange_of(ctx))

    async def _answer(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware: have the engine answer."""
        entry = self.get_request_handler(ctx.method)
        if ctx.request_id is None or (
            ctx.method != "initialize" and (entry is None or entry.handler is not _not_reached)
        ):
            return await call_next(ctx)
        if ctx.method != "initialize" and not may_send_requests(ctx):
            return await call_next(ctx)
        try:
            if ctx.method == "initialize":
                return await self._initialize(ctx, call_next)
            check_request(ctx.method, ctx.protocol_version, ctx.params)
            return await self.answer_plainly(ctx)
        except RpcError as error:
            note_refusal(ctx, error)
            raise MCPError(error.code, error.message, error.data) from error

    async def answer_plainly(self, ctx: RequestContext) -> dict[str, Any]:
        """The result of a request that is certain to be valid. Raises `RpcError`."""
        return _without_raw(ctx, await encoded_in_steps(await self.engine.result(exchange_of(ctx))))

    async def _initialize(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Open the session of a connection, until the connection ends."""
        check_request("initialize", ctx.protocol_version, ctx.params)
        connection = connection_of(ctx)
        exchange = exchange_of(ctx)
        result = await self.engine.result(exchange)
        await call_next(ctx)
        session = exchange.session
        assert session is not None  # noqa: S101 - as above
        end = partial(self.engine.end_session, session, exchange.caller)
        if isinstance(connection.outbound, DormantChannel):
            connection.outbound.end_session = end
            return result
        mark = object()
        if connection.session_id is not None:
            self.connections[connection.session_id] = connection
            connection.exit_stack.callback(self._forget_session, connection.session_id, connection)
            self.dormant.opened(session.id, mark, lambda: session.log_level is None and not session.watched)
        connection.exit_stack.push_async_callback(self.dormant.closed, session.id, mark, end)

        exchange.session_id = session.id
        listening = self.engine.listening(exchange, connection.notify, connection.initialized)
        await connection.exit_stack.enter_async_context(listening)
        return result

    def _forget_session(self, session_id: str, connection: Connection) -> None:
        if self.connections.get(session_id) is connection:  # a session that was dormant has another one by now
            del self.connections[session_id]


async def _not_reached(*_: object) -> HandlerResult:
    raise AssertionError("the middleware answers by itself")


async def _traced(spans: tuple[ServerMiddleware[Any], ...], ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """Middleware: make the SDK's spans while anything is traced."""
    if TRACING.is_on:
        for middleware in spans:
            call_next = partial(_apply, middleware, call_next)
    return await call_next(ctx)


async def _apply(middleware: ServerMiddleware[Any], call_next: CallNext, ctx: RequestContext) -> HandlerResult:
    return await middleware(ctx, call_next)


def note_refusal(ctx: RequestContext, error: RpcError) -> None:
    """Note the status of a request that was refused because its caller asks too much."""
    http = ctx.request
    if http is not None and is_modern(ctx.protocol_version) and (found := refusal_status(error)) is not None:
        http.scope.get(REFUSALS_KEY, []).append(found)


def _without_raw(ctx: RequestContext, result: dict[str, Any]) -> dict[str, Any]:
    """The result with placeholders for what is encoded already, or may be large, if the transport replaces those."""
    splices = ctx.request.scope.get(SPLICES_KEY) if ctx.request else None
    if splices is None:
        return {key: from_json(value.text) if isinstance(value, RawJson) else value for key, value in result.items()}
    plain = dict(result)
    for key, value in result.items():
        if key == "_meta" or not isinstance(value, RawJson | list | dict):
            continue
        plain[key] = placeholder = secrets.token_hex(16)
        splices[placeholder] = value.text if isinstance(value, RawJson) else to_json(value, inf_nan_mode="null")
    return plain


# -- exchanges ---------------------------------------------------------------------------------------------------------


def exchange_of(ctx: RequestContext) -> Exchange:
    """The exchange of a request or notification that came through the SDK."""
    http, connection = ctx.request, connection_of(ctx)
    head = NO_HEAD if http is None else http_head(http.scope)
    session_id = head.headers.get(SESSION_HEADER) or connection.session_id
    session = None if is_modern(ctx.protocol_version) else _session_of(connection, session_id)
    declared = ctx.session.client_capabilities
    capabilities = {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)
    return Exchange(
        method=ctx.method,
        params=dict(ctx.params or {}),
        id=ctx.request_id,
        version=ctx.protocol_version,
        caller=request_caller(None if http is None else http.scope),
        session_id=session_id,
        session=session,
        capabilities=capabilities,
        http=None if http is None else head,
        channel=_SdkChannel(ctx),
    )


def _session_of(connection: Connection, session_id: str | None) -> ServerSession:
    session: ServerSession | None = connection.state.get(_SESSION)
    if session is None:
        name = connection.session_id or session_id or ""
        session = connection.state[_SESSION] = ServerSession(
            id=name, version=connection.protocol_version, is_modern=False
        )
    return session


class _SdkChannel:
    """The way to the client of a request that came through the SDK."""

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx

    @property
    def can_ask(self) -> bool:
        http = self._ctx.request
        if self._ctx.request_id is None and (http is None or BACK_CHANNEL_KEY not in http.scope):
            return True
        return self._ctx.session.can_send_request or self._has_open_stream()

    def _has_open_stream(self) -> bool:
        http = self._ctx.request
        return http is not None and BACK_CHANNEL_KEY in http.scope and bool(http.scope[BACK_CHANNEL_KEY]())

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        session = self._ctx.session
        related = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        if not session.can_send_request:
            if is_modern(self._ctx.protocol_version) or not self.can_ask:
                raise RpcError(mcp_types.INVALID_REQUEST, f"The client cannot be sent {method} now.")
            related = ServerMessageMetadata()
        request: Any = Request[dict[str, Any], str](method=method, params=dict(params))
        answer = await session.send_request(request, _AnyObject, timeout_s, metadata=related)
        return answer.root

    async def notify(self, method: str, params: Object) -> None:
        ctx, http = self._ctx, self._ctx.request
        wants_progress = PROGRESS_KEY in (ctx.params or {}).get("_meta", {})
        if http is not None and EVENTS_KEY in http.scope and (wants_progress or not self._has_open_stream()):
            await http.scope[EVENTS_KEY](from_json(encode_notification(method, params)))
        elif method == "notifications/progress":
            await ctx.session.report_progress(params["progress"], params.get("total"), params.get("message"))
        elif is_modern(ctx.protocol_version):
            notification: Any = Notification[dict[str, Any], str](method=method, params=dict(params))
            await ctx.session.send_notification(notification, related_request_id=ctx.request_id)
        else:
            await connection_of(ctx).notify(method, dict(params))
