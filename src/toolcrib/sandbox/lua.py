"""Lua 5.4 scripts, each in its own process that can only compute and send messages to us."""

import json
import secrets
from collections.abc import Mapping
from importlib import util
from types import TracebackType
from typing import ClassVar, Self

import anyio
import anyio.to_thread

from toolcrib.errors import MissingExtra, NotStarted, SandboxUnavailable
from toolcrib.sandbox.calls import Pauses, Schemas, Tools
from toolcrib.sandbox.executor import (
    ScriptExecutor,
    check_result,
    check_source,
    process_limits,
    server_entries,
    worker_limits,
)
from toolcrib.sandbox.languages import LUA, ScriptLanguage, ServerNames, script_names
from toolcrib.sandbox.limits import Limits, SandboxOptions, Seccomp
from toolcrib.sandbox.lua_check import check_calls
from toolcrib.sandbox.process import WorkerKind
from toolcrib.sandbox.result import CheckResult, OnCall, ScriptResult
from toolcrib.sandbox.worker import seccomp


class LuaSandbox:
    """Runs untrusted Lua scripts.

    A script sees each server as a global table: `server.tool{name = value}` starts a call and returns a promise;
    `promise:await()` waits for its value. On Linux every script has a process without files, network or privileges,
    behind a system call filter. On macOS and Windows, which are untested, it has its own process, the engine's limits
    and the deadlines, and `seccomp="require"` refuses to run.

        async with LuaSandbox() as box:
            result = await box.run("return calc.add{a=1, b=2}:await()", {"calc": {"add": add}})
    """

    language: ClassVar[ScriptLanguage] = LUA

    def __init__(self, *, limits: Limits | None = None, options: SandboxOptions | None = None) -> None:
        """`limits` apply to scripts without limits of their own. `async with` starts the sandbox."""
        self.limits = limits or Limits()
        self.options = options or SandboxOptions()
        self._workers = ScriptExecutor(LUA, self.options)

    async def __aenter__(self) -> Self:
        """Raises `MissingExtra` without lupa, and `SandboxUnavailable` if no process can be started and locked down."""
        library = _lua_library()
        self._check_seccomp()
        await self._workers.start(WorkerKind("lua", library))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the running scripts, with `SandboxUnavailable`, and every other process."""
        with anyio.CancelScope(shield=True):
            await self._workers.close()

    async def run(
        self,
        source: str,
        tools: Tools,
        *,
        limits: Limits | None = None,
        schemas: Schemas | None = None,
        on_call: OnCall | None = None,
        pauses: Pauses | None = None,
    ) -> ScriptResult:
        """Run a script over these tools: server -> tool -> function of one dict, asynchronous or not.

        A tool that raises is an error that the script can catch. `schemas` decide where an empty table is an array.
        Raises `ScriptError` (with `kind`, `line`, `traceback`) when the script fails, and `SandboxUnavailable`.
        """
        return await self._run(source, tools, limits or self.limits, schemas or {}, on_call, pauses, check=False)

    async def check(
        self, source: str, tools: Tools, *, limits: Limits | None = None, schemas: Schemas | None = None
    ) -> CheckResult:
        """Check that a script parses, and find the calls in it. No tool is called.

        With `schemas`, arguments that are written as literals are checked. Raises `ScriptNotRun` with the line of a
        syntax error.
        """
        await self._run(source, tools, limits or self.limits, {}, None, None, check=True)
        names = script_names(tools, LUA)
        return check_result(await anyio.to_thread.run_sync(check_calls, source, names, schemas or {}))

    async def _run(
        self,
        source: str,
        tools: Tools,
        limits: Limits,
        schemas: Schemas,
        on_call: OnCall | None,
        pauses: Pauses | None,
        *,
        check: bool,
    ) -> ScriptResult:
        if not self._workers.started:
            raise NotStarted("The Lua sandbox is not started.", hint="Use it in `async with LuaSandbox() as box:`.")
        job_source = _without_shebang(check_source(source, limits))
        servers = script_names(tools, LUA)
        job = _encode_job(job_source, servers, limits, self.options.seccomp, check=check)
        return await self._workers.run(
            job, tools, on_call, source=job_source, limits=limits, servers=servers, schemas=schemas, pauses=pauses
        )

    def _check_seccomp(self) -> None:
        missing = seccomp.missing()
        if missing and self.options.seccomp == "require":
            raise SandboxUnavailable(
                f"Scripts are not run here: {missing}.",
                hint='Set sandbox.seccomp to "try" to run them with the other protections and a warning, or to "off".',
            )


def _without_shebang(source: str) -> str:
    """Drop a first line such as `#!/usr/bin/env lua`, as Lua does for files; line numbers stay the same."""
    return source[len(source.partition("\n")[0]) :] if source.startswith("#") else source


def _lua_library() -> str:
    """The file of the Lua binding. Raises `MissingExtra`."""
    try:
        spec = util.find_spec("lupa.lua54")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise MissingExtra("The library 'lupa' is not installed.", hint="Run: pip install 'toolcrib[lua]'")
    return spec.origin


def _encode_job(
    source: str, servers: Mapping[str, ServerNames], limits: Limits, seccomp_wish: Seccomp, *, check: bool
) -> bytes:
    seed = [secrets.randbits(62), secrets.randbits(62)]  # forked processes would all draw the same numbers
    prelude = {"servers": server_entries(servers), "check": check, "seed": seed, **worker_limits(limits)}
    job = {
        "source": source,
        "seccomp": seccomp_wish,
        "limits": process_limits(limits),
        "prelude": json.dumps(prelude),
    }
    return json.dumps(job).encode()
