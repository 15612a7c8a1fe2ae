"""Attach toolcrib's meta-tools to an existing MCP server, the SDK's or FastMCP's."""

import logging
import weakref
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import mcp_types
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from toolcrib.errors import InvalidRequest, NameCollision
from toolcrib.server.context import RequestContext, to_call_context
from toolcrib.server.error_responses import as_mcp_errors, isolate
from toolcrib.server.handlers import ToolHandlers
from toolcrib.surfaces.facade import ToolFacade
from toolcrib.upstream.targets import sdk_server

logger = logging.getLogger(__name__)


_HIDDEN: Final = "of its own, so that the one of the registry cannot be called."


_REMEDY: Final = "Rename the server's tool, or stand in front of the server: App().include(server, name)."


_attached: "weakref.WeakKeyDictionary[Server[Any], ToolFacade]" = weakref.WeakKeyDictionary()


def low_level_server(server: object) -> Server[Any]:
    """The SDK's low-level server inside of a server object. Raises `InvalidRequest` for anything else."""
    inner = sdk_server(server)
    if inner is None:
        raise InvalidRequest(
            f"A {type(server).__name__} is no server that tools can be attached to.",
            hint="Give an mcp.server.lowlevel.Server, an MCPServer, or a FastMCP.",
        )
    return inner


def attach(server: object, front: ToolFacade) -> None:
    """List the front's meta-tools beside the server's own tools, and answer calls of them.

    What the server lists itself keeps its name. A second time changes nothing. Raises `NameCollision` for another
    front, and for an `MCPServer` that has a tool of a meta-tool's name; the log tells of such a tool that comes later,
    or that another server has.
    """
    inner = low_level_server(server)
    known = _attached.get(inner)
    if known is front:
        return
    if known is not None:
        raise NameCollision(
            "Another registry is attached to this server.",
            hint="Register the tools with that one, or add this registry to it as a provider.",
        )
    if taken := front.meta_names.intersection(_names_listed_by(server)):
        raise NameCollision(f"The server has a tool called {min(taken)} {_HIDDEN}", hint=_REMEDY)
    _attached[inner] = front
    joined = _CombinedHandlers(inner, front)
    inner.add_request_handler("tools/list", mcp_types.PaginatedRequestParams, joined.list_tools)
    inner.add_request_handler("tools/call", mcp_types.CallToolRequestParams, joined.call_tool)


def _names_listed_by(server: object) -> list[str]:
    """The names that an `MCPServer` lists; none for any other server, which may have to wait for what it lists."""
    if not isinstance(server, MCPServer):
        return []
    here, asked = copy_context(), server.list_tools()
    try:
        here.run(asked.send, None)
    except StopIteration as done:
        return _tool_names({"tools": done.value})
    except Exception:
        logger.debug("the server could not list its tools before it serves", exc_info=True)
    finally:
        here.run(asked.close)
    return []


class _CombinedHandlers:
    """The server's own handlers, with the front's beside them."""

    def __init__(self, server: Server[Any], front: ToolFacade) -> None:
        self._list: Any = server.get_request_handler("tools/list")
        self._call: Any = server.get_request_handler("tools/call")
        self._facade = front
        self._handlers = ToolHandlers(front)
        self._server_names: set[str] = set()
        """Names that the server itself was seen to list."""
        self._listed_all = False
        self._reported: frozenset[str] = frozenset()
        """Meta-tools of which it was told that nobody can call them."""

    async def list_tools(self, request: RequestContext, params: mcp_types.PaginatedRequestParams) -> HandlerResult:
        """The front's entries on the first page, then the server's pages under its own cursors."""
        if self._list is None:
            return await self._handlers.list_tools(request, params)
        theirs = await self._list.handler(request, params)
        self._record_names(_tool_names(theirs))
        if params.cursor is not None:
            return theirs  # type: ignore[no-any-return]  # whatever the server's own handler gives
        return _prepend_tools(
            theirs, [tool for tool in await self._facade_entries(request) if tool["name"] not in self._server_names]
        )

    def _record_names(self, names: list[str]) -> None:
        """Remember what the server lists itself; say once which meta-tools that hides."""
        self._server_names.update(names)
        hidden = self._facade.meta_names & self._server_names - self._reported
        self._reported |= hidden
        for name in sorted(hidden):
            logger.error("the server has a tool called %s %s %s", name, _HIDDEN, _REMEDY)

    async def _facade_entries(self, request: RequestContext) -> list[dict[str, Any]]:
        """All that the front lists."""
        entries: list[dict[str, Any]] = []
        params = mcp_types.PaginatedRequestParams()
        while True:
            page: Any = await self._handlers.list_tools(request, params)
            entries.extend(page["tools"])
            if "nextCursor" not in page:
                return entries
            params = mcp_types.PaginatedRequestParams(cursor=page["nextCursor"])

    async def call_tool(self, request: RequestContext, params: mcp_types.CallToolRequestParams) -> HandlerResult:
        """The front's tools, where the server does not list one of that name itself."""
        if self._call is None or await self._handles(request, params):
            return await self._handlers.call_tool(request, params)
        return await self._call.handler(request, params)  # type: ignore[no-any-return]  # as above

    async def _handles(self, request: RequestContext, params: mcp_types.CallToolRequestParams) -> bool:
        ctx = to_call_context(request, params)
        if not await as_mcp_errors(isolate(partial(self._facade.has_tool, ctx, params.name))):
            return False
        cursor: str | None = None
        while not self._listed_all and self._list is not None:  # a call before any list finds what one after it finds
            page: Any = await self._list.handler(request, mcp_types.PaginatedRequestParams(cursor=cursor))
            self._record_names(_tool_names(page))
            cursor = page.get("nextCursor") if isinstance(page, dict) else getattr(page, "next_cursor", None)
            self._listed_all = cursor is None
        return params.name not in self._server_names


def _tool_names(result: Any) -> list[str]:
    tools = result.get("tools", ()) if isinstance(result, dict) else getattr(result, "tools", ())
    return [tool["name"] if isinstance(tool, dict) else tool.name for tool in tools]


def _prepend_tools(result: Any, tools: list[dict[str, Any]]) -> HandlerResult:
    if isinstance(result, dict):
        return {**result, "tools": [*tools, *result.get("tools", ())]}
    if isinstance(result, BaseModel):
        more = [mcp_types.Tool.model_validate(tool, by_name=False) for tool in tools]
        return result.model_copy(update={"tools": [*more, *getattr(result, "tools", ())]})
    return result  # type: ignore[no-any-return]  # no result that a tool could be added to
