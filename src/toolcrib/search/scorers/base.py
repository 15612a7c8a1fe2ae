"""What the reference rankings share: their interface, inverted indexes, and choosing and explaining the best tools."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from math import log
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from rapidfuzz import process
from rapidfuzz.distance import OSA, Indel, Levenshtein

from toolcrib.names import fold
from toolcrib.search.analysis import FIELD_COUNT, Vocabulary, WordOccurrences
from toolcrib.search.index import IndexView
from toolcrib.search.options import Field, ScorerOptions
from toolcrib.search.segment import Bools, Positions, Segment
from toolcrib.search.text import TOKEN, split_identifier
from toolcrib.types import Reason, ScorePart

Floats = npt.NDArray[np.float64]
MAX_TEXT = 8_000
"""Characters of one text, of a query or a tool, that are read; the rest is ignored."""
_T = TypeVar("_T")


class ExplainedTool(NamedTuple):
    """One tool of a result, with its reasons."""

    part: int
    """The part of the view that holds it."""
    position: int
    """Its position in that part."""
    raw: float
    """The score of the ranking, above 0."""
    reasons: tuple[Reason, ...]
    """The largest gain first."""
    matched: tuple[str, ...]
    """The typed words that it covers, in their order."""
    parts: tuple[ScorePart, ...]
    """What `raw` is the sum of."""
    fallback: bool
    """Whether nothing fits and the tool is only shown because it is popular."""


@dataclass(slots=True)
class ScorerResult:
    """The result of one query."""

    hits: list[ExplainedTool]
    """Best first: by `raw`, descending, then by id."""
    total: int
    """How many tools matched before the limit."""
    unmatched: tuple[str, ...] = ()
    """The words, as typed, that match nothing visible."""


class ScorerFunction(Protocol):
    """The interface of a ranking.

    Tools outside of `view` change nothing. `allowed` narrows which visible tools of each part are returned, and
    changes no score. `boosts` maps ids to factors, 1 or more: `points` multiplies by them, the others use `boosted`.
    """

    def __call__(
        self,
        view: IndexView,
        text: str,
        limit: int,
        allowed: Sequence[Bools],
        options: ScorerOptions,
        boosts: Mapping[str, float] | None = None,
    ) -> ScorerResult: ...


def cached_on(segment: Segment, key: Hashable, work_out: Callable[[Segment], _T]) -> _T:
    """Compute a value from a segment once, and cache it there."""
    if key not in segment.memo:
        segment.memo[key] = work_out(segment)
    known: _T = segment.memo[key]
    return known


class QueryWord(NamedTuple):
    """A word of a query."""

    text: str
    """In lower case, split from its identifier; this is looked up."""
    token: str
    """The typed token it comes from."""
    place: int
    """The number of that token."""
    is_whole_token: bool
    """Whether it is the only word of that token."""

    @property
    def typed(self) -> str:
        """The token as typed, or the part of an identifier."""
        return self.token if self.is_whole_token else self.text


def read_words(text: str, limit: int) -> list[QueryWord]:
    """Split a query into words, each once, up to a limit.

    >>> [word.text for word in read_words("createIssue in my_repo, create it", 5)]
    ['create', 'issue', 'in', 'my', 'repo']
    """
    found: dict[str, QueryWord] = {}
    for place, token in enumerate(TOKEN.findall(text[:MAX_TEXT])):
        parts = split_identifier(token)
        for part in parts:
            found.setdefault(part, QueryWord(part, token, place, len(parts) == 1))
        if len(found) >= limit:
            break
    return list(found.values())[:limit]


def unmatched_words(words: Sequence[QueryWord], matched: Iterable[str]) -> tuple[str, ...]:
    """The typed tokens of which no word matched, and the missing parts of the others."""
    known = set(matched)
    places = {word.place for word in words if word.text in known}
    missed = (word.typed if word.place in places else word.token for word in words if word.text not in known)
    return tuple(dict.fromkeys(missed))


class ChosenTool(NamedTuple):
    """One of the best tools, before it is explained."""

    raw: float
    id: str
    part: int
    position: int
    unboosted: float
    """`raw` before the boost of the session."""


class ExactNames(NamedTuple):
    """The tools whose whole name is the query, which a use of others does not outrank."""

    positions: Sequence[Positions]
    """For each part."""
    ceiling: float
    """Their score, which the boosts of others do not reach; 0 if there are none."""


def boosted(score: float, factor: float, ceiling: float) -> float:
    """Raise a score by a part of its distance from the ceiling; at or above that, by the logarithm of the factor.

    >>> boosted(0.5, 2.0, 1.0), round(boosted(1.0, 2.0, 1.0), 2)
    (0.75, 1.69)
    """
    return score + ((ceiling - score) * (1 - 1 / factor) if score < ceiling else log(factor))


def choose_best(
    view: IndexView,
    scores: Sequence[Floats],
    allowed: Sequence[Bools],
    limit: int,
    boosts: Mapping[str, float] | None,
    exact: ExactNames | None = None,
) -> tuple[list[ChosenTool], int]:
    """Choose the best tools with a score above 0, best first, and count all of them.

    Boosts multiply the scores, or with `exact` raise them by `boosted`. Scores are rounded, so that the order in which
    addends were added up decides no tie.
    """
    found: list[ChosenTool] = []
    total = 0
    for number, (part, precise, passes) in enumerate(zip(view.parts, scores, allowed, strict=True)):
        candidates = np.flatnonzero((precise > 0) & passes)
        total += len(candidates)
        score = precise.round(_DECIMALS)
        raw = _apply_boosts(part.segment, score, boosts or {}, exact, number).round(_DECIMALS)
        found += [
            ChosenTool(float(raw[place]), part.segment.ids[place], number, place, float(score[place]))
            for place in _top_candidates(candidates, raw, part.segment, limit).tolist()
        ]
    found.sort(key=lambda one: (-one.raw, one.id, one.part))
    return found[: max(0, limit)], total


_DECIMALS = 9
"""Decimals of a score that count."""


def _apply_boosts(
    segment: Segment, score: Floats, boosts: Mapping[str, float], exact: ExactNames | None, number: int
) -> Floats:
    if not boosts:
        return score
    places = positions_by_id(segment)
    raw = score.copy()
    for place, factor in [(places[id_], factor) for id_, factor in boosts.items() if id_ in places]:
        if exact is None:
            raw[place] *= factor
        elif raw[place] > 0:
            ceiling = 0.0 if place in exact.positions[number] else exact.ceiling
            raw[place] = boosted(raw[place], factor, ceiling)
    return raw


def folded_names(segment: Segment) -> "StringIndex":
    """The names of a segment without case and separators, cached."""
    return cached_on(segment, "folded", lambda segment: StringIndex([[fold(tool.name)] for tool in segment.tools]))


def positions_by_id(segment: Segment) -> dict[str, int]:
    """The position of each id."""
    return cached_on(segment, "positions", lambda segment: {id_: place for place, id_ in enumerate(segment.ids)})


def _top_candidates(candidates: Positions, raw: Floats, segment: Segment, limit: int) -> Positions:
    if limit < 1:
        return candidates[:0]
    if len(candidates) > limit:
        values = raw[candidates]
        candidates = candidates[values >= np.partition(values, -limit)[-limit]]
    order = np.lexsort((segment.id_ranks[candidates], -raw[candidates]))
    return candidates[order[:limit]]


class ScoreLine(NamedTuple):
    """One addend of a tool's score."""

    reason: Reason
    part: ScorePart
    places: tuple[int, ...]
    """The numbers of the typed words behind it."""


def explain_tool(
    found: ChosenTool, lines: Sequence[ScoreLine], typed: Mapping[int, str], *, fallback: bool = False
) -> ExplainedTool:
    """Add the reasons to a chosen tool. The boost of the session comes last."""
    ordered = sorted(lines, key=lambda line: (-line.reason.gain, line.reason.word, line.reason.field, line.part.name))
    reasons = [line.reason for line in ordered if line.reason.gain]
    parts = [line.part for line in ordered]
    gained = found.raw - found.unboosted
    if gained:
        reasons.append(Reason(word="", field="session", how="use", gain=gained))
        parts.append(ScorePart(name="session", value=gained / found.unboosted, weight=found.unboosted))
    covered = sorted({place for line in lines for place in line.places})
    matched = tuple(dict.fromkeys(typed[place] for place in covered))
    return ExplainedTool(found.part, found.position, found.raw, tuple(reasons), matched, tuple(parts), fallback)


@dataclass(slots=True)
class FieldMatch:
    """How one word of a query matches one field of some tools of one part."""

    words: tuple[QueryWord, ...]
    """The words of the query behind it; the first one is shown."""
    field: str
    how: str
    positions: Positions
    """The positions of the tools, each once."""
    weight: float
    values: Floats
    """One value per position; each tool gains `weight * value`."""
    matched: Sequence[str] = ()
    """The matched words of the tools, if they differ from the query's: one for all, or one each."""
    phrase: str = ""
    """What is shown instead of the first word, if several words match together."""

    def line(self, at: int) -> ScoreLine:
        """The addend for one of the tools."""
        value = float(self.values[at])
        word = self.phrase or self.words[0].typed
        matched = self.matched[at if len(self.matched) > 1 else 0] if self.matched else ""
        reason = Reason(word=word, field=self.field, how=self.how, matched=matched, gain=self.weight * value)
        name = f"{matched or word} in {self.field}"
        return ScoreLine(reason, ScorePart(name=name, value=value, weight=self.weight), _word_places(self.words))


def _word_places(words: Iterable[QueryWord]) -> tuple[int, ...]:
    return tuple(word.place for word in words)


def score_lines(
    matches: Sequence[Sequence[FieldMatch]], view: IndexView, found: Sequence[ChosenTool]
) -> list[list[ScoreLine]]:
    """Collect the addends of each chosen tool. `meetings` has the matches of each part."""
    found_lines: list[list[ScoreLine]] = [[] for _ in found]
    for number, part in enumerate(view.parts):
        owner = np.full(len(part.segment), -1, dtype=np.intp)
        for place, one in enumerate(found):
            if one.part == number:
                owner[one.position] = place
        for match in matches[number]:
            owners: Any = owner[match.positions]
            for at in np.flatnonzero(owners >= 0).tolist():
                found_lines[owners[at]].append(match.line(at))
    return found_lines


def sum_matches(matches: Sequence[FieldMatch], size: int) -> Floats:
    """Add up what each of `size` tools gains."""
    score = np.zeros(size)
    for match in matches:
        score[match.positions] += match.weight * match.values
    return score


class StringIndex:
    """Distinct strings in alphabetical order, numbered from 0, with the positions of the tools that have each."""

    __slots__ = ("_bytes", "_numbers", "_owners", "_positions", "_starts", "lengths", "strings")

    def __init__(self, strings: Sequence[Collection[str]]) -> None:
        """`strings` has the strings of each tool, by position."""
        numbers: dict[str, int] = {}
        flat = [numbers.setdefault(text, len(numbers)) for own in strings for text in own]
        owners = np.repeat(np.arange(len(strings)), _lengths(strings))
        self.strings = sorted(numbers)
        """The strings, by number."""
        place = np.empty(len(numbers), dtype=np.intp)
        place[[numbers[text] for text in self.strings]] = np.arange(len(numbers))
        size = max(1, len(strings))
        pairs = _drop_repeats(np.sort(place[np.array(flat, dtype=np.intp)] * size + owners))
        self._positions: Positions = pairs % size
        self._starts: Positions = np.searchsorted(pairs // size, np.arange(len(numbers) + 1))
        self._numbers = {text: number for number, text in enumerate(self.strings)}
        self.lengths = _lengths(self.strings)
        """The length of each string in characters."""
        encoded = [_encoded(text) for text in self.strings]
        self._bytes = np.frombuffer(b"\n".join(encoded), dtype=np.uint8)
        self._owners = np.repeat(np.arange(len(encoded), dtype=np.int32), _lengths(encoded) + 1)
        """The number of the string that each byte belongs to."""

    def equal_to(self, text: str) -> Positions:
        """The number of an equal string, if there is one."""
        number = self._numbers.get(text)
        return np.array([] if number is None else [number], dtype=np.intp)

    def starting_with(self, text: str) -> Positions:
        """The numbers of the strings that begin with the text."""
        first = bisect_left(self.strings, text)
        return np.arange(first, bisect_right(self.strings, text, lo=first, key=lambda known: known[: len(text)]))

    def containing(self, text: str) -> Positions:
        """The numbers of the strings that contain the text, which must be non-empty and without line breaks."""
        first, *rest = _encoded(text)
        at = np.flatnonzero(self._bytes[: max(0, len(self._bytes) - len(rest))] == first)
        for place, byte in enumerate(rest, 1):
            at = at[self._bytes[at + place] == byte]
        return _drop_repeats(self._owners[at].astype(np.intp))

    def tools(self, numbers: Positions) -> Positions:
        """The positions of the tools with any of the strings; a tool with several comes more than once."""
        return self.spread(numbers, numbers)[0]

    def spread(self, numbers: Positions, values: Floats | Positions) -> tuple[Positions, Floats]:
        """The positions of the tools with any of the strings, and the value of the string for each."""
        lengths = self._starts[numbers + 1] - self._starts[numbers]
        ends = np.cumsum(lengths)
        size = int(ends[-1]) if len(ends) else 0
        places = np.arange(size) + np.repeat(self._starts[numbers] - ends + lengths, lengths)
        return self._positions[places], np.repeat(values, lengths)


class WordPostings:
    """An inverted index without stems: one row per word, tool and field, in that order."""

    __slots__ = ("_numbers", "_starts", "counts", "fields", "lengths", "positions", "vocabulary", "words")

    def __init__(self, entries: WordOccurrences, vocabulary: Vocabulary, size: int) -> None:
        """`entries` has the words of `size` tools."""
        chosen = np.flatnonzero(entries.fields != Field.WHOLE_NAME)
        cells = entries.positions[chosen].astype(np.intp) * FIELD_COUNT + entries.fields[chosen]
        order = np.lexsort((cells, entries.words[chosen]))
        chosen, cells = chosen[order], cells[order]
        self.positions: Positions = cells // FIELD_COUNT
        self.fields: Positions = cells % FIELD_COUNT
        self.counts = entries.counts[chosen].astype(np.float64)
        lengths: Any = np.bincount(cells, weights=self.counts, minlength=size * FIELD_COUNT)
        self.lengths: Floats = lengths.reshape(size, FIELD_COUNT)
        """The number of words in each field of each tool."""
        self.vocabulary = vocabulary.words
        """The words by number."""
        self._numbers = vocabulary.word_numbers
        self.words: npt.NDArray[np.int32] = entries.words[chosen]
        self._starts: list[int] = np.searchsorted(self.words, np.arange(len(self.vocabulary) + 1)).tolist()

    def rows_of(self, word: str) -> slice:
        """The rows of a word."""
        number = self._numbers.get(word)
        return slice(0, 0) if number is None else slice(self._starts[number], self._starts[number + 1])

    def strings(self, field: Field) -> StringIndex:
        """The words of one field."""
        own: list[list[str]] = [[] for _ in range(len(self.lengths))]
        chosen = np.flatnonzero(self.fields == field)
        for position, number in zip(self.positions[chosen].tolist(), self.words[chosen].tolist(), strict=True):
            own[position].append(self.vocabulary[number])
        return StringIndex(own)


def word_postings(segment: Segment) -> WordPostings:
    """The word postings of a segment, cached."""
    return cached_on(
        segment, "rows", lambda segment: WordPostings(segment.occurrences(), segment.vocabulary, len(segment))
    )


def field_words(segment: Segment, field: Field) -> StringIndex:
    """The words in one field of a segment, cached."""
    return cached_on(segment, ("strings", field), lambda segment: word_postings(segment).strings(field))


def similar_strings(words: Sequence[str], strings: StringIndex, above: float) -> list[tuple[Positions, Floats]]:
    """Find similar strings for each word: their numbers and similarities, `1 - Levenshtein / longer length`.

    Returns only similarities above the bound. Lengths and distances are in characters.

    >>> [(numbers, values)] = similar_strings(["reprot"], StringIndex([["report"]]), 0.6)
    >>> numbers.tolist(), values.round(2).tolist()
    ([0], [0.67])
    """
    return _similar(words, strings, above, Levenshtein.distance)


def misspelt_strings(words: Sequence[str], strings: StringIndex, above: float) -> list[tuple[Positions, Floats]]:
    """Like `similar_strings`, but a swap of neighbours counts as one edit (optimal string alignment).

    >>> [values.round(2).tolist() for _, values in misspelt_strings(["reprot"], StringIndex([["report"]]), 0.6)]
    [[0.83]]
    """
    return _similar(words, strings, above, OSA.distance)


def similarity_ratios(text: str, strings: StringIndex, least: float) -> tuple[Positions, Floats]:
    """Find strings similar to a text: their numbers and similarities, `2 * common / (length + length)`.

    `common` is the length of the longest common subsequence. Returns only similarities that reach the bound, which
    must be above 0.

    >>> numbers, values = similarity_ratios("multipley", StringIndex([["divide", "multiply"]]), 0.5)
    >>> numbers.tolist(), values.round(3).tolist()
    ([1], [0.941])
    """
    longest = int(strings.lengths.max(initial=0))
    if 2 * longest < least * (len(text) + longest) or not longest:
        return _NO_MATCHES
    values = process.cdist([text], strings.strings, scorer=Indel.normalized_similarity, dtype=np.float64)[0]
    numbers = np.flatnonzero(values >= least)
    return numbers, values[numbers]


_NO_MATCHES = (np.array([], dtype=np.intp), np.array([], dtype=np.float64))


def _similar(
    words: Sequence[str], strings: StringIndex, above: float, distance: Callable[..., int]
) -> list[tuple[Positions, Floats]]:
    longest = strings.lengths.max(initial=0)
    asked = [word for word in words if longest > above * len(word)]  # a longer word is not similar to any of them
    found = {}
    if asked:
        slips = process.cdist(asked, strings.strings, scorer=distance, dtype=np.int32)
        for word, own in zip(asked, slips, strict=True):
            values = 1 - own / np.maximum(strings.lengths, max(1, len(word)))
            numbers = np.flatnonzero(values > above)
            found[word] = (numbers, values[numbers])
    return [found.get(word, _NO_MATCHES) for word in words]


def _lengths(texts: Sequence[Sized]) -> Positions:
    return np.fromiter(map(len, texts), dtype=np.intp, count=len(texts))


def _drop_repeats(ascending: Positions) -> Positions:
    """Keep each number once."""
    return ascending[np.diff(ascending, prepend=-1) > 0]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
