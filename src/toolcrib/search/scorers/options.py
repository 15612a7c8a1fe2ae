"""Every number of the three rankings, each with one home, a name and a source."""

from dataclasses import dataclass, field

from toolcrib.search.lexicon import Lexicon


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


DEFAULTS = ScorerOptions()
