"""Stores for the state that several processes share, or that survives a restart; see `toolcrib.state.base.StateStore`.

Through a store go the usage, the given and the watched resource URIs of each session, rates, spent approvals, breaker
states, cached results, result shapes, and the last good catalogs of servers. Protocol sessions and connections stay in
each process. `MemoryStore` keeps everything in the memory of one process, `SqliteStore` keeps durable tables in a file.
"""
