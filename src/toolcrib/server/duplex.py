"""One client over a connection in both directions, such as pipes: its messages in, responses and notifications out.

Both eras are served; the client's first request says which one it is.
"""

import contextlib
import math
import secrets
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import anyio
import anyio.abc

from toolcrib.protocol.failures import CONNECTION_CLOSED, INVALID_REQUEST, RpcError
from toolcrib.protocol.messages import (
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Request,
    RequestId,
    decode,
    encode_error,
    encode_notification,
)
from toolcrib.protocol.serving import (
    NotificationReceived,
    QuestionAnswered,
    RequestCancelled,
    RequestReceived,
    ServerSession,
    correlated,
)
from toolcrib.protocol.versions import is_modern
from toolcrib.server.engine import Engine
from toolcrib.server.exchange import NO_HEAD, Exchange, HttpHead, Questions, SendMessage
from toolcrib.server.processes.stopping import SHUTTING_DOWN
from toolcrib.types import LOCAL, Caller, Object

_ID_IN_USE: Final = RpcError(
    INVALID_REQUEST,
    "A request with this id has yet to be answered; this one was not run. Send it again with another id.",
)


def local_name() -> str:
    """A name for a connection that no client chooses; random, as it must not be that of a session over HTTP."""
    return f"local-{secrets.token_hex(8)}"


class Sender(NamedTuple):
    """Who sends a message."""

    caller: Caller
    head: HttpHead = NO_HEAD
    """That of the request that it came in."""


class DuplexConnection:
    """Serves one client; `serving` has to run meanwhile."""

    def __init__(self, engine: Engine, send: SendMessage, *, name: str | None = None, caller: Caller = LOCAL) -> None:
        """`send` writes one message, and waits until there is room for it. `name` is that of the session."""
        self.session = ServerSession(id=name or local_name())
        self.questions = Questions(self.session)
        self._engine = engine
        self._write = send
        self._caller = caller
        self._group: anyio.abc.TaskGroup | None = None
        self._running: dict[RequestId, tuple[RequestId, anyio.CancelScope]] = {}
        """The ids of the requests that are being answered, as the client wrote them and with what cancels each."""
        self._refused = False
        self._ready = anyio.Event()
        """Set once the client may be sent notifications."""
        self._stack = contextlib.AsyncExitStack()
        """What ends with the connection."""
        self._idle = anyio.Event()
        self._lock = anyio.Lock(fast_acquire=True)
        self._writing: anyio.CancelScope | None = None
        self._deadline = math.inf
        """Until when messages are written, on the event loop's clock."""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer requests inside the block; at its end, those that are still running are cancelled."""
        try:
            async with anyio.create_task_group() as self._group:
                try:
                    yield
                finally:
                    self.questions.close()
                    self._stop_writing(-math.inf)
                    self._group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()
                await self._engine.end_session(self.session, self._caller)

    # -- messages of the client ------------------------------------------------------------------------------------

    async def receive(self, text: bytes) -> None:
        """Act upon one message."""
        try:
            message = decode(text)
        except InvalidMessage as error:
            await self.refuse(error.error, error.id)
        else:
            await self.receive_message(message)

    async def receive_message(self, message: Message, sender: Sender | None = None) -> None:
        """The same for a message that was read already; without `sender`, it is of the connection's own caller."""
        assert self._group is not None  # noqa: S101 - the caller is inside `serving`
        sender = sender or Sender(self._caller)
        if isinstance(message, Request) and correlated(message.id) in self.session.under_way:
            await self.refuse(_ID_IN_USE, message.id)
            return
        match self.session.receive(message):
            case RequestReceived() as received:
                scope = anyio.CancelScope()
                self._running[correlated(received.request.id)] = received.request.id, scope
                if received.request.method == "initialize":
                    await self._answer(received, sender, scope)  # at once: the next message finds the session open
                else:
                    self._group.start_soon(self._answer, received, sender, scope)
            case RequestCancelled(request_id):
                if request_id in self._running:
                    self._running[request_id][1].cancel()
            case QuestionAnswered() as answered:
                self.questions.answered(answered)
            case NotificationReceived() as notified:
                await self._notified(notified, sender)
            case ErrorResponse(request_id, error):
                await self.refuse(error, request_id)
            case None:
                pass

    async def _answer(self, received: RequestReceived, sender: Sender, scope: anyio.CancelScope) -> None:
        request = received.request
        exchange = self._exchange(request, received.version, received.capabilities, sender)
        with scope:
            answer = await self._engine.answer(exchange)
            if request.method == "initialize" and answer.error is None:
                await self._listen(exchange)
        self.session.answered(request.id)
        if not scope.cancelled_caught and not self._refused:
            await self.send(answer.body)
        key = correlated(request.id)
        if key in self._running and self._running[key][1] is scope:
            del self._running[key]
        if not self._running:
            self._idle.set()

    def _exchange(
        self, message: Request | Notification, version: str, capabilities: Object, sender: Sender
    ) -> Exchange:
        return Exchange(
            method=message.method,
            params=message.params or {},
            id=message.id if isinstance(message, Request) else None,
            version=version,
            caller=sender.caller,
            session_id=self.session.id,
            session=None if is_modern(version) else self.session,
            capabilities=capabilities,
            head=sender.head,
            channel=_DuplexChannel(self, version),
        )

    async def _notified(self, received: NotificationReceived, sender: Sender) -> None:
        exchange = self._exchange(received.notification, received.version, received.capabilities, sender)
        if self.session.is_initialized:
            self._ready.set()
        await self._engine.notified(exchange)

    async def _listen(self, exchange: Exchange) -> None:
        """Begin to send the session its notifications, once its client is ready for them."""
        await self._stack.aclose()  # of an earlier handshake
        await self._stack.enter_async_context(self._engine.listening(exchange, self.notify, self._ready))

    # -- messages to the client ------------------------------------------------------------------------------------

    async def send(self, text: bytes) -> None:
        """Send one message, after those before it; drop it once the connection is closed."""
        async with self._lock:
            # Half a message, of a request that is cancelled now, would break the next one.
            with anyio.CancelScope(shield=True, deadline=self._deadline) as self._writing:
                await self._write(text)
            if self._writing.cancelled_caught:
                self._deadline = -math.inf

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification."""
        await self.send(encode_notification(method, params))

    async def refuse(self, error: RpcError, request_id: RequestId | None) -> None:
        """Answer a message that cannot be acted upon."""
        await self.send(encode_error(request_id, error))

    # -- the end ---------------------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> None:
        """Wait so long for the requests that are running, without those that never end by themselves."""
        self._engine.end_streams()
        if self._running:
            self._idle = anyio.Event()
            with anyio.move_on_after(seconds):
                await self._idle.wait()

    async def refuse_rest(self, within_s: float) -> None:
        """Answer what is still running with an error that the server is shutting down, and write nothing after that.

        The client has so long to read, as it may no longer do so.
        """
        self._refused = True
        self._stop_writing(anyio.current_time() + within_s)
        for request_id, _ in tuple(self._running.values()):
            await self.refuse(RpcError(CONNECTION_CLOSED, SHUTTING_DOWN), request_id)

    def _stop_writing(self, deadline: float) -> None:
        self._deadline = deadline
        if self._writing is not None:
            self._writing.deadline = deadline


class _DuplexChannel:
    """The way to the client of one of its requests."""

    def __init__(self, connection: DuplexConnection, version: str) -> None:
        self._connection = connection
        self.can_ask = not is_modern(version)
        self.notify = connection.notify

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        connection = self._connection
        return await connection.questions.ask(connection.send, method, params, timeout_s)
