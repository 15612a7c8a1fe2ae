"""Every number of the search in one place, each with a name and its source.

Frozen values without heavy imports.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from toolcrib.search.lexicon import Lexicon

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


_DEFAULT_FIELDS = (
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
class SignalWeights:
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
class TiersOptions:
    """What each way to meet a word is worth, 0 to 1.

    Source, where nothing else is said: the list of tiers in the documentation of paularlott/mcp's `discovery` package,
    and the first version of its code for what the list leaves open.
    """

    exact: float = 1.0
    """The whole query is the name."""
    prefix: float = 0.9
    """The name begins with the word."""
    keyword: float = 0.85
    """A keyword is the word."""
    contains: float = 0.8
    """The name holds the word."""
    keyword_contains: float = 0.7
    description_word: float = 0.6
    description_contains: float = 0.5
    fuzzy_name: float = 0.7
    """The factor of the likeness of the whole name."""
    fuzzy_keyword: float = 0.6
    """The factor of the likeness of a keyword."""
    fuzzy_word: float = 0.5
    """The factor of the likeness of one word of the name. Ours: the largest round one with which a name of one word
    keeps its figure of the list (`0.7 (1 - x) >= f (1 - x / 2)` for all x below 0.4 needs f <= 0.525)."""
    likeness: float = 0.6
    """Only more than this is like."""
    fuzzy_chars: int = 4
    """Letters that a word must have to be held against one word of a name. Ours: three differ too easily."""
    every_word: float = 0.9
    """The factor of the mean where each of several words is met."""
    max_words: int = 32
    """Words of a query that count. Ours: a bound on the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bm25Options:
    """BM25F. A weight of 0 leaves a field out."""

    name: float = 3.0
    """Source: `BM25Config.NameBoost` of jonwraymond/tooldiscovery."""
    namespace: float = 2.0
    """Source: its `NamespaceBoost`."""
    tags: float = 2.0
    """Tags and keywords. Source: its `TagsBoost`."""
    text: float = 1.0
    """Title, description, names and descriptions of parameters. Source: its text, which stands in the document once."""
    k1: float = 1.2
    """How soon more of the same word stops counting. Source: Robertson and Zaragoza, 2009."""
    b: float = 0.75
    """How much a long field is held against its words, 0 to 1. Source: the same."""
    max_docs: int = 0
    """The first tools by id that are searched; 0 searches all. Source: its `MaxDocs`."""
    max_text: int = 0
    """Characters of a description that are read; 0 reads all. Source: its `MaxDocTextLen`."""
    half: float = 5.0
    """The raw score whose public score is 0.5. Ours: what one rare word in a name comes to."""
    max_words: int = 256
    """Words of a query that count, as in the other rankings of toolcrib."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointsOptions:
    """Points for each word, the same in every stage.

    Source, where nothing else is said: the documentation of chuk-tool-processor's dynamic tool discovery, and its code
    for what that leaves open.
    """

    token: float = 10.0
    """A word of the name."""
    prefix: float = 5.0
    """The beginning of a word of the name, or the other way round."""
    description: float = 3.0
    """A word of the description; also of title, keywords or tags. It counts once."""
    namespace: float = 2.0
    parameter: float = 1.0
    """A word of a parameter's name."""
    whole_name: float = 10.0
    """The whole query is a spelling of the name, which then counts as one more word. Ours: what is called by its name
    comes before what shares words with it."""
    prefix_chars: int = 3
    """Letters that the shorter of two words needs to be a prefix. Ours: shorter ones begin too many words."""
    mismatch: float = 0.5
    """The factor for a tool of a wholly different domain."""
    fuzzy_name: float = 10.0
    """The factor of the likeness of query and name."""
    fuzzy_name_least: float = 0.5
    fuzzy_description: float = 3.0
    """The factor of the likeness of the query and a word of the description."""
    fuzzy_description_least: float = 0.6
    slip_above: float = 0.74
    """How like a word of a name an unknown word must be to be its misspelling. Ours: one slip in four letters."""
    slip_chars: int = 4
    """Letters that such a word has at least. Ours."""
    fallback: bool = True
    """Whether something is shown where nothing fits."""
    fallback_points: float = 0.1
    fallback_count: int = 10
    """How many tools are shown then: those used most, then those with the shortest names. Source: its default limit."""
    min_score: float = 0.0
    """Only tools with more points are found."""
    half: float = 10.0
    """The raw score whose public score is 0.5: one word of the name. Ours."""
    lexicon: Lexicon = field(default_factory=Lexicon.points)
    """Which words mean the same, and of which domain a word is."""
    max_words: int = 64
    """Words of a query that count. Ours: a bound on the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerOptions:
    """The settings of the three rankings."""

    tiers: TiersOptions = field(default_factory=TiersOptions)
    bm25: Bm25Options = field(default_factory=Bm25Options)
    points: PointsOptions = field(default_factory=PointsOptions)


DEFAULT_SCORERS = ScorerOptions()


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
    fields: tuple[FieldOptions, ...] = field(default=_DEFAULT_FIELDS)
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
    scorers: ScorerOptions = DEFAULT_SCORERS
    """The settings of the rankings that other systems are known for."""
    weights: SignalWeights = SignalWeights()
    calibration: Calibration = Calibration()
    same_need: float = 1.0
    """What a tool loses for each better one that answers the same part of a request with several; four count."""
    nothing_below: float = 0.1
    """Below this probability of the best hit nothing is shown. A tool that is withheld cannot be used, a weak one is
    easily passed over: so the mark is low, and loses one right answer in a hundred."""
    weak_below: float = 0.5
    """Below this probability of the best hit the hits are marked as weak."""
