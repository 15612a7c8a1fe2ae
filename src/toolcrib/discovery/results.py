"""Search results: the tool, its score, and the reasons as short texts such as `name:'cdf'` or `session_boost:4.45x`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Any, Final, Generic, TypeVar

from toolcrib.checks import checked
from toolcrib.discovery.tool_reader import ParsedTool, default_description, default_name, default_namespace
from toolcrib.search.options import PointsOptions, Scorer
from toolcrib.types import Hit, Reason

T = TypeVar("T")

_SHORT: Final = {"description": "desc", "namespace": "ns", "parameters": "param", "keywords": "desc", "tags": "desc"}
"""Names of fields in the points' reasons; a title counts as a description."""
_MAX_WORD: Final = 60


@checked(shallow=True)
@dataclass
class SearchResult(Generic[T]):
    """One result of a search."""

    tool: T
    """The object that was given to the engine."""
    score: float
    """In the scorer's own unit: 0 to 1, or points under `scorer="points"`."""
    match_reasons: list[str] = field(default_factory=list)
    """Why it was found, the strongest reason first; the session's part comes last."""
    raw: float = 0.0
    """The scorer's figure before normalization; the points under `scorer="points"`."""
    fallback: bool = False
    """It does not match, and is shown because nothing does."""
    parsed: ParsedTool[T] | None = field(default=None, repr=False, compare=False)
    """How the engine read the tool."""

    @property
    def name(self) -> str:
        """The tool's own name."""
        return self.parsed.name if self.parsed else default_name(self.tool)

    @property
    def namespace(self) -> str:
        """Its namespace, or an empty string."""
        return self.parsed.namespace if self.parsed else default_namespace(self.tool)

    @property
    def description(self) -> str | None:
        """Its description, or None."""
        return (self.parsed.description if self.parsed else default_description(self.tool)) or None


class LazySearchResult(SearchResult[T]):
    """A result whose reasons are formatted on first access; most callers never read them."""

    _why: list[str] | Callable[[], list[str]]

    @property
    def match_reasons(self) -> list[str]:
        """Why it was found."""
        if callable(self._why):
            self._why = self._why()
        return self._why

    @match_reasons.setter
    def match_reasons(self, reasons: list[str] | Callable[[], list[str]]) -> None:
        self._why = reasons

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain `SearchResult`."""
        return SearchResult, (self.tool, self.score, self.match_reasons, self.raw, self.fallback, self.parsed)

    def __repr__(self) -> str:
        return f"SearchResult(tool={self.tool!r}, score={self.score!r}, match_reasons={self.match_reasons!r})"


def describe_match(
    hit: Hit, scorer: Scorer, boost: float, substitutes: Mapping[str, str], points: PointsOptions
) -> list[str]:
    """Return why a hit was found, the strongest reason first.

    `boost` is the session's factor; 1 takes it from the hit's own reasons. `substitutes` maps words of the query to
    those that were searched instead.
    """
    if hit.fallback:
        reasons = ["fallback"]
    elif scorer == "points":
        reasons = _points_reasons(hit, points)
    else:
        reasons = [f"meant:'{word}'->'{other}'" for word, other in substitutes.items() if other in hit.matched]
        reasons += [
            _plain_reason(reason) for reason in hit.reasons[:] if reason.field != "session" and reason.gain >= 0
        ]
    boost = boost if boost > 1 else _boost(hit, scorer)
    if boost > 1:
        reasons.append(f"session_boost:{boost:.2f}x")
    return list(dict.fromkeys(reasons))


def _boost(hit: Hit, scorer: Scorer) -> float:
    """Return the session's factor: on the odds in our ranking, on `raw` in the others."""
    gain = next((reason.gain for reason in hit.reasons if reason.field == "session"), 0.0)
    if scorer == "hybrid":
        return exp(gain)
    return hit.raw / (hit.raw - gain) if hit.raw > gain else 1.0


def _plain_reason(reason: Reason) -> str:
    """Format a reason of any other scorer: field, kind of match, and the word in the tool.

    >>> _plain_reason(Reason(word="cdf", field="name", how="exact"))
    "name:'cdf'"
    >>> _plain_reason(Reason(word="", field="all", how="meaning"))
    'meaning'
    >>> _plain_reason(Reason(word="gaussian", field="name", how="synonym", matched="normal"))
    "name_synonym:'gaussian'->'normal'"
    """
    if not reason.word:
        return reason.how
    shown = f"{reason.field}:'{reason.word[:_MAX_WORD]}'" if reason.how == "exact" else ""
    shown = shown or f"{reason.field}_{reason.how}:'{reason.word[:_MAX_WORD]}'"
    return f"{shown}->'{reason.matched[:_MAX_WORD]}'" if reason.matched else shown


def _points_reasons(hit: Hit, points: PointsOptions) -> list[str]:
    reasons: list[str] = []
    penalties: list[str] = []
    sum_ = sum(reason.gain for reason in hit.reasons if reason.field not in {"domain", "session"})
    for reason in hit.reasons:
        if reason.field == "domain":
            factor = (sum_ + reason.gain) / sum_ if sum_ else 1.0
            penalties.append(f"domain_penalty:{factor:.2g}x({reason.word})")
        elif reason.field != "session":
            reasons.append(_point_reason(reason, points))
    return [*reasons, *penalties]


def _point_reason(reason: Reason, points: PointsOptions) -> str:
    word = (reason.matched or reason.word)[:_MAX_WORD].lower()
    if reason.how == "spelling":
        named = reason.field == "name"
        value = reason.gain / (points.fuzzy_name if named else points.fuzzy_description)
        return f"{'fuzzy_name' if named else 'fuzzy_desc'}:{value:.2f}"
    if reason.how == "phrase":
        return f"whole_name:'{word}'"
    if reason.field == "name":
        is_prefix = reason.how == "prefix" or (reason.how == "synonym" and reason.gain == points.prefix)
        return f"{'name_prefix' if is_prefix else 'name'}:'{word}'"
    return f"{_SHORT.get(reason.field, 'desc')}:'{word}'"
