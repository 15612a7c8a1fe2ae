"""Attach toolcrib's meta-tools to an existing MCP server, the SDK's or FastMCP's."""

import logging
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import mcp_types
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from toolcrib.containment import isolate
from toolcrib.errors import InvalidRequest, NameCollision
from toolcrib.server.context import to_context
from toolcrib.server.engine import Engine
from toolcrib.server.exchange import Exchange
from toolcrib.server.sdk import SdkConnection, SdkContext, answered, as_sdk_errors, exchange_of
from toolcrib.surfaces.facade import ToolFacade
from toolcrib.upstream.targets import sdk_server

logger = logging.getLogger(__name__)

_HIDDEN: Final = "of its own, which hides the registry's."
_REMEDY: Final = "Rename the server's tool, or put an app in front of the server: App().include(server, name)."

_attached: "weakref.WeakKeyDictionary[Server[Any], ToolFacade]" = weakref.WeakKeyDictionary()


def low_level_server(server: object) -> Server[Any]:
    """The SDK's low-level server inside a server object. Raises `InvalidRequest` for any other object."""
    inner = sdk_server(server)
    if inner is None:
        raise InvalidRequest(
            f"A {type(server).__name__} is not a server that tools can be attached to.",
            hint="Pass an mcp.server.lowlevel.Server, an MCPServer, or a FastMCP.",
        )
    return inner


def attach(server: object, facade: ToolFacade) -> None:
    """List the facade's meta-tools beside the server's own tools, and answer calls to them.

    The server's own tools keep their names. Attaching the same facade again changes nothing. Raises `NameCollision` if
    another facade is attached, or if an `MCPServer` has a tool with a meta-tool's name. A tool with such a name that is
    added later, or that another kind of server has, is logged as an error.
    """
    inner = low_level_server(server)
    known = _attached.get(inner)
    if known is facade:
        return
    if known is not None:
        raise NameCollision(
            "Another registry is attached to this server.",
            hint="Register the tools with that one, or add this registry to it as a provider.",
        )
    if taken := facade.meta_names.intersection(_names_listed_by(server)):
        raise NameCollision(f"The server has a tool called {min(taken)} {_HIDDEN}", hint=_REMEDY)
    _attached[inner] = facade
    combined = _CombinedHandlers(inner, facade)
    inner.add_request_handler("tools/list", mcp_types.PaginatedRequestParams, combined.list_tools)
    inner.add_request_handler("tools/call", mcp_types.CallToolRequestParams, combined.call_tool)


def _names_listed_by(server: object) -> list[str]:
    """The names that an `MCPServer` lists; none for other servers, whose lists may need an event loop."""
    if not isinstance(server, MCPServer):
        return []
    # Run the coroutine without an event loop: an MCPServer's own list never waits.
    context, listing = copy_context(), server.list_tools()
    try:
        context.run(listing.send, None)
    except StopIteration as done:
        return _tool_names({"tools": done.value})
    except Exception:
        logger.debug("the server cannot list its tools before it runs", exc_info=True)
    finally:
        context.run(listing.close)
    return []


class _Connections:
    """The connections of a server whose `lifespan` is its own, by what that yields for each."""

    def __init__(self, server: Server[Any]) -> None:
        self._own_lifespan = server.lifespan
        self._open: dict[int, SdkConnection | None] = {}
        """By the identity of the value; None for one that several connections share."""
        server.lifespan = self._lifespan

    @asynccontextmanager
    async def _lifespan(self, server: Server[Any]) -> AsyncIterator[Any]:
        async with self._own_lifespan(server) as state:
            key = id(state)
            self._open[key] = None if key in self._open else SdkConnection()
            try:
                yield state
            finally:
                self._open.pop(key, None)

    def of(self, ctx: SdkContext) -> SdkConnection | None:
        """The connection of a request, if it is certain."""
        return self._open.get(id(ctx.lifespan_context))


class _CombinedHandlers:
    """The server's own handlers combined with the facade's."""

    def __init__(self, server: Server[Any], facade: ToolFacade) -> None:
        self._list: Any = server.get_request_handler("tools/list")
        self._call: Any = server.get_request_handler("tools/call")
        self._facade = facade
        self._engine = Engine(facade)
        self._connections = _Connections(server)
        self._server_names: set[str] = set()
        """Names that the server itself has listed so far."""
        self._listed_all = False
        self._reported: frozenset[str] = frozenset()
        """Hidden meta-tools that were already logged."""

    def _exchange(self, ctx: SdkContext) -> Exchange:
        return exchange_of(ctx, self._connections.of(ctx))

    async def list_tools(self, ctx: SdkContext, params: mcp_types.PaginatedRequestParams) -> HandlerResult:
        """The facade's entries on the first page, then the server's pages with its own cursors."""
        if self._list is None:
            return await answered(self._engine, self._exchange(ctx))
        page: HandlerResult = await self._list.handler(ctx, params)
        self._record_names(_tool_names(page))
        if params.cursor is not None:
            return page
        return _prepend_tools(
            page, [tool for tool in await self._facade_entries(ctx) if tool["name"] not in self._server_names]
        )

    def _record_names(self, names: list[str]) -> None:
        """Remember the server's own names, and log once which meta-tools they hide."""
        self._server_names.update(names)
        hidden = self._facade.meta_names & self._server_names - self._reported
        self._reported |= hidden
        for name in sorted(hidden):
            logger.error("the server has a tool called %s %s %s", name, _HIDDEN, _REMEDY)

    async def _facade_entries(self, ctx: SdkContext) -> list[dict[str, Any]]:
        """The facade's entries, from all pages."""
        entries: list[dict[str, Any]] = []
        exchange = self._exchange(ctx)
        while True:
            page = await answered(self._engine, exchange)
            entries.extend(page["tools"])
            if "nextCursor" not in page:
                return entries
            exchange.params = {**exchange.params, "cursor": page["nextCursor"]}

    async def call_tool(self, ctx: SdkContext, params: mcp_types.CallToolRequestParams) -> HandlerResult:
        """Call the facade's tool, unless the server has one of that name."""
        if self._call is None or await self._handles(ctx, params.name):
            return await answered(self._engine, self._exchange(ctx))
        result: HandlerResult = await self._call.handler(ctx, params)
        return result

    async def _handles(self, ctx: SdkContext, name: str) -> bool:
        caller_ctx = to_context(self._exchange(ctx), repeats=True)
        if not await as_sdk_errors(isolate(partial(self._facade.has_tool, caller_ctx, name))):
            return False
        cursor: str | None = None
        while (
            not self._listed_all and self._list is not None
        ):  # a call resolves names the same before and after the first list
            page: Any = await self._list.handler(ctx, mcp_types.PaginatedRequestParams(cursor=cursor))
            self._record_names(_tool_names(page))
            cursor = page.get("nextCursor") if isinstance(page, dict) else getattr(page, "next_cursor", None)
            self._listed_all = cursor is None
        return name not in self._server_names


def _tool_names(result: Any) -> list[str]:
    tools = result.get("tools", ()) if isinstance(result, dict) else getattr(result, "tools", ())
    return [tool["name"] if isinstance(tool, dict) else tool.name for tool in tools]


def _prepend_tools(result: HandlerResult, tools: list[dict[str, Any]]) -> HandlerResult:
    """Put tools before those of a page; a result of an unknown kind stays as it is."""
    if isinstance(result, dict):
        return {**result, "tools": [*tools, *result.get("tools", ())]}
    if isinstance(result, BaseModel):
        more = [mcp_types.Tool.model_validate(tool, by_name=False) for tool in tools]
        return result.model_copy(update={"tools": [*more, *getattr(result, "tools", ())]})
    return result
