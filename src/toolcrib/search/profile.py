"""What the tools of a server are about: their most telling words, and their kinds.

A profile depends on one server's tools only. `telling_words` then compares profiles, because a word that many servers
use says little about each. Profiles hold single words and pairs of words, never a sentence of a server.

Kinds, such as databases or messaging, are few and fixed, so that the same servers are always grouped in the same way. A
tool belongs to the kind whose words are closest in meaning to its own.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from math import log
from typing import Final, NamedTuple

import numpy as np

from toolcrib.search.intent import TOOL_VERBS
from toolcrib.search.text import TOKEN, AnalyzedWord, analyze_token, split_words, stem
from toolcrib.search.vectors import Floats, WordPieceTable, default_table, unit_rows
from toolcrib.search.word_lists import section_text, word_list
from toolcrib.types import Tool

MAX_WORDS: Final = 24
"""Words of a profile."""
MAX_READ: Final = 64
"""Tools of a server that are read, unless there are many servers."""
_NAME, _TITLE, _SENTENCE, _ABOUT = 1.0, 0.7, 0.35, 0.15
"""What a word counts for in a tool's name, its title, its description's first sentence, and the server's own words."""
_VERB = 0.3
"""A verb says what is done rather than with what: what remains of its weight."""
_COMMON_IDF, _RARE_IDF = 2.0, 7.0
"""Words that are more common say nothing; rarer ones are not more telling, only more often misspelt or made up."""
_OFF_TOPIC: Final = 0.25
"""What remains of the weight of a word that is unlike the others."""
_ALIKE: Final = 0.25
"""The least similarity of a tool and its kind."""
_LEAST: Final = 0.1
"""Words that are so much less telling than the best are left out."""
_NAME_SHARE: Final = 0.5
"""How much the server's name adds to the meaning of its tools when kinds are compared."""
_NAMED_KIND: Final = 0.2
"""How much closer a server is to a kind if its name has one of the kind's words."""
_PAIRED: Final = 0.6
"""Two words are shown together if each has the other beside it in so many of the names that use it."""
_TEXT_CHARS: Final = 300
"""Characters of a text that are read."""
_MAX_LETTERS: Final = 20
"""Characters of a word; longer ones are codes."""
_MIN_LETTERS: Final = 3
_MIN_RUN: Final = 2
_MAX_RUN: Final = 10
"""Characters of a word in a script without spaces."""
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
_HEADING: Final = re.compile(r"^[^\S\n]*+(#.*\n|[=*_-]{3,}+[^\S\n]*+$)", re.MULTILINE)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n|。")
_GENERIC: Final = frozenset(map(stem, word_list("interface words")))
"""Words of interfaces in general."""


class ProfileWord(NamedTuple):
    """A word that may describe a server."""

    stems: frozenset[str]
    """The stem of the word, or those of a pair."""
    text: str
    """One word in lower case, or two."""
    weight: float
    """How telling it is among the words of its server; above 0."""


class KindShare(NamedTuple):
    """How much of a server is of one kind."""

    kind: str
    tools: int
    """Tools that are of this kind rather than of another."""
    likeness: float
    """How close the server is to the kind in meaning, up to 1.2."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What the tools of one server are about."""

    words: tuple[ProfileWord, ...]
    """The most telling ones, best first."""
    kinds: tuple[KindShare, ...]
    """The kinds that it has to do with, the closest first."""
    tools: int
    """The number of tools that were read."""
    named: float
    """How much the server's name says about it: the similarity of the name and the tools, -1 to 1."""


def make_profile(name: str, tools: Sequence[Tool], about: Iterable[str] = (), *, limit: int = MAX_READ) -> Profile:
    """Describe a server by its name, its tools, and what it says about itself; reads at most `limit` tools, 1 or more.

    >>> tools = [Tool(name=f"{verb}_message", description="Reply in a channel.") for verb in ("send", "list")]
    >>> profile = make_profile("slack", tools)
    >>> [word.text for word in profile.words], profile.kinds[0].kind
    (['message', 'channel', 'reply', 'send'], 'chat messages')
    """
    read = _sample(tools, limit)
    counts = _WordCounts(name, len(read))
    for tool in read:
        counts.add_tool(tool)
    counts.add_about(about)
    if not counts.shares:
        return Profile((), (), counts.tools, 0.0)
    return _profile(counts)


def _sample(tools: Sequence[Tool], limit: int) -> Sequence[Tool]:
    """At most so many of the tools, evenly spread."""
    if len(tools) <= limit:
        return tools
    return [tools[place * len(tools) // limit] for place in range(limit)]


def telling_words(profiles: Mapping[str, Profile], limit: int) -> Mapping[str, tuple[str, ...]]:
    """The words by which each server differs from the others, best first, up to `limit` for each."""
    uses = Counter(one for profile in profiles.values() for word in profile.words for one in word.stems)
    rarity = {one: 1 + log((len(profiles) + 1) / (count + 0.5)) for one, count in uses.items()}
    return {name: _rarest(profile.words, rarity, limit) for name, profile in profiles.items()}


def _rarest(words: Iterable[ProfileWord], rarity: Mapping[str, float], limit: int) -> tuple[str, ...]:
    """The best words, without those that a better one contains."""

    def rank(word: ProfileWord) -> tuple[float, str]:
        return -round(word.weight * max(rarity[one] for one in word.stems), 6), word.text

    chosen: list[str] = []
    for word in sorted(words, key=rank):
        if len(chosen) < limit and not any(word.text in other for other in chosen):
            chosen.append(word.text)
    return tuple(chosen)


# -- counting ----------------------------------------------------------------------------------------------------------


class _WordCounts:
    """The words of one server, by stem."""

    def __init__(self, name: str, tools: int) -> None:
        words = split_words(name)
        self.own = frozenset(map(stem, words))
        """The stems of the server's name, which a description need not repeat."""
        self.joined = "".join(words)
        self.name = [word for word in words if stem(word) not in _GENERIC]
        self.tools = tools
        self.shares: defaultdict[str, float] = defaultdict(float)
        """What each word counts for, summed over the tools."""
        self.named: Counter[str] = Counter()
        """How many tools have the word in their name."""
        self.pairs: Counter[tuple[str, str]] = Counter()
        """How many tools have two words side by side in their name."""
        self.by_tool: list[Mapping[str, float]] = []
        self._forms: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add_tool(self, tool: Tool) -> None:
        """Count the words of one more tool."""
        found: dict[str, float] = {}
        name = [word for word in _words(tool.name) if word[1] not in self.own]
        sentence = _words(_first_sentence(tool.description))
        for words, weight in ((name, _NAME), (_words(tool.title or ""), _TITLE), (sentence, _SENTENCE)):
            self._count(words, weight, found)
        for one, weight in found.items():
            self.shares[one] += weight
        stems = [word[1] for word in name]
        self.named.update(set(stems))
        self.pairs.update(set(pairwise(stems)))
        self.by_tool.append(found)

    def add_about(self, texts: Iterable[str]) -> None:
        """Count the words of what the server says about itself, as if a share of its tools had them."""
        for text in texts:
            found: dict[str, float] = {}
            self._count(_words(_first_sentence(_HEADING.sub("", text[:_TEXT_CHARS]))), _ABOUT, found)
            for one, weight in found.items():
                self.shares[one] += weight * max(self.tools, 1)

    def form(self, one: str) -> str:
        """The form of a word that is used most."""
        return min(self._forms[one].items(), key=lambda item: (-item[1], len(item[0]), item[0]))[0]

    def _count(self, words: Sequence[tuple[str, str]], weight: float, found: dict[str, float]) -> None:
        for place, (text, one) in enumerate(words):
            value = weight * _VERB if place == 0 and text in TOOL_VERBS else weight
            if value > found.get(one, 0):
                found[one] = value
            self._forms[one][text] += 1


def _first_sentence(text: str) -> str:
    return _SENTENCE_END.split(text[:_TEXT_CHARS].strip(), maxsplit=1)[0]


def _words(text: str) -> list[tuple[str, str]]:
    """The words of a text that may say something, each with its stem."""
    return [word for token in TOKEN.findall(text) for word in _token_words(token[:_TEXT_CHARS])]


@lru_cache(maxsize=32_768)
def _token_words(token: str) -> tuple[tuple[str, str], ...]:
    if not token.isascii() and _UNSPACED.search(token):
        return ((token, token),) if _MIN_RUN <= len(token) <= _MAX_RUN else ()
    return tuple((word.text, word.stem) for word in analyze_token(token) if word.is_content and _may_tell(word))


def _may_tell(word: AnalyzedWord) -> bool:
    return _MIN_LETTERS <= len(word.text) <= _MAX_LETTERS and not word.text.isdigit() and word.stem not in _GENERIC


# -- weighing ----------------------------------------------------------------------------------------------------------


def _profile(counts: _WordCounts) -> Profile:
    table = default_table()
    stems = sorted(counts.shares)
    forms = [counts.form(one) for one in stems]
    weights = np.clip(table.word_weights(forms), _COMMON_IDF, _RARE_IDF) - _COMMON_IDF + np.float32(0.1)
    vectors = _weighted_vectors(table, forms, weights)
    shares = np.array([counts.shares[one] for one in stems], dtype=np.float32) / max(counts.tools, 1)
    centre = unit_rows((vectors * shares[:, None]).sum(axis=0, keepdims=True))[0]
    closeness = np.einsum("ij,j->i", unit_rows(vectors), centre)
    telling = np.sqrt(shares) * weights * (_OFF_TOPIC + np.maximum(closeness, 0))
    ranked = {
        one: float(telling[place])
        for place, one in enumerate(stems)
        if one not in counts.own and not (len(forms[place]) > 1 and forms[place] in counts.joined)
    }
    name = _name_vector(counts.name)
    kinds = _kinds(counts, vectors, {one: place for place, one in enumerate(stems)}, name)
    named = round(float(np.einsum("j,j->", name, centre)), 4)
    return Profile(tuple(_best_words(counts, ranked)), kinds, counts.tools, named)


def _name_vector(words: Sequence[str]) -> Floats:
    table = default_table()
    vectors = _weighted_vectors(table, words, table.word_weights(words))
    direction: Floats = unit_rows(vectors.sum(axis=0, keepdims=True))[0]
    return direction


def _best_words(counts: _WordCounts, telling: Mapping[str, float]) -> Iterator[ProfileWord]:
    partners = {one: pair for pair in counts.pairs for one in pair if _is_fixed(counts, pair)}
    said: set[str] = set()
    least = _LEAST * max(telling.values(), default=0.0)
    for one in sorted(telling, key=lambda one: (-round(telling[one], 6), one))[:MAX_WORDS]:
        if telling[one] < least:
            break
        pair = partners.get(one, (one,))
        if not said.intersection(pair):
            said.update(pair)
            yield ProfileWord(frozenset(pair), " ".join(map(counts.form, pair)), telling[one])


def _is_fixed(counts: _WordCounts, pair: tuple[str, str]) -> bool:
    """Whether two words belong together, such as pull and request."""
    together = counts.pairs[pair]
    return (
        together > 1
        and pair[0] != pair[1]
        and counts.form(pair[0]) not in TOOL_VERBS
        and all(together >= _PAIRED * counts.named[one] for one in pair)
    )


def _kinds(counts: _WordCounts, vectors: Floats, places: Mapping[str, int], name: Floats) -> tuple[KindShare, ...]:
    rows = [[(places[one], weight) for one, weight in words.items()] for words in counts.by_tool if words]
    if not rows:
        return ()
    flat = [pair for row in rows for pair in row]
    starts = np.cumsum([0, *map(len, rows[:-1])])
    weighted = vectors[[place for place, _ in flat]] * np.array([weight for _, weight in flat], np.float32)[:, None]
    tools = unit_rows(np.add.reduceat(weighted, starts, axis=0))
    likeness = np.einsum("ij,kj->ik", tools, _kind_vectors())
    best = Counter(np.where(likeness.max(axis=1) >= _ALIKE, likeness.argmax(axis=1), -1).tolist())
    centre = unit_rows(tools.sum(axis=0, keepdims=True)) + _NAME_SHARE * name
    whole = np.einsum("ij,kj->ik", unit_rows(centre), _kind_vectors())[0].tolist()
    named = Counter(kind for one in counts.own for kind in _kinds_by_stem().get(one, ()))
    found = [
        KindShare(kind, best[place], round(whole[place] + _NAMED_KIND * min(1, named[kind]), 4))
        for place, kind in enumerate(KINDS)
    ]
    return tuple(sorted((one for one in found if one.likeness > 0), key=lambda one: (-one.likeness, one.kind)))


# -- kinds -------------------------------------------------------------------------------------------------------------


def _group(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The kinds of a group, each with its words."""
    lines = (line.partition(":") for line in text.strip().split("\n"))
    return tuple((kind, tuple(words.split())) for kind, _, words in lines)


_GROUPS: Final = tuple(map(_group, section_text("kinds of servers").split("\n\n")))
KIND_GROUPS: Final = tuple(tuple(kind for kind, _ in group) for group in _GROUPS)
"""The kinds, in the order in which they are listed; those that are listed together form a group."""
KINDS: Final = tuple(kind for group in KIND_GROUPS for kind in group)
"""All kinds, in that order."""
_WORDS: Final = tuple(words for group in _GROUPS for _, words in group)


@cache
def _kinds_by_stem() -> Mapping[str, frozenset[str]]:
    """The kinds whose words include a word, by the stem of the word."""
    found: dict[str, frozenset[str]] = {}
    for kind, words in zip(KINDS, _WORDS, strict=True):
        for one in map(stem, words):
            found[one] = found.get(one, frozenset()) | {kind}
    return found


@cache
def _kind_vectors() -> Floats:
    """The direction of each kind in the table of the package: float32[kinds, components], rows of unit length."""
    table = default_table()
    return unit_rows(
        np.stack([_weighted_vectors(table, words, table.word_weights(words)).sum(axis=0) for words in _WORDS])
    )


def _weighted_vectors(table: WordPieceTable, words: Sequence[str], weights: Floats) -> Floats:
    """The direction of each word times its weight: float32[words, components]; zero for an unknown word."""
    weighted: Floats = unit_rows(table.word_vectors(words)) * weights[:, None]
    return weighted
