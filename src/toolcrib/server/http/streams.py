"""Streams of events on HTTP responses, and how a server reaches a client by them before the response is complete."""

import asyncio
from typing import Any, Final

import anyio

from toolcrib.protocol.failures import CONNECTION_CLOSED, RpcError
from toolcrib.protocol.messages import encode_notification
from toolcrib.protocol.serving import ServerSession
from toolcrib.protocol.versions import PROGRESS_KEY
from toolcrib.server.exchange import Questions, ResponseOnly
from toolcrib.server.http.requests import HttpRequest, Lines
from toolcrib.types import Object

_PING_S: Final = 15.0
"""How often a stream carries a comment, so that no proxy takes it for dead."""
_PING: Final = b": ping\r\n\r\n"


class EventStream:
    """The response to one request as a stream of events, which begins with the first one."""

    def __init__(self, request: HttpRequest, lines: Lines = ()) -> None:
        """`lines` are further headers."""
        self._request = request
        self._lines = lines
        self._opening = anyio.Lock(fast_acquire=True)
        self._pinging: asyncio.Task[None] | None = None
        self.ended = anyio.Event()
        """Set when the stream is to end."""
        self.is_closed = False

    async def open(self) -> None:
        """Begin the response."""
        async with self._opening:
            if not self._request.has_begun and not self.is_closed:
                await self._request.start_events(self._lines)
        self.keep_alive()

    def keep_alive(self) -> None:
        """Send a comment whenever a while has passed; the first one begins the response."""
        if self._pinging is None and not self.is_closed:
            self._pinging = asyncio.get_running_loop().create_task(self._ping())

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(_PING_S)
            await self.open()
            await self._request.write(_PING)

    async def send(self, message: bytes) -> None:
        """Send a JSON-RPC message; drops it once the stream is closed."""
        await self.open()
        if not self.is_closed:
            await self._request.send_event(message)

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification."""
        await self.send(encode_notification(method, params))

    def close(self) -> None:
        """Send nothing more; the response is the caller's to end."""
        self.is_closed = True
        if self._pinging is not None:
            self._pinging.cancel()
            self._pinging = None


class StreamChannel(ResponseOnly):
    """The channel of a client that gets notifications on the response to its request."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification."""
        await self._stream.notify(method, params)


class Listener:
    """How a session's client is reached outside of its requests: by its open stream, if there is one."""

    def __init__(self, session: ServerSession) -> None:
        self.questions = Questions(session)
        self.stream: EventStream | None = None

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification; drops it while there is no stream."""
        if self.stream is not None:
            await self.stream.notify(method, params)

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        """Send the client a request, and return its result. Raises `RpcError`."""
        if self.stream is None:
            raise RpcError(CONNECTION_CLOSED, f"The client cannot be sent {method} now: it listens to no stream.")
        return await self.questions.ask(self.stream.send, method, params, timeout_s)

    def end(self) -> None:
        """End the stream; questions that the client has not answered fail."""
        self.questions.close()
        if self.stream is not None:
            self.stream.ended.set()


class SessionChannel:
    """The channel of a request of a session: its own response, or the session's stream."""

    def __init__(self, listener: Listener, request: HttpRequest | None, lines: Lines = (), meta: Any = None) -> None:
        """Without `request`, no response carries notifications. `lines` are its headers; `meta` is the message's."""
        self._listener = listener
        self._request = request
        self._lines = lines
        self._stream: EventStream | None = None
        """The response to the request, once it is a stream."""
        self._is_closed = False
        self._wants_progress = isinstance(meta, dict) and meta.get(PROGRESS_KEY) is not None

    @property
    def can_ask(self) -> bool:
        """Whether the client can be sent a request now."""
        return self._listener.stream is not None

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        """Send a request on the session's stream, and return its result. Raises `RpcError`."""
        return await self._listener.ask(method, params, timeout_s)

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification before the response, or on the session's stream where the client did not ask for any."""
        if self._request is None or (self._listener.stream is not None and not self._wants_progress):
            await self._listener.notify(method, params)
        elif not self._is_closed:
            if self._stream is None:
                self._stream = EventStream(self._request, self._lines)
            await self._stream.notify(method, params)

    def close(self) -> None:
        """Send nothing more before the response."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.close()
