"""Shared types: the frozen values, and the protocols of the parts that an application can replace.

Values only describe themselves. Wire JSON (schemas, content blocks, annotations, `_meta`) stays plain JSON, as
it was received. Nothing here imports another module of toolcrib except the errors, or MCP.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from toolcrib.checks import checked
from toolcrib.errors import ExecutionFailed, InvalidTool, NotAuthenticated, ToolFailed

JSON = Any
"""A JSON value: `None`, bool, int, float, str, list or dict with str keys."""


Object = Mapping[str, JSON]
"""A JSON object."""


Detail = Literal["summary", "signature", "full"]
"""How much of a hit is shown: a line, a one-line signature, or the whole schema."""


Wrapped = TypeVar("Wrapped")


class Visibility(StrEnum):
    """Where a tool is listed and found. Not access control; that is `Policy`."""

    NATIVE = "native"
    """Listed by name to the client, and found by search."""
    DISCOVERABLE = "discoverable"
    """Not listed; found by search."""
    HIDDEN = "hidden"
    """Neither listed nor found; callable by its exact name."""


VisibilityName = Literal["native", "discoverable", "hidden"]
"""The values of `Visibility`, for functions that take either."""


_VISIBILITIES: Final = tuple(Visibility)


@dataclass(frozen=True, slots=True, eq=False)
class SameObject(Generic[Wrapped]):
    """An object as a key: equal to itself only, and kept, so that no other object takes its place in memory."""

    wrapped: Wrapped

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.wrapped is self.wrapped

    def __hash__(self) -> int:
        return id(self.wrapped)


class Key(NamedTuple):
    """A tool's identity. The namespace may be empty."""

    namespace: str
    name: str

    @property
    def id(self) -> str:
        """The canonical id: `namespace:name`, or the bare name without a namespace.

        >>> Key("git", "log").id, Key("", "log").id
        ('git:log', 'log')
        """
        return f"{self.namespace}:{self.name}" if self.namespace else self.name


@checked(error=InvalidTool, shallow=True)
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
    """MCP's icons, as wire JSON."""
    execution: Object = field(default_factory=dict)
    """MCP's `execution` for clients of 2025-11-25: whether a call may run as a task."""
    keywords: tuple[str, ...] = ()
    """Words that a search finds it by, and that no list shows."""
    tags: tuple[str, ...] = ()
    visibility: Visibility = Visibility.DISCOVERABLE
    version: str | None = None
    meta: Object = field(default_factory=dict)
    extra: Object = field(default_factory=dict, repr=False, compare=False)
    """Of a server's definition, its keys in order: with the values of those that have no field here, and of the others,
    whether the server sent more than an empty value.
    """

    def __post_init__(self) -> None:
        """Coerce known strings to `Visibility`; leave invalid values for validation to reject."""
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

    @property
    def may_be_task(self) -> bool:
        """Whether a call may run as a task, in a session of 2025-11-25."""
        return self.execution.get("taskSupport") in ("optional", "required")


DefinitionState = Literal["rejected", "held", "repaired", "unchecked", "suspect"]
"""What became of a definition: it is not used; it is not used until a person trusts it; it is used in a repaired form;
it is used, and its arguments are checked by its server alone; or it is used although the lint found something.
"""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A definition that is not used, or not used as it came, and why."""

    tool: str
    reason: str
    state: DefinitionState = "rejected"
    since: float = 0.0
    """When this was found, in seconds since the epoch; 0 if that is not known."""
    todo: str = ""
    """What a person can do about it."""

    @property
    def held(self) -> bool:
        """Whether it is not in use only until a person trusts it."""
        return self.state == "held"

    @property
    def text(self) -> str:
        """The reason, and what can be done.

        >>> Rejected(tool="a", reason="It is new.", todo="`toolcrib trust` accepts it").text
        'It is new; `toolcrib trust` accepts it'
        """
        return f"{self.reason.rstrip('.')}; {self.todo}" if self.todo else self.reason


@checked(shallow=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a call, as received over the wire. `text` and `data` are its parts as most programs want them.

    >>> result = ToolResult(content=({"type": "text", "text": '{"sum": 8}'},))
    >>> result.text, result.data
    ('{"sum": 8}', {'sum': 8})
    """

    content: tuple[Object, ...] = ()
    """The content blocks as wire JSON: texts, images, audio and resources."""
    structured: JSON = None
    """The `structuredContent`; None if there was none."""
    is_error: bool = False
    """Whether the tool ran and reported an error; the content then says what went wrong."""
    meta: Object = field(default_factory=dict)
    """The result's `_meta`."""
    kind: Literal["complete", "input_required", "task"] = "complete"
    """It is "input_required" if the tool asks for more before it can finish (protocol 2026-07-28), and "task" if the
    call goes on as a task, which `structured` describes (2025-11-25).
    """
    input_requests: Object | None = None
    """What the tool asks for, if it needs more input."""
    request_state: str | None = None
    """A value of the server that the repeated call has to carry, if the tool needs more input."""
    extra: Object | None = field(default=None, repr=False, compare=False)
    """Of a server's result, its keys in order: with the values of those that have no field here, and of the others,
    whether the server sent more than an empty value, or null for null. None for any other result.
    """

    @property
    def text(self) -> str:
        """The text blocks, joined by line breaks; empty if there is none."""
        blocks = (block.get("text") for block in self.content if block.get("type") == "text")
        return "\n".join(text for text in blocks if isinstance(text, str))

    @property
    def data(self) -> JSON:
        """The structured content; without it, the value of a single text block that is JSON; else None.

        >>> ToolResult(structured={"n": 1}).data, ToolResult(content=({"type": "text", "text": "noon"},)).data
        ({'n': 1}, None)
        """
        if self.structured is not None or len(self.content) != 1:
            return self.structured
        try:
            return json.loads(self.text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return None

    def raise_for_error(self) -> Self:
        """Return this result, or raise `ToolFailed` with its text if the tool reported an error.

        Raises `ExecutionFailed` if the tool asks for more input.

        >>> ToolResult(is_error=True, content=({"type": "text", "text": "No such city."},)).raise_for_error()
        Traceback (most recent call last):
        toolcrib.errors.ToolFailed: No such city.
        """
        if self.is_error:
            raise ToolFailed(self.text.strip() or self._structured_text() or "The tool failed without a reason.")
        if self.kind == "input_required":
            raise ExecutionFailed(
                "The tool needs more input before it can finish.",
                hint="Call it through a client that supports elicitation.",
            )
        return self

    def _structured_text(self) -> str:
        if self.structured is None:
            return ""
        return json.dumps(self.structured, ensure_ascii=False, separators=(",", ":"), default=str)


def _refuse_constant(name: str) -> JSON:
    raise ValueError(f"{name} is not JSON.")


class Reason(NamedTuple):
    """Why a tool was found: a word of the query, the field that it matched, and how."""

    word: str
    """The word as it was typed. A phrase has several; it is empty if the query as a whole matches."""
    field: str
    """Where it matched: name, namespace, title, description, keywords, tags, parameters, domain, session, or all."""
    how: str
    """How it matched: exact, stem, prefix, part, synonym, spelling, meaning, phrase, type, verb, use, or mismatch."""
    matched: str = ""
    """The matched word of the tool, if it differs from the query's."""
    gain: float = 0.0
    """What it added to the score, in the scorer's own units; negative for a penalty."""


class ScorePart(NamedTuple):
    """One term of a hit's score: `value * weight` is what it added to `Hit.raw`."""

    name: str
    value: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One tool that a search found."""

    tool: Tool
    score: float
    """How well it matches, from 0 to 1. A value means the same for every query and catalog."""
    raw: float
    """The score in the scorer's own units, which have no upper bound."""
    reasons: Sequence[Reason] = ()
    """Why it was found; the reason with the largest gain comes first."""
    matched: tuple[str, ...] = ()
    """The query words that the tool covers, in the query's order."""
    signature: str = ""
    """The tool on one line: its name, its parameters and their types."""
    query: int = 0
    """Which of the request's queries it answers, counted from 0."""
    detail: Detail = "full"
    """How much of the tool a reply shows; a budget may lower it."""
    weak: bool = False
    """Whether it is shown although the search is not sure that anything matches."""
    fallback: bool = False
    """Whether it does not match at all, and is shown because the settings require an answer in any case."""
    named: bool = False
    """Whether the query names the tool in full: it comes first, whatever the limit."""
    similar: tuple[str, ...] = ()
    """The ids of the tools that are grouped under it, if the request asked for groups."""
    parts: tuple[ScorePart, ...] = ()
    """The terms that add up to `raw`, if the request asked to explain the score."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Filters of a search. Empty means no restriction."""

    namespaces: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    """A tool passes if it has all of them."""
    read_only: bool | None = None
    """True keeps the tools that are marked as changing nothing, False the others."""
    visibility: frozenset[Visibility] = frozenset()
    """A tool passes if it has one of them."""


@checked(also={"queries": str})
@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """One search. A query without words lists every visible tool, by id."""

    queries: tuple[str, ...] = ("",)
    """What to search for. A single string is one query. Several are several needs, and hits say which one they answer;
    with `phrasings`, they are one need in other words."""
    phrasings: bool = False
    """Whether the queries say the same in other words: their hits are one list, each with the best of its scores."""
    limit: int | None = None
    """The maximum number of hits for each query; None means the default. Values out of range are clamped."""
    filters: Filters = Filters()
    detail: Detail = "full"
    budget: int | None = None
    """How many tokens the reply may cost; None means no limit."""
    explain: bool = False
    """Whether each hit has the terms of its score."""
    group: bool = False
    """Whether near-duplicates, mostly of other servers, are grouped under the best of them."""
    group_same: bool = False
    """Whether the same tool of several servers is one hit: with the same parameters and almost the same description."""
    cursor: str | None = None
    """The cursor of the reply before, to continue a list or the hits of one query."""

    def __post_init__(self) -> None:
        """Coerce a string to one query, not one for each character, and an empty cursor to none."""
        given: Any = self.queries
        if isinstance(given, str):
            object.__setattr__(self, "queries", (given,))
        if self.cursor == "":
            object.__setattr__(self, "cursor", None)

    @classmethod
    def of(cls, query: str | Sequence[str], **more: Any) -> "SearchRequest":
        """A request for one need, given in one way or, as several strings, in other words too.

        >>> SearchRequest.of(["send mail", "write to Ann"]).phrasings, SearchRequest.of("send mail").queries
        (True, ('send mail',))
        """
        phrasings = not isinstance(query, str) and len(query) > 1
        queries = (query,) if isinstance(query, str) else tuple(query) or ("",)
        return cls(queries=queries, phrasings=phrasings, **more)

    @property
    def is_grouped(self) -> bool:
        """Whether some hits stand for several tools."""
        return self.group or self.group_same

    @property
    def needs(self) -> tuple[str, ...]:
        """One query for each need: the first of several phrasings."""
        return self.queries[:1] if self.phrasings else self.queries


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """How a server describes itself."""

    name: str = ""
    version: str = ""
    title: str = ""
    description: str = ""
    instructions: str = ""


class BackendKind(StrEnum):
    """What runs a tool, in the order in which backends are tried."""

    LOCAL = "local"
    """A function of this process."""
    PROVIDER = "provider"
    """A provider."""
    MCP = "mcp"
    """A remote MCP server."""


class ServerState(StrEnum):
    """State of a server."""

    CONFIGURED = "configured"
    """Known; no connection was tried yet."""
    IDLE = "idle"
    """Not started. Its tools are known from an earlier run, and the first call starts it."""
    CONNECTING = "connecting"
    """The first attempt is under way."""
    READY = "ready"
    """Connected; its tools are current."""
    DEGRADED = "degraded"
    """Something is wrong, but its last good tools are served, marked stale."""
    NEEDS_LOGIN = "needs_login"
    """A person must log in first. The tools of an earlier connection, if there was one, are still listed."""
    FAILED = "failed"
    """Not usable, for the reason given."""


@checked(shallow=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """Status of one server, for operators and models."""

    name: str
    state: ServerState
    since: float
    """When it entered the state; seconds since the epoch."""
    reason: str = ""
    """Why it is not ready, or why it offers nothing although it is; else empty."""
    tools: int = 0
    rejected: tuple[Rejected, ...] = ()
    marked: tuple[Rejected, ...] = ()
    """Tools in use that an operator should know of: repaired, not checked here, or suspect to the lint, with its rules
    as the reason. For operators only.
    """
    stale: bool = False
    """The tools are from an earlier connection, because there is none now."""
    cached: bool = False
    """The tools are from an earlier run: it has not listed them in this one."""
    as_of: float | None = None
    """When the tools were read, in seconds since the epoch, if they are stale or cached."""
    hung: bool = False
    """Its last start, perhaps in an earlier run, ended without an answer in time. A search should not wait for it."""
    transport: str = ""
    """How it is reached: stdio, http, sse, or local."""
    protocol: str = ""
    """The protocol version that was agreed on; empty before it is connected."""
    sessions: str = ""
    """Who has a connection of their own: each caller (`caller`), the sessions of each client (`client`), of clients
    before 2026-07-28 (`older`) or of clients that can be asked something (`asking`), or none (`shared`). Empty before
    it is connected.
    """
    sessions_why: str = ""
    """Why, if it is not only the default."""
    info: ServerInfo = ServerInfo()
    retry_at: float | None = None
    """When the next attempt is due; seconds since the epoch."""
    namespace: str = ""
    """The namespace of its tools, if it is not the name."""

    @property
    def is_connecting(self) -> bool:
        """Whether its first attempt to connect is not over yet."""
        return self.state in (ServerState.CONFIGURED, ServerState.CONNECTING)

    @property
    def is_missing(self) -> bool:
        """Whether nothing is known yet of its tools, because it is still starting."""
        return self.is_connecting and not self.cached


@checked(shallow=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReply:
    """The reply to a search in one caller's view."""

    hits: tuple[Hit, ...] = ()
    unmatched: tuple[str, ...] = ()
    """The words of the queries that match no tool in view."""
    nearest: tuple[str, ...] = ()
    """The ids of tools with names close to the query, if nothing matches."""
    servers: tuple[ServerStatus, ...] = ()
    """The servers that are not available, or whose tools are stale."""
    note: str = ""
    """A sentence for the model: what to try next, or what was left out."""
    cursor: str | None = None
    """Give it to the next request, with the same query, for more; None at the end of a list or of the hits."""
    total: int = 0
    """How many tools matched before the limit."""

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The identity behind a request."""

    id: str
    """Who it is, unique within its issuer and tenant."""
    tenant: str | None = None
    """The organization that it belongs to, if there are several."""
    scopes: frozenset[str] = frozenset()
    """What its credential allows, for policies to judge."""
    issuer: str | None = None
    """Who vouches for it: the authorization server that issued its token."""
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    """What the issuer says of it, for policies too."""

    @property
    def key(self) -> tuple[str | None, str | None, str]:
        """What identifies it: issuer, tenant and id. Two issuers may use the same id."""
        return self.issuer, self.tenant, self.id

    @property
    def is_local(self) -> bool:
        """Whether it is the caller `LOCAL`, with whatever scopes."""
        return self.key == LOCAL.key


LOCAL: Final = Caller(id="local")
"""The caller of requests from this process, over stdio, and over HTTP without authentication."""


class Action(StrEnum):
    """What a caller wants to do with a tool."""

    SEE = "see"
    CALL = "call"


class Decision(StrEnum):
    """A policy's decision."""

    ALLOW = "allow"
    HIDE = "hide"
    APPROVE = "approve"


SHOW_ALL_META: Final = "toolcrib/showAll"
"""Key of a request's `_meta` that asks for every tool, for clients without headers."""
SESSION_META: Final = "toolcrib/session"
"""The `_meta` key by which a client names its session if the protocol has none."""
_MAX_HANDLE_CHARS: Final = 128
LACKING_SCOPES: Final = "toolcrib.lacking_scopes"
"""The key of `Context.memo` where a call leaves the scopes it lacked; absent if its caller cannot get more."""
PATH_META: Final = "toolcrib/path"
"""The `_meta` key of the ids of the gateways that a request passed through, the first one first."""


Unsubscribe = Callable[[], None]
"""Ends a subscription; calling it twice is harmless."""


class Client(Protocol):
    """The client behind a request: its capabilities, and ways to reach it during the request."""

    @property
    def capabilities(self) -> Object:
        """MCP client capabilities, as wire JSON."""

    @property
    def can_elicit(self) -> bool:
        """Whether `elicit` reaches a person during the request."""

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress; does nothing if the client did not ask for it."""

    async def elicit(self, params: Object) -> Object:
        """Ask the person behind the client (`elicitation/create`)."""

    async def sample(self, params: Object) -> Object:
        """Ask the client's model (`sampling/createMessage`)."""


class SessionClient(ABC):
    """A `Client` that speaks the protocol: what a server behind the gateway needs to know of it, and more ways to it.

    Not derived from the protocol class, since calls ask `isinstance` for it, which takes long for protocols.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Object:
        """See `Client`."""

    @property
    @abstractmethod
    def can_elicit(self) -> bool:
        """See `Client`."""

    @abstractmethod
    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """See `Client`."""

    @abstractmethod
    async def elicit(self, params: Object) -> Object:
        """See `Client`."""

    @abstractmethod
    async def sample(self, params: Object) -> Object:
        """See `Client`."""

    @property
    @abstractmethod
    def is_modern(self) -> bool:
        """Whether the client speaks 2026-07-28 or later."""

    @property
    def repeats_requests(self) -> bool:
        """Whether it answers questions by repeating its request, as of 2026-07-28, and not while its request waits."""
        return self.is_modern

    @property
    def wants_progress(self) -> bool:
        """Whether `progress` may reach it; false if its request did not ask for progress."""
        return True

    @property
    @abstractmethod
    def declared(self) -> Object:
        """The capabilities that it declared, as wire JSON, whether or not it can be reached now."""

    @property
    def extensions(self) -> Object:
        """The extensions of the protocol that it declared, by identifier, as wire JSON."""
        return {}

    @abstractmethod
    def can_ask(self, method: str) -> bool:
        """Whether the client can be sent a request of this method now, while its own request waits."""

    @abstractmethod
    async def list_roots(self) -> Object:
        """Ask for the client's roots (`roots/list`)."""

    async def answer(self, method: str, params: Object) -> Object:
        """Answer a request of a server, for which `can_ask` holds."""
        if method == "elicitation/create":
            return await self.elicit(params)
        return await (self.sample(params) if method == "sampling/createMessage" else self.list_roots())

    def may_receive(self, namespace: str, method: str, params: Object) -> bool:  # noqa: ARG002 - to override
        """Whether a policy lets a notification of an extension pass to the client from the server of this namespace."""
        return True

    @abstractmethod
    async def notify(self, method: str, params: Object) -> None:
        """Send a notification that belongs to the request; a log message only if the client wants its level."""


@checked(shallow=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """That a call is to run as a task, or that a request is about one (protocol 2025-11-25)."""

    id: str
    """The id by which the client knows the task."""
    ttl_ms: int | None = None
    """How long the client wants the task to be kept; None leaves that to the server."""
    on_status: Callable[[Object], None] | None = None
    """Called with the task, by the server's own id for it, whenever the server reports its status."""


@checked(shallow=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Caller, session and environment of a request. Immutable, and the first argument everywhere."""

    caller: Caller
    session: str | None = None
    """The id of the client's session; None if the request belongs to none."""
    show_all: bool = False
    """Whether lists show every tool by name, as a gateway in front of this one needs."""
    providers: tuple["ToolProvider", ...] = ()
    """The providers of this request only; shared tools of the same name take precedence."""
    overriding: tuple["ToolProvider", ...] = ()
    """The providers of this request only, whose tools take precedence over shared ones of the same name."""
    client: Client | None = None
    """The client behind the request; None if the program itself makes it."""
    input_responses: Object | None = None
    """The answers of a client to what a tool asked for, in a repeated call (protocol 2026-07-28)."""
    request_state: str | None = None
    """The value that the tool's first answer carried, in a repeated call."""
    task: TaskRequest | None = None
    """The task that the call is to run as, or that the request is about; None for other requests."""
    meta: Object = field(default_factory=dict)
    """The request's own `_meta`, without what belongs to the transport."""
    token: str = field(default="", compare=False, repr=False)
    """The bearer token that the caller was authenticated by, for servers that get a token in exchange for it."""
    memo: MutableMapping[Hashable, Any] | None = field(default=None, compare=False, repr=False)
    """Values computed once for the request, if the context is used for one request only."""

    @property
    def session_handle(self) -> str | None:
        """The name that the client itself gives its session, at most 128 characters; None without one.

        >>> Context(caller=LOCAL, meta={SESSION_META: 7}).session_handle
        '7'
        """
        handle = self.meta.get(SESSION_META)
        return str(handle)[:_MAX_HANDLE_CHARS] if isinstance(handle, (str, int)) else None

    def with_providers(self, *providers: "ToolProvider", override: bool = False) -> "Context":
        """Return a context with these providers added; with `override`, they take precedence over shared tools."""
        if override:
            return replace(self, overriding=(*self.overriding, *providers), memo=self._fresh_memo())
        return replace(self, providers=(*self.providers, *providers), memo=self._fresh_memo())

    def _fresh_memo(self) -> MutableMapping[Hashable, Any] | None:
        return None if self.memo is None else {}


@runtime_checkable
class ToolProvider(Protocol):
    """The least that a provider has. Anything with these methods can be added; subclass `Provider` for more."""

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """List the tools on offer, in any order."""

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that name (without namespace); return None if there is none.

        Any other value becomes a result: text as it is, everything else as JSON.
        """


class Policy(Protocol):
    """Who may see and call what. One policy for list, search, describe, call and scripts alike."""

    def scope(self, caller: Caller) -> Hashable:
        """Return what the caller's rights depend on: callers of one scope see the same tools."""

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        """Decide whether the caller may do that. A pure function of scope, tool and action."""


@runtime_checkable
class Authenticator(Protocol):
    """Turns request headers into a caller. May also have `challenge` and `routes`; see the next two protocols."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller; header names are lower case. Raises `NotAuthenticated`."""


@runtime_checkable
class AuthenticatorWithChallenge(Authenticator, Protocol):
    """An authenticator with its own challenge for rejected requests."""

    def challenge(self, error: NotAuthenticated) -> str:
        """The `WWW-Authenticate` header of the 401 response, such as `Bearer resource_metadata="https://..."`."""


@runtime_checkable
class AuthenticatorWithRoutes(Authenticator, Protocol):
    """An authenticator with paths to serve without authentication, such as OAuth metadata."""

    def routes(self) -> Sequence[Any]:
        """Starlette routes, with paths relative to where the app is mounted."""


class TokenCounter(Protocol):
    """Counts the tokens of a text."""

    def count(self, text: str) -> int:
        """Return the number of tokens."""


@checked(shallow=True)
@dataclass(frozen=True, slots=True)
class Call:
    """A permitted call whose arguments match the tool's schema. Change it with `dataclasses.replace`."""

    tool: Tool
    arguments: dict[str, Any]
    backend: str = ""
    """The name of the backend."""


CallNext = Callable[[Context, Call], Awaitable[ToolResult]]
"""Runs the rest of the pipeline; raises `ExecutionFailed` and its subclasses."""


class CallMiddleware(Protocol):
    """Runs around every call."""

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Return a result: from `call_next`, called once or several times, or its own."""


ScriptTool = Callable[[dict[str, Any]], Awaitable[JSON]]
"""A tool in a script: takes a dict of arguments and returns JSON; the script can catch what it raises."""


def is_read_only(tool: Tool) -> bool:
    """Whether the tool is marked as changing nothing; only a plain `true` counts."""
    return tool.annotations.get("readOnlyHint") is True


def is_repeatable(tool: Tool) -> bool:
    """Whether the tool is marked so that repeating a call has no further effect."""
    return is_read_only(tool) or tool.annotations.get("idempotentHint") is True


def is_destructive(tool: Tool) -> bool:
    """Whether the tool is marked as destructive, and not as read-only."""
    return tool.annotations.get("destructiveHint") is True and not is_read_only(tool)
