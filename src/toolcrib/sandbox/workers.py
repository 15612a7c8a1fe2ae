"""The processes of one engine: made, kept ready, given a script each, and ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import anyio

from toolcrib.errors import SandboxUnavailable
from toolcrib.model import Object
from toolcrib.sandbox import zygote
from toolcrib.sandbox.calls import Calls, Tools
from toolcrib.sandbox.conversation import Conversation, NeverBegan
from toolcrib.sandbox.limits import Limits, SandboxOptions
from toolcrib.sandbox.names import Language, ServerNames
from toolcrib.sandbox.pool import Pool
from toolcrib.sandbox.process import Worker, WorkerKind, spawn
from toolcrib.sandbox.result import OnCall, ScriptResult
from toolcrib.sandbox.running import Running
from toolcrib.sandbox.slots import Slots

_ATTEMPTS: Final = 3
"""Workers that may turn out to be gone before one has the job."""

Schemas = Mapping[str, Mapping[str, Object]]
"""Input schemas by server and tool, under their own names; those of unknown tools are not used."""


class Workers:
    """Runs scripts, each in a process of its own."""

    def __init__(self, language: Language, options: SandboxOptions) -> None:
        """Nothing is started before `start`."""
        self._language = language
        self._options = options
        self._pool: Pool | None = None
        self._zygote: zygote.Zygote | None = None
        self._slots = Slots(options)
        self._running = Running()
        self._ending: set[asyncio.Task[int | None]] = set()

    @property
    def started(self) -> bool:
        """Whether scripts can be run."""
        return self._pool is not None

    @property
    def idle(self) -> tuple[int, ...]:
        """The processes that wait for a script."""
        return self._pool.idle if self._pool is not None else ()

    @property
    def prepared(self) -> int | None:
        """The process that the others are forked from, where there is one."""
        return self._zygote.pid if self._zygote is not None else None

    async def start(self, kind: WorkerKind, before: Callable[[], object] = bool) -> None:
        """Have the first process ready. `before` is done before each is made. Raises `SandboxUnavailable`."""
        maker = await self._maker(kind)

        async def make() -> Worker:
            before()
            return await maker()

        pool = Pool(make, size=self._options.pool, start_s=self._options.start_s)
        try:
            await pool.start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        self._pool = pool

    async def close(self) -> None:
        """End the scripts that run, with `SandboxUnavailable`, and every process that is left."""
        pool, self._pool = self._pool, None
        await self._running.end()
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
        limits: Limits,
        servers: Mapping[str, ServerNames],
        schemas: Schemas,
    ) -> ScriptResult:
        """Have a process do that job. Raises `ScriptError` and `SandboxUnavailable`."""
        asked = time.monotonic()
        async with self._running.one(), self._slots.one():
            for _ in range(_ATTEMPTS):
                pool = self._pool
                if pool is None:
                    break
                worker = await pool.acquire()
                start = time.monotonic()
                calls = Calls(tools, on_call)
                talk = Conversation(worker, calls, limits, servers, schemas, language=self._language)
                try:
                    result = await self._talked(talk, job, worker, calls)
                except NeverBegan:
                    continue
                finally:
                    pool.top_up()
                stats = {"wall_s": time.monotonic() - start, "wait_s": start - asked, "calls": len(calls.trace)}
                return replace(result, calls=tuple(calls.trace), stats={**result.stats, **stats})
        raise SandboxUnavailable("The processes for scripts end before they begin.", hint="See what ends them.")

    async def _talked(self, talk: Conversation, job: bytes, worker: Worker, calls: Calls) -> ScriptResult:
        """The conversation, after which the process is ended; only a script that did not end well waits until it is."""
        try:
            result = await talk.run(job)
        except BaseException:
            worker.end.kill()
            with anyio.CancelScope(shield=True):
                await calls.close()
                await worker.close()
            raise
        worker.end.kill()
        self._ending.add(closing := asyncio.create_task(worker.close()))
        closing.add_done_callback(self._ending.discard)
        with anyio.CancelScope(shield=True):
            await calls.close()
        return result

    async def _maker(self, kind: WorkerKind) -> Callable[[], Awaitable[Worker]]:
        """How processes are made here: forked where that can be done, else each started anew."""
        if self._options.zygote and zygote.possible():
            prepared = zygote.Zygote(kind, start_s=self._options.start_s)
            if await prepared.start():
                self._zygote = prepared
                return prepared.make
        return lambda: spawn(kind)
