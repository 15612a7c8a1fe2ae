"""Stores for the state that several processes of one gateway share; see `toolcrib.types.StateStore`.

What sessions used, rates, spent approvals, breaker states, cached results, subscriptions and the last lists of
providers all go through a store. The only store so far keeps them in the memory of one process.
"""
