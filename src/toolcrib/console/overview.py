"""The overview: servers by state, what agents carry, how many calls there are, what went wrong; and a page a server."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

import anyio.to_thread

from toolcrib.console.parts import ConsolePage, ConsoleParts, Visit
from toolcrib.console.processes import ProcessOverview, latest, merged_minutes, merged_namespaces
from toolcrib.errors import NotFound, SettingsError
from toolcrib.gateway.server_states import namespace_of
from toolcrib.settings.document import read_file
from toolcrib.settings.edits import Change, server_places, shown_difference
from toolcrib.state.coordination import Answers, Peer
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
_WORDS: Final[Mapping[ServerState, str]] = {
    ServerState.FAILED: "failed",
    ServerState.DEGRADED: "degraded",
    ServerState.CONNECTING: "connecting",
    ServerState.CONFIGURED: "waiting",
    ServerState.READY: "ready",
    ServerState.IDLE: "idle",
}
_PLACES: Final = {_WORDS[state]: place for state, place in _ORDER.items()}
"""The order of the words in the table."""


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server in the table."""

    status: ServerStatus
    """In this process, if it is there."""
    word: str
    """Its worst state in any process."""
    calls: int
    """In the last hour."""
    errors: int
    differing: tuple[tuple[str, str, str], ...] = ()
    """Processes where it is in another state than in this one: name, state and reason."""


def server_rows(parts: ConsoleParts, answers: Answers[ProcessOverview]) -> list[ServerRow]:
    """The servers of all processes, those with problems first."""
    counts = merged_namespaces(tuple(answers.given.values()))
    places: dict[str, list[tuple[Peer, ServerStatus]]] = {}
    for status in parts.statuses():
        places.setdefault(status.name, []).append((parts.processes.own, status))
    for peer, one in answers.given.items():
        for status in one.statuses if peer.id != parts.processes.own.id else ():
            places.setdefault(status.name, []).append((peer, status))
    rows = []
    for found in places.values():
        status = found[0][1]
        worst = min((one for _, one in found), key=lambda one: _ORDER[one.state])
        differing = tuple(
            (peer.name, _WORDS[one.state], one.reason) for peer, one in found if one.state is not status.state
        )
        rows.append(ServerRow(status, _WORDS[worst.state], *counts.get(namespace_of(status), (0, 0)), differing))
    return sorted(rows, key=lambda row: (_PLACES[row.word], row.status.name.casefold()))


async def show(visit: Visit) -> ConsolePage:
    """The overview."""
    parts, processes = visit.parts, visit.parts.processes
    answers = await processes.overview()
    all_ = tuple(answers.given.values())
    rows, minutes = server_rows(parts, answers), merged_minutes(all_, time.time())
    states = [(word, sum(row.word == word for row in rows)) for word in _PLACES]
    recent = latest(processes.placed(event, peer) for peer, one in answers.given.items() for event in one.latest)
    failures = latest(processes.placed(event, peer) for peer, one in answers.given.items() for event in one.failures)
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
        "recent": recent[:_RECENT],
        "failures": failures[:_RECENT],
        # Not this one first: either of several workers may answer the next request for the page.
        "processes": sorted(answers.given.items(), key=lambda pair: (pair[0].name, pair[0].id)),
        "missing": [peer.name for peer in answers.missing],
        "differing": len({one.settings for one in all_}) > 1,
        "problems": [(peer.name, one.problem) for peer, one in answers.given.items() if one.problem],
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
    answers = await visit.parts.processes.overview()
    row = next((row for row in server_rows(visit.parts, answers) if row.status.name == name), None)
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
