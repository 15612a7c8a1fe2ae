"""The README's figures are those that the benchmarks measured."""

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
