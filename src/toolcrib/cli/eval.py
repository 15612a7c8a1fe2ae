"""Measure the search on a file of tools and a file of queries (`toolcrib eval`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from toolcrib.cli.explain import new_table, table_console
from toolcrib.cli.files import FileSearch, check_relevant, read_queries, read_tools, search_options, without_thresholds
from toolcrib.search.evaluation import LabelledQuery, evaluate, false_answers, lost_answers
from toolcrib.search.options import Scorer

_WARM_UP: Final = 50
"""Queries to run before measuring time."""
_MAX_WIDTH: Final = 100


def run_evaluation(tools: Path, queries: Path, unanswerable: Path | None, scorer: Scorer | None) -> dict[str, Any]:
    """Evaluate the search; the figures by their names in `--json`. Raises `FileError`."""
    file = read_tools(tools)
    asked = read_queries(queries)
    check_relevant(asked, file)
    others = () if unanswerable is None else read_queries(unanswerable, answerable=False)
    options = search_options(scorer)
    begun = perf_counter()
    shelf = FileSearch(file, options)
    build_s = perf_counter() - begun
    for query in asked[:_WARM_UP]:
        shelf.ranking(query.text)
    report = evaluate(shelf.ranking, asked, clock=perf_counter)
    return {
        "scorer": options.scorer,
        "tools": len(file.tools),
        "queries": report.queries,
        **report.metrics.as_dict(),
        "p50_us": round(report.p50_s * 1e6, 1),
        "p95_us": round(report.p95_s * 1e6, 1),
        "build_s": round(build_s, 6),
        **_lost_answer_rates(shelf, asked),
        **(_false_answer_rates(shelf, others) if others else {}),
    }


def _lost_answer_rates(shelf: FileSearch, asked: Sequence[LabelledQuery]) -> dict[str, float]:
    free = without_thresholds(shelf.options)
    rates = lost_answers((query, shelf.answer(query.text, free).shown, shelf.answer(query.text)) for query in asked)
    return {"lost_answer_rate": rates.shown, "lost_answer_rate_sure": rates.sure}


def _false_answer_rates(shelf: FileSearch, others: Sequence[LabelledQuery]) -> dict[str, float]:
    rates = false_answers(shelf.answer(query.text) for query in others)
    return {"unanswerable": len(others), "false_answer_rate": rates.shown, "false_answer_rate_sure": rates.sure}


def print_figures(figures: Mapping[str, Any]) -> None:
    """Print the figures as a table."""
    table = new_table("figure", "value", texts=1)
    for name, value in figures.items():
        if name == "recall@1":
            table.add_section()
        table.add_row(name, _format_value(value))
    table_console(_MAX_WIDTH).print(table)


def _format_value(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else str(value)
