"""Read the bodies of HTTP responses: decoded, within bounds, and in the shape that the MCP session expects.

The session of the SDK rejects a whole response over one byte that it does not expect. So it gets copies of the messages
in a response, and nothing else. Callers' requests do without it, and read bodies as they are.
"""

import codecs
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpx2

from toolcrib.upstream.transports.bounds import Bounds, Meter, take_turn
from toolcrib.upstream.transports.framing import (
    EventParser,
    ServerEvent,
    flood_pause_s,
    message_for_session,
    without_repeats,
)
from toolcrib.upstream.transports.http_connection import BadResponse

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
_JSON_STARTS: Final = (b"{", b"[")
_EVENT_STARTS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_ENCODINGS: Final = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_BARE_DEFLATE: Final = -zlib.MAX_WBITS
"""What some servers send as `deflate`, without the frame of zlib."""
_INFLATED_BYTES: Final = 256 * 1024
_BODY_HEADERS: Final = ("content-encoding", "content-length", "transfer-encoding")


async def read_bounded(response: httpx2.Response, bounds: Bounds) -> bytes | str:
    """Read the whole body, decoded; return how it breaks the bounds if it does."""
    parts, meter = list[bytes](), Meter()
    try:
        async for chunk in byte_chunks(response):
            parts.append(chunk)
            if len(parts) == 1 and len(chunk) <= bounds.nodes:
                continue  # most bodies are one small chunk, whose values need not be counted
            for part in parts if not meter.size else (chunk,):
                meter.add(part)
            if problem := bounds.problem(meter.size, meter.nodes):
                return problem
            await take_turn(meter.size, len(chunk))
    finally:
        await _stream_of(response).aclose()
    return b"".join(parts)


async def read_beginning(response: httpx2.Response, most: int) -> bytes:
    """Read the first event of a stream, or the whole of any other body, but not much more than `most` bytes."""
    text = b""
    try:
        async for chunk in byte_chunks(response):
            text += chunk
            if b"\n\n" in text or len(text) > most:
                break
    finally:
        await _stream_of(response).aclose()
    return text


def kind_of(body: bytes) -> str:
    """Return the content type that a body has by its beginning, whatever its header says; empty if it is neither.

    >>> kind_of(b'{"jsonrpc": "2.0"}'), kind_of(b"event: message\\n"), kind_of(b"<html>")
    ('application/json', 'text/event-stream', '')
    """
    start = body[:64].removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(_JSON_STARTS):
        return JSON
    return EVENT_STREAM if start.startswith(_EVENT_STARTS) else ""


def byte_chunks(response: httpx2.Response) -> AsyncIterable[bytes]:
    """The body as it arrives, decoded."""
    # The bare stream: reading through the response costs more than everything else here.
    stream = _stream_of(response)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    return stream if encoding in ("", "identity") else _inflated(stream, encoding)


async def _inflated(stream: httpx2.AsyncByteStream, encoding: str) -> AsyncIterator[bytes]:
    """Decode a compressed body in small parts: a few bytes can hold gigabytes. Raises `BadResponse`."""
    if encoding not in _ENCODINGS:
        raise BadResponse("it sent an encoding that was not asked for")
    inflater: Any = None
    try:
        async for chunk in stream:
            left = chunk
            inflater = inflater or _inflater(encoding, chunk)
            while left:
                part = inflater.decompress(left, _INFLATED_BYTES)
                if part:
                    yield part
                    await anyio.lowlevel.checkpoint()
                left = inflater.unconsumed_tail
                if inflater.eof and inflater.unused_data:
                    left, inflater = inflater.unused_data, zlib.decompressobj(_GZIP_OR_ZLIB)
        while inflater is not None and (part := inflater.decompress(inflater.unconsumed_tail, _INFLATED_BYTES)):
            yield part
    except zlib.error as error:
        raise BadResponse("its compressed response cannot be decoded") from error
    if inflater is not None and not inflater.eof:
        raise BadResponse("its compressed response was cut off")


def _inflater(encoding: str, first: bytes) -> Any:
    try:
        zlib.decompressobj(_GZIP_OR_ZLIB).decompress(first, 1)
    except zlib.error:
        return zlib.decompressobj(_BARE_DEFLATE if encoding == "deflate" else _GZIP_OR_ZLIB)
    return zlib.decompressobj(_GZIP_OR_ZLIB)


class _SessionEvents(httpx2.AsyncByteStream):
    """A stream of events with only the messages in it. It ends where an event breaks the bounds, and a flood in it
    costs little.
    """

    def __init__(self, response: httpx2.Response, bounds: Bounds, *, answers: bool) -> None:
        self._response = response
        self._bounds = bounds
        self._answers = answers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parser = EventParser(self._bounds)
        async for chunk in byte_chunks(self._response):
            try:
                events = list(parser.feed(chunk))
            except OverflowError:
                return
            await take_turn(parser.pending_bytes, len(chunk))
            kept = self._written(events)
            if kept:
                yield b"".join(kept)
            await anyio.sleep(flood_pause_s(len(events), len(kept)))
        yield b"".join(self._written(parser.end()))

    def _written(self, events: Iterable[ServerEvent]) -> list[bytes]:
        return without_repeats([text for event in events if (text := self._event(event))])

    def _event(self, event: ServerEvent) -> bytes:
        """Return the event as the session reads it; empty if there is nothing in it that it should see."""
        message = message_for_session(event.data, answers=self._answers) if event.data else None
        lines = [b"data: " + message] if message else []
        if event.id:
            lines.append(b"id: " + event.id.encode())
        if event.retry_s is not None:
            lines.append(b"retry: %d" % (event.retry_s * 1000))
        return b"\n".join(lines) + b"\n\n" if lines else b""

    async def aclose(self) -> None:
        await _stream_of(self._response).aclose()


def events_for_session(response: httpx2.Response, bounds: Bounds, *, answers: bool = False) -> httpx2.Response:
    """Return a stream of events for the session; with `answers`, a message that names no request is the answer to its
    own.
    """
    return httpx2.Response(
        response.status_code,
        headers=_decoded_headers(response),
        stream=_SessionEvents(response, bounds, answers=answers),
        extensions=response.extensions,
    )


def with_body(response: httpx2.Response, body: bytes, kind: str = "") -> httpx2.Response:
    """Return the response with the body that was read from it, and with the content type that it has."""
    headers = response.headers
    if "content-encoding" in headers or (kind and not headers.get("content-type", "").lower().startswith(kind)):
        headers = _decoded_headers(response)
        if kind:
            headers["content-type"] = kind
        return httpx2.Response(response.status_code, headers=headers, content=body, extensions=response.extensions)
    response.stream = httpx2.ByteStream(body)
    return response


def _decoded_headers(response: httpx2.Response) -> httpx2.Headers:
    """The headers of a response whose body is decoded."""
    headers = response.headers.copy()
    if "content-encoding" in headers:
        for name in _BODY_HEADERS:
            headers.pop(name, None)
    return headers


def _stream_of(response: httpx2.Response) -> httpx2.AsyncByteStream:
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("an asynchronous transport must return an asynchronous stream")
    return response.stream
