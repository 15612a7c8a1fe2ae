"""Serve an app over stdio or HTTP, with a log on standard error (`toolcrib serve`)."""

import gc
import importlib.util
import logging
import signal
import sys
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

from toolcrib.app import App
from toolcrib.cli.exits import UsageError
from toolcrib.cli.output import pluralize, printable
from toolcrib.errors import NotStarted, SettingsError
from toolcrib.middleware.audit import AUDIT_LOGGER
from toolcrib.settings.options import Settings

logger = logging.getLogger("toolcrib.serve")


_MAX_PORT = 65535


_GC_THRESHOLD = 20_000
"""New objects between two rounds of the garbage collector; a call makes some hundred."""


_SHUTDOWN_MARGIN_S = 0.7
"""Beyond the time for calls under way: a start that still waits for servers is given up, in seconds."""


def serve_stdio(settings: Settings, *, debug: bool) -> None:
    """Serve whoever started this process, until it leaves."""

    async def serve(app: App, stop: anyio.Event) -> None:
        if sys.stdin.isatty():
            logger.info("speaking MCP on stdin and stdout; an MCP client should start this. Ctrl-C ends it.")
        await app.serve_stdio(stop=stop)

    # uvloop aborts the process when stdin is /dev/null.
    _run(settings, serve, debug=debug, loop="asyncio")


def serve_http(settings: Settings, address: str, *, sse: bool = False, debug: bool) -> None:
    """Serve over HTTP, until SIGTERM or Ctrl-C. Raises `SettingsError` where a token is needed or cannot be had."""
    host, port = host_and_port(address, settings.http.host, settings.http.port)
    if settings.http_problem:
        raise SettingsError(
            f"HTTP cannot be served: {settings.http_problem}.",
            hint="Set what is missing, or take what needs it out of the settings.",
        )

    async def serve(app: App, stop: anyio.Event) -> None:
        await app.serve_http(host, port, sse=sse, stop=stop, started=lambda url: logger.info("serving MCP at %s", url))

    fast = importlib.util.find_spec("uvloop") is not None
    _run(settings, serve, debug=debug, loop="uvloop" if fast else "asyncio")


def host_and_port(address: str, host: str, port: int) -> tuple[str, int]:
    """An address in two; a missing half is what the settings say.

    >>> host_and_port("0.0.0.0:80", "127.0.0.1", 8000), host_and_port("[::1]:80", "127.0.0.1", 8000)
    (('0.0.0.0', 80), ('::1', 80))
    >>> host_and_port(":80", "127.0.0.1", 8000), host_and_port("localhost", "127.0.0.1", 8000)
    (('127.0.0.1', 80), ('localhost', 8000))
    """
    bare = address.strip()
    if bare.isdigit():
        bare = f":{bare}"
    before, colon, after = bare.rpartition(":")
    if not colon or bare.endswith("]"):
        before, after = bare, ""
    if after and not (after.isdigit() and int(after) <= _MAX_PORT):
        raise UsageError(f"{address} is not an address.", hint="Write HOST:PORT, such as 127.0.0.1:8000.")
    return before.strip("[]") or host, int(after) if after else port


def _run(settings: Settings, serve: Callable[[App, anyio.Event], Awaitable[None]], *, debug: bool, loop: str) -> None:
    _log_to_stderr(debug=debug)
    _audit_to_stderr(settings.gateway.calls.audit)
    logger.info("%s from %s", pluralize(len(settings.servers), "server"), settings.source)
    for warning in settings.warnings:
        logger.warning("%s", warning)
    for server in settings.servers:
        if server.problem:
            logger.warning("%s has failed: %s", server.name, server.problem)

    async def main() -> None:
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            await group.start(_stop_on_signal, stop, settings.http.drain_s + _SHUTDOWN_MARGIN_S, group.cancel_scope)
            async with App(settings) as app:
                group.start_soon(_freeze_memory, app)
                await serve(app, stop)
            group.cancel_scope.cancel()

    anyio.run(main, backend_options={"use_uvloop": loop == "uvloop"})


async def _stop_on_signal(
    stop: anyio.Event, patience_s: float, everything: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    """Turn the first SIGTERM or SIGINT into the event; a second one, or a while, ends what has not ended by itself.

    The servers are ended in any case. Only a third signal ends the process as it always would.
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            break
        stop.set()
        with anyio.move_on_after(patience_s):
            async for _ in signals:
                break
        everything.cancel()


async def _freeze_memory(app: App) -> None:
    """Take what lives as long as the process out of the garbage collector's rounds: each took 100 ms of all calls."""
    gc.set_threshold(_GC_THRESHOLD)
    try:
        await app.settled()
    except NotStarted:  # it was stopped before
        return
    gc.collect()
    gc.freeze()


def _log_to_stderr(*, debug: bool) -> None:
    """The settings' warnings, and each server's coming and going."""
    if debug:  # the guard has set up everything already
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainFormatter("toolcrib: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("toolcrib").setLevel(logging.INFO)


def _audit_to_stderr(audit: bool | str) -> None:  # noqa: FBT001 - it is the setting itself
    """A line of JSON a call and nothing else on that line, for whatever collects it."""
    if not audit:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger(audit if isinstance(audit, str) else AUDIT_LOGGER)
    log.addHandler(handler)
    log.propagate = False


class _PlainFormatter(logging.Formatter):
    """A line a record, without what a terminal would obey: reasons quote what servers print."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
