"""The static table: a vector for every word piece, so that words which share no letter can be near in meaning.

It knows words and texts, and nothing of tools, queries or scores. A table has one row for each word piece; a word is
the sum of the rows of its pieces, a text the sum over its words.
"""

import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from io import BytesIO
from itertools import chain
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

SHA256 = "311a54437eb1cdcd7940959033a0ce7636eae50a146868553af734d2f1ebbe97"
"""Of the file in the package."""

_WORD = re.compile("[a-z0-9\u00df-\u00f6\u00f8-\u0587]+")
"""What a text is cut into: letters and digits. Those of Europe's other alphabets hold a word together, so that it is
unknown as a whole; every other character separates words."""

_ACCENTS = re.compile("[\u0300-\u036f]+")

_INSIDE = "##"
"""Begins a piece that may only continue a word, as in the vocabulary of BERT."""

_MAX_WORD = 64
"""Characters of a word that is looked up: a longer one is data."""

_MEMO = 65_536
"""Words whose pieces are remembered."""

_BYTE = 8
_HALF = 4
"""Bits of a component."""

_FLAT = 2
"""Axes of the rows."""


class Table:
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
        if rows.ndim != _FLAT or factors.shape != (len(vocabulary),) or len(rows) != len(vocabulary):
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
        inside = [piece.startswith(_INSIDE) for piece in vocabulary]
        self._outer = {piece: row for row, piece in enumerate(vocabulary) if not inside[row]}
        self._inner = {piece[len(_INSIDE) :]: row for row, piece in enumerate(vocabulary) if inside[row]}
        self._begins = frozenset(piece[0] for piece in self._outer if piece)
        self._longest = max(map(len, chain(self._outer, self._inner)), default=0)
        self._memo: Callable[[str], tuple[int, ...]] = lru_cache(maxsize=_MEMO)(self._find)

    @classmethod
    def load(cls, data: bytes | None = None) -> "Table":
        """A table from the bytes of its file; without any, the one in the package, which is read once.

        The file is a numpy archive: `meta` = [components, bits of one], `vocab` = the pieces as UTF-8, one a line,
        `q` = the rows, `s` = their scales, `idf` (may be missing) = how rare each is.
        With 8 bits `q` is signed; with 4 a byte holds two components, the lower
        half first, each 8 too large. Raises ValueError for anything else.
        """
        return default_table() if data is None else _read(data)

    def pieces(self, word: str) -> tuple[int, ...]:
        """The rows of a word: the longest piece it begins with, then the longest that continues it, and so on.

        Empty where some part of it has no piece, as for words of other scripts. Capitals and accents do not matter.
        """
        return self._memo(word)

    def knows(self, word: str) -> bool:
        """Whether the word is one piece.

        >>> table = Table.load()
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

        >>> get, refund = Table.load().weights(["get", "refund"])
        >>> bool(get < refund)
        True
        """
        idf = self._idf
        rarest = [max([idf[piece] for piece in self._memo(word)], default=idf[-1]) for word in words]
        return np.array(rarest, dtype=np.float32)

    def embed(self, texts: Sequence[str]) -> Floats:
        """A vector for each text: float32[n, dim] of unit length, zero where none of its words is known.

        The product of two is their likeness, -1 to 1.

        >>> mail, message, apple = Table.load().embed(["send an email", "deliver a mail message", "red apple"])
        >>> bool(mail @ message > 0.5 > mail @ apple)
        True
        """
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for place, text in enumerate(texts):
            pieces = tuple(chain.from_iterable(map(self._memo, _WORD.findall(_folded(text)))))
            if pieces:
                vectors[place] = self._sum(pieces)
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        vectors /= np.where(lengths > 0, lengths, 1)[:, None]
        return vectors

    def _find(self, word: str) -> tuple[int, ...]:
        word = _folded(word)
        if not 0 < len(word) <= _MAX_WORD or word[0] not in self._begins:
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
def default_table() -> Table:
    """The table in the package, read when it is first asked for, and shared by all."""
    return _read((files("toolcrib.search") / "data" / "toolvec.npz").read_bytes())


def _read(data: bytes) -> Table:
    try:
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            dim, bits = arrays["meta"].tolist()
            vocabulary = arrays["vocab"].tobytes().decode().split("\n")
            rows, scales = arrays["q"], arrays["s"]
            idf = arrays.get("idf")
    except (BadZipFile, EOFError, KeyError, OSError, TypeError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"not the file of a table: {error}") from error
    table = Table(vocabulary, _signed(rows, bits), scales, idf)
    if table.dim != dim:
        raise ValueError(f"rows of {table.dim} components in a table of {dim}")
    return table


def _signed(rows: npt.NDArray[Any], bits: int) -> npt.NDArray[np.int8]:
    if bits == _BYTE and rows.dtype == np.int8:
        return rows
    if bits == _HALF and rows.dtype == np.uint8:
        return np.stack((rows & 15, rows >> 4), axis=-1).reshape(len(rows), -1).astype(np.int8) - np.int8(8)
    raise ValueError(f"rows of {rows.dtype} with {bits} bits a component: 8 bits of int8 or 4 of uint8 were expected")


def _folded(text: str) -> str:
    """Lower case without accents."""
    if text.isascii():
        return text.lower()
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold())
