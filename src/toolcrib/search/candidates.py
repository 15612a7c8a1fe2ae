"""Search catalogs too large to keep in memory: an engine finds candidates, and the default ranking orders them.

An engine knows the words of all tools, and finds those that may fit an analysed query. The second stage is the one of
`toolcrib.search.ranking`, over the candidates alone, with the statistics of the whole catalog. Those are the same for
every caller: an engine is for catalogs that all callers see in full.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from toolcrib.checks import checked
from toolcrib.schema import signature
from toolcrib.search.engine import QueryAnswer, SearchTask, answer_query, hit_limit, join_answers
from toolcrib.search.features import SemanticModel
from toolcrib.search.grouping import group_same_tools
from toolcrib.search.index import IndexView, SegmentView
from toolcrib.search.lexical import LexicalMatch, locate_match, match_terms
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.named import without_select
from toolcrib.search.options import SearchOptions
from toolcrib.search.ranking import ReadQuery
from toolcrib.search.segment import Segment
from toolcrib.search.signals import read_meaning
from toolcrib.search.telling import telling_part
from toolcrib.search.text import ParsedQuery, parse_query, read_queries
from toolcrib.search.vectors import QueryVectors
from toolcrib.types import Filters, Hit, SearchReply, SearchRequest, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateQuery:
    """An analysed query: what a tool should have to be a candidate."""

    words: Mapping[str, float]
    """The stems to look for, with spelling corrected and synonyms included, and the weight of each: its rarity times
    its relation to the word that was asked for."""
    names: Mapping[str, float]
    """Whole names of tools in the query, after `WHOLE_NAME`, with their weights."""
    stems: frozenset[str]
    """All stems and whole names that the ranking looks for in a tool. It reads other words in names and first sentences
    alone, so an engine may leave them out."""
    vectors: QueryVectors
    """The meaning of each clause."""
    filters: Filters
    compared: int
    """How many tools an engine compares in words and meaning."""
    wanted: int
    """How many of them, the best ones, are candidates."""


class CandidateEngine(Protocol):
    """Finds tools that may fit a query."""

    @property
    def options(self) -> SearchOptions:
        """The options that its tools were analysed with."""

    @property
    def model(self) -> SemanticModel:
        """The source of its vectors."""

    def dictionary(self, queries: Sequence[ParsedQuery], lexicon: Lexicon) -> IndexView:
        """A view with the words that these queries may match and their statistics, and without tools.

        `count` is the number of all tools.
        """

    def find(self, queries: Sequence[CandidateQuery]) -> Segment:
        """Find tools that may fit one of the queries, in any order, each once: for each query as many as it wants,
        if there are as many.

        Only names and namespaces of the tools in the segment are used.
        """

    def first_by_id(self, filters: Filters, limit: int) -> tuple[int, Sequence[Tool]]:
        """Count the tools that pass the filters, and list the first ones by id."""

    def definitions(self, ids: Iterable[str]) -> Mapping[str, Tool]:
        """The tools with these ids, by id; without those that are gone."""


@checked(shallow=True)
def search_candidates(
    engine: CandidateEngine,
    request: SearchRequest,
    *,
    options: SearchOptions | None = None,
    lexicon: Lexicon | None = None,
    boosts: Mapping[str, float] | None = None,
) -> SearchReply:
    """Search for the tools that fit each query, best first, as `toolcrib.search.engine.search` does.

    `total` counts the candidates that match, not all tools. The nearest names, if nothing fits, are those of
    candidates. Raises `ValueError` for options with another scorer than `hybrid`.
    """
    options = options or engine.options
    if options.scorer != "hybrid":
        raise ValueError(f"an engine for candidates has the ranking hybrid, not {options.scorer}")
    lexicon = lexicon or Lexicon.default()
    search = _RequestSearch(engine, request, options, lexicon, boosts or {})
    queries, is_cut = read_queries(request.queries[: options.max_queries])
    answers = [search.answer(text, place) for place, text in enumerate(queries)]
    return join_answers(answers, request, hit_limit(request, options), is_cut=is_cut)


@dataclass(frozen=True, slots=True)
class _RequestSearch:
    """What the queries of one request share."""

    engine: CandidateEngine
    request: SearchRequest
    options: SearchOptions
    lexicon: Lexicon
    boosts: Mapping[str, float]
    defined: dict[str, Tool] = field(default_factory=dict)
    """The tools of hits by id, so that each is one object however many queries find it."""

    def answer(self, text: str, place: int) -> QueryAnswer:
        """Answer one query."""
        query = parse_query(without_select(text))
        limit = hit_limit(self.request, self.options)
        if not query.words:
            total, listed = self.engine.first_by_id(self.request.filters, limit)
            tools = [self.defined.setdefault(tool.id, tool) for tool in listed]
            return QueryAnswer(
                [self._shown(Hit(tool=tool, score=0.0, raw=0.0, query=place), tool) for tool in tools], total
            )
        part = parse_query(telling_part(query.text, self.engine.model.table))
        readings = [query, part] if part.words else [query]
        whole = self.engine.dictionary(readings, self.lexicon)
        read = {one.text: self._read(whole, one) for one in readings}
        segment = self.engine.find([self._candidate_query(one) for one in read.values()])
        seen = SegmentView(segment, segment.findable)
        view = replace(whole, parts=(seen,), memo={})
        located = {text: one._replace(match=locate_match(one.match, view)) for text, one in read.items()}
        # The engine has applied the filters, and `_with_definitions` adds the signatures.
        request = replace(self.request, filters=Filters(), detail="summary", group_same=False)
        task = SearchTask(
            view, [seen.visible], limit, request, self.options, self.lexicon, self.boosts, {}, read=located
        )
        return self._with_definitions(answer_query(task, text, query, place))

    def _read(self, whole: IndexView, query: ParsedQuery) -> ReadQuery:
        match = match_terms(whole, query, self.engine.model.table, self.lexicon, self.options)
        return ReadQuery(match, read_meaning(query, match, self.engine.model, self.lexicon, self.options, {}))

    def _candidate_query(self, read: ReadQuery) -> CandidateQuery:
        match, meaning = read
        words = _weights(match)
        names = {item.expansions[0].stem: item.expansions[0].idf for item in match.names}
        ranked = max(self.options.candidates, hit_limit(self.request, self.options))
        wanted = 2 * ranked if self.request.group else ranked + ranked // 2
        return CandidateQuery(
            words=words,
            names=names,
            stems=frozenset((*words, *names, *meaning.stems)),
            vectors=meaning.vectors,
            filters=self.request.filters,
            compared=max(self.options.preselected, 2 * wanted),
            wanted=wanted,
        )

    def _with_definitions(self, answer: QueryAnswer) -> QueryAnswer:
        """Replace the names of tools by their definitions; a tool that was removed meanwhile is left out."""
        self.defined.update(
            self.engine.definitions([hit.tool.id for hit in answer.hits if hit.tool.id not in self.defined])
        )
        hits = [self._shown(hit, self.defined[hit.tool.id]) for hit in answer.hits if hit.tool.id in self.defined]
        return answer._replace(hits=group_same_tools(hits) if self.request.group_same else hits)

    def _shown(self, hit: Hit, tool: Tool) -> Hit:
        detail = self.request.detail
        return replace(hit, tool=tool, signature="" if detail == "summary" else signature(tool), detail=detail)


def _weights(match: LexicalMatch) -> dict[str, float]:
    """The stems that the terms of a query expand to, each with the highest of its weights."""
    found: dict[str, float] = {}
    for item in match.terms:
        for expansion in item.expansions:
            found[expansion.stem] = max(found.get(expansion.stem, 0.0), expansion.weight * expansion.idf)
    return found
