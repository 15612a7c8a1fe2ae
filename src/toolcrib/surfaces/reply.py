"""A search's reply as a result: text for the model, the same as data for programs, and what it costs."""

from collections.abc import Sequence
from dataclasses import replace
from operator import ne
from typing import Any, Final

from toolcrib.gateway.states import stands
from toolcrib.model import Detail, SearchReply, SearchRequest, ServerStatus, ToolResult
from toolcrib.surfaces.budget import Costs, fitted
from toolcrib.surfaces.entries import Entries
from toolcrib.surfaces.results import json_text
from toolcrib.tokens import LabelledCounter

TOKENS: Final = "toolcrib/tokens"
"""The key of the counts in `_meta`: MCP asks for a prefix, a slash and a name."""

_BRACKETS: Final = 2
_INSTEAD: Final = "Nothing fits what was asked. Hits marked as fallback are shown instead."


class Replies:
    """Makes results of replies, within the budget of each request."""

    def __init__(self, counter: LabelledCounter) -> None:
        """Everything is counted with the counter."""
        self._counter = counter
        self._entries = Entries(counter)

    def result(self, reply: SearchReply, request: SearchRequest) -> ToolResult:
        """A JSON array of hits, a note where one is due, the same as structured content, and the tokens of the text.

        `full` is what the text would cost if every hit were shown in full. The structured content repeats the text and
        is not counted.
        """
        costs = [self._entries.costs(hit, request.queries) for hit in reply.hits]
        details, note = self._fitted(reply, costs, request.budget)
        hits = zip(reply.hits, details, strict=True)
        entries = [self._entries.of(hit, detail, request.queries) for hit, detail in hits]
        blocks = [json_text(entries), *([note] if note else [])]
        return ToolResult(
            content=tuple({"type": "text", "text": block} for block in blocks),
            structured=_structured(reply, entries, note),
            meta={TOKENS: self._counts(reply, costs, details, blocks)},
        )

    def _counts(
        self, reply: SearchReply, costs: Sequence[Costs], details: Sequence[Detail], blocks: Sequence[str]
    ) -> dict[str, Any]:
        count = full = sum(map(self._counter.count, blocks))
        if any(detail != "full" for detail in details):
            full = sum(cost["full"] for cost in costs) + self._base(note_of(reply))
        return {"reply": count, "full": max(count, full), "counter": self._counter.label, "of": "text"}

    def _fitted(self, reply: SearchReply, costs: Sequence[Costs], budget: int | None) -> tuple[Sequence[Detail], str]:
        """How much is shown of each hit, as far as the budget reaches, and the note, which says how many show less."""
        note, asked = note_of(reply), [hit.detail for hit in reply.hits]
        if budget is None:
            return asked, note
        left = budget - self._base(note)
        details = fitted(reply.hits, costs, left)
        if details == asked:
            return asked, note
        details = fitted(reply.hits, costs, left - self._counter.count(_shorter(len(asked), budget)))
        lowered = sum(map(ne, details, asked))
        return details, note_of(replace(reply, note=f"{reply.note} {_shorter(lowered, budget)}".strip()))

    def _base(self, note: str) -> int:
        """What a reply costs beside its hits."""
        return self._counter.count(note) + _BRACKETS


def _shorter(lowered: int, budget: int) -> str:
    return (
        f"To save tokens (budget {budget}), {lowered} of the hits show less. To see all of one, search for its name "
        "with max_results 1 and a larger budget."
    )


def _structured(reply: SearchReply, entries: list[dict[str, Any]], note: str) -> dict[str, Any]:
    structured: dict[str, Any] = {
        "hits": entries,
        "unmatched": list(reply.unmatched),
        "servers": [server_entry(status) for status in reply.servers],
        "note": note,
    }
    if reply.nearest:
        structured["nearest"] = list(reply.nearest)
    if reply.cursor:
        structured["cursor"] = reply.cursor
    return structured


def server_entry(status: ServerStatus) -> dict[str, Any]:
    """A troubled server as JSON."""
    entry = {"name": status.name, "state": str(status.state), "reason": status.reason}
    return {**entry, "stale": True} if status.stale else entry


def note_of(reply: SearchReply) -> str:
    """All there is to say of a reply beside its hits, a line each; empty where there is nothing."""
    lines = [reply.note] if reply.note else []
    if not reply.hits and not reply.note:
        lines.append("There is no tool to list.")
    if any(hit.fallback for hit in reply.hits) and "instead" not in reply.note:
        lines.append(_INSTEAD)
    if reply.nearest:
        lines.append("Nearest names: " + ", ".join(reply.nearest))
    if reply.unmatched:
        lines.append("Words that match nothing: " + ", ".join(reply.unmatched))
    for status in reply.servers:
        kept = "; its last known tools are listed" if status.stale else ""
        lines.append(f"Server {status.name} {stands(status)}{kept}")
    if reply.cursor:
        lines.append(f"{reply.total} in all; continue with cursor {reply.cursor}")
    return "\n".join(lines)
