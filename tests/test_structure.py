"""What the source should have none of, and how much `from toolcrib import App` loads.

The lists hold what is left: they may only shrink.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.slow

BENCH: Final = Path(__file__).parents[1] / "bench"
HIDDEN: Final = 3
"""Imports of toolcrib's own modules that are written in a string."""
JSON_RPC: Final = frozenset[str]()
"""Files that read or write JSON-RPC, although `protocol` is the place for it."""
MODULES: Final = (402, 158)
"""That `from toolcrib import App` loads: all, and toolcrib's own."""


@pytest.fixture(scope="module")
def structure() -> Iterator[Any]:
    """The counts, which the benchmarks print too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield importlib.import_module("structure")
        sys.modules.pop("structure")


def test_no_private_part_of_another_library_is_used(structure: Any) -> None:
    assert structure.private_reaches() == set()


def test_no_further_import_is_hidden_in_a_string(structure: Any) -> None:
    hidden = structure.hidden_imports()
    assert sum(hidden.values()) <= HIDDEN, hidden


def test_no_further_file_reads_or_writes_json_rpc_by_itself(structure: Any) -> None:
    assert structure.json_rpc_files() <= JSON_RPC


def test_importing_an_app_loads_no_more_modules_than_before(structure: Any) -> None:
    assert all(now <= 1.1 * before for now, before in zip(structure.imported_modules(), MODULES, strict=True))
