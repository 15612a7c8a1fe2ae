"""One gateway for the length of one verb: started, settled, used, closed."""

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import anyio

from toolcrib.app import App
from toolcrib.cli.guard import Terminated
from toolcrib.cli.output import clean, tell
from toolcrib.gateway.options import GatewayOptions
from toolcrib.model import ServerState, ServerStatus
from toolcrib.settings.loader import load
from toolcrib.settings.options import Settings

T = TypeVar("T")

_NAMED = 5
"""How many of the servers that are awaited are named."""
_WAITING = (ServerState.CONFIGURED, ServerState.CONNECTING)


def with_gateway(config: Path | None, use: Callable[[App], Awaitable[T]]) -> T:
    """What `use` gives, called once each server is ready or failed; for verbs that search nothing.

    No embedder is loaded. Servers that are not ready are named on standard error, a line each. Raises `SettingsError`,
    `ServerUnavailable` for a required server, and whatever `use` raises.
    """
    return run(_without_embedder(load(config)), use)


def survey(settings: Settings, use: Callable[[App], Awaitable[T]]) -> T:
    """Like `with_gateway`, for a look at the servers themselves: nothing is said of them, none is required, and no
    policy hides anything.
    """
    lenient = tuple(replace(server, required=False) for server in settings.servers)
    return run(_without_embedder(replace(settings, servers=lenient, policy=None)), use, quiet=True)


def _without_embedder(settings: Settings) -> Settings:
    """The settings without an embedder, which takes seconds to load."""
    return replace(settings, gateway=replace(settings.gateway, embedder=GatewayOptions().embedder))


def run(settings: Settings, use: Callable[[App], Awaitable[T]], *, quiet: bool = False) -> T:
    """Like `with_gateway`, with settings at hand, and all that they name."""

    async def main() -> T:
        async with App(settings) as app:
            with progress(app):
                await app.settled()
            if not quiet:
                await name_failing(app)
            return await use(app)

    return anyio.run(until_terminated, main)


async def until_terminated(main: Callable[[], Awaitable[T]]) -> T:
    """What `main` gives; raises `Terminated`, once everything is closed, when SIGTERM comes first."""
    results: list[T] = []
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                async for _ in signals:
                    group.cancel_scope.cancel()

        group.start_soon(watch)
        results.append(await main())
        group.cancel_scope.cancel()
    if not results:
        raise Terminated
    return results[0]


async def name_failing(app: App) -> None:
    """One line on standard error for each server that is not ready."""
    for status in await app.gateway.servers(app.local_context()):
        if status.state is not ServerState.READY:
            tell(f"toolcrib: server {status.name} is {describe(status)}")


def describe(status: ServerStatus) -> str:
    """The state, why, and whether older tools stand in."""
    because = f": {' '.join(status.reason.split())}" if status.reason else ""
    return f"{status.state}{because}" + ("; its last known tools are used" if status.stale else "")


@contextmanager
def progress(app: App) -> Iterator[None]:
    """Shows on standard error, while it is a terminal, which servers are still awaited."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - slow, and for people at a terminal only

    with Console(stderr=True).status(_awaited(app)) as shown:
        end = app.fleet.subscribe(lambda: shown.update(_awaited(app)))
        try:
            yield
        finally:
            end()


def _awaited(app: App) -> str:
    from rich.markup import escape  # noqa: PLC0415 - as above

    statuses = app.fleet.statuses()
    waiting = [status.name for status in statuses if status.state in _WAITING]
    names = ", ".join(waiting[:_NAMED]) + (", ..." if len(waiting) > _NAMED else "")
    done = f"{len(statuses) - len(waiting)} of {len(statuses)} servers"
    return escape(clean(f"{done}; waiting for {names}" if names else done))
