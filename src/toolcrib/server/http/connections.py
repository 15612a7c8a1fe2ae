"""The HTTP connections themselves: their number, the time a request may take to come, and how much may stay unread.

What a connection's bytes mean is the work of its reader: `reader.PlainReader` at first, and `strict.StrictReader` once
a request is unusual. A client that breaks a bound gets a JSON-RPC error, and its connection is closed.
"""

import asyncio
import contextlib
import ipaddress
import logging
import time
from asyncio import TimerHandle
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, Protocol, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from toolcrib.middleware.admission import CountRefusal
from toolcrib.protocol.failures import INVALID_REQUEST, RpcError
from toolcrib.protocol.messages import encode_error
from toolcrib.server.http.budgets import Budget
from toolcrib.server.options import HttpOptions

logger = logging.getLogger(__name__)

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
        if self._open.take(peer) is not None:
            self._refuse(self._refused, "http.max_connections")
            return False
        return True

    def release(self, peer: str) -> None:
        """Forget a connection that was admitted."""
        self._open.give_back(peer)

    def keep_unread(self, peer: str, size: int) -> bool:
        """Count bytes that a client has yet to read; false if there are too many already."""
        if self._unread.take(peer, size) is not None:
            self._refuse(self._cut_off, "http.max_unread_bytes")
            return False
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


class Reader(Protocol):
    """Reads the requests of a connection, and writes their answers."""

    @property
    def is_due(self) -> bool:
        """Whether an answer is due that needs nothing more of the client."""

    @property
    def can_be_probed(self) -> bool:
        """Whether an interim response may precede what is written next."""

    @property
    def is_cut_off(self) -> bool:
        """Whether a request waits for bytes that are missing."""

    def data_received(self, data: bytes) -> None:
        """Read what has come."""

    def eof_received(self) -> None:
        """Learn that nothing more comes."""

    def deadline_passed(self) -> None:
        """End the connection, as what was to arrive has not."""

    def shutdown(self) -> None:
        """Close the connection, after the answer to what has begun to arrive."""

    def pause_writing(self) -> None:
        """Learn that the client has yet to read what was written."""

    def resume_writing(self) -> None:
        """Learn that it has read most of it."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Learn that the client has left."""


class Connection(asyncio.Protocol):
    """A client's connection, made by uvicorn for each one."""

    reader: Reader

    def __init__(
        self,
        limits: ConnectionLimits,
        make_reader: Callable[["Connection"], Reader],
        *,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """The named arguments are those with which uvicorn makes any protocol."""
        self.limits = limits
        self.config = config
        self.server_state = server_state
        self.app_state = app_state
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.write_paused = False
        """Whether the client has yet to read what was written."""
        self.sends_no_more = False
        """Whether the client has said that it sends nothing more."""
        self.reader = make_reader(self)
        self._peer: str | None = None
        """Who is counted for this connection."""
        self._unread = 0
        """The bytes that are counted as not read by the client."""
        self.deadline: TimerHandle | None = None
        """Set while something is to arrive by a certain time."""
        self._closed = False
        self._probe: TimerHandle | None = None
        self.is_reading = True
        """Whether the client may send more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it."""
        self.transport = cast("asyncio.Transport", transport)  # as connections are streams
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # any protocol that can be shut down
        peer = peer_of(transport.get_extra_info("peername"))
        if not self.limits.admit(peer):
            self.refuse(503)
            return
        self._peer = peer
        self.set_deadline(self.limits.options.head_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        if not self._closed:
            self.reader.data_received(data)

    def eof_received(self) -> bool:
        """Keep the connection for the answers that are due, as the client may still read them.

        A client that has closed the connection looks the same until something is written to it.
        """
        if self._closed or not self.reader.is_due:
            return False
        if not self.sends_no_more:
            self.sends_no_more = True
            self._probe = self.loop.call_later(_PROBE_AFTER_S, self._probe_client, _PROBE_AFTER_S)
        self.reader.eof_received()
        return True

    def _probe_client(self, waited_s: float) -> None:
        """Write an interim response: if the client has left, the next one finds the connection broken."""
        if self.is_closing:
            return
        if not self.reader.is_due or self.reader.is_cut_off:
            self.close()
            return
        if self.reader.can_be_probed:
            self.transport.write(_INTERIM)
        elif not self.write_paused:
            self.close()  # a stream may have nothing to write for long
            return
        wait_s = min(2 * waited_s, _MAX_PROBE_WAIT_S)
        self._probe = self.loop.call_later(wait_s, self._probe_client, wait_s)

    def pause_writing(self) -> None:
        """Count what the client has yet to read, or cut it off if that is too much."""
        self.write_paused = True
        self.reader.pause_writing()
        if self._peer is None or self.transport.is_closing():
            return
        size = self.transport.get_write_buffer_size()
        if self.limits.keep_unread(self._peer, size):
            self._unread += size
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        """Count it no longer: the client has read most of it."""
        self.write_paused = False
        self.reader.resume_writing()
        self._forget_unread()

    def _forget_unread(self) -> None:
        if self._unread and self._peer is not None:
            self.limits.forget_unread(self._peer, self._unread)
            self._unread = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._closed = True
        self.server_state.connections.discard(self)
        self._forget_unread()
        if self._peer is not None:
            self.limits.release(self._peer)
            self._peer = None
        self.set_deadline(None)
        if self._probe is not None:
            self._probe.cancel()
        self.reader.connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, after the answer that is due. uvicorn calls this when it stops."""
        self.reader.shutdown()

    # -- for readers -------------------------------------------------------------------------------------------------

    @cached_property
    def client(self) -> tuple[str, int] | None:
        """The client's end of the connection, as an ASGI scope has it."""
        return _address(self.transport.get_extra_info("peername"))

    @cached_property
    def server(self) -> tuple[str, int] | None:
        """The other end."""
        return _address(self.transport.get_extra_info("sockname"))

    @property
    def is_closing(self) -> bool:
        """Whether nothing is read or written any more."""
        return self._closed or self.transport.is_closing()

    def set_reading(self, *, wanted: bool) -> None:
        """Let the client send more, or make it wait."""
        if wanted is not self.is_reading and not self.is_closing:
            self.is_reading = wanted
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    def set_deadline(self, seconds: float | None) -> None:
        """Set the deadline of what is to arrive; None for none."""
        if self.deadline is not None:
            self.deadline.cancel()
        self.deadline = None if seconds is None else self.loop.call_later(seconds, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self.deadline = None
        self.reader.deadline_passed()

    def refuse(self, status: int) -> None:
        """Answer with this status, and close the connection."""
        phrase, text = _REFUSALS[status]
        body = encode_error(None, RpcError(INVALID_REQUEST, f"{text}; nothing was run."))
        retry = "Retry-After: 5\r\n" if status == 503 else ""  # noqa: PLR2004 - service unavailable
        head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        if not self.transport.is_closing():
            self.transport.write(f"{head}{retry}Connection: close\r\n\r\n".encode() + body)
        self.close()

    def close(self) -> None:
        """Close the connection once all is written."""
        self._closed = True
        self.set_deadline(None)
        self.transport.close()


def _address(found: object) -> tuple[str, int] | None:
    """A host and a port; None for a socket in the file system."""
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None
