"""Requests about tasks: calls of tools that run as one, and what became of them.

Version 2025-11-25 has tasks in the protocol. Earlier versions have none, and 2026-07-28 has made them an extension.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from toolcrib.containment import isolate
from toolcrib.protocol.failures import INTERNAL_ERROR, METHOD_NOT_FOUND, RpcError
from toolcrib.protocol.serving import ServerSession
from toolcrib.protocol.versions import RELATED_TASK_KEY, has_tasks
from toolcrib.server.context import as_server_errors, to_call_context, to_context
from toolcrib.server.exchange import Exchange
from toolcrib.server.methods import Method, result_in_steps, run_call
from toolcrib.surfaces.facade import ToolFacade
from toolcrib.types import Context, Object, ToolResult
from toolcrib.wire import is_encodable, replace_surrogates

_T = TypeVar("_T")

ReportTask = Callable[[ServerSession | None, dict[str, Any]], None]
"""Sends a session the status of a task."""


class TaskMethods:
    """What answers requests about tasks."""

    def __init__(self, facade: ToolFacade, report: ReportTask) -> None:
        self._facade = facade
        self._tasks = facade.gateway.tasks
        self._report = report

    def table(self) -> dict[str, Method]:
        """What answers each method."""
        return {
            "tasks/get": self.get,
            "tasks/cancel": self.cancel,
            "tasks/result": self.result,
            "tasks/list": self.list,
        }

    async def start(self, exchange: Exchange) -> dict[str, Any] | None:
        """Answer a call that is to run as a task with the task; None for one that is not.

        A meta-tool runs without one, as for clients that know none.
        """
        asked, name = exchange.params.get("task"), exchange.params["name"]
        if not has_tasks(exchange.version) or not isinstance(asked, Mapping) or exchange.session_id is None:
            return None
        ctx = to_context(exchange)
        if not await isolate(partial(self._facade.offers_tasks, ctx)):
            return None
        if name in self._facade.meta_names and not ctx.show_all:
            return None
        found = await isolate(partial(self._facade.task_tool, ctx, name))
        if found is None:
            raise RpcError(METHOD_NOT_FOUND, "This tool does not run as a task; call it without one.", name)
        ttl_ms, arguments = asked.get("ttl"), exchange.params.get("arguments") or {}

        def report(status: Object) -> None:
            self._report(exchange.session, _sendable(status))

        async def run(round_ctx: Context) -> ToolResult:
            return await self._tasks.start(round_ctx, found, arguments, ttl_ms, report)

        result = await run_call(to_call_context(exchange), run)
        if result.kind != "task":
            raise RpcError(INTERNAL_ERROR, result.text, result.structured)
        return {"task": _sendable(result.structured)}

    async def get(self, exchange: Exchange) -> dict[str, Any]:
        """`tasks/get`."""
        return _sendable(await _answer(exchange, partial(self._tasks.get, task_id=exchange.params["taskId"])))

    async def cancel(self, exchange: Exchange) -> dict[str, Any]:
        """`tasks/cancel`."""
        return _sendable(await _answer(exchange, partial(self._tasks.cancel, task_id=exchange.params["taskId"])))

    async def result(self, exchange: Exchange) -> dict[str, Any]:
        """`tasks/result`."""
        task_id = exchange.params["taskId"]
        wire = await result_in_steps(
            await _answer(exchange, partial(self._tasks.result, task_id=task_id)), exchange.version
        )
        return {**wire, "_meta": {**wire.get("_meta", {}), RELATED_TASK_KEY: {"taskId": task_id}}}

    async def list(self, exchange: Exchange) -> dict[str, Any]:
        """`tasks/list`."""
        tasks, cursor = await _answer(exchange, partial(self._tasks.list, cursor=exchange.params.get("cursor")))
        page: dict[str, Any] = {"tasks": [_sendable(task) for task in tasks]}
        return {**page, "nextCursor": cursor} if cursor else page


async def _answer(exchange: Exchange, work: Callable[[Context], Awaitable[_T]]) -> _T:
    return await as_server_errors(partial(work, to_context(exchange)))


def _sendable(task: Object) -> dict[str, Any]:
    wire = dict(task)
    return wire if is_encodable(wire) else dict(replace_surrogates(wire))
