"""The settings of an app, as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from toolcrib.checks import Count, Seconds, checked
from toolcrib.file_values import InFiles, Text, quoted
from toolcrib.gateway.options import GatewayOptions
from toolcrib.sandbox.limits import Limits, SandboxOptions, ScriptOptions
from toolcrib.server.options import AuthOptions, HttpOptions
from toolcrib.settings.env import SecretReference
from toolcrib.state.options import StateOptions
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.types import Policy
from toolcrib.upstream.options import FleetOptions, ServerOptions

MAX_PORT: Final = 65535


def _address_problem(text: str) -> str:
    host, _, port = text.rpartition(":")
    is_address = bool(host) and port.isdecimal() and int(port) <= MAX_PORT
    return "" if is_address else f'must be an address such as "127.0.0.1:9464", not {quoted(text)}'


Address = Annotated[Text, InFiles(_address_problem)]


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """The functions of this process."""

    max_threads: Count = 40
    """How many that are not async may run at once, in threads, 1 or more."""
    mask_errors: bool = False
    """Whether what an exception of a function or a provider says is kept from the caller; the log has it in any case.
    """


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOptions:
    """What can be measured from outside."""

    metrics: Address = ""
    """Where `/metrics` is served for Prometheus, as `HOST:PORT`; empty for nowhere. It asks for no token."""
    usage: bool = True
    """Whether calls, searches and the tokens of definitions are counted by day; without callers and arguments."""
    zero_hits: bool = False
    """Whether the words of searches that found nothing, or only weak hits, are kept."""
    traces: bool = False
    """Whether `toolcrib serve` sends spans to the endpoint that the variables of OpenTelemetry name."""
    log_format: Literal["text", "json"] = "text"
    """How `toolcrib serve` logs, unless the command line says otherwise."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """Pages that show what the gateway does, for the people who run it."""

    address: Address = ""
    """Where they are served, as `HOST:PORT`; empty for nowhere. Port 0 takes any free one."""
    content: bool = False
    """Whether they show the arguments and results of calls, and the words of searches."""
    calls: Count = 500
    """How many of the last calls and searches are kept, in memory."""
    scope: Text = "console"
    """The scope that a token needs to sign in."""
    session_s: Seconds = 12 * 3600
    """How long a person stays signed in at most, in seconds."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, each part in its own package's terms."""

    servers: tuple[ServerOptions, ...] = ()
    """By name; those that are disabled are left out."""
    fleet: FleetOptions = field(default_factory=FleetOptions)
    gateway: GatewayOptions = field(default_factory=GatewayOptions)
    surfaces: SurfaceOptions = field(default_factory=SurfaceOptions)
    local: LocalOptions = field(default_factory=LocalOptions)
    policy: Policy | None = None
    """Who may see and call what; None lets everybody see and call everything."""
    scripts: ScriptOptions = field(default_factory=ScriptOptions)
    limits: Limits = field(default_factory=Limits)
    """How far a script may go."""
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)
    script_folder: Path | None = None
    """Where stored scripts are, each a tool; None for none."""
    http: HttpOptions = field(default_factory=HttpOptions)
    http_problem: str = ""
    """Why HTTP must not be served: a secret that is not to be had. Empty when all is well."""
    auth: AuthOptions = field(default_factory=AuthOptions)
    """Whose tokens are accepted over HTTP, besides `http.tokens`."""
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
    console: ConsoleOptions = field(default_factory=ConsoleOptions)
    state: StateOptions = field(default_factory=StateOptions)
    """Where state is kept: in memory, unless it names a file; settings from a file name one."""
    source: Path | None = None
    """The file it came from."""
    files: tuple[Path, ...] = field(default=(), compare=False)
    """The files whose changes change the settings: that one, and those it names."""
    section: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The section `toolcrib` of the file, as it is written there."""
    watch_s: float = 2.0
    """How often `toolcrib serve` looks whether one of the files has changed, in seconds."""
    watch_at_once: bool = False
    """Whether it uses the system's reports of changes as well."""
    warnings: tuple[str, ...] = ()
    """What was left out or read in an unusual way: file, line and field."""
    secrets: tuple[SecretReference, ...] = field(default=(), compare=False)
    """Where secrets come from, and whether they are there; never the secrets."""

    @property
    def origin(self) -> str:
        """Identifies a gateway with these settings among those of its user: the file, or the names of the servers."""
        return str(self.source.absolute()) if self.source else "\n".join(sorted(server.name for server in self.servers))
