"""Answers requests of sessions in their own task, without the streams and tasks of the session's transport.

Each message of a session passes five streams and three tasks of the SDK on its way to a handler and back. The opening
of a session, a call, a list of tools and a ping need none of them: the SDK's own dispatcher and runner handle them
here, so that everything but the way there is the same. A session has no transport until it needs one: for a stream,
for anything that changes the session, and for a request for progress, whose notifications the dispatcher counts.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import anyio
from mcp.server.connection import Connection
from mcp.server.runner import ServerRunner
from mcp.server.streamable_http import REQUEST_CANCELLED, StreamableHTTPServerTransport
from mcp.shared import jsonrpc_dispatcher
from mcp.shared.dispatcher import OnRequest, coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import ErrorData, InitializeRequestParams, JSONRPCError, JSONRPCRequest
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from toolcrib.protocol.failures import RpcError
from toolcrib.server.direct import accepts_json
from toolcrib.server.dormant import DormantChannel, EndSession
from toolcrib.server.exchange import SESSION_HEADER
from toolcrib.server.handlers import EVENTS_KEY, ToolServer
from toolcrib.server.plain_connection import PlainAnswer, SendEvent
from toolcrib.server.sdk_workarounds import SPLICES_KEY, spliced
from toolcrib.tracing import TRACING
from toolcrib.types import Object

_sdk: Final[Any] = jsonrpc_dispatcher
"""Of whose private parts this module uses some, and only those of the versions below."""
_VERSIONS: Final = "2.3."
"""How the versions of the SDK begin that have been read for this; with others, the transport answers everything."""
BODY_KEY: Final = "toolcrib.body"
"""ASGI scope key: the whole body of a request."""
_METHODS: Final = ("tools/call", "tools/list", "ping")
_CALL: Final = ("tools/call",)
_CALL_TEXT: Final = b'"tools/call"'
_KEYS: Final = frozenset({"jsonrpc", "id", "method", "params"})
_CALL_KEYS: Final = frozenset({"name", "arguments"})
_PROGRESS: Final = "progressToken"
_RESERVED_META: Final = "io.modelcontextprotocol/"
_TERMINATED: Final = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Session terminated before the request completed"}}'
)
_CANCELLED: Final = "notifications/cancelled"
_NOTED: Final = ("notifications/initialized", _CANCELLED)
_NOTIFICATIONS: Final = b'"notifications/'
_NOTIFICATION_KEYS: Final = frozenset({"jsonrpc", "method", "params"})
_MAX_BYTES: Final = 64 * 1024
"""Of a request that is parsed here."""


def unsupported_sdk() -> str:
    """Why the transports of sessions answer everything: the installed version of the SDK; empty if they need not."""
    found = version("mcp")
    if found.startswith(_VERSIONS):
        return ""
    return (
        f"Calls in sessions of older clients cost more: they pass through the transport of the MCP SDK {found}, "
        f"because the shorter way is tested with {_VERSIONS}x only."
    )


class Opened(NamedTuple):
    """A session that has been opened without a transport."""

    answer: bytes
    """To the request that has opened it: a JSON-RPC message."""
    end: EndSession
    """What ends it."""


class SessionCalls:
    """The requests of all sessions that are answered here."""

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        self._connections = server.connections
        """Those of the sessions that have a transport, by id."""
        self._dormant: dict[str, Connection] = {}
        """Those of the sessions that had none when they were last used, by id."""
        self._running: dict[str, set[anyio.CancelScope]] = {}
        """By session."""

    async def open(self, session_id: str, scope: Scope, receive: Receive) -> Opened | None:
        """Open a session without a transport; None if it needs one, or if it is not certain that it can be opened."""
        message = _read_request(scope, ("initialize",))
        if message is None or not self._server.is_unchanged or self._server.engine.notifies is False:
            return None
        channel = DormantChannel(partial(self._connections.get, session_id))
        connection = Connection.for_loop(channel, session_id=session_id)
        reply = _Reply(connection, Request(scope, receive), message)
        await reply.run(ServerRunner(self._server, connection, None).on_request)
        if not reply.is_result or channel.end_session is None:
            return None  # the transport says what is wrong
        self._dormant[session_id] = connection
        return Opened(reply.body, channel.end_session)

    async def answer(
        self, session_id: str, transport: StreamableHTTPServerTransport, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer a request; false if its transport has to. The caller has checked who may use the session."""
        self._cancel_requested(session_id, scope)
        connection = self._connections.get(session_id)
        message = None if connection is None else _read_request(scope)
        if connection is None or message is None or transport.is_terminated:
            return False
        reply = await self._reply(session_id, connection, message, Request(scope, receive))
        await _respond(session_id, reply, send)
        return True

    async def answer_dormant(
        self, session_id: str, opening: Object, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """The same for a session without a transport, which was opened with these `params`; false if it needs one."""
        if not self._server.is_unchanged:
            return False
        self._cancel_requested(session_id, scope)
        if self._is_noted(scope):
            await respond(send, HTTPStatus.ACCEPTED, session_id)
            return True
        message = _read_request(scope)
        if message is None or "task" in (message.params or ()):  # the status of a task is sent to the session
            return False
        connection = self._dormant.get(session_id)
        if connection is None:
            connection = self._dormant[session_id] = self._opened_again(session_id, opening)
        reply = await self._reply(session_id, connection, message, Request(scope, receive))
        await _respond(session_id, reply, send)
        return True

    def read_plain(self, scope: Scope) -> JSONRPCRequest | None:
        """Read a plain call; None for any other message."""
        if _CALL_TEXT not in scope[BODY_KEY] or TRACING.is_on or not self._server.is_unchanged:
            return None
        message = _read_request(scope, _CALL)
        return message if message is not None and _is_plain_call(message.params or {}) else None

    async def answer_plain(
        self, session_id: str, opening: Object, scope: Scope, message: JSONRPCRequest, send_event: SendEvent
    ) -> PlainAnswer:
        """Answer such a call of a session, with or without a transport."""
        named = b"%b: %b\r\n" % (SESSION_HEADER.encode(), session_id.encode("latin-1"))
        answered = False

        async def notify(notification: Object) -> None:
            if not answered:
                await send_event(named, to_json(notification))

        if _accepts_events(scope):
            scope[EVENTS_KEY] = notify
        connection = self._connections.get(session_id)
        if connection is None or not connection.initialize_accepted:  # none, or another request is just opening it
            connection = self._dormant.get(session_id)
        if connection is None:
            connection = self._dormant[session_id] = self._opened_again(session_id, opening)
        reply = await self._reply(session_id, connection, message, Request(scope))
        answered = True
        if not reply.body:
            return PlainAnswer(HTTPStatus.INTERNAL_SERVER_ERROR, _TERMINATED, named)
        return PlainAnswer(HTTPStatus.OK, spliced(reply.body, scope[SPLICES_KEY]), named)

    def _opened_again(self, session_id: str, opening: Object) -> Connection:
        channel = DormantChannel(partial(self._connections.get, session_id))
        connection = Connection.for_loop(channel, session_id=session_id)
        connection.client_params, connection.protocol_version = _negotiate(opening)
        return connection

    async def _reply(
        self, session_id: str, connection: Connection, message: JSONRPCRequest, request: Request
    ) -> "_Reply":
        reply = _Reply(connection, request, message)
        running = self._running.setdefault(session_id, set())
        try:
            with anyio.CancelScope() as until_end:
                running.add(until_end)
                await reply.run(self._handler(connection, message))
        finally:
            running.discard(until_end)
            if not running:
                self._running.pop(session_id, None)
        return reply

    def _handler(self, connection: Connection, message: JSONRPCRequest) -> OnRequest:
        runner: ServerRunner[Any] = ServerRunner(self._server, connection, None)
        is_plain = message.method == "tools/call" and _is_plain_call(message.params or {})
        if not is_plain or TRACING.is_on or not self._server.is_unchanged or not connection.initialize_accepted:
            return runner.on_request
        return partial(self._call, runner)

    async def _call(
        self, runner: ServerRunner[Any], dctx: Any, method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Handle a call as the runner would, but for its checks and copies of what is certain to be valid."""
        version, params = runner.connection.protocol_version, params or {}
        request = runner._make_context(dctx, method, params, None, version)  # noqa: SLF001 - the SDK has no public way
        try:
            return await self._server.answer_plainly(request)
        except RpcError as error:
            raise MCPError(error.code, error.message, error.data) from error

    def _is_noted(self, scope: Scope) -> bool:
        """Whether this is a notification for which nothing has to be done any more."""
        message = _read_notification(scope)
        if message is None or message["method"] not in _NOTED:
            return False
        return self._server.get_notification_handler(message["method"]) is None

    def _cancel_requested(self, session_id: str, scope: Scope) -> None:
        """Cancel the request that a notification names, if it is answered for a session without a transport."""
        connection = self._dormant.get(session_id)
        message = None if connection is None else _read_notification(scope)
        if connection is None or message is None or message["method"] != _CANCELLED:
            return
        number = _sdk.cancelled_request_id_from_params(message.get("params"))
        found = None if number is None else _in_flight_of(connection).get(coerce_request_id(number))
        if found is not None:
            found.dctx.cancel_requested.set()
            found.scope.cancel()

    def end(self, session_id: str) -> None:
        """Cancel what is running for a session that has ended."""
        self._dormant.pop(session_id, None)
        for scope in tuple(self._running.get(session_id, ())):
            scope.cancel()

    def forget(self, session_id: str) -> None:
        """Forget what can be made again for a session that nothing runs for."""
        self._dormant.pop(session_id, None)


class _Reply:
    """One request, and its answer. In the place of a dispatcher, it takes what that would write to the session."""

    _raise_handler_exceptions = False

    def __init__(self, connection: Connection, request: Request, message: JSONRPCRequest) -> None:
        self.body = b""
        """The JSON-RPC message; empty if there is none, because the session has ended."""
        self.is_result = False
        self._request = message
        metadata = ServerMessageMetadata(request_context=request, can_send_request=False)
        self._in_flight = _in_flight_of(connection)
        self._context = _sdk._JSONRPCDispatchContext(  # noqa: SLF001 - the SDK has no public way
            transport=_sdk._default_transport_builder(metadata),  # noqa: SLF001 - as above
            _dispatcher=connection.outbound,
            _request_id=message.id,
            message_metadata=metadata,
            _progress_token=None,
        )

    async def run(self, on_request: OnRequest) -> None:
        """Handle the request as the dispatcher would. A notification of the client's may cancel it."""
        scope = anyio.CancelScope()
        self._in_flight[coerce_request_id(self._request.id)] = _sdk._InFlight(scope=scope, dctx=self._context)  # noqa: SLF001
        handle = _sdk.JSONRPCDispatcher._handle_request  # noqa: SLF001 - as above
        await handle(self, self._request, self._context, scope, on_request)

    async def _write_result(self, request_id: int | str, result: dict[str, Any]) -> None:
        self.body = to_json({"jsonrpc": "2.0", "id": request_id, "result": result}, inf_nan_mode="null")
        self.is_result = True

    async def _write_error(self, request_id: int | str, error: ErrorData) -> None:
        message = JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
        self.body = message.model_dump_json(by_alias=True, exclude_unset=True).encode()

    async def _settle_unanswered(self, _: object) -> None:
        await self._write_error(self._request.id, ErrorData(code=REQUEST_CANCELLED, message="Request cancelled"))

    async def _final_write(self, write: Callable[[], Awaitable[None]], **_: object) -> None:
        """Write nothing: the session has ended, or the server stops, and both have their own answers."""


def _read_request(scope: Scope, methods: Collection[str] = _METHODS) -> JSONRPCRequest | None:
    """The request in the body; None if it is not certainly one that can be answered here."""
    message = _read_message(scope)
    return JSONRPCRequest(**message) if message is not None and _is_request(message, methods) else None


def _read_notification(scope: Scope) -> dict[str, Any] | None:
    """The notification in the body; None if it is not certainly one."""
    if _NOTIFICATIONS not in scope.get(BODY_KEY, b""):
        return None
    message = _read_message(scope)
    if message is None or not message.keys() <= _NOTIFICATION_KEYS or message.get("jsonrpc") != "2.0":
        return None
    is_valid = isinstance(message.get("method"), str) and isinstance(message.get("params", {}), dict)
    return message if is_valid else None


def _read_message(scope: Scope) -> dict[str, Any] | None:
    """The object in the body of a POST, if the transport would accept its type."""
    body: bytes | None = scope.get(BODY_KEY)
    if scope["method"] != "POST" or body is None or len(body) > _MAX_BYTES or not _is_plain(scope):
        return None
    try:
        message = from_json(body, cache_strings="keys")
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _is_request(message: dict[str, Any], methods: Collection[str]) -> bool:
    """Whether this is a valid request of one of the methods, and asks for nothing but its result."""
    if not message.keys() <= _KEYS or message.get("method") not in methods or message.get("jsonrpc") != "2.0":
        return False
    params = message.get("params", {})
    if type(message.get("id")) not in (int, str) or not isinstance(params, dict):
        return False
    meta = params.get("_meta", {})
    return isinstance(meta, dict) and not any(key == _PROGRESS or key.startswith(_RESERVED_META) for key in meta)


def _is_plain_call(params: Mapping[str, Any]) -> bool:
    """Whether these are valid params of a call, and nothing in them is unusual."""
    return (
        params.keys() <= _CALL_KEYS
        and isinstance(params.get("name"), str)
        and isinstance(params.get("arguments", {}), dict)
    )


def _accepts_events(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"])


def _is_plain(scope: Scope) -> bool:
    """Whether the transport would accept the type of the body, and the client that of the answer."""
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    accepted = [value for name, value in scope["headers"] if name == b"accept"]
    return kinds == [b"application/json"] and len(accepted) == 1 and accepts_json(accepted[0])


def _negotiate(opening: Object) -> tuple[InitializeRequestParams, str]:
    """What a client has said when it opened its session, and the version that both speak."""
    return ServerRunner._negotiate_initialize(opening)  # noqa: SLF001 - the SDK has no public way


def _in_flight_of(connection: Connection) -> dict[Any, Any]:
    """The requests of a connection that are under way, by their ids."""
    dispatcher: Any = connection.outbound
    found: dict[Any, Any] = dispatcher._in_flight  # noqa: SLF001 - the SDK has no public way
    return found


async def _respond(session_id: str, reply: _Reply, send: Send) -> None:
    status = HTTPStatus.OK if reply.body else HTTPStatus.INTERNAL_SERVER_ERROR
    await respond(send, status, session_id, reply.body or _TERMINATED)


async def respond(send: Send, status: HTTPStatus, session_id: str, body: bytes = b"") -> None:
    """Send a response with the headers of a session's transport."""
    headers = [
        (b"content-type", b"application/json"),
        (SESSION_HEADER.encode(), session_id.encode("latin-1")),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
