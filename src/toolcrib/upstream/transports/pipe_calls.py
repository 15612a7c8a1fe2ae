"""Calls of a server's tools over its pipes, past the SDK session, which takes longer than all the rest of a call.

A request is written to the pipe at once if it fits, and the line that answers it is taken from the others. Whatever
needs more than a request and its result goes through the session.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCResponse

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.protocol.messages import parse_json
from toolcrib.upstream.transports.base import CallProtocol, FastPathUnavailable, encode_message, result_of
from toolcrib.upstream.transports.framing import OversizedLine

_FIRST_ID: Final = 1 << 40
"""Of these requests; the session counts from 1."""
_MAX_BYTES: Final = 64 * 1024
"""Longer lines are parsed in steps."""


class PipeCalls:
    """The `FastPath` of one connection over pipes."""

    def __init__(self) -> None:
        self._ids = itertools.count(_FIRST_ID)
        self._waiting: dict[int | str, asyncio.Future[dict[str, Any]]] = {}
        self._write: Callable[[bytes], bool] | None = None
        self._queue: Callable[[SessionMessage], None] | None = None

    def open(self, write: Callable[[bytes], bool], queue: Callable[[SessionMessage], None]) -> None:
        """Use these pipes: `write` writes a line at once or not at all; `queue` has a message written soon."""
        self._write, self._queue = write, queue

    def close(self) -> None:
        """Take no more calls, and fail those that wait."""
        self._write = self._queue = None
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ExchangeError(FailureKind.CLOSED, "the connection was closed"))

    has_streams = False

    @property
    def is_usable(self) -> bool:
        """Whether the pipes are open."""
        return self._write is not None

    async def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Raise `FastPathUnavailable`: only plain calls go this way."""
        raise FastPathUnavailable

    async def call_plain(self, params: dict[str, Any], _: CallProtocol, timeout_s: float) -> dict[str, Any] | None:
        """Return the result of a `tools/call`; None if it has to be sent through the session.

        Raises `MCPError`, `ExchangeError`, `InvalidArguments`, and `TimeoutError`.
        """
        request_id = next(self._ids)
        line = encode_message({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}) + b"\n"
        if self._write is None or not self._write(line):
            return None
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._waiting[request_id] = waiter
        limit = loop.call_later(timeout_s, _expire, waiter)
        try:
            return result_of(await waiter)
        except (TimeoutError, asyncio.CancelledError):
            self._cancel(request_id)
            raise
        finally:
            limit.cancel()
            del self._waiting[request_id]

    def _cancel(self, request_id: int) -> None:
        params = {"requestId": request_id, "reason": "caller cancelled"}
        note = JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
        line = note.model_dump_json().encode() + b"\n"
        if self._write is not None and self._queue is not None and not self._write(line):
            self._queue(SessionMessage(note))

    def take_line(self, line: bytes | OversizedLine) -> bool:
        """Take a line with the result of a call; false for any other, which `take` may still know."""
        if not self._waiting or not isinstance(line, bytes) or len(line) > _MAX_BYTES:
            return False
        try:
            message = parse_json(line)
        except ValueError:
            return False
        if not isinstance(message, dict) or "method" in message or not isinstance(message.get("result"), dict):
            return False
        return self._settle(message.get("id"), message)

    def take(self, message: JSONRPCMessage) -> bool:
        """Take a message that answers a call, such as the error in place of an answer that is too large."""
        if isinstance(message, JSONRPCResponse):
            return self._settle(message.id, {"result": message.result})
        if isinstance(message, JSONRPCError):
            return self._settle(message.id, {"error": message.error.model_dump()})
        return False

    def _settle(self, request_id: object, message: dict[str, Any]) -> bool:
        if not isinstance(request_id, (int, str)):
            return False
        waiter = self._waiting.get(coerce_request_id(request_id))
        if waiter is None:
            return False
        if not waiter.done():
            waiter.set_result(message)
        return True


def _expire(waiter: "asyncio.Future[dict[str, Any]]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
