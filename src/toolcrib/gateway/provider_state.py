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
from toolcrib.gateway.keywords import ToolKeywords
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import ProviderTools, RejectedDefinition, invalid_field
from toolcrib.providers.adapters import Adapter, adapt, check_list, name_of
from toolcrib.providers.base import Backend, Provider, ProviderFeature, ProviderSource, display_name
from toolcrib.providers.definitions import parse_tool
from toolcrib.sanitize import MAX_REASON, one_line
from toolcrib.types import BackendKind, Context, Rejected, ServerState, ServerStatus, Tool

logger = logging.getLogger(__name__)


_MIN_CACHE_S: Final = 1.0
"""The least time a list is valid, whatever its provider says, in seconds: it is polled again even if unused."""
_DOUBT_FACTOR: Final = 10
"""How many times as long as it took to list its tools a provider is left alone before a missing tool is asked for."""

_KINDS: Final = tuple(BackendKind)


class ChangeCounts(NamedTuple):
    """Counts of events that may have changed a provider's list; they only go up."""

    forced: int = -1
    """Of `force_all`."""
    source: int = -1
    """Of changes that the provider's source reported."""
    own: int = -1
    """Of changes that the source reported for this provider; 0 if it does not report them for each provider."""


_NO_CHANGES: Final = ChangeCounts()


@dataclass(frozen=True, slots=True)
class PollResult:
    """What a provider listed last."""

    tools: tuple[Tool, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    problem: str = ""
    """Why it could not list its tools; empty if it could."""
    due_at: float = 0.0
    """When it must be polled again, by `time.monotonic`."""
    statuses: tuple[ServerStatus, ...] = ()
    """The statuses of its servers when it listed these tools."""
    seen: ChangeCounts = _NO_CHANGES
    """The counts when it was polled."""
    polled_at: float = 0.0
    """When it answered, by `time.monotonic`."""
    doubt_after_s: float = 0.0
    """How long after that it may be asked whether it has a tool that it did not list."""
    since: float = field(default_factory=time.time)
    """Since when it has, or has not, been able to list its tools; seconds since the epoch."""


@dataclass(slots=True, eq=False)
class ProviderState:
    """One shared provider."""

    backend: Backend
    source: int
    """Index of its source."""
    last: PollResult = field(default_factory=PollResult)
    """Replaced as a whole, so that other threads see a consistent one."""
    polling: bool = False
    late: bool = False
    """It is being polled, and the snapshot was built without its answer."""
    with_keywords: tuple[tuple[Tool, ...], int, tuple[Tool, ...]] | None = None
    """The tools that it listed, the version of the keywords, and the tools with these."""

    @property
    def problem(self) -> str:
        """Why it could not list its tools; empty if it could."""
        return self.last.problem


class ProviderRegistry:
    """The shared providers of all sources, in order of precedence, with the state of each."""

    def __init__(self, sources: Sequence[ProviderSource], options: GatewayOptions, keywords: ToolKeywords) -> None:
        self._keywords = keywords
        self._sources = tuple(sources)
        self._options = options
        self._states: dict[int, ProviderState] = {}
        self._present: list[Sequence[Provider]] = [()] * len(self._sources)
        self._source_changes = [0] * len(self._sources)
        self._forced = 0

    # -- providers -------------------------------------------------------------------------------------------------

    def reload(self) -> list[ProviderState]:
        """Read the providers from their sources: local functions first, remote servers last."""
        self._states = {id(provider): self._state(place, provider) for place, provider in self._current_providers()}
        return list(self._states.values())

    def _current_providers(self) -> list[tuple[int, Provider]]:
        """Return the current providers, each with the index of its source; a failing source keeps its last ones."""
        for place, source in enumerate(self._sources):
            try:
                self._present[place] = tuple(map(adapt, source.providers()))
            except Exception:
                logger.exception("a source of providers failed; its last known providers stay")
        found = [(place, provider) for place, some in enumerate(self._present) for provider in some]
        return sorted(found, key=lambda pair: _KINDS.index(self._sources[pair[0]].kind))

    def _state(self, place: int, provider: Provider) -> ProviderState:
        known = self._states.get(id(provider))
        kind = self._sources[place].kind
        return known or ProviderState(Backend(kind=kind, name=display_name(provider), provider=provider), place)

    def provider_tools(self) -> tuple[ProviderTools, ...]:
        """Return what the providers listed last, with the keywords from outside."""
        return tuple(self._with_keywords(state) for state in tuple(self._states.values()))

    def _with_keywords(self, state: ProviderState) -> ProviderTools:
        last, known, version = state.last, state.with_keywords, self._keywords.version
        if known is None or known[0] is not last.tools or known[1] != version:
            known = state.with_keywords = last.tools, version, self._keywords.apply(last.tools)
        return ProviderTools(state.backend, known[2], last.rejected, last.statuses)

    def listed_tools(self) -> list[Tool]:
        """Return the tools of all providers as they listed them, without those that cannot be used."""
        return [tool for state in tuple(self._states.values()) for tool in state.last.tools if not invalid_field(tool)]

    def states(self) -> tuple[ProviderState, ...]:
        """Return the states of the current providers, including those that were never polled."""
        return tuple(self._states.get(id(one)) or self._state(place, one) for place, one in self._current_providers())

    def has_lost_provider(self, source: int) -> bool:
        """Whether a provider of that source is gone whose tools were known."""
        try:
            current = {id(adapt(provider)) for provider in self._sources[source].providers()}
        except Exception:  # noqa: BLE001 - third-party code; the next reload logs the failure
            return False
        known = tuple(self._states.items())
        return any(state.source == source and state.last.tools and key not in current for key, state in known)

    def backends(self) -> list[Backend]:
        """Return all providers in order."""
        return [state.backend for state in self._states.values()]

    # -- when to poll ----------------------------------------------------------------------------------------------

    def force_all(self) -> None:
        """Make every provider due. Not thread-safe."""
        self._forced += 1

    def source_changed(self, source: int) -> None:
        """Note that a source reported a change. Not thread-safe."""
        self._source_changes[source] += 1

    def invalidate(self, backends: Sequence[Backend]) -> None:
        """Make providers due that do not run what they listed, at most once a second."""
        for state in tuple(self._states.values()):
            if any(state.backend is backend for backend in backends):
                last = state.last
                state.last = replace(last, due_at=min(last.due_at, last.polled_at + _MIN_CACHE_S))

    def doubt(self) -> bool:
        """Make providers due that report no changes, even if their list should still be valid; return whether any is.

        A provider whose list takes long is not asked again at once: at most a tenth of the time goes to this. Not
        thread-safe.
        """
        now, found = time.monotonic(), False
        for state in tuple(self._states.values()):
            last = state.last
            asked = state.backend.kind is BackendKind.PROVIDER and not state.polling and not last.problem
            reports = ProviderFeature.CHANGES in state.backend.provider.features
            if asked and not reports and now >= last.polled_at + last.doubt_after_s:
                state.last, found = replace(last, due_at=now), True
        return found

    def is_due(self, state: ProviderState) -> bool:
        """Whether the provider must be polled now."""
        return state.last.due_at <= time.monotonic() or self.has_changed(state)

    def has_changed(self, state: ProviderState) -> bool:
        """Whether something was reported since the last poll that may have changed the provider's list.

        One that failed waits until it is due, because another provider of its source may be the one that changed.
        """
        now, before = self._change_counts(state), state.last.seen
        if now.forced != before.forced:
            return True
        if self._provider_counter(state) is not None:
            return now.own not in (0, before.own)
        return now.source != before.source and not state.last.problem

    def _change_counts(self, state: ProviderState) -> ChangeCounts:
        counter = self._provider_counter(state)
        own = 0 if counter is None else counter(state.backend.provider)
        return ChangeCounts(self._forced, self._source_changes[state.source], own)

    def _provider_counter(self, state: ProviderState) -> Callable[[Provider], int] | None:
        """Return the function that counts the changes of each provider, if the source has one."""
        return getattr(self._sources[state.source], "change_count", None)

    def next_due(self) -> float:
        """Return when the first list expires, by `time.monotonic`; infinite if none does."""
        return min((state.last.due_at for state in self._states.values() if not state.polling), default=inf)

    def reset(self) -> None:
        """Forget the polls under way."""
        for state in self._states.values():
            state.polling = state.late = False

    # -- polling ---------------------------------------------------------------------------------------------------

    async def poll(self, state: ProviderState, ctx: Context) -> None:
        """List the provider's tools; if it fails or hangs, the tools of last time stay."""
        provider, last, seen = state.backend.provider, state.last, self._change_counts(state)
        began = time.monotonic()
        before = provider_statuses(provider)
        try:
            with anyio.fail_after(self._options.list_timeout_s):
                tools, rejected = read_tools(await contained(provider.list_tools(ctx)), last.tools, state.backend.name)
            rejected += provider.left_out if isinstance(provider, Adapter) else ()
            problem, valid_s = "", self._cache_s(provider)
        except Exception as error:
            problem = failure_reason(error, self._options.list_timeout_s)
            if problem != last.problem:
                logger.warning("%s could not list its tools: %s", state.backend.name, problem, exc_info=True)
            tools, rejected, valid_s = last.tools, last.rejected, self._options.retry_s
        # A change reported meanwhile may not be in the list: then it is polled again, and the old statuses hold.
        is_current = problem or self._change_counts(state) == seen
        now = time.monotonic()
        result = PollResult(
            tools=tools,
            rejected=rejected,
            problem=problem,
            due_at=now + valid_s,
            statuses=provider_statuses(provider) if is_current else before,
            seen=seen,
            polled_at=now,
            doubt_after_s=_DOUBT_FACTOR * (now - began),
        )
        self._record(state, result)

    @staticmethod
    def _record(state: ProviderState, result: PollResult) -> None:
        """Keep a result, unless a later poll has answered already."""
        last = state.last
        if result.seen >= last.seen:
            has_same_outcome = bool(result.problem) == bool(last.problem)
            state.last = replace(result, since=last.since) if has_same_outcome else result

    def _cache_s(self, provider: Provider) -> float:
        """Return how long a list is valid, in seconds: as its provider says, else until its event, else a set time."""
        declared = declared_cache_s(provider)
        if declared is not None:
            return max(_MIN_CACHE_S, declared)
        return inf if ProviderFeature.CHANGES in provider.features else self._options.provider_cache_s


def declared_cache_s(provider: Provider) -> float | None:
    """Return how long the provider says its list is valid, in seconds; None if it does not say a number."""
    try:
        said = provider.cache_for_s
        if isinstance(said, int | float) and not isinstance(said, bool) and not isnan(said):
            return float(said)
    except Exception:
        logger.warning("%s could not say how long its list of tools is valid", display_name(provider), exc_info=True)
    return None


def read_tools(
    offered: Any, before: tuple[Tool, ...] = (), who: str = "The provider"
) -> tuple[tuple[Tool, ...], tuple[Rejected, ...]]:
    """Read what a provider listed: the tools, and what cannot be read as a tool.

    The tools are the same tuple as `before` if nothing changed. Raises `InvalidTool` for what is not a list.
    """
    tools: list[Tool] = []
    rejected: list[Rejected] = []
    for item in check_list(offered, who):
        try:
            tools.append(item if isinstance(item, Tool) else parse_tool(item))
        except Exception as error:  # noqa: BLE001 - third-party code; the reason names it
            why = error.message if isinstance(error, ToolcribError) else f"it cannot be read ({type(error).__name__})"
            rejected.append(Rejected(tool=name_of(item), reason=why))
    same = len(tools) == len(before) and all(new is old for new, old in zip(tools, before, strict=True))
    return before if same else tuple(tools), tuple(rejected)


def failure_reason(error: Exception, timeout_s: float) -> str:
    """Say why a provider could not list its tools: in our own words, or without the message of its exception."""
    if isinstance(error, TimeoutError):
        return f"it did not list its tools within {timeout_s:g} s"
    if isinstance(error, ToolcribError):
        return f"it could not list its tools: {one_line(error.message, MAX_REASON).rstrip('.')}"
    return f"it could not list its tools ({type(error).__name__})"


def status_of_state(state: ProviderState) -> ServerStatus:
    """Return the status of a provider that reports none itself."""
    last = state.last
    spaces: set[str] = set()
    for tool in last.tools:  # a few checks, however many tools there are
        namespace: Any = tool.namespace  # of any type in an invalid tool
        if isinstance(namespace, str) and namespace not in spaces and not invalid_field(tool):
            spaces.add(namespace)
        if len(spaces) > 1:
            break
    trouble = ServerState.DEGRADED if last.tools else ServerState.FAILED
    return ServerStatus(
        name=state.backend.name,
        state=trouble if last.problem else ServerState.READY,
        since=last.since,
        reason=last.problem,
        tools=len(last.tools) + len(last.rejected),
        stale=bool(last.problem and last.tools),
        transport="local",
        namespace=next(iter(spaces)) if len(spaces) == 1 else "",
    )


_LOADING_REASON: Final = "its tools are being loaded"
_NOT_LOADED_REASON: Final = "its tools could not be loaded; the log has the cause"


def provider_statuses(provider: Provider) -> tuple[ServerStatus, ...]:
    """Return the statuses that a provider reports; none if it has no servers or fails."""
    try:
        reported = tuple(provider.statuses())
    except (Exception, asyncio.CancelledError):
        logger.warning("%s could not report the status of its servers", display_name(provider), exc_info=True)
        return ()
    valid = tuple(status for status in reported if _is_valid_status(status))
    if len(valid) < len(reported):
        logger.warning("%s reported %d invalid statuses", display_name(provider), len(reported) - len(valid))
    return valid


def _is_valid_status(status: object) -> bool:
    if not isinstance(status, ServerStatus):
        return False
    kinds = {"name": str, "namespace": str, "reason": str, "state": ServerState, "tools": int, "rejected": tuple}
    fits = all(isinstance(getattr(status, name), kind) for name, kind in kinds.items())
    return fits and all(isinstance(one, Rejected) for one in status.rejected)


def statuses_for_snapshot(
    now: Sequence[ServerStatus], taken: Sequence[ServerStatus], *, failed: bool = False
) -> tuple[ServerStatus, ...]:
    """Return statuses in which a server is ready, or its tools are known, only once these can be found.

    `taken` are the statuses that came with the tools in the snapshot; `failed` means that the last build failed.
    """
    before = {status.name: status for status in taken}
    return tuple(_status_for_snapshot(status, before.get(status.name), failed=failed) for status in now)


def _status_for_snapshot(now: ServerStatus, taken: ServerStatus | None, *, failed: bool) -> ServerStatus:
    if taken is not None and _lists_tools(taken):
        # If it has connected meanwhile, the snapshot still has its old tools.
        return taken if _lists_current_tools(now) and not _lists_current_tools(taken) else now
    if not _lists_tools(now):
        return now
    if failed:
        return replace(now, state=ServerState.DEGRADED, reason=_NOT_LOADED_REASON, tools=0)
    loading = replace(now, state=ServerState.CONNECTING, reason=_LOADING_REASON, tools=0)
    return replace(loading, cached=False, stale=False, hung=False, as_of=None)


def _lists_tools(status: ServerStatus) -> bool:
    """Whether the server's list has tools of this run, of an earlier connection or of an earlier run."""
    return _lists_current_tools(status) or status.stale or status.cached


def _lists_current_tools(status: ServerStatus) -> bool:
    """Whether the server's list of tools is up to date."""
    return status.state is ServerState.READY or (status.state is ServerState.DEGRADED and not status.stale)


def with_rejected(
    statuses: Sequence[ServerStatus],
    definitions: Sequence[RejectedDefinition],
    marked: Sequence[RejectedDefinition] = (),
) -> list[ServerStatus]:
    """Add the definitions that were rejected or marked to the status of the server with their namespace."""
    refused, remarks = _by_status(statuses, definitions), _by_status(statuses, marked)
    return [
        _add_marked(_add_rejected(status, rejected), more)
        for status, rejected, more in zip(statuses, refused, remarks, strict=True)
    ]


def _by_status(statuses: Sequence[ServerStatus], definitions: Sequence[RejectedDefinition]) -> list[list[Rejected]]:
    more: list[list[Rejected]] = [[] for _ in statuses]
    spaces = [status.namespace or status.name for status in statuses]
    for one in definitions if statuses else ():
        more[spaces.index(one.namespace) if one.namespace in spaces else 0].append(one.rejected)
    return more


def _add_marked(status: ServerStatus, more: Sequence[Rejected]) -> ServerStatus:
    """Add what the status does not say already: a server remarks on its own definitions."""
    known = {one.tool for one in status.marked if one.state != "suspect"}
    new = [one for one in more if one.tool not in known]
    return replace(status, marked=(*status.marked, *new)) if new else status


def _add_rejected(status: ServerStatus, more: Sequence[Rejected]) -> ServerStatus:
    if not more:
        return status
    return replace(status, tools=max(0, status.tools - len(more)), rejected=(*status.rejected, *more))
