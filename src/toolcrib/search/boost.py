"""What the use of a tool in a session is worth to it in a search."""

from dataclasses import dataclass
from math import log1p


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostOptions:
    """What each side of a tool's use adds to its multiplier.

    Source: the documentation of chuk-tool-processor's dynamic tool discovery, and its code for the figures.
    """

    recency: float = 2.0
    """For a success in this turn; less with each turn since."""
    turns: int = 5
    """Turns after which a success is not recent any more."""
    success: float = 1.5
    """Times the share of calls that succeeded."""
    count: float = 0.5
    """Times the natural logarithm of one more than the successes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a tool was used in a session."""

    calls: int = 0
    successes: int = 0
    """At most `calls`."""
    last_success: int = 0
    """The turn of the last success."""


_DEFAULTS = BoostOptions()


def multiplier(use: Use, turn: int, options: BoostOptions = _DEFAULTS) -> float:
    """What to multiply the odds of a tool with, in that turn; 1 or more.

    A tool that never succeeded gets nothing: a failed call must not raise a tool's rank.

    >>> round(multiplier(Use(calls=1, successes=1, last_success=3), turn=4), 4)
    4.4466
    >>> multiplier(Use(calls=2), turn=4)
    1.0
    """
    if not use.successes:
        return 1.0
    passed = max(0, turn - use.last_success)
    recent = options.recency * (1 - passed / options.turns) if passed < options.turns else 0.0
    return 1.0 + recent + options.success * use.successes / use.calls + options.count * log1p(use.successes)
