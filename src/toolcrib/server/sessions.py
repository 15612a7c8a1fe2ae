"""Sessions of clients before 2026-07-28 over HTTP: how many each caller may have, and when an idle one is closed.

The SDK keeps the sessions. It counts them in all only, so that one caller could take every one.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio.lowlevel
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic_core import from_json, to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import ExecutionFailed
from toolcrib.server.asgi import error_response
from toolcrib.server.connections import RateLimitedLog
from toolcrib.server.context import SESSION_HEADER, request_caller
from toolcrib.server.options import HttpOptions
from toolcrib.server.replicas import Replicas
from toolcrib.types import LOCAL, Object

logger = logging.getLogger(__name__)

_FIRST_USE_S: Final = 60.0
"""How long a session lasts that was opened and not used, at most."""
_RETRY_AFTER_S: Final = 5
_SESSIONS_PER_STEP: Final = 50
"""Sessions ended at shutdown before others get a turn: the SDK's own way takes time in the square of their number."""
_TOO_MANY: Final = ExecutionFailed(
    "You have too many sessions in use, or all callers together have.",
    hint=f"Close one that is not needed, or try again in {_RETRY_AFTER_S} s.",
)

_Owner = tuple[str | None, str | None, str]
"""A caller: its tenant and id."""


@dataclass(slots=True)
class _Session:
    owner: _Owner
    requests: int = 0
    """Requests under way, of which an open stream is one."""


class SessionManager:
    """The SDK's session manager, with a share of the sessions for each caller."""

    def __init__(self, server: Server[Any], options: HttpOptions, replicas: Replicas | None = None) -> None:
        """`replicas` are the processes that serve the same address, if there may be others: they share the sessions."""
        self._options = options
        self._replicas = replicas
        self._continuing: dict[str, anyio.Lock] = {}
        """Of the sessions that are being continued here."""
        self._manager = StreamableHTTPSessionManager(
            server,
            json_response=True,
            max_request_body_size=options.max_body_bytes,
            max_sessions=None,
            session_idle_timeout=min(_FIRST_USE_S, options.session_idle_s),
        )
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """By id, the one used longest ago first."""
        self._owned: dict[_Owner, OrderedDict[str, None]] = {}
        """The ids of each caller's sessions, in the same order."""
        self._opening: Counter[_Owner] = Counter()
        """Places that each caller has taken for sessions that are being opened."""
        self._refused = RateLimitedLog(logger, "%d sessions were refused: there are too many (http.max_sessions)")
        self._evicted = RateLimitedLog(
            logger, "%d idle sessions were closed to make room (http.max_sessions_per_caller)"
        )

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Hold sessions, which end with this context."""
        async with self._manager.run():
            try:
                yield
            finally:
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
            if scope["method"] == "DELETE":
                await self._replicas.end_session(session_id)
            if session_id not in self._sessions and not await self._continue(self._replicas, session_id, scope):
                await self._refuse(scope, receive, send)
                return
        session = self._sessions.get(session_id)
        if session is None:
            await self._manager.handle_request(scope, receive, send)
            return
        self._sessions.move_to_end(session_id)
        self._owned[session.owner].move_to_end(session_id)
        transport = self._manager._server_instances.get(session_id)  # noqa: SLF001 - the SDK has no public way
        if transport is not None:
            transport._idle_timeout = self._options.session_idle_s  # noqa: SLF001 - it was opened with less
        session.requests += 1
        try:
            await self._manager.handle_request(scope, receive, send)
        finally:
            session.requests -= 1
            self._forget_ended(session_id)

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
        open_session = self._manager.handle_request
        if self._replicas is not None:
            session_id = self._replicas.seal(request_caller(scope), params)
            open_session = partial(self._open_as, session_id)
        if not await self._open_reserved(open_session, scope, receive_again, send):
            await self._refuse(scope, receive_again, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._refused.add()
        headers = {"Retry-After": str(_RETRY_AFTER_S)}
        await error_response(503, _TOO_MANY, headers=headers)(scope, receive, send)

    async def _open_reserved(self, open_session: ASGIApp, scope: Scope, receive: Receive, send: Send) -> bool:
        """Open a session with a request, and count it; false if there is no room for it."""
        owner = _owner(scope)
        if not await self._reserve(owner):
            return False
        opened, session = "", None

        async def send_noted(message: Message) -> None:
            nonlocal opened, session
            if message["type"] == "http.response.start":
                opened = _header(message, SESSION_HEADER) or ""
                if opened in self._manager._server_instances:  # noqa: SLF001 - as above
                    self._release(owner)
                    session = self._sessions[opened] = _Session(owner, requests=1)
                    self._owned.setdefault(owner, OrderedDict())[opened] = None
            await send(message)

        try:
            await open_session(scope, receive, send_noted)
        finally:
            if session is None:
                self._release(owner)
            else:
                session.requests -= 1
            self._forget_ended(opened)
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
                if not await self._open_reserved(open_session, *_own_post(scope, None, opening)):
                    return False
                done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                await self._manager.handle_request(*_own_post(scope, session_id, done))
                logger.info("a session goes on in this process")
                return True
        finally:
            self._continuing.pop(session_id, None)

    async def _open_as(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a session under this id, as the SDK does under a random one."""
        manager = self._manager
        transport = StreamableHTTPServerTransport(
            mcp_session_id=session_id, is_json_response_enabled=True, idle_timeout=manager.session_idle_timeout
        )
        user = scope.get("user")
        if isinstance(user, AuthenticatedUser):
            manager._session_owners[session_id] = authorization_context(user)  # noqa: SLF001 - the SDK has no public way
        manager._server_instances[session_id] = transport  # noqa: SLF001 - as above
        await manager._serve_opening_request(transport, scope, receive, send)  # noqa: SLF001 - as above

    async def _reserve(self, owner: _Owner) -> bool:
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

    def _release(self, owner: _Owner) -> None:
        self._opening[owner] -= 1
        if not self._opening[owner]:
            del self._opening[owner]

    def _has_room(self, owner: _Owner) -> bool:
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
        session = self._sessions.pop(session_id, None)
        if session is not None:
            own = self._owned[session.owner]
            del own[session_id]
            if not own:
                del self._owned[session.owner]
        return True

    async def _end(self, session_id: str) -> None:
        transport = self._manager._server_instances.get(session_id)  # noqa: SLF001 - as above
        if transport is not None:
            await self._manager._discard_session(session_id, transport)  # noqa: SLF001 - as above
        self._forget_ended(session_id)

    async def _end_all(self) -> None:
        for number, session_id in enumerate(tuple(self._sessions)):
            await self._end(session_id)
            if number % _SESSIONS_PER_STEP == 0:
                await anyio.lowlevel.checkpoint()


def _owner(scope: Scope) -> _Owner:
    """The caller of a request; its address if no caller has to authenticate."""
    caller = request_caller(scope)
    if caller is not LOCAL:
        return caller.key
    return None, None, f"{(scope.get('client') or [''])[0]}"


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
