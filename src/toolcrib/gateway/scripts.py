"""Scripts over a caller's tools: each can do what its caller can, and nothing else.

Every call of a script takes the way of any other call: policy, schema, middleware, session. A script that is not
waited for any more is ended, and its calls are cancelled.
"""

import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from toolcrib.errors import ApprovalRequired, ExecutionFailed, InvalidRequest, ScriptFailed, ToolcribError
from toolcrib.gateway.behalf import ended, on_behalf
from toolcrib.gateway.engines import Engine, EngineMaker, Engines
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.inputs import as_written, with_arguments
from toolcrib.gateway.known import space_of
from toolcrib.gateway.shelves import Shelf, Shelves, awaited, mentions, shelves, troubled
from toolcrib.gateway.states import stands
from toolcrib.gateway.values import result_from, script_value
from toolcrib.model import JSON, Object, ServerStatus, Tool, ToolResult
from toolcrib.protocols import Context, ScriptTool

CALLS: Final = "toolcrib/calls"
"""The key in `_meta` of the calls that a script made, in the order in which they ended."""
NO_RESULT: Final = "The script ran to its end and gave no result. Use result(value), or return a value."

_READ_ONLY: Final = "The script was to see only tools that say of themselves that they only read."
_NOT_WORD: Final = re.compile(r"[^A-Za-z0-9_]")
_COMPUTED: Final = re.compile(r"_G|_ENV|\bload\b|call_tool")
"""Ways to a server whose name is not written out."""
_LEVEL: Final = "scripts.level"
_MOST_TRACED: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """How scripts are run."""

    levels: int = 3
    """How deep scripts may stand in one another: a script, one that it calls, and so on; 1 or more."""
    read_only: bool = False
    """Whether every script sees only tools that say of themselves that they only read."""


class Scripts:
    """Runs scripts over one gateway."""

    def __init__(
        self, gateway: Gateway, makers: Mapping[str, EngineMaker], options: ScriptOptions | None = None
    ) -> None:
        """`makers` make an engine for each language."""
        self._gateway = gateway
        self.options = options or ScriptOptions()
        self.engines = Engines(makers)

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

        With `arguments`, the script has them as `args`. `limits` are `toolcrib.sandbox.Limits`, where others than the
        engine's own. With `answers`, by canonical id, no tool is called: that is what they answer. Raises
        `MissingExtra` where the engine is not installed, and `InvalidRequest`.
        """
        job = await self._job(ctx, source, language, read_only=read_only, answers=answers)
        whole = source if arguments is None else with_arguments(source, arguments, language)
        traces: list[Any] = []
        try:
            async with self.engines.one(language, job.level) as engine:
                done = await engine.run(whole, job.functions, limits=limits, schemas=job.schemas, on_call=traces.append)
        except ScriptFailed as error:
            if arguments is not None:
                as_written(error, language)
            return _with_calls(_failure(error, job), job, traces)
        return _with_calls(_finished(done), job, traces)

    async def check(
        self, ctx: Context, source: str, *, language: str = "lua", read_only: bool = False, limits: Any = None
    ) -> ToolResult:
        """The calls that can be seen in a script that is not run, or why it would not be run."""
        job = await self._job(ctx, source, language, read_only=read_only)
        try:
            async with self.engines.one(language, job.level) as engine:
                return _checked(await _check(engine, source, job, limits, language), job)
        except ScriptFailed as error:
            return _failure(error, job)

    async def _job(
        self, ctx: Context, source: str, language: str, *, read_only: bool, answers: Object | None = None
    ) -> "_Job":
        self.engines.known(language)
        if not source.strip():
            raise InvalidRequest("The script is empty.", hint="Write what to call, and give the result.")
        level = _level(ctx)
        if level >= self.options.levels:
            raise ExecutionFailed(
                f"Scripts stand {level} deep in one another already.", hint="Let the script not call itself."
            )
        await self._gateway.live.grace()
        await awaited(self._gateway, ctx, self._mentioned(await self._gateway.servers(ctx), source))
        view, statuses = await self._gateway.view(ctx), await self._gateway.servers(ctx)
        read_only = read_only or self.options.read_only
        shelved = shelves(view, statuses, read_only=read_only)
        inner = on_behalf(ctx, memo={**(ctx.memo or {}), _LEVEL: level + 1})
        call = partial(self._call, inner) if answers is None else partial(_answer, answers)
        servers = _named(shelved, source) if answers is None else _pretended(shelved, answers)
        return _Job(servers, statuses, source, call, level, read_only=read_only)

    def _mentioned(self, statuses: Sequence[ServerStatus], source: str) -> list[str]:
        return [space_of(status) for status in statuses if troubled(status) and _named_in(source, space_of(status))]

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
            await ended(ctx)


async def _answer(answers: Object, tool: Tool, _arguments: dict[str, Any]) -> JSON:
    """What a test has in place of the tool."""
    if tool.id not in answers:
        raise ExecutionFailed(f"The test has no answer of {tool.id}.")
    return answers[tool.id]


def _pretended(shelved: Shelves, answers: Object) -> Mapping[str, Shelf]:
    """The tools that a test answers for, whether or not they are there."""
    servers: dict[str, dict[str, Tool]] = {}
    for one in answers:
        namespace, name = one.split(":", 1) if ":" in one else ("", one)
        tool = Tool(name=name, namespace=namespace)
        server = shelved.server_of(tool)
        servers.setdefault(server, {})[name] = shelved.listed.get(server, {}).get(name, tool)
    return servers


class _Job:
    """One script, and what it may call."""

    def __init__(
        self,
        servers: Mapping[str, Shelf],
        statuses: Sequence[ServerStatus],
        source: str,
        call: Callable[[Tool, dict[str, Any]], Awaitable[JSON]],
        level: int,
        *,
        read_only: bool,
    ) -> None:
        self.servers = servers
        self.level = level
        self.functions = {server: _Functions(shelf, call) for server, shelf in servers.items()}
        self.schemas = {
            server: _Schemas(shelf) for server, shelf in servers.items() if shelf and _named_in(source, server)
        }
        self._read_only = read_only
        self._statuses = statuses
        self._source = source

    def id(self, server: str, tool: str) -> str:
        """The canonical id of a tool."""
        known = self.servers.get(server, {}).get(tool)
        return known.id if known is not None else f"{server}:{tool}"

    def notes(self) -> list[str]:
        """What is wrong with servers that the script names, and what it could not see."""
        named = [one for one in self._statuses if troubled(one) and _named_in(self._source, space_of(one))]
        notes = [f"Server {status.name} {stands(status)}." for status in named]
        return [*notes, _READ_ONLY] if self._read_only else notes


class _Functions(Mapping[str, ScriptTool]):
    """A shelf as functions, each made when it is called."""

    def __init__(self, shelf: Shelf, call: Callable[[Tool, dict[str, Any]], Awaitable[JSON]]) -> None:
        self._shelf = shelf
        self._call = call

    def __getitem__(self, name: str) -> ScriptTool:
        return partial(self._call, self._shelf[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shelf)

    def __len__(self) -> int:
        return len(self._shelf)


class _Schemas(Mapping[str, Object]):
    """The input schemas of a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def __getitem__(self, name: str) -> Object:
        return self._shelf[name].input_schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._shelf)

    def __len__(self) -> int:
        return len(self._shelf)


def _level(ctx: Context) -> int:
    level = ctx.memo.get(_LEVEL) if ctx.memo is not None else None
    return level if isinstance(level, int) else 0


def _named(shelved: Shelves, source: str) -> Mapping[str, Shelf]:
    """The shelves that the script can reach, and on them the hidden tools whose exact names it holds.

    A shelf of a server that the script names nowhere is left empty, unless it may come by a server in another way. A
    hidden tool never changes what another one is called.
    """
    everything = _COMPUTED.search(source) is not None
    servers: dict[str, Shelf] = {
        name: shelf if everything or _named_in(source, name) else {} for name, shelf in shelved.listed.items()
    }
    for tool in shelved.hidden:
        if tool.name in source and mentions(source, tool.name):
            server = shelved.server_of(tool)
            shelf = servers.get(server, {})
            if _plain(tool.name) not in map(_plain, shelf):
                servers[server] = {**shelf, tool.name: tool}
    return servers


def _plain(name: str) -> str:
    """Equal for all names that may have the same identifier."""
    return _NOT_WORD.sub("_", unicodedata.normalize("NFKD", name)).strip("_").replace("_", "")


def _named_in(source: str, server: str) -> bool:
    """Whether the script may mean the server: what its identifier holds in either language is there."""
    word = _NOT_WORD.sub("_", server)
    return not server.isascii() or not word.strip("_") or word in source


async def _check(engine: Engine, source: str, job: _Job, limits: Any, language: str) -> Any:
    if language == "python":
        typed: Any = engine
        return await typed.check(source, job.functions, limits=limits, schemas=job.schemas)
    return await engine.check(source, job.functions, limits=limits)


# -- results -------------------------------------------------------------------------------------------------------


def _finished(done: Any) -> ToolResult:
    result = result_from(done.value) if done.has_value else ToolResult(content=(_block(NO_RESULT),))
    more = [f"Printed:\n{done.printed}"] if done.printed.strip() else []
    more.extend(f"Note: {warning}" for warning in done.warnings)
    return replace(result, content=(*result.content, *map(_block, more)))


def _failure(error: ScriptFailed, job: _Job) -> ToolResult:
    """Why the script failed: in words, and as data with kind, line, traceback and suggestions."""
    error.hint = " ".join(filter(None, [error.hint, *job.notes()]))
    said = [str(error)]
    if error.suggestions:
        said.append(f"Did you mean: {', '.join(error.suggestions)}?")
    if isinstance(error.data.get("line"), int) and f":{error.data['line']}:" not in error.message:
        said.append(f"In line {error.data['line']} of the script.")
    if printed := str(error.data.get("printed", "")).strip():
        said.append(f"Printed before:\n{printed}")
    return ToolResult(content=(_block("\n".join(said)),), structured={"error": error.payload()}, is_error=True)


def _checked(seen: Any, job: _Job) -> ToolResult:
    calls = [{"name": job.id(call.server, call.tool), "line": call.line, "known": call.known} for call in seen.calls]
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
    return ToolResult(content=(_block(text),), structured={"calls": calls, "warnings": warnings})


def _with_calls(result: ToolResult, job: _Job, traces: Sequence[Any]) -> ToolResult:
    calls: list[dict[str, Any]] = [_trace(job, trace) for trace in traces[:_MOST_TRACED]]
    if len(traces) > _MOST_TRACED:
        calls.append({"more": len(traces) - _MOST_TRACED})
    return replace(result, meta={**result.meta, CALLS: calls})


def _trace(job: _Job, trace: Any) -> dict[str, Any]:
    shown = {
        "name": job.id(trace.server, trace.tool),
        "duration_ms": round(trace.duration_s * 1000, 3),
        "outcome": trace.outcome,
    }
    return {**shown, "error": trace.error[:_MOST_TRACED]} if trace.error else shown


def _block(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
