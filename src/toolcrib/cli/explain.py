"""The arithmetic of a search's hits, as tables for people."""

import sys
from collections.abc import Callable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolcrib.cli.output import clean, terminal_width
from toolcrib.model import Hit, Reason, ScorePart, Tool

_WIDEST = 120


def say_parts(hits: tuple[Hit, ...], named: Callable[[Tool], str]) -> None:
    """Two tables for each hit: what its figure is the sum of, and which word met what."""
    console = console_of(_WIDEST)
    for place, hit in enumerate(hits, start=1):
        console.print(cell(f"\n{place}. {named(hit.tool)}  {hit.score:.2f}"))
        if hit.parts:
            console.print(_arithmetic(hit.parts))
        if hit.reasons:
            console.print(_meetings(hit.reasons))


def console_of(widest: int) -> Console:
    """Standard output for tables: as wide as the terminal, but no wider than that; plain text where it is none."""
    return Console(file=sys.stdout, width=min(terminal_width(), widest), highlight=False, emoji=False, markup=False)


def table_of(*heads: str, texts: int) -> Table:
    """An empty table; its first columns are texts, so many, and the rest figures."""
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < texts else "right", overflow="fold")
    return table


def cell(text: str) -> Text:
    """A text as it is, without what terminals obey."""
    return Text(clean(text))


def added(part: ScorePart) -> float:
    """What the part added to the hit's own figure."""
    return part.value * part.weight


def _arithmetic(parts: tuple[ScorePart, ...]) -> Table:
    table = table_of("part", "value", "weight", "adds", texts=1)
    for part in parts:
        table.add_row(cell(part.name), f"{part.value:.3f}", f"{part.weight:.3f}", f"{added(part):.3f}")
    table.add_section()
    table.add_row("sum", "", "", f"{sum(map(added, parts)):.3f}")
    return table


def _meetings(reasons: Sequence[Reason]) -> Table:
    table = table_of("word", "field", "how", "met", "gain", texts=4)
    for reason in reasons:
        texts = (reason.word, reason.field, reason.how, reason.matched or reason.word)
        table.add_row(*map(cell, texts), f"{reason.gain:.3f}")
    return table
