"""Render one hit of a search reply as JSON, at each level of detail, and count its tokens."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from toolcrib.providers.content import json_text
from toolcrib.schema import example, signature
from toolcrib.schema.compact import compact, cut_sentences, required_part
from toolcrib.schema.example import adds_to_schema, adds_to_signature
from toolcrib.surfaces.selection import Level
from toolcrib.tokens import LabelledCounter
from toolcrib.types import Hit, Key, Object, Tool

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
"""Near-duplicates that a hit names; it counts the others."""
_MAX_OPTIONAL: Final = 12
"""Optional parameters that the required part of a schema names; it counts the others."""
_QUERY_CHARS: Final = 60
"""Characters of the query that a hit of several queries repeats."""
_MAX_CACHED: Final = 1_000
"""Tools whose rendered forms are kept."""
_SCORE_DIGITS: Final = 3
_SAMPLE_SCORE: Final = 0.123
"""Placeholder for every score in cost estimates, because all cost about the same."""


class HitRenderer:
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
        views = self._views(hit.tool)
        added = self._flag_cost(hit_flags(hit, queries))
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
    """The tool's declared read-only and destructive hints; at the lowest levels only the warning."""
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
