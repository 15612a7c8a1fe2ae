"""The retrieval sets: tools, and queries whose right tools are known.

Everyone has five of them: four in this repository, and one in a package on PyPI. More are read from the folder that
TOOLCRIB_RETRIEVAL_DATA names, each from a folder with `tools.jsonl` and `queries.jsonl` in the format of
`toolcrib eval`. With recordings of other servers, in the folder that TOOLCRIB_BENCH_DATA names, the hard requests are
also put to a large catalog. docs/explanation/retrieval.md says where to get them.
"""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from toolcrib.cli.files import ToolFile, read_queries, read_tools
from toolcrib.search.evaluation import LabelledQuery
from toolcrib.types import Tool

ROOT = Path(__file__).parents[2]
DATA = os.environ.get("TOOLCRIB_RETRIEVAL_DATA", "")
RECORDED = Path(os.environ.get("TOOLCRIB_BENCH_DATA", ROOT / "bench" / "recordings"), "data/real_mcp/tools.jsonl.gz")
OUT = ROOT / "bench" / "out"

EVERYDAY = "everyday"
"""Tools of real MCP servers, and plain requests to them; the sealed ones, which are never used for tuning."""

OWN = "real_servers"
"""Tools of real MCP servers, and requests with few words in common with them, which are never used for tuning."""

HARD, HELD_OUT = "hard", "hard_held_out"
"""Requests of hard kinds to the tools of `real_servers`: the half for development, and the half that is not."""

LARGE = ("real_servers_large", "hard_large")
"""`real_servers` and `hard` in a catalog of all recorded tools. Some of those do the job too, and count as wrong."""

BFCL = "bfcl_v4"
SHIPPED = (EVERYDAY, OWN, HELD_OUT, BFCL)
"""The sets in the README; everyone has them."""

SAME_TOOLS = frozenset({HARD, HELD_OUT, *LARGE})
"""Sets whose tools are those of another one too."""

DECISIVE = (EVERYDAY, OWN, HARD, HELD_OUT, *LARGE, "metatool", "tool_search_mcp")
"""The sets on which engines are far from the best possible answer; on the others, nearly all find nearly everything."""

PACKAGE, VERSION = "bfcl-eval", "2026.3.23"
"""The Berkeley Function Calling Leaderboard, Apache-2.0. It is unpacked, never installed or imported."""

ANSWERED = ("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple")
"""Its categories with known calls; the functions of `irrelevance` only stand in the way."""

TYPES = {
    "dict": "object", "hashmap": "object", "float": "number", "double": "number", "long": "integer",
    "tuple": "array", "arraylist": "array", "list": "array", "char": "string",
}  # fmt: skip
KNOWN = {"object", "number", "integer", "array", "string", "boolean"}


@dataclass(frozen=True)
class Set:
    """One retrieval set."""

    name: str
    file: ToolFile
    queries: tuple[LabelledQuery, ...]
    kinds: dict[str, str] = field(default_factory=dict)
    """The kind of each query by its id, in sets that have kinds."""
    near_misses: tuple[LabelledQuery, ...] = ()
    """Queries that no tool fits, each close to a tool that does something else."""

    @property
    def pairs(self) -> list[tuple[str, Tool]]:
        """Every tool, with its id."""
        return list(zip(self.file.ids, self.file.tools, strict=True))

    @property
    def names(self) -> list[tuple[str, str]]:
        """The id and the name of every tool."""
        return [(id_, tool.name) for id_, tool in self.pairs]


def found(wanted: list[str] | None = None) -> list[Set]:
    """The sets that can be had, by name; says on standard output which are left out."""
    data = ROOT / "tests" / "retrieval"
    everyday = in_repository(EVERYDAY, data / "everyday" / "tools.jsonl", data / "everyday" / "sealed.jsonl")
    own = in_repository(OWN, data / "data" / "tools.jsonl", data / "data" / "queries.jsonl")
    requests = data / "hard" / "requests.jsonl"
    hard, held_out = (
        in_repository(name, data / "data" / "tools.jsonl", requests, split)
        for name, split in ((HARD, "development"), (HELD_OUT, "held_out"))
    )
    sets = [everyday, own, hard, held_out, *_large([own, hard]), bfcl(), *_folders()]
    names = [each.name for each in sets]
    print(f"sets: {', '.join(names)}")
    return [each for each in sets if wanted is None or each.name in wanted]


def _folders() -> Iterator[Set]:
    if not DATA:
        print("TOOLCRIB_RETRIEVAL_DATA can name a folder with more sets")
        return
    for folder in sorted(Path(DATA).iterdir()):
        tools, queries = folder / "tools.jsonl", folder / "queries.jsonl"
        if folder.name not in SHIPPED and tools.is_file() and queries.is_file():
            yield Set(folder.name, read_tools(tools), read_queries(queries))


def _large(small: list[Set]) -> Iterator[Set]:
    """The sets among the tools of all recorded servers; of a server that they have themselves, only their tools."""
    if not RECORDED.is_file():
        print("TOOLCRIB_BENCH_DATA can name a folder with recordings of servers, for a large catalog")
        return
    own = re.findall(
        r"^\| [\w-]+ \| \[([^\]]+)\]", (ROOT / "tests/retrieval/data/SOURCES.md").read_text(), re.MULTILINE
    )
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if row["server"] not in own]
    others = {(tool := _recorded(row)).id: tool for row in rows}
    for name, each in zip(LARGE, small, strict=True):
        yield Set(name, ToolFile(iter([*each.pairs, *others.items()])), each.queries, each.kinds, each.near_misses)


def _recorded(row: dict[str, Any]) -> Tool:
    """A tool as a server sent it; its namespace is the package's name."""
    return Tool(
        namespace=re.sub(r"[^A-Za-z0-9-]+", "-", row["server"]).strip("-"),
        name=row["name"],
        description=row.get("description") or "",
        input_schema=row.get("inputSchema") or {"type": "object"},
    )


def in_repository(name: str, tools: Path, requests: Path, split: str = "") -> Set:
    """A set in this repository, or one part of it; of the requests that no tool fits, the near misses."""
    lines = requests.read_text(encoding="utf-8").split("\n")
    rows = [row for row in map(json.loads, filter(None, lines)) if not split or row["split"] == split]
    queries = [LabelledQuery(id=row["id"], text=row["query"], relevant=frozenset(row["relevant"])) for row in rows]
    kinds = {row["id"]: row["kind"] for row in rows if "kind" in row}
    return Set(
        name,
        read_tools(tools),
        tuple(query for query in queries if query.relevant),
        kinds,
        tuple(query for query in queries if kinds.get(query.id) == "near_miss"),
    )


def bfcl() -> Set:
    """Every function that a row of the leaderboard offers, in one catalog, and the rows whose calls are known."""
    with ZipFile(_wheel()) as wheel:
        rows = {name: _rows(wheel, f"BFCL_v4_{name}.json") for name in (*ANSWERED, "irrelevance")}
        answers = [answer for name in ANSWERED for answer in _rows(wheel, f"possible_answer/BFCL_v4_{name}.json")]
    functions: dict[str, dict[str, Any]] = {}
    for function in (function for name in rows for row in rows[name] for function in row["function"]):
        known = functions.get(function["name"])
        if known is None or len(function["description"]) > len(known["description"]):
            functions[function["name"]] = function
    called = {answer["id"]: [name for call in answer["ground_truth"] for name in call] for answer in answers}
    asked = (row for name in ANSWERED for row in rows[name])
    return Set(BFCL, ToolFile(map(_tool, functions.values())), tuple(_queries(asked, called)))


def _queries(asked: Iterator[dict[str, Any]], called: dict[str, list[str]]) -> Iterator[LabelledQuery]:
    """The queries; of those with the same text, the first."""
    texts = set()
    for row in asked:
        said = " ".join(message["content"] for message in row["question"][0] if message["role"] == "user")
        text = " ".join(said.split())
        if text not in texts:
            texts.add(text)
            yield LabelledQuery(id=row["id"], text=text, relevant=frozenset(called[row["id"]]))


def _tool(function: dict[str, Any]) -> tuple[str, Tool]:
    name = function["name"]
    schema = function["parameters"]
    properties = {key: _parameter(value) for key, value in schema.get("properties", {}).items()}
    parameters = {"type": "object", "properties": properties, "required": schema.get("required", [])}
    namespace = name.rpartition(".")[0]
    return name, Tool(name=name, namespace=namespace, description=function["description"], input_schema=parameters)


def _parameter(schema: dict[str, Any]) -> dict[str, Any]:
    """Name, description and choices of a parameter; types of other languages as JSON Schema calls them."""
    kind = str(schema.get("type", "")).lower()
    kind = TYPES.get(kind, kind)
    shape = {"type": kind} if kind in KNOWN else {}
    return shape | {key: schema[key] for key in ("description", "enum") if key in schema}


def _rows(wheel: ZipFile, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in wheel.read(f"bfcl_eval/data/{name}").decode().splitlines()]


def _wheel() -> Path:
    """The package's file, downloaded once."""
    wheels = list(OUT.glob(f"{PACKAGE.replace('-', '_')}-{VERSION}-*.whl"))
    if not wheels:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "download", "--no-deps", f"{PACKAGE}=={VERSION}", "--dest", str(OUT)], check=True)
        return _wheel()
    return wheels[0]
