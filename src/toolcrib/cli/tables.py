"""Tables for people: how a score is computed, and the figures of an evaluation."""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolcrib.cli.output import printable, terminal_width
from toolcrib.types import Hit, Reason, ScorePart, Tool

_MAX_WIDTH: Final = 120


def print_parts(hits: tuple[Hit, ...], named: Callable[[Tool], str]) -> None:
    """Print two tables for each hit: the parts of its score, and the matches of each word."""
    console = table_console(_MAX_WIDTH)
    for place, hit in enumerate(hits, start=1):
        console.print(cell(f"\n{place}. {named(hit.tool)}  {hit.score:.2f}"))
        if hit.parts:
            console.print(_score_table(hit.parts))
        if hit.reasons:
            console.print(_match_table(hit.reasons))


def table_console(widest: int) -> Console:
    """A console for tables, as wide as the terminal up to a limit; plain text if it is not a terminal."""
    return Console(file=sys.stdout, width=min(terminal_width(), widest), highlight=False, emoji=False, markup=False)


def new_table(*heads: str, texts: int) -> Table:
    """An empty table, whose first `texts` columns are left-aligned, and the others right-aligned."""
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < texts else "right", overflow="fold")
    return table


def cell(text: str) -> Text:
    """A cell with the text, without control characters."""
    return Text(printable(text))


def contribution(part: ScorePart) -> float:
    """The contribution of a part to the score."""
    return part.value * part.weight


def _score_table(parts: tuple[ScorePart, ...]) -> Table:
    table = new_table("part", "value", "weight", "adds", texts=1)
    for part in parts:
        table.add_row(cell(part.name), f"{part.value:.3f}", f"{part.weight:.3f}", f"{contribution(part):.3f}")
    table.add_section()
    table.add_row("sum", "", "", f"{sum(map(contribution, parts)):.3f}")
    return table


def _match_table(reasons: Sequence[Reason]) -> Table:
    table = new_table("word", "field", "how", "met", "gain", texts=4)
    for reason in reasons:
        texts = (reason.word, reason.field, reason.how, reason.matched or reason.word)
        table.add_row(*map(cell, texts), f"{reason.gain:.3f}")
    return table
