"""What the console shows of all processes that share a state: their calls, servers and counts.

Each process keeps its own calls in memory. A page asks all of them for what it shows, so nothing is sent while no page
is open. Texts that the settings do not let a process keep cannot be asked for either.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from pydantic import TypeAdapter

from toolcrib.console.recorder import (
    MINUTES,
    RECORDED,
    CallRecorder,
    Minute,
    Recorded,
    RecordedCall,
    RecordedSearch,
    excerpt,
    filtered,
)
from toolcrib.settings.options import Settings
from toolcrib.state.coordination import Answers, Peer, Peers
from toolcrib.types import JSON, Object, ServerInfo, ServerState, ServerStatus

MAX_EVENTS: Final = 200
"""Calls and searches of one request, and of one process in a list, that are shown."""
_MAX_LATEST: Final = 8
_LOOKED_AT: Final = 200
_MAX_SERVERS: Final = 2_000
_MAX_REJECTED: Final = 50
_MAX_MESSAGE_CHARS: Final = 200
_VERSIONS_S: Final = 0.9
"""How long open pages share what the processes said about changes, in seconds."""


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """A call or search, and the process it ran on."""

    event: Recorded
    process: Peer
    at: str
    """The id of the process in addresses of pages; empty for the process that shows the page."""

    @property
    def is_search(self) -> bool:
        """Whether it is a search."""
        return isinstance(self.event, RecordedSearch)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCalls:
    """Calls and searches of one process that pass filters, the last one first."""

    events: tuple[Recorded, ...]
    """At most `MAX_EVENTS`, without arguments and results."""
    total: int
    kept: int
    outcomes: frozenset[str]
    """Of all that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOverview:
    """What one process says about itself."""

    statuses: tuple[ServerStatus, ...]
    minutes: Mapping[int, Minute]
    """By minutes since the epoch."""
    namespaces: Mapping[str, tuple[int, int]]
    """Calls and errors of the last hour."""
    latest: tuple[Recorded, ...]
    failures: tuple[Recorded, ...]
    settings: str
    """The same text in processes that run with the same settings."""
    problem: str
    """Why its changed settings are not in use."""

    @property
    def calls(self) -> int:
        """Calls of the last hour."""
        return sum(one.calls for one in self.minutes.values())

    @property
    def errors(self) -> int:
        """Calls of the last hour that failed."""
        return sum(one.errors for one in self.minutes.values())

    @property
    def ready(self) -> int:
        """Servers whose tools can be called."""
        return sum(one.state in (ServerState.READY, ServerState.IDLE) for one in self.statuses)


class Processes:
    """The processes of a console: answers questions of the others, and asks them."""

    def __init__(
        self,
        peers: Peers,
        recorder: CallRecorder,
        statuses: Callable[[], Sequence[ServerStatus]],
        settings: Callable[[], Settings],
        *,
        problem: Callable[[], str],
        save: Callable[[], Awaitable[None]],
    ) -> None:
        """`problem` says why changed settings are not in use, and `save` writes the counts of this process."""
        self._peers = peers
        self._recorder = recorder
        self._statuses = statuses
        self._settings = settings
        self._problem = problem
        self._save = save
        self._versions: tuple[float, dict[str, int]] = (-_VERSIONS_S, {})
        peers.answer("console calls", self._answer_calls)
        peers.answer("console request", self._answer_request)
        peers.answer("console search", self._answer_search)
        peers.answer("console overview", self._answer_overview)
        peers.answer("console versions", self._answer_versions)
        peers.answer("console counts", self._answer_counts)

    @property
    def own(self) -> Peer:
        """This process."""
        return self._peers.own

    async def others(self) -> tuple[Peer, ...]:
        """The other processes."""
        return await self._peers.others()

    # -- questions -------------------------------------------------------------------------------------------------

    async def overview(self) -> Answers[ProcessOverview]:
        """What each process says about itself."""
        return await self._peers.ask("console overview", read=_OVERVIEW.validate_python)

    async def calls(self, filters: Object, process: str = "") -> Answers[FoundCalls]:
        """The calls and searches that pass the filters, of all processes or of the one with this id."""
        return await self._peers.ask("console calls", filters, read=_CALLS.validate_python, only=process or None)

    async def of_request(self, number: int, process: str) -> list[PlacedEvent]:
        """What one request did, in the order in which it began."""
        answers = await self._peers.ask(
            "console request", number, read=_read_events, only=process or self._peers.own.id
        )
        return [self.placed(event, peer) for peer, events in answers.given.items() for event in events]

    async def search_before(self, call: RecordedCall) -> PlacedEvent | None:
        """The last search of the same caller and session, on any process, that found the tool of a call."""
        [question] = _write_events([replace(call, arguments=None, result=None, message=None)])
        answers = await self._peers.ask("console search", question, read=_read_events)
        found = [self.placed(event, peer) for peer, events in answers.given.items() for event in events]
        return max(found, key=lambda one: one.event.time, default=None)

    async def versions(self) -> dict[str, int]:
        """A number for each topic of live pages, which changes when the topic does on any process."""
        asked, known = self._versions
        if time.monotonic() - asked >= _VERSIONS_S:
            answers = await self._peers.ask("console versions", read=lambda found: (int(found[0]), str(found[1])))
            calls = hash(tuple((peer.id, one[0]) for peer, one in answers.given.items()))
            known = {"calls": calls, "servers": hash(tuple((peer.id, one[1]) for peer, one in answers.given.items()))}
            self._versions = (time.monotonic(), known)
        return known

    async def save_counts(self) -> None:
        """Have every process write what it has counted, so that a report has it."""
        await self._peers.ask("console counts", read=bool)

    def placed(self, event: Recorded, peer: Peer) -> PlacedEvent:
        """The event together with its process."""
        return PlacedEvent(event, peer, "" if peer.id == self._peers.own.id else peer.id)

    # -- answers ---------------------------------------------------------------------------------------------------

    async def _answer_calls(self, filters: Any) -> JSON:
        everything = list(self._recorder.recent())
        found = filtered(everything, **{name: str(filters.get(name, "")) for name in ("tool", "caller", "outcome")})
        answer = FoundCalls(
            events=tuple(map(_short, found[:MAX_EVENTS])),
            total=len(found),
            kept=len(everything),
            outcomes=frozenset(one.outcome for one in everything),
        )
        return _CALLS.dump_python(answer, mode="json")

    async def _answer_request(self, number: Any) -> JSON:
        return _write_events(self._recorder.of_request(int(number))[:MAX_EVENTS])

    async def _answer_search(self, call: Any) -> JSON:
        asked = RECORDED.validate_python(call)
        before = self._recorder.search_before(asked) if isinstance(asked, RecordedCall) else None
        return _write_events([] if before is None else [before])

    async def _answer_overview(self, _: Any) -> JSON:
        calls = [one for one in islice(self._recorder.recent(), _LOOKED_AT) if isinstance(one, RecordedCall)]
        answer = ProcessOverview(
            statuses=tuple(map(_brief, self._statuses()[:_MAX_SERVERS])),
            minutes=dict(self._recorder.by_minute()),
            namespaces=self._recorder.calls_by_namespace(),
            latest=tuple(map(_short, calls[:_MAX_LATEST])),
            failures=tuple(map(_short, [one for one in calls if one.failed][:_MAX_LATEST])),
            settings=_fingerprint(self._settings()),
            problem=self._problem(),
        )
        return _OVERVIEW.dump_python(answer, mode="json")

    async def _answer_versions(self, _: Any) -> JSON:
        states = [(one.name, str(one.state), one.since, one.tools, one.reason, one.stale) for one in self._statuses()]
        digest = hashlib.sha256(repr((states, self._problem())).encode("utf-8", "replace")).hexdigest()
        return [self._recorder.version, digest[:16]]

    async def _answer_counts(self, _: Any) -> JSON:
        await self._save()
        return True


def merged_minutes(overviews: Sequence[ProcessOverview], now: float) -> list[Minute]:
    """The last hour by minute, of all processes together, the present minute last.

    >>> one = ProcessOverview(
    ...     statuses=(), minutes={10: Minute(2, 1, 0)}, namespaces={}, latest=(), failures=(), settings="", problem=""
    ... )
    >>> merged_minutes([one, one], 605.0)[-1]
    Minute(calls=4, errors=2, searches=0)
    """
    last = int(now // 60)
    found = []
    for minute in range(last - MINUTES + 1, last + 1):
        all_ = [one.minutes.get(minute, Minute()) for one in overviews]
        found.append(
            Minute(sum(one.calls for one in all_), sum(one.errors for one in all_), sum(one.searches for one in all_))
        )
    return found


def merged_namespaces(overviews: Sequence[ProcessOverview]) -> dict[str, tuple[int, int]]:
    """Calls and errors of the last hour by namespace, of all processes together."""
    calls, errors = Counter[str](), Counter[str]()
    for one in overviews:
        for name, (number, failed) in one.namespaces.items():
            calls[name] += number
            errors[name] += failed
    return {name: (calls[name], errors[name]) for name in calls}


def latest(events: Iterable[PlacedEvent]) -> list[PlacedEvent]:
    """The events of several processes, the last one first; clocks of different hosts may differ a little."""
    return sorted(events, key=lambda one: (one.event.time + one.event.duration_s, one.event.number), reverse=True)


def _short(one: Recorded) -> Recorded:
    """A call as a list shows it."""
    if isinstance(one, RecordedSearch):
        return one
    message = None if one.message is None else excerpt(one.message, _MAX_MESSAGE_CHARS)
    return replace(one, arguments=None, result=None, message=message, steps=())


def _fingerprint(settings: Settings) -> str:
    """The same text for the same settings; it says nothing about them."""
    text = json.dumps(settings.section, sort_keys=True, default=str)
    servers = sorted(repr(server) for server in settings.servers)
    return hashlib.sha256(repr((text, servers)).encode("utf-8", "replace")).hexdigest()[:12]


def _brief(one: ServerStatus) -> ServerStatus:
    """A status as another process shows it."""
    return replace(one, info=ServerInfo(), rejected=one.rejected[:_MAX_REJECTED], marked=one.marked[:_MAX_REJECTED])


def _read_events(saved: Any) -> tuple[Recorded, ...]:
    return tuple(map(RECORDED.validate_python, saved))


def _write_events(events: Iterable[Recorded]) -> list[JSON]:
    return [RECORDED.dump_python(one, mode="json") for one in events]


_CALLS: Final = TypeAdapter(FoundCalls)
_OVERVIEW: Final = TypeAdapter(ProcessOverview)
