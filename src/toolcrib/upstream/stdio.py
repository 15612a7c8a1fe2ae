"""Servers over pipes: child processes, and this process's own stdin and stdout.

A child runs in its own session and process group, so that whatever it starts is stopped with it. Its stderr is always
read, never shown, and only the end of it is kept. Knows nothing of MCP beyond the frame of a message.
"""

import os
import re
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Lock
from typing import Final

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from toolcrib.errors import AlreadyStarted
from toolcrib.upstream.channel import AutoResetEvent, Channel, CloseEvent, ExchangeError, FailureKind, Streams
from toolcrib.upstream.framing import LineSplitter, parse_line
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, plain

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


_MAX_QUEUED = 256
"""Messages that may wait for a child that does not read; beyond it, senders wait too."""


_FLOOD_BYTES = 65536
"""What one read takes at most; so much at once on stderr is a flood."""


_FLOOD_PAUSE_S = 0.005
"""After each chunk of a flood: the child waits on its full pipe instead of taking all our time."""


_EXIT_DETAILS_S = 0.5
"""How long the exit code and the last of stderr may follow the end of stdout."""


_KILL_GRACE_S = 0.1
"""After SIGKILL nothing is left to wait for but the bookkeeping of those whose parent is slow to reap them."""


_REAP_S = 1.0


_POLL_S = 0.01


def stdio_channel(options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> Channel:
    """A link to a child that is started when the transport is entered, and ended, whatever it does, on leaving it."""
    end, tail = CloseEvent(), StderrTail()
    return Channel(
        transport=_child_transport(options, fleet, redact, end, tail),
        closed=end,
        refresh_needed=AutoResetEvent(),
        stderr_tail=lambda: redact(tail.line()),
    )


class StderrTail:
    """Keeps the last 4 KiB."""

    def __init__(self) -> None:
        """Starts empty."""
        self._kept = b""

    def add(self, chunk: bytes) -> None:
        """Take what came next."""
        self._kept = (self._kept + chunk)[-_TAIL_BYTES:]

    def line(self) -> str:
        """The last line that speaks of an error, else the last line; empty when nothing was said.

        >>> tail = StderrTail()
        >>> tail.add(b"starting\\nError: API_KEY is missing\\n    at main (index.js:3)\\n\\nNode.js v20.1.0\\n")
        >>> tail.line()
        'Error: API_KEY is missing'
        """
        lines = [plain(line) for line in self._kept.decode(errors="replace").splitlines()]
        lines = [line for line in lines if line and not _NOISE.search(line)]
        telling = [line for line in lines if _ERROR_WORDS.search(line)]
        return (telling or lines or [""])[-1]


@asynccontextmanager
async def _child_transport(
    options: ServerOptions, fleet: FleetOptions, redact: Redactor, end: CloseEvent, tail: StderrTail
) -> AsyncIterator[Streams]:
    """Raises `ExchangeError` when the program cannot be started."""
    # Shielded: a process that exists but is not known yet could not be ended.
    with anyio.CancelScope(shield=True):
        process, stdin = await _spawn(options, redact)
    child = _ChildProcess(process, stdin, options, fleet, redact, end, tail)
    async with anyio.create_task_group() as group:
        try:
            for work in (child.read, child.write, child.listen, child.watch):
                group.start_soon(child.until_stopped, work)
            yield child.incoming, child.outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop()


class PipeWriter:
    """The end that is written to. It has the descriptor to itself, and sets it not to block."""

    def __init__(self, fd: int) -> None:
        """Closes the descriptor in the end."""
        os.set_blocking(fd, False)
        self._fd = fd

    async def send(self, data: bytes) -> None:
        """Write all of it, for one writer at a time. Raises `OSError`, and `anyio.ClosedResourceError` when closed."""
        await anyio.lowlevel.checkpoint()
        left = memoryview(data)
        while left:
            if self._fd == _CLOSED_FD:
                raise anyio.ClosedResourceError
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._fd)

    def close(self) -> None:
        """Let the reader see the end; whoever waits in `send` is told."""
        fd, self._fd = self._fd, _CLOSED_FD
        if fd != _CLOSED_FD:
            anyio.notify_closing(fd)
            os.close(fd)


async def _spawn(options: ServerOptions, redact: Redactor) -> tuple[anyio.abc.Process, PipeWriter]:
    """The child, and our end of its stdin."""
    theirs, ours = os.pipe()
    stdin = PipeWriter(ours)
    try:
        process = await anyio.open_process(
            [options.command, *options.args],
            stdin=theirs,
            env={**inherited_environment(), **options.env},
            cwd=options.cwd,
            start_new_session=True,
        )
    except BaseException as error:
        stdin.close()
        if isinstance(error, (OSError, ValueError)):
            raise ExchangeError(FailureKind.UNSENT, _start_problem(options, redact, error)) from error
        raise
    finally:
        os.close(theirs)
    return process, stdin


def _start_problem(options: ServerOptions, redact: Redactor, error: Exception) -> str:
    if options.cwd is not None and not options.cwd.is_dir():
        return f'its working directory "{options.cwd}" does not exist'
    command = redact(options.command)
    if isinstance(error, FileNotFoundError):
        return f'the command "{command}" was not found; install it, or give its full path'
    if isinstance(error, PermissionError):
        return f'the command "{command}" may not be executed; check its permissions'
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f'the command "{command}" could not be started: {redact(cause)}'


class _ChildProcess:
    """One process, the tasks that serve its pipes, and its end."""

    def __init__(
        self,
        process: anyio.abc.Process,
        stdin: PipeWriter,
        options: ServerOptions,
        fleet: FleetOptions,
        redact: Redactor,
        end: CloseEvent,
        tail: StderrTail,
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
        self.outgoing, self._from_session = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)

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
        lines = LineSplitter(self._limit)
        with suppress(*_GONE):
            while True:
                chunk = await self._stdout.receive()
                await anyio.sleep(0 if await self._take(lines, chunk) else _FLOOD_PAUSE_S)
        await self._explain("closed its output")
        self._to_session.close()

    async def _take(self, lines: LineSplitter, chunk: bytes) -> bool:
        """Hand over the messages that the chunk completes; whether it was worth reading."""
        done = lines.feed(chunk)
        messages = [message for line in done for message in parse_line(line, self._limit)]
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
        await anyio.sleep(_EXIT_DETAILS_S)
        self._end.set(self._reason("exited"))

    async def _explain(self, otherwise: str) -> None:
        """End the link, with the exit code and the last telling line of stderr where they come in time."""
        with anyio.move_on_after(_EXIT_DETAILS_S):
            await self._process.wait()
            await self._silent.wait()
        self._end.set(self._reason(otherwise))

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
        self._end.set("stopped")
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


_NETWORK_VARIABLES: Final = frozenset(
    {
        "ALL_PROXY",
        "CURL_CA_BUNDLE",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NODE_EXTRA_CA_CERTS",
        "NO_PROXY",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
    }
)
"""Proxies and certificates: without them nothing behind a company's proxy could be downloaded or reached."""


_LOCALE_VARIABLES: Final = frozenset(
    {"LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"}
)
"""Where it is: language, time zone, and folders."""


def inherited_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The SDK's choice (HOME, LOGNAME, PATH, SHELL, TERM, USER), and what has to do with the network and the place.

    >>> "AWS_SECRET_ACCESS_KEY" in inherited_environment({"AWS_SECRET_ACCESS_KEY": "x", "https_proxy": "http://proxy:3128"})
    False
    """
    chosen = {
        name: value
        for name, value in environ.items()
        if name.upper() in _NETWORK_VARIABLES or name in _LOCALE_VARIABLES
    }
    return {**get_default_environment(), **chosen}


_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024


_PIPE_CLOSED: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


_STDIN, _STDOUT, _STDERR = 0, 1, 2


class _StdioOwner:
    """Who has the pipes."""

    def __init__(self) -> None:
        self.name = ""
        self.lock = Lock()


_STDIO_OWNER: Final = _StdioOwner()


def claim_stdio(what: str) -> None:
    """Take the pipes, for a part of the process that is named so in the error of the next one.

    Raises `AlreadyStarted` while another part has them.
    """
    with _STDIO_OWNER.lock:
        if _STDIO_OWNER.name:
            raise AlreadyStarted(
                f"This process's stdin and stdout are in use by {_STDIO_OWNER.name}; {what} cannot have them too.",
                hint="Give the server a url or a command of its own.",
            )
        _STDIO_OWNER.name = what


def release_stdio() -> None:
    """Give them back; harmless where nobody has them."""
    with _STDIO_OWNER.lock:
        _STDIO_OWNER.name = ""


@contextmanager
def redirected_stdio(what: str) -> Iterator[tuple[int, int]]:
    """Descriptors of stdin and stdout, to be closed by whoever took them. Raises as `claim` does."""
    claim_stdio(what)
    try:
        sys.stdout.flush()
        wire_in, wire_out = os.dup(_STDIN), os.dup(_STDOUT)
        before = {_STDIN: os.dup(_STDIN), _STDOUT: os.dup(_STDOUT)}
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, _STDIN)
        os.dup2(_STDERR, _STDOUT)
        os.close(null)
        try:
            yield wire_in, wire_out
        finally:
            sys.stdout.flush()
            os.set_blocking(before[_STDOUT], True)
            for number, kept in before.items():
                os.dup2(kept, number)
                os.close(kept)
    finally:
        release_stdio()


@asynccontextmanager
async def parent_stdio() -> AsyncIterator[Streams]:
    """A client's transport over stdin and stdout, to a server that started this process or is joined to it by pipes.

    Used as `ServerOptions(name="parent", target=own_pipes)`. Raises `AlreadyStarted` as `claim` does.
    """
    with redirected_stdio("a server reached by stdio://") as (wire_in, wire_out):
        async with pipe_transport(PipeReader(wire_in), PipeWriter(wire_out)) as streams:
            yield streams


class PipeReader:
    """The end that is read from. Whether the descriptor blocks is left as it is: others may share it."""

    def __init__(self, fd: int) -> None:
        """Closes the descriptor in the end."""
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._can_wait = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
        """Files and `/dev/null` an event loop cannot wait for; they never keep a reader waiting either."""

    async def receive(self) -> bytes:
        """What there is, at most 64 KiB. Raises `anyio.EndOfStream`, `OSError`, `anyio.ClosedResourceError`."""
        if self._fd == _CLOSED_FD:
            raise anyio.ClosedResourceError
        if self._can_wait:
            await anyio.wait_readable(self._fd)
            chunk = os.read(self._fd, _CHUNK_BYTES)
        else:
            chunk = await anyio.to_thread.run_sync(os.read, self._fd, _CHUNK_BYTES)
        if not chunk:
            raise anyio.EndOfStream
        return chunk

    def close(self) -> None:
        """Whoever waits in `receive` is told."""
        fd, self._fd = self._fd, _CLOSED_FD
        if fd != _CLOSED_FD:
            anyio.notify_closing(fd)
            os.close(fd)


@asynccontextmanager
async def pipe_transport(reader: PipeReader, writer: PipeWriter) -> AsyncIterator[Streams]:
    """Messages over two pipes, one a line; what is no message is skipped."""
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_read_messages, reader, to_session)
        group.start_soon(_write_messages, writer, from_session)
        try:
            yield incoming, outgoing
        finally:
            group.cancel_scope.cancel()
            reader.close()
            writer.close()
            for stream in (incoming, outgoing):
                stream.close()


async def _read_messages(reader: PipeReader, sink: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    lines = LineSplitter(_MAX_MESSAGE_BYTES)
    with sink, suppress(*_PIPE_CLOSED):
        while True:
            for line in lines.feed(await reader.receive()):
                for message in parse_line(line, _MAX_MESSAGE_BYTES):
                    await sink.send(SessionMessage(message))


async def _write_messages(writer: PipeWriter, source: MemoryObjectReceiveStream[SessionMessage]) -> None:
    with source, suppress(*_PIPE_CLOSED):
        async for item in source:
            data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await writer.send(data.encode() + b"\n")


_CHUNK_BYTES: Final = 65536


_CLOSED_FD: Final = -1


_TAIL_BYTES: Final = 4096


_NOISE: Final = re.compile(r"^(at |File \"|[\^~ ]+$|Node\.js v|npm (ERR!|error)( *$| A complete log))")


_ERROR_WORDS: Final = re.compile(
    r"error|exception|missing|required|not found|no such|denied|fail|refused|invalid|unable|cannot|could not|must ",
    re.IGNORECASE,
)
