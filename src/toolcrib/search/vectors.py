"""Vectors: the `Embedder` protocol, the static table of word pieces, and exact arithmetic on quantized vectors.

The components of a quantized vector are small integers times one scale. A product of integers that stays below 2^24 is
exact in float32, in whatever order a matrix product adds it up, so the score of a tool never depends, not even in the last
digit, on which others are scored with it. Knows words and texts, and nothing about tools, queries or scores.
"""

import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from io import BytesIO
from itertools import chain, count
from typing import Any, NamedTuple, Protocol, runtime_checkable
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
"""Shape [texts, components]; every row of unit length, or zero."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors whose product is their likeness in meaning, -1 to 1.

    One embedder may be used from several threads at once.
    """

    @property
    def name(self) -> str:
        """Says what made the vectors, the model included: two embedders of one name give the same vectors."""

    @property
    def dim(self) -> int:
        """Components of a vector, 1 or more."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text, in the order of the texts: float32[n, dim].

        A row has unit length, or is zero where the model knows nothing of the text, such as an empty one: that
        means "no signal", not "no match". Any text is taken. What a text gives does not depend on its neighbours,
        but for rounding.
        """


Floats = npt.NDArray[np.float32]


TABLE_SHA256 = "311a54437eb1cdcd7940959033a0ce7636eae50a146868553af734d2f1ebbe97"
"""Of the file in the package."""


_TABLE_WORD = re.compile("[a-z0-9\u00df-\u00f6\u00f8-\u0587]+")
"""What a text is cut into: letters and digits. Those of Europe's other alphabets hold a word together, so that it is
unknown as a whole; every other character separates words."""


_ACCENTS = re.compile("[\u0300-\u036f]+")


_CONTINUATION = "##"
"""Begins a piece that may only continue a word, as in the vocabulary of BERT."""


_MAX_TABLE_WORD = 64
"""Characters of a word that is looked up: a longer one is data."""


_MAX_CACHED_WORDS = 65_536
"""Words whose pieces are remembered."""


_BYTE_BITS = 8


_NIBBLE_BITS = 4
"""Bits of a component."""


_MATRIX_RANK = 2
"""Axes of the rows."""


class WordPieceTable:
    """Rows of word pieces, eight bits a component in memory (5.3 MB for the shipped table)."""

    __slots__ = ("_begins", "_idf", "_inner", "_longest", "_memo", "_nothing", "_outer", "_rows", "_scales", "dim")

    def __init__(
        self,
        vocabulary: Sequence[str],
        rows: npt.NDArray[np.int8],
        scales: npt.ArrayLike,
        idf: npt.ArrayLike | None = None,
    ) -> None:
        """One row of small whole numbers and one scale for each piece; a component is their product.

        rows: int8[n, dim]; scales: n numbers; idf: n numbers, how rare each piece is in texts about tools, or None
        where nothing is known of that. Raises ValueError where they do not agree.
        """
        factors = np.asarray(scales, dtype=np.float32)
        if rows.ndim != _MATRIX_RANK or factors.shape != (len(vocabulary),) or len(rows) != len(vocabulary):
            raise ValueError(
                f"{len(vocabulary)} pieces, scales of shape {factors.shape} and rows of shape {rows.shape}"
            )
        self.dim: int = rows.shape[1]
        """Components of a vector."""
        weights = np.ones(len(vocabulary)) if idf is None else np.asarray(idf)
        if weights.shape != (len(vocabulary),):
            raise ValueError(f"{len(vocabulary)} pieces and weights of shape {weights.shape}")
        self._idf: list[float] = [*weights.tolist(), float(weights.max(initial=1.0))]
        self._rows = np.concatenate((rows, np.zeros((1, self.dim), dtype=np.int8)))
        self._scales: Floats = np.append(factors, np.float32(0))
        self._nothing = (len(rows),)
        inside = [piece.startswith(_CONTINUATION) for piece in vocabulary]
        self._outer = {piece: row for row, piece in enumerate(vocabulary) if not inside[row]}
        self._inner = {piece[len(_CONTINUATION) :]: row for row, piece in enumerate(vocabulary) if inside[row]}
        self._begins = frozenset(piece[0] for piece in self._outer if piece)
        self._longest = max(map(len, chain(self._outer, self._inner)), default=0)
        self._memo: Callable[[str], tuple[int, ...]] = lru_cache(maxsize=_MAX_CACHED_WORDS)(self._find)

    @classmethod
    def load(cls, data: bytes | None = None) -> "WordPieceTable":
        """A table from the bytes of its file; without any, the one in the package, which is read once.

        The file is a numpy archive: `meta` = [components, bits of one], `vocab` = the pieces as UTF-8, one a line,
        `q` = the rows, `s` = their scales, `idf` (may be missing) = how rare each is.
        With 8 bits `q` is signed; with 4 a byte holds two components, the lower
        half first, each 8 too large. Raises ValueError for anything else.
        """
        return default_table() if data is None else _read_table(data)

    def pieces(self, word: str) -> tuple[int, ...]:
        """The rows of a word: the longest piece it begins with, then the longest that continues it, and so on.

        Empty where some part of it has no piece, as for words of other scripts. Capitals and accents do not matter.
        """
        return self._memo(word)

    def knows(self, word: str) -> bool:
        """Whether the word is one piece.

        >>> table = WordPieceTable.load()
        >>> table.knows("weather"), table.knows("Weather"), table.knows("wether")
        (True, True, False)
        """
        return len(self._memo(word)) == 1

    def words(self, words: Sequence[str]) -> Floats:
        """The sum of the rows of each word, not scaled: float32[n, dim], zero where a word is unknown."""
        found = [self._memo(word) or self._nothing for word in words]
        sums = self._floats([pieces[0] for pieces in found])
        more = [(place, piece) for place, pieces in enumerate(found) for piece in pieces[1:]]
        if more:
            for (place, _), row in zip(more, self._floats([piece for _, piece in more]), strict=True):
                total = sums[place]
                total += row
        return sums

    def weights(self, words: Sequence[str]) -> Floats:
        """How telling each word is in any catalog: float32[n], above 0; that of its rarest piece.

        An unknown word weighs as much as the rarest piece.

        >>> get, refund = WordPieceTable.load().weights(["get", "refund"])
        >>> bool(get < refund)
        True
        """
        idf = self._idf
        rarest = [max([idf[piece] for piece in self._memo(word)], default=idf[-1]) for word in words]
        return np.array(rarest, dtype=np.float32)

    def embed(self, texts: Sequence[str]) -> Floats:
        """A vector for each text: float32[n, dim] of unit length, zero where none of its words is known.

        The product of two is their likeness, -1 to 1.

        >>> mail, message, apple = WordPieceTable.load().embed(["send an email", "deliver a mail message", "red apple"])
        >>> bool(mail @ message > 0.5 > mail @ apple)
        True
        """
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for place, text in enumerate(texts):
            pieces = tuple(chain.from_iterable(map(self._memo, _TABLE_WORD.findall(_fold_accents(text)))))
            if pieces:
                vectors[place] = self._sum(pieces)
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        vectors /= np.where(lengths > 0, lengths, 1)[:, None]
        return vectors

    def _find(self, word: str) -> tuple[int, ...]:
        word = _fold_accents(word)
        if not 0 < len(word) <= _MAX_TABLE_WORD or word[0] not in self._begins:
            return ()
        found: list[int] = []
        place = 0
        while place < len(word):
            known = self._inner if place else self._outer
            ends = range(min(len(word), place + self._longest), place, -1)
            end = next((end for end in ends if word[place:end] in known), 0)
            if not end:
                return ()
            found.append(known[word[place:end]])
            place = end
        return tuple(found)

    def _sum(self, pieces: tuple[int, ...]) -> Floats:
        """The sum of some rows, as a product, which is the fastest way when they are many."""
        rows = np.array(pieces, dtype=np.intp)
        product: Floats = self._scales.take(rows) @ self._rows.take(rows, axis=0).astype(np.float32)
        return product

    def _floats(self, rows: Sequence[int]) -> Floats:
        places = np.array(rows, dtype=np.intp)
        return np.multiply(self._rows.take(places, axis=0), self._scales.take(places)[:, None], dtype=np.float32)


@cache
def default_table() -> WordPieceTable:
    """The table in the package, read when it is first asked for, and shared by all."""
    return _read_table((files("toolcrib.search") / "data" / "toolvec.npz").read_bytes())


def _read_table(data: bytes) -> WordPieceTable:
    try:
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            dim, bits = arrays["meta"].tolist()
            vocabulary = arrays["vocab"].tobytes().decode().split("\n")
            rows, scales = arrays["q"], arrays["s"]
            idf = arrays.get("idf")
    except (BadZipFile, EOFError, KeyError, OSError, TypeError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"not the file of a table: {error}") from error
    table = WordPieceTable(vocabulary, _unpack_rows(rows, bits), scales, idf)
    if table.dim != dim:
        raise ValueError(f"rows of {table.dim} components in a table of {dim}")
    return table


def _unpack_rows(rows: npt.NDArray[Any], bits: int) -> npt.NDArray[np.int8]:
    if bits == _BYTE_BITS and rows.dtype == np.int8:
        return rows
    if bits == _NIBBLE_BITS and rows.dtype == np.uint8:
        return np.stack((rows & 15, rows >> 4), axis=-1).reshape(len(rows), -1).astype(np.int8) - np.int8(8)
    raise ValueError(f"rows of {rows.dtype} with {bits} bits a component: 8 bits of int8 or 4 of uint8 were expected")


def _fold_accents(text: str) -> str:
    """Lower case without accents."""
    if text.isascii():
        return text.lower()
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold())


Doubles = npt.NDArray[np.float64]


Places = npt.NDArray[np.intp] | npt.NDArray[np.int32]


_LEVELS = 127


_EXACT_LIMIT = 1 << 24


_MAX_UNTHREADED = 1 << 18
"""Multiplications of a product of matrices that OpenBLAS makes without threads. Source: its interface/gemm.c."""


_TINY = 1e-30
"""Less than any length or component that means something."""


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Quantised vectors."""

    values: npt.NDArray[np.int8]
    scales: Floats

    def __len__(self) -> int:
        """How many there are."""
        return len(self.values)

    def take(self, places: Places) -> "QuantizedRows":
        """A copy of some rows."""
        return QuantizedRows(self.values[places], self.scales[places])

    def put(self, places: Places, rows: "QuantizedRows") -> None:
        """Replace some rows, while they are being built."""
        self.values[places] = rows.values
        self.scales[places] = rows.scales

    def floats(self, places: Places) -> Floats:
        """Some rows as vectors."""
        found: Floats = self.values[places].astype(np.float32) * self.scales[places][:, None]
        return found

    def products(self, places: Places, query: "QueryVectors") -> Doubles:
        """The products of the query's vectors with some rows: float64[vectors, places]."""
        rows = self.values.take(places, axis=0).astype(np.float32)
        found: Doubles = dot_products(query.values, rows) * query.scales[:, None]
        found *= self.scales.take(places)
        return found

    def whole(self, places: Places, query: "QueryVectors") -> Doubles:
        """The same for many vectors of few components, not yet scaled by row; places: [groups, places of each].

        float64[vectors, groups * places].
        """
        groups, size = places.shape  # one small product a group, see `product`
        rows = self.values.take(places.ravel(), axis=0).astype(np.float32)
        found = np.matmul(rows.reshape(groups, size, -1), query.values.T).reshape(groups * size, -1)
        scaled: Doubles = np.multiply(found.T, query.scales[:, None], order="C")
        return scaled


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """The vectors of a query, in as many bits as keep products exact."""

    values: Floats
    """Whole numbers, [vectors, components]."""
    scales: Doubles

    def split(self, count: int) -> tuple["QueryVectors", "QueryVectors"]:
        """The first vectors, and the others."""
        return QueryVectors(self.values[:count], self.scales[:count]), QueryVectors(
            self.values[count:], self.scales[count:]
        )

    def take(self, places: Places) -> "QueryVectors":
        """A copy of some vectors."""
        return QueryVectors(self.values.take(places, axis=0), self.scales.take(places))


def dot_products(left: Floats, right: Floats) -> Floats:
    """The product of each row on the left with each on the right: float32[left, right].

    A large product would wake the threads of the linear algebra library, and wait for them longer than the work takes
    where the processor has anything else to do. So what is not small is made of products of two rows.
    """
    small = 1 < len(left) <= _MAX_UNTHREADED // max(1, right.size)
    found: Floats = left @ right.T if small else np.vecdot(left[:, None], right)
    return found


def quantize(vectors: Floats) -> QuantizedRows:
    """Vectors in eight bits; rows of zeros stay so."""
    largest = np.abs(vectors).max(axis=1, initial=0)
    scales = np.where(largest > 0, largest / np.float32(_LEVELS), np.float32(1)).astype(np.float32)
    return QuantizedRows(np.rint(vectors / scales[:, None]).astype(np.int8), scales)


def quantize_query(vectors: Floats) -> QueryVectors:
    """The vectors of a query, [vectors, components], for products with rows of as many components."""
    levels = _query_levels(vectors.shape[1])
    scales = np.abs(vectors).max(axis=1, initial=0).astype(np.float64) / levels
    scales[scales == 0] = 1.0
    return QueryVectors(np.rint(vectors / scales[:, None]).astype(np.float32), scales)


def quantize_unit_vectors(vectors: Floats) -> QueryVectors:
    """The same, each vector brought to unit length; zeros stay so."""
    levels = _query_levels(vectors.shape[1])
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors)).astype(np.float64)
    largest = np.maximum(np.abs(vectors).max(axis=1, initial=0), _TINY).astype(np.float64)
    values = np.rint(vectors * (levels / largest)[:, None]).astype(np.float32)
    return QueryVectors(values, largest / (levels * np.maximum(lengths, _TINY)))


@cache
def _query_levels(dim: int) -> int:
    return max(1, _EXACT_LIMIT // (_LEVELS * dim) - 1)


_MAX_CACHED_ROWS = 2048
"""Words whose rows are remembered; more than one query has."""


class WordVectors(NamedTuple):
    """What is said of some words, in their order."""

    vectors: Floats
    """float32[words, components]."""
    weights: Floats
    """How telling each is; above 0."""
    coarse: QueryVectors
    """The leading components of the vectors, at unit length."""

    def take(self, places: Sequence[int]) -> "WordVectors":
        """A copy of some rows."""
        at = np.array(places, dtype=np.intp)
        return WordVectors(self.vectors.take(at, axis=0), self.weights.take(at), self.coarse.take(at))


class WordVectorCache:
    """Rows that are worked out when a word is first asked for. May be asked from several threads at once."""

    def __init__(self, table: WordPieceTable, weights: Callable[[Sequence[str]], Floats]) -> None:
        """The rows of a table; `weights` tells how telling words are."""
        self._table = table
        self._weights = weights
        self._kept = _WordVectorStore(table.dim)

    def of(self, words: Sequence[str]) -> WordVectors:
        """What is said of some words, each once."""
        kept = self._kept
        try:
            return kept.rows.take([kept.places[word] for word in words])
        except KeyError:
            return self._added(words)

    def _added(self, words: Sequence[str]) -> WordVectors:
        kept = self._kept
        missing = [word for word in words if word not in kept.places]
        if kept.add(missing, self._worked_out(missing)):
            return kept.rows.take([kept.places[word] for word in words])
        self._kept = _WordVectorStore(self._table.dim)
        return self._worked_out(words)

    def _worked_out(self, words: Sequence[str]) -> WordVectors:
        vectors = self._table.words(words)
        return WordVectors(vectors, self._weights(words), quantize_unit_vectors(vectors[:, :COARSE_COMPONENTS]))


class _WordVectorStore:
    """Rows that only grow: those whose place is told never change."""

    __slots__ = ("_next", "places", "rows")

    def __init__(self, dim: int) -> None:
        self.places: dict[str, int] = {}
        self._next = count()
        short = min(dim, COARSE_COMPONENTS)
        coarse = QueryVectors(np.zeros((_MAX_CACHED_ROWS, short), np.float32), np.zeros(_MAX_CACHED_ROWS))
        self.rows = WordVectors(
            np.zeros((_MAX_CACHED_ROWS, dim), np.float32), np.zeros(_MAX_CACHED_ROWS, np.float32), coarse
        )

    def add(self, words: Sequence[str], said: WordVectors) -> bool:
        """The rows of more words, as far as there is room; whether there was.

        Each row is taken by one thread alone, and told when it is filled: two threads may add the same word.
        """
        for at, word in enumerate(words):
            place = next(self._next)
            if place >= _MAX_CACHED_ROWS:
                return False
            self.rows.vectors[place], self.rows.weights[place] = said.vectors[at], said.weights[at]
            self.rows.coarse.values[place] = said.coarse.values[at]
            self.rows.coarse.scales[place] = said.coarse.scales[at]
            self.places[word] = place
        return True


COARSE_COMPONENTS = 64
"""Leading components of a word's vector by which words are compared one by one: they hold most of it."""
