"""Stores for the state that several processes of one gateway share; see `toolcrib.types.StateStore`.

What sessions used, the resource URIs that they were given, rates, spent approvals, breaker states, cached results and
result shapes go through a store. Catalogs, subscriptions and protocol sessions stay in each process. The only store so
far keeps everything in the memory of one process.
"""
