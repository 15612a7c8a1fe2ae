"""What the shared providers offer, as they last said, and which of them must be asked again."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import anyio

from toolcrib.errors import ToolcribError
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import Offer
from toolcrib.model import BackendKind, Rejected, ServerState, ServerStatus, Tool
from toolcrib.protocols import Backend, Cacheable, Changes, Context, ProviderSource, StatusSource, ToolProvider
from toolcrib.providers.adapt import tool_from
from toolcrib.providers.keyed import label

logger = logging.getLogger(__name__)

_SHOWN = 80
"""Characters of a name that a refusal repeats."""
_RANK = {kind: place for place, kind in enumerate(BackendKind)}


@dataclass(slots=True, eq=False)
class Entry:
    """One shared provider."""

    backend: Backend
    tools: tuple[Tool, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    problem: str = ""
    """Why it could not list its tools; empty where it could."""
    since: float = field(default_factory=time.time)
    due: float = 0.0
    """When it must be asked again, by `time.monotonic`."""
    asking: bool = False
    again: bool = False
    """Something changed while it was being asked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a provider said when it was asked."""

    tools: tuple[Tool, ...]
    rejected: tuple[Rejected, ...]
    problem: str
    due: float


class Ledger:
    """One entry a provider, in the order in which they take precedence."""

    def __init__(self, sources: Sequence[ProviderSource], options: GatewayOptions) -> None:
        """Nobody is asked yet."""
        self._sources = tuple(sources)
        self._options = options
        self._entries: dict[int, Entry] = {}

    def refreshed(self) -> list[Entry]:
        """The entries of this moment's providers: local functions first, remote servers last."""
        present = [(source.kind, provider) for source in self._sources for provider in source.providers()]
        present.sort(key=lambda pair: _RANK[pair[0]])
        self._entries = {id(provider): self._entry(kind, provider) for kind, provider in present}
        return list(self._entries.values())

    def _entry(self, kind: BackendKind, provider: ToolProvider) -> Entry:
        known = self._entries.get(id(provider))
        return known or Entry(Backend(kind=kind, name=label(provider), provider=provider))

    def offers(self) -> tuple[Offer, ...]:
        """What they offer, as far as it is known."""
        return tuple(Offer(entry.backend, entry.tools, entry.rejected) for entry in self._entries.values())

    def backends(self) -> list[Backend]:
        """All providers, in order."""
        return [entry.backend for entry in self._entries.values()]

    def next_due(self) -> float:
        """When the first of them must be asked again, by `time.monotonic`; infinity for never."""
        return min((entry.due for entry in self._entries.values() if not entry.asking), default=inf)

    def waiting(self) -> bool:
        """Whether some provider has not answered yet."""
        return any(entry.asking for entry in self._entries.values())

    async def ask(self, entry: Entry, ctx: Context) -> Answer:
        """What the provider says now; its tools stay those of last time where it fails or hangs."""
        provider = entry.backend.provider
        try:
            with anyio.fail_after(self._options.list_timeout_s):
                tools, rejected = as_tools(await provider.list_tools(ctx), entry.tools)
        except Exception as error:
            if not entry.problem:
                logger.warning("%s could not list its tools", entry.backend.name, exc_info=True)
            why = reason(error, self._options.list_timeout_s)
            return Answer(entry.tools, entry.rejected, why, time.monotonic() + self._options.retry_s)
        return Answer(tools, rejected, "", time.monotonic() + self._lasts(provider))

    @staticmethod
    def note(entry: Entry, answer: Answer) -> None:
        """Keep what a provider said."""
        if bool(answer.problem) != bool(entry.problem):
            entry.since = time.time()
        entry.tools, entry.rejected = answer.tools, answer.rejected
        entry.problem, entry.due = answer.problem, answer.due

    def _lasts(self, provider: ToolProvider) -> float:
        """How long what it said holds, in seconds: as long as it says, else until its event, else a set time."""
        if isinstance(provider, Cacheable):
            return provider.cache_for_s
        return inf if isinstance(provider, Changes) else self._options.provider_cache_s

    def troubles(self) -> list[ServerStatus]:
        """Providers that could not list their tools, and do not speak for themselves."""
        return [_status(entry) for entry in self._entries.values() if entry.problem and _is_mute(entry.backend)]


def as_tools(offered: Any, before: tuple[Tool, ...] = ()) -> tuple[tuple[Tool, ...], tuple[Rejected, ...]]:
    """What a provider listed, as tools, and what cannot be read as one.

    The tools are the very same tuple as `before` where nothing changed.
    """
    tools: list[Tool] = []
    rejected: list[Rejected] = []
    for item in offered or ():
        try:
            tools.append(item if isinstance(item, Tool) else tool_from(item))
        except ToolcribError as error:
            rejected.append(Rejected(tool=str(getattr(item, "name", "(unnamed)"))[:_SHOWN], reason=error.message))
    same = len(tools) == len(before) and all(new is old for new, old in zip(tools, before, strict=True))
    return before if same else tuple(tools), tuple(rejected)


def reason(error: Exception, timeout_s: float) -> str:
    """Why a provider could not list its tools, without anything it may have said of its inside."""
    if isinstance(error, TimeoutError):
        return f"it did not list its tools within {timeout_s:g} s"
    return f"it could not list its tools ({type(error).__name__})"


def _is_mute(backend: Backend) -> bool:
    return not (isinstance(backend.provider, StatusSource) and backend.provider.statuses())


def _status(entry: Entry) -> ServerStatus:
    spaces = {tool.namespace for tool in entry.tools}
    return ServerStatus(
        name=entry.backend.name,
        state=ServerState.DEGRADED if entry.tools else ServerState.FAILED,
        since=entry.since,
        reason=entry.problem,
        tools=len(entry.tools),
        stale=bool(entry.tools),
        transport="local",
        namespace=next(iter(spaces)) if len(spaces) == 1 else "",
    )
