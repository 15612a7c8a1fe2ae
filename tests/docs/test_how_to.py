"""Every block of the how-to pages is executed as it stands, offline."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.settings.loader import load_settings

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"agent-loop", "openai", "anthropic", "gemini", "frameworks"}
"""Pages that `tests/examples` runs."""
SERVES = "app.run()"
"""On stdin and stdout, where nobody is: it ends without a word."""
EXAMPLES = [path.read_text() for path in sorted((ROOT / "examples").rglob("*.py"))]
"""What a page shows of them runs with its neighbours, in the tests of the examples."""


def blocks(language: str) -> Iterator[object]:
    for path in sorted(path for path in PAGES.glob("*.md") if path.stem not in ELSEWHERE):
        for place, match in enumerate(FENCE.finditer(path.read_text())):
            if match[1] == language and not any(match[2] in example for example in EXAMPLES):
                yield pytest.param(match[2], id=f"{path.stem}-{place}")


@pytest.mark.parametrize("block", [*blocks("python")])
def test_a_python_block_runs(block: str, tmp_path: Path) -> None:
    words = [sys.executable, "-W", "error", "-c", block]
    done = subprocess.run(
        words, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or SERVES in block


@pytest.mark.parametrize("block", [*blocks("toml")])
def test_a_toml_block_is_a_configuration(block: str, tmp_path: Path) -> None:
    path = tmp_path / "toolcrib.toml"
    path.write_text(block)
    assert not load_settings(path).warnings
