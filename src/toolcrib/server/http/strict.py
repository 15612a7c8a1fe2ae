"""Leaves a connection to uvicorn's protocol over h11, and keeps its bounds.

h11 reads everything that HTTP/1.1 allows, ignores a request to upgrade, and reads the body of such a request as a body
(RFC 9110, 7.8). What it makes of the bytes shows where its work is public: in the calls of the ASGI app, and in what
it does to the transport.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from toolcrib.server.http.connections import Connection
from toolcrib.server.http.reader import skip_blank_lines

_READER_KEY: Final = "toolcrib.reader"
"""Key of an ASGI scope's `state`: the reader of the connection."""
_PART_BYTES: Final = 16 * 1024
"""How much is parsed in one turn of the event loop: h11 takes several microseconds for a chunk, which may have one
byte.
"""
_LAST_CHANCE_S: Final = 1.0
"""How long a body may still take that the app asks for only after the deadline."""


class StrictReader:
    """Feeds uvicorn's protocol, and sees from outside what that has read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._to_parse = bytearray()
        self._next: asyncio.Handle | None = None
        """What happens to it in the next turn."""
        self._after: asyncio.Handle | None = None
        """What happens after an answer, once a request that has come already has begun."""
        self._head_bytes = 0
        """How much has come since the last request, without its body."""
        self._is_between = False
        """Whether the protocol certainly holds no part of a head, which never ends in a blank line before its end."""
        self._request: _WatchedRequest | None = None
        """The one that was last begun."""
        self._is_paused = False
        """Whether the protocol wants to read no more for now."""
        # The protocol puts itself where uvicorn looks for connections to shut down.
        connection.server_state.connections.discard(connection)
        self._protocol = H11Protocol(
            connection.config, connection.server_state, {**connection.app_state, _READER_KEY: self}, connection.loop
        )
        self._protocol.connection_made(_ParsedTransport(connection, self.set_paused))
        if connection.write_paused:
            self._protocol.pause_writing()

    def data_received(self, data: bytes) -> None:
        """Read what has come, in parts."""
        self._to_parse += data
        self._go_on()

    def _go_on(self) -> None:
        if self._next is None:
            self._read_part()

    def _read_part(self) -> None:
        self._next = None
        if self._connection.is_closing:
            return
        if self.is_answering and not self._in_body:
            self._connection.set_reading(wanted=False)  # the next request waits for the answer
            return
        if self._is_between and not self._in_body:
            skip_blank_lines(self._to_parse)
            if not self._to_parse:
                return
        part = bytes(self._to_parse[:_PART_BYTES])
        del self._to_parse[:_PART_BYTES]
        if not self._in_body and not self._head_bytes:
            self._connection.set_deadline(self._connection.limits.options.head_timeout_s)
        in_body, self._is_between = self._in_body, part.endswith(b"\n\r\n")
        try:
            self._protocol.data_received(part)
        except h11.LocalProtocolError:
            self._connection.close()  # the rest of a body is wrong, and its answer has begun: it tries to send another
            return
        # A request that has begun is a task, which runs before this.
        self._next = self._connection.loop.call_soon(self._look, 0 if in_body else len(part), self._request)

    def _look(self, head_bytes: int, request: "_WatchedRequest | None") -> None:
        """See what the protocol has made of a part."""
        self._next = None
        if self._connection.is_closing:
            return
        if self._request is request and not self.is_answering:
            self._head_bytes += head_bytes
            if self._head_bytes > self._connection.limits.options.max_head_bytes:
                self._connection.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return
        if self._to_parse:
            self._connection.set_reading(wanted=False)
            self._next = self._connection.loop.call_soon(self._read_part)
        else:
            self._connection.set_reading(wanted=not self._is_paused)

    def set_paused(self, *, paused: bool) -> None:
        """Read no more for now, or go on."""
        self._is_paused = paused
        if not self._to_parse:
            self._connection.set_reading(wanted=not paused)

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def is_answering(self) -> bool:
        """Whether a request has begun and is not answered."""
        return self._request is not None and not self._request.is_answered

    @property
    def _in_body(self) -> bool:
        return self._request is not None and self._request.in_body

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app answer a request."""
        self._head_bytes = 0
        request = self._request = _WatchedRequest(self._connection, scope, receive, send, self.answered)
        timeout_s = self._connection.limits.options.body_timeout_s
        self._connection.set_deadline(timeout_s if request.in_body else None)
        await app(scope, request.receive, request.send)
        if self._connection.is_closing:
            await request.wait_disconnected()

    def answered(self) -> None:
        """Go on after an answer; a request that has come already begins before that."""
        if self._after is not None:
            self._after.cancel()
        self._after = self._connection.loop.call_soon(self._after_answer)

    def _after_answer(self) -> None:
        self._after = None
        if self._to_parse:
            self._go_on()
        elif self._connection.sends_no_more and not self.is_due:
            self._connection.close()

    # -- the connection ------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether an answer is due, as far as that shows."""
        return bool(self._to_parse or self._next or self._after) or self.is_answering

    @property
    def can_be_probed(self) -> bool:
        """Whether an interim response may precede what is written next."""
        return self._request is not None and self._request.can_be_probed

    @property
    def is_cut_off(self) -> bool:
        """Whether the app waits for a part of the body that has not come."""
        return not self._to_parse and self._request is not None and self._request.is_waiting

    def eof_received(self) -> None:
        """Do nothing: the connection is closed after the last answer."""

    def deadline_passed(self) -> None:
        """Say that the request came too late, unless its answer has begun."""
        request = self._request
        if request is not None and request.in_body and not request.is_answered:
            if not request.is_waiting:  # it may have come, and the app has not asked for it
                request.is_late = True
                return
            if request.has_begun:
                self._connection.close()
                return
            self._connection.refuse(HTTPStatus.REQUEST_TIMEOUT)
        elif self._head_bytes:
            self._connection.refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self._connection.close()

    def shutdown(self) -> None:
        """Close the connection, after the answer that is due."""
        self._protocol.shutdown()

    def pause_writing(self) -> None:
        """Let answers wait."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Let them go on."""
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let requests know that their client has left."""
        for handle in (self._next, self._after):
            if handle is not None:
                handle.cancel()
        self._protocol.connection_lost(exc)


class _WatchedRequest:
    """One call of the app: how far its body was read, and its answer written."""

    def __init__(
        self, connection: Connection, scope: Scope, receive: Receive, send: Send, answered: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._receive = receive
        self._send = send
        self._answered = answered
        self.in_body = any(
            (name == b"content-length" and value.strip(b"0")) or name == b"transfer-encoding"
            for name, value in scope["headers"]
        )
        """Whether a part of the body may be missing."""
        self.is_waiting = False
        """Whether the app waits for a part of the body."""
        self.is_late = False
        """Whether the body should have come by now."""
        self.has_begun = False
        self.is_answered = False
        self._is_old = scope["http_version"] == "1.0"

    @property
    def can_be_probed(self) -> bool:
        """Whether an interim response may precede the answer."""
        return not self.has_begun and not self._is_old

    async def receive(self) -> Message:
        """ASGI `receive`."""
        if not self.in_body:
            return await self._receive()
        if self.is_late:
            self._connection.set_deadline(_LAST_CHANCE_S)
        self.is_waiting = True
        try:
            message = await self._receive()
        finally:
            self.is_waiting = False
        if not message.get("more_body"):
            self.in_body = False
            self._connection.set_deadline(None)
        return message

    async def send(self, message: Message) -> None:
        """ASGI `send`; drops what would follow an answer of the parser itself."""
        if self._connection.is_closing:
            await self.wait_disconnected()
            return
        self.has_begun = True
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.is_answered = True
            self._answered()

    async def wait_disconnected(self) -> None:
        """Wait until uvicorn knows that the client has left, so that it misses no answer."""
        while not self.is_answered and (await self._receive())["type"] != "http.disconnect":
            pass


class WatchedApp:
    """ASGI middleware: lets the reader of a connection know of its requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader: StrictReader | None = scope.get("state", {}).pop(_READER_KEY, None)
        if reader is None:
            await self._app(scope, receive, send)
        else:
            await reader.serve(self._app, scope, receive, send)


class _ParsedTransport(asyncio.Transport):
    """The transport of a connection, as the parser sees it."""

    def __init__(self, connection: Connection, set_paused: Callable[..., None]) -> None:
        super().__init__()
        self._connection = connection
        self._set_paused = set_paused

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._connection.transport.get_extra_info(name, default)

    def write(self, data: Any) -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def close(self) -> None:
        self._connection.close()

    def pause_reading(self) -> None:
        self._set_paused(paused=True)

    def resume_reading(self) -> None:
        self._set_paused(paused=False)
