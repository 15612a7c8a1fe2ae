"""What a text costs a model, estimated."""

from math import ceil
from typing import Final

_ASCII_PER_TOKEN: Final = 3.5
"""Characters a token in English and JSON; the o200k vocabulary reaches about 4, so this errs on the safe side."""


def estimate_tokens(text: str) -> int:
    """An upper estimate of the tokens in a text, 0 or more; other scripts count one a character.

    >>> estimate_tokens(""), estimate_tokens("seven characters"), estimate_tokens("日本")
    (0, 5, 2)
    """
    plain = sum(character.isascii() for character in text) if not text.isascii() else len(text)
    return ceil(plain / _ASCII_PER_TOKEN) + len(text) - plain
