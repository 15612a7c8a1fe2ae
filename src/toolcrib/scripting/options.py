"""Options of scripts."""

from dataclasses import dataclass

from toolcrib.checks import checked
from toolcrib.ranges import Count, Seconds


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """How scripts run. Their limits are `toolcrib.sandbox.Limits`."""

    levels: Count = 3
    """How deep scripts may be nested: a script, one that it calls, and so on; 1 or more."""
    read_only: bool = False
    """Whether every script sees only tools that are marked as read-only."""
    watch_s: Seconds = 2.0
    """How often the folder of stored scripts is checked for changes, in seconds, above 0."""
