"""Bounds of the HTTP connections themselves: their number, the size of a request's head, and the time it may take.

They apply before anything of a request is looked at, on top of whichever of uvicorn's two parsers is installed. A
request that breaks one is answered in the form of `asgi.error_response`, and its connection is closed.
"""

import asyncio
import contextlib
import json
import logging
import time
from asyncio import TimerHandle
from collections import Counter
from typing import Any, Final

from mcp_types import INVALID_REQUEST
from uvicorn.config import Config
from uvicorn.importer import import_from_string

from toolcrib.server.options import HttpOptions
from toolcrib.server.plain_connection import PlainConnection, ReadPlain

logger = logging.getLogger(__name__)

_PARSER: Final = "uvicorn.protocols.http.auto:AutoHTTPProtocol"
_PART_BYTES: Final = 16 * 1024
"""How much is parsed before the bounds are checked again."""
_MAX_PIPELINED: Final = 16
"""Requests of one connection that wait for the answer to another."""
_LOG_EVERY_S: Final = 60.0
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


class ConnectionLimits:
    """The bounds of one server's connections, and how many there are."""

    def __init__(self, options: HttpOptions) -> None:
        self.options = options
        self.open = 0
        self.by_peer: Counter[str] = Counter()
        files = raise_descriptor_limit()
        self.max_open = min(options.max_connections, max(files // 2, files - _SPARE_DESCRIPTORS))
        self.refused = RateLimitedLog(logger, "%d connections were refused: there are too many (http.max_connections)")

    def admit(self, peer: str) -> bool:
        """Count a connection; false if there are too many already."""
        if self.open >= self.max_open or self.by_peer[peer] >= self.options.max_connections_per_peer:
            self.refused.add()
            return False
        self.open += 1
        self.by_peer[peer] += 1
        return True

    def release(self, peer: str) -> None:
        """Forget a connection that was admitted."""
        self.open -= 1
        self.by_peer[peer] -= 1
        if not self.by_peer[peer]:
            del self.by_peer[peer]


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


def bounded_protocol(options: HttpOptions, read_plain: ReadPlain | None = None) -> type[asyncio.Protocol]:
    """The class of uvicorn's protocol for HTTP, with these bounds; `read_plain` reads what needs no ASGI app."""
    parser: Any = import_from_string(_PARSER)
    more = {"limits": ConnectionLimits(options), "read_plain": staticmethod(read_plain) if read_plain else None}
    return type("BoundedProtocol", (_Bounded, parser), more)


class _Bounded(PlainConnection):
    """A mixin for uvicorn's protocols. It sees the bytes before they do, and what they have made of them."""

    limits: ConnectionLimits
    cycle: Any
    """The request that was last begun; it has `more_body`, `response_started` and `response_complete`."""

    def __init__(self, config: Config, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)
        self._peer: str | None = None
        self._head_bytes = 0
        self._deadline: TimerHandle | None = None
        self._in_body = False
        self._is_held = False
        """Whether the deadline is that of a request that is held."""
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it."""
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        peer = str(address[0]) if isinstance(address, tuple) and address else ""
        if not self.limits.admit(peer):
            self._refuse(503)
            return
        self._peer = peer
        self._arm(self.limits.options.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._peer is not None:
            self.limits.release(self._peer)
            self._peer = None
        self._arm(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrives in parts, as long as it keeps to the bounds."""
        if self.keep_for_later(data):
            return
        if len(data) <= _PART_BYTES:
            if not self._closed and not self.transport.is_closing():
                self._read(data)
            return
        self._parse_held(data)

    def _read(self, part: bytes) -> None:
        """Read what may be a whole request."""
        if self._in_body or self._head_bytes or self._is_answering():
            self._parse(part)
        elif not self.begin_plain(part):
            self._parse_held(part)
        elif self._held:
            if self._deadline is None or not self._is_held:
                self._arm(self.limits.options.body_timeout_s)
            self._is_held = True
        else:
            self._is_held = False
            if self._deadline is not None:
                self._arm(None)

    def _parse_held(self, more: bytes = b"") -> None:
        """Let the parser have what was held, and more."""
        if self._is_held:
            self._arm(None)
        whole, self._held, self._is_held = self._held + more, b"", False
        for start in range(0, len(whole), _PART_BYTES):
            if not self._closed and not self.transport.is_closing():
                self._parse(whole[start : start + _PART_BYTES])

    def shutdown(self) -> None:
        """Close the connection, after the answer to what has begun to arrive."""
        if self._held:
            self._parse_held()
        super().shutdown()

    def _parse(self, part: bytes) -> None:
        request, in_body = self.cycle, self._in_body
        # Clients may send line ends after a body; they begin no request.
        is_blank = not in_body and not self._head_bytes and not part.strip(b"\r\n")
        limit_s: float | None = None
        if in_body or self._is_answering():
            pass  # uvicorn's own deadline for the next request starts with the answer
        elif is_blank:
            limit_s = self.limits.options.keep_alive_s if self._deadline is None else None
        elif self._deadline is None or not self._head_bytes:
            limit_s = self.limits.options.head_timeout_s  # the head of the next request has begun
        super().data_received(part)
        if self.transport.is_closing():
            self._arm(None)
            return
        is_new = self.cycle is not request
        self._in_body = self.cycle is not None and self.cycle.more_body
        if is_new:
            self._head_bytes = 0
            self._arm(self.limits.options.body_timeout_s if self._in_body else None)
        elif limit_s is not None:
            self._arm(limit_s)
            self._head_bytes += 0 if is_blank else len(part)
        elif in_body and not self._in_body:
            self._arm(None)
        elif not in_body and not is_blank:
            self._head_bytes += len(part)
        if self._head_bytes > self.limits.options.max_head_bytes:
            self._refuse(431)
        elif len(getattr(self, "pipeline", ())) > _MAX_PIPELINED:
            self._close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self, seconds: float | None) -> None:
        """Set the deadline of what is to arrive; None for none."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        if getattr(self, "pipeline", ()):
            self._arm(self.limits.options.body_timeout_s)  # an earlier request is still being answered
        elif self._in_body and self.cycle.response_started:
            self._close()
        elif self._in_body or self._head_bytes or self._held:
            self._refuse(408)
        else:
            self._close()

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
