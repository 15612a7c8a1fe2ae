"""The section `toolcrib` of a settings file and the overrides of tools, and the options they set.

A table whose keys are those of an options class is validated as that class, or as one that adds what only a file has.
The other tables set options of several classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from toolcrib.checks import Constraint, Count, Seconds, whole_from
from toolcrib.file_values import InFiles, OneOf, Text
from toolcrib.gateway.options import GatewayOptions, ResultOptions, SessionOptions, engine_problem
from toolcrib.gateway.policy import ByScopes, Effect, Pattern, Rule
from toolcrib.middleware.options import AuditFileOptions, CallOptions, RateOptions
from toolcrib.sandbox.limits import Limits, SandboxOptions, ScriptOptions
from toolcrib.search.options import PastOptions, SearchOptions
from toolcrib.server.options import AuthOptions, HttpOptions
from toolcrib.settings.env import SecretOptions
from toolcrib.settings.logins import LoginsTable
from toolcrib.settings.options import ConsoleOptions, LocalOptions, TelemetryOptions
from toolcrib.settings.validation import NOT_IN_FILES, TABLE_RULES, Place, Table, display, options_of
from toolcrib.state.options import StateOptions
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.tokens import ENCODINGS, ESTIMATE
from toolcrib.upstream.options import FleetOptions, ServerOptions, ToolOverride

_Bytes = Annotated[int, whole_from(1024)]
_RANKING: Final = {
    name: name for name in ("scorer", "fallback", "nothing_below", "weak_below", "default_limit", "max_limit")
}
_PLACES: Final = ("index", "embedder_cache", "index_cache")
_TIMEOUTS: Final = {f"{name}_s": f"{name}_timeout_s" for name in ("start", "list", "call", "call_max", "find")}
_WAITS: Final = {
    **{name: name for name in ("search_wait_s", "list_wait_s", "call_grace_s")},
    "embed_s": "embed_timeout_s",
}


def _hook_problem(name: str) -> str:
    module, colon, function = name.partition(":")
    named = colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))
    return "" if named else f"must name a function as package.module:function, not {display(name)}"


class SearchTable(Table, sets=SearchOptions, keys=_RANKING):
    """`search`: ranking, and what meanings are compared with."""

    engine: Literal["memory", "tantivy"] | None = None
    index: Text | None = None
    synonyms: dict[str, tuple[Text, ...]] = Field(default_factory=dict)
    keywords: Text | None = None
    describe: Annotated[Text, InFiles(_hook_problem)] | None = None
    past_requests: PastOptions | None = None
    embedder: Text | None = None
    embedder_cache: Text | None = None
    index_cache: Annotated[Text | bool, InFiles(Constraint("true, false or the path of a folder"))] = True
    group: bool = False
    page_size: Count | None = None
    tokens: Annotated[str, OneOf((ESTIMATE, *ENCODINGS))] | None = None


def _engine_problem(search: SearchTable) -> str:
    return engine_problem(
        search.engine or "memory",
        index=search.index,
        scorer=search.given("scorer").get("scorer", "hybrid"),
        embedder=search.embedder or "static",
        past=search.past_requests is not None,
    )


class ServerTimeouts(Table, sets=ServerOptions, keys=_TIMEOUTS):
    """`timeouts` of a server's entry: its deadlines."""


class TimeoutsTable(ServerTimeouts, sets=GatewayOptions, keys=_WAITS):
    """`timeouts`: deadlines of servers, and how long requests wait for them."""


class ProvidersTable(
    Table,
    sets=GatewayOptions,
    keys={"list_timeout_s": "list_timeout_s", "cache_s": "provider_cache_s", "request_tools": "request_tools"},
):
    """`providers`: providers of this process."""


class BackoffTable(Table, sets=FleetOptions, keys={"first_s": "backoff_first_s", "max_s": "backoff_max_s"}):
    """`backoff`: pauses between attempts to connect."""


class ConnectionsTable(Table, sets=FleetOptions, keys={"max_sessions": "max_sessions", "idle_s": "session_idle_s"}):
    """`connections`: connections to servers that belong to single clients' sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsTable(ResultOptions):
    """`results`: how much the result of a server's call may hold, and how much of it a reply shows."""

    max_bytes: _Bytes | None = None
    max_nodes: Count | None = None
    max_blocks: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFileTable(AuditFileOptions):
    """`calls.audit_file`: a log whose records are chained by their hashes. Its key is a reference."""

    def __post_init__(self) -> None:
        """The key itself is checked when it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsTable(CallOptions):
    """`calls`: the middleware of every call. The key of approvals is a reference."""

    audit_file: AuditFileTable | None = None
    tool_rates: dict[Pattern, RateOptions] = field(default_factory=dict)  # type: ignore[assignment]  # pairs, as options

    def __post_init__(self) -> None:
        """The key itself is checked when it is read."""


class PolicyTable(Table):
    """`policy`: who may see and call what."""

    default: Effect | None = None
    roles: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptsTable(ScriptOptions):
    """`scripts`: how scripts run, and where stored ones are."""

    folder: Text | None = None
    limits: Limits = field(default_factory=Limits)
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)


class TokenTable(Table):
    """One of `http.tokens`: a caller, and where the secret is."""

    env: Text | None = None
    file: Text | None = None
    secret: Text | None = None
    caller: Text
    tenant: Text | None = None
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTable(HttpOptions):
    """`http`: the address and who may connect."""

    tokens: tuple[TokenTable, ...] = ()  # type: ignore[assignment]  # with references to secrets, which are read later
    tokens_file: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptionsTable(StateOptions):
    """`state`: where the state that should survive a restart is kept, or that replicas share. The password and parts of
    the address are references.
    """

    memory: bool = False

    def __post_init__(self) -> None:
        """The address is checked when its references are filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverrideTable(ToolOverride):
    """One tool of `tools`: how it differs from the server's own."""

    __pydantic_config__: ClassVar = TABLE_RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolcribTable(SurfaceOptions):
    """The section `toolcrib`. What the agent sees is set in the section itself."""

    __pydantic_config__: ClassVar = TABLE_RULES

    tokens: Annotated[str, NOT_IN_FILES] = ESTIMATE
    max_message_bytes: _Bytes | None = None
    results: ResultsTable = field(default_factory=ResultsTable)
    search: Annotated[SearchTable, InFiles(_engine_problem)] = field(default_factory=SearchTable.model_construct)
    timeouts: TimeoutsTable = field(default_factory=TimeoutsTable.model_construct)
    providers: ProvidersTable = field(default_factory=ProvidersTable.model_construct)
    backoff: BackoffTable = field(default_factory=BackoffTable.model_construct)
    connections: ConnectionsTable = field(default_factory=ConnectionsTable.model_construct)
    calls: CallsTable = field(default_factory=CallsTable)
    policy: PolicyTable | None = None
    scripts: ScriptsTable = field(default_factory=ScriptsTable)
    sessions: SessionOptions = field(default_factory=SessionOptions)
    local: LocalOptions = field(default_factory=LocalOptions)
    http: HttpTable = field(default_factory=HttpTable)
    auth: AuthOptions = field(default_factory=AuthOptions)
    secrets: SecretOptions = field(default_factory=SecretOptions)
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
    console: ConsoleOptions = field(default_factory=ConsoleOptions)
    env_file: Text | None = None
    watch_s: Seconds = 2.0
    watch_at_once: bool = False
    state: StateOptionsTable = field(default_factory=StateOptionsTable)
    logins: LoginsTable = field(default_factory=LoginsTable)

    def fleet(self) -> FleetOptions:
        """How servers are connected."""
        return FleetOptions(**self.backoff.given(), **self.connections.given())

    def gateway(self, folder: Path) -> GatewayOptions:
        """How the gateway lists, searches and waits; `folder` is where relative paths begin."""
        search = self.search.given("engine", "embedder", "group", "page_size", "past_requests", "describe", *_PLACES)
        places = {name: search[name] for name in _PLACES if isinstance(search.get(name), str)}
        return GatewayOptions(
            search=SearchOptions(**self.search.given()),
            synonyms=tuple(self.search.synonyms.items()),
            calls=self.call_options(),
            sessions=self.sessions,
            results=options_of(ResultOptions, self.results),
            **{**search, **{name: folder / Path(place).expanduser() for name, place in places.items()}},
            **self.timeouts.given(find_s="find_timeout_s", **_WAITS),
            **self.providers.given(),
        )

    def call_options(self) -> CallOptions:
        """The middleware of every call, without the key that signs approvals and the audit file."""
        rates = tuple(self.calls.tool_rates.items())
        return options_of(CallOptions, self.calls, tool_rates=rates, audit_file=None, approval_key=None)

    def surface_options(self) -> SurfaceOptions:
        """What the agent sees."""
        return options_of(
            SurfaceOptions,
            self,
            surfaces=tuple(dict.fromkeys(self.surfaces)),
            tokens=self.search.tokens or self.tokens,
        )

    def access_policy(self) -> ByScopes | None:
        """Who may see and call what; None if the file does not say."""
        if self.policy is None:
            return None
        return ByScopes(self.policy.rules, default=self.policy.default, roles=self.policy.roles)

    def audit_file(self, folder: Path, key: str | None) -> AuditFileOptions | None:
        """Where the audit log is written, if anywhere."""
        table = self.calls.audit_file
        if table is None:
            return None
        return options_of(AuditFileOptions, table, path=folder / table.path.expanduser(), key=key)

    def state_options(self, folder: Path, default: Path | None) -> StateOptions:
        """Where state is kept: in the default file, unless the table says otherwise. Without what is a secret."""
        path = default if self.state.path is None else folder / self.state.path.expanduser()
        return options_of(StateOptions, self.state, path=None if self.state.memory else path, url=None, password=None)

    def server_defaults(self) -> ServerOptions:
        """Deadlines and sizes of servers that set none."""
        options = self.timeouts.given(**_TIMEOUTS)
        options |= {f"max_result_{name}": getattr(self.results, f"max_{name}") for name in ("bytes", "nodes", "blocks")}
        options["max_message_bytes"] = self.max_message_bytes
        given = {name: value for name, value in options.items() if value is not None}
        return ServerOptions(name="", transport="stdio", **given)


def check_combinations(place: Place[ToolcribTable]) -> None:
    """Report settings that contradict each other."""
    table = place.table
    search = SearchOptions(**table.search.given())
    if search.default_limit > search.max_limit:
        place.add(f"has a default_limit greater than its max_limit of {search.max_limit}", "search")
    if search.nothing_below > search.weak_below:
        place.add(
            f"has nothing_below greater than weak_below ({search.weak_below:g}), so no hit could be marked as weak",
            "search",
        )
    fleet = table.fleet()
    if fleet.backoff_first_s > fleet.backoff_max_s:
        place.add(f"has first greater than max ({fleet.backoff_max_s:g})", "backoff")
    if (limits := table.scripts.limits).soft_cpu_s > limits.cpu_s:
        message = f"has a soft_cpu greater than its cpu of {limits.cpu_s}, which ends a script without a reason"
        place.warn(message, "scripts", "limits")
    for role in _circular_roles(table.policy.roles if table.policy else {}):
        place.warn("includes itself through other roles", "policy", "roles", role)
    if table.state.memory and table.state.path is not None:
        place.add("has a path, but memory = true keeps nothing on disk; remove one of them", "state")
    if table.state.url is not None and (table.state.memory or table.state.path is not None):
        place.add("has a url, which keeps everything in Redis; remove path and memory", "state")
    if table.meta_only and "direct" in table.surfaces:
        place.add(
            "cannot be combined with the surface direct, which lists every tool by name; remove one of them",
            "meta_only",
        )


def _circular_roles(roles: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for role in roles:
        known, new = set[str](), list(roles[role])
        while new:
            scope = new.pop()
            if scope not in known:
                known.add(scope)
                new += roles.get(scope, ())
        if role in known:
            yield role
