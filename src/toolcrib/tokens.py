"""Token counts of texts: estimated, or counted with the vocabulary of a model."""

from math import ceil
from string import ascii_lowercase
from typing import Final, Protocol

from toolcrib.errors import SettingsError, missing_extra
from toolcrib.names import nearest

ESTIMATE: Final = "estimate"
ENCODINGS: Final = ("cl100k_base", "o200k_base", "o200k_harmony")
"""The supported vocabularies, by their official names."""

_PLAIN: Final = f"{ascii_lowercase} ".encode()
_PLAIN_PER_TOKEN: Final = 4.0
"""Lower-case letters and spaces per token in English; slightly low for the o200k vocabulary."""
_DENSE_PER_TOKEN: Final = 1.5
"""Capitals, digits and punctuation per token: names, numbers and JSON."""
_ALIKE: Final = 60.0
"""Minimum similarity of a suggestion, 0 to 100: these names are long, and often abbreviated."""
_BEYOND_ASCII: Final = bytes(range(0x80, 0x100))


class LabelledCounter(Protocol):
    """A `TokenCounter` with a label."""

    @property
    def label(self) -> str:
        """`estimate`, or the name of the vocabulary."""

    def count(self, text: str) -> int:
        """Tokens, 0 or more."""


def estimate_tokens(text: str) -> int:
    """Estimate the tokens in a text, rather too many than too few; other scripts count one per character.

    >>> estimate_tokens(""), estimate_tokens("seven characters"), estimate_tokens("日本"), estimate_tokens("{};!")
    (0, 4, 2, 3)
    """
    raw = text.encode(errors="surrogatepass")
    ascii_only = raw if text.isascii() else raw.translate(None, _BEYOND_ASCII)
    dense = len(ascii_only.translate(None, _PLAIN))
    plain = len(ascii_only) - dense
    return ceil(plain / _PLAIN_PER_TOKEN + dense / _DENSE_PER_TOKEN) + len(text) - len(ascii_only)


class EstimatedTokens:
    """Estimates tokens from the kinds of characters, for any model; usually a third too many."""

    label = ESTIMATE

    def count(self, text: str) -> int:
        """Tokens, 0 or more, estimated."""
        return estimate_tokens(text)


class ExactTokens:
    """Counts with one of the `ENCODINGS`, in microseconds and offline."""

    def __init__(self, encoding: str = "o200k_base") -> None:
        """Raises `MissingExtra` without the library, `SettingsError` for an encoding that is not one of `ENCODINGS`."""
        if encoding not in ENCODINGS:
            raise _unknown(encoding)
        try:
            import toktok
        except ModuleNotFoundError as error:
            raise missing_extra("toktok-rs", "toolcrib[tokens]") from error
        self._library = toktok
        self.label = encoding
        self.count("")  # load the vocabulary now, not in the first request

    def count(self, text: str) -> int:
        """Tokens, 0 or more. Text that looks like a control token counts as text; a lone surrogate counts as "?"."""
        sound = text if text.isascii() else text.encode(errors="replace").decode()
        [tokens] = self._library.batch_count([sound], self.label, threads=1)
        return int(tokens)


def counter(spec: str) -> LabelledCounter:
    """The counter of a setting: `estimate`, or one of `ENCODINGS`. Raises like `ExactTokens`.

    >>> counter("estimate").label
    'estimate'
    >>> counter("o200k-base")
    Traceback (most recent call last):
    toolcrib.errors.SettingsError: There is no token counter 'o200k-base'. Did you mean 'o200k_base'?
    """
    return EstimatedTokens() if spec == ESTIMATE else ExactTokens(spec)


def _unknown(spec: str) -> SettingsError:
    known = (ESTIMATE, *ENCODINGS)
    near = nearest(spec, known, limit=1, cutoff=_ALIKE)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
    return SettingsError(f"There is no token counter {spec!r}.", hint=hint, suggestions=near)
