"""Hits as a model reads them, and what each costs."""

from typing import Any, Final, get_args

from toolcrib.model import Detail, Hit, Key, Object, Tool
from toolcrib.schema import example, signature
from toolcrib.surfaces.budget import Costs
from toolcrib.surfaces.results import json_text
from toolcrib.tokens import LabelledCounter

_DETAILS: Final[tuple[Detail, ...]] = get_args(Detail)
_WARNS: Final = "destructiveHint"
_RISKS: Final = ("readOnlyHint", _WARNS)
_SIMILAR: Final = 5
"""Near-duplicates that are named; the others are counted."""
_QUERY: Final = 80
"""Characters of a query by which a hit says which one it answers."""
LONGEST: Final[dict[Detail, int]] = {"summary": 100, "signature": 300}
"""Characters of a description that are shown beside less than the schema."""
_KEPT: Final = 10_000
_DIGITS: Final = 3
_SOME_SCORE: Final = 0.123
"""Every score costs about as much as this one."""


class Entries:
    """Makes entries, and keeps what they take long for: examples and token counts, for tools found again and again."""

    def __init__(self, counter: LabelledCounter) -> None:
        """Nothing is kept yet."""
        self._counter = counter
        self._kept: dict[Key, _Kept] = {}

    def of(self, hit: Hit, detail: Detail, queries: tuple[str, ...]) -> dict[str, Any]:
        """The hit as JSON, with so much of its tool: name, description, score and input schema first."""
        return {**self._entry(hit.tool, detail, hit.score, hit.signature), **marks(hit, queries)}

    def costs(self, hit: Hit, queries: tuple[str, ...]) -> Costs:
        """What the hit costs at each detail, in tokens, with the comma behind it."""
        kept = self._of(hit.tool)
        if not kept.costs:
            shapes = {detail: self._entry(hit.tool, detail, _SOME_SCORE) for detail in _DETAILS}
            kept.costs = {detail: self._counter.count(json_text(shape)) + 1 for detail, shape in shapes.items()}
        more = marks(hit, queries)
        if not more:
            return kept.costs
        added = self._counter.count(json_text(more))
        return {detail: cost + added for detail, cost in kept.costs.items()}

    def _entry(self, tool: Tool, detail: Detail, score: float, line: str = "") -> dict[str, Any]:
        about = brief(tool.description, LONGEST[detail]) if detail in LONGEST else tool.description
        entry: dict[str, Any] = {"name": tool.id, "description": about, "score": round(score, _DIGITS)}
        if detail == "full":
            entry["input_schema"] = tool.input_schema
            entry["example"] = {"name": tool.id, "arguments": self._of(tool).arguments}
        elif detail == "signature":
            entry["signature"] = line or signature(tool)
        if hints := _hints(tool, detail):
            entry["annotations"] = hints
        return entry

    def _of(self, tool: Tool) -> "_Kept":
        kept = self._kept.get(tool.key)
        if kept is not None and kept.tool is tool:
            return kept
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        made = self._kept[tool.key] = _Kept(tool)
        return made


class _Kept:
    """What is kept for one tool."""

    __slots__ = ("arguments", "costs", "tool")

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.arguments: Object = example(tool)
        """Arguments that fit the tool's schema."""
        self.costs: Costs = {}


def _hints(tool: Tool, detail: Detail) -> dict[str, bool]:
    """Whether the tool only reads or may destroy, as its author says; in a summary only what warns."""
    said = {key: tool.annotations[key] for key in _RISKS if isinstance(tool.annotations.get(key), bool)}
    if detail != "summary":
        return said
    return {_WARNS: True} if said.get(_WARNS) else {}


def marks(hit: Hit, queries: tuple[str, ...]) -> dict[str, Any]:
    """What is to be known of a hit beside its tool: doubts, near-duplicates, and which of several queries it is for."""
    found: dict[str, Any] = {}
    if hit.weak:
        found["weak"] = True
    if hit.fallback:
        found["fallback"] = True
    if hit.similar:
        found["similar"] = list(hit.similar[:_SIMILAR])
    if len(hit.similar) > _SIMILAR:
        found["more_similar"] = len(hit.similar) - _SIMILAR
    if len(queries) > 1:
        found["query"] = brief(queries[hit.query], _QUERY)
    return found


def brief(text: str, most: int) -> str:
    """A text on one line, cut between words to so many characters.

    >>> brief("Send a message. Needs a token.", 20), brief("Send a message.", 20)
    ('Send a message. ...', 'Send a message.')
    """
    line = " ".join(text[: 4 * most].split())
    if len(line) <= most and len(text) <= 4 * most:
        return line
    whole, _, _ = line[: most - 3].rpartition(" ")
    return f"{whole or line[: most - 4]} ..."
