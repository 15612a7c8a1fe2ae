"""Render one hit of a search reply as JSON, at each level of detail, and count its tokens."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from toolcrib.providers.content import json_text
from toolcrib.schema import example, signature
from toolcrib.schema.compact import compact, cut_sentences, required_part
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
_WARNING_HINT: Final = "destructiveHint"
_RISK_HINTS: Final = ("readOnlyHint", _WARNING_HINT)
_MAX_SIMILAR: Final = 5
"""Near-duplicates that a hit names; it counts the others."""
_MAX_OPTIONAL: Final = 12
"""Optional parameters that the required part of a schema names; it counts the others."""
_QUERY_CHARS: Final = 60
"""Characters of the query that a hit of several queries repeats."""
_MAX_CACHED: Final = 2_000
"""Tools whose rendered forms are kept."""
_SCORE_DIGITS: Final = 3
_SAMPLE_SCORE: Final = 0.123
"""Placeholder for every score in cost estimates, because all cost about the same."""


class HitRenderer:
    """Renders hits as JSON. Caches what is slow to compute, by tool."""

    def __init__(self, counter: LabelledCounter) -> None:
        self._counter = counter
        self._cached: dict[Key, _ToolViews] = {}

    def render(self, hit: Hit, level: Level, queries: tuple[str, ...]) -> dict[str, Any]:
        """The hit as JSON; name, description, score and input schema come first."""
        entry = {**self._views(hit.tool).entry(level), "score": round(hit.score, _SCORE_DIGITS)}
        return {**entry, **hit_flags(hit, queries)}

    def costs(self, hit: Hit, levels: Iterable[Level], queries: tuple[str, ...]) -> dict[Level, int]:
        """The cost of the hit at each of the levels, in tokens, including a comma."""
        views = self._views(hit.tool)
        flags = hit_flags(hit, queries)
        added = self._counter.count(json_text(flags)) if flags else 0
        return {level: views.cost(level, self._counter) + added for level in levels}

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

    __slots__ = ("_costs", "_entries", "tool")

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self._entries: dict[Level, dict[str, Any]] = {}
        self._costs: dict[Level, int] = {}

    def entry(self, level: Level) -> dict[str, Any]:
        """The tool as JSON, with a placeholder for the score."""
        if level not in self._entries:
            self._entries[level] = tool_entry(self.tool, level)
        return self._entries[level]

    def cost(self, level: Level, counter: LabelledCounter) -> int:
        """Tokens of the entry and a comma."""
        if level not in self._costs:
            self._costs[level] = counter.count(json_text(self.entry(level))) + 1
        return self._costs[level]


def tool_entry(tool: Tool, level: Level) -> dict[str, Any]:
    """A tool as JSON, with a placeholder for the score."""
    entry: dict[str, Any] = {"name": tool.id}
    if level != Level.NAME:
        entry["description"] = _description(tool.description, level)
    entry["score"] = _SAMPLE_SCORE
    entry |= _call_details(tool, level)
    if hints := _hints(tool, level):
        entry["annotations"] = hints
    return entry


def _description(text: str, level: Level) -> str:
    if level == Level.COMPLETE:
        return text
    if level == Level.FULL:
        return cut_sentences(text.strip(), DESCRIPTION_CHARS[level])
    return shorten(text, DESCRIPTION_CHARS[level])


def _call_details(tool: Tool, level: Level) -> dict[str, Any]:
    """What a hit says about how to call its tool."""
    if level <= Level.SUMMARY:
        return {}
    if level == Level.SIGNATURE:
        return {"signature": signature(tool)}
    schema = compact(tool.input_schema, brief=level != Level.COMPLETE)
    details: dict[str, Any] = {"input_schema": schema}
    if level == Level.REQUIRED:
        details["input_schema"], left_out = required_part(schema)
        details |= {"optional": list(left_out[:_MAX_OPTIONAL])} if left_out else {}
        details |= {"more_optional": len(left_out) - _MAX_OPTIONAL} if len(left_out) > _MAX_OPTIONAL else {}
    arguments = example(tool)
    if _is_instructive(arguments):
        details["example"] = {"name": tool.id, "arguments": arguments}
    return details


def _is_instructive(arguments: Object) -> bool:
    """Whether an example shows a structure that is hard to read off a schema: lists of objects, nested objects."""
    return any(
        any(isinstance(part, (dict, list)) for part in (value.values() if isinstance(value, dict) else value))
        for value in arguments.values()
        if isinstance(value, (dict, list))
    )


def _hints(tool: Tool, level: Level) -> dict[str, bool]:
    """The tool's declared read-only and destructive hints; at the lowest levels only the warning."""
    declared = {key: tool.annotations[key] for key in _RISK_HINTS if isinstance(tool.annotations.get(key), bool)}
    if level > Level.SUMMARY:
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
