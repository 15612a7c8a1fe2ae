"""The gateway's settings."""

from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.search.options import SearchOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How the gateway lists, searches and waits."""

    search: SearchOptions = field(default_factory=SearchOptions)
    """How tools are ranked, how many are shown, and when nothing is."""
    synonyms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Words of one's own, each with those that may stand for it, beside those that come with toolcrib."""
    embedder: str = "static"
    """What compares meanings: `static` is the table in the package, anything else what `embedders.load` takes."""
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
    idle_s: float = 1.0
    """How long nothing must have changed before the index is put in order in the background, in seconds."""
    retry_s: float = 30.0
    """After how long tools that could not be embedded are tried again; each time twice as long, up to 20 times."""
