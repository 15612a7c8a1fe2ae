"""The retrieval test set: real tools, and queries with the tools that answer them.

What it is made from, and how it was judged, is in data/SOURCES.md.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from toolcrib.types import Tool

FOLDER = Path(__file__).parent
DATA = FOLDER / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One query. `relevant` has the ids of all tools that do the job; it is empty if there is none.

    `kind` is terse, sentence, long, two_needs, typo or name where a tool does; else unanswerable (far from every tool)
    or near_miss (close to tools that do something else).
    """

    id: str
    query: str
    relevant: frozenset[str]
    kind: str


@cache
def tools() -> tuple[Tool, ...]:
    """All tools of the set, by id."""
    return tuple(map(tool, rows("tools")))


def tool(row: dict[str, Any]) -> Tool:
    """The tool of a row of a tools file."""
    return Tool(
        namespace=row["namespace"],
        name=row["name"],
        description=row["description"],
        input_schema=row["parameters"],
        tags=tuple(row["tags"]),
    )


@cache
def cases(*kinds: str) -> tuple[Case, ...]:
    """The queries of these kinds, or all of them, in the order of the file."""
    read = (
        Case(id=row["id"], query=row["query"], relevant=frozenset(row["relevant"]), kind=row["kind"])
        for row in rows("queries")
    )
    return tuple(case for case in read if not kinds or case.kind in kinds)


@cache
def answerable() -> tuple[Case, ...]:
    """The queries that a tool answers, in the order of the file."""
    return tuple(case for case in cases() if case.relevant)


def rows(name: str, *, folder: str = "data") -> Iterator[dict[str, Any]]:
    """The raw rows of a file of a set, named without its suffix."""
    # Not splitlines: descriptions may contain separators that it splits at.
    for line in (FOLDER / folder / f"{name}.jsonl").read_text(encoding="utf-8").split("\n"):
        if line:
            yield json.loads(line)
