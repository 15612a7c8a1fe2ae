"""The engine as a server of the MCP SDK, for programs that connect to one in memory or mount it in an SDK app.

The SDK reads the messages and writes the responses.
"""

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import anyio
import mcp_types
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import Notification, Request
from pydantic import BaseModel, ConfigDict, RootModel
from pydantic_core import from_json
from starlette.requests import Request as HttpRequest

from toolcrib.protocol.failures import INVALID_REQUEST, RpcError
from toolcrib.protocol.headers import SESSION_HEADER
from toolcrib.protocol.messages import RawJson
from toolcrib.protocol.params import check_request
from toolcrib.protocol.serving import ServerSession, declared_in
from toolcrib.protocol.versions import PROGRESS_KEY, is_defined, is_modern
from toolcrib.server.context import as_rpc_errors
from toolcrib.server.duplex import local_name
from toolcrib.server.engine import Engine
from toolcrib.server.exchange import NO_HEAD, Exchange
from toolcrib.server.http.requests import http_head, request_caller
from toolcrib.tracing import TRACING
from toolcrib.types import Object

SdkContext: TypeAlias = ServerRequestContext[Any, HttpRequest]

_T = TypeVar("_T")

_BY_HANDSHAKE: Final = ("initialize", "ping")
"""Methods that the SDK answers itself."""
_CALLBACK_TOKEN: Final = 0
"""The progress token of requests in memory, which may have a callback instead of one."""
_AnyObject = RootModel[dict[str, Any]]


class _AnyParams(BaseModel):
    """Params that the engine has yet to read."""

    model_config = ConfigDict(extra="allow")


class SdkConnection:
    """A connection to an SDK server, which enters its `lifespan` for each."""

    def __init__(self) -> None:
        self.name = local_name()
        self.session: ServerSession | None = None
        """From the handshake on; None for a client of 2026-07-28."""
        self.ready = anyio.Event()
        """Set once the client may be sent notifications."""
        self.stack = AsyncExitStack()
        """What ends with the connection."""


class SdkServer(Server[SdkConnection]):
    """An SDK server whose requests the engine answers."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(
            engine.info["name"],
            version=engine.info["version"],
            title=engine.info.get("title"),
            lifespan=_connection,
            # Without this look-up, the SDK lists all tools before each call of 2026-07-28.
            get_tool_input_schema=lambda _: None,
        )
        adapter = _Adapter(engine)
        traced = partial(_traced, tuple(self.middleware))
        self._own_middleware: list[ServerMiddleware[Any]] = [traced, partial(adapter.intercept, self)]
        self.middleware[:] = self._own_middleware
        for method in engine.methods:
            if method not in _BY_HANDSHAKE:
                self.add_request_handler(method, _AnyParams, adapter.answer)
        for method in ("notifications/initialized", "notifications/roots/list_changed"):
            self.add_notification_handler(method, _AnyParams, adapter.notified)
        self._added = False

    def add_request_handler(self, *args: Any, **kwargs: Any) -> None:
        """Add a handler, as the SDK does."""
        self._added = True
        super().add_request_handler(*args, **kwargs)

    @property
    def is_changed(self) -> bool:
        """Whether a program has added handlers or middleware, of which the engine does not know."""
        return self._added or self.middleware != self._own_middleware


@asynccontextmanager
async def _connection(_: Server[SdkConnection]) -> AsyncIterator[SdkConnection]:
    connection = SdkConnection()
    async with connection.stack:
        yield connection


async def _traced(spans: tuple[ServerMiddleware[Any], ...], ctx: SdkContext, call_next: CallNext) -> HandlerResult:
    """Middleware: the SDK's own spans, which take time even while nothing is traced."""
    if TRACING.is_on:
        for middleware in spans:
            call_next = partial(_apply, middleware, call_next)
    return await call_next(ctx)


async def _apply(middleware: ServerMiddleware[Any], call_next: CallNext, ctx: SdkContext) -> HandlerResult:
    return await middleware(ctx, call_next)


class _Adapter:
    """Handlers of an SDK server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def answer(self, ctx: SdkContext, _: _AnyParams) -> HandlerResult:
        """Answer a request."""
        return await answered(self._engine, exchange_of(ctx, ctx.lifespan_context))

    async def intercept(self, server: Server[Any], ctx: SdkContext, call_next: CallNext) -> HandlerResult:
        """Middleware: answer without the SDK's models, which leave out of a result what they do not know."""
        if ctx.method == "initialize":
            return await self._open_session(ctx, call_next)
        is_foreign, is_open = not is_defined(ctx.method), _is_open(ctx)
        if ctx.request_id is None:
            if is_foreign and is_open:
                await self._engine.notified(exchange_of(ctx, ctx.lifespan_context))
            return await call_next(ctx)
        entry = server.get_request_handler(ctx.method)
        is_ours = is_foreign if entry is None else entry.handler == self.answer
        if not is_ours or not is_open:
            return await call_next(ctx)
        return await answered(self._engine, exchange_of(ctx, ctx.lifespan_context), check=True)

    async def _open_session(self, ctx: SdkContext, call_next: CallNext) -> HandlerResult:
        """Have the engine answer the handshake, which the SDK notes too."""
        result = await call_next(ctx)
        if not isinstance(result, dict):
            return result
        connection: SdkConnection = ctx.lifespan_context
        exchange = exchange_of(ctx, connection)
        exchange.version = result["protocolVersion"]
        if ctx.request is None and connection.session is None:
            session = connection.session = exchange.session = ServerSession(id=connection.name)
            connection.stack.push_async_callback(self._engine.end_session, session, exchange.caller)
            opened = await answered(self._engine, exchange)
            listening = self._engine.listening(exchange, exchange.channel.notify, connection.ready)
            await connection.stack.enter_async_context(listening)
            return opened
        return await answered(self._engine, exchange)

    async def notified(self, ctx: SdkContext, _: _AnyParams) -> None:
        """Act upon a notification."""
        connection: SdkConnection = ctx.lifespan_context
        if ctx.method == "notifications/initialized":
            connection.ready.set()
        else:
            await self._engine.notified(exchange_of(ctx, connection))


def _is_open(ctx: SdkContext) -> bool:
    """Whether the handshake is certainly done, if there has to be one."""
    connection: SdkConnection = ctx.lifespan_context
    return is_modern(ctx.protocol_version) or connection.session is not None


async def answered(engine: Engine, exchange: Exchange, *, check: bool = False) -> dict[str, Any]:
    """The engine's result for the SDK; with `check`, if the params are valid. Raises `MCPError`."""

    async def answer() -> dict[str, Any]:
        if check:
            check_request(exchange.method, exchange.version, exchange.params)
        return await engine.result(exchange)

    result = await as_sdk_errors(answer())
    return {key: from_json(value.text) if isinstance(value, RawJson) else value for key, value in result.items()}


async def as_sdk_errors(work: Awaitable[_T]) -> _T:
    """Await the work, and raise its errors as those of the SDK."""
    try:
        return await as_rpc_errors(work)
    except RpcError as error:
        raise MCPError(error.code, error.message, error.data) from error


def exchange_of(ctx: SdkContext, connection: SdkConnection | None) -> Exchange:
    """The exchange of a request or notification; over HTTP, the header names its session instead of the connection."""
    http, params = ctx.request, dict(ctx.params or {})
    head = NO_HEAD if http is None else http_head(http.scope)
    is_known = http is None and connection is not None
    if http is None and is_modern(ctx.protocol_version) and ctx.request_id is not None:
        params["_meta"] = {PROGRESS_KEY: _CALLBACK_TOKEN, **(params.get("_meta") or {})}
    declared = None if is_modern(ctx.protocol_version) else ctx.session.client_capabilities
    name = head.headers.get(SESSION_HEADER)
    return Exchange(
        method=ctx.method,
        params=params,
        id=ctx.request_id,
        version=ctx.protocol_version,
        caller=request_caller(None if http is None else http.scope),
        session_id=cast("SdkConnection", connection).name if is_known else name,
        session=connection.session if is_known and connection is not None else None,
        capabilities=declared_in(params)
        if declared is None
        else declared.model_dump(by_alias=True, mode="json", exclude_none=True),
        head=head,
        channel=_SdkChannel(ctx),
    )


class _SdkChannel:
    """The way to the client of a request that came through the SDK."""

    def __init__(self, ctx: SdkContext) -> None:
        self._ctx = ctx

    @property
    def can_ask(self) -> bool:
        """Whether the SDK can send the client a request."""
        return self._ctx.session.can_send_request

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        """Send a request, and return its result."""
        if not self.can_ask:
            raise RpcError(INVALID_REQUEST, f"The client cannot be sent {method} now.")
        request = Request[dict[str, Any], str](method=method, params=dict(params))
        related = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        try:
            answer = await self._ctx.session.send_request(
                cast("mcp_types.ServerRequest", request), _AnyObject, timeout_s, metadata=related
            )
        except MCPError as error:
            raise RpcError(error.error.code, error.error.message, error.error.data) from error
        return answer.root

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification: before the response, or before 2026-07-28 whenever there is one."""
        session = self._ctx.session
        if method == "notifications/progress":
            await session.report_progress(params["progress"], params.get("total"), params.get("message"))
            return
        notification = Notification[dict[str, Any], str](method=method, params=dict(params))
        related = self._ctx.request_id if is_modern(self._ctx.protocol_version) else None
        await session.send_notification(cast("mcp_types.ServerNotification", notification), related)
