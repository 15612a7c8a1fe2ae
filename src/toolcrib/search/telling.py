"""Find the part of a long request that says what is wanted, beside sentences that only tell how it came about."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from toolcrib.search.intent import verb_kinds
from toolcrib.search.text import TOKEN
from toolcrib.search.vectors import WordPieceTable

_MIN_WORDS: Final = 30
"""Shorter requests are read as a whole."""
_MIN_SENTENCES: Final = 3
_MAX_SHARE: Final = 0.7
"""If more of a request says what is wanted, it is read as a whole."""
_MAX_CHARACTERS: Final = 2_000
"""Longer requests are read as a whole: they hold documents rather than a story."""
_MIN_COSINE: Final = 0.3
"""A sentence that is so close to those that ask belongs to them."""
_SENTENCE_END: Final = re.compile(r"(?<=[.!?;:])\s+|\n+")
_ASKING: Final = re.compile(
    r"""
      \? | \b(?:please | kindly | (?:could|can|would|will)\ you | looking\ for | go\ ahead | wondering
    | (?:tell|give|show|help|remind)\ (?:me|us) | let\ me\ know
    | (?:i|we)\ (?:just\ |only\ |really\ |also\ |now\ )?(?:need|want|wish|must)
    | would\ (?:also\ |really\ |just\ )?(?:like|love)
    | (?:i|we)(?:'d|\ would)\ (?:also\ |really\ |just\ )?(?:like|love|need|want))\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_OPENING_TEXT: Final = """
so also then and but anyway now next finally first second third lastly additionally afterwards meanwhile just go ok okay
hi hello hey well once after that
"""
_OPENINGS: Final = frozenset(_OPENING_TEXT.split())
_STATING: Final = frozenset(("is", "was", "are", "were", "has", "have", "will"))
"""After one of these a first word is no verb: "the search is slow", "Order was placed"."""


def telling_part(text: str, table: WordPieceTable) -> str:
    """The sentences of a long request that ask for something, with those close to them in meaning; "" for all of it.

    >>> story = "We moved to Oslo in spring, and the dog did not like the boat at all. It rained for weeks, as "
    >>> story += "everybody had expected. My sister sends her love. Please list the open issues of our repository."
    >>> telling_part(story, WordPieceTable.load()), telling_part("List the open issues.", WordPieceTable.load())
    ('Please list the open issues of our repository.', '')
    """
    if not text.count(" ") + 1 >= _MIN_WORDS or len(text) > _MAX_CHARACTERS:
        return ""
    return _telling_part(text, table)


@lru_cache(maxsize=16)
def _telling_part(text: str, table: WordPieceTable) -> str:
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]
    asks = [_asks(sentence) for sentence in sentences]
    if len(sentences) < _MIN_SENTENCES or not any(asks) or all(asks):
        return ""
    kept = [
        sentence
        for sentence, asked, near in zip(sentences, asks, _closeness(sentences, asks, table), strict=True)
        if asked or near >= _MIN_COSINE
    ]
    part = " ".join(kept)
    return part if len(part) <= _MAX_SHARE * len(text) else ""


def _asks(sentence: str) -> bool:
    if _ASKING.search(sentence):
        return True
    words = [word.lower() for word in TOKEN.findall(sentence)]
    while words and words[0] in _OPENINGS:
        words = words[1:]
    return bool(words) and verb_kinds(words[0]) > 0 and (len(words) < 2 or words[1] not in _STATING)  # noqa: PLR2004 - one word


def _closeness(sentences: Sequence[str], asks: Sequence[bool], table: WordPieceTable) -> list[float]:
    """The cosine of each sentence and all that ask."""
    asking = " ".join(sentence for sentence, asked in zip(sentences, asks, strict=True) if asked)
    vectors = table.embed([*sentences, asking])
    found: list[float] = np.asarray(vectors[:-1] @ vectors[-1]).tolist()
    return found
