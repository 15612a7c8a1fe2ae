"""Sessions of clients before 2026-07-28 over HTTP: who may use them, how many each caller may have, when they end.

A session is a row of a table. Nothing runs for it but its requests and, while its client listens, one stream.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol
from uuid import uuid4

import anyio
import anyio.lowlevel

from toolcrib.errors import RateLimited
from toolcrib.protocol.failures import INTERNAL_ERROR, INVALID_REQUEST, RpcError
from toolcrib.protocol.headers import SESSION_HEADER
from toolcrib.protocol.messages import ErrorResponse, InvalidMessage, Message, Request, RequestId, decode, encode_error
from toolcrib.protocol.serving import (
    NotificationReceived,
    QuestionAnswered,
    RequestCancelled,
    RequestReceived,
    ServerSession,
    correlated,
)
from toolcrib.server.engine import Engine
from toolcrib.server.exchange import Exchange
from toolcrib.server.http.connections import RateLimitedLog
from toolcrib.server.http.errors import error_response
from toolcrib.server.http.requests import (
    ACCEPTED,
    JSON_LINE,
    NOT_ACCEPTED,
    Answer,
    HttpRequest,
    Lines,
    Owner,
    method_not_allowed,
)
from toolcrib.server.http.streams import EventStream, Listener, SessionChannel
from toolcrib.server.options import HttpOptions
from toolcrib.types import Caller, Object

logger = logging.getLogger(__name__)

_FIRST_USE_S: Final = 60.0
"""How long a session lasts that was opened and not used, at most."""
_SWEEP_S: Final = 2.0
"""How often idle sessions are looked for, in seconds."""
_RETRY_AFTER_S: Final = 5
_SESSIONS_PER_STEP: Final = 50
"""Sessions ended at shutdown before others get a turn."""
_CANCELLED: Final = -32800
"""The code of the error that answers a request whose client has cancelled it, as each POST needs an answer."""
_TOO_MANY: Final = RateLimited(
    "You have too many sessions in use (http.max_sessions_per_caller), or all callers together (http.max_sessions).",
    hint=f"Close one that is not needed, or try again in {_RETRY_AFTER_S} s.",
    data={"retry_after_s": _RETRY_AFTER_S, "limit": "http.max_sessions"},
)


def _error(status: HTTPStatus, message: str, code: int = INVALID_REQUEST) -> Answer:
    return Answer(status, encode_error(None, RpcError(code, message)))


def _invalid(error: InvalidMessage) -> Answer:
    return Answer(HTTPStatus.BAD_REQUEST, encode_error(error.id, error.error))


_METHODS: Final = ("GET", "POST", "DELETE")
_NOT_FOUND: Final = _error(HTTPStatus.NOT_FOUND, "Session not found")
_NO_SESSION: Final = _error(HTTPStatus.BAD_REQUEST, "Bad Request: Missing session ID")
_LISTENS: Final = _error(HTTPStatus.CONFLICT, "Conflict: Only one SSE stream is allowed per session")
_ENDED: Final = _error(
    HTTPStatus.INTERNAL_SERVER_ERROR, "Session terminated before the request completed", INTERNAL_ERROR
)


@dataclass(slots=True, eq=False)
class HttpSession:
    """One session."""

    protocol: ServerSession
    caller: Caller
    owner: Owner
    credential: object
    """Who alone may use it."""
    used: float
    """When it was last used, by the clock."""
    requests: int = 0
    """Requests under way, of which an open stream is one."""
    is_used: bool = False
    """Whether there was any request but the first."""
    has_ended: bool = False
    running: dict[anyio.CancelScope, RequestId] = field(default_factory=dict)
    """The client's requests under way, of which several may have the same id."""
    listener: Listener = field(init=False)

    def __post_init__(self) -> None:
        self.listener = Listener(self.protocol)

    @property
    def lines(self) -> Lines:
        """The headers of each answer."""
        return JSON_LINE, (SESSION_HEADER.encode(), self.protocol.id.encode("latin-1"))

    def end(self) -> None:
        """End its requests and its stream."""
        self.has_ended = True
        self.listener.end()
        for scope in self.running:
            scope.cancel()

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request under way."""
        for scope in [scope for scope, known in self.running.items() if known == request_id]:
            scope.cancel()


class SharedSessions(Protocol):
    """The sessions of all processes that serve the same address, any of which may continue one."""

    def seal(self, caller: Caller, params: Object) -> str:
        """A new id for a session that this process opens."""

    def unseal(self, session: str, caller: Caller) -> Object | None:
        """What the client of a session of this caller said when it opened it; None for any other text."""

    async def end_session(self, session: str) -> None:
        """Note that the client has ended its session, so that no process continues it."""

    async def has_ended(self, session: str) -> bool:
        """Whether the client has ended the session."""


class HttpSessions:
    """The sessions of one endpoint."""

    def __init__(
        self,
        engine: Engine,
        options: HttpOptions,
        replicas: SharedSessions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`replicas` are the processes that serve the same address, if there may be others: they share the sessions.

        `clock` counts seconds.
        """
        self._engine = engine
        self._options = options
        self._replicas = replicas
        self._clock = clock
        self._sessions: OrderedDict[str, HttpSession] = OrderedDict()
        """By id, the one used longest ago first."""
        self._owned: dict[Owner, OrderedDict[str, None]] = {}
        """The ids of each caller's sessions, in the same order."""
        self._opening: Counter[Owner] = Counter()
        """Places that each caller has taken for sessions that are being opened."""
        self._refused = RateLimitedLog(logger, "%d sessions were refused: there are too many (http.max_sessions)")
        self._evicted = RateLimitedLog(
            logger, "%d idle sessions were closed to make room (http.max_sessions_per_caller)"
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold sessions, which end with this context."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._sweep_regularly)
            try:
                yield
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._end_all()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def answer(self, request: HttpRequest, body: bytes) -> Answer | None:
        """Answer a request of a session, or one that opens a session."""
        if request.head.session_id is None:
            return await self._answer_without_session(request, body)
        session = await self._find(request.head.session_id, request)
        if not isinstance(session, HttpSession):
            return session
        self._use(session)
        session.requests += 1
        try:
            answer = await self._answer_in_session(session, request, body)
        finally:
            session.requests -= 1
            session.used = self._clock()
        return None if answer is None else answer._replace(lines=_with(answer.lines, session.lines))

    async def _answer_in_session(self, session: HttpSession, request: HttpRequest, body: bytes) -> Answer | None:
        head = request.head
        if head.method == "POST":
            return head.problem or await self._answer_post(session, request, body)
        if head.method == "GET":
            return await self._listen(session, request) if head.takes_events else NOT_ACCEPTED
        if head.method == "DELETE":
            await self._end(session)
            return Answer(HTTPStatus.OK)
        return method_not_allowed(*_METHODS)

    async def _answer_post(self, session: HttpSession, request: HttpRequest, body: bytes) -> Answer | None:
        try:
            event = session.protocol.receive(decode(body))
        except InvalidMessage as invalid:
            return _invalid(invalid)
        match event:
            case RequestReceived():
                return await self._answer_request(session, event, request)
            case ErrorResponse(request_id, error):
                return Answer(HTTPStatus.OK, encode_error(request_id, error))
            case RequestCancelled(request_id):
                session.cancel(request_id)
            case QuestionAnswered():
                session.listener.questions.answered(event)
            case NotificationReceived(notification, version, capabilities):
                # The client need not wait for what follows from it.
                await request.respond(ACCEPTED._replace(lines=session.lines))
                exchange = Exchange(
                    method=notification.method,
                    params=notification.params or {},
                    version=version,
                    caller=request.caller,
                    session_id=session.protocol.id,
                    session=session.protocol,
                    capabilities=capabilities,
                    head=request.http,
                    channel=SessionChannel(session.listener, None),
                )
                await self._engine.notified(exchange)
                return None
        return ACCEPTED

    async def _answer_request(self, session: HttpSession, event: RequestReceived, request: HttpRequest) -> Answer:
        asked = event.request
        params, own_response = asked.params or {}, request if request.head.takes_events else None
        channel = SessionChannel(session.listener, own_response, session.lines[1:], params.get("_meta"))
        exchange = Exchange(
            method=asked.method,
            params=params,
            id=asked.id,
            version=event.version,
            caller=request.caller,
            session_id=session.protocol.id,
            session=session.protocol,
            capabilities=event.capabilities,
            head=request.http,
            channel=channel,
        )
        with anyio.CancelScope() as running:
            session.running[running] = correlated(asked.id)
            try:
                body = (await self._engine.answer(exchange)).body
            finally:
                session.protocol.answered(asked.id)
                del session.running[running]
                channel.close()
        if not running.cancelled_caught:
            return Answer(HTTPStatus.OK, body)
        if session.has_ended:
            return _ENDED
        return Answer(HTTPStatus.OK, encode_error(asked.id, RpcError(_CANCELLED, "Request cancelled")))

    async def _listen(self, session: HttpSession, request: HttpRequest) -> Answer | None:
        """Serve the stream of a session. Nothing is kept to repeat, so `Last-Event-ID` changes nothing."""
        listener = session.listener
        if listener.stream is not None:
            return _LISTENS
        stream = listener.stream = EventStream(request, session.lines[1:])
        exchange = Exchange(
            method="",
            params={},
            version=session.protocol.version,
            caller=request.caller,
            session_id=session.protocol.id,
            session=session.protocol,
            head=request.http,
        )
        try:
            await request.until_left(self._send_notifications(exchange, stream))
        finally:
            listener.stream = None
            stream.close()
        await request.end()
        return None

    async def _send_notifications(self, exchange: Exchange, stream: EventStream) -> None:
        """Send a session its notifications until its stream is to end."""
        await stream.open()
        async with self._engine.listening(exchange, stream.notify):
            await stream.ended.wait()

    # -- opening and finding sessions ----------------------------------------------------------------------------------

    async def _answer_without_session(self, request: HttpRequest, body: bytes) -> Answer:
        head = request.head
        if head.method not in _METHODS:
            return method_not_allowed(*_METHODS)
        if head.method != "POST":
            return _NO_SESSION if head.takes_events or head.method == "DELETE" else NOT_ACCEPTED
        if head.problem is not None:
            return head.problem
        try:
            return await self._open_with(request, decode(body))
        except InvalidMessage as invalid:
            return _invalid(invalid)

    async def _open_with(self, request: HttpRequest, message: Message) -> Answer:
        """Open a session, if the message is for that."""
        if not isinstance(message, Request) or message.method != "initialize":
            return _NO_SESSION
        owner = request.owner
        if not await self._reserve(owner):
            return self._refuse(request)
        try:
            return await self._open(request, owner, message)
        finally:
            self._release(owner)

    async def _open(self, request: HttpRequest, owner: Owner, message: Request) -> Answer:
        caller, params = request.caller, message.params or {}
        session_id = uuid4().hex if self._replicas is None else self._replicas.seal(caller, params)
        protocol = ServerSession(id=session_id, is_modern=False, has_era=True)
        event = protocol.receive(message)
        assert isinstance(event, RequestReceived)  # noqa: S101 - the first request of a session may always be this one
        exchange = Exchange(
            method=message.method,
            params=params,
            id=message.id,
            version=event.version,
            caller=caller,
            session_id=session_id,
            session=protocol,
            head=request.http,
        )
        body, error = await self._engine.answer(exchange)
        protocol.answered(message.id)
        if error is not None:
            return Answer(HTTPStatus.OK, body)
        session = self._note(HttpSession(protocol, caller, owner, request.credential, self._clock()))
        return Answer(HTTPStatus.OK, body, session.lines)

    def _note(self, session: HttpSession) -> HttpSession:
        self._sessions[session.protocol.id] = session
        self._owned.setdefault(session.owner, OrderedDict())[session.protocol.id] = None
        return session

    async def _find(self, session_id: str, request: HttpRequest) -> HttpSession | Answer:
        """The session, if the credential of the request is that with which it was opened."""
        replicas = self._replicas
        if replicas is not None:
            caller = request.caller
            if request.head.method == "DELETE" and replicas.unseal(session_id, caller) is not None:
                await replicas.end_session(session_id)
            elif session_id not in self._sessions and not await self._continue(replicas, session_id, caller, request):
                return self._refuse(request)
        session = self._sessions.get(session_id)
        if session is None or session.credential != request.credential:
            return _NOT_FOUND
        return session

    async def _continue(self, replicas: SharedSessions, session_id: str, caller: Caller, request: HttpRequest) -> bool:
        """Continue here a session that another process opened, if its id is valid; false if there is no room."""
        params = replicas.unseal(session_id, caller)
        if params is None or await replicas.has_ended(session_id):
            return True
        owner = request.owner
        if not await self._reserve(owner):
            return False
        self._release(owner)
        if session_id not in self._sessions:
            protocol = ServerSession(id=session_id, is_modern=False, has_era=True, is_initialized=True)
            protocol.open(params)
            self._note(HttpSession(protocol, caller, owner, request.credential, self._clock()))
            logger.info("a session goes on in this process")
        return True

    def _refuse(self, request: HttpRequest) -> Answer:
        self._refused.add()
        self._engine.report_refusal(request.caller, "initialize", _TOO_MANY)
        return Answer.of(error_response(503, _TOO_MANY))

    def _use(self, session: HttpSession) -> None:
        """Note that the session is in use."""
        session.is_used, session.used = True, self._clock()
        self._sessions.move_to_end(session.protocol.id)
        self._owned[session.owner].move_to_end(session.protocol.id)

    # -- the places of sessions ----------------------------------------------------------------------------------------

    async def _reserve(self, owner: Owner) -> bool:
        """Take a place for a session of the caller, once its own oldest idle ones are closed if need be.

        Returns false if there is none. Otherwise `_release` gives it back.
        """
        while not self._has_room(owner):
            own = self._owned.get(owner, OrderedDict())
            idle = next((found for name in own if not (found := self._sessions[name]).requests), None)
            if idle is None:
                return False
            self._evicted.add()
            await self._end(idle)
        self._opening[owner] += 1
        return True

    def _release(self, owner: Owner) -> None:
        self._opening[owner] -= 1
        if not self._opening[owner]:
            del self._opening[owner]

    def _has_room(self, owner: Owner) -> bool:
        """Whether the caller may open one more session, next to those that are open or being opened."""
        if len(self._owned.get(owner, ())) + self._opening[owner] >= self._options.max_sessions_per_caller:
            return False
        return len(self._sessions) + self._opening.total() < self._options.max_sessions

    async def _sweep_regularly(self) -> None:
        while True:
            await anyio.sleep(min(_SWEEP_S, self._options.session_idle_s / 2))
            try:
                await self._sweep()
            except Exception:
                logger.exception("idle sessions could not be closed")

    async def _sweep(self) -> None:
        """End sessions that were not used for too long."""
        now = self._clock()
        for session in tuple(self._sessions.values()):
            if not session.requests and now - session.used >= self._idle_timeout(session):
                logger.info("a session reached its idle timeout")
                await self._end(session)

    def _idle_timeout(self, session: HttpSession) -> float:
        most = self._options.session_idle_s
        return most if session.is_used else min(_FIRST_USE_S, most)

    async def _end(self, session: HttpSession) -> None:
        """Forget a session, so that no request finds it any more, and end what belongs to it."""
        if self._sessions.pop(session.protocol.id, None) is None:
            return
        own = self._owned[session.owner]
        del own[session.protocol.id]
        if not own:
            del self._owned[session.owner]
        session.end()
        await self._engine.end_session(session.protocol, session.caller)

    async def _end_all(self) -> None:
        for number, session in enumerate(tuple(self._sessions.values())):
            await self._end(session)
            if number % _SESSIONS_PER_STEP == 0:
                await anyio.lowlevel.checkpoint()


def _with(lines: Lines, session_lines: Lines) -> Lines:
    """The headers of an answer, with those of its session."""
    return session_lines if lines == (JSON_LINE,) else (*lines, *session_lines[1:])
