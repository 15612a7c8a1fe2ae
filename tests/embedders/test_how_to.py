"""The page on embedders is complete, and its examples run."""

import re
import subprocess
import sys
from inspect import Parameter, signature
from pathlib import Path

import pytest

from toolcrib.embedders.models import BUILT_IN_EMBEDDER, EMBEDDER_KINDS
from toolcrib.tokens import ENCODINGS, ESTIMATE

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "embedders.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs_and_prints(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert "False" not in done.stdout


@pytest.mark.parametrize("kind", EMBEDDER_KINDS)
def test_the_page_names_every_kind_and_its_extra(kind: str) -> None:
    assert f"`{kind}:` " in PAGE
    assert f"pip install 'toolcrib[{kind}]'" in PAGE


@pytest.mark.parametrize("kind", EMBEDDER_KINDS)
def test_the_page_names_every_option_of_a_kind(kind: str) -> None:
    _, _, options = PAGE.partition("| option | applies to | meaning |")
    for given in signature(EMBEDDER_KINDS[kind]).parameters.values():
        if given.kind is Parameter.KEYWORD_ONLY:
            assert re.search(rf"^\| `{given.name}` \| (all|.*`{kind}`)", options, re.MULTILINE)


@pytest.mark.parametrize("name", [BUILT_IN_EMBEDDER, ESTIMATE, *ENCODINGS])
def test_the_page_names_what_needs_no_model(name: str) -> None:
    assert f"`{name}`" in PAGE
