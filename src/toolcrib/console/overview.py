"""The overview: servers by state, what agents carry, how many calls there are, what went wrong; and a page a server."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, get_args

import anyio.to_thread

from toolcrib.console.pages import ConsolePage, ConsoleParts, Visit
from toolcrib.console.recorder import RecordedCall
from toolcrib.errors import NotFound, SettingsError
from toolcrib.gateway.visibility import namespace_of
from toolcrib.settings.document import read_file
from toolcrib.settings.servers import Change, server_places, shown_difference
from toolcrib.types import ServerState, ServerStatus

_RECENT: Final = 8
_MAX_ROWS: Final = 200
"""Servers in the table; the ones with problems come first."""
_ORDER: Final = {
    state: place
    for place, state in enumerate(
        (
            ServerState.FAILED,
            ServerState.DEGRADED,
            ServerState.CONNECTING,
            ServerState.CONFIGURED,
            ServerState.READY,
            ServerState.IDLE,
        )
    )
}
_WORDS: Final = {
    ServerState.FAILED: "failed",
    ServerState.DEGRADED: "degraded",
    ServerState.CONNECTING: "connecting",
    ServerState.CONFIGURED: "waiting",
    ServerState.READY: "ready",
    ServerState.IDLE: "idle",
}


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server in the table."""

    status: ServerStatus
    word: str
    calls: int
    """In the last hour."""
    errors: int


def server_rows(parts: ConsoleParts) -> list[ServerRow]:
    """All servers, those with problems first."""
    counts = parts.recorder.calls_by_namespace()
    rows = [
        ServerRow(status, _WORDS[status.state], *counts.get(namespace_of(status), (0, 0)))
        for status in parts.statuses()
    ]
    return sorted(rows, key=lambda row: (_ORDER[row.status.state], row.status.name.casefold()))


async def show(visit: Visit) -> ConsolePage:
    """The overview."""
    parts = visit.parts
    rows, minutes = server_rows(parts), parts.recorder.minutes()
    states = [(word, sum(row.word == word for row in rows)) for word in dict.fromkeys(_WORDS.values())]
    calls = [one for one in islice(parts.recorder.recent(), _MAX_ROWS) if isinstance(one, RecordedCall)]
    values = {
        "title": "Overview",
        "rows": rows[:_MAX_ROWS],
        "more_rows": len(rows) - _MAX_ROWS,
        "states": [(word, count) for word, count in states if count],
        "carried": await parts.carried.count(parts.facade, visit.context()),
        "minutes": minutes,
        "per_minute": _per_minute([minute.calls for minute in minutes]),
        "calls": sum(minute.calls for minute in minutes),
        "errors": sum(minute.errors for minute in minutes),
        "searches": sum(minute.searches for minute in minutes),
        "recent": calls[:_RECENT],
        "failures": [one for one in calls if one.failed][:_RECENT],
        "warnings": parts.settings().warnings,
        "disabled": await anyio.to_thread.run_sync(_disabled, parts.settings().source),
        "source": parts.settings().source,
    }
    return ConsolePage("overview.html", values)


def _per_minute(calls: Sequence[int]) -> float:
    """Calls a minute, over the last five whole minutes."""
    recent = calls[-6:-1]
    return round(sum(recent) / len(recent), 1)


async def show_server(visit: Visit) -> ConsolePage:
    """One server. Raises `NotFound`."""
    name = visit.request.path_params["name"]
    row = next((row for row in server_rows(visit.parts) if row.status.name == name), None)
    if row is None:
        raise NotFound(f"There is no server {name[:80]}.", hint="The overview lists all servers.")
    namespace = namespace_of(row.status)
    view = await visit.parts.gateway.view(visit.context())
    tools = [tool for tool in view.tools() if tool.namespace == namespace]
    own = {server.name for server in visit.parts.settings().servers}
    values = {
        "title": name,
        "can_change": visit.parts.settings().source is not None and name in own,
        "row": row,
        "status": row.status,
        "namespace": namespace,
        "tools": tools[:_MAX_ROWS],
        "more_tools": len(tools) - _MAX_ROWS,
    }
    return ConsolePage("server.html", values)


# -- changes ---------------------------------------------------------------------------------------------------------


async def show_change(visit: Visit) -> ConsolePage:
    """What a change of a server would do to the settings file, and the command that makes it. Changes nothing.

    Raises `NotFound` without a file, and `SettingsError` for a server that it does not have.
    """
    name, wanted = visit.request.path_params["name"], visit.query.get("to", "")
    file = visit.parts.settings().source
    change = next((one for one in get_args(Change) if one == wanted), None)
    if file is None or change is None:
        raise NotFound("There is no such change.", hint="Servers of a settings file can be disabled and removed.")
    text = await anyio.to_thread.run_sync(shown_difference, file, name, change)
    values = {
        "title": f"{change.capitalize()} {name}",
        "name": name,
        "change": change,
        "diff": [(line[:1], line) for line in visit.parts.hide(text).splitlines()],
        "command": shlex.join(["toolcrib", change, name, "--config", str(file)]),
        "file": file,
    }
    return ConsolePage("change.html", values)


def _disabled(file: Path | None) -> list[str]:
    """The servers of a settings file that are switched off."""
    if file is None:
        return []
    try:
        return [place.name for place in server_places(read_file(file, file.name)) if not place.is_on]
    except SettingsError:
        return []
