"""Options of the gateway."""

from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.middleware.options import CallOptions
from toolcrib.ranges import Count, Seconds
from toolcrib.search.options import SearchOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """How scripts are run."""

    levels: Count = 3
    """How deep scripts may be nested: a script, one that it calls, and so on; 1 or more."""
    read_only: bool = False
    """Whether every script sees only tools that are marked as read-only."""
    watch_s: Seconds = 2.0
    """How often the folder of stored scripts is checked for changes, in seconds, above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What is remembered of sessions."""

    learn: bool = True
    """Whether tools that a session used with success are found first."""
    sessions: Count = 10_000
    """How many are remembered; the one unused for longest is forgotten first."""
    pause_s: Seconds = 30.0
    """A search after so long without a search or a call begins a new turn, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How the gateway lists, searches and waits."""

    search: SearchOptions = field(default_factory=SearchOptions)
    """How tools are ranked, how many are shown, and when nothing is."""
    calls: CallOptions = field(default_factory=CallOptions)
    """What stands in the way of every call."""
    sessions: SessionOptions = field(default_factory=SessionOptions)
    """What is remembered of what sessions used."""
    synonyms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Words of one's own, each with those that may stand for it, beside those that come with toolcrib."""
    embedder: str = "static"
    """What compares meanings: `static` is the table in the package; `embedders.models.load` describes the others."""
    embedder_cache: Path | None = None
    """A file, or a folder, in which the embedder's vectors are kept across restarts."""
    group: bool = False
    """Whether near-duplicates are shown under the best of them, where a request does not say."""
    page_size: int = 100
    """Tools a page of a listing."""
    start_grace_s: float = 3.0
    """How long after the start a list or search waits for servers that are still connecting, in seconds."""
    call_grace_s: float = 15.0
    """How long a call waits for its server's first connection, in seconds."""
    list_timeout_s: float = 10.0
    """How long a provider may take to list its tools, in seconds."""
    provider_cache_s: float = 60.0
    """How long the list of a shared provider holds that tells neither of changes nor for how long, in seconds."""
    request_tools: int = 50_000
    """How many tools that came with requests are kept ready to be searched when they come again."""
    find_timeout_s: float = 3.0
    """How long a provider that searches by itself, or is asked for one tool, may take, in seconds."""
    idle_s: float = 1.0
    """How long nothing must have changed before the index is put in order in the background, in seconds."""
    retry_s: float = 30.0
    """After how long a provider that could not list its tools is asked again, in seconds, and tools that could not be
    embedded are tried again; the latter each time after twice as long, up to 20 times.
    """
