"""Imports between modules of toolcrib are visible to tools, and form no circle."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

import toolcrib

SOURCE = Path(toolcrib.__file__).parent
TABLES = {"__init__.py", "discovery/__init__.py", "sandbox/__init__.py"}
"""Packages whose `__getattr__` looks names up in a table. Tests hold it equal to the stub that type checkers read."""
IMPORTERS = {"import_module", "__import__"}


def strings_imported(path: Path) -> Iterator[str]:
    """The modules of toolcrib that a file imports by a string, as `file:line`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = ast.unparse(node.args[0]).lstrip("f'\"")
        if called in IMPORTERS and given.startswith("toolcrib"):
            yield f"{path.relative_to(SOURCE).as_posix()}:{node.lineno}"


def test_no_module_is_imported_by_a_string() -> None:
    found = [place for path in SOURCE.rglob("*.py") for place in strings_imported(path)]
    assert {place.partition(":")[0] for place in found} <= TABLES


def test_no_import_is_part_of_a_circle_even_inside_a_function() -> None:
    graph = grimp.build_graph("toolcrib", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle = " imports ".join(reversed(error.args[1]))
        raise AssertionError(circle) from None
