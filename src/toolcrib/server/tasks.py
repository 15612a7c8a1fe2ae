"""MCP request handlers for tasks: calls of tools that run as one, and requests about them.

Version 2025-11-25 has tasks in the protocol. Earlier versions have none, and 2026-07-28 has made them an extension.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import mcp_types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND, methods

from toolcrib.containment import isolate
from toolcrib.gateway.nested_calls import RunCall
from toolcrib.server.context import RequestContext, as_mcp_errors, as_server_errors, to_call_context, to_context
from toolcrib.server.sdk_workarounds import may_send_requests
from toolcrib.server.subscriptions import session_queue
from toolcrib.surfaces.facade import ToolFacade
from toolcrib.types import Context, Object, ToolResult
from toolcrib.upstream.negotiation import TASKS_VERSION
from toolcrib.wire import RELATED_TASK_META, is_encodable, replace_surrogates

_T = TypeVar("_T")

ContainCall = Callable[[Context, RunCall], Awaitable[ToolResult]]
"""Runs a call, and asks an older client what it needs to know; errors of the call become results."""
ResultToWire = Callable[[ToolResult, str], Awaitable[dict[str, Any]]]
"""The result of a call for a client of the protocol version."""


def has_tasks(version: object) -> bool:
    """Whether the protocol version has tasks.

    >>> has_tasks("2025-11-25"), has_tasks("2026-07-28")
    (True, False)
    """
    return version == TASKS_VERSION


class TaskHandlers:
    """Request handlers and middleware for tasks."""

    def __init__(self, facade: ToolFacade, run_call: ContainCall, to_wire: ResultToWire) -> None:
        self._to_wire = to_wire
        self._facade = facade
        self._tasks = facade.gateway.tasks
        self._run_call = run_call

    def register(self, server: Server[Any]) -> None:
        """Add the handlers to a server; the middleware is the caller's to add."""
        server.add_request_handler("tasks/get", mcp_types.GetTaskRequestParams, self.get)
        server.add_request_handler("tasks/cancel", mcp_types.CancelTaskRequestParams, self.cancel)
        server.add_request_handler("tasks/result", mcp_types.GetTaskPayloadRequestParams, self.result)
        server.add_request_handler("tasks/list", mcp_types.PaginatedRequestParams, self.list)

    def is_task_call(self, request: RequestContext) -> bool:
        """Whether the request is a call of a tool that is to run as a task."""
        return (
            request.method == "tools/call"
            and has_tasks(request.protocol_version)
            and isinstance((request.params or {}).get("task"), Mapping)
            and may_send_requests(request)
        )

    async def start(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware: answer such a call with the task. A meta-tool runs without one, as for clients that know none."""
        caller_ctx = to_context(ctx)
        if caller_ctx.session is None or not await as_mcp_errors(
            isolate(partial(self._facade.offers_tasks, caller_ctx))
        ):
            return await call_next(ctx)
        methods.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        params = mcp_types.CallToolRequestParams.model_validate(ctx.params, by_name=False)
        if params.name in self._facade.meta_names and not caller_ctx.show_all:
            return await call_next(ctx)
        found = await as_mcp_errors(isolate(partial(self._facade.task_tool, caller_ctx, params.name)))
        if found is None:
            raise MCPError(METHOD_NOT_FOUND, "This tool does not run as a task; call it without one.", params.name)
        queue, ttl_ms = session_queue(ctx), params.task.ttl if params.task is not None else None

        def report(status: Object) -> None:
            if queue is not None:
                queue.task_status(_sendable(status))

        async def run(round_ctx: Context) -> ToolResult:
            return await self._tasks.start(round_ctx, found, params.arguments or {}, ttl_ms, report)

        result = await as_mcp_errors(self._run_call(to_call_context(ctx, params), run))
        if result.kind != "task":
            raise MCPError(INTERNAL_ERROR, result.text, result.structured)
        return {"task": _sendable(result.structured)}

    async def get(self, request: RequestContext, params: mcp_types.GetTaskRequestParams) -> HandlerResult:
        """`tasks/get`."""
        return _sendable(await _answer(request, partial(self._tasks.get, task_id=params.task_id)))

    async def cancel(self, request: RequestContext, params: mcp_types.CancelTaskRequestParams) -> HandlerResult:
        """`tasks/cancel`."""
        return _sendable(await _answer(request, partial(self._tasks.cancel, task_id=params.task_id)))

    async def result(self, request: RequestContext, params: mcp_types.GetTaskPayloadRequestParams) -> HandlerResult:
        """`tasks/result`."""
        result = await _answer(request, partial(self._tasks.result, task_id=params.task_id))
        wire = await self._to_wire(result, request.protocol_version)
        return {**wire, "_meta": {**wire.get("_meta", {}), RELATED_TASK_META: {"taskId": params.task_id}}}

    async def list(self, request: RequestContext, params: mcp_types.PaginatedRequestParams) -> HandlerResult:
        """`tasks/list`."""
        tasks, cursor = await _answer(request, partial(self._tasks.list, cursor=params.cursor))
        page: dict[str, Any] = {"tasks": [_sendable(task) for task in tasks]}
        return {**page, "nextCursor": cursor} if cursor else page


async def _answer(request: RequestContext, work: Callable[[Context], Awaitable[_T]]) -> _T:
    if not has_tasks(request.protocol_version):
        raise MCPError(METHOD_NOT_FOUND, "Method not found", request.method)
    return await as_server_errors(partial(work, to_context(request)))


def _sendable(task: Object) -> dict[str, Any]:
    wire = dict(task)
    return wire if is_encodable(wire) else dict(replace_surrogates(wire))
