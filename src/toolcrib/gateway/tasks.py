"""Calls that run as tasks (protocol 2025-11-25): who may ask for them, and at which server they run.

A task belongs to the session that created it. For any other caller or session, and for a caller who may no longer call
its tool, it does not exist. The gateway gives each task an id of its own, since two servers may use the same one.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from toolcrib.errors import ExecutionFailed, InvalidRequest, NotFound, ToolcribError, UpstreamError
from toolcrib.gateway.policy import decide
from toolcrib.gateway.view import ResolvedTool, View
from toolcrib.middleware.fingerprint import canonical_json
from toolcrib.providers.base import Backend
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import Action, BackendKind, Context, Decision, Key, Object, Policy, TaskRequest, Tool, ToolResult

_MAX_SESSIONS: Final = 4096
_MAX_TASKS: Final = 256
"""Tasks of one session; a further one replaces the oldest."""
MAX_TTL_S: Final = 86_400.0
"""How long a task is known at most, in seconds."""
_PAGE: Final = 20
_INVALID_PARAMS: Final = -32602
"""The JSON-RPC error for a task that a server does not know."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """Where a task runs."""

    server: str
    """The name of the backend."""
    task_id: str
    """The server's own id of the task."""
    namespace: str
    tool: str
    expires: float
    """Seconds since the epoch."""

    @property
    def key(self) -> Key:
        """The key of the called tool."""
        return Key(self.namespace, self.tool)


Records = dict[str, TaskRecord]
"""The tasks of one session, by the gateway's id, the oldest first."""


def _encode(records: Records) -> Any:
    return {
        task_id: [one.server, one.task_id, one.namespace, one.tool, one.expires] for task_id, one in records.items()
    }


def _decode(saved: Any) -> Records:
    return {task_id: TaskRecord(*fields) for task_id, fields in saved.items()}


_CODEC: Final[StateCodec[Records]] = StateCodec(_encode, _decode)

RunFn = Callable[[Context, ResolvedTool, Object], Awaitable[ToolResult]]
"""Calls a tool through the gateway."""
FinishFn = Callable[[Context, Tool, ToolResult], Awaitable[ToolResult]]
"""Records a complete result, and rewrites what in it is meant for clients of its own server."""
ViewFn = Callable[[Context], Awaitable[View]]


class TaskManager:
    """The tasks of a gateway's clients."""

    def __init__(
        self,
        state: StateStore,
        policy: Policy,
        *,
        backends: Callable[[], Sequence[Backend]],
        view: ViewFn,
        run: RunFn,
        finish: FinishFn,
    ) -> None:
        self._records = TaskRecords(state)
        self._policy = policy
        self._backends = backends
        self._view = view
        self._run = run
        self._finish = finish

    async def start(
        self,
        ctx: Context,
        found: ResolvedTool,
        arguments: Object,
        ttl_ms: int | None,
        on_status: Callable[[Object], None],
    ) -> ToolResult:
        """Call a tool for which `takes_tasks` holds as a task.

        Returns the task, or what the call asks for first; raises as a call does. `on_status` is called with the task
        when its server reports its status.
        """
        task_id = secrets.token_urlsafe(24)

        def report(status: Object) -> None:
            on_status({**status, "taskId": task_id})

        request = TaskRequest(id=task_id, ttl_ms=ttl_ms, on_status=report)
        result = await self._run(replace(ctx, task=request), found, arguments)
        if result.kind == "input_required":
            return result
        task = result.structured
        if result.kind != "task" or not isinstance(task, Mapping):
            raise ExecutionFailed(
                f"{found.tool.id} did not run as a task: {result.text or 'it answered at once'}",
                hint="Call it without a task.",
            )
        backend, tool = found.backends[0], found.tool
        expires = time.time() + _kept_s(task)
        record = TaskRecord(backend.name, str(task["taskId"]), tool.namespace, tool.name, expires)
        await self._records.add(ctx, task_id, record)
        return replace(result, structured={**task, "taskId": task_id})

    async def get(self, ctx: Context, task_id: str) -> Object:
        """Answer `tasks/get`. Raises `NotFound` for a task that is not the session's, and as calls do."""
        return await self._status(ctx, "tasks/get", task_id)

    async def cancel(self, ctx: Context, task_id: str) -> Object:
        """Answer `tasks/cancel`; raises as `get` does."""
        return await self._status(ctx, "tasks/cancel", task_id)

    async def result(self, ctx: Context, task_id: str) -> ToolResult:
        """Wait for the end of the task, and return its result as that of a call; raises as `get` does."""
        record, tool = await self._find(ctx, task_id)
        result = await self._ask(ctx, "tasks/result", task_id, record)
        return await self._finish(ctx, tool, result)

    async def list(self, ctx: Context, cursor: str | None) -> tuple[list[Object], str | None]:
        """One page of the session's tasks, the newest first, and the cursor of the next page.

        Tasks whose server is not available are left out. Raises `InvalidRequest` for a cursor that is not of this list.
        """
        ids = list(reversed(await self._records.get(ctx)))
        if cursor is not None and cursor not in ids:
            raise InvalidRequest("The cursor is not known.", hint="List the tasks from the beginning.")
        first = 0 if cursor is None else ids.index(cursor) + 1
        wanted = ids[first : first + _PAGE]
        found: dict[str, Object] = {}

        async def look(task_id: str) -> None:
            with suppress(ToolcribError):
                found[task_id] = await self.get(ctx, task_id)

        async with anyio.create_task_group() as group:
            for task_id in wanted:
                group.start_soon(look, task_id)
        more = wanted[-1] if len(ids) > first + _PAGE else None
        return [found[task_id] for task_id in wanted if task_id in found], more

    async def _status(self, ctx: Context, method: str, task_id: str) -> Object:
        record, _ = await self._find(ctx, task_id)
        result = await self._ask(ctx, method, task_id, record)
        return {**result.structured, "taskId": task_id}

    async def _ask(self, ctx: Context, method: str, task_id: str, record: TaskRecord) -> ToolResult:
        backend = next((one for one in self._backends() if one.name == record.server and _is_server(one)), None)
        if backend is None:
            raise _not_found()
        about = replace(ctx, task=TaskRequest(id=task_id))
        try:
            return await backend.provider.request_task(about, method, record.task_id)
        except UpstreamError as error:
            if method == "tasks/get" and error.rpc_code == _INVALID_PARAMS:
                await self._records.drop(ctx, task_id)
                raise _not_found() from error
            raise

    async def _find(self, ctx: Context, task_id: str) -> tuple[TaskRecord, Tool]:
        """Return where the task runs, if it is the session's and the caller may still call its tool."""
        record = (await self._records.get(ctx)).get(task_id)
        tool = None if record is None else (await self._view(ctx)).get(record.key)
        if record is None or tool is None or decide(self._policy, ctx.caller, tool, Action.CALL) is Decision.HIDE:
            raise _not_found()
        return record, tool


class TaskRecords:
    """Where the tasks of each session run; in the state store, as processes take sessions over."""

    def __init__(self, state: StateStore, *, wall: Callable[[], float] = time.time) -> None:
        """`wall` counts seconds since the epoch."""
        self._table = state.table("tasks", _CODEC, max_entries=_MAX_SESSIONS)
        self._wall = wall

    async def get(self, ctx: Context) -> Records:
        """The tasks of the context's session that have not expired, the oldest first."""
        key = task_owner(ctx)
        return {} if key is None else self._current(await self._table.get(key))

    async def add(self, ctx: Context, task_id: str, record: TaskRecord) -> None:
        """Remember a task of the session; the oldest one is forgotten if there are too many."""
        await self._change(ctx, lambda records: {**records, task_id: record})

    async def drop(self, ctx: Context, task_id: str) -> None:
        """Forget a task."""
        await self._change(ctx, lambda records: {key: one for key, one in records.items() if key != task_id})

    async def _change(self, ctx: Context, change: Callable[[Records], Records]) -> None:
        def changed(saved: Records | None) -> tuple[Records | None, None]:
            records = change(self._current(saved))
            while len(records) > _MAX_TASKS:
                del records[next(iter(records))]
            return records or None, None

        if (key := task_owner(ctx)) is not None:
            await self._table.update(key, changed, ttl_s=MAX_TTL_S)

    def _current(self, saved: Records | None) -> Records:
        now = self._wall()
        return {task_id: one for task_id, one in (saved or {}).items() if one.expires > now}


def takes_tasks(found: ResolvedTool) -> bool:
    """Whether a call of the tool can run as a task: one server runs it, and says so."""
    return found.tool.may_be_task and len(found.backends) == 1 and _is_server(found.backends[0])


def task_owner(ctx: Context) -> str | None:
    """Return what a task of this context belongs to; None without a session, because it could be several clients."""
    return None if ctx.session is None else canonical_json([*ctx.caller.key, ctx.session])


def _is_server(backend: Backend) -> bool:
    return backend.kind is BackendKind.MCP


def _kept_s(task: Object) -> float:
    ttl = task.get("ttl")
    return min(ttl / 1000, MAX_TTL_S) if isinstance(ttl, int | float) and ttl >= 0 else MAX_TTL_S


def _not_found() -> NotFound:
    return NotFound(
        "There is no such task.", hint="Tasks are known to the session that created them, until they expire."
    )
