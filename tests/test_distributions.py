"""Two distributions from one tree: `toolcrib-slim`, and `toolcrib`, which adds the server."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).parents[1]
SERVER = (
    "click",
    "httpx2",
    "mcp",
    "mcp_types",
    "pydantic",
    "pydantic_core",
    "rich",
    "starlette",
    "uvicorn",
    "yaml",
)

WITHOUT_SERVER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {SERVER!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def project(folder: str) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((TOP / folder / "pyproject.toml").read_text())["project"]
    return project


def run_without_server(program: str) -> str:
    """The output of a program when the libraries of the extra `server` are not installed."""
    command = [sys.executable, "-c", WITHOUT_SERVER + program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_the_development_set_up_has_the_dependencies_of_the_slim_distribution_and_its_server() -> None:
    top, slim = project("."), project("distributions/toolcrib-slim")
    extras = slim["optional-dependencies"]
    assert sorted(top["dependencies"]) == sorted(slim["dependencies"] + extras["server"])
    assert set(top["optional-dependencies"]) == set(extras) - {"server"}


def test_agent_loops_need_no_library_of_the_server() -> None:
    program = """
from toolcrib import Index, SearchRequest, Tool, search_tools
from toolcrib.discovery import BaseDynamicToolProvider, ToolSearchEngine
from toolcrib import errors, fields, options, types
engine = ToolSearchEngine()
engine.set_tools([{"name": "calculate_mean", "description": "Calculate the mean of a list of numbers."}])
print([result.name for result in engine.search("average of numbers")])
print(search_tools(Index.build([Tool(name="add")]), SearchRequest(queries=("add",))).hits[0].tool.id)
"""
    assert run_without_server(program) == "['calculate_mean']\nadd"


def test_a_name_that_needs_the_server_names_the_extra() -> None:
    program = """
import toolcrib
try:
    toolcrib.App
except toolcrib.ToolcribError as error:
    print(error.code, error.hint)
"""
    assert run_without_server(program) == "missing_extra Run: pip install 'toolcrib-slim[server]'"


@pytest.mark.parametrize("module", ["toolcrib.registry", "toolcrib.testing"])
def test_a_module_that_needs_the_server_names_the_extra(module: str) -> None:
    program = f"""
from toolcrib import ToolcribError
try:
    import {module}
except ToolcribError as error:
    print(error)
"""
    printed = run_without_server(program)
    assert printed.startswith(f"{module} needs the library '")
    assert printed.endswith("is not installed. Run: pip install 'toolcrib-slim[server]'")


def test_the_command_line_names_the_extra() -> None:
    program = """
from toolcrib.__main__ import main
try:
    main()
except SystemExit as error:
    print(error.code)
"""
    assert "Run: pip install 'toolcrib-slim[server]'" in run_without_server(program)


def test_no_starlette_is_admitted_whose_paths_a_host_header_can_change() -> None:
    floors = [one for one in project(".")["dependencies"] if one.startswith("starlette")]
    assert floors, "Starlette is a dependency"
    assert all(tuple(map(int, one.partition(">=")[2].split("."))) >= (1, 0, 1) for one in floors)
