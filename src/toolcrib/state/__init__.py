"""Stores for the state that several processes share, or that survives a restart; see `toolcrib.state.base.StateStore`.

Through a store go the usage, the given and the watched resource URIs of each session, rates, spent approvals, breaker
states, cached results, result shapes, and the last good catalogs of servers. Protocol sessions and connections stay in
each process. `MemoryStore` keeps everything in the memory of one process, `SqliteStore` keeps durable tables in a file.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Load what reads and writes indexes in files on first use, with the search."""
    import toolcrib.state.index_file as index_file  # noqa: PLR0402 - `from toolcrib.state` would ask this function again

    if name not in index_file.__all__:
        raise AttributeError(f"module 'toolcrib.state' has no attribute {name!r}")
    found = globals()[name] = getattr(index_file, name)
    return found
