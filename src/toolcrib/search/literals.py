"""Literals in a text (a URL, a date, a sum of money), and the parameters that take them.

A set of kinds of literals is an int with one bit per kind.
"""

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from toolcrib.search.word_lists import headed_lists, kinds_by_word

LITERAL_KINDS = ("url", "email", "ip", "path", "date", "time", "money", "number", "coordinates", "hash")
"""Kinds of literals. The place of a kind is its bit."""


# The first alternative skips plain words, which make up most of a query: no literal begins inside a word that is
# followed by a space. It leaves out words that may begin a date. The lookbehinds make each run of characters match
# from its start only; trying every character of a long run would take quadratic time.
_LITERAL_PATTERN = r"""
      (?:(?!next|to[dm]|yest|[jfmasond][aepuco][nbrlygptvc])[a-z]{1,20}(?:[\s,!?;]+|\.?$|\.\s+))+
    | (?P<url>https?://\S|\bwww\.\w|\blocalhost:\d
        |(?<![\w.@-])(?:[a-z0-9-]{1,63}\.){1,4}(?:com|org|net|io|dev|gov|edu)\b(?!\.\w|\())
    | (?P<email>(?<![\w.+-])[\w.+-]+@[\w-]+\.\w)
    | (?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}\b)
    | (?P<coordinates>-?\d{1,3}\.\d{3,}\s*,\s*-?\d{1,3}\.\d{3,})
    | (?P<hash>\b0x[0-9a-f]{8,}\b|\b[0-9a-f]{32,64}\b)
    | (?P<path>(?<![\w/])[~.]{0,2}/[\w.-]+/|\b[a-z]:\\
        |(?<![\w-])[\w-]+\.(?:txt|csv|json|pdf|png|jpe?g|gif|svg|py|js|ts|sh|sql|md|log|toml|ini
        |xlsx?|docx?|pptx?|html?|xml|ya?ml|zip|gz|mp[34]|wav)\b)
    | (?P<date>\b\d{4}-\d\d?-\d\d?\b|\b\d\d?/\d\d?/\d{2,4}\b|\b(?:today|tomorrow|yesterday)\b
        |\b(?:january|february|march|april|june|july|august|september|october|november|december)\b
        |\bnext\ (?:week|month|year|monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b)
    | (?P<time>\b\d\d?:\d\d\b|\b\d\d?\s?[ap]m\b)
    | (?P<money>[$€£]\s?\d|(?<![\w.,])\d[\d.,]*\s?(?:dollars?|usd|eur|euros?)\b)
    | (?P<number>\b\d+(?:\.\d+)?\b)
"""
_LITERAL = re.compile(_LITERAL_PATTERN, re.IGNORECASE | re.VERBOSE)
_LOWER_CASE_LITERAL = re.compile(_LITERAL_PATTERN, re.VERBOSE)
"""The same for lower-case ASCII text, which is faster without IGNORECASE."""
LITERAL_BITS = {kind: 1 << bit for bit, kind in enumerate(LITERAL_KINDS)}


def literal_kinds(text: str) -> int:
    """Find the kinds of literals in a text, as bits.

    >>> text = "mail ann@example.org the 3 files of https://example.org/a"
    >>> literal_names(literal_kinds(text)), literal_kinds("plain words")
    (('url', 'email', 'number'), 0)
    """
    return reduce(or_, [LITERAL_BITS[kind] for kind, _ in find_literals(text)], 0)


def find_literals(text: str) -> list[tuple[str, int]]:
    """The kind of each literal in a text, and where it begins."""
    found = _LOWER_CASE_LITERAL.finditer(text.lower()) if text.isascii() else _LITERAL.finditer(text)
    return [(match.lastgroup, match.start()) for match in found if match.lastgroup]


def may_have_literals(text: str, typed: Sequence[str]) -> bool:
    """A fast test that only texts without literals fail; `typed` has the words of the text, all short."""
    if not text.isascii() or _LITERAL_SIGN.search(text):
        return True
    return not _DATE_WORDS.isdisjoint(map(str.lower, typed))


_LITERAL_SIGN = re.compile(r"[\d/\\@.](?:(?<!\.)|(?=\w))")
"""Every literal has one of these, except for dates in words and hashes without a digit."""
_DATE_WORD_TEXT = """
today tomorrow yesterday next january february march april june july august september october november december may
"""
_DATE_WORDS = frozenset(_DATE_WORD_TEXT.split())
"""One of them is in every date without a digit."""
MIN_HASH = 32
"""A word of so many letters may be a hash without a digit."""


def literal_names(kinds: int) -> tuple[str, ...]:
    """List the names of the kinds in a set."""
    return tuple(kind for kind in LITERAL_KINDS if kinds & LITERAL_BITS[kind])


def _kinds_by_word(section: str) -> Mapping[str, int]:
    known = dict(headed_lists(section))
    return kinds_by_word(known.get(kind, ()) for kind in LITERAL_KINDS)


PARAMETER_KINDS = _kinds_by_word("parameter words")
"""Words in the name of a parameter, and the kinds of literals it accepts."""
FORMAT_KINDS = _kinds_by_word("formats")
"""Values of `format` in JSON Schema, and the kinds of literals they stand for."""
