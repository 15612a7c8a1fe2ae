"""Workers forked from a prepared process: about a millisecond each instead of twenty. Linux only.

Where the prepared process cannot be had, or goes away, workers are started one by one as everywhere else.
"""

import asyncio
import logging
import os
import signal
import socket
import struct
import sys
from collections import deque
from contextlib import suppress
from typing import Final

from toolcrib.sandbox.process import Spawned, Worker, WorkerKind, command, connected, launch, readable, spawn

_log = logging.getLogger(__name__)

_REPLY: Final = struct.Struct("=cii")
_FORKED, _ENDED = b"f", b"x"


def possible() -> bool:
    """Whether this system has what it needs."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open") or not hasattr(socket, "send_fds"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class Zygote:
    """Makes workers by forking a prepared process."""

    def __init__(self, kind: WorkerKind, *, start_s: float) -> None:
        """Getting ready may take `start_s`, in seconds."""
        self._kind = kind
        self._start_s = start_s
        self._process: Spawned | None = None
        self._control: socket.socket | None = None
        self._refused = False
        self._asked: deque[asyncio.Future[_Forked]] = deque()
        self._children: dict[int, asyncio.Future[int | None]] = {}

    @property
    def pid(self) -> int | None:
        """The prepared process, while there is one."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> bool:
        """Prepare; False when it cannot be done here."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)  # noqa: FBT003 - the standard library's
        try:
            with theirs:
                self._process = Spawned(launch(command("zygote", self._kind), theirs.fileno()))
            async with asyncio.timeout(self._start_s):
                await readable(ours.fileno())
            heard, problem = bool(ours.recv(_REPLY.size)), "it ended at once"
        except (OSError, TimeoutError) as error:
            heard, problem = False, str(error)
        except BaseException:
            ours.close()
            await self._end_process()
            raise
        if not heard:
            _log.warning("Processes for scripts are started one by one, for want of a prepared one: %s", problem)
            ours.close()
            await self._end_process()
            return False
        self._control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._heard)
        return True

    async def make(self) -> Worker:
        """A new worker, forked where that can be done, else started as any program. Raises OSError."""
        if self._control is not None and not self._refused:
            try:
                return await self._fork()
            except OSError as error:
                _log.warning("The prepared process for scripts is of no use any more: %s", error)
        return await spawn(self._kind)

    async def close(self) -> None:
        """End the prepared process, and with it whatever it forked."""
        self._hang_up()
        await self._end_process()

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    async def _fork(self) -> Worker:
        if self._control is None:
            raise OSError("the prepared process is gone")
        ours, theirs = socket.socketpair()
        answer: asyncio.Future[_Forked] = asyncio.get_running_loop().create_future()
        with theirs:
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        self._asked.append(answer)
        try:
            end = await asyncio.wait_for(asyncio.shield(answer), self._start_s)
        except BaseException:
            ours.close()  # a worker without its other side ends by itself
            answer.add_done_callback(_abandon_unused)
            raise
        return await connected(ours, end)

    # -- what the prepared process says ----------------------------------------------------------------------------

    def _heard(self) -> None:
        if self._control is None:
            return
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _REPLY.size, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if len(data) != _REPLY.size:
            self._hang_up()
            return
        kind, pid, status = _REPLY.unpack(data)
        if kind == _ENDED:
            future = self._children.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(status)
        elif self._asked:
            self._answer(self._asked.popleft(), pid, fds)

    def _answer(self, asked: "asyncio.Future[_Forked]", pid: int, fds: list[int]) -> None:
        if not fds:
            self._refused = True  # what it forked before lives on: it is not asked again, and not ended
            asked.set_exception(OSError("the prepared process could not fork"))
            return
        self._children[pid] = asyncio.get_running_loop().create_future()
        asked.set_result(_Forked(pid, fds[0], self._children[pid]))

    def _hang_up(self) -> None:
        control, self._control = self._control, None
        if control is None:
            return
        asyncio.get_running_loop().remove_reader(control.fileno())
        control.close()
        for asked in self._asked:
            asked.set_exception(OSError("the prepared process is gone"))
        self._asked.clear()
        for ended in self._children.values():
            if not ended.done():
                ended.set_result(None)
        self._children.clear()


class _Forked:
    """A child of the prepared process, which tells how it ended."""

    def __init__(self, pid: int, pidfd: int, ended: "asyncio.Future[int | None]") -> None:
        self._pid = pid
        self._pidfd: int | None = pidfd
        self._ended = ended

    @property
    def pid(self) -> int:
        return self._pid

    def kill(self) -> None:
        if self._pidfd is not None and sys.platform == "linux":
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> int | None:
        try:
            return await asyncio.shield(self._ended)
        finally:
            self._close()

    def abandon(self) -> None:
        self.kill()
        self._close()

    def _close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _abandon_unused(answer: "asyncio.Future[_Forked]") -> None:
    if not answer.cancelled() and answer.exception() is None:
        answer.result().abandon()
