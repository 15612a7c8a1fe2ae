"""Connections that single client sessions have to themselves, opened on demand, beside the one that all share.

The shared connection lists the tools and serves everybody. A server that keeps state for each client, or asks its
client questions, needs a connection for each session; which requests get one, `session_rule` decides.
"""

import logging
import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import anyio
import anyio.abc
from pydantic_core import to_json

from toolcrib.protocol.failures import INVALID_REQUEST, ExchangeError, FailureKind, RpcError, is_login_needed
from toolcrib.protocol.negotiation import Handshake, extensions_in, shares_extension
from toolcrib.protocol.versions import INPUT_REQUESTS
from toolcrib.types import Caller, Client, Context, Object, SessionClient
from toolcrib.upstream.connection import ServerConnection, open_connection
from toolcrib.upstream.forwarding import LogForwarder, ServerMessages, Users
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import Transport, flatten_errors

logger = logging.getLogger(__name__)

_SHARED_CAPABILITIES: Final[Object] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {"listChanged": True},
}
"""What a shared connection declares to a server that may ask."""
_RETRY_AFTER_S: Final = 60.0
"""Before a version is tried again that failed for another reason than a refusal."""
_LISTEN_TIMEOUT_S: Final = 1.0
"""How long the first request waits for the stream on which the server may ask."""
_NO_SESSIONS: Final = "it keeps no sessions for older clients, and could ask them nothing"
_MIN_WAIT_S: Final = 1.0
"""Between two looks at whether a connection in use has become idle."""


@dataclass(frozen=True, slots=True)
class SessionRule:
    """Which requests get a connection of their session."""

    sessions: Literal["", "shared", "client", "older", "asking", "caller"]
    """`older`: those of clients before 2026-07-28; `asking`: those of clients that a server can ask something. Empty
    before the server is connected.
    """
    why: str = ""


def session_rule(options: ServerOptions, *, modern: bool) -> SessionRule:
    """Return the rule for a server; `modern` is whether the shared connection speaks 2026-07-28 or later.

    >>> session_rule(ServerOptions(name="s", command="s", asks=True), modern=False)
    SessionRule(sessions='client', why='it may ask clients ("asks")')
    """
    if options.auth is not None and options.auth.for_each_caller:
        return SessionRule("caller", "each caller has tokens of their own")
    if options.sessions is not None:
        return SessionRule(options.sessions, "set in its entry")
    if modern and options.protocol == "auto" and options.transport != "custom":
        return SessionRule("older", "older clients keep a session with the server")
    if options.asks and not modern:
        return SessionRule("client", 'it may ask clients ("asks")')
    if options.asks is None and not modern and options.transport in ("http", "sse"):
        return SessionRule("asking", "it may ask clients that declare capabilities")
    return SessionRule("shared")


def shared_capabilities(options: ServerOptions) -> Object:
    """Return the client capabilities to declare on the connection that all clients share."""
    return _SHARED_CAPABILITIES if options.asks else {}


def asked_capabilities(client: Client | None) -> Object:
    """Return those of a client's capabilities by which a server of an older version can ask it something."""
    declared: Object = {}
    if client is not None:
        declared = client.declared if isinstance(client, SessionClient) else client.capabilities
    return {name: declared[name] for name in INPUT_REQUESTS.values() if name in declared}


def passed_capabilities(client: Client | None, *, asks: bool = True) -> Object:
    """Return the capabilities that a server of an older version learns of: those and, of extensions, all but tasks."""
    extensions = extensions_in({"extensions": client.extensions}) if isinstance(client, SessionClient) else {}
    return {**(asked_capabilities(client) if asks else {}), **({"extensions": extensions} if extensions else {})}


class SessionUnavailable(Exception):
    """There is no connection for a session. Nothing was sent."""

    def __init__(self, reason: str, *, needs_login: bool = False) -> None:
        """`reason` is one line without a full stop."""
        super().__init__(reason)
        self.reason = reason
        self.needs_login = needs_login


@dataclass(eq=False, slots=True)
class _SessionConnection:
    """One connection of a session, from its first request until it is closed."""

    key: Hashable
    caller: Caller
    """Who opened it."""
    transport: Transport
    messages: ServerMessages
    handshake: Handshake
    exclusive: bool
    """Whether it serves one request at a time, because its requests belong to no session."""
    ready: anyio.Event = field(default_factory=anyio.Event)
    """Set when it is connected, or has failed."""
    connection: ServerConnection | None = None
    failure: str = ""
    refused: bool = False
    """Whether the server answered, and refused the handshake."""
    needs_login: bool = False
    users: int = 0
    used_at: float = 0.0

    def release(self) -> None:
        self.users -= 1
        self.used_at = anyio.current_time()

    def is_of(self, caller: Caller) -> bool:
        """Whether this caller opened it."""
        return self.caller.key == caller.key

    @property
    def is_free(self) -> bool:
        return self.users == 0 and not self.transport.closed.is_set


class SessionLease(NamedTuple):
    """The use of a session's connection by one request."""

    connection: ServerConnection
    release: Callable[[], None]
    """To be called when the request has ended."""


class SessionConnections:
    """The connections of one server that belong to single sessions."""

    def __init__(
        self,
        options: ServerOptions,
        fleet: FleetOptions,
        redact: Redactor,
        logs: LogForwarder,
        open_transport: Callable[[Caller], Transport],
    ) -> None:
        self._options = options
        self._fleet = fleet
        self._redact = redact
        self._logs = logs
        self._open_transport = open_transport
        self._group: anyio.abc.TaskGroup | None = None
        self._entries: dict[Hashable, _SessionConnection] = {}
        self._modern = self.are_independent
        self.extensions: Mapping[str, Object] = {}
        """What the server declared when the shared connection was opened last."""
        self._fails_until = 0.0
        self.rule = session_rule(options, modern=False) if self.are_independent else SessionRule("")

    @property
    def are_independent(self) -> bool:
        """Whether each caller's connection can be opened while there is no shared one: it has tokens of its own."""
        return self._options.auth is not None and self._options.auth.for_each_caller

    def attach(self, *, modern: bool, extensions: Mapping[str, Object]) -> None:
        """Take over what the shared connection speaks, and the extensions that the server declares on it."""
        self._modern, self.extensions = modern, extensions
        self._fails_until = 0.0
        self.rule = session_rule(self._options, modern=modern)

    async def run(self) -> None:
        """Serve until cancelled; then close every connection."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                await anyio.sleep_forever()
            finally:
                self._group = None

    def start_soon(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Start a task that lasts as long as the server at most. Raises `SessionUnavailable`."""
        if self._group is None:
            raise SessionUnavailable("it is not running")
        self._group.start_soon(work, *arguments)

    # -- which requests --------------------------------------------------------------------------------------------

    def wants_own(self, ctx: Context) -> bool:
        """Whether the request gets a connection of its session."""
        if self.rule.sessions == "shared" or self._group is None:
            return False
        client = ctx.client
        if self.rule.sessions == "caller":
            return True
        if self.rule.sessions == "client":
            return ctx.session is not None or isinstance(client, SessionClient)
        has_failed = self._fails_until and anyio.current_time() < self._fails_until
        if has_failed or client is None or not isinstance(client, SessionClient):
            return False
        if self.rule.sessions == "asking":
            return bool(asked_capabilities(client)) or shares_extension(client, self.extensions)
        return self.rule.sessions == "older" and not client.is_modern and connection_key(ctx) is not None

    @property
    def falls_back(self) -> bool:
        """Whether the shared connection serves a request if there is no connection for its session."""
        return self.rule.sessions in ("older", "asking")

    # -- using -----------------------------------------------------------------------------------------------------

    async def lease(self, ctx: Context) -> "SessionLease":
        """Give the request its connection, opened if there is none. Raises `SessionUnavailable`."""
        entry = self._find(ctx)
        entry.users += 1
        entry.messages.record_caller(ctx)
        try:
            connection = await self._connected(entry)
            await connection.set_log_level(ctx)
        except BaseException:
            entry.release()
            raise
        return SessionLease(connection, entry.release)

    async def _connected(self, entry: _SessionConnection) -> ServerConnection:
        if not entry.ready.is_set():
            await entry.ready.wait()
        if entry.connection is None:
            self._note_failure(entry)
            raise SessionUnavailable(entry.failure, needs_login=entry.needs_login)
        return entry.connection

    def _find(self, ctx: Context) -> _SessionConnection:
        client, session = ctx.client, connection_key(ctx)
        is_modern = not isinstance(client, SessionClient) or client.is_modern
        if session is None:
            handshake = self._handshake(client, modern=is_modern)
            kind = (handshake.discover, to_json(handshake.capabilities))
            found = next((one for one in self._entries.values() if one.key == kind and one.is_free), None)
            return found or self._open(ctx, kind, handshake, exclusive=True)
        key = self._key(ctx, session)
        entry = self._entries.get(key)
        if entry is None or entry.transport.closed.is_set:
            entry = self._open(ctx, key, self._handshake(client, modern=is_modern), exclusive=False)
        return entry

    def _key(self, ctx: Context, session: tuple[Hashable, str | None, str | None]) -> Hashable:
        client, auth = ctx.client, self._options.auth
        is_modern = not isinstance(client, SessionClient) or client.is_modern
        return (*session, is_modern, "" if auth is None else auth.rights(ctx.caller.scopes))

    def _handshake(self, client: Client | None, *, modern: bool) -> Handshake:
        capabilities = passed_capabilities(client, asks=self._options.asks is not False)
        if self._options.protocol != "auto":
            return Handshake.of(self._options.protocol, capabilities=capabilities)
        return Handshake(discover=self._modern and modern, capabilities=capabilities)

    def _open(self, ctx: Context, key: Hashable, handshake: Handshake, *, exclusive: bool) -> _SessionConnection:
        self._make_room(ctx.caller)
        is_session = exclusive or ctx.session is not None or ctx.session_handle is not None
        users: Users = "session" if is_session else "caller"
        messages = ServerMessages(self._logs, users=users, may_ask=self._options.asks is not False)
        entry = _SessionConnection(key, ctx.caller, self._open_transport(ctx.caller), messages, handshake, exclusive)
        self.start_soon(self._serve, entry)
        self._entries[entry if exclusive else key] = entry
        return entry

    def _make_room(self, caller: Caller) -> None:
        """Close an idle connection if there are too many: of the same caller if it has one, and of another if not."""
        if len(self._entries) < self._fleet.max_sessions:
            return
        idle = [entry for entry in self._entries.values() if entry.users == 0]
        if not idle:
            raise SessionUnavailable(f"all {self._fleet.max_sessions} connections of its clients' sessions are in use")
        own = [entry for entry in idle if entry.is_of(caller)]
        now = anyio.current_time()
        first = min(own or idle, key=lambda entry: (entry.messages.tasks_until > now, entry.used_at))
        self._close(first, "its place was needed")

    def _note_failure(self, entry: _SessionConnection) -> None:
        if not self.falls_back or self._fails_until > anyio.current_time():
            return
        logger.info("%s serves all clients on its shared connection: %s", self._options.name, entry.failure)
        self._fails_until = math.inf if entry.refused else anyio.current_time() + _RETRY_AFTER_S

    # -- one connection --------------------------------------------------------------------------------------------

    async def _serve(self, entry: _SessionConnection) -> None:
        """Open the connection, and keep it until it ends or is idle."""
        options = self._options
        limit = anyio.CancelScope(deadline=anyio.current_time() + options.start_timeout_s)
        try:
            with limit:
                async with open_connection(
                    entry.transport, options, self._fleet, self._redact, entry.messages, entry.handshake
                ) as connection:
                    self._check_session(entry)
                    if entry.handshake.capabilities and not connection.protocol.modern:
                        with anyio.move_on_after(_LISTEN_TIMEOUT_S):
                            await entry.transport.wait_listening()
                    limit.deadline = math.inf
                    entry.connection, entry.used_at = connection, anyio.current_time()
                    entry.ready.set()
                    await self._wait_idle(entry)
        except Exception as error:  # noqa: BLE001 - whatever ends a connection, its requests get the reason
            entry.failure, entry.refused = self._reason(entry, error)
            entry.needs_login = any(map(is_login_needed, flatten_errors(error)))
        finally:
            if entry.connection is None and limit.cancel_called:
                entry.failure = f"no answer to the handshake within {options.start_timeout_s:g} s"
            self._close(entry, entry.failure or "it was closed")
            entry.failure = entry.failure or entry.transport.closed.reason
            entry.ready.set()

    def _check_session(self, entry: _SessionConnection) -> None:
        """Raise `ExchangeError` if a server of both eras could ask an older client nothing: it forgets each request."""
        if self.rule.sessions == "older" and not entry.transport.has_session:
            raise ExchangeError(FailureKind.ANSWER, _NO_SESSIONS, answer=RpcError(INVALID_REQUEST, _NO_SESSIONS))

    async def _wait_idle(self, entry: _SessionConnection) -> None:
        """Wait until the connection ends, or was not used for long; then no request gets it any more."""
        while not entry.transport.closed.is_set:
            now = anyio.current_time()
            idle_at = max(entry.used_at + self._fleet.session_idle_s, entry.messages.tasks_until)
            if entry.users == 0 and now >= idle_at:
                self._close(entry, "it was not used")
                return
            with anyio.move_on_at(idle_at if idle_at > now else now + _MIN_WAIT_S):
                await entry.transport.closed.wait()

    def _reason(self, entry: _SessionConnection, error: Exception) -> tuple[str, bool]:
        """Why the connection failed, and whether the server refused it."""
        causes = list(flatten_errors(error))
        known = next((cause for cause in causes if isinstance(cause, ExchangeError)), None)
        if known is None:
            return self._redact(f"{type(causes[0]).__name__}: {causes[0]}"), False
        closed = entry.transport.closed
        reason = closed.reason if known.kind is FailureKind.CLOSED and closed.is_set else known.reason
        return reason, known.kind is FailureKind.ANSWER and known.code is not None

    def _close(self, entry: _SessionConnection, reason: str) -> None:
        entry.transport.closed.set(reason)
        place = entry if entry.exclusive else entry.key
        if self._entries.get(place) is entry:
            del self._entries[place]

    # -- events of a session ---------------------------------------------------------------------------------------

    def roots_changed(self, ctx: Context) -> None:
        """Notify the server on the connections of the session that its client's roots changed.

        The context's client answers what the server then asks outside of any call.
        """
        for entry in self._of_session(ctx.caller, ctx.session):
            if "roots" in entry.handshake.capabilities and isinstance(ctx.client, SessionClient):
                entry.messages.roots_client = ctx.client
                self.start_soon(self._send_roots_changed, entry)

    async def _send_roots_changed(self, entry: _SessionConnection) -> None:
        with suppress(SessionUnavailable):
            await (await self._connected(entry)).notify_roots_changed()

    def end_session(self, caller: Caller, session: str) -> None:
        """Close the connections of a client's session that has ended."""
        for entry in self._of_session(caller, session):
            self._close(entry, "its client's session has ended")

    def _of_session(self, caller: Caller, session: str | None) -> list[_SessionConnection]:
        owner = (caller.key, session)
        return [one for one in self._entries.values() if isinstance(one.key, tuple) and one.key[:2] == owner]


def connection_key(ctx: Context) -> tuple[Hashable, str | None, str | None] | None:
    """Return what identifies the session of a request: caller, session, and the client's own name for it.

    None if two such requests may come from different clients: without a session and without authentication.
    """
    if ctx.session is None and ctx.session_handle is None and ctx.caller.is_local:
        return None
    return ctx.caller.key, ctx.session, ctx.session_handle
