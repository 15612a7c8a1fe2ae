"""The nouns of toolcrib: frozen values without behaviour, shared by every part.

Wire JSON (schemas, content blocks, annotations, `_meta`) is kept as it came, as plain JSON values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

JSON = Any
"""A JSON value: `None`, bool, int, float, str, list or dict with str keys."""

Object = Mapping[str, JSON]
"""A JSON object."""

Detail = Literal["summary", "signature", "full"]
"""How much a hit tells: a line, a one-line signature, or the whole schema."""


class Visibility(StrEnum):
    """Where a tool shows up. It is not access control; that is `Policy`."""

    NATIVE = "native"
    """Listed by name to the client, and found by search."""
    DISCOVERABLE = "discoverable"
    """Not listed; found by search."""
    HIDDEN = "hidden"
    """Neither listed nor found; callable by its exact name."""


VisibilityName = Literal["native", "discoverable", "hidden"]
"""The same in words, where functions take either."""

_VISIBILITIES: Final = tuple(Visibility)


class Key(NamedTuple):
    """A tool's identity. The namespace is empty for a tool that has none."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One callable tool. Identity is `key`; `version` is a field like any other."""

    name: str
    namespace: str = ""
    title: str | None = None
    description: str = ""
    input_schema: Object = field(default_factory=lambda: {"type": "object"})
    output_schema: Object | None = None
    annotations: Object = field(default_factory=dict)
    """MCP's hints: readOnlyHint, destructiveHint, idempotentHint, openWorldHint, title."""
    icons: Sequence[Object] = ()
    keywords: tuple[str, ...] = ()
    """Searched, never listed."""
    tags: tuple[str, ...] = ()
    visibility: Visibility = Visibility.DISCOVERABLE
    version: str | None = None
    meta: Object = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A visibility in words is that visibility; what is none stays, for the check of the definition to refuse."""
        if type(self.visibility) is not Visibility and self.visibility in _VISIBILITIES:
            object.__setattr__(self, "visibility", Visibility(self.visibility))

    @property
    def key(self) -> Key:
        """The pair that identifies the tool."""
        return Key(self.namespace, self.name)

    @property
    def id(self) -> str:
        """The canonical id: `namespace:name`, or the bare name without a namespace."""
        return f"{self.namespace}:{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A definition that was set aside, alone, and why."""

    tool: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call gave, as it came over the wire.

    `kind` is "input_required" when the tool asks for more before it can finish (protocol 2026-07-28); then
    `input_requests` and `request_state` say what it needs.
    """

    content: tuple[Object, ...] = ()
    structured: JSON = None
    """`structuredContent`; None where there was none."""
    is_error: bool = False
    meta: Object = field(default_factory=dict)
    kind: Literal["complete", "input_required"] = "complete"
    input_requests: Object | None = None
    request_state: str | None = None


class Reason(NamedTuple):
    """Why a tool was found: one word of the query, where it met the tool, and how."""

    word: str
    """Of the query, as it was typed; several for a phrase, empty for the query as a whole."""
    field: str
    """name, namespace, title, description, keywords, tags, parameters, domain, session, or all."""
    how: str
    """exact, stem, prefix, part, synonym, spelling, meaning, phrase, type, verb, use, or mismatch."""
    matched: str = ""
    """The word of the tool that was met, where it is not the query's own."""
    gain: float = 0.0
    """What it added, in the scorer's own units; below 0 for what speaks against the tool."""


class ScorePart(NamedTuple):
    """One line of a hit's arithmetic: `value * weight` is what it added to `Hit.raw`."""

    name: str
    value: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One tool that a search found."""

    tool: Tool
    score: float
    """0..1; the same meaning across queries and catalogs."""
    raw: float
    """The scorer's own figure, in its own units."""
    reasons: Sequence[Reason] = ()
    """What added most first."""
    matched: tuple[str, ...] = ()
    """The query words that the tool covers, in the query's order."""
    signature: str = ""
    """One line: the name, its parameters and their types."""
    query: int = 0
    """The place of the query it answers, from 0."""
    detail: Detail = "full"
    """How much of the tool a reply shows; a budget may lower it."""
    weak: bool = False
    """Shown, although the search is not sure that anything fits."""
    fallback: bool = False
    """Fits nothing that was asked; shown because the settings want an answer in any case."""
    similar: tuple[str, ...] = ()
    """Ids of near-duplicates of the tool that are shown under it, where the request asked for groups."""
    parts: tuple[ScorePart, ...] = ()
    """What `raw` is the sum of, where the request asked to explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a search is narrowed to. Empty means no restriction."""

    namespaces: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    """A tool passes when it has them all."""
    read_only: bool | None = None
    visibility: frozenset[Visibility] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """One search. A query without words lists every visible tool, by id."""

    queries: tuple[str, ...] = ("",)
    """One text counts as one query."""
    limit: int | None = None
    """Hits a query; None means the default. Out of range is clamped."""
    filters: Filters = Filters()
    detail: Detail = "full"
    budget: int | None = None
    """Tokens a reply may cost; None means no limit."""
    explain: bool = False
    """Give each hit its arithmetic."""
    group: bool = False
    """Show near-duplicates, of other servers above all, under the best of them."""
    cursor: str | None = None
    """Continues a list; only for a query without words."""

    def __post_init__(self) -> None:
        """Several letters are never several queries."""
        given: Any = self.queries
        if isinstance(given, str):
            object.__setattr__(self, "queries", (given,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Who a server says it is."""

    name: str = ""
    version: str = ""
    title: str = ""
    description: str = ""
    instructions: str = ""


class BackendKind(StrEnum):
    """What runs a tool; in the order in which they are asked."""

    LOCAL = "local"
    """A function of this process."""
    PROVIDER = "provider"
    """A `ToolProvider`."""
    MCP = "mcp"
    """A remote MCP server."""


class ServerState(StrEnum):
    """Where a server stands."""

    CONFIGURED = "configured"
    """Known; nothing was tried yet."""
    CONNECTING = "connecting"
    """A first attempt is under way."""
    READY = "ready"
    """Connected; its tools are current."""
    DEGRADED = "degraded"
    """Something is wrong, but its last good tools are served, marked stale."""
    FAILED = "failed"
    """Not usable, for the reason given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """One server, as an operator or a model should see it."""

    name: str
    state: ServerState
    since: float
    """When it entered the state; seconds since the epoch."""
    reason: str = ""
    """Why it is not ready; empty when it is."""
    tools: int = 0
    rejected: tuple[Rejected, ...] = ()
    stale: bool = False
    """The tools are from an earlier connection."""
    transport: str = ""
    """stdio, http, sse, or local."""
    protocol: str = ""
    """The protocol version that was agreed on; empty before."""
    info: ServerInfo = ServerInfo()
    retry_at: float | None = None
    """When the next attempt is due; seconds since the epoch."""
    namespace: str = ""
    """Of its tools, where that is not its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReply:
    """What a search gave, for one caller's view."""

    hits: tuple[Hit, ...] = ()
    unmatched: tuple[str, ...] = ()
    """Words of the queries that meet no tool of the view."""
    nearest: tuple[str, ...] = ()
    """Ids of tools with a name close to what was asked, where nothing fits."""
    servers: tuple[ServerStatus, ...] = ()
    """Servers that could not be asked, or whose tools are stale."""
    note: str = ""
    """What to try next, or what was left out."""
    cursor: str | None = None
    """Continues a list; None at its end."""
    total: int = 0
    """How many tools matched before the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks."""

    id: str
    tenant: str | None = None
    scopes: frozenset[str] = frozenset()


class Action(StrEnum):
    """What a caller wants to do with a tool."""

    SEE = "see"
    CALL = "call"


class Decision(StrEnum):
    """What a policy says."""

    ALLOW = "allow"
    HIDE = "hide"
    APPROVE = "approve"
