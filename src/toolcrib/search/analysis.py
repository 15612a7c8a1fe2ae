"""Analyze tools: split each field of text into numbered words and count them.

This is the slow step of building an index and runs once for each tool.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from toolcrib.search.inflection import TELLING_STOP_WORDS, request_language, stop_words
from toolcrib.search.literals import FORMAT_KINDS
from toolcrib.search.options import Field, FieldOptions
from toolcrib.search.text import STOP_WORDS, TOKEN, WHOLE_NAME, split_identifier, stem
from toolcrib.types import Object, Tool

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
_MAX_TEXT = 8_000
"""Characters of one text that are read; the rest is ignored."""
_MAX_PARAMETERS = 200
_MAX_DEPTH = 3


def field_texts(tool: Tool) -> Iterator[tuple[Field, str]]:
    """Yield the text of each field of a tool that is not empty; name, namespace and description always come."""
    yield Field.NAME, tool.name[:_MAX_TEXT]
    yield Field.NAMESPACE, tool.namespace[:_MAX_TEXT]
    yield Field.DESCRIPTION, tool.description[:_MAX_TEXT]
    if tool.title:
        yield Field.TITLE, tool.title[:_MAX_TEXT]
    if tool.keywords:
        yield Field.KEYWORDS, " ".join(tool.keywords)[:_MAX_TEXT]
    if tool.tags:
        yield Field.TAGS, " ".join(tool.tags)[:_MAX_TEXT]
    names, descriptions = parameter_texts(tool.input_schema)
    if names:
        yield Field.PARAMETERS, names[:_MAX_TEXT]
    if descriptions:
        yield Field.PARAMETER_TEXTS, descriptions[:_MAX_TEXT]


def parameter_texts(schema: Object) -> tuple[str, str]:
    """Return the names of all parameters, nested ones too, and their descriptions, each as one text."""
    names: list[str] = []
    descriptions: list[str] = []
    level: list[Any] = [schema]
    for _ in range(_MAX_DEPTH):
        level = [node for parent in level for node in _child_schemas(parent, names, descriptions)]
        if not level:
            break
    return " ".join(names), " ".join(descriptions)


def format_kinds(schema: Object) -> int:
    """The kinds of literals that the formats and types of the top-level parameters accept, as bits."""
    kinds = 0
    properties = schema.get("properties")
    if not _is_json_object(properties):
        return kinds
    for child in properties.values():
        if type(child) is dict or _is_json_object(child):
            if isinstance(known := child.get("format"), str):
                kinds |= FORMAT_KINDS.get(known[:_MAX_FORMAT].casefold(), 0)
            if child.get("type") in ("number", "integer"):
                kinds |= FORMAT_KINDS["number"]
    return kinds


def _is_json_object(value: Any) -> TypeGuard[Object]:
    """Whether a JSON value is an object. The first test is the fast one."""
    return type(value) is dict or isinstance(value, Mapping)


def _child_schemas(node: Any, names: list[str], descriptions: list[str]) -> list[Any]:
    """Read the parameters of a schema, and list those that may have parameters of their own."""
    found: list[Any] = []
    if not _is_json_object(node):
        return found
    for _ in range(_MAX_DEPTH):
        items = node.get("items")
        if not _is_json_object(items):
            break
        _read_properties(node, names, descriptions, found)
        node = items
    _read_properties(node, names, descriptions, found)
    return found


def _read_properties(node: Object, names: list[str], descriptions: list[str], found: list[Any]) -> None:
    properties = node.get("properties")
    if not _is_json_object(properties):
        return
    for name, child in properties.items():
        if len(names) >= _MAX_PARAMETERS:
            return
        names.append(str(name))
        if type(child) is dict or _is_json_object(child):
            if isinstance(description := child.get("description"), str):
                descriptions.append(description)
            if "properties" in child or "items" in child:
                found.append(child)


_MAX_FORMAT = 32
MAX_NAME_WORDS = 10
"""Words of a name that are compared with the query one by one."""
MAX_SENTENCE_WORDS = 14
"""Distinct words of a description's first sentence that are compared with the query one by one."""
_MAX_BODY_WORDS = 65
"""Words of a description, with stop words, in the vector of the whole tool."""
_MAX_BODY_PARAMETERS = 24
"""Words of parameter names in the vector of the whole tool."""
_MAX_PHRASE_WORDS = 100
"""Words of a description, with stop words, that can form a phrase."""
_PROSE = frozenset({Field.DESCRIPTION, Field.PARAMETER_TEXTS})
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")


class Vocabulary:
    """Words and stems, numbered in order of appearance. It only grows, while a segment is being built."""

    __slots__ = ("stem_numbers", "stems", "word_numbers", "word_stems", "words")

    def __init__(self, base: "Vocabulary | None" = None) -> None:
        """Start empty, or as a copy of another vocabulary."""
        self.words: list[str] = list(base.words) if base else []
        self.word_numbers: dict[str, int] = dict(base.word_numbers) if base else {}
        self.word_stems: list[int] = list(base.word_stems) if base else []
        """The number of the stem of each word."""
        self.stems: list[str] = list(base.stems) if base else []
        self.stem_numbers: dict[str, int] = dict(base.stem_numbers) if base else {}

    @classmethod
    def restore(cls, words: list[str], stems: list[str], word_stems: list[int]) -> "Vocabulary":
        """Return the vocabulary with these words and stems, in the order of their numbers."""
        made = cls()
        made.words, made.stems, made.word_stems = words, stems, word_stems
        made.word_numbers = dict(zip(words, range(len(words)), strict=True))
        made.stem_numbers = dict(zip(stems, range(len(stems)), strict=True))
        return made

    def number(self, word: str, stem_text: str) -> int:
        """Return the number of a word with that stem; a new word gets the next number."""
        number = self.word_numbers.get(word)
        if number is None:
            number = self.word_numbers[word] = len(self.words)
            self.words.append(word)
            stem_number = self.stem_numbers.setdefault(stem_text, len(self.stems))
            if stem_number == len(self.stems):
                self.stems.append(stem_text)
            self.word_stems.append(stem_number)
        return number


class WordStream:
    """Word numbers of many tools, one after the other; `lengths` has the count of each tool."""

    __slots__ = ("lengths", "numbers")

    def __init__(self) -> None:
        self.numbers = array("i")
        self.lengths = array("i")

    def add(self, numbers: Iterable[int]) -> None:
        """Append the numbers of the next tool."""
        added = [*numbers]
        self.numbers.fromlist(added)
        self.lengths.append(len(added))


class ToolAnalyzer:
    """Splits tools into words.

    `numbers` holds spans, each with the words of one field of one tool; `positions`, `fields` and `lengths` describe
    the spans. The streams have one entry per tool, in the order of reading.
    """

    __slots__ = (
        "_fillers",
        "_foreign",
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
        """Add new words to this vocabulary."""
        self._vocabulary = vocabulary
        self._numbers = _TokenNumbers(self._split)
        known = vocabulary.word_numbers
        self._stopped = {known[word] for word in STOP_WORDS & known.keys()}
        """The numbers of stop words, which count in names but not in prose."""
        self._foreign = {known[word] for word in TELLING_STOP_WORDS & known.keys()}
        """The numbers of words that only texts in other languages than English have."""
        self._fillers: frozenset[str] = frozenset()
        """The stop words of the language that the current tool is described in, if it is not English."""
        self.numbers = array("i")
        self.positions = array("i")
        self.fields = array("i")
        self.lengths = array("i")
        self.name, self.sentence, self.body = WordStream(), WordStream(), WordStream()
        self.description, self.parameters = WordStream(), WordStream()
        self.literals = array("i")
        """The kinds of literals that the formats and types of the parameters accept."""

    def add(self, position: int, tool: Tool) -> None:
        """Analyze the tool at a position."""
        found: dict[Field, list[int]] = {}
        begin = self._read(tool.description[:_MAX_SENTENCE])
        self._find_fillers(begin, accented=not tool.description.isascii())
        is_short = len(tool.description) <= _MAX_SENTENCE
        for field, text in field_texts(tool):
            numbers = found[field] = begin if is_short and field is Field.DESCRIPTION else self._read(text)
            self._span(position, field, self._telling(numbers) if field in _PROSE else numbers)
        name = found[Field.NAME]
        if len(name) > 1:
            whole = WHOLE_NAME + "".join([self._vocabulary.words[number] for number in name])
            self._span(position, Field.WHOLE_NAME, [self._vocabulary.number(whole, whole)])
        self._streams(tool, found)

    def _streams(self, tool: Tool, found: dict[Field, list[int]]) -> None:
        name, description = found[Field.NAME], found[Field.DESCRIPTION]
        parameters = found.get(Field.PARAMETERS, [])
        beside = [found[field] for field in _CONTEXT_FIELDS if field in found]
        self.name.add(name[:MAX_NAME_WORDS])
        sentence = self._first_sentence(tool.description, description)
        self.sentence.add(islice(dict.fromkeys(sentence), MAX_SENTENCE_WORDS))
        told = self._telling(description) if self._fillers else description
        self.body.add(chain(name, *beside, told[:_MAX_BODY_WORDS], parameters[:_MAX_BODY_PARAMETERS]))
        self.description.add(self._telling(description[:_MAX_PHRASE_WORDS]))
        self.parameters.add(parameters)
        self.literals.append(format_kinds(tool.input_schema))

    def _read(self, text: str) -> list[int]:
        """The numbers of the words of a text."""
        return [*chain.from_iterable(map(self._numbers.__getitem__, TOKEN.findall(text)))]

    def _first_sentence(self, text: str, numbers: list[int]) -> list[int]:
        """The telling words of the first sentence of a text with these words."""
        begin = text.lstrip()[:_MAX_SENTENCE]
        sentence = _SENTENCE_END.split(begin, maxsplit=1)[0]
        is_whole = len(sentence) == len(begin) < _MAX_SENTENCE
        return self._telling(numbers if is_whole else self._read(sentence))

    def _telling(self, numbers: Iterable[int]) -> list[int]:
        stopped = self._stopped
        found = [number for number in numbers if number not in stopped]
        if self._fillers:
            words = self._vocabulary.words
            return [number for number in found if words[number] not in self._fillers]
        return found

    def _find_fillers(self, numbers: list[int], *, accented: bool) -> None:
        """Find the stop words of the language in which a description begins with these words."""
        if self._foreign.isdisjoint(numbers):  # as nearly always
            self._fillers = stop_words("")
        else:
            words = map(self._vocabulary.words.__getitem__, numbers)
            self._fillers = stop_words(request_language(words, accented=accented))

    def _span(self, position: int, field: Field, numbers: list[int]) -> None:
        self.numbers.fromlist(numbers)
        self.positions.append(position)
        self.fields.append(field)
        self.lengths.append(len(numbers))

    def _split(self, token: str) -> tuple[int, ...]:
        known = self._vocabulary.word_numbers
        return tuple([known[word] if word in known else self._add(word) for word in split_identifier(token)])

    def _add(self, word: str) -> int:
        """Give a new word a number."""
        number = self._vocabulary.number(word, stem(word))
        if word in STOP_WORDS:
            self._stopped.add(number)
        if word in TELLING_STOP_WORDS:
            self._foreign.add(number)
        return number


class _TokenNumbers(dict[str, tuple[int, ...]]):
    """The word numbers of a token, computed on first use."""

    def __init__(self, work_out: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, token: str) -> tuple[int, ...]:
        numbers = self[token] = self._work_out(token)
        return numbers


_CONTEXT_FIELDS = (Field.NAMESPACE, Field.TITLE, Field.KEYWORDS, Field.TAGS)
"""Short fields that say as much about the meaning of a tool as its name."""
_MAX_SENTENCE = 600
"""A first sentence is cut after so many characters."""
FIELD_COUNT = len(Field)
_MAX_COUNT = 0xFFFF
_SPANS = 8_192
"""Fields of tools whose words are counted at once: all at once would take several times the memory of the index."""


@dataclass(frozen=True, slots=True)
class WordOccurrences:
    """How often each word occurs in each field of each tool; sorted by stem, tool and field."""

    stems: Ints
    positions: Ints
    fields: npt.NDArray[np.uint8]
    words: Ints
    counts: npt.NDArray[np.uint16]

    def reposition(self, kept: Mapping[int, int], old_size: int) -> "WordOccurrences":
        """Select some tools and give them new positions. `kept` maps new positions to old ones, of `old_size`."""
        place = np.full(old_size, -1, dtype=np.int32)
        place[list(kept.values())] = list(kept)
        positions = place[self.positions]
        stay = positions >= 0
        return WordOccurrences(
            self.stems[stay], positions[stay], self.fields[stay], self.words[stay], self.counts[stay]
        )

    def merge(self, other: "WordOccurrences") -> "WordOccurrences":
        """Combine the rows of both."""
        return sort_occurrences(
            np.concatenate([self.stems, other.stems]),
            np.concatenate([self.positions, other.positions]),
            np.concatenate([self.fields, other.fields]),
            np.concatenate([self.words, other.words]),
            np.concatenate([self.counts, other.counts]),
        )


def count_words(analysis: ToolAnalyzer, vocabulary: Vocabulary) -> WordOccurrences:
    """Count the words of analyzed tools."""
    size = len(analysis.lengths)
    ends = np.array(analysis.lengths, dtype=np.int64).cumsum()
    keys, counts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for start in range(0, size, _SPANS):  # in ascending order, like the positions
        stop = min(size, start + _SPANS)
        positions = np.array(analysis.positions[start:stop], dtype=np.int64)
        fields = np.array(analysis.fields[start:stop], dtype=np.int64)
        lengths = np.array(analysis.lengths[start:stop], dtype=np.int64)
        words = np.array(analysis.numbers[ends[start] - lengths[0] : ends[stop - 1]], dtype=np.int64)
        found = np.unique((np.repeat(positions * FIELD_COUNT + fields, lengths) << 32) | words, return_counts=True)
        keys.append(found[0])
        counts.append(found[1])
    places = np.concatenate(keys)
    numbers = (places & 0xFFFFFFFF).astype(np.int32)
    places >>= 32
    stems = np.array(vocabulary.word_stems, dtype=np.int32)
    return sort_occurrences(
        stems[numbers],
        (places // FIELD_COUNT).astype(np.int32),
        (places % FIELD_COUNT).astype(np.uint8),
        numbers,
        np.minimum(np.concatenate(counts), _MAX_COUNT).astype(np.uint16),
    )


def field_norms(analysis: ToolAnalyzer, size: int, options: Sequence[FieldOptions]) -> Floats:
    """Return what one occurrence of a word adds, per tool and field: float32[size, fields].

    It is 0 for tools that were not analyzed.
    """
    lengths = np.array(analysis.lengths, dtype=np.float64)
    fields = np.array(analysis.fields, dtype=np.intp)
    weight, b, reference = np.array([(f.weight, f.b, f.reference) for f in options]).T
    adds = np.zeros((size, FIELD_COUNT), dtype=np.float32)
    places = np.array(analysis.positions, dtype=np.intp)
    adds[places, fields] = weight[fields] / (1 - b[fields] + b[fields] * lengths / reference[fields])
    return adds


def row_changes(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark rows that differ from the one before; the first one does."""
    new = np.ones(len(columns[0]), dtype=np.bool_)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return new


def sort_occurrences(stems: Any, positions: Any, fields: Any, words: Any, counts: Any) -> WordOccurrences:
    """Word counts in the order of `WordOccurrences`."""
    order = np.argsort((stems.astype(np.int64) << 36) | (positions.astype(np.int64) << 4) | fields, kind="stable")
    return WordOccurrences(stems[order], positions[order], fields[order], words[order], counts[order])
