"""Every number of the search, each with one home, a name and a source."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

Scorer = Literal["hybrid", "tiers", "bm25", "points"]
"""The rankings that can be chosen: ours, and three that other systems are known for."""


class Field(IntEnum):
    """The parts of a tool that are searched, in the order in which reasons name them."""

    NAME = 0
    NAMESPACE = 1
    TITLE = 2
    DESCRIPTION = 3
    KEYWORDS = 4
    TAGS = 5
    PARAMETERS = 6
    PARAMETER_TEXTS = 7
    WHOLE_NAME = 8
    """The name as one word, where it has several: what makes an exact name win."""


FIELD_NAMES = ("name", "namespace", "title", "description", "keywords", "tags", "parameters", "parameters", "name")
"""What `Reason.field` calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOptions:
    """How much a field counts.

    A word that stands `tf` times in a field of `length` words adds
    `weight * tf / (1 - b + b * length / reference)` to what BM25F saturates.
    """

    weight: float
    b: float
    """How much a long field is held against its words, 0 to 1."""
    reference: float
    """The length, in words, that is neither long nor short. Fixed, so that no tool's score depends on others."""


_FIELDS = (
    FieldOptions(weight=3.0, b=0.3, reference=3.0),
    FieldOptions(weight=1.0, b=0.3, reference=2.0),
    FieldOptions(weight=1.0, b=0.3, reference=3.0),
    FieldOptions(weight=1.0, b=0.75, reference=12.0),
    FieldOptions(weight=1.0, b=0.3, reference=4.0),
    FieldOptions(weight=1.0, b=0.3, reference=2.0),
    FieldOptions(weight=0.5, b=0.75, reference=6.0),
    FieldOptions(weight=0.25, b=0.75, reference=25.0),
    FieldOptions(weight=3.0, b=0.0, reference=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The settings of a search.

    Source of weights, b and k1: tuned on six public retrieval sets, leaving one out at a time. Reference lengths are
    what is usual there. Around all of them results are flat: halving or doubling one moves nDCG@10 by 0.5 of 100.
    """

    scorer: Scorer = "hybrid"
    fallback: Literal["", "popular"] = ""
    """What is shown where nothing fits: nothing, or the tools used most and those with the shortest names, labelled."""
    default_limit: int = 10
    """Hits a query when the request says nothing."""
    max_limit: int = 100
    """The most hits a query; larger limits are lowered to it."""
    max_queries: int = 16
    """Queries of one request that are answered; the rest are named in the note."""
    k1: float = 1.2
    """How soon more of the same word stops counting. Source: Robertson and Zaragoza, 2009."""
    fields: tuple[FieldOptions, ...] = field(default=_FIELDS)
    """One for each `Field`, in its order."""
