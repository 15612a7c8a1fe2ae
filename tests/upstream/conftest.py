"""Check that no process outlives the test that started it."""

from collections.abc import Iterator

import pytest
from tests.upstream.support import left_over


@pytest.fixture(autouse=True)
def nothing_is_left_over() -> Iterator[None]:
    """Looks for processes that the test started, by a variable that each of them inherits."""
    yield
    assert left_over() == []
