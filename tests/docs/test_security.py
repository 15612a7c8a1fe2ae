"""The threat model names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def boundaries() -> list[str]:
    """The rows of the table of boundaries."""
    section = PAGE.partition("## Boundaries")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def test_each_boundary_names_a_test() -> None:
    assert len(boundaries()) > 10
    assert [row for row in boundaries() if not NAMED.search(row)] == []


def test_the_tests_that_the_boundaries_name_exist() -> None:
    missing = []
    for path, name in NAMED.findall(PAGE):
        file = ROOT / path
        tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
        if not any(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name for one in tree.body):
            missing.append(f"{path}::{name}")
    assert missing == []
