"""Render what surfaces answer: results, errors, and search replies within a token budget.

Each reply is text for the model and the same as structured content for programs. Each hit of a search is rendered at a
level of detail, and its tokens are counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from toolcrib.errors import ToolcribError
from toolcrib.gateway.server_states import describe_state
from toolcrib.middleware.admission import FairQueue
from toolcrib.middleware.observers import DefinitionObserver
from toolcrib.providers.content import json_text
from toolcrib.schema import example, signature
from toolcrib.schema.compact import compact, cut_sentences, required_part
from toolcrib.schema.example import adds_to_schema, adds_to_signature
from toolcrib.surfaces.selection import ROUND_TRIP_TOKENS, Candidate, Level, choose_levels, shares, useful_levels
from toolcrib.tokens import LabelledCounter
from toolcrib.types import (
    JSON,
    Caller,
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

T = TypeVar("T")

ERROR_META: Final = "toolcrib/error"
"""Key in `_meta` of what toolcrib itself says of a failed call: `code`, `message` and `hint`, as in JSON-RPC errors."""
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
DESCRIPTION_CHARS: Final[Mapping[Level, int]] = {
    Level.SUMMARY: 100,
    Level.SIGNATURE: 200,
    Level.REQUIRED: 160,
    Level.FULL: 450,
}
"""Characters of a tool's description; the level `COMPLETE` has all of it."""
_CALL_KEYS: Final = ("signature", "input_schema", "optional", "more_optional", "example")
_WARNING_HINT: Final = "destructiveHint"
_RISK_HINTS: Final = ("readOnlyHint", _WARNING_HINT)
_MAX_SIMILAR: Final = 5
"""Tools grouped under a hit that it names; it counts the others."""
_MAX_OPTIONAL: Final = 12
"""Optional parameters that the required part of a schema names; it counts the others."""
_QUERY_CHARS: Final = 60
"""Characters of the query that a hit of several queries repeats."""
_MAX_CACHED: Final = 1_000
"""Tools whose rendered forms are kept."""
_SCORE_DIGITS: Final = 3
_SAMPLE_SCORE: Final = 0.123
"""Placeholder for every score in cost estimates, because all cost about the same."""


# -- results ------------------------------------------------------------------------------------------------------


def text_result(text: str, *, structured: JSON = None, is_error: bool = False) -> ToolResult:
    """A result with one text block, and structured content where given."""
    return ToolResult(content=({"type": "text", "text": text},), structured=structured, is_error=is_error)


def error_result(error: ToolcribError) -> ToolResult:
    """An error as the result of a tool: text for the model, and the same as data for programs in `_meta`.

    Structured content would have to match the output schema of the tool: clients check that of errors, too.
    """
    return replace(text_result(error_text(error), is_error=True), meta={ERROR_META: error.payload()})


def meta_tool_error(error: ToolcribError) -> ToolResult:
    """An error as the result of a meta-tool, none of which has an output schema: the data is structured content too."""
    return replace(error_result(error), structured={"error": error.payload()})


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
        self.hits = _HitRenderer(counter)
        """Renders single hits."""

    async def run(
        self, hits: Sequence[Hit], work: Callable[[], T], *, economical: bool, queue: FairQueue, caller: Caller
    ) -> T:
        """Do some work that renders these hits: in the caller's turn, or in a thread if their forms are not cached."""
        level = Level.NAME if economical else Level.COMPLETE
        if all(self.hits.has_rendered(hit.tool, min(level, _TOP_LEVELS[hit.detail])) for hit in hits):
            return await queue.run(caller, work)
        return await queue.run_in_thread(caller, work)

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
            self.hits.render(hit, level, request.needs)
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
                tokens[hit.tool.namespace] += self.hits.costs(hit, (level,), request.needs)[level]
        self._definitions.tools_shown(tokens)

    def _candidates(self, hits: Sequence[Hit], request: SearchRequest, *, economical: bool) -> list[Candidate]:
        seen: set[int] = set()
        candidates = []
        for hit, share in zip(hits, shares(hits), strict=True):
            best = hit.named or (hit.query not in seen and hit.score > 0)
            likely = 1.0 if best or not economical else share
            levels = useful_levels(_TOP_LEVELS[hit.detail], likely, economical=economical)
            costs = self.hits.costs(hit, levels, request.needs)
            alone = self.hits.costs(replace(hit, similar=()), (Level.NAME,), request.needs) if hit.similar else {}
            candidates.append(Candidate(share=share, costs=costs, best=best, alone=alone.get(Level.NAME)))
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


# -- hits --------------------------------------------------------------------------------------------------------------


class _HitRenderer:
    """Renders hits as JSON, from any thread. Caches what is slow to compute, by tool."""

    def __init__(self, counter: LabelledCounter) -> None:
        self._counter = counter
        self._cached: dict[Key, _ToolViews] = {}

    def render(self, hit: Hit, level: Level, queries: tuple[str, ...]) -> dict[str, Any]:
        """The hit as JSON; name, description, score and input schema come first."""
        entry = {**self._views(hit.tool).entry(level), "score": round(hit.score, _SCORE_DIGITS)}
        return {**entry, **hit_flags(hit, queries, level)}

    def costs(self, hit: Hit, levels: Iterable[Level], queries: tuple[str, ...]) -> dict[Level, int]:
        """The cost of the hit at each of the levels, in tokens, including a comma."""
        views, flags = self._views(hit.tool), hit_flags(hit, queries)
        added = self._flag_cost(flags) if flags else 0
        costs = {level: views.cost(level, self._counter) + added for level in levels}
        if hit.weak and Level.NAME in costs:
            costs[Level.NAME] += self._flag_cost(hit_flags(hit, queries, Level.NAME)) - added
        return costs

    def has_rendered(self, tool: Tool, level: Level) -> bool:
        """Whether the form of a tool at a level is in the cache, so that rendering it is fast."""
        cached = self._cached.get(tool.key)
        return cached is not None and cached.tool is tool and cached.has(level)

    def call_details(self, tool: Tool, level: Level) -> dict[str, Any]:
        """What a level shows of how to call a tool: signature or schema, and an example if that adds something."""
        entry = self._views(tool).entry(level)
        return {key: entry[key] for key in _CALL_KEYS if key in entry}

    def definition_cost(self, tool: Tool) -> int:
        """The cost of the tool's whole definition as its server gave it, in tokens."""
        return self._views(tool).definition_cost(self._counter)

    def _flag_cost(self, flags: Object) -> int:
        return self._counter.count(json_text(flags)) if flags else 0

    def _views(self, tool: Tool) -> "_ToolViews":
        cached = self._cached.get(tool.key)
        if cached is not None and cached.tool is tool:
            return cached
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        cached = self._cached[tool.key] = _ToolViews(tool)
        return cached


class _ToolViews:
    """The entries of one definition of a tool, and their costs."""

    __slots__ = ("_costs", "_definition_cost", "_entries", "_example", "_schema", "tool")

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self._costs: dict[Level, int] = {}
        self._definition_cost: int | None = None
        self._entries: dict[Level, dict[str, Any]] = {}
        self._example: dict[str, Any] | None = None
        self._schema: dict[str, Any] | None = None

    def entry(self, level: Level) -> dict[str, Any]:
        """The tool as JSON, with a placeholder for the score."""
        if level not in self._entries:
            self._entries[level] = self._make_entry(level)
        return self._entries[level]

    def has(self, level: Level) -> bool:
        return level in self._costs

    def cost(self, level: Level, counter: LabelledCounter) -> int:
        """Tokens of the entry and a comma."""
        if level not in self._costs:
            self._costs[level] = counter.count(json_text(self.entry(level))) + 1
        return self._costs[level]

    def definition_cost(self, counter: LabelledCounter) -> int:
        """Tokens of an entry with the tool's own schema, and a comma."""
        if self._definition_cost is None:
            shown = {**self.entry(Level.NAME), "description": self.tool.description}
            shown["input_schema"] = self.tool.input_schema
            if hints := _hints(self.tool, Level.COMPLETE):
                shown["annotations"] = hints
            self._definition_cost = counter.count(json_text(shown)) + 1
        return self._definition_cost

    def _make_entry(self, level: Level) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": self.tool.id}
        if level == Level.COMPLETE and self.tool.title:
            entry["title"] = self.tool.title
        if level != Level.NAME:
            entry["description"] = _description(self.tool.description, level)
        entry["score"] = _SAMPLE_SCORE
        if level == Level.SIGNATURE:
            entry["signature"] = signature(self.tool)
        if level >= Level.REQUIRED:
            entry |= self._schema_details(level)
        if _needs_example(self.tool.input_schema, level):
            entry["example"] = {"name": self.tool.id, "arguments": self._arguments()}
        if hints := _hints(self.tool, level):
            entry["annotations"] = hints
        return entry

    def _schema_details(self, level: Level) -> dict[str, Any]:
        """The schema at a level, and the names of parameters that it lacks."""
        schema = self._compact_schema(level)
        if level != Level.REQUIRED:
            return {"input_schema": schema}
        part, left_out = required_part(schema)
        details: dict[str, Any] = {"input_schema": part}
        if left_out:
            details["optional"] = list(left_out[:_MAX_OPTIONAL])
        if len(left_out) > _MAX_OPTIONAL:
            details["more_optional"] = len(left_out) - _MAX_OPTIONAL
        return details

    def _compact_schema(self, level: Level) -> dict[str, Any]:
        if level == Level.COMPLETE:
            return compact(self.tool.input_schema)
        if self._schema is None:
            self._schema = compact(self.tool.input_schema, brief=True)
        return self._schema

    def _arguments(self) -> dict[str, Any]:
        if self._example is None:
            self._example = example(self.tool)
        return self._example


def _needs_example(schema: Object, level: Level) -> bool:
    """Whether an example adds something to what a level shows."""
    if level == Level.SIGNATURE:
        return adds_to_signature(schema)
    return level > Level.SIGNATURE and adds_to_schema(schema)


def _description(text: str, level: Level) -> str:
    if level == Level.COMPLETE:
        return text
    if level == Level.FULL:
        return cut_sentences(text.strip(), DESCRIPTION_CHARS[level])
    return shorten(text, DESCRIPTION_CHARS[level])


def _hints(tool: Tool, level: Level) -> dict[str, bool]:
    """The tool's declared read-only and destructive hints: at the lowest levels only the warning, at the highest with
    all other hints.
    """
    if level == Level.COMPLETE:
        return {key: value for key, value in tool.annotations.items() if isinstance(value, bool)}
    declared = {key: tool.annotations[key] for key in _RISK_HINTS if isinstance(tool.annotations.get(key), bool)}
    if level > Level.SUMMARY:
        return declared
    return {_WARNING_HINT: True} if declared.get(_WARNING_HINT) else {}


def hit_flags(hit: Hit, queries: tuple[str, ...], level: Level = Level.COMPLETE) -> dict[str, Any]:
    """What a reply says of a hit apart from its tool: weak match, fallback, near-duplicates, which query.

    A hit that is only named is unlikely anyway, so it is not marked as weak.
    """
    flags: dict[str, Any] = {}
    if hit.weak and level > Level.NAME:
        flags["weak"] = True
    if hit.fallback:
        flags["fallback"] = True
    if hit.similar:
        flags |= similar_names(hit)
    if len(queries) > 1:
        flags["query"] = shorten(queries[hit.query], _QUERY_CHARS)
    return flags


def similar_names(hit: Hit) -> dict[str, Any]:
    """The names of the tools that are grouped under a hit, and how many more there are."""
    if not hit.similar:
        return {}
    more = len(hit.similar) - _MAX_SIMILAR
    return {"similar": list(hit.similar[:_MAX_SIMILAR])} | ({"more_similar": more} if more > 0 else {})


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
