"""The WordPiece tokenizer of uncased BERT models, without a library.

It gives the numbers that `tokenizers` gives for the same vocabulary, except that a special token such as "[SEP]" in a
text is read as the characters that it consists of. Source: Devlin et al., NAACL 2019, and the normalizer and
pre-tokenizer for BERT in the `tokenizers` library.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files

VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
"""The hash of the vocabulary's file in the package: that of bert-base-uncased."""
_MAX_WORD = 100
"""A longer word is unknown."""
_MAX_CACHED_WORDS = 16_384
_ASCII_TOKENS = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
"""The words and the punctuation of a lower-case ASCII text."""
_ASCII_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),  # as in the library; the block begins at 2B820
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPieceTokenizer:
    """Turns texts into the numbers of their word pieces. Safe to use from several threads."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        """A piece's number is its place in the vocabulary, which has `[UNK]`, `[CLS]` and `[SEP]`."""
        self._numbers = {piece: number for number, piece in enumerate(vocabulary)}
        self.unknown = self._numbers["[UNK]"]
        self._first, self._last = self._numbers["[CLS]"], self._numbers["[SEP]"]
        self._longest = max(map(len, vocabulary))
        self._cached = lru_cache(maxsize=_MAX_CACHED_WORDS)(self._split_word)

    @classmethod
    def load(cls) -> "WordPieceTokenizer":
        """Read the vocabulary in the package. Raises `ValueError` if its file was changed."""
        data = (files("toolcrib.embedders") / "data" / "bert-uncased.txt").read_bytes()
        if sha256(data).hexdigest() != VOCABULARY_SHA256:
            raise ValueError("the vocabulary bert-uncased.txt was changed")
        return cls(data.decode().split("\n")[:-1])

    def encode(self, text: str, max_tokens: int) -> list[int]:
        """The numbers of the pieces of a text between `[CLS]` and `[SEP]`, at most `max_tokens` in all.

        >>> WordPieceTokenizer.load().encode("Tokenizes words.", 16)
        [101, 19204, 10057, 2616, 1012, 102]
        """
        found: list[int] = []
        for word in split_bert_words(text):
            found += self._cached(word)
            if len(found) >= max_tokens:
                break
        return [self._first, *found[: max(0, max_tokens - 2)], self._last]

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Split a word into the longest piece that begins it, the longest that continues it, and so on."""
        if len(word) > _MAX_WORD:
            return (self.unknown,)
        pieces: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(min(len(word), start + self._longest), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._numbers), 0)
            if not end:
                return (self.unknown,)
            pieces.append(self._numbers[prefix + word[start:end]])
            start = end
        return tuple(pieces)


def split_bert_words(text: str) -> Iterator[str]:
    """Split a text into lower-case words without accents; punctuation marks and ideographs are words of their own.

    >>> [*split_bert_words("Ça va, 東京?")]
    ['ca', 'va', ',', '東', '京', '?']
    """
    if text.isascii():
        yield from _ASCII_TOKENS.findall(_ASCII_CONTROLS.sub("", text).lower())
        return
    cleaned = "".join(map(_clean_character, text))
    plain = "".join([char for char in unicodedata.normalize("NFD", cleaned) if unicodedata.category(char) != "Mn"])
    for word in "".join([char.lower() for char in plain]).split():
        yield from _split_punctuation(word)


@lru_cache(maxsize=4096)
def _clean_character(char: str) -> str:
    """A space for any white space, nothing for control characters, and spaces around an ideograph."""
    if char.isspace() and unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cc"):
        return " " if char in "\t\n\r" or unicodedata.category(char) != "Cc" else ""
    if char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs"):
        return ""
    return f" {char} " if any(first <= ord(char) <= last for first, last in _IDEOGRAPHS) else char


def _split_punctuation(word: str) -> Iterator[str]:
    begun = 0
    for place, char in enumerate(word):
        if _is_punctuation(char):
            if begun < place:
                yield word[begun:place]
            yield char
            begun = place + 1
    if begun < len(word):
        yield word[begun:]


@lru_cache(maxsize=4096)
def _is_punctuation(char: str) -> bool:
    """Whether it is a punctuation mark, or an ASCII symbol such as `$`, which counts as one."""
    return (char.isascii() and not char.isalnum()) or unicodedata.category(char).startswith("P")
