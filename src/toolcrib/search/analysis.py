"""Tools to streams of word numbers: the one slow step of building an index, done once for each tool."""

import re
from array import array
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import chain, islice
from operator import or_

from toolcrib.model import Tool
from toolcrib.search.document import formats, texts
from toolcrib.search.kinds import FORMATS
from toolcrib.search.options import Field
from toolcrib.search.text import CHUNK, STOP_WORDS, split, stem

WHOLE = "="
"""Stands before a whole name among the words: no word begins so."""

NAME_WORDS = 10
"""Words of a name that are compared in meaning, word by word."""
SENTENCE_WORDS = 14
"""Different words of the first sentence of a description that are."""

_BODY_WORDS = 65
"""Words of a description that make the meaning of the whole, stop words included."""
_BODY_PARAMETERS = 24
"""Words of parameter names that do."""
_PHRASE_WORDS = 100
"""Words of a description, stop words included, whose neighbourhood counts."""

_PROSE = frozenset({Field.DESCRIPTION, Field.PARAMETER_TEXTS})
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")


class Vocabulary:
    """Words and their stems, numbered in the order in which they came. It only grows, while a segment is built."""

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


class Stream:
    """Word numbers of many tools, one after the other; `lengths` says how many each tool has."""

    __slots__ = ("lengths", "numbers")

    def __init__(self) -> None:
        self.numbers = array("i")
        self.lengths = array("i")

    def add(self, numbers: Iterable[int]) -> None:
        """The numbers of the next tool."""
        before = len(self.numbers)
        self.numbers.extend(numbers)
        self.lengths.append(len(self.numbers) - before)


class Analysis:
    """The words of some tools: `numbers` in spans, each span the words of one field of one tool.

    Beside them stand the streams that meaning is made of, one entry a tool in the order of reading.
    """

    __slots__ = (
        "_numbers",
        "_stopped",
        "_vocabulary",
        "body",
        "description",
        "fields",
        "lengths",
        "literals",
        "name",
        "numbers",
        "parameters",
        "positions",
        "sentence",
    )

    def __init__(self, vocabulary: Vocabulary) -> None:
        """New words are added to the vocabulary."""
        self._vocabulary = vocabulary
        self._numbers = _Numbers(self._split)
        self._stopped: set[int] = set()
        """The numbers of stop words: they count in names, not in prose."""
        self.numbers = array("i")
        self.positions = array("i")
        self.fields = array("i")
        self.lengths = array("i")
        self.name, self.sentence, self.body = Stream(), Stream(), Stream()
        self.description, self.parameters = Stream(), Stream()
        self.literals = array("i")
        """What the parameters' formats and types take, as bits."""

    def add(self, position: int, tool: Tool) -> None:
        """Read a tool."""
        found: dict[Field, list[int]] = {}
        memo = self._numbers.__getitem__
        for field, text in texts(tool):
            numbers = found[field] = [*chain.from_iterable(map(memo, CHUNK.findall(text)))]
            self._span(position, field, self._telling(numbers) if field in _PROSE else numbers)
        name = found[Field.NAME]
        if len(name) > 1:
            whole = WHOLE + "".join([self._vocabulary.words[number] for number in name])
            self._span(position, Field.WHOLE_NAME, [self._vocabulary.number(whole, whole)])
        self._streams(tool, found)

    def _streams(self, tool: Tool, found: dict[Field, list[int]]) -> None:
        name, description = found[Field.NAME], found[Field.DESCRIPTION]
        parameters = found.get(Field.PARAMETERS, [])
        beside = [found[field] for field in _BESIDE if field in found]
        self.name.add(name[:NAME_WORDS])
        self.sentence.add(islice(dict.fromkeys(self._first_sentence(tool.description)), SENTENCE_WORDS))
        self.body.add(chain(name, *beside, description[:_BODY_WORDS], parameters[:_BODY_PARAMETERS]))
        self.description.add(self._telling(description[:_PHRASE_WORDS]))
        self.parameters.add(parameters)
        self.literals.append(reduce(or_, [FORMATS.get(known, 0) for known in formats(tool.input_schema)], 0))

    def _first_sentence(self, text: str) -> list[int]:
        sentence = _SENTENCE_END.split(text.lstrip()[:_MAX_SENTENCE], maxsplit=1)[0]
        return self._telling(chain.from_iterable(map(self._numbers.__getitem__, CHUNK.findall(sentence))))

    def _telling(self, numbers: Iterable[int]) -> list[int]:
        stopped = self._stopped
        return [number for number in numbers if number not in stopped]

    def _span(self, position: int, field: Field, numbers: list[int]) -> None:
        self.numbers.extend(numbers)
        self.positions.append(position)
        self.fields.append(field)
        self.lengths.append(len(numbers))

    def _split(self, chunk: str) -> tuple[int, ...]:
        return tuple([self._number(word) for word in split(chunk)])

    def _number(self, word: str) -> int:
        number = self._vocabulary.word_numbers.get(word)
        if number is None:
            number = self._vocabulary.number(word, stem(word))
        if word in STOP_WORDS:
            self._stopped.add(number)
        return number


class _Numbers(dict[str, tuple[int, ...]]):
    """Chunk to word numbers, worked out when first asked for."""

    def __init__(self, work_out: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, chunk: str) -> tuple[int, ...]:
        numbers = self[chunk] = self._work_out(chunk)
        return numbers


_BESIDE = (Field.NAMESPACE, Field.TITLE, Field.KEYWORDS, Field.TAGS)
"""What says as much as the name about a tool's meaning, in few words."""

_MAX_SENTENCE = 600
"""Characters that a first sentence may have."""
