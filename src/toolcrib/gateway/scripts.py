"""Scripts over a caller's tools: each can do what its caller can, and nothing else.

Every call of a script takes the way of any other call: policy, schema, middleware, session. A script that is not
waited for any more is ended, and its calls are cancelled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from toolcrib.errors import ApprovalRequired, ExecutionFailed, InvalidRequest, ScriptFailed, ToolcribError
from toolcrib.gateway.behalf import ended, on_behalf
from toolcrib.gateway.engines import Engine, EngineMaker, Engines
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.inputs import as_written, with_arguments
from toolcrib.gateway.job import Job, answer, names, pretended, reachable
from toolcrib.gateway.known import space_of
from toolcrib.gateway.levels import deeper, level_of
from toolcrib.gateway.lookups import LookedUp, looked_up
from toolcrib.gateway.options import ScriptOptions
from toolcrib.gateway.outcomes import CALLS, NO_RESULT, checked, failure, finished, with_calls
from toolcrib.gateway.shelves import awaited, shelves, troubled
from toolcrib.gateway.values import script_value
from toolcrib.model import JSON, Object, ServerStatus, Tool, ToolResult
from toolcrib.protocols import Context

_LEVEL: Final = "scripts.level"


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

        With `arguments`, the script has them as `args`: plain JSON, as much as any one call may have. `limits` are
        `toolcrib.sandbox.Limits`, where others than the engine's own. With `answers`, by canonical id, no tool is
        called: that is what they answer. Raises `MissingExtra` where the engine is not installed, and `InvalidRequest`.
        """
        job = await self._job(ctx, source, language, read_only=read_only, answers=answers)
        traces: list[Any] = []
        try:
            async with self.engines.one(language, job.level) as engine:
                if arguments is not None:
                    source, limits = with_arguments(source, arguments, language, limits or engine.limits)
                with deeper(job.level):
                    done = await engine.run(
                        source, job.functions, limits=limits, schemas=job.schemas, on_call=traces.append
                    )
        except ScriptFailed as error:
            if arguments is not None:
                as_written(error, language)
            return with_calls(failure(error, job), job, traces)
        return with_calls(finished(done), job, traces)

    async def check(
        self, ctx: Context, source: str, *, language: str = "lua", read_only: bool = False, limits: Any = None
    ) -> ToolResult:
        """The calls that can be seen in a script that is not run, or why it would not be run."""
        job = await self._job(ctx, source, language, read_only=read_only)
        try:
            async with self.engines.one(language, job.level) as engine:
                return checked(await _check(engine, source, job, limits, language), job)
        except ScriptFailed as error:
            return failure(error, job)

    async def _job(
        self, ctx: Context, source: str, language: str, *, read_only: bool, answers: Object | None = None
    ) -> Job:
        self.engines.known(language)
        if not source.strip():
            raise InvalidRequest("The script is empty.", hint="Write what to call, and give the result.")
        level = max(level_of(), _level(ctx))
        if level >= self.options.levels:
            raise ExecutionFailed(
                f"Scripts stand {level} deep in one another already.", hint="Let the script not call itself."
            )
        await self._gateway.live.grace()
        await awaited(self._gateway, ctx, self._mentioned(await self._gateway.servers(ctx), source))
        view, statuses = await self._gateway.view(ctx), await self._gateway.servers(ctx)
        read_only = read_only or self.options.read_only
        shelved, more = shelves(view, statuses, read_only=read_only), LookedUp()
        if answers is None:
            more = await looked_up(self._gateway, ctx, view, shelved, source, read_only=read_only)
            shelved = replace(shelved, hidden=(*shelved.hidden, *more.tools))
        inner = on_behalf(ctx, memo={**(ctx.memo or {}), _LEVEL: level + 1})
        call = partial(self._call, inner) if answers is None else partial(answer, answers)
        servers = reachable(shelved, source) if answers is None else pretended(shelved, answers)
        return Job(servers, statuses, source, call, level, read_only=read_only, notes=more.notes)

    def _mentioned(self, statuses: Sequence[ServerStatus], source: str) -> list[str]:
        return [space_of(status) for status in statuses if troubled(status) and names(source, space_of(status))]

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


def _level(ctx: Context) -> int:
    """What the context says, for a tool that works in a thread of its own; one with other providers does not say it."""
    level = ctx.memo.get(_LEVEL) if ctx.memo is not None else None
    return level if isinstance(level, int) else 0


async def _check(engine: Engine, source: str, job: Job, limits: Any, language: str) -> Any:
    if language == "python":
        typed: Any = engine
        return await typed.check(source, job.functions, limits=limits, schemas=job.schemas)
    return await engine.check(source, job.functions, limits=limits)


__all__ = ["CALLS", "NO_RESULT", "ScriptOptions", "Scripts"]
