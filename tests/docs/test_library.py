"""The page of the library names everything that is public, and nothing that is not."""

import re
from pathlib import Path

import pytest

import toolcrib

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "library.md").read_text()
ROWS = re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", toolcrib.__all__)
def test_every_public_name_has_its_row(name: str) -> None:
    assert ROWS.count(name) == 1


@pytest.mark.parametrize("name", ROWS)
def test_every_row_names_something_public(name: str) -> None:
    assert name in toolcrib.__all__
