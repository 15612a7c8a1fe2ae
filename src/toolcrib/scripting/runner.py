"""Run scripts over a caller's tools: a script can do what its caller can, and nothing else.

Every call of a script goes through policy, schema validation, middleware and session like any other call. A script that
is cancelled ends, and so do its calls.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, Generic, Protocol, TypeVar

from toolcrib.containment import own_errors_only
from toolcrib.errors import ApprovalRequired, ExecutionFailed, InvalidRequest, ScriptFailed, ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.nested_calls import nested_context, report_call_ended, resolve_input_required
from toolcrib.gateway.server_states import describe_state, has_problem, namespace_of
from toolcrib.providers.content import as_tool_result, json_text, script_value
from toolcrib.results.reading import parse_read
from toolcrib.results.store import ResultStore
from toolcrib.sandbox.calls import Pauses
from toolcrib.sandbox.languages import DEFAULT_LANGUAGE, ScriptLanguage
from toolcrib.sandbox.limits import Limits, SandboxOptions, ScriptOptions
from toolcrib.sandbox.result import CallTrace, CheckResult, ScriptResult, unknown_name
from toolcrib.sanitize import MAX_LISTED, listing
from toolcrib.scripting.engines import (
    EngineFactory,
    EnginePool,
    prepend_arguments,
    restore_line_numbers,
    sandbox_factories,
)
from toolcrib.scripting.tools import (
    GET_RESULT,
    LookedUpTools,
    ToolsByName,
    look_up_tools,
    may_name_server,
    mocked_tools,
    reachable_tools,
    reaches_any_server,
    stored_results,
    tools_by_server,
    wait_for_servers,
)
from toolcrib.types import JSON, Client, Context, Object, ScriptTool, ServerStatus, Tool, ToolResult

_T = TypeVar("_T")
ObserveScript = Callable[[str, str, float], None]
"""Learns of a script's language, its outcome (`ok`, `failed`, `error` or `cancelled`), and its duration in seconds."""

CALLS_META: Final = "toolcrib/calls"
"""The key in `_meta` of the calls that a script made, in the order in which they ended."""
NO_RESULT: Final = "The script ended without a result. Give one with result(value)."

_LEVEL_MEMO: Final = "scripts.level"
_READ_ONLY_NOTE: Final = "The script could see only tools that are marked as read-only."
_MAX_TRACED_CALLS: Final = 200
_MAX_ERROR_CHARS: Final = 200
_MAX_VALUE_CHARS: Final = Limits().response_bytes // 2
"""Characters of a stored result that a script gets at once."""


class ClientQuestions(Protocol):
    """What the tools of one script ask its client: `questions.ScriptQuestions`. Loaded only for a run."""

    pauses: Pauses

    def client(self) -> Client | None:
        """The client for the calls of the script."""

    def notes(self) -> list[str]:
        """What the author should know of questions that reached no one."""


class ScriptRunner:
    """Runs scripts over one gateway."""

    def __init__(
        self, gateway: Gateway, factories: Mapping[str, EngineFactory], options: ScriptOptions | None = None
    ) -> None:
        """`factories` make the engine for each language, by its name."""
        self._gateway = gateway
        self.options = options or ScriptOptions()
        self.engines = EnginePool(factories)
        self.observe: ObserveScript | None = None
        """Learns of the end of each script."""

    @cached_property
    def _results(self) -> ResultStore:
        return ResultStore(self._gateway.state, self._gateway.options.results)

    @cached_property
    def _waiting(self) -> Any:
        """The scripts that wait for answers; loaded with the first script, since it imports the formats of MCP."""
        from toolcrib.scripting.questions import WaitingScripts

        return WaitingScripts(self.engines.start_soon)

    @property
    def languages(self) -> tuple[str, ...]:
        """The names of the languages that scripts can be written in, the usual one first."""
        return self.engines.languages

    async def run(
        self,
        ctx: Context,
        source: str,
        *,
        language: str = DEFAULT_LANGUAGE,
        arguments: Object | None = None,
        read_only: bool = False,
        limits: Limits | None = None,
        answers: Object | None = None,
    ) -> ToolResult:
        """Run a script; one that fails gives a result that is an error. `_meta` has its calls.

        With `arguments`, the script has them as `args`: plain JSON, as large as the arguments of one call. `limits`
        replace the engine's own. With `answers`, by canonical id, no tool is called: the
        calls return these. A request that repeats an earlier one with answers continues its script. Raises
        `InvalidRequest`, `MissingExtra` if the engine is not installed, and `ExecutionFailed`.
        """

        async def run(own: Context, questions: ClientQuestions) -> ToolResult:
            prepared = await self._prepare(
                own, source, language, read_only=read_only, answers=answers, questions=questions
            )
            return await self._run(prepared, questions, arguments, limits)

        done: ToolResult = await self._waiting.run(ctx, run, is_lasting=self.engines.is_open)
        return done

    async def _run(
        self, run: "ScriptRun", questions: ClientQuestions, arguments: Object | None, limits: Limits | None
    ) -> ToolResult:
        started, outcome = time.monotonic(), "cancelled"
        try:
            result = await self._run_engine(run, questions, arguments, limits)
            outcome = "failed" if result.is_error else "ok"
        except Exception:
            outcome = "error"
            raise
        else:
            return result
        finally:
            if self.observe is not None:
                self.observe(run.language.name, outcome, time.monotonic() - started)

    async def _run_engine(
        self, run: "ScriptRun", questions: ClientQuestions, arguments: Object | None, limits: Limits | None
    ) -> ToolResult:
        source = run.source
        traces: list[CallTrace] = []
        try:
            async with self.engines.engine(run.language, run.level) as engine:
                if arguments is not None:
                    source, limits = prepend_arguments(source, arguments, run.language, limits or engine.limits)
                with _nested_script(run.level):
                    done = await engine.run(
                        source,
                        run.functions(),
                        limits=limits,
                        schemas=run.schemas(),
                        on_call=traces.append,
                        pauses=questions.pauses,
                    )
        except ScriptFailed as error:
            if arguments is not None:
                restore_line_numbers(error, run.language)
            return _with_calls(_failure(error, replace(run, notes=(*questions.notes(), *run.notes))), run, traces)
        done = replace(done, warnings=(*done.warnings, *questions.notes()))
        return _with_calls(_success(done), run, traces)

    async def check(
        self,
        ctx: Context,
        source: str,
        *,
        language: str = DEFAULT_LANGUAGE,
        read_only: bool = False,
        limits: Limits | None = None,
    ) -> ToolResult:
        """Check a script without running it: the calls found in it, or why it would be refused."""
        run = await self._prepare(ctx, source, language, read_only=read_only)
        try:
            async with self.engines.engine(run.language, run.level) as engine:
                return _checked(await engine.check(source, run.functions(), limits=limits, schemas=run.schemas()), run)
        except ScriptFailed as error:
            return _failure(error, run)

    async def parse(self, source: str, language: str) -> None:
        """Check only that a script parses. Raises `ScriptFailed`, `MissingExtra` and `SandboxUnavailable`."""
        async with self.engines.engine(self.engines.language(language), 0) as engine:
            await engine.check(source, {})

    async def _prepare(
        self,
        ctx: Context,
        source: str,
        language: str,
        *,
        read_only: bool,
        answers: Object | None = None,
        questions: ClientQuestions | None = None,
    ) -> "ScriptRun":
        """Resolve what the run needs: its view, the servers' states, and the tools that the script can reach."""
        known = self.engines.language(language)
        if not source.strip():
            raise InvalidRequest("The script is empty.", hint="Write what to call, and give the result.")
        level = self._next_level(ctx)
        if reaches_any_server(source):
            await self._gateway.first_search.wait(ctx)
        view = await self._gateway.view(ctx)
        statuses = await self._gateway.servers(ctx, view)
        if problems := _named_problems(statuses, source):
            await wait_for_servers(self._gateway, ctx, map(namespace_of, problems))
            view = await self._gateway.view(ctx)
            statuses = await self._gateway.servers(ctx, view)
        read_only = read_only or self.options.read_only
        grouped, looked_up = tools_by_server(view, statuses, read_only=read_only), LookedUpTools()
        stored, source = stored_results(grouped, source, known)
        if answers is None:
            looked_up = await look_up_tools(self._gateway, ctx, view, grouped, source, read_only=read_only)
            grouped = replace(grouped, hidden=(*grouped.hidden, *looked_up.tools))
        client = questions.client() if questions is not None else None
        inner = nested_context(ctx, client=client, memo={**(ctx.memo or {}), _LEVEL_MEMO: level + 1})
        states = [f"Server {one.name} {describe_state(one)}." for one in _named_problems(statuses, source)]
        return ScriptRun(
            source=source,
            language=known,
            level=level,
            listed=grouped.listed,
            tools=reachable_tools(grouped, source) | stored if answers is None else mocked_tools(grouped, answers),
            call=partial(self._call, inner) if answers is None else partial(_mocked_answer, answers),
            notes=(*states, *looked_up.notes, *([_READ_ONLY_NOTE] if read_only else [])),
        )

    async def _stored_value(self, ctx: Context, arguments: Object) -> JSON:
        """A large result of the caller, or what a path selects in it."""
        handle, wanted = parse_read(arguments)
        return await self._results.value(ctx.caller, handle, wanted.path, _MAX_VALUE_CHARS)

    def _next_level(self, ctx: Context) -> int:
        """The nesting level of a script that is run now, from 0. Raises `ExecutionFailed` if it is too deep."""
        frame = _current_script()
        # The context has it too, for tools that work in their own thread.
        level: int = max(0 if frame is None else frame.level, (ctx.memo or {}).get(_LEVEL_MEMO, 0))
        if level >= self.options.levels:
            raise ExecutionFailed(
                f"Scripts are nested {level} deep already.", hint="Make sure that the script does not call itself."
            )
        return level

    async def _call(self, ctx: Context, tool: Tool, arguments: dict[str, Any]) -> JSON:
        """Call a tool for a script, which can catch whatever this raises; its questions are answered meanwhile."""
        if tool is GET_RESULT:
            return await self._stored_value(ctx, arguments)

        async def call(own: Context) -> ToolResult:
            with own_errors_only():
                return await self._gateway.call(replace(own, memo=ctx.memo), tool.id, arguments)

        try:
            return script_value(await resolve_input_required(ctx, call))
        except ToolcribError as error:
            error.message = error.message.removeprefix(f"{tool.id}: ")  # the engine adds the script's name for the tool
            if isinstance(error, ApprovalRequired) and error.data.get("reason") == "no_client":
                error.hint = f"{error.hint} Or call the tool by itself, outside of a script.".strip()
            raise
        finally:
            await report_call_ended(ctx)


def make_script_runner(
    gateway: Gateway,
    *,
    limits: Limits | None = None,
    sandbox: SandboxOptions | None = None,
    options: ScriptOptions | None = None,
) -> ScriptRunner:
    """A runner for all languages. Engines are imported and started when their first script runs."""
    return ScriptRunner(gateway, sandbox_factories(limits, sandbox), options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """One run of a script, with everything resolved that it needs."""

    source: str
    language: ScriptLanguage
    level: int
    """How many scripts this one is nested in."""
    tools: Mapping[str, ToolsByName]
    """The tools that the script can reach, by server."""
    listed: Mapping[str, ToolsByName]
    """All tools of its caller, by server."""
    call: Callable[[Tool, dict[str, Any]], Awaitable[JSON]]
    notes: tuple[str, ...]
    """What an author should know if the script fails: problems of servers that it names, and tools it could not see."""

    def functions(self) -> dict[str, Mapping[str, ScriptTool]]:
        """The tools as functions of one dict, by server and tool."""
        return {server: _LazyMapping(tools, self._function) for server, tools in self.tools.items()}

    def schemas(self) -> dict[str, Mapping[str, Object]]:
        """The input schemas of servers that the script names, by server and tool."""
        return {
            server: _LazyMapping(tools, _input_schema)
            for server, tools in self.tools.items()
            if tools and may_name_server(self.source, server)
        }

    def tool_id(self, server: str, tool: str) -> str:
        """The canonical id of a tool, from the names that the engine knows."""
        known = self.tools.get(server, {}).get(tool)
        return known.id if known is not None else f"{server}:{tool}"

    def _function(self, tool: Tool) -> ScriptTool:
        return partial(self.call, tool)


class _LazyMapping(Mapping[str, _T], Generic[_T]):
    """A value for each tool, made on access: most scripts use a few tools out of thousands."""

    def __init__(self, tools: ToolsByName, make: Callable[[Tool], _T]) -> None:
        self._tools = tools
        self._make = make

    def __getitem__(self, name: str) -> _T:
        return self._make(self._tools[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


def _input_schema(tool: Tool) -> Object:
    return tool.input_schema


def _named_problems(statuses: Sequence[ServerStatus], source: str) -> list[ServerStatus]:
    """The servers with a problem that the source may name."""
    return [one for one in statuses if has_problem(one) and may_name_server(source, namespace_of(one))]


async def _mocked_answer(answers: Object, tool: Tool, _arguments: dict[str, Any]) -> JSON:
    """A test's answer in place of the tool's."""
    if tool.id not in answers:
        raise ExecutionFailed(f"The test has no answer for {tool.id}.")
    return answers[tool.id]


# -- results -------------------------------------------------------------------------------------------------------


def _success(done: ScriptResult) -> ToolResult:
    """The script's value, then what it printed, then warnings for its author."""
    result = result_from_value(done.value) if done.has_value else ToolResult(content=(_text_block(NO_RESULT),))
    more = [f"Printed:\n{done.printed}"] if done.printed.strip() else []
    more.extend(f"Note: {warning}" for warning in done.warnings)
    return replace(result, content=(*result.content, *map(_text_block, more)))


def _failure(error: ScriptFailed, run: ScriptRun) -> ToolResult:
    """Why the script failed: as text, and as data with kind, line, traceback and suggestions."""
    error.hint = " ".join(filter(None, [error.hint or _hint_for_unknown_name(error, run), *run.notes]))
    lines = [error.message, *([error.hint] if error.hint else [])]
    if error.suggestions:
        lines.append(f"Did you mean: {', '.join(error.suggestions)}?")
    if isinstance(error.data.get("line"), int) and f":{error.data['line']}:" not in error.message:
        lines.append(f"In line {error.data['line']} of the script.")
    if printed := str(error.data.get("printed", "")).strip():
        lines.append(f"Printed before:\n{printed}")
    return ToolResult(content=(_text_block("\n".join(lines)),), structured={"error": error.payload()}, is_error=True)


def _hint_for_unknown_name(error: ScriptFailed, run: ScriptRun) -> str:
    """Where a name that the script lacks is to be found: as a tool of some server, or among the servers."""
    name, identifier = unknown_name(error.message), run.language.identifier
    if not name:
        return ""
    owners = [identifier(server) for server, tools in run.listed.items() if name in tools]
    if owners:
        written = " or ".join(f"{owner}.{name}" for owner in owners[:MAX_LISTED])
        return f"{name} is a tool of {listing(owners)}: write {written}."
    if not run.listed:
        return f"{name} is neither a server nor a variable, and no server has tools here."
    return f"{name} is neither a server nor a variable. The servers: {listing(sorted(map(identifier, run.listed)))}."


def _checked(found: CheckResult, run: ScriptRun) -> ToolResult:
    """The calls found in a script that was not run; an error if some of them cannot succeed."""
    calls: list[dict[str, Any]] = [
        {
            "name": run.tool_id(call.server, call.tool) if call.server else call.tool,
            "line": call.line,
            "known": call.known,
            **({"problem": call.problem} if call.problem else {}),
        }
        for call in found.calls
    ]
    head = "The script can be run."
    if not all(call["known"] for call in calls):
        head = "The script calls tools that do not exist."
    elif any("problem" in call for call in calls):
        head = "The script calls tools with arguments that do not fit."
    head += " Nothing was called."
    head += " Calls found in it:" if calls else " No calls were found in it."
    lines = [
        f"- line {call['line']}: {call['name']}{'' if call['known'] else ' (there is no such tool)'}"
        f"{' (' + call['problem'] + ')' if 'problem' in call else ''}"
        for call in calls
    ]
    warnings = [*found.warnings, *run.notes]
    text = "\n".join([head, *lines, *(f"Note: {warning}" for warning in warnings)])
    structured = {"calls": calls, "warnings": warnings}
    is_wrong = any(not call["known"] or "problem" in call for call in calls)
    return ToolResult(content=(_text_block(text),), structured=structured, is_error=is_wrong)


def _with_calls(result: ToolResult, run: ScriptRun, traces: Sequence[CallTrace]) -> ToolResult:
    """The result with the calls that were made: name, duration in milliseconds, outcome; at most 200 of them."""
    calls: list[dict[str, Any]] = [_trace_entry(run, trace) for trace in traces[:_MAX_TRACED_CALLS]]
    if len(traces) > _MAX_TRACED_CALLS:
        calls.append({"more": len(traces) - _MAX_TRACED_CALLS})
    return replace(result, meta={**result.meta, CALLS_META: calls})


def _trace_entry(run: ScriptRun, trace: CallTrace) -> dict[str, Any]:
    entry = {
        "name": run.tool_id(trace.server, trace.tool),
        "duration_ms": round(trace.duration_s * 1000, 3),
        "outcome": trace.outcome,
    }
    return {**entry, "error": trace.error[:_MAX_ERROR_CHARS]} if trace.error else entry


def result_from_value(value: JSON) -> ToolResult:
    """The result for a script's value.

    An object in the shape of a whole result, with content blocks, becomes that result. Any other object is text and
    structured content, a string is text, and everything else is text that holds its JSON.

    >>> result_from_value([1, None]).content, result_from_value({"n": 1}).structured
    (({'type': 'text', 'text': '[1,null]'},), {'n': 1})
    """
    whole = as_tool_result(value) if isinstance(value, dict) and isinstance(value.get("content"), list) else None
    if whole is not None:
        return whole if whole.content else ToolResult(content=(_text_block(json_text(value)),), structured=value)
    text = value if isinstance(value, str) else json_text(value)
    return ToolResult(content=(_text_block(text),), structured=value if isinstance(value, dict) else None)


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


# -- nesting -------------------------------------------------------------------------------------------------------


class _ScriptFrame:
    """A running script, and the one that it is nested in."""

    def __init__(self, level: int, outer: "_ScriptFrame | None") -> None:
        self.level = level
        self.outer = outer
        self.ended = False


# A context variable, since a tool may make any context for the calls of its own.
_CURRENT_SCRIPT: Final[ContextVar[_ScriptFrame | None]] = ContextVar("toolcrib_script", default=None)


@contextmanager
def _nested_script(level: int) -> Iterator[None]:
    """Run a script of that level, from 0, inside the block."""
    frame = _ScriptFrame(level + 1, _current_script())
    token = _CURRENT_SCRIPT.set(frame)
    try:
        yield
    finally:
        frame.ended = True
        _CURRENT_SCRIPT.reset(token)


def _current_script() -> _ScriptFrame | None:
    """The script that the current task runs in. Scripts that have ended while the task went on do not count."""
    frame = _CURRENT_SCRIPT.get()
    while frame is not None and frame.ended:
        frame = frame.outer
    return frame
