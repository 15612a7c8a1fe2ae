"""The HTTP+SSE transport of 2024-11-05: one event stream from the server, and a POST for each message to it.

The SDK's implementation rejects events over 1 MiB (tool lists are larger), sends one message at a time, and leaves a
call waiting for its deadline when its POST was refused.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, Self
from urllib.parse import urljoin, urlsplit

import anyio
import anyio.abc
import httpx2
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCRequest
from pydantic import ValidationError

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url
from toolcrib.upstream.transports.base import AutoResetEvent, Channel, CloseEvent, Streams
from toolcrib.upstream.transports.bounds import Bounds, list_bounds, run_in_steps, take_turn
from toolcrib.upstream.transports.framing import ExpectedResponses, LineEnds, LineSplitter, OversizedLine
from toolcrib.upstream.transports.http import WithTokens, auth_transport, session_client
from toolcrib.upstream.transports.http_bodies import EVENT_STREAM, byte_chunks
from toolcrib.upstream.transports.http_failures import (
    LoginNeeded,
    describe_status,
    describe_transport_error,
    retry_after_s,
    without_token,
)
from toolcrib.upstream.transports.http_transport import BOUNDS_KEY, AuthTransport

_HEADERS: Final = {"accept": EVENT_STREAM, "cache-control": "no-store"}
_POST_HEADERS: Final = {"accept": "application/json", "content-type": "application/json"}
_DATA: Final = b"data:"
_EVENT: Final = b"event:"
_MAX_DATA_LINES: Final = 1000
_MAX_CONTENT_TYPE: Final = 80
_POST_TIMEOUT_S: Final = 30.0
_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)


def open_channel(
    options: ServerOptions, fleet: FleetOptions, redact: Redactor, with_tokens: WithTokens | None = None
) -> Channel:
    """Return a channel to a server of the HTTP+SSE transport (2024-11-05)."""
    closed, refresh_needed = CloseEvent(), AutoResetEvent()
    return Channel(
        transport=_sse_transport(options, fleet, redact, closed, refresh_needed, with_tokens),
        closed=closed,
        refresh_needed=refresh_needed,
    )


@asynccontextmanager
async def _sse_transport(
    options: ServerOptions,
    fleet: FleetOptions,
    redact: Redactor,
    closed: CloseEvent,
    refresh_needed: AutoResetEvent,
    with_tokens: WithTokens | None,
) -> AsyncIterator[Streams]:
    """Raises `ExchangeError` if the event stream cannot be opened."""
    transport = auth_transport(options, fleet, redact, closed, refresh_needed, with_tokens)
    url = bare_url(options.url)
    async with (
        session_client(transport, fleet) as client,
        _open_events(client, url, redact, list_bounds(options), transport) as response,
        _SseStreams(client, response, options, url, closed) as wire,
        anyio.create_task_group() as group,
    ):
        group.start_soon(wire.read)
        await wire.endpoint_known.wait()
        if closed.is_set:
            raise ExchangeError(FailureKind.UNSENT, closed.reason)
        group.start_soon(wire.write)
        yield wire.incoming, wire.outgoing
        group.cancel_scope.cancel()


@asynccontextmanager
async def _open_events(
    client: httpx2.AsyncClient, url: str, redact: Redactor, bounds: Bounds, transport: AuthTransport
) -> AsyncIterator[httpx2.Response]:
    try:
        extensions = {BOUNDS_KEY: bounds}
        async with client.stream("GET", url, headers=_HEADERS, extensions=extensions) as response:
            if not response.is_success:
                body = await response.aread()
                reason = describe_status(response.status_code, response.headers, body, sse=True)
                raise ExchangeError(
                    FailureKind.STATUS,
                    redact(without_token(response.request, reason)),
                    retry_after_s=retry_after_s(response.headers),
                )
            kind = response.headers.get("content-type", "")
            if not kind.lower().startswith(EVENT_STREAM):
                reason = f"Unexpected content type: {kind[:_MAX_CONTENT_TYPE] or 'none'}"
                raise ExchangeError(FailureKind.ANSWER, reason)
            yield response
    except httpx2.TransportError as error:
        kind_of_failure = FailureKind.LOGIN if isinstance(error, LoginNeeded) else FailureKind.UNSENT
        raise ExchangeError(kind_of_failure, transport.describe(error)) from error


class _SseStreams:
    """The streams in both directions."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        events: httpx2.Response,
        options: ServerOptions,
        url: str,
        closed: CloseEvent,
    ) -> None:
        self._client = client
        self._events = events
        self._expected = ExpectedResponses(options)
        self._kind = b""
        self._data: list[bytes | OversizedLine] = []
        """The data lines of the event so far."""
        self._url = url
        self._endpoint = ""
        self._closed = closed
        self.endpoint_known = anyio.Event()
        self._to_session, self.incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.outgoing, self._from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for stream in (self._to_session, self.incoming, self.outgoing, self._from_session):
            stream.close()

    async def read(self) -> None:
        """Pass the event stream to the session, until it ends."""
        reason = "it closed its event stream"
        try:
            lines, line_ends = LineSplitter(self._bounds), LineEnds()
            async for chunk in byte_chunks(self._events):
                for line in lines.feed(line_ends.normalized(chunk)):
                    await self._take(line)
                await take_turn(lines.pending_bytes, len(chunk))
        except httpx2.TransportError as error:
            reason = describe_transport_error(error)
        except ExchangeError as error:
            reason = f"its event stream cannot be used: {error}"
        except _GONE:
            reason = "stopped"
        self._closed.set(reason)
        self.endpoint_known.set()
        self._to_session.close()

    def _bounds(self, head: bytes, tail: bytes | None) -> Bounds:
        return self._expected.bounds(head.removeprefix(_DATA), tail)

    async def _take(self, line: bytes | OversizedLine) -> None:
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
                await self._dispatch(kind, data)

    async def _dispatch(self, kind: bytes, data: list[bytes | OversizedLine]) -> None:
        whole = data[0] if len(data) == 1 else b"\n".join(part for part in data if isinstance(part, bytes))
        if kind == b"endpoint" and isinstance(whole, bytes):
            self._endpoint = _full_endpoint(self._url, whole.decode(errors="replace"))
            self.endpoint_known.set()
        elif kind in (b"", b"message"):
            for message in await run_in_steps(self._expected.parse(whole)):
                await self._to_session.send(SessionMessage(message))

    async def write(self) -> None:
        """POST the session's messages: requests concurrently, everything else in order."""
        async with anyio.create_task_group() as group:
            async for item in self._from_session:
                self._expected.sent(item.message)
                if isinstance(item.message, JSONRPCRequest):
                    group.start_soon(self._post, item.message)
                else:
                    await self._post(item.message)

    async def _post(self, message: JSONRPCMessage) -> None:
        """Send a message. The response arrives in the event stream, unless the POST itself is refused."""
        body = message.model_dump_json(by_alias=True, exclude_unset=True)
        with suppress(httpx2.TransportError, *_GONE):
            response = await self._client.post(
                self._endpoint, content=body, headers=_POST_HEADERS, timeout=_POST_TIMEOUT_S
            )
            if isinstance(message, JSONRPCRequest) and not response.is_success:
                answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=_error_data(response))
                await self._to_session.send(SessionMessage(answer))


def _full_endpoint(url: str, endpoint: str) -> str:
    """Resolve the endpoint. Raises `ExchangeError` if it would send our credentials to another origin."""
    full = urljoin(url, endpoint)
    here, there = urlsplit(url), urlsplit(full)
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        raise ExchangeError(FailureKind.ANSWER, "its message endpoint is on another origin")
    return full


def _error_data(response: httpx2.Response) -> ErrorData:
    try:
        return JSONRPCError.model_validate_json(response.content).error
    except ValidationError:
        return ErrorData(code=INTERNAL_ERROR, message=describe_status(response.status_code, response.headers, b""))
