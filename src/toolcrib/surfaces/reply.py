"""Render what surfaces answer: results, errors, and search replies within a token budget.

Each reply is text for the model and the same as structured content for programs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import ne
from typing import Any, Final, get_args

from toolcrib.errors import ToolcribError
from toolcrib.gateway.visibility import describe_state
from toolcrib.providers.content import json_text
from toolcrib.schema import example, signature
from toolcrib.tokens import LabelledCounter
from toolcrib.types import (
    JSON,
    Detail,
    Hit,
    Key,
    Object,
    SearchReply,
    SearchRequest,
    ServerStatus,
    Tool,
    ToolResult,
)

TOKENS_META: Final = "toolcrib/tokens"
"""Key of the token counts in `_meta`, in MCP's form of prefix, slash and name."""
DESCRIPTION_CHARS: Final[dict[Detail, int]] = {"summary": 100, "signature": 300}
"""Characters of a description at the lower levels of detail."""

Costs = Mapping[Detail, int]
"""The cost of a hit at each level of detail, in tokens."""

_FALLBACK_NOTE: Final = "Nothing matches the request. Hits marked as fallback are shown instead."
_BRACKET_TOKENS: Final = 2
_DETAILS: Final[tuple[Detail, ...]] = get_args(Detail)
_LOWER_DETAILS: Final[dict[Detail, tuple[Detail, ...]]] = {"full": ("signature", "summary"), "signature": ("summary",)}
_DETAIL_STEPS: Final[tuple[Detail, ...]] = ("signature", "summary")
_WARNING_HINT: Final = "destructiveHint"
_RISK_HINTS: Final = ("readOnlyHint", _WARNING_HINT)
_MAX_SIMILAR: Final = 5
"""Near-duplicates that a hit names; it counts the others."""
_QUERY_CHARS: Final = 80
"""Characters of the query that a hit of several queries repeats."""
_MAX_CACHED: Final = 10_000
_SCORE_DIGITS: Final = 3
_SAMPLE_SCORE: Final = 0.123
"""Placeholder for every score in cost estimates, because all cost about the same."""


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

    def __init__(self, counter: LabelledCounter) -> None:
        self._counter = counter
        self._entries = HitRenderer(counter)

    def render(self, reply: SearchReply, request: SearchRequest) -> ToolResult:
        """A JSON array of hits and, where needed, a note; the same as structured content; and token counts in `_meta`.

        The count `full` is the cost of the text if every hit were shown in full. The structured content repeats the
        text, and is not counted.
        """
        costs = [self._entries.costs(hit, request.queries) for hit in reply.hits]
        details, note = self._fitted(reply, costs, request.budget)
        hits = zip(reply.hits, details, strict=True)
        entries = [self._entries.render(hit, detail, request.queries) for hit, detail in hits]
        blocks = [json_text(entries), *([note] if note else [])]
        return ToolResult(
            content=tuple({"type": "text", "text": block} for block in blocks),
            structured=_structured(reply, entries, note),
            meta={TOKENS_META: self._counts(reply, costs, details, blocks)},
        )

    def _counts(
        self, reply: SearchReply, costs: Sequence[Costs], details: Sequence[Detail], blocks: Sequence[str]
    ) -> dict[str, Any]:
        count = full = sum(map(self._counter.count, blocks))
        if any(detail != "full" for detail in details):
            full = sum(cost["full"] for cost in costs) + self._base(reply_note(reply))
        return {"reply": count, "full": max(count, full), "counter": self._counter.label, "of": "text"}

    def _fitted(self, reply: SearchReply, costs: Sequence[Costs], budget: int | None) -> tuple[Sequence[Detail], str]:
        """The detail of each hit within the budget, and the note, which says how many hits were shortened."""
        note, requested = reply_note(reply), [hit.detail for hit in reply.hits]
        if budget is None:
            return requested, note
        left = budget - self._base(note)
        details = fit_details(reply.hits, costs, left)
        if details == requested:
            return requested, note
        details = fit_details(reply.hits, costs, left - self._counter.count(_shortened_note(len(requested), budget)))
        lowered = sum(map(ne, details, requested))
        return details, reply_note(replace(reply, note=f"{reply.note} {_shortened_note(lowered, budget)}".strip()))

    def _base(self, note: str) -> int:
        """Tokens of a reply apart from its hits."""
        return self._counter.count(note) + _BRACKET_TOKENS


def _shortened_note(lowered: int, budget: int) -> str:
    return (
        f"To save tokens (budget {budget}), {lowered} of the hits are shortened. To see one in full, search for its "
        "name with max_results 1 and a larger budget."
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
        lines.append("Nearest names: " + ", ".join(reply.nearest))
    if reply.unmatched:
        lines.append("Words that match nothing: " + ", ".join(reply.unmatched))
    known = [status for status in reply.servers if not status.is_missing]  # the note counts the others
    lines.extend(f"Server {status.name} {describe_state(status)}" for status in known)
    if reply.cursor:
        lines.append(f"{reply.total} in total; continue with cursor {reply.cursor}")
    return "\n".join(lines)


# -- hits ------------------------------------------------------------------------------------------------------------


class HitRenderer:
    """Renders hits as JSON. Caches examples and token counts, which are slow to compute, by tool."""

    def __init__(self, counter: LabelledCounter) -> None:
        self._counter = counter
        self._cached: dict[Key, _ToolCosts] = {}

    def render(self, hit: Hit, detail: Detail, queries: tuple[str, ...]) -> dict[str, Any]:
        """The hit as JSON at a level of detail; name, description, score and input schema come first."""
        return {**self._entry(hit.tool, detail, hit.score, hit.signature), **hit_flags(hit, queries)}

    def costs(self, hit: Hit, queries: tuple[str, ...]) -> Costs:
        """The cost of the hit at each level of detail, in tokens, including a comma."""
        cached = self._cache_of(hit.tool)
        if not cached.costs:
            shapes = {detail: self._entry(hit.tool, detail, _SAMPLE_SCORE) for detail in _DETAILS}
            cached.costs = {detail: self._counter.count(json_text(shape)) + 1 for detail, shape in shapes.items()}
        more = hit_flags(hit, queries)
        if not more:
            return cached.costs
        added = self._counter.count(json_text(more))
        return {detail: cost + added for detail, cost in cached.costs.items()}

    def _entry(self, tool: Tool, detail: Detail, score: float, line: str = "") -> dict[str, Any]:
        about = (
            shorten(tool.description, DESCRIPTION_CHARS[detail]) if detail in DESCRIPTION_CHARS else tool.description
        )
        entry: dict[str, Any] = {"name": tool.id, "description": about, "score": round(score, _SCORE_DIGITS)}
        if detail == "full":
            entry["input_schema"] = tool.input_schema
            entry["example"] = {"name": tool.id, "arguments": self._cache_of(tool).arguments}
        elif detail == "signature":
            entry["signature"] = line or signature(tool)
        if hints := _hints(tool, detail):
            entry["annotations"] = hints
        return entry

    def _cache_of(self, tool: Tool) -> "_ToolCosts":
        cached = self._cached.get(tool.key)
        if cached is not None and cached.tool is tool:
            return cached
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        cached = self._cached[tool.key] = _ToolCosts(tool)
        return cached


class _ToolCosts:
    """Cached values for one definition of a tool."""

    __slots__ = ("arguments", "costs", "tool")

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.arguments: Object = example(tool)
        """Example arguments that match the tool's schema."""
        self.costs: Costs = {}


def _hints(tool: Tool, detail: Detail) -> dict[str, bool]:
    """The tool's declared read-only and destructive hints; in a summary only the warning."""
    declared = {key: tool.annotations[key] for key in _RISK_HINTS if isinstance(tool.annotations.get(key), bool)}
    if detail != "summary":
        return declared
    return {_WARNING_HINT: True} if declared.get(_WARNING_HINT) else {}


def hit_flags(hit: Hit, queries: tuple[str, ...]) -> dict[str, Any]:
    """What a reply says of a hit apart from its tool: weak match, fallback, near-duplicates, which query."""
    flags: dict[str, Any] = {}
    if hit.weak:
        flags["weak"] = True
    if hit.fallback:
        flags["fallback"] = True
    if hit.similar:
        flags["similar"] = list(hit.similar[:_MAX_SIMILAR])
    if len(hit.similar) > _MAX_SIMILAR:
        flags["more_similar"] = len(hit.similar) - _MAX_SIMILAR
    if len(queries) > 1:
        flags["query"] = shorten(queries[hit.query], _QUERY_CHARS)
    return flags


def shorten(text: str, limit: int) -> str:
    """The text on one line, cut between words to a number of characters.

    >>> shorten("Send a message. Needs a token.", 20), shorten("Send a message.", 20)
    ('Send a message. ...', 'Send a message.')
    """
    line = " ".join(text[: 4 * limit].split())
    if len(line) <= limit and len(text) <= 4 * limit:
        return line
    whole, _, _ = line[: limit - 3].rpartition(" ")
    return f"{whole or line[: limit - 4]} ..."


def fit_details(hits: Sequence[Hit], costs: Sequence[Costs], budget: int) -> list[Detail]:
    """The detail of each hit within a budget of tokens. Shortens the worst hits first, and never drops a hit.

    First shortens all but the best hits to signatures, the worst first, then to summaries; the best hit of each query
    comes last. If the best hits alone exceed the budget, they are shortened along with the others. A hit never shows
    more than requested.
    """
    details = [hit.detail for hit in hits]
    total = sum(cost[detail] for cost, detail in zip(costs, details, strict=True))
    if total <= budget:
        return details
    for place, detail in _lowering_steps(hits, costs, budget):
        if detail in _LOWER_DETAILS.get(details[place], ()):
            total += costs[place][detail] - costs[place][details[place]]
            details[place] = detail
            if total <= budget:
                break
    return details


def _lowering_steps(hits: Sequence[Hit], costs: Sequence[Costs], budget: int) -> Iterator[tuple[int, Detail]]:
    """The places of hits to shorten and their new details, in order."""
    ranks = _ranks(hits)
    worst_first = sorted(range(len(hits)), key=lambda place: (-ranks[place], -place))
    best = [place for place in worst_first if ranks[place] == 0]
    others = [place for place in worst_first if ranks[place] > 0]
    least = sum(costs[place][hits[place].detail] for place in best) + sum(costs[place]["summary"] for place in others)
    for group in (others, best) if least <= budget else (worst_first,):
        for detail in _DETAIL_STEPS:
            for place in group:
                yield place, detail


def _ranks(hits: Sequence[Hit]) -> list[int]:
    """The rank of each hit among those of its query, from 0."""
    seen: dict[int, int] = {}
    ranks = []
    for hit in hits:
        rank = seen.get(hit.query, 0)
        ranks.append(rank)
        seen[hit.query] = rank + 1
    return ranks
