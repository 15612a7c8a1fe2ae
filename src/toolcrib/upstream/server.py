"""One remote MCP server as a tool provider, and the task that keeps it connected.

Only the supervisor's task opens and closes connections. Calls come from other tasks, use the open connection, and may
wake the supervisor up.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import SystemRandom
from typing import Any, Final

import anyio
from pydantic_core import to_json

from toolcrib.errors import CallTimeout, ConnectionLost, ExecutionFailed, ServerUnavailable, UpstreamError
from toolcrib.types import (
    Context,
    Documents,
    LogAudience,
    Object,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
)
from toolcrib.upstream.channel import AutoResetEvent, Channel, ExchangeError, FailureKind, flatten_errors
from toolcrib.upstream.connection import ClosedOnDiscover, Connection, open_connection
from toolcrib.upstream.forwarding import LogForwarder, ServerRequests
from toolcrib.upstream.http import HttpNetwork, http_channel
from toolcrib.upstream.listing import DocumentLister, RemoteTool, ToolList, ToolLister
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.sse import sse_channel
from toolcrib.upstream.status import StatusStore
from toolcrib.upstream.stdio import stdio_channel
from toolcrib.upstream.subscriptions import UpstreamSubscriptions
from toolcrib.upstream.targets import resolve_command, target_channel, transport_name
from toolcrib.wire import read_document, read_result

logger = logging.getLogger(__name__)

_UNKNOWN_EFFECT: Final = "Whether the call took effect is unknown; check before repeating it."
_SESSION_FORGOTTEN: Final = "it does not know the session it has just opened"
_FIRST_RESEND_S: Final = 0.05
_MAX_RESEND_S: Final = 0.4
_MAX_ERROR_DATA_BYTES: Final = 8192
"""Larger `data` of a server's error is not passed on."""
_DRAIN_TIMEOUT_S: Final = 1.0
"""For the calls of a lost session to fail."""
_RENEW_TIMEOUT_S: Final = 5.0
"""For a moment without calls; without one, the session is kept."""
_MIN_RETRY_S: Final = 0.01
_RANDOM: Final = SystemRandom()


class UpstreamServer:
    """A `ToolProvider`, with `Changes`, `StatusSource` and `DocumentSource`.

    Its namespace is its name, unless the options give another.
    """

    def __init__(self, options: ServerOptions, fleet: FleetOptions, network: HttpNetwork) -> None:
        """Nothing is tried before `run`."""
        self.options = options
        self.gateway_id = fleet.gateway_id
        """The id of its fleet."""
        self._resend_s = fleet.resend_s
        self._supervisor = Supervisor(options, fleet, network)

    @property
    def name(self) -> str:
        """Unique within its fleet."""
        return self.options.name

    @property
    def namespace(self) -> str:
        """Namespace of its tools."""
        return self.options.namespace or self.options.name

    @property
    def status(self) -> ServerStatus:
        return self._supervisor.status_store.status

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools as last read. A tool whose definition did not change stays the same object."""
        return self._supervisor.tool_list.tools

    async def run(self) -> None:
        """Keep it connected until cancelled; then close everything it holds."""
        await self._supervisor.run()

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Its one status."""
        return (self.status,)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever its tools or its status changed."""
        return self._supervisor.status_store.listeners.add(callback)

    async def list_tools(self, ctx: Context) -> tuple[Tool, ...]:  # noqa: ARG002 - the same for every caller
        """Return its tools as last read, without a request to the server."""
        return self.tools

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run a tool by the server's own name for it, with one request. Returns None if there is no such tool.

        A result with `is_error` is returned, not raised. Raises `ServerUnavailable` (nothing ran), `CallTimeout`,
        `ConnectionLost` (unknown whether it ran), `UpstreamError`, and `InvalidArguments` for arguments that are not
        JSON.
        """
        offer = await self._offer(name)
        return None if offer is None else await self._run(ctx, offer, arguments, name)

    async def _offer(self, name: str) -> RemoteTool | None:
        """What is listed by that name. Raises `ServerUnavailable`."""
        if await self._supervisor.wait_connected() is None:
            raise self._unavailable()
        return self._supervisor.tool_list.by_name.get(name)

    async def _run(self, ctx: Context, offer: RemoteTool, arguments: Object, name: str) -> ToolResult:
        """One call within its deadline; `name` is the tool that an error tells of."""
        with anyio.move_on_after(self.options.call_timeout_s):
            return await self._call(ctx, offer, arguments)
        raise self._timeout(name)

    async def _call(self, ctx: Context, offer: RemoteTool, arguments: Object) -> ToolResult:
        raw = await self._exchange(ctx, lambda session: session.call(ctx, offer.tool.name, arguments, offer.header_map))
        if self.status.stale:
            self._supervisor.wake()
        return self._read(read_result, raw)

    async def _exchange(self, ctx: Context, work: Callable[[Connection], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """What the server answers to a caller."""
        self._supervisor.logs.record_caller(ctx)
        with self._supervisor.server_requests.track_call(ctx):
            return await self._answered(work)

    async def _answered(self, work: Callable[[Connection], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Asked again where nothing ran: once in a new session, where the server forgot the old one, and for a moment
        where it cannot be reached, since it may only restart.
        """
        forgotten, pauses = False, self._pauses()
        while True:
            try:
                return await work(await self._session())
            except ExchangeError as error:
                pause = next(pauses, None) if error.kind is FailureKind.UNSENT else None
                if pause is None and (forgotten or error.kind is not FailureKind.SESSION):
                    raise self._caller_error(error) from error
                forgotten = forgotten or error.kind is FailureKind.SESSION
            await anyio.sleep(pause or 0.0)

    def _pauses(self) -> Iterator[float]:
        """Yield the pauses between attempts to send, in seconds; none if the server has been away for long."""
        status = self.status
        left = self._resend_s - (0.0 if status.state is ServerState.READY else time.time() - status.since)
        pause = _FIRST_RESEND_S
        while left >= pause:
            left -= pause
            yield pause
            pause = min(2 * pause, _MAX_RESEND_S)

    async def _session(self) -> Connection:
        session = self._supervisor.connection or await self._supervisor.wait_connected()
        if session is None:
            raise self._unavailable()
        return session

    def _read(self, read: Callable[[dict[str, Any]], ToolResult], raw: dict[str, Any]) -> ToolResult:
        try:
            return read(raw)
        except UpstreamError as error:
            raise UpstreamError(f'"{self.name}": {error.message}', data={"server": self.name}) from error

    # -- prompts and resources -------------------------------------------------------------------------------------

    def documents(self) -> Documents | None:
        """Return its prompts and resources as last read; None before the first time."""
        return self._supervisor.document_lister.documents

    async def ask(self, ctx: Context, method: str, params: Object) -> ToolResult:
        """Return the whole result of a request about a prompt or a resource, as structured content.

        Raises as `call_tool` does.
        """
        with anyio.move_on_after(self.options.call_timeout_s):
            raw = await self._exchange(ctx, lambda session: session.request(ctx, method, params))
            return self._read(partial(read_document, method), raw)
        raise self._timeout(method)

    async def watch(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call back with the URI whenever the resource, or one below it, changed.

        Raises as `ask` does, and `UpstreamError` if the server does not support it.
        """
        with anyio.move_on_after(self.options.call_timeout_s):
            try:
                return await self._supervisor.subscriptions.add(
                    uri, callback, partial(self._supervisor.logs.record_caller, ctx)
                )
            except ExchangeError as error:
                raise self._caller_error(error) from error
        raise self._timeout("resources/subscribe")

    def hear(self, callback: Callable[[LogAudience | None, Object], None]) -> Unsubscribe:
        """Call back with each log message and its recipient, if that is certain."""
        return self._supervisor.logs.subscribe(callback)

    # -- errors ----------------------------------------------------------------------------------------------------

    def _unavailable(self, reason: str = "") -> ServerUnavailable:
        status = self.status
        reason = reason or status.reason or "it is still connecting"
        # How long it was ready says nothing about a server that is unavailable now.
        lasting = f" ({status.state.value} for {_duration(time.time() - status.since)})"
        since = "" if status.state is ServerState.READY else lasting
        return ServerUnavailable(
            f'The server "{self.name}" is not available: {reason}{since}.',
            hint=f"Nothing was run. {self._next_try()}",
            data={
                "server": self.name,
                "state": status.state.value,
                "reason": reason,
                "since": status.since,
                "retry_at": status.retry_at,
            },
        )

    def _timeout(self, name: str) -> CallTimeout:
        return CallTimeout(
            f'"{self.name}" did not answer {name} within {self.options.call_timeout_s:g} s and was cancelled.',
            hint=_UNKNOWN_EFFECT,
            data={"server": self.name, "timeout_s": self.options.call_timeout_s},
        )

    def _caller_error(self, error: ExchangeError) -> ExecutionFailed:
        """The error that a caller of this server sees."""
        if error.kind is FailureKind.UNSENT:
            self._supervisor.report_unreachable(error.reason)
            return self._unavailable(error.reason)
        if error.kind is FailureKind.SESSION:
            return self._unavailable(_SESSION_FORGOTTEN)
        if error.kind in (FailureKind.CLOSED, FailureKind.LOST):
            return self._lost(error)
        data: dict[str, Any] = {"server": self.name}
        if error.code is not None:
            data["rpc_code"] = error.code
        if error.data is not None and len(to_json(error.data)) <= _MAX_ERROR_DATA_BYTES:
            data["rpc_data"] = error.data
        return UpstreamError(f'"{self.name}" answered with an error: {error.reason}', data=data, rpc_code=error.code)

    def _lost(self, error: ExchangeError) -> ConnectionLost:
        return ConnectionLost(
            f'The connection to "{self.name}" was lost during the call: {error.reason}.',
            hint=_UNKNOWN_EFFECT,
            data={"server": self.name, "reason": error.reason},
        )

    def _next_try(self) -> str:
        retry_at = self.status.retry_at
        if self.options.problem:
            return "Fix its configuration to have it tried again."
        if self._supervisor.given_up:
            return "It is not tried again; restart it once the server is reachable."
        if retry_at is None:
            return "It is being tried right now."
        return f"It is tried again in {max(0, round(retry_at - time.time()))} s."


def _duration(seconds: float) -> str:
    """Format a duration roughly.

    >>> _duration(5.2), _duration(90), _duration(7200)
    ('5 s', '1 min', '2 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttemptResult:
    """How an attempt to connect, and the connection if there was one, ended."""

    reason: str
    lasted_s: float = 0.0
    """How long the connection was ready; 0 if it never was."""
    reopen: bool = False
    closed_on_discover: bool = False
    """Whether the server closed the connection on `server/discover`."""


class Supervisor:
    """The state of one server, and the task that keeps it connected."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions, network: HttpNetwork) -> None:
        """Nothing is tried before `run`."""
        options = resolve_command(options)
        self._options = options
        self._fleet = fleet
        self._network = network
        self._redact = Redactor(options)
        self._lister = ToolLister(options, fleet)
        self._session: Connection | None = None
        self._may_connect = not options.problem
        own_s = options.retry_interval_s
        self._first_s = fleet.backoff_first_s if own_s is None else max(own_s, _MIN_RETRY_S)
        self._was_ready = False
        self._may_reject_discover = True
        """Whether `server/discover` may be the reason for a server to close the connection."""
        self._wake_event = AutoResetEvent()
        self.tool_list = ToolList()
        """The tools as last read; kept while the server is away."""
        self.status_store = StatusStore(
            ServerStatus(
                name=options.name,
                namespace=options.namespace or "",
                state=ServerState.CONFIGURED,
                since=time.time(),
                transport=transport_name(options),
            )
        )
        self.document_lister = DocumentLister(
            options, fleet, lambda: self.status_store.update(self.status_store.status.state, tools_changed=True)
        )
        self.subscriptions = UpstreamSubscriptions(options.name, fleet.listen_retry_s)
        self.logs = LogForwarder(options.name, self._redact)
        self.server_requests = ServerRequests(self.logs)
        self.given_up = False
        """Whether it has failed for good, after the options' `retries`."""

    # -- for calls -------------------------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection | None:
        """The connection, while it is open."""
        session = self._session
        return session if session is not None and not session.channel.closed.is_set else None

    async def wait_connected(self) -> Connection | None:
        """Return the connection; waits a while for it if it is likely to come: at first, and after a loss."""
        if self.connection is None:
            self.wake()
            wait_s = min(self._fleet.connect_wait_s, self._options.call_timeout_s)
            with anyio.move_on_after(wait_s):
                await self.status_store.wait_until(lambda: self.connection is not None or not self._may_connect)
        return self.connection

    def report_unreachable(self, reason: str) -> None:
        """Handle a call that could not be sent: update the status, and list again, which detects the server's
        return.
        """
        session = self.connection
        if session is not None and self.status_store.status.state is ServerState.READY:
            self._set_unusable(reason, retry_at=None)
            session.channel.refresh_needed.set()
            self.wake()

    def wake(self) -> None:
        """Cut the current pause short, because a caller wants the server."""
        self._wake_event.set()

    # -- the task --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, serve, and reconnect, until cancelled."""
        if self._options.problem:
            self.status_store.update(ServerState.FAILED, reason=self._options.problem)
            return
        failures = 0
        try:
            while True:
                outcome = await self._attempts()
                lasted = outcome.lasted_s > 0 and outcome.lasted_s >= self._fleet.stable_s
                failures = 1 if lasted else failures + 1
                at_once = outcome.reopen and outcome.lasted_s >= self._first_s
                if self._is_exhausted(failures) and not at_once:
                    await self._give_up(outcome.reason, failures)
                await self._pause(outcome.reason, 0.0 if at_once else self._backoff(failures))
        finally:
            self._may_connect = False
            self.status_store.update(ServerState.FAILED, reason="stopped", retry_at=None)

    def _is_exhausted(self, failures: int) -> bool:
        return self._options.retries is not None and failures > self._options.retries

    async def _give_up(self, reason: str, failures: int) -> None:
        """Stay failed until cancelled."""
        self._may_connect, self.given_up = False, True
        text = f"{reason}; given up after {failures} attempts" if failures > 1 else f"{reason}; not tried again"
        logger.warning("%s has failed: %s", self._options.name, text)
        self.status_store.update(ServerState.FAILED, reason=text, stale=self._was_ready, retry_at=None)
        await anyio.sleep_forever()

    async def _attempts(self) -> _AttemptResult:
        """Connect once, or twice if the server closed the connection on `server/discover`: then with the handshake
        only.

        A server that does not accept that either closes by itself, and is not tried that way again.
        """
        outcome = await self._attempt()
        if outcome.closed_on_discover and self._may_reject_discover:
            self._may_connect = True
            outcome = await self._attempt(discover=False)
            self._may_reject_discover = outcome.lasted_s > 0
        return outcome

    async def _attempt(self, *, discover: bool = True) -> _AttemptResult:
        """Run one connection from beginning to end."""
        self._announce()
        channel = open_channel(self._options, self._fleet, self._network, self._redact)
        reason, ready_at, closed_on_discover = "", None, False
        timeout_reason = f"no answer to the handshake within {self._options.start_timeout_s:g} s"
        with anyio.CancelScope(deadline=anyio.current_time() + self._options.start_timeout_s) as limit:
            try:
                async with open_connection(
                    channel, self._options, self._fleet, self._redact, self.server_requests, discover=discover
                ) as session:
                    limit.deadline = anyio.current_time() + self._options.list_timeout_s
                    timeout_reason = f"no tool list within {self._options.list_timeout_s:g} s"
                    # Errors are normal while negotiating with an older server; only signals from here on count.
                    channel.refresh_needed.clear()
                    self.logs.reset()
                    channel.notifications.on_log_message = self.logs.emit
                    listing = await self._lister.read(session, self.tool_list.by_name)
                    limit.deadline, ready_at = math.inf, anyio.current_time()
                    self._ready(session, listing)
                    await self._serve(session)
                    reason = channel.closed.reason
            except Exception as error:  # noqa: BLE001 - whatever ends a connection, another one is tried
                reason = reason or self._error_reason(error)
                closed_on_discover = any(isinstance(cause, ClosedOnDiscover) for cause in flatten_errors(error))
            finally:
                self._session = None
        if limit.cancelled_caught:
            detail = channel.stderr_tail()
            reason = f"{timeout_reason}; its last output: {detail}" if detail else timeout_reason
        lasted_s = anyio.current_time() - ready_at if ready_at is not None else 0.0
        self._may_connect = ready_at is not None
        reason = reason or channel.closed.reason
        return _AttemptResult(
            reason=reason, lasted_s=lasted_s, reopen=channel.closed.reconnect, closed_on_discover=closed_on_discover
        )

    def _announce(self) -> None:
        self._wake_event.clear()
        state = self.status_store.status.state
        self.status_store.update(ServerState.CONNECTING if state is ServerState.CONFIGURED else state, retry_at=None)

    def _error_reason(self, error: Exception) -> str:
        """Return the reason in the error; empty if the channel knows better."""
        causes = list(flatten_errors(error))
        for cause in causes:
            if isinstance(cause, ExchangeError):
                return "" if cause.kind is FailureKind.CLOSED else cause.reason
        text = self._redact(f"{type(causes[0]).__name__}: {causes[0]}")
        logger.error("the connection to %s failed: %s", self._options.name, text)
        logger.debug("traceback", exc_info=error)
        return text

    async def _pause(self, reason: str, delay_s: float) -> None:
        """Wait, with the reason in the status. A call may cut the wait short, but not below the first step."""
        self._set_unusable(reason, retry_at=time.time() + delay_s)
        await self._sleep(delay_s)

    def _set_unusable(self, reason: str, *, retry_at: float | None) -> None:
        """Update the status to failed or degraded; a new reason is logged."""
        state = ServerState.DEGRADED if self._was_ready else ServerState.FAILED
        if (state, reason) != (self.status_store.status.state, self.status_store.status.reason):
            words = "is degraded" if self._was_ready else "has failed"
            logger.warning("%s %s: %s", self._options.name, words, reason)
        self.status_store.update(state, reason=reason, stale=self._was_ready, retry_at=retry_at)

    async def _sleep(self, delay_s: float) -> None:
        earliest = anyio.current_time() + min(delay_s, self._first_s)
        with anyio.move_on_after(delay_s):
            await self._wake_event.wait()
            await anyio.sleep_until(earliest)

    def _backoff(self, failures: int) -> float:
        """Exponential with full jitter."""
        most = self._first_s * 2.0 ** min(max(failures - 1, 0), 32)
        return _RANDOM.uniform(0.0, min(self._fleet.backoff_max_s, most))

    # -- while it is ready -----------------------------------------------------------------------------------------

    def _ready(self, session: Connection, listing: ToolList) -> None:
        self._session = session
        self.document_lister.attach(session)
        self.subscriptions.attach(session)
        self._may_connect = self._was_ready = True
        logger.debug("%s lists %d tools, protocol %s", self._options.name, len(listing.tools), session.protocol_version)
        self._adopt(session, listing)

    def _adopt(self, session: Connection, listing: ToolList) -> bool:
        """Take the tool list over. Returns whether anything in it is new."""
        changed = not _same_tools(self.tool_list.tools, listing.tools)
        self.tool_list = listing
        self.status_store.update(
            ServerState.DEGRADED if listing.problem else ServerState.READY,
            tools_changed=changed,
            reason=listing.problem,
            tools=len(listing.tools),
            rejected=listing.rejected,
            stale=False,
            protocol=session.protocol_version,
            info=session.info,
            retry_at=None,
        )
        return changed

    async def _serve(self, session: Connection) -> None:
        """Keep the lists current until the connection ends."""
        async with anyio.create_task_group() as group:
            if session.can_subscribe:
                group.start_soon(session.follow_list_changes, self._fleet.listen_retry_s)
            group.start_soon(self._keep_current, session)
            group.start_soon(self.document_lister.maintain, session)
            group.start_soon(self.subscriptions.maintain, session)
            await session.channel.closed.wait()
            group.cancel_scope.cancel()
        if session.channel.closed.reconnect:
            # Let the other calls of the lost session fail first; they can then be retried, since they did not run.
            with anyio.move_on_after(_DRAIN_TIMEOUT_S):
                await session.wait_idle()

    async def _keep_current(self, session: Connection) -> None:
        """List again when needed: debounced, ever less often while nothing changes, backing off on failure."""
        gap_s, failures = self._fleet.refresh_gap_s, 0
        while True:
            quiet_since = anyio.current_time()
            await session.channel.refresh_needed.wait()
            await anyio.sleep(self._fleet.debounce_s)
            session.channel.refresh_needed.clear()
            self._wake_event.clear()
            problem, changed = await self._refresh(session)
            if problem:
                failures += 1
                await self._pause(problem, self._backoff(failures))
                session.channel.refresh_needed.set()
                continue
            if failures and self._options.transport == "http" and not session.protocol.modern:
                await self._renew(session)
            failures = 0
            quiet = anyio.current_time() - quiet_since > 2 * gap_s
            gap_s = self._fleet.refresh_gap_s if changed or quiet else min(2 * gap_s, self._fleet.backoff_max_s)
            await self._sleep(gap_s)

    async def _renew(self, session: Connection) -> None:
        """Reconnect after trouble, between two calls: the stream of notifications may be gone for good."""
        with anyio.move_on_after(_RENEW_TIMEOUT_S):
            await session.wait_idle()
            session.channel.closed.set("reconnecting", reopen=True)

    async def _refresh(self, session: Connection) -> tuple[str, bool]:
        """List again. Returns why that failed, and whether anything changed."""
        try:
            with anyio.fail_after(self._options.list_timeout_s):
                fresh = await self._lister.read(session, self.tool_list.by_name)
        except ExchangeError as error:
            return error.reason, False
        except TimeoutError:
            return f"no tool list within {self._options.list_timeout_s:g} s", False
        if fresh.problem and not self.tool_list.problem:
            return fresh.problem, False
        return "", self._adopt(session, fresh)


def _same_tools(old: tuple[Tool, ...], new: tuple[Tool, ...]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))


def open_channel(options: ServerOptions, fleet: FleetOptions, network: HttpNetwork, redact: Redactor) -> Channel:
    """Return a channel of the options' transport, not connected yet.

    Entering its transport may raise `ExchangeError`.
    """
    if options.target is not None or options.transport in ("memory", "custom"):
        return target_channel(options, fleet, redact)
    if options.transport == "stdio":
        return stdio_channel(options, fleet, redact)
    if options.transport == "sse":
        return sse_channel(options, fleet, network, redact)
    return http_channel(options, fleet, network, redact)
