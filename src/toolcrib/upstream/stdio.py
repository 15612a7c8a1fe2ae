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
from toolcrib.upstream.bounds import run_in_steps
from toolcrib.upstream.channel import AutoResetEvent, Channel, CloseEvent, ExchangeError, FailureKind, Streams
from toolcrib.upstream.framing import FLOOD_PAUSE_S, ExpectedResponses, LineSplitter, flood_pause_s, without_repeats
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, plain

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
_MAX_QUEUED = 256
"""Messages queued for a child that does not read; beyond it, senders wait."""
_FLOOD_BYTES = 65536
"""The size of one read; that much at once on stderr is a flood."""
_EXIT_DETAILS_S = 0.5
"""How long to wait for the exit code and the rest of stderr after the end of stdout."""
_KILL_GRACE_S = 0.1
"""After SIGKILL, for processes whose parent is slow to reap them."""
_REAP_S = 1.0
_POLL_S = 0.01
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
"""Proxies and certificates: behind a company's proxy, nothing can be downloaded or reached without them."""
_LOCALE_VARIABLES: Final = frozenset(
    {"LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"}
)
"""Language, time zone, and directories."""
_PIPE_CLOSED: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
_CHUNK_BYTES: Final = 65536
_CLOSED_FD: Final = -1
_TAIL_BYTES: Final = 4096
_FRAME: Final = re.compile(r"^[|+\s-]+")
"""What exception groups are drawn with."""
_NOISE: Final = re.compile(r"^(at |File \"|[\^~ ]+$|Node\.js v|npm (warn|notice) )|complete log of this run")
_NPM_ERROR: Final = re.compile(r"^npm (?:ERR!|error)\s*")
_NPM_DETAIL: Final = re.compile(r"^(code|errno|syscall|path|dest) |^\w+$|^$")
"""Lines of npm's errors without an explanation."""
_UV_CAUSE: Final = re.compile(r"^(?:(?:cause|Caused by):|╰─▶)\s*")
_EXCEPTION: Final = re.compile(r"^[\w.]*(Error|Exception)\b.*:")
_ERROR_WORDS: Final = re.compile(
    r"error|exception|missing|required|not found|no such|denied|fail|refused|invalid|unable|cannot|could not|must ",
    re.IGNORECASE,
)
_OLDER_SDK: Final = re.compile(
    r"No module named 'mcp\.|cannot import name '\w+' from 'mcp\b|module 'mcp[\w.]*' has no attribute"
    r"|'Server' object has no attribute '(list_|call_tool|read_|get_|set_|subscribe|request_context)"
)
"""How a Python server fails that was written for version 1 of the MCP SDK, and runs with version 2."""
_OLDER_SDK_HINT: Final = """; it needs an older MCP library: with uvx, put "--with", "mcp<2" before its name in args"""


def open_channel(options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> Channel:
    """Return a channel to a child process, started when the transport is entered and always stopped on leaving it."""
    closed, tail = CloseEvent(), StderrTail()
    return Channel(
        transport=_child_transport(options, fleet, redact, closed, tail),
        closed=closed,
        refresh_needed=AutoResetEvent(),
        stderr_tail=lambda: tail.explanation(redact),
    )


class StderrTail:
    """Keeps the last 4 KiB of a child's stderr."""

    def __init__(self) -> None:
        self._kept = b""

    def add(self, chunk: bytes) -> None:
        self._kept = (self._kept + chunk)[-_TAIL_BYTES:]

    def explanation(self, redact: Redactor) -> str:
        """Return the line that says most about why the child ended, and what to do about it if that is known."""
        line = self.line()
        return redact(line) + (_OLDER_SDK_HINT if _OLDER_SDK.search(line) else "")

    def line(self) -> str:
        """Return the line that says most about why the child ended; empty if there is none.

        That is npm's first line with an explanation, uv's last cause, the last exception, the last line that mentions
        an error, or else the last line.

        >>> tail = StderrTail()
        >>> tail.add(b"starting\\nError: API_KEY is missing\\n    at main (index.js:3)\\n\\nNode.js v20.1.0\\n")
        >>> tail.line()
        'Error: API_KEY is missing'
        """
        lines = [_FRAME.sub("", plain(line)) for line in self._kept.decode(errors="replace").splitlines()]
        lines = [line for line in lines if line and not _NOISE.search(line)]
        npm = [_NPM_ERROR.sub("", line) for line in lines if _NPM_ERROR.search(line)]
        if explained := [line for line in npm if not _NPM_DETAIL.search(line)]:
            return f"npm error {explained[0]}"
        causes = [place for place, line in enumerate(lines) if _UV_CAUSE.search(line)]
        if causes:
            return _UV_CAUSE.sub("", _paragraph(lines[causes[-1] :]))
        exceptions = [line for line in lines if _EXCEPTION.search(line)]
        telling = [line for line in lines if _ERROR_WORDS.search(line)]
        return (exceptions or telling or lines or [""])[-1]


def _paragraph(lines: list[str]) -> str:
    """Join a sentence that is wrapped over several lines."""
    end = next((number for number, line in enumerate(lines) if line.endswith(".")), 0)
    return " ".join(lines[: end + 1])


@asynccontextmanager
async def _child_transport(
    options: ServerOptions, fleet: FleetOptions, redact: Redactor, closed: CloseEvent, tail: StderrTail
) -> AsyncIterator[Streams]:
    """Raises `ExchangeError` if the program cannot be started."""
    # Shielded: a process that was started but not recorded yet could not be stopped.
    with anyio.CancelScope(shield=True):
        process, stdin = await _spawn(options, redact)
    child = _ChildProcess(process, stdin, options, fleet, redact, closed, tail)
    async with anyio.create_task_group() as group:
        try:
            for work in (child.read, child.write, child.read_stderr, child.watch):
                group.start_soon(child.until_stopped, work)
            yield child.incoming, child.outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop()


class PipeWriter:
    """The writing end of a pipe; owns the descriptor and sets it to non-blocking.

    asyncio's pipe transports keep the error of a broken pipe for a later caller; some versions only log it, and the
    message is lost silently. Here the error is raised to the writer.
    """

    def __init__(self, fd: int) -> None:
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
        """Close the descriptor; a waiting `send` raises."""
        fd, self._fd = self._fd, _CLOSED_FD
        if fd != _CLOSED_FD:
            anyio.notify_closing(fd)
            os.close(fd)


async def _spawn(options: ServerOptions, redact: Redactor) -> tuple[anyio.abc.Process, PipeWriter]:
    """Start the child. Returns it with our end of its stdin."""
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
    """One process, the tasks that serve its pipes, and its shutdown."""

    def __init__(
        self,
        process: anyio.abc.Process,
        stdin: PipeWriter,
        options: ServerOptions,
        fleet: FleetOptions,
        redact: Redactor,
        closed: CloseEvent,
        tail: StderrTail,
    ) -> None:
        if process.stdout is None or process.stderr is None:
            raise ValueError("a child needs three pipes")
        self._process = process
        self._stdin, self._stdout, self._stderr = stdin, process.stdout, process.stderr
        self._expected = ExpectedResponses(options)
        self._fleet = fleet
        self._redact = redact
        self._closed = closed
        self._tail = tail
        self._stderr_ended = anyio.Event()
        self._scopes: list[anyio.CancelScope] = []
        self._stopped = False
        self._to_session, self.incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.outgoing, self._from_session = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)

    async def until_stopped(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run until `stop` ends it; shielded from cancellation, which leads to `stop` anyway.

        A child can exit by itself only while its pipes are served, so they are served during the shutdown.
        """
        with anyio.CancelScope(shield=True) as scope:
            self._scopes.append(scope)
            if not self._stopped:
                await work()

    # -- the pipes -------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Pass stdout to the session; lines that are not messages are skipped."""
        lines = LineSplitter(self._expected.bounds)
        with suppress(*_GONE):
            while True:
                chunk = await self._stdout.receive()
                await anyio.sleep(await self._take(lines, chunk))
        await self._close_with_details("closed its output")
        self._to_session.close()

    async def _take(self, lines: LineSplitter, chunk: bytes) -> float:
        """Pass on the messages that the chunk completes. Returns the pause after it, for noise or a flood."""
        done = lines.feed(chunk)
        count = 0
        for line in without_repeats(done):
            messages = await run_in_steps(self._expected.parse(line))
            count += len(messages)
            # Keep reading when the session has ended: the child may have to write before it can exit.
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                for message in messages:
                    await self._to_session.send(SessionMessage(message))
        if not count:
            return FLOOD_PAUSE_S if done or lines.overflowing else 0
        return flood_pause_s(len(done), count)

    async def write(self) -> None:
        """Write the session's messages to stdin."""
        with suppress(*_GONE):
            async for item in self._from_session:
                self._expected.sent(item.message)
                data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._stdin.send(data.encode() + b"\n")
            return
        await self._close_with_details("closed its input")

    async def read_stderr(self) -> None:
        """Keep the end of stderr."""
        with suppress(*_GONE):
            while True:
                chunk = await self._stderr.receive()
                self._tail.add(chunk)
                await anyio.sleep(0 if len(chunk) < _FLOOD_BYTES else FLOOD_PAUSE_S)
        self._stderr_ended.set()

    async def watch(self) -> None:
        """Notice an exit even while a process that the child started holds its output open."""
        await self._process.wait()
        await anyio.sleep(_EXIT_DETAILS_S)
        self._closed.set(self._reason("exited"))

    async def _close_with_details(self, otherwise: str) -> None:
        """Close the channel, with the exit code and the most informative line of stderr if they arrive in time."""
        with anyio.move_on_after(_EXIT_DETAILS_S):
            await self._process.wait()
            await self._stderr_ended.wait()
        self._closed.set(self._reason(otherwise))

    def _reason(self, otherwise: str) -> str:
        code = self._process.returncode
        if code is None:
            text = otherwise
        elif code < 0:
            text = f"ended by {_signal_name(-code)}"
        else:
            text = f"exited with code {code}"
        detail = self._tail.explanation(self._redact)
        return f"{text}: {detail}" if detail else text

    # -- shutdown ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close stdin, then send SIGTERM, then SIGKILL to the whole group. Always reaps, within `stop_timeout_s`."""
        self._closed.set("stopped")
        # Otherwise a reader would wait to deliver a message to a session that has ended.
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
        """Send a signal to the group. Returns whether any process was left."""
        try:
            os.killpg(self._process.pid, sign)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _reap_orphans(group: int) -> None:
    """Reap what the child left behind; as process 1 in a container, we inherit its orphans."""
    with suppress(ChildProcessError):
        os.waitpid(-group, os.WNOHANG)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def inherited_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a child process inherits: what it needs to run and to reach a network, no more.

    These are the SDK's choice (HOME, LOGNAME, PATH, SHELL, TERM, USER), and those for network and locale.

    >>> "AWS_SECRET_ACCESS_KEY" in inherited_environment({"AWS_SECRET_ACCESS_KEY": "x", "https_proxy": "http://proxy:3128"})
    False
    """
    chosen = {
        name: value
        for name, value in environ.items()
        if name.upper() in _NETWORK_VARIABLES or name in _LOCALE_VARIABLES
    }
    return {**get_default_environment(), **chosen}


_STDIN, _STDOUT, _STDERR = 0, 1, 2


class _StdioOwner:
    """Who uses this process's stdin and stdout."""

    def __init__(self) -> None:
        self.name = ""
        self.lock = Lock()


_STDIO_OWNER: Final = _StdioOwner()


def claim_stdio(what: str) -> None:
    """Reserve this process's stdin and stdout for one part of it; `what` names it in the error for the next one.

    Raises `AlreadyStarted` while another part uses them.
    """
    with _STDIO_OWNER.lock:
        if _STDIO_OWNER.name:
            raise AlreadyStarted(
                f"This process's stdin and stdout are in use by {_STDIO_OWNER.name}; {what} cannot use them too.",
                hint="Give the server its own url or command.",
            )
        _STDIO_OWNER.name = what


def release_stdio() -> None:
    """Release stdin and stdout; harmless if they are not in use."""
    with _STDIO_OWNER.lock:
        _STDIO_OWNER.name = ""


@contextmanager
def redirected_stdio(what: str) -> Iterator[tuple[int, int]]:
    """Yield descriptors of stdin and stdout for the caller to close. Raises as `claim_stdio` does.

    Meanwhile, whatever else in the process prints goes to stderr, and reads from stdin see its end.
    """
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
    """A client transport over stdin and stdout, to a server that started this process or is connected to it by pipes.

    Used as `ServerOptions(name="parent", target=parent_stdio)`. Raises `AlreadyStarted` as `claim_stdio` does.
    """
    with redirected_stdio("a server reached by stdio://") as (wire_in, wire_out):
        async with pipe_transport(PipeReader(wire_in), PipeWriter(wire_out)) as streams:
            yield streams


class PipeReader:
    """The reading end of a pipe. Leaves the blocking mode as it is: other processes may share the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._can_wait = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
        """An event loop cannot wait for files and `/dev/null`; reading them never blocks either."""

    async def receive(self) -> bytes:
        """Return what is available, at most 64 KiB.

        Raises `anyio.EndOfStream`, `OSError`, and `anyio.ClosedResourceError`.
        """
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
        """Close the descriptor; a waiting `receive` raises."""
        fd, self._fd = self._fd, _CLOSED_FD
        if fd != _CLOSED_FD:
            anyio.notify_closing(fd)
            os.close(fd)


@asynccontextmanager
async def pipe_transport(reader: PipeReader, writer: PipeWriter) -> AsyncIterator[Streams]:
    """A transport over two pipes, one message per line; other lines are skipped."""
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        expected = ExpectedResponses(ServerOptions(name=""))
        group.start_soon(_read_messages, reader, to_session, expected)
        group.start_soon(_write_messages, writer, from_session, expected)
        try:
            yield incoming, outgoing
        finally:
            group.cancel_scope.cancel()
            reader.close()
            writer.close()
            for stream in (incoming, outgoing):
                stream.close()


async def _read_messages(
    reader: PipeReader, sink: MemoryObjectSendStream[SessionMessage | Exception], expected: ExpectedResponses
) -> None:
    lines = LineSplitter(expected.bounds)
    with sink, suppress(*_PIPE_CLOSED):
        while True:
            for line in lines.feed(await reader.receive()):
                for message in await run_in_steps(expected.parse(line)):
                    await sink.send(SessionMessage(message))


async def _write_messages(
    writer: PipeWriter, source: MemoryObjectReceiveStream[SessionMessage], expected: ExpectedResponses
) -> None:
    with source, suppress(*_PIPE_CLOSED):
        async for item in source:
            expected.sent(item.message)
            data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await writer.send(data.encode() + b"\n")
