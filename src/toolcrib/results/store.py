"""Keeps large results whole, each behind a handle that only its caller can use, and reads parts of them.

A result is one packed text in the gateway's state store. What may take long, such as parsing it or matching a pattern,
runs in a process that ends with the answer; the event loop never waits for it.
"""

import asyncio
import contextlib
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, TypeVar

from toolcrib.errors import ExecutionFailed, InvalidRequest, NotFound
from toolcrib.gateway.options import ResultOptions
from toolcrib.middleware.fingerprint import canonical_json, digest
from toolcrib.results.reading import ReadRequest, do_job, pack, read_job, unpack
from toolcrib.sanitize import echo
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import JSON, Caller, Object

R = TypeVar("R")

TABLE: Final = "large results"
"""The name of the table, as `toolcrib state` shows it."""
HANDLE_PREFIX: Final = "r_"
_OWNERS: Final = "large results of callers"
_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_HANDLE_LETTERS: Final = 10
_CALLER_SHARE: Final = 4
"""A caller's results may fill this part of the room for all, divided by it."""
_SMALL_CHARS: Final = 64 * 1024
"""A text of this length is looked at in this process, if nothing in the request can take long."""
_DEADLINE_S: Final = 5.0
_PARSED_CHARS_PER_S: Final = 5_000_000
"""How much of a text a process parses in a second on a slow machine, for its deadline."""
_PROCESSES: Final = 2
_MAX_READS: Final = 100
"""Reads of one caller at the same time, of which one runs."""
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from toolcrib.results.reading import main; main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """One result as it is kept."""

    tool: str
    made: float
    """When it was kept, in seconds since the epoch."""
    chars: int
    packed: str


def _encode(stored: StoredResult) -> JSON:
    return [stored.tool, stored.made, stored.chars, stored.packed]


def _decode(saved: Any) -> StoredResult:
    tool, made, chars, packed = saved
    return StoredResult(tool=str(tool), made=float(made), chars=int(chars), packed=str(packed))


_RESULTS: Final[StateCodec[StoredResult]] = StateCodec(_encode, _decode)
_OWNED: Final[StateCodec[list[Any]]] = StateCodec(list, list)


class _ReadTurns:
    """Lets one read of each caller run at a time, so that no caller can keep the others waiting."""

    def __init__(self) -> None:
        self._turns: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    async def run(self, owner: str, threads: ThreadPoolExecutor, work: Callable[[], R]) -> R:
        """Run the work in a thread when it is the owner's turn. Raises `ExecutionFailed` if too much waits already."""
        turn, waiting = self._turns.setdefault(owner, (asyncio.Semaphore(1), []))
        if len(waiting) >= _MAX_READS:
            raise ExecutionFailed("Too many parts of results are being read.", hint="Wait for the other answers.")
        waiting.append(None)
        try:
            await turn.acquire()
        except BaseException:
            self._leave(owner)
            raise
        running, loop = threads.submit(work), asyncio.get_running_loop()

        def end(_: Future[R]) -> None:
            # Work whose request has ended runs to its end, and so does its turn.
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._end, owner, turn)

        running.add_done_callback(end)
        return await asyncio.wrap_future(running)

    def _end(self, owner: str, turn: asyncio.Semaphore) -> None:
        turn.release()
        self._leave(owner)

    def _leave(self, owner: str) -> None:
        _, waiting = self._turns[owner]
        waiting.pop()
        if not waiting:
            del self._turns[owner]


class ResultStore:
    """The large results of a gateway's callers, by handle.

    They last as long as the options say. When a caller's share of the room is full, the oldest of its results goes.
    """

    def __init__(
        self, state: StateStore, options: ResultOptions | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` counts seconds since the epoch."""
        self.options = options or ResultOptions()
        self._clock = clock
        self._results = state.table(TABLE, _RESULTS, max_size=self.options.keep_bytes, durable=True)
        self._turns = _ReadTurns()
        self._owned = state.table(_OWNERS, _OWNED, max_entries=10_000, durable=True)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_PROCESSES, thread_name_prefix="toolcrib-results")

    @cached_property
    def _readers(self) -> ThreadPoolExecutor:
        """For reads, which may take long: results can be kept meanwhile."""
        return ThreadPoolExecutor(_PROCESSES, thread_name_prefix="toolcrib-reads")

    async def keep(self, caller: Caller, tool: str, text: str) -> str | None:
        """Keep a text for a caller; return its handle, or None if it is too large to keep."""
        packed = await self._in_thread(partial(pack, text)) if len(text) > _SMALL_CHARS else pack(text)
        most = self.options.keep_bytes // _CALLER_SHARE
        if len(packed) > most:
            return None
        handle = HANDLE_PREFIX + "".join(secrets.choice(_LETTERS) for _ in range(_HANDLE_LETTERS))
        key, now = _key(caller, handle), self._clock()
        stored = StoredResult(tool=tool, made=now, chars=len(text), packed=packed)
        await self._results.set(key, stored, ttl_s=self.options.keep_s, size=len(packed))

        def add(owned: list[Any] | None) -> tuple[list[Any], list[str]]:
            current = [one for one in owned or [] if one[1] > now - self.options.keep_s]
            current.append([key, now, len(packed)])
            dropped = []
            while sum(one[2] for one in current) > most:
                dropped.append(current.pop(0)[0])
            return current, dropped

        dropped = await self._owned.update(_owner(caller), add, ttl_s=self.options.keep_s)
        for old in dropped:
            await self._results.delete(old)
        return handle

    async def get(self, caller: Caller, handle: str) -> StoredResult:
        """Return a result of the caller's. Raises `NotFound`, the same for a handle that is another caller's."""
        stored = await self._results.get(_key(caller, handle))
        if stored is None:
            raise NotFound(
                f"There is no result {echo(handle)}, or it is no longer kept.", hint="Call the tool again to get it."
            )
        return stored

    async def overview(self, text: str, tokens: int) -> dict[str, Any]:
        """What a reply shows of a text in place of it: its shape, a preview, and how much there is.

        Raises `ExecutionFailed` if that takes too long.
        """
        job = {"do": "overview", "tokens": tokens}
        if len(text) <= _SMALL_CHARS:
            try:
                found: dict[str, Any] = do_job(job, text)
            except RecursionError as error:
                raise ExecutionFailed(
                    "The result is nested too deep for a preview.", hint="Read it by page."
                ) from error
            return found
        packed = await self._in_thread(partial(pack, text))
        shown: dict[str, Any] = await self._in_thread(partial(_run_job, job, packed, len(text)))
        return shown

    async def read(self, caller: Caller, handle: str, request: ReadRequest, tokens: int) -> str:
        """Read a part of a result. Raises `NotFound`, `InvalidRequest`, and `ExecutionFailed` if it takes too long."""
        answer: str = await self._ask(caller, handle, read_job(request, tokens))
        return answer

    async def text(self, caller: Caller, handle: str) -> str:
        """Return a whole result. Raises `NotFound`."""
        return await self._in_thread(partial(unpack, (await self.get(caller, handle)).packed))

    async def value(self, caller: Caller, handle: str, path: str | None, max_chars: int) -> JSON:
        """Return a result, or what a path selects in it, as a value. Raises as `read` does."""
        job = {**read_job(ReadRequest(path=path), 0), "do": "value", "chars": max_chars}
        return await self._ask(caller, handle, job)

    async def _ask(self, caller: Caller, handle: str, job: Object) -> JSON:
        stored = await self.get(caller, handle)
        return await self._turns.run(_owner(caller), self._readers, partial(_run_job, job, stored.packed, stored.chars))

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.wrap_future(self._threads.submit(work))


def _owner(caller: Caller) -> str:
    return digest(canonical_json(list(caller.key)) or "")


def _key(caller: Caller, handle: str) -> str:
    """The key of a result: without its caller, a handle leads to nothing."""
    return digest(canonical_json([*caller.key, handle]) or "")


def _run_job(job: Object, packed: str, chars: int) -> Any:
    """Do a job in a process of its own. Raises `InvalidRequest`, and `ExecutionFailed` if it takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", "-c", _START, json.dumps(sys.path)],
            input=f"{json.dumps(job)}\n{packed}\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            text=True,
            encoding="utf-8",
            timeout=_DEADLINE_S + chars / _PARSED_CHARS_PER_S,
            check=False,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise ExecutionFailed(
            "Reading the result took too long.", hint="Use a simpler path or pattern, or read it by page."
        ) from None
    except (OSError, ValueError) as error:
        raise ExecutionFailed("The result cannot be read at the moment.", hint="Try again.") from error
    if "refused" in answer:
        message, hint = answer["refused"]
        raise InvalidRequest(message, hint=hint)
    if "failed" in answer:
        raise ExecutionFailed(f"The result cannot be read this way ({answer['failed']}).", hint="Read it by page.")
    return answer["answer"]
