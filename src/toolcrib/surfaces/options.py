"""Settings of surfaces: frozen values without heavy imports."""

from dataclasses import dataclass, field
from typing import Annotated, Final

from toolcrib.checks import Count, Natural, checked, whole_from
from toolcrib.discovery.guards import GuardOptions
from toolcrib.file_values import InFiles, OneOf, Text
from toolcrib.tokens import ESTIMATE

SURFACES: Final = ("search", "dynamic", "progressive", "direct")
"""The names of all surfaces; `surfaces.builtin` makes them."""


def _surfaces_problem(names: tuple[str, ...]) -> str:
    return "" if names else f"must name one of {', '.join(SURFACES)}"


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceOptions:
    """Which meta-tools and tools agents see, and what lists and replies may cost."""

    surfaces: Annotated[tuple[Annotated[str, OneOf(SURFACES)], ...], InFiles(_surfaces_problem)] = ("search",)
    """The surfaces in use, by name: some of `SURFACES`."""
    always_visible: tuple[str, ...] = ()
    """Tools to list by name beside the meta-tools, in any accepted spelling."""
    apps: bool = True
    """Whether to list tools with an app (MCP Apps) by name beside the meta-tools, for clients that can show it."""
    app_tokens: Natural = 2_000
    """Budget of these tools in a list, in tokens; 0 means no limit. Those above it are found like any other."""
    meta_only: bool = False
    """Whether to list only the meta-tools, so that native tools have to be searched for like all others."""
    read_tool: bool = True
    """Whether the surface `search` also has `read_tool`, which runs only tools that say that they only read."""
    call_many: bool = False
    """Whether the surface `search` also has `call_many`, which runs several calls at once."""
    summary: bool = False
    """Whether the surface `progressive` also has `summary`, which counts the tools of the servers."""
    guards: GuardOptions = field(default_factory=GuardOptions)
    """When to warn a session on the surface `dynamic` that it repeats itself."""
    instructions: Text = ""
    """Instructions for clients, before those that toolcrib adds."""
    prefix: bool = True
    """Whether public names include the namespace. Without it, two tools with the same name prevent the start."""
    digest_tokens: Natural = 400
    """Budget of the digest of servers, in estimated tokens."""
    list_page_bytes: Annotated[Count, InFiles(whole_from(1024))] = 512 * 1024
    """The size of a `tools/list` page, in bytes of JSON."""
    reply_tokens: Natural = 800
    """Budget of the text of a search reply, in tokens; 0 means no limit."""
    structured_replies: bool = True
    """Whether a search reply is structured content as well as text; one to a request with `detail` or `budget` is."""
    tokens: str = ESTIMATE
    """How to count the tokens of a reply: `estimate`, or a vocabulary that `tokens.counter` knows."""
