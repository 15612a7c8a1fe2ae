"""Queries that no tool fits: how often each engine answers anyway, and what saying "nothing fits" costs toolcrib.

The queries of each set are put to every other set's tools. One is kept where no tool there is alike to a right tool of
the query: their cosine by the shipped table stays below .45.
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from engines import Engine
from sets import Set

from toolcrib.cli.files import FileSearch, without_thresholds
from toolcrib.search.evaluation import SEED, AnswerRates, LabelledQuery, false_answers, lost_answers
from toolcrib.search.vectors import default_table
from toolcrib.types import Tool

A_SET = 70
ALIKE = 0.45
LEFT_OUT = frozenset({"seal_tools"})
"""Catalogs that are not in the averages: they are so broad that they do answer most queries."""

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def unanswerable(sets: Sequence[Set]) -> dict[tuple[str, str], list[LabelledQuery]]:
    """For each pair of sets, whose queries and whose tools: the queries that none of the tools fits."""
    vectors = {each.name: default_table().embed([text(tool) for tool in each.file.tools]) for each in sets}
    places = {each.name: {id_: place for place, id_ in enumerate(each.file.ids)} for each in sets}
    kept: dict[tuple[str, str], list[LabelledQuery]] = {}
    for each in sets:
        for query in sample(each):
            right = vectors[each.name][[places[each.name][id_] for id_ in query.relevant]]
            for other in sets:
                if other is not each and float(np.max(right @ vectors[other.name].T)) < ALIKE:
                    kept.setdefault((each.name, other.name), []).append(query)
    return kept


def sample(each: Set) -> list[LabelledQuery]:
    """The same 70 queries of a set every time; all where there are fewer."""
    queries = list(each.queries)
    chance = random.Random(f"{SEED}-unanswerable-{each.name}")
    return queries if len(queries) <= A_SET else chance.sample(queries, A_SET)


def text(tool: Tool) -> str:
    """What a tool is compared by: its name in words, the beginning of its description, its first parameters."""
    parameters = " ".join(words(name) for name in list(tool.input_schema.get("properties", {}))[:12])
    return f"{words(tool.name)}: {tool.description[:400]} ({parameters})"


def words(name: str) -> str:
    """The words of an identifier."""
    return " ".join(_WORD.findall(name))


def measured(engines: Sequence[Engine], sets: Sequence[Set]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Engine, catalog and its rates: false answers, and for ours the right answers lost."""
    asked = unanswerable(sets)
    for each in sets:
        others = [query for (_, catalog), queries in asked.items() if catalog == each.name for query in queries]
        for engine in (engine for engine in engines if engine.ranked and "marks off" not in engine.name):
            if engine.shelf:
                figures = _ours(engine.shelf(each.pairs), each, others)
            else:
                answer = engine.answers(each.pairs)
                figures = {"false": _rates(false_answers(answer(query.text) for query in others))}
            yield engine.name, each.name, {"queries": len(others), **figures}


def _ours(ready: FileSearch, each: Set, others: Sequence[LabelledQuery]) -> dict[str, Any]:
    return {
        "false": _rates(false_answers(ready.answer(query.text) for query in others)),
        "lost": _rates(_lost(ready, sample(each))),
    }


def _lost(ready: FileSearch, queries: Sequence[LabelledQuery]) -> AnswerRates:
    free = without_thresholds(ready.options)
    return lost_answers((query, ready.answer(query.text, free).shown, ready.answer(query.text)) for query in queries)


def _rates(rates: AnswerRates) -> dict[str, float]:
    return {"shown": round(rates.shown, 5), "sure": round(rates.sure, 5)}
