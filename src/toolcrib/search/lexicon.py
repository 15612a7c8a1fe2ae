"""The lexicon: which words mean the same to somebody who asks for a tool, and of which field of knowledge a word is.

Pairs hold in both directions and are never followed further: `a` with `b` and `b` with `c` say nothing of `a` and `c`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, product

from toolcrib.search.lexicon_general import NOUNS, VERBS
from toolcrib.search.lexicon_words import DOMAINS, PRINTED
from toolcrib.search.text import CHUNK, STOP_WORDS, split, stem

Pair = tuple[str, str]
"""Two words, lower case, in the order of the alphabet."""

_APART = {
    "times": "times",
    "news": "news",
    "setting": "settings",
    "settings": "settings",
    "building": "building",
    "buildings": "building",
    "meaning": "meaning",
    "meanings": "meaning",
}
"""Words that are no form of what they look like a form of (`times` of `time`, `news` of `new`), and what they are."""

_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"\d{2,}")

_MEMO = 16_384
"""Words whose stems are remembered."""

_MUTE = re.compile("[^sxzhoi]es")
"""Ends a plural whose word surely ends in e."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Pairs of words that may stand for each other, and the domains. Forms of one word count as that word."""

    pairs: frozenset[Pair]
    domains: Mapping[str, frozenset[str]] = field(hash=False)
    """Name to words, for each field of knowledge."""
    _related: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _fields: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    _stems: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out both directions."""
        object.__setattr__(self, "_stems", {})
        both_ways = chain(self.pairs, ((other, one) for one, other in self.pairs))
        object.__setattr__(self, "_related", _by_form(both_ways))
        members = ((part, name) for name, words in self.domains.items() for word in words for part in _told(word))
        object.__setattr__(self, "_fields", _by_form(members))

    @classmethod
    def default(cls) -> "Lexicon":
        """All pairs that come with the package."""
        return _default()

    @classmethod
    def points(cls) -> "Lexicon":
        """Only the pairs of sciences, files, networks, data, texts, pictures and sound, for the `points` scorer."""
        return _printed()

    def with_pairs(self, pairs: Iterable[tuple[str, Iterable[str]]]) -> "Lexicon":
        """These pairs, and some of your own: each word with those that may stand for it.

        A phrase counts as its single words, without those of mere prose.

        >>> own = Lexicon.default().with_pairs([("sprint", ["iteration"]), ("poi", ["point of interest"])])
        >>> own.related("sprints"), own.related("poi")
        (('iteration',), ('interest', 'point'))
        """
        return Lexicon(self.pairs | frozenset(_pairs(pairs)), self.domains)

    def stems(self, word: str) -> tuple[str, ...]:
        """The stems of the words that may stand for a word, each once; remembered for the words that are asked for."""
        found = self._stems.get(word)
        if found is None:
            if len(self._stems) >= _MEMO:
                self._stems.clear()
            found = self._stems[word] = tuple(dict.fromkeys(map(stem, self.related(word))))
        return found

    def related(self, word: str) -> tuple[str, ...]:
        """The words that may stand for a word, given in lower case; in the order of the alphabet, without itself.

        >>> Lexicon.points().related("averages"), Lexicon.points().related("mean"), Lexicon.points().related("zebra")
        (('mean',), ('average', 'expected', 'mu'), ())
        """
        found = [self._related[form] for form in _forms(word) if form in self._related]
        return found[0] if len(found) == 1 else tuple(sorted(set().union(*found)))

    def domains_of(self, words: Iterable[str]) -> frozenset[str]:
        """The domains that have one of the words, given in lower case; `base64` is known by `64`, too.

        >>> sorted(Lexicon.default().domains_of(["files", "volume", "zebra"]))
        ['audio_processing', 'file_operations', 'geometry']
        """
        forms = (form for word in words for form in _forms(word))
        return frozenset().union(*(self._fields.get(form, ()) for form in forms))


def _forms(word: str) -> tuple[str, ...]:
    """What a word may be a form of: its stem, and the stem with an e. One that ends in e is a form of nothing else.

    A stem alone would take `care` for `car`, and `state` for `stats`.

    >>> [_forms(word) for word in ("queries", "states", "stats", "boxes", "creating", "planning", "k8s")]
    [('queri', 'querie'), ('state',), ('stat',), ('box', 'boxe'), ('creat', 'create'), ('plan',), ('k8s',)]
    """
    if word in _APART:
        return (_APART[word],)
    if word.endswith("e"):
        return (word,)
    base = stem(word)
    if base == word or not word.endswith(("ing", "ings", "ed", "es")):
        return (base,)
    if _MUTE.fullmatch(word[-3:]):
        return (base + "e",)
    doubled = word.startswith(base + base[-1])
    return (base,) if doubled else (base, base + "e")


def _told(word: str) -> list[str]:
    """A word of a domain, and what is left of it in a text, where it is read as several words: its number tells.

    >>> _told("base64"), _told("json")
    (['base64', '64'], ['json'])
    """
    return [word, *_NUMBER.findall(word)]


def _pairs(lines: Iterable[tuple[str, Iterable[str]]]) -> Iterator[Pair]:
    """Each word on the left with each one on the right of its line."""
    for left, rights in lines:
        several = (rights,) if isinstance(rights, str) else rights
        for one, other in product(_single(left), (word for right in several for word in _single(right))):
            if set(_forms(one)).isdisjoint(_forms(other)):
                yield (one, other) if one < other else (other, one)


def _single(phrase: str) -> list[str]:
    """The words of a phrase; one with digits, such as `k8s`, stays whole."""
    chunks = CHUNK.findall(phrase)
    found = [word for chunk in chunks for word in ((chunk.lower(),) if _DIGIT.search(chunk) else split(chunk))]
    return [word for word in found if word not in STOP_WORDS] or found


def _by_form(pairs: Iterable[Pair]) -> Mapping[str, tuple[str, ...]]:
    """What stands on the right, in order, by the forms of what stands on the left."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for left, right in pairs:
        for form in _forms(left):
            found[form].add(right)
    return {form: tuple(sorted(rights)) for form, rights in found.items()}


def _lines(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.split("\n"):
        if line:
            head, _, rest = line.partition(":")
            yield head, rest.split()


@cache
def _printed() -> Lexicon:
    domains = {name: frozenset(members) for name, members in _lines(DOMAINS)}
    return Lexicon(frozenset(_pairs(_lines(PRINTED))), domains)


@cache
def _default() -> Lexicon:
    return _printed().with_pairs(_lines(VERBS + NOUNS))
