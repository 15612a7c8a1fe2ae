"""Everyday requests: how often the first hit, or one of five, is right, and how often a hit is shown where none fits.

The set is in `tests/retrieval/everyday`. Its sealed part is for measuring only; both parts have the same tools.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engines import Engine
from sets import ROOT, Set

from toolcrib.cli.files import read_tools
from toolcrib.search.evaluation import LabelledQuery

FOLDER = ROOT / "tests" / "retrieval" / "everyday"
PARTS = {"sealed": "sealed", "development": "queries"}
"""The parts of the set, and their files."""

SEALED = {"sealed, another author": "sealed_second"}
"""Run for a last measurement only, with --sealed, and never while building."""


def measured(engines: Sequence[Engine], *, sealed: bool = False) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Engine, part and its shares, one after the other; with `sealed`, those of the second sealed part alone."""
    tools = read_tools(FOLDER / "tools.jsonl")
    for part, file in (SEALED if sealed else PARTS).items():
        each = Set(part, tools, tuple(_queries(FOLDER / f"{file}.jsonl")))
        for engine in (engine for engine in engines if engine.ranked and "marks off" not in engine.name):
            yield engine.name, part, _shares(engine, each)


def _queries(path: Path) -> Iterator[LabelledQuery]:
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line or line.startswith("#"):
            continue
        row = json.loads(line)
        yield LabelledQuery(id=row["id"], text=row["query"], relevant=frozenset(row["relevant"]))


def _shares(engine: Engine, each: Set) -> dict[str, float]:
    answer = engine.answers(each.pairs)
    given = [(query.relevant, answer(query.text)) for query in each.queries]
    fitting = [(right, answer.shown) for right, answer in given if right]
    others = [answer.sure for right, answer in given if not right]
    return {
        "first": sum(bool(right & {*shown[:1]}) for right, shown in fitting) / len(fitting),
        "five": sum(bool(right & {*shown[:5]}) for right, shown in fitting) / len(fitting),
        "false": sum(bool(sure) for sure in others) / len(others),
    }
