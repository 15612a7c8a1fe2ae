"""`python -m training.fit`: fit the ranking's weights and thresholds, and compare them with the shipped ones.

Each set is left out once: its figures come from values that were fitted on the others. It prints, and changes nothing:
the shipped values stay in `toolcrib.search.options`. The same sets, seed and machine give the same output.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from toolcrib.embedders.cache import CachedEmbedder
from toolcrib.embedders.models import load
from toolcrib.search.embedding import ComputedVectors
from toolcrib.search.engine import search
from toolcrib.search.evaluation import (
    DEPTH,
    AnswerRates,
    LabelledQuery,
    ShownAnswer,
    false_answers,
    lost_answers,
    mean,
    score,
)
from toolcrib.search.features import SemanticModel
from toolcrib.search.options import SearchOptions
from toolcrib.search.vectors import default_table
from toolcrib.types import SearchRequest
from training.ranking_fit import (
    BY_HAND,
    FITTED_CALIBRATION,
    FITTED_THRESHOLDS,
    FITTED_WEIGHTS,
    SHIPPED,
    WITH_EMBEDDER,
    fit,
)
from training.ranking_sets import OWN, JudgedSet, find_sets, judge_sets, sample

FITTED = (
    *(f"weights.{name}" for name in FITTED_WEIGHTS),
    *(f"calibration.{name}" for name in FITTED_CALIBRATION),
    *FITTED_THRESHOLDS,
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of one set with some options."""

    ndcg: float
    """nDCG@10 of its answerable queries, 0 to 1, with nothing withheld."""
    false: AnswerRates
    """Unanswerable queries that get a hit."""
    lost: AnswerRates
    """Answerable queries that lose their right tool to a threshold."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the ranking on labelled sets, leaving one out at a time, and print fitted beside shipped values."""
    parser = argparse.ArgumentParser(prog="python -m training.fit", description=main.__doc__)
    data = os.environ.get("TOOLCRIB_RETRIEVAL_DATA")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(data) if data else None,
        help="the folder of sets; default: the environment variable TOOLCRIB_RETRIEVAL_DATA",
    )
    parser.add_argument(
        "--own", type=Path, default=OWN, help="the set that is always used; default: tests/retrieval/everyday"
    )
    parser.add_argument("--queries", type=int, default=300, help="the most queries of a set; default: 300")
    parser.add_argument("--seed", type=int, default=1, help="of the samples of queries; default: 1")
    parser.add_argument(
        "--embedder",
        metavar="NAME",
        help="fit the weights of a search with this embedder, such as minilm; default: none",
    )
    given = parser.parse_args(arguments)
    sets = [sample(each, given.queries, given.seed) for each in find_sets(given.data, given.own)]
    if len(sets) < 2:  # noqa: PLR2004 - one to fit on, one to leave out
        parser.error("leaving one set out needs two; name a folder of sets with --data or TOOLCRIB_RETRIEVAL_DATA")
    model = embedding_model(given.embedder) if given.embedder else None
    start = WITH_EMBEDDER if model else SHIPPED
    for line in report(judge_sets(sets, given.seed, model), start):
        print(line)  # noqa: T201 - the report is the output


def embedding_model(name: str) -> SemanticModel:
    """The model with the embedder of that name, which embeds each text once."""
    embedder = CachedEmbedder(load(name))
    return SemanticModel(default_table(), embedder, ComputedVectors(embedder))


def report(sets: Sequence[JudgedSet], start: SearchOptions = SHIPPED) -> Iterator[str]:
    """Yield the lines of the report. `start` has the shipped values, in the fields that are fitted."""
    without = [fit([other for other in sets if other is not each], start) for each in sets]
    shipped = [measure(each, start) for each in sets]
    fitted = [measure(each, options) for each, options in zip(sets, without, strict=True)]
    yield from _quality(sets, shipped, fitted)
    yield from _thresholds(sets, shipped, fitted)
    yield from _values(start, fit(sets, start), without)
    yield from _by_hand(start)


def measure(each: JudgedSet, options: SearchOptions) -> Figures:
    """Search for every query of the set with these options, with an embedder or without."""
    options = replace(options, embedding_weights=options.weights, embedding_calibration=options.calibration)
    unmarked = replace(options, nothing_below=0.0, weak_below=0.0)
    asked = [(one.query, _ask(each, one.query, unmarked).shown, _ask(each, one.query, options)) for one in each.own]
    return Figures(
        ndcg=mean([score(free, query.relevant) for query, free, _ in asked]).ndcg_10,
        false=false_answers(_ask(each, one.query, options) for one in each.foreign),
        lost=lost_answers(asked),
    )


def _ask(each: JudgedSet, query: LabelledQuery, options: SearchOptions) -> ShownAnswer:
    request = SearchRequest(queries=(query.text,), limit=DEPTH, detail="summary")
    hits = search(each.index, request, options=options).hits
    return ShownAnswer(
        shown=tuple(each.ids_of(hit.tool for hit in hits)),
        sure=tuple(each.ids_of(hit.tool for hit in hits if not hit.weak)),
    )


def _quality(sets: Sequence[JudgedSet], shipped: Sequence[Figures], fitted: Sequence[Figures]) -> Iterator[str]:
    yield "nDCG@10 x100, nothing withheld. `fitted` comes from values that were fitted on the other sets."
    yield f"  {'set':20}{'tools':>7}{'queries':>9}{'shipped':>9}{'fitted':>8}"
    for each, before, after in zip(sets, shipped, fitted, strict=True):
        name, tools, queries = each.source.name, len(each.source.tools), len(each.own)
        yield f"  {name:20}{tools:7}{queries:9}{100 * before.ndcg:9.1f}{100 * after.ndcg:8.1f}"
    means = [100 * sum(one.ndcg for one in figures) / len(sets) for figures in (shipped, fitted)]
    yield f"  {'mean':36}{means[0]:9.1f}{means[1]:8.1f}"


def _thresholds(sets: Sequence[JudgedSet], shipped: Sequence[Figures], fitted: Sequence[Figures]) -> Iterator[str]:
    yield "Thresholds, shipped / fitted, %. `false`: an unanswerable query gets a hit; `sure`: one not marked as weak."
    yield "`lost`: the right tool is among the first five, and is withheld; `sure`: or only shown as weak."
    yield f"  {'set':20}{'false':>15}{'false, sure':>15}{'lost':>15}{'lost, sure':>15}"
    for each, before, after in zip(sets, shipped, fitted, strict=True):
        rates = (
            (before.false.shown, after.false.shown),
            (before.false.sure, after.false.sure),
            (before.lost.shown, after.lost.shown),
            (before.lost.sure, after.lost.sure),
        )
        yield f"  {each.source.name:20}" + "".join(f"{100 * one:8.1f} /{100 * other:5.1f}" for one, other in rates)


def _values(start: SearchOptions, everything: SearchOptions, without: Sequence[SearchOptions]) -> Iterator[str]:
    yield "Values. `fitted` is on all sets; the range is over the fits that leave one out."
    if start is WITH_EMBEDDER:
        yield "With an embedder, these are `embedding_weights` and `embedding_calibration`."
    yield f"  {'value':24}{'shipped':>9}{'fitted':>8}{'range':>16}"
    for name in (*FITTED, *(["weights.embedding"] if start is WITH_EMBEDDER else [])):
        value = attrgetter(name)
        spread = [value(options) for options in without]
        yield f"  {name:24}{value(start):9g}{value(everything):8g}{f'{min(spread):g} to {max(spread):g}':>16}"


def _by_hand(start: SearchOptions) -> Iterator[str]:
    yield "Set by hand, and not fitted:"
    for name, reason in BY_HAND.items():
        if name == "weights.embedding" and start is WITH_EMBEDDER:
            continue
        value = attrgetter(name)(SHIPPED)
        shown = "" if isinstance(value, tuple) and not isinstance(value[0], float) else f" = {value}"
        yield f"  {name}{shown}: {reason}"


if __name__ == "__main__":
    main()
