"""Two small classifications that words alone do not show: what a literal in a request is, and what a verb does.

A set of kinds is a whole number, one bit a kind.
"""

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_

LITERALS = ("url", "email", "ip", "path", "date", "time", "money", "number", "coordinates", "hash")
"""Kinds of literals, by bit."""

# A run of characters is tried from its start alone: from each of them, a long one would take time with its square.
# Plain words are passed over in a run, since no literal begins in one that is followed by a space: this is what a query
# consists of. Words with which a date may begin are left to the alternatives below.
_PATTERN = r"""
      (?:(?!next|to[dm]|yest|[jfmasond][aepuco][nbrlygptvc])[a-z]{1,20}(?:[\s,!?;]+|\.?$|\.\s+))+
    | (?P<url>https?://\S|\bwww\.\w)
    | (?P<email>(?<![\w.+-])[\w.+-]+@[\w-]+\.\w)
    | (?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}\b)
    | (?P<coordinates>-?\d{1,3}\.\d{3,}\s*,\s*-?\d{1,3}\.\d{3,})
    | (?P<hash>\b0x[0-9a-f]{8,}\b|\b[0-9a-f]{32,64}\b)
    | (?P<path>(?<![\w/])[~.]{0,2}/[\w.-]+/|\b[a-z]:\\
        |(?<![\w-])[\w-]+\.(?:txt|csv|json|pdf|png|jpe?g|py|md|xlsx?|docx?|html?|ya?ml|zip)\b)
    | (?P<date>\b\d{4}-\d\d?-\d\d?\b|\b\d\d?/\d\d?/\d{2,4}\b|\b(?:today|tomorrow|yesterday)\b
        |\b(?:january|february|march|april|june|july|august|september|october|november|december)\b
        |\bnext\ (?:week|month|year|monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b)
    | (?P<time>\b\d\d?:\d\d\b|\b\d\d?\s?[ap]m\b)
    | (?P<money>[$€£]\s?\d|(?<![\w.,])\d[\d.,]*\s?(?:dollars?|usd|eur|euros?)\b)
    | (?P<number>\b\d+(?:\.\d+)?\b)
"""
_LITERAL = re.compile(_PATTERN, re.IGNORECASE | re.VERBOSE)
_LOWER = re.compile(_PATTERN, re.VERBOSE)
"""The same for lower-case ASCII, where case need not be thought of at every character."""

_BITS = {kind: 1 << bit for bit, kind in enumerate(LITERALS)}


def literals(text: str) -> int:
    """The kinds of literals in a text.

    >>> named(literals("mail ann@example.org the 3 files of https://example.org/a")), literals("plain words")
    (('url', 'email', 'number'), 0)
    """
    found = _LOWER.finditer(text.lower()) if text.isascii() else _LITERAL.finditer(text)
    return reduce(or_, (_BITS[match.lastgroup] for match in found if match.lastgroup), 0)


def named(kinds: int) -> tuple[str, ...]:
    """The names of a set of kinds of literals."""
    return tuple(kind for kind in LITERALS if kinds & _BITS[kind])


def _table(lines: Iterable[tuple[int, str]]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for bits, words in lines:
        for word in words.split():
            found[word] = found.get(word, 0) | bits
    return found


PARAMETERS = _table(
    (
        (_BITS["url"], "url urls uri link links website webpage href"),
        (_BITS["email"], "email emails mail recipient recipients"),
        (_BITS["ip"], "ip ipv4 ipv6"),
        (_BITS["path"], "path paths file files filename directory folder"),
        (_BITS["date"], "date dates day birthday deadline"),
        (_BITS["time"], "time times hour hours timestamp"),
        (_BITS["money"], "amount price cost budget salary money fee"),
        (_BITS["number"], "number count"),
        (_BITS["coordinates"], "latitude longitude lat lon lng coordinate coordinates"),
        (_BITS["hash"], "hash checksum digest sha txid"),
    )
)
"""Words of a parameter's name, and the literals it takes."""

FORMATS = _table(
    (
        (_BITS["url"], "uri url iri uri-reference"),
        (_BITS["email"], "email idn-email"),
        (_BITS["ip"], "ipv4 ipv6"),
        (_BITS["path"], "path file-path directory-path"),
        (_BITS["date"], "date date-time"),
        (_BITS["time"], "time date-time duration"),
        (_BITS["number"], "number"),
    )
)
"""Formats of JSON Schema, and the literals they stand for."""

VERBS = _table(
    (
        (
            1,
            "get gets fetch retrieve read list show find search look lookup view check query browse display see obtain",
        ),
        (1, "access describe discover explore inspect"),
        (2, "create add new make generate insert build register compose write produce draw design"),
        (4, "update edit modify change set rename patch replace adjust configure"),
        (8, "delete remove erase drop clear destroy cancel unregister uninstall purge"),
        (16, "send post publish share deliver email message notify forward reply tweet"),
        (32, "calculate calc compute convert evaluate estimate solve determine measure count"),
        (64, "book reserve order buy purchase schedule rent"),
    )
)
"""Verbs, and what they do: read, create, update, delete, send, calculate, book."""
