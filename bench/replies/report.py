"""Figures of many attempts, and the tables made of them."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from agent import Attempt

from toolcrib.search.evaluation import percentile

NOW, BEFORE, FIRST = "toolcrib", "toolcrib before", "toolcrib 0.1.0"
DYNAMIC, DYNAMIC_BEFORE = "toolcrib, surface dynamic", "toolcrib before, surface dynamic"
ORDER = (NOW, BEFORE, FIRST, DYNAMIC, DYNAMIC_BEFORE, "fastmcp")
SETTINGS = {"alone": "Alone", "among": "Among 5,133 recorded tools"}
HEAD = (
    "system", "`tools/list`", "first reply, p50", "p95", "structured content, p50",
    "right tool in the first 3", "of these with its schema", "schema in the first reply",
    "called", "round trips", "tokens until the call", "to before",
)  # fmt: skip


def cell(attempts: Mapping[str, Sequence[Attempt]], fixed: Sequence[int]) -> dict[str, Any]:
    """The figures of one system: over all attempts, and of each set."""
    pooled = [each for group in attempts.values() for each in group]
    return {
        "list_tokens": round(mean(fixed)),
        **figures(pooled),
        "sets": {name: figures(group) for name, group in attempts.items()},
    }


def figures(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Tokens and shares of some attempts, at least one; shares are from 0 to 1.

    `call_tokens` counts everything that was read and asked, also before giving up, for each valid call.
    """
    first = [float(each.first.tokens) for each in attempts]
    structured = [float(each.first.structured_tokens) for each in attempts]
    near = [each for each in attempts if each.rank is not None and each.rank <= 3]
    called = sum(each.called for each in attempts)
    return {
        "requests": len(attempts),
        "p50": percentile(first, 0.5),
        "p95": percentile(first, 0.95),
        "mean": round(mean(first), 1),
        "structured_p50": percentile(structured, 0.5),
        "top3": len(near) / len(attempts),
        "top3_complete": sum(each.is_complete for each in near) / max(1, len(near)),
        "complete": sum(each.is_complete for each in attempts) / len(attempts),
        "structured_complete": sum(each.is_structured_complete for each in attempts) / len(attempts),
        "called": called / len(attempts),
        "round_trips": round(sum(each.round_trips for each in attempts) / max(1, called), 2),
        "call_tokens": round(sum(each.tokens for each in attempts) / max(1, called)),
    }


def table(kept: Mapping[str, Any]) -> str:
    """The tables of all settings, in Markdown."""
    found = {setting: kept["figures"].get(setting, {}) for setting in SETTINGS}
    return "\n\n".join(_table(setting, cells, kept["everything"][setting]) for setting, cells in found.items() if cells)


def _table(setting: str, cells: Mapping[str, Any], everything: int) -> str:
    base = cells.get(BEFORE, {}).get("call_tokens")
    rows = [_row(cells[name], base) for name in ORDER if name in cells]
    rows.append(["everything listed", f"{everything:,}", "0", "0", "0", "", "", "100 %", "100 %", "1.00", "0", ""])
    lines = [f"| {' | '.join(row)} |" for row in (HEAD, *rows)]
    return "\n".join([f"### {SETTINGS[setting]}", "", lines[0], f"|---|{'---:|' * (len(HEAD) - 1)}", *lines[1:]])


def _row(each: Mapping[str, Any], base: int | None) -> list[str]:
    return [
        each["label"],
        f"{each['list_tokens']:,}",
        *(f"{each[key]:,.0f}" for key in ("p50", "p95", "structured_p50")),
        *(f"{100 * each[key]:.0f} %" for key in ("top3", "top3_complete", "complete", "called")),
        f"{each['round_trips']:.2f}",
        f"{each['call_tokens']:,}",
        f"{100 * each['call_tokens'] / base:.0f} %" if base else "",
    ]


def replaced(page: str, part: str, text: str) -> str:
    """The page with a text between the marks of a part, `figures` or `examples`."""
    begin, end = f"<!-- {part}: written by make bench-replies -->", f"<!-- end of {part} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
