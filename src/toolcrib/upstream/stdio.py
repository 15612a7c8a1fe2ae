"""A server as a child process: messages over its pipes, one a line.

It lives in a session and process group of its own, so that whatever it starts is ended with it. Its stderr is always
read, never shown, and only the end of it is kept. Knows nothing of MCP beyond the frame of a message.
"""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc
from mcp.shared.message import SessionMessage

from toolcrib.upstream.environment import inherited
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.lines import Lines, read_line
from toolcrib.upstream.link import Bell, End, Link, Streams
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.pipes import PipeWriter
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.tail import Tail

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
_QUEUE = 256
"""Messages that may wait for a child that does not read; beyond it, senders wait too."""
_FLOOD_BYTES = 65536
"""What one read takes at most; so much at once on stderr is a flood."""
_FLOOD_PAUSE_S = 0.005
"""After each chunk of a flood: the child waits on its full pipe instead of taking all our time."""
_LAST_WORDS_S = 0.5
"""How long the exit code and the last of stderr may follow the end of stdout."""
_KILL_GRACE_S = 0.1
"""After SIGKILL nothing is left to wait for but the bookkeeping of those whose parent is slow to reap them."""
_REAP_S = 1.0
_POLL_S = 0.01


def stdio_link(options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> Link:
    """A link to a child that is started when the transport is entered, and ended, whatever it does, on leaving it."""
    end, tail = End(), Tail()
    return Link(
        transport=_transport(options, fleet, redact, end, tail),
        end=end,
        doubt=Bell(),
        last_words=lambda: redact(tail.line()),
    )


@asynccontextmanager
async def _transport(
    options: ServerOptions, fleet: FleetOptions, redact: Redactor, end: End, tail: Tail
) -> AsyncIterator[Streams]:
    """Raises `ExchangeError` when the program cannot be started."""
    # Shielded: a process that exists but is not known yet could not be ended.
    with anyio.CancelScope(shield=True):
        process, stdin = await _spawn(options, redact)
    child = _Child(process, stdin, options, fleet, redact, end, tail)
    async with anyio.create_task_group() as group:
        try:
            for work in (child.read, child.write, child.listen, child.watch):
                group.start_soon(child.until_stopped, work)
            yield child.incoming, child.outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop()


async def _spawn(options: ServerOptions, redact: Redactor) -> tuple[anyio.abc.Process, PipeWriter]:
    """The child, and our end of its stdin."""
    theirs, ours = os.pipe()
    stdin = PipeWriter(ours)
    try:
        process = await anyio.open_process(
            [options.command, *options.args],
            stdin=theirs,
            env={**inherited(), **options.env},
            cwd=options.cwd,
            start_new_session=True,
        )
    except BaseException as error:
        stdin.close()
        if isinstance(error, (OSError, ValueError)):
            raise ExchangeError(Kind.UNSENT, _why_not_started(options, redact, error)) from error
        raise
    finally:
        os.close(theirs)
    return process, stdin


def _why_not_started(options: ServerOptions, redact: Redactor, error: Exception) -> str:
    if options.cwd is not None and not options.cwd.is_dir():
        return f'its working directory "{options.cwd}" does not exist'
    command = redact(options.command)
    if isinstance(error, FileNotFoundError):
        return f'the command "{command}" was not found; install it, or give its full path'
    if isinstance(error, PermissionError):
        return f'the command "{command}" may not be executed; check its permissions'
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f'the command "{command}" could not be started: {redact(cause)}'


class _Child:
    """One process, the tasks that serve its pipes, and its end."""

    def __init__(
        self,
        process: anyio.abc.Process,
        stdin: PipeWriter,
        options: ServerOptions,
        fleet: FleetOptions,
        redact: Redactor,
        end: End,
        tail: Tail,
    ) -> None:
        if process.stdout is None or process.stderr is None:
            raise ValueError("a child is started with three pipes")
        self._process = process
        self._stdin, self._stdout, self._stderr = stdin, process.stdout, process.stderr
        self._limit = options.max_message_bytes
        self._fleet = fleet
        self._redact = redact
        self._end = end
        self._tail = tail
        self._silent = anyio.Event()
        self._scopes: list[anyio.CancelScope] = []
        self._stopped = False
        self._to_session, self.incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.outgoing, self._from_session = anyio.create_memory_object_stream[SessionMessage](_QUEUE)

    async def until_stopped(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work until `stop` ends it; a cancellation from outside only leads there.

        A child can exit by itself only while its pipes are served, so they are served while it is stopped.
        """
        with anyio.CancelScope(shield=True) as scope:
            self._scopes.append(scope)
            if not self._stopped:
                await work()

    # -- the pipes -------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """stdout to the session; what is no message is skipped."""
        lines = Lines(self._limit)
        with suppress(*_GONE):
            while True:
                chunk = await self._stdout.receive()
                await anyio.sleep(0 if await self._take(lines, chunk) else _FLOOD_PAUSE_S)
        await self._explain("closed its output")
        self._to_session.close()

    async def _take(self, lines: Lines, chunk: bytes) -> bool:
        """Hand over the messages that the chunk completes; whether it was worth reading."""
        done = lines.feed(chunk)
        messages = [message for line in done for message in read_line(line, self._limit)]
        # A session that is gone is no reason to stop reading: the child may have to write before it can exit.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            for message in messages:
                await self._to_session.send(SessionMessage(message))
        return bool(messages) or not (done or lines.overflowing)

    async def write(self) -> None:
        """The session's messages to stdin."""
        with suppress(*_GONE):
            async for item in self._from_session:
                data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._stdin.send(data.encode() + b"\n")
            return
        await self._explain("closed its input")

    async def listen(self) -> None:
        """Stderr to the tail."""
        with suppress(*_GONE):
            while True:
                chunk = await self._stderr.receive()
                self._tail.add(chunk)
                await anyio.sleep(0 if len(chunk) < _FLOOD_BYTES else _FLOOD_PAUSE_S)
        self._silent.set()

    async def watch(self) -> None:
        """Notice an exit even while something it started holds its output open."""
        await self._process.wait()
        await anyio.sleep(_LAST_WORDS_S)
        self._end.come(self._reason("exited"))

    async def _explain(self, otherwise: str) -> None:
        """End the link, with the exit code and the last telling line of stderr where they come in time."""
        with anyio.move_on_after(_LAST_WORDS_S):
            await self._process.wait()
            await self._silent.wait()
        self._end.come(self._reason(otherwise))

    def _reason(self, otherwise: str) -> str:
        code = self._process.returncode
        if code is None:
            told = otherwise
        elif code < 0:
            told = f"ended by {_signal_name(-code)}"
        else:
            told = f"exited with code {code}"
        words = self._redact(self._tail.line())
        return f"{told}: {words}" if words else told

    # -- the end ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close stdin, then SIGTERM, then SIGKILL to the whole group; always reaped, within `stop_timeout_s`."""
        self._end.come("stopped")
        # A reader that hands over a message would wait for a session that is gone.
        self.incoming.close()
        with anyio.move_on_after(self._fleet.stop_timeout_s) as limit:
            await self._exit()
        if limit.cancelled_caught:
            self._signal(signal.SIGKILL)
        self._stopped = True
        for scope in self._scopes:
            scope.cancel()
        with anyio.move_on_after(_REAP_S):
            await self._process.aclose()
        for stream in (self.outgoing, self._from_session, self._to_session):
            stream.close()

    async def _exit(self) -> None:
        self._stdin.close()
        with anyio.move_on_after(self._fleet.exit_grace_s):
            await self._process.wait()
        for sign, grace_s in ((signal.SIGTERM, self._fleet.term_grace_s), (signal.SIGKILL, _KILL_GRACE_S)):
            if not self._signal(sign):
                return
            with anyio.move_on_after(grace_s):
                await self._group_gone()

    async def _group_gone(self) -> None:
        await self._process.wait()
        while self._signal(0):
            _reap_orphans(self._process.pid)
            await anyio.sleep(_POLL_S)

    def _signal(self, sign: int) -> bool:
        """Send it to all of the group; whether any of it was left."""
        try:
            os.killpg(self._process.pid, sign)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _reap_orphans(group: int) -> None:
    """Where we are process 1, as in a container, what the child left behind became ours."""
    with suppress(ChildProcessError):
        os.waitpid(-group, os.WNOHANG)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
