"""Sessions of clients before 2026-07-28 over HTTP: how many each caller may have, and when an idle one is closed.

The SDK keeps the sessions. It counts them in all only, so that one caller could take every one. It also keeps a
transport, two tasks and some 300 objects for each, which take 70 KB and prolong every garbage collection. So a session
is dormant, which means without a transport, until a request needs one, and again once it is idle: then the transport
is closed, and the next request that needs one opens another under the same id.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Final
from uuid import uuid4

import anyio
import anyio.lowlevel
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext, authorization_context
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCRequest
from pydantic_core import from_json, to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import RateLimited
from toolcrib.server.auth.authentication import sdk_user
from toolcrib.server.context import error_response
from toolcrib.server.dormant import DormantSessions, EndSession
from toolcrib.server.exchange import SESSION_HEADER, request_caller
from toolcrib.server.http.budgets import Owner, ReportRefusal, owner_of
from toolcrib.server.http.connections import RateLimitedLog
from toolcrib.server.options import HttpOptions
from toolcrib.server.plain_connection import PlainAnswer, SendEvent
from toolcrib.server.processes.replicas import Replicas
from toolcrib.server.session_calls import SessionCalls, respond
from toolcrib.types import LOCAL, Caller, Object

logger = logging.getLogger(__name__)

_FIRST_USE_S: Final = 60.0
"""How long a session lasts that was opened and not used, at most."""
_AWAKE_S: Final = 10.0
"""How long an idle session stays awake, in seconds."""
_MAX_UNUSED: Final = 32
"""Sessions that were opened and not used yet, and are awake: a client usually goes on at once."""
_SWEEP_S: Final = 2.0
"""How often idle sessions are looked for, in seconds."""
_MAX_OPENING_BYTES: Final = 4096
"""Of what a client says when it opens a session; with more, the session does not become dormant."""
_RETRY_AFTER_S: Final = 5
_SESSIONS_PER_STEP: Final = 50
"""Sessions ended at shutdown before others get a turn: the SDK's own way takes time in the square of their number."""
_TOO_MANY: Final = RateLimited(
    "You have too many sessions in use (http.max_sessions_per_caller), or all callers together (http.max_sessions).",
    hint=f"Close one that is not needed, or try again in {_RETRY_AFTER_S} s.",
    data={"retry_after_s": _RETRY_AFTER_S, "limit": "http.max_sessions"},
)

_NOT_FOUND: Final = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}'


@dataclass(slots=True)
class _Session:
    owner: Owner
    opening: Object | None
    """The `params` with which the client opened it; None if they are too long to be kept."""
    used: float
    """When it was last used, by `time.monotonic`."""
    requests: int = 0
    """Requests under way, of which an open stream is one."""
    is_used: bool = False
    """Whether there was any request but the first."""
    is_dormant: bool = False
    credential: AuthorizationContext | None = None
    """Who alone may wake it."""


class _TransportManager(StreamableHTTPSessionManager):
    """The SDK's session manager, for sessions that may have several transports, one after the other."""

    calls: SessionCalls | None = None
    """What answers requests of sessions beside their transports."""

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        """Stop tracking the session, unless it has another transport by now, or none; end this transport."""
        if self._server_instances.get(session_id) is transport:
            if self.calls is not None:
                self.calls.end(session_id)
            await super()._discard_session(session_id, transport)
        elif not transport.is_terminated:
            with anyio.CancelScope(shield=True):
                await transport.terminate()


class SessionManager:
    """The SDK's session manager, with a share of the sessions for each caller."""

    def __init__(
        self,
        server: Server[Any],
        options: HttpOptions,
        replicas: Replicas | None = None,
        dormant: DormantSessions | None = None,
        calls: SessionCalls | None = None,
        *,
        report: ReportRefusal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`replicas` are the processes that serve the same address, if there may be others: they share the sessions.

        Without `dormant`, which the server has to know, no session becomes dormant. `calls` answers what needs no
        transport. `report` learns of refused sessions. `clock` counts seconds.
        """
        self._options = options
        self._replicas = replicas
        self._dormant = dormant
        self._clock = clock
        self._report = report
        self._continuing: dict[str, anyio.Lock] = {}
        """Of the sessions that are being continued here, or woken."""
        self._manager = _TransportManager(
            server,
            json_response=True,
            max_request_body_size=options.max_body_bytes,
            max_sessions=None,
            session_idle_timeout=None,
        )
        self._calls = self._manager.calls = calls
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """By id, the one used longest ago first."""
        self._owned: dict[Owner, OrderedDict[str, None]] = {}
        """The ids of each caller's sessions, in the same order."""
        self._unused: OrderedDict[str, None] = OrderedDict()
        """The ids of those that are awake and were not used yet, the oldest first."""
        self._opening: Counter[Owner] = Counter()
        """Places that each caller has taken for sessions that are being opened."""
        self._refused = RateLimitedLog(logger, "%d sessions were refused: there are too many (http.max_sessions)")
        self._evicted = RateLimitedLog(
            logger, "%d idle sessions were closed to make room (http.max_sessions_per_caller)"
        )

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Hold sessions, which end with this context."""
        async with self._manager.run(), anyio.create_task_group() as group:
            group.start_soon(self._sweep_regularly)
            try:
                yield
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._end_all()

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of a session, one that opens a session, or one without a session."""
        session_id = _header(scope, SESSION_HEADER)
        if session_id is not None:
            await self._serve(session_id, scope, receive, send)
        else:
            await self._open(scope, receive, send)

    async def handle_stateless(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of a client of 2026-07-28, which has no session."""
        await self._manager.handle_request(scope, receive, send)

    def end_streams(self) -> None:
        """End the event streams that clients opened with a GET; the sessions stay."""
        for transport in tuple(self._manager._server_instances.values()):  # noqa: SLF001 - the SDK has no public way
            transport.close_standalone_sse_stream()

    async def _serve(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        if self._replicas is not None:
            if scope["method"] == "DELETE" and self._replicas.unseal(session_id, request_caller(scope)) is not None:
                await self._replicas.end_session(session_id)
            if session_id not in self._sessions and not await self._continue(self._replicas, session_id, scope):
                await self._refuse(scope, receive, send)
                return
        session = self._sessions.get(session_id)
        if session is not None and session.is_dormant:
            if await self._answered_dormant(session_id, session, scope, receive, send):
                return
            await self._wake(session_id, session, scope)
            session = self._sessions.get(session_id)
        if session is None or session.is_dormant:
            await self._manager.handle_request(scope, receive, send)  # which says that there is no such session
            return
        self._unused.pop(session_id, None)
        transport = self._manager._server_instances.get(session_id)  # noqa: SLF001 - the SDK has no public way
        with self._in_use(session_id, session):
            if not await self._answered(session_id, transport, scope, receive, send):
                await self._manager.handle_request(scope, receive, send)

    def read_plain(
        self, session_id: str, caller: Caller, scope: Scope
    ) -> Callable[[SendEvent], Awaitable[PlainAnswer]] | None:
        """Read a call of a session that needs no layer of the app, and return what answers it; None for any other."""
        session = self._sessions.get(session_id)
        if session is None or self._calls is None or session.opening is None:
            return None
        owner = session.credential if session.is_dormant else self._manager._session_owners.get(session_id)  # noqa: SLF001 - as below
        message = self._calls.read_plain(scope) if owner == _credential_of(caller) else None
        if message is None:
            return None
        return partial(self._answer_plain, self._calls, session_id, session.opening, scope, message)

    async def _answer_plain(
        self,
        calls: SessionCalls,
        session_id: str,
        opening: Object,
        scope: Scope,
        message: JSONRPCRequest,
        send_event: SendEvent,
    ) -> PlainAnswer:
        session = self._sessions.get(session_id)
        if session is None or not (session.is_dormant or session_id in self._manager._server_instances):  # noqa: SLF001 - as below
            return PlainAnswer(HTTPStatus.NOT_FOUND, _NOT_FOUND)  # it has just ended
        with self._in_use(session_id, session):
            return await calls.answer_plain(session_id, opening, scope, message, send_event)

    @contextmanager
    def _in_use(self, session_id: str, session: _Session) -> Iterator[None]:
        """Let the session have one more request under way."""
        session.is_used, session.used = True, self._clock()
        self._sessions.move_to_end(session_id)
        self._owned[session.owner].move_to_end(session_id)
        session.requests += 1
        try:
            yield
        finally:
            session.requests -= 1
            session.used = self._clock()
            self._forget_ended(session_id)

    async def _answered_dormant(
        self, session_id: str, session: _Session, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer a request of a dormant session; false if it needs a transport, or may not use the session."""
        if self._calls is None or session.opening is None or session.credential != _credential(scope):
            return False
        if scope["method"] == "DELETE":
            end = self._forget_dormant(session_id, session)
            await respond(send, HTTPStatus.OK, session_id)
            await end()
            return True
        with self._in_use(session_id, session):
            return await self._calls.answer_dormant(session_id, session.opening, scope, receive, send)

    async def _answered(
        self,
        session_id: str,
        transport: StreamableHTTPServerTransport | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> bool:
        """Answer a request that needs nothing of its transport; false for any other."""
        if self._calls is None or transport is None or scope["method"] != "POST":
            return False
        owner = self._manager._session_owners.get(session_id)  # noqa: SLF001 - the SDK has no public way
        return _credential(scope) == owner and await self._calls.answer(session_id, transport, scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._manager.handle_request(scope, receive, send)
            return
        first = await receive()  # the endpoint has read the whole body, so this is all of it

        async def receive_again() -> Message:
            nonlocal first
            message, first = first, {}
            return message or await receive()

        params = _initialize_params(first.get("body", b""))
        if params is None:
            await self._manager.handle_request(scope, receive_again, send)
            return
        if await self._opened_dormant(params, scope, receive_again, send):
            return
        open_session = self._manager.handle_request
        if self._replicas is not None:
            open_session = partial(self._open_as, self._new_id(params, scope))
        if not await self._open_reserved(open_session, params, scope, receive_again, send):
            await self._refuse(scope, receive_again, send)

    def _new_id(self, params: Object, scope: Scope) -> str:
        return uuid4().hex if self._replicas is None else self._replicas.seal(request_caller(scope), params)

    async def _opened_dormant(self, params: Object, scope: Scope, receive: Receive, send: Send) -> bool:
        """Open a session without a transport; false if it needs one, or if there is no room for it."""
        kept, owner = _kept_opening(params), owner_of(scope)
        if self._calls is None or self._dormant is None or kept is None or not await self._reserve(owner):
            return False
        session_id = self._new_id(params, scope)
        try:
            opened = await self._calls.open(session_id, scope, receive)
        finally:
            self._release(owner)
        if opened is None:
            return False
        self._note(session_id, _Session(owner, kept, self._clock(), is_dormant=True, credential=_credential(scope)))
        self._dormant.begun(session_id, opened.end)
        await respond(send, HTTPStatus.OK, session_id, opened.answer)
        return True

    def _note(self, session_id: str, session: _Session) -> None:
        self._sessions[session_id] = session
        self._owned.setdefault(session.owner, OrderedDict())[session_id] = None

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._refused.add()
        if self._report is not None:
            self._report(request_caller(scope), "initialize", _TOO_MANY)
        await error_response(503, _TOO_MANY)(scope, receive, send)

    async def _open_reserved(
        self, open_session: ASGIApp, params: Object, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Open a session with a request, and count it; false if there is no room for it."""
        owner = owner_of(scope)
        if not await self._reserve(owner):
            return False
        opened, session = "", None

        async def send_noted(message: Message) -> None:
            nonlocal opened, session
            if message["type"] == "http.response.start":
                opened = _header(message, SESSION_HEADER) or ""
                if opened in self._manager._server_instances:  # noqa: SLF001 - as above
                    self._release(owner)
                    session = _Session(owner, _kept_opening(params), self._clock(), requests=1)
                    self._note(opened, session)
                    self._unused[opened] = None
            await send(message)

        try:
            await open_session(scope, receive, send_noted)
        finally:
            if session is None:
                self._release(owner)
            else:
                session.requests -= 1
            self._forget_ended(opened)
        while len(self._unused) > _MAX_UNUSED:
            await self._rest(self._unused.popitem(last=False)[0])
        return True

    async def _continue(self, replicas: Replicas, session_id: str, scope: Scope) -> bool:
        """Continue here a session that another process opened, if its id is valid; false if there is no room."""
        params = replicas.unseal(session_id, request_caller(scope))
        if params is None:
            return True  # the SDK says that there is no such session
        lock = self._continuing.setdefault(session_id, anyio.Lock())
        try:
            async with lock:
                if session_id in self._sessions or await replicas.has_ended(session_id):
                    return True
                opening = {"jsonrpc": "2.0", "id": "continued", "method": "initialize", "params": params}
                open_session = partial(self._open_as, session_id)
                if not await self._open_reserved(open_session, params, *_own_post(scope, None, opening)):
                    return False
                await self._manager.handle_request(*_own_post(scope, session_id, _INITIALIZED))
                logger.info("a session goes on in this process")
                return True
        finally:
            self._continuing.pop(session_id, None)

    # -- dormant sessions --------------------------------------------------------------------------------------------

    async def _sweep_regularly(self) -> None:
        while True:
            await anyio.sleep(min(_SWEEP_S, self._options.session_idle_s / 2))
            try:
                await self._sweep()
            except Exception:
                logger.exception("idle sessions could not be closed")

    async def _sweep(self) -> None:
        """Let sessions rest that are idle, and end those that were not used for too long."""
        now = self._clock()
        for session_id, session in tuple(self._sessions.items()):
            idle_s = now - session.used
            if session.requests:
                continue
            if idle_s >= self._idle_timeout(session):
                logger.info("a session reached its idle timeout")
                await self._end(session_id)
            elif idle_s >= _AWAKE_S:
                if self._calls is not None:
                    self._calls.forget(session_id)
                await self._rest(session_id)

    def _idle_timeout(self, session: _Session) -> float:
        most = self._options.session_idle_s
        return most if session.is_used else min(_FIRST_USE_S, most)

    async def _rest(self, session_id: str) -> None:
        """Close the transport of a session, unless something in it would be lost."""
        session = self._sessions.get(session_id)
        transport = self._manager._server_instances.get(session_id)  # noqa: SLF001 - as above
        if session is None or transport is None or session.requests or session.opening is None:
            return
        if self._dormant is None or not self._dormant.may_rest(session_id):
            return
        session.credential = self._manager._session_owners.get(session_id)  # noqa: SLF001 - as above
        session.is_dormant = True
        self._unused.pop(session_id, None)
        self._dormant.rest(session_id)
        await self._manager._discard_session(session_id, transport)  # noqa: SLF001 - as above

    async def _wake(self, session_id: str, session: _Session, scope: Scope) -> None:
        """Open a dormant session again for a request, if that has the credential with which it was opened."""
        if session.credential != _credential(scope):
            return
        lock = self._continuing.setdefault(session_id, anyio.Lock())
        session.requests += 1
        try:
            async with lock:
                if not session.is_dormant or session_id not in self._sessions or self._dormant is None:
                    return
                end = self._dormant.wake(session_id)
                opening = {"jsonrpc": "2.0", "id": "woken", "method": "initialize", "params": session.opening}
                try:
                    await self._open_as(session_id, *_own_post(scope, None, opening))
                    await self._manager.handle_request(*_own_post(scope, session_id, _INITIALIZED))
                finally:
                    session.is_dormant = False  # from now on, other requests do not wait here
                if self._forget_ended(session_id) and end is not None:
                    await end()
        finally:
            session.requests -= 1
            self._continuing.pop(session_id, None)

    # -- the places of sessions --------------------------------------------------------------------------------------

    async def _open_as(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a session under this id, as the SDK does under a random one."""
        manager = self._manager
        transport = StreamableHTTPServerTransport(mcp_session_id=session_id, is_json_response_enabled=True)
        credential = _credential(scope)
        if credential is not None:
            manager._session_owners[session_id] = credential  # noqa: SLF001 - the SDK has no public way
        manager._server_instances[session_id] = transport  # noqa: SLF001 - as above
        await manager._serve_opening_request(transport, scope, receive, send)  # noqa: SLF001 - as above

    async def _reserve(self, owner: Owner) -> bool:
        """Take a place for a session of the caller, once its own oldest idle ones are closed if need be.

        Returns false if there is none. Otherwise `_release` gives it back.
        """
        while not self._has_room(owner):
            own = self._owned.get(owner, OrderedDict())
            idle = next((session_id for session_id in own if not self._sessions[session_id].requests), None)
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
        while owner in self._owned and self._forget_ended(next(iter(self._owned[owner]))):
            pass
        if len(self._owned.get(owner, ())) + self._opening[owner] >= self._options.max_sessions_per_caller:
            return False
        opening = self._opening.total()
        if len(self._sessions) + opening < self._options.max_sessions:
            return True
        for session_id in tuple(self._sessions):
            self._forget_ended(session_id)
        return len(self._sessions) + opening < self._options.max_sessions

    def _forget_ended(self, session_id: str) -> bool:
        """Forget a session if the SDK has ended it. Returns whether it is gone."""
        if session_id in self._manager._server_instances:  # noqa: SLF001 - as above
            return False
        session = self._sessions.get(session_id)
        if session is not None and session.is_dormant:
            return False
        session = self._sessions.pop(session_id, None)
        self._unused.pop(session_id, None)
        if session is not None:
            own = self._owned[session.owner]
            del own[session_id]
            if not own:
                del self._owned[session.owner]
        return True

    async def _end(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.is_dormant:
            await self._forget_dormant(session_id, session)()
        transport = self._manager._server_instances.get(session_id)  # noqa: SLF001 - as above
        if transport is not None:
            await self._manager._discard_session(session_id, transport)  # noqa: SLF001 - as above
        self._forget_ended(session_id)

    def _forget_dormant(self, session_id: str, session: _Session) -> EndSession:
        """Forget a dormant session, so that no request finds it any more. Returns what ends it."""
        session.is_dormant = False
        self._forget_ended(session_id)
        if self._calls is not None:
            self._calls.end(session_id)
        return _nothing if self._dormant is None else partial(self._dormant.end, session_id)

    async def _end_all(self) -> None:
        for number, session_id in enumerate(tuple(self._sessions)):
            await self._end(session_id)
            if number % _SESSIONS_PER_STEP == 0:
                await anyio.lowlevel.checkpoint()


async def _nothing() -> None:
    """End nothing."""


def _credential(scope: Scope) -> AuthorizationContext | None:
    """What alone may use a session that is opened by this request."""
    user = scope.get("user")
    return authorization_context(user) if isinstance(user, AuthenticatedUser) else None


@lru_cache(maxsize=1024)
def _credential_of(caller: Caller) -> AuthorizationContext | None:
    """The same for a caller who has authenticated with a token of the settings, or need not."""
    return None if caller is LOCAL else authorization_context(sdk_user(caller))


def _initialize_params(body: bytes) -> Object | None:
    """The `params` of the request that opens a session; None for another body."""
    try:
        message = from_json(body, cache_strings="keys")
    except ValueError:
        return None
    if not isinstance(message, dict) or message.get("method") != "initialize":
        return None
    params = message.get("params")
    return params if isinstance(params, dict) else {}


def _kept_opening(params: Object) -> Object | None:
    """What is needed of the `params` to open the session again."""
    known = {key: params[key] for key in ("protocolVersion", "capabilities", "clientInfo") if key in params}
    return known if len(to_json(known)) <= _MAX_OPENING_BYTES else None


_INITIALIZED: Final[Object] = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def _own_post(scope: Scope, session_id: str | None, message: Object) -> tuple[Scope, Receive, Send]:
    """A request of our own in the name of the client, whose answer is dropped."""
    headers = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
    if session_id is not None:
        headers.append((SESSION_HEADER.encode(), session_id.encode("latin-1")))

    async def receive() -> Message:
        return {"type": "http.request", "body": to_json(message), "more_body": False}

    async def send(message: Message) -> None: ...

    return {**scope, "method": "POST", "headers": headers}, receive, send


def _header(message: Message | Scope, name: str) -> str | None:
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in message["headers"] if key.lower() == wanted), None)
