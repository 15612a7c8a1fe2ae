"""Keeps one server connected, and its tools current: one task, from start to stop.

Only this task enters and leaves a connection. Calls come from other tasks, use the session as it is, and may wake this
one up.
"""

import logging
import math
import time
from dataclasses import dataclass
from random import SystemRandom
from typing import Final

import anyio

from toolcrib.model import ServerState, ServerStatus, Tool
from toolcrib.upstream.asked import Asked
from toolcrib.upstream.board import Board
from toolcrib.upstream.connect import link_to
from toolcrib.upstream.documents import Keeper
from toolcrib.upstream.exchange import ExchangeError, Kind, leaves
from toolcrib.upstream.http import Network
from toolcrib.upstream.link import Bell
from toolcrib.upstream.listing import Lister, Listing
from toolcrib.upstream.negotiation import Unheard
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.session import Session, open_session
from toolcrib.upstream.targets import resolved, transport_name
from toolcrib.upstream.voice import Voice
from toolcrib.upstream.watches import Watches

logger = logging.getLogger(__name__)

_DRAIN_S: Final = 1.0
"""For the calls of a lost session to be told so."""
_RENEW_S: Final = 5.0
"""For a moment without calls; without one, the session stays as it is."""
_LEAST_PAUSE_S: Final = 0.01
_RANDOM: Final = SystemRandom()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How an attempt to connect, and the connection if there was one, ended."""

    reason: str
    lasted_s: float = 0.0
    """How long it was ready; 0 when it never was."""
    reopen: bool = False
    unheard: bool = False
    """Whether it ended upon the first question."""


class Supervisor:
    """What is known of one server, and the task that keeps it true."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions, network: Network) -> None:
        """Nothing is tried before `run`."""
        options = resolved(options)
        self._options = options
        self._fleet = fleet
        self._network = network
        self._redact = Redactor(options)
        self._lister = Lister(options, fleet)
        self._session: Session | None = None
        self._promising = not options.problem
        own_s = options.retry_interval_s
        self._first_s = fleet.backoff_first_s if own_s is None else max(own_s, _LEAST_PAUSE_S)
        self._was_ready = False
        self._may_be_shy = True
        """Whether an end upon the first question may be due to that question."""
        self._wanted = Bell()
        self.listing = Listing()
        """The tools as last read; kept while the server is away."""
        self.board = Board(
            ServerStatus(
                name=options.name,
                namespace=options.namespace or "",
                state=ServerState.CONFIGURED,
                since=time.time(),
                transport=transport_name(options),
            )
        )
        self.keeper = Keeper(options, fleet, lambda: self.board.post(self.board.status.state, tools_changed=True))
        """Its prompts and resources."""
        self.watches = Watches(options.name, fleet.listen_retry_s)
        self.voice = Voice(options.name, self._redact)
        self.asked = Asked(self.voice)
        self.given_up = False
        """Whether it failed for good, as the options' `retries` say."""

    # -- for calls -------------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """The session, while it lives."""
        session = self._session
        return session if session is not None and not session.link.end.has_come else None

    async def connected(self) -> Session | None:
        """The session. Waits for it for a while where nothing speaks against it yet: at first, and after a loss."""
        if self.session is None:
            self.wake()
            wait_s = min(self._fleet.connect_wait_s, self._options.call_timeout_s)
            with anyio.move_on_after(wait_s):
                await self.board.until(lambda: self.session is not None or not self._promising)
        return self.session

    def missed(self, reason: str) -> None:
        """A call could not be sent: tell at once. Listing again, which that begins, tells when the server is back."""
        session = self.session
        if session is not None and self.board.status.state is ServerState.READY:
            self._tell(reason, retry_at=None)
            session.link.doubt.ring()
            self.wake()

    def wake(self) -> None:
        """Somebody wants the server: cut the present pause short."""
        self._wanted.ring()

    # -- the task --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, serve, and connect again, until cancelled."""
        if self._options.problem:
            self.board.post(ServerState.FAILED, reason=self._options.problem)
            return
        failures = 0
        try:
            while True:
                outcome = await self._attempts()
                lasted = outcome.lasted_s > 0 and outcome.lasted_s >= self._fleet.stable_s
                failures = 1 if lasted else failures + 1
                at_once = outcome.reopen and outcome.lasted_s >= self._first_s
                if self._is_enough(failures) and not at_once:
                    await self._give_up(outcome.reason, failures)
                await self._pause(outcome.reason, 0.0 if at_once else self._backoff(failures))
        finally:
            self._promising = False
            self.board.post(ServerState.FAILED, reason="stopped", retry_at=None)

    def _is_enough(self, failures: int) -> bool:
        return self._options.retries is not None and failures > self._options.retries

    async def _give_up(self, reason: str, failures: int) -> None:
        """Stay failed until cancelled."""
        self._promising, self.given_up = False, True
        told = f"{reason}; given up after {failures} attempts" if failures > 1 else f"{reason}; not tried again"
        logger.warning("%s has failed: %s", self._options.name, told)
        self.board.post(ServerState.FAILED, reason=told, stale=self._was_ready, retry_at=None)
        await anyio.sleep_forever()

    async def _attempts(self) -> _Outcome:
        """One connection, or two: where the server ended upon the first question, it is asked nothing but the handshake
        in another one. A server that does not bear that either ends by itself, and is never tried so again.
        """
        outcome = await self._attempt()
        if outcome.unheard and self._may_be_shy:
            self._promising = True
            outcome = await self._attempt(discover=False)
            self._may_be_shy = outcome.lasted_s > 0
        return outcome

    async def _attempt(self, *, discover: bool = True) -> _Outcome:
        """One connection, from beginning to end."""
        self._announce()
        link = link_to(self._options, self._fleet, self._network, self._redact)
        reason, ready_at, unheard = "", None, False
        awaited = f"no answer to the handshake within {self._options.start_timeout_s:g} s"
        with anyio.CancelScope(deadline=anyio.current_time() + self._options.start_timeout_s) as limit:
            try:
                async with open_session(
                    link, self._options, self._fleet, self._redact, self.asked, discover=discover
                ) as session:
                    limit.deadline = anyio.current_time() + self._options.list_timeout_s
                    awaited = f"no tool list within {self._options.list_timeout_s:g} s"
                    # The handshake of an older server is all errors at first; a notice from here on counts.
                    link.doubt.hush()
                    self.voice.connected()
                    link.notices.said = self.voice.say
                    listing = await self._lister.read(session, self.listing.offers)
                    limit.deadline, ready_at = math.inf, anyio.current_time()
                    self._ready(session, listing)
                    await self._serve(session)
                    reason = link.end.reason
            except Exception as error:  # noqa: BLE001 - whatever ends a connection, the next one is tried
                reason = reason or self._told_by(error)
                unheard = any(isinstance(cause, Unheard) for cause in leaves(error))
            finally:
                self._session = None
        if limit.cancelled_caught:
            words = link.last_words()
            reason = f"{awaited}; it last said: {words}" if words else awaited
        lasted_s = anyio.current_time() - ready_at if ready_at is not None else 0.0
        self._promising = ready_at is not None
        reason = reason or link.end.reason
        return _Outcome(reason=reason, lasted_s=lasted_s, reopen=link.end.reopen, unheard=unheard)

    def _announce(self) -> None:
        self._wanted.hush()
        state = self.board.status.state
        self.board.post(ServerState.CONNECTING if state is ServerState.CONFIGURED else state, retry_at=None)

    def _told_by(self, error: Exception) -> str:
        """The reason in the error; empty where the link's end knows better."""
        causes = list(leaves(error))
        for cause in causes:
            if isinstance(cause, ExchangeError):
                return "" if cause.kind is Kind.CLOSED else cause.reason
        told = self._redact(f"{type(causes[0]).__name__}: {causes[0]}")
        logger.error("the connection to %s broke: %s", self._options.name, told)
        logger.debug("where it broke", exc_info=error)
        return told

    async def _pause(self, reason: str, delay_s: float) -> None:
        """Wait with what the reason says on the board; a call may cut it short, but not below the first step."""
        self._tell(reason, retry_at=time.time() + delay_s)
        await self._rest(delay_s)

    def _tell(self, reason: str, *, retry_at: float | None) -> None:
        """Put on the board, and in the log where it is new, that it cannot be used, and why."""
        state = ServerState.DEGRADED if self._was_ready else ServerState.FAILED
        if (state, reason) != (self.board.status.state, self.board.status.reason):
            words = "is degraded" if self._was_ready else "has failed"
            logger.warning("%s %s: %s", self._options.name, words, reason)
        self.board.post(state, reason=reason, stale=self._was_ready, retry_at=retry_at)

    async def _rest(self, delay_s: float) -> None:
        earliest = anyio.current_time() + min(delay_s, self._first_s)
        with anyio.move_on_after(delay_s):
            await self._wanted.wait()
            await anyio.sleep_until(earliest)

    def _backoff(self, failures: int) -> float:
        """Exponential with full jitter."""
        most = self._first_s * 2.0 ** min(max(failures - 1, 0), 32)
        return _RANDOM.uniform(0.0, min(self._fleet.backoff_max_s, most))

    # -- while it is ready -----------------------------------------------------------------------------------------

    def _ready(self, session: Session, listing: Listing) -> None:
        self._session = session
        self.keeper.begin(session)
        self.watches.begin(session)
        self._promising = self._was_ready = True
        logger.debug("%s lists %d tools, protocol %s", self._options.name, len(listing.tools), session.protocol)
        self._adopt(session, listing)

    def _adopt(self, session: Session, listing: Listing) -> bool:
        """Take the listing; whether anything in it is new."""
        changed = not _same(self.listing.tools, listing.tools)
        self.listing = listing
        self.board.post(
            ServerState.DEGRADED if listing.problem else ServerState.READY,
            tools_changed=changed,
            reason=listing.problem,
            tools=len(listing.tools),
            rejected=listing.rejected,
            stale=False,
            protocol=session.protocol,
            info=session.info,
            retry_at=None,
        )
        return changed

    async def _serve(self, session: Session) -> None:
        """Keep the tools current until the connection ends."""
        async with anyio.create_task_group() as group:
            if session.can_listen:
                group.start_soon(session.listen, self._fleet.listen_retry_s)
            group.start_soon(self._keep_current, session)
            group.start_soon(self.keeper.keep, session)
            group.start_soon(self.watches.keep, session)
            await session.link.end.wait()
            group.cancel_scope.cancel()
        if session.link.end.reopen:
            # The other calls of the lost session are about to be told so; then they know that they did not run.
            with anyio.move_on_after(_DRAIN_S):
                await session.drained()

    async def _keep_current(self, session: Session) -> None:
        """List again when there is doubt: debounced, ever more seldom while nothing changes, backing off on failure."""
        gap_s, failures = self._fleet.refresh_gap_s, 0
        while True:
            quiet_since = anyio.current_time()
            await session.link.doubt.wait()
            await anyio.sleep(self._fleet.debounce_s)
            session.link.doubt.hush()
            self._wanted.hush()
            problem, changed = await self._refresh(session)
            if problem:
                failures += 1
                await self._pause(problem, self._backoff(failures))
                session.link.doubt.ring()
                continue
            if failures and self._options.transport == "http" and not session.envelope.modern:
                await self._renew(session)
            failures = 0
            quiet = anyio.current_time() - quiet_since > 2 * gap_s
            gap_s = self._fleet.refresh_gap_s if changed or quiet else min(2 * gap_s, self._fleet.backoff_max_s)
            await self._rest(gap_s)

    async def _renew(self, session: Session) -> None:
        """Open the session anew after trouble, between two calls: its stream of notices may be gone for good."""
        with anyio.move_on_after(_RENEW_S):
            await session.drained()
            session.link.end.come("reconnecting", reopen=True)

    async def _refresh(self, session: Session) -> tuple[str, bool]:
        """List again; why that failed, and whether anything changed."""
        try:
            with anyio.fail_after(self._options.list_timeout_s):
                fresh = await self._lister.read(session, self.listing.offers)
        except ExchangeError as error:
            return error.reason, False
        except TimeoutError:
            return f"no tool list within {self._options.list_timeout_s:g} s", False
        if fresh.problem and not self.listing.problem:
            return fresh.problem, False
        return "", self._adopt(session, fresh)


def _same(old: tuple[Tool, ...], new: tuple[Tool, ...]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))
