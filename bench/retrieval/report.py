"""Tables and a picture of the figures, written into the documentation."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from engines import OURS
from languages import NAMES, PARTS
from nothing import LEFT_OUT
from picture import picture
from quality import TRACKS
from sets import DECISIVE, ROOT, SAME_TOOLS

PAGE = ROOT / "docs" / "explanation" / "retrieval.md"
PICTURE = ROOT / "docs" / "assets" / "retrieval.svg"
BEGIN, END = "<!-- figures: written by make bench-retrieval -->", "<!-- end of figures -->"

README = ROOT / "README.md"
README_BEGIN, README_END = "<!-- retrieval: written by make bench-retrieval -->", "<!-- end of retrieval -->"
SEMANTIC = f"{OURS} + semantic"
"""The row of the sentence encoder, where it is installed."""

README_ENGINES = (OURS, SEMANTIC, "fastmcp", "bm25s", "toolregistry", "chuk-tool-processor")
README_LABELS = {OURS: "**toolcrib**", SEMANTIC: "**toolcrib[semantic]**"}

CAPTION = "nDCG@10 of the main track against the time of a search"

KINDS = ("terse", "plain", "sentence", "indirect", "long", "two_needs", "typo", "name")
METRICS = ("recall@1", "recall@5", "recall@10", "mrr@10", "ndcg@10")
SHORT = {"recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "mrr@10": "MRR@10", "ndcg@10": "nDCG@10"}

Figures = dict[str, Any]


def publish(kept: Figures) -> None:
    """Write the tables into the page between their marks, and the picture beside it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = ""
    if drawn := picture(points(kept)):
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(drawn)
        shown = f"![{CAPTION}](../assets/{PICTURE.name})\n\n"
    PAGE.write_text(f"{before}{BEGIN}\n\n{shown}{markdown(kept)}\n\n{END}{after}")


def publish_shipped(kept: Figures) -> None:
    """Write the table of the sets that everyone has into the README."""
    before, _, rest = README.read_text().partition(README_BEGIN)
    _, _, after = rest.partition(README_END)
    shown = shipped_table(kept)
    README.write_text(f"{before}{README_BEGIN}\n\n{shown}\n\n{README_END}{after}")
    print(shown)


def shipped_table(kept: Figures) -> str:
    """Each engine's recall and nDCG on each set, with typos, and how often it answers a query that no tool fits."""
    names = list(kept["sets"])
    rows = []
    for engine in (engine for engine in README_ENGINES if engine in kept["quality"]):
        cells = kept["quality"][engine]
        typos = mean(_values(kept, engine, "typo", "recall@5"))
        answered, sure = (
            round(100 * mean(each["false"][mark] for each in kept["nothing"][engine].values() if each["queries"]))
            for mark in ("shown", "sure")
        )
        marked = "" if sure == answered else f" ({sure} % not marked weak)"
        label = README_LABELS.get(engine) or kept["engines"][engine]
        mains = [_triple(cells[name]["tracks"]["main"]) for name in names]
        rows.append([label, *mains, f"{typos * 100:.1f}", f"{answered} %{marked}"])
    sizes = [f"`{name}`, {kept['sets'][name]['tools']:,} tools" for name in names]
    return table(["R@1 / R@5 / nDCG@10, x100", *sizes, "R@5 with a typo", "no tool fits: answers anyway"], rows)


def markdown(kept: Figures) -> str:
    """All tables that there are figures for."""
    parts = [_machine(kept)]
    if "quality" in kept:
        parts += [_decisive(kept), _intervals(kept), *_kinds(kept)]
        parts += [_macro(kept, track) for track in TRACKS] + [_each_set(kept, track) for track in TRACKS]
    if kept.get("nothing"):
        parts += [_false(kept), _lost(kept)]
    if kept.get("everyday"):
        parts.append(_everyday(kept))
    if kept.get("languages"):
        parts += [_languages(kept, part) for part in PARTS]
    if kept.get("past"):
        parts.append(_past(kept))
    if kept.get("used"):
        parts.append(_used(kept))
    if "speed" in kept:
        parts += [_times(kept), _builds(kept), _memory(kept), _added(kept)]
    return "\n\n".join(part for part in parts if part)


def points(kept: Figures) -> list[tuple[str, float, float]]:
    """Of each engine: its label, p50 of a search of the smallest catalog in microseconds, nDCG@10 of the main track."""
    if "speed" not in kept or "quality" not in kept:
        return []
    times = kept["speed"][min(kept["speed"], key=int)]
    return [
        (kept["engines"][name], times[name]["p50_us"], mean(_values(kept, name, "main", "ndcg@10")))
        for name in _engines(kept, "quality")
        if name in times
    ]


def mean(values: Iterable[float]) -> float:
    """Every set weighs the same."""
    known = list(values)
    return sum(known) / len(known) if known else 0.0


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and whose others are figures."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], f"|---|{'---:|' * (len(head) - 1)}", *lines[1:]])


def _machine(kept: Figures) -> str:
    sets = ", ".join(f"{name} ({each['tools']} tools)" for name, each in kept["sets"].items())
    return f"Sets: {sets}. Machine: {kept['machine']}."


def _decisive(kept: Figures) -> str:
    names = [name for name in DECISIVE if name in kept["sets"]]
    rows = []
    for engine, cells in _rows(kept, "quality"):
        mains = [_main(cells, name) for name in names]
        if mains and all("interval" in main for main in mains):
            means = [f"{100 * mean(cell[metric] for cell in mains):.1f}" for metric in ("recall@1", "recall@5")]
            rows.append([kept["engines"][engine], *means, _mean_interval(mains), _mean_difference(mains)])
    if not rows:
        return ""
    title = f"### Sets that still tell engines apart, mean with 95 % interval, x100\n\n{', '.join(names)}"
    return f"{title}\n\n{table(['engine', 'R@1', 'R@5', 'nDCG@10', 'nDCG@10 beside ours'], rows)}"


def _mean_interval(cells: Sequence[Figures]) -> str:
    """The mean of the sets; its interval is that of a sum of independent means."""
    centre = mean(cell["ndcg@10"] for cell in cells)
    return _with_interval(centre, _pooled([cell["interval"]["ndcg@10"] for cell in cells]))


def _mean_difference(cells: Sequence[Figures]) -> str:
    compared = [cell["to_ours"]["ndcg@10"] for cell in cells if "to_ours" in cell]
    if len(compared) < len(cells):
        return ""
    centre = mean(change for change, *_ in compared)
    return _with_interval(centre, _pooled([ends for _, *ends in compared]), sign="+")


def _pooled(intervals: Sequence[Sequence[float]]) -> float:
    """Half the width of the interval of the mean of independent means."""
    return math.sqrt(sum(((high - low) / 2) ** 2 for low, high in intervals)) / len(intervals)


def _with_interval(centre: float, half: float, sign: str = "") -> str:
    return f"{100 * centre:{sign}.1f} ({100 * (centre - half):{sign}.1f} to {100 * (centre + half):{sign}.1f})"


def _intervals(kept: Figures) -> str:
    names = list(kept["sets"])

    def cell(main: Figures) -> str:
        low, high = main["interval"]["ndcg@10"]
        shown = f"{100 * main['ndcg@10']:.1f} ({100 * low:.1f} to {100 * high:.1f})"
        if "to_ours" not in main:
            return shown
        change, low, high = main["to_ours"]["ndcg@10"]
        return f"{shown}; {100 * change:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"

    rows = [
        [
            kept["engines"][engine],
            *(cell(_main(cells, name)) if "interval" in _main(cells, name) else "" for name in names),
        ]
        for engine, cells in _rows(kept, "quality")
    ]
    if not any(any(cells) for _, *cells in rows):
        return ""
    title = "### Track `main`, nDCG@10 with 95 % interval; difference to ours on the same requests, x100"
    return f"{title}\n\n{table(['engine', *names], rows)}"


def _main(cells: Figures, name: str) -> Figures:
    main: Figures = _tracks(cells, name).get("main", {})
    return main


def _tracks(cells: Figures, name: str) -> Figures:
    tracks: Figures = cells.get(name, {}).get("tracks", {})
    return tracks


def _kinds(kept: Figures) -> list[str]:
    """A table for each set with kinds."""
    return [
        _by_kind(kept, name)
        for name in kept["sets"]
        if any("kinds" in cells.get(name, {}) for cells in kept["quality"].values())
    ]


def _by_kind(kept: Figures, name: str) -> str:
    measured = [(engine, cells[name]) for engine, cells in _rows(kept, "quality") if "kinds" in cells.get(name, {})]
    kinds = [kind for kind in KINDS if kind in measured[0][1]["kinds"]]
    rows = []
    for engine, cell in measured:
        misses = cell.get("near_misses")
        shown = _marks(misses) if misses else ""
        rows.append([kept["engines"][engine], *(_kind(cell["kinds"][kind]) for kind in kinds), shown])
    counts = [f"{kind} ({measured[0][1]['kinds'][kind]['queries']})" for kind in kinds]
    title = f"### Set `{name}` by kind: R@1 / R@5 / nDCG@10 (its 95 % interval), x100"
    return f"{title}\n\n{table(['engine', *counts, 'near misses answered / not marked weak, %'], rows)}"


def _kind(cell: Figures) -> str:
    low, high = cell["interval"]["ndcg@10"]
    return f"{_triple(cell)} ({100 * low:.0f} to {100 * high:.0f})"


def _past(kept: Figures) -> str:
    cases = kept["past"]
    head = ["requests as the past", *cases]
    rows = []
    for name in next(iter(cases.values())):
        cells = [cells[name] for cells in cases.values()]
        rows.append(
            [name, *(f"{100 * (one['with'] - one['without']):+.1f} ({100 * one['tools']:.0f} %)" for one in cells)]
        )
    means = [mean(100 * (one["with"] - one["without"]) for one in cells.values()) for cells in cases.values()]
    rows.append(["**mean**", *(f"**{value:+.2f}**" for value in means)])
    intro = "What past requests add to nDCG@10, x100, and the share of tools that have a past:"
    return f"{intro}\n\n{table(head, rows)}"


def _used(kept: Figures) -> str:
    cases = kept["used"]
    rows = [
        [name, *(f"{100 * (cells[name]['with'] - cells[name]['without']):+.1f}" for cells in cases.values())]
        for name in next(iter(cases.values()))
    ]
    means = [mean(100 * (one["with"] - one["without"]) for one in cells.values()) for cells in cases.values()]
    rows.append(["**mean**", *(f"**{value:+.2f}**" for value in means)])
    intro = "What tools of a caller's earlier sessions add to nDCG@10, x100, for requests whose tool was:"
    return f"{intro}\n\n{table(['set', *cases], rows)}"


def _languages(kept: Figures, part: str) -> str:
    rows = []
    for engine, parts in _rows(kept, "languages"):
        if part in parts:
            cells = [parts[part][name] for name in NAMES]
            means = [mean(cell[metric] for cell in cells[1:]) for metric in ("recall@5", "ndcg@10")]
            shown = [f"{100 * cell['recall@5']:.1f} / {100 * cell['ndcg@10']:.1f}" for cell in cells]
            rows.append([kept["engines"][engine], f"{100 * means[0]:.1f} / {100 * means[1]:.1f}", *shown])
    tools = {"same": "tools in the same language", "mixed": "these among tools in English", "cross": "tools in English"}
    title = f"### Languages, {tools[part]}: R@5 / nDCG@10, x100"
    return f"{title}\n\n{table(['engine', 'mean without en', *NAMES], rows)}"


def _macro(kept: Figures, track: str) -> str:
    best = mean(_values(kept, OURS, track, "ndcg@10")) if OURS in kept["quality"] else 0.0
    rows = []
    for name in _engines(kept, "quality"):
        means = [mean(_values(kept, name, track, metric)) for metric in METRICS]
        rows.append([kept["engines"][name], *(f"{value * 100:.1f}" for value in means), _ratio(means[-1], best)])
    head = ["engine", *(SHORT[metric] for metric in METRICS), "nDCG to ours"]
    return f"### Track `{track}`, mean of the sets, x100\n\n{table(head, rows)}"


def _each_set(kept: Figures, track: str) -> str:
    every = [cells for _, cells in _rows(kept, "quality")]
    names = [name for name in kept["sets"] if any(track in _tracks(cells, name) for cells in every)]
    rows = [
        [
            kept["engines"][engine],
            *(_triple(_tracks(cells, name)[track]) if track in _tracks(cells, name) else "" for name in names),
        ]
        for engine, cells in _rows(kept, "quality")
    ]
    return f"### Track `{track}`, each set: R@1 / R@5 / nDCG@10, x100\n\n{table(['engine', *names], rows)}"


def _triple(cell: Figures) -> str:
    if not cell["queries"]:
        return ""
    return " / ".join(f"{cell[metric] * 100:.1f}" for metric in ("recall@1", "recall@5", "ndcg@10"))


def _false(kept: Figures) -> str:
    names = [name for name in kept["sets"] if any(name in cells for cells in kept["nothing"].values())]

    def cell(cells: Figures, name: str) -> str:
        return _marks(cells[name]["false"]) if name in cells and cells[name]["queries"] else ""

    def over_all(cells: Figures, mark: str) -> float:
        return mean(each["false"][mark] for name, each in cells.items() if name not in LEFT_OUT and each["queries"])

    rows = [
        [
            kept["engines"][engine],
            _marks({mark: over_all(cells, mark) for mark in ("shown", "sure")}),
            *(cell(cells, name) for name in names),
        ]
        for engine, cells in _rows(kept, "nothing")
    ]
    title = "### Queries that no tool fits: % answered all the same, any hit / a hit not marked as weak"
    left_out = [name for name in names if name in LEFT_OUT]
    note = f"\n\nNot in the mean: {', '.join(left_out)}." if left_out else ""
    return f"{title}\n\n{table(['engine', 'mean', *names], rows)}{note}"


def _lost(kept: Figures) -> str:
    names = [name for name in kept["sets"] if name not in SAME_TOOLS]
    rows = []
    for engine, cells in _rows(kept, "nothing"):
        lost = {name: each["lost"] for name, each in cells.items() if "lost" in each}
        if lost:
            over_all = {mark: mean(each[mark] for each in lost.values()) for mark in ("shown", "sure")}
            shown = [_marks(lost[name]) if name in lost else "" for name in names]
            rows.append([kept["engines"][engine], _marks(over_all), *shown])
    if not rows:
        return ""
    title = "### Queries that a tool fits: % whose right tool was in the top five and is withheld, nothing / weak"
    return f"{title}\n\n{table(['engine', 'mean', *names], rows)}"


def _marks(rates: Figures) -> str:
    return f"{rates['shown'] * 100:.1f} / {rates['sure'] * 100:.1f}"


def _everyday(kept: Figures) -> str:
    rows = []
    for engine, cells in _rows(kept, "everyday"):
        shares = [f"{cell[name] * 100:.1f}" for cell in cells.values() for name in ("first", "five", "false")]
        rows.append([kept["engines"][engine], *shares])
    parts = list(next(iter(kept["everyday"].values())))
    head = [f"{part}: {name}" for part in parts for name in ("right first", "among five", "false sure")]
    return f"### Everyday requests, %\n\n{table(['engine', *head], rows)}"


def _times(kept: Figures) -> str:
    return _by_size(
        kept,
        "### Time of a search: p50 / p95, and p50 as a ratio to ours",
        lambda cell, best: (
            f"{_time(cell['p50_us'])} / {_time(cell['p95_us'])} ({_ratio(cell['p50_us'], best.get('p50_us', 0))})"
        ),
    )


def _builds(kept: Figures) -> str:
    return _by_size(
        kept,
        "### Time to build the index, and as a ratio to ours",
        lambda cell, best: f"{_time(cell['build_s'] * 1e6)} ({_ratio(cell['build_s'], best.get('build_s', 0))})",
    )


def _memory(kept: Figures) -> str:
    if not any("memory_mb" in cell for cells in kept["speed"].values() for cell in cells.values()):
        return ""
    return _by_size(
        kept,
        "### Memory that the index takes, MB",
        lambda cell, _: f"{cell['memory_mb']:.0f}" if "memory_mb" in cell else "",
    )


def _by_size(kept: Figures, title: str, shown: Callable[[Figures, Figures], str]) -> str:
    sizes = sorted(kept["speed"], key=int)
    engines = [name for name in kept["engines"] if any(name in kept["speed"][size] for size in sizes)]
    rows = []
    for engine in engines:
        cells = [(kept["speed"][size].get(engine), kept["speed"][size].get(OURS, {})) for size in sizes]
        rows.append([kept["engines"][engine], *(shown(cell, best) if cell else "" for cell, best in cells)])
    return f"{title}\n\n{table(['engine', *(f'{int(size):,} tools' for size in sizes)], rows)}"


def _added(kept: Figures) -> str:
    if "added" not in kept:
        return ""
    added = kept["added"]
    return (
        f"One tool more in an index of {added['tools']:,}: in it after {added['there_ms']:.1f} ms, "
        f"found by a search after {added['found_ms']:.1f} ms."
    )


def _engines(kept: Figures, stage: str) -> list[str]:
    return [name for name in kept["engines"] if name in kept[stage]]


def _rows(kept: Figures, stage: str) -> list[tuple[str, Figures]]:
    return [(name, kept[stage][name]) for name in _engines(kept, stage)]


def _values(kept: Figures, engine: str, track: str, metric: str) -> list[float]:
    tracks = [cell["tracks"][track] for cell in kept["quality"].get(engine, {}).values() if track in cell["tracks"]]
    return [each[metric] for each in tracks if each["queries"]]


def _ratio(value: float, best: float) -> str:
    return f"{value / best:.2f}" if best else ""


def _time(microseconds: float) -> str:
    if microseconds < 1_000:
        return f"{microseconds:.0f} us"
    if microseconds < 1_000_000:
        return f"{microseconds / 1_000:.1f} ms"
    return f"{microseconds / 1_000_000:.1f} s"
