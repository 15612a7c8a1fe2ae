"""Stores for the state that several processes share, or that survives a restart; see `toolcrib.types.StateStore`.

What sessions used, the resource URIs that they were given, rates, spent approvals, breaker states, cached results and
result shapes go through a store, and so do the last good catalogs of servers. Protocol sessions and connections stay
in each process. `MemoryStore` keeps everything in the memory of one process, `SqliteStore` keeps durable tables in a
file.
"""
