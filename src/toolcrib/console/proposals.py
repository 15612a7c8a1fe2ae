"""What would make a search in vain find its tool, and what that changes: a keyword of the tool, or a synonym.

A keyword is another name of one tool, for a whole phrase. A synonym holds for one word in every search. Nothing is
written: people see the lines to add, and the rank of each search's tool before and after.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.search.text import split_words, stem
from toolcrib.types import Hit, SearchReply, SearchRequest, Tool

Kind = Literal["keyword", "synonym"]
Synonyms = Sequence[tuple[str, tuple[str, ...]]]

_DEPTH: Final = 20
_MAX_WORDS: Final = 4
"""Words of a search, and of a tool, that are tried as synonyms of each other."""
_MIN_CHARS: Final = 3


@dataclass(frozen=True, slots=True)
class Sought:
    """A search, and the tool that it should find."""

    phrase: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChange:
    """What a proposal changes for one search."""

    phrase: str
    tool: str
    before: Hit | None
    before_rank: int | None
    after: Hit | None
    after_rank: int | None

    @property
    def gain(self) -> int:
        """How many places the tool comes earlier; above 0 also if it is not weak any more."""
        was, now = self.before_rank or _DEPTH + 1, self.after_rank or _DEPTH + 1
        if was == now:
            return int(bool(self.before and self.after and self.before.weak and not self.after.weak))
        return was - now

    @property
    def verdict(self) -> str:
        """better, worse or same."""
        return "better" if self.gain > 0 else "worse" if self.gain < 0 else "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Lines to add to a file, and what they change."""

    kind: Kind
    line: str
    changes: tuple[RankChange, ...]


def propose(
    kind: Kind, tools: Sequence[Tool], sought: Sequence[Sought], options: SearchOptions, synonyms: Synonyms = ()
) -> Proposal | None:
    """Propose what makes the first search find its tool, and show what that changes for all of them.

    `synonyms` are those of the settings. None if no synonym helps. Takes about a second for thousands of tools.
    """
    tool = next((one for one in tools if one.id == sought[0].tool), None)
    if tool is None:
        return None
    rehearsal = _Rehearsal(tools, options, synonyms)
    return _keyword(rehearsal, tool, sought) if kind == "keyword" else _synonym(rehearsal, tool, sought)


class _Rehearsal:
    """Searches without counting them."""

    def __init__(self, tools: Sequence[Tool], options: SearchOptions, synonyms: Synonyms) -> None:
        self.tools = tools
        self.synonyms = dict(synonyms)
        self._options = options
        self._index = Index.build(tools, options=options)

    def find(self, phrase: str) -> SearchReply:
        return self._finder(self._index, self.synonyms)(phrase)

    def changes(
        self, sought: Sequence[Sought], *, tools: Sequence[Tool] | None = None, synonyms: Mapping[str, tuple[str, ...]]
    ) -> tuple[RankChange, ...]:
        """What other tools or synonyms change."""
        index = self._index if tools is None else Index.build(tools, options=self._options)
        after = self._finder(index, synonyms)
        found = []
        for one in sought:
            was, was_rank = _rank(self.find(one.phrase), one.tool)
            now, now_rank = _rank(after(one.phrase), one.tool)
            change = RankChange(
                phrase=one.phrase, tool=one.tool, before=was, before_rank=was_rank, after=now, after_rank=now_rank
            )
            found.append(change)
        return tuple(found)

    def _finder(self, index: Index, synonyms: Mapping[str, tuple[str, ...]]) -> Callable[[str], SearchReply]:
        lexicon = Lexicon.default().with_pairs(synonyms.items()) if synonyms else None

        def find(phrase: str) -> SearchReply:
            request = SearchRequest(queries=(phrase,), limit=_DEPTH)
            return search(index, request, options=self._options, lexicon=lexicon)

        return find


def _rank(reply: SearchReply, tool: str) -> tuple[Hit | None, int | None]:
    for place, hit in enumerate(reply.hits, start=1):
        if hit.tool.id == tool and not hit.fallback:
            return hit, place
    return None, None


def _keyword(rehearsal: _Rehearsal, tool: Tool, sought: Sequence[Sought]) -> Proposal:
    phrase = sought[0].phrase
    tools = [replace(one, keywords=(*one.keywords, phrase)) if one is tool else one for one in rehearsal.tools]
    line = f"{json.dumps(tool.id)} = {json.dumps([phrase], ensure_ascii=False)}"
    changes = rehearsal.changes(sought, tools=tools, synonyms=rehearsal.synonyms)
    return Proposal(kind="keyword", line=line, changes=changes)


def _synonym(rehearsal: _Rehearsal, tool: Tool, sought: Sequence[Sought]) -> Proposal | None:
    """The word of the search and the word of the tool's name that, as synonyms, help this search most."""
    first, best = sought[0], None
    for word, other in _pairs(tool, first.phrase, rehearsal.find(first.phrase).unmatched):
        synonyms = {**rehearsal.synonyms, word: (*rehearsal.synonyms.get(word, ()), other)}
        (change,) = rehearsal.changes([first], synonyms=synonyms)
        score = (change.gain, 0.0 if change.after is None else change.after.score)
        if change.gain > 0 and (best is None or score > best[0]):
            best = score, word, synonyms
    if best is None:
        return None
    _, word, synonyms = best
    line = f"[toolcrib.search.synonyms]\n{_key(word)} = {json.dumps(synonyms[word], ensure_ascii=False)}"
    return Proposal(kind="synonym", line=line, changes=rehearsal.changes(sought, synonyms=synonyms))


def _pairs(tool: Tool, phrase: str, unmatched: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Words of the search, those that match no tool first, with words of the tool's name."""
    asked = [word for word in dict.fromkeys((*unmatched, *split_words(phrase.lower()))) if len(word) >= _MIN_CHARS]
    known = {stem(word) for word in asked}
    named = dict.fromkeys(word for word in split_words(f"{tool.name} {tool.title}".lower()) if len(word) >= _MIN_CHARS)
    others = [word for word in named if stem(word) not in known and not word.isdigit()]
    for word in asked[:_MAX_WORDS]:
        for other in others[:_MAX_WORDS]:
            yield word, other


def _key(word: str) -> str:
    """A word as a key in TOML."""
    return word if word.isascii() and word.isalnum() else json.dumps(word, ensure_ascii=False)
