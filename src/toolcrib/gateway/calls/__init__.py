"""What stands in the way of every call, each part a setting, none of it on by itself.

From the outside in:

    audit      sees every outcome, refusals included, and tells it
    (yours)    middleware of the application; before approval, so that a person agrees to what is really run
    approval   a person agrees, before anything is counted or run, and with a deadline of its own
    cache      answers what was answered to the same caller; such a call costs no share of a rate and no backend
    rate       counts the call once, however often it is tried
    deadline   bounds all that follows together: every attempt, every pause, every backend
    retry      tries again what provably never left, or what may be run twice
    (fail-over) of the gateway: the next backend of a tool, before a retry of the first
    breaker    leaves a backend that keeps failing in peace; innermost, so that each attempt counts for its own backend

A call that waits for a person repeats as a new call: the first one ends at approval, and only the second is counted.
"""
