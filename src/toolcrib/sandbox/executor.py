"""Run scripts in worker processes: limit how many run at once, keep workers ready, and give each script a new one."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import anyio

from toolcrib.errors import SandboxUnavailable
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


class ScriptExecutor:
    """Runs scripts of one language, each in its own process."""

    def __init__(self, language: ScriptLanguage, options: SandboxOptions) -> None:
        self._language = language
        self._options = options
        self._pool: WorkerPool | None = None
        self._zygote: process.Zygote | None = None
        self._slots = ScriptSlots(options)
        self._running = RunningScripts()
        self._ending: set[asyncio.Task[int | None]] = set()

    @property
    def started(self) -> bool:
        """Whether scripts can run."""
        return self._pool is not None

    @property
    def idle(self) -> tuple[int, ...]:
        """The ids of the processes that wait for a script."""
        return self._pool.idle if self._pool is not None else ()

    @property
    def zygote_pid(self) -> int | None:
        """The id of the process that the others are forked from, if there is one."""
        return self._zygote.pid if self._zygote is not None else None

    async def start(self, kind: WorkerKind, before: Callable[[], object] = bool) -> None:
        """Get the first process ready. `before` runs before each start. Raises `SandboxUnavailable`."""
        maker = await self._worker_factory(kind)

        async def make() -> ScriptProcess:
            before()
            return await maker()

        pool = WorkerPool(make, size=self._options.pool, start_s=self._options.start_s)
        try:
            await pool.start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        self._pool = pool

    async def close(self) -> None:
        """End the running scripts, with `SandboxUnavailable`, and every other process."""
        pool, self._pool = self._pool, None
        await self._running.end_all()
        if pool is not None:
            await pool.close()
        if self._ending:
            await asyncio.wait(self._ending)
        if self._zygote is not None:
            await self._zygote.close()
            self._zygote = None

    async def run(
        self,
        job: bytes,
        tools: Tools,
        on_call: OnCall | None,
        *,
        source: str,
        limits: Limits,
        servers: Mapping[str, ServerNames],
        schemas: Schemas,
        pauses: Pauses | None = None,
    ) -> ScriptResult:
        """Run the job, which holds the source, in a worker. Raises `ScriptError` and `SandboxUnavailable`."""
        requested, pauses = time.monotonic(), pauses or Pauses()
        async with self._running.track(), self._slots.acquire() as slot:
            for _ in range(_MAX_ATTEMPTS):
                pool = self._pool
                if pool is None:
                    break
                worker = await pool.acquire()
                start = time.monotonic()
                calls = ScriptCalls(tools, on_call)
                conversation = Conversation(
                    worker, calls, limits, servers, schemas, language=self._language, source=source, pauses=pauses
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

    async def _worker_factory(self, kind: WorkerKind) -> Callable[[], Awaitable[ScriptProcess]]:
        """How workers are made on this system: forked if possible, otherwise started one by one."""
        if self._options.zygote and process.zygote_supported():
            zygote = process.Zygote(kind, start_s=self._options.start_s)
            if await zygote.start():
                self._zygote = zygote
                return zygote.make
        return lambda: spawn_worker(kind)


async def start_worker(start: Callable[[], Awaitable[ScriptProcess]], within_s: float) -> ScriptProcess:
    """Start a worker and wait until it is ready. Raises `SandboxUnavailable`."""
    try:
        worker = await start()
    except OSError as error:
        raise SandboxUnavailable(f"A script's process could not be started: {error.strerror or error}.") from error
    try:
        await asyncio.wait_for(read_frame(worker.reader, {ord("r"): 1}), within_s)
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


class WorkerPool:
    """Makes workers, some of them ahead of time."""

    def __init__(self, make: Callable[[], Awaitable[ScriptProcess]], *, size: int, start_s: float) -> None:
        """`make` starts a worker, which may take `start_s` to get ready; `size` workers are kept ready."""
        self._make = make
        self._size = size
        self._start_s = start_s
        self._ready: deque[ScriptProcess] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._closed = False

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
        self._closed = True
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
        return await start_worker(self._make, self._start_s)

    def top_up(self) -> None:
        """Refill the pool in the background. Best when no script waits, since a start takes processor time."""
        if not self._closed and (self._refill is None or self._refill.done()):
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


def check_source(source: str, limits: Limits) -> str:
    """The script without a byte order mark. Raises `ScriptNotRun` if it is too large or not valid Unicode."""
    try:
        size = len(source) if len(source) > limits.script_bytes else len(source.encode())
    except UnicodeEncodeError:
        raise script_error("script", "The script is not valid Unicode.", refused=True) from None
    if size > limits.script_bytes:
        raise script_error("size", f"The script has {size} bytes, and {limits.script_bytes} are allowed.", refused=True)
    return source.removeprefix("\ufeff")


def server_entries(servers: Mapping[str, ServerNames]) -> list[dict[str, Any]]:
    """The servers for a job, in the order in which frames number them: identifiers and original names."""
    return [
        {
            "name": name,
            "original": server.original,
            "tools": [{"name": tool, "original": original} for tool, original in server.tools.items()],
        }
        for name, server in servers.items()
    ]


def process_limits(limits: Limits) -> dict[str, Any]:
    """The limits that the kernel or the engine enforces."""
    return {"as_bytes": limits.as_bytes, "cpu_s": limits.cpu_s, "lua_bytes": limits.lua_bytes, "wall_s": limits.wall_s}


def worker_limits(limits: Limits) -> dict[str, Any]:
    """The limits that a worker enforces, so that its error can name the line."""
    return {
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


def calls_in(source: str, tools: Tools, language: ScriptLanguage) -> CheckResult:
    """The calls found in a script, with warnings; see `check_result`."""
    return check_result(find_calls(source, language, script_names(tools, language)))


def check_result(calls: tuple[SeenCall, ...]) -> CheckResult:
    """The calls, with a warning for each tool that does not exist, and for arguments that cannot fit."""
    warnings = []
    for call in calls:
        if not call.known:
            missing = f"{call.server} has no tool {call.tool!r}" if call.server else f"{call.tool} is not defined"
            warnings.append(f"Line {call.line}: {missing}.")
        elif call.problem:
            warnings.append(f"Line {call.line}: {call.server}.{call.tool}: {call.problem}")
    return CheckResult(calls=calls, warnings=tuple(warnings))
