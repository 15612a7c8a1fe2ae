"""Serve an app over stdio or HTTP, with a log on standard error (`toolcrib serve`)."""

import gc
import importlib.util
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn

import anyio
import anyio.abc

from toolcrib.app import App
from toolcrib.cli.output import UsageError, pluralize
from toolcrib.errors import NotStarted, SettingsError, StateUnavailable
from toolcrib.gateway.policy import ByScopes
from toolcrib.middleware.audit import AUDIT_LOGGER, CURRENT_RECORD
from toolcrib.sanitize import MAX_RECORD, paragraphs
from toolcrib.settings.options import MAX_PORT, Settings
from toolcrib.settings.reload import SettingsWatcher, load_watch
from toolcrib.state.base import StateStore
from toolcrib.tracing import TRACING, export_traces

logger = logging.getLogger("toolcrib.serve")

_CONSOLE_ADDRESS = "127.0.0.1:8321"
_ENDS = (signal.SIGTERM, signal.SIGINT)
_GC_THRESHOLDS = (2_000, 5, 2)
"""New objects between two garbage collections, of which a call makes some hundred, and collections before one of the
next generation. With more, each pauses all calls for longer: a session of an older client has 300 objects."""
_YOUNG = 1
"""The generation of objects that survived one collection: it is collected with the new ones within a millisecond."""
_LOG_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_WORKER_VARIABLE: Final = "TOOLCRIB_WORKER"
"""Set by a supervisor, for its workers."""
_SHUTDOWN_MARGIN_S = 0.7
"""Time to shut down in addition to that of running calls, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What is logged to standard error, and how."""

    level: str = "info"
    as_json: bool = False


def serve_stdio(settings: Settings, log: LogOptions, load: Callable[[], Settings]) -> None:
    """Serve the process that started this one, until it disconnects. `load` reads the settings again."""

    async def serve(app: App, stop: anyio.Event) -> None:
        if sys.stdin.isatty():
            logger.info("speaking MCP on stdin and stdout; an MCP client should start this. Ctrl-C ends it.")
        await app.serve_stdio(stop=stop)

    # uvloop aborts the process when stdin is /dev/null.
    _run(settings, serve, log, load, loop="asyncio")


def serve_http(
    settings: Settings,
    address: str,
    log: LogOptions,
    load: Callable[[], Settings],
    *,
    sse: bool = False,
    workers: int = 1,
) -> None:
    """Serve over HTTP, until SIGTERM or Ctrl-C, in as many processes. `load` reads the settings again.

    Raises `SettingsError` if a token is needed, or cannot be read, or if workers would share an index on disk.
    """
    host, port = host_and_port(address, settings.http.host, settings.http.port)
    if settings.http_problem:
        raise SettingsError(
            f"HTTP cannot be served: {settings.http_problem}.",
            hint="Set what is missing, or take what needs it out of the settings.",
        )

    worker: Any = None
    if _WORKER_VARIABLE in os.environ:
        from toolcrib.server.processes.workers import Worker

        worker = Worker.from_environment()
        settings = replace(settings, fleet=replace(settings.fleet, find_programs=worker.find_programs))
    elif workers > 1:
        if settings.gateway.engine != "memory":
            raise SettingsError(
                "Workers cannot share an index on disk: each process needs a folder of its own.",
                hint="Use --workers 1, or search.engine memory.",
            )
        _supervise(settings, host, port, workers, log)

    async def serve(app: App, stop: anyio.Event) -> None:
        serving = anyio.Event()

        def started(url: str) -> None:
            logger.info("serving MCP at %s", url)
            serving.set()

        async with anyio.create_task_group() as group:
            if worker is not None:
                group.start_soon(_report_progress, worker, app, serving)
            shared = None if worker is None else worker.address
            await app.serve_http(host, port, sse=sse, stop=stop, started=started, shared=shared)
            group.cancel_scope.cancel()

    _run(settings, serve, log, load, loop=_fastest_loop(), worker=worker)


def _fastest_loop() -> str:
    return "uvloop" if importlib.util.find_spec("uvloop") is not None else "asyncio"


def _supervise(settings: Settings, host: str, port: int, workers: int, log: LogOptions) -> NoReturn:
    """Run this command once for each worker, and watch over them. Raises `SettingsError` for an address in use."""
    from toolcrib.server.processes.process import bind_socket
    from toolcrib.server.processes.workers import SupervisorOptions, WorkerSupervisor

    _log_to_stderr(log)
    options = SupervisorOptions(
        workers=workers,
        command=(sys.executable, *sys.orig_argv[1:]),
        drain_s=settings.http.drain_s,
        ends_on_hangup=sys.stderr.isatty(),
    )
    addresses = {"console": settings.console.address, "metrics": settings.telemetry.metrics}
    with ExitStack() as stack:
        listeners = {"http": stack.enter_context(bind_socket(host, port))}
        for name, own in addresses.items():
            if own:
                listeners[name] = stack.enter_context(bind_socket(*host_and_port(own, "127.0.0.1", 0)))
        run = WorkerSupervisor(options, listeners).run
        raise SystemExit(anyio.run(run, backend_options={"use_uvloop": _fastest_loop() == "uvloop"}))


async def _report_progress(worker: Any, app: App, serving: anyio.Event) -> None:
    """Tell the supervisor when this worker serves, and when it knows what its servers offer."""
    with suppress(StateUnavailable, NotStarted):
        await serving.wait()
        await worker.report("serving")
        await app.settled()
        await worker.report("settled")


def with_console(settings: Settings, address: str | None) -> Settings:
    """The settings with a console at this address; an empty text means that of the settings, None for no change.

    >>> with_console(Settings(), "").console.address, with_console(Settings(), ":9000").console.address
    ('127.0.0.1:8321', '127.0.0.1:9000')
    """
    if address is None:
        return settings
    known = settings.console.address or _CONSOLE_ADDRESS
    host, port = host_and_port(address, known.rpartition(":")[0].strip("[]"), int(known.rpartition(":")[2]))
    own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return replace(settings, console=replace(settings.console, address=own))


def host_and_port(address: str, host: str, port: int) -> tuple[str, int]:
    """Split an address; the settings supply a missing host or port.

    >>> host_and_port("0.0.0.0:80", "127.0.0.1", 8000), host_and_port("[::1]:80", "127.0.0.1", 8000)
    (('0.0.0.0', 80), ('::1', 80))
    >>> host_and_port(":80", "127.0.0.1", 8000), host_and_port("localhost", "127.0.0.1", 8000)
    (('127.0.0.1', 80), ('localhost', 8000))
    >>> host_and_port("65536", "127.0.0.1", 8000)
    Traceback (most recent call last):
    toolcrib.cli.output.UsageError: 65536 is not an address. Write HOST:PORT, such as 127.0.0.1:8000.
    """
    bare = address.strip()
    if bare.isdigit():
        bare = f":{bare}"
    before, colon, after = bare.rpartition(":")
    if not colon or bare.endswith("]"):
        before, after = bare, ""
    if after and not (after.isdigit() and int(after) <= MAX_PORT):
        raise UsageError(f"{address} is not an address.", hint="Write HOST:PORT, such as 127.0.0.1:8000.")
    return before.strip("[]") or host, int(after) if after else port


def _run(
    settings: Settings,
    serve: Callable[[App, anyio.Event], Awaitable[None]],
    log: LogOptions,
    load: Callable[[], Settings],
    *,
    loop: str,
    worker: Any = None,
) -> None:
    place = None if worker is None else worker.place
    _log_to_stderr(log, worker=0 if place is None else place.number)
    _audit_to_stderr(settings.gateway.calls.audit)
    logger.info("%s from %s", pluralize(len(settings.servers), "server"), settings.source or "the command line")
    for warning in settings.warnings:
        logger.warning("%s", warning)
    for server in settings.servers:
        if server.problem:
            logger.warning("%s has failed: %s", server.name, server.problem)
    policy = settings.policy
    if isinstance(policy, ByScopes) and policy.default == "hide" and not policy.is_default_given:
        logger.info("what no rule of the policy covers is hidden; `toolcrib policy check` shows it")

    # A closed terminal sends SIGHUP; service managers send it to have the settings read again.
    has_terminal = hasattr(signal, "SIGHUP") and sys.stderr.isatty() and worker is None

    if settings.telemetry.traces:
        export_traces()
    if settings.watch_at_once:
        load_watch()

    async def main() -> None:
        stop = anyio.Event()
        async with _shared_state(worker, settings) as state, anyio.create_task_group() as group:
            ends = (*_ENDS, signal.SIGHUP) if has_terminal else _ENDS
            await group.start(
                _stop_on_signal, ends, stop, settings.http.drain_s + _SHUTDOWN_MARGIN_S, group.cancel_scope
            )
            if worker is not None:
                await group.start(_follow_supervisor, worker, stop)
            app = App(settings, state=state, worker=place)
            watcher = SettingsWatcher(settings, load, app.reload, note=partial(setattr, app, "settings_problem"))
            if not has_terminal:
                # From the start: without a receiver, SIGHUP would end the process.
                await group.start(watcher.run_on_signal)
            async with app:
                group.start_soon(_freeze_memory, app)
                group.start_soon(partial(watcher.run, settings.watch_s, at_once=settings.watch_at_once))
                await serve(app, stop)
            group.cancel_scope.cancel()

    anyio.run(main, backend_options={"use_uvloop": loop == "uvloop"})


@asynccontextmanager
async def _shared_state(worker: Any, settings: Settings) -> AsyncIterator[StateStore | None]:
    """The state that this process shares with other workers; None if it is alone."""
    if worker is None:
        yield None
        return
    ended = False
    try:
        async with worker.supervisor.open(), worker.make_store(settings.state) as state:
            yield state
            ended = worker.supervisor.lost.is_set()
    finally:
        worker.leave()
    if ended:
        logger.error("the supervisor has ended, and this worker with it")


async def _follow_supervisor(
    worker: Any, stop: anyio.Event, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Stop when the supervisor has ended; at its signal, leave new connections to other workers first."""

    async def stop_alone() -> None:
        await worker.supervisor.lost.wait()
        stop.set()

    with anyio.open_signal_receiver(signal.SIGUSR2) as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(stop_alone)
            task_status.started()
            async for _ in signals:
                worker.retire()


async def _stop_on_signal(
    ends: Sequence[signal.Signals],
    stop: anyio.Event,
    patience_s: float,
    everything: anyio.CancelScope,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    """Set the event on the first of these signals; on a second one, or after a timeout, cancel everything.

    The servers are ended in any case. Only a third signal ends the process as it always would.
    """
    with anyio.open_signal_receiver(*ends) as signals:
        task_status.started()
        async for _ in signals:
            break
        stop.set()
        with anyio.move_on_after(patience_s):
            async for _ in signals:
                break
        everything.cancel()


async def _freeze_memory(app: App) -> None:
    """Exclude permanent objects from garbage collection, which otherwise pauses all calls for 100 ms.

    What is garbage by now stays, since a full collection would pause them once more.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        await app.settled()
    except NotStarted:  # stopped in the meantime
        return
    gc.collect(_YOUNG)
    gc.freeze()


def _log_to_stderr(options: LogOptions, *, worker: int = 0) -> None:
    """Log with times and levels; at level info, what servers do and warnings of the settings. Names the worker."""
    handler = logging.StreamHandler(sys.stderr)
    plain = _LOG_LINE if not worker else _LOG_LINE.replace("%(name)s", f"%(name)s worker {worker}")
    handler.setFormatter(JsonFormatter(worker) if options.as_json else PlainFormatter(plain))
    root = logging.getLogger()
    root.handlers[:] = [handler]  # instead of the one that verbs log to with --debug
    level = options.level.upper()
    logging.getLogger("toolcrib").setLevel(level)
    root.setLevel(max(logging.WARNING, getattr(logging, level)))


def _audit_to_stderr(audit: bool | str) -> None:  # noqa: FBT001 - it is the setting itself
    """Write one line of JSON per call, without a prefix, for log collectors."""
    if not audit:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger(audit if isinstance(audit, str) else AUDIT_LOGGER)
    log.addHandler(handler)
    log.propagate = False


class PlainFormatter(logging.Formatter):
    """Cuts, cleans and masks each record: messages quote the output of servers, and tracebacks the errors of tools."""

    def format(self, record: logging.LogRecord) -> str:
        return paragraphs(super().format(record), MAX_RECORD)


def _request_ids() -> dict[str, str | int]:
    """What joins a message with the request during which it is logged."""
    record = CURRENT_RECORD.get()
    number: dict[str, str | int] = {"request": record.request} if record is not None and record.request else {}
    return {**number, **TRACING.ids()}


class JsonFormatter(logging.Formatter):
    """Formats each message as one line of JSON, in ASCII."""

    def __init__(self, worker: int = 0) -> None:
        """`worker` is the number of this worker; 0 for a process that is alone."""
        super().__init__()
        self._worker = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": paragraphs(record.getMessage(), MAX_RECORD),
            **self._worker,
        }
        line |= _request_ids()
        if record.exc_info:
            line["exception"] = paragraphs(self.formatException(record.exc_info), MAX_RECORD)
        return json.dumps(line)
