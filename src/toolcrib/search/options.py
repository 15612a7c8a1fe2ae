"""Every number of the search, each with one home, a name and a source."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from toolcrib.search.scorers.options import DEFAULTS, ScorerOptions

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
class Weights:
    """What each signal of the second stage adds to a tool's `raw`; the signals are described in `signals`.

    Source: a listwise softmax over ten labelled sets, no weight below 0, leaving one set out at a time; rounded, and
    for sentence and phrase nearer to what the six public ones alone give, since in two of the others no description
    has the sentence it was asked by.
    """

    coverage: float = 6.7
    topic: float = 5.2
    meaning: float = 4.5
    sentence: float = 2.8
    name: float = 1.3
    phrase: float = 1.8
    literal: float = 0.6
    verb: float = 0.5
    called: float = 0.6
    """For a name whose words stand in the query in a row."""
    named: float = 6.0
    """For a name that is spelt out as one word, `createIssue`: who writes so, means that tool. Set by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The parameters of two logistic functions: one makes a probability of the best hit's `raw`, one of each hit's.

    Source: fitted on queries of eight labelled sets, two of which share few words with their tools, and as many queries
    asked of a catalog that cannot answer them. With more signals it did no better on a set that had been left out.
    """

    raw: float = 0.82
    """Of the raw of the best hit."""
    size: float = -0.41
    """Of the natural logarithm of the number of visible tools: in a large catalog something looks right by chance.
    Half of `raw`, by hand: a fit to few catalogs learns their sizes by heart."""
    clauses: float = -0.39
    """Of the parts of the query, at most 4: of several needs the best hit answers one, and more easily."""
    offset: float = -3.45
    hit: float = 0.58
    """Of the logit of the best hit's probability, in the score of each hit."""
    distance: float = -0.88
    """Of how far a hit stands below the best one."""
    hit_offset: float = -1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The settings of a search.

    Source of field weights, b and k1: tuned on six public retrieval sets, leaving one out at a time. Reference
    lengths are what is usual there. Results are flat around them: halving or doubling one moves nDCG@10 by 0.5 of 100.
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
    semantic_share: float = 1.3
    """What a likeness of 1 counts beside the strongest lexical score. Between 0.7 and 1.7 results are flat."""
    preselected: int = 128
    """Tools that are compared in meaning exactly; the others only by their sketch."""
    candidates: int = 32
    """Tools that reach the second stage; with 100 results are the same. Never fewer than the limit."""
    spelling_weights: tuple[float, float] = (0.8, 0.5)
    """What a word counts that was met by one slip of the pen, or by two."""
    synonym_weight: float = 0.6
    """What a word counts that was met by a synonym."""
    scorers: ScorerOptions = DEFAULTS
    """The settings of the rankings that other systems are known for."""
    weights: Weights = Weights()
    calibration: Calibration = Calibration()
    same_need: float = 1.0
    """What a tool loses for each better one that answers the same part of a request with several; four count."""
    nothing_below: float = 0.1
    """Below this probability of the best hit nothing is shown. A tool that is withheld cannot be used, a weak one is
    easily passed over: so the mark is low, and loses one right answer in a hundred."""
    weak_below: float = 0.5
    """Below this probability of the best hit the hits are marked as weak."""
