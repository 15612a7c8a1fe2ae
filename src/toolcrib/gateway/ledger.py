"""What the shared providers offer, as they last said, and which of them must be asked again."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Any, Final, NamedTuple

import anyio

from toolcrib.errors import ToolcribError
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.reports import statuses_of
from toolcrib.gateway.snapshot import Offer, unsound_field
from toolcrib.model import BackendKind, Rejected, ServerState, ServerStatus, Tool
from toolcrib.protocols import Backend, Changes, Context, ProviderSource, ToolProvider
from toolcrib.providers.adapt import tool_from
from toolcrib.providers.foreign import uncancelled
from toolcrib.providers.keyed import label

logger = logging.getLogger(__name__)

_SHOWN = 80
"""Characters of a name that a refusal repeats."""
_SHORTEST_S: Final = 1.0
"""How long a list holds at least, whatever its provider says, in seconds: it is asked again without being needed."""
_RANK = {kind: place for place, kind in enumerate(BackendKind)}


class Heard(NamedTuple):
    """Counts of what may have changed a provider's list; none ever goes down."""

    forced: int = -1
    """How often all were to be asked again."""
    source: int = -1
    """How often its source told of a change."""
    own: int = -1
    """The same of the provider itself, where the source knows which one it was; 0 where it does not."""


_NOTHING: Final = Heard()


@dataclass(slots=True, eq=False)
class Entry:
    """One shared provider."""

    backend: Backend
    source: int
    """The place of the source it comes from."""
    tools: tuple[Tool, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    problem: str = ""
    """Why it could not list its tools; empty where it could."""
    since: float = field(default_factory=time.time)
    due: float = 0.0
    """When it must be asked again, by `time.monotonic`."""
    asked: float = 0.0
    """When it answered last."""
    said: tuple[ServerStatus, ...] = ()
    """How its servers stood when it listed these tools."""
    heard: Heard = _NOTHING
    """What had been told when it was asked last."""
    asking: bool = False
    late: bool = False
    """It is being asked, and nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a provider said when it was asked."""

    tools: tuple[Tool, ...]
    rejected: tuple[Rejected, ...]
    problem: str
    due: float
    said: tuple[ServerStatus, ...]
    heard: Heard


class Ledger:
    """One entry a provider, in the order in which they take precedence."""

    def __init__(self, sources: Sequence[ProviderSource], options: GatewayOptions) -> None:
        """Nobody is asked yet."""
        self._sources = tuple(sources)
        self._options = options
        self._entries: dict[int, Entry] = {}
        self._present: list[Sequence[ToolProvider]] = [()] * len(self._sources)
        self._told = [0] * len(self._sources)
        self._forced = 0

    # -- who there is ----------------------------------------------------------------------------------------------

    def refreshed(self) -> list[Entry]:
        """The entries of this moment's providers: local functions first, remote servers last."""
        self._entries = {id(provider): self._entry(place, provider) for place, provider in self._here()}
        return list(self._entries.values())

    def _here(self) -> list[tuple[int, ToolProvider]]:
        """The providers of this moment, each with its source; those of last time, of a source that cannot say."""
        for place, source in enumerate(self._sources):
            try:
                self._present[place] = tuple(source.providers())
            except Exception:
                logger.exception("a source of providers failed; those that it had stay")
        here = [(place, provider) for place, some in enumerate(self._present) for provider in some]
        return sorted(here, key=lambda pair: _RANK[self._sources[pair[0]].kind])

    def _entry(self, place: int, provider: ToolProvider) -> Entry:
        known = self._entries.get(id(provider))
        kind = self._sources[place].kind
        return known or Entry(Backend(kind=kind, name=label(provider), provider=provider), place)

    def offers(self) -> tuple[Offer, ...]:
        """What they offer, as far as it is known."""
        return tuple(Offer(entry.backend, entry.tools, entry.rejected, entry.said) for entry in self._entries.values())

    def entries(self) -> tuple[Entry, ...]:
        """What is known of the providers of this moment, those that were never asked included."""
        return tuple(self._entries.get(id(one)) or self._entry(place, one) for place, one in self._here())

    def lost(self, source: int) -> bool:
        """Whether a provider of that source has gone whose tools were known."""
        try:
            here = {id(provider) for provider in self._sources[source].providers()}
        except Exception:  # noqa: BLE001 - foreign code; whoever asks it next logs that
            return False
        known = tuple(self._entries.items())
        return any(entry.source == source and entry.tools and key not in here for key, entry in known)

    def backends(self) -> list[Backend]:
        """All providers, in order."""
        return [entry.backend for entry in self._entries.values()]

    # -- who must be asked -----------------------------------------------------------------------------------------

    def force(self) -> None:
        """Have all of them asked again."""
        self._forced += 1

    def tell(self, source: int) -> None:
        """Something changed at that source. Two threads must not call it at once."""
        self._told[source] += 1

    def doubt(self, backends: Sequence[Backend]) -> None:
        """Have those asked again that do not run what they listed; at most once a second."""
        for entry in tuple(self._entries.values()):
            if any(entry.backend is backend for backend in backends):
                entry.due = min(entry.due, entry.asked + _SHORTEST_S)

    def wanted(self, entry: Entry) -> bool:
        """Whether it must be asked now."""
        return entry.due <= time.monotonic() or self.told(entry)

    def told(self, entry: Entry) -> bool:
        """Whether something was told since it was asked last that may have changed its list.

        One that failed is left alone until it is due: others of its source may be the ones that changed.
        """
        now, before = self._heard(entry), entry.heard
        if now.forced != before.forced:
            return True
        if self._counts(entry) is not None:
            return now.own not in (0, before.own)
        return now.source != before.source and not entry.problem

    def _heard(self, entry: Entry) -> Heard:
        counts = self._counts(entry)
        own = 0 if counts is None else counts(entry.backend.provider)
        return Heard(self._forced, self._told[entry.source], own)

    def _counts(self, entry: Entry) -> Callable[[ToolProvider], int] | None:
        """What counts the changes of each provider, where the source of this one has it."""
        return getattr(self._sources[entry.source], "changes_of", None)

    def next_due(self) -> float:
        """When the first of them must be asked again, by `time.monotonic`; infinity for never."""
        return min((entry.due for entry in self._entries.values() if not entry.asking), default=inf)

    def rest(self) -> None:
        """Nobody is being asked any more."""
        for entry in self._entries.values():
            entry.asking = entry.late = False

    # -- asking ----------------------------------------------------------------------------------------------------

    async def ask(self, entry: Entry, ctx: Context) -> Answer:
        """What the provider says now; its tools stay those of last time where it fails or hangs."""
        provider, heard = entry.backend.provider, self._heard(entry)
        before = statuses_of(provider)
        try:
            with anyio.fail_after(self._options.list_timeout_s):
                tools, rejected = as_tools(await uncancelled(provider.list_tools(ctx)), entry.tools)
            lasts = self._lasts(provider)
        except Exception as error:
            if not entry.problem:
                logger.warning("%s could not list its tools", entry.backend.name, exc_info=True)
            why = reason(error, self._options.list_timeout_s)
            due = time.monotonic() + self._options.retry_s
            return Answer(entry.tools, entry.rejected, why, due, statuses_of(provider), heard)
        # What it told of while it listed may have changed its list too; then it is asked again.
        said = statuses_of(provider) if self._heard(entry) == heard else before
        return Answer(tools, rejected, "", time.monotonic() + lasts, said, heard)

    @staticmethod
    def note(entry: Entry, answer: Answer) -> None:
        """Keep what a provider said, unless it was asked later already."""
        if answer.heard < entry.heard:
            return
        if bool(answer.problem) != bool(entry.problem):
            entry.since = time.time()
        entry.tools, entry.rejected = answer.tools, answer.rejected
        entry.asked = time.monotonic()
        entry.problem, entry.due, entry.said, entry.heard = answer.problem, answer.due, answer.said, answer.heard

    def _lasts(self, provider: ToolProvider) -> float:
        """How long what it said holds, in seconds: as long as it says, else until its event, else a set time."""
        said = lasting(provider)
        if said is not None:
            return max(_SHORTEST_S, said)
        return inf if isinstance(provider, Changes) else self._options.provider_cache_s


def lasting(provider: object) -> float | None:
    """How long the provider says that its list holds, in seconds; None where it does not say, or says no number."""
    try:
        said = getattr(provider, "cache_for_s", None)
        if isinstance(said, int | float) and not isinstance(said, bool) and not isnan(said):
            return float(said)
    except Exception:
        logger.warning("%s could not say how long its list of tools holds", label(provider), exc_info=True)
    return None


def as_tools(offered: Any, before: tuple[Tool, ...] = ()) -> tuple[tuple[Tool, ...], tuple[Rejected, ...]]:
    """What a provider listed, as tools, and what cannot be read as one.

    The tools are the very same tuple as `before` where nothing changed.
    """
    tools: list[Tool] = []
    rejected: list[Rejected] = []
    for item in offered or ():
        try:
            tools.append(item if isinstance(item, Tool) else tool_from(item))
        except Exception as error:  # noqa: BLE001 - it may be foreign code, and is told in the reason
            why = error.message if isinstance(error, ToolcribError) else f"it cannot be read ({type(error).__name__})"
            rejected.append(Rejected(tool=_named(item), reason=why))
    same = len(tools) == len(before) and all(new is old for new, old in zip(tools, before, strict=True))
    return before if same else tuple(tools), tuple(rejected)


def _named(item: object) -> str:
    try:
        return str(getattr(item, "name", "(unnamed)"))[:_SHOWN]
    except Exception:  # noqa: BLE001 - foreign code, of what is refused anyhow
        return "(unnamed)"


def reason(error: Exception, timeout_s: float) -> str:
    """Why a provider could not list its tools, without anything it may have said of its inside."""
    if isinstance(error, TimeoutError):
        return f"it did not list its tools within {timeout_s:g} s"
    return f"it could not list its tools ({type(error).__name__})"


def status_of(entry: Entry) -> ServerStatus:
    """The status of a provider that does not speak for itself."""
    spaces = {tool.namespace for tool in entry.tools if not unsound_field(tool)}
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
