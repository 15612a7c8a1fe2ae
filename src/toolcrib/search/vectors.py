"""Vectors: the `Embedder` protocol, the static table of word pieces, and exact arithmetic on quantized vectors.

The components of a quantized vector are small integers times one scale. A dot product of integers below 2^24 is exact
in float32, in whatever order it is added up. So the score of a tool never depends, not even in the last digit, on which
others are scored with it. Knows words and texts, and nothing about tools, queries or scores.
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
from typing import Any, NamedTuple, Protocol
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from toolcrib.search.glossary import english_words

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp] | npt.NDArray[np.int32]


class Translate(Protocol):
    """Gives the English words for words of other languages, such as `toolcrib.search.glossary.english_words`."""

    def __call__(self, word: str, *, exact: bool) -> tuple[str, ...]:
        """The English words for a word or, unless it must be the `exact` one, for the word that it is a form of."""


Vectors = npt.NDArray[np.float32]
"""float32[texts, components]; every row has unit length or is zero."""
TABLE_SHA256 = "311a54437eb1cdcd7940959033a0ce7636eae50a146868553af734d2f1ebbe97"
"""The hash of the table's file in the package."""
_TABLE_WORD = re.compile("[a-z0-9\u00df-\u00f6\u00f8-\u0587]+")
"""A word: letters and digits. Letters of other European alphabets belong to the word, so that the whole word is unknown
instead of its ASCII parts; every other character separates words."""
_ACCENTS = re.compile("[\u0300-\u036f]+")
_CONTINUATION = "##"
"""Prefix of a piece that continues a word, as in the vocabulary of BERT."""
_MAX_TABLE_WORD = 64
"""A longer word is not looked up: it is data."""
_MAX_CACHED_WORDS = 65_536
"""Words whose pieces are cached."""
_BYTE_BITS = 8
_NIBBLE_BITS = 4
"""Bits of a component."""
_MATRIX_RANK = 2
"""Axes of the rows."""
_PACKAGED_DIM = 256
"""The components of the table in the package."""


class WordPieceTable:
    """The static table: one vector per word piece, so that words without common letters can be close.

    A word is the sum of its pieces, a text the sum of its words. A component takes eight bits (5.3 MB in all).
    """

    __slots__ = (
        "_begins",
        "_idf",
        "_inner",
        "_longest",
        "_memo",
        "_nothing",
        "_outer",
        "_rows",
        "_scales",
        "_translate",
        "dim",
    )

    def __init__(
        self,
        vocabulary: Sequence[str],
        rows: npt.NDArray[np.int8],
        scales: npt.ArrayLike,
        idf: npt.ArrayLike | None = None,
        *,
        translate: Translate | None = None,
    ) -> None:
        """Each piece has a row of small integers and a scale; a component is their product.

        rows: int8[n, dim]; scales: n numbers; idf: n numbers, how rare each piece is in texts about tools, or None if
        unknown. `translate` gives words of other languages the pieces of their English words. Raises ValueError if the
        shapes do not match.
        """
        factors = np.asarray(scales, dtype=np.float32)
        if rows.ndim != _MATRIX_RANK or factors.shape != (len(vocabulary),) or len(rows) != len(vocabulary):
            raise ValueError(
                f"{len(vocabulary)} pieces, scales of shape {factors.shape} and rows of shape {rows.shape}"
            )
        self._translate = translate
        self._memo: Callable[[str], tuple[int, ...]] = lru_cache(maxsize=_MAX_CACHED_WORDS)(self._find)
        self._fill(vocabulary, rows, factors, idf)

    def _fill(
        self, vocabulary: Sequence[str], rows: npt.NDArray[np.int8], scales: Floats, idf: npt.ArrayLike | None
    ) -> None:
        """Set what the arrays say."""
        self.dim: int = rows.shape[1]
        """The number of components of a vector."""
        weights = np.ones(len(vocabulary)) if idf is None else np.asarray(idf)
        if weights.shape != (len(vocabulary),):
            raise ValueError(f"{len(vocabulary)} pieces and weights of shape {weights.shape}")
        self._idf: list[float] = [*weights.tolist(), float(weights.max(initial=1.0))]
        self._rows = np.concatenate((rows, np.zeros((1, self.dim), dtype=np.int8)))
        self._scales: Floats = np.append(scales, np.float32(0))
        self._nothing = (len(rows),)
        inside = [piece.startswith(_CONTINUATION) for piece in vocabulary]
        self._outer = {piece: row for row, piece in enumerate(vocabulary) if not inside[row]}
        self._inner = {piece[len(_CONTINUATION) :]: row for row, piece in enumerate(vocabulary) if inside[row]}
        self._begins = frozenset(piece[0] for piece in self._outer if piece)
        self._longest = max(map(len, chain(self._outer, self._inner)), default=0)

    @classmethod
    def load(cls, data: bytes | None = None) -> "WordPieceTable":
        """Read a table from the bytes of its file; without any, return the shared one in the package.

        The file is a numpy archive: `meta` = [components, bits of one], `vocab` = the pieces as UTF-8, one per line,
        `q` = the rows, `s` = their scales, `idf` (optional) = how rare each piece is. With 8 bits `q` is signed; with
        4 a byte holds two components, the low half first, each plus 8. Raises ValueError for anything else.
        """
        return default_table() if data is None else WordPieceTable(*_read_arrays(data))

    def pieces(self, word: str) -> tuple[int, ...]:
        """The rows of the pieces of a word: the longest that begins it, then the longest that continues it, and so on.

        Empty if some part of the word has no piece, as in other scripts. Case and accents do not matter.
        """
        # Numbers rarely repeat, and would only fill the cache.
        return self._find(word) if word[-1:].isdigit() else self._memo(word)

    def knows(self, word: str) -> bool:
        """Whether the word is a single piece.

        >>> table = WordPieceTable.load()
        >>> table.knows("weather"), table.knows("Weather"), table.knows("wether")
        (True, True, False)
        """
        return len(self._memo(word)) == 1

    def word_vectors(self, words: Sequence[str]) -> Floats:
        """The vector of each word, not normalized: float32[n, dim]; zero for an unknown word."""
        if not words:
            return np.zeros((0, self.dim), dtype=np.float32)
        found = [self._word_pieces(word) or self._nothing for word in words]
        sums = self._floats([pieces[0] for pieces in found])
        more = [(place, piece) for place, pieces in enumerate(found) for piece in pieces[1:]]
        if more:
            for (place, _), row in zip(more, self._floats([piece for _, piece in more]), strict=True):
                total = sums[place]
                total += row
        return sums

    def word_weights(self, words: Sequence[str]) -> Floats:
        """The idf of each word in texts about tools: float32[n], above 0; that of its rarest piece.

        An unknown word weighs as much as the rarest piece.

        >>> get, refund = WordPieceTable.load().word_weights(["get", "refund"])
        >>> bool(get < refund)
        True
        """
        if not words:
            return np.zeros(0, dtype=np.float32)
        idf = self._idf
        rarest = [max([idf[piece] for piece in self._word_pieces(word)], default=idf[-1]) for word in words]
        return np.array(rarest, dtype=np.float32)

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return a vector per text: float32[n, dim] of unit length, or zero if no word is known.

        >>> mail, message, apple = WordPieceTable.load().embed(["send an email", "deliver a mail message", "red apple"])
        >>> bool(mail @ message > 0.5 > mail @ apple)
        True
        """
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for place, text in enumerate(texts):
            pieces = tuple(chain.from_iterable(map(self._memo, _TABLE_WORD.findall(_fold_accents(text)))))
            if pieces:
                vectors[place] = self._sum(pieces)
        return unit_rows(vectors)

    def translation(self, word: str) -> tuple[str, ...]:
        """The English words for a word of another language, as far as the glossary has it.

        A word that is a piece itself is taken for an English one, unless the glossary has exactly this word. Only the
        table in the package has a glossary.

        >>> table = WordPieceTable.load()
        >>> table.translation("dateien"), table.translation("files"), table.translation("搜索")
        (('file',), (), ('search',))
        """
        english = self._translate(word, exact=word in self._outer) if self._translate else ()
        return () if word in english or word.removesuffix("s") in english else english

    def _find(self, word: str) -> tuple[int, ...]:
        english = self.translation(word)
        if english:
            return tuple(chain.from_iterable(map(self._memo, english)))
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

    def _word_pieces(self, word: str) -> tuple[int, ...]:
        """Like `pieces`. Numbers are not cached: requests seldom share them."""
        return self._find(word) if word.isdigit() else self._memo(word)

    def _sum(self, pieces: tuple[int, ...]) -> Floats:
        """Add up rows. A matrix product is the fastest way when there are many."""
        rows = np.array(pieces, dtype=np.intp)
        product: Floats = self._scales.take(rows) @ self._rows.take(rows, axis=0).astype(np.float32)
        return product

    def _floats(self, rows: Sequence[int]) -> Floats:
        places = np.array(rows, dtype=np.intp)
        return np.multiply(self._rows.take(places, axis=0), self._scales.take(places)[:, None], dtype=np.float32)


class _PackagedTable(WordPieceTable):
    """The table in the package. It is read when the first word is looked up, so that an empty index needs no table."""

    __slots__ = ()

    def __init__(self) -> None:
        self.dim = _PACKAGED_DIM
        self._translate = english_words
        self._memo = lru_cache(maxsize=_MAX_CACHED_WORDS)(self._find)

    def __getattr__(self, name: str) -> Any:
        """Read the file for an attribute that is not set yet."""
        if name not in WordPieceTable.__slots__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        vocabulary, rows, scales, idf = _read_arrays((files("toolcrib.search") / "data" / "toolvec.npz").read_bytes())
        self._fill(vocabulary, rows, np.asarray(scales, dtype=np.float32), idf)
        return getattr(self, name)


@cache
def default_table() -> WordPieceTable:
    """The table in the package, read on first use and shared."""
    return _PackagedTable()


def _read_arrays(data: bytes) -> tuple[list[str], npt.NDArray[np.int8], npt.NDArray[Any], npt.NDArray[Any] | None]:
    """The pieces of the file of a table, their rows and scales, and how rare they are, if it says."""
    try:
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            dim, bits = arrays["meta"].tolist()
            vocabulary = arrays["vocab"].tobytes().decode().split("\n")
            packed, scales = arrays["q"], arrays["s"]
            idf = arrays.get("idf")
    except (BadZipFile, EOFError, KeyError, OSError, TypeError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"not the file of a table: {error}") from error
    rows = _unpack_rows(packed, bits)
    if rows.ndim == _MATRIX_RANK and rows.shape[1] != dim:
        raise ValueError(f"rows of {rows.shape[1]} components in a table of {dim}")
    return vocabulary, rows, scales, idf


def _unpack_rows(rows: npt.NDArray[Any], bits: int) -> npt.NDArray[np.int8]:
    if bits == _BYTE_BITS and rows.dtype == np.int8:
        return rows
    if bits == _NIBBLE_BITS and rows.dtype == np.uint8:
        return np.stack((rows & 15, rows >> 4), axis=-1).reshape(len(rows), -1).astype(np.int8) - np.int8(8)
    raise ValueError(f"rows of {rows.dtype} with {bits} bits a component: 8 bits of int8 or 4 of uint8 were expected")


def _fold_accents(text: str) -> str:
    """Convert to lower case and remove accents."""
    if text.isascii():
        return text.lower()
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold())


_LEVELS = 127
"""The largest integer of a component of a tool."""
_EXACT_LIMIT = 1 << 24
"""Up to here float32 has every integer, so that sums of integers are the same in any order."""
_MAX_UNTHREADED = 1 << 18
"""Multiplications up to which OpenBLAS computes a matrix product without threads. Source: its interface/gemm.c."""
_TINY = 1e-30
"""Smaller than any meaningful length or component."""


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Vectors with eight bits per component, and one scale per vector."""

    values: npt.NDArray[np.int8]
    scales: Floats

    def __len__(self) -> int:
        return len(self.values)

    def take(self, places: Places) -> "QuantizedRows":
        """Copy some rows."""
        return QuantizedRows(self.values[places], self.scales[places])

    def put(self, places: Places, rows: "QuantizedRows") -> None:
        """Overwrite some rows. Only for rows that are still being built."""
        self.values[places] = rows.values
        self.scales[places] = rows.scales

    def dequantize(self, places: Places) -> Floats:
        """Return some rows as float vectors."""
        found: Floats = self.values[places].astype(np.float32) * self.scales[places][:, None]
        return found

    def products(self, places: Places, query: "QueryVectors") -> Doubles:
        """Dot products of the query's vectors with some rows: float64[vectors, places]."""
        rows = self.values.take(places, axis=0).astype(np.float32)
        found = dot_products(query.values, rows).astype(np.float64)
        found *= query.scales[:, None]
        found *= self.scales.take(places)
        return found

    def unscaled_products(self, places: Places, query: "QueryVectors") -> Doubles:
        """Dot products for many rows with few components, not yet multiplied by the scales of the rows.

        places: [rows]; returns float64[vectors, rows].
        """
        found = np.empty((len(query.values), len(places)), dtype=np.float32)
        step = max(1, _MAX_UNTHREADED // max(1, query.values.size))
        for start in range(0, len(places), step):  # several small products, see `dot_products`
            rows = self.values.take(places[start : start + step], axis=0).astype(np.float32)
            np.matmul(query.values, rows.T, out=found[:, start : start + step])
        scaled = found.astype(np.float64)  # mixing the types would take twice as long
        scaled *= query.scales[:, None]
        return scaled


class QueryVectors(NamedTuple):
    """The vectors of a query, in as many bits as exact products allow."""

    values: Floats
    """Integers, float32[vectors, components]."""
    scales: Doubles
    has_zeros: bool = True
    """Whether some vector may be zero."""

    def split(self, count: int) -> tuple["QueryVectors", "QueryVectors"]:
        """Split into the first `count` vectors and the others."""
        return (
            QueryVectors(self.values[:count], self.scales[:count], self.has_zeros),
            QueryVectors(self.values[count:], self.scales[count:], self.has_zeros),
        )

    def take(self, places: Places) -> "QueryVectors":
        """Copy some vectors."""
        return QueryVectors(self.values.take(places, axis=0), self.scales.take(places))


def dot_products(left: Floats, right: Floats) -> Floats:
    """Multiply each row on the left with each row on the right: float32[left, right].

    A large matrix product would start the threads of the linear algebra library, and on a busy machine waiting for
    them takes longer than the work. So everything that is not small is computed row by row.
    """
    small = 1 < len(left) <= _MAX_UNTHREADED // max(1, right.size)
    found: Floats = left @ right.T if small else np.vecdot(left[:, None], right)
    return found


def quantize(vectors: Floats) -> QuantizedRows:
    """Quantize vectors to eight bits; rows of zeros stay zero."""
    largest = np.abs(vectors).max(axis=1, initial=0)
    scales = np.where(largest > 0, largest / np.float32(_LEVELS), np.float32(1)).astype(np.float32)
    return QuantizedRows(np.rint(vectors / scales[:, None]).astype(np.int8), scales)


def quantize_query(vectors: Floats) -> QueryVectors:
    """Quantize the vectors of a query, [vectors, components]."""
    levels = _query_levels(vectors.shape[1])
    scales = np.abs(vectors).max(axis=1, initial=0).astype(np.float64) / levels
    scales[scales == 0] = 1.0
    return QueryVectors(np.rint(vectors / scales[:, None]).astype(np.float32), scales)


def unit_rows(vectors: Floats) -> Floats:
    """The rows at unit length: float32[n, dim]; rows of zeros stay zero."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    scaled: Floats = np.divide(vectors, np.where(lengths > 0, lengths, np.float32(1))[:, None], dtype=np.float32)
    return scaled


def quantize_unit_vectors(vectors: Floats) -> QueryVectors:
    """Normalize vectors to unit length and quantize them as vectors of a query; zeros stay zero."""
    levels = _query_levels(vectors.shape[1])
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors)).tolist()
    largest = np.maximum.reduce(np.abs(vectors), axis=1, initial=_TINY).tolist()
    values = vectors.astype(np.float64)
    values *= np.array([levels / most for most in largest])[:, None]
    scales = [most / (levels * max(length, _TINY)) for most, length in zip(largest, lengths, strict=True)]
    return QueryVectors(np.rint(values, out=values).astype(np.float32), np.array(scales), 0.0 in lengths)


@cache
def _query_levels(dim: int) -> int:
    # The sum of `dim` products stays below the limit, whatever the vectors are.
    return max(1, _EXACT_LIMIT // (_LEVELS * dim) - 1)


_MAX_CACHED_ROWS = 2048
"""Words that are cached, 1.3 KB each; usual queries have some dozen. Rows that were never used take no memory."""


class WordVectors(NamedTuple):
    """The vectors of some words, in order, and more about those of them that tell what is wanted."""

    vectors: Floats
    """float32[words, components]."""
    weights: Sequence[float]
    """The weight of each telling word; above 0."""
    coarse: QueryVectors
    """The leading components of the vector of each telling word, normalized to unit length."""


class WordVectorCache:
    """Caches the vectors of words, since queries share most of their words. Safe to use from several threads."""

    def __init__(self, table: WordPieceTable, weights: Callable[[Sequence[str]], Floats]) -> None:
        """`weights` gives the weights of words."""
        self._table = table
        self._weights = weights
        self._kept = _WordVectorStore(table.dim)

    def get(self, words: Sequence[str], telling: Sequence[int]) -> WordVectors:
        """Return the vectors of distinct words; `telling` has the places of those that tell what is wanted."""
        store = self._kept
        try:
            places = [store.places[word] for word in words]
        except KeyError:
            return self._added(words, telling)
        return store.take(places, telling)

    def _added(self, words: Sequence[str], telling: Sequence[int]) -> WordVectors:
        store = self._kept
        missing = [word for word in words if word not in store.places]
        if store.add(missing, *self._worked_out(missing)):
            return store.take([store.places[word] for word in words], telling)
        self._kept = _WordVectorStore(self._table.dim)
        vectors, weights, coarse = self._worked_out(words)
        rows = np.array(telling, dtype=np.intp)
        return WordVectors(vectors, [weights[place] for place in telling], coarse.take(rows))

    def _worked_out(self, words: Sequence[str]) -> tuple[Floats, list[float], QueryVectors]:
        vectors = self._table.word_vectors(words)
        return vectors, self._weights(words).tolist(), quantize_unit_vectors(vectors[:, :COARSE_COMPONENTS])


class _WordVectorStore:
    """Append-only rows: a row whose place is published never changes."""

    __slots__ = ("_coarse", "_next", "_vectors", "_weights", "places")

    def __init__(self, dim: int) -> None:
        self.places: dict[str, int] = {}
        self._next = count()
        short = min(dim, COARSE_COMPONENTS)
        self._vectors = np.zeros((_MAX_CACHED_ROWS, dim), np.float32)
        self._weights = [0.0] * _MAX_CACHED_ROWS
        self._coarse = QueryVectors(np.zeros((_MAX_CACHED_ROWS, short), np.float32), np.zeros(_MAX_CACHED_ROWS))

    def take(self, places: Sequence[int], telling: Sequence[int]) -> WordVectors:
        """Copy some rows; `telling` has the places of the telling words among them."""
        rows = np.array(places, dtype=np.intp)
        chosen = [places[place] for place in telling]
        weights = self._weights
        return WordVectors(
            self._vectors.take(rows, axis=0),
            [weights[place] for place in chosen],
            self._coarse.take(np.array(chosen, dtype=np.intp)),
        )

    def add(self, words: Sequence[str], vectors: Floats, weights: Sequence[float], coarse: QueryVectors) -> bool:
        """Add the rows of more words; False if there was not enough room.

        Each thread takes a row of its own and publishes its place once it is filled, so two threads may add the same
        word.
        """
        for at, word in enumerate(words):
            place = next(self._next)
            if place >= _MAX_CACHED_ROWS:
                return False
            self._vectors[place], self._weights[place] = vectors[at], weights[at]
            self._coarse.values[place], self._coarse.scales[place] = coarse.values[at], coarse.scales[at]
            self.places[word] = place
        return True


COARSE_COMPONENTS = 64
"""Leading components by which single words are compared: they carry most of the vector."""
