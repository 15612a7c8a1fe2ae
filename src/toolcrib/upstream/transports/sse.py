"""The HTTP+SSE transport of 2024-11-05: one event stream from the server, and a POST for each message to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

import anyio
import anyio.abc

from toolcrib.protocol.calling import OutgoingRequest
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.bounds import Bounds, take_turn
from toolcrib.upstream.transports.duplex import DuplexTransport
from toolcrib.upstream.transports.framing import LineEnds, LineSplitter, OversizedLine
from toolcrib.upstream.transports.http_bodies import EVENT_STREAM, byte_chunks, discard, read_bounded
from toolcrib.upstream.transports.http_client import HttpUrl
from toolcrib.upstream.transports.http_connection import HttpResponse
from toolcrib.upstream.transports.http_failures import describe_status
from toolcrib.upstream.transports.http_requests import (
    ERROR_BOUNDS,
    SESSION_ENDED,
    AccessTokens,
    Reply,
    ServerRequests,
)

_HEADERS: Final = {"accept": EVENT_STREAM, "cache-control": "no-store"}
_DATA: Final = b"data:"
_EVENT: Final = b"event:"
_MAX_DATA_LINES: Final = 1000
_MAX_CONTENT_TYPE: Final = 80
_POST_TIMEOUT_S: Final = 30.0
_OK: Final = range(200, 300)


class SseTransport(DuplexTransport):
    """A `Transport` to a server of the HTTP+SSE transport."""

    def __init__(
        self, options: ServerOptions, fleet: FleetOptions, redact: Redactor, tokens: AccessTokens | None = None
    ) -> None:
        """`tokens` are sent with the requests."""
        super().__init__(options)
        self._options = options
        self._fleet = fleet
        self._redact = redact
        self._tokens = tokens
        self._requests: ServerRequests
        self._group: anyio.abc.TaskGroup
        self._endpoint: HttpUrl | None = None
        """Where messages go, as the server has named it."""
        self._named = anyio.Event()
        """Set when the endpoint is known, or the stream has ended."""
        self._is_delivered = False
        """Whether the endpoint has ever taken a message."""
        self._kind = b""
        self._data: list[bytes | OversizedLine] = []
        """The data lines of the event so far."""

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """Raises `ExchangeError` if the event stream cannot be opened, or names no endpoint."""
        self._requests = ServerRequests(self._options, self._fleet, self._redact, self._tokens, self.refresh_needed)
        response = None
        try:
            response = await self._open_stream()
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._read, response)
                await self._named.wait()
                if self._endpoint is None:
                    raise ExchangeError(FailureKind.UNSENT, self.closed.reason)
                yield
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                if response is not None:
                    await response.aclose()
                await self._requests.aclose()

    async def _open_stream(self) -> HttpResponse:
        reply = await self._requests.send("GET", self._requests.url, _HEADERS)
        response = reply.response
        if response.status not in _OK:
            body = await read_bounded(response, ERROR_BOUNDS)
            body = body if isinstance(body, bytes) else b""
            reason = describe_status(response.status, response.texts, body, sse=True)
            raise self._requests.status_error(reply, reason)
        kind = response.header(b"content-type")
        if not kind.lower().startswith(EVENT_STREAM):
            await response.aclose()
            raise ExchangeError(FailureKind.ANSWER, f"Unexpected content type: {kind[:_MAX_CONTENT_TYPE] or 'none'}")
        return response

    # -- receiving -------------------------------------------------------------------------------------------------

    async def _read(self, response: HttpResponse) -> None:
        """Take the messages in the event stream, until it ends."""
        reason = "it closed its event stream"
        try:
            lines, line_ends = LineSplitter(self._bounds), LineEnds()
            async for chunk in byte_chunks(response):
                for line in lines.feed(line_ends.normalized(chunk)):
                    await self._take_part(line)
                await take_turn(lines.pending_bytes, len(chunk))
        except ExchangeError as error:
            lost = error.kind is FailureKind.LOST
            reason = error.reason if lost else f"its event stream cannot be used: {error.reason}"
        self.closed.set(reason)
        self._named.set()
        self._fail_all()

    def _bounds(self, head: bytes, tail: bytes | None) -> Bounds:
        return self._expected.bounds(head.removeprefix(_DATA), tail)

    async def _take_part(self, line: bytes | OversizedLine) -> None:
        """Read a line of the stream; an empty one ends an event."""
        if isinstance(line, OversizedLine):
            self._data.append(replace(line, head=line.head.removeprefix(_DATA)))
        elif line.startswith(_DATA):
            if len(self._data) >= _MAX_DATA_LINES:
                raise ExchangeError(FailureKind.ANSWER, f"an event has more than {_MAX_DATA_LINES:,} lines")
            self._data.append(line[len(_DATA) :].removeprefix(b" "))
        elif line.startswith(_EVENT):
            self._kind = line[len(_EVENT) :].strip()
        elif not line:
            kind, data, self._kind, self._data = self._kind, self._data, b"", []
            if data:
                await self._take_event(kind, data)

    async def _take_event(self, kind: bytes, data: list[bytes | OversizedLine]) -> None:
        whole = data[0] if len(data) == 1 else b"\n".join(part for part in data if isinstance(part, bytes))
        if kind == b"endpoint" and isinstance(whole, bytes):
            self._endpoint = self._resolved(whole.decode(errors="replace"))
            self._named.set()
        elif kind in (b"", b"message"):
            await self._take_line(whole)

    def _resolved(self, endpoint: str) -> HttpUrl:
        """Resolve the endpoint. Raises `ExchangeError` if it would send our credentials to another origin."""
        url = self._requests.url
        try:
            full = url.join(endpoint)
        except ValueError as error:
            raise ExchangeError(FailureKind.ANSWER, "its message endpoint is no address") from error
        if url.origin != full.origin:
            raise ExchangeError(FailureKind.ANSWER, "its message endpoint is on another origin")
        return self._requests.with_query(full)

    # -- sending ---------------------------------------------------------------------------------------------------

    async def _send_request(self, request: OutgoingRequest) -> None:
        # Its response comes in the event stream, maybe before the endpoint says anything.
        self._group.start_soon(self._deliver, request)

    async def _deliver(self, request: OutgoingRequest) -> None:
        """Send a request; whatever keeps it from being answered fails it."""
        try:
            error = await self._post(request.data, for_caller=True)
        except ExchangeError as failure:
            self._fail(request.id, failure)
        else:
            if error is not None:
                self._settle({**error, "id": request.id})

    async def _send(self, line: bytes) -> None:
        with suppress(ExchangeError):
            await self._post(line)

    async def _post(self, content: bytes, *, for_caller: bool = False) -> dict[str, object] | None:
        """Send a message; returns the JSON-RPC error if it was refused with one. Raises `ExchangeError`."""
        if self._endpoint is None:
            raise ExchangeError(FailureKind.CLOSED, self.closed.reason)
        reply = await self._requests.send(
            "POST", self._endpoint, {}, content, for_caller=for_caller, timeout_s=_POST_TIMEOUT_S
        )
        if reply.response.status in _OK:
            self._is_delivered = True
            await discard(reply.response)
            return None
        return await self._refused(reply)

    async def _refused(self, reply: Reply) -> dict[str, object]:
        try:
            return await self._requests.refused(reply, in_session=self._is_delivered, named=reply.url.path)
        except ExchangeError as error:
            if error.kind is FailureKind.SESSION:
                self.closed.set(SESSION_ENDED, reconnect=True)
            raise
