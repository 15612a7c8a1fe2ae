"""The page on embedders is complete, and its examples run."""

import re
import subprocess
import sys
from inspect import Parameter, signature
from pathlib import Path

import pytest

from toolcrib.embedders.models import MINILM, MODEL2VEC, MiniLM, Model2Vec
from toolcrib.search.options import BUILT_IN_EMBEDDER
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


@pytest.mark.parametrize(("setting", "extra"), [(MINILM, "semantic"), (f"{MODEL2VEC}:", "model2vec")])
def test_the_page_names_every_model_and_its_extra(setting: str, extra: str) -> None:
    assert f"| `{setting}` " in PAGE
    assert f"pip install 'toolcrib[{extra}]'" in PAGE


@pytest.mark.parametrize(("kind", "adapter"), [(MINILM, MiniLM), (MODEL2VEC, Model2Vec)])
def test_the_page_names_every_option_of_a_model(kind: str, adapter: type) -> None:
    _, _, options = PAGE.partition("| option | applies to | meaning |")
    for given in signature(adapter).parameters.values():
        if given.kind is Parameter.KEYWORD_ONLY:
            assert f"| `{given.name}` | `{kind}` |" in options


@pytest.mark.parametrize("name", [BUILT_IN_EMBEDDER, ESTIMATE, *ENCODINGS])
def test_the_page_names_what_needs_no_model(name: str) -> None:
    assert f"`{name}`" in PAGE
