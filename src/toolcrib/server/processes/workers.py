"""Worker processes that serve one address, and the supervisor that keeps them running: `toolcrib serve --workers N`.

The supervisor owns the listening sockets and the state that the workers share, and answers no request itself. It starts
the same command once for each worker, with a description of its place in an environment variable, and with inherited
sockets: the listening ones, and one that is connected to the supervisor. If that connection ends, so does the worker; a
worker that ends is started again. SIGTERM and SIGINT stop all, SIGHUP has all read their settings again, and SIGUSR2
replaces them one by one: a new worker serves before the old one stops.
"""

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, Final, Self

import anyio
import anyio.abc

from toolcrib.server.options import WorkerPlace
from toolcrib.server.processes.process import SharedAddress, adopt_socket, descriptors
from toolcrib.state.hub import Answer, HubConnection, HubStore, StateHub
from toolcrib.state.options import StateOptions
from toolcrib.state.stores import OpenableStore, make_store
from toolcrib.types import JSON

logger = logging.getLogger("toolcrib.serve")

VARIABLE: Final = "TOOLCRIB_WORKER"
"""The environment variable with the place of a worker."""
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0
_STABLE_S: Final = 10.0
"""A worker that served and ran this long is started again at once."""
_START_TRIES: Final = 3
"""Exits in a row, before a worker has ever served, that show that it cannot start at all."""
_START_S: Final = 120.0
"""How long a worker may take until it serves, in seconds."""
_SETTLE_S: Final = 30.0
"""How long a worker that replaces another may take to know what its servers offer."""
_STOP_MARGIN_S: Final = 5.0
"""Time for workers to stop in addition to that of their running calls, in seconds."""
_POLL_S: Final = 0.05
_SOCKET_PATH_BYTES: Final = 103
"""The longest path of a Unix-domain socket, of the systems that toolcrib runs on."""
_SOCKET_NAME_BYTES: Final = len("/toolcrib-12345678/programs-12345678.sock")
_RANDOM: Final = SystemRandom()
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeat:
    """What a worker gets from its supervisor."""

    number: int
    """From 1."""
    count: int
    folder: str
    """Where the workers have their own sockets; only this user may look into it."""
    supervisor: int
    """The descriptor of the connection to the supervisor."""
    listeners: dict[str, int]
    """Descriptors of the listening sockets, by what they are for."""

    def as_text(self) -> str:
        """The value of the environment variable."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields)


class Worker:
    """This process as a worker."""

    def __init__(self, seat: WorkerSeat) -> None:
        self.supervisor = HubConnection(socket.socket(fileno=seat.supervisor))
        """The connection to the supervisor, which has the state of all workers."""
        self.place = WorkerPlace(
            number=seat.number,
            count=seat.count,
            folder=Path(seat.folder),
            sockets={name: adopt_socket(descriptor) for name, descriptor in seat.listeners.items()},
        )
        self.address = SharedAddress(
            sock=self.place.sockets["http"], own_path=_own_socket(self.place.folder, seat.number, os.getpid())
        )

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Self | None:
        """This process as a worker, None if it is none. Removes the variable, so that no child takes itself for one."""
        text = environ.pop(VARIABLE, None)
        return None if text is None else cls(WorkerSeat(**json.loads(text)))

    def make_store(self, options: StateOptions) -> OpenableStore:
        """The state that all workers share: what the options say is durable there, the rest in the supervisor.

        In Redis, everything is.
        """
        if options.url is not None:
            return make_store(options)
        return HubStore(self.supervisor, None if options.path is None else make_store(options))

    async def report(self, event: str) -> None:
        """Tell the supervisor that this worker is `serving`, or `settled`: it knows what its servers offer."""
        await self.supervisor.ask(event)

    async def find_programs(self) -> tuple[str, str]:
        """Where the programs of stdio servers run, and what to send there first. Raises `StateUnavailable`."""
        path, credential = await self.supervisor.ask("programs")
        return str(path), str(credential)

    def retire(self) -> None:
        """Leave new connections to the other workers, and stop soon."""
        self.address.retired.set()

    def leave(self) -> None:
        """Remove what no other process would, if the supervisor has ended and no other worker is left."""
        if not self.supervisor.lost.is_set():
            return
        try:
            self.place.folder.rmdir()
        except OSError:  # others are still there
            return


def _own_socket(folder: Path, number: int, process: int) -> Path:
    """Where the other workers reach the one with this number and process id."""
    return folder / f"worker-{number}-{process}.sock"


# -- the supervisor ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """What to run, and how often."""

    workers: int
    command: Sequence[str]
    """Starts a worker; it finds its place in the environment."""
    drain_s: float
    """How long running calls may take when a worker stops, in seconds."""
    ends_on_hangup: bool = False
    """Whether SIGHUP ends all, as it does when a terminal is closed."""


@dataclass(eq=False, slots=True)
class _WorkerProcess:
    """One worker process."""

    number: int
    popen: "subprocess.Popen[bytes]"
    started: float
    serving: anyio.Event = field(default_factory=anyio.Event)
    settled: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def label(self) -> str:
        return f"worker {self.number} (process {self.popen.pid})"

    @property
    def failed_start(self) -> str:
        """Why it does not serve."""
        if self.popen.returncode is None:
            return f"did not serve within {_START_S:g} s"
        return f"ended before it served: {_outcome(self.popen.returncode)}"

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if not self.ended.is_set():
            self.popen.send_signal(number)

    async def wait(self) -> int:
        """Wait for the end of the process, for one task. Returns its exit code, negative for a signal."""
        try:
            descriptor = os.pidfd_open(self.popen.pid) if sys.platform == "linux" else -1
        except OSError:
            descriptor = -1
        try:
            while (code := self.popen.poll()) is None:
                if descriptor < 0:
                    await anyio.sleep(_POLL_S)
                else:
                    await anyio.wait_readable(descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self.ended.set()
        return code


class WorkerSupervisor:
    """Runs workers until a signal ends them, or until one of them cannot start at all."""

    def __init__(self, options: SupervisorOptions, listeners: Mapping[str, socket.socket]) -> None:
        """`listeners` are the sockets that all workers accept connections from; `http` is one of them."""
        self._options = options
        self._listeners = listeners
        self._folder = Path()
        self._hub = StateHub()
        self._current: dict[int, _WorkerProcess] = {}
        """By number: the process that serves, or that will as soon as it has started."""
        self._all: set[_WorkerProcess] = set()
        self._replaced: set[int] = set()
        """The numbers of workers that are being replaced."""
        self._failures: dict[int, int] = {}
        self._failed_starts: dict[int, int] = {}
        """By number: how often in a row a worker that has never served ended with an exit code."""
        self._served: set[int] = set()
        """The numbers of workers that have served once."""
        self._stopping = anyio.Event()
        self._code = 0
        self._group: anyio.abc.TaskGroup | None = None
        self._programs = _ProgramsProcess(self._start_soon)

    async def run(self) -> int:
        """Run until a signal. Returns the exit code: 0, or that of a worker that could not start at all."""
        self._folder = Path(tempfile.mkdtemp(prefix="toolcrib-", dir=_runtime_folder()))
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                await group.start(self._receive_signals)
                await self._start_all()
                await self._stopping.wait()
                await self._end_all()
                group.cancel_scope.cancel()
        finally:
            for process in self._all:
                process.send(signal.SIGKILL)
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._code

    # -- starting ------------------------------------------------------------------------------------------------------

    async def _start_all(self) -> None:
        """Start the first worker, and the others once it serves: what keeps it from starting is then said once."""
        for number in range(1, self._options.workers + 1):
            first = self._start(number)
            self._current[number] = first
            if number == 1 and not await self._wait_serving(first):
                if self._stopping.is_set():
                    return
                logger.warning("%s does not serve yet; the others are started too", first.label)
        logger.info("%d workers", self._options.workers)

    def _start(self, number: int) -> _WorkerProcess:
        theirs, ours = socket.socketpair()
        with theirs:
            listeners = descriptors(self._listeners)
            seat = WorkerSeat(
                number=number,
                count=self._options.workers,
                folder=str(self._folder),
                supervisor=theirs.fileno(),
                listeners=listeners,
            )
            popen = subprocess.Popen(  # noqa: S603 - the command of this process
                self._options.command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *listeners.values()),
                env={**os.environ, VARIABLE: seat.as_text()},
                process_group=0,  # Ctrl-C is for the supervisor alone
            )
        process = _WorkerProcess(number, popen, anyio.current_time())
        self._all.add(process)
        self._start_soon(self._serve, process, ours)
        self._start_soon(self._watch, process)
        return process

    def _start_soon(self, work: Callable[..., Any], *arguments: Any) -> None:
        if self._group is not None:
            self._group.start_soon(work, *arguments)

    async def _serve(self, process: _WorkerProcess, connection: socket.socket) -> None:
        """Answer what the worker asks."""

        async def note(event: anyio.Event, _: JSON) -> JSON:
            event.set()
            if event is process.serving:
                self._served.add(process.number)
                logger.debug("%s serves", process.label)
            return None

        answers: dict[str, Answer] = {
            "serving": partial(note, process.serving),
            "settled": partial(note, process.settled),
            "programs": lambda _: self._programs.find(self._folder),
        }
        await self._hub.serve(connection, answers)

    async def _wait_serving(self, process: _WorkerProcess) -> bool:
        """Wait until the process serves. Returns false if it ended, or takes too long."""
        await _first_of(process.serving, process.ended, self._stopping, timeout_s=_START_S)
        return process.serving.is_set() and not process.ended.is_set()

    # -- keeping them running ------------------------------------------------------------------------------------------

    async def _watch(self, process: _WorkerProcess) -> None:
        """Start another process when this one ends, unless it was meant to."""
        code = await process.wait()
        self._all.discard(process)
        self._remove_socket(process)
        if self._stopping.is_set() or self._current.get(process.number) is not process:
            return
        if self._cannot_start(process.number, code):
            self._code = code if code > 0 else 1
            logger.error("%s could not start (%s): all stop", process.label, _outcome(code))
            self._stopping.set()
        elif process.number not in self._replaced:
            await self._start_again(process, code)

    def _cannot_start(self, number: int, code: int) -> bool:
        """Whether the end of this worker shows that starting it again is useless.

        A signal comes from outside, such as from the kernel when memory is short, and says nothing about the next
        start. Without any worker that has served, though, nothing says that a start can succeed.
        """
        if not self._served:
            return True
        if number in self._served or code < 0:
            self._failed_starts.pop(number, None)
            return False
        self._failed_starts[number] = self._failed_starts.get(number, 0) + 1
        return self._failed_starts[number] >= _START_TRIES

    async def _start_again(self, process: _WorkerProcess, code: int) -> None:
        number = process.number
        is_stable = process.serving.is_set() and anyio.current_time() - process.started >= _STABLE_S
        failures = self._failures[number] = 0 if is_stable else self._failures.get(number, 0) + 1
        pause_s = 0.0 if failures <= 1 else _pause(failures - 1)
        logger.error("%s ended: %s; it is started again in %.1f s", process.label, _outcome(code), pause_s)
        with anyio.move_on_after(pause_s):
            await self._stopping.wait()
        if not self._stopping.is_set() and self._current.get(number) is process:
            self._current[number] = self._start(number)

    def _remove_socket(self, process: _WorkerProcess) -> None:
        """Remove what a killed process could not."""
        _own_socket(self._folder, process.number, process.popen.pid).unlink(missing_ok=True)

    # -- signals -------------------------------------------------------------------------------------------------------

    async def _receive_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*_STOPS, signal.SIGHUP, signal.SIGUSR2) as signals:
            task_status.started()
            async for number in signals:
                if number in _STOPS or (number == signal.SIGHUP and self._options.ends_on_hangup):
                    if self._stopping.is_set():
                        self._send_all(signal.SIGTERM)  # a second one ends running calls at once
                    self._stopping.set()
                elif number == signal.SIGHUP:
                    self._send_all(signal.SIGHUP)
                elif self._replaced:
                    logger.warning("the workers are being replaced already")
                elif self._group is not None:
                    self._replaced.update(self._current)
                    self._group.start_soon(self._replace_all)

    def _send_all(self, number: signal.Signals) -> None:
        for process in tuple(self._all):
            process.send(number)

    async def _replace_all(self) -> None:
        """Replace the workers one by one; stop at the first that cannot be."""
        try:
            for number in tuple(self._current):
                if not await self._replace(number):
                    return
            logger.info("all workers were replaced")
        finally:
            left, self._replaced = self._replaced, set()
            for number in left:  # those that ended meanwhile
                if self._current[number].ended.is_set() and not self._stopping.is_set():
                    self._current[number] = self._start(number)

    async def _replace(self, number: int) -> bool:
        """Start a new worker of this number, and stop the old one once it serves. Returns whether it does."""
        old, new = self._current[number], self._start(number)
        if not await self._wait_serving(new):
            if not self._stopping.is_set():
                logger.error("worker %d is not replaced: the new one %s", number, new.failed_start)
            new.send(signal.SIGKILL)
            return False
        await _first_of(new.settled, new.ended, self._stopping, timeout_s=_SETTLE_S)
        self._current[number] = new
        self._replaced.discard(number)
        old.send(signal.SIGUSR2)
        await _first_of(old.ended, timeout_s=self._options.drain_s + _STOP_MARGIN_S)
        old.send(signal.SIGKILL)
        return True

    async def _end_all(self) -> None:
        """Stop all workers; kill those that take too long."""
        self._send_all(signal.SIGTERM)
        with anyio.move_on_after(self._options.drain_s + _STOP_MARGIN_S):
            for process in tuple(self._all):
                await process.ended.wait()
        self._send_all(signal.SIGKILL)
        for process in tuple(self._all):
            await process.ended.wait()
        await self._programs.end()


class _ProgramsProcess:
    """The process that runs the programs of stdio servers for all workers, started when one is needed."""

    def __init__(self, start_soon: Callable[..., None]) -> None:
        self._start_soon = start_soon
        self._credential = secrets.token_hex(16)
        self._starting = anyio.Lock()
        self._process: _WorkerProcess | None = None
        self._failures = 0
        self._path = Path()
        self._ours: socket.socket | None = None

    async def find(self, folder: Path) -> JSON:
        """Where it listens, and what to send first. Starts it if it does not run."""
        async with self._starting:
            if self._process is None or self._process.ended.is_set():
                await self._start(folder)
        return [str(self._path), self._credential]

    async def _start(self, folder: Path) -> None:
        if self._process is not None and anyio.current_time() - self._process.started < _STABLE_S:
            await anyio.sleep(_pause(self._failures))
            self._failures += 1
        else:
            self._failures = 0
        self._close()
        self._path = folder / f"programs-{secrets.token_hex(4)}.sock"
        self._ours, popen = self._spawn()
        process = self._process = _WorkerProcess(0, popen, anyio.current_time())
        self._start_soon(self._watch, process)
        with anyio.move_on_after(_START_S):
            await anyio.wait_readable(self._ours)  # it listens, or it has ended
            if self._ours.recv(1):
                return
        process.send(signal.SIGKILL)  # one that never listens would be found again
        raise RuntimeError("the process that runs programs does not start")

    def _spawn(self) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
        theirs, ours = socket.socketpair()
        with theirs:
            place = {
                "path": str(self._path),
                "credential": self._credential,
                "supervisor": theirs.fileno(),
                "level": logger.getEffectiveLevel(),
            }
            return ours, subprocess.Popen(
                [sys.executable, "-m", "toolcrib.upstream.transports.program_host"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "TOOLCRIB_PROGRAMS": json.dumps(place)},
                process_group=0,
            )

    async def _watch(self, process: _WorkerProcess) -> None:
        code = await process.wait()
        if code:
            logger.error("the process %d, which runs programs, ended: %s", process.popen.pid, _outcome(code))

    async def end(self) -> None:
        """Stop it, and every program with it."""
        process, self._starting = self._process, anyio.Lock()
        if process is not None:
            process.send(signal.SIGTERM)
            await _first_of(process.ended, timeout_s=_STOP_MARGIN_S)
            process.send(signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        if self._ours is not None:
            self._ours.close()
            self._ours = None
            self._path.unlink(missing_ok=True)


def _runtime_folder() -> str:
    """Where sockets belong: the user's runtime directory, or that of temporary files.

    A directory is passed over where the paths of sockets in it would be longer than the system allows.
    """
    for folder in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir()):
        is_short = len(os.fsencode(folder)) + _SOCKET_NAME_BYTES <= _SOCKET_PATH_BYTES
        if folder and is_short and os.access(folder, os.W_OK):
            return folder
    return "/tmp"  # noqa: S108 - `mkdtemp` makes a private folder in it


async def _first_of(*events: anyio.Event, timeout_s: float) -> None:
    """Wait for the first of these events, but no longer than that."""
    with anyio.move_on_after(timeout_s):
        async with anyio.create_task_group() as group:

            async def wait(event: anyio.Event) -> None:
                await event.wait()
                group.cancel_scope.cancel()

            for event in events:
                group.start_soon(wait, event)


def _pause(failures: int) -> float:
    """Exponential, with up to half of the pause left to chance."""
    most: float = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures, 16))
    return _RANDOM.uniform(most / 2, most)


def _outcome(code: int) -> str:
    """How a process ended.

    >>> _outcome(-9), _outcome(3)
    ('SIGKILL', 'exit code 3')
    """
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
