"""The figures of README and pages are those that the benchmarks measured."""

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PRINT_TABLE = """
import json, sys
sys.path.insert(0, "bench/retrieval")
import report
with open("bench/results/retrieval_shipped.json", encoding="utf-8") as file:
    print(report.shipped_table(json.load(file)))
"""


def test_the_retrieval_table_is_what_the_benchmark_wrote() -> None:
    done = subprocess.run([sys.executable, "-c", PRINT_TABLE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in README


def test_the_overhead_table_is_what_the_benchmark_wrote() -> None:
    figures = json.loads((RESULTS / "overhead.json").read_text(encoding="utf-8"))
    for name, cells in figures.items():
        if name != "direct":
            ratios = " / ".join(f"{cells[each]['p50_ms'] / figures['direct'][each]['p50_ms']:.1f}" for each in cells)
            cpu = " / ".join(f"{cell['cpu_ms']:.1f}" for cell in cells.values())
            assert f"| {name} | {ratios} | {cpu} ms |" in README


def test_the_walks_on_the_page_are_those_that_a_test_keeps() -> None:
    source = ast.parse((ROOT / "tests" / "bench" / "test_walk.py").read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in ast.walk(source)
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == "WALKS"
    )
    walks = ast.literal_eval(table)
    page = (ROOT / "docs" / "explanation" / "overhead.md").read_text(encoding="utf-8")
    for title, walk in {
        "`execute_tool`, a server over HTTP": "execute_tool, http server",
        "`execute_tool`, a program": "execute_tool, stdio server",
        "`execute_tool`, an object of this process": "execute_tool, memory server",
        "`tool_search`": "tool_search",
        "a script that calls a server over HTTP": "script, http server",
    }.items():
        modern, older = (", ".join(map(str, walks[f"{walk}, {version}"])) for version in ("2026-07-28", "2025-11-25"))
        assert f"| {title} | {modern} | {older} |" in page
