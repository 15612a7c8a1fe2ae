"""Plain requests of a connection, answered without the server's parser, messages and timers.

A client usually sends a call as one piece, and waits for the answer. Such a request is read from the bytes as they
came, and its answer is written at once, head and body together. What is not certainly of that kind goes to uvicorn's
protocol, which has not seen anything of the others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

from uvicorn.config import Config

logger = logging.getLogger(__name__)

_BEGINS: Final = b"POST "
_OK: Final = 200
_LENGTH: Final = b"content-length: "
_STREAM_HEAD: Final = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\ntransfer-encoding: chunked\r\n"
)
_JSON_TYPE: Final = b"\r\ncontent-type: application/json\r\n"


class PlainAnswer(NamedTuple):
    """The answer to a plain request."""

    status: int
    body: bytes
    """JSON."""
    headers: bytes = b""
    """Further lines of the head."""


SendEvent = Callable[[bytes, bytes], Awaitable[None]]
"""Sends a JSON message before the answer, which becomes a stream of events. Takes further lines of the head, too."""


class PlainRequest(NamedTuple):
    """A plain request."""

    answer: Callable[[SendEvent], Awaitable[PlainAnswer]]
    ends_with_connection: bool = True
    """Whether it is cancelled when its client disconnects."""


class Awaited(NamedTuple):
    """The beginning of a plain request of which a part of the body is still to come."""

    length: int
    """Of the whole request, in bytes."""


ReadPlain = Callable[[bytes], PlainRequest | Awaited | None]
"""Reads a request; None if it is not certainly plain."""


class _ServerState(Protocol):
    """What uvicorn's protocols share."""

    total_requests: int
    connections: set[Any]
    default_headers: list[tuple[bytes, bytes]]
    """Replaced by another list every second."""


class PlainConnection(asyncio.Protocol):
    """A mixin for uvicorn's protocols, which are asyncio's too: what it passes on reaches the one beside it."""

    read_plain: ReadPlain | None
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    flow: Any
    """What says whether the client reads its answers; it has `write_paused`."""
    server_state: _ServerState
    timeout_keep_alive: float
    timeout_keep_alive_task: asyncio.TimerHandle | None
    _unset_keepalive_if_required: Callable[[], None]

    def __init__(self, config: Config, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)  # type: ignore[call-arg]  # the base beside this mixin takes them
        self._answering: asyncio.Task[None] | None = None
        self._ends_with_connection = True
        self._streams = False
        """Whether the answer has begun as a stream of events."""
        self._held = bytearray()
        """What has come of a request that has yet to be read."""
        self._wanted = 0
        """The bytes of the request that is held; 0 until its head has come."""
        self._later = b""
        """What has come while a request is being answered."""
        self._is_last = False
        """Whether to close the connection after the answer."""
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._defaults: list[tuple[bytes, bytes]] | None = None
        self._start = b""
        """How answers begin with these default headers."""

    def begin_plain(self, data: bytes) -> bool:
        """Begin to answer a plain request, or hold it until the rest has come. Returns false if it is none.

        To be called only when no other request of the connection has begun.
        """
        if self.read_plain is None or not data.startswith(_BEGINS) or self.flow.write_paused:
            return False
        request = self.read_plain(data)
        if request is None:
            return False
        if self.timeout_keep_alive_task is not self._idle_timer:
            self._unset_keepalive_if_required()
        if isinstance(request, Awaited):
            self._held += data  # many clients send the head and the body separately
            self._wanted = request.length
            return True
        self._ends_with_connection = request.ends_with_connection
        self._answering = self.loop.create_task(self._answer(request))
        return True

    def keep_for_later(self, data: bytes) -> None:
        """Keep what comes while a request is being answered."""
        self.transport.pause_reading()
        self._later += data

    def read_later(self) -> None:
        """Read what came while a request was being answered."""
        data, self._later = self._later, b""
        self.transport.resume_reading()
        self.data_received(data)

    async def _answer(self, request: PlainRequest) -> None:
        try:
            status, body, headers = await request.answer(self._send_event)
        except Exception:
            logger.exception("a request failed unexpectedly")
            self.transport.close()
            return
        finally:
            self._answering = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._streams:
            self._end_stream(body)
            return
        start = self._begin_answer() if status == _OK else self._begin_answer().replace(b"200 OK", _reason(status), 1)
        closing = b"connection: close\r\n" if self._is_last else b""
        self.transport.write(b"%b%d%b%b%b\r\n%b" % (start, len(body), _JSON_TYPE, headers, closing, body))
        self._end_answer()

    def _end_answer(self) -> None:
        if self._is_last:
            self.transport.close()
        else:
            self._wait_for_next()

    async def _send_event(self, headers: bytes, data: bytes) -> None:
        if self.flow.write_paused:
            await self.flow.drain()
        if self.transport.is_closing():
            return
        if not self._streams:
            self._streams = True
            defaults = self._begin_answer().removesuffix(_LENGTH)
            self.transport.write(b"%b%b%b\r\n" % (defaults, headers, _STREAM_HEAD))
        self.transport.write(_chunk(data))

    def _end_stream(self, data: bytes) -> None:
        self._streams = False
        self.transport.write(_chunk(data) + b"0\r\n\r\n")
        self._end_answer()

    def _begin_answer(self) -> bytes:
        defaults = self.server_state.default_headers
        if defaults is not self._defaults:
            lines = b"".join(b"%b: %b\r\n" % pair for pair in defaults)
            self._defaults, self._start = defaults, b"HTTP/1.1 200 OK\r\n%b%b" % (lines, _LENGTH)
        return self._start

    def _wait_for_next(self) -> None:
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._idle_timer = self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self._close_idle
            )
        if self._later:
            self.read_later()

    def _close_idle(self) -> None:
        """Close a connection that has been idle for long enough. One timer serves for many requests."""
        self._idle_timer = self.timeout_keep_alive_task = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if self._answering is not None or self._held or self.transport.is_closing():
            return
        if left > 0:
            self._idle_timer = self.timeout_keep_alive_task = self.loop.call_later(left, self._close_idle)
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """Close the connection, after the answer that is due."""
        if self._answering is None:
            super().shutdown()  # type: ignore[misc]  # the base beside this mixin has it
        else:
            self._is_last = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel a request whose client has left, if it ends with its connection."""
        if self._answering is not None and self._ends_with_connection:
            self._answering.cancel()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)


def _chunk(data: bytes) -> bytes:
    event = b"event: message\r\ndata: %b\r\n\r\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)


def _reason(status: int) -> bytes:
    return f"{status} {HTTPStatus(status).phrase}".encode()
