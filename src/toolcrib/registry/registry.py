"""A registry of local functions, providers and remote MCP servers, under ids that can be searched and executed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from toolcrib._version import VERSION
from toolcrib.app import App
from toolcrib.checks import Delay, Natural, checked
from toolcrib.containment import own_code
from toolcrib.errors import (
    InvalidRequest,
    InvalidTool,
    NotFound,
    NotStarted,
    ServerUnavailable,
    StaleCursor,
    ToolNotFound,
)
from toolcrib.gateway.server_states import describe_state
from toolcrib.middleware.audit import AuditSink
from toolcrib.providers.base import Backend, BackendSelector, Provider, ThreadSafeCallback, end_all
from toolcrib.providers.builder import ToolBuilder, checked_tool
from toolcrib.providers.content import unwrap
from toolcrib.providers.functions import LocalTools, ToolDecorator
from toolcrib.providers.request_scope import allow_recursion, guard_recursion
from toolcrib.schema import signature
from toolcrib.search.options import SearchOptions
from toolcrib.search.text import parse_query
from toolcrib.server.asgi import AsgiApp
from toolcrib.server.attach import attach
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.types import (
    JSON,
    Authenticator,
    CallMiddleware,
    Context,
    Hit,
    Key,
    Object,
    Policy,
    SearchReply,
    ServerInfo,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
    Visibility,
)
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.transports.pipes import ParentStdio

_HINTS: Final = {
    "config": "Such as Config(settings=Settings(...)).",
    "backend": 'Such as BackendConfig(name="time", url="https://...").',
}
"""For errors about arguments."""
_SCHEMES = "http://, https://, sse://, sses:// or stdio://"


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How a `Registry` presents itself, searches, and chooses the backend of a tool."""

    server_info: ServerInfo = field(default_factory=lambda: ServerInfo(name="toolcrib", version=VERSION))
    search_config: SearchOptions | None = None
    """How tools are ranked; None means the defaults."""
    backend_selector: BackendSelector | None = None
    """Orders the backends that can run a tool; None means local functions, then providers, then remote servers."""
    settings: Settings = field(default_factory=Settings)
    """All other settings of an `App`."""
    policy: Policy | None = None
    """Who may see and call what; None means that of the settings."""
    authenticator: Authenticator | None = None
    """Identifies the callers of a served registry; None means the tokens of the settings."""
    middleware: Sequence[CallMiddleware] = ()
    """Runs around every call, the first one outermost."""
    audit: AuditSink | None = None
    """Gets an event for every call, instead of the audit log."""
    state: StateStore | None = None
    """Keeps what several processes that serve one address share; None means what the settings say."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """A remote MCP server."""

    name: str
    """Unique within its registry; the default namespace of its tools."""
    url: str = field(default="", repr=False)
    """`http(s)://` for streamable HTTP, `sse://` or `sses://` for HTTP+SSE without and with TLS, `stdio://` for this
    process's own stdin and stdout.
    """
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with each HTTP request."""
    max_retries: Natural | None = None
    """Failed attempts in a row, after the first, before giving up; None means never give up."""
    retry_interval: Delay | None = None
    """The first pause between two attempts, in seconds."""
    transport: object | None = field(default=None, repr=False)
    """Instead of a URL: a server object in this process, an SDK transport, or `StdioServerParameters`."""
    namespace: str | None = None
    """Of its tools. Servers that share a namespace and offer the same tools are replicas of each other."""


@checked(methods=("register", "unregister", "search", "call"))
class AppRegistry:
    """What the registries share: an app's `register`, `search` and `call`, with the same arguments and results."""

    def __init__(self, app: App) -> None:
        self.app = app

    def register(self, tool: Tool | ToolBuilder, handler: Callable[..., Any], *, strict: bool = False) -> Tool:
        """Register a function for a tool whose schema is written out.

        The handler takes the arguments by name, or as one dict, with or without a leading context. A tool of that name
        is replaced; with `strict`, a different definition raises `NameCollision`. Raises `InvalidTool` or
        `InvalidName`, and then registers nothing.
        """
        return self.app.register(tool, handler, strict=strict)

    def unregister(self, tool_id: str) -> None:
        """Remove a registered tool. Raises `ToolNotFound`."""
        self.app.unregister(tool_id)

    def add_provider(self, provider: object) -> None:
        """Share a provider's tools with all callers."""
        self.app.add_provider(provider)

    def remove_provider(self, provider: object) -> None:
        """Stop sharing a provider's tools. Raises `BackendNotFound`."""
        self.app.remove_provider(provider)

    async def search(
        self,
        query: str | Sequence[str] = "",
        limit: int | None = None,
        *,
        cursor: str | None = None,
        ctx: Context | None = None,
    ) -> SearchReply:
        """Return the tools that match. An empty query lists them all; `cursor` is that of the previous page.

        Several queries are one need in other words, as in `App.search`.

        Raises `StaleCursor` if the tools have changed, and for the cursor of another query.
        """
        return await self.app.search(query, limit, cursor=cursor, ctx=ctx)

    async def call(self, name: str, arguments: Object | None = None, *, ctx: Context | None = None) -> ToolResult:
        """Run a tool and return its whole result. Raises `ToolNotFound` and all that a call raises."""
        return await self.app.call(name, arguments, ctx=ctx)


@checked(
    hints=_HINTS,
    methods=(
        "register_local",
        "register_mcp",
        "unregister_mcp",
        "execute",
        "call",
        "list_all",
        "list_namespaces",
        "get_tool",
        "get_backends",
        "on_change",
    ),
)
class Registry(AppRegistry, ToolDecorator):
    """Local functions, providers and remote MCP servers in one registry.

    `async with registry` or `start` and `stop`; a stopped registry can be started again.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        app = App(
            app_settings(self.config),
            name=self.config.server_info.name or "toolcrib",
            version=self.config.server_info.version or VERSION,
            title=self.config.server_info.title or None,
            policy=self.config.policy,
            authenticator=self.config.authenticator,
            middleware=self.config.middleware,
            selector=self.config.backend_selector,
            audit=self.config.audit,
            state=self.config.state,
        )
        super().__init__(app)

    # -- life cycle ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect the remote servers; those that fail are left out. Raises `AlreadyStarted`."""
        await self.app.start()
        try:
            with anyio.move_on_after(self.app.settings.gateway.list_wait_s):
                await self.app.settled()
        except BaseException:
            await self.app.stop()
            raise

    async def settled(self) -> None:
        """Wait until each remote server is ready or has failed, and its tools can be found."""
        await self.app.settled()

    async def stop(self) -> None:
        """Close everything; does nothing if it is not started."""
        await self.app.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- registration ----------------------------------------------------------------------------------------------

    @property
    def _own_tools(self) -> LocalTools:
        return self.app.local

    @checked(error=InvalidTool)
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
        that name is replaced; with `strict`, a different definition raises `NameCollision`. Raises `InvalidTool` or
        `InvalidName`, and then registers nothing.
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
        """Like `register`."""
        return self.register(tool, handler, strict=strict)

    def register_mcp(self, backend: BackendConfig) -> None:
        """Add a remote server: connected at `start`, or at once if that has passed.

        Raises `InvalidRequest` for a name that is empty or taken, and for an invalid URL.
        """
        self.app.add_server(server_options(backend))

    def unregister_mcp(self, name: str) -> None:
        """Disconnect a remote server and remove its tools. Raises `BackendNotFound`."""
        self.app.remove_server(name)

    # -- use -------------------------------------------------------------------------------------------------------

    async def execute(self, tool_id: str, arguments: Object | None = None, *, ctx: Context | None = None) -> JSON:
        """Run a tool and return its value: structured content, else the text of its only block, else all blocks.

        Raises `NotStarted`, `ToolNotFound`, `HandlerNotFound`, `InvalidRequest`, and `ExecutionFailed`, also if the
        tool itself reports an error.
        """
        return unwrap(await self.call(tool_id, arguments, ctx=ctx))

    async def call(self, tool_id: str, arguments: Object | None = None, *, ctx: Context | None = None) -> ToolResult:
        """Run a tool and return its whole result. Raises as `execute`, but not if the tool itself reports an error."""
        self._check()
        return await self.app.call(tool_id, arguments, ctx=ctx)

    async def list_all(self, *, ctx: Context | None = None) -> tuple[Tool, ...]:
        """Return every tool, by id."""
        return await self.app.tools(ctx=ctx)

    async def list_namespaces(self, *, ctx: Context | None = None) -> tuple[str, ...]:
        """Return every namespace that has a tool, sorted; an empty string for tools without one."""
        return tuple(sorted({tool.namespace for tool in await self.list_all(ctx=ctx)}))

    async def get_tool(self, tool_id: str, *, ctx: Context | None = None) -> Tool:
        """Return the tool that a spelling names. Raises `ToolNotFound` or `AmbiguousName`."""
        return (await self.app.find(tool_id, ctx=ctx)).tool

    async def get_backends(self, tool_id: str, *, ctx: Context | None = None) -> tuple[Backend, ...]:
        """Return the backends that can run the tool. Raises as `get_tool`."""
        return (await self.app.find(tool_id, ctx=ctx)).backends

    async def refresh(self) -> None:
        """Ask every provider for its tools again, and wait until they are in."""
        self._check()
        await self.app.refresh()

    def on_change(self, listener: Callable[[], None]) -> Unsubscribe:
        """Call back after tools or servers changed.

        While the registry runs, from its event loop; otherwise from whichever thread makes the change. It must not
        block.
        """

        def unless_running() -> None:
            if not self.app.running:
                listener()

        app = self.app
        ends = [
            app.gateway.refresher.subscribe(listener),
            *(one.subscribe(ThreadSafeCallback(unless_running)) for one in (app.local, app.shared, app.servers)),
        ]
        return end_all(ends)

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Return the status of each remote server, by name, and of each provider that failed."""
        return self.app.gateway.refresher.statuses()

    async def health_check(self) -> None:
        """Raise `NotStarted`, or `ServerUnavailable` for the first server that is not ready."""
        self._check()
        for status in self.statuses():
            if status.state is not ServerState.READY:
                raise ServerUnavailable(
                    f"Server {status.name} {describe_state(status)}.",
                    data={"server": status.name, "state": str(status.state), "reason": status.reason},
                )

    # -- serving ---------------------------------------------------------------------------------------------------

    async def serve_stdio(self, *, stop: anyio.Event | None = None) -> None:
        """Serve one client over stdin and stdout until it disconnects; starts and stops the registry if needed."""
        async with self.app.started():
            await self.app.serve_stdio(stop=stop)

    def serve_http(self) -> AsgiApp:
        """Return an ASGI app for streamable HTTP, to be mounted anywhere; it responds while the registry runs.

        It is the same object each time.
        """
        return self.app.asgi_mount()

    def serve_sse(self) -> AsgiApp:
        """Return an ASGI app for HTTP+SSE; it responds while the registry runs."""
        return self.app.sse_mount()

    def serve_http_and_sse(self) -> ASGIApp:
        """Return one ASGI app for both: HTTP+SSE at `/sse` below its mount, and streamable HTTP at every other path.

        Served by itself, its lifespan starts and stops the registry.
        """
        return _BothTransports(self.serve_http(), self.serve_sse())

    def _check(self) -> None:
        if not self.app.running:
            raise NotStarted("The registry is not started.", hint="Use it inside `async with`, or call `start` first.")


def _as_tuple(given: Any) -> Any:
    """Return the words as a tuple. A string is left for the tool's validation; it would become one word per letter."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else given


def app_settings(config: Config) -> Settings:
    """Return the settings of the app; by default, every tool is listed by name."""
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
    """Return the options of the server to add. Raises `InvalidRequest`."""
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
        # A closed stdin never comes back.
        return ServerOptions(target=ParentStdio, **{**more, "retries": 0})
    what = f"{scheme}:// is not a backend scheme" if mark else "the URL has no scheme"
    raise InvalidRequest(f"Backend {backend.name}: {what}.", hint=f"Use {_SCHEMES}, or pass a transport.")


_LIST_ATTEMPTS = 3
"""How often a list is read again from its beginning if it changes between two of its pages."""


class _BothTransports:
    """Serves HTTP+SSE at its two paths, and streamable HTTP at all others."""

    def __init__(self, http: ASGIApp, sse: ASGIApp) -> None:
        self._http = http
        self._sse = sse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        is_sse = scope["type"] == "http" and (path.rstrip("/") == "/sse" or path.startswith("/messages/"))
        await (self._sse if is_sse else self._http)(scope, receive, send)


@checked(methods=("register", "register_tool", "unregister_tool", "search", "execute"))
class ToolRegistry(AppRegistry, Provider):
    """Tools that are not listed by a server, but searched.

    Ready without being started. It is itself a `ToolProvider` of its own tools and its providers'. It ignores the
    request's own providers then, so that a registry in its own request cannot call itself endlessly.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(App(settings))

    # -- registration ----------------------------------------------------------------------------------------------

    def register(self, tool: Tool | ToolBuilder, handler: Callable[..., Any], *, strict: bool = False) -> Tool:
        """Like `register_tool`, without keywords."""
        return self.register_tool(tool, handler, strict=strict)

    def register_tool(
        self, tool: Tool | ToolBuilder, handler: Callable[..., Any], *keywords: str, strict: bool = False
    ) -> Tool:
        """Register a tool that is searched, not listed; the keywords are searched too.

        The handler takes the arguments by name, or as one request, with or without a leading context. A tool of that
        name is replaced; with `strict`, a different definition raises `NameCollision`. Raises `InvalidTool` or
        `InvalidName`, and then registers nothing.
        """
        made = checked_tool(tool)
        searched = replace(made, keywords=(*made.keywords, *keywords), visibility=Visibility.DISCOVERABLE)
        return self.app.register(searched, handler, strict=strict)

    def unregister_tool(self, name: str) -> None:
        """Like `unregister`."""
        self.unregister(name)

    def attach(self, server: object) -> None:
        """Add `tool_search` and `execute_tool` to an SDK `Server`, an `MCPServer` or a `FastMCP`; harmless if
        repeated.
        """
        attach(server, self.app.facade)

    # -- use -------------------------------------------------------------------------------------------------------

    async def search(
        self,
        query: str | Sequence[str] = "",
        limit: int | None = None,
        *,
        cursor: str | None = None,
        ctx: Context | None = None,
    ) -> SearchReply:
        """Return the tools that match, best first. An empty query lists them all, by id, in one reply.

        With a cursor, return the page that it names. Raises as `AppRegistry.search` does.
        """
        if cursor:
            return await super().search(query, limit, cursor=cursor, ctx=ctx)
        for _ in range(_LIST_ATTEMPTS):
            try:
                return await self._whole(query, limit, ctx)
            except StaleCursor:  # a tool was added or removed between two pages
                continue
        tools = await self.app.tools(ctx=ctx)
        hits = tuple(Hit(tool=tool, score=0.0, raw=0.0, signature=signature(tool)) for tool in tools)
        return SearchReply(hits=hits if limit is None else hits[: max(1, limit)], total=len(hits))

    async def _whole(self, query: str | Sequence[str], limit: int | None, ctx: Context | None) -> SearchReply:
        """Read all pages of a list up to the limit, or the single page of a search."""
        reply = await super().search(query, limit, ctx=ctx)
        asked = query if isinstance(query, str) else " ".join(query)
        hits, first, is_list = list(reply.hits), reply, not parse_query(asked).words
        while reply.cursor and is_list and (limit is None or len(hits) < limit):
            reply = await super().search(query, limit, cursor=reply.cursor, ctx=ctx)
            hits.extend(reply.hits)
        kept = hits if limit is None or limit < 1 else hits[:limit]
        return replace(first, hits=tuple(kept), cursor=reply.cursor)

    async def execute(self, name: str, arguments: Object | None = None, *, ctx: Context | None = None) -> ToolResult:
        """Like `call`."""
        return await self.call(name, arguments, ctx=ctx)

    # -- as a provider ---------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context) -> tuple[Tool, ...]:
        """Return its own tools and its providers', by id."""
        with guard_recursion(self, "list") as first:
            return (await self.app.gateway.view(_without_request_providers(ctx))).tools() if first else ()

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        with guard_recursion(self, ("find", name)) as first:
            try:
                return (await self.app.gateway.find(_without_request_providers(ctx), name)).tool if first else None
            except NotFound:
                return None

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run the tool of that name; None if there is none."""
        with guard_recursion(self, ("call", name)) as first:
            try:
                with own_code():
                    found = await self.app.gateway.find(_without_request_providers(ctx), name) if first else None
            except ToolNotFound:
                found = None
        if found is None:
            return None
        with allow_recursion(), own_code():
            return await self.app.gateway.run(_without_request_providers(ctx), found, dict(arguments))

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | None:
        """Run the tool of that key; None if there is none."""
        return await self.call_tool(ctx, key.id, arguments)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back when its tools change."""
        return end_all([source.subscribe(callback) for source in (self.app.local, self.app.shared)])


def _without_request_providers(ctx: Context) -> Context:
    """Return the context without the providers that came with the request."""
    return replace(ctx, providers=(), overriding=(), memo=None) if ctx.providers or ctx.overriding else ctx
