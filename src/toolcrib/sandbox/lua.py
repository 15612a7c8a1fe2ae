"""Scripts in Lua 5.4: each in a process of its own that can only compute and talk to us."""

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from importlib import util
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, Self

import anyio

from toolcrib.errors import MissingExtra, NotStarted, SandboxUnavailable
from toolcrib.model import Object
from toolcrib.sandbox import zygote
from toolcrib.sandbox.calls import Calls, Tools
from toolcrib.sandbox.conversation import Conversation, NeverBegan
from toolcrib.sandbox.failures import failure
from toolcrib.sandbox.limits import Limits, SandboxOptions
from toolcrib.sandbox.names import Language, ServerNames, bindings
from toolcrib.sandbox.pool import Pool
from toolcrib.sandbox.process import Worker, spawn
from toolcrib.sandbox.result import CheckResult, OnCall, ScriptResult
from toolcrib.sandbox.running import Running
from toolcrib.sandbox.seen import seen_calls
from toolcrib.sandbox.slots import Slots
from toolcrib.sandbox.worker import seccomp

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""Workers that may turn out to be gone before one has the job."""

Schemas = Mapping[str, Mapping[str, Object]]
"""Input schemas by server and tool, under their own names; those of unknown tools are not used."""


class LuaSandbox:
    """Runs Lua scripts that nobody trusts.

    A script sees each server as a global table: `server.tool{name = value}` starts a call at once and gives a promise;
    `promise:await()` waits for its value. On Linux every script has a process without files, network or privileges,
    behind a filter of system calls. On macOS and Windows, where this is untested, there is a process of its own, the
    limits of the engine and the deadlines, and `seccomp="require"` refuses to run.

        async with LuaSandbox() as box:
            result = await box.run("return calc.add{a=1, b=2}:await()", {"calc": {"add": add}})
    """

    language: ClassVar[Language] = "lua"

    def __init__(self, *, limits: Limits | None = None, options: SandboxOptions | None = None) -> None:
        """`limits` are for scripts that come without their own. Nothing is started before `async with`."""
        self.limits = limits or Limits()
        self.options = options or SandboxOptions()
        self._pool: Pool | None = None
        self._zygote: zygote.Zygote | None = None
        self._slots = Slots(self.options)
        self._running = Running()

    async def __aenter__(self) -> Self:
        """Raises `MissingExtra` without lupa, `SandboxUnavailable` where no process can be had or locked down."""
        library = _library()
        self._check_seccomp()
        make = await self._maker(library)
        pool = Pool(make, size=self.options.pool, start_s=self.options.start_s)
        try:
            await pool.start()
        except BaseException:
            await self._close()
            raise
        self._pool = pool
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the scripts that run, with `SandboxUnavailable`, and every process that is left."""
        with anyio.CancelScope(shield=True):
            await self._close()

    async def _close(self) -> None:
        pool, self._pool = self._pool, None
        await self._running.end()
        if pool is not None:
            await pool.close()
        if self._zygote is not None:
            await self._zygote.close()
            self._zygote = None

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

        A tool that raises is an error that the script can catch. `schemas` tell where an empty table means an array.
        Raises `ScriptError` (with `kind`, `line`, `traceback`) when the script fails, and `SandboxUnavailable`.
        """
        return await self._run(source, tools, limits or self.limits, schemas or {}, on_call, check=False)

    async def check(self, source: str, tools: Tools, *, limits: Limits | None = None) -> CheckResult:
        """Whether the script parses, and the calls that can be seen in it. No tool is called.

        Raises `ScriptNotRun` with the line for a script that does not parse.
        """
        await self._run(source, tools, limits or self.limits, {}, None, check=True)
        calls = seen_calls(source, "lua", bindings(tools, "lua"))
        unknown = [f"Line {call.line}: {call.server} has no tool {call.tool!r}." for call in calls if not call.known]
        return CheckResult(calls=calls, warnings=tuple(unknown))

    async def _run(
        self,
        source: str,
        tools: Tools,
        limits: Limits,
        schemas: Schemas,
        on_call: OnCall | None,
        *,
        check: bool,
    ) -> ScriptResult:
        pool = self._pool
        if pool is None:
            raise NotStarted("The Lua sandbox is not started.", hint="Use it in `async with LuaSandbox() as box:`.")
        job_source = _without_first_line(checked_source(source, limits))
        servers = bindings(tools, "lua")
        job = _job(job_source, servers, limits, self.options.seccomp, check=check)
        asked = time.monotonic()
        async with self._running.one(), self._slots.one():
            for _ in range(_ATTEMPTS):
                worker = await pool.acquire()
                start = time.monotonic()
                calls = Calls(tools, on_call)
                try:
                    result = await Conversation(worker, calls, limits, servers, schemas).run(job)
                except NeverBegan:
                    continue
                finally:
                    worker.end.kill()
                    calls.cancel()
                    with anyio.CancelScope(shield=True):
                        await worker.close()
                        await calls.close()
                stats = {"wall_s": time.monotonic() - start, "wait_s": start - asked, "calls": len(calls.trace)}
                return replace(result, calls=tuple(calls.trace), stats={**result.stats, **stats})
        raise SandboxUnavailable("The processes for scripts end before they begin.", hint="See what ends them.")

    def _check_seccomp(self) -> None:
        missing = seccomp.missing()
        if missing and self.options.seccomp == "require":
            raise SandboxUnavailable(
                f"Scripts are not run here: {missing}.",
                hint='Set sandbox.seccomp to "try" to run them with the other walls only, and be warned, or to "off".',
            )

    async def _maker(self, library: str) -> Callable[[], Awaitable[Worker]]:
        """How workers are made here: forked where that can be done, else each started anew."""
        if self.options.zygote and zygote.possible():
            prepared = zygote.Zygote(library, start_s=self.options.start_s)
            if await prepared.start():
                self._zygote = prepared
                return prepared.make
        return lambda: spawn(library)


def checked_source(source: str, limits: Limits) -> str:
    """The script itself, without a byte order mark. Raises `ScriptNotRun` for one that is too large or no text."""
    try:
        size = len(source) if len(source) > limits.script_bytes else len(source.encode())
    except UnicodeEncodeError:
        raise failure("script", "The script is not valid Unicode.", refused=True) from None
    if size > limits.script_bytes:
        raise failure("size", f"The script has {size} bytes, and {limits.script_bytes} are allowed.", refused=True)
    return source.removeprefix("\ufeff")


def _without_first_line(source: str) -> str:
    """As Lua itself reads a file: without a first line such as `#!/usr/bin/env lua`; the numbers of the others stay."""
    return source[len(source.partition("\n")[0]) :] if source.startswith("#") else source


def _library() -> str:
    """The file of the Lua binding."""
    try:
        spec = util.find_spec("lupa.lua54")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise MissingExtra("The library 'lupa' is not installed.", hint="Run: pip install 'toolcrib[lua]'")
    return spec.origin


def _job(
    source: str,
    servers: Mapping[str, ServerNames],
    limits: Limits,
    wish: Literal["require", "try", "off"],
    *,
    check: bool,
) -> bytes:
    prelude: dict[str, Any] = {
        "servers": [
            {
                "name": name,
                "original": server.original,
                "tools": [{"name": tool, "original": original} for tool, original in server.tools.items()],
            }
            for name, server in servers.items()
        ],
        "check": check,
        "calls": limits.calls,
        "inflight": limits.inflight,
        "inflight_bytes": limits.frame_bytes,
        "out_bytes": limits.out_bytes,
        "depth": limits.depth,
        "nodes": limits.nodes,
        "print_bytes": limits.print_bytes,
        "error_bytes": limits.error_bytes,
        "soft_cpu_s": limits.soft_cpu_s,
    }
    kernel = {"as_bytes": limits.as_bytes, "cpu_s": limits.cpu_s, "lua_bytes": limits.lua_bytes}
    return json.dumps({"source": source, "seccomp": wish, "limits": kernel, "prelude": prelude}).encode()
