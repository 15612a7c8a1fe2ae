"""Tools to streams of word numbers: the one slow step of building an index, done once for each tool."""

from array import array
from collections.abc import Callable

from toolcrib.model import Tool
from toolcrib.search.document import texts
from toolcrib.search.options import Field
from toolcrib.search.text import CHUNK, STOP_WORDS, split, stem

WHOLE = "="
"""Stands before a whole name among the words: no word begins so."""

_PROSE = frozenset({Field.DESCRIPTION, Field.PARAMETER_TEXTS})


class Vocabulary:
    """Words and their stems, numbered in the order in which they came. It only grows, while an index is built."""

    __slots__ = ("stem_numbers", "stems", "word_numbers", "word_stems", "words")

    def __init__(self, base: "Vocabulary | None" = None) -> None:
        """An empty one, or one that begins as a copy."""
        self.words: list[str] = list(base.words) if base else []
        self.word_numbers: dict[str, int] = dict(base.word_numbers) if base else {}
        self.word_stems: list[int] = list(base.word_stems) if base else []
        """The stem's number of each word."""
        self.stems: list[str] = list(base.stems) if base else []
        self.stem_numbers: dict[str, int] = dict(base.stem_numbers) if base else {}

    def number(self, word: str, stem_text: str) -> int:
        """The number of a word with that stem."""
        number = self.word_numbers.get(word)
        if number is None:
            number = self.word_numbers[word] = len(self.words)
            self.words.append(word)
            self.word_stems.append(self._stem_number(stem_text))
        return number

    def _stem_number(self, text: str) -> int:
        number = self.stem_numbers.setdefault(text, len(self.stems))
        if number == len(self.stems):
            self.stems.append(text)
        return number


class Analysis:
    """The words of some tools: `numbers` in spans, each span the words of one field of one tool."""

    __slots__ = ("_names", "_prose", "_vocabulary", "fields", "lengths", "numbers", "positions")

    def __init__(self, vocabulary: Vocabulary) -> None:
        """New words are added to the vocabulary."""
        self._vocabulary = vocabulary
        self._names = _Numbers(lambda chunk: self._split(chunk, frozenset()))
        self._prose = _Numbers(lambda chunk: self._split(chunk, STOP_WORDS))
        self.numbers = array("i")
        self.positions = array("i")
        self.fields = array("i")
        self.lengths = array("i")

    def add(self, position: int, tool: Tool) -> None:
        """Read a tool."""
        for field, text in texts(tool):
            memo = self._prose if field in _PROSE else self._names
            numbers = [number for chunk in CHUNK.findall(text) for number in memo[chunk]]
            self._span(position, field, numbers)
            if field is Field.NAME and len(numbers) > 1:
                whole = WHOLE + "".join(self._vocabulary.words[number] for number in numbers)
                self._span(position, Field.WHOLE_NAME, [self._vocabulary.number(whole, whole)])

    def _span(self, position: int, field: Field, numbers: list[int]) -> None:
        self.numbers.extend(numbers)
        self.positions.append(position)
        self.fields.append(field)
        self.lengths.append(len(numbers))

    def _split(self, chunk: str, without: frozenset[str]) -> tuple[int, ...]:
        return tuple(self._vocabulary.number(word, stem(word)) for word in split(chunk) if word not in without)


class _Numbers(dict[str, tuple[int, ...]]):
    """Chunk to word numbers, worked out when first asked for."""

    def __init__(self, work_out: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, chunk: str) -> tuple[int, ...]:
        numbers = self[chunk] = self._work_out(chunk)
        return numbers
