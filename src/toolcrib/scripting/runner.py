"""Run scripts over a caller's tools: a script can do what its caller can, and nothing else.

Every call of a script goes through policy, schema validation, middleware and session like any other call. A script that
is cancelled ends, and so do its calls.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, Final

from toolcrib.errors import ApprovalRequired, ExecutionFailed, InvalidRequest, ScriptFailed, ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import ScriptOptions
from toolcrib.gateway.visibility import namespace_of
from toolcrib.providers.content import as_tool_result, script_value
from toolcrib.sandbox import Limits, LuaSandbox, PythonSandbox, SandboxOptions
from toolcrib.scripting.languages import (
    EngineFactory,
    EnginePool,
    ScriptEngine,
    prepend_arguments,
    restore_line_numbers,
)
from toolcrib.scripting.tools import (
    LookedUpTools,
    ScriptTools,
    is_troubled,
    look_up_tools,
    may_name_server,
    mocked_answer,
    mocked_tools,
    reachable_tools,
    tools_by_server,
    wait_for_servers,
)
from toolcrib.types import JSON, Client, Context, Object, ServerStatus, Tool, ToolResult

_LEVEL_MEMO: Final = "scripts.level"


class ScriptRunner:
    """Runs scripts over one gateway."""

    def __init__(
        self, gateway: Gateway, makers: Mapping[str, EngineFactory], options: ScriptOptions | None = None
    ) -> None:
        """`makers` make an engine for each language."""
        self._gateway = gateway
        self.options = options or ScriptOptions()
        self.engines = EnginePool(makers)

    @property
    def languages(self) -> tuple[str, ...]:
        """What scripts may be written in, the usual language first."""
        return self.engines.languages

    async def run(
        self,
        ctx: Context,
        source: str,
        *,
        language: str = "lua",
        arguments: Object | None = None,
        read_only: bool = False,
        limits: Any = None,
        answers: Object | None = None,
    ) -> ToolResult:
        """What the script gives, or, as a result that is an error, why it failed; with its calls in `_meta`.

        With `arguments`, the script has them as `args`: plain JSON, as much as any one call may have. `limits` are
        `toolcrib.sandbox.limits.Limits`, where others than the engine's own. With `answers`, by canonical id, no tool is
        called: that is what they answer. Raises `MissingExtra` where the engine is not installed, and `InvalidRequest`.
        """
        job = await self._prepare(ctx, source, language, read_only=read_only, answers=answers)
        traces: list[Any] = []
        try:
            async with self.engines.engine(language, job.level) as engine:
                if arguments is not None:
                    source, limits = prepend_arguments(source, arguments, language, limits or engine.limits)
                with nested_script(job.level):
                    done = await engine.run(
                        source, job.functions, limits=limits, schemas=job.schemas, on_call=traces.append
                    )
        except ScriptFailed as error:
            if arguments is not None:
                restore_line_numbers(error, language)
            return with_calls(failure_result(error, job), job, traces)
        return with_calls(success_result(done), job, traces)

    async def check(
        self, ctx: Context, source: str, *, language: str = "lua", read_only: bool = False, limits: Any = None
    ) -> ToolResult:
        """The calls that can be seen in a script that is not run, or why it would not be run."""
        job = await self._prepare(ctx, source, language, read_only=read_only)
        try:
            async with self.engines.engine(language, job.level) as engine:
                return check_result(await _check_source(engine, source, job, limits, language), job)
        except ScriptFailed as error:
            return failure_result(error, job)

    async def _prepare(
        self, ctx: Context, source: str, language: str, *, read_only: bool, answers: Object | None = None
    ) -> ScriptTools:
        self.engines.check_language(language)
        if not source.strip():
            raise InvalidRequest("The script is empty.", hint="Write what to call, and give the result.")
        level = max(nesting_level(), _memo_level(ctx))
        if level >= self.options.levels:
            raise ExecutionFailed(
                f"Scripts stand {level} deep in one another already.", hint="Let the script not call itself."
            )
        await self._gateway.refresher.wait_startup()
        await wait_for_servers(
            self._gateway, ctx, self._named_troubled_servers(await self._gateway.servers(ctx), source)
        )
        view, statuses = await self._gateway.view(ctx), await self._gateway.servers(ctx)
        read_only = read_only or self.options.read_only
        shelved, more = tools_by_server(view, statuses, read_only=read_only), LookedUpTools()
        if answers is None:
            more = await look_up_tools(self._gateway, ctx, view, shelved, source, read_only=read_only)
            shelved = replace(shelved, hidden=(*shelved.hidden, *more.tools))
        inner = nested_context(ctx, memo={**(ctx.memo or {}), _LEVEL_MEMO: level + 1})
        call = partial(self._call, inner) if answers is None else partial(mocked_answer, answers)
        servers = reachable_tools(shelved, source) if answers is None else mocked_tools(shelved, answers)
        return ScriptTools(servers, statuses, source, call, level, read_only=read_only, notes=more.notes)

    def _named_troubled_servers(self, statuses: Sequence[ServerStatus], source: str) -> list[str]:
        return [
            namespace_of(status)
            for status in statuses
            if is_troubled(status) and may_name_server(source, namespace_of(status))
        ]

    async def _call(self, ctx: Context, tool: Tool, arguments: dict[str, Any]) -> JSON:
        """What the script gets; whatever is raised, it can catch."""
        try:
            return script_value(await self._gateway.call(ctx, tool.id, arguments))
        except ToolcribError as error:
            error.message = error.message.removeprefix(f"{tool.id}: ")  # the engine names the tool as the script does
            if isinstance(error, ApprovalRequired) and error.data.get("reason") == "no_client":
                error.hint = f"{error.hint} Or call the tool by itself, outside of a script.".strip()
            raise
        finally:
            await report_call_ended(ctx)


def _memo_level(ctx: Context) -> int:
    """What the context says, for a tool that works in a thread of its own; one with other providers does not say it."""
    level = ctx.memo.get(_LEVEL_MEMO) if ctx.memo is not None else None
    return level if isinstance(level, int) else 0


async def _check_source(engine: ScriptEngine, source: str, job: ScriptTools, limits: Any, language: str) -> Any:
    if language == "python":
        typed: Any = engine
        return await typed.check(source, job.functions, limits=limits, schemas=job.schemas)
    return await engine.check(source, job.functions, limits=limits)


def make_script_runner(
    gateway: Gateway,
    *,
    limits: Limits | None = None,
    sandbox: SandboxOptions | None = None,
    options: ScriptOptions | None = None,
) -> ScriptRunner:
    """Scripts in Lua and Python. Nothing is loaded or started before the first one runs."""
    return ScriptRunner(
        gateway,
        {
            "lua": lambda: LuaSandbox(limits=limits, options=sandbox),
            "python": lambda: PythonSandbox(limits=limits, options=sandbox),
        },
        options,
    )


CALLS_META: Final = "toolcrib/calls"
"""The key in `_meta` of the calls that a script made, in the order in which they ended."""


NO_RESULT: Final = "The script ran to its end and gave no result. Use result(value), or return a value."


_MAX_TRACED_CALLS: Final = 200


_MAX_ERROR_CHARS: Final = 200


def success_result(done: Any) -> ToolResult:
    """What the script gave, what it printed, and what its author should know, in this order."""
    result = result_from_value(done.value) if done.has_value else ToolResult(content=(_text_block(NO_RESULT),))
    more = [f"Printed:\n{done.printed}"] if done.printed.strip() else []
    more.extend(f"Note: {warning}" for warning in done.warnings)
    return replace(result, content=(*result.content, *map(_text_block, more)))


def failure_result(error: ScriptFailed, job: ScriptTools) -> ToolResult:
    """Why the script failed: in words, and as data with kind, line, traceback and suggestions."""
    error.hint = " ".join(filter(None, [error.hint, *job.notes()]))
    said = [str(error)]
    if error.suggestions:
        said.append(f"Did you mean: {', '.join(error.suggestions)}?")
    if isinstance(error.data.get("line"), int) and f":{error.data['line']}:" not in error.message:
        said.append(f"In line {error.data['line']} of the script.")
    if printed := str(error.data.get("printed", "")).strip():
        said.append(f"Printed before:\n{printed}")
    return ToolResult(content=(_text_block("\n".join(said)),), structured={"error": error.payload()}, is_error=True)


def check_result(seen: Any, job: ScriptTools) -> ToolResult:
    """The calls that can be seen in a script that was not run."""
    calls = [
        {"name": job.tool_id(call.server, call.tool), "line": call.line, "known": call.known} for call in seen.calls
    ]
    lines = [
        f"- line {call['line']}: {call['name']}{'' if call['known'] else ' (there is no such tool)'}" for call in calls
    ]
    head = (
        "The script can be run; nothing was called. Calls that can be seen in it:"
        if calls
        else ("The script can be run; nothing was called, and no calls can be seen in it.")
    )
    warnings = [*seen.warnings, *job.notes()]
    text = "\n".join([head, *lines, *(f"Note: {warning}" for warning in warnings)])
    return ToolResult(content=(_text_block(text),), structured={"calls": calls, "warnings": warnings})


def with_calls(result: ToolResult, job: ScriptTools, traces: Sequence[Any]) -> ToolResult:
    """The result with the calls that were made: name, duration in milliseconds, outcome; at most 200 of them."""
    calls: list[dict[str, Any]] = [_trace_entry(job, trace) for trace in traces[:_MAX_TRACED_CALLS]]
    if len(traces) > _MAX_TRACED_CALLS:
        calls.append({"more": len(traces) - _MAX_TRACED_CALLS})
    return replace(result, meta={**result.meta, CALLS_META: calls})


def _trace_entry(job: ScriptTools, trace: Any) -> dict[str, Any]:
    shown = {
        "name": job.tool_id(trace.server, trace.tool),
        "duration_ms": round(trace.duration_s * 1000, 3),
        "outcome": trace.outcome,
    }
    return {**shown, "error": trace.error[:_MAX_ERROR_CHARS]} if trace.error else shown


def _text_block(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result_from_value(value: JSON) -> ToolResult:
    """The result that a script's value stands for.

    A whole result of content blocks stays one; another object is text and structured content; a text stays as it is;
    everything else is text that holds its JSON.

    >>> result_from_value([1, None]).content, result_from_value({"n": 1}).structured
    (({'type': 'text', 'text': '[1,null]'},), {'n': 1})
    """
    whole = as_tool_result(value) if isinstance(value, dict) and isinstance(value.get("content"), list) else None
    if whole is not None:
        return whole if whole.content else ToolResult(content=(_text(_compact_json(value)),), structured=value)
    said = value if isinstance(value, str) else _compact_json(value)
    return ToolResult(content=(_text(said),), structured=value if isinstance(value, dict) else None)


def _compact_json(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


class _ScriptFrame:
    """A script, as long as it runs, and the one around it."""

    def __init__(self, level: int, around: "_ScriptFrame | None") -> None:
        self.level = level
        self.around = around
        self.over = False


_CURRENT_SCRIPT: Final[ContextVar[_ScriptFrame | None]] = ContextVar("toolcrib_script", default=None)


def nesting_level() -> int:
    """How many scripts stand around whoever asks; one that a task has outlived is not counted."""
    running = _current_script()
    return 0 if running is None else running.level


@contextmanager
def nested_script(level: int) -> Iterator[None]:
    """A script of that level, from 0, is run."""
    running = _ScriptFrame(level + 1, _current_script())
    token = _CURRENT_SCRIPT.set(running)
    try:
        yield
    finally:
        running.over = True
        _CURRENT_SCRIPT.reset(token)


def _current_script() -> _ScriptFrame | None:
    running = _CURRENT_SCRIPT.get()
    while running is not None and running.over:
        running = running.around
    return running


class NestedCallClient:
    """The client of such calls: its person can be asked while they wait, and it hears how many have ended.

    It cannot carry a question back and repeat one of the calls, so that nobody is told that it could.
    """

    def __init__(self, client: Client, total: int | None = None) -> None:
        """`total` is how many calls there will be, where that is known."""
        self._client = client
        self._total = total
        self._ended = 0

    @property
    def capabilities(self) -> Object:
        """None: what a call answers, beside its result, reaches nobody."""
        return {}

    @property
    def can_elicit(self) -> bool:
        """Whether the client itself can."""
        return getattr(self._client, "can_elicit", False) is True

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Nothing: the steps of several calls at once would run backwards."""

    async def call_ended(self) -> None:
        """One more call has ended."""
        self._ended += 1
        await self._client.progress(self._ended, self._total)

    async def elicit(self, params: Object) -> Object:
        """Ask the person behind the client."""
        return await self._client.elicit(params)

    async def sample(self, params: Object) -> Object:
        """Ask the client's model."""
        return await self._client.sample(params)


def nested_context(ctx: Context, total: int | None = None, **more: Any) -> Context:
    """The context of calls that this request makes; its own answers and state are not for them. `more` is replaced."""
    client = None if ctx.client is None else NestedCallClient(ctx.client, total)
    return replace(ctx, client=client, input_responses=None, request_state=None, **more)


async def report_call_ended(ctx: Context) -> None:
    """Tell the client of such a context that a call has ended."""
    if isinstance(ctx.client, NestedCallClient):
        await ctx.client.call_ended()
