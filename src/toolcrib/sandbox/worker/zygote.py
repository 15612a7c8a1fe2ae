"""A prepared process that forks a worker on request, and never runs a script itself. Linux only.

Each request on its one socket carries the worker's end of a socket pair. The answer is the new process's id and a
pidfd; a later message reports how that process ended.
"""

import gc
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from importlib import import_module

from . import lockdown, serve

REPLY = struct.Struct("=cii")
"""A kind, a process id, and an exit status (negative for a signal)."""
FORKED, ENDED, REFUSED = b"f", b"x", b"n"
_MAX_FD = 1 << 16


def main(make: "Callable[[str], serve.WorkerEngine]", library: str, parent: int) -> None:
    """Serve requests until the other side closes the socket."""
    lockdown.die_with(parent)
    lockdown.confine()
    lockdown.adopt()
    engine = make(library)
    import_module("resource")
    gc.collect()
    gc.freeze()
    _Zygote(engine).serve()
    os._exit(0)


class _Zygote:
    def __init__(self, engine: serve.WorkerEngine) -> None:
        self._engine = engine
        self._pid = os.getpid()
        self._control = socket.socket(fileno=0)
        self._children: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(self._control, select.POLLIN)

    def serve(self) -> None:
        """Fork a worker for each request, and report when one ends."""
        self._control.send(REPLY.pack(FORKED, 0, 0))
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._children:
                    self._reap(fd)
                elif not self._request():
                    return

    def _request(self) -> bool:
        """Serve one request; False when the socket is closed."""
        data, fds, _, _ = socket.recv_fds(self._control, 16, 1)
        if not data:
            return False
        for fd in fds:
            try:
                self._fork(fd)
            except OSError:
                self._control.send(REPLY.pack(REFUSED, 0, 0))
            os.close(fd)
        return True

    def _fork(self, fd: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(fd)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        socket.send_fds(self._control, [REPLY.pack(FORKED, pid, 0)], [pidfd])

    def _become(self, fd: int) -> None:
        """Turn this process into the worker. Never returns."""
        try:
            os.dup2(fd, 0)
            os.dup2(fd, 1)
            os.closerange(3, _MAX_FD)
            os.setsid()
            lockdown.die_with(self._pid)
            serve.serve(self._engine)
        finally:
            os._exit(1)

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        pid = self._children.pop(pidfd)
        os.close(pidfd)
        _kill_group(pid)
        _, status = os.waitpid(pid, 0)
        _reap_group(pid)
        self._control.send(REPLY.pack(ENDED, pid, os.waitstatus_to_exitcode(status)))


def _kill_group(pid: int) -> None:
    """Kill what the worker started. Its id cannot be reused before it is reaped."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it had not made a group yet
        return


def _reap_group(pid: int) -> None:
    """Reap what the worker started: as a subreaper this process has inherited it."""
    try:
        while True:
            os.waitpid(-pid, 0)
    except ChildProcessError:
        return
