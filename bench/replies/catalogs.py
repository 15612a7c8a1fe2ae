"""The catalogs and requests of the benchmark: development sets only, alone and among the tools of real servers.

Two sets are in the repository; the sealed part of `everyday` is never read. `TOOLCRIB_RETRIEVAL_DATA` names a folder
with more, as for the retrieval benchmark, and `TOOLCRIB_BENCH_DATA` one with recorded tools, as for `fleet.py`.
"""

import gzip
import json
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolcrib.cli.files import read_tools
from toolcrib.types import Tool

ROOT = Path(__file__).parents[2]
RETRIEVAL = ROOT / "tests" / "retrieval"
RECORDED = Path("data") / "real_mcp" / "tools.jsonl.gz"
SEED = 20261123
PER_SET = 30
"""Requests of each set, drawn with the seed."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, and the ids of the tools that serve it."""

    text: str
    right: frozenset[str]


@dataclass(frozen=True, slots=True)
class Catalog:
    """Tools, and requests that some of them serve."""

    name: str
    tools: Mapping[str, Tool]
    """By id, `namespace:name`."""
    requests: tuple[Request, ...]


def development_sets(per_set: int = PER_SET) -> list[Catalog]:
    """The sets that are there, with a sample of their requests; says on standard output what is left out."""
    folders = {"everyday": RETRIEVAL / "everyday", "real_servers": RETRIEVAL / "data"}
    if more := os.environ.get("TOOLCRIB_RETRIEVAL_DATA"):
        folders |= {folder.name: folder for folder in sorted(Path(more).iterdir()) if _is_set(folder)}
    else:
        print("Left out: further sets. TOOLCRIB_RETRIEVAL_DATA can name a folder with them.")
    return [read_set(name, folder, per_set) for name, folder in folders.items()]


def _is_set(folder: Path) -> bool:
    return (folder / "tools.jsonl").is_file() and (folder / "queries.jsonl").is_file()


def read_set(name: str, folder: Path, per_set: int = PER_SET) -> Catalog:
    """The tools of a folder, and at most so many of the requests that some tool serves."""
    lines = (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    return _catalog(name, folder / "tools.jsonl", map(json.loads, lines), per_set)


def hard_set(per_set: int = PER_SET) -> Catalog:
    """The hard requests for development, over the tools of `real_servers`; held-out ones are never read."""
    lines = (RETRIEVAL / "hard" / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    rows = (row for row in map(json.loads, lines) if row["split"] == "development")
    return _catalog("hard", RETRIEVAL / "data" / "tools.jsonl", rows, per_set)


def _catalog(name: str, tools: Path, requests: Iterable[dict[str, Any]], per_set: int) -> Catalog:
    file = read_tools(tools)
    ids = {row: tool.id for row, tool in zip(file.ids, file.tools, strict=True)}
    rows = [row for row in requests if row["relevant"]]
    chosen = random.Random(f"{SEED}-{name}").sample(rows, min(per_set, len(rows)))
    requests = tuple(Request(row["query"], frozenset(ids[id_] for id_ in row["relevant"])) for row in chosen)
    return Catalog(name, by_id(file.tools), requests)


def by_id(tools: Iterable[Tool]) -> dict[str, Tool]:
    """The tools by id; of those that share one, the first."""
    found: dict[str, Tool] = {}
    for tool in tools:
        found.setdefault(tool.id, tool)
    return found


def recorded_tools() -> dict[str, Tool]:
    """The recorded tools of real servers; says on standard output if there are none."""
    path = Path(os.environ.get("TOOLCRIB_BENCH_DATA", ROOT / "bench" / "recordings")) / RECORDED
    if not path.is_file():
        print("Left out: the catalogs among recorded tools. TOOLCRIB_BENCH_DATA can name a folder with them.")
        return {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return by_id(_recorded(map(json.loads, lines)))


def _recorded(rows: Iterable[dict[str, Any]]) -> Iterator[Tool]:
    for row in rows:
        if (row["inputSchema"] or {}).get("type") == "object":
            yield Tool(
                name=row["name"],
                namespace=re.sub(r"[^A-Za-z0-9-]+", "-", row["server"]).strip("-"),
                description=row["description"] or "",
                input_schema=row["inputSchema"],
            )


def among(catalog: Catalog, others: Mapping[str, Tool]) -> Catalog:
    """The catalog beside other tools. One with the name and description of a right tool is right too."""
    same: dict[tuple[str, str], set[str]] = {}
    for id_, tool in others.items():
        same.setdefault((tool.name, tool.description), set()).add(id_)

    def with_copies(right: frozenset[str]) -> frozenset[str]:
        tools = (catalog.tools[id_] for id_ in right)
        return right.union(*(same.get((tool.name, tool.description), ()) for tool in tools))

    requests = tuple(replace(request, right=with_copies(request.right)) for request in catalog.requests)
    return Catalog(catalog.name, {**others, **catalog.tools}, requests)
