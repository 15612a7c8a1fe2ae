"""Read text: words and their stems, and whole queries.

Works for identifiers and prose in any script. Two forms of a word match when they share a stem. A set of kinds is an
int with one bit per kind. Knows nothing about tools or scores.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from operator import itemgetter, or_
from typing import NamedTuple, TypeVar

from toolcrib.search.glossary import fold_accents, words_within
from toolcrib.search.inflection import script_stem
from toolcrib.search.literals import LITERAL_BITS, MIN_HASH, find_literals, may_have_literals
from toolcrib.search.word_lists import headed_lists, word_list

V = TypeVar("V")
MAX_WORD = 64
"""Longer words are cut to this many characters."""
_COMBINING = "\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u109f\u135d-\u135f\u1780-\u17ff"
TOKEN = re.compile(rf"[\w{_COMBINING}]+")
"""A word as it is typed: `createPullRequest`, `create_pull_request`, `v2`."""
_CAMEL = re.compile(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CJK = rf"\u3040-\u30ff{_HAN}\uac00-\ud7af"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_SCRIPT_RUNS = re.compile(
    rf"[{_HAN}]+|[\u30a0-\u30ff]+|[\u3040-\u309f]+|[\uac00-\ud7af]+|[{_UNSPACED}]+|\d+"
    rf"|[^\W\d_{_CJK}{_UNSPACED}]+[{_COMBINING}]*"
)
"""Runs of one script: in Japanese, a change of script is usually the border of a word."""
STOP_WORDS = word_list("stop words")
"""Words that say nothing about what a tool does. Verbs such as get, find and show do, so they are not here."""


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words, in order. Identifiers are split too.

    >>> split_words("createPullRequest for HTTPServer2 in my_repo")
    ['create', 'pull', 'request', 'for', 'http', 'server', '2', 'in', 'my', 'repo']
    """
    return [word for token in TOKEN.findall(text) for word in split_identifier(token)]


def split_identifier(token: str) -> tuple[str, ...]:
    """Split one token into lower-case words; Chinese, Japanese, Korean and Thai runs become pairs of characters.

    Chinese and Korean characters stand alone, too, and words of the glossary are whole.

    >>> split_identifier("parseJSONFile"), split_identifier("東京都"), split_identifier("ファイル")
    (('parse', 'json', 'file'), ('東京', '京都', '東', '京', '都'), ('ファ', 'ァイ', 'イル', 'ファイル'))
    """
    if not token.isascii():
        return _split_unicode(token)
    if token.isalpha() and (token.islower() or token[1:].islower()):
        return (token.lower()[:MAX_WORD],)
    if token.islower() and len(token) <= MAX_WORD:
        return tuple(_CAMEL.findall(token))
    return tuple([_without_plural(part).lower()[:MAX_WORD] for part in _CAMEL.findall(token)])


def _without_plural(part: str) -> str:
    """Drop the s of a short acronym, which is too short to be stemmed: `PRs`, `IDs`."""
    return part[:-1] if len(part) == _SHORT and part[-1] == "s" and part[:-1].isupper() else part


class WordMemo(dict[str, V]):
    """Values of words, computed on first use: finding a known one runs no Python code.

    Numbers and overlong words seldom repeat, so they are not kept. If there are too many words, all are dropped.
    """

    __slots__ = ("_compute", "_most")

    def __init__(self, compute: Callable[[str], V], most: int) -> None:
        """Keep the values of at most so many words."""
        super().__init__()
        self._compute = compute
        self._most = most

    def __missing__(self, word: str) -> V:
        value = self._compute(word)
        if len(word) <= MAX_WORD and not word[-1:].isdigit():
            if len(self) >= self._most:
                self.clear()
            self[word] = value
        return value


class AnalyzedWord(NamedTuple):
    """A word of a query."""

    text: str
    stem: str
    is_content: bool
    """Whether it is a content word, not a stop word."""


def analyze_token(token: str) -> tuple[AnalyzedWord, ...]:
    """Split one token into words with their stems. Cached, since queries share most of their words, but not numbers.

    >>> [(word.text, word.stem) for word in analyze_token("theIssues")]
    [('the', 'the'), ('issues', 'issu')]
    """
    return _ANALYZED[token]


def _analyze(token: str) -> tuple[AnalyzedWord, ...]:
    words = split_identifier(token)
    return tuple([AnalyzedWord(word, word if word.isdigit() else stem(word), word not in STOP_WORDS) for word in words])


@lru_cache(maxsize=16_384)
def stem(word: str) -> str:
    """Reduce a word to what it shares with its plural and its verb forms.

    A light stemmer: it drops a plural s, then -ing or -ed, then a final e. Words in some other scripts have stems by
    `script_stem`. Short words and words with digits stay as they are.

    >>> [stem(word) for word in ("issues", "queries", "query", "creating", "created", "create", "status", "stopped")]
    ['issu', 'queri', 'queri', 'creat', 'creat', 'creat', 'status', 'stop']
    """
    if len(word) <= _SHORT or not word.isascii() or not word.isalpha():
        return word if word.isascii() else script_stem(word)
    base = _without_ending(_singular(word))
    if len(base) > _SHORT and base[-1] in "ey":
        return base[:-1] + ("i" if base[-1] == "y" else "")
    return base


_SHORT = 3
"""Words of at most this many characters are not stemmed."""


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


def _split_unicode(token: str) -> tuple[str, ...]:
    text = fold_accents(token)
    if text.isascii():
        return split_identifier(text)
    found: list[str] = []
    for run in _SCRIPT_RUNS.findall(_camel_spaced(text)):
        word = run.casefold()
        found.extend(_character_pairs(word) if is_unspaced(word) else [word[:MAX_WORD]])
    found.extend([word for word in words_within(text) if word not in found])
    return tuple(found)


def _camel_spaced(text: str) -> str:
    """Put a space between a lower-case and an upper-case letter."""
    pairs = zip(" " + text, text, strict=False)
    return "".join(f" {char}" if char.isupper() and before.islower() else char for before, char in pairs)


def is_unspaced(word: str) -> bool:
    """Whether a word is in a script without spaces between words, and so is a pair of characters."""
    return not word.isascii() and _UNSPACED_CHAR.match(word) is not None


def _character_pairs(run: str) -> list[str]:
    """The pairs of neighbours in a run, then each Chinese or Korean character alone.

    None crosses a Chinese character that only joins words, if others remain.
    """
    parts = [*filter(None, _CHINESE_PARTICLES.split(run))] or [run]
    pairs = [part[place : place + 2] for part in parts for place in range(max(1, len(part) - 1))]
    if not _SYLLABIC.match(run):
        return pairs
    return [*pairs, *[character for part in parts if len(part) > 1 for character in part]]


_SYLLABIC = re.compile(f"[{_HAN}\uac00-\ud7af]")
"""Characters that mean something alone."""
_CHINESE_PARTICLES = re.compile("[的了吗呢吧呀我你您他她它们把被这那哪些么请帮]")
_UNSPACED_CHAR = re.compile(rf"[{_CJK}{_UNSPACED}]")
_ANALYZED = WordMemo(_analyze, 16_384)


def _shown_words(token: str) -> tuple[tuple[str, AnalyzedWord], ...]:
    """The words of a token, each with what it is called in a reply: as typed, unless the token has several."""
    words = analyze_token(token)
    return tuple([(token if len(words) == 1 else word.text, word) for word in words])


_SHOWN = WordMemo(_shown_words, 16_384)
_MAX_QUERY = 8_000
"""Characters of a request's queries that are read; the rest is ignored."""
_MAX_CACHED_QUERY = 1_000
"""Longer queries are not cached. The cache pays off because one request parses the same text in several places."""
MAX_QUERY_WORDS = 256
"""Distinct words of a request's queries that are read."""
CUT_NOTE = f"The query is too long: only its first words were read, {MAX_QUERY_WORDS} different ones at most."
"""What a reply says about a query of which a part was not read."""
_MAX_WORDS_A_CHARACTER = 3
"""A character in a script without spaces can be a word, begin a pair, and begin a word of the glossary."""
_MAX_NAME_WORDS = 6
"""Consecutive words that are tried as a whole name."""
_MAX_JOINED_WORDS = 24
"""Words of a name that was typed as one token."""
_MAX_CLAUSES = 8
"""Clauses that are compared in meaning separately; any further text belongs to the last one."""
_MIN_CLAUSE_WORDS = 2
"""A clause with fewer content words is joined to the one before it."""
_CLAUSE_BREAK = re.compile(
    r"[\s;,](?:(?<=[.!?]\s)|(?<=[;\n])|(?<=,)\s|(?<=\s)(?i:and\s(?:then|also)|and|then|also|as\swell\sas)\s)"
)


class QueryTerm(NamedTuple):
    """One stem or whole name to look up."""

    stem: str
    """The key in the index: a stem, or a whole name after `WHOLE_NAME`."""
    surface: str
    """The word in lower case."""
    typed: str
    """The word as typed."""
    word_range: range
    """Which of the typed words it comes from."""
    is_name: bool = False
    """Whether it is the whole name of a tool rather than a word."""
    is_explicit: bool = False
    """Whether that name was typed as one token of several words, `createIssue`, or is the entire query."""
    is_value: bool = False
    """Whether it looks like an argument, such as a person's name: a tool that fits need not know the word."""


class ParsedQuery(NamedTuple):
    """A query split into words, terms and clauses."""

    words: tuple[str, ...]
    """The words as typed."""
    terms: tuple[QueryTerm, ...]
    """What to look up, each stem once. Stop words only if there is nothing else."""
    sequence: tuple[tuple[int, str], ...]
    """All words in order, each with the number of the typed word it comes from."""
    clauses: tuple[tuple[str, ...], ...]
    """The words of each clause in order, with stop words and repetitions."""
    literals: int
    """The kinds of literals in the query, one bit per kind."""
    text: str
    """The query as typed."""

    def find_names(self, begins: Callable[[str], bool], spells: Callable[[str], bool]) -> Iterator[tuple[str, range]]:
        """Find consecutive words that form a whole name: the joined name, and the numbers of the typed words.

        `begins` says whether a name of several words begins with a word; `spells` whether a name is exactly these
        words, joined after `WHOLE_NAME`.
        """
        sequence = self.sequence
        for start, (first, word) in enumerate(sequence):
            name = WHOLE_NAME + word
            if spells(name):
                yield word, range(first, first + 1)
            if not begins(word):
                continue
            stop = start + _MAX_NAME_WORDS
            while stop < len(sequence) and sequence[stop][0] == first and stop < start + _MAX_JOINED_WORDS:
                stop += 1
            for last, more in sequence[start + 1 : stop]:
                name += more
                if spells(name):
                    yield name[len(WHOLE_NAME) :], range(first, last + 1)

    def _count_words(self, typed: int) -> int:
        """How many words a typed word holds."""
        first = bisect_left(self.sequence, typed, key=itemgetter(0))
        return bisect_right(self.sequence, typed, lo=first, key=itemgetter(0)) - first

    def name_term(self, name: str, places: range) -> QueryTerm:
        """Make the term for a whole name."""
        shown = " ".join(self.words[place] for place in places)
        joined = len(places) == 1 and self._count_words(places[0]) > 1
        spelt = joined or len(places) == len(self.words)
        return QueryTerm(WHOLE_NAME + name, name, shown, places, is_name=True, is_explicit=spelt)


def read_queries(queries: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the part of a request's queries that is read, and whether it leaves any text of these queries out.

    That is at most 8,000 characters and 256 distinct words of all queries together. Queries after the last one that is
    read are not returned.

    >>> parts, is_cut = read_queries([" ".join(f"w{number}" for number in range(9_999)), "list the open issues"])
    >>> len(parts), len(parse_query(parts[0]).words), is_cut
    (1, 255, True)
    """
    if sum(map(len, queries)) * _MAX_WORDS_A_CHARACTER <= MAX_QUERY_WORDS:
        return tuple(queries), False
    seen: set[str] = set()
    parts: list[str] = []
    left = _MAX_QUERY
    for query in queries:
        if not left or len(seen) >= MAX_QUERY_WORDS:
            break
        part = _readable_part(query[:left], seen)
        left -= len(part)
        if part.strip() or part == query:
            parts.append(part)
        if part != query:
            return tuple(parts), True
    return tuple(parts), False


def _readable_part(text: str, seen: set[str]) -> str:
    """The beginning of a text up to the word with which `seen` has too many; adds the words before it."""
    for token in TOKEN.finditer(text):
        is_first = not seen
        seen.update([word.text for word in analyze_token(token[0])])
        if len(seen) > MAX_QUERY_WORDS:
            # One token can hold many words. A query without words would list every tool, so some of it is read.
            return text[: token.start() + (MAX_WORD if is_first else 0)]
    return text


def parse_query(text: str) -> ParsedQuery:
    """Parse a query, as far as `read_queries` reads it alone.

    >>> [term.stem for term in parse_query("list the open issues").terms]
    ['list', 'open', 'issu']
    >>> parse_query("Find a flight to Oslo, then book a hotel").clauses
    (('find', 'a', 'flight', 'to', 'oslo'), ('then', 'book', 'a', 'hotel'))
    """
    return _parse_cached(text) if len(text) <= _MAX_CACHED_QUERY else _parse(text)


_ReadWord = tuple[int, int, str, AnalyzedWord]
"""A word as it is read, which may replace an idiom or a literal: its first and last typed word, their text, and it."""


def _parse(text: str) -> ParsedQuery:
    text = read_queries((text,))[0][0]
    typed = tuple(TOKEN.findall(text))
    starts = _TokenStarts(text, typed)
    longest = max(map(len, typed), default=0)
    read = [
        (place, place, shown, word)
        for place, words in enumerate(map(_SHOWN.__getitem__, typed))
        for shown, word in words
    ]
    sequence = tuple([(place, word[0]) for place, _, _, word in read])
    literals = find_literals(text) if longest >= MIN_HASH or may_have_literals(text, typed) else []
    values = _value_places(text, typed, starts)
    read = _read_idioms(_read_literals(text, starts, read, literals), typed)
    terms: dict[str, QueryTerm] = {}
    for first, last, shown, (surface, root, _) in [item for item in read if item[3].is_content] or read:
        if root not in terms:
            places = range(first, last + 1)
            terms[root] = QueryTerm(root, surface, shown, places, False, False, first in values)  # noqa: FBT003 - fast
    kinds = reduce(or_, [LITERAL_BITS[kind] for kind, _ in literals], 0)
    return ParsedQuery(typed, tuple(terms.values()), sequence, _split_clauses(text, starts, read), kinds, text)


class _TokenStarts:
    """Where each token of a text begins, computed on first use: many queries never need it."""

    __slots__ = ("_known", "_text", "_typed")

    def __init__(self, text: str, typed: Sequence[str]) -> None:
        """`typed` has the tokens of the text."""
        self._text, self._typed = text, typed
        self._known: list[int] | None = None

    def all(self) -> list[int]:
        """The starts of all tokens."""
        if self._known is None:
            known, place = [], 0
            for token in self._typed:
                place = self._text.find(token, place)
                known.append(place)
                place += len(token)
            self._known = known
        return self._known


def _read_literals(
    text: str, token_starts: _TokenStarts, words: list[_ReadWord], literals: Sequence[tuple[str, int]]
) -> list[_ReadWord]:
    """Read `notes.txt` as "txt file", and `https://example.org` as "example url"."""
    for kind, start in literals:
        noun = _LITERAL_NOUNS.get(kind)
        if noun is None or (kind == "path" and text[start] in "/~.\\"):
            continue
        starts = token_starts.all()
        end = start + len(text[start:].split(maxsplit=1)[0])
        inside = [number for number, word in enumerate(words) if start <= starts[word[0]] < end]
        if inside:
            own = [words[number] for number in inside]
            kept = own[-1:] if kind == "path" else [item for item in own if item[3].text not in _URL_WORDS]
            kept.append((own[0][0], own[-1][1], " ".join([item[2] for item in own]), analyze_token(noun)[0]))
            words[inside[0] : inside[-1] + 1] = kept
    return words


def _read_idioms(words: list[_ReadWord], typed: Sequence[str]) -> list[_ReadWord]:
    """Read each idiom as the words that tools use for it."""
    texts = [word[0] for _, _, _, word in words]
    if _IDIOM_BEGINNINGS.isdisjoint(texts):
        return words
    begins = [at for at, text in enumerate(texts) if text in _IDIOMS]
    if not any(texts[at : at + len(idiom)] == idiom for at in begins for idiom, _ in _IDIOMS[texts[at]]):
        return words
    found: list[_ReadWord] = []
    at = 0
    while at < len(words):
        for idiom, meaning in _IDIOMS.get(texts[at], ()):
            if texts[at : at + len(idiom)] == idiom:
                first, last = words[at][0], words[at + len(idiom) - 1][1]
                shown = " ".join(typed[first : last + 1])
                found += [(first, last, shown, analyze_token(word)[0]) for word in meaning]
                at += len(idiom)
                break
        else:
            found.append(words[at])
            at += 1
    return found


def _value_places(text: str, typed: Sequence[str], token_starts: _TokenStarts) -> set[int]:
    """The numbers of typed words that look like arguments: quoted, after a colon or "that", or a proper name."""
    found: set[int] = set()
    for match in _VALUES.finditer(text) if not _VALUE_SIGNS.isdisjoint(typed) or _VALUE_MARKS.search(text) else ():
        starts = token_starts.all()
        found.update(range(bisect_left(starts, match.start(match.lastgroup or 0)), bisect_left(starts, match.end())))
    if text.islower():
        return found
    capital = [place for place, word in enumerate(typed) if word[0].isupper() and word[1:].islower()]
    if any(capital) and len(capital) * 2 <= len(typed):
        starts = token_starts.all()
        found.update(
            [
                place
                for place in capital
                if place and text[starts[place] - 1] == " " and text[starts[place] - 2] not in ".!?:"
            ]
        )
    return found


def _split_clauses(text: str, token_starts: _TokenStarts, words: Sequence[_ReadWord]) -> tuple[tuple[str, ...], ...]:
    """Split the words into clauses, where the query passes from one need to the next."""
    breaks = [match.end() for match in _CLAUSE_BREAK.finditer(text)]
    if not breaks or not words:
        return (tuple([word[0] for _, _, _, word in words]),)
    starts = token_starts.all()
    part: list[str] = []
    parts = [part]
    numbers: list[int] = []
    """The number of the clause that each token is in."""
    for number, end in enumerate([*breaks, len(text)]):
        numbers += [number] * (bisect_left(starts, end) - len(numbers))
    at = numbers[words[0][0]]
    content_words = 0
    for place, _, _, (word, _, is_content) in words:
        if numbers[place] != at:
            at = numbers[place]
            if content_words >= _MIN_CLAUSE_WORDS and len(parts) < _MAX_CLAUSES:
                part = []
                parts.append(part)
                content_words = 0
        content_words += is_content
        part.append(word)
    if len(parts) > 1 and content_words < _MIN_CLAUSE_WORDS:
        parts[-2].extend(parts.pop())
    return tuple([tuple(part) for part in parts])


_LITERAL_NOUNS = {"url": "url", "path": "file", "email": "email"}
"""What literals of some kinds are called."""
_URL_WORDS = frozenset("http https www com org net io dev gov edu html htm".split())  # noqa: SIM905
"""Words of a URL that say nothing."""
_VALUES = re.compile(
    r"""
      "[^"]{0,500}" | “[^”]{0,500}”
    | ^(?:\w+\W+){0,4}?(?:remember|memorize|note|issue|bug|tell|say|post|write|repeat|type|task|comment)
        (?:\W+\w+){0,3}(?P<text>:\s.*)
    | \b(?:remember|memorize|note|forget|mind|tell|say|know|remind|mention)\s(?:\w+\s){0,3}?that(?P<said>\s.*)
    | \b(?:saying|called|named|titled)(?P<name>\s.*)
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""Texts that a request passes on: what is quoted, said, or the name of something new."""
_VALUE_SIGNS = frozenset(("that", "saying", "called", "named", "titled", "That"))
_VALUE_MARKS = re.compile('["“:]')
"""A text without these has none of them, which is the usual case."""


def _idioms() -> Mapping[str, list[tuple[list[str], tuple[str, ...]]]]:
    found: dict[str, list[tuple[list[str], tuple[str, ...]]]] = {}
    for idiom, meaning in headed_lists("idioms"):
        found.setdefault(idiom.split()[0], []).append((idiom.split(), meaning))
    return found


_IDIOMS = _idioms()
"""Idioms by their first word, each with the words that tools use for it."""
_IDIOM_BEGINNINGS = frozenset(_IDIOMS)
_parse_cached = lru_cache(maxsize=16)(_parse)
WHOLE_NAME = "="
"""Prefix of whole names among the indexed words; no word begins with it."""
