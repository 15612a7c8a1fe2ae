"""Run one verb against the configured servers: start an app, wait for its servers, use it, and close it."""

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import anyio

from toolcrib.app import App
from toolcrib.cli.exits import Terminated
from toolcrib.cli.output import echo_error, pluralize, printable
from toolcrib.cli.render import check_server
from toolcrib.errors import ToolNotFound
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.visibility import describe_state
from toolcrib.scripting.stored import SCRIPTS_NAMESPACE
from toolcrib.search.options import Scorer
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.types import SearchReply, SearchRequest, ServerState, ServerStatus
from toolcrib.upstream.options import ServerOptions

T = TypeVar("T")


_MAX_NAMED = 5
"""How many of the servers that are awaited are named."""


_SEPARATORS = (":", "__", ".", "/")
"""What may stand between a namespace and a name."""


_WAITING = (ServerState.CONFIGURED, ServerState.CONNECTING)


def with_gateway(config: Path | None, use: Callable[[App], Awaitable[T]]) -> T:
    """What `use` gives, called once each server is ready or failed; for verbs that search nothing.

    No embedder is loaded. Servers that are not ready are named on standard error, a line each. Raises `SettingsError`,
    `ServerUnavailable` for a required server, and whatever `use` raises.
    """
    return run_with(_without_embedder(load_settings(config)), use)


def with_tool(config: Path | None, name: str, use: Callable[[App], Awaitable[T]]) -> T:
    """Like `with_gateway`, for a verb that uses one tool: where its name says of which server it is, no other is
    started. Only `server.tool` and the like may be the bare name of another server's tool, if that one has none.
    """
    settings = _without_embedder(load_settings(config))
    meant = servers_in_name(name, settings.servers)
    if not meant:
        return run_with(settings, use)

    given: list[T] = []

    async def with_these(app: App) -> None:
        try:
            await app.gateway.find(app.local_context(), name)
        except ToolNotFound:
            if ":" in name:
                raise
            return
        await report_failing(app)
        given.append(await use(app))

    run_with(replace(settings, servers=meant), with_these, quiet=True)
    return given[0] if given else run_with(settings, use)


def servers_in_name(name: str, servers: Sequence[ServerOptions]) -> tuple[ServerOptions, ...]:
    """The servers whose namespace the spelling of a tool begins with; none where it may be a script's, which may call
    tools of any server.

    >>> servers_in_name("git:log", [ServerOptions(name="git"), ServerOptions(name="gitlab")])[0].name
    'git'
    """
    if _starts_with(name, SCRIPTS_NAMESPACE):
        return ()
    return tuple(server for server in servers if _starts_with(name, server.namespace or server.name))


def _starts_with(name: str, namespace: str) -> bool:
    starts = tuple(namespace.casefold() + separator for separator in _SEPARATORS)
    return name.casefold().startswith(starts)


def inspect(settings: Settings, use: Callable[[App], Awaitable[T]]) -> T:
    """Like `with_gateway`, for a look at the servers themselves: nothing is said of them, none is required, and no
    policy hides anything.
    """
    lenient = tuple(replace(server, required=False) for server in settings.servers)
    return run_with(_without_embedder(replace(settings, servers=lenient, policy=None)), use, quiet=True)


def _without_embedder(settings: Settings) -> Settings:
    """The settings without an embedder, which takes seconds to load."""
    return replace(settings, gateway=replace(settings.gateway, embedder=GatewayOptions().embedder))


def run_with(settings: Settings, use: Callable[[App], Awaitable[T]], *, quiet: bool = False) -> T:
    """Like `with_gateway`, with settings at hand, and all that they name."""

    async def main() -> T:
        async with App(settings) as app:
            with show_progress(app):
                await app.settled()
            if not quiet:
                await report_failing(app)
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


async def report_failing(app: App) -> None:
    """One line on standard error for each server that is not ready."""
    for status in await app.gateway.servers(app.local_context()):
        if status.state is not ServerState.READY:
            echo_error(f"toolcrib: server {status.name} {_one_line(describe_state(status))}{_stale_note(status)}")


def describe_status(status: ServerStatus) -> str:
    """The state, why, and whether older tools stand in."""
    because = f": {_one_line(status.reason)}" if status.reason else ""
    return f"{status.state}{because}{_stale_note(status)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _stale_note(status: ServerStatus) -> str:
    return "; its last known tools are used" if status.stale else ""


@contextmanager
def show_progress(app: App) -> Iterator[None]:
    """Shows on standard error, while it is a terminal, which servers are still awaited."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - slow, and for people at a terminal only

    with Console(stderr=True).status(_progress_text(app)) as shown:
        end = app.fleet.subscribe(lambda: shown.update(_progress_text(app)))
        try:
            yield
        finally:
            end()


def _progress_text(app: App) -> str:
    from rich.markup import escape  # noqa: PLC0415 - as above

    statuses = app.fleet.statuses()
    waiting = [status.name for status in statuses if status.state in _WAITING]
    names = ", ".join(waiting[:_MAX_NAMED]) + (", ..." if len(waiting) > _MAX_NAMED else "")
    done = f"{len(statuses) - len(waiting)} of {pluralize(len(statuses), 'server')}"
    return escape(printable(f"{done}; waiting for {names}" if names else done))


def search_servers(config: Path | None, request: SearchRequest, scorer: Scorer | None = None) -> SearchReply:
    """The reply, once each server is ready or failed; raises `BackendNotFound` for a namespace that no server has.

    All is as the settings say, but for the scorer where one is given.
    """
    settings = load_settings(config)
    if scorer is not None:
        settings = _with_scorer(settings, scorer)

    async def found(app: App) -> SearchReply:
        ctx = app.local_context()
        if settings.gateway.embedder != GatewayOptions().embedder:
            await app.gateway.refresher.wait_idle()
        for namespace in request.filters.namespaces:
            check_server(namespace, await app.gateway.servers(ctx))
        return await app.gateway.search(ctx, replace(request, group=request.group or settings.gateway.group))

    return run_with(settings, found)


def _with_scorer(settings: Settings, scorer: Scorer) -> Settings:
    options = replace(settings.gateway.search, scorer=scorer)
    return replace(settings, gateway=replace(settings.gateway, search=options))
