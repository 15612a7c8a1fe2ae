"""Read the bodies of HTTP responses: decoded, within bounds, and the messages in those that are event streams."""

import codecs
import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import suppress
from typing import Any, Final

import anyio
import anyio.lowlevel

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.protocol.messages import NESTED_TOO_DEEP, TooDeepError
from toolcrib.upstream.transports.base import Message
from toolcrib.upstream.transports.bounds import Bounds, Meter, run_in_steps, take_turn
from toolcrib.upstream.transports.framing import EventParser, flood_pause_s, parse_in_steps, without_repeats
from toolcrib.upstream.transports.http_connection import HttpResponse

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
_JSON_STARTS: Final = (b"{", b"[")
_EVENT_STARTS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_ENCODINGS: Final = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_BARE_DEFLATE: Final = -zlib.MAX_WBITS
"""What some servers send as `deflate`, without the frame of zlib."""
_INFLATED_BYTES: Final = 256 * 1024
_END_S: Final = 0.02
"""How long to wait for the end of a stream after its result."""
_UNREADABLE_EVENT: Final = "its response holds an event that is not a JSON-RPC message, and no result"


async def read_bounded(response: HttpResponse, bounds: Bounds) -> bytes | str:
    """Read the whole body, decoded; return how it breaks the bounds if it does. Raises `ExchangeError`."""
    if response.body is not None and len(response.body) <= bounds.nodes and b"content-encoding" not in response.names:
        return response.body
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
        await response.aclose()
    return b"".join(parts)


async def read_beginning(response: HttpResponse, most: int) -> bytes:
    """Read the first event of a stream, or the whole of any other body, but not much more than `most` bytes."""
    text = b""
    try:
        async for chunk in byte_chunks(response):
            text += chunk
            if b"\n\n" in text or len(text) > most:
                break
    finally:
        await response.aclose()
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


def byte_chunks(response: HttpResponse) -> AsyncIterable[bytes]:
    """The body as it arrives, decoded."""
    encoding = response.header(b"content-encoding").strip().lower()
    return response if encoding in ("", "identity") else _inflated(response, encoding)


async def _inflated(stream: AsyncIterable[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Decode a compressed body in small parts: a few bytes can hold gigabytes. Raises `ExchangeError`."""
    if encoding not in _ENCODINGS:
        raise _undecodable("it sent an encoding that was not asked for")
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
        raise _undecodable("its compressed response cannot be decoded") from error
    if inflater is not None and not inflater.eof:
        raise _undecodable("its compressed response was cut off")


def _inflater(encoding: str, first: bytes) -> Any:
    try:
        zlib.decompressobj(_GZIP_OR_ZLIB).decompress(first, 1)
    except zlib.error:
        return zlib.decompressobj(_BARE_DEFLATE if encoding == "deflate" else _GZIP_OR_ZLIB)
    return zlib.decompressobj(_GZIP_OR_ZLIB)


def _undecodable(reason: str) -> ExchangeError:
    return ExchangeError(FailureKind.LOST, reason)


async def discard(response: HttpResponse) -> None:
    """Read what little may be left of a response whose body says nothing, so that its connection can be used again."""
    try:
        with anyio.move_on_after(_END_S), suppress(ExchangeError):
            async for _ in response:
                pass
    finally:
        await response.aclose()


class MessageStream:
    """The messages in one stream of events. A flood of notifications in it costs little."""

    def __init__(self, chunks: AsyncIterable[bytes], bounds: Bounds) -> None:
        """`bounds` is how much one message may hold."""
        self._chunks = aiter(chunks)
        self._parser = EventParser(bounds)
        self._bounds = bounds
        self._waiting: deque[Message] = deque()
        self._has_ended = False
        self.problem = ""
        """What was wrong with an event that could not be read."""
        self.last_event_id = ""
        self.retry_s: float | None = None
        """When to ask for the rest of a stream that has ended, if it says so."""

    async def next(self) -> Message | None:
        """Return the next message; None when the stream has ended or broken off.

        Raises `ExchangeError` for one that is too large, or nested too deep.
        """
        while not self._waiting and not self._has_ended:
            await self._read()
        return self._waiting.popleft() if self._waiting else None

    async def _read(self) -> None:
        chunk = b""
        try:
            chunk = await anext(self._chunks)
            events = list(self._parser.feed(chunk))
        except StopAsyncIteration:
            self._has_ended, events = True, list(self._parser.end())
        except ExchangeError:
            self._has_ended = True
            return
        except OverflowError as error:
            raise ExchangeError(FailureKind.ANSWER, f"its response {error}") from error
        await take_turn(self._parser.pending_bytes, len(chunk))
        for event in events:
            self.last_event_id = event.id or self.last_event_id
            self.retry_s = self.retry_s if event.retry_s is None else event.retry_s
        await self._take([event.data for event in events if event.data])

    async def _take(self, texts: list[bytes]) -> None:
        kept = without_repeats(texts)
        for text in kept:
            try:
                value = await run_in_steps(parse_in_steps(text, is_list=self._bounds.in_steps))
            except TooDeepError as error:
                raise ExchangeError(FailureKind.ANSWER, f"its response {NESTED_TOO_DEEP}") from error
            except ValueError:  # what follows it may still be the result
                self.problem = self.problem if self._has_ended else _UNREADABLE_EVENT
                continue
            self._waiting += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
        if pause_s := flood_pause_s(len(texts), len(kept)):
            await anyio.sleep(pause_s)

    async def drain(self) -> None:
        """Wait for the end of the stream, which usually follows the result: only then is its connection free."""
        with anyio.move_on_after(_END_S), suppress(ExchangeError):
            while not self._has_ended:
                self._has_ended = await anext(self._chunks, None) is None

    async def aclose(self) -> None:
        """Leave the stream."""
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()
