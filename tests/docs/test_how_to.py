"""Every block of the how-to pages runs unchanged, offline."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forks import RunPython

from toolcrib.settings.loader import load_settings

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"agent-loop", "openai", "anthropic", "gemini", "frameworks"}
"""Pages that `tests/examples` runs."""
SERVES = "app.run()"
"""Run the server on an empty stdin: it ends without output."""
EXAMPLES = [path.read_text() for path in sorted((ROOT / "examples").rglob("*.py"))]
"""What a page shows of them runs with its neighbours, in the tests of the examples."""


def blocks(language: str) -> Iterator[object]:
    for path in sorted(path for path in PAGES.glob("*.md") if path.stem not in ELSEWHERE):
        for place, match in enumerate(FENCE.finditer(path.read_text())):
            if match[1] == language and not any(match[2] in example for example in EXAMPLES):
                yield pytest.param(match[2], id=f"{path.stem}-{place}")


@pytest.mark.parametrize("block", [*blocks("python")])
def test_a_python_block_runs(block: str, run_python: RunPython, tmp_path: Path) -> None:
    done = run_python(block, tmp_path)
    assert done.code == 0, done.err
    assert done.out or SERVES in block


@pytest.mark.parametrize("block", [*blocks("toml")])
def test_a_toml_block_is_a_configuration(block: str, tmp_path: Path) -> None:
    path = tmp_path / "toolcrib.toml"
    path.write_text(block)
    assert not load_settings(path).warnings
