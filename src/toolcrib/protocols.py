"""The seams: what toolcrib asks of a part it does not own, and the context every request carries."""

from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, runtime_checkable

from toolcrib.model import (
    JSON,
    Action,
    BackendKind,
    Caller,
    Decision,
    Hit,
    Key,
    Object,
    SearchRequest,
    ServerStatus,
    Tool,
    ToolResult,
)

PATH_META: Final = "toolcrib/path"
"""In the `_meta` of a request: the ids of the gateways that passed it on, the first one first."""

Unsubscribe = Callable[[], None]
"""Ends a subscription; calling it twice is harmless."""


class Client(Protocol):
    """The client behind a request: what it can do, and ways to reach it while the request lasts."""

    @property
    def capabilities(self) -> Object:
        """MCP client capabilities, as wire JSON."""

    @property
    def can_elicit(self) -> bool:
        """Whether `elicit` reaches a person while the request lasts."""

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress; does nothing when the client did not ask for it."""

    async def elicit(self, params: Object) -> Object:
        """Ask the person behind the client (`elicitation/create`)."""

    async def sample(self, params: Object) -> Object:
        """Ask the client's model (`sampling/createMessage`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Who asks, in which session, with what at hand. Passed by hand, first, everywhere; never changed."""

    caller: Caller
    session: str | None = None
    show_all: bool = False
    providers: tuple["ToolProvider", ...] = ()
    """Tools that come with this request only; shared tools of the same name stand before them."""
    overriding: tuple["ToolProvider", ...] = ()
    """Tools that come with this request only, and stand before shared ones of the same name."""
    client: Client | None = None
    input_responses: Object | None = None
    request_state: str | None = None
    meta: Object = field(default_factory=dict)
    """The request's own `_meta`, without what belongs to the transport."""
    memo: MutableMapping[Hashable, Any] | None = field(default=None, compare=False, repr=False)
    """What is worked out once for a request, where whoever made the context keeps it for one request only."""

    def with_providers(self, *providers: "ToolProvider", override: bool = False) -> "Context":
        """A context with these providers after those it has; with `override`, they stand before shared tools."""
        if override:
            return replace(self, overriding=(*self.overriding, *providers), memo=self._fresh_memo())
        return replace(self, providers=(*self.providers, *providers), memo=self._fresh_memo())

    def _fresh_memo(self) -> MutableMapping[Hashable, Any] | None:
        return None if self.memo is None else {}


@runtime_checkable
class ToolProvider(Protocol):
    """Where tools come from."""

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """The tools on offer, in any order."""

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that name (its own, without namespace); None when there is none.

        Any other value becomes a result: a text as it is, everything else as JSON.
        """


@runtime_checkable
class KeyedCalls(Protocol):
    """Beside `ToolProvider`, for one whose tools are of several namespaces; then `call_tool` is not used."""

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that key; None when there is none."""


@runtime_checkable
class ToolLookup(Protocol):
    """Beside `ToolProvider`, for one with too many tools to list."""

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """The tool of that name, its own or with its namespace, or None."""


@runtime_checkable
class ToolFinder(Protocol):
    """Beside `ToolProvider`, for one that searches by itself, such as a gateway behind this one."""

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """Its best hits, best first, with scores from 0 to 1; it is called under the keys of these tools."""


@runtime_checkable
class Cacheable(Protocol):
    """Beside `ToolProvider`, for one whose list of tools may be kept for a while."""

    @property
    def cache_for_s(self) -> float:
        """How long `list_tools` stays true, in seconds."""

    @property
    def cache_key(self) -> Hashable:
        """What the list depends on: for one caller, providers of equal keys offer the same tools."""


@runtime_checkable
class Changes(Protocol):
    """Beside `ToolProvider`, for one whose tools change."""

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, from the event loop and without arguments, whenever `list_tools` or a status changed."""


@runtime_checkable
class StatusSource(Protocol):
    """Beside `ToolProvider`, for one that speaks for servers."""

    def statuses(self) -> Sequence[ServerStatus]:
        """One status a server, by name."""


DueTo = tuple[Caller, str | None]
"""A caller, and his session where it can be of one alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What a server offers to read, as it last listed it: entries as wire JSON, in its order, by their own names."""

    prompts: Mapping[str, Object] = field(default_factory=dict)
    resources: Mapping[str, Object] = field(default_factory=dict)
    """By URI."""
    templates: Mapping[str, Object] = field(default_factory=dict)
    """Of resources, by `uriTemplate`."""
    reads: bool = False
    """Whether it has resources at all, listed or not."""
    completes: bool = False
    """Whether it completes arguments of prompts and templates."""
    watches: bool = False
    """Whether it tells of changes of a single resource."""


@runtime_checkable
class DocumentSource(Protocol):
    """Beside `ToolProvider`, for one of one namespace that also has prompts and resources."""

    def documents(self) -> Documents | None:
        """What it offers; the same object while nothing changed. None before that is known."""

    async def ask(self, ctx: Context, method: str, params: Object) -> ToolResult:
        """The answer to `prompts/get`, `resources/read` or `completion/complete`, whole, as structured content."""

    async def watch(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        """For a caller, call back, with its URI, whenever that resource or one below it changed."""

    def hear(self, callback: Callable[[DueTo | None, Object], None]) -> Unsubscribe:
        """Call back with each message for a log, and with whom it can be due to: None where that is not one caller."""


class ProviderSource(Protocol):
    """A changing set of shared providers, such as a fleet of servers."""

    @property
    def kind(self) -> BackendKind:
        """What its providers are."""

    def providers(self) -> Sequence[ToolProvider]:
        """The providers of this moment, in the order in which they take precedence."""

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, from the event loop, whenever a provider came, went, changed its tools or its status."""


class Policy(Protocol):
    """Who may see and call what. One policy for list, search, describe, call and scripts alike."""

    def scope(self, caller: Caller) -> Hashable:
        """What the caller's rights depend on: callers of one scope see the same tools."""

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        """Whether the caller may do that. A pure function of scope, tool and action."""


class Authenticator(Protocol):
    """Turns request headers into a caller."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """The caller; header names are lower case. Raises `NotAuthenticated`."""


class TokenCounter(Protocol):
    """Counts what a text costs a model."""

    def count(self, text: str) -> int:
        """Tokens, 0 or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One of those that can run a tool."""

    kind: BackendKind
    name: str
    provider: ToolProvider


BackendSelector = Callable[[Sequence[Backend]], Sequence[Backend] | Backend]
"""Puts the backends of a tool in the order in which they are tried; those it leaves out are not. One is enough."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is allowed and whose arguments fit the tool's schema. Change one with `dataclasses.replace`."""

    tool: Tool
    arguments: dict[str, Any]
    backend: str = ""
    """Who runs it, by name."""


Proceed = Callable[[Context, Call], Awaitable[ToolResult]]
"""The rest of the way of a call; raises `ExecutionFailed` and its kin."""


class CallMiddleware(Protocol):
    """Stands in the way of every call."""

    async def __call__(self, ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
        """Answer, or let the call proceed: once, never, or again."""


ScriptTool = Callable[[dict[str, Any]], Awaitable[JSON]]
"""A tool as a script sees it: one dict of arguments in, a JSON value out; raising is an error the script can catch."""
