"""Text to words: identifiers and prose, any script. What two words share is their stem."""

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

MAX_WORD = 64
"""Characters of a word that count; longer ones are cut."""

_COMBINING = "\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u109f\u135d-\u135f\u1780-\u17ff"
CHUNK = re.compile(rf"[\w{_COMBINING}]+")
"""A word as it is typed: `createPullRequest`, `create_pull_request`, `v2`."""

_CAMEL = re.compile(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_RUNS = re.compile(rf"[{_CJK}]+|[{_UNSPACED}]+|\d+|[^\W\d_{_CJK}{_UNSPACED}]+[{_COMBINING}]*")
_ACCENTS = re.compile("[\u0300-\u036f]+")

_PROSE_ONLY = """
a about above after again all also am an and any are as at be because been before being below between both but by can
could d did do does doing don down during each few for from further give had has have having he help her here hers him
his how i if in into is it its itself just let like ll m me more most my myself need no nor not now of off on once only
or other our ours out over own per please re s same she should so some such t tell than thanks that the their theirs
them then there these they this those through to too under until up upon us ve very want was we were what when where
whether which while who whom whose why will with would you your yours
"""

STOP_WORDS = frozenset(_PROSE_ONLY.split())
"""Words of prose that say nothing about what a tool does. Verbs such as get, find and show stay: tools are named so."""


def words(text: str) -> list[str]:
    """The words of a text, lower case, in order; identifiers are taken apart.

    >>> words("createPullRequest for HTTPServer2 in my_repo")
    ['create', 'pull', 'request', 'for', 'http', 'server', '2', 'in', 'my', 'repo']
    """
    return [word for chunk in CHUNK.findall(text) for word in split(chunk)]


def split(chunk: str) -> tuple[str, ...]:
    """The words of one chunk of text.

    >>> split("parseJSONFile"), split("東京都")
    (('parse', 'json', 'file'), ('東京', '京都'))
    """
    if not chunk.isascii():
        return _split_unicode(chunk)
    if chunk.isalpha() and (chunk.islower() or chunk[1:].islower()):
        return (chunk.lower()[:MAX_WORD],)
    return tuple(part.lower()[:MAX_WORD] for part in _CAMEL.findall(chunk))


class Word(NamedTuple):
    """A word of a query."""

    text: str
    stem: str
    telling: bool
    """Whether it is no stop word."""


def read_chunk(chunk: str) -> tuple[Word, ...]:
    """The words of one chunk of text, each with its stem; remembered, since queries share most of their words.

    >>> read_chunk("theIssues")
    (Word(text='the', stem='the', telling=False), Word(text='issues', stem='issu', telling=True))
    """
    return _remembered(chunk) if len(chunk) <= MAX_WORD else _read_chunk(chunk)


def _read_chunk(chunk: str) -> tuple[Word, ...]:
    return tuple([Word(word, stem(word), word not in STOP_WORDS) for word in split(chunk)])


_remembered = lru_cache(maxsize=16_384)(_read_chunk)


def _split_unicode(chunk: str) -> tuple[str, ...]:
    text = unicodedata.normalize("NFKD", chunk)
    text = unicodedata.normalize("NFC", _ACCENTS.sub("", text))
    if text.isascii():
        return split(text)
    found: list[str] = []
    for run in _RUNS.findall(_camel_spaced(text)):
        word = run.casefold()
        found.extend(_bigrams(word) if _is_unspaced(word[0]) else [word[:MAX_WORD]])
    return tuple(found)


def _camel_spaced(text: str) -> str:
    """A space between a lower-case and an upper-case letter."""
    pairs = zip(" " + text, text, strict=False)
    return "".join(f" {char}" if char.isupper() and before.islower() else char for before, char in pairs)


def _bigrams(run: str) -> list[str]:
    return [run[place : place + 2] for place in range(max(1, len(run) - 1))]


_UNSPACED_CHAR = re.compile(rf"[{_CJK}{_UNSPACED}]")


def _is_unspaced(char: str) -> bool:
    return _UNSPACED_CHAR.match(char) is not None


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """What a word shares with its plural and its verb forms. Light: a plural, then -ing or -ed, then a final e.

    Words of other scripts, short ones and those with digits stay as they are.

    >>> [stem(word) for word in ("issues", "queries", "query", "creating", "created", "create", "status", "stopped")]
    ['issu', 'queri', 'queri', 'creat', 'creat', 'creat', 'status', 'stop']
    """
    if len(word) <= _SHORT or not word.isascii() or not word.isalpha():
        return word
    base = _without_ending(_singular(word))
    if len(base) > _SHORT and base[-1] in "ey":
        return base[:-1] + ("i" if base[-1] == "y" else "")
    return base


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _without_ending(word: str) -> str:
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= _SHORT and any(vowel in base for vowel in "aeiouy"):
            doubled = len(base) > _SHORT and base[-1] == base[-2] and base[-1] not in "lsz"
            return base[:-1] if doubled else base
    return word


_SHORT = 3
"""Characters of a word that has no ending to lose."""
