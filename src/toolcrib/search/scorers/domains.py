"""What queries and tools are about, and how far they are apart."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import Field
from toolcrib.search.scorers.base import Floats, Segment, kept
from toolcrib.search.scorers.rows import rows

Bits = npt.NDArray[np.int64]
"""For each tool its domains, one bit each."""

_TELLING = (
    (Field.NAME,),
    (Field.NAMESPACE,),
    (Field.DESCRIPTION, Field.TITLE, Field.KEYWORDS, Field.TAGS),
)
"""What tells the domain of a tool: its name; where that says nothing, its namespace; then its texts."""


def of_tools(index: Segment, lexicon: Lexicon) -> Bits:
    """The domains of each tool: those that most words of the first telling field belong to; 0 where no word does."""
    return kept(index, ("domains", tuple(lexicon.domains.items())), lambda index: _of_tools(index, lexicon))


def _of_tools(index: Segment, lexicon: Lexicon) -> Bits:
    table = rows(index)
    by_word = np.array([_bits(word, lexicon) for word in table.vocabulary], dtype=np.int64)
    told = np.flatnonzero(by_word[table.words]) if len(by_word) else np.array([], dtype=np.intp)
    bits, positions, fields = by_word[table.words[told]], table.positions[told], table.fields[told]
    found: Bits = np.zeros(len(index), dtype=np.int64)
    for telling in _TELLING:
        chosen = np.isin(fields, telling)
        counts = np.array(
            [
                np.bincount(positions[chosen & (bits >> place & 1 > 0)], minlength=len(index))
                for place in range(len(lexicon.domains))
            ]
        )
        most = counts.max(axis=0, initial=0)
        values = ((counts == most) * (1 << np.arange(len(counts)))[:, None]).sum(axis=0)
        found = np.where((found == 0) & (most > 0), values, found)
    return found


def of_words(words: Iterable[str], lexicon: Lexicon) -> list[int]:
    """The domains of each word that has any, one bit each."""
    return [bits for bits in (_bits(word, lexicon) for word in words) if bits]


def names(bits: int, lexicon: Lexicon) -> list[str]:
    """The names of some domains."""
    return [name for place, name in enumerate(lexicon.domains) if bits >> place & 1]


def factors(tools: Bits, asked: Sequence[int], least: float) -> Floats:
    """What the scores of tools are multiplied by: `least` to 1, by the share of the words whose domain is theirs.

    1 where a tool or the query has no domain.
    """
    if not asked:
        return np.ones(len(tools))
    shared = np.mean([(tools & bits) != 0 for bits in asked], axis=0)
    factor: Floats = np.where(tools == 0, 1.0, least + (1 - least) * shared)
    return factor


def _bits(word: str, lexicon: Lexicon) -> int:
    found = lexicon.domains_of([word])
    return sum(1 << place for place, name in enumerate(lexicon.domains) if name in found) if found else 0
