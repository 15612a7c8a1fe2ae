"""Options of the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolcrib.checks import Count, Delay, Natural, Seconds, checked
from toolcrib.middleware.options import CallOptions
from toolcrib.search.options import BUILT_IN_EMBEDDER, PastOptions, SearchOptions


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What is remembered of sessions."""

    learn: bool = True
    """Whether tools that a session used successfully rank higher."""
    sessions: Count = 10_000
    """Sessions that are remembered, and callers if `across` is set; the one unused for longest is forgotten first."""
    across: bool = False
    """Whether tools that a caller used successfully in other sessions rank higher too."""
    pause_s: Seconds = 30.0
    """A search after this time without a search or a call begins a new turn, in seconds."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """How large the result of a call may be in a reply, and how long a larger one is kept behind a handle."""

    tokens: Natural = 8_000
    """Text of a result in a reply, in tokens; 0 means no limit."""
    bytes: Count = 256 * 1024
    """Audio and embedded files of a result in a reply, in bytes of base64."""
    keep_s: Seconds = 24 * 3600.0
    """How long a larger result can be read, in seconds."""
    keep_bytes: Count = 64 * 1024 * 1024
    """Room for all of them together, packed; those of one caller get at most a quarter of it."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of the gateway."""

    search: SearchOptions = field(default_factory=SearchOptions)
    """How tools are ranked, and how many are shown."""
    calls: CallOptions = field(default_factory=CallOptions)
    """The middleware around every call."""
    sessions: SessionOptions = field(default_factory=SessionOptions)
    """What is remembered of sessions."""
    past_requests: PastOptions | None = None
    """How much is remembered of requests after which a tool was called with success; None remembers nothing."""
    keywords: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Additional keywords of shared tools, by id: phrases by which people ask for them."""
    describe: str = ""
    """A function that gives such phrases for a tool, `package.module:function`; empty for none."""
    synonyms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Additional synonyms: words, each with those that may replace it."""
    engine: Literal["memory", "tantivy"] = "memory"
    """Where shared tools are searched: in memory, or on disk in `index`. The latter refuses policies."""
    index: Path | None = None
    """The folder of the index on disk."""
    embedder: str = BUILT_IN_EMBEDDER
    """What compares meanings beside the built-in table: `static` for nothing else, or what `embedders.models.load`
    takes."""
    embed_timeout_s: Delay = 1.0
    """How long a search waits for the embedder, in seconds; then only words and the table are compared."""
    embedder_cache: Path | None = None
    """A file or folder that keeps the embedder's vectors across restarts."""
    index_cache: Path | bool = True
    """A folder that keeps the search index across restarts; True for `index` beside the state file, False for none."""
    group: bool = False
    """Whether near-duplicates are grouped if a request does not say."""
    results: ResultOptions = field(default_factory=ResultOptions)
    """What happens to large results."""
    page_size: Count = 100
    """Tools on each page of a list."""
    search_wait_s: Delay = 20.0
    """How long a session's first search waits for servers that are still starting, in seconds from the search."""
    list_wait_s: Delay = 5.0
    """The same for a session's first list of all tools by name, of prompts or of resources."""
    call_grace_s: Delay = 15.0
    """How long a call waits for its server's first connection, in seconds."""
    list_timeout_s: Delay = 10.0
    """How long a provider may take to list its tools, in seconds."""
    provider_cache_s: Delay = 60.0
    """How long, in seconds, to reuse a shared provider's list if it neither reports changes nor sets a lifetime."""
    request_tools: Natural = 50_000
    """Tools of requests whose indexes are cached."""
    find_timeout_s: Delay = 3.0
    """How long a provider may take to search or to look up a tool, in seconds."""
    idle_s: float = 1.0
    """Seconds without changes before the index is merged in the background."""
    retry_s: Delay = 30.0
    """When a provider that could not list its tools is polled again, and tools that could not be embedded are tried
    again, in seconds; for the latter, the time doubles with each failure up to 20 times.
    """

    def __post_init__(self) -> None:
        """Refuse what an index on disk cannot do."""
        problem = engine_problem(
            self.engine,
            index=self.index,
            scorer=self.search.scorer,
            embedder=self.embedder,
            past=self.past_requests is not None,
        )
        if problem:
            raise ValueError(problem)


def engine_problem(engine: str, *, index: object, scorer: str, embedder: str, past: bool) -> str:
    """Why an engine does not work with the other options of a search; empty if it does.

    >>> engine_problem("tantivy", index="tools-index", scorer="bm25", embedder="static", past=False)
    'the engine tantivy has the scorer hybrid, not bm25'
    """
    if engine == "memory":
        return ""
    if index is None:
        return f"the engine {engine} needs index, the folder for its files"
    if scorer != "hybrid":
        return f"the engine {engine} has the scorer hybrid, not {scorer}"
    if embedder.strip() != BUILT_IN_EMBEDDER:
        return f"the engine {engine} works without an embedder"
    return f"the engine {engine} works without past_requests" if past else ""
