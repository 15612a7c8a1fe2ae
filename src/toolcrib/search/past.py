"""Past requests as a field of tools: the words of requests after which a tool was called with success.

It is kept beside the index, since callers of different tenants share the index but not their past. The field counts for
nothing until requests repeat: where most tools have no past, it would only draw requests away from them.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.checks import checked
from toolcrib.errors import InvalidRequest
from toolcrib.search.index import IndexView, SegmentView, idf
from toolcrib.search.inflection import request_language, stop_words
from toolcrib.search.lexical import LexicalMatch, unknown_weight
from toolcrib.search.options import PastOptions
from toolcrib.search.segment import Bools
from toolcrib.search.telling import telling_part
from toolcrib.search.text import ParsedQuery, QueryTerm, parse_query, stem
from toolcrib.search.vectors import default_table
from toolcrib.types import JSON

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
_MAX_REQUEST_WORDS: Final = 24
"""Words of one request that are kept."""
_MAX_COUNT: Final = 1_000
"""Requests of one tool, and with one word, that are counted; more say nothing new."""
_HALF: Final = 0.5
"""A word of `n` past requests of a tool counts `n / (n + 0.5)`."""
_MIN_COVERAGE: Final = 0.2
"""A past that covers less of a request says nothing: common words are in the past of many tools."""
_FEW_REQUESTS: Final = 3
"""Requests that are assumed to have repeated nothing, beside those that are known."""
_MAX_VIEWS: Final = 16
"""Parts of views whose positions of tools are cached."""


def request_words(text: str) -> tuple[str, ...]:
    """The words of a request that a past keeps: the stems of its content words, each once, without what it passes on.

    `request_terms` says what is left out.

    >>> request_words('Could you email the quarterly report "Blue" to Ann Smith in room 12?')
    ('email', 'quarterli', 'report', 'room')
    """
    return tuple(request_terms(text))


def request_terms(text: str) -> dict[str, str]:
    """The content words of a request, by stem, each as it was first written, in lower case.

    Names of persons, quotations and words with digits are left out; of a long request, all but the part that asks.

    >>> request_terms('Emailing the quarterly "Blue" report to Ann Smith in room 12')
    {'email': 'emailing', 'quarterli': 'quarterly', 'report': 'report', 'room': 'room'}
    """
    query = parse_query(telling_part(text, default_table()) or text)
    language = request_language([word for _, word in query.sequence], accented=not text.isascii())
    fillers = stop_words(language)
    found: dict[str, str] = {}
    for term in query.terms:
        if not term.is_value and term.surface not in fillers and _says_much(term):
            found.setdefault(term.stem, term.surface)
    return dict(islice(found.items(), _MAX_REQUEST_WORDS))


def _says_much(term: QueryTerm) -> bool:
    """Whether a word has no digit, and is no single letter."""
    return not any(map(str.isdigit, term.surface)) and (len(term.surface) > 1 or not term.surface.isascii())


class PastHits(NamedTuple):
    """The tools of one part whose past has something in common with a query."""

    positions: Ints
    """In ascending order."""
    values: Doubles
    """The signal of each tool, above 0."""
    covered: Doubles
    """float64[terms, tools]: the idf of each term that the past of each tool covers."""


@dataclass(frozen=True, slots=True)
class PastMatch:
    """What a query has in common with the past requests of the visible tools."""

    terms: tuple[QueryTerm, ...]
    """The terms of the query that past requests of visible tools have."""
    parts: tuple[PastHits, ...]
    """For each part of the view."""

    def values(self, number: int, positions: Ints) -> Doubles:
        """The signal of some tools of a part; 0 for those without."""
        found = np.zeros(len(positions))
        hits = self.parts[number]
        at = hits.positions.searchsorted(positions)
        same = at < len(hits.positions)
        same[same] = hits.positions[at[same]] == positions[same]
        found[same] = hits.values[at[same]]
        return found

    def gains(self, number: int, position: int) -> Iterator[tuple[QueryTerm, float]]:
        """The terms of the query that the past of a tool of a part has, each with its share of the signal."""
        hits = self.parts[number]
        at = int(hits.positions.searchsorted(position))
        if at < len(hits.positions) and hits.positions[at] == position:
            covered = hits.covered[:, at].tolist()
            total = sum(covered)
            yield from ((term, gain / total) for term, gain in zip(self.terms, covered, strict=True) if gain)

    def best(self, allowed: Sequence[Bools], count: int) -> list[Ints]:
        """The allowed tools with the highest signal over all parts: `count`, and those as good as the last."""
        found = [
            (hits.positions, hits.values, passes[hits.positions])
            for hits, passes in zip(self.parts, allowed, strict=True)
        ]
        everything = np.concatenate([values[passes] for _, values, passes in found])
        edge = np.partition(everything, -count)[-count] if len(everything) > count else 0.0
        return [at[passes & (values >= edge)] for at, values, passes in found]

    def unmatched(self, query: ParsedQuery, words: Iterable[str]) -> tuple[str, ...]:
        """Those words of a query that no past request has, of some as typed."""
        known = {term.typed for term in self.terms}
        known.update(query.words[place] for term in self.terms for place in term.word_range)
        return tuple(word for word in words if word not in known)


@dataclass(frozen=True, slots=True)
class _ToolPast:
    requests: int = 0
    words: Mapping[str, int] = field(default_factory=dict)
    """Past requests with each word; the one used least recently comes first."""


@checked
class PastRequests:
    """The past requests of one tenant: for each tool, how many there were, and their words.

    A tool beyond the bound displaces the one called least recently, and a new word the least recent of the rarest. The
    text of a request is not kept. Immutable, and safe to use from several threads.
    """

    __slots__ = ("_by_stem", "_ids", "_numbers", "_options", "_requests", "_rows", "_tools", "_views")

    def __init__(self, options: PastOptions | None = None) -> None:
        """Without any requests."""
        self._options = options or PastOptions()
        self._tools: dict[str, _ToolPast] = {}
        """Most recently called last."""
        self._ids: tuple[str, ...] = ()
        """Every tool by its number, also those that were forgotten since."""
        self._numbers: dict[str, int] = {}
        self._requests: tuple[int, ...] = ()
        """The requests of each tool, by number; 0 for one that was forgotten."""
        self._by_stem: dict[str, dict[int, int]] = {}
        """For each stem, the requests with it by number of the tool. The inner values are shared, and never changed."""
        self._rows: dict[str, tuple[Ints, Doubles]] = {}
        """The same as arrays, filled on use: the numbers of the tools, and what the stem counts for each."""
        self._views: dict[int, _KnownPositions] = {}
        """The positions of tools in parts of views, by the part's `id`. Replaced as a whole, never changed in place."""

    def __len__(self) -> int:
        """How many tools have a past."""
        return len(self._tools)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same requests."""
        return self._tools == other._tools if isinstance(other, PastRequests) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._tools))

    def tools(self) -> Mapping[str, Mapping[str, int]]:
        """The words of each tool by id, with the number of requests that had them; the most frequent word first."""
        return {
            id_: dict(sorted(tool.words.items(), key=lambda item: (-item[1], item[0])))
            for id_, tool in self._tools.items()
        }

    # -- remembering and forgetting --------------------------------------------------------------------------------

    def with_request(self, text: str, tool_id: str) -> "PastRequests":
        """Add a request after which a tool was called with success."""
        return self.with_words(request_words(text), tool_id)

    def with_words(self, words: Sequence[str], tool_id: str) -> "PastRequests":
        """The same, by the `request_words` of the request."""
        return self.with_requests([(words, tool_id)])

    def with_requests(self, requests: Iterable[tuple[Sequence[str], str]]) -> "PastRequests":
        """The same for several requests, in order: the words of each, and the id of the tool that was called.

        Adding many at once takes much less time than one after the other, each of which copies what is known.
        """
        added = [(words, tool_id) for words, tool_id in requests if words]
        if not added:
            return self
        other = self._changeable()
        for words, tool_id in added:
            other._add(words, tool_id)  # noqa: SLF001 - of the same class
        return other

    def _add(self, words: Sequence[str], tool_id: str) -> None:
        known = self._tools.get(tool_id, _ToolPast())
        counts = dict(known.words)
        for word in words:
            counts[word] = min(_MAX_COUNT, counts.pop(word, 0) + 1)
        if len(counts) > self._options.words:
            counts = _most_telling(counts, len({*words}), self._options.words)
        self._put(tool_id, _ToolPast(min(_MAX_COUNT, known.requests + 1), counts))
        while len(self._tools) > self._options.tools:
            self._remove(next(iter(self._tools)))

    def without(self, tool_id: str) -> "PastRequests":
        """Forget the past of a tool."""
        if tool_id not in self._tools:
            return self
        other = self._changeable()
        other._remove(tool_id)  # noqa: SLF001 - of the same class
        return other

    def _changeable(self) -> "PastRequests":
        """A copy that may be changed until it is returned."""
        if len(self._ids) > 2 * len(self._tools) + _MAX_VIEWS:
            return self._of(self._tools, self._options)
        other = PastRequests(self._options)
        other._tools, other._ids, other._numbers = dict(self._tools), self._ids, dict(self._numbers)
        other._requests, other._by_stem, other._rows = self._requests, dict(self._by_stem), dict(self._rows)
        other._views = self._views
        return other

    @classmethod
    def _of(cls, tools: Mapping[str, _ToolPast], options: PastOptions) -> "PastRequests":
        past = cls(options)
        past._tools, past._ids = dict(tools), tuple(tools)
        past._numbers = {id_: number for number, id_ in enumerate(past._ids)}
        past._requests = tuple(tool.requests for tool in tools.values())
        for number, tool in enumerate(tools.values()):
            for word, count in tool.words.items():
                past._by_stem.setdefault(word, {})[number] = count
        return past

    def _put(self, id_: str, tool: _ToolPast) -> None:
        before = self._tools.pop(id_, _ToolPast())
        self._tools[id_] = tool
        if id_ not in self._numbers:
            self._numbers[id_] = len(self._ids)
            self._ids, self._requests = (*self._ids, id_), (*self._requests, 0)
        self._count(self._numbers[id_], before, tool)

    def _remove(self, id_: str) -> None:
        self._count(self._numbers[id_], self._tools.pop(id_), _ToolPast())

    def _count(self, number: int, before: _ToolPast, after: _ToolPast) -> None:
        requests = list(self._requests)
        requests[number] = after.requests
        self._requests = tuple(requests)
        changed = {word for word, _ in before.words.items() ^ after.words.items()}
        for word in changed:
            tools = {**self._by_stem.get(word, {}), number: after.words.get(word, 0)}
            self._by_stem[word] = {key: count for key, count in tools.items() if count}
            self._rows.pop(word, None)
            if not self._by_stem[word]:
                del self._by_stem[word]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON for `from_dict`."""
        tools = {id_: [tool.requests, dict(tool.words)] for id_, tool in self._tools.items()}
        return {"version": 1, "tools": tools}

    @classmethod
    def from_dict(cls, saved: JSON, options: PastOptions | None = None) -> "PastRequests":
        """Restore from `to_dict`, within the bounds of the options. Raises `InvalidRequest` for anything else."""
        options = options or PastOptions()
        try:
            return cls._of(_read_tools(saved, options), options)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRequest("These are not saved past requests.", hint="Give what to_dict() returned.") from error

    # -- searching -------------------------------------------------------------------------------------------------

    def match(self, view: IndexView, query: ParsedQuery, match: LexicalMatch) -> PastMatch | None:
        """Compare a query with the past of the tools in view; None if nothing fits.

        Only what was requested of visible tools has an effect.
        """
        terms = [*self._known_terms(view, query, match)] if self._by_stem else []
        if not terms or match.total_idf <= 0:
            return None
        places = [self._positions(part) for part in view.parts]
        visible = np.logical_or.reduce([at >= 0 for at in places])
        share = repeated_share(np.array(self._requests, dtype=np.int64)[visible])
        covered = np.zeros((len(terms), len(self._ids)))
        for row, (_, root, weight) in zip(covered, terms, strict=True):
            numbers, counts = self._postings(root)
            row[numbers] = counts * weight
        covered *= visible
        seen = np.flatnonzero(covered.any(axis=1))
        covered = covered[seen]
        over = (covered.sum(axis=0) / match.total_idf - _MIN_COVERAGE) / (1 - _MIN_COVERAGE)
        values = np.clip(over, 0.0, 1.0) * share * share
        if not values.any():
            return None
        parts = []
        for at in places:
            chosen = np.flatnonzero((values > 0) & (at >= 0))
            chosen = chosen[at[chosen].argsort()]
            parts.append(PastHits(at[chosen], values[chosen], covered[:, chosen]))
        return PastMatch(tuple(terms[place][0] for place in seen.tolist()), tuple(parts))

    def _known_terms(
        self, view: IndexView, query: ParsedQuery, match: LexicalMatch
    ) -> Iterator[tuple[QueryTerm, str, float]]:
        """The terms of a query that some past request has: the stem there, and the idf.

        A misspelt word is read as its correction.
        """
        known = {item.term.stem: item.idf for item in match.terms}
        rarest = idf(view.count, 0)
        for term in query.terms:
            root = term.stem
            if root not in self._by_stem and term.surface in match.corrected:
                root = stem(match.corrected[term.surface])
            weight = known.get(term.stem, rarest * unknown_weight(term))
            if root in self._by_stem and weight > 0 and term.surface not in match.fillers:
                yield term, root, weight

    def _postings(self, root: str) -> tuple[Ints, Doubles]:
        found = self._rows.get(root)
        if found is None:
            tools = self._by_stem[root]
            numbers = np.fromiter(tools, dtype=np.int32, count=len(tools))
            counts = np.fromiter(tools.values(), dtype=np.float64, count=len(tools))
            found = self._rows[root] = numbers, counts / (counts + _HALF)
        return found

    def _positions(self, part: SegmentView) -> Ints:
        """Where each tool is in a part, by number; only tools that are new since the last search are looked up."""
        known = self._views.get(id(part))
        if known is None or known.part() is not part or self._ids[: len(known.ids)] != known.ids:
            known = _KnownPositions(weakref.ref(part), (), np.zeros(0, dtype=np.int32))
        if len(known.ids) < len(self._ids):
            fresh = [_visible_position(part, id_) for id_ in self._ids[len(known.ids) :]]
            positions = np.concatenate([known.positions, np.array(fresh, dtype=np.int32)])
            known = _KnownPositions(known.part, self._ids, positions)
            others = [item for item in self._views.items() if item[0] != id(part)]
            self._views = dict([*others, (id(part), known)][-_MAX_VIEWS:])
        return known.positions


class _KnownPositions(NamedTuple):
    part: weakref.ref[SegmentView]
    ids: tuple[str, ...]
    positions: Ints
    """The position of each of the tools, -1 for one that is not visible in the part."""


def repeated_share(requests: npt.NDArray[np.int64]) -> float:
    """Estimate how likely the next request is for a tool that has a past, from the number of requests of each tool.

    It is one less the share of tools that were requested once, with three more such requests: a short past says little.
    Source: Good, "The population frequencies of species", Biometrika 1953.

    >>> round(repeated_share(np.array([20, 9, 1])), 2), repeated_share(np.array([1, 1, 1]))
    (0.88, 0.0)
    """
    total = int(requests.sum())
    return (total - int(np.count_nonzero(requests == 1))) / (total + _FEW_REQUESTS)


def _visible_position(part: SegmentView, id_: str) -> int:
    found = part.segment.positions_of(id_)
    seen = found[part.visible[found]]
    return int(seen[0]) if len(seen) else -1


def _most_telling(words: Mapping[str, int], new: int, most: int) -> dict[str, int]:
    """Keep the last `new` words and, as far as there is room, the most frequent others."""
    old = [*words][:-new]
    old.reverse()
    kept = {*sorted(old, key=words.__getitem__, reverse=True)[: max(0, most - new)], *[*words][-new:][:most]}
    return {word: count for word, count in words.items() if word in kept}


def _read_tools(saved: Any, options: PastOptions) -> dict[str, _ToolPast]:
    if saved["version"] != 1:
        raise ValueError("another version")
    found = {}
    for id_, (requests, words) in list(saved["tools"].items())[-options.tools :]:
        counts = Counter({str(word): min(_MAX_COUNT, max(1, int(count))) for word, count in words.items()})
        kept = {word for word, _ in counts.most_common(options.words)}
        found[id_] = _ToolPast(
            min(_MAX_COUNT, max(1, int(requests))), {word: count for word, count in counts.items() if word in kept}
        )
    return found
