"""Answers MCP messages that come by HTTP: each POST of 2026-07-28 by itself, those of older versions in sessions."""

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from starlette.routing import BaseRoute

from toolcrib.errors import NotStarted
from toolcrib.protocol.failures import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    RpcError,
)
from toolcrib.protocol.headers import VERSION_HEADER
from toolcrib.protocol.messages import InvalidMessage, Message, Notification, Request, RequestId, decode, encode_error
from toolcrib.protocol.params import check_version, read_envelope
from toolcrib.protocol.serving import declared_in
from toolcrib.protocol.versions import LOG_LEVEL_KEY, PROGRESS_KEY
from toolcrib.server.auth.authentication import extra_paths
from toolcrib.server.engine import Engine, EngineAnswer
from toolcrib.server.exchange import Exchange
from toolcrib.server.http.app import Endpoint, HttpApp, LifespanContext, Listening, Readiness
from toolcrib.server.http.errors import refusal_status
from toolcrib.server.http.requests import (
    ACCEPTED,
    JSON_LINE,
    LISTEN_METHOD,
    NOT_ACCEPTED,
    Answer,
    HttpRequest,
    RefusedError,
    method_not_allowed,
)
from toolcrib.server.http.sessions import HttpSessions, SharedSessions
from toolcrib.server.http.streams import EventStream, StreamChannel
from toolcrib.server.options import HttpOptions
from toolcrib.state.base import StateStore
from toolcrib.types import Authenticator

logger = logging.getLogger(__name__)

_STREAM_KEYS: Final = frozenset({PROGRESS_KEY, LOG_LEVEL_KEY})
"""A request with one of these in its `_meta` may get notifications before its response, as one of a client with
extensions.
"""
_STATUSES: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
"""The HTTP status of each JSON-RPC error of 2026-07-28; any other has the status of a result."""
_NO_REQUEST: Final = RpcError(INVALID_REQUEST, "The body must be a single JSON-RPC request or notification.")


def http_app(
    engine: Engine,
    options: HttpOptions,
    *,
    ready: Readiness,
    authenticator: Authenticator | None = None,
    anywhere: bool = False,
    owner: LifespanContext | None = None,
    routes: Sequence[BaseRoute] = (),
    state: StateStore | None = None,
) -> HttpApp:
    """The ASGI app for a server, to serve by itself or mount in another app.

    It answers at the options' path; with `anywhere`, at every path below its mount except the health endpoints. Its
    lifespan runs `owner` around the app. Raises `SettingsError` when other machines could reach it and nothing
    authenticates them.
    """
    endpoint, listening = _endpoint(engine, options, state)
    paths = (options.path, *extra_paths(authenticator))
    return HttpApp(
        endpoint,
        engine,
        options,
        listening=listening,
        ready=ready,
        authenticator=authenticator,
        paths=None if anywhere else paths,
        owner=owner,
        routes=routes,
    )


def _endpoint(engine: Engine, options: HttpOptions, state: StateStore | None) -> tuple[Endpoint, Listening]:
    """The endpoint, which passes requests on where processes share their state, and what learns where it listens."""
    if state is None or not state.shared:
        return StreamableHttpEndpoint(engine, options), lambda *_: None

    from toolcrib.server.processes.replicas import ReplicaEndpoint, Replicas  # noqa: PLC0415 - it loads an HTTP client

    replicas = Replicas(state, options)
    return ReplicaEndpoint(StreamableHttpEndpoint(engine, options, replicas), replicas), replicas.listening


class StreamableHttpEndpoint:
    """Answers each request by the protocol era that it names.

    Responses are plain JSON, because event streams cost more and some clients refuse large events. A stream of events
    begins when there is something to send before the response. A request of 2026-07-28 ends when its client
    disconnects.
    """

    def __init__(self, engine: Engine, options: HttpOptions, replicas: SharedSessions | None = None) -> None:
        """`replicas` are the processes that serve the same address, if there may be others."""
        self._engine = engine
        self._sessions = HttpSessions(engine, options, replicas)
        self._is_running = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold sessions, which end with this context."""
        async with self._sessions.running():
            self._is_running = True
            try:
                yield
            finally:
                self._is_running = False

    async def answer(self, request: HttpRequest, body: bytes) -> Answer | None:
        """Answer one request. Raises `NotStarted` outside of `running`."""
        if not self._is_running:
            raise NotStarted("The server is not running.")
        if request.head.is_older:
            return await self._sessions.answer(request, body)
        if request.head.method != "POST":
            return method_not_allowed("POST")
        return request.head.problem or await self._answer_post(request, body)

    async def _answer_post(self, request: HttpRequest, body: bytes) -> Answer | None:
        message: Message | None = None
        try:
            message = decode(body)
            exchange = _exchange(request, message)
        except InvalidMessage as error:
            return error_answer(error.error, error.id)
        except RpcError as error:
            return error_answer(error, message.id if isinstance(message, Request) else None)
        if exchange.id is None:
            await request.respond(ACCEPTED)  # the client need not wait for what follows from it
            await self._engine.notified(exchange)
            return None
        listens = exchange.method == LISTEN_METHOD
        may_stream = not _STREAM_KEYS.isdisjoint(exchange.meta) or "extensions" in exchange.capabilities
        by_stream = request.head.takes_events and (listens or may_stream)
        answering = self._answer_by_stream(request, exchange) if by_stream else self._engine.answer(exchange)
        answer = await request.until_left(answering)
        if answer is None:
            return None
        return Answer(200, answer.body) if answer.error is None else _with_status(answer.body, answer.error)

    async def _answer_by_stream(self, request: HttpRequest, exchange: Exchange) -> EngineAnswer:
        stream = EventStream(request)
        exchange.channel = StreamChannel(stream)
        stream.keep_alive()
        try:
            return await self._engine.answer(exchange)
        finally:
            stream.close()


def _exchange(request: HttpRequest, message: Message) -> Exchange:
    """The exchange of a request or notification. Raises `RpcError`, and `RefusedError`."""
    head = request.head
    if isinstance(message, Request):
        if message.method == LISTEN_METHOD and not head.takes_events:
            raise RefusedError(NOT_ACCEPTED)
        if head.repeated is not None:
            raise RpcError(HEADER_MISMATCH, f"{head.repeated} header appears more than once")
        version, capabilities, _, _ = read_envelope(message.method, message.params, head.routing)
        request_id: RequestId | None = message.id
    elif isinstance(message, Notification):
        version, capabilities, request_id = head.headers[VERSION_HEADER], declared_in(message.params), None
        check_version(version)
    else:
        raise _NO_REQUEST
    return Exchange(
        method=message.method,
        params=message.params or {},
        id=request_id,
        version=version,
        caller=request.caller,
        session_id=head.session_id,
        capabilities=capabilities,
        head=request.http,
    )


def error_answer(error: RpcError, request_id: int | str | None) -> Answer:
    """The answer with an error."""
    return _with_status(encode_error(request_id, error), error)


def _with_status(body: bytes, error: RpcError) -> Answer:
    refused = refusal_status(error)
    if refused is None:
        return Answer(_STATUSES.get(error.code, 200), body)
    status, headers = refused
    lines = tuple((name.lower().encode(), value.encode()) for name, value in headers.items())
    return Answer(status, body, (JSON_LINE, *lines))
