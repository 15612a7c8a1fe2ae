"""Two registries with the interfaces of older systems, over one `App`.

`Registry` gathers local functions, providers and remote MCP servers under ids, and executes them. `ToolRegistry` keeps
tools out of a server's list until they are searched for; it can be attached to a server that is there already, and
is itself a provider.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import anyio

from toolcrib._version import VERSION
from toolcrib.app import App
from toolcrib.errors import InvalidRequest, NotFound, NotStarted, ServerUnavailable, StaleCursor, ToolNotFound
from toolcrib.gateway.states import stands
from toolcrib.model import (
    JSON,
    Hit,
    Key,
    Object,
    SearchReply,
    SearchRequest,
    ServerInfo,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Visibility,
)
from toolcrib.protocols import Authenticator, Backend, BackendSelector, Context, Policy, Unsubscribe
from toolcrib.providers.ambient import answering, asking
from toolcrib.providers.builder import ToolBuilder
from toolcrib.providers.foreign import run_by_us
from toolcrib.providers.results import unwrap
from toolcrib.providers.soundness import sound
from toolcrib.search.options import SearchOptions
from toolcrib.server.attach import attach
from toolcrib.server.mount import HttpApp
from toolcrib.settings.options import Settings
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.own_pipes import own_pipes

_ATTEMPTS = 3
"""How often a list is read again from its beginning, where it changes between two of its pages."""
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


class Registry:
    """Local functions, providers and remote MCP servers under one roof.

    `async with registry` or `start` and `stop`; a stopped registry can be started again.
    """

    def __init__(self, config: Config | None = None) -> None:
        """Nothing is connected yet."""
        self.config = config or Config()
        self.app = App(
            _settings(self.config),
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
        **more: Any,
    ) -> Tool:
        """Register a function for a tool whose schema is written out; any other field of `Tool` may be given.

        The handler takes the arguments as one dict, or each by its name, with or without a leading context. Raises
        `InvalidTool` or `InvalidName`; then nothing is registered.
        """
        tool = Tool(
            name=name,
            namespace=namespace,
            description=description,
            input_schema=schema,
            tags=_words(tags),
            version=version,
            **more,
        )
        return self.app.register(tool, handler)

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
        self.app.add_server(_server(backend))

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
        return self.app.gateway.live.subscribe(listener)

    def statuses(self) -> tuple[ServerStatus, ...]:
        """One status a remote server, by name, and of each provider that failed."""
        return self.app.gateway.live.statuses()

    async def health_check(self) -> None:
        """Raises `NotStarted`, or `ServerUnavailable` for the first server that is not ready."""
        self._check()
        for status in self.statuses():
            if status.state is not ServerState.READY:
                raise ServerUnavailable(
                    f"Server {status.name} {stands(status)}.",
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


def _settings(config: Config) -> Settings:
    settings = config.settings
    gateway, surfaces = settings.gateway, settings.surfaces
    if config.search_config is not None:
        gateway = replace(gateway, search=config.search_config)
    if settings.surfaces == Settings().surfaces:
        surfaces = replace(surfaces, surfaces=("direct",))
    if config.server_info.instructions:
        surfaces = replace(surfaces, instructions=config.server_info.instructions)
    return replace(settings, gateway=gateway, surfaces=surfaces)


def _words(given: Any) -> Any:
    """Words as a tuple. One text, which would be many words of one letter, is left for the check of the tool."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else given


def _server(backend: BackendConfig) -> ServerOptions:
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


class ToolRegistry:
    """Tools that stay out of a server's list until they are searched for.

    Works as it stands, without being started. It is itself a `ToolProvider`: of its own tools and its providers', and
    never of those that come with a request, so that a registry in its own request cannot ask itself for ever.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """Empty."""
        self.app = App(settings)

    # -- registering -----------------------------------------------------------------------------------------------

    def register_tool(self, tool: Tool | ToolBuilder, handler: Callable[..., Any], *keywords: str) -> Tool:
        """Register a tool that is searched, not listed; the keywords are searched too.

        The handler takes the arguments by name, or as one request, with or without a leading context. A tool of that
        name is replaced. Raises `InvalidTool` or `InvalidName`; then nothing is registered.
        """
        made = tool.to_tool() if isinstance(tool, ToolBuilder) else sound(tool)
        searched = replace(made, keywords=(*made.keywords, *keywords), visibility=Visibility.DISCOVERABLE)
        return self.app.register(searched, handler)

    def unregister_tool(self, name: str) -> None:
        """Forget a tool. Raises `ToolNotFound`."""
        self.app.unregister(name)

    def add_provider(self, provider: object) -> None:
        """Offer a provider's tools to every request."""
        self.app.add_provider(provider)

    def remove_provider(self, provider: object) -> None:
        """Offer them no longer. Raises `BackendNotFound`."""
        self.app.remove_provider(provider)

    def attach(self, server: object) -> None:
        """Put `tool_search` and `execute_tool` on an SDK `Server`, an `MCPServer` or a `FastMCP`; twice is harmless."""
        attach(server, self.app.front)

    # -- use -------------------------------------------------------------------------------------------------------

    async def search(self, query: str = "", max_results: int | None = None, *, ctx: Context | None = None) -> list[Hit]:
        """The tools that fit, best first; an empty query lists all, by id."""
        for _ in range(_ATTEMPTS):
            try:
                return await self._pages(query, max_results, ctx)
            except StaleCursor:  # a tool came or went between two pages
                continue
        return await self._pages(query, max_results, ctx)

    async def _pages(self, query: str, limit: int | None, ctx: Context | None) -> list[Hit]:
        """All pages of a list, one after the other, up to the limit; the one page of a search."""
        reply = await self.app.search(query, limit=limit, ctx=ctx)
        hits = list(reply.hits)
        while reply.cursor and (limit is None or len(hits) < limit):
            reply = await self.app.search(query, limit=limit, cursor=reply.cursor, ctx=ctx)
            hits.extend(reply.hits)
        return hits if limit is None or limit < 1 else hits[:limit]

    async def execute(self, name: str, arguments: Object | None = None, *, ctx: Context | None = None) -> ToolResult:
        """Run a tool. Raises `ToolNotFound` and all that a call raises."""
        return await self.app.call(name, arguments, ctx=ctx)

    # -- as a provider ---------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context) -> tuple[Tool, ...]:
        """Its own tools and its providers', by id."""
        with asking(self, "list") as first:
            return (await self.app.gateway.view(_alone(ctx))).tools() if first else ()

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """The tool of that name, or None."""
        with asking(self, ("find", name)) as first:
            try:
                return (await self.app.gateway.find(_alone(ctx), name)).tool if first else None
            except NotFound:
                return None

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run the tool of that name; None where there is none."""
        with asking(self, ("call", name)) as first:
            try:
                with run_by_us():
                    found = await self.app.gateway.find(_alone(ctx), name) if first else None
            except ToolNotFound:
                found = None
        if found is None:
            return None
        with answering(), run_by_us():
            return await self.app.gateway.run(_alone(ctx), found, dict(arguments))

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | None:
        """Run the tool of that key; None where there is none."""
        return await self.call_tool(ctx, Tool(name=key.name, namespace=key.namespace).id, arguments)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back when its tools change."""
        ends = [source.subscribe(callback) for source in (self.app.local, self.app.shared)]

        def end_all() -> None:
            for end in ends:
                end()

        return end_all


def _alone(ctx: Context) -> Context:
    """The context without what came with the request."""
    return replace(ctx, providers=(), overriding=(), memo=None) if ctx.providers or ctx.overriding else ctx


__all__ = ["BackendConfig", "Config", "Registry", "SearchRequest", "ToolRegistry"]
