"""What each shared provider last listed, when to poll it again, and the status of the servers behind it."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan
from typing import Any, Final, NamedTuple

import anyio

from toolcrib.containment import contained
from toolcrib.errors import ToolcribError
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import ProviderTools, RejectedDefinition, invalid_field
from toolcrib.providers.adapters import adapt
from toolcrib.providers.base import display_name
from toolcrib.providers.definitions import parse_tool
from toolcrib.types import (
    Backend,
    BackendKind,
    Context,
    Provider,
    ProviderFeature,
    ProviderSource,
    Rejected,
    ServerState,
    ServerStatus,
    Tool,
)

logger = logging.getLogger(__name__)


_MAX_NAME_CHARS = 80
"""Characters of a name that a refusal repeats."""


_MIN_CACHE_S: Final = 1.0
"""How long a list holds at least, whatever its provider says, in seconds: it is asked again without being needed."""


_RANK = {kind: place for place, kind in enumerate(BackendKind)}


class ChangeCounts(NamedTuple):
    """Counts of what may have changed a provider's list; none ever goes down."""

    forced: int = -1
    """How often all were to be asked again."""
    source: int = -1
    """How often its source told of a change."""
    own: int = -1
    """The same of the provider itself, where the source knows which one it was; 0 where it does not."""


_NO_CHANGES: Final = ChangeCounts()


@dataclass(slots=True, eq=False)
class ProviderState:
    """One shared provider."""

    backend: Backend
    source: int
    """The place of the source it comes from."""
    tools: tuple[Tool, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    problem: str = ""
    """Why it could not list its tools; empty where it could."""
    since: float = field(default_factory=time.time)
    due_at: float = 0.0
    """When it must be asked again, by `time.monotonic`."""
    polled_at: float = 0.0
    """When it answered last."""
    statuses: tuple[ServerStatus, ...] = ()
    """How its servers stood when it listed these tools."""
    seen: ChangeCounts = _NO_CHANGES
    """What had been told when it was asked last."""
    polling: bool = False
    late: bool = False
    """It is being asked, and nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class PollResult:
    """What a provider said when it was asked."""

    tools: tuple[Tool, ...]
    rejected: tuple[Rejected, ...]
    problem: str
    due_at: float
    statuses: tuple[ServerStatus, ...]
    seen: ChangeCounts


class ProviderRegistry:
    """One entry a provider, in the order in which they take precedence."""

    def __init__(self, sources: Sequence[ProviderSource], options: GatewayOptions) -> None:
        """Nobody is asked yet."""
        self._sources = tuple(sources)
        self._options = options
        self._states: dict[int, ProviderState] = {}
        self._present: list[Sequence[Provider]] = [()] * len(self._sources)
        self._source_changes = [0] * len(self._sources)
        self._forced = 0

    # -- who there is ----------------------------------------------------------------------------------------------

    def reload(self) -> list[ProviderState]:
        """The entries of this moment's providers: local functions first, remote servers last."""
        self._states = {id(provider): self._state(place, provider) for place, provider in self._current_providers()}
        return list(self._states.values())

    def _current_providers(self) -> list[tuple[int, Provider]]:
        """The providers of this moment, each with its source; those of last time, of a source that cannot say."""
        for place, source in enumerate(self._sources):
            try:
                self._present[place] = tuple(map(adapt, source.providers()))
            except Exception:
                logger.exception("a source of providers failed; those that it had stay")
        here = [(place, provider) for place, some in enumerate(self._present) for provider in some]
        return sorted(here, key=lambda pair: _RANK[self._sources[pair[0]].kind])

    def _state(self, place: int, provider: Provider) -> ProviderState:
        known = self._states.get(id(provider))
        kind = self._sources[place].kind
        return known or ProviderState(Backend(kind=kind, name=display_name(provider), provider=provider), place)

    def provider_tools(self) -> tuple[ProviderTools, ...]:
        """What they offer, as far as it is known."""
        return tuple(
            ProviderTools(entry.backend, entry.tools, entry.rejected, entry.statuses) for entry in self._states.values()
        )

    def states(self) -> tuple[ProviderState, ...]:
        """What is known of the providers of this moment, those that were never asked included."""
        return tuple(self._states.get(id(one)) or self._state(place, one) for place, one in self._current_providers())

    def has_lost_provider(self, source: int) -> bool:
        """Whether a provider of that source has gone whose tools were known."""
        try:
            here = {id(adapt(provider)) for provider in self._sources[source].providers()}
        except Exception:  # noqa: BLE001 - foreign code; whoever asks it next logs that
            return False
        known = tuple(self._states.items())
        return any(entry.source == source and entry.tools and key not in here for key, entry in known)

    def backends(self) -> list[Backend]:
        """All providers, in order."""
        return [entry.backend for entry in self._states.values()]

    # -- who must be asked -----------------------------------------------------------------------------------------

    def force_all(self) -> None:
        """Have all of them asked again."""
        self._forced += 1

    def source_changed(self, source: int) -> None:
        """Something changed at that source. Two threads must not call it at once."""
        self._source_changes[source] += 1

    def invalidate(self, backends: Sequence[Backend]) -> None:
        """Have those asked again that do not run what they listed; at most once a second."""
        for entry in tuple(self._states.values()):
            if any(entry.backend is backend for backend in backends):
                entry.due_at = min(entry.due_at, entry.polled_at + _MIN_CACHE_S)

    def is_due(self, entry: ProviderState) -> bool:
        """Whether it must be asked now."""
        return entry.due_at <= time.monotonic() or self.has_changed(entry)

    def has_changed(self, entry: ProviderState) -> bool:
        """Whether something was told since it was asked last that may have changed its list.

        One that failed is left alone until it is due: others of its source may be the ones that changed.
        """
        now, before = self._change_counts(entry), entry.seen
        if now.forced != before.forced:
            return True
        if self._provider_counter(entry) is not None:
            return now.own not in (0, before.own)
        return now.source != before.source and not entry.problem

    def _change_counts(self, entry: ProviderState) -> ChangeCounts:
        counts = self._provider_counter(entry)
        own = 0 if counts is None else counts(entry.backend.provider)
        return ChangeCounts(self._forced, self._source_changes[entry.source], own)

    def _provider_counter(self, entry: ProviderState) -> Callable[[Provider], int] | None:
        """What counts the changes of each provider, where the source of this one has it."""
        return getattr(self._sources[entry.source], "change_count", None)

    def next_due(self) -> float:
        """When the first of them must be asked again, by `time.monotonic`; infinity for never."""
        return min((entry.due_at for entry in self._states.values() if not entry.polling), default=inf)

    def reset(self) -> None:
        """Nobody is being asked any more."""
        for entry in self._states.values():
            entry.polling = entry.late = False

    # -- asking ----------------------------------------------------------------------------------------------------

    async def poll(self, entry: ProviderState, ctx: Context) -> PollResult:
        """What the provider says now; its tools stay those of last time where it fails or hangs."""
        provider, heard = entry.backend.provider, self._change_counts(entry)
        before = provider_statuses(provider)
        try:
            with anyio.fail_after(self._options.list_timeout_s):
                tools, rejected = read_tools(await contained(provider.list_tools(ctx)), entry.tools)
            lasts = self._cache_s(provider)
        except Exception as error:
            if not entry.problem:
                logger.warning("%s could not list its tools", entry.backend.name, exc_info=True)
            why = failure_reason(error, self._options.list_timeout_s)
            due = time.monotonic() + self._options.retry_s
            return PollResult(entry.tools, entry.rejected, why, due, provider_statuses(provider), heard)
        # What it told of while it listed may have changed its list too; then it is asked again.
        said = provider_statuses(provider) if self._change_counts(entry) == heard else before
        return PollResult(tools, rejected, "", time.monotonic() + lasts, said, heard)

    @staticmethod
    def record(entry: ProviderState, answer: PollResult) -> None:
        """Keep what a provider said, unless it was asked later already."""
        if answer.seen < entry.seen:
            return
        if bool(answer.problem) != bool(entry.problem):
            entry.since = time.time()
        entry.tools, entry.rejected = answer.tools, answer.rejected
        entry.polled_at = time.monotonic()
        entry.problem, entry.due_at, entry.statuses, entry.seen = (
            answer.problem,
            answer.due_at,
            answer.statuses,
            answer.seen,
        )

    def _cache_s(self, provider: Provider) -> float:
        """How long what it said holds, in seconds: as long as it says, else until its event, else a set time."""
        said = declared_cache_s(provider)
        if said is not None:
            return max(_MIN_CACHE_S, said)
        return inf if ProviderFeature.CHANGES in provider.features else self._options.provider_cache_s


def declared_cache_s(provider: Provider) -> float | None:
    """How long the provider says that its list holds, in seconds; None where it does not say, or says no number."""
    try:
        said = provider.cache_for_s
        if isinstance(said, int | float) and not isinstance(said, bool) and not isnan(said):
            return float(said)
    except Exception:
        logger.warning("%s could not say how long its list of tools holds", display_name(provider), exc_info=True)
    return None


def read_tools(offered: Any, before: tuple[Tool, ...] = ()) -> tuple[tuple[Tool, ...], tuple[Rejected, ...]]:
    """What a provider listed, as tools, and what cannot be read as one.

    The tools are the very same tuple as `before` where nothing changed.
    """
    tools: list[Tool] = []
    rejected: list[Rejected] = []
    for item in offered or ():
        try:
            tools.append(item if isinstance(item, Tool) else parse_tool(item))
        except Exception as error:  # noqa: BLE001 - it may be foreign code, and is told in the reason
            why = error.message if isinstance(error, ToolcribError) else f"it cannot be read ({type(error).__name__})"
            rejected.append(Rejected(tool=_named(item), reason=why))
    same = len(tools) == len(before) and all(new is old for new, old in zip(tools, before, strict=True))
    return before if same else tuple(tools), tuple(rejected)


def _named(item: object) -> str:
    try:
        return str(getattr(item, "name", "(unnamed)"))[:_MAX_NAME_CHARS]
    except Exception:  # noqa: BLE001 - foreign code, of what is refused anyhow
        return "(unnamed)"


def failure_reason(error: Exception, timeout_s: float) -> str:
    """Why a provider could not list its tools, without anything it may have said of its inside."""
    if isinstance(error, TimeoutError):
        return f"it did not list its tools within {timeout_s:g} s"
    return f"it could not list its tools ({type(error).__name__})"


def status_of_state(entry: ProviderState) -> ServerStatus:
    """The status of a provider that does not speak for itself."""
    spaces = {tool.namespace for tool in entry.tools if not invalid_field(tool)}
    troubled = ServerState.DEGRADED if entry.tools else ServerState.FAILED
    return ServerStatus(
        name=entry.backend.name,
        state=troubled if entry.problem else ServerState.READY,
        since=entry.since,
        reason=entry.problem,
        tools=len(entry.tools) + len(entry.rejected),
        stale=bool(entry.problem and entry.tools),
        transport="local",
        namespace=next(iter(spaces)) if len(spaces) == 1 else "",
    )


_LOADING_REASON: Final = "its tools are being taken in"


_NOT_LOADED_REASON: Final = "its tools could not be taken in; the log has the cause"


def provider_statuses(provider: Provider) -> tuple[ServerStatus, ...]:
    """The statuses that a provider gives; none where it speaks for no servers, or cannot say."""
    try:
        told = tuple(provider.statuses())
    except (Exception, asyncio.CancelledError):
        logger.warning("%s could not say how its servers stand", display_name(provider), exc_info=True)
        return ()
    sound = tuple(status for status in told if _is_valid_status(status))
    if len(sound) < len(told):
        logger.warning("%s gave %d statuses that are none", display_name(provider), len(told) - len(sound))
    return sound


def _is_valid_status(status: object) -> bool:
    if not isinstance(status, ServerStatus):
        return False
    kinds = {"name": str, "namespace": str, "reason": str, "state": ServerState, "tools": int, "rejected": tuple}
    fits = all(isinstance(getattr(status, name), kind) for name, kind in kinds.items())
    return fits and all(isinstance(one, Rejected) for one in status.rejected)


def statuses_for_snapshot(
    now: Sequence[ServerStatus], taken: Sequence[ServerStatus], *, failed: bool = False
) -> tuple[ServerStatus, ...]:
    """The statuses as others are told them: a server is ready once its tools can be found, and not before.

    `taken` are the statuses that came with the tools in the snapshot; `failed` says that the last ones could not be
    taken in.
    """
    before = {status.name: status for status in taken}
    return tuple(_status_for_snapshot(status, before.get(status.name), failed=failed) for status in now)


def _status_for_snapshot(now: ServerStatus, taken: ServerStatus | None, *, failed: bool) -> ServerStatus:
    if not _lists_current_tools(now) or (taken is not None and _lists_current_tools(taken)):
        return now
    if taken is not None and taken.stale:  # it is back, and the tools are still those from before
        return taken
    if failed:
        return replace(now, state=ServerState.DEGRADED, reason=_NOT_LOADED_REASON, tools=0)
    return replace(now, state=ServerState.CONNECTING, reason=_LOADING_REASON, tools=0)


def _lists_current_tools(status: ServerStatus) -> bool:
    """Whether all that it lists by now is listed with it."""
    return status.state is ServerState.READY or (status.state is ServerState.DEGRADED and not status.stale)


def with_rejected(statuses: Sequence[ServerStatus], set_aside: Sequence[RejectedDefinition]) -> list[ServerStatus]:
    """A provider's statuses, each with the definitions of its namespace that were set aside."""
    more: list[list[Rejected]] = [[] for _ in statuses]
    spaces = [status.namespace or status.name for status in statuses]
    for one in set_aside if statuses else ():
        more[spaces.index(one.namespace) if one.namespace in spaces else 0].append(one.rejected)
    return [_add_rejected(status, rejected) for status, rejected in zip(statuses, more, strict=True)]


def _add_rejected(status: ServerStatus, more: Sequence[Rejected]) -> ServerStatus:
    if not more:
        return status
    return replace(status, tools=max(0, status.tools - len(more)), rejected=(*status.rejected, *more))
