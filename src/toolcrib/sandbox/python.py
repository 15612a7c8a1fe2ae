"""Scripts in a subset of Python: Monty's interpreter, each script in processes of its own."""

import json
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import anyio

from toolcrib.errors import MissingExtra, NotStarted
from toolcrib.sandbox.calls import Tools
from toolcrib.sandbox.jobs import checked_source, kept_inside, kept_outside, offered
from toolcrib.sandbox.launcher import Launcher
from toolcrib.sandbox.limits import Limits, SandboxOptions
from toolcrib.sandbox.names import Language, ServerNames, bindings
from toolcrib.sandbox.process import WorkerKind
from toolcrib.sandbox.result import CheckResult, OnCall, ScriptResult
from toolcrib.sandbox.seen import seen_calls
from toolcrib.sandbox.stubs import HEADER, module_stub
from toolcrib.sandbox.workers import Schemas, Workers

_OWN_STUBS: Final = (
    HEADER + "def result(value: Any) -> None: ...\n"
    "async def call_tool(server: str, tool: str, **arguments: Any) -> Any: ...\n"
)
"""Known to the checker beside the servers."""


class PythonSandbox:
    """Runs scripts in Monty's subset of Python, which nobody trusts.

    A script sees each server as a module that is imported already: `await server.tool(name=value)`. Calls start when
    they are made; `asyncio.gather` awaits several. The value of the last expression is the script's, unless it called
    `result(value)`. A tool that raises is a `RuntimeError` in the script. `call_tool(server, tool, **arguments)` calls
    by the names of the tools' owner.

    Monty's interpreter is the first wall, its process is the second, and what that one says is read in a process that
    is not the gateway's. On Linux neither of them has a network, writes a file, starts another or sees a secret; on
    macOS and Windows, which are untested, the processes and their limits stand alone.

        async with PythonSandbox() as box:
            result = await box.run("await calc.add(a=1, b=2)", {"calc": {"add": add}})
    """

    language: ClassVar[Language] = "python"

    def __init__(self, *, limits: Limits | None = None, options: SandboxOptions | None = None) -> None:
        """`limits` are for scripts that come without their own. Nothing is started before `async with`."""
        self.limits = limits or Limits()
        self.options = options or SandboxOptions()
        self._workers = Workers("python", self.options)
        self._launcher = Launcher(self.options.seccomp, self.limits.as_bytes)

    async def __aenter__(self) -> Self:
        """Raises `MissingExtra` without pydantic-monty, `SandboxUnavailable` where no process can be had."""
        client, typing = _package("pydantic_monty").parent, _package("typing_extensions")
        program = await anyio.to_thread.run_sync(self._launcher.prepare, client)
        usual = {"limits": _bounds(self.limits), "check": False, "stub": _OWN_STUBS}
        paths = list(dict.fromkeys([str(client.parent), str(typing.parent)]))
        library = {"paths": paths, "program": program, "usual": usual}
        try:
            await self._workers.start(WorkerKind("monty", json.dumps(library)), self._launcher.renew)
        except BaseException:
            self._launcher.remove()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the scripts that run, with `SandboxUnavailable`, and every process that is left."""
        with anyio.CancelScope(shield=True):
            await self._workers.close()
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
        return await self._run(source, tools, limits or self.limits, schemas, on_call, check=False)

    async def check(
        self, source: str, tools: Tools, *, limits: Limits | None = None, schemas: Schemas | None = None
    ) -> CheckResult:
        """Whether the script parses and its calls fit the schemas, and the calls that can be seen. No tool is called.

        What comes before the first call is run, for 50 ms at most. Raises `ScriptNotRun` with the line for a script
        that would be refused.
        """
        await self._run(source, tools, limits or self.limits, schemas or {}, None, check=True)
        calls = seen_calls(source, "python", bindings(tools, "python"))
        unknown = [f"Line {call.line}: {call.server} has no tool {call.tool!r}." for call in calls if not call.known]
        return CheckResult(calls=calls, warnings=tuple(unknown))

    async def _run(
        self,
        source: str,
        tools: Tools,
        limits: Limits,
        schemas: Schemas | None,
        on_call: OnCall | None,
        *,
        check: bool,
    ) -> ScriptResult:
        if not self._workers.started:
            raise NotStarted("The Python sandbox is not started.", hint="Use `async with PythonSandbox() as box:`.")
        servers = bindings(tools, "python")
        job = {
            "source": checked_source(source, limits),
            "seccomp": self.options.seccomp,
            "check": check,
            "checked": schemas is not None,
            "stub": _OWN_STUBS,
            "servers": _stubbed(servers, schemas or {}),
            "limits": _bounds(limits),
        }
        text = json.dumps(job).encode()
        return await self._workers.run(text, tools, on_call, limits=limits, servers=servers, schemas={})


def _stubbed(servers: Mapping[str, ServerNames], schemas: Schemas) -> list[dict[str, Any]]:
    stubs = [module_stub(names.tools, schemas.get(names.original, {})) for names in servers.values()]
    return [{**server, "stub": stub} for server, stub in zip(offered(servers), stubs, strict=True)]


def _bounds(limits: Limits) -> dict[str, Any]:
    return {**kept_inside(limits), **kept_outside(limits)}


def _package(name: str) -> Path:
    """Where that library lies. Raises `MissingExtra`."""
    spec = util.find_spec(name)
    if spec is None or spec.origin is None:
        raise MissingExtra(f"The library {name!r} is not installed.", hint="Run: pip install 'toolcrib[python]'")
    return Path(spec.origin)
