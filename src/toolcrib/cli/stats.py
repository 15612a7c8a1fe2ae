"""`toolcrib stats`: what a gateway was used for, from its state file. No server is started."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import anyio
import click

from toolcrib.cli.cached import read_tools
from toolcrib.cli.options import config_option, reports
from toolcrib.cli.output import UsageError, echo, echo_json, iso_time, pluralize, print_wrapped
from toolcrib.cli.render import tool_json
from toolcrib.cli.state import settings_or_defaults
from toolcrib.cli.tables import cell, new_table, table_console
from toolcrib.private_files import make_folders, open_private
from toolcrib.sanitize import listing
from toolcrib.settings.options import Settings
from toolcrib.state.options import StateOptions
from toolcrib.state.stores import has_store, make_store
from toolcrib.types import Tool
from toolcrib.usage.counts import CallCounts, DayUsage, TokenCounts, UsageReport
from toolcrib.usage.recorder import usage_table
from toolcrib.usage.zero_hits import ZeroHit, proposed_keywords, read_zero_hits, zero_hits_table

_MAX_LISTED: Final = 20
"""Tools and queries that the text names; `--json` has all."""
_MAX_WIDTH: Final = 160


@click.command()
@click.option("--days", type=click.IntRange(1, 90), default=30, metavar="N", help="How many days; 30 by default.")
@click.option("--tools", is_flag=True, help="Show each tool that was called, instead of each server.")
@click.option("--zero-hits", is_flag=True, help="Show the searches that found nothing, or only weak hits.")
@click.option(
    "--propose",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="With --zero-hits: write proposed keywords there, with queries and tools to evaluate them.",
)
@config_option()
@reports()
def stats(*, days: int, tools: bool, zero_hits: bool, propose: Path | None, config: Path | None, as_json: bool) -> None:
    """Show calls and tokens by server, tools that were not called, and searches that found nothing.

    Reads the state file, which a running gateway writes every few seconds; no server is started. Tokens at rest are
    what an agent would carry in each request if all tools were listed; tokens served are what clients were shown of
    them; tokens saved are the difference for each list that a client asked for.
    """
    if propose is not None and not zero_hits:
        raise UsageError("--propose needs --zero-hits.")
    found = anyio.run(_read, settings_or_defaults(config), days)
    if propose is not None:
        _propose(found, propose, as_json=as_json)
    elif as_json:
        echo_json(_zero_hits_json(found) if zero_hits else _usage_json(found))
    elif zero_hits:
        _print_zero_hits(found, _MAX_LISTED)
    else:
        _print_usage(found, by_tool=tools)


@dataclass(frozen=True, slots=True)
class _Found:
    """What the state file says."""

    state: StateOptions
    days: int
    report: UsageReport
    zero_hits: Mapping[str | None, Sequence[ZeroHit]]
    """The groups of each tenant."""
    keeps_words: bool
    tools: Sequence[Tool] | None
    """The tools of the servers; None before they were first listed."""


async def _read(settings: Settings, days: int) -> _Found:
    options = settings.state
    tools = await read_tools(settings)
    saved: Mapping[str, DayUsage] = {}
    zero_hits: Mapping[str | None, Sequence[ZeroHit]] = {}
    if has_store(options):
        async with make_store(options, must_open=True) as store:
            saved = await usage_table(store).items()
            zero_hits = await read_zero_hits(zero_hits_table(store))
    report = UsageReport.make(saved, until=time.time(), days=days, tools=tools)
    return _Found(options, days, report, zero_hits, settings.telemetry.zero_hits, tools)


# -- usage -------------------------------------------------------------------------------------------------------------


def _print_usage(found: _Found, *, by_tool: bool) -> None:
    total = found.report.total
    since = f", since {found.report.since}" if found.report.since else ""
    echo(f"The last {pluralize(found.days, 'day')}{since}: {_place(found)}")
    if found.report.since is None:
        echo("\nNothing was counted in these days.")
    (_print_tools if by_tool else _print_servers)(found)
    if found.report.since is not None:
        searches = [f"{total.searches.get(key, 0)} {text}" for key, text in _OUTCOMES.items()]
        echo(f"\nSearches: {', '.join(searches)}.")
        listed = f"{pluralize(total.lists, 'list')} of tools for clients"
        echo(f"Saved: {total.saved:,} tokens in {listed}, less {total.list_tokens:,} that the lists took.")
        if total.refused:
            refused = ", ".join(f"{code} {count}" for code, count in sorted(total.refused.items()))
            echo(f"Calls that came to no tool: {refused}.")
    if found.tools is None:
        echo("\nThe tools of the servers are not remembered, so those without calls are not known.")
    elif unused := found.report.unused:
        echo()
        print_wrapped(
            f"Not called: {len(unused)} of {pluralize(len(found.tools), 'tool')}: {listing(unused, _MAX_LISTED)}"
        )
    if found.zero_hits:
        echo()
        _print_zero_hits(found, _MAX_LISTED // 4)


_OUTCOMES: Final = {"hit": "found tools", "weak": "found only weak hits", "none": "found nothing"}


def _place(found: _Found) -> str:
    if found.state.url is not None:
        return f"Redis, under {found.state.prefix}"
    return "state is kept in memory only" if found.state.path is None else str(found.state.path)


def _print_servers(found: _Found) -> None:
    total, calls = found.report.total, found.report.total.calls_by_server()
    heads = ("tools", "at rest", "served", "saved", "calls", "errors", "median", "95 %", "results")
    table = new_table("server", *heads, texts=1)
    for name in sorted({*total.servers, *calls}):
        tokens = _figures(total.servers.get(name))
        table.add_row(cell(name or "(functions)"), *tokens, *_call_figures(calls.get(name)))
    if total.servers or calls:
        table.add_section()
        sums = [sum(values) for values in zip(*(_token_row(one) for one in total.servers.values()), strict=True)]
        table.add_row("total", *(f"{value:,}" for value in sums or (0, 0, 0, 0)), *_call_figures(total.calls()))
        table_console(_MAX_WIDTH).print(table)


def _print_tools(found: _Found) -> None:
    table = new_table("tool", "calls", "errors", "median", "95 %", "results", texts=1)
    rows = sorted(found.report.total.tools.items(), key=lambda item: (-item[1].calls, item[0]))
    for name, counts in rows:
        table.add_row(cell(name), *_call_figures(counts))
    if rows:
        table_console(_MAX_WIDTH).print(table)


def _token_row(tokens: TokenCounts) -> tuple[int, int, int, int]:
    return tokens.tools, tokens.at_rest, tokens.served, tokens.saved


def _figures(tokens: TokenCounts | None) -> list[str]:
    return ["", "", "", ""] if tokens is None else [f"{value:,}" for value in _token_row(tokens)]


def _call_figures(counts: CallCounts | None) -> list[str]:
    """Calls, errors, two durations, and the tokens of the results."""
    if counts is None or not counts.calls:
        return ["0", "", "", "", ""]
    quantiles = [_duration(counts.quantile_s(share)) for share in (0.5, 0.95)]
    return [f"{counts.calls:,}", f"{counts.errors:,}", *quantiles, f"{counts.result_tokens:,}"]


def _duration(seconds: float | None) -> str:
    """An upper bound, as counts keep it.

    >>> _duration(0.025), _duration(2.5)
    ('25 ms', '2.5 s')
    """
    if seconds is None:
        return ""
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def _usage_json(found: _Found) -> dict[str, Any]:
    total, calls = found.report.total, found.report.total.calls_by_server()
    servers = []
    for name in sorted({*total.servers, *calls}):
        tokens = total.servers.get(name)
        figures = {} if tokens is None else dict(zip(_TOKEN_KEYS, _token_row(tokens), strict=True))
        servers.append({"server": name, **figures, **_calls_json(calls.get(name))})
    return {
        "state": _place(found),
        "days": found.days,
        "since": found.report.since,
        "servers": servers,
        "tools": [{"tool": name, **_calls_json(counts)} for name, counts in sorted(total.tools.items())],
        "unused": None if found.tools is None else list(found.report.unused),
        "searches": {key: total.searches.get(key, 0) for key in _OUTCOMES},
        "refused": dict(total.refused),
        "lists": total.lists,
        "list_tokens": total.list_tokens,
        "saved": total.saved,
        **_zero_hits_json(found),
    }


_TOKEN_KEYS: Final = ("tools", "at_rest", "served", "saved")


def _calls_json(counts: CallCounts | None) -> dict[str, Any]:
    if counts is None:
        return {"calls": 0, "errors": 0}
    return {
        "calls": counts.calls,
        "errors": counts.errors,
        "duration_s": round(counts.duration_s, 3),
        "median_s": counts.quantile_s(0.5),
        "p95_s": counts.quantile_s(0.95),
        "result_bytes": counts.result_bytes,
        "result_tokens": counts.result_tokens,
    }


# -- searches without hits ---------------------------------------------------------------------------------------------


def _groups(found: _Found) -> Iterator[tuple[str | None, ZeroHit]]:
    rows = [(tenant, one) for tenant, groups in found.zero_hits.items() for one in groups]
    yield from sorted(rows, key=lambda row: (-row[1].count, -row[1].last))


def _print_zero_hits(found: _Found, most: int) -> None:
    rows = list(_groups(found))
    if not rows:
        kept = (
            "none are kept" if found.keeps_words else "their words are not kept; telemetry.zero_hits = true keeps them"
        )
        echo(f"Searches without hits: {kept}.")
        return
    table = new_table("searches without hits", "then called", "tenant", "last", "nothing", "weak", texts=4)
    for tenant, one in rows[:most]:
        called = ", ".join(one.called) or (f"(weak: {one.best[0]})" if one.best else "")
        texts = (" ".join(one.words), called, tenant or "", iso_time(one.last)[:10])
        table.add_row(*map(cell, texts), str(one.none), str(one.weak))
    table_console(_MAX_WIDTH).print(table)
    if len(rows) > most:
        echo(f"and {len(rows) - most} more: toolcrib stats --zero-hits --json")


def _zero_hits_json(found: _Found) -> dict[str, Any]:
    rows = [
        {
            "words": list(one.words),
            "tenant": tenant,
            "count": one.count,
            "none": one.none,
            "weak": one.weak,
            "last": iso_time(one.last),
            "called": dict(one.called),
            "best": list(one.best),
        }
        for tenant, one in _groups(found)
    ]
    return {"zero_hits": rows if rows or found.keeps_words else None}


def _propose(found: _Found, folder: Path, *, as_json: bool) -> None:
    """Write a file of keywords, and what `toolcrib eval` needs to measure them. Overwrites nothing."""
    groups = [one for _, one in _groups(found)]
    known = {tool.id for tool in found.tools or ()}
    proposed = {tool: phrases for tool, phrases in proposed_keywords(groups).items() if tool in known}
    if not proposed:
        raise UsageError(
            "There is nothing to propose: no session called a current tool after a search without hits.",
            hint="toolcrib stats --zero-hits shows the searches; telemetry.zero_hits = true keeps them.",
        )
    queries = [
        {"id": str(number), "query": phrase, "relevant": [tool]}
        for number, (tool, phrase) in enumerate(((tool, one) for tool in proposed for one in proposed[tool]), start=1)
    ]
    guesses = [
        f"# {json.dumps(one.best[0])} = [{json.dumps(' '.join(one.words))}]  # only a weak hit; no tool was called"
        for one in groups
        if one.best and not one.called and one.best[0] in known
    ]
    lines = [f"{json.dumps(tool)} = {json.dumps(list(phrases))}" for tool, phrases in proposed.items()]
    contents = {
        "keywords.toml": "\n".join([*lines, *islice(guesses, _MAX_LISTED)]) + "\n",
        "queries.jsonl": "".join(json.dumps(query) + "\n" for query in queries),
        "tools.json": json.dumps({"tools": [tool_json(tool) for tool in found.tools or ()]}) + "\n",
    }
    _write_all(folder, contents)
    command = (
        f"toolcrib eval -t {folder}/tools.json -q {folder}/queries.jsonl --keywords {folder}/keywords.toml --compare"
    )
    if as_json:
        echo_json(
            {"folder": str(folder), "keywords": {tool: list(one) for tool, one in proposed.items()}, "eval": command}
        )
        return
    echo(f"Wrote {', '.join(contents)} to {folder}: keywords for {pluralize(len(proposed), 'tool')}. Compare with:")
    echo(f"  {command}")
    echo("Add queries that work today, to see whether they still do. search.keywords in the settings names the file.")


def _write_all(folder: Path, contents: Mapping[str, str]) -> None:
    """Write the files, readable by this user only, unless one of them is there already."""
    taken = [name for name in contents if (folder / name).exists()]
    if taken:
        raise UsageError(f"{folder / taken[0]} exists already.", hint="Name another folder.")
    try:
        make_folders(folder)
        for name, text in contents.items():
            with os.fdopen(open_private(folder / name, os.O_WRONLY | os.O_EXCL), "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}.") from error
