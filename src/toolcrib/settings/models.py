"""The section `toolcrib` of a settings file and the overrides of tools: pydantic models, and the options they set.

A table whose keys are those of an options class is validated as that class. The other models name only what a file
can set.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from toolcrib.checks import Constraint, Count, Natural, PositiveShare, Seconds, Share, whole_from
from toolcrib.discovery.guards import GuardOptions
from toolcrib.errors import SettingsError
from toolcrib.gateway.options import GatewayOptions, ResultOptions, SessionOptions, engine_problem
from toolcrib.gateway.policy import ByScopes, Effect, Patterns, Rule
from toolcrib.middleware.options import (
    ApprovalMode,
    AuditFileOptions,
    BreakerOptions,
    CacheOptions,
    CallOptions,
    RateOptions,
    RetryOptions,
)
from toolcrib.sandbox.limits import Limits, SandboxOptions, ScriptOptions
from toolcrib.search.options import PastOptions, Scorer, SearchOptions
from toolcrib.server.options import HEALTH_PATHS, AuthOptions, HttpOptions
from toolcrib.settings.env import SecretOptions
from toolcrib.settings.logins import LoginsTable
from toolcrib.settings.options import ConsoleOptions, LocalOptions, TelemetryOptions
from toolcrib.settings.validation import NonEmpty, Place, Table, Words, checked, display, one_of
from toolcrib.state.options import StateOptions
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.tokens import ENCODINGS, ESTIMATE
from toolcrib.types import Action
from toolcrib.upstream.options import ArgumentOverride, FleetOptions, ServerOptions, ToolOverride

Audit = Annotated[bool | NonEmpty, Constraint("true, false or the name of a logger")]
_MAX_PORT: Final = 65535
_Bytes = Annotated[int, whole_from(1024)]
_RANKING: Final = ("scorer", "fallback", "nothing_below", "weak_below", "default_limit", "max_limit")
_SURFACES: Final = (
    *(
        "surfaces",
        "instructions",
        "always_visible",
        "apps",
        "app_tokens",
        "meta_only",
        "read_tool",
        "call_many",
        "summary",
        "prefix",
    ),
    *("digest_tokens", "list_page_bytes", "reply_tokens", "structured_replies"),
)


def _pattern_problem(text: str) -> str:
    try:
        Patterns((text,), field="pattern")
    except SettingsError as error:
        return error.message.removeprefix("pattern[0] ").removesuffix(".")
    return ""


def _empty_problem(items: tuple[str, ...]) -> str:
    return "" if items else "must not be empty; leave it out to match everything"


def _path_problem(path: str) -> str:
    if path.rstrip("/") in HEALTH_PATHS:
        return f"cannot be {path}, which answers health checks; choose another path, such as /mcp"
    return "" if path.startswith("/") else f'must begin with "/", not {display(path)}'


def _address_problem(text: str) -> str:
    host, _, port = text.rpartition(":")
    is_address = bool(host) and port.isdecimal() and int(port) <= _MAX_PORT
    return "" if is_address else f'must be an address such as "127.0.0.1:9464", not {display(text)}'


def _surfaces_problem(names: tuple[str, ...]) -> str:
    return "" if names else f"must name one of {', '.join(SURFACES)}"


def _hook_problem(name: str) -> str:
    module, colon, function = name.partition(":")
    named = colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))
    return "" if named else f"must name a function as package.module:function, not {display(name)}"


Pattern = Annotated[NonEmpty, checked(_pattern_problem)]
_RulePatterns = Annotated[tuple[Pattern, ...], checked(_empty_problem)]
_RuleWords = Annotated[Words, checked(_empty_problem)]


class SearchTable(Table):
    """`search`: ranking, and what meanings are compared with."""

    engine: Literal["memory", "tantivy"] | None = None
    index: NonEmpty | None = None
    scorer: Scorer | None = None
    fallback: Literal["", "popular"] | None = None
    nothing_below: Share | None = None
    weak_below: Share | None = None
    default_limit: Count | None = None
    max_limit: Count | None = None
    synonyms: dict[str, Words] = Field(default_factory=dict)
    keywords: NonEmpty | None = None
    describe: Annotated[NonEmpty, checked(_hook_problem)] | None = None
    past_requests: PastOptions | None = None
    embedder: NonEmpty | None = None
    embedder_cache: NonEmpty | None = None
    index_cache: NonEmpty | bool = True
    group: bool = False
    page_size: Count | None = None
    tokens: Annotated[str, one_of((ESTIMATE, *ENCODINGS))] | None = None


def _engine_problem(search: SearchTable) -> str:
    return engine_problem(
        search.engine or "memory",
        index=search.index,
        scorer=search.scorer or "hybrid",
        embedder=search.embedder or "static",
        past=search.past_requests is not None,
    )


class TimeoutsTable(Table):
    """`timeouts`: deadlines of servers, and how long requests wait for them."""

    start_s: Seconds | None = None
    list_s: Seconds | None = None
    call_s: Seconds | None = None
    call_max_s: Seconds | None = None
    find_s: Seconds | None = None
    search_wait_s: Seconds | None = None
    list_wait_s: Seconds | None = None
    call_grace_s: Seconds | None = None
    embed_s: Seconds | None = None


class ProvidersTable(Table):
    """`providers`: providers of this process."""

    list_timeout_s: Seconds | None = None
    cache_s: Seconds | None = None
    request_tools: Natural | None = None


class BackoffTable(Table):
    """`backoff`: pauses between attempts to connect."""

    first_s: Seconds | None = None
    max_s: Seconds | None = None


class ConnectionsTable(Table):
    """`connections`: connections to servers that belong to single clients' sessions."""

    max_sessions: Count | None = None
    idle_s: Seconds | None = None


class ResultsTable(Table):
    """`results`: how much the result of a server's call may hold, and how much of it a reply shows."""

    max_bytes: _Bytes | None = None
    max_nodes: Count | None = None
    max_blocks: Count | None = None
    tokens: Natural | None = None
    bytes: Count | None = None
    keep_s: Seconds | None = None
    keep_bytes: Count | None = None


class CacheTable(Table):
    """`calls.cache`, whose `tools` are patterns."""

    seconds: Seconds | None = None
    max_entries: Count | None = None
    max_bytes: Count | None = None
    tools: tuple[Pattern, ...] = ()
    per: Literal["caller", "scope"] | None = None


def _folder_problem(path: str) -> str:
    return f"names a folder: {path}; name a file in it" if path.endswith(("/", "\\")) else ""


class AuditFileTable(Table):
    """`calls.audit_file`: a log whose records are chained by their hashes."""

    path: Annotated[NonEmpty, checked(_folder_problem)]
    max_bytes: _Bytes | None = None
    max_files: Count | None = None
    sync: bool | None = None
    required: bool | None = None
    key: NonEmpty | None = None


class CallsTable(Table):
    """`calls`: the middleware of every call."""

    audit: Audit = False
    audit_file: AuditFileTable | None = None
    deadline_s: Seconds | None = None
    rate: RateOptions | None = None
    tool_rates: dict[Pattern, RateOptions] = Field(default_factory=dict)
    search_rate: RateOptions | None = None
    search_queue: Count | None = None
    search_share: PositiveShare | None = None
    breaker: BreakerOptions | None = None
    retry: RetryOptions | None = None
    cache: CacheTable | None = None
    approval: ApprovalMode | None = None
    approved: tuple[Pattern, ...] = ()
    approval_wait_s: Seconds | None = None
    approval_expires_s: Seconds | None = None
    approval_key: NonEmpty | None = None


class RuleTable(Table):
    """One of `policy.rules`."""

    tools: _RulePatterns = ()
    tags: _RuleWords = ()
    scopes: _RuleWords = ()
    need: Literal["any", "all"] = "any"
    tenants: _RuleWords = ()
    issuers: _RuleWords = ()
    callers: _RuleWords = ()
    roles: _RuleWords = ()
    groups: _RuleWords = ()
    action: Action | None = None
    effect: Effect = "allow"
    otherwise: Literal["allow", "hide", "approve", "next"] = "hide"


class PolicyTable(Table):
    """`policy`: who may see and call what."""

    default: Effect | None = None
    roles: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    rules: tuple[RuleTable, ...] = ()


class ScriptsTable(Table):
    """`scripts`: how scripts run, and where stored ones are."""

    levels: Count | None = None
    read_only: bool = False
    watch_s: Seconds | None = None
    folder: NonEmpty | None = None
    limits: Limits = Field(default_factory=Limits)
    sandbox: SandboxOptions = Field(default_factory=SandboxOptions)


class TokenTable(Table):
    """One of `http.tokens`: a caller, and where the secret is."""

    env: NonEmpty | None = None
    file: NonEmpty | None = None
    secret: NonEmpty | None = None
    caller: NonEmpty
    tenant: NonEmpty | None = None
    scopes: tuple[str, ...] = ()


class HttpTable(Table):
    """`http`: the address and who may connect."""

    host: NonEmpty | None = None
    port: Annotated[int, whole_from(0, 65535)] | None = None
    path: Annotated[NonEmpty, checked(_path_problem)] | None = None
    tokens: tuple[TokenTable, ...] = ()
    tokens_file: NonEmpty | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: _Bytes | None = None
    max_body_nodes: Count | None = None
    max_head_bytes: _Bytes | None = None
    max_headers: Count | None = None
    max_url_bytes: Count | None = None
    head_timeout_s: Seconds | None = None
    body_timeout_s: Seconds | None = None
    max_connections: Count | None = None
    max_connections_per_peer: Count | None = None
    max_pending_bytes: Count | None = None
    max_pending_bytes_per_caller: Count | None = None
    max_unread_bytes: Count | None = None
    max_unread_bytes_per_peer: Count | None = None
    max_streams: Count | None = None
    max_streams_per_caller: Count | None = None
    max_sessions: Count | None = None
    max_sessions_per_caller: Count | None = None
    session_idle_s: Seconds | None = None
    keep_alive_s: Seconds | None = None
    workers: Count | None = None
    drain_s: Seconds | None = None
    trusted_proxies: tuple[str, ...] = ()
    replica_url: NonEmpty | None = None


class StateFileTable(Table):
    """`state`: where the state that should survive a restart is kept, or that replicas share."""

    path: Annotated[NonEmpty, checked(_folder_problem)] | None = None
    memory: bool = False
    max_bytes: Annotated[int, whole_from(1024 * 1024)] | None = None
    url: NonEmpty | None = None
    password: NonEmpty | None = None
    prefix: NonEmpty | None = None
    timeout_s: Seconds | None = None


class TelemetryTable(Table):
    """`telemetry`: usage counts, metrics for Prometheus, and traces of OpenTelemetry."""

    metrics: Annotated[NonEmpty, checked(_address_problem)] | None = None
    usage: bool = True
    zero_hits: bool = False
    traces: bool = False
    log_format: Literal["text", "json"] | None = None


class ConsoleTable(Table):
    """`console`: pages for the people who run the gateway."""

    address: Annotated[NonEmpty, checked(_address_problem)] | None = None
    content: bool = False
    calls: Count | None = None
    scope: NonEmpty | None = None
    session_s: Seconds | None = None


class ArgumentOverrideTable(Table):
    """One argument of `tools.NAME.arguments`."""

    description: str | None = None
    fixed: Any = None
    default: Any = None
    hidden: bool = False


class ToolOverrideTable(Table):
    """One tool of `tools`: how it differs from the server's own."""

    name: NonEmpty | None = None
    title: NonEmpty | None = None
    description: str | None = None
    keywords: tuple[NonEmpty, ...] = ()
    hidden: bool = False
    annotations: dict[str, Any] = Field(default_factory=dict)
    arguments: dict[str, ArgumentOverrideTable] = Field(default_factory=dict)

    def override(self) -> ToolOverride:
        """Raises `InvalidRequest` or `InvalidName`."""
        arguments = {name: ArgumentOverride(**table.given()) for name, table in self.arguments.items()}
        return ToolOverride(**{**self.given(), "arguments": arguments})


class ToolcribTable(Table):
    """The section `toolcrib`."""

    surfaces: Annotated[tuple[Annotated[str, one_of(SURFACES)], ...], checked(_surfaces_problem)] = ()
    instructions: NonEmpty | None = None
    always_visible: tuple[str, ...] = ()
    apps: bool = True
    app_tokens: Natural | None = None
    meta_only: bool = False
    read_tool: bool = True
    call_many: bool = False
    summary: bool = False
    prefix: bool = True
    digest_tokens: Natural | None = None
    list_page_bytes: _Bytes | None = None
    reply_tokens: Natural | None = None
    structured_replies: bool = True
    max_message_bytes: _Bytes | None = None
    results: ResultsTable = Field(default_factory=ResultsTable.model_construct)
    search: Annotated[SearchTable, checked(_engine_problem)] = Field(default_factory=SearchTable.model_construct)
    timeouts: TimeoutsTable = Field(default_factory=TimeoutsTable.model_construct)
    providers: ProvidersTable = Field(default_factory=ProvidersTable.model_construct)
    backoff: BackoffTable = Field(default_factory=BackoffTable.model_construct)
    connections: ConnectionsTable = Field(default_factory=ConnectionsTable.model_construct)
    calls: CallsTable = Field(default_factory=CallsTable.model_construct)
    policy: PolicyTable | None = None
    scripts: ScriptsTable = Field(default_factory=ScriptsTable.model_construct)
    guards: GuardOptions = Field(default_factory=GuardOptions)
    sessions: SessionOptions = Field(default_factory=SessionOptions)
    local: LocalOptions = Field(default_factory=LocalOptions)
    http: HttpTable = Field(default_factory=HttpTable.model_construct)
    auth: AuthOptions = Field(default_factory=AuthOptions)
    secrets: SecretOptions = Field(default_factory=SecretOptions)
    telemetry: TelemetryTable = Field(default_factory=TelemetryTable.model_construct)
    console: ConsoleTable = Field(default_factory=ConsoleTable.model_construct)
    env_file: NonEmpty | None = None
    watch_s: Seconds | None = None
    watch_at_once: bool = False
    state: StateFileTable = Field(default_factory=StateFileTable.model_construct)
    logins: LoginsTable = Field(default_factory=LoginsTable.model_construct)

    def fleet(self) -> FleetOptions:
        """How servers are connected."""
        names = {"first_s": "backoff_first_s", "max_s": "backoff_max_s"}
        names |= {"max_sessions": "max_sessions", "idle_s": "session_idle_s"}
        given: dict[str, Any] = {**self.backoff.given(), **self.connections.given()}
        return FleetOptions(**{names[name]: value for name, value in given.items()})

    def gateway(self, folder: Path) -> GatewayOptions:
        """How the gateway lists, searches and waits; `folder` is where relative paths begin."""
        search, waits = self.search.given(), self.timeouts.given("search_wait_s", "list_wait_s", "call_grace_s")
        options: dict[str, Any] = {
            name: search[name]
            for name in ("engine", "embedder", "group", "page_size", "past_requests", "describe")
            if name in search
        }
        if "index" in search:
            options["index"] = folder / Path(search["index"]).expanduser()
        if "embedder_cache" in search:
            options["embedder_cache"] = folder / Path(search["embedder_cache"]).expanduser()
        if "index_cache" in search:
            place = search["index_cache"]
            options["index_cache"] = place if isinstance(place, bool) else folder / Path(place).expanduser()
        if "find_s" in self.timeouts.model_fields_set:
            options["find_timeout_s"] = self.timeouts.find_s
        if "embed_s" in self.timeouts.model_fields_set:
            options["embed_timeout_s"] = self.timeouts.embed_s
        if "cache_s" in self.providers.model_fields_set:
            options["provider_cache_s"] = self.providers.cache_s
        return GatewayOptions(
            search=SearchOptions(**self.search.given(*_RANKING)),
            synonyms=tuple(self.search.synonyms.items()),
            calls=self.call_options(),
            sessions=self.sessions,
            results=ResultOptions(**self.results.given("tokens", "bytes", "keep_s", "keep_bytes")),
            **waits,
            **self.providers.given("list_timeout_s", "request_tools"),
            **options,
        )

    def call_options(self) -> CallOptions:
        """The middleware of every call, without the key that signs approvals and the audit file."""
        given = self.calls.given()
        for kept in ("approval_key", "audit_file"):
            given.pop(kept, None)
        if "tool_rates" in given:
            given["tool_rates"] = tuple(self.calls.tool_rates.items())
        if self.calls.cache is not None:
            given["cache"] = CacheOptions(**self.calls.cache.given())
        return CallOptions(**given)

    def surface_options(self) -> SurfaceOptions:
        """What the agent sees."""
        given = self.given(*_SURFACES) | self.search.given("tokens") | {"guards": self.guards}
        if "surfaces" in given:
            given["surfaces"] = tuple(dict.fromkeys(self.surfaces))
        return SurfaceOptions(**given)

    def access_policy(self) -> ByScopes | None:
        """Who may see and call what; None if the file does not say."""
        if self.policy is None:
            return None
        rules = [Rule(**rule.given()) for rule in self.policy.rules]
        return ByScopes(rules, default=self.policy.default, roles=self.policy.roles)

    def script_options(self) -> ScriptOptions:
        """How scripts run."""
        return ScriptOptions(**self.scripts.given("levels", "read_only", "watch_s"))

    def audit_file(self, folder: Path, key: str | None) -> AuditFileOptions | None:
        """Where the audit log is written, if anywhere."""
        table = self.calls.audit_file
        if table is None:
            return None
        path = folder / Path(table.path).expanduser()
        return AuditFileOptions(path=path, key=key, **table.given("max_bytes", "max_files", "sync", "required"))

    def state_options(self, folder: Path, default: Path | None) -> StateOptions:
        """Where state is kept: in the default file, unless the table says otherwise. Without what is a secret."""
        path = default if self.state.path is None else folder / Path(self.state.path).expanduser()
        given = self.state.given("max_bytes", "prefix", "timeout_s")
        return StateOptions(path=None if self.state.memory else path, **given)

    def http_options(self) -> HttpOptions:
        """Where and how HTTP is served, without the tokens."""
        names = [name for name in type(self.http).model_fields if name not in ("tokens", "tokens_file")]
        return HttpOptions(**self.http.given(*names))

    def telemetry_options(self) -> TelemetryOptions:
        """What can be measured from outside."""
        return TelemetryOptions(**self.telemetry.given())

    def console_options(self) -> ConsoleOptions:
        """Where the console is served, and what it shows."""
        return ConsoleOptions(**self.console.given())

    def server_defaults(self) -> ServerOptions:
        """Deadlines and sizes of servers that set none."""
        timeouts = self.timeouts.given("start_s", "list_s", "call_s", "call_max_s", "find_s")
        options = {f"{name.removesuffix('_s')}_timeout_s": value for name, value in timeouts.items()}
        bounds = self.results.given("max_bytes", "max_nodes", "max_blocks")
        options |= {name.replace("max_", "max_result_"): value for name, value in bounds.items()}
        return ServerOptions(name="", transport="stdio", **options, **self.given("max_message_bytes"))


def check_combinations(place: Place[ToolcribTable]) -> None:
    """Report settings that contradict each other."""
    table = place.table
    search = SearchOptions(**table.search.given(*_RANKING))
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
