"""The page of the library names everything that is public, and nothing that is not."""

import re
from pathlib import Path

import toolcrib

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "library.md").read_text()
ROWS = re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE)


def test_each_public_name_has_one_row_and_no_other_name_has_one() -> None:
    assert sorted(ROWS) == sorted(toolcrib.__all__)
