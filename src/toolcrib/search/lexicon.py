"""Synonyms of the words that tools and requests use, and the field of knowledge (domain) of a word.

Pairs hold in both directions and are not transitive: `a` with `b` and `b` with `c` say nothing about `a` and `c`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, product

from toolcrib.checks import checked
from toolcrib.search.text import STOP_WORDS, TOKEN, WordMemo, split_identifier, stem
from toolcrib.search.word_lists import headed_lists

SynonymPair = tuple[str, str]
"""Two lower-case words in alphabetical order."""
_IRREGULAR_FORMS = dict(headed_lists("irregular forms"))
"""Words that only look like a form of another word (`times` of `time`, `news` of `new`), and their own base form."""
ADDED_SECTIONS = ("verbs", "everyday", "nouns")
"""The sections of the synonyms that the default lexicon adds to those of the reference."""
_HAS_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"\d{2,}")
_MAX_CACHED = 16_384
"""Words whose synonyms are cached."""
_SILENT_E_PLURAL = re.compile("[^sxzhoi]es")
"""The end of a plural whose singular certainly ends in e."""


@checked(methods=("with_pairs", "synonym_stems", "related", "domains_of"))
@dataclass(frozen=True, slots=True)
class Lexicon:
    """Pairs of synonyms, and the words of each domain. All forms of a word count as that word."""

    pairs: frozenset[SynonymPair]
    domains: Mapping[str, frozenset[str]] = field(hash=False)
    """The words of each domain, by its name."""
    _related: Mapping[str, tuple[str, ...]] | None = field(default=None, init=False, repr=False, compare=False)
    _fields: Mapping[str, tuple[str, ...]] | None = field(default=None, init=False, repr=False, compare=False)

    stems_of_synonyms: Callable[[str], tuple[str, ...]] = field(init=False, repr=False, compare=False)
    """What `synonym_stems` returns for each word, without the check of its argument; for the search itself."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stems_of_synonyms", WordMemo(self._synonym_stems, _MAX_CACHED).__getitem__)

    def _synonyms(self) -> Mapping[str, tuple[str, ...]]:
        """The synonyms of each form of a word; worked out on first use, as options hold lexicons that nothing reads."""
        found = self._related
        if found is None:
            found = _by_form(chain(self.pairs, ((other, one) for one, other in self.pairs)))
            object.__setattr__(self, "_related", found)
        return found

    def _domain_names(self) -> Mapping[str, tuple[str, ...]]:
        """The domains of each form of a word, likewise."""
        found = self._fields
        if found is None:
            members = (
                (part, name) for name, words in self.domains.items() for word in words for part in _with_numbers(word)
            )
            found = _by_form(members)
            object.__setattr__(self, "_fields", found)
        return found

    @classmethod
    def default(cls) -> "Lexicon":
        """The lexicon with all pairs in the package."""
        return _default_lexicon()

    @classmethod
    def points(cls) -> "Lexicon":
        """The smaller lexicon of the `points` scorer: sciences, files, networks, data, texts, pictures and sound."""
        return _reference_lexicon()

    def with_pairs(self, pairs: Iterable[tuple[str, str | Iterable[str]]]) -> "Lexicon":
        """Return a lexicon with more pairs: each word with its synonyms.

        A phrase counts as its single words, without stop words.

        >>> own = Lexicon.default().with_pairs([("sprint", ["iteration"]), ("poi", ["point of interest"])])
        >>> own.related("sprints"), own.related("poi")
        (('iteration',), ('interest', 'point'))
        """
        return Lexicon(self.pairs | frozenset(_synonym_pairs(pairs)), self.domains)

    def synonym_stems(self, word: str) -> tuple[str, ...]:
        """The stems of the synonyms of a word, each once. Cached, but not for numbers."""
        return self.stems_of_synonyms(word)

    def _synonym_stems(self, word: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(stem, self.related(word))))

    def related(self, word: str) -> tuple[str, ...]:
        """The synonyms of a lower-case word, in alphabetical order.

        >>> Lexicon.points().related("averages"), Lexicon.points().related("mean"), Lexicon.points().related("zebra")
        (('mean',), ('average', 'expected', 'mu'), ())
        """
        related = self._synonyms()
        found = [related[form] for form in _forms(word) if form in related]
        return found[0] if len(found) == 1 else tuple(sorted(set().union(*found)))

    def domains_of(self, words: Iterable[str]) -> frozenset[str]:
        """The domains that contain one of the lower-case words. `base64` is also found by `64`.

        >>> sorted(Lexicon.default().domains_of(["files", "volume", "zebra"]))
        ['audio_processing', 'file_operations', 'geometry']
        """
        names = self._domain_names()
        forms = (form for word in words for form in _forms(word))
        return frozenset().union(*(names.get(form, ()) for form in forms))


def _forms(word: str) -> tuple[str, ...]:
    """The possible base forms of a word: its stem, and the stem with an e. A word that ends in e is its own base form.

    The stem alone would confuse `care` with `car`, and `state` with `stats`.

    >>> [_forms(word) for word in ("queries", "states", "stats", "boxes", "creating", "planning", "k8s")]
    [('queri', 'querie'), ('state',), ('stat',), ('box', 'boxe'), ('creat', 'create'), ('plan',), ('k8s',)]
    """
    if word in _IRREGULAR_FORMS:
        return _IRREGULAR_FORMS[word]
    if word.endswith("e") or word.isdigit():
        return (word,)
    base = stem(word)
    if base == word or not word.endswith(("ing", "ings", "ed", "es")):
        return (base,)
    if _SILENT_E_PLURAL.fullmatch(word[-3:]):
        return (base + "e",)
    doubled = word.startswith(base + base[-1])
    return (base,) if doubled else (base, base + "e")


def _with_numbers(word: str) -> list[str]:
    """A word and the number in it: `split_words` splits `base64`, and `64` identifies it.

    >>> _with_numbers("base64"), _with_numbers("json")
    (['base64', '64'], ['json'])
    """
    return [word, *_NUMBER.findall(word)]


def _synonym_pairs(lines: Iterable[tuple[str, Iterable[str]]]) -> Iterator[SynonymPair]:
    """Pair each word on the left of a line with each one on the right."""
    for left, rights in lines:
        several = (rights,) if isinstance(rights, str) else rights
        for one, other in product(_content_words(left), (word for right in several for word in _content_words(right))):
            if set(_forms(one)).isdisjoint(_forms(other)):
                yield (one, other) if one < other else (other, one)


def _content_words(phrase: str) -> list[str]:
    """The words of a phrase without stop words. A word with digits, such as `k8s`, stays whole."""
    tokens = TOKEN.findall(phrase)
    found = [
        word for token in tokens for word in ((token.lower(),) if _HAS_DIGIT.search(token) else split_identifier(token))
    ]
    return [word for word in found if word not in STOP_WORDS] or found


def _by_form(pairs: Iterable[SynonymPair]) -> Mapping[str, tuple[str, ...]]:
    """Group the right-hand words by the base forms of the left-hand ones."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for left, right in pairs:
        for form in _forms(left):
            found[form].add(right)
    return {form: tuple(sorted(rights)) for form, rights in found.items()}


def added_stems(word: str) -> frozenset[str]:
    """The stems of the synonyms of a word that only the default lexicon has, and the reference does not.

    >>> sorted(added_stems("save")), "write" in added_stems("save")
    (['download'], False)
    """
    return _ADDED_STEMS[word]


def _added_stems(word: str) -> frozenset[str]:
    return frozenset(_default_lexicon().stems_of_synonyms(word)).difference(
        _reference_lexicon().stems_of_synonyms(word)
    )


_ADDED_STEMS = WordMemo(_added_stems, _MAX_CACHED)


def packaged_lines(section: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The lines of a section of `data/synonyms.txt`: what is before the colon, and the words after it."""
    return headed_lists(section, file="synonyms")


@cache
def _reference_lexicon() -> Lexicon:
    domains = {name: frozenset(members) for name, members in packaged_lines("domains")}
    return Lexicon(frozenset(_synonym_pairs(packaged_lines("reference"))), domains)


@cache
def _default_lexicon() -> Lexicon:
    return _reference_lexicon().with_pairs(chain.from_iterable(map(packaged_lines, ADDED_SECTIONS)))
