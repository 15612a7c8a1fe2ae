"""A registry of tools that are searched instead of listed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from toolcrib.app import App
from toolcrib.containment import own_code
from toolcrib.errors import NotFound, StaleCursor, ToolNotFound
from toolcrib.providers.builder import ToolBuilder
from toolcrib.providers.definitions import validated
from toolcrib.providers.request_scope import allow_recursion, guard_recursion
from toolcrib.registry.registry import AppRegistry
from toolcrib.server.attach import attach
from toolcrib.settings.options import Settings
from toolcrib.types import Context, Key, Object, Provider, SearchReply, Tool, ToolResult, Unsubscribe, Visibility

_LIST_ATTEMPTS = 3
"""How often a list is read again from its beginning if it changes between two of its pages."""


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
        made = tool.to_tool() if isinstance(tool, ToolBuilder) else validated(tool)
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
        self, query: str = "", limit: int | None = None, *, cursor: str | None = None, ctx: Context | None = None
    ) -> SearchReply:
        """Return the tools that match, best first. An empty query lists them all, by id, in one reply.

        With a cursor, return the page that it names. Raises as `AppRegistry.search` does.
        """
        if cursor is not None:
            return await super().search(query, limit, cursor=cursor, ctx=ctx)
        for _ in range(_LIST_ATTEMPTS):
            try:
                return await self._whole(query, limit, ctx)
            except StaleCursor:  # a tool was added or removed between two pages
                continue
        return await self._whole(query, limit, ctx)

    async def _whole(self, query: str, limit: int | None, ctx: Context | None) -> SearchReply:
        """Read all pages of a list up to the limit, or the single page of a search."""
        reply = await super().search(query, limit, ctx=ctx)
        hits, first = list(reply.hits), reply
        while reply.cursor and (limit is None or len(hits) < limit):
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
        return await self.call_tool(ctx, Tool(name=key.name, namespace=key.namespace).id, arguments)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back when its tools change."""
        ends = [source.subscribe(callback) for source in (self.app.local, self.app.shared)]

        def end_all() -> None:
            for end in ends:
                end()

        return end_all


def _without_request_providers(ctx: Context) -> Context:
    """Return the context without the providers that came with the request."""
    return replace(ctx, providers=(), overriding=(), memo=None) if ctx.providers or ctx.overriding else ctx
