"""The overview: servers by state, what agents carry, how many calls there are, what went wrong; and a page a server."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import anyio.to_thread

from toolcrib.console.pages import ConsoleParts, Page, Visit
from toolcrib.console.recorder import RecordedCall
from toolcrib.errors import NotFound
from toolcrib.gateway.visibility import namespace_of
from toolcrib.tokens import estimate_tokens
from toolcrib.types import Context, ServerState, ServerStatus, Tool

_RECENT: Final = 8
_KEPT: Final = 10_000
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


@dataclass(frozen=True, slots=True)
class Carried:
    """The tokens of what an agent has in its context before it does anything."""

    tools: int
    """All tools that it can use."""
    everything: int
    """The tokens of all their definitions."""
    now: int
    """Those of what is listed, and of the instructions."""
    listed: int
    """How many tools are listed."""

    @property
    def saved(self) -> float:
        """The share that is not carried."""
        return max(0.0, 1 - self.now / self.everything) if self.everything else 0.0


class TokenCounts:
    """Counts the tokens of definitions, each once: a tool stays the same object while its definition does."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[Tool, int]] = {}

    def total(self, tools: Iterable[Tool]) -> int:
        """The tokens of all definitions, estimated. Takes some time for tools that were not counted before."""
        counted = [self._count(tool) for tool in tools]
        if len(self._counted) > 2 * len(counted) + _KEPT:
            self._counted.clear()
        return sum(counted)

    def _count(self, tool: Tool) -> int:
        known = self._counted.get(id(tool))
        if known is None:  # keeps the tool, so that no other one gets its identity
            known = self._counted[id(tool)] = (tool, estimate_tokens(_definition(tool)))
        return known[1]


def _definition(tool: Tool) -> str:
    parts: dict[str, Any] = {
        "name": tool.id,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations,
    }
    return json.dumps({key: value for key, value in parts.items() if value}, ensure_ascii=False, default=dict)


_COUNTS: Final = TokenCounts()


async def carried(parts: ConsoleParts, ctx: Context) -> Carried:
    """What an agent with the rights of this context would carry, and what it carries."""
    view = await parts.gateway.view(ctx)
    instructions = await parts.facade.instructions(ctx)
    listed, cursor = list[Tool](), None
    while True:
        page = await parts.facade.page(ctx, cursor)
        listed += (entry.tool for entry in page.items)
        if (cursor := page.cursor) is None:
            break

    def count() -> Carried:
        tools = view.tools()
        everything = _COUNTS.total(tools)
        own = {id(tool) for tool in tools}
        now = _COUNTS.total([tool for tool in listed if id(tool) in own])
        now += sum(estimate_tokens(_definition(tool)) for tool in listed if id(tool) not in own)
        return Carried(len(tools), everything, now + estimate_tokens(instructions), len(listed))

    return await anyio.to_thread.run_sync(count)


def server_rows(parts: ConsoleParts) -> list[ServerRow]:
    """All servers, those with problems first."""
    counts = parts.recorder.calls_by_namespace()
    rows = [
        ServerRow(status, _WORDS[status.state], *counts.get(namespace_of(status), (0, 0)))
        for status in parts.statuses()
    ]
    return sorted(rows, key=lambda row: (_ORDER[row.status.state], row.status.name.casefold()))


async def show(visit: Visit) -> Page:
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
        "carried": await carried(parts, visit.context()),
        "minutes": minutes,
        "per_minute": _per_minute([minute.calls for minute in minutes]),
        "calls": sum(minute.calls for minute in minutes),
        "errors": sum(minute.errors for minute in minutes),
        "searches": sum(minute.searches for minute in minutes),
        "recent": calls[:_RECENT],
        "failures": [one for one in calls if one.failed][:_RECENT],
        "warnings": parts.settings().warnings,
        "source": parts.settings().source,
    }
    return Page("overview.html", values)


def _per_minute(calls: Sequence[int]) -> float:
    """Calls a minute, over the last five whole minutes."""
    recent = calls[-6:-1]
    return round(sum(recent) / len(recent), 1)


async def show_server(visit: Visit) -> Page:
    """One server. Raises `NotFound`."""
    name = visit.request.path_params["name"]
    row = next((row for row in server_rows(visit.parts) if row.status.name == name), None)
    if row is None:
        raise NotFound(f"There is no server {name[:80]}.", hint="The overview lists all servers.")
    namespace = namespace_of(row.status)
    view = await visit.parts.gateway.view(visit.context())
    tools = [tool for tool in view.tools() if tool.namespace == namespace]
    values = {
        "title": name,
        "row": row,
        "status": row.status,
        "namespace": namespace,
        "tools": tools[:_MAX_ROWS],
        "more_tools": len(tools) - _MAX_ROWS,
    }
    return Page("server.html", values)
