"""Bounds of the HTTP connections themselves: their number, the size of a request's head, and the time it may take.

They apply before anything of a request is looked at, on top of whichever of uvicorn's two parsers is installed. A
request that breaks one is answered in the form of `asgi.error_response`, and its connection is closed.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import re
import time
from asyncio import TimerHandle
from collections.abc import Callable
from typing import Any, Final

import h11
from mcp_types import INVALID_REQUEST
from uvicorn.config import Config
from uvicorn.importer import import_from_string

from toolcrib.middleware.admission import CountRefusal
from toolcrib.server.http.budgets import Budget
from toolcrib.server.http.framing import Frame, frame, has_head
from toolcrib.server.options import HttpOptions
from toolcrib.server.plain_connection import PlainConnection, ReadPlain

logger = logging.getLogger(__name__)

_PARSER: Final = "uvicorn.protocols.http.auto:AutoHTTPProtocol"
_STRICT_PARSER: Final = "uvicorn.protocols.http.h11_impl:H11Protocol"
_PART_BYTES: Final = 16 * 1024
"""How much is parsed before the bounds are checked again."""
_BLANK_LINES: Final = re.compile(rb"\A(?:\r\n)+")
_HEAD_END_BYTES: Final = 3
"""The most of the end of a head that may have come before the rest of it."""
_INTERIM: Final = b"HTTP/1.1 102 Processing\r\n\r\n"
_PROBE_AFTER_S: Final = 0.1
"""How long after its last byte a client is believed to be there."""
_MAX_PROBE_WAIT_S: Final = 5.0
_LOG_EVERY_S: Final = 60.0
_POINTLESS_ADVICE: Final = "No supported WebSocket library"
"""How uvicorn begins to say what to install after each request to upgrade. This server speaks no websockets."""
_SPARE_DESCRIPTORS: Final = 256
"""For servers and files; the rest may be connections."""
_REFUSALS: Final = {
    408: ("Request Timeout", "The request did not arrive in time"),
    431: ("Request Header Fields Too Large", "The request's headers are too large"),
    503: ("Service Unavailable", "Too many connections"),
}


class RateLimitedLog:
    """Logs a warning at most once a minute, with the number of those in between."""

    def __init__(self, log: logging.Logger, text: str) -> None:
        """`text` has a `%d` for the number."""
        self._log = log
        self._text = text
        self._count = 0
        self._last_s = -_LOG_EVERY_S

    def add(self) -> None:
        """Count one, and log all if the last line is old enough."""
        self._count += 1
        now_s = time.monotonic()
        if now_s - self._last_s >= _LOG_EVERY_S:
            self._log.warning(self._text, self._count)
            self._count, self._last_s = 0, now_s


class RepeatedWarnings(logging.Filter):
    """Lets each warning of a handler pass at most once a minute, with the number of those in between.

    uvicorn warns of every malformed request, which clients without a token can send as fast as they like.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._skipped: dict[str, int] = {}
        """By format string, of which the program has few."""
        self._due_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the record; one that is logged has the number of those before it that were not."""
        text = str(record.msg)
        if record.levelno != logging.WARNING:
            return True
        if text.startswith(_POINTLESS_ADVICE):
            return False
        now_s = self._clock()
        if now_s < self._due_s.get(text, now_s):
            self._skipped[text] = self._skipped.get(text, 0) + 1
            return False
        self._due_s[text] = now_s + _LOG_EVERY_S
        if skipped := self._skipped.pop(text, 0):
            record.msg = f"{text} ({skipped} more since the last such line)"
        return True


def peer_of(address: object) -> str:
    """Whose connections count together: an address, or of IPv6 its /64 network, all of which one machine may have.

    >>> [peer_of((host, 5)) for host in ("10.0.0.7", "::ffff:10.0.0.7", "2001:db8:1:2:3::4")], peer_of("")
    (['10.0.0.7', '10.0.0.7', '2001:db8:1:2::/64'], '')
    """
    host = str(address[0]) if isinstance(address, tuple) and address else ""
    try:
        found = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))


class ConnectionLimits:
    """The bounds of one server's connections, and how many there are."""

    def __init__(self, options: HttpOptions, count_refusal: CountRefusal | None = None) -> None:
        self.options = options
        self._count_refusal = count_refusal
        files = raise_descriptor_limit()
        most = min(options.max_connections, max(files // 2, files - _SPARE_DESCRIPTORS))
        self._open = Budget(most, options.max_connections_per_peer)
        self._unread = Budget(options.max_unread_bytes, options.max_unread_bytes_per_peer)
        self._refused = RateLimitedLog(logger, "%d connections were refused: there are too many (http.max_connections)")
        self._cut_off = RateLimitedLog(
            logger, "%d connections were cut off: their clients do not read their answers (http.max_unread_bytes)"
        )

    def admit(self, peer: str) -> bool:
        """Count a connection; false if there are too many already."""
        if self._open.lack(peer) is not None:
            self._refuse(self._refused, "http.max_connections")
            return False
        self._open.take(peer)
        return True

    def release(self, peer: str) -> None:
        """Forget a connection that was admitted."""
        self._open.give_back(peer)

    def keep_unread(self, peer: str, size: int) -> bool:
        """Count bytes that a client has yet to read; false if there are too many already."""
        if self._unread.lack(peer, size) is not None:
            self._refuse(self._cut_off, "http.max_unread_bytes")
            return False
        self._unread.take(peer, size)
        return True

    def forget_unread(self, peer: str, size: int) -> None:
        """Count them no longer."""
        self._unread.give_back(peer, size)

    def _refuse(self, log: RateLimitedLog, setting: str) -> None:
        log.add()
        if self._count_refusal is not None:
            self._count_refusal(setting)


def raise_descriptor_limit() -> int:
    """Raise the process's limit of open files to the most that it may use, and return it."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return 1 << 20
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def bounded_protocol(
    options: HttpOptions, read_plain: ReadPlain | None = None, count_refusal: CountRefusal | None = None
) -> type[asyncio.Protocol]:
    """The class of uvicorn's protocol for HTTP, with these bounds; `read_plain` reads what needs no ASGI app.

    `count_refusal` counts connections that are refused or cut off, by the setting.
    """
    limits = ConnectionLimits(options, count_refusal)
    parser: Any = import_from_string(_PARSER)
    strict_parser: Any = import_from_string(_STRICT_PARSER)
    strict = type("StrictProtocol", (_StrictConnection, strict_parser), {"limits": limits})
    more = {"limits": limits, "strict": strict, "read_plain": staticmethod(read_plain) if read_plain else None}
    return type("BoundedProtocol", (_FramedConnection, parser), more)


class _BoundedConnection(asyncio.Protocol):
    """What the bounded connections have in common: their place in the limits, a deadline, and how they end."""

    limits: ConnectionLimits
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    flow: Any
    """It has `read_paused` and `write_paused`."""
    cycle: Any
    """The request that was last begun; it has `more_body`, `response_started`, `response_complete`, `disconnected`."""

    def __init__(self, config: Config, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)  # type: ignore[call-arg]  # uvicorn's protocol beside it takes them
        self._peer: str | None = None
        """Who is counted for this connection."""
        self._unread = 0
        """The bytes that are counted as not read by the client."""
        self._deadline: TimerHandle | None = None
        self._closed = False
        self._sends_no_more = False
        """Whether the client has said that it sends nothing more."""
        self._probe: TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget_unread()
        if self._peer is not None:
            self.limits.release(self._peer)
            self._peer = None
        self._arm(None)
        if self._probe is not None:
            self._probe.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:
        """Keep the connection for the answers that are due, as the client may still read them.

        A client that has closed the connection looks the same until something is written to it.
        """
        if self._closed or not self._is_due():
            return False
        if not self._sends_no_more:
            self._sends_no_more = True
            self._probe = self.loop.call_later(_PROBE_AFTER_S, self._probe_client, _PROBE_AFTER_S)
        return True

    def _is_due(self) -> bool:
        """Whether a request that has come whole is being answered."""
        return self._is_answering() and not self._in_body()

    def _probe_client(self, waited_s: float) -> None:
        """Write an interim response: if the client has left, the next one finds the connection broken."""
        if self._closed or self.transport.is_closing():
            return
        if not self._is_answering():
            self._close()
            return
        if self._can_probe():
            self.transport.write(_INTERIM)
        elif not self.flow.write_paused:
            self._close()  # a stream may have nothing to write for long
            return
        wait_s = min(2 * waited_s, _MAX_PROBE_WAIT_S)
        self._probe = self.loop.call_later(wait_s, self._probe_client, wait_s)

    def _can_probe(self) -> bool:
        """Whether an interim response may precede what is written next."""
        return not self.cycle.response_started and self.cycle.scope["http_version"] != "1.0"

    def pause_writing(self) -> None:
        """Count what the client has yet to read, or cut it off if that is too much."""
        super().pause_writing()
        if self._peer is None or self.transport.is_closing():
            return
        size = self.transport.get_write_buffer_size()
        if self.limits.keep_unread(self._peer, size):
            self._unread += size
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        """Count it no longer: the client has read most of it."""
        super().resume_writing()
        self._forget_unread()

    def _forget_unread(self) -> None:
        if self._unread and self._peer is not None:
            self.limits.forget_unread(self._peer, self._unread)
            self._unread = 0

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _in_body(self) -> bool:
        return self.cycle is not None and bool(self.cycle.more_body)

    def _arm(self, seconds: float | None) -> None:
        """Set the deadline of what is to arrive; None for none."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        """End the connection: what was to arrive has not."""
        raise NotImplementedError  # each of the two connections below has its own way

    def _refuse(self, status: int) -> None:
        phrase, text = _REFUSALS[status]
        error = {"code": INVALID_REQUEST, "message": f"{text}; nothing was run."}
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
        retry = "Retry-After: 5\r\n" if status == 503 else ""  # noqa: PLR2004 - service unavailable
        head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        if not self.transport.is_closing():
            self.transport.write(f"{head}{retry}Connection: close\r\n\r\n{body}".encode())
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._arm(None)
        self.transport.close()


class _FramedConnection(_BoundedConnection, PlainConnection):
    """Gives the parser one request at a time, and exactly its bytes.

    A connection whose next request has no frame is handed to the strict parser, whole and for good.
    """

    strict: Callable[..., "_StrictConnection"]
    config: Config
    app_state: dict[str, Any]

    def __init__(self, config: Config, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)
        self._missing = 0
        """The bytes of the request that was last begun that have yet to come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it."""
        super().connection_made(transport)
        peer = peer_of(transport.get_extra_info("peername"))
        if not self.limits.admit(peer):
            self._refuse(503)
            return
        self._peer = peer
        self._arm(self.limits.options.head_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Read the request that has begun, or the next one."""
        if self._closed or self.transport.is_closing():
            return
        if self._missing:
            data = self._parse(data)
            if not data:
                return
        if self._answering is not None or (self.cycle is not None and not self.cycle.response_complete):
            self.keep_for_later(data)
        elif self._held:
            self._read_held(data)
        else:
            self._read(data)

    def _read_held(self, more: bytes) -> None:
        """Read the request that is held, once all that was missing has come."""
        end = len(self._held)
        self._held += more
        if len(self._held) < self._wanted:
            return
        if self._wanted or has_head(self._held, max(0, end - _HEAD_END_BYTES)):
            whole, self._wanted = bytes(self._held), 0
            self._held.clear()
            self._read(whole)
        elif len(self._held) > self.limits.options.max_head_bytes:
            self._refuse(431)

    def _read(self, data: bytes) -> None:
        """Read what begins with a request."""
        if data[0] in b"\r\n":
            data = _BLANK_LINES.sub(b"", data, count=1)  # clients may send line ends after a body
            if not data:
                return
        if self.begin_plain(data):
            if self._held:
                self._arm(self.limits.options.body_timeout_s)
            elif self._deadline is not None:
                self._arm(None)
            return
        found = frame(data)
        if found is not None and found.head <= self.limits.options.max_head_bytes:
            self._begin(data, found)
        elif found is not None:
            self._refuse(431)
        elif (data == b"\r" or data[:1].isupper()) and not has_head(data):
            self._hold(data)
        else:
            self._hand_over(data)

    def _begin(self, data: bytes, found: Frame) -> None:
        """Let the parser have the request that the data begins with."""
        if self._deadline is not None:
            self._arm(None)
        self._missing = found.head + found.body
        rest = self._parse(data)
        if rest and not self.transport.is_closing():
            self.keep_for_later(rest)

    def _hold(self, data: bytes) -> None:
        """Hold the beginning of a head until the rest has come."""
        self._unset_keepalive_if_required()
        self._arm(self.limits.options.head_timeout_s)
        self._held += data
        if len(self._held) > self.limits.options.max_head_bytes:
            self._refuse(431)

    def _parse(self, data: bytes) -> bytes:
        """Let the parser have what belongs to the request that has begun, and return the rest."""
        part, rest = (data, b"") if len(data) <= self._missing else (data[: self._missing], data[self._missing :])
        self._missing -= len(part)
        super().data_received(part)
        if bool(self._missing) != (self._deadline is not None):
            self._arm(self.limits.options.body_timeout_s if self._missing else None)
        return rest

    def _is_answering(self) -> bool:
        return self._answering is not None or super()._is_answering()

    def _in_body(self) -> bool:
        return self._missing > 0

    def _can_probe(self) -> bool:
        return not self._streams if self._answering is not None else super()._can_probe()

    def on_response_complete(self) -> None:
        """Begin the next request, if it has come already."""
        super().on_response_complete()  # type: ignore[misc]  # uvicorn's protocol beside it has it
        self.cycle.body = bytearray()  # what came of the body of a request that was refused before it was read
        if self._later and not self._missing and not self.transport.is_closing():
            self.read_later()
        if self._sends_no_more and not self._is_answering():
            self._close()

    def eof_received(self) -> bool:
        """Keep the connection for the answers that are due."""
        keeps = super().eof_received()
        self._is_last = self._is_last or (keeps and not self._later)
        return keeps

    def shutdown(self) -> None:
        """Close the connection, after the answer to what has begun to arrive."""
        if self._wanted:
            held, self._missing, self._wanted = bytes(self._held), self._wanted, 0
            self._held.clear()
            self._parse(held)
        super().shutdown()

    def _hand_over(self, data: bytes) -> None:
        """Leave the connection to the strict parser, which reads it from here on."""
        self._arm(None)
        self._unset_keepalive_if_required()
        self.server_state.connections.discard(self)
        strict = self.strict(config=self.config, server_state=self.server_state, app_state=self.app_state)
        self._closed = True
        self._forget_unread()
        strict.take_over(
            self.transport, self._peer, is_paused=self.flow.write_paused, sends_no_more=self._sends_no_more
        )
        self._peer = None
        strict.data_received(data)

    def _expire(self) -> None:
        self._deadline = None
        if self._held or (self._missing and not self.cycle.response_started):
            self._refuse(408)
        else:
            self._close()


class _StrictConnection(_BoundedConnection):
    """A mixin for uvicorn's protocol over h11. It sees the bytes before that does, and what it has made of them.

    h11 ignores a request to upgrade, and reads the body of such a request as a body (RFC 9110, 7.8). The parser
    `httptools` takes the connection for another protocol's after such a head, and uvicorn goes on to give it what comes
    next, which it then takes for the next request.
    """

    def __init__(self, config: Config, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)
        self._head_bytes = 0
        """How much has come since the last request, without its body."""
        self._to_parse = bytearray()
        self._reading: asyncio.Handle | None = None

    def take_over(
        self, transport: asyncio.Transport, peer: str | None, *, is_paused: bool, sends_no_more: bool
    ) -> None:
        """Read the connection from now on; `is_paused` says whether its client has yet to read what was written."""
        self._peer = peer
        self._sends_no_more = sends_no_more
        self.connection_made(transport)
        transport.set_protocol(self)
        if is_paused:
            self.pause_writing()

    def data_received(self, data: bytes) -> None:
        """Parse what arrives in parts, as long as it keeps to the bounds.

        Each part has a turn of its own: h11 takes several microseconds for a chunk, which may have one byte.
        """
        self._to_parse += data
        if self._reading is None:
            self._read_part()

    def _read_next(self) -> None:
        self._reading = self.loop.call_soon(self._read_part)

    def _read_part(self) -> None:
        self._reading = None
        if self._closed or self.transport.is_closing():
            return
        if self._is_answering() and not self._in_body():
            self.transport.pause_reading()  # the next request waits for the answer
            return
        part = bytes(self._to_parse[:_PART_BYTES])
        del self._to_parse[:_PART_BYTES]
        self._parse(part)
        if self.transport.is_closing():
            return
        if self._to_parse:
            self.transport.pause_reading()
            self._read_next()
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def _parse(self, part: bytes) -> None:
        request, in_body = self.cycle, self._in_body()
        if not in_body and not self._is_answering() and not self._head_bytes:
            self._arm(self.limits.options.head_timeout_s)
        try:
            super().data_received(part)
        except h11.LocalProtocolError:
            self._close()  # the rest of a body is wrong, and the answer has begun: uvicorn tries to send another one
        if self.transport.is_closing():
            self._arm(None)
            if self._is_answering():
                self.cycle.disconnected = True  # the app's answer would follow another one, of the parser
        elif self.cycle is not request:
            self._has_begun()
        elif in_body:
            if not self._in_body():
                self._arm(None)
        else:
            self._head_bytes += len(part)
            if self._head_bytes > self.limits.options.max_head_bytes and not self._is_answering():
                self._refuse(431)

    def on_response_complete(self) -> None:
        """Watch over the next request, if it has come already."""
        request = self.cycle
        super().on_response_complete()  # type: ignore[misc]  # uvicorn's protocol beside it has it
        if self.cycle is not request:
            self._has_begun()
        elif self._sends_no_more and not self._to_parse:
            self._close()
        if self._to_parse and self._reading is None:
            self._read_next()

    def _is_due(self) -> bool:
        return bool(self._to_parse) or super()._is_due()

    def _has_begun(self) -> None:
        self._head_bytes = 0
        self._arm(self.limits.options.body_timeout_s if self._in_body() else None)

    def _expire(self) -> None:
        self._deadline = None
        if self._in_body() and self.cycle.response_started:
            self._close()
        elif self._head_bytes or self._in_body():
            self._refuse(408)
        else:
            self._close()
