"""Tool search for agent loops: any tools in, ranked results with reasons out, and a memory of the session's use.

The scorers `tiers` and `bm25` look words up as they are. A query word that matches nothing is replaced for them by a
synonym or the correct spelling that does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final, Generic, get_args

import numpy as np
from typing_extensions import TypeVar

from toolcrib.checks import checked
from toolcrib.discovery.results import LazySearchResult, SearchResult, describe_match
from toolcrib.discovery.session import Session, SessionStats
from toolcrib.discovery.tool_reader import ParsedTool, ToolReader, ToolSet, default_name, default_namespace
from toolcrib.errors import InvalidRequest, ToolNotFound
from toolcrib.names import nearest
from toolcrib.sanitize import echo
from toolcrib.search.engine import search
from toolcrib.search.index import IndexView
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.search.past import PastRequests as PastRequests  # noqa: PLC0414 - for users of this package
from toolcrib.search.scorers.points import keywords, popular_tools
from toolcrib.search.text import TOKEN, parse_query, split_identifier, split_words
from toolcrib.types import Hit, Rejected, SearchRequest, Tool

T = TypeVar("T", default=Any)


_MAX_LIMIT: Final = 10_000
"""The most results of one search."""


_MAX_CACHED: Final = 4
"""How many lists given to `search(tools=...)` keep their index."""


_PLAIN_TYPES: Final = frozenset({dict, Tool})
"""Types of tools that hold only values."""


DEFAULTS: Final = SearchOptions(max_limit=_MAX_LIMIT, synonym_weight=1.0)
"""As everywhere in toolcrib, except that a synonym counts as much as the word itself: the documentation that this
engine follows says so, and its lists of tools are short.
"""


_MIN_SIMILARITY: Final = 80.0
"""How similar a misspelling must be, 0 to 100."""


_MIN_LETTERS: Final = 4
"""The shortest word that may be a misspelling of another."""


_MAX_WORDS: Final = 32
"""The most words of a query that are looked up this way."""


@checked(
    methods=(
        "set_tools",
        "read",
        "is_plain",
        "use",
        "search",
        "search_in",
        "find_exact",
        "record_tool_use",
        "record_request",
        "get_session_boost",
        "get_session_stats",
    )
)
class ToolSearchEngine(Generic[T]):
    """Finds tools by what they do, and remembers what a session used.

    Safe to use from several threads and tasks; each engine has its own session. It differs from the reference system
    where that does less than it documents: synonyms work in both directions; identifiers are split before they are
    lower-cased; a misspelt word is found beside correct ones; a failed call never raises a tool's rank; a spelling
    never leaves the namespace it names; ties are broken by id.
    """

    def __init__(
        self,
        scorer: Scorer = "hybrid",
        *,
        options: SearchOptions | None = None,
        lexicon: Lexicon | None = None,
        session: Session | None = None,
        past: PastRequests | None = None,
        name_of: Callable[[T], str] = default_name,
        namespace_of: Callable[[T], str] = default_namespace,
    ) -> None:
        """Create an engine without tools.

        Scorers: `hybrid`, ours, with scores from 0 to 1, and no results if nothing matches; `points`, with the figures
        of the reference document, and popular tools if nothing matches; `tiers` and `bm25`, 0 to 1, for which words
        without a match are replaced by corrections and synonyms. With `past`, which may be empty, `hybrid` also finds
        tools by the requests that `record_request` adds to it; without it, they are not kept. `name_of` and
        `namespace_of` read names from tools whose attributes are called otherwise. Raises
        `InvalidRequest` for an unknown scorer.
        """
        if scorer not in get_args(Scorer):
            raise InvalidRequest(f"Unknown scorer {echo(scorer)}.", hint=f"Use one of: {', '.join(get_args(Scorer))}.")
        self.scorer: Scorer = scorer
        self.session = session or Session()
        self.past = past
        """The requests after which tools were used; None if none are kept. Save it with `to_dict`."""
        self._options = replace(options or DEFAULTS, scorer=scorer)
        self._lexicon = lexicon
        self._reader: ToolReader[T] = ToolReader(name_of=name_of, namespace_of=namespace_of)
        self._current: ToolSet[T] = ToolSet((), self._reader, self._options)
        self._others: tuple[ToolSet[T], ...] = ()
        """Lists given to `search` and `find_exact`, most recently used first."""
        self._lock = Lock()

    @property
    def toolset(self) -> ToolSet[T]:
        """The tools that were set, as they were read."""
        return self._current

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """The tools of `set_tools` that cannot be used, and why."""
        return self._current.rejected

    def set_tools(self, tools: Sequence[T]) -> None:
        """Read these tools and build their index, once; tools that are already known are not analysed again.

        Tools are objects, dataclasses, mappings, MCP tools, OpenAI, Anthropic or Gemini definitions. An invalid one is
        left out and named in `rejected`; of several with the same namespace and name, the first is kept.
        """
        toolset = self.read(tools)
        if len(toolset):
            _ = toolset.index
        self.use(toolset)

    def read(self, tools: Sequence[T]) -> ToolSet[T]:
        """Read tools as `set_tools` does, for later use; their index is built on first use."""
        return ToolSet(tuple(tools), self._reader, self._options, self._current)

    def is_plain(self, tools: Sequence[T]) -> bool:
        """Whether reading these tools runs none of the caller's code, so that any thread may do it."""
        hooks = self._reader.name_of is not default_name or self._reader.namespace_of is not default_namespace
        return not hooks and all(type(tool) in _PLAIN_TYPES for tool in tools)

    def use(self, toolset: ToolSet[T]) -> None:
        """Search these tools from now on."""
        self._current = toolset

    def search(
        self,
        query: str | Sequence[str],
        tools: Sequence[T] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
        use_session_boost: bool = True,  # noqa: FBT001, FBT002 - the documented form
    ) -> list[SearchResult[T]]:
        """Return the tools that match, best first: at most `limit`, with scores above `min_score`.

        Several queries are one need in other words: each tool gets the best of its scores.
        `tools` are searched instead of those that were set; their index is kept for the next search of the same
        objects. A query without words lists all tools with score 0, or popular ones under `points`. At most 8,000
        characters and 256 distinct words of a query are read. Raises `InvalidRequest` for a query that is not a string
        and a limit that is not a whole number.
        """
        toolset = self._current if tools is None else self._read_other(tools)
        return self.search_in(toolset, query, limit, min_score, boosted=use_session_boost)

    def search_in(
        self,
        toolset: ToolSet[T],
        query: str | Sequence[str],
        limit: int = 10,
        min_score: float = 0.0,
        *,
        boosted: bool = True,
    ) -> list[SearchResult[T]]:
        """Like `search`, over tools that were read before."""
        phrasings = query if isinstance(query, (list, tuple)) else (query,)
        _check_search(phrasings, limit, min_score)
        if min_score > 1 and self.scorer != "points":
            raise InvalidRequest(
                f"min_score is {min_score:g}, but the scores of {self.scorer!r} are at most 1.",
                hint='Give a number from 0 to 1, or use ToolSearchEngine("points"), whose scores have no upper bound.',
            )
        if limit < 1 or not len(toolset):
            return []
        boosts = self._boosts(toolset) if boosted else {}
        options = self._search_options(limit, min_score)
        hits: Sequence[Hit]
        other: dict[str, str] = {}
        if self.scorer == "points" and not any(parse_query(text).words for text in phrasings):
            hits = _popular(toolset, limit, options, boosts)
        else:
            hits, other = self._hits(phrasings, toolset, limit, options, boosts)
        if hits and hits[0].fallback:
            hits = sorted(hits, key=lambda hit: (-hit.raw, len(hit.tool.name), hit.tool.id))
        results = [self._result(toolset.by_id[hit.tool.id], hit, boosts, other) for hit in hits]
        return results if self.scorer == "points" or min_score <= 0 else [r for r in results if r.score > min_score]

    def find_exact(self, name: str, tools: Sequence[T] | None = None) -> T | None:
        """Return the tool of that name in any spelling (`normal_cdf`, `stats.normal_cdf`, `normalCdf`), or None.

        Raises `AmbiguousName`, with the candidates, if several tools match: the wrong one may do harm. A namespace in
        the name is binding: `wrong.add` is not `math.add`.
        """
        try:
            return (self._current if tools is None else self._read_other(tools)).find(name).original
        except ToolNotFound:
            return None

    def record_tool_use(self, tool_name: str, success: bool = True) -> None:  # noqa: FBT001, FBT002 - the documented form
        """Record the use of a tool, by its name in any spelling. Failures lower what successes have earned."""
        self.session.record(self._current.id_of(tool_name), success)

    def record_request(self, query: str, tool_name: str) -> None:
        """Record a request after which a tool was used with success, if the engine has a `past`.

        The tool is named in any spelling. Only words of the request are kept, without names, quotations and numbers.
        """
        if self.past is not None:
            with self._lock:
                self.past = self.past.with_request(query, self._current.id_of(tool_name))

    def advance_turn(self) -> None:
        """Begin the user's next request."""
        self.session.advance_turn()

    def reset_session(self) -> None:
        """Forget what was used: a new conversation begins."""
        self.session.reset()

    def get_session_boost(self, tool_name: str) -> float:
        """Return the factor, 1.0 or more, by which the session raises the tool.

        A success in the last turn gives 4.4466, one seven turns ago 2.8466; failures alone give 1.0.
        """
        return max(self.session.boost(self._current.id_of(tool_name)), self.session.boost(tool_name))

    def get_session_stats(self, tool_name: str) -> SessionStats | None:
        """Return how a tool was used, or None if it was not."""
        return self.session.stats(self._current.id_of(tool_name)) or self.session.stats(tool_name)

    def _read_other(self, tools: Sequence[T]) -> ToolSet[T]:
        """Return a list that was not set on this engine, read once."""
        given = tuple(tools)
        if self._current.has_same_tools(given):
            return self._current
        known = next((one for one in self._others if one.has_same_tools(given)), None)
        toolset = known or ToolSet(given, self._reader, self._options)
        with self._lock:
            self._others = (toolset, *(one for one in self._others if one is not toolset))[:_MAX_CACHED]
        return toolset

    def _boosts(self, toolset: ToolSet[T]) -> Mapping[str, float]:
        """Return the session's boosts by id, including those recorded by name before the tools were known."""
        boosts = self.session.boosts()
        strange = [name for name in boosts if name not in toolset.by_id]
        if not strange:
            return boosts
        known = {id_: boost for id_, boost in boosts.items() if id_ in toolset.by_id}
        for name in strange:
            id_ = toolset.id_of(name)
            if id_ in toolset.by_id:
                known[id_] = max(boosts[name], known.get(id_, 1.0))
        return known

    def _search_options(self, limit: int, min_score: float) -> SearchOptions:
        """Return the options of one search; points below the minimum are dropped before the stages are compared."""
        if self.scorer != "points" and not self._options.fallback:
            return self._options
        scorers = self._options.scorers
        least = max(min_score, scorers.points.min_score)
        points = replace(scorers.points, min_score=least, fallback_count=limit)
        return replace(self._options, scorers=replace(scorers, points=points))

    def _hits(
        self,
        phrasings: Sequence[str],
        toolset: ToolSet[T],
        limit: int,
        options: SearchOptions,
        boosts: Mapping[str, float],
    ) -> tuple[Sequence[Hit], dict[str, str]]:
        request = SearchRequest.of(phrasings, limit=limit, detail="summary")
        reply = search(toolset.index, request, options=options, lexicon=self._lexicon, boosts=boosts, past=self.past)
        if self.scorer not in {"tiers", "bm25"} or not reply.unmatched:
            return reply.hits, {}
        lexicon = self._lexicon or Lexicon.points()
        other = find_substitutes(reply.unmatched, *toolset.vocabulary, lexicon)
        if not other:
            return reply.hits, {}
        again = replace(request, queries=tuple(substitute_words(query, other) for query in phrasings))
        return search(toolset.index, again, options=options, lexicon=self._lexicon, boosts=boosts).hits, other

    def _result(
        self, known: ParsedTool[T], hit: Hit, boosts: Mapping[str, float], other: Mapping[str, str]
    ) -> SearchResult[T]:
        points = self._options.scorers.points
        score = hit.raw if self.scorer == "points" else hit.score
        found = LazySearchResult(known.original, score, [], hit.raw, hit.fallback, known)
        found.match_reasons = partial(describe_match, hit, self.scorer, boosts.get(known.id, 1.0), other, points)
        return found


def _popular(toolset: ToolSet[T], limit: int, options: SearchOptions, boosts: Mapping[str, float]) -> list[Hit]:
    """Return the most used tools and those with the shortest names: what `points` shows for a query without words."""
    points = options.scorers.points
    if not points.fallback or points.fallback_points <= points.min_score:
        return []
    view = IndexView.of(*toolset.index.parts(None))
    allowed = [np.array(part.visible) for part in view.parts]
    shown = popular_tools(view, limit, allowed, points, boosts, ())
    return [
        Hit(
            tool=view.parts[one.part].segment.tools[one.position],
            score=0.0,
            raw=one.raw,
            reasons=one.reasons,
            fallback=True,
        )
        for one in shown.hits
    ]


def _check_search(phrasings: Sequence[Any], limit: int, min_score: float) -> None:
    wrong = [one for one in phrasings if not isinstance(one, str)]
    if wrong or not phrasings:
        given = f"not {type(wrong[0]).__name__}" if wrong else "at least one"
        raise InvalidRequest(f"query must be a string or some strings, {given}.")
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidRequest(f"limit must be a whole number, not {echo(limit)}.")
    if isinstance(min_score, bool) or not isinstance(min_score, (int, float)):
        raise InvalidRequest(f"min_score must be a number, not {echo(min_score)}.")


def find_substitutes(
    unmatched: Iterable[str], names: frozenset[str], texts: frozenset[str], lexicon: Lexicon
) -> dict[str, str]:
    """Return, for the words without a match, words of tools to search instead. Words of names come first.

    >>> find_substitutes(["gaussian", "multipley"], frozenset({"normal", "multiply"}), frozenset(), Lexicon.points())
    {'gaussian': 'normal', 'multipley': 'multiply'}
    """
    found: dict[str, str] = {}
    for chunk in list(unmatched)[:_MAX_WORDS]:
        for word in split_identifier(chunk):
            other = _substitute(word, names, texts, lexicon)
            if other:
                found[word] = other
    return found


def substitute_words(query: str, other: Mapping[str, str]) -> str:
    """Return the query with substituted words.

    >>> substitute_words("noraml_cdf of x", {"noraml": "normal"})
    'normal cdf of x'
    """
    found = {word: other.get(word, word) for word in split_words(query)}
    return TOKEN.sub(lambda match: " ".join(found.get(word, word) for word in split_identifier(match[0])), query)


def _substitute(word: str, names: frozenset[str], texts: frozenset[str], lexicon: Lexicon) -> str:
    related = lexicon.related(word)
    for known in (names, texts):
        same = [one for one in related if one in known]
        if same:
            return same[0]
    if len(word) < _MIN_LETTERS or word in names or word in texts:
        return ""
    slips = nearest(word, names, limit=1, cutoff=_MIN_SIMILARITY)
    return slips[0] if slips else ""


_ENGINE: Final[ToolSearchEngine[Any]] = ToolSearchEngine()
"""Caches the last few lists; nothing is ever recorded in it."""


_MAX_KEYWORDS: Final = 256


_MAX_TEXT: Final = 100_000
"""Characters that are read."""


@checked
def search_tools(query: str, tools: Sequence[Any], limit: int = 10) -> list[dict[str, Any]]:
    """Return the tools that match a query, best first: name, namespace, description, score and match_reasons of each.

    >>> tools = [{"name": "math.add", "description": "Add numbers."}, {"name": "mail.send"}]
    >>> [found["name"] for found in search_tools("sum of two numbers", tools)]
    ['math.add']
    """
    return [
        {
            "name": found.name,
            "description": found.description or "",
            "namespace": found.namespace,
            "score": found.score,
            "match_reasons": found.match_reasons,
        }
        for found in _ENGINE.search(query, tools, limit, use_session_boost=False)
    ]


@checked
def find_tool_exact(name: str, tools: Sequence[T]) -> T | None:
    """Return the tool of that name in any spelling, or None. Raises `AmbiguousName` if several match.

    >>> find_tool_exact("math.add", [{"name": "add", "namespace": "math"}])
    {'name': 'add', 'namespace': 'math'}
    """
    found: T | None = _ENGINE.find_exact(name, tools)
    return found


@checked
def find_tool_by_alias(query_name: str, tools: Sequence[T]) -> T | None:
    """Like `find_tool_exact`, which accepts every spelling already.

    >>> find_tool_by_alias("normalCdf", [{"name": "normal_cdf", "namespace": "stats"}])["name"]
    'normal_cdf'
    """
    return find_tool_exact(query_name, tools)


@checked
def tokenize(text: str) -> list[str]:
    """Return the words of a name or a text, lower case, in order, with repetitions.

    Identifiers are split at separators, capitals and digits.

    >>> tokenize("normalCdf"), tokenize("sin2"), tokenize("stats.get_user-name")
    (['normal', 'cdf'], ['sin', '2'], ['stats', 'get', 'user', 'name'])
    """
    return split_words(text[:_MAX_TEXT])


@checked
def extract_keywords(query: str) -> list[str]:
    """Return the significant words of a query, each once; all of its words if none is significant.

    >>> extract_keywords("find the average of numbers"), extract_keywords("calculate")
    (['find', 'average', 'numbers'], ['calculate'])
    """
    return [word.text for word in keywords(query, _MAX_KEYWORDS)]


@checked
def expand_with_synonyms(tokens: Iterable[str], lexicon: Lexicon | None = None) -> set[str]:
    """Return the words with their synonyms; one step only, in both directions.

    >>> sorted(expand_with_synonyms(["cdf"], Lexicon.points()))
    ['cdf', 'cumulative', 'distribution']
    >>> "write" in expand_with_synonyms(["save"])
    True
    """
    known = lexicon or Lexicon.default()
    own = {token.lower() for token in tokens}
    return own.union(*(known.related(token) for token in own))


@checked
def normalize_tool_name(name: str) -> set[str]:
    """Return the spellings of a name that a model may use, with and without its namespace.

    >>> sorted(normalize_tool_name("stats.normal_cdf"))
    ['normal-cdf', 'normalCdf', 'normal_cdf', 'normalcdf', 'stats.normal_cdf']
    """
    base = name.rpartition(".")[2]
    parts = split_words(base)
    camel = "".join([*parts[:1], *(part.capitalize() for part in parts[1:])])
    found = {name.lower(), base.lower(), "".join(parts), "_".join(parts), "-".join(parts), camel}
    return found - {""}
