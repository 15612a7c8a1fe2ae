"""Run scripts in worker processes: limit how many run at once, keep workers ready, and give each script a new one."""

import asyncio
import json
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Final

import anyio

from toolcrib.errors import NotStarted, SandboxUnavailable
from toolcrib.sandbox import process
from toolcrib.sandbox.calls import Pauses, Schemas, ScriptCalls, Tools
from toolcrib.sandbox.conversation import Conversation, WorkerLost
from toolcrib.sandbox.frames import ProtocolError, read_frame
from toolcrib.sandbox.languages import ScriptLanguage, ServerNames, find_calls, script_names
from toolcrib.sandbox.limits import Limits, SandboxOptions
from toolcrib.sandbox.process import ScriptProcess, WorkerKind, spawn_worker
from toolcrib.sandbox.result import CheckResult, OnCall, ScriptResult, SeenCall, script_error

_MAX_ATTEMPTS: Final = 3
"""Workers that may be lost before one takes the job."""


class ScriptSandbox(ABC):
    """Runs untrusted scripts of one language, each in its own process."""

    language: ClassVar[ScriptLanguage]

    def __init__(self, *, limits: Limits | None = None, options: SandboxOptions | None = None) -> None:
        """`limits` apply to scripts without limits of their own. `async with` starts the sandbox."""
        self.limits = limits or Limits()
        self.options = options or SandboxOptions()
        self._pool: WorkerPool | None = None
        self._zygote: process.Zygote | None = None
        self._slots = ScriptSlots(self.options)
        self._running = RunningScripts()
        self._ending: set[asyncio.Task[int | None]] = set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the running scripts, with `SandboxUnavailable`, and every other process."""
        pool, self._pool = self._pool, None
        with anyio.CancelScope(shield=True):
            await self._running.end_all()
            if pool is not None:
                await pool.close()
            if self._ending:
                await asyncio.wait(self._ending)
            if self._zygote is not None:
                await self._zygote.close()
                self._zygote = None

    async def _start(self, kind: WorkerKind, before: Callable[[], object] = bool) -> None:
        """Get the first process ready. `before` runs before each start. Raises `SandboxUnavailable`."""
        maker = await self._worker_factory(kind)

        async def make() -> ScriptProcess:
            before()
            return await maker()

        pool = WorkerPool(make, size=self.options.pool, start_s=self.options.start_s)
        try:
            await pool.start()
        except BaseException:
            await ScriptSandbox.__aexit__(self, None, None, None)
            raise
        self._pool = pool

    async def _worker_factory(self, kind: WorkerKind) -> Callable[[], Awaitable[ScriptProcess]]:
        """How workers are made on this system: forked if possible, otherwise started one by one."""
        if self.options.zygote and process.zygote_supported():
            zygote = process.Zygote(kind, start_s=self.options.start_s)
            if await zygote.start():
                self._zygote = zygote
                return zygote.make
        return lambda: spawn_worker(kind)

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

        A tool that raises is an error that the script can catch. `schemas` are the input schemas of tools: in Lua they
        decide where an empty table is an array, and in Python a script with calls that cannot succeed is refused before
        it runs. Raises `ScriptError` (with `kind`, `line`, `traceback`) when the script fails, and
        `SandboxUnavailable`.
        """
        return await self._run(source, tools, limits or self.limits, schemas, on_call, pauses or Pauses(), check=False)

    async def check(
        self, source: str, tools: Tools, *, limits: Limits | None = None, schemas: Schemas | None = None
    ) -> CheckResult:
        """Check that a script parses, and find the calls in it. No tool is called.

        With `schemas`, arguments are checked: in Lua those written as literals, in Python all, where also what comes
        before the first call is run, for at most 50 ms. Raises `ScriptNotRun`, with the line, for a script that would
        be refused.
        """
        await self._run(source, tools, limits or self.limits, schemas, None, Pauses(), check=True)
        calls = await self._find_calls(source, script_names(tools, self.language), schemas or {})
        return CheckResult(calls=calls, warnings=tuple(filter(None, map(_call_warning, calls))))

    async def _find_calls(
        self, source: str, servers: Mapping[str, ServerNames], schemas: Schemas
    ) -> tuple[SeenCall, ...]:
        """The calls in a script; an engine that can says what is wrong with their arguments."""
        del schemas
        return find_calls(source, self.language, servers)

    async def _run(
        self,
        source: str,
        tools: Tools,
        limits: Limits,
        schemas: Schemas | None,
        on_call: OnCall | None,
        pauses: Pauses,
        *,
        check: bool,
    ) -> ScriptResult:
        """Run or check the script in a worker; another one, if that is lost before it took the job."""
        if (pool := self._pool) is None:
            name = type(self).__name__
            raise NotStarted(f"The {self.language.title} sandbox is not started.", hint=f"Use `async with {name}()`.")
        requested, source = time.monotonic(), self._check_source(source, limits)
        servers = script_names(tools, self.language)
        job = json.dumps(self._completed(self._job(source, servers, limits, check=check), servers, schemas)).encode()
        async with self._running.track(), self._slots.acquire() as slot:
            for _ in range(_MAX_ATTEMPTS):
                if pool.closed:
                    break
                worker = await pool.acquire()
                start = time.monotonic()
                calls = ScriptCalls(tools, on_call)
                conversation = Conversation(
                    worker, calls, limits, servers, schemas or {}, language=self.language, source=source, pauses=pauses
                )
                try:
                    with pauses.affect(slot):
                        result = await self._converse(conversation, job, worker, calls)
                except WorkerLost:
                    continue
                finally:
                    pool.top_up()
                stats = {"wall_s": time.monotonic() - start, "wait_s": start - requested, "calls": len(calls.trace)}
                return replace(result, calls=tuple(calls.trace), stats={**result.stats, **stats})
        raise SandboxUnavailable(
            "The processes for scripts exit before they are ready.", hint="Check the log for what ends them."
        )

    def _job(self, source: str, servers: Mapping[str, ServerNames], limits: Limits, *, check: bool) -> dict[str, Any]:
        """What every engine gets; frames number the servers and tools in this order."""
        entries = [
            {
                "name": name,
                "original": server.original,
                "tools": [{"name": tool, "original": original} for tool, original in server.tools.items()],
            }
            for name, server in servers.items()
        ]
        wish = self.options.seccomp
        return {"source": source, "seccomp": wish, "check": check, "servers": entries, "limits": limits.as_dict()}

    @abstractmethod
    def _completed(
        self, job: dict[str, Any], servers: Mapping[str, ServerNames], schemas: Schemas | None
    ) -> dict[str, Any]:
        """The job with what only the engine of this language gets."""

    def _check_source(self, source: str, limits: Limits) -> str:
        """The script without a byte order mark and a first line that the language skips in files.

        Raises `ScriptNotRun` if it is too large or not valid Unicode.
        """
        try:
            size = len(source) if len(source) > limits.script_bytes else len(source.encode())
        except UnicodeEncodeError:
            raise script_error("script", "The script is not valid Unicode.", refused=True) from None
        if size > limits.script_bytes:
            message = f"The script has {size} bytes, and {limits.script_bytes} are allowed."
            raise script_error("size", message, refused=True)
        source = source.removeprefix("\ufeff")
        shebang = self.language.skips_shebang and source.startswith("#")
        return source[len(source.partition("\n")[0]) :] if shebang else source  # line numbers stay the same

    async def _converse(
        self, conversation: Conversation, job: bytes, worker: ScriptProcess, calls: ScriptCalls
    ) -> ScriptResult:
        """Run the conversation, then end the process; only a failed script waits until it has ended."""
        try:
            result = await conversation.run(job)
        except BaseException:
            worker.process.kill()
            with anyio.CancelScope(shield=True):
                await calls.close()
                await worker.close()
            raise
        worker.process.kill()
        self._ending.add(closing := asyncio.create_task(worker.close()))
        closing.add_done_callback(self._ending.discard)
        with anyio.CancelScope(shield=True):
            await calls.close()
        return result


def _call_warning(call: SeenCall) -> str:
    """What a check says of a call to a tool that does not exist, or with arguments that cannot fit."""
    if not call.known:
        missing = f"{call.server} has no tool {call.tool!r}" if call.server else f"{call.tool} is not defined"
        return f"Line {call.line}: {missing}."
    return f"Line {call.line}: {call.server}.{call.tool}: {call.problem}" if call.problem else ""


class WorkerPool:
    """Makes workers, some of them ahead of time."""

    def __init__(self, make: Callable[[], Awaitable[ScriptProcess]], *, size: int, start_s: float) -> None:
        """`make` starts a worker, which may take `start_s` to get ready; `size` workers are kept ready."""
        self._make = make
        self._size = size
        self._start_s = start_s
        self._ready: deque[ScriptProcess] = deque()
        self._refill: asyncio.Task[None] | None = None
        self.closed = False

    async def start(self) -> None:
        """Get the first worker ready. Raises `SandboxUnavailable`."""
        self._ready.append(await self._new())
        self.top_up()

    async def acquire(self) -> ScriptProcess:
        """A ready worker, which the caller closes. Raises `SandboxUnavailable`."""
        while self._ready:
            worker = self._ready.popleft()
            if worker.alive:
                break
            await worker.close()
        else:
            worker = await self._new()
        if not self._ready:
            self.top_up()
        return worker

    async def close(self) -> None:
        """End the workers that no script uses."""
        self.closed = True
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.wait([self._refill])
        while self._ready:
            await self._ready.popleft().close()

    @property
    def idle(self) -> tuple[int, ...]:
        """The ids of the processes that wait for a script."""
        return tuple(worker.process.pid for worker in self._ready)

    async def _new(self) -> ScriptProcess:
        """Start a worker and wait until it is ready. Raises `SandboxUnavailable`."""
        try:
            worker = await self._make()
        except OSError as error:
            reason = f"A script's process could not be started: {error.strerror or error}."
            raise SandboxUnavailable(reason) from error
        try:
            await asyncio.wait_for(read_frame(worker.reader, {ord("r"): 1}), self._start_s)
        except (TimeoutError, EOFError, ProtocolError) as error:
            status = await worker.close()
            raise SandboxUnavailable(
                f"A script's process did not get ready (exit status {status}).",
                hint="Check that this user can read Python and the engine's library, and that memory is available.",
            ) from error
        except BaseException:
            await worker.close()
            raise
        return worker

    def top_up(self) -> None:
        """Refill the pool in the background. Best when no script waits, since a start takes processor time."""
        if not self.closed and (self._refill is None or self._refill.done()):
            self._refill = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        """Start all missing workers at once. Stop on errors: the next script will meet and report them."""
        while (missing := self._size - len(self._ready)) > 0:
            ends = await asyncio.gather(*(self._add() for _ in range(missing)), return_exceptions=True)
            if any(ends):
                return

    async def _add(self) -> None:
        self._ready.append(await self._new())


class ScriptSlots:
    """Limits how many scripts run at once; others wait for a while."""

    def __init__(self, options: SandboxOptions) -> None:
        self.count = options.workers or 2 * (os.cpu_count() or 1)
        self._free = asyncio.Semaphore(self.count)
        self._wait_s = options.queue_wait_s

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator["ScriptSlot"]:
        """Hold a slot inside the block, but for its pauses. Raises `SandboxUnavailable` if none is free in time."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise SandboxUnavailable(
                f"{self.count} scripts are already running, and none ended within {self._wait_s:g} s.",
                hint="Try again later, or raise sandbox.workers.",
            ) from None
        slot = ScriptSlot(self._free)
        try:
            yield slot
        finally:
            slot.pause()


class ScriptSlot:
    """The slot of one script, which it holds at first. While it waits for a person, another script may use it."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_held = True
        self._resuming = asyncio.Lock()

    def pause(self) -> None:
        """Release the slot, if it is held."""
        if self._is_held:
            self._is_held = False
            self._free.release()

    async def resume(self) -> None:
        """Wait until a slot is free, however long."""
        async with self._resuming:
            if not self._is_held:
                await self._free.acquire()
                self._is_held = True


_END_TIMEOUT_S: Final = 5.0
"""How long the end of a script may take. A tool that closes its own sandbox would wait for itself forever."""


class RunningScripts:
    """The scripts that a sandbox is running, so that it can end them."""

    def __init__(self) -> None:
        self._ends: dict[asyncio.Timeout, asyncio.Event] = {}

    @asynccontextmanager
    async def track(self) -> AsyncIterator[None]:
        """Run a script inside the block. Raises `SandboxUnavailable` if the sandbox closes meanwhile."""
        leave = asyncio.timeout(None)
        try:
            async with leave:
                self._ends[leave] = asyncio.Event()
                try:
                    yield
                finally:
                    self._ends.pop(leave).set()
        except TimeoutError as error:
            if not leave.expired():
                raise
            raise SandboxUnavailable("The sandbox was closed while the script ran.") from error

    async def end_all(self) -> None:
        """End every script, and wait until its process and its calls have ended."""
        ends = [asyncio.ensure_future(ended.wait()) for ended in self._ends.values()]
        for leave in self._ends:
            if leave.when() is None:
                leave.reschedule(asyncio.get_running_loop().time())
        if ends:
            _, late = await asyncio.wait(ends, timeout=_END_TIMEOUT_S)
            for waiting in late:
                waiting.cancel()
