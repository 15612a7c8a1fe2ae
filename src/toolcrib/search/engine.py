"""The search engine: a request in, hits with their reasons out.

Answers each query with the configured ranking and, if nothing fits, names the tools with the most similar names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, groupby, islice
from operator import attrgetter
from string import ascii_lowercase, digits
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.checks import checked, unchecked
from toolcrib.names import fold, similarities
from toolcrib.search.explain import LazyReasons, ReasonSource, explain_hits, matched_words, score_parts
from toolcrib.search.grouping import group_same_tools, is_same_tool, near_duplicates, same_tools
from toolcrib.search.index import Index, IndexView, SegmentView
from toolcrib.search.lexical import match_terms, prepare_segment
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.named import MAX_NAMESAKES, NamedTool, find_named, is_selected, prepare_names, without_select
from toolcrib.search.options import Field, Scorer, SearchOptions
from toolcrib.search.past import PastRequests
from toolcrib.search.ranking import NAMED_PROBABILITY, RankedTool, Ranking, ReadQuery, rank, rescore
from toolcrib.search.scorers import bm25, points, tiers
from toolcrib.search.scorers.base import ExplainedTool, ScorerFunction, ScorerResult
from toolcrib.search.scorers.points import popular_tools
from toolcrib.search.segment import Bools, Segment
from toolcrib.search.signals import read_meaning, request_text
from toolcrib.search.telling import telling_part
from toolcrib.search.text import CUT_NOTE, ParsedQuery, parse_query, read_queries
from toolcrib.types import Detail, Filters, Hit, Key, Reason, ScorePart, SearchReply, SearchRequest, Tool

Floats = npt.NDArray[np.float32]
Marks = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]


@checked(shallow=True)
def search(
    index: Index,
    request: SearchRequest,
    *,
    mask: bytes | None = None,
    overlay: Index | None = None,
    options: SearchOptions | None = None,
    lexicon: Lexicon | None = None,
    boosts: Mapping[str, float] | None = None,
    embedded: Mapping[str, Floats] | None = None,
    past: PastRequests | None = None,
    complete: bool = True,
) -> SearchReply:
    """Search for the tools that fit each query, best first. A query without words lists all tools by id, with score 0.

    Only the tools that the mask shows and those of the overlay exist for the search, in its results and in the
    statistics of words. Filters narrow the results, not the statistics. `boosts` maps ids of tools to multipliers of
    their odds, 1 or more. `embedded` has the vectors of `request_texts`; a query without one is compared without the
    embedder, and None computes them here. `past` has the requests after which tools were used; only the default
    ranking reads it. Where the index is not `complete`, the note does not say that nothing fits.
    `total` is the sum over the queries. Limits out of range are clamped.
    Raises `ValueError` for a mask of the wrong length, and for an overlay built with another embedder.
    """
    options = options or index.options
    view = index.view(mask, overlay)
    limit = hit_limit(request, options)
    allowed = _allowed_tools(view, request.filters)
    lexicon = lexicon or Lexicon.default()
    task = SearchTask(view, allowed, limit, request, options, lexicon, boosts or {}, embedded, past)
    queries, is_cut = read_queries(request.queries[: options.max_queries])
    answers = [_answer(task, text, place) for place, text in enumerate(queries)]
    return join_answers(answers, request, limit, is_cut=is_cut, complete=complete)


def join_answers(
    answers: Sequence["QueryAnswer"], request: SearchRequest, limit: int, *, is_cut: bool = False, complete: bool = True
) -> SearchReply:
    """Join the answers to the first queries of a request; the note mentions the others.

    Those to several phrasings of one need are merged, up to the limit; a tool is the same object in all of them. The
    note also says so if the last query was not read to its end (`is_cut`).
    """
    queries, skipped = request.queries[: len(answers)], len(request.queries) - len(answers)
    if request.phrasings and len(answers) > 1:
        queries, answers = queries[:1], [_merge_phrasings(answers, request, limit)]
    return _new_reply(
        hits=tuple(chain.from_iterable([answer.hits for answer in answers])),
        total=sum([answer.total for answer in answers]),
        unmatched=tuple(dict.fromkeys(chain.from_iterable([answer.unmatched for answer in answers]))),
        nearest=tuple(dict.fromkeys(chain.from_iterable([answer.nearest for answer in answers]))),
        note=_search_note(answers if complete else (), queries, skipped, is_cut=is_cut),
    )


def _merge_phrasings(answers: Sequence["QueryAnswer"], request: SearchRequest, limit: int) -> "QueryAnswer":
    """The answer to one need, given those to its phrasings: each tool as the phrasing finds it that fits it best."""
    best: dict[int, Hit] = {}  # by object: a file may have several tools of one name
    for hit in chain.from_iterable([answer.hits for answer in answers]):
        known = best.get(id(hit.tool))
        if known is None or _merge_order(hit) < _merge_order(known):
            best[id(hit.tool)] = hit if not hit.query else replace(hit, query=0)
    ordered = sorted(best.values(), key=_merge_order)
    matching = [hit for hit in ordered if not hit.fallback] or ordered
    if request.group_same:
        matching = group_same_tools(matching)
    named = sum(hit.named for hit in matching)
    first = min(answers, key=lambda answer: _merge_order(answer.hits[0]) if answer.hits else _LAST)
    nearest = () if ordered else tuple(dict.fromkeys(chain.from_iterable([answer.nearest for answer in answers])))
    total = max([len(matching), *[answer.total for answer in answers]])
    return QueryAnswer(matching[: max(limit, named)], total, first.unmatched, nearest)


def _merge_order(hit: Hit) -> tuple[bool, bool, float, float, str]:
    return hit.fallback, not hit.named, -hit.score, -hit.raw, hit.tool.id


_LAST = (True, True, 1.0, 1.0, "")
_new_reply = unchecked(SearchReply)


def hit_limit(request: SearchRequest, options: SearchOptions) -> int:
    """How many hits each query of a request may have."""
    return max(1, min(options.default_limit if request.limit is None else request.limit, options.max_limit))


def prepare(index: Index) -> None:
    """Compute what the first searches would otherwise compute and cache, some milliseconds for a thousand tools.

    A gateway calls it in the thread that built the index, so that no search keeps the event loop waiting.
    """
    for part in index.view().parts:
        segment = part.segment
        segment.first_words  # noqa: B018 - cached on first use
        segment.facets  # noqa: B018 - likewise
        prepare_segment(segment, index.model.table)
        _folded_names(part, part.visible)
        _name_words(part, part.visible)
        prepare_names(segment)
    search(index, SearchRequest(queries=("prepare",)), embedded={})  # loads what the first search would


def request_texts(
    index: Index,
    request: SearchRequest,
    *,
    mask: bytes | None = None,
    overlay: Index | None = None,
    options: SearchOptions | None = None,
    lexicon: Lexicon | None = None,
) -> tuple[str, ...]:
    """The texts whose vectors `search` takes as `embedded`; none if the index has no embedder or ranks without it.

    They let a caller embed them first, with a deadline.
    """
    options, lexicon = options or index.options, lexicon or Lexicon.default()
    if index.model.embedder is None or options.scorer != "hybrid":
        return ()
    view, table = index.view(mask, overlay), index.model.table
    read, _ = read_queries(request.queries[: options.max_queries])
    asked = map(without_select, read)
    texts = [part for text in asked for part in (text, telling_part(text, table))]
    queries = [query for text in texts if (query := parse_query(text)).words]
    return tuple(
        dict.fromkeys([request_text(query, match_terms(view, query, table, lexicon, options)) for query in queries])
    )


def listing(
    index: Index, filters: Filters | None = None, *, mask: bytes | None = None, overlay: Index | None = None
) -> tuple[Tool, ...]:
    """List all tools that a search can find, by id."""
    view = index.view(mask, overlay)
    _, listed = _first_by_id(view, _allowed_tools(view, filters or Filters()), view.count)
    return tuple(view.parts[part].segment.tools[position] for part, position in listed)


def _allowed_tools(view: IndexView, filters: Filters) -> list[Bools]:
    if filters == _NO_FILTERS:
        return [part.visible for part in view.parts]
    return [part.visible & part.segment.facets.matching(filters) for part in view.parts]


class SearchTask(NamedTuple):
    """What the queries of one request share."""

    view: IndexView
    allowed: Sequence[Bools]
    """For each part, the tools that may be found."""
    limit: int
    request: SearchRequest
    options: SearchOptions
    lexicon: Lexicon
    boosts: Mapping[str, float]
    embedded: Mapping[str, Floats] | None
    past: PastRequests | None = None
    read: Mapping[str, ReadQuery] = MappingProxyType({})
    """Queries that were read before, by text."""


class QueryAnswer(NamedTuple):
    """The answer to one query."""

    hits: Sequence[Hit]
    total: int
    unmatched: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()


def _answer(task: SearchTask, text: str, place: int) -> QueryAnswer:
    query = parse_query(without_select(text))
    if query.words:
        return answer_query(task, text, query, place)
    total, listed = _first_by_id(task.view, task.allowed, task.limit)
    return QueryAnswer([_unscored_hit(task.view, part, at, place, task.request.detail) for part, at in listed], total)


def _unscored_hit(view: IndexView, part: int, position: int, place: int, detail: Detail) -> Hit:
    segment = view.parts[part].segment
    shown = "" if detail == "summary" else segment.signature(position)
    return Hit(tool=segment.tools[position], score=0.0, raw=0.0, signature=shown, query=place, detail=detail)


def _first_by_id(view: IndexView, allowed: Sequence[Bools], limit: int) -> tuple[int, list[tuple[int, int]]]:
    """Count the allowed tools, and list part and position of the first ones by id."""
    total = 0
    listed: list[tuple[str, int, int]] = []
    for number, (part, passes) in enumerate(zip(view.parts, allowed, strict=True)):
        positions = np.flatnonzero(passes)
        total += len(positions)
        first = positions[np.argsort(part.segment.id_ranks[positions])[:limit]]
        listed.extend((part.segment.ids[position], number, position) for position in first.tolist())
    listed.sort()
    return total, [(number, position) for _, number, position in listed[:limit]]


def _search_note(answers: Sequence[QueryAnswer], texts: Sequence[str], skipped: int, *, is_cut: bool) -> str:
    """Say what to try next, and for which of several queries."""
    many = len(answers) > 1
    notes = []
    given = [*map(_advice, answers, texts)]
    for advice in dict.fromkeys(filter(None, given)):
        about = [f'"{text[:_MAX_QUOTED]}"' for text, own in zip(texts, given, strict=True) if own == advice]
        notes.append(f"{', '.join(about)}: {advice[0].lower()}{advice[1:]}" if many else advice)
    if is_cut:
        notes.append(CUT_NOTE)
    if skipped:
        notes.append(f"The last {skipped} queries were left out: ask them separately.")
    return " ".join(notes)


def _advice(answer: QueryAnswer, text: str) -> str:
    """What to say of an answer: that nothing fits, or how to ask better."""
    if not answer.hits:
        if answer.nearest:
            return "Nothing fits; the nearest names are listed."
        return "Nothing fits. Try other words: what the tool does, or what it works on."
    if answer.hits[0].fallback:
        return "Nothing fits; popular tools are shown instead."
    if answer.hits[0].weak:
        return f"Nothing fits well: these are the nearest. {HOW_TO_ASK}"
    return HOW_TO_ASK if len(text.split()) > _MAX_PLAIN_WORDS and not answer.hits[0].named else ""


HOW_TO_ASK = "Ask in 2 to 6 words: verb, object, service."
"""What a reply to a sentence teaches."""
_MAX_PLAIN_WORDS = 15
"""A query with more words is a sentence, which finds its tool less often than a few words do."""
_NO_FILTERS = Filters()
_MAX_QUOTED = 60
"""Characters of a query that a note repeats."""
_GROUP_FACTOR = 8
"""Tools that are ranked for each group that is shown."""
_MAX_GROUPED = 256
"""The most tools that are ranked for groups, since one group may contain them all."""
_RANKERS: Mapping[Scorer, ScorerFunction] = {"tiers": tiers.rank, "bm25": bm25.rank, "points": points.rank}
_SCALES = {"tiers": tiers.score, "bm25": bm25.score, "points": points.score}


def answer_query(task: SearchTask, text: str, query: ParsedQuery, place: int) -> QueryAnswer:
    """Answer a query that has words; `place` is its number in the request. The tools that it names come first."""
    answer = (
        _answer_hybrid(task, query, place) if task.options.scorer == "hybrid" else _answer_scorer(task, query, place)
    )
    named = find_named(task.view, text, task.allowed)
    if not named:
        return answer
    if is_selected(text, named):
        answer = answer._replace(hits=())
    elif len(query.sequence) == 1 and (not answer.hits or _is_named(task, answer.hits[0], named)):
        return answer._replace(hits=[replace(hit, named=not place) for place, hit in enumerate(answer.hits)])
    return _with_named(task, answer, named, _hits_of(task, query, named, place))


def _is_named(task: SearchTask, hit: Hit, named: Sequence[NamedTool]) -> bool:
    return any(task.view.parts[one.part].segment.tools[one.position].key == hit.tool.key for one in named)


def _answer_scorer(task: SearchTask, query: ParsedQuery, place: int) -> QueryAnswer:
    found = _run_scorer(task, query, _wanted_count(task))
    if not found.hits:
        return QueryAnswer((), 0, found.unmatched, nearest_ids(task.view, query, task.allowed))
    groups = _groups(task, [(hit.part, hit.position) for hit in found.hits], task.limit)
    hits = [_scorer_hit(task, found.hits[best], place, similar) for best, similar in groups]
    return QueryAnswer(hits, found.total, found.unmatched)


def _run_scorer(task: SearchTask, query: ParsedQuery, limit: int) -> ScorerResult:
    ranker = _RANKERS[task.options.scorer]
    return ranker(task.view, query.text, limit, task.allowed, task.options.scorers, task.boosts)


def _with_named(
    task: SearchTask, answer: QueryAnswer, named: Sequence[NamedTool], own: Mapping[Key, Hit]
) -> QueryAnswer:
    """The answer with the tools that the query names in full first, in that order, whatever the limit.

    Of those that share a name, the ones that fit the query best come first. `own` has their hits by key.
    """
    own = {**own, **{hit.tool.key: hit for hit in answer.hits}}
    same = task.request.group_same
    grouped = frozenset() if same else frozenset(chain.from_iterable([hit.similar for hit in answer.hits]))
    first: list[Hit] = []
    share = task.limit // len({one.name for one in named})
    most = MAX_NAMESAKES if task.request.limit is None else min(MAX_NAMESAKES, max(1, share))
    for _, group in groupby(named, key=attrgetter("name")):
        keys = [task.view.parts[one.part].segment.tools[one.position].key for one in group]
        namesakes = sorted((own[key] for key in keys if key in own), key=_by_rank)
        if same:
            namesakes = group_same_tools(namesakes)
        first += [hit for hit in namesakes if hit.tool.id not in grouped][:most] or namesakes[:1]
    taken = {hit.tool.key for hit in first}
    rest = [hit for hit in answer.hits if hit.tool.key not in taken]
    best = max((hit.raw for hit in rest), default=0.0), max((hit.score for hit in rest), default=0.0)
    hits = [_named_hit(hit, *best, explain=task.request.explain) for hit in first]
    hits = [*hits, *rest]
    if same:
        hits = group_same_tools(hits)
    hits = hits[: max(len(first), task.limit)]
    return answer._replace(hits=hits, total=max(answer.total, len(hits)), nearest=())


def _hits_of(task: SearchTask, query: ParsedQuery, named: Sequence[NamedTool], place: int) -> Mapping[Key, Hit]:
    """The hits of these tools alone, by key; those whose words a ranking does not read have hits for their name."""
    found = {hit.tool.key: hit for hit in _rank_only(task, query, named, place)}
    for _, group in groupby(named, key=attrgetter("name")):
        unread: dict[str, list[NamedTool]] = {}
        for one in group:
            tool = task.view.parts[one.part].segment.tools[one.position]
            if tool.key not in found:
                unread.setdefault(tool.name, []).append(one)
        for name, namesakes in islice(unread.items(), MAX_NAMESAKES):  # no more of them are shown
            found |= {hit.tool.key: hit for hit in _rank_only(task, parse_query(name), namesakes, place)}
    return found


def _rank_only(task: SearchTask, query: ParsedQuery, named: Sequence[NamedTool], place: int) -> Sequence[Hit]:
    allowed = [np.zeros(len(passes), dtype=np.bool_) for passes in task.allowed]
    for one in named:
        allowed[one.part][one.position] = True
    task = task._replace(allowed=allowed)
    if task.options.scorer != "hybrid":
        return [_scorer_hit(task, hit, place) for hit in _run_scorer(task, query, len(named)).hits]
    return _hybrid_hits(task, _Reading(query, _rank(task, query, limit=len(named))), place)


def _by_rank(hit: Hit) -> tuple[float, str]:
    return -hit.raw, hit.tool.id


def _named_hit(hit: Hit, raw: float, score: float, *, explain: bool) -> Hit:
    """The hit of a tool that the query names: at least as good as the best of the others."""
    gain = max(0.0, raw - hit.raw)
    score = max(NAMED_PROBABILITY, hit.score, score)
    found = replace(hit, score=score, raw=hit.raw + gain, weak=False, fallback=False, named=True)
    if not gain:
        return found
    reason = Reason(word=hit.tool.name, field="name", how="exact", gain=gain)
    parts = (*hit.parts, ScorePart(name="named in full", value=gain, weight=1.0)) if explain else ()
    reasons = tuple(sorted((reason, *hit.reasons), key=attrgetter("gain"), reverse=True))
    return replace(found, reasons=reasons, parts=parts)


class _Reading(NamedTuple):
    """One way to read a query, and the tools that it finds."""

    query: ParsedQuery
    ranking: Ranking


def _answer_hybrid(task: SearchTask, query: ParsedQuery, place: int) -> QueryAnswer:
    options = task.options
    readings = [*_readings(task, query)]
    reading = max(readings, key=lambda reading: reading.ranking.probability)
    best, unmatched = reading.ranking, reading.ranking.unmatched(reading.query)
    if not best.tools or (best.probability < options.nothing_below and not best.meaning.unread):
        return _answer_nothing(task, query, place, unmatched)
    if task.request.group_same:
        readings = [_with_followers(task, reading) for reading in readings]
    is_short = task.request.limit is None and best.probability < options.short_below
    limit = min(task.limit, options.short_limit) if is_short else task.limit
    total = max([reading.ranking.total for reading in readings])
    if len(readings) == 1 and readings[0].ranking is best and not task.request.group:
        shown = best._replace(tools=best.tools[:limit])
        return QueryAnswer(_hybrid_hits(task, _Reading(query, shown), place), total, unmatched)
    return QueryAnswer(_grouped_hits(task, readings, best.tools[0], limit, place), total, unmatched)


def _readings(task: SearchTask, query: ParsedQuery) -> Iterator[_Reading]:
    """Read a query as a whole and, if it is long, only the part of it that asks for something."""
    whole = _Reading(query, _rank(task, query))
    yield whole
    for read in _other_readings(task, query, whole.ranking):
        yield _Reading(query, _rank(task, query, read=read))
    part = parse_query(telling_part(query.text, task.view.parts[0].segment.model.table))
    if part.words:
        other = _Reading(part, _rank(task, part))
        if _is_useful(other.ranking, whole.ranking):
            yield other


def _other_readings(task: SearchTask, query: ParsedQuery, ranking: Ranking) -> Iterator[ReadQuery]:
    """The query with other synonyms in the place of its first word that no tool has, if several are as good."""
    match, model = ranking.match, task.view.parts[0].segment.model
    for word, others in [*match.alternatives.items()][:1]:
        for other in others:
            read = match._replace(replaced={**match.replaced, word: other})
            meaning = read_meaning(query, read, model, task.lexicon, task.options, task.embedded)
            yield ReadQuery(read, meaning)


def _is_useful(part: Ranking, whole: Ranking) -> bool:
    """Whether to read a part of a query besides the whole: with an embedder, only if it fits a tool much better."""
    if whole.meaning.embedded is None or not whole.tools:
        return True
    return part.meaning.embedded is not None and bool(part.tools) and part.tools[0].raw >= whole.tools[0].raw + _SURER


_SURER = 1.5
"""By how much the best `raw` of a part must be higher: an embedder reads some stories better as a whole."""


def _rank(task: SearchTask, query: ParsedQuery, limit: int | None = None, read: ReadQuery | None = None) -> Ranking:
    limit = _wanted_count(task) if limit is None else limit
    more = task.lexicon, task.boosts, task.embedded
    read = read or task.read.get(query.text)
    return rank(task.view, query, limit, task.allowed, task.options, *more, past=task.past, read=read)


class _FoundTool(NamedTuple):
    """A tool that a reading of a query found."""

    reading: int
    where: tuple[int, int]
    """Part and position."""
    ranked: RankedTool


def _grouped_hits(
    task: SearchTask, readings: Sequence[_Reading], best: RankedTool, limit: int, place: int
) -> list[Hit]:
    """The first hits of all readings together, grouped as the request says. What is not shown has no hit."""
    found = [
        _FoundTool(number, where, ranked)
        for number, (_, ranking) in enumerate(readings)
        for where, ranked in zip(ranking.places(), ranking.tools, strict=True)
    ]
    if len(readings) > 1:
        found = _merge_readings(task, found, best)
    groups = _groups(task, [one.where for one in found], limit)
    hits: dict[int, Hit] = {}
    for number, reading in enumerate(readings):
        own = [(at, similar) for at, similar in groups if found[at].reading == number]
        shown = reading.ranking._replace(tools=tuple([found[at].ranked for at, _ in own]))
        made = _hybrid_hits(task, reading._replace(ranking=shown), place, [similar for _, similar in own])
        hits |= zip([at for at, _ in own], made, strict=True)
    return [hits[at] for at, _ in groups]


def _merge_readings(task: SearchTask, found: Sequence[_FoundTool], best: RankedTool) -> list[_FoundTool]:
    """Keep the better of two finds of one tool, and derive all scores from the best of all."""
    kept: dict[tuple[int, int], _FoundTool] = {}
    for one in found:
        if one.where not in kept or one.ranked.raw > kept[one.where].ranked.raw:
            kept[one.where] = one
    order = sorted(kept.values(), key=lambda one: (-one.ranked.raw, _tool_at(task.view, one.where).id))
    order = order if task.request.group_same else order[: _wanted_count(task)]
    by = task.options.calibration
    return [one._replace(ranked=one.ranked._replace(score=rescore(one.ranked.raw, best, by))) for one in order]


def _tool_at(view: IndexView, where: tuple[int, int]) -> Tool:
    part, position = where
    return view.parts[part].segment.tools[position]


def _answer_nothing(task: SearchTask, query: ParsedQuery, place: int, unmatched: tuple[str, ...]) -> QueryAnswer:
    nearest = nearest_ids(task.view, query, task.allowed)
    if task.options.fallback != "popular":
        return QueryAnswer((), 0, unmatched, nearest)
    shown = popular_tools(task.view, task.limit, task.allowed, task.options.scorers.points, task.boosts, unmatched)
    return QueryAnswer([_scorer_hit(task, hit, place) for hit in shown.hits], shown.total, unmatched, nearest)


def _groups(task: SearchTask, places: Sequence[tuple[int, int]], limit: int) -> list[tuple[int, tuple[str, ...]]]:
    """The number of the best tool of each of the first groups, in order, with the ids of the others in it.

    `places` has part and position of each tool.
    """
    tools = [_tool_at(task.view, where) for where in places]
    if task.request.group:
        return [*islice(near_duplicates(task.view, places, tools).items(), limit)]
    if task.request.group_same:
        names = [_all_names(task.view.parts[part].segment).texts[position] for part, position in places]
        return [*same_tools(tools, names, limit).items()]
    return [(number, ()) for number in range(min(len(tools), limit))]


def _wanted_count(task: SearchTask) -> int:
    """How many tools to rank: more than the limit if near-duplicates are grouped."""
    if task.request.group:
        return max(task.options.candidates, min(_MAX_GROUPED, _GROUP_FACTOR * task.limit))
    return task.limit


def _with_followers(task: SearchTask, reading: _Reading) -> _Reading:
    """The reading with the tools that follow, if some of the first are the same tool of several servers."""
    if not _has_same_tools(task.view, reading.ranking):
        return reading
    ranking = reading.ranking._replace(tools=reading.ranking.first(max(task.options.candidates, task.limit)))
    return reading._replace(ranking=ranking)


def _has_same_tools(view: IndexView, ranking: Ranking) -> bool:
    namesakes: dict[str, list[Tool]] = {}
    for part, position in ranking.places():
        segment = view.parts[part].segment
        namesakes.setdefault(_all_names(segment).texts[position], []).append(segment.tools[position])
    if len(namesakes) == len(ranking.tools):
        return False
    return any(is_same_tool(*pair) for tools in namesakes.values() for pair in combinations(tools, 2))


def _hybrid_hits(task: SearchTask, reading: _Reading, place: int, similar: Sequence[tuple[str, ...]] = ()) -> list[Hit]:
    """Make a hit of each tool of a reading; `similar` has what is under each, if they are grouped."""
    view, detail, options = task.view, task.request.detail, task.options
    query, ranking = reading
    places = ranking.places()
    source = ReasonSource(lambda: explain_hits(view, query, ranking, options))
    hits = []
    rows = zip(ranking.tools, places, matched_words(query, ranking, places), strict=True)
    for number, (ranked, (part, position), words) in enumerate(rows):
        segment = view.parts[part].segment
        hits.append(
            Hit(
                tool=segment.tools[position],
                score=ranked.score,
                raw=ranked.raw,
                reasons=LazyReasons(source, number),
                matched=words,
                signature="" if detail == "summary" else segment.signature(position),
                query=place,
                detail=detail,
                weak=ranked.score < options.weak_below,
                similar=similar[number] if similar else (),
                parts=score_parts(ranked, ranking, options) if task.request.explain else (),
            )
        )
    return hits


def _scorer_hit(task: SearchTask, hit: ExplainedTool, place: int, similar: tuple[str, ...] = ()) -> Hit:
    """Make a hit of a tool that another ranking found."""
    segment, detail = task.view.parts[hit.part].segment, task.request.detail
    scale = _SCALES.get(task.options.scorer)  # none of the default ranking, which shows popular tools with score 0
    return Hit(
        tool=segment.tools[hit.position],
        score=scale(hit.raw, task.options.scorers) if scale else 0.0,
        raw=hit.raw,
        reasons=hit.reasons,
        matched=hit.matched,
        signature="" if detail == "summary" else segment.signature(hit.position),
        query=place,
        detail=detail,
        fallback=hit.fallback,
        similar=similar,
        parts=hit.parts if task.request.explain else (),
    )


_MAX_NEAREST = 3
"""Ids that are suggested."""
_MAX_NEAREST_WORDS = 8
"""Words of the query that are compared with the words of names."""
_MAX_COMPARED = 256
"""Texts that are compared in full: those with the most similar sets of letters."""


@dataclass(frozen=True, slots=True)
class _ComparedTexts:
    """Texts to compare, with marks that quickly rule most of them out."""

    texts: Sequence[str]
    marks: Marks
    """The letters and digits of each text, one bit per character."""
    positions: Places
    """The tool of each text."""


def nearest_ids(view: IndexView, query: ParsedQuery, allowed: Sequence[Bools]) -> tuple[str, ...]:
    """Suggest ids of allowed tools: those with a name like the query, then those with a word like one of its words."""
    parts = list(zip(view.parts, allowed, strict=True))
    asked = fold(" ".join(query.words))
    found = sorted(
        (-score, id_) for part, passes in parts for score, id_ in _similar(part, _folded_names(part, passes), asked)
    )
    ids = [id_ for _, id_ in found[:_MAX_NEAREST]]
    if len(ids) < _MAX_NEAREST:
        ids += _by_words(parts, [term.surface for term in query.terms[:_MAX_NEAREST_WORDS]])
    return tuple(dict.fromkeys(ids))[:_MAX_NEAREST]


def _by_words(parts: Sequence[tuple[SegmentView, Bools]], asked: Sequence[str]) -> list[str]:
    """For each word, find the tool with the most similar word in its name; ties go to the first id."""
    words = [(part, _name_words(part, allowed)) for part, allowed in parts]
    found = []
    for word in asked:
        best = min(((-score, id_) for part, texts in words for score, id_ in _similar(part, texts, word)), default=None)
        found += [best[1]] if best else []
    return found


def _similar(part: SegmentView, texts: _ComparedTexts, asked: str) -> Iterator[tuple[float, str]]:
    """Yield the similarity of each similar text, with the id of its tool."""
    places = _most_similar(part, texts, asked)
    for place, score in similarities(asked, [texts.texts[at] for at in places]).items():
        yield score, part.segment.ids[texts.positions[places[place]]]


def _most_similar(part: SegmentView, texts: _ComparedTexts, asked: str) -> Sequence[int]:
    """The places of the texts whose letters differ least; the others cannot be very similar. Ties go by id."""
    if len(texts.positions) <= _MAX_COMPARED:
        return range(len(texts.positions))
    differ = np.bitwise_count(texts.marks ^ _character_marks([asked])[0]).astype(np.int64)
    order = (differ << 32) | part.segment.id_ranks[texts.positions]
    found: list[int] = np.sort(np.argpartition(order, _MAX_COMPARED)[:_MAX_COMPARED]).tolist()
    return found


def _folded_names(part: SegmentView, allowed: Bools) -> _ComparedTexts:
    """The folded names of the allowed tools."""
    known = _all_names(part.segment)
    if _is_unfiltered(part, allowed):
        return known
    places = np.flatnonzero(allowed)
    return _ComparedTexts([known.texts[place] for place in places.tolist()], known.marks[places], places)


def _all_names(segment: Segment) -> _ComparedTexts:
    """The folded names of all tools of a segment, by position."""
    known: _ComparedTexts | None = segment.memo.get("nearest names")
    if known is None:
        names = [fold(tool.name) for tool in segment.tools]
        known = segment.memo["nearest names"] = _ComparedTexts(names, _character_marks(names), np.arange(len(names)))
    return known


def _name_words(part: SegmentView, allowed: Bools) -> _ComparedTexts:
    """The words in the names of the allowed tools, each with the first tool by id."""
    segment = part.segment
    if _is_unfiltered(part, allowed) and "nearest words" in segment.memo:
        known: _ComparedTexts = segment.memo["nearest words"]
        return known
    numbers, positions = segment.field_words(Field.NAME)
    passing = allowed[positions]
    numbers, positions = numbers[passing], positions[passing]
    order = np.lexsort((segment.id_ranks[positions], numbers))
    numbers, positions = numbers[order], positions[order]
    first = np.flatnonzero(np.diff(numbers, prepend=-1))
    texts = [segment.vocabulary.words[number] for number in numbers[first].tolist()]
    found = _ComparedTexts(texts, _character_marks(texts), positions[first].astype(np.intp))
    if _is_unfiltered(part, allowed):
        segment.memo["nearest words"] = found
    return found


def _is_unfiltered(part: SegmentView, allowed: Bools) -> bool:
    return part.is_whole and allowed is part.visible


def _character_marks(texts: Sequence[str]) -> Marks:
    """Compute the mark of each text: a bit for each letter a to z and each digit, and some for all other characters."""
    marks = np.zeros(len(texts), dtype=np.uint64)
    lengths = np.fromiter(map(len, texts), dtype=np.intp, count=len(texts))
    filled = lengths.nonzero()[0]
    if len(filled):
        points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        plain = points < len(_CHARACTER_BITS)
        bits = np.where(plain, _CHARACTER_BITS[points * plain], _other_bit(points))
        starts = (lengths.cumsum() - lengths)[filled]
        marks[filled] = np.bitwise_or.reduceat(np.uint64(1) << bits.astype(np.uint64), starts)
    return marks


def _other_bit(points: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The bits of characters that are neither letters a to z nor digits, by their code points."""
    return _LETTERS_AND_DIGITS + points % _OTHER_BITS


_LETTERS_AND_DIGITS = np.uint32(36)
_OTHER_BITS = np.uint32(28)
_CHARACTER_BITS = _other_bit(np.arange(128, dtype=np.uint32))
_CHARACTER_BITS[[ord(character) for character in ascii_lowercase + digits]] = np.arange(_LETTERS_AND_DIGITS)
"""The bits of ASCII characters."""
