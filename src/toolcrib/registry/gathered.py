"""The registry of local functions, providers and remote MCP servers, as ids that are executed."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import anyio

from toolcrib._version import VERSION
from toolcrib.app import App
from toolcrib.errors import NotStarted, ServerUnavailable
from toolcrib.gateway.states import stands
from toolcrib.model import JSON, Object, SearchReply, ServerState, ServerStatus, Tool, ToolResult
from toolcrib.protocols import Backend, Context, Unsubscribe
from toolcrib.providers.builder import ToolBuilder
from toolcrib.providers.results import unwrap
from toolcrib.registry.config import BackendConfig, Config, server_of, settings_of
from toolcrib.server.mount import HttpApp


class Registry:
    """Local functions, providers and remote MCP servers under one roof.

    `async with registry` or `start` and `stop`; a stopped registry can be started again.
    """

    def __init__(self, config: Config | None = None) -> None:
        """Nothing is connected yet."""
        self.config = config or Config()
        self.app = App(
            settings_of(self.config),
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
            tags=_words(tags),
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
        self.app.add_server(server_of(backend))

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


def _words(given: Any) -> Any:
    """Words as a tuple. One text, which would be many words of one letter, is left for the check of the tool."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else given
