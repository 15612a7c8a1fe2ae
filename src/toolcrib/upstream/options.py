"""Options of the remote servers: how to reach each one, overrides of its tools, and the limits of the whole fleet.

An override applies to a tool before anything else sees it: the index, policies, scripts and clients know only the
result. If the server changes a tool so that an override no longer fits, the tool is rejected, and its status says why.

Imports nothing heavy, so that settings can be read without an MCP client.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from toolcrib.checks import ABOVE_0_S, Count, Delay, Natural, checked, whole_from
from toolcrib.errors import InvalidArguments, InvalidName, InvalidRequest
from toolcrib.file_values import InFiles, Text
from toolcrib.names import check_name
from toolcrib.schema import Schema
from toolcrib.types import Object, Rejected, Tool, Visibility

OVERRIDDEN_META: Final = "toolcrib/overridden"
"""In `_meta` of an overridden tool: what was changed, and the server's own name for it."""
_CONDITIONS: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"}
)
"""Keywords that may require an argument beside the schema's own `required`."""
UNSET: Final[Any] = type("Unset", (), {"__repr__": lambda _: "UNSET"})()
"""The value of an argument that an override does not set; None is a value."""
TransportName = Literal["stdio", "http", "sse", "memory", "custom"]
"""`memory` is a server object in this process, `custom` a user-supplied transport; both need a `target`."""
ProtocolName = Literal["auto", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
"""A version to speak, or `auto`: the newest that both sides know."""
SessionMode = Literal["shared", "client"]
"""Whether all clients share one connection to a server, or each client's session has its own."""
Grant = Literal["authorization_code", "client_credentials", "token_exchange", "identity_assertion", "forward"]
"""How access tokens are obtained: a person logs in; by toolcrib's own credentials; in exchange for the caller's token;
by an assertion that the caller's identity provider gives for it; or the caller's own token is sent.
"""
_CALLERS_GRANTS: Final = ("token_exchange", "identity_assertion", "forward")
ClientAuthentication = Literal["client_secret_basic", "client_secret_post", "none"]
_OWN_PARAMETERS = (
    *("response_type", "client_id", "redirect_uri", "state", "code_challenge", "code_challenge_method"),
    *("resource", "scope"),
)
"""Parameters of a login page's address that toolcrib sets itself."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentOverride:
    """How one argument of a tool differs from the server's own."""

    description: str | None = None
    fixed: Any = UNSET
    """The value that is always sent; the argument disappears from the tool."""
    default: Any = UNSET
    """The value that is sent unless the caller gives another; the argument becomes optional."""
    hidden: bool = False
    """Whether an optional argument disappears from the tool, and is never sent."""

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` if it says more than one thing about the value."""
        if (self.fixed is not UNSET) + (self.default is not UNSET) + self.hidden > 1:
            raise InvalidRequest("An argument can be fixed, have a default or be hidden: one of these.")

    @property
    def disappears(self) -> bool:
        """Whether the tool no longer has the argument."""
        return self.hidden or self.fixed is not UNSET


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverride:
    """How a tool differs from the server's own."""

    name: Text | None = None
    title: Text | None = None
    description: str | None = None
    keywords: tuple[Text, ...] = ()
    """Further words that a search finds it by."""
    hidden: bool = False
    """Whether no list and no search shows it; it can still be called by its name."""
    annotations: Mapping[str, Any] = field(default_factory=dict)
    """MCP's hints, such as `readOnlyHint`, in place of the server's."""
    arguments: Mapping[str, ArgumentOverride] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `InvalidName` for a name that no tool can have."""
        if self.name is not None:
            check_name(self.name)

    def apply(self, tool: Tool) -> Tool | Rejected:
        """Return the tool as it is offered, or why the override does not fit it.

        >>> by = ToolOverride(name="open", arguments={"repo": ArgumentOverride(fixed="a/b")})
        >>> own = Tool(name="create", input_schema={"type": "object", "properties": {"repo": {}, "title": {}}})
        >>> made = by.apply(own)
        >>> made.id, dict(made.input_schema)
        ('open', {'type': 'object', 'properties': {'title': {}}})
        """
        try:
            schema = self._schema(tool.input_schema)
            if self.name is not None:
                check_name(self.name)
        except (InvalidRequest, InvalidName) as error:
            return Rejected(tool=tool.name, reason=f"its override does not fit: {error.message}")
        changed = [name for name in ("name", "title", "description", "hidden") if getattr(self, name)]
        changed += [name for name in ("keywords", "annotations", "arguments") if getattr(self, name)]
        return replace(
            tool,
            name=self.name or tool.name,
            title=self.title or tool.title,
            description=tool.description if self.description is None else self.description,
            keywords=(*tool.keywords, *self.keywords),
            visibility=Visibility.HIDDEN if self.hidden else tool.visibility,
            annotations={**tool.annotations, **self.annotations},
            input_schema=schema,
            meta={**tool.meta, OVERRIDDEN_META: {"tool": tool.name, "changed": changed}},
        )

    def _schema(self, schema: Object) -> Object:
        if not self.arguments:
            return schema
        own = schema.get("properties")
        properties = dict(own) if isinstance(own, Mapping) else {}
        required = [name for name in schema.get("required") or () if isinstance(name, str)]
        for name, argument in self.arguments.items():
            if name not in properties:
                known = ", ".join(map(str, properties)) or "none"
                raise InvalidRequest(f'the tool has no argument "{name}"; it has {known}')
            if argument.hidden and name in required:
                raise InvalidRequest(f'the argument "{name}" is required, so it can be fixed but not hidden')
            _check_value(schema, properties, name, argument)
            if argument.disappears:
                del properties[name]
            else:
                properties[name] = _described(properties[name], argument)
            if argument.disappears or argument.default is not UNSET:
                required = [other for other in required if other != name]
        changed: dict[str, Any] = {**schema, "properties": properties, "required": required}
        if not required:
            del changed["required"]
        return changed

    def arguments_for(self, given: Object) -> dict[str, Any]:
        """Return the arguments that the server gets: those given, with the defaults and the fixed values."""
        sent = {name: value for name, value in given.items() if not self._takes_over(name)}
        for name, argument in self.arguments.items():
            if argument.fixed is not UNSET:
                sent[name] = deepcopy(argument.fixed)
            elif argument.default is not UNSET:
                sent.setdefault(name, deepcopy(argument.default))
        return sent

    def _takes_over(self, name: str) -> bool:
        """Whether what a caller gives for this argument is ignored."""
        argument = self.arguments.get(name)
        return argument is not None and argument.disappears


def _check_value(schema: Object, properties: Object, name: str, argument: ArgumentOverride) -> None:
    """Raise `InvalidRequest` if the schema does not accept the value, or has conditions that need the argument."""
    value = argument.default if argument.fixed is UNSET else argument.fixed
    if value is not UNSET:
        own = Schema({"type": "object", "properties": {name: properties[name]}}, name)
        try:
            own.accept({name: value})
        except InvalidArguments as error:
            raise InvalidRequest(f'the argument "{name}" cannot have this value: {error.message}') from error
    if value is not UNSET or argument.hidden:
        for keyword in _CONDITIONS & schema.keys():
            if json.dumps(name) in json.dumps(schema[keyword]):
                raise InvalidRequest(f'the tool has conditions on the argument "{name}" ({keyword}), which need it')


def _described(own: Any, argument: ArgumentOverride) -> Any:
    """The schema of an argument that stays, with its new description and default."""
    described = dict(own) if isinstance(own, Mapping) else {}
    if argument.description is not None:
        described["description"] = argument.description
    if argument.default is not UNSET:
        described["default"] = argument.default
    return described


def override_note(tool: Tool) -> str:
    """What an override changed about the tool, for people; empty if there is none."""
    changed = tool.meta.get(OVERRIDDEN_META)
    own, fields = (changed.get("tool"), changed.get("changed")) if isinstance(changed, Mapping) else (None, None)
    if not isinstance(own, str) or not isinstance(fields, list):
        return ""
    return f"overridden: {', '.join(map(str, fields))}; the server's own name is {own}"


_REFERENCE: Final = re.compile(r"\$\{.+\}")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def _login_url_problem(url: str) -> str:
    """What is wrong with an address that credentials or browsers are sent to; empty if nothing is."""
    if _REFERENCE.search(url):
        return ""
    parts = urlsplit(url)
    if not parts.hostname or parts.username is not None:
        return "must be an address such as https://auth.example.com"
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    return "" if is_safe else "must begin with https://, unless it is on this machine"


LoginUrl = Annotated[Text, InFiles(_login_url_problem)]


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityProviderOptions:
    """Where callers log in, and how toolcrib asks there for assertions of who they are."""

    issuer: LoginUrl = ""
    client_id: Text = ""
    client_secret: Text = field(default="", repr=False)
    client_auth: ClientAuthentication = "client_secret_basic"
    subject: Literal["access_token", "id_token"] = "access_token"
    """Of what kind the tokens of callers are, which are exchanged for assertions."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClientOptions:
    """How toolcrib gets the access tokens of one server, as its OAuth client."""

    grant: Grant = "authorization_code"
    per_caller: bool = False
    """Whether each caller logs in for themselves; then a shared login only lists the tools."""
    issuer: LoginUrl = ""
    """The authorization server, which is then the only one that gets credentials. Without it, the server names one,
    and the first login decides. Grants without a person need it, except `forward`.
    """
    client_id: Text = ""
    """The id of a client that was registered in advance; without it, toolcrib registers itself."""
    client_secret: Text = field(default="", repr=False)
    private_key: Text = field(default="", repr=False)
    """A key in PEM, to sign in with instead of a secret (`client_credentials` only)."""
    algorithm: Text = "RS256"
    """How the private key signs."""
    client_auth: ClientAuthentication | None = None
    """How the client signs in at the token endpoint; by default, the first way that the authorization server takes."""
    client_metadata_url: Text = ""
    """An https address that describes this client, for authorization servers that take one instead of a
    registration.
    """
    scopes: tuple[Text, ...] = ()
    """The scopes to ask for; by default, those that the server names."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """More parameters for the address of the login page, such as `access_type`."""
    resource: bool = True
    """Whether to name the server when asking for a token (RFC 8707); otherwise the scopes say what it is for."""
    audience: tuple[Text, ...] = ()
    """`forward`: what the token's `aud` must hold, all of it: this gateway and the server. `token_exchange`: the
    audience to ask for.
    """
    identity_provider: IdentityProviderOptions | None = None
    """`identity_assertion`: who vouches for callers."""
    allowed_hosts: tuple[Text, ...] = ()
    """Hosts of an authorization server that may have a private address."""

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` for a combination that cannot work."""
        if problem := next((text for text, wrong in self._problems().items() if wrong), ""):
            raise InvalidRequest(f"These login settings cannot be used: {problem}.")

    def _problems(self) -> dict[str, bool]:
        grant, secret = self.grant, bool(self.client_secret)
        reserved = ", ".join(sorted(self.parameters.keys() & set(_OWN_PARAMETERS)))
        return {
            "client_secret needs client_id": secret and not self.client_id,
            "client_id and client_metadata_url exclude each other": bool(self.client_id and self.client_metadata_url),
            "private_key is for client_credentials": bool(self.private_key) and grant != "client_credentials",
            f"parameters cannot set {reserved}": bool(reserved),
            "client_credentials needs client_id, and client_secret or private_key": (
                grant == "client_credentials" and not (self.client_id and (secret or self.private_key))
            ),
            f"{grant} needs issuer, client_id and client_secret": (
                grant in ("token_exchange", "identity_assertion") and not (self.issuer and self.client_id and secret)
            ),
            "identity_assertion needs identity_provider, with issuer, client_id and client_secret": (
                grant == "identity_assertion" and not _is_complete(self.identity_provider)
            ),
            "identity_provider is for identity_assertion": (
                self.identity_provider is not None and grant != "identity_assertion"
            ),
            "forward needs audience, with the names of this gateway and of the server that a token must have": (
                grant == "forward" and len(set(self.audience)) < 2  # noqa: PLR2004 - one name each
            ),
            "identity_assertion names the server always, so resource cannot be false": (
                grant == "identity_assertion" and not self.resource
            ),
            "per_caller is for logins of people": self.per_caller and grant != "authorization_code",
        }

    @property
    def for_each_caller(self) -> bool:
        """Whether callers have tokens, and connections, of their own."""
        return self.per_caller or self.uses_callers_token

    @property
    def uses_callers_token(self) -> bool:
        """Whether the tokens for the server depend on the token that a caller was authenticated by."""
        return self.grant in _CALLERS_GRANTS

    def rights(self, scopes: Iterable[str]) -> str:
        """How the tokens of one caller differ, by their scopes; empty if the server's tokens do not depend on them. A
        request must not use the token of another one that may do more.
        """
        return " ".join(sorted(scopes)) if self.uses_callers_token else ""


def _is_complete(provider: IdentityProviderOptions | None) -> bool:
    return provider is not None and bool(provider.issuer and provider.client_id and provider.client_secret)


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class LoginOptions:
    """Where logins are kept, and where browsers come back to."""

    key: str = field(default="", repr=False)
    """The key that seals stored logins, or several separated by commas: the first seals, all of them open. Without
    it, the key is kept in the system's keyring or in `key_file`.
    """
    key_file: Path | None = None
    """Where the key is kept if there is no keyring; None for logins that end with this process."""
    public_url: LoginUrl = ""
    """Where browsers reach this gateway; without it, they must run on this machine."""
    client_metadata: bool = True
    """Whether the gateway introduces itself to authorization servers by a document at its public URL, if that begins
    with https, instead of registering with each one. They have to reach it.
    """
    callback_port: Annotated[int, whole_from(0, 65535)] = 0
    """Where browsers on this machine come back to after a login; 0 for any free port."""
    wait_s: Annotated[Delay, InFiles(ABOVE_0_S)] = 600.0
    """How long a login may take."""


TrustMode = Literal["off", "warn", "hold"]
"""What follows from a changed definition: nothing, a warning, or that the trusted one stays in use."""
LintMode = Literal["off", "mark", "hold"]
"""What follows from a finding of the lint: nothing, a mark, or that the definition stays out of use."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of one remote server. Fields that may hold secrets are left out of `repr`."""

    name: str
    """Unique within a fleet."""
    namespace: str | None = None
    """Namespace of its tools; defaults to the name. Servers that share a namespace are replicas of each other."""
    target: object | None = field(default=None, repr=False)
    """Instead of a command or a url: a server object in this process (SDK `Server` or `MCPServer`, or FastMCP), an
    `mcp.StdioServerParameters`, an SDK transport, or a function that returns one of these for each connection.
    """
    transport: TransportName = "stdio"
    """With a `url` and no command, `http` unless it says `sse`."""
    command: str = ""
    """stdio: the program to start, looked up in PATH."""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """stdio: variables in addition to the few that every child process inherits."""
    cwd: Path | None = None
    url: str = field(default="", repr=False)
    """http, sse: the endpoint."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """http, sse: sent with each request."""
    auth: OAuthClientOptions | None = None
    """http, sse: how access tokens are obtained; None for none but what `headers` holds."""
    allowed_tools: tuple[str, ...] | None = None
    """The only tools to offer, by the server's own names or patterns such as `get_*`; None means all."""
    denied_tools: tuple[str, ...] = ()
    """Tools never to offer, even if `allowed_tools` has them; names or patterns."""
    overrides: Mapping[str, ToolOverride] = field(default_factory=dict)
    """How its tools differ from what it lists, by its own names for them."""
    prompts: bool = True
    """Whether to offer its prompts."""
    resources: bool = True
    """Whether to offer its resources and resource templates."""
    start_timeout_s: Delay = 60.0
    """For the handshake."""
    list_timeout_s: Delay = 30.0
    """For the whole tool list, all pages."""
    call_timeout_s: Delay = 60.0
    """For a call to be answered, or to report progress."""
    call_max_timeout_s: Delay = 600.0
    """For a call that reports progress; a shorter time than `call_timeout_s` counts as that."""
    find_timeout_s: Delay = 3.0
    """For its own search, if `delegate_search` is set."""
    retries: Natural | None = None
    """Failed attempts in a row, after the first, before giving up. None means never give up."""
    retry_interval_s: Delay | None = None
    """Upper bound of the first pause between two attempts, above 0; None means the fleet's `backoff_first_s`."""
    protocol: ProtocolName = "auto"
    """The protocol version to speak. With `auto`, a server that knows both eras serves each client in its own."""
    sessions: SessionMode | None = None
    """Whether each client's session has its own connection, or all share one. With None, sessions have their own if
    the server may ask (`asks`), sessions of clients before 2026-07-28 if the server speaks 2026-07-28 and an older
    version, and over HTTP those of clients that declare capabilities if it speaks an older version only.
    """
    trust: TrustMode = "warn"
    """What follows when its definitions change: nothing (`off`), a warning, or that the trusted ones stay in use
    (`hold`) until `toolcrib trust`.
    """
    lint: LintMode = "mark"
    """What follows when the lint finds something in its definitions: nothing (`off`), a mark in its status, or that
    definitions with hard findings stay out of use (`hold`) until `toolcrib trust`. With `trust` set to `hold`, `mark`
    holds them too.
    """
    asks: bool | None = None
    """Whether a server of a version before 2026-07-28 may ask the client's user or model during a call. With None, it
    may on a connection of a single session. On a shared one it gets an answer only while a single session uses it.
    """
    show_all: bool = False
    """Ask the server to list all its tools by name: for a toolcrib, or a server like it, behind this one."""
    delegate_search: bool = False
    """Find its hidden tools through its own `tool_search`."""
    group: str | None = None
    """Shows its tools together with those of the other servers of this group, as one set with an argument `account`."""
    account: str | None = None
    """What this server is called in that argument; by default its name, without the group's before it."""
    required: bool = False
    """The gateway must not start without it."""
    problem: str = ""
    """Why it cannot be started at all, such as a missing variable. The server is then `failed` and never tried."""
    max_message_bytes: Count = 64 * 1024 * 1024
    """The largest page of a list accepted from it."""
    max_result_bytes: Count = 10 * 1024 * 1024
    """The largest other message, such as the result of a call."""
    max_result_nodes: Count = 200_000
    """Values and keys in the JSON of such a message; ten times as many in a page of a list."""
    max_result_blocks: Count = 10_000
    """Content blocks of one result."""

    def __post_init__(self) -> None:
        """Infer the transport of a url. Raises `InvalidRequest` if there is a command as well."""
        if self.transport == "stdio" and self.url and self.target is None:
            if self.command:
                raise InvalidRequest(
                    f'The server "{self.name}" has a command and a url.', hint="Give only the one that reaches it."
                )
            object.__setattr__(self, "transport", "http")

    @property
    def account_name(self) -> str:
        """What this server is called in its group.

        >>> ServerOptions(name="github-work", group="github").account_name
        'work'
        """
        return self.account or self.name.removeprefix(f"{self.group}-")

    def runs_toolcrib(self) -> bool:
        """Whether the server is a toolcrib.

        >>> ServerOptions(name="all", command="/usr/bin/toolcrib", args=("serve",)).runs_toolcrib()
        True
        """
        programs = {Path(word).name for word in (self.command, *self.args)}
        return bool(programs & {"toolcrib", "toolcrib.exe"}) and "serve" in self.args

    def starts_itself(self) -> bool:
        """Whether it would start a toolcrib that reads the same settings, and so itself, without end."""
        own_file = any(word == "-c" or word.startswith("--config") for word in self.args)
        return self.runs_toolcrib() and not own_file

    def offers(self, tool: str) -> bool:
        """Whether to offer the tool of this name: it is allowed and not denied.

        >>> ServerOptions(name="git", allowed_tools=("git_*",), denied_tools=("git_push",)).offers("git_push")
        False
        """
        allowed = self.allowed_tools is None or any(fnmatchcase(tool, pattern) for pattern in self.allowed_tools)
        return allowed and not any(fnmatchcase(tool, pattern) for pattern in self.denied_tools)


def group_problem(server: ServerOptions, servers: Iterable[ServerOptions]) -> str:
    """Why a server cannot be in its group; empty if it can.

    >>> work = ServerOptions(name="hub-work", group="hub")
    >>> group_problem(work, [work, ServerOptions(name="hub")])
    'its group has the name of the server hub'
    """
    if server.group is None:
        return ""
    if server.delegate_search:
        return "a server with delegateSearch cannot be in a group"
    for other in servers:
        if server.group in (other.name, other.namespace):
            return f"its group has the name of the server {other.name}"
        if other.group == server.group and other.name < server.name and other.account_name == server.account_name:
            return f"its account {server.account_name} is that of the server {other.name}; set another `account`"
    return ""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Options that apply to every server of a fleet. Times are in seconds."""

    gateway_id: str = ""
    """Identifies this gateway in a chain of gateways; a random id if empty."""
    connect: Literal["start", "on_demand"] = "start"
    """When servers are started: all at once, or each one at the first call of its tools, if they are known from an
    earlier run.
    """
    probe_timeout_s: Delay = 3.0
    """How long to wait for `server/discover` before treating the server as an older one."""
    connect_wait_s: Delay = 5.0
    """How long a call waits for a server that is connecting for the first time, or again after a loss. A server whose
    tools are known from an earlier run is waited for until its first start has ended.
    """
    resend_s: Delay = 3.0
    """How long to retry calls that could not be sent to a server that has just gone away: it may be restarting."""
    backoff_first_s: Delay = 1.0
    """Minimum time between attempts, except after a long good connection."""
    backoff_max_s: Delay = 25.0
    stable_s: Delay = 10.0
    """A connection that lasted this long resets the back-off."""
    debounce_s: Delay = 0.2
    """List-changed notifications within this time cause one refresh."""
    refresh_gap_s: Delay = 1.0
    """Between two refreshes of one list. Doubled whenever nothing had changed, up to `backoff_max_s`; for prompts and
    resources, doubled whenever a change follows soon after the last, so that a list that keeps changing is read
    rarely.
    """
    listen_retry_s: Delay = 5.0
    """Before a broken subscription to changes is made again."""
    http_connect_timeout_s: Delay = 10.0
    http_notice_timeout_s: Delay = 5.0
    """For a server to accept a notification; messages after it wait."""
    exit_grace_s: Delay = 0.5
    """For a child process to exit by itself after its input is closed."""
    term_grace_s: Delay = 0.5
    """For a child process to exit after SIGTERM, before SIGKILL."""
    max_sessions: Count = 32
    """Maximum number of connections to one server that belong to single sessions; the one unused longest is closed."""
    session_idle_s: Delay = 600.0
    """Until the connection of a session is closed that it does not use. The server then forgets the session's state."""
    drain_s: Delay = 10.0
    """How long running calls of a server may take that is removed or whose settings changed, before it is stopped."""
    stop_timeout_s: Delay = 3.0
    """To shut down one server, or the whole fleet."""
    max_pages: Count = 1000
    """Maximum number of pages read of one list."""
    max_tools: Count = 100_000
    """Maximum number of tools accepted from one server."""
    logins: LoginOptions = field(default_factory=LoginOptions)
    find_programs: Callable[[], Awaitable[tuple[str, str]]] | None = field(default=None, compare=False, repr=False)
    """Returns the address of the process that runs the programs of stdio servers for several workers, and what to send
    to it first; None to run them in this process.
    """
