"""Labelled retrieval sets, and the signals that the search computes for their queries."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toolcrib.search.evaluation import LabelledQuery
from toolcrib.search.features import SemanticModel
from toolcrib.search.index import Index
from toolcrib.search.lexical import match_terms
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.ranking import select_candidates
from toolcrib.search.signals import compute_signals, read_meaning
from toolcrib.search.text import parse_query
from toolcrib.types import Tool

Doubles = npt.NDArray[np.float64]

OWN = Path(__file__).parents[1] / "tests" / "retrieval" / "everyday"
"""The set in this repository that is for development."""

OWN_NAME = "everyday"


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """Tools, and queries with the ids of the tools that answer them."""

    name: str
    ids: tuple[str, ...]
    """The id of each tool, as the queries use it."""
    tools: tuple[Tool, ...]
    queries: tuple[LabelledQuery, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The candidates of one query in one catalog."""

    query: LabelledQuery
    signals: Doubles
    """float64[candidates, signals], in the order of `toolcrib.search.signals.SIGNALS`."""
    relevant: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class JudgedSet:
    """A set with the candidates of its queries, and of queries that its catalog cannot answer."""

    source: LabelledSet
    index: Index
    own: tuple[Judgement, ...]
    """Of the answerable queries, in their order."""
    foreign: tuple[Judgement, ...]
    """Of its own unanswerable queries, and of queries borrowed from the other sets."""

    def ids_of(self, tools: Iterable[Tool]) -> list[str]:
        """Look up the ids that the queries use for tool objects of the set."""
        places = {id(tool): place for place, tool in enumerate(self.source.tools)}
        return [self.source.ids[places[id(tool)]] for tool in tools]


def find_sets(folder: Path | None, own: Path = OWN) -> list[LabelledSet]:
    """Find the set in the repository, and each subfolder with `tools.jsonl` and `queries.jsonl`."""
    folders = sorted(folder.iterdir()) if folder and folder.is_dir() else []
    found = [each for each in folders if (each / "tools.jsonl").is_file() and (each / "queries.jsonl").is_file()]
    return [read_set(own, OWN_NAME), *(read_set(each, each.name) for each in found)]


def read_set(folder: Path, name: str) -> LabelledSet:
    """Read the set in one folder. Raises OSError, ValueError or KeyError if a file is not of the documented form."""
    tools = [*_rows(folder / "tools.jsonl")]
    return LabelledSet(
        name=name,
        ids=tuple(row["id"] for row in tools),
        tools=tuple(
            Tool(
                namespace=row.get("namespace", ""),
                name=row["name"],
                description=row.get("description", ""),
                input_schema=row.get("parameters", {}),
                tags=tuple(row.get("tags", ())),
            )
            for row in tools
        ),
        queries=tuple(
            LabelledQuery(id=row["id"], text=row["query"], relevant=frozenset(row["relevant"]))
            for row in _rows(folder / "queries.jsonl")
        ),
    )


def sample(found: LabelledSet, count: int, seed: int) -> LabelledSet:
    """Limit a set to `count` of its queries, drawn at random from the seed."""
    if len(found.queries) <= count:
        return found
    chosen = random.Random(f"{seed}-{found.name}").sample(found.queries, count)  # noqa: S311 - must be repeatable
    return LabelledSet(found.name, found.ids, found.tools, tuple(chosen))


def judge_sets(sets: Sequence[LabelledSet], seed: int, model: SemanticModel | None = None) -> list[JudgedSet]:
    """Compute the signals of every query in its own catalog, and of as many foreign ones.

    A model with an embedder gives each its cosine.
    """
    return [_judge_set(place, sets, seed, model) for place in range(len(sets))]


def _judge_set(place: int, sets: Sequence[LabelledSet], seed: int, model: SemanticModel | None) -> JudgedSet:
    source = sets[place]
    index = Index.build(source.tools, model=model)
    answerable = [query for query in source.queries if query.relevant]
    others = [query for other in sets if other is not source for query in other.queries if query.relevant]
    chance = random.Random(f"{seed}-{source.name}-foreign")  # noqa: S311 - must be repeatable
    borrowed = chance.sample(others, min(len(answerable), len(others)))
    foreign = [
        *(query for query in source.queries if not query.relevant),
        *(LabelledQuery(id=query.id, text=query.text) for query in borrowed),
    ]
    return JudgedSet(
        source=source,
        index=index,
        own=tuple(_judge(index, source.ids, query) for query in answerable),
        foreign=tuple(_judge(index, source.ids, query) for query in foreign),
    )


def _judge(index: Index, ids: Sequence[str], query: LabelledQuery) -> Judgement:
    """Run the search up to its signals. An index that was just built has a single segment."""
    options, lexicon, view = index.options, Lexicon.default(), index.view()
    parsed = parse_query(query.text)
    matches = match_terms(view, parsed, index.model.table, lexicon, options)
    features = read_meaning(parsed, matches, index.model, lexicon, options)
    allowed = [part.visible for part in view.parts]
    candidates = select_candidates(view, matches, features, allowed, options.candidates, options)
    [part], [positions], [near] = view.parts, candidates.positions, candidates.cosines
    signals = compute_signals(part, 0, matches, parsed, features, positions, near).signals
    labels = np.array([ids[position] in query.relevant for position in positions.tolist()], dtype=np.bool_)
    return Judgement(query, signals, labels)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    # Not splitlines: descriptions may hold separators that it splits at.
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.strip():
            yield json.loads(line)
