"""Streamable HTTP: a POST for each message, whose response is a JSON message or a stream of events.

Servers of versions before 2026-07-28 may keep a session, with a stream for messages that belong to no response, and
may end a response early and continue it later. From 2026-07-28 on, a request and its response are all there is.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import anyio.abc
from pydantic_core import to_json

from toolcrib.protocol.calling import OutgoingRequest
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.protocol.headers import SESSION_HEADER, VERSION_HEADER
from toolcrib.protocol.messages import NESTED_TOO_DEEP, TooDeepError, encode_request, error_in, is_outcome, parse_json
from toolcrib.protocol.versions import LIST_METHODS, OPENING_METHODS
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import (
    NO_MESSAGE,
    AutoResetEvent,
    CloseEvent,
    Message,
    OnMessage,
)
from toolcrib.upstream.transports.bounds import Bounds, list_bounds, result_bounds, run_in_steps
from toolcrib.upstream.transports.framing import parse_in_steps
from toolcrib.upstream.transports.http_bodies import (
    EVENT_STREAM,
    JSON,
    MessageStream,
    byte_chunks,
    discard,
    kind_of,
    read_beginning,
    read_bounded,
)
from toolcrib.upstream.transports.http_client import HttpUrl
from toolcrib.upstream.transports.http_connection import HttpResponse
from toolcrib.upstream.transports.http_failures import describe_web_page, is_web_page
from toolcrib.upstream.transports.http_requests import (
    ERROR_BOUNDS,
    GONE,
    SESSION_ENDED,
    AccessTokens,
    Reply,
    ServerRequests,
    is_session_gone,
)

_OK: Final = 200
_BAD_REQUEST: Final = 400
_SERVER_ERROR: Final = 500
_CLOSED: Final = "the connection was closed"
_INITIALIZED: Final = "notifications/initialized"
_SESSION: Final = SESSION_HEADER.encode()
_ENCODING: Final = b"content-encoding"
_MAX_CONTENT_TYPE: Final = 80
_OTHER_REQUEST: Final = "its response answers another request"
_RESUME_AFTER_S: Final = 1.0
"""Before the rest of an interrupted stream is asked for, unless the server says when."""
_LEAST_RESUME_AFTER_S: Final = 0.1
"""A server that ends each stream at once would otherwise be asked without a pause."""
_MAX_RESUME_AFTER_S: Final = 30.0
_MAX_RESUMES: Final = 3
"""Attempts to resume a response that bring nothing new."""
_MAX_LISTENS: Final = 2
"""Attempts in a row to open the stream of the server's own messages."""
_DELETE_TIMEOUT_S: Final = 1.0
"""For the server to accept the end of its session."""
_PING: Final = encode_request("session-check", "ping")
_PING_TIMEOUT_S: Final = 5.0


class HttpTransport:
    """A `Transport` to a streamable HTTP endpoint."""

    has_response_streams = True

    def __init__(
        self, options: ServerOptions, fleet: FleetOptions, redact: Redactor, tokens: AccessTokens | None = None
    ) -> None:
        """`tokens` are sent with the requests."""
        self.closed, self.refresh_needed = CloseEvent(), AutoResetEvent()
        self._options = options
        self._fleet = fleet
        self._redact = redact
        self._tokens = tokens
        self._result_bounds, self._list_bounds = result_bounds(options), list_bounds(options)
        self._plain_bytes = min(self._result_bounds.bytes, self._result_bounds.nodes)
        """What is not longer breaks no bounds."""
        self._requests: ServerRequests | None = None
        self._endpoint: HttpUrl
        """Where messages go: the URL of the options, or where that redirects to."""
        self._session: str | None = None
        self._has_lost_session = False
        self._version: dict[str, str] = {}
        """The header with the version that was agreed on."""
        self._checking = anyio.Lock()
        self._start_listening: Callable[[], object] | None = None
        self._listening = anyio.Event()

    @property
    def has_session(self) -> bool:
        """Whether the server has named a session."""
        return self._session is not None

    @asynccontextmanager
    async def opened(self, receive: OnMessage) -> AsyncIterator[None]:
        """Get ready to send; nothing is sent before the first request."""
        requests = ServerRequests(self._options, self._fleet, self._redact, self._tokens, self.refresh_needed)
        self._endpoint = requests.url
        try:
            async with anyio.create_task_group() as group:
                self._requests = requests
                self._start_listening = lambda: group.start_soon(self._listen, receive)
                try:
                    yield
                finally:
                    group.cancel_scope.cancel()
        finally:
            self._requests = None
            self.closed.set(_CLOSED)
            await self._end_session(requests)
            with anyio.CancelScope(shield=True):
                await requests.aclose()

    # -- requests --------------------------------------------------------------------------------------------------

    async def exchange(self, request: OutgoingRequest, on_message: OnMessage) -> Message:
        """Send a request, and return its outcome."""
        session, requests = None if request.modern else self._session, self._requests
        if requests is None or request.method in OPENING_METHODS:
            reply = await self._send(request.data, request.headers, session)
        else:
            reply = await requests.send_for_caller(self._endpoint, request.headers, request.data, session)
            self._endpoint = reply.url
        response = reply.response
        body = response.body
        if body is not None and len(body) <= self._plain_bytes and self._is_plain(response, request):
            try:
                value = parse_json(body)
            except ValueError as error:
                raise _unreadable(error) from error
            return value if isinstance(value, dict) and is_outcome(value) else _outcome_in(value)
        bounds = self._list_bounds if request.method in LIST_METHODS else self._result_bounds
        try:
            return await self._read(reply, request, bounds, on_message, in_session=session is not None)
        finally:
            with anyio.CancelScope(shield=True):  # the end of a response is what cancels a request
                await response.aclose()

    async def _send(
        self, content: bytes, headers: Mapping[str, str], session: str | None, *, timeout_s: float | None = None
    ) -> Reply:
        reply = await self._opened().send(
            "POST", self._endpoint, headers, content, session=session, timeout_s=timeout_s
        )
        self._endpoint = reply.url
        return reply

    def _opened(self) -> ServerRequests:
        if self._requests is None:
            raise ExchangeError(FailureKind.CLOSED, self.closed.reason or _CLOSED)
        return self._requests

    def _is_plain(self, response: HttpResponse, request: OutgoingRequest) -> bool:
        """Whether nothing but the body of a response matters."""
        names = response.names
        if response.status != _OK or _ENCODING in names:
            return False
        return request.modern or _SESSION not in names or response.header(_SESSION) == self._session

    async def _read(
        self, reply: Reply, request: OutgoingRequest, bounds: Bounds, on_message: OnMessage, *, in_session: bool
    ) -> Message:
        response = reply.response
        if response.status >= _BAD_REQUEST:
            return await self._refused(reply, in_session=in_session)
        if not request.modern:
            self._note_session(response, request.headers)
        kind = response.header(b"content-type").lower()
        if kind.startswith(EVENT_STREAM):
            return await _EventResponse(self, request, bounds, on_message).read(response)
        body = await read_bounded(response, bounds)
        if isinstance(body, str):
            raise ExchangeError(FailureKind.ANSWER, f"its response {body}")
        found = kind_of(body)
        if found == EVENT_STREAM:
            whole = HttpResponse(_NO_MORE, _OK, [], body)
            return await _EventResponse(self, request, bounds, on_message).read(whole)
        if is_web_page(response.texts) and not found:
            self.refresh_needed.set()
            raise ExchangeError(FailureKind.ANSWER, describe_web_page(body))
        if not found and not kind.startswith(JSON):
            raise ExchangeError(FailureKind.ANSWER, f"Unexpected content type: {kind[:_MAX_CONTENT_TYPE] or 'none'}")
        return await _read_long_outcome(body, bounds)

    def _note_session(self, response: HttpResponse, headers: Mapping[str, str]) -> None:
        self._session = response.header(_SESSION) or self._session
        if VERSION_HEADER in headers:
            self._version = {VERSION_HEADER: headers[VERSION_HEADER]}

    async def _refused(self, reply: Reply, *, in_session: bool) -> Message:
        """Return the JSON-RPC error with which a message was refused. Raises `ExchangeError` if there is none."""
        try:
            return await self._opened().refused(reply, in_session=in_session)
        except ExchangeError as error:
            if error.kind is FailureKind.SESSION:
                self._lose_session()
            raise

    async def resume(self, last_event_id: str) -> HttpResponse:
        """Ask a server of an older version for the rest of a response. Raises `ExchangeError`."""
        return (await self._get({"last-event-id": last_event_id})).response

    async def _get(self, headers: Mapping[str, str]) -> Reply:
        whole = {**self._version, **headers, "accept": EVENT_STREAM}
        return await self._opened().send("GET", self._endpoint, whole, session=self._session)

    async def post(self, message: Message, headers: Mapping[str, str]) -> None:
        """Send a notification, or the answer to a question of the server."""
        if VERSION_HEADER in headers:
            self._version = {VERSION_HEADER: headers[VERSION_HEADER]}
        # Other messages wait for a notification that the server does not answer.
        timeout_s = None if "id" in message else self._fleet.http_notice_timeout_s
        session = self._session
        if message.get("method") == _INITIALIZED:
            self._begin_listening()
        reply = await self._send(to_json(message), headers, session, timeout_s=timeout_s)
        if reply.response.status >= _BAD_REQUEST:
            await self._refused(reply, in_session=session is not None)
        await discard(reply.response)

    # -- the session -----------------------------------------------------------------------------------------------

    def _begin_listening(self) -> None:
        if self._session is None or self._start_listening is None:
            self._listening.set()
        else:
            self._start_listening()

    async def _listen(self, receive: OnMessage) -> None:
        """Receive what the server sends outside of any response, for as long as it has a stream for that."""
        last_event_id, retry_s, failures, has_streamed = "", _RESUME_AFTER_S, 0, False
        while failures < _MAX_LISTENS:
            failures += 1
            try:
                reply = await self._get({"last-event-id": last_event_id} if last_event_id else {})
            except ExchangeError:
                self._listening.set()
                await anyio.sleep(_pause_s(retry_s))
                continue
            self._listening.set()
            response, status = reply.response, reply.response.status
            if status == _OK and response.header(b"content-type").lower().startswith(EVENT_STREAM):
                has_streamed = True
                stream = MessageStream(byte_chunks(response), self._result_bounds)
                with suppress(ExchangeError):
                    failures = 0
                    while (message := await stream.next()) is not None:
                        await receive(message)
                last_event_id = stream.last_event_id or last_event_id
                retry_s = retry_s if stream.retry_s is None else stream.retry_s
            await response.aclose()
            if has_streamed and status in GONE:
                self._lose_session()
            if _BAD_REQUEST <= status < _SERVER_ERROR:
                return
            await anyio.sleep(_pause_s(retry_s))

    async def wait_listening(self) -> None:
        """Wait until the server has answered the request for its stream of messages, or is known to have none."""
        await self._listening.wait()

    async def has_lost_session(self) -> bool:
        """Ask whether the server still knows the session, as what it said to a request suggests that it does not.

        A tool may have sessions of its own. What a server says to a `ping` is about this one.
        """
        async with self._checking:
            if self._has_lost_session or self._session is None:
                return self._has_lost_session
            with anyio.move_on_after(_PING_TIMEOUT_S):
                try:
                    reply = await self._send(_PING, self._version, self._session)
                    body = await read_beginning(reply.response, ERROR_BOUNDS.bytes)
                except ExchangeError:
                    return False
                status = reply.response.status
                if is_session_gone(status, error_in(body)) or _blames_session(status, body):
                    self._lose_session()
            return self._has_lost_session

    def _lose_session(self) -> None:
        self._session, self._has_lost_session = None, True
        self.closed.set(SESSION_ENDED, reconnect=True)

    async def _end_session(self, requests: ServerRequests) -> None:
        """Have the server end its session, as a courtesy; briefly, even when cancelled."""
        if self._session is not None:
            with anyio.move_on_after(_DELETE_TIMEOUT_S, shield=True), suppress(ExchangeError):
                reply = await requests.send("DELETE", self._endpoint, self._version, session=self._session)
                await reply.response.aclose()

    def stderr_tail(self) -> str:
        """Return nothing: a remote server shows no stderr."""
        return ""


class _EventResponse:
    """The response to one request as a stream of events, which a server of an older version may interrupt."""

    def __init__(
        self, transport: HttpTransport, request: OutgoingRequest, bounds: Bounds, on_message: OnMessage
    ) -> None:
        self._transport = transport
        self._request = request
        self._bounds = bounds
        self._on_message = on_message
        self._ids = (request.id, str(request.id), None)
        """Of the outcome, which can be that of no other request if it names none."""
        self._last_event_id = ""
        self._retry_s = _RESUME_AFTER_S
        self._problem = ""
        """What came in place of the outcome, if anything did."""

    async def read(self, response: HttpResponse) -> Message:
        """Return the outcome. Raises `ExchangeError`."""
        failures = 0
        while True:
            received = self._last_event_id
            outcome = await self._read_once(response)
            if outcome is not None:
                return outcome
            failures = 0 if self._last_event_id != received else failures + 1
            response = await self._resumed(failures)

    async def _read_once(self, response: HttpResponse) -> Message | None:
        """Return the outcome; None if the stream ends without it."""
        stream = MessageStream(byte_chunks(response), self._bounds)
        try:
            outcome = await self._read_messages(stream)
            if outcome is not None:
                await stream.drain()
            return outcome
        finally:
            self._last_event_id = stream.last_event_id or self._last_event_id
            self._retry_s = self._retry_s if stream.retry_s is None else stream.retry_s
            self._problem = stream.problem or self._problem
            with anyio.CancelScope(shield=True):
                await stream.aclose()
                await response.aclose()

    async def _read_messages(self, stream: MessageStream) -> Message | None:
        while (message := await stream.next()) is not None:
            if not is_outcome(message):
                if "method" in message:
                    await self._on_message(message)
            elif message.get("id") in self._ids:
                return message
            else:
                self._problem = _OTHER_REQUEST
        return None

    async def _resumed(self, failures: int) -> HttpResponse:
        """Return the rest of the response. Raises `ExchangeError` if the server cannot or does not continue it."""
        while not self._request.modern and self._last_event_id and failures < _MAX_RESUMES:
            await anyio.sleep(_pause_s(self._retry_s))
            failures += 1
            with suppress(ExchangeError):
                response = await self._transport.resume(self._last_event_id)
                if response.status == _OK:
                    return response
                await response.aclose()
        raise ExchangeError(FailureKind.LOST, self._problem or "the connection broke off")


def _pause_s(wanted_s: float) -> float:
    return min(max(wanted_s, _LEAST_RESUME_AFTER_S), _MAX_RESUME_AFTER_S)


class _NoMore:
    """The source of a body that is there already."""

    async def read(self) -> None:
        return None

    async def end_response(self) -> None:
        """Do nothing: there is no connection."""


_NO_MORE: Final = _NoMore()


async def _read_long_outcome(body: bytes, bounds: Bounds) -> Message:
    try:
        return _outcome_in(await run_in_steps(parse_in_steps(body, is_list=bounds.in_steps)))
    except ValueError as error:
        raise _unreadable(error) from error


def _outcome_in(value: Any) -> Message:
    """Return the outcome in a message, or in a batch of them. Raises `ExchangeError`."""
    for message in value if isinstance(value, list) else (value,):
        if isinstance(message, dict) and is_outcome(message):
            return message
    raise ExchangeError(FailureKind.ANSWER, NO_MESSAGE)


def _unreadable(error: ValueError) -> ExchangeError:
    reason = f"its response {NESTED_TOO_DEEP}" if isinstance(error, TooDeepError) else NO_MESSAGE
    return ExchangeError(FailureKind.ANSWER, reason)


def _blames_session(status: int, body: bytes) -> bool:
    """Whether the answer to a ping says that there is no such session."""
    return b"session" in body.lower() and (status >= _BAD_REQUEST or b'"error"' in body)
