"""What a settings file amounts to."""

from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.gateway.options import GatewayOptions
from toolcrib.server.options import HttpOptions
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.upstream.options import FleetOptions, ServerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, each part in its own package's terms."""

    servers: tuple[ServerOptions, ...] = ()
    """By name; those that are disabled are left out."""
    fleet: FleetOptions = field(default_factory=FleetOptions)
    gateway: GatewayOptions = field(default_factory=GatewayOptions)
    surfaces: SurfaceOptions = field(default_factory=SurfaceOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    http_problem: str = ""
    """Why HTTP must not be served: a token whose secret is not to be had. Empty when all is well."""
    source: Path | None = None
    """The file it came from."""
    warnings: tuple[str, ...] = ()
    """What was left out or read in an unusual way: file, line and field."""
