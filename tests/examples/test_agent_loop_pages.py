"""Every Python block of the agent-loop pages runs unchanged; those that need an extra run if it is installed."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forks import RunPython

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = ("agent-loop", "openai", "anthropic", "gemini", "frameworks")
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = {
    "toolcrib.integrations.pydantic_ai": "pydantic_ai",
    "toolcrib.integrations.openai_agents": "agents",
    "toolcrib.integrations.langchain": "langchain_core",
}


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """The page's blocks; those that need an extra are marked `py` instead of `python`."""
    for page in PAGES:
        for match in FENCE.finditer((HOW_TO / f"{page}.md").read_text()):
            if match[1] == language:
                yield page, match[2]


@pytest.mark.parametrize(("page", "block"), [*blocks("python")])
def test_a_block_runs_and_shows_something(page: str, block: str, run_python: RunPython, tmp_path: Path) -> None:
    done = run_python(block, tmp_path)
    assert done.code == 0, done.err
    assert done.out


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), [*blocks("py")])
def test_a_block_for_a_framework_runs_if_it_is_installed(page: str, block: str) -> None:
    (library,) = [library for module, library in NEEDS.items() if module in block]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_page_has_blocks() -> None:
    assert {page for page, _ in (*blocks("python"), *blocks("py"))} == {*PAGES}


def test_the_table_of_the_loop_is_the_one_that_the_example_prints() -> None:
    loop = Path(__file__).parents[2] / "examples" / "agent_loop" / "agent.py"
    done = subprocess.run([sys.executable, str(loop)], capture_output=True, text=True, timeout=120, check=True)
    for row in re.findall(r"^(?:all tools|toolcrib's five) .*$", done.stdout, re.MULTILINE):
        assert row in (HOW_TO / "agent-loop.md").read_text()
