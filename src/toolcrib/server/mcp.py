"""The protocol side of toolcrib: MCP requests to the front, results and errors back, in the client's version.

Built on the SDK's low-level server. It knows nothing of transports.
"""

import logging
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

import mcp_types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from toolcrib._version import VERSION
from toolcrib.errors import AmbiguousName, InvalidRequest, NotFound, ToolcribError
from toolcrib.model import Object, ToolResult
from toolcrib.protocols import Context
from toolcrib.server.context import RequestContext, to_context
from toolcrib.surfaces.front import Front
from toolcrib.surfaces.results import error_result, told
from toolcrib.wire import is_modern, listed, result_to_wire, tool_to_wire

logger = logging.getLogger(__name__)

_LIST_TTL_MS: Final = 5_000
"""How long a client may keep a list: servers come and go."""
_OPENING: Final = ("initialize", "server/discover")


def make_server(front: Front, *, name: str = "toolcrib") -> Server[Any]:
    """An MCP server over a front, for any transport of the SDK."""
    handlers = _Handlers(front)
    # Without the look-up the SDK lists all tools before each call of the modern era.
    server: Server[Any] = Server(name, version=VERSION, title="toolcrib", get_tool_input_schema=lambda _: None)
    server.add_request_handler("tools/list", mcp_types.PaginatedRequestParams, handlers.list_tools)
    server.add_request_handler("tools/call", mcp_types.CallToolRequestParams, handlers.call_tool)
    server.middleware[:] = [handlers.introduce]
    return server


class _Handlers:
    """One function a method."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def introduce(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Put the caller's own digest into the instructions of the opening answer."""
        result = await call_next(ctx)
        if ctx.method in _OPENING and isinstance(result, dict):
            words = await self._front.instructions(to_context(ctx))
            return {**result, "instructions": words} if words else result
        return result

    async def list_tools(self, request: RequestContext, params: mcp_types.PaginatedRequestParams) -> HandlerResult:
        """One page of `tools/list`."""
        ctx = to_context(request)
        page = await _guarded(self._front.page(ctx, params.cursor))
        version = request.protocol_version
        result: dict[str, Any] = {
            "tools": [listed(tool_to_wire(entry.tool, entry.name), version) for entry in page.items]
        }
        if page.cursor:
            result["nextCursor"] = page.cursor
        if is_modern(version):
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": 0 if ctx.show_all else _LIST_TTL_MS}
        return result

    async def call_tool(self, request: RequestContext, params: mcp_types.CallToolRequestParams) -> HandlerResult:
        """A meta-tool, or a tool by its public name."""
        responses = params.input_responses
        ctx = to_context(
            request,
            input_responses=_plain(responses) if responses is not None else None,
            request_state=params.request_state,
        )
        result = await _guarded(self._call(ctx, params))
        return result_to_wire(result, request.protocol_version)

    async def _call(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> ToolResult:
        try:
            return await self._front.call(ctx, params.name, params.arguments or {})
        except (NotFound, AmbiguousName):
            raise
        except ToolcribError as error:
            return error_result(error)


def _plain(responses: Mapping[str, Any]) -> Object:
    """Input responses as wire JSON."""
    return {
        key: value.model_dump(by_alias=True, mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
        for key, value in responses.items()
    }


T = TypeVar("T")


async def _guarded(work: Awaitable[T]) -> T:
    """The work's outcome; its errors as JSON-RPC errors that tell nothing of the inside."""
    try:
        return await work
    except ToolcribError as error:
        raise MCPError(_rpc_code(error), told(error), error.payload()) from error
    except MCPError:
        raise
    except Exception as error:
        logger.exception("a request failed inside")
        raise MCPError(mcp_types.INTERNAL_ERROR, "Internal error; the server's log has the cause.") from error


def _rpc_code(error: ToolcribError) -> int:
    teachable = isinstance(error, (NotFound, AmbiguousName, InvalidRequest))
    return mcp_types.INVALID_PARAMS if teachable else mcp_types.INTERNAL_ERROR
