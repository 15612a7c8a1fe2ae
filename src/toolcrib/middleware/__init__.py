"""The call pipeline: middleware around every call. Each layer is a setting, and none is on by default.

From the outside in:

    audit      records every outcome, refusals included
    (yours)    middleware of the application; before approval, so that a person approves what really runs
    approval   asks a person, before anything is counted or run, with its own time limit
    cache      returns an earlier answer to the same caller; a hit counts against no rate and reaches no backend
    rate       counts the call once, however often it is retried
    deadline   limits everything below together: all attempts, pauses and backends
    retry      repeats calls that provably never left, or that are safe to repeat
    (failover) of the gateway: tries the next backend of a tool before the first one is retried
    breaker    stops calling a failing backend; innermost, so that each attempt counts for its own backend

A call that waits for a person is repeated as a new call: the first ends at approval, and only the second is counted.

"""
