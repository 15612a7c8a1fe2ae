"""Where the words of a query meet the tools of one part, and the points for it."""

from collections.abc import Iterator, Sequence

import numpy as np

from toolcrib.names import fold
from toolcrib.search.options import FIELD_NAMES, Field
from toolcrib.search.scorers.base import Bools, Floats, Meeting, Part, Places, Segment, Word, kept
from toolcrib.search.scorers.options import PointsOptions
from toolcrib.search.scorers.points_query import Term
from toolcrib.search.scorers.rows import field_words, rows
from toolcrib.search.scorers.strings import Strings, ratios, slipped
from toolcrib.search.scorers.texts import names as lower_names

_TEXTS = (Field.DESCRIPTION, Field.TITLE, Field.KEYWORDS, Field.TAGS)


def in_name(part: Part, term: Term, use: PointsOptions) -> Iterator[Meeting]:
    """A word of the name, or else one that begins with the word."""
    names = field_words(part.index, Field.NAME)
    exact = _seen(part, names.tools(names.same(term.text)))
    yield _flat(term, "name", exact, use.token)
    if len(term.text) >= use.prefix_chars:
        yield from _prefix(part, term, names, names.starting(term.text), exact, use)


def expanded(part: Part, term: Term, use: PointsOptions) -> Iterator[Meeting]:
    """All that a word meets: in the name, also the other way round, in the texts, the namespace, the parameters."""
    names = field_words(part.index, Field.NAME)
    exact = _seen(part, names.tools(names.same(term.text)))
    yield _flat(term, "name", exact, use.token)
    yield from _prefix(part, term, names, _either(names, term.text, use.prefix_chars), exact, use)
    table = rows(part.index)
    span = table.of(term.text)
    positions, fields = table.positions[span], table.fields[span]
    taken: Bools = ~part.seen
    for field in _TEXTS:
        tools = positions[fields == field]
        tools = tools[~taken[tools]]
        yield _flat(term, FIELD_NAMES[field], tools, use.description)
        taken = taken.copy()
        taken[tools] = True
    yield _flat(term, "namespace", _seen(part, positions[fields == Field.NAMESPACE]), use.namespace)
    yield _flat(term, "parameters", _seen(part, positions[fields == Field.PARAMETERS]), use.parameter)


def begins(part: Part, word: Word) -> bool:
    """Whether a word in the name of a tool that is seen begins with this one."""
    names = field_words(part.index, Field.NAME)
    return len(_seen(part, names.tools(names.starting(word.text)))) > 0


def misspelt(part: Part, words: Sequence[Word], met: Sequence[Meeting], use: PointsOptions) -> Iterator[Meeting]:
    """Words of names that unknown words may be meant for, in tools whose name they have not met in another way."""
    names = field_words(part.index, Field.NAME)
    found = slipped([word.text for word in words], names, use.slip_above)
    for word, (numbers, values) in zip(words, found, strict=True):
        free = part.seen.copy()
        for meeting in met:
            if meeting.field == "name" and meeting.words == (word,):
                free[meeting.positions] = False
        yield _like(Part(part.index, free), (word,), names, "name", numbers, values, use.token)


def whole(part: Part, text: str, words: tuple[Word, ...], use: PointsOptions) -> Meeting:
    """The tools whose name the whole query is, in whatever spelling."""
    aliases = kept(part.index, "aliases", _aliases)
    tools = _seen(part, aliases.tools(aliases.same(_folded(text))))
    return _flat(Term(text, words, "exact"), "name", tools, use.whole_name)


def like_query(part: Part, text: str, words: tuple[Word, ...], use: PointsOptions) -> list[Meeting]:
    """The tools of which the name, or a word of the description, is like the whole query."""
    names = lower_names(part.index)
    described = field_words(part.index, Field.DESCRIPTION)
    near_names = ratios(text, names, use.fuzzy_name_least)
    near_words = ratios(text, described, use.fuzzy_description_least)
    return [
        _like(part, words, names, "name", *near_names, use.fuzzy_name),
        _like(part, words, described, "description", *near_words, use.fuzzy_description),
    ]


def _aliases(index: Segment) -> Strings:
    return Strings([{_folded(tool.name), _folded(tool.id)} - {""} for tool in index.tools])


def _folded(text: str) -> str:
    return fold(text.strip()).replace(".", "").replace(":", "")


def _seen(part: Part, tools: Places) -> Places:
    return tools[part.seen[tools]]


def _flat(term: Term, field: str, tools: Places, weight: float, how: str = "") -> Meeting:
    matched = (term.text,) if term.how == "synonym" else ()
    return Meeting(term.words, field, how or term.how, tools, weight, np.ones(len(tools)), matched)


def _either(names: Strings, text: str, least: int) -> Places:
    """The words of names that begin with a text, and those it begins with."""
    if len(text) < least:
        return np.array([], dtype=np.intp)
    shorter = [names.same(text[:end]) for end in range(least, len(text))]
    return np.concatenate([names.starting(text), *reversed(shorter)])


def _prefix(
    part: Part, term: Term, names: Strings, numbers: Places, exact: Places, use: PointsOptions
) -> Iterator[Meeting]:
    """Beginnings of words; of several in one tool the first counts."""
    tools, order = names.spread(numbers, np.arange(len(numbers), dtype=np.float64))
    wanted = part.seen.copy()
    wanted[exact] = False
    tools, order = tools[wanted[tools]], order[wanted[tools]]
    if len(tools):
        tools, first = np.unique(tools, return_index=True)
        matched = [names.known[numbers[int(place)]] for place in order[first]]
        how = "prefix" if term.how == "exact" else term.how
        yield Meeting(term.words, "name", how, tools, use.prefix, np.ones(len(tools)), matched)


def _like(
    part: Part, words: tuple[Word, ...], known: Strings, field: str, numbers: Places, values: Floats, weight: float
) -> Meeting:
    """The tools that have words like another; of several in one tool the most like it counts."""
    tools, places = known.spread(numbers, np.arange(len(numbers), dtype=np.float64))
    chosen = part.seen[tools]
    tools, places = tools[chosen], places[chosen].astype(np.intp)
    order = np.lexsort((places, -values[places], tools))
    tools, first = np.unique(tools[order], return_index=True)
    places = places[order][first]
    return Meeting(
        words, field, "spelling", tools, weight, values[places], [known.known[numbers[int(place)]] for place in places]
    )
