"""Every block of the how-to pages is executed as it stands, offline."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.settings.loader import load

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVES = "app.run()"
"""On stdin and stdout, where nobody is: it ends without a word."""

Warm = subprocess.Popen[str]


def blocks(language: str) -> Iterator[object]:
    for path in sorted(PAGES.glob("*.md")):
        for place, match in enumerate(FENCE.finditer(path.read_text())):
            if match[1] == language:
                yield pytest.param(match[2], id=f"{path.stem}-{place}")


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    words = [sys.executable, str(Path(__file__).with_name("warm.py"))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.mark.parametrize("block", [*blocks("python")])
def test_a_python_block_runs(block: str, warm: Warm, tmp_path: Path) -> None:
    assert warm.stdin is not None
    assert warm.stdout is not None
    (tmp_path / "block.py").write_text(block)
    print(tmp_path, file=warm.stdin, flush=True)
    status = warm.stdout.readline().strip()
    told = (tmp_path / "told").read_text()
    assert status == "0", told
    assert told or SERVES in block


@pytest.mark.parametrize("block", [*blocks("toml")])
def test_a_toml_block_is_a_configuration(block: str, tmp_path: Path) -> None:
    path = tmp_path / "toolcrib.toml"
    path.write_text(block)
    assert not load(path).warnings
