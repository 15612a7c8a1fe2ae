"""The numbers of the search that can be set, each with a name and its source.

Frozen values without heavy imports.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

from toolcrib.checks import Count, Natural, Share, checked
from toolcrib.search.lexicon import Lexicon

Scorer = Literal["hybrid", "tiers", "bm25", "points"]
"""The available rankings: the default, `hybrid`, and three that are known from other systems."""
BUILT_IN_EMBEDDER: Final = "static"
"""The name of no embedder: meanings are compared by the built-in table of words alone."""


class Field(IntEnum):
    """The searched parts of a tool, in the order in which reasons name them."""

    NAME = 0
    NAMESPACE = 1
    TITLE = 2
    DESCRIPTION = 3
    KEYWORDS = 4
    TAGS = 5
    PARAMETERS = 6
    PARAMETER_TEXTS = 7
    WHOLE_NAME = 8
    """A name of several words as one word, so that an exact name wins."""


FIELD_NAMES = ("name", "namespace", "title", "description", "keywords", "tags", "parameters", "parameters", "name")
"""The names of the fields in `Reason.field`."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOptions:
    """The weight of a field in BM25F.

    A word that occurs `tf` times in a field of `length` words adds
    `weight * tf / (1 - b + b * length / reference)` to its frequency, before saturation.
    """

    weight: float
    b: float
    """How strongly the length of the field is normalized, 0 to 1."""
    reference: float
    """The usual length, in words. Fixed, so that the score of a tool does not depend on other tools."""


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


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SignalWeights:
    """The weight of each signal in a tool's `raw` score; see `toolcrib.search.signals`.

    Source: a listwise softmax over ten labelled sets, no weight below 0, leaving one set out at a time. Rounded.
    `verb` and `object` were added later, with everyday requests as one more set, and the others kept.
    `sentence` and `phrase` are closer to what the six public sets alone give, because in two of the others no query
    repeats the description of its tool. `python -m training.fit` repeats such a fit.
    """

    coverage: float = 6.7
    topic: float = 5.2
    meaning: float = 4.5
    sentence: float = 2.8
    name: float = 1.3
    phrase: float = 1.8
    literal: float = 0.6
    verb: float = 0.8
    object: float = 0.7
    """For a tool that is about the thing that the request is about."""
    called: float = 0.6
    """For a name whose words appear consecutively in the query."""
    named: float = 6.0
    """For a name written as one token, `createIssue`: it can only be a name. Set by hand."""
    embedding: float = 0.0
    """For the cosine of an embedder."""
    past: float = 20.0
    """For past requests. Source: `bench/retrieval`, with half the requests of each development set as the past."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The parameters of the logistic function that turns `raw` into a score, the probability that a hit is right.

    Source: fitted on the best hits of seven labelled sets, and on those of as many queries put to a catalog that cannot
    answer them. The number of clauses, the verb, the object and the lead of the best hit did not improve it.
    `python -m training.fit` repeats such a fit.
    """

    raw: float = 0.5
    """Coefficient of the best hit's `raw`."""
    size: float = -0.25
    """Coefficient of the natural logarithm of the number of visible tools: in a large catalog something fits by chance.
    Set by hand to half of `raw`: a fit to a few catalogs memorizes their sizes."""
    least_count: int = 30
    """A smaller catalog counts as one of so many tools: the only tool of a catalog is no likelier to be right."""
    offset: float = -4.5
    distance: float = -1.0
    """Coefficient of how far the `raw` of a hit is below the best one."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class TiersOptions:
    """The value of each kind of match in the `tiers` ranking, 0 to 1.

    Source, unless stated otherwise: the list of tiers in the documentation of paularlott/mcp's `discovery` package,
    and the first version of its code for what the list leaves open.
    """

    exact: float = 1.0
    """The whole query is the name."""
    prefix: float = 0.9
    """The name begins with the word."""
    keyword: float = 0.85
    """A keyword is the word."""
    contains: float = 0.8
    """The name contains the word."""
    keyword_contains: float = 0.7
    description_word: float = 0.6
    description_contains: float = 0.5
    fuzzy_name: float = 0.7
    """Factor of the similarity to the whole name."""
    fuzzy_keyword: float = 0.6
    """Factor of the similarity to a keyword."""
    fuzzy_word: float = 0.5
    """Factor of the similarity to one word of the name. Our choice: the largest round factor that leaves the listed
    value of a one-word name as it is (`0.7 (1 - x) >= f (1 - x / 2)` for all x below 0.4 needs f <= 0.525)."""
    likeness: float = 0.6
    """Only a similarity above this counts."""
    fuzzy_chars: Natural = 4
    """Letters a word needs to be compared with single words of a name. Our choice: shorter ones are often similar."""
    every_word: float = 0.9
    """Factor of the mean if each of several words matches."""
    max_words: Count = 32
    """Words of a query that are used. Our choice, to bound the work."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Bm25Options:
    """The weights and constants of the `bm25` ranking. A weight of 0 leaves a field out."""

    name: float = 3.0
    """Source: `BM25Config.NameBoost` of jonwraymond/tooldiscovery."""
    namespace: float = 2.0
    """Source: its `NamespaceBoost`."""
    tags: float = 2.0
    """Tags and keywords. Source: its `TagsBoost`."""
    text: float = 1.0
    """Title, description, names and descriptions of parameters. Source: there the text is in the document once."""
    k1: float = 1.2
    """How quickly repetitions of a word stop adding. Source: Robertson and Zaragoza, 2009."""
    b: float = 0.75
    """How strongly the length of a field is normalized, 0 to 1. Source: the same."""
    max_docs: Natural = 0
    """Search only so many tools, in the order of ids; 0 searches all. Source: its `MaxDocs`."""
    max_text: Natural = 0
    """Read only so many characters of a description; 0 reads all. Source: its `MaxDocTextLen`."""
    half: float = 5.0
    """The raw score whose public score is 0.5. Our choice: about that of one rare word in a name."""
    max_words: Count = 256
    """Words of a query that are used, as in the default ranking."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class PointsOptions:
    """The points of the `points` ranking, the same in every stage.

    Source, unless stated otherwise: the documentation of chuk-tool-processor's dynamic tool discovery, and its code
    for what that leaves open.
    """

    token: float = 10.0
    """For a word of the name."""
    prefix: float = 5.0
    """For a prefix of a word of the name, or a word of the name that is a prefix."""
    description: float = 3.0
    """For a word of the description, title, keywords or tags; it counts once."""
    namespace: float = 2.0
    parameter: float = 1.0
    """For a word in the name of a parameter."""
    whole_name: float = 10.0
    """For a query that is a spelling of the whole name. Our choice, so that a tool called by its name comes before
    tools that share words with it."""
    prefix_chars: Natural = 3
    """Letters a prefix needs. Our choice: shorter ones begin too many words."""
    mismatch: float = 0.5
    """Factor for a tool of an entirely different domain."""
    fuzzy_name: float = 10.0
    """Factor of the similarity of query and name."""
    fuzzy_name_least: float = 0.5
    fuzzy_description: float = 3.0
    """Factor of the similarity of the query and a word of the description."""
    fuzzy_description_least: float = 0.6
    slip_above: float = 0.74
    """Above this similarity an unknown word is a misspelt word of a name. Our choice: one edit in four letters."""
    slip_chars: Natural = 4
    """Letters such a word needs. Our choice."""
    fallback: bool = True
    """Whether to show popular tools when nothing matches."""
    fallback_points: float = 0.1
    fallback_count: Natural = 10
    """How many popular tools: the most used, then those with the shortest names. Source: its default limit."""
    min_score: float = 0.0
    """A tool needs more points than this."""
    half: float = 10.0
    """The raw score whose public score is 0.5: one word of the name. Our choice."""
    lexicon: Lexicon = field(default_factory=Lexicon.points)
    """The synonyms and domains to use."""
    max_words: Count = 64
    """Words of a query that are used. Our choice, to bound the work."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerOptions:
    """The options of the three rankings known from other systems."""

    tiers: TiersOptions = field(default_factory=TiersOptions)
    bm25: Bm25Options = field(default_factory=Bm25Options)
    points: PointsOptions = field(default_factory=PointsOptions)


DEFAULT_SCORERS = ScorerOptions()


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class PastOptions:
    """How much of past requests is remembered."""

    tools: Count = 500
    """Tools of each tenant that have a past; the one called least recently is forgotten first."""
    words: Count = 48
    """Words of each tool; the rarest are forgotten first."""
    tenants: Count = 1_000
    """Tenants; the one that searched least recently is forgotten first."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The options of a search.

    Source of field weights, b and k1: tuned on six public retrieval sets, leaving one out at a time. The reference
    lengths are typical of these. The values are not critical: halving or doubling one moves nDCG@10 by 0.5 of 100.
    """

    scorer: Scorer = "hybrid"
    fallback: Literal["", "popular"] = ""
    """What to show when nothing fits: nothing, or popular tools (most used, shortest names), labelled as such."""
    default_limit: Count = 10
    """Hits per query if the request sets no limit."""
    short_limit: Count = 5
    """The same if the best hit has a score below `short_below`."""
    max_limit: Count = 100
    """The most hits per query; larger limits are lowered to it."""
    max_queries: Count = 16
    """Queries of one request that are answered; the note mentions the rest."""
    k1: float = 1.2
    """How quickly repetitions of a word stop adding. Source: Robertson and Zaragoza, 2009."""
    fields: tuple[FieldOptions, ...] = field(default=_DEFAULT_FIELDS)
    """One per `Field`, in its order."""
    semantic_share: float = 1.3
    """The weight of a cosine of 1 relative to the best lexical score. Results hardly change between 0.7 and 1.7."""
    preselected: Count = 128
    """Tools whose cosine is computed exactly; of the others it is estimated from their sketch."""
    candidates: Count = 32
    """Tools that reach the second stage, at least as many as the limit. With 100 the results are the same."""
    spelling_weights: tuple[float, float] = (0.8, 0.5)
    """The weight of a corrected word with one edit, and with two."""
    synonym_weight: float = 0.6
    """The weight of a synonym."""
    scorers: ScorerOptions = DEFAULT_SCORERS
    """The options of the other rankings."""
    weights: SignalWeights = SignalWeights()
    calibration: Calibration = Calibration()
    embedding_weights: SignalWeights = SignalWeights(coverage=5.5, topic=2.6, meaning=2.0, embedding=10.0)
    """The weights for a request that an embedder has a vector for: its cosine replaces a part of the static table's.

    Source: a search for the highest mean nDCG@10 with all-MiniLM-L6-v2 over eight development sets, in which no set
    may lose more than 0.3 of 100. Rounded."""
    uncovered_embedding: float = 3.0
    """What is added to the weight of `embedding` if no tool has a word of the request. It falls to 0 where a tool has
    half of them. Source: as for `embedding_weights`, with the large catalog too, in steps of 1."""
    embedding_calibration: Calibration = Calibration(raw=0.38, size=-0.19, offset=-3.9, distance=-0.9)
    """The calibration of such a request. Source: as `calibration`, with the same sets; then shifted, so that as few
    requests that no tool fits get an answer without a mark as without an embedder."""
    same_need: float = 1.0
    """What a tool loses for each better one for the same clause, if a query has several; at most four count."""
    nothing_below: Share = 0.02
    """Below this score of the best hit nothing is shown. The threshold is low and loses less than one right answer in
    a hundred, of indirect requests too: a hit marked as weak is easily ignored, but a withheld tool cannot be used."""
    short_below: Share = 0.07
    """Below this score of the best hit the list is short."""
    weak_below: Share = 0.45
    """A hit with a score below this is marked as weak. Of everyday requests that no tool fits, 15 % get a hit without
    the mark; a lower threshold would mark fewer right hits. A marked hit is shown all the same."""

    def __post_init__(self) -> None:
        """Refuse what the chosen ranking would ignore."""
        if self.scorer != "hybrid" and self.k1 != type(self).__dataclass_fields__["k1"].default:
            raise ValueError(f"k1 is a constant of the scorer hybrid, not of {self.scorer}; see scorers")
        if len(self.fields) != len(Field):
            raise ValueError(f"fields must be {len(Field)} FieldOptions, one for each Field, not {len(self.fields)}")
