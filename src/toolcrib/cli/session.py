"""The verbs that use the configured servers: start an app, wait for its servers, use it, and close it."""

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import anyio
import click

from toolcrib.app import App
from toolcrib.cli.arguments import CallArguments
from toolcrib.cli.output import Terminated, echo_error, pluralize, printable
from toolcrib.cli.render import check_server, print_failing, server_note
from toolcrib.cli.source import SearchFindings
from toolcrib.errors import ApprovalRequired, ExecutionFailed, ServerUnavailable, ToolNotFound
from toolcrib.gateway.options import GatewayOptions
from toolcrib.sanitize import listing
from toolcrib.scripting.stored import SCRIPTS_NAMESPACE
from toolcrib.search.options import Scorer
from toolcrib.settings.options import Settings
from toolcrib.types import Context, Object, SearchRequest, ServerState, ServerStatus, Tool, ToolResult
from toolcrib.upstream.options import ServerOptions

T = TypeVar("T")
_SEPARATORS = (":", "__", ".", "/")
"""Separators between a namespace and a name."""
_WAITING = (ServerState.CONFIGURED, ServerState.CONNECTING)


class StartedView:
    """The tools of servers that are started for one verb (a `ToolView`)."""

    def __init__(self, settings: Settings) -> None:
        """The settings name the servers."""
        self._settings = settings

    def servers(self, show: Callable[[Sequence[ServerStatus]], None]) -> None:
        """Find the state of each server."""

        async def find(app: App) -> None:
            show(await inspected_servers(app))

        inspect(self._settings, find)

    def tools(self, namespace: str | None, show: Callable[[Sequence[Tool], Sequence[ServerStatus]], None]) -> None:
        """Find every tool, or those of one namespace."""

        async def find(app: App) -> None:
            ctx = app.local_context()
            statuses = await app.gateway.servers(ctx)
            if namespace is not None:
                check_server(namespace, statuses)
            show([tool for tool in await app.gateway.tools(ctx) if namespace in (None, tool.namespace)], statuses)

        with_gateway(self._settings, find)

    def search(self, request: SearchRequest, scorer: Scorer | None, show: Callable[[SearchFindings], None]) -> None:
        """Search once each server is ready or failed."""
        settings = self._settings
        if scorer is not None:
            options = replace(settings.gateway.search, scorer=scorer)
            settings = replace(settings, gateway=replace(settings.gateway, search=options))

        async def find(app: App) -> SearchFindings:
            ctx = app.local_context()
            if settings.gateway.embedder != GatewayOptions().embedder:
                await app.gateway.refresher.wait_idle()
            for namespace in request.filters.namespaces:
                check_server(namespace, await app.gateway.servers(ctx))
            reply = await app.gateway.search(ctx, replace(request, group=request.group or settings.gateway.group))
            has_tools = bool(reply.hits or await app.gateway.tools(ctx))
            return SearchFindings(reply=reply, has_tools=has_tools, has_policy=settings.policy is not None)

        show(run_with(settings, find))

    def describe(self, name: str, show: Callable[[Tool, Object], None]) -> None:
        """Find a tool, and an example of its arguments."""

        async def find(app: App) -> None:
            described = await app.gateway.describe(app.local_context(), name)
            show(described.tool, described.example)

        with_tool(self._settings, name, find)

    def call(self, name: str, arguments: CallArguments, show: Callable[[ToolResult], bool], *, approved: bool) -> bool:
        """Call a tool, and return what `show` returns."""

        async def run(app: App) -> bool:
            ctx = terminal_context(app, approved=approved)
            try:
                schema = (await app.gateway.find(ctx, name)).tool.input_schema if arguments.words else {}
                result = await app.gateway.call(ctx, name, arguments.for_schema(schema))
            except ApprovalRequired as error:
                add_approval_hint(error)
                raise
            return show(result)

        return with_tool(self._settings, name, run)


# -- apps for one verb -------------------------------------------------------------------------------------------------


def with_gateway(settings: Settings, use: Callable[[App], Awaitable[T]]) -> T:
    """Run `use` once each server is ready or failed. No embedder is loaded, so `use` must not search.

    Prints a line for each server that is not ready to standard error. Raises `ServerUnavailable` if a required server
    is not, and what `use` raises.
    """
    return run_with(_without_embedder(settings), use)


def with_tool(settings: Settings, name: str, use: Callable[[App], Awaitable[T]]) -> T:
    """Like `with_gateway`, but start only the server that the name of the tool begins with, or that listed it last.

    If that server does not have the tool, start all of them: `server.tool` may be the bare name of another's tool.
    """
    settings = _without_embedder(settings)
    asking = replace(settings, fleet=replace(settings.fleet, connect="start"))
    named = servers_in_name(name, settings.servers)
    if not named and settings.fleet.connect == "start":
        return run_with(asking, use)
    unknown = (ToolNotFound,) if named else (ToolNotFound, ServerUnavailable)
    results: list[T] = []

    async def with_known(app: App) -> None:
        try:
            await app.gateway.find(app.local_context(), name)
        except unknown:
            if named and ":" in name:
                raise
            return
        await report_failing(app)
        results.append(await use(app))

    run_with(replace(asking, servers=named) if named else settings, with_known, quiet=True)
    return results[0] if results else run_with(asking, use)


def servers_in_name(name: str, servers: Sequence[ServerOptions]) -> tuple[ServerOptions, ...]:
    """The servers whose namespace the name of a tool begins with.

    None if the tool may be a script, which can call tools of any server.

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
    """Like `with_gateway`, to look at the servers: none is required, no policy applies, and no message is printed."""
    lenient = tuple(replace(server, required=False) for server in settings.servers)
    return run_with(_without_embedder(replace(settings, servers=lenient, policy=None)), use, quiet=True)


async def inspected_servers(app: App) -> tuple[ServerStatus, ...]:
    """The status of each server, with the marks that only an operator sees."""
    marked = {status.name: status.marked for status in app.statuses()}
    found = await app.gateway.servers(app.local_context())
    return tuple(replace(status, marked=marked.get(status.name, ())) for status in found)


def _without_embedder(settings: Settings) -> Settings:
    """Remove the embedder, which takes seconds to load."""
    return replace(settings, gateway=replace(settings.gateway, embedder=GatewayOptions().embedder))


def run_with(settings: Settings, use: Callable[[App], Awaitable[T]], *, quiet: bool = False) -> T:
    """Run `use` with an app of these settings, once each server is ready or failed.

    The function that describes tools, which may cost something, is left to `toolcrib serve`, and so are the index on
    disk and the addresses of metrics and of the console: a gateway that runs with these settings has them already.
    """
    plain = replace(
        settings,
        gateway=replace(settings.gateway, describe="", engine="memory", index=None),
        telemetry=replace(settings.telemetry, metrics=""),
        console=replace(settings.console, address=""),
    )

    async def main() -> T:
        async with App(plain) as app:
            with show_progress(app):
                await app.settled()
            if not quiet:
                await report_failing(app)
            return await use(app)

    return anyio.run(until_terminated, main)


async def until_terminated(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main`. On SIGTERM, cancel it, and raise `Terminated` once it has closed everything."""
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
    """Print a line to standard error for each reason why servers are not ready."""
    print_failing(await app.gateway.servers(app.local_context()))


def describe_status(status: ServerStatus) -> str:
    """The state of a server, the reason, and whether its last known tools are used."""
    note = server_note(status)
    return f"{status.state}: {note}" if note else str(status.state)


@contextmanager
def show_progress(app: App) -> Iterator[None]:
    """Show on a terminal which servers have not connected yet."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(_progress_text(app)) as shown:
        end = app.fleet.subscribe(lambda: shown.update(_progress_text(app)))
        try:
            yield
        finally:
            end()


def _progress_text(app: App) -> str:
    from rich.markup import escape

    statuses = app.fleet.statuses()
    waiting = [status.name for status in statuses if status.state in _WAITING]
    names = listing(waiting, 5)
    done = f"{len(statuses) - len(waiting)} of {pluralize(len(statuses), 'server')}"
    return escape(printable(f"{done}; waiting for {names}" if names else done))


_YES = frozenset({"y", "yes"})
_APPROVAL_HINT = "Approve it with --yes, or run this at a terminal to be asked."


class TerminalClient:
    """A client that asks the user at the terminal, if there is one."""

    def __init__(self, *, approved: bool = False) -> None:
        """With `approved`, every question is answered with yes."""
        self._approved = approved

    @property
    def capabilities(self) -> Object:
        """None: only toolcrib itself asks questions here."""
        return {}

    @property
    def can_elicit(self) -> bool:
        """Whether questions can be answered: in advance, or by a user who sees them."""
        return self._approved or (sys.stdin.isatty() and sys.stderr.isatty())

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Ignore progress."""

    async def elicit(self, params: Object) -> Object:
        """Ask a yes-or-no question, which has a single field; cancel any other."""
        schema = params.get("requestedSchema")
        fields = schema.get("properties") if isinstance(schema, dict) else None
        names = list(fields) if isinstance(fields, dict) else []
        if len(names) != 1:
            return {"action": "cancel"}
        if not self._approved and not await _confirm(str(params.get("message", ""))):
            return {"action": "decline"}
        return {"action": "accept", "content": {names[0]: True}}

    async def sample(self, params: Object) -> Object:  # noqa: ARG002 - a Client
        raise ExecutionFailed("The command line has no model to ask.")


def terminal_context(app: App, *, approved: bool) -> Context:
    """The context of a call whose questions the user answers."""
    return replace(app.local_context(), client=TerminalClient(approved=approved))


async def _confirm(question: str) -> bool:
    """Ask on standard error. No thread waits for the answer, so Ctrl-C and deadlines end the wait."""
    echo_error(question)
    click.echo("Run it? [y/N] ", err=True, nl=False)
    await anyio.wait_readable(sys.stdin)
    return sys.stdin.readline().strip().lower() in _YES


def add_approval_hint(error: ApprovalRequired) -> None:
    """Explain how to approve a call, if there was no user to ask."""
    if error.data.get("reason") == "no_client":
        error.hint = _APPROVAL_HINT
