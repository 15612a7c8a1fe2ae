"""Options of the remote servers: how to reach each one, and the timeouts and limits of the whole fleet.

Imports nothing heavy, so that settings can be read without an MCP client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

TransportName = Literal["stdio", "http", "sse", "memory", "custom"]
"""`memory` is a server object of this process, `custom` a transport of one's own; both come with a `target`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """One remote server. What may hold a secret is left out of its `repr`."""

    name: str
    """Unique in its fleet."""
    namespace: str | None = None
    """Of its tools, where that is not its name. Servers of one namespace stand in for each other."""
    target: object | None = field(default=None, repr=False)
    """In place of a command or a url: a server object of this process (SDK `UpstreamServer` or `MCPServer`, or FastMCP),
    `mcp.StdioServerParameters`, an SDK transport, or a function that gives one of these anew for each connection."""
    transport: TransportName = "stdio"
    command: str = ""
    """stdio: the program to start, looked up in PATH."""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """stdio: variables beside the few that every child inherits (see `environment`)."""
    cwd: Path | None = None
    url: str = field(default="", repr=False)
    """http, sse: the endpoint."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """http, sse: sent with each request."""
    allowed_tools: tuple[str, ...] | None = None
    """The only tools offered, by their own names; None means all."""
    prompts: bool = True
    """Whether its prompts are offered."""
    resources: bool = True
    """Whether its resources, and templates of them, are offered."""
    start_timeout_s: float = 60.0
    """Until it has answered the handshake."""
    list_timeout_s: float = 30.0
    """For the whole tool list, all pages."""
    call_timeout_s: float = 60.0
    find_timeout_s: float = 3.0
    """For its own search, where that is asked."""
    retries: int | None = None
    """How often it is tried again, with no lasting connection in between, before it is given up; None has no end."""
    retry_interval_s: float | None = None
    """The longest first pause between two attempts, above 0; None is the fleet's `backoff_first_s`."""
    asks: bool = False
    """Whether a server of a version before 2026-07-28 is told that it may ask the person, or the model, behind a client
    in the middle of a call. It gets an answer while one session alone uses it; see `asked`."""
    show_all: bool = False
    """Ask for all its tools by name: for a toolcrib, or a server like it, behind this one."""
    delegate_search: bool = False
    """Leave the search for its hidden tools to its own `tool_search`."""
    required: bool = False
    """The gateway must not start without it."""
    problem: str = ""
    """Why it cannot be started at all, such as a missing variable; it is then `failed` and never tried."""
    max_message_bytes: int = 64 * 1024 * 1024
    """The largest single message taken from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What holds for every server of a fleet. Times are in seconds."""

    gateway_id: str = ""
    """Tells this gateway from others in a chain; empty is a random one for each fleet."""
    probe_timeout_s: float = 3.0
    """How long a server may take to answer `server/discover` before it is taken for an older one."""
    connect_wait_s: float = 5.0
    """How long a call waits for a server whose first attempt, or first one after a loss, is under way."""
    resend_s: float = 3.0
    """How long a server may have been away for calls that could not be sent to be tried again: it may only restart."""
    backoff_first_s: float = 1.0
    """Attempts are never closer together than this, save for one after a long good connection."""
    backoff_max_s: float = 60.0
    stable_s: float = 10.0
    """A connection that lasted this long starts the back-off anew."""
    debounce_s: float = 0.2
    """Notices of a changed list that follow each other within this time cause one refresh."""
    refresh_gap_s: float = 1.0
    """Between two refreshes of one list; doubled each time nothing had changed, up to `backoff_max_s`. For prompts and
    resources it is doubled whenever a change follows soon after the last, so that who changes all the time is read
    rarely.
    """
    listen_retry_s: float = 5.0
    """Before a broken subscription to changes is made again."""
    http_connect_timeout_s: float = 10.0
    http_notice_timeout_s: float = 5.0
    """For a server to take a message that has no answer; those after it wait for it."""
    exit_grace_s: float = 0.5
    """For a child to exit by itself once its input is closed."""
    term_grace_s: float = 0.5
    """For a child to exit after SIGTERM, before SIGKILL."""
    stop_timeout_s: float = 3.0
    """For one server, or a whole fleet, to be torn down."""
    max_pages: int = 1000
    """The most pages read of one tool list."""
    max_tools: int = 100_000
    """The most tools taken from one server."""
