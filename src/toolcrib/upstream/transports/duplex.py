"""Transports on which responses come between other messages: pipes, sockets, streams in memory, event streams.

A request is written at once if there is room, and the line that answers it is taken from the others by its id.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import anyio.lowlevel

from toolcrib.protocol.calling import OutgoingRequest, same_id
from toolcrib.protocol.failures import PARSE_ERROR, ExchangeError, FailureKind, RpcError
from toolcrib.protocol.messages import ErrorResponse, RequestId, encode_object, parse_json, to_wire
from toolcrib.protocol.versions import LIST_METHODS
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.transports.base import AutoResetEvent, CloseEvent, Message, OnMessage
from toolcrib.upstream.transports.bounds import run_in_steps, take_turn
from toolcrib.upstream.transports.framing import (
    FLOOD_PAUSE_S,
    ExpectedResponses,
    LineSplitter,
    OversizedLine,
    Unreadable,
    flood_pause_s,
    parse_short,
    without_repeats,
)

logger = logging.getLogger(__name__)

PIPE_CLOSED: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
"""How reading from a stream, or writing to it, ends."""
CLOSED: Final = "the connection was closed"


class DuplexTransport(ABC):
    """A `Transport` over one stream of messages in each direction."""

    has_response_streams = False
    has_session = True

    def __init__(self, options: ServerOptions) -> None:
        self.closed, self.refresh_needed = CloseEvent(), AutoResetEvent()
        self._expected = ExpectedResponses(options)
        self._waiting: dict[RequestId, asyncio.Future[Message]] = {}
        self._receive: OnMessage | None = None
        """None while it is not open."""

    # -- for a connection ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self, receive: OnMessage) -> AsyncIterator[None]:
        """Connect, and disconnect on leaving. Raises `ExchangeError`."""
        self._receive = receive
        try:
            async with self._connected():
                try:
                    yield
                finally:
                    self._receive = None
                    self._fail_all()
        finally:
            self.closed.set(CLOSED)

    async def exchange(self, request: OutgoingRequest, on_message: OnMessage) -> Message:  # noqa: ARG002 - nothing comes with a response alone
        """Send a request, and return its outcome. Raises `ExchangeError`."""
        if self._receive is None:
            raise ExchangeError(FailureKind.CLOSED, CLOSED)
        waiter: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = waiter
        is_list = request.method in LIST_METHODS
        if is_list:
            self._expected.add_list(request.id)
        try:
            if not self._send_now(request.data + b"\n"):
                await self._send_request(request)
            return await waiter
        except PIPE_CLOSED as error:
            raise ExchangeError(FailureKind.CLOSED, CLOSED) from error
        finally:
            del self._waiting[request.id]
            if is_list:
                self._expected.remove_list(request.id)

    async def post(self, message: Message, headers: Mapping[str, str]) -> None:  # noqa: ARG002 - of HTTP
        """Send any message. Raises `ExchangeError` for one that is not JSON."""
        if message.get("method") in LIST_METHODS and (request_id := same_id(message.get("id"))) is not None:
            self._expected.add_list(request_id)
        try:
            line = encode_object(message) + b"\n"
        except ValueError as error:
            raise ExchangeError(FailureKind.UNSENT, "the message cannot be encoded as JSON") from error
        try:
            if self._receive is not None and not self._send_now(line):
                await self._send(line)
        except PIPE_CLOSED as error:
            raise ExchangeError(FailureKind.CLOSED, CLOSED) from error

    async def wait_listening(self) -> None:
        """Return at once: the server can send requests at any time."""
        await anyio.lowlevel.checkpoint()

    async def has_lost_session(self) -> bool:
        """Return false: the session is the connection."""
        return False

    def stderr_tail(self) -> str:
        """Return nothing: there is no stderr."""
        return ""

    # -- for each kind of transport --------------------------------------------------------------------------------

    @abstractmethod
    def _connected(self) -> AbstractAsyncContextManager[None]:
        """Connect, and disconnect on leaving. Raises `ExchangeError`."""

    def _send_now(self, line: bytes) -> bool:  # noqa: ARG002 - a default
        """Write a line at once; false if others wait, or if it does not fit."""
        return False

    @abstractmethod
    async def _send(self, line: bytes) -> None:
        """Write a line after those that wait; its end is the end of the connection if it cannot be written."""

    async def _send_request(self, request: OutgoingRequest) -> None:
        await self._send(request.data + b"\n")

    def _skipped(self, line: bytes) -> None:
        """Note a line that is no message."""
        logger.debug("a line that is no message was skipped: %d bytes", len(line))

    async def _read_lines(self, receive: Callable[[], Awaitable[bytes]]) -> None:
        """Take the messages in chunks, until `receive` raises."""
        lines = LineSplitter(self._expected.bounds)
        while True:
            chunk = await receive()
            if lines.is_between and self._take_answer(chunk):
                continue
            pause_s = await self._take_lines(lines, chunk)
            await asyncio.sleep(pause_s)
            await take_turn(lines.pending_bytes, len(chunk))

    def _take_answer(self, chunk: bytes) -> bool:
        """Take a chunk that is the answer to a request, as most chunks are. Returns whether it is."""
        if len(chunk) > self._expected.plain_bytes or chunk.find(b"\n") != len(chunk) - 1:
            return False
        try:
            message = parse_json(chunk)
        except ValueError:
            return False
        return isinstance(message, dict) and self._settle(message)

    async def _take_lines(self, lines: LineSplitter, chunk: bytes) -> float:
        """Take the messages that the chunk completes. Returns the pause after it, for noise or a flood."""
        done = lines.feed(chunk)
        count = 0
        for line in without_repeats(done):
            short = parse_short(line)
            count += 1 if short is not None and self._settle(short) else await self._take_line(line, short)
        if not count:
            return FLOOD_PAUSE_S if done or lines.overflowing else 0
        return flood_pause_s(len(done), count)

    async def _take_line(self, line: bytes | OversizedLine, short: Message | None = None) -> int:
        """Take the messages in one line, or the only one if it is known. Returns how many there are."""
        found = await run_in_steps(self._expected.read(line)) if short is None else [short]
        if not found and isinstance(line, bytes):
            self._skipped(line)
        for message in found:
            if isinstance(message, Unreadable):
                await self._take_broken(message)
            elif not self._settle(message):
                await self._pass_on(message)
        return len(found)

    def _settle(self, message: Message) -> bool:
        """Give a message to the request that it answers. Returns whether there is one."""
        request_id = same_id(message.get("id"))
        waiter = None if request_id is None or "method" in message else self._waiting.get(request_id)
        if waiter is None:
            return False
        if not waiter.done():
            waiter.set_result(message)
        return True

    async def _pass_on(self, message: Message) -> None:
        """Pass on a message that answers no request of the connection."""
        if "method" not in message and (request_id := same_id(message.get("id"))) is not None:
            self._expected.remove_list(request_id)
        if self._receive is not None:  # a server may have to write before it can exit
            await self._receive(message)

    async def _take_broken(self, response: Unreadable) -> None:
        if not self._fail(response.request_id, ExchangeError(FailureKind.ANSWER, response.reason)):
            error = RpcError(PARSE_ERROR, response.reason)
            await self._pass_on(to_wire(ErrorResponse(response.request_id, error)))

    def _fail(self, request_id: RequestId, failure: ExchangeError) -> bool:
        """Fail a request. Returns whether it waits for its outcome."""
        waiter = self._waiting.get(request_id)
        if waiter is not None and not waiter.done():
            waiter.set_exception(failure)
        return waiter is not None

    def _fail_all(self) -> None:
        """Fail the requests under way: nothing will come any more."""
        for request_id in self._waiting:
            self._fail(request_id, ExchangeError(FailureKind.CLOSED, CLOSED))
