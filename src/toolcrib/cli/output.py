"""Print text for people and JSON for programs, without control characters that a terminal would obey."""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from toolcrib.errors import ToolcribError

_MIN_COLUMN_WIDTH = 20


def echo(text: str = "") -> None:
    """Print a line to standard output."""
    typer.echo(printable(text))


def echo_error(text: str) -> None:
    """Print a line to standard error."""
    typer.echo(printable(text), err=True)


def echo_json(value: Any) -> None:
    """Print JSON to standard output, in ASCII, which every terminal and program can read."""
    typer.echo(json.dumps(value, indent=2, default=str))


def print_error(error: ToolcribError) -> None:
    """Print an error with its hint and suggestions."""
    echo_error(f"toolcrib: {error.message}")
    if error.hint:
        echo_error(error.hint)
    unsaid = [name for name in error.suggestions if name not in str(error)]
    if unsaid:
        echo_error("Did you mean: " + ", ".join(unsaid) + "?")


def printable(text: str) -> str:
    r"""Remove control characters, which terminals obey: servers write descriptions.

    >>> printable("ring\a \x1b[31mred\x1b[0m\n")
    'ring [31mred[0m\n'
    """
    if text.isprintable():
        return text
    return "".join(char for char in text.replace("\xa0", " ") if char.isprintable() or char in "\n\t")


def first_line(text: str) -> str:
    """The first line that is not blank, with single spaces."""
    return " ".join(next((line for line in text.splitlines() if line.strip()), "").split())


def print_columns(rows: Iterable[Sequence[str]], *, head: Sequence[str] = ()) -> None:
    """Print rows as aligned columns. On a terminal, the last column is cut to its width."""
    lines = [[printable(cell).replace("\n", " ") for cell in row] for row in ([head] if head else []) + list(rows)]
    if not lines:
        return
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]) - 1)]
    room = max(_MIN_COLUMN_WIDTH, terminal_width() - sum(widths) - 2 * len(widths))
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        echo("  ".join([*cells, truncate(line[-1], room)]).rstrip())


def terminal_width() -> int:
    """The width of the terminal; very large if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000_000


def pluralize(number: int, noun: str) -> str:
    """A number with its noun, singular or plural.

    >>> pluralize(1, "server"), pluralize(0, "tool")
    ('1 server', '0 tools')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def truncate(text: str, room: int) -> str:
    """Cut the text to a width, with an ellipsis."""
    return text if len(text) <= room else text[: room - 3].rstrip() + "..."
