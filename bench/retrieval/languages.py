"""Requests in eight languages: over tools in that language, over mixed catalogs, and over tools in English.

The set is in `tests/retrieval/languages`, whose README says how it was made. All of it is for development.
"""

import json
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from engines import Engine
from intervals import means
from quality import scored
from sets import ROOT, Set

from toolcrib.cli.files import ToolFile, read_tools
from toolcrib.search.evaluation import LabelledQuery
from toolcrib.types import Tool

FOLDER = ROOT / "tests" / "retrieval" / "languages"
ALL_ENGLISH = ROOT / "tests" / "retrieval" / "data" / "tools.jsonl"
NAMES = ("en", "de", "fr", "es", "pt", "ru", "zh", "ja", "ko")
PARTS = ("same", "mixed", "cross")
"""Only tools in the language of the requests; those among tools in English; only tools in English."""


def measured(engines: Sequence[Engine]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Engine, part and the figures of each language, one after the other."""
    for engine in (engine for engine in engines if engine.ranked):
        for part in PARTS:
            cell = {}
            for each in sets(part):
                scores = scored(engine.build(each.pairs), each.queries)
                cell[each.name] = means([*scores.values()])
            yield engine.name, part, cell


def sets(part: str) -> Iterator[Set]:
    """One set for each language."""
    english = _tools(ALL_ENGLISH)
    for name in NAMES:
        own = _tools(FOLDER / name / "tools.jsonl")
        catalog = {"same": own, "mixed": english | own, "cross": english}[part]
        queries = tuple(_queries(FOLDER / name / "queries.jsonl", catalog.keys()))
        yield Set(name, ToolFile(iter(catalog.items())), queries)


def _tools(path: Path) -> dict[str | None, Tool]:
    file = read_tools(path)
    return dict(zip(file.ids, file.tools, strict=True))


def _queries(path: Path, ids: AbstractSet[str | None]) -> Iterator[LabelledQuery]:
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line:
            row = json.loads(line)
            right = frozenset([*row["relevant"], *row["also"]]) & ids
            yield LabelledQuery(id=row["id"], text=row["query"], relevant=right)
