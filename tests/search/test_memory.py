"""What searches leave in memory."""

import tracemalloc
from statistics import median

from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.types import SearchRequest, Tool

AT_ONCE = 24


def search_for_numbers(index: Index, numbers: range) -> None:
    """Search for each of these numbers, some at a time."""
    for first in numbers[::AT_ONCE]:
        query = "find the orders " + " ".join(f"#{number * 104729}" for number in range(first, first + AT_ONCE))
        search(index, SearchRequest(queries=(query,)))


def grown_bytes(index: Index, numbers: range) -> int:
    """How much memory more is used after searches for these numbers."""
    before = tracemalloc.get_traced_memory()[0]
    search_for_numbers(index, numbers)
    return tracemalloc.get_traced_memory()[0] - before


def test_numbers_in_requests_are_not_remembered() -> None:
    index = Index.build([Tool(name="find_order", description="Find an order", input_schema={"type": "object"})])
    search_for_numbers(index, range(2_400))
    tracemalloc.start()
    try:
        grown = [grown_bytes(index, range(first, first + 480)) for first in range(2_400, 4_800, 480)]
    finally:
        tracemalloc.stop()

    # A cache of words that other tests have nearly filled may become a larger table once, or be emptied.
    assert median(grown) < 400 * 480
