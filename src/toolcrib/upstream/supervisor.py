"""The state of one server, and the task that keeps it connected.

Only this task opens and closes connections. Calls come from other tasks, use the open connection, and may wake it up.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Any, Final

import anyio

from toolcrib.protocol.failures import ExchangeError, FailureKind, is_login_needed
from toolcrib.protocol.negotiation import ClosedOnDiscover, Handshake
from toolcrib.protocol.versions import is_modern
from toolcrib.types import Caller, Context, Object, Rejected, ServerState, ServerStatus, SessionClient, Tool
from toolcrib.upstream.catalog.cache import CatalogCache, ServerCatalog, ToolDefinitions
from toolcrib.upstream.catalog.listing import DocumentLister, ToolList, ToolLister
from toolcrib.upstream.catalog.pins import PinWatch
from toolcrib.upstream.connection import ServerConnection, open_connection
from toolcrib.upstream.forwarding import LogForwarder, ServerMessages
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.remote_server import Listeners, Logins, StatusStore
from toolcrib.upstream.session_connections import SessionConnections, passed_capabilities, shared_capabilities
from toolcrib.upstream.subscriptions import UpstreamSubscriptions
from toolcrib.upstream.transport_choice import open_transport
from toolcrib.upstream.transports.base import AutoResetEvent, Transport, flatten_errors

logger = logging.getLogger(__name__)

_DRAIN_TIMEOUT_S: Final = 1.0
"""For the calls of a lost session to fail."""
_RENEW_TIMEOUT_S: Final = 5.0
"""For a moment without calls; without one, the session is kept."""
_TRIES_IN_SESSION: Final = 3
_MIN_RETRY_S: Final = 0.01
_STARTING: Final = (ServerState.CONFIGURED, ServerState.IDLE, ServerState.CONNECTING)
"""Before the first attempt has ended."""
_RANDOM: Final = SystemRandom()
_LOGIN_RETRY_S: Final = 300.0
"""After which a server that needed a login is tried again without one."""
_UNUSABLE: Final = {
    ServerState.DEGRADED: "is degraded",
    ServerState.FAILED: "has failed",
    ServerState.NEEDS_LOGIN: "is not connected",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttemptResult:
    """How an attempt to connect, and the connection if there was one, ended."""

    reason: str
    lasted_s: float = 0.0
    """How long the connection was ready; 0 if it never was."""
    reconnect: bool = False
    closed_on_discover: bool = False
    """Whether the server closed the connection on `server/discover`."""
    needs_login: bool = False
    retry_after_s: float = 0.0
    """How long the server asks to wait."""


class Supervisor:
    """The state of one server, and the task that keeps it connected."""

    def __init__(
        self,
        options: ServerOptions,
        fleet: FleetOptions,
        cache: CatalogCache | None = None,
        logins: Logins | None = None,
    ) -> None:
        """Nothing is tried before `run`."""
        if options.target is not None:
            from toolcrib.upstream.targets import resolve_target

            options = resolve_target(options)
        self._options = options
        self._fleet = fleet
        self._logins = logins
        self._redact = Redactor(options)
        self._lister = ToolLister(options, fleet)
        self.connection: ServerConnection | None = None
        """The connection, while it is open."""
        self._may_connect = not options.problem
        own_s = options.retry_interval_s
        self._first_s = fleet.backoff_first_s if own_s is None else max(own_s, _MIN_RETRY_S)
        self._has_catalog = False
        """Whether there are lists of this run or of an earlier one."""
        self._catalog = ServerCatalog(cache, options)
        self.pins = PinWatch(None if cache is None else cache.pins, options, self._tools_marked)
        self._may_reject_discover = True
        """Whether `server/discover` may be the reason for a server to close the connection."""
        self._wake_event = AutoResetEvent()
        self._listed_at: float | None = None
        """When the tools were last read, in seconds since the epoch."""
        self.tool_list = ToolList()
        """The tools as last read; kept while the server is away."""
        self.status_store = StatusStore(
            ServerStatus(
                name=options.name,
                namespace=options.namespace or "",
                state=ServerState.CONFIGURED,
                since=time.time(),
                transport=options.transport,
            )
        )
        self.document_lister = DocumentLister(options, fleet, self._documents_changed, self.pins.hold_documents)
        self.subscriptions = UpstreamSubscriptions(options.name, fleet.listen_retry_s)
        self.logs = LogForwarder(options.name, self._redact, namespace=options.namespace)
        self.sessions = SessionConnections(options, fleet, self._redact, self.logs, self._open_transport)
        self._asked_client: Object = {}
        """The capabilities of the only client of a program, which it may ask."""
        self._reopens = False
        """Whether the connection is being opened again on purpose: until it is ready, or the attempt has failed."""
        self.found_changes = Listeners()
        """Notified when its list of tools was found to be another one, unless another process has said so."""
        self._expects_changes = False
        """Whether another process has found that its lists changed."""
        self._listed_reason = ""
        """What the last list of tools gives to say."""
        self.given_up = False
        """Whether it has failed for good, after the options' `retries`."""

    # -- for calls -------------------------------------------------------------------------------------------------

    async def wait_connected(self) -> ServerConnection | None:
        """Return the connection; waits a while for it if it is likely to come: at first, and after a loss."""
        if self.connection is not None:
            return self.connection
        self.wake()
        status = self.status_store.status
        first_start = status.cached and not status.hung and status.state in _STARTING
        wait_s = self._options.call_timeout_s
        if not first_start:
            wait_s = min(self._fleet.connect_wait_s, wait_s)
        with anyio.move_on_after(wait_s):
            await self.status_store.wait_until(lambda: self.connection is not None or not self._may_connect)
        return self.connection

    def expect_login(self) -> None:
        """Have calls wait for a connection again, because a person has just logged in."""
        self._may_connect = self._may_connect or self.status_store.status.state is ServerState.NEEDS_LOGIN

    def record_caller(self, ctx: Context) -> None:
        """Remember that this caller uses the shared connection."""
        if self.connection is not None:
            self.connection.messages.record_caller(ctx)

    async def declare_client(self, ctx: Context) -> None:
        """Open a program of an older version again for its first client, if it can be asked something.

        Older versions declare capabilities once, and some programs offer more tools to a client that has them. Nothing
        is lost: no client has used the connection yet.
        """
        await self.status_store.wait_until(lambda: not self._reopens)  # for another request
        shared, client = self.connection, ctx.client
        if shared is None or shared.protocol.modern or shared.messages.is_used or client is None:
            return
        if not self._declares_client or ctx.session is None or not isinstance(client, SessionClient):
            return
        declared = passed_capabilities(client)
        if not declared or declared == self._asked_client:
            return
        self._asked_client, self._reopens = declared, True
        shared.transport.closed.set("it is opened again with the capabilities of its client", reconnect=True)
        await self.status_store.wait_until(lambda: not self._reopens)

    @property
    def _declares_client(self) -> bool:
        options = self._options
        is_program = options.transport == "stdio" and self._fleet.find_programs is None
        return is_program and options.asks is None and options.sessions is None

    def roots_changed(self, ctx: Context) -> None:
        """Notify the server that the roots of the context's session changed, if it can ask that session for them."""
        self.sessions.roots_changed(ctx)
        shared = self.connection
        if shared is None or shared.protocol.modern or not isinstance(ctx.client, SessionClient):
            return
        if shared.messages.may_ask and shared.messages.recipient == (ctx.caller, ctx.session):
            shared.messages.roots_client = ctx.client
            self.sessions.start_soon(shared.notify_roots_changed)

    def report_unreachable(self, reason: str) -> None:
        """Handle a call that could not be sent: update the status, and list again, which detects the server's
        return.
        """
        connection = self.connection
        if connection is not None and self.status_store.status.state is ServerState.READY:
            self._set_unusable(reason, retry_at=None)
            connection.transport.refresh_needed.set()
            self.wake()

    def list_again(self) -> None:
        """List again soon, because another process has found that the lists changed."""
        if self.connection is not None:
            self._expects_changes = True
            self.connection.transport.refresh_needed.set()

    def wake(self) -> None:
        """Cut the current pause short, because a caller wants the server."""
        self._wake_event.set()

    def revive(self) -> bool:
        """Try a server again that was given up. Returns whether it was."""
        if not self.given_up:
            return False
        self._may_connect, self.given_up = True, False
        self.status_store.update(ServerState.DEGRADED if self._has_catalog else ServerState.CONFIGURED)
        return True

    # -- the task --------------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Take over the catalog of an earlier run, if it is known. To be called before `run`."""
        stored = await self._catalog.load()
        if stored is None:
            return
        known: dict[str, Any] = {"hung": stored.hung}
        if stored.tools is not None:
            self.tool_list = await self._lister.restore(
                stored.tools, modern=is_modern(stored.protocol), tasks=stored.tasks
            )
            self._catalog.restored(self.tool_list.definitions, stored)
            self.tool_list = replace(self.tool_list, definitions=ToolDefinitions())
            self._listed_at, self._has_catalog = stored.read_at, True
            known |= {"cached": True, "as_of": stored.read_at, "protocol": stored.protocol, "info": stored.info}
            held = tuple(one for one in stored.rejected if one.held)
            known |= {"tools": len(self.tool_list.tools), "rejected": (*self.tool_list.rejected, *held)}
            known |= {"marked": self.tool_list.marked}
            if stored.tools and not self._options.delegate_search:
                known |= {"reason": _explain_no_tools(stored.tools, self.tool_list)}
        if stored.documents is not None:
            await self.document_lister.restore(stored.documents)
        complete = stored.tools is not None and stored.documents is not None
        on_demand = self._fleet.connect == "on_demand" and not self._options.delegate_search
        state = ServerState.IDLE if complete and on_demand else ServerState.CONFIGURED
        self.status_store.update(state, **known)

    async def run(self) -> None:
        """Connect, serve, and reconnect, until cancelled."""
        if self._options.problem:
            self.status_store.update(ServerState.FAILED, reason=self._options.problem)
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._catalog.run)
            group.start_soon(self.sessions.run)
            if self._logins is not None:
                group.start_soon(self._logins.maintain, self._options)
            await self._stay_connected()

    async def _stay_connected(self) -> None:
        failures = 0
        try:
            if self.status_store.status.state is ServerState.IDLE:
                await self._wake_event.wait()
            while True:
                result = await self._attempts()
                if self._reopens and result.lasted_s > 0:
                    continue
                self._reopens = False
                if result.needs_login and self._logins is not None:
                    await self._wait_login(self._logins, result.reason)
                    continue
                lasted = result.lasted_s > 0 and result.lasted_s >= self._fleet.stable_s
                failures = 1 if lasted else failures + 1
                at_once = result.reconnect and result.lasted_s >= self._first_s
                retries = self._options.retries
                if retries is not None and failures > retries and not at_once:
                    await self._give_up(result.reason, failures)
                    failures = 0
                    continue
                await self._pause(result.reason, 0.0 if at_once else self._backoff(failures), result.retry_after_s)
        finally:
            self.end()

    def end(self) -> None:
        """Refuse calls that wait for a connection, as none will come any more."""
        self._reopens = False
        if self._may_connect:
            self._may_connect = False
            self.status_store.update(ServerState.FAILED, reason="stopped", retry_at=None)

    async def _wait_login(self, logins: Logins, reason: str) -> None:
        """Wait for a login. Meanwhile calls are refused at once, and the last good tools stay listed."""
        self._may_connect = False
        self._set_unusable(reason, retry_at=None, state=ServerState.NEEDS_LOGIN)
        with anyio.move_on_after(_LOGIN_RETRY_S):
            await logins.wait_login(self._options)
        self._may_connect = True

    async def _give_up(self, reason: str, failures: int) -> None:
        """Stay failed until `revive`."""
        self._may_connect, self.given_up = False, True
        text = f"{reason}; given up after {failures} attempts" if failures > 1 else f"{reason}; not tried again"
        logger.warning("%s has failed: %s", self._options.name, text)
        self.status_store.update(ServerState.FAILED, reason=text, retry_at=None, **self._staleness())
        await self.status_store.wait_until(lambda: not self.given_up)

    async def _attempts(self) -> _AttemptResult:
        """Connect once, or twice if the server closed the connection on `server/discover`: then with the handshake
        only.

        A server that does not accept that either closes by itself, and is not tried that way again.
        """
        capabilities = self._asked_client or shared_capabilities(self._options)
        handshake = Handshake.of(self._options.protocol, capabilities=capabilities)
        result = await self._attempt(handshake)
        if result.closed_on_discover and self._may_reject_discover and handshake.initialize:
            self._may_connect = True
            result = await self._attempt(replace(handshake, discover=False))
            self._may_reject_discover = result.lasted_s > 0
        return result

    async def _attempt(self, handshake: Handshake) -> _AttemptResult:
        """Run one connection from beginning to end."""
        self._announce()
        transport = self._open_transport()
        reason, ready_at, closed_on_discover, needs_login, retry_after_s = "", None, False, False, 0.0
        messages = ServerMessages(
            self.logs, users="all", may_ask=self._options.asks is True or bool(self._asked_client)
        )
        timeout_reason = f"no answer to the handshake within {self._options.start_timeout_s:g} s"
        with anyio.CancelScope(deadline=anyio.current_time() + self._options.start_timeout_s) as limit:
            try:
                async with open_connection(
                    transport, self._options, self._fleet, self._redact, messages, handshake
                ) as connection:
                    limit.deadline = anyio.current_time() + self._options.list_timeout_s
                    timeout_reason = f"no tool list within {self._options.list_timeout_s:g} s"
                    # Errors are normal while negotiating with an older server; only signals from here on count.
                    transport.refresh_needed.clear()
                    tool_list = await self._read_tools(connection)
                    limit.deadline, ready_at = math.inf, anyio.current_time()
                    self._ready(connection, tool_list)
                    await self._serve(connection)
                    reason = transport.closed.reason
            except Exception as error:  # noqa: BLE001 - whatever ends a connection, another one is tried
                reason = reason or self._error_reason(error)
                needs_login = any(is_login_needed(cause) for cause in flatten_errors(error))
                retry_after_s = max(getattr(cause, "retry_after_s", 0.0) for cause in flatten_errors(error))
                closed_on_discover = any(isinstance(cause, ClosedOnDiscover) for cause in flatten_errors(error))
            finally:
                self._disconnected()
        if limit.cancelled_caught:
            if ready_at is None:
                self.status_store.update(self.status_store.status.state, hung=True)
                self._catalog.save_hung()
            detail = transport.stderr_tail()
            reason = f"{timeout_reason}; its last output: {detail}" if detail else timeout_reason
        lasted_s = anyio.current_time() - ready_at if ready_at is not None else 0.0
        self._may_connect = ready_at is not None
        return _AttemptResult(
            reason=reason or transport.closed.reason,
            lasted_s=lasted_s,
            reconnect=transport.closed.reconnect,
            closed_on_discover=closed_on_discover,
            needs_login=needs_login,
            retry_after_s=retry_after_s,
        )

    def _open_transport(self, caller: Caller | None = None) -> Transport:
        """Return a transport for requests with the tokens of this caller, or with those that all share."""
        tokens = None if self._logins is None else self._logins.credentials(self._options, caller)
        return open_transport(self._options, self._fleet, self._redact, tokens, is_shared=caller is None)

    def _announce(self) -> None:
        self._wake_event.clear()
        state = self.status_store.status.state
        self.status_store.update(ServerState.CONNECTING if state in _STARTING else state, retry_at=None)

    def _error_reason(self, error: Exception) -> str:
        """Return the reason in the error; empty if the transport knows better."""
        causes = list(flatten_errors(error))
        for cause in causes:
            if isinstance(cause, ExchangeError):
                return "" if cause.kind is FailureKind.CLOSED else cause.reason
        text = self._redact(f"{type(causes[0]).__name__}: {causes[0]}")
        logger.error("the connection to %s failed: %s", self._options.name, text)
        logger.debug("traceback", exc_info=error)
        return text

    async def _pause(self, reason: str, delay_s: float, least_s: float = 0.0) -> None:
        """Wait, with the reason in the status. A call may cut the wait short, but not below the first step, nor below
        what the server has asked for.
        """
        delay_s = max(delay_s, least_s)
        self._set_unusable(reason, retry_at=time.time() + delay_s)
        await self._sleep(delay_s, least_s)

    def _set_unusable(self, reason: str, *, retry_at: float | None, state: ServerState | None = None) -> None:
        """Update the status to failed or degraded, unless it is another state; a new reason is logged."""
        state = state or (ServerState.DEGRADED if self._has_catalog else ServerState.FAILED)
        if (state, reason) != (self.status_store.status.state, self.status_store.status.reason):
            logger.warning("%s %s: %s", self._options.name, _UNUSABLE[state], reason)
        self.status_store.update(state, reason=reason, retry_at=retry_at, **self._staleness())

    def _staleness(self) -> dict[str, Any]:
        return {"stale": self._has_catalog, "as_of": self._listed_at if self._has_catalog else None}

    async def _sleep(self, delay_s: float, least_s: float = 0.0) -> None:
        earliest = anyio.current_time() + max(least_s, min(delay_s, self._first_s))
        with anyio.move_on_after(delay_s):
            await self._wake_event.wait()
            await anyio.sleep_until(earliest)

    def _backoff(self, failures: int) -> float:
        """Exponential, with up to half of the pause left to chance."""
        most = min(self._fleet.backoff_max_s, self._first_s * 2.0 ** min(max(failures - 1, 0), 32))
        return _RANDOM.uniform(most / 2, most)

    # -- while it is ready -----------------------------------------------------------------------------------------

    def _ready(self, connection: ServerConnection, tool_list: ToolList) -> None:
        if not connection.transport.closed.is_set:
            self.connection = connection
            connection.transport.closed.on_set = self._disconnected
        self.sessions.attach(modern=connection.protocol.modern, extensions=connection.profile.extensions)
        self.document_lister.attach(connection)
        if self.document_lister.documents is not None:
            self._catalog.save_documents(self.document_lister.documents)
        self.subscriptions.attach(connection)
        had_catalog = self._has_catalog
        self._may_connect = self._has_catalog = True
        self._reopens = False
        logger.debug(
            "%s lists %d tools, protocol %s", self._options.name, len(tool_list.tools), connection.protocol.version
        )
        if self._adopt(connection, tool_list) and had_catalog:
            self.found_changes.notify()

    def _disconnected(self) -> None:
        self.connection = None

    async def _read_tools(self, connection: ServerConnection) -> ToolList:
        """Read the tool list; where changes are held, with the trusted versions in place of changed ones."""
        tool_list = await self._lister.read(connection, self.tool_list.by_name)
        if not self.pins.holds:
            return tool_list
        entries = tool_list.definitions.entries
        review = await self.pins.hold(entries, connection.info.instructions, complete=not tool_list.problem)
        if not review.changes:
            return tool_list
        held = await self._lister.restore(
            review.held_entries(entries), modern=connection.protocol.modern, tasks=tool_list.definitions.tasks
        )
        rejected = (*held.rejected, *review.rejections(self._options.name))
        return replace(held, rejected=rejected, problem=tool_list.problem)

    def _documents_changed(self) -> None:
        if self.document_lister.documents is not None:
            self._catalog.save_documents(self.document_lister.documents)
            self.pins.documents_listed(self.document_lister.documents)
        state = self.status_store.status.state
        self.status_store.update(
            state,
            tools_changed=True,
            rejected=(*self.tool_list.rejected, *self.pins.rejections()),
            **({"reason": self._reason()} if state is ServerState.READY else {}),
        )

    def _tools_marked(self) -> None:
        self.status_store.update(self.status_store.status.state, marked=self._marked())

    def _marked(self) -> tuple[Rejected, ...]:
        """The tools in use that an operator should know of."""
        return (*self.tool_list.marked, *self.pins.marks)

    def _adopt(self, connection: ServerConnection, tool_list: ToolList) -> bool:
        """Take the tool list over. Returns whether anything in it is new."""
        changed = not _same_tools(self.tool_list.tools, tool_list.tools)
        if not tool_list.problem:
            info = self.pins.in_use(connection.info)
            self._catalog.save_tools(tool_list.definitions, connection.protocol.version, info)
            self.pins.listed(tool_list.definitions.entries, connection.info.instructions)
        self._listed_reason = tool_list.problem or self._explain_nothing(connection, tool_list)
        # The definitions are in the cache, and not needed here any longer.
        self.tool_list = replace(tool_list, definitions=ToolDefinitions())
        self._listed_at = time.time()
        self.status_store.update(
            ServerState.DEGRADED if tool_list.problem else ServerState.READY,
            tools_changed=changed,
            reason=self._reason(),
            tools=len(tool_list.tools),
            rejected=(*tool_list.rejected, *self.pins.rejections()),
            marked=self._marked(),
            stale=False,
            cached=False,
            as_of=None,
            hung=False,
            protocol=connection.protocol.version,
            sessions=self.sessions.rule.sessions,
            sessions_why=self.sessions.rule.why,
            info=self.pins.in_use(connection.info),
            retry_at=None,
        )
        return changed

    def _reason(self) -> str:
        """What to say of a server that is connected; empty if all is as it should be."""
        notes = [note for note in (self.tool_list.note, self.document_lister.note) if note]
        return self._listed_reason or (f"connected, but {'; '.join(notes)}" if notes else "")

    def _explain_nothing(self, connection: ServerConnection, tool_list: ToolList) -> str:
        """Say why a server offers nothing although it is connected; empty if it offers something."""
        if self._options.delegate_search or self.document_lister.may_have(connection):
            return ""
        why = _explain_no_tools(tool_list.definitions.entries, tool_list)
        return f"connected, but {why}" if why else ""

    async def _serve(self, connection: ServerConnection) -> None:
        """Keep the lists current until the connection ends."""
        async with anyio.create_task_group() as group:
            if connection.can_subscribe:
                group.start_soon(connection.follow_list_changes, self._fleet.listen_retry_s)
            group.start_soon(self._keep_current, connection)
            group.start_soon(self.pins.run, connection.list_again)
            group.start_soon(self.document_lister.maintain, connection)
            group.start_soon(self.subscriptions.maintain, connection)
            await connection.transport.closed.wait()
            group.cancel_scope.cancel()
        if connection.transport.closed.reconnect:
            # Let the other calls of the lost session fail first; they can then be retried, since they did not run.
            with anyio.move_on_after(_DRAIN_TIMEOUT_S):
                await connection.wait_idle()

    async def _keep_current(self, connection: ServerConnection) -> None:
        """List again when needed: debounced, ever less often while nothing changes, backing off on failure."""
        gap_s, failures = self._fleet.refresh_gap_s, 0
        while True:
            quiet_since = anyio.current_time()
            await connection.transport.refresh_needed.wait()
            await anyio.sleep(self._fleet.debounce_s)
            connection.transport.refresh_needed.clear()
            self._wake_event.clear()
            problem, changed, retry_after_s = await self._refresh(connection)
            if problem:
                failures += 1
                await self._pause(problem, self._backoff(failures), retry_after_s)
                connection.transport.refresh_needed.set()
            if self._may_need_session(connection, failures, problem):
                await self._renew(connection)
            if problem:
                continue
            failures = 0
            quiet = anyio.current_time() - quiet_since > 2 * gap_s
            gap_s = self._fleet.refresh_gap_s if changed or quiet else min(2 * gap_s, self._fleet.backoff_max_s)
            await self._sleep(gap_s)

    def _may_need_session(self, connection: ServerConnection, failures: int, problem: str) -> bool:
        """Whether to open a new session: after trouble, and where the list fails again and again in the old one, which
        the server may have forgotten without saying so.
        """
        has_session = self._options.transport == "http" and not connection.protocol.modern
        return has_session and (failures % _TRIES_IN_SESSION == 0 if problem else bool(failures))

    async def _renew(self, connection: ServerConnection) -> None:
        """Reconnect after trouble, between two calls: the stream of notifications may be gone for good."""
        with anyio.move_on_after(_RENEW_TIMEOUT_S):
            await connection.wait_idle()
            connection.transport.closed.set("reconnecting", reconnect=True)

    async def _refresh(self, connection: ServerConnection) -> tuple[str, bool, float]:
        """List again. Returns why that failed, whether anything changed, and how long the server asks to wait."""
        try:
            with anyio.fail_after(self._options.list_timeout_s):
                fresh = await self._read_tools(connection)
        except ExchangeError as error:
            if error.kind is FailureKind.LOGIN:
                connection.transport.closed.set(error.reason, reconnect=True)
            return error.reason, False, error.retry_after_s
        except TimeoutError:
            return f"no tool list within {self._options.list_timeout_s:g} s", False, 0.0
        if fresh.problem and not self.tool_list.problem:
            return fresh.problem, False, 0.0
        was_expected, self._expects_changes = self._expects_changes, False
        changed = self._adopt(connection, fresh)
        if changed and not was_expected:
            self.found_changes.notify()
        return "", changed, 0.0


def _explain_no_tools(definitions: Sequence[Any], tool_list: ToolList) -> str:
    """Say why none of the listed definitions is offered; empty if one is."""
    if tool_list.tools:
        return ""
    if tool_list.rejected:
        return "all of its tools were set aside"
    return "none of its tools is allowed by its settings" if definitions else "it offers no tools"


def _same_tools(old: tuple[Tool, ...], new: tuple[Tool, ...]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))
