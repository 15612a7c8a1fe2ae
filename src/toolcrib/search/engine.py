"""The search: a request in, hits with their reasons out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolcrib.model import Detail, Filters, Hit, SearchReply, SearchRequest, Tool
from toolcrib.search.index import Bools, Index
from toolcrib.search.lexical import Part, Ranking, View, rank, reasons
from toolcrib.search.nearest import nearest_ids
from toolcrib.search.options import SearchOptions
from toolcrib.search.query import Query, read


@dataclass(frozen=True, slots=True)
class _Answer:
    hits: list[Hit]
    total: int
    unmatched: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()


def search(
    index: Index,
    request: SearchRequest,
    *,
    mask: bytes | None = None,
    overlay: Index | None = None,
    options: SearchOptions | None = None,
) -> SearchReply:
    """The tools that fit, best first, for each query. A query without words lists all tools, by id, with score 0.

    Only tools that the mask shows, and all of the overlay's, exist for it: for what is found and for how rare a
    word is. Filters narrow what is found, not what is counted. `total` is the sum over the queries. Limits out of
    range are clamped. Raises `ValueError` for a mask of another length than the index.
    """
    options = options or index.options
    view = _view(index, mask, overlay)
    allowed = _allowed(view, request.filters)
    limit = max(1, min(options.default_limit if request.limit is None else request.limit, options.max_limit))
    queries = request.queries[: options.max_queries]
    answers = [_answer(view, read(text), limit, place, allowed, request.detail) for place, text in enumerate(queries)]
    return SearchReply(
        hits=tuple(hit for answer in answers for hit in answer.hits),
        total=sum(answer.total for answer in answers),
        unmatched=tuple(dict.fromkeys(word for answer in answers for word in answer.unmatched)),
        nearest=tuple(dict.fromkeys(id_ for answer in answers for id_ in answer.nearest)),
        note=_note(answers, len(request.queries) - len(queries)),
    )


def listing(
    index: Index, filters: Filters | None = None, *, mask: bytes | None = None, overlay: Index | None = None
) -> tuple[Tool, ...]:
    """All tools that a search could find, by id."""
    view = _view(index, mask, overlay)
    _, listed = _listed(view, _allowed(view, filters or Filters()), view.count)
    return tuple(view.parts[part].index.tools[position] for part, position in listed)


def _view(index: Index, mask: bytes | None, overlay: Index | None) -> View:
    parts = [Part(index, index.visible(mask))]
    if overlay is not None:
        parts.append(Part(overlay, overlay.visible(None)))
    return View.of(*parts)


def _allowed(view: View, filters: Filters) -> list[Bools]:
    if filters == Filters():
        return [part.seen for part in view.parts]
    return [part.seen & part.index.facets().passing(filters) for part in view.parts]


def _answer(view: View, query: Query, limit: int, place: int, allowed: Sequence[Bools], detail: Detail) -> _Answer:
    if not query.words:
        total, listed = _listed(view, allowed, limit)
        return _Answer([_bare(view, part, at, place, detail) for part, at in listed], total)
    ranking = rank(view, query, limit, allowed)
    if not ranking.found:
        return _Answer([], 0, ranking.unmatched, nearest_ids(view, query, allowed))
    return _Answer(_hits(view, query, ranking, place, detail), ranking.total, ranking.unmatched)


def _hits(view: View, query: Query, ranking: Ranking, place: int, detail: Detail) -> list[Hit]:
    hits = []
    for found, (why, met) in zip(ranking.found, reasons(view, ranking), strict=True):
        index = view.parts[found.part].index
        hits.append(
            Hit(
                tool=index.tools[found.position],
                score=min(1.0, found.raw / ranking.ceiling),
                raw=found.raw,
                reasons=why,
                matched=tuple(query.words[word] for word in met),
                signature="" if detail == "summary" else index.signature(found.position),
                query=place,
                detail=detail,
            )
        )
    return hits


def _bare(view: View, part: int, position: int, place: int, detail: Detail) -> Hit:
    index = view.parts[part].index
    shown = "" if detail == "summary" else index.signature(position)
    return Hit(tool=index.tools[position], score=0.0, raw=0.0, signature=shown, query=place, detail=detail)


def _listed(view: View, allowed: Sequence[Bools], limit: int) -> tuple[int, list[tuple[int, int]]]:
    """How many tools are allowed, and part and position of the first of them, by id."""
    total = 0
    listed: list[tuple[str, int, int]] = []
    for number, (part, passes) in enumerate(zip(view.parts, allowed, strict=True)):
        positions = np.flatnonzero(passes)
        total += len(positions)
        first = positions[np.argsort(part.index.ranks[positions])[:limit]]
        listed.extend((part.index.ids[position], number, position) for position in first.tolist())
    listed.sort()
    return total, [(number, position) for _, number, position in listed[:limit]]


def _note(answers: Sequence[_Answer], skipped: int) -> str:
    notes = []
    if any(not answer.hits and not answer.nearest for answer in answers):
        notes.append("Nothing fits. Try other words: what the tool does, or what it works on.")
    elif any(not answer.hits for answer in answers):
        notes.append("Nothing fits; the nearest names are listed.")
    if skipped:
        notes.append(f"The last {skipped} queries were left out: ask them separately.")
    return " ".join(notes)
