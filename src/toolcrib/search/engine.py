"""The search: a request in, hits with their reasons out."""

from collections.abc import Mapping, Sequence

import numpy as np

from toolcrib.model import Detail, Filters, Hit, SearchReply, SearchRequest, Tool
from toolcrib.search.answers import Answer, Task, answered
from toolcrib.search.index import Index
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.search.query import read
from toolcrib.search.segment import Bools
from toolcrib.search.view import View


def search(
    index: Index,
    request: SearchRequest,
    *,
    mask: bytes | None = None,
    overlay: Index | None = None,
    options: SearchOptions | None = None,
    lexicon: Lexicon | None = None,
    boosts: Mapping[str, float] | None = None,
) -> SearchReply:
    """The tools that fit, best first, for each query. A query without words lists all tools, by id, with score 0.

    Only tools that the mask shows, and all of the overlay's, exist for it: for what is found and for how rare a
    word is. Filters narrow what is found, not what is counted. `boosts` leads from ids of tools that were of use to
    how much their odds are raised, 1 or more. `total` is the sum over the queries. Limits out of range are clamped.
    Raises `ValueError` for a mask of another length than the index, and for an overlay built with another embedder.
    """
    options = options or index.options
    view = index.view(mask, overlay)
    limit = max(1, min(options.default_limit if request.limit is None else request.limit, options.max_limit))
    allowed = _allowed(view, request.filters)
    task = Task(view, allowed, limit, request, options, lexicon or Lexicon.default(), boosts or {})
    queries = request.queries[: options.max_queries]
    answers = [_answer(task, text, place) for place, text in enumerate(queries)]
    return SearchReply(
        hits=tuple(hit for answer in answers for hit in answer.hits),
        total=sum(answer.total for answer in answers),
        unmatched=tuple(dict.fromkeys(word for answer in answers for word in answer.unmatched)),
        nearest=tuple(dict.fromkeys(id_ for answer in answers for id_ in answer.nearest)),
        note=_note(answers, queries, len(request.queries) - len(queries)),
    )


def listing(
    index: Index, filters: Filters | None = None, *, mask: bytes | None = None, overlay: Index | None = None
) -> tuple[Tool, ...]:
    """All tools that a search could find, by id."""
    view = index.view(mask, overlay)
    _, listed = _listed(view, _allowed(view, filters or Filters()), view.count)
    return tuple(view.parts[part].index.tools[position] for part, position in listed)


def _allowed(view: View, filters: Filters) -> list[Bools]:
    if filters == Filters():
        return [part.seen for part in view.parts]
    return [part.seen & part.index.facets.passing(filters) for part in view.parts]


def _answer(task: Task, text: str, place: int) -> Answer:
    query = read(text)
    if query.words:
        return answered(task, text, query, place)
    total, listed = _listed(task.view, task.allowed, task.limit)
    return Answer([_bare(task.view, part, at, place, task.request.detail) for part, at in listed], total)


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


def _note(answers: Sequence[Answer], texts: Sequence[str], skipped: int) -> str:
    """What to try next; where there were several queries, for which of them."""
    many = len(answers) > 1
    notes = []
    for said in dict.fromkeys(filter(None, map(_said, answers))):
        about = [f'"{text[:_SHOWN]}"' for answer, text in zip(answers, texts, strict=True) if _said(answer) == said]
        notes.append(f"{', '.join(about)}: {said[0].lower()}{said[1:]}" if many else said)
    if skipped:
        notes.append(f"The last {skipped} queries were left out: ask them separately.")
    return " ".join(notes)


def _said(answer: Answer) -> str:
    if not answer.hits:
        if answer.nearest:
            return "Nothing fits; the nearest names are listed."
        return "Nothing fits. Try other words: what the tool does, or what it works on."
    if answer.hits[0].fallback:
        return "Nothing fits; popular tools are shown instead."
    return "Nothing fits well: these are the nearest." if answer.hits[0].weak else ""


_SHOWN = 60
"""Characters of a query that a note repeats."""
