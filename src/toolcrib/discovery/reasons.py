"""The reasons of a hit as short texts that a model reads: `name:'cdf'`, `session_boost:4.45x`."""

from collections.abc import Mapping
from math import exp
from typing import Final

from toolcrib.model import Hit, Reason
from toolcrib.search.options import Scorer
from toolcrib.search.scorers.options import PointsOptions

_SHORT: Final = {"description": "desc", "namespace": "ns", "parameters": "param", "keywords": "desc", "tags": "desc"}
"""What the points call the places of a word; a title counts as a description."""
_SHOWN: Final = 60


def told(hit: Hit, scorer: Scorer, boost: float, meant: Mapping[str, str], points: PointsOptions) -> list[str]:
    """Why a hit was found, the strongest reason first.

    `boost` is what the session multiplied it with; 1 takes it from the hit's own reasons. `meant` leads from words of
    the query to those that were looked up instead.
    """
    if hit.fallback:
        reasons = ["fallback"]
    elif scorer == "points":
        reasons = _points(hit, points)
    else:
        reasons = [f"meant:'{word}'->'{other}'" for word, other in meant.items() if other in hit.matched]
        reasons += [_plain(reason) for reason in hit.reasons[:] if reason.field != "session" and reason.gain >= 0]
    boost = boost if boost > 1 else _boost(hit, scorer)
    if boost > 1:
        reasons.append(f"session_boost:{boost:.2f}x")
    return list(dict.fromkeys(reasons))


def _boost(hit: Hit, scorer: Scorer) -> float:
    """What the session multiplied a hit with: the odds in our ranking, `raw` in the others."""
    gain = next((reason.gain for reason in hit.reasons if reason.field == "session"), 0.0)
    if scorer == "hybrid":
        return exp(gain)
    return hit.raw / (hit.raw - gain) if hit.raw > gain else 1.0


def _plain(reason: Reason) -> str:
    """A reason of one of the other scorers: where, how, and which word of the tool.

    >>> _plain(Reason(word="cdf", field="name", how="exact")), _plain(Reason(word="", field="all", how="meaning"))
    ("name:'cdf'", 'meaning')
    >>> _plain(Reason(word="gaussian", field="name", how="synonym", matched="normal"))
    "name_synonym:'gaussian'->'normal'"
    """
    if not reason.word:
        return reason.how
    shown = f"{reason.field}:'{reason.word[:_SHOWN]}'" if reason.how == "exact" else ""
    shown = shown or f"{reason.field}_{reason.how}:'{reason.word[:_SHOWN]}'"
    return f"{shown}->'{reason.matched[:_SHOWN]}'" if reason.matched else shown


def _points(hit: Hit, points: PointsOptions) -> list[str]:
    reasons: list[str] = []
    penalties: list[str] = []
    sum_ = sum(reason.gain for reason in hit.reasons if reason.field not in {"domain", "session"})
    for reason in hit.reasons:
        if reason.field == "domain":
            factor = (sum_ + reason.gain) / sum_ if sum_ else 1.0
            penalties.append(f"domain_penalty:{factor:.2g}x({reason.word})")
        elif reason.field != "session":
            reasons.append(_point(reason, points))
    return [*reasons, *penalties]


def _point(reason: Reason, points: PointsOptions) -> str:
    word = (reason.matched or reason.word)[:_SHOWN].lower()
    if reason.how == "spelling":
        named = reason.field == "name"
        value = reason.gain / (points.fuzzy_name if named else points.fuzzy_description)
        return f"{'fuzzy_name' if named else 'fuzzy_desc'}:{value:.2f}"
    if reason.field == "name":
        is_prefix = reason.how == "prefix" or (reason.how == "synonym" and reason.gain == points.prefix)
        return f"{'name_prefix' if is_prefix else 'name'}:'{word}'"
    return f"{_SHORT.get(reason.field, 'desc')}:'{word}'"
