"""A registry of local functions, providers and remote MCP servers, under ids that can be searched and executed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import anyio

from toolcrib._version import VERSION
from toolcrib.app import App
from toolcrib.errors import InvalidRequest, NotStarted, ServerUnavailable
from toolcrib.gateway.visibility import describe_state
from toolcrib.providers.builder import ToolBuilder
from toolcrib.providers.content import unwrap
from toolcrib.search.options import SearchOptions
from toolcrib.server.asgi import HttpApp
from toolcrib.settings.options import Settings
from toolcrib.types import (
    JSON,
    Authenticator,
    Backend,
    BackendSelector,
    Context,
    Object,
    Policy,
    SearchReply,
    ServerInfo,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
)
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.stdio import parent_stdio


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


class Registry:
    """Local functions, providers and remote MCP servers under one roof.

    `async with registry` or `start` and `stop`; a stopped registry can be started again.
    """

    def __init__(self, config: Config | None = None) -> None:
        """Nothing is connected yet."""
        self.config = config or Config()
        self.app = App(
            app_settings(self.config),
            name=self.config.server_info.name or "toolcrib",
            version=self.config.server_info.version or VERSION,
            title=self.config.server_info.title or None,
            policy=self.config.policy,
            authenticator=self.config.authenticator,
            selector=self.config.backend_selector,
        )
        self.tool = self.app.tool
        """A decorator: `@registry.tool`, with all that `App.tool` takes."""

    # -- the life cycle --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect the remote servers; one that cannot be had is left behind. Raises `AlreadyStarted`."""
        await self.app.start()
        try:
            with anyio.move_on_after(self.app.settings.gateway.start_grace_s):
                await self.app.settled()
        except BaseException:
            await self.app.stop()
            raise

    async def settled(self) -> None:
        """Wait until each remote server is ready or has failed, and its tools can be found."""
        await self.app.settled()

    async def stop(self) -> None:
        """Close everything; does nothing when it is not started."""
        await self.app.stop()

    async def __aenter__(self) -> Self:
        """`start`."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """`stop`."""
        await self.stop()

    # -- registering -----------------------------------------------------------------------------------------------

    def register_local_func(
        self,
        name: str,
        description: str,
        schema: Object,
        handler: Callable[..., Any],
        *,
        namespace: str = "",
        tags: Sequence[str] = (),
        version: str | None = None,
        strict: bool = False,
        **more: Any,
    ) -> Tool:
        """Register a function for a tool whose schema is written out; any other field of `Tool` may be given.

        The handler takes the arguments as one dict, or each by its name, with or without a leading context. A tool of
        that name is replaced; with `strict`, another definition raises `NameCollision`. Raises `InvalidTool` or
        `InvalidName`; then nothing is registered.
        """
        tool = Tool(
            name=name,
            namespace=namespace,
            description=description,
            input_schema=schema,
            tags=_as_tuple(tags),
            version=version,
            **more,
        )
        return self.app.register(tool, handler, strict=strict)

    def register_local(self, tool: Tool | ToolBuilder, handler: Callable[..., Any], *, strict: bool = False) -> Tool:
        """Register a function for a tool. With `strict`, another definition of a known tool raises `NameCollision`."""
        return self.app.register(tool, handler, strict=strict)

    def unregister(self, tool_id: str) -> None:
        """Forget a local tool. Raises `ToolNotFound`."""
        self.app.unregister(tool_id)

    def add_provider(self, provider: object) -> None:
        """Share a provider's tools with all callers."""
        self.app.add_provider(provider)

    def remove_provider(self, provider: object) -> None:
        """Share them no longer. Raises `BackendNotFound`."""
        self.app.remove_provider(provider)

    def register_mcp(self, backend: BackendConfig) -> None:
        """Add a remote server: connected at `start`, or at once where that is past.

        Raises `InvalidRequest` for a name that is empty or taken, and for a URL that is none.
        """
        self.app.add_server(server_options(backend))

    def unregister_mcp(self, name: str) -> None:
        """Disconnect a remote server and forget its tools. Raises `BackendNotFound`."""
        self.app.remove_server(name)

    # -- use -------------------------------------------------------------------------------------------------------

    async def execute(self, tool_id: str, arguments: Object | None = None, *, ctx: Context | None = None) -> JSON:
        """Run a tool and give its value: structured content, else the text of its only block, else all blocks.

        Raises `NotStarted`, `ToolNotFound`, `HandlerNotFound`, `InvalidRequest`, and `ExecutionFailed`, also where the
        tool itself says that it failed.
        """
        return unwrap(await self.call(tool_id, arguments, ctx=ctx))

    async def call(self, tool_id: str, arguments: Object | None = None, *, ctx: Context | None = None) -> ToolResult:
        """Run a tool and give its whole result. Raises as `execute`, but not where the tool says that it failed."""
        self._check()
        return await self.app.call(tool_id, arguments, ctx=ctx)

    async def search(
        self, query: str, limit: int | None = None, *, cursor: str | None = None, ctx: Context | None = None
    ) -> SearchReply:
        """The tools that fit; an empty query lists them all, a page at a time: `cursor` is that of the page before.

        Raises `StaleCursor` where the list has changed, and `InvalidRequest` for a cursor beside a query.
        """
        return await self.app.search(query, limit=limit, cursor=cursor, ctx=ctx)

    async def list_all(self, *, ctx: Context | None = None) -> tuple[Tool, ...]:
        """Every tool, by id."""
        return await self.app.tools(ctx=ctx)

    async def list_namespaces(self, *, ctx: Context | None = None) -> tuple[str, ...]:
        """Every namespace that has a tool, sorted; the empty one for tools without."""
        return tuple(sorted({tool.namespace for tool in await self.list_all(ctx=ctx)}))

    async def get_tool(self, tool_id: str, *, ctx: Context | None = None) -> Tool:
        """The tool that a spelling names. Raises `ToolNotFound` or `AmbiguousName`."""
        return (await self.app.find(tool_id, ctx=ctx)).tool

    async def get_backends(self, tool_id: str, *, ctx: Context | None = None) -> tuple[Backend, ...]:
        """Who can run the tool. Raises as `get_tool`."""
        return (await self.app.find(tool_id, ctx=ctx)).backends

    async def refresh(self) -> None:
        """Ask every provider for its tools again, and wait until they are in."""
        self._check()
        await self.app.refresh()

    def on_change(self, listener: Callable[[], None]) -> Unsubscribe:
        """Call back after tools or servers changed.

        While the registry runs, from its event loop; otherwise from the thread that takes the change in, which may be
        any. It must not wait for anything.
        """
        return self.app.gateway.refresher.subscribe(listener)

    def statuses(self) -> tuple[ServerStatus, ...]:
        """One status a remote server, by name, and of each provider that failed."""
        return self.app.gateway.refresher.statuses()

    async def health_check(self) -> None:
        """Raises `NotStarted`, or `ServerUnavailable` for the first server that is not ready."""
        self._check()
        for status in self.statuses():
            if status.state is not ServerState.READY:
                raise ServerUnavailable(
                    f"Server {status.name} {describe_state(status)}.",
                    data={"server": status.name, "state": str(status.state), "reason": status.reason},
                )

    # -- serving ---------------------------------------------------------------------------------------------------

    async def serve_stdio(self, *, stop: anyio.Event | None = None) -> None:
        """Serve one client over stdin and stdout until it leaves; starts and stops the registry where needed."""
        async with self.app.started():
            await self.app.serve_stdio(stop=stop)

    def serve_http(self) -> HttpApp:
        """An ASGI app that speaks streamable HTTP, to be mounted anywhere; it answers while the registry runs.

        It is the same one each time.
        """
        return self.app.asgi_mount()

    def serve_sse(self) -> HttpApp:
        """An ASGI app that speaks the older HTTP with server-sent events; it answers while the registry runs."""
        return self.app.sse_mount()

    def _check(self) -> None:
        if not self.app.running:
            raise NotStarted("The registry is not started.", hint="Use it inside `async with`, or call `start` first.")


def _as_tuple(given: Any) -> Any:
    """Words as a tuple. One text, which would be many words of one letter, is left for the check of the tool."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else given


_SCHEMES = "http://, https://, sse://, sses:// or stdio://"


def app_settings(config: Config) -> Settings:
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


def server_options(backend: BackendConfig) -> ServerOptions:
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
        return ServerOptions(target=parent_stdio, **{**more, "retries": 0})
    what = f"{scheme}:// is no scheme of a backend" if mark else "the URL has no scheme"
    raise InvalidRequest(f"Backend {backend.name}: {what}.", hint=f"Use {_SCHEMES}, or give a transport.")
