"""`toolcrib lint`, `trust` and `diff`: what in the definitions of tools misleads a model, and what changed in them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
import click

from toolcrib.cli.options import ServerSource, path_option, reports, state_config_option, takes_servers
from toolcrib.cli.output import ExitCode, UsageError, echo, echo_json, iso_time, pluralize
from toolcrib.cli.render import unchecked_note
from toolcrib.cli.session import inspect
from toolcrib.cli.source import load_source
from toolcrib.cli.state import forget_catalogs, state_options
from toolcrib.errors import NotFound
from toolcrib.names import nearest
from toolcrib.state.base import StateStore
from toolcrib.state.stores import make_store
from toolcrib.trust.lint import lint_tools
from toolcrib.trust.pins import describe_change, diff_lines
from toolcrib.trust.rules import Finding
from toolcrib.types import Tool
from toolcrib.upstream.catalog.pins import PinStore


@click.command()
@path_option("--tools", "-t", about="Check the tools of this file (- is standard input) instead.")
@click.option("--hard", is_flag=True, help="Show only findings that have hardly any honest explanation.")
@takes_servers()
@reports()
def lint(source: ServerSource, *, tools: Path | None, hard: bool, as_json: bool) -> None:
    """Look for texts in the definitions of tools that mislead a model, and for characters that people cannot see.

    A hard finding has hardly any honest explanation; a soft one is worth a look. The exit code is 7 if there is a
    hard finding. It uses no model and no network service.
    """
    read = _read(source, tools)
    found = [one for one in lint_tools(read) if not hard or one.severity == "hard"]
    if as_json:
        echo_json([one.payload() for one in found])
    else:
        _show(found)
        _show_unchecked(read)
    if any(one.severity == "hard" for one in found):
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _read(source: ServerSource, file: Path | None) -> Sequence[Tool]:
    if file is not None:
        from toolcrib.cli.files import read_tools

        return read_tools(file).tools
    return inspect(load_source(source), lambda app: app.gateway.tools(app.local_context()))


def _show(found: Sequence[Finding]) -> None:
    for tool, group in groupby(sorted(found, key=lambda one: (one.severity, one.tool)), key=lambda one: one.tool):
        echo(tool)
        for one in group:
            echo(f"  {one.severity}  {one.rule}: it {one.why}.")
            echo(f"        {one.where}: {one.excerpt}")
            echo(f"        {one.advice}")
    severe = sum(one.severity == "hard" for one in found)
    echo(f"{pluralize(len(found), 'finding')}, {severe} of them hard." if found else "Nothing was found.")


def _show_unchecked(tools: Sequence[Tool]) -> None:
    for tool in tools:
        if note := unchecked_note(tool):
            echo(f"{tool.id}: {note}")


# -- pins --------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("server")
@click.argument("tool", required=False)
@state_config_option()
@reports()
def trust(*, server: str, tool: str | None, config: Path | None, as_json: bool) -> None:
    """Accept the current definitions of a server, or of one of its tools, as the trusted ones.

    TOOL may also be "instructions", "prompt:NAME" or "template:URI". A gateway that runs with the same state file uses
    them within seconds.
    """
    accepted = anyio.run(_trust, server, tool, config)
    if as_json:
        echo_json({"server": server, "trusted": accepted})
    else:
        echo("\n".join(f"trusted: {server}:{part}" for part in accepted) or "Nothing differs from what is trusted.")


@click.command()
@click.argument("name", metavar="SERVER[:TOOL]")
@click.option("--since", metavar="DATE", help="Every version since this day, such as 2026-11-01, instead.")
@state_config_option()
@reports()
def diff(*, name: str, since: str | None, config: Path | None, as_json: bool) -> None:
    """Show how the definitions of a server differ from the trusted ones, as a diff of their text."""
    server, _, tool = name.partition(":")
    found = anyio.run(_changes, server, tool, _moment(since), config)
    if as_json:
        echo_json([{key: value for key, value in one.items() if key != "lines"} for one in found])
        return
    for one in found:
        echo(f"{server}:{one['part']}, {iso_time(one['at'])}: {one['summary']}")
        echo("".join(f"  {line}\n" for line in one["lines"]).rstrip())
    if not found:
        echo("Nothing changed." if since else "Nothing differs from what is trusted.")


def _moment(day: str | None) -> float | None:
    """The beginning of a day. Raises `UsageError`."""
    try:
        return None if day is None else datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise UsageError(f"{day!r} is not a date.", hint="Such as 2026-11-01.") from None


async def _trust(server: str, tool: str | None, config: Path | None) -> list[str]:
    async with _pins(config) as (store, pins):
        await _check_server(pins, server, tool)
        accepted = await pins.trust(server, tool)
        if accepted:  # commands that show what is remembered would show the earlier definitions
            await forget_catalogs(store, server)
        return accepted


async def _changes(server: str, tool: str, since: float | None, config: Path | None) -> list[dict[str, Any]]:
    async with _pins(config) as (_, pins):
        await _check_server(pins, server, tool or None)
        if since is not None:
            return _versions_since(await pins.history(server), tool, since)
        review = await pins.changes(server)
        return [
            {
                "part": name,
                "at": change.since,
                "summary": change.summary(),
                "lines": diff_lines(change.old, change.new),
                "before": change.old,
                "now": change.new,
            }
            for name, change in review.changes.items()
            if tool in ("", name)
        ]


def _versions_since(history: list[tuple[float, dict[str, Any]]], tool: str, since: float) -> list[dict[str, Any]]:
    """Each version that was recorded since a moment, beside the one before."""
    known: dict[str, Any] = {}
    found = []
    for at, versions in history:
        for part, version in versions.items():
            if at >= since and tool in ("", part) and known.get(part) != version:
                before = known.get(part)
                summary = (
                    "it was listed for the first time"
                    if before is None
                    else "; ".join(describe_change(before, version))
                )
                lines = () if before is None else diff_lines(before, version)
                found.append(
                    {"part": part, "at": at, "summary": summary, "lines": lines, "before": before, "now": version}
                )
            known[part] = version
    return found


@asynccontextmanager
async def _pins(config: Path | None) -> AsyncIterator[tuple[StateStore, PinStore]]:
    """The state, and the pins in it."""
    async with make_store(state_options(config), must_open=True) as store:
        yield store, PinStore(store)


async def _check_server(pins: PinStore, server: str, tool: str | None) -> None:
    """Raise `NotFound` for a server without pins, or a tool that it never had."""
    known = await pins.servers()
    if server not in known:
        raise NotFound(
            f'No definitions of "{server}" are kept.',
            hint="Give the name of a server that a gateway with this state file has listed.",
            suggestions=nearest(server, known),
        )
    if tool is not None and tool not in known[server]:
        raise NotFound(f'{server} has no tool "{tool}".', suggestions=nearest(tool, known[server]))
