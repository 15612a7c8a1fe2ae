"""The work of `serve`: an app, an event loop, and a log on standard error."""

import importlib.util
import logging
import sys
from collections.abc import Awaitable, Callable

import anyio

from toolcrib.app import App
from toolcrib.cli.guard import UsageError
from toolcrib.cli.output import clean
from toolcrib.cli.session import describe
from toolcrib.errors import SettingsError
from toolcrib.model import ServerState
from toolcrib.settings.options import Settings

logger = logging.getLogger("toolcrib.serve")

_HIGHEST_PORT = 65535


def serve_stdio(settings: Settings, *, debug: bool) -> None:
    """Serve whoever started this process, until it leaves."""

    async def serve(app: App) -> None:
        if sys.stdin.isatty():
            logger.info("speaking MCP on stdin and stdout; an MCP client should start this. Ctrl-C ends it.")
        await app.serve_stdio()

    _run(settings, serve, debug=debug)


def serve_http(settings: Settings, address: str, *, debug: bool) -> None:
    """Serve over HTTP, until SIGTERM or Ctrl-C. Raises `SettingsError` where a token is needed or cannot be had."""
    host, port = host_and_port(address, settings.http.host, settings.http.port)
    if settings.http_problem:
        raise SettingsError(
            f"HTTP cannot be served: {settings.http_problem}.",
            hint="Without that token its caller could not connect; set it, or take the token out of the settings.",
        )

    async def serve(app: App) -> None:
        await app.serve_http(host, port, started=lambda url: logger.info("serving MCP at %s", url))

    _run(settings, serve, debug=debug)


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
    if after and not (after.isdigit() and int(after) <= _HIGHEST_PORT):
        raise UsageError(f"{address} is not an address.", hint="Write HOST:PORT, such as 127.0.0.1:8000.")
    return before.strip("[]") or host, int(after) if after else port


def _run(settings: Settings, serve: Callable[[App], Awaitable[None]], *, debug: bool) -> None:
    _log_to_stderr(debug=debug)
    logger.info("%d servers from %s", len(settings.servers), settings.source)
    for warning in settings.warnings:
        logger.warning("%s", warning)

    async def main() -> None:
        async with App(settings) as app:
            end = app.fleet.subscribe(Changes(app).log)
            try:
                await serve(app)
            finally:
                end()

    fast = importlib.util.find_spec("uvloop") is not None
    anyio.run(main, backend_options={"use_uvloop": fast})


def _log_to_stderr(*, debug: bool) -> None:
    if debug:  # the guard has set up everything already
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("toolcrib: %(message)s"))
    logging.getLogger().addHandler(handler)
    logger.setLevel(logging.INFO)


class Changes:
    """Logs each server's state when it changes."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._known: dict[str, tuple[ServerState, str, int]] = {}

    def log(self) -> None:
        """Log what changed since the last time."""
        for status in self._app.fleet.statuses():
            now = (status.state, status.reason, status.tools)
            if self._known.get(status.name) == now or status.state in (ServerState.CONFIGURED, ServerState.CONNECTING):
                continue
            self._known[status.name] = now
            level = logging.INFO if status.state is ServerState.READY else logging.WARNING
            tools = f", {status.tools} tools" if status.tools else ""
            logger.log(level, "%s is %s%s", clean(status.name), clean(describe(status)), tools)
