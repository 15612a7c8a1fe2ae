"""Render what surfaces answer: results, errors, and search replies within a token budget.

Each reply is text for the model and the same as structured content for programs.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import anyio.to_thread

from toolcrib.errors import ToolcribError
from toolcrib.gateway.visibility import describe_state
from toolcrib.middleware.observers import DefinitionObserver
from toolcrib.providers.content import json_text
from toolcrib.surfaces.hits import HitRenderer
from toolcrib.surfaces.selection import ROUND_TRIP_TOKENS, Candidate, Level, choose_levels, shares, useful_levels
from toolcrib.tokens import LabelledCounter
from toolcrib.types import JSON, Detail, Hit, SearchReply, SearchRequest, ServerStatus, ToolResult

T = TypeVar("T")

TOKENS_META: Final = "toolcrib/tokens"
"""Key of the token counts in `_meta`, in MCP's form of prefix, slash and name."""
_FALLBACK_NOTE: Final = "Nothing matches the request. Hits marked as fallback are shown instead."
NEAREST_LINE: Final = "Nearest names: "
UNMATCHED_LINE: Final = "Words that match nothing: "
"""How the lines of a note begin that repeat a list of the structured content."""
_BRACKET_TOKENS: Final = 2
_MAX_SERVERS: Final = 20
"""Servers with a problem that the structured content of an economical reply describes; it counts the others."""
_TOP_LEVELS: Final[dict[Detail, Level]] = {
    "full": Level.COMPLETE,
    "signature": Level.SIGNATURE,
    "summary": Level.SUMMARY,
}
"""The highest level that a request for some detail allows."""


# -- results ------------------------------------------------------------------------------------------------------


def text_result(text: str, *, structured: JSON = None, is_error: bool = False) -> ToolResult:
    """A result with one text block, and structured content where given."""
    return ToolResult(content=({"type": "text", "text": text},), structured=structured, is_error=is_error)


def error_result(error: ToolcribError) -> ToolResult:
    """An error as a tool result: text for the model, and the same as data for programs."""
    return text_result(error_text(error), structured={"error": error.payload()}, is_error=True)


def error_text(error: ToolcribError) -> str:
    """The error's message and hint, and those suggestions that they do not mention already."""
    text = str(error)
    more = [name for name in error.suggestions if name not in text]
    return f"{text} Did you mean: {', '.join(more)}?" if more else text


# -- search replies --------------------------------------------------------------------------------------------------


class ReplyRenderer:
    """Turns search replies into tool results, within the token budget of each request."""

    def __init__(self, counter: LabelledCounter, definitions: DefinitionObserver | None = None) -> None:
        """`definitions` learns how many tokens each reply takes for the tools of each namespace."""
        self._counter = counter
        self._definitions = definitions
        self.hits = HitRenderer(counter)
        """Renders single hits."""

    async def run(self, hits: Sequence[Hit], work: Callable[[], T], *, economical: bool) -> T:
        """Do some work that renders these hits: in a thread if that may take long, since their forms are not cached."""
        level = Level.NAME if economical else Level.COMPLETE
        if all(self.hits.has_rendered(hit.tool, min(level, _TOP_LEVELS[hit.detail])) for hit in hits):
            return work()
        return await anyio.to_thread.run_sync(work)

    def render(self, reply: SearchReply, request: SearchRequest, *, economical: bool = False) -> ToolResult:
        """A JSON array of hits and, where needed, a note; the same as structured content; and token counts in `_meta`.

        If `economical`, a hit shows more only while that is likely to save a round trip, and hits that are very
        unlikely are left out unless the request has a limit; otherwise the whole budget may be spent. The count `full`
        is the cost of the text if every hit came with its whole definition. The structured content repeats the text,
        and is not counted.
        """
        levels = self.levels(reply, request, economical=economical)
        self.report(reply, request, levels)
        entries = [
            self.hits.render(hit, level, request.queries)
            for hit, level in zip(reply.hits, levels, strict=True)
            if level is not None
        ]
        note = _joined(reply_note(reply), _levels_note(reply.hits, levels))
        blocks = [json_text(entries), *([note] if note else [])]
        return ToolResult(
            content=tuple({"type": "text", "text": block} for block in blocks),
            structured=_structured(reply, entries, note, _MAX_SERVERS if economical else len(reply.servers)),
            meta={TOKENS_META: self._counts(reply, levels, blocks)},
        )

    def levels(self, reply: SearchReply, request: SearchRequest, *, economical: bool) -> Sequence[Level | None]:
        """The level of each hit within the budget, note included; None for those that are left out."""
        if request.budget is None:
            return [_TOP_LEVELS[hit.detail] for hit in reply.hits]
        left = request.budget - self._counter.count(_joined(reply_note(reply), _LONGEST_NOTE)) - _BRACKET_TOKENS
        listing = all(hit.score == 0 for hit in reply.hits)
        return choose_levels(
            self._candidates(reply.hits, request, economical=economical),
            left,
            round_trip=ROUND_TRIP_TOKENS if economical and not listing else None,
            keep_all=not economical or listing or request.limit is not None,
        )

    def report(self, reply: SearchReply, request: SearchRequest, levels: Sequence[Level | None]) -> None:
        """Report what the hits of a reply cost at these levels."""
        if self._definitions is None:
            return
        tokens: Counter[str] = Counter()
        for hit, level in zip(reply.hits, levels, strict=True):
            if level is not None:
                tokens[hit.tool.namespace] += self.hits.costs(hit, (level,), request.queries)[level]
        self._definitions.tools_shown(tokens)

    def _candidates(self, hits: Sequence[Hit], request: SearchRequest, *, economical: bool) -> list[Candidate]:
        seen: set[int] = set()
        candidates = []
        for hit, share in zip(hits, shares(hits), strict=True):
            best = hit.query not in seen and hit.score > 0
            likely = 1.0 if best or not economical else share
            levels = useful_levels(_TOP_LEVELS[hit.detail], likely, economical=economical)
            costs = self.hits.costs(hit, levels, request.queries)
            candidates.append(Candidate(share=share, costs=costs, best=best))
            seen.add(hit.query)
        return candidates

    def _counts(self, reply: SearchReply, levels: Sequence[Level | None], blocks: Sequence[str]) -> dict[str, Any]:
        count = full = sum(map(self._counter.count, blocks))
        if levels != [_TOP_LEVELS[hit.detail] for hit in reply.hits]:
            full = sum(self.hits.definition_cost(hit.tool) for hit in reply.hits)
            full += self._counter.count(reply_note(reply)) + _BRACKET_TOKENS
        return {"reply": count, "full": max(count, full), "counter": self._counter.label, "of": "text"}


_MAX_WORDS: Final = 12
"""Words without a match that a reply names."""
_MAX_WORD_CHARS: Final = 40
_LONGEST_NOTE: Final = "100 unlikely tools are left out; max_results shows more. Search for a name to see its schema."


def _joined(*lines: str) -> str:
    return "\n".join(filter(None, lines))


def _levels_note(hits: Sequence[Hit], levels: Sequence[Level | None]) -> str:
    """How many hits are left out, and how to see more of those that are shortened."""
    notes = []
    if dropped := levels.count(None):
        are = "tool is" if dropped == 1 else "tools are"
        notes.append(f"{dropped} unlikely {are} left out; max_results shows more.")
    shown = [(hit.detail, level) for hit, level in zip(hits, levels, strict=True) if level is not None]
    if any(level < min(Level.FULL, _TOP_LEVELS[detail]) for detail, level in shown):
        notes.append("Search for a name to see its schema.")
    return " ".join(notes)


def _structured(reply: SearchReply, entries: list[dict[str, Any]], note: str, most: int) -> dict[str, Any]:
    structured: dict[str, Any] = {
        "hits": entries,
        "unmatched": _shown_words(reply.unmatched),
        "servers": [server_entry(status) for status in reply.servers[:most]],
        "note": note,
    }
    if len(reply.servers) > most:
        structured["more_servers"] = len(reply.servers) - most
    if reply.nearest:
        structured["nearest"] = list(reply.nearest)
    if reply.cursor:
        structured["cursor"] = reply.cursor
    return structured


def _shown_words(words: Sequence[str]) -> list[str]:
    """The first words of a query, each cut: a reply does not repeat a long query.

    >>> _shown_words(["blarg", "z" * 20_000])
    ['blarg', 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz…']
    """
    shown = [word if len(word) <= _MAX_WORD_CHARS else f"{word[: _MAX_WORD_CHARS - 1]}…" for word in words[:_MAX_WORDS]]
    return [*shown, f"and {len(words) - _MAX_WORDS} more"] if len(words) > _MAX_WORDS else shown


def server_entry(status: ServerStatus) -> dict[str, Any]:
    """The status of a server with a problem, as JSON."""
    entry = {"name": status.name, "state": str(status.state), "reason": status.reason}
    if not status.stale:
        return entry
    return {**entry, "stale": True} | ({"as_of": status.as_of} if status.as_of is not None else {})


def reply_note(reply: SearchReply) -> str:
    """Everything in a reply apart from its hits, one line each; may be empty."""
    lines = [reply.note] if reply.note else []
    if not reply.hits and not reply.note:
        lines.append("There are no tools to list.")
    missing = any(status.is_missing for status in reply.servers)
    if any(hit.fallback for hit in reply.hits) and "instead" not in reply.note and not missing:
        lines.append(_FALLBACK_NOTE)
    if reply.nearest:
        lines.append(NEAREST_LINE + ", ".join(reply.nearest))
    if reply.unmatched:
        lines.append(UNMATCHED_LINE + ", ".join(_shown_words(reply.unmatched)))
    known = [status for status in reply.servers if not status.is_missing]  # the note counts the others
    lines.extend(f"Server {status.name} {describe_state(status)}" for status in known)
    if reply.cursor:
        lines.append(f"{reply.total} in total; continue with cursor {reply.cursor}")
    return "\n".join(lines)
