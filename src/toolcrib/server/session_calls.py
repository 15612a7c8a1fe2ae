"""Answers requests of sessions in their own task, without the streams and tasks of the session's transport.

Each message of a session passes five streams and three tasks of the SDK on its way to a handler and back. A call, a
list of tools and a ping need none of them: the SDK's own dispatcher and runner handle them here, so that everything
but the way there is the same. Whatever opens, ends or changes a session goes through its transport, and so does a
request for progress, whose notifications the dispatcher counts.
"""

import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import anyio
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.runner import ServerRunner
from mcp.server.streamable_http import REQUEST_CANCELLED, StreamableHTTPServerTransport
from mcp.shared import jsonrpc_dispatcher
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import ServerMessageMetadata
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from toolcrib.server.direct import accepts_json

_sdk: Final[Any] = jsonrpc_dispatcher
"""Of whose private parts this module uses some, and only those of the versions below."""
_VERSIONS: Final = "2.3."
"""How the versions of the SDK begin that have been read for this; with others, the transport answers everything."""
BODY_KEY: Final = "toolcrib.body"
"""ASGI scope key: the whole body of a request."""
_METHODS: Final = ("tools/call", "tools/list", "ping")
_KEYS: Final = frozenset({"jsonrpc", "id", "method", "params"})
_PROGRESS: Final = "progressToken"
_RESERVED_META: Final = "io.modelcontextprotocol/"
_TERMINATED: Final = "Session terminated before the request completed"
_MAX_BYTES: Final = 64 * 1024
"""Of a request that is parsed here."""


def is_supported(sdk: str | None = None) -> bool:
    """Whether this works with a version of the SDK, by default the installed one.

    >>> is_supported("2.3.1"), is_supported("2.4.0")
    (True, False)
    """
    return (sdk or version("mcp")).startswith(_VERSIONS)


class SessionCalls:
    """The requests of all sessions that are answered here."""

    def __init__(self, server: Server[Any], connections: dict[str, Connection]) -> None:
        """`connections` are those of the sessions that are open, by id."""
        self._server = server
        self._connections = connections
        self._running: dict[str, set[anyio.CancelScope]] = {}
        """By session."""

    async def answer(
        self, session_id: str, transport: StreamableHTTPServerTransport, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer a request; false if its transport has to. The caller has checked who may use the session."""
        connection = self._connections.get(session_id)
        message = None if connection is None else _read_message(scope)
        if connection is None or message is None or _is_ending(transport):
            return False
        reply = _Reply(connection, Request(scope, receive), message)
        running = self._running.setdefault(session_id, set())
        _hold(transport)
        try:
            with anyio.CancelScope() as until_end:
                running.add(until_end)
                await reply.run(ServerRunner(self._server, connection, None))
        finally:
            _release(transport)
            running.discard(until_end)
            if not running:
                self._running.pop(session_id, None)
        if reply.message is None:
            response = transport._create_error_response(  # noqa: SLF001 - as the transport does
                _TERMINATED, HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_ERROR
            )
        else:
            response = transport._create_json_response(reply.message)  # noqa: SLF001 - as the transport does
        await response(scope, receive, send)
        return True

    def end(self, session_id: str) -> None:
        """Cancel what is running for a session that has ended."""
        for scope in tuple(self._running.get(session_id, ())):
            scope.cancel()


class _Reply:
    """One request, and its answer. In the place of a dispatcher, it takes what that would write to the session."""

    _raise_handler_exceptions = False

    def __init__(self, connection: Connection, request: Request, message: JSONRPCRequest) -> None:
        self.message: JSONRPCResponse | JSONRPCError | None = None
        self._request = message
        dispatcher: Any = connection.outbound
        metadata = ServerMessageMetadata(request_context=request, can_send_request=False)
        self._in_flight: dict[Any, Any] = dispatcher._in_flight  # noqa: SLF001 - the SDK has no public way
        self._context = _sdk._JSONRPCDispatchContext(  # noqa: SLF001 - as above
            transport=dispatcher._transport_builder(metadata),  # noqa: SLF001 - as above
            _dispatcher=dispatcher,
            _request_id=message.id,
            message_metadata=metadata,
            _progress_token=None,
        )

    async def run(self, runner: ServerRunner[Any]) -> None:
        """Handle the request as the dispatcher would. A notification of the client's may cancel it."""
        scope = anyio.CancelScope()
        self._in_flight[coerce_request_id(self._request.id)] = _sdk._InFlight(scope=scope, dctx=self._context)  # noqa: SLF001
        handle = _sdk.JSONRPCDispatcher._handle_request  # noqa: SLF001 - as above
        await handle(self, self._request, self._context, scope, runner.on_request)

    async def _write_result(self, request_id: int | str, result: dict[str, Any]) -> None:
        self.message = JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)

    async def _write_error(self, request_id: int | str, error: ErrorData) -> None:
        self.message = JSONRPCError(jsonrpc="2.0", id=request_id, error=error)

    async def _settle_unanswered(self, _: object) -> None:
        await self._write_error(self._request.id, ErrorData(code=REQUEST_CANCELLED, message="Request cancelled"))

    async def _final_write(self, write: Callable[[], Awaitable[None]], **_: object) -> None:
        """Write nothing: the session has ended, or the server stops, and both have their own answers."""


def _read_message(scope: Scope) -> JSONRPCRequest | None:
    """The request in the body; None if it is not certainly one that can be answered here."""
    body: bytes | None = scope.get(BODY_KEY)
    if scope["method"] != "POST" or body is None or len(body) > _MAX_BYTES or not _is_plain(scope):
        return None
    try:
        message = from_json(body, cache_strings="keys")
    except ValueError:
        return None
    return JSONRPCRequest(**message) if isinstance(message, dict) and _is_request(message) else None


def _is_request(message: dict[str, Any]) -> bool:
    """Whether this is a valid request of one of the methods, and asks for nothing but its result."""
    if not message.keys() <= _KEYS or message.get("method") not in _METHODS or message.get("jsonrpc") != "2.0":
        return False
    params = message.get("params", {})
    if type(message.get("id")) not in (int, str) or not isinstance(params, dict):
        return False
    meta = params.get("_meta", {})
    return isinstance(meta, dict) and not any(key == _PROGRESS or key.startswith(_RESERVED_META) for key in meta)


def _is_plain(scope: Scope) -> bool:
    """Whether the transport would accept the type of the body, and the client that of the answer."""
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    accepted = [value for name, value in scope["headers"] if name == b"accept"]
    return kinds == [b"application/json"] and len(accepted) == 1 and accepts_json(accepted[0])


def _is_ending(transport: StreamableHTTPServerTransport) -> bool:
    scope = transport.idle_scope
    return transport.is_terminated or (scope is not None and scope.cancel_called)


def _hold(transport: StreamableHTTPServerTransport) -> None:
    """Let no time run out for the session, as while its transport serves a request."""
    transport._requests_in_flight += 1  # noqa: SLF001 - the SDK has no public way
    if transport.idle_scope is not None:
        transport.idle_scope.deadline = math.inf


def _release(transport: StreamableHTTPServerTransport) -> None:
    transport._requests_in_flight -= 1  # noqa: SLF001 - the SDK has no public way
    idle_s = transport._idle_timeout  # noqa: SLF001 - as above
    if not transport._requests_in_flight and transport.idle_scope is not None and idle_s is not None:  # noqa: SLF001
        transport.idle_scope.deadline = anyio.current_time() + idle_s
