"""What searches leave in memory."""

import tracemalloc

from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.types import SearchRequest, Tool

AT_ONCE = 24


def search_for_numbers(index: Index, numbers: range) -> None:
    """Search for each of these numbers, some at a time."""
    for first in numbers[::AT_ONCE]:
        query = "find the orders " + " ".join(f"#{number * 104729}" for number in range(first, first + AT_ONCE))
        search(index, SearchRequest(queries=(query,)))


def test_numbers_in_requests_are_not_remembered() -> None:
    index = Index.build([Tool(name="find_order", description="Find an order", input_schema={"type": "object"})])
    search_for_numbers(index, range(2_400))
    tracemalloc.start()
    try:
        search_for_numbers(index, range(2_400, 2_640))
        before = tracemalloc.get_traced_memory()[0]
        search_for_numbers(index, range(2_640, 3_600))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert grown < 500 * 960
