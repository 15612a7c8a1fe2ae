"""What a text costs a model, estimated, and fitting a reply into what it may cost."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from toolcrib.model import Detail, Hit

_PLAIN: Final = re.compile(r"[a-z ]")
_PLAIN_PER_TOKEN: Final = 4.0
"""Lower-case letters and spaces a token, in English; the o200k vocabulary reaches a little more."""
_DENSE_PER_TOKEN: Final = 1.5
"""Capitals, digits and punctuation a token: names, numbers and JSON."""
_LOWER: Final[dict[Detail, Detail]] = {"full": "signature", "signature": "summary"}


def estimate_tokens(text: str) -> int:
    """An estimate of the tokens in a text, 0 or more, that errs on the high side; other scripts count one a character.

    >>> estimate_tokens(""), estimate_tokens("seven characters"), estimate_tokens("日本"), estimate_tokens("{};!")
    (0, 4, 2, 3)
    """
    plain = len(_PLAIN.findall(text))
    dense = (len(text) if text.isascii() else sum(character.isascii() for character in text)) - plain
    return ceil(plain / _PLAIN_PER_TOKEN + dense / _DENSE_PER_TOKEN) + len(text) - plain - dense


def fitted(hits: Sequence[Hit], budget: int | None, render: Callable[[Hit], str]) -> tuple[tuple[Hit, ...], int]:
    """The hits within a budget of tokens, and how many show less than was asked: the last ones first.

    What is shown of a hit goes from full to its signature to a summary; every hit stays.
    """
    if budget is None:
        return tuple(hits), 0
    shown = list(hits)
    costs = [estimate_tokens(render(hit)) for hit in shown]
    lowered: set[int] = set()
    for level in ("full", "signature"):
        for place in range(len(shown) - 1, -1, -1):
            if sum(costs) <= budget:
                return tuple(shown), len(lowered)
            if shown[place].detail == level:
                shown[place] = replace(shown[place], detail=_LOWER[level])
                costs[place] = estimate_tokens(render(shown[place]))
                lowered.add(place)
    return tuple(shown), len(lowered)
