"""The words of a catalog on disk: kept in memory with their statistics, while the tools are not.

Words and stems are numbered for ever, in order of appearance. Searches may read while one thread adds words.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolcrib.search.analysis import FIELD_COUNT, Ints, Vocabulary, WordOccurrences
from toolcrib.search.features import SemanticModel
from toolcrib.search.index import IndexView, SegmentView
from toolcrib.search.lexical import prepare_segment
from toolcrib.search.options import SearchOptions
from toolcrib.search.segment import Segment
from toolcrib.search.text import WHOLE_NAME
from toolcrib.search.vectors import COARSE_COMPONENTS, QuantizedRows

_FIRST_SIZE = 1024
_MAX_RECENT_WORDS = 5_000
"""More new words than these are joined to the others, which takes a second for some hundred thousand words."""
WordRow = tuple[int, str, str, int, int, bytes, float]
"""Number, text, stem, uses, begun names, short vector and its scale of a word."""


@dataclass(frozen=True, slots=True)
class WordCounts:
    """What some tools add to the statistics: numbers, and how often each is counted."""

    words: Ints
    uses: Ints
    stems: Ints
    tools: Ints
    begins: Ints
    """The first words of names of several words, with repetitions."""


class Dictionary:
    """Numbered words and stems, and how many tools have them."""

    def __init__(self, dim: int) -> None:
        """`dim` is the number of components of the vectors of words."""
        self.words: list[str] = []
        self.stems: list[str] = []
        self._word_stems = np.zeros(_FIRST_SIZE, dtype=np.int32)
        self._numbers: dict[str, int] = {}
        self._stem_numbers: dict[str, int] = {}
        width = min(dim, COARSE_COMPONENTS)
        self._coarse = QuantizedRows(np.zeros((_FIRST_SIZE, width), np.int8), np.zeros(_FIRST_SIZE, np.float32))
        self.uses = np.zeros(_FIRST_SIZE, dtype=np.int32)
        """In how many fields of tools each word occurs."""
        self.begins = np.zeros(_FIRST_SIZE, dtype=np.int32)
        """How many names of several words begin with each word."""
        self.tools = np.zeros(_FIRST_SIZE, dtype=np.int32)
        """How many tools have each stem."""
        self.size = 0
        """How many tools can be found."""
        self._changed: set[int] = set()
        """The numbers of the words that were added or counted since `take_changes`."""
        self._changed_stems: set[int] = set()

    def __len__(self) -> int:
        return len(self.words)

    def add(self, words: Sequence[str], stems: Sequence[str], coarse: QuantizedRows) -> Ints:
        """Number words, with the stem and the short vector of each; known ones keep their numbers."""
        fresh = [place for place, word in enumerate(words) if word not in self._numbers]
        first = len(self.words)
        self._reserve(first + len(fresh))
        at = np.arange(first, first + len(fresh), dtype=np.int32)
        self._coarse.put(at, coarse.take(np.array(fresh, dtype=np.intp)))
        for place in fresh:
            number = self._stem_numbers.setdefault(stems[place], len(self.stems))
            if number == len(self.stems):
                self.stems.append(stems[place])
            self._word_stems[len(self.words)] = number
            self.words.append(words[place])
            self._numbers[words[place]] = len(self.words) - 1
        self._changed.update(at.tolist())
        return np.array([self._numbers[word] for word in words], dtype=np.int32)

    def count(self, found: WordCounts, tools: int, *, gone: bool = False) -> None:
        """Count tools, or those that are `gone`, with what they add to the statistics."""
        sign = -1 if gone else 1
        self.uses[found.words] += sign * found.uses
        self.tools[found.stems] += sign * found.tools
        np.add.at(self.begins, found.begins, sign)
        self.size += sign * tools
        self._changed.update(found.words.tolist(), found.begins.tolist())
        self._changed_stems.update(found.stems.tolist())

    def take_changes(self) -> tuple[list[WordRow], list[tuple[str, int]]]:
        """The words and stems that changed since the last call, as `toolcrib.large.store.write_words` takes them."""
        words = [self._row(number) for number in sorted(self._changed)]
        stems = [(self.stems[number], int(self.tools[number])) for number in sorted(self._changed_stems)]
        self._changed, self._changed_stems = set(), set()
        return words, stems

    def _row(self, number: int) -> WordRow:
        counts = int(self.uses[number]), int(self.begins[number])
        coarse = self._coarse.values[number].tobytes(), float(self._coarse.scales[number])
        return number, self.words[number], self.stem_of(number), *counts, *coarse

    @classmethod
    def load(
        cls, dim: int, words: Sequence[tuple[str, str, int, int, bytes, float]], stems: Mapping[str, int], count: int
    ) -> "Dictionary":
        """Restore a dictionary from its words, by number, and how many tools have each stem."""
        found = cls(dim)
        if words:
            width = found._coarse.values.shape[1]
            texts, roots, uses, begins, coarse, scales = zip(*words, strict=True)
            rows = np.frombuffer(b"".join(coarse), np.int8).reshape(len(words), width)
            found.add(texts, roots, QuantizedRows(rows, np.array(scales, dtype=np.float32)))
            found.uses[: len(words)], found.begins[: len(words)] = uses, begins
            found.tools[: len(found.stems)] = [stems.get(stem, 0) for stem in found.stems]
        found._changed, found.size = set(), count
        return found

    def stems_of(self, words: Ints) -> Ints:
        """The numbers of the stems of some words."""
        found: Ints = self._word_stems.take(words)
        return found

    def stem_of(self, word: int) -> str:
        """The stem of a word."""
        return self.stems[int(self._word_stems[word])]

    def have_stem(self, words: Ints, stems: Iterable[str]) -> npt.NDArray[np.bool_]:
        """Mark the words that have one of some stems."""
        wanted = np.zeros(len(self.stems), dtype=np.bool_)
        wanted[[number for stem in stems if (number := self._stem_numbers.get(stem)) is not None]] = True
        return wanted[self.stems_of(words)]

    def coarse(self, numbers: Ints, size: int) -> QuantizedRows:
        """The short vectors of some words, then rows of zeros up to `size` rows."""
        found = QuantizedRows(np.zeros((size, self._coarse.values.shape[1]), np.int8), np.ones(size, dtype=np.float32))
        found.put(np.arange(len(numbers), dtype=np.int32), self._coarse.take(numbers))
        return found

    def frequency(self, stem: str) -> int:
        """How many tools have the stem, which is not a whole name."""
        number = self._stem_numbers.get(stem)
        return 0 if number is None else int(self.tools[number])

    def common_word(self, stem: str) -> str:
        """The form of a stem that most tools use; empty if no tool has it."""
        number = self._stem_numbers.get(stem)
        if number is None:
            return ""
        forms = np.flatnonzero(self._word_stems[: len(self.words)] == number).tolist()
        return min((self.words[place] for place in forms), key=lambda word: (-self._uses(word), word), default="")

    def begins_name(self, word: str) -> bool:
        """Whether the name of a tool begins with the word and continues."""
        number = self._numbers.get(word)
        return number is not None and bool(self.begins[number])

    def _uses(self, word: str) -> int:
        return int(self.uses[self._numbers[word]])

    def _reserve(self, size: int) -> None:
        room = len(self.uses)
        if size <= room:
            return
        more = max(size, 2 * room) - room
        rows = QuantizedRows(
            np.concatenate([self._coarse.values, np.zeros((more, self._coarse.values.shape[1]), np.int8)]),
            np.concatenate([self._coarse.scales, np.zeros(more, np.float32)]),
        )
        self._coarse = rows
        self.uses, self.begins, self.tools, self._word_stems = [
            np.concatenate([column, np.zeros(more, np.int32)])
            for column in (self.uses, self.begins, self.tools, self._word_stems)
        ]


class CatalogStatistics:
    """The statistics of a dictionary, and of whole names, which are too many to keep in memory."""

    def __init__(self, dictionary: Dictionary, named: Callable[[str], int]) -> None:
        """`named` says how many tools have a whole name, given after `WHOLE_NAME`."""
        self._dictionary = dictionary
        self._named = named

    def frequency(self, stem: str) -> int:
        """How many tools have the stem or the whole name."""
        return self._named(stem) if stem.startswith(WHOLE_NAME) else self._dictionary.frequency(stem)

    def common_word(self, stem: str) -> str:
        """The form of a stem that most tools use; empty if no tool has it."""
        return self._dictionary.common_word(stem)

    def begins_name(self, word: str) -> bool:
        """Whether the name of a tool begins with the word and continues."""
        return self._dictionary.begins_name(word)


class WordSegments:
    """Segments without tools that hold the words of a dictionary, for looking up misspelt and foreign ones.

    The last ones are in a small segment of their own, since preparing all of them for such searches takes long.
    """

    def __init__(self, dictionary: Dictionary, model: SemanticModel, options: SearchOptions) -> None:
        self._dictionary = dictionary
        self._empty = Segment.build((), model=model, options=options)
        self._old, self._recent = self._make(0), self._make(0)
        self._ends = (0, 0)
        self.refresh()

    def refresh(self) -> None:
        """Take up words that were added."""
        size = len(self._dictionary)
        if size - self._ends[0] > _MAX_RECENT_WORDS:
            self._old, self._ends = self._make(0), (size, size)
            self._recent = self._make(size)
        elif size > self._ends[1]:
            self._recent, self._ends = self._make(self._ends[0]), (self._ends[0], size)

    def view(self, count: int, named: Callable[[str], int]) -> IndexView:
        """A view with all words and no tools, for a catalog of `count` tools; `named` as in `CatalogStatistics`."""
        nothing = np.zeros(0, dtype=np.bool_)
        parts = tuple(SegmentView(segment, nothing) for segment in (self._old, self._recent))
        return IndexView(parts, count, statistics=CatalogStatistics(self._dictionary, named))

    def _make(self, first: int) -> Segment:
        known = self._dictionary
        words = known.words[first:]
        stems = [known.stem_of(word) for word in range(first, first + len(words))]
        return words_segment(zip(words, stems, strict=True), self._empty)


def words_segment(words: Iterable[tuple[str, str]], empty: Segment) -> Segment:
    """Make a segment without tools that has these words with their stems; `empty` is one without words."""
    vocabulary = Vocabulary()
    for word, stem in words:
        vocabulary.number(word, stem)
    nothing = np.zeros(0, dtype=np.int32)
    none = WordOccurrences(nothing, nothing, nothing.astype(np.uint8), nothing, nothing.astype(np.uint16))
    norms: npt.NDArray[np.float32] = np.zeros((0, FIELD_COUNT), dtype=np.float32)
    segment = Segment((), none, norms, vocabulary, empty.features, empty.words, empty.model, empty.options)
    prepare_segment(segment, empty.model.table)
    return segment
