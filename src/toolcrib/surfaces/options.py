"""Surface settings."""

from dataclasses import dataclass, field
from typing import Final

from toolcrib.discovery.guards import GuardOptions
from toolcrib.tokens import ESTIMATE

SURFACES: Final = ("search", "dynamic", "progressive", "direct")
"""The names of all surfaces; the front knows how each is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceOptions:
    """What the agent sees."""

    surfaces: tuple[str, ...] = ("search",)
    """The surfaces in use, by name: some of `SURFACES`."""
    always_visible: tuple[str, ...] = ()
    """Tools that are listed natively beside a surface, by any accepted spelling."""
    meta_only: bool = False
    """Whether only the meta-tools are listed, and native tools are found like all others."""
    call_many: bool = False
    """Whether the surface `search` also offers `call_many`: several calls at once."""
    summary: bool = False
    """Whether the surface `progressive` also offers `summary`: how many tools the servers have."""
    guards: GuardOptions = field(default_factory=GuardOptions)
    """When a session on the surface `dynamic` is told that it goes round in circles."""
    instructions: str = ""
    """What the server says of itself before what toolcrib says of its tools."""
    prefix: bool = True
    """Whether public names carry the namespace. Without it, two tools of one name refuse to start."""
    digest_tokens: int = 400
    """What the one-line-a-server digest may cost, in estimated tokens."""
    list_page_bytes: int = 512 * 1024
    """The size of a `tools/list` page, in bytes of JSON."""
    reply_tokens: int = 800
    """What the text of a search reply may cost, in tokens; 0 means no limit."""
    tokens: str = ESTIMATE
    """What counts the tokens of a reply: `estimate`, or a vocabulary that `tokens.counter` knows."""
