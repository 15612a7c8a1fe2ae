"""One script in Monty: its calls as tasks of ours, its limits, and its failures as ours."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import pydantic_core

from toolcrib.errors import SandboxUnavailable
from toolcrib.model import JSON, Object
from toolcrib.sandbox import frames
from toolcrib.sandbox.bound import OutOfBounds, bounded
from toolcrib.sandbox.calls import CallFailed, Calls
from toolcrib.sandbox.diagnostics import refusals
from toolcrib.sandbox.failures import Kind, ScriptError, failure
from toolcrib.sandbox.hints import suggestions_for
from toolcrib.sandbox.limits import KIB, Limits
from toolcrib.sandbox.names import ServerNames
from toolcrib.sandbox.result import ScriptResult
from toolcrib.sandbox.stubs import HEADER, module_stub

_FILE: Final = "script"
_GRACE_S: Final = 1
_CHECK_S: Final = 0.05
_TRACE_LINES: Final = 40
_SMALL_NODES: Final = 200
_SMALL_BYTES: Final = 16 * KIB
_OWN_STUBS: Final = (
    HEADER + "def result(value: Any) -> None: ...\n"
    "async def call_tool(server: str, tool: str, **arguments: Any) -> Any: ...\n"
)
"""Known to the checker beside the servers."""


class Script:
    """A script, its servers and its calls."""

    def __init__(
        self,
        monty: Any,
        source: str,
        servers: Mapping[str, ServerNames],
        calls: Calls,
        limits: Limits,
        schemas: Mapping[str, Mapping[str, Object]] | None,
    ) -> None:
        """`monty` is the library; without `schemas` nothing is checked before."""
        self._monty = monty
        self._source = source
        self._servers = servers
        self.calls = calls
        self._limits = limits
        self._schemas = schemas
        self._small = replace(
            limits, nodes=min(limits.nodes, _SMALL_NODES), out_bytes=min(limits.out_bytes, _SMALL_BYTES)
        )
        self._slots = asyncio.Semaphore(limits.inflight)
        self._made = 0
        self._under_way: dict[int, str] = {}
        self._result: list[object] = []
        self._printed: list[str] = []
        self._room = limits.print_bytes
        self._cut = False
        self._feed: asyncio.Task[object] | None = None
        self._verdict: Kind | None = None

    async def run(self, pool: Any) -> ScriptResult:
        """Run it to its end. Raises `ScriptError` and `SandboxUnavailable`."""
        try:
            async with asyncio.timeout(self._limits.wall_s) as wall:
                value = await self._fed(pool)
        except TimeoutError as error:
            if not wall.expired():
                raise SandboxUnavailable("No process of the Python engine got free.", hint="Try again.") from error
            raise self._failure("wall", f"the script did not end within {self._limits.wall_s:g} seconds") from None
        return await self._ended(value)

    async def check(self, pool: Any) -> None:
        """Parse and check it; what comes before the first call is run, briefly. Raises `ScriptError`."""
        async with asyncio.timeout(self._limits.wall_s), self._checkout(pool, feed_s=_CHECK_S) as session:
            await self._import(session)
            try:
                await session.feed_start(self._source, external_lookup=self._own(), print_callback=_ignore)
            except self._monty.MontyTypingError as error:
                self._refuse(str(error))
            except self._monty.MontySyntaxError as error:
                raise self._refused(error) from None
            except self._monty.MontyError:
                return  # it parses; how it would fail is not what was asked

    # -- feeding ---------------------------------------------------------------------------------------------------

    async def _fed(self, pool: Any) -> object:
        try:
            async with self._checkout(pool, feed_s=min(self._limits.soft_cpu_s, self._limits.cpu_s)) as session:
                _limit_cpu(session.worker_pid, self._limits.cpu_s + _GRACE_S)
                await self._import(session)
                self._feed = asyncio.create_task(self._run_in(session))
                return await self._feed
        except asyncio.CancelledError:
            if self._verdict is None or _being_cancelled():
                raise
            raise self._failure("calls", f"the script made more than {self._limits.calls} tool calls") from None
        except self._monty.MontyError as error:
            raise self._translated(error) from None

    async def _run_in(self, session: Any) -> object:
        own = {"external_lookup": self._own(), "print_callback": self._print}
        try:
            return await session.feed_run(self._source, **own)
        except self._monty.MontyTypingError as error:
            self._refuse(str(error))
        return await session.feed_run(self._source, **own, skip_type_check=True)

    def _checkout(self, pool: Any, *, feed_s: float) -> Any:
        modules = {
            name: self._monty.ExternalModule(
                {tool: self._function(name, tool, server.original, own) for tool, own in server.tools.items()},
                stubs=module_stub(server.tools, (self._schemas or {}).get(server.original, {})),
            )
            for name, server in self._servers.items()
        }
        checked = self._schemas is not None
        return pool.checkout(
            script_name=_FILE,
            limits={
                "max_feed_duration_secs": feed_s,
                "max_memory": self._limits.lua_bytes,
                "max_suspensions": 20 * self._limits.calls + 10_000,
            },
            type_check=checked,
            type_check_stubs=_OWN_STUBS if checked else None,
            type_check_format="concise" if checked else None,
            external_modules=modules,
        )

    async def _import(self, session: Any) -> None:
        if self._servers:
            await session.feed_run(f"import {', '.join(self._servers)}", skip_type_check=self._schemas is None)

    def _own(self) -> dict[str, Callable[..., object]]:
        def result(value: object = None) -> None:
            self._result[:] = [value]

        async def call_tool(server: str, tool: str, **arguments: object) -> JSON:
            for name, names in self._servers.items():
                if server in (name, names.original):
                    if tool in names.tools or tool in names.tools.values():
                        own = names.tools.get(tool, tool)
                        return await self._call(f"{name}.{tool}", names.original, own, arguments)
                    raise AttributeError(f"server {name!r} has no tool {tool!r}; it has: {', '.join(names.tools)}")
            raise AttributeError(f"there is no server {server!r}; there are: {', '.join(self._servers)}")

        return {"result": result, "call_tool": call_tool}

    # -- calls -----------------------------------------------------------------------------------------------------

    def _function(self, server: str, tool: str, original: str, own: str) -> Callable[..., Coroutine[Any, Any, JSON]]:
        label = f"{server}.{tool}"

        async def call(*values: object, **arguments: object) -> JSON:
            if len(values) == 1 and not arguments and isinstance(values[0], dict):
                return await self._call(label, original, own, values[0])
            if values:
                raise TypeError(f"{label} takes named arguments, such as {label}(name=value)")
            return await self._call(label, original, own, arguments)

        return call

    async def _call(self, label: str, server: str, tool: str, arguments: Mapping[str, object]) -> JSON:
        self._made += 1
        number = self._made
        if number > self._limits.calls:
            self._end("calls")
            raise RuntimeError(f"more than {self._limits.calls} tool calls in one script")
        self._under_way[number] = label
        try:
            return await self.calls.spawn(self._answer(label, server, tool, arguments))
        except (CallFailed, OutOfBounds) as error:
            raise RuntimeError(self._short(f"{label}: {error}")) from None
        finally:
            if not _being_cancelled():
                self._under_way.pop(number, None)

    async def _answer(self, label: str, server: str, tool: str, arguments: Mapping[str, object]) -> JSON:
        given = await self._bounded(arguments, label)
        async with self._slots:
            value = await self.calls.call(server, tool, given)
        try:
            text = frames.dumps(value)
        except Exception:  # noqa: BLE001 - the value is the tool's, and may raise anything when it is looked at
            raise CallFailed("its answer is nothing that JSON can carry") from None
        if len(text) > self._limits.response_bytes:
            raise CallFailed(f"its answer is larger than {self._limits.response_bytes} bytes")
        try:
            return pydantic_core.from_json(text)
        except ValueError:
            raise CallFailed("its answer is nested too deep") from None

    def _end(self, kind: Kind) -> None:
        if self._verdict is None:
            self._verdict = kind
            if self._feed is not None:
                self._feed.cancel()

    async def _bounded(self, value: object, root: str) -> JSON:
        """As `bounded`; only what is small is looked at here, the rest away from the event loop."""
        try:
            return bounded(value, root, self._small)
        except OutOfBounds:
            return await asyncio.to_thread(bounded, value, root, self._limits)

    # -- what comes back -------------------------------------------------------------------------------------------

    def _print(self, _stream: str, text: str) -> None:
        data = text.encode(errors="replace")
        self._cut = self._cut or len(data) > self._room
        kept = data[: self._room]
        self._room -= len(kept)
        if kept:
            self._printed.append(kept.decode(errors="ignore"))

    async def _ended(self, value: object) -> ScriptResult:
        has_value = bool(self._result) or value is not None
        chosen = self._result[0] if self._result else value
        try:
            plain = await self._bounded(chosen, "result")
        except OutOfBounds as error:
            raise self._failure("script", str(error)) from None
        unawaited = tuple(sorted(self._under_way.values()))
        warnings = [f"{label} was still under way at the end, and was cancelled; await it." for label in unawaited[:10]]
        if self._cut:
            warnings.append(f"Printed text was cut after {self._limits.print_bytes} bytes.")
        return ScriptResult(
            value=plain,
            has_value=has_value,
            printed="".join(self._printed),
            unawaited=unawaited,
            warnings=tuple(warnings),
        )

    def _refuse(self, said: str) -> None:
        """Raise for what the checker found, where that is reason enough."""
        found = refusals(said, self._servers)
        if found:
            message = "\n".join(f"{_FILE}:{item.line}: {item.message}" for item in found[:5])
            raise self._failure("script", message, line=found[0].line, refused=True)

    def _translated(self, error: Any) -> ScriptError:
        if isinstance(error, self._monty.MontySyntaxError):
            return self._refused(error)
        if isinstance(error, self._monty.MontyCrashedError):
            return self._failure(*_crash(error, self._limits))
        message = self._short(str(error))
        kind = _kind(message)
        trace = self._trace(error)
        return self._failure(kind, message, line=_last_line(error), traceback=trace)

    def _refused(self, error: Any) -> ScriptError:
        return self._failure(
            "script", self._short(str(error)), line=_last_line(error), traceback=self._trace(error), refused=True
        )

    def _trace(self, error: Any) -> str:
        display = getattr(error, "display", None)
        lines = display().splitlines() if display is not None else []
        if len(lines) > _TRACE_LINES:
            half = _TRACE_LINES // 2
            lines = [*lines[:half], "  ...", *lines[-half:]]
        return "\n".join(line[:500] for line in lines).replace('File "<python-input-1>"', f'File "{_FILE}"')

    def _short(self, text: str) -> str:
        limit = self._limits.error_bytes
        data = text.encode(errors="replace")
        return data.decode() if len(data) <= limit else data[:limit].decode(errors="ignore") + "…"

    def _failure(self, kind: Kind, message: str, **more: Any) -> ScriptError:
        spelt = {name: list(server.tools) for name, server in self._servers.items()}
        near = suggestions_for(message, spelt) if kind == "script" else ()
        return failure(kind, message, printed="".join(self._printed), suggestions=near, **more)


def _kind(message: str) -> Kind:
    if message.startswith("TimeoutError: feed time limit exceeded"):
        return "cpu"
    if message.startswith("MemoryError"):
        return "memory"
    return "calls" if message.startswith("RuntimeError: suspension limit") else "script"


def _crash(error: Any, limits: Limits) -> tuple[Kind, str]:
    if getattr(error, "timed_out", False) or "SIGXCPU" in str(error) or "signal: 24" in str(error):
        return "cpu", f"the script used more than {limits.cpu_s} seconds of processor time"
    if "SIGKILL" in str(error) or "signal: 9" in str(error):
        return "killed", "the script's process was ended from outside"
    return "crash", f"the script's process crashed: {str(error)[:300]}"


def _last_line(error: Any) -> int | None:
    traceback = getattr(error, "traceback", None)
    found = traceback() if traceback is not None else []
    return int(found[-1].line) if found else None


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _limit_cpu(pid: int | None, seconds: int) -> None:
    """The kernel's own bound on the processor time of a worker, where it can be set from outside."""
    if pid is not None and sys.platform == "linux":
        resource = import_module("resource")
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds + 1))


def _ignore(_stream: str, _text: str) -> None:
    return
