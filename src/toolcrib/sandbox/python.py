"""Scripts in a subset of Python: Monty's interpreter in processes of its own, and what it leaves to its host."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import anyio

from toolcrib.errors import MissingExtra, NotStarted, SandboxUnavailable
from toolcrib.sandbox import engines
from toolcrib.sandbox.calls import Calls, Tools
from toolcrib.sandbox.launcher import Launcher
from toolcrib.sandbox.limits import Limits, SandboxOptions
from toolcrib.sandbox.lua import Schemas, checked_source
from toolcrib.sandbox.monty import Script
from toolcrib.sandbox.names import Language, bindings
from toolcrib.sandbox.result import CheckResult, OnCall, ScriptResult
from toolcrib.sandbox.running import Running
from toolcrib.sandbox.seen import seen_calls
from toolcrib.sandbox.slots import Slots

_log = logging.getLogger(__name__)

_SETTLE_S: Final = 0.3
"""After the pool has closed: its threads abort the interpreter when it ends at that very moment."""


class PythonSandbox:
    """Runs scripts in Monty's subset of Python, which nobody trusts.

    A script sees each server as a module that is imported already: `await server.tool(name=value)`. Calls start when
    they are made; `asyncio.gather` awaits several. The value of the last expression is the script's, unless it called
    `result(value)`. A tool that raises is a `RuntimeError` in the script. `call_tool(server, tool, **arguments)` calls
    by the names of the tools' owner.

    Monty's interpreter and its processes are the first wall. On Linux those processes have no network, write no file,
    start no other and see no secret; on macOS and Windows, which are untested, Monty stands alone.

        async with PythonSandbox() as box:
            result = await box.run("await calc.add(a=1, b=2)", {"calc": {"add": add}})
    """

    language: ClassVar[Language] = "python"

    def __init__(self, *, limits: Limits | None = None, options: SandboxOptions | None = None) -> None:
        """`limits` are for scripts that come without their own. Nothing is started before `async with`."""
        self.limits = limits or Limits()
        self.options = options or SandboxOptions()
        self._slots = Slots(self.options)
        self._running = Running()
        self._launcher = Launcher(self.options.seccomp, self.limits.as_bytes)
        self._monty: Any = None
        self._engines: engines.Engines | None = None

    async def __aenter__(self) -> Self:
        """Raises `MissingExtra` without pydantic-monty, `SandboxUnavailable` where no process can be had."""
        self._monty = _library()
        program = await asyncio.to_thread(self._launcher.prepare)
        ready = engines.Engines(partial(self._engine, program), size=min(self.options.pool, self._slots.count))
        try:
            await ready.start()
        except Exception as error:
            self._launcher.remove()
            raise _no_engine(error) from error
        self._engines = ready
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the scripts that run, with `SandboxUnavailable`, and every process that is left."""
        ready, self._engines = self._engines, None
        if ready is None:
            return
        with anyio.CancelScope(shield=True):
            await self._running.end()
            await ready.close()
            await asyncio.sleep(_SETTLE_S)
        self._launcher.remove()

    async def run(
        self,
        source: str,
        tools: Tools,
        *,
        limits: Limits | None = None,
        schemas: Schemas | None = None,
        on_call: OnCall | None = None,
    ) -> ScriptResult:
        """Run a script over these tools: server -> tool -> function of one dict, awaited where it must be.

        With `schemas`, calls that cannot succeed are refused before any is made. Raises `ScriptError` (with `kind`,
        `line`, `traceback`) when the script fails, and `SandboxUnavailable`.
        """
        limits = limits or self.limits
        script, asked = self._script(source, tools, limits, schemas, on_call), time.monotonic()
        async with self._taken() as engine:
            start = time.monotonic()
            try:
                result = await script.run(engine)
            finally:
                script.calls.cancel()
                with anyio.CancelScope(shield=True):
                    await script.calls.close()
        trace = tuple(script.calls.trace)
        stats = {"wall_s": time.monotonic() - start, "wait_s": start - asked, "calls": len(trace)}
        return replace(result, calls=trace, stats=stats)

    async def check(
        self, source: str, tools: Tools, *, limits: Limits | None = None, schemas: Schemas | None = None
    ) -> CheckResult:
        """Whether the script parses and its calls fit the schemas, and the calls that can be seen. No tool is called.

        Raises `ScriptNotRun` with the line for a script that would be refused.
        """
        limits = limits or self.limits
        script = self._script(source, tools, limits, schemas or {}, None)
        async with self._taken() as engine:
            await script.check(engine)
        calls = seen_calls(source, "python", bindings(tools, "python"))
        unknown = [f"Line {call.line}: {call.server} has no tool {call.tool!r}." for call in calls if not call.known]
        return CheckResult(calls=calls, warnings=tuple(unknown))

    def _engine(self, program: str | None) -> Any:
        """A pool of Monty's for one process and one script."""
        return self._monty.AsyncMonty(
            binary_path=program,
            min_processes=1,
            max_processes=1,
            checkout_timeout=self.options.start_s,
            request_timeout=None,
            max_checkouts_per_worker=1,
        )

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[Any]:
        """An engine for one script."""
        if self._engines is None:
            raise _not_started()
        async with self._running.one(), self._slots.one():
            if self._engines is None:
                raise _not_started()
            try:
                engine = await self._engines.acquire()
            except Exception as error:
                raise _no_engine(error) from error
            try:
                yield engine
            finally:
                with anyio.CancelScope(shield=True):
                    await engines.close(engine)

    def _script(
        self, source: str, tools: Tools, limits: Limits, schemas: Schemas | None, on_call: OnCall | None
    ) -> Script:
        return Script(
            self._monty,
            checked_source(source, limits),
            bindings(tools, "python"),
            Calls(tools, on_call),
            limits,
            schemas,
        )


def _not_started() -> NotStarted:
    return NotStarted("The Python sandbox is not started.", hint="Use `async with PythonSandbox() as box:`.")


def _no_engine(error: Exception) -> SandboxUnavailable:
    return SandboxUnavailable(f"The Python engine could not be started: {error}.", hint='Try sandbox.seccomp = "try".')


def _library() -> Any:
    """Monty, imported now."""
    try:
        return import_module("pydantic_monty")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"The library {error.name!r} is not installed.", hint="Run: pip install 'toolcrib[python]'"
        ) from error
