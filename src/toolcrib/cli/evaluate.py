"""`toolcrib eval`: measure the search on labelled queries, and what keywords, past requests or an embedder change."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import anyio
import click

from toolcrib.cli.files import (
    STDIN,
    FileSearch,
    ToolFile,
    check_relevant,
    read_queries,
    read_tools,
    search_options,
    without_thresholds,
)
from toolcrib.cli.options import path_option, reports
from toolcrib.cli.output import UsageError, echo, echo_error, echo_json
from toolcrib.cli.tables import new_table, table_console
from toolcrib.cli.tool_verbs import scorer_option
from toolcrib.embedders.models import load
from toolcrib.gateway.keywords import ToolDescriber, ToolKeywords, add_keywords, load_hook
from toolcrib.search.embedder import Embedder
from toolcrib.search.evaluation import SEED, LabelledQuery, evaluate, false_answers, lost_answers, score
from toolcrib.search.features import SemanticModel
from toolcrib.search.options import PastOptions, Scorer
from toolcrib.search.past import PastRequests
from toolcrib.search.vectors import default_table
from toolcrib.settings.loader import KeywordsByTool, read_keywords
from toolcrib.state.memory import MemoryStore

HALF: Final = "half"
"""The value of --past that takes every second query as the past."""

_WARM_UP: Final = 50
"""Queries to run before measuring time."""

_MAX_WIDTH: Final = 100
_MAX_LISTED: Final = 10
"""Queries that the table of changes lists."""

_ROUNDS: Final = 1_000
"""Samples of the bootstrap."""

_COMPARED: Final = ("recall@1", "recall@5", "recall@10", "mrr@10", "ndcg@10")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What is added to the search."""

    embedder: str | None = None
    """As in the settings; its vectors are not kept."""
    keywords: Path | None = None
    """A file of keywords."""
    describe: str | None = None
    """A function that describes tools, `package.module:function`."""
    past: str | None = None
    """A file of queries that came before, or `half`."""

    def __bool__(self) -> bool:
        return self != Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is measured."""

    file: ToolFile
    queries: tuple[LabelledQuery, ...]
    unanswerable: tuple[LabelledQuery, ...]
    scorer: Scorer | None
    past: tuple[LabelledQuery, ...]

    def without(self) -> FileSearch:
        return FileSearch(self.file, search_options(self.scorer))

    def with_extras(self, extras: Extras, embedder: Embedder | None, words: Sequence[KeywordsByTool]) -> FileSearch:
        model = None if embedder is None else SemanticModel(default_table(), embedder)
        shelf = FileSearch(_with_keywords(self.file, words), search_options(self.scorer), model)
        if extras.past is None:
            return shelf
        tools = dict(zip(self.file.ids, self.file.tools, strict=True))
        past = PastRequests(PastOptions(tools=max(1, len(tools))))
        for query in self.past:
            for id_ in sorted(query.relevant):
                past = past.with_request(query.text, tools[id_].id)
        shelf.past = past
        return shelf


@click.command("eval")
@path_option("--tools", "-t", required=True, about="The tools to search (- is standard input).")
@path_option("--queries", "-q", required=True, about="The queries, each with its relevant tools.")
@path_option("--unanswerable", "-u", about="Queries that none of the tools can answer.")
@scorer_option
@click.option(
    "--embedder", metavar="NAME", help="Search with this embedder, as in search.embedder: minilm, for example."
)
@path_option("--keywords", about="Add these keywords, as in search.keywords.")
@click.option("--describe", metavar="NAME", help="Add what this function gives for each tool, as in search.describe.")
@click.option("--past", metavar="FILE|half", help="Queries that were asked before, or every second query.")
@click.option("--compare", is_flag=True, help="Measure without and with these four, and show what changed.")
@reports()
def eval_verb(
    *,
    tools: Path,
    queries: Path,
    unanswerable: Path | None,
    scorer: Scorer | None,
    compare: bool,
    as_json: bool,
    **more: Any,
) -> None:
    """Measure the search: ranking quality, false answers, and time.

    All figures but the times are shares, from 0 to 1.
    """
    extras = Extras(**more)
    if compare and not extras:
        raise UsageError("--compare needs --keywords, --describe, --past or --embedder: what is to be compared.")
    if [tools, queries, unanswerable].count(STDIN) > 1:
        raise UsageError("Only one of the files can be standard input.")
    figures = _evaluation(tools, queries, unanswerable, scorer, extras, compare=compare)
    if as_json:
        echo_json(figures)
    else:
        _print_figures(figures)


def _evaluation(
    tools: Path,
    queries: Path,
    unanswerable: Path | None,
    scorer: Scorer | None,
    extras: Extras,
    *,
    compare: bool,
) -> dict[str, Any]:
    """Evaluate the search; the figures by their names in `--json`.

    To compare, measure without and with the extras. Raises `UsageError`, which includes `FileError`, `SettingsError`
    for keywords or a function that cannot be used, and what `load` raises for an embedder.
    """
    file = read_tools(tools)
    asked = read_queries(queries)
    check_relevant(asked, file)
    others = () if unanswerable is None else read_queries(unanswerable, answerable=False)
    past, judged = _split(extras.past, asked, queries)
    check_relevant(past, file)
    case = _Case(file=file, queries=judged, unanswerable=others, scorer=scorer, past=past)
    embedder = None if extras.embedder is None else load(extras.embedder)
    words = [*_listed(extras, file)]
    begun = perf_counter()
    without = case.without()
    plain_s = perf_counter() - begun
    if not extras:
        return _figures(case, without, plain_s)
    begun = perf_counter()
    shelf = case.with_extras(extras, embedder, words)
    after = _figures(case, shelf, perf_counter() - begun, embedder)
    return _comparison(case, without, shelf, _figures(case, without, plain_s), after) if compare else after


def _split(
    past: str | None, asked: tuple[LabelledQuery, ...], path: Path
) -> tuple[tuple[LabelledQuery, ...], tuple[LabelledQuery, ...]]:
    """The queries that came before, and those that are judged."""
    if past is None:
        return (), asked
    if past == HALF:
        if len(asked) < 2:  # noqa: PLR2004 - one for each half
            raise UsageError("--past half needs at least two queries.")
        return asked[::2], asked[1::2]
    if Path(past) == path:
        raise UsageError(
            "--past and --queries are the same file, so each query would find itself.",
            hint="Use --past half: every second query is the past, and the others are judged.",
        )
    return read_queries(Path(past)), asked


def _listed(extras: Extras, file: ToolFile) -> Iterator[KeywordsByTool]:
    """The phrases of the file of keywords, and those of the function."""
    if extras.keywords is not None:
        found, warnings = read_keywords(extras.keywords, str(extras.keywords))
        for warning in warnings:
            echo_error(f"toolcrib: {warning}")
        yield found
    if extras.describe is not None:
        yield anyio.run(_describe, extras.describe, file)


async def _describe(name: str, file: ToolFile) -> KeywordsByTool:
    """Run the function once for each tool."""
    keywords = ToolKeywords({})
    describer = ToolDescriber(load_hook(name), keywords, MemoryStore(), name=name)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            group.cancel_scope.cancel()
            await anyio.sleep_forever()

        await describer.run(lambda: file.tools, lambda: None, stop)
    described = keywords.apply(file.tools)
    missing = sum(map(keywords.lacks, file.tools))
    if missing:
        echo_error(f"toolcrib: {name} failed for {missing} of {len(file.tools)} tools")
    return {tool.id: tool.keywords for tool in described}


def _with_keywords(file: ToolFile, words: Sequence[KeywordsByTool]) -> ToolFile:
    """The file with more keywords, which name a tool by the id of its row or by `namespace:name`."""
    if not words:
        return file
    added = [
        add_keywords([tool], *({tool.id: each.get(id_) or each.get(tool.id, ())} for each in words))[0]
        for id_, tool in zip(file.ids, file.tools, strict=True)
    ]
    return ToolFile(iter(zip(file.ids, added, strict=True)))


def _figures(case: _Case, shelf: FileSearch, build_s: float, embedder: Embedder | None = None) -> dict[str, Any]:
    for query in case.queries[:_WARM_UP]:
        shelf.ranking(query.text)
    report = evaluate(shelf.ranking, case.queries, clock=perf_counter)
    return {
        "scorer": shelf.options.scorer,
        **({} if embedder is None else {"embedder": embedder.name}),
        "tools": len(case.file.tools),
        "queries": report.queries,
        **({"past": len(case.past)} if shelf.past is not None else {}),
        **report.metrics.as_dict(),
        "p50_us": round(report.p50_s * 1e6, 1),
        "p95_us": round(report.p95_s * 1e6, 1),
        "build_s": round(build_s, 6),
        **_lost_answer_rates(shelf, case.queries),
        **(_false_answer_rates(shelf, case.unanswerable) if case.unanswerable else {}),
    }


def _lost_answer_rates(shelf: FileSearch, asked: Sequence[LabelledQuery]) -> dict[str, float]:
    free = without_thresholds(shelf.options)
    rates = lost_answers((query, shelf.answer(query.text, free).shown, shelf.answer(query.text)) for query in asked)
    return {"lost_answer_rate": rates.shown, "lost_answer_rate_sure": rates.sure}


def _false_answer_rates(shelf: FileSearch, others: Sequence[LabelledQuery]) -> dict[str, float]:
    rates = false_answers(shelf.answer(query.text) for query in others)
    return {"unanswerable": len(others), "false_answer_rate": rates.shown, "false_answer_rate_sure": rates.sure}


# -- comparing ---------------------------------------------------------------------------------------------------------


def _comparison(
    case: _Case, without: FileSearch, shelf: FileSearch, before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    rows = [(query, without.ranking(query.text), shelf.ranking(query.text)) for query in case.queries]
    scores = [(score(old, query.relevant).as_dict(), score(new, query.relevant).as_dict()) for query, old, new in rows]
    change = {name: [new[name] - old[name] for old, new in scores] for name in _COMPARED}
    moved = [
        {"id": query.id, "query": query.text, "before": _rank(old, query), "after": _rank(new, query)}
        for query, old, new in rows
    ]
    return {
        "before": dict(before),
        "after": dict(after),
        "change": {name: _mean(values) for name, values in change.items()},
        "interval": {name: _interval(values) for name, values in change.items()},
        "better": sorted((row for row in moved if _gain(row) > 0), key=_gain, reverse=True),
        "worse": sorted((row for row in moved if _gain(row) < 0), key=_gain),
    }


def _rank(ranking: Sequence[str], query: LabelledQuery) -> int | None:
    """The rank of the first right tool, from 1; None if it is not among the first ten."""
    return next((place for place, id_ in enumerate(ranking, start=1) if id_ in query.relevant), None)


def _gain(row: Mapping[str, Any]) -> float:
    """By how much the reciprocal rank of a query has grown."""
    after, before = (1 / row[name] if row[name] else 0.0 for name in ("after", "before"))
    return after - before


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _interval(values: Sequence[float]) -> list[float]:
    """Where the middle 95 % of the means of resampled queries begin and end."""
    chance = random.Random(SEED)  # noqa: S311 - the same interval every time is the point
    means = sorted(_mean(chance.choices(values, k=len(values))) for _ in range(_ROUNDS))
    return [means[round(0.025 * (_ROUNDS - 1))], means[round(0.975 * (_ROUNDS - 1))]]


# -- printing ----------------------------------------------------------------------------------------------------------


def _print_figures(figures: Mapping[str, Any]) -> None:
    """Print the figures as a table; two columns and the queries that changed, if two searches were compared."""
    if "change" in figures:
        _print_comparison(figures)
        return
    table = new_table("figure", "value", texts=1)
    for name, value in figures.items():
        if name == "recall@1":
            table.add_section()
        table.add_row(name, _format_value(value))
    table_console(_MAX_WIDTH).print(table)


def _print_comparison(figures: Mapping[str, Any]) -> None:
    table = new_table("figure", "without", "with", "change", "95 % interval", texts=1)
    before, after = figures["before"], figures["after"]
    for name, value in after.items():
        if name == "recall@1":
            table.add_section()
        row = [name, _format_value(before.get(name, "")), _format_value(value)]
        if name in _COMPARED:
            low, high = figures["interval"][name]
            row += [f"{figures['change'][name]:+.3f}", f"{low:+.3f} to {high:+.3f}"]
        table.add_row(*row, *[""] * (5 - len(row)))
    table_console(_MAX_WIDTH).print(table)
    for name in ("better", "worse"):
        rows = figures[name]
        echo(f"\n{name.capitalize()}: {len(rows)} of {after['queries']} queries")
        for row in rows[:_MAX_LISTED]:
            echo(f"  {_shown(row['before'])} -> {_shown(row['after'])}  {row['query'][: _MAX_WIDTH - 20]}")
        if len(rows) > _MAX_LISTED:
            echo(f"  and {len(rows) - _MAX_LISTED} more; --json has all")


def _shown(rank: int | None) -> str:
    return "not found" if rank is None else f"{rank:>9}"


def _format_value(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else str(value)
