"""Servers that are child processes, reached over their pipes.

A child runs in its own session and process group, so that whatever it starts is stopped with it. Its stderr is always
read, never shown, and only the end of it is kept. Knows nothing of MCP beyond the frame of a message.
"""

import asyncio
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Final

import anyio
import anyio.lowlevel
import anyio.to_thread

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.sanitize import NO_VALUES, SecretValues, paragraphs
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import Message
from toolcrib.upstream.transports.duplex import PIPE_CLOSED, DuplexTransport
from toolcrib.upstream.transports.framing import FLOOD_PAUSE_S
from toolcrib.upstream.transports.pipes import LineWriter

_FLOOD_BYTES = 65536
"""The size of one read; that much at once on stderr is a flood."""
_EXIT_DETAILS_S = 0.5
"""How long to wait for the exit code and the rest of stderr after the end of stdout."""
_KILL_GRACE_S = 0.1
"""After SIGKILL, for processes whose parent is slow to reap them."""
_REAP_S = 1.0
_POLL_S = 0.01
_EXIT_POLL_S: Final = 0.05
"""Where the system has no descriptor that becomes readable when a process ends."""
_STARTS_AT_ONCE: Final = 2
_starting: Final = anyio.lowlevel.RunVar[anyio.CapacityLimiter]("toolcrib_starting")
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
_BASIC_VARIABLES: Final = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
_LOCALE_VARIABLES: Final = frozenset(
    {"LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"}
)
"""Language, time zone, and directories."""
_STALE_S: Final = 1.0
"""How long before an answer a child may have printed the reason of its end."""
_STRAY_NOTE: Final = " (on stdout, where only MCP messages belong)"
_CHUNK_BYTES: Final = 65536
_NO_FD: Final = -1
_TAIL_BYTES: Final = 4096
"""Bytes of stderr that are searched for a reason."""
_FRAME: Final = re.compile(r"^[|+\s-]+")
"""What exception groups are drawn with."""
_NOISE: Final = re.compile(r"^(at |File \"|[\^~ ]+$|Node\.js v|npm (warn|notice) )|complete log of this run")
_NPM_ERROR: Final = re.compile(r"^npm (?:ERR!|error)\s*")
_NPM_DETAIL: Final = re.compile(r"^(code|errno|syscall|path|dest) |^\w+$|^$")
"""Lines of npm's errors without an explanation."""
_UV_CAUSE: Final = re.compile(r"^(?:(?:cause|Caused by):|╰─▶)\s*")
_EXCEPTION: Final = re.compile(r"^(?>[\w.]*(?:Error|Exception)\b).*:")
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


class StderrTail:
    """Keeps the last 8 KiB of a child's stderr, and the last line of its stdout that was no message.

    What a child has printed well before it last answered is not why it ended, and is dropped.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        self._clock = clock
        self._kept = b""
        self._cut = False
        self._stray = b""
        self._printed_at = math.inf
        """When it last printed what is kept."""

    def answered(self) -> None:
        """Note that the child has sent a message."""
        if (self._kept or self._stray) and self._clock() - self._printed_at > _STALE_S:
            self._kept, self._stray, self._cut, self._printed_at = b"", b"", False, math.inf

    def add(self, chunk: bytes) -> None:
        self._printed_at = self._clock()
        whole = self._kept + chunk
        self._kept, self._cut = whole[-2 * _TAIL_BYTES :], self._cut or len(whole) > 2 * _TAIL_BYTES

    def add_stray(self, line: bytes) -> None:
        """Keep a line of stdout: programs that do not expect MCP there print what is wrong."""
        self._printed_at = self._clock()
        self._stray = line.strip()[:_TAIL_BYTES] or self._stray

    def explanation(self, redact: Redactor) -> str:
        """Return the line that says most about why the child ended, and what to do about it if that is known."""
        line = self.line(redact.values)
        if not line and self._stray:
            return redact(self._stray.decode(errors="replace")) + _STRAY_NOTE
        return redact(line) + (_OLDER_SDK_HINT if _OLDER_SDK.search(line) else "")

    def line(self, values: SecretValues = NO_VALUES) -> str:
        """Return the line that says most about why the child ended, without the values; empty if there is none.

        That is npm's first line with an explanation, uv's last cause, the last exception, the last line that mentions
        an error, or else the last line.

        >>> tail = StderrTail()
        >>> tail.add(b"starting\\nError: API_KEY is missing\\n    at main (index.js:3)\\n\\nNode.js v20.1.0\\n")
        >>> tail.line()
        'Error: API_KEY is missing'
        """
        text = paragraphs(self._text(), 2 * _TAIL_BYTES, values)
        lines = [_FRAME.sub("", " ".join(line.split())) for line in text.splitlines()]
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

    def _text(self) -> str:
        text = self._kept.decode(errors="replace")
        if not self._cut:
            return text
        # What is left of the first line may begin within a secret, which is not recognized then.
        _, end, rest = text.partition("\n")
        return rest if end else text[_TAIL_BYTES:]


def _paragraph(lines: list[str]) -> str:
    """Join a sentence that is wrapped over several lines."""
    end = next((number for number, line in enumerate(lines) if line.endswith(".")), 0)
    return " ".join(lines[: end + 1])


async def _spawn(options: ServerOptions, redact: Redactor) -> "_ServerProgram":
    """Start the child, in a thread: the event loop would stand still until the new process runs its program."""
    theirs, ours = os.pipe()
    stdin = LineWriter(ours)
    start = partial(
        _start_program,
        [options.command, *options.args],
        stdin=theirs,
        env={**inherited_environment(), **options.env},
        cwd=options.cwd,
    )
    try:
        child = await anyio.to_thread.run_sync(start, limiter=_start_limiter())
    except BaseException as error:
        stdin.close()
        if isinstance(error, (OSError, ValueError)):
            raise ExchangeError(FailureKind.UNSENT, _start_problem(options, redact, error)) from error
        raise
    finally:
        os.close(theirs)
    return _ServerProgram.of(child, stdin)


def _start_program(
    arguments: Sequence[str], *, stdin: int, env: Mapping[str, str], cwd: Path | None
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 - the operator's own command
        arguments,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )


def _start_limiter() -> anyio.CapacityLimiter:
    """Return this event loop's limit of programs that start at the same moment; they hold up each other only."""
    try:
        return _starting.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_STARTS_AT_ONCE)
        _starting.set(limiter)
        return limiter


class _ServerProgram:
    """A running child: our ends of its pipes, and how it ended."""

    def __init__(
        self, child: "subprocess.Popen[bytes]", stdin: LineWriter, stdout: "_PipeStream", stderr: "_PipeStream"
    ) -> None:
        self._child = child
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._ended = anyio.Event()

    @classmethod
    def of(cls, child: "subprocess.Popen[bytes]", stdin: LineWriter) -> "_ServerProgram":
        if child.stdout is None or child.stderr is None:
            raise ValueError("a child needs three pipes")
        return cls(child, stdin, _PipeStream(child.stdout), _PipeStream(child.stderr))

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None before `wait` returns."""
        return self._child.returncode

    async def wait(self) -> None:
        """Wait until it has ended, and `reap` has noticed."""
        await self._ended.wait()

    async def reap(self) -> None:
        """Wait for the end of the process, and note how it ended; for one task."""
        pidfd = _pidfd(self.pid)
        try:
            while self._child.poll() is None:
                if pidfd == _NO_FD:
                    await anyio.sleep(_EXIT_POLL_S)
                else:
                    await anyio.wait_readable(pidfd)
        finally:
            if pidfd != _NO_FD:
                os.close(pidfd)
        self._ended.set()

    def close(self) -> None:
        """Close the pipes."""
        self.stdin.close()
        self.stdout.close()
        self.stderr.close()


def _pidfd(pid: int) -> int:
    """Return a descriptor that is readable once the process has ended; `_NO_FD` where the system has none."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return _NO_FD


class _PipeStream:
    """The reading end of a child's pipe, for one reader.

    asyncio's own transport allocates 256 KiB for each read, for which the C library may ask the system each time.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._fd = pipe, pipe.fileno()
        self._loop = asyncio.get_running_loop()
        self._is_watched = False
        self._chunk: bytes | None = None
        """What has arrived while nothing waited for it."""
        self._waiter: asyncio.Future[bytes] | None = None
        os.set_blocking(self._fd, False)

    async def receive(self) -> bytes:
        """Return what is available, at most 64 KiB.

        Raises `anyio.EndOfStream` at the end, `OSError`, and `anyio.ClosedResourceError`.
        """
        chunk, self._chunk = self._chunk, None
        if chunk is None:
            chunk = await self._next()
        if not chunk:
            self._unwatch()
            raise anyio.EndOfStream
        return chunk

    async def _next(self) -> bytes:
        if self._pipe.closed:
            raise anyio.ClosedResourceError
        if not self._is_watched:
            self._is_watched = True
            self._loop.add_reader(self._fd, self._read)
        self._waiter = self._loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _read(self) -> None:
        waiter = self._waiter
        if self._chunk is not None:
            self._unwatch()  # until the last chunk has been taken
            return
        try:
            chunk = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if waiter is None or waiter.done():
            self._chunk = chunk
        else:
            waiter.set_result(chunk)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._fd)

    def close(self) -> None:
        """Close the pipe; a waiting `receive` raises."""
        self._unwatch()
        self._pipe.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(anyio.ClosedResourceError())


def _start_problem(options: ServerOptions, redact: Redactor, error: Exception) -> str:
    if options.cwd is not None and not options.cwd.is_dir():
        return f'its working directory "{options.cwd}" does not exist'
    if not options.command:
        return "it has no command, url or target"
    command = redact(options.command)
    if isinstance(error, FileNotFoundError):
        return f'the command "{command}" was not found; install it, or give its full path'
    if isinstance(error, PermissionError):
        return f'the command "{command}" may not be executed; check its permissions'
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f'the command "{command}" could not be started: {redact(cause)}'


class StdioTransport(DuplexTransport):
    """A child process: started when it is opened, and always stopped on leaving."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> None:
        super().__init__(options)
        self._options = options
        self._fleet = fleet
        self._redact = redact
        self._tail = StderrTail()
        self._stderr_ended = anyio.Event()
        self._scopes: list[anyio.CancelScope] = []
        self._stopped = False

    def stderr_tail(self) -> str:
        """Return the line of stderr that says most about what is wrong."""
        return self._tail.explanation(self._redact)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        # Shielded: a process that was started but not recorded yet could not be stopped.
        with anyio.CancelScope(shield=True):
            self._process = await _spawn(self._options, self._redact)
        async with anyio.create_task_group() as group:
            try:
                for work in (self._process.reap, self._read, self._write, self._read_stderr, self._watch):
                    group.start_soon(self._until_stopped, work)
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._stop()

    async def _until_stopped(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run until `stop` ends it; shielded from cancellation, which leads to `stop` anyway.

        A child can exit by itself only while its pipes are served, so they are served during the shutdown.
        """
        with anyio.CancelScope(shield=True) as scope:
            self._scopes.append(scope)
            if not self._stopped:
                await work()

    # -- the pipes -------------------------------------------------------------------------------------------------

    def _send_now(self, line: bytes) -> bool:
        return self._process.stdin.send_now(line)

    async def _send(self, line: bytes) -> None:
        await self._process.stdin.send(line)

    async def _read(self) -> None:
        with suppress(*PIPE_CLOSED):
            await self._read_lines(self._process.stdout.receive)
        await self._close_with_details("closed its output")
        self._fail_all()

    def _skipped(self, line: bytes) -> None:
        self._tail.add_stray(line)

    def _settle(self, message: Message) -> bool:
        self._tail.answered()
        return super()._settle(message)

    async def _write(self) -> None:
        with suppress(anyio.ClosedResourceError):
            try:
                await self._process.stdin.run()
            except OSError:
                await self._close_with_details("closed its input")

    async def _read_stderr(self) -> None:
        """Keep the end of stderr."""
        with suppress(*PIPE_CLOSED):
            while True:
                chunk = await self._process.stderr.receive()
                self._tail.add(chunk)
                await anyio.sleep(0 if len(chunk) < _FLOOD_BYTES else FLOOD_PAUSE_S)
        self._stderr_ended.set()

    async def _watch(self) -> None:
        """Notice an exit even while a process that the child started holds its output open."""
        await self._process.wait()
        await anyio.sleep(_EXIT_DETAILS_S)
        self.closed.set(self._reason("exited"))

    async def _close_with_details(self, otherwise: str) -> None:
        """Close the channel, with the exit code and the most informative line of stderr if they arrive in time."""
        with anyio.move_on_after(_EXIT_DETAILS_S):
            await self._process.wait()
            await self._stderr_ended.wait()
        self.closed.set(self._reason(otherwise))

    def _reason(self, otherwise: str) -> str:
        code = self._process.returncode
        if code is None:
            text = f"{otherwise} but keeps running"
        elif code < 0:
            text = f"ended by {_signal_name(-code)}"
        else:
            text = f"exited with code {code}"
        detail = self._tail.explanation(self._redact)
        return f"{text}: {detail}" if detail else text

    # -- shutdown ---------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Close stdin, then send SIGTERM, then SIGKILL to the whole group. Always reaps, within `stop_timeout_s`."""
        self.closed.set("stopped")
        with anyio.move_on_after(self._fleet.stop_timeout_s) as limit:
            await self._exit()
        if limit.cancelled_caught:
            self._signal(signal.SIGKILL)
        with anyio.move_on_after(_REAP_S):
            await self._process.wait()
        self._stopped = True
        for scope in self._scopes:
            scope.cancel()
        self._process.close()

    async def _exit(self) -> None:
        self._process.stdin.close()
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

    These are what the SDK passes on (HOME, LOGNAME, PATH, SHELL, TERM, USER), and those for network and locale.

    >>> "AWS_SECRET_ACCESS_KEY" in inherited_environment({"AWS_SECRET_ACCESS_KEY": "x", "https_proxy": "http://proxy:3128"})
    False
    """
    basic = {
        name: value
        for name in _BASIC_VARIABLES
        if (value := environ.get(name)) is not None and not value.startswith("()")  # a function of a shell
    }
    chosen = {
        name: value
        for name, value in environ.items()
        if name.upper() in _NETWORK_VARIABLES or name in _LOCALE_VARIABLES
    }
    return {**basic, **chosen}
