"""What a `Registry` is told, and what that means to the parts below."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolcrib._version import VERSION
from toolcrib.errors import InvalidRequest
from toolcrib.model import ServerInfo
from toolcrib.protocols import Authenticator, BackendSelector, Policy
from toolcrib.search.options import SearchOptions
from toolcrib.settings.options import Settings
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.own_pipes import own_pipes

_SCHEMES = "http://, https://, sse://, sses:// or stdio://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How a `Registry` presents itself, searches, and chooses who runs a tool."""

    server_info: ServerInfo = field(default_factory=lambda: ServerInfo(name="toolcrib", version=VERSION))
    search_config: SearchOptions | None = None
    """How tools are ranked; None means the defaults."""
    backend_selector: BackendSelector | None = None
    """Orders those who can run a tool; None means local functions, then providers, then remote servers."""
    settings: Settings = field(default_factory=Settings)
    """Everything else that an `App` can be told."""
    policy: Policy | None = None
    authenticator: Authenticator | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """A remote MCP server."""

    name: str
    """Unique in its registry; the namespace of its tools, where no other is given."""
    url: str = field(default="", repr=False)
    """`http(s)://` for streamable HTTP, `sse://` or `sses://` for the older transport without and with TLS, `stdio://`
    for this process's own stdin and stdout.
    """
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with each HTTP request."""
    max_retries: int | None = None
    """Attempts to reach it, after the first one, before it is given up; None means for ever."""
    retry_interval: float | None = None
    """The first pause between two attempts, in seconds."""
    transport: object | None = field(default=None, repr=False)
    """Instead of a URL: a server object in this process, an SDK transport, or `StdioServerParameters`."""
    namespace: str | None = None
    """Of its tools. Servers of one namespace that offer the same tools stand in for each other."""


def settings_of(config: Config) -> Settings:
    """The settings of the app; every tool is listed by name, where they do not say otherwise."""
    settings = config.settings
    gateway, surfaces = settings.gateway, settings.surfaces
    if config.search_config is not None:
        gateway = replace(gateway, search=config.search_config)
    if settings.surfaces == Settings().surfaces:
        surfaces = replace(surfaces, surfaces=("direct",))
    if config.server_info.instructions:
        surfaces = replace(surfaces, instructions=config.server_info.instructions)
    return replace(settings, gateway=gateway, surfaces=surfaces)


def server_of(backend: BackendConfig) -> ServerOptions:
    """The server that the app adds. Raises `InvalidRequest`."""
    if not backend.name.strip():
        raise InvalidRequest("A backend needs a name.", hint='Such as BackendConfig(name="files", url="https://...").')
    more: dict[str, Any] = {"name": backend.name, "namespace": backend.namespace, "retries": backend.max_retries}
    if backend.retry_interval is not None:
        more["retry_interval_s"] = backend.retry_interval
    if backend.transport is not None:
        return ServerOptions(target=backend.transport, **more)
    scheme, mark, rest = backend.url.partition("://")
    if mark and scheme in ("http", "https") and rest:
        return ServerOptions(transport="http", url=backend.url, headers=backend.headers, **more)
    if mark and scheme in ("sse", "sses") and rest:
        url = f"{'https' if scheme == 'sses' else 'http'}://{rest}"
        return ServerOptions(transport="sse", url=url, headers=backend.headers, **more)
    if backend.url == "stdio://":
        # What is closed once never comes back.
        return ServerOptions(target=own_pipes, **{**more, "retries": 0})
    what = f"{scheme}:// is no scheme of a backend" if mark else "the URL has no scheme"
    raise InvalidRequest(f"Backend {backend.name}: {what}.", hint=f"Use {_SCHEMES}, or give a transport.")
