"""Options of the remote servers: how to reach each one, and the timeouts and limits of the whole fleet.

Imports nothing heavy, so that settings can be read without an MCP client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from toolcrib.checks import checked
from toolcrib.errors import InvalidRequest
from toolcrib.ranges import Count, Delay, Natural
from toolcrib.upstream.overrides import ToolOverride

TransportName = Literal["stdio", "http", "sse", "memory", "custom"]
"""`memory` is a server object in this process, `custom` a user-supplied transport; both need a `target`."""
ProtocolName = Literal["auto", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
"""A version to speak, or `auto`: the newest that both sides know."""
SessionMode = Literal["shared", "client"]
"""Whether all clients share one connection to a server, or each client's session has its own."""


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
    the server may ask (`asks`), and sessions of clients before 2026-07-28 if the server speaks 2026-07-28 and an older
    version.
    """
    asks: bool | None = None
    """Whether a server of a version before 2026-07-28 may ask the client's user or model during a call. With None, it
    may on a connection of a single session. On a shared one it gets an answer only while a single session uses it.
    """
    show_all: bool = False
    """Ask the server to list all its tools by name: for a toolcrib, or a server like it, behind this one."""
    delegate_search: bool = False
    """Find its hidden tools through its own `tool_search`."""
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

    def offers(self, tool: str) -> bool:
        """Whether to offer the tool of this name: it is allowed and not denied.

        >>> ServerOptions(name="git", allowed_tools=("git_*",), denied_tools=("git_push",)).offers("git_push")
        False
        """
        allowed = self.allowed_tools is None or any(fnmatchcase(tool, pattern) for pattern in self.allowed_tools)
        return allowed and not any(fnmatchcase(tool, pattern) for pattern in self.denied_tools)


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
