"""The work of `doctor`: looks at settings and servers, changes nothing."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread

from toolcrib.app import App
from toolcrib.cli.advice import advice
from toolcrib.cli.output import counted, say
from toolcrib.cli.session import describe
from toolcrib.cli.shapes import server_json
from toolcrib.embedders.load import load
from toolcrib.errors import AmbiguousName, NameCollision, ToolcribError, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.policy import ByScopes, Patterns
from toolcrib.model import ServerState, ServerStatus, Tool
from toolcrib.protocols import Policy
from toolcrib.settings.options import Settings
from toolcrib.settings.places import places
from toolcrib.surfaces.front import Front
from toolcrib.upstream.options import ServerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What was found."""

    settings: Settings
    unused: tuple[Path, ...]
    """Other settings files that exist and were passed over."""
    statuses: tuple[ServerStatus, ...]
    problems: tuple[str, ...]
    """What is wrong besides the servers themselves."""
    options: Mapping[str, ServerOptions] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What may be a mistake, and may be meant."""

    @property
    def ok(self) -> bool:
        """Whether nothing fails."""
        return not self.problems and all(status.state is ServerState.READY for status in self.statuses)

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "ok": self.ok,
            "source": str(self.settings.source),
            "unused": [str(path) for path in self.unused],
            "servers": [
                {
                    **server_json(status),
                    "reached_by": reached_by(self.options[status.name]),
                    "advice": advice(status, self.options[status.name]),
                }
                for status in self.statuses
            ],
            "problems": list(self.problems),
            "notes": list(self.notes),
            "warnings": list(self.settings.warnings),
        }


async def examine(app: App, settings: Settings) -> Checkup:
    """Look at everything, once every server is ready or failed. The app has neither the policy of the settings, so as
    to see every tool, nor their embedder; both are looked at by themselves.
    """
    ctx, policy = app.local_context(), settings.policy
    tools = await app.gateway.tools(ctx)
    refusals = [*_http(app), *await _embedder(settings), *await _names(app, policy)]
    problems = [*refusals, *_allowed(settings, app, tools)]
    for spelling in settings.surfaces.always_visible:
        try:
            await app.gateway.describe(ctx, spelling)
        except (ToolNotFound, AmbiguousName) as error:
            problems.append(f"toolcrib.always_visible: {error}")
    statuses = await app.gateway.servers(ctx)
    complete = all(status.state is ServerState.READY for status in statuses)
    return Checkup(
        settings=settings,
        unused=tuple(place for place in places(os.environ, Path.cwd()) if place.is_file() and place != settings.source),
        statuses=statuses,
        problems=tuple(problems),
        options={server.name: server for server in settings.servers},
        notes=tuple(_idle(settings, policy, tools)) if complete else (),
    )


def _http(app: App) -> Iterator[str]:
    """Why it would not be served where the settings say."""
    try:
        app.asgi()
    except ToolcribError as error:
        yield f"serve --http would refuse to start: {error.message}"


async def _embedder(settings: Settings) -> list[str]:
    """Why the embedder of the settings, which the app at hand does without, cannot be had."""
    try:
        await anyio.to_thread.run_sync(load, settings.gateway.embedder)
    except ToolcribError as error:
        return [f"serve would refuse to start: toolcrib.search.embedder: {error.message}"]
    return []


async def _names(app: App, policy: Policy | None) -> list[str]:
    """Which names collide, for whom the policy of the settings lets see them."""
    front = app.front
    if policy is not None:
        behind = Gateway([app.local, app.shared, app.servers], policy=policy, options=app.settings.gateway)
        front = Front(behind, app.settings.surfaces, app.scripts)
    try:
        await front.check_names(app.local_context())
    except NameCollision as error:
        return [f"serve would refuse to start: {error}"]
    return []


def _allowed(settings: Settings, app: App, tools: tuple[Tool, ...]) -> Iterator[str]:
    """Names in allowedTools that their server, which is ready, does not offer."""
    ready = {status.name for status in app.fleet.statuses() if status.state is ServerState.READY}
    for server in settings.servers:
        offered = {tool.name for tool in tools if tool.namespace == (server.namespace or server.name)}
        missing = [name for name in server.allowed_tools or () if name not in offered]
        if server.name in ready and missing:
            yield f"{server.name}: allowedTools names {', '.join(missing)}, which the server does not offer"


def _idle(settings: Settings, policy: Policy | None, tools: tuple[Tool, ...]) -> Iterator[str]:
    """Patterns that fit no tool: where one is misspelt, what it should guard is not guarded."""
    calls = settings.gateway.calls
    listed: list[tuple[str, Sequence[str]]] = [
        ("calls.approved", calls.approved),
        ("calls.tool_rates", [pattern for pattern, _ in calls.tool_rates]),
    ]
    listed += [("calls.cache.tools", calls.cache.tools)] if calls.cache else []
    if isinstance(policy, ByScopes):
        listed += [(f"policy.rules[{place}].tools", rule.tools) for place, rule in enumerate(policy.rules)]
    for where, texts in listed:
        for text in texts:
            fits = Patterns((text,))
            if not any(fits.fit(tool.id) for tool in tools):
                yield f"toolcrib.{where}: {text} fits no tool that there is now"


def reached_by(server: ServerOptions) -> str:
    """How a server is reached, without what may hold a secret: the program, or the host of the url.

    >>> reached_by(ServerOptions(name="a", transport="http", url="https://me:pw@example.com/key?token=1"))
    'http: https://example.com'
    """
    if server.transport == "stdio":
        return f"stdio: {server.command}"
    parts = urlsplit(server.url)
    port = f":{parts.port}" if parts.port else ""
    return f"{server.transport}: {parts.scheme}://{parts.hostname or ''}{port}"


def say_checkup(checkup: Checkup) -> None:
    """What was found, for people."""
    say(f"Settings: {checkup.settings.source}")
    for path in checkup.unused:
        say(f"  also there, not used: {path}")
    for warning in checkup.settings.warnings:
        say(f"  warning: {warning}")
    say("\nServers:" if checkup.statuses else "\nNo servers are configured.")
    for status in checkup.statuses:
        _say_server(status, checkup.options[status.name])
    for note in checkup.notes:
        say(f"\nNote: {note}")
    for problem in checkup.problems:
        say(f"\nProblem: {problem}")
    failing = [status.name for status in checkup.statuses if status.state is not ServerState.READY]
    tools = sum(status.tools for status in checkup.statuses)
    if checkup.ok:
        say(f"\nAll is well: {counted(len(checkup.statuses), 'server')}, {counted(tools, 'tool')}.")
    elif failing:
        servers = counted(len(checkup.statuses), "server")
        say(f"\n{len(failing)} of {servers} {'is' if len(failing) == 1 else 'are'} not ready: {', '.join(failing)}")


def _say_server(status: ServerStatus, options: ServerOptions) -> None:
    mark = "ok " if status.state is ServerState.READY else "BAD"
    what = counted(status.tools, "tool") if status.state is ServerState.READY else describe(status)
    version = f", {status.info.name} {status.info.version}".rstrip() if status.info.name else ""
    say(f"  {mark} {status.name}: {what}  ({reached_by(options)}{version})")
    if status.state is not ServerState.READY:
        say(f"      do: {advice(status, options)}")
    for rejected in status.rejected:
        say(f"      set aside: {rejected.tool}: {rejected.reason}")
