"""Read text: words and their stems, kinds of literals and verbs, and whole queries.

Works for identifiers and prose in any script. Two forms of a word match when they share a stem. A set of kinds is an
int with one bit per kind. Knows nothing about tools or scores.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

MAX_WORD = 64
"""Characters of a word that count; longer ones are cut."""


_COMBINING = "\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u109f\u135d-\u135f\u1780-\u17ff"


TOKEN = re.compile(rf"[\w{_COMBINING}]+")
"""A word as it is typed: `createPullRequest`, `create_pull_request`, `v2`."""


_CAMEL = re.compile(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"


_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"


_SCRIPT_RUNS = re.compile(rf"[{_CJK}]+|[{_UNSPACED}]+|\d+|[^\W\d_{_CJK}{_UNSPACED}]+[{_COMBINING}]*")


_ACCENTS = re.compile("[\u0300-\u036f]+")


_STOP_WORD_TEXT = """
a about above after again all also am an and any are as at be because been before being below between both but by can
could d did do does doing don down during each few for from further give had has have having he help her here hers him
his how i if in into is it its itself just let like ll m me more most my myself need no nor not now of off on once only
or other our ours out over own per please re s same she should so some such t tell than thanks that the their theirs
them then there these they this those through to too under until up upon us ve very want was we were what when where
whether which while who whom whose why will with would you your yours
"""


STOP_WORDS = frozenset(_STOP_WORD_TEXT.split())
"""Words of prose that say nothing about what a tool does. Verbs such as get, find and show stay: tools are named so."""


def split_words(text: str) -> list[str]:
    """The words of a text, lower case, in order; identifiers are taken apart.

    >>> split_words("createPullRequest for HTTPServer2 in my_repo")
    ['create', 'pull', 'request', 'for', 'http', 'server', '2', 'in', 'my', 'repo']
    """
    return [word for chunk in TOKEN.findall(text) for word in split_identifier(chunk)]


def split_identifier(chunk: str) -> tuple[str, ...]:
    """The words of one chunk of text.

    >>> split_identifier("parseJSONFile"), split_identifier("東京都")
    (('parse', 'json', 'file'), ('東京', '京都'))
    """
    if not chunk.isascii():
        return _split_unicode(chunk)
    if chunk.isalpha() and (chunk.islower() or chunk[1:].islower()):
        return (chunk.lower()[:MAX_WORD],)
    return tuple(part.lower()[:MAX_WORD] for part in _CAMEL.findall(chunk))


class AnalyzedWord(NamedTuple):
    """A word of a query."""

    text: str
    stem: str
    telling: bool
    """Whether it is no stop word."""


def analyze_token(chunk: str) -> tuple[AnalyzedWord, ...]:
    """The words of one chunk of text, each with its stem; remembered, since queries share most of their words.

    >>> analyze_token("theIssues")
    (AnalyzedWord(text='the', stem='the', telling=False), AnalyzedWord(text='issues', stem='issu', telling=True))
    """
    return _analyze_cached(chunk) if len(chunk) <= MAX_WORD else _analyze(chunk)


def _analyze(chunk: str) -> tuple[AnalyzedWord, ...]:
    return tuple([AnalyzedWord(word, stem(word), word not in STOP_WORDS) for word in split_identifier(chunk)])


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


_SHORT = 3
"""Characters of a word that has no ending to lose."""


def _without_ending(word: str) -> str:
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= _SHORT and any(vowel in base for vowel in "aeiouy"):
            doubled = len(base) > _SHORT and base[-1] == base[-2] and base[-1] not in "lsz"
            return base[:-1] if doubled else base
    return word


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _split_unicode(chunk: str) -> tuple[str, ...]:
    text = unicodedata.normalize("NFKD", chunk)
    text = unicodedata.normalize("NFC", _ACCENTS.sub("", text))
    if text.isascii():
        return split_identifier(text)
    found: list[str] = []
    for run in _SCRIPT_RUNS.findall(_camel_spaced(text)):
        word = run.casefold()
        found.extend(_bigrams(word) if _is_unspaced(word[0]) else [word[:MAX_WORD]])
    return tuple(found)


def _camel_spaced(text: str) -> str:
    """A space between a lower-case and an upper-case letter."""
    pairs = zip(" " + text, text, strict=False)
    return "".join(f" {char}" if char.isupper() and before.islower() else char for before, char in pairs)


def _is_unspaced(char: str) -> bool:
    return _UNSPACED_CHAR.match(char) is not None


def _bigrams(run: str) -> list[str]:
    return [run[place : place + 2] for place in range(max(1, len(run) - 1))]


_UNSPACED_CHAR = re.compile(rf"[{_CJK}{_UNSPACED}]")


_analyze_cached = lru_cache(maxsize=16_384)(_analyze)


LITERAL_KINDS = ("url", "email", "ip", "path", "date", "time", "money", "number", "coordinates", "hash")
"""Kinds of literals, by bit."""


# A run of characters is tried from its start alone: from each of them, a long one would take time with its square.
# Plain words are passed over in a run, since no literal begins in one that is followed by a space: this is what a query
# consists of. Words with which a date may begin are left to the alternatives below.
_LITERAL_PATTERN = r"""
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


_LITERAL = re.compile(_LITERAL_PATTERN, re.IGNORECASE | re.VERBOSE)


_LOWER_CASE_LITERAL = re.compile(_LITERAL_PATTERN, re.VERBOSE)
"""The same for lower-case ASCII, where case need not be thought of at every character."""


_LITERAL_BITS = {kind: 1 << bit for bit, kind in enumerate(LITERAL_KINDS)}


def literal_kinds(text: str) -> int:
    """The kinds of literals in a text.

    >>> literal_names(literal_kinds("mail ann@example.org the 3 files of https://example.org/a")), literal_kinds("plain words")
    (('url', 'email', 'number'), 0)
    """
    found = _LOWER_CASE_LITERAL.finditer(text.lower()) if text.isascii() else _LITERAL.finditer(text)
    return reduce(or_, (_LITERAL_BITS[match.lastgroup] for match in found if match.lastgroup), 0)


def literal_names(kinds: int) -> tuple[str, ...]:
    """The names of a set of kinds of literals."""
    return tuple(kind for kind in LITERAL_KINDS if kinds & _LITERAL_BITS[kind])


def _kinds_by_word(lines: Iterable[tuple[int, str]]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for bits, words in lines:
        for word in words.split():
            found[word] = found.get(word, 0) | bits
    return found


PARAMETER_KINDS = _kinds_by_word(
    (
        (_LITERAL_BITS["url"], "url urls uri link links website webpage href"),
        (_LITERAL_BITS["email"], "email emails mail recipient recipients"),
        (_LITERAL_BITS["ip"], "ip ipv4 ipv6"),
        (_LITERAL_BITS["path"], "path paths file files filename directory folder"),
        (_LITERAL_BITS["date"], "date dates day birthday deadline"),
        (_LITERAL_BITS["time"], "time times hour hours timestamp"),
        (_LITERAL_BITS["money"], "amount price cost budget salary money fee"),
        (_LITERAL_BITS["number"], "number count"),
        (_LITERAL_BITS["coordinates"], "latitude longitude lat lon lng coordinate coordinates"),
        (_LITERAL_BITS["hash"], "hash checksum digest sha txid"),
    )
)
"""Words of a parameter's name, and the literals it takes."""


FORMAT_KINDS = _kinds_by_word(
    (
        (_LITERAL_BITS["url"], "uri url iri uri-reference"),
        (_LITERAL_BITS["email"], "email idn-email"),
        (_LITERAL_BITS["ip"], "ipv4 ipv6"),
        (_LITERAL_BITS["path"], "path file-path directory-path"),
        (_LITERAL_BITS["date"], "date date-time"),
        (_LITERAL_BITS["time"], "time date-time duration"),
        (_LITERAL_BITS["number"], "number"),
    )
)
"""Formats of JSON Schema, and the literals they stand for."""


VERB_KINDS = _kinds_by_word(
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


_MAX_QUERY = 8_000
"""Characters of a query that are read."""


_MAX_CACHED_QUERY = 1_000
"""Characters of a query that is remembered for a while: one request is read at several places."""


_MAX_TERMS = 256
"""Words of a query that count."""


_MAX_NAME_WORDS = 6
"""Words in a row that are tried as a whole name."""


_MAX_JOINED_WORDS = 24
"""Words of a name that was typed as one word."""


_MAX_CLAUSES = 8
"""Parts of a query that are compared in meaning, each by itself; what follows belongs to the last one."""


_MIN_CLAUSE_WORDS = 2
"""Telling words without which a part belongs to the one before it."""


_CLAUSE_BREAK = re.compile(
    r"[\s;,](?:(?<=[.!?]\s)|(?<=[;\n])|(?<=,)\s|(?<=\s)(?i:and\s(?:then|also)|and|then|also|as\swell\sas)\s)"
)


class QueryTerm(NamedTuple):
    """One thing to look for."""

    stem: str
    """What is looked up: a stem, or a whole name."""
    surface: str
    """The word itself, lower case."""
    shown: str
    """The word as it was typed."""
    places: range
    """The typed words it comes from, by their place."""
    whole: bool = False
    """Whether it is a whole name rather than a word."""
    spelt: bool = False
    """Whether that name was typed as one word of several, `createIssue`, or is all that was typed."""


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query, read."""

    words: tuple[str, ...]
    """The words as they were typed."""
    terms: tuple[QueryTerm, ...]
    """What is looked for, each stem once; without stop words, unless there is nothing else."""
    chain: tuple[tuple[int, str], ...]
    """All its words in a row, each with the place of the typed word it comes from."""
    clauses: tuple[tuple[str, ...], ...]
    """The words of each part of the query, in order, stop words included; a word may come twice."""
    literals: int
    """The kinds of literals in it, one bit a kind."""

    def names(self, begins: Callable[[str], bool], spells: Callable[[str], bool]) -> Iterator[tuple[str, range]]:
        """Words in a row that are a whole name: joined, and the typed words they come from, by place.

        `begins` tells whether some name of several words begins with a word, `spells` whether one is spelt so, with
        `WHOLE` before it.
        """
        for start, (first, word) in enumerate(self.chain):
            name = WHOLE_NAME + word
            if spells(name):
                yield word, range(first, first + 1)
            if not begins(word):
                continue
            for count, (last, more) in enumerate(self.chain[start + 1 : start + _MAX_JOINED_WORDS], 2):
                if count > _MAX_NAME_WORDS and last != first:
                    break
                name += more
                if spells(name):
                    yield name[len(WHOLE_NAME) :], range(first, last + 1)

    def whole(self, name: str, places: range) -> QueryTerm:
        """The term for a whole name."""
        shown = " ".join(self.words[place] for place in places)
        joined = len(places) == 1 and sum(place == places[0] for place, _ in self.chain) > 1
        spelt = joined or len(places) == len(self.words)
        return QueryTerm(WHOLE_NAME + name, name, shown, places, whole=True, spelt=spelt)


def parse_query(text: str) -> ParsedQuery:
    """Read a query of any length.

    >>> [term.stem for term in parse_query("list the open issues").terms]
    ['list', 'open', 'issu']
    >>> parse_query("Find a flight to Oslo, then book a hotel").clauses
    (('find', 'a', 'flight', 'to', 'oslo'), ('then', 'book', 'a', 'hotel'))
    """
    return _parse_cached(text) if len(text) <= _MAX_CACHED_QUERY else _parse(text[:_MAX_QUERY])


def _parse(text: str) -> ParsedQuery:
    typed = tuple(TOKEN.findall(text))
    pairs = [(place, word, words) for place, words in enumerate(map(analyze_token, typed)) for word in words][
        :_MAX_TERMS
    ]
    terms: dict[str, QueryTerm] = {}
    for place, word, words in [pair for pair in pairs if pair[1].telling] or pairs:
        if word.stem not in terms:
            shown = typed[place] if len(words) == 1 else word.text
            terms[word.stem] = QueryTerm(word.stem, word.text, shown, range(place, place + 1))
    chain = tuple([(place, word.text) for place, word, _ in pairs])
    return ParsedQuery(typed, tuple(terms.values()), chain, _split_clauses(text, pairs), literal_kinds(text))


def _split_clauses(
    text: str, pairs: Sequence[tuple[int, AnalyzedWord, tuple[AnalyzedWord, ...]]]
) -> tuple[tuple[str, ...], ...]:
    """The words, parted where the query passes from one need to the next."""
    breaks = [match.end() for match in _CLAUSE_BREAK.finditer(text)]
    if not breaks or not pairs:
        return (tuple([word.text for _, word, _ in pairs]),)
    starts = [match.start() for match in TOKEN.finditer(text)]
    parts: list[list[str]] = []
    last, telling = -1, _MIN_CLAUSE_WORDS
    for place, word, _ in pairs:
        part = bisect_right(breaks, starts[place])
        if part != last and telling >= _MIN_CLAUSE_WORDS and len(parts) < _MAX_CLAUSES:
            parts.append([])
            telling = 0
        last = part
        telling += word.telling
        parts[-1].append(word.text)
    if len(parts) > 1 and telling < _MIN_CLAUSE_WORDS:
        parts[-2].extend(parts.pop())
    return tuple([tuple(part) for part in parts])


_parse_cached = lru_cache(maxsize=16)(_parse)


WHOLE_NAME = "="
"""Stands before a whole name among the words: no word begins so."""
