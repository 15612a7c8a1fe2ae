"""Options of the call pipeline. With the defaults, no layer is on."""

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from toolcrib.errors import SettingsError
from toolcrib.gateway.policy import Patterns

ApprovalMode = Literal["never", "destructive", "writing", "always"]
"""Which calls a person must agree to.

`destructive` are the tools that say so themselves (`destructiveHint: true`, without `readOnlyHint: true`). MCP takes a
tool without annotations for destructive; most tools have none, and a question at every call is soon answered without
reading it. `writing` is the stricter word: every tool that does not say `readOnlyHint: true`.
"""


_APPROVAL_MODES: Final = ("never", "destructive", "writing", "always")


_MIN_KEY_CHARS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RateOptions:
    """How often one caller may call."""

    per_second: float
    """Calls a second, in the long run; above 0."""
    burst: int = 10
    """Calls at once after a pause, 1 or more."""

    def __post_init__(self) -> None:
        """Raise `SettingsError` for what is no rate."""
        _check_positive("per_second", self.per_second)
        _check_at_least("burst", self.burst, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOptions:
    """When a backend is left in peace, and for how long."""

    failures: int = 5
    """Failures in a row that open it, 1 or more."""
    share: float | None = None
    """Also opens when this share of the last `window` calls failed, above 0 and up to 1; None means: never."""
    window: int = 20
    """Calls that `share` looks back on; nothing is judged before there were so many."""
    open_s: float = 15.0
    """How long nothing is tried, in seconds; then one call is let through to see."""

    def __post_init__(self) -> None:
        """Raise `SettingsError` for what cannot be."""
        _check_at_least("failures", self.failures, 1)
        _check_at_least("window", self.window, 1)
        _check_positive("open_s", self.open_s)
        if self.share is not None and not 0 < self.share <= 1:
            raise SettingsError(f"share is a number above 0 and up to 1, not {self.share!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """How often a call is tried, where trying again is safe."""

    attempts: int = 3
    """In all, 1 or more."""
    first_s: float = 0.2
    """The first pause, in seconds; each further one is twice as long."""
    longest_s: float = 5.0
    """No pause is longer, in seconds."""
    jitter: float = 0.5
    """By how much of itself a pause is shortened at most, at random, 0 to 1."""

    def __post_init__(self) -> None:
        """Raise `SettingsError` for what cannot be."""
        _check_at_least("attempts", self.attempts, 1)
        _check_positive("first_s", self.first_s)
        _check_positive("longest_s", self.longest_s)
        if not 0 <= self.jitter <= 1:
            raise SettingsError(f"jitter is a number from 0 to 1, not {self.jitter!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Which answers are kept, for whom, and for how long."""

    seconds: float = 60.0
    """How long an answer is given again; above 0."""
    max_entries: int = 1000
    max_bytes: int = 16 * 1024 * 1024
    """About how much all answers together may hold; a larger one is not kept."""
    tools: tuple[str, ...] = ()
    """Patterns of the tools whose answers are kept, whatever they say of themselves; empty means every tool with
    `readOnlyHint: true`."""
    per: Literal["caller", "scope"] = "caller"
    """Who shares answers: one caller with himself, or callers of one tenant whom the policy gives the same rights. The
    second is for tools that answer everybody the same."""

    def __post_init__(self) -> None:
        """Raise `SettingsError` for what cannot be."""
        _check_positive("seconds", self.seconds)
        _check_at_least("max_entries", self.max_entries, 1)
        _check_at_least("max_bytes", self.max_bytes, 1)
        Patterns(self.tools)
        if self.per not in ("caller", "scope"):
            raise SettingsError(f"per is one of caller, scope, not {self.per!r:.80}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What stands in the way of every call; see the package for the order."""

    audit: bool | str = False
    """Log a line of JSON for every call, to the logger `toolcrib.audit` or to the one that is named."""
    deadline_s: float | None = None
    """How long a call may take with all its attempts, in seconds. Remote servers have a limit of their own."""
    rate: RateOptions | None = None
    """For each caller, over all tools."""
    tool_rates: tuple[tuple[str, RateOptions], ...] = ()
    """For each caller and tool, beside `rate`: the first pattern that fits the tool's id."""
    breaker: BreakerOptions | None = None
    """For each backend. Off by default: a remote server that is away refuses calls at once anyhow, and calls of one
    caller that hang would close a backend for all."""
    retry: RetryOptions | None = None
    cache: CacheOptions | None = None
    approval: ApprovalMode = "never"
    """Which calls a person must agree to, beside those for which the policy asks."""
    approved: tuple[str, ...] = ()
    """Patterns of the tools that `approval` leaves out. What a policy asks for, it does not touch."""
    approval_wait_s: float = 120.0
    """How long a person who is asked during a call may think, in seconds."""
    approval_expires_s: float = 600.0
    """How long a question that a client carries to a person stays open, in seconds."""
    approval_key: str | None = field(default=None, repr=False)
    """Signs the questions; the same text for all processes that serve one address, at least 16 characters. Without it
    each process has a key of its own."""

    def __post_init__(self) -> None:
        """Raise `SettingsError` for what cannot be."""
        for name in ("deadline_s", "approval_wait_s", "approval_expires_s"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        if self.approval not in _APPROVAL_MODES:
            raise SettingsError(f"approval is one of {', '.join(_APPROVAL_MODES)}, not {self.approval!r:.80}.")
        Patterns(self.approved, field="approved")
        Patterns([pattern for pattern, _ in self.tool_rates], field="tool_rates")
        if self.approval_key is not None and len(self.approval_key) < _MIN_KEY_CHARS:
            raise SettingsError(
                f"approval_key is too short: {_MIN_KEY_CHARS} characters are the least.",
                hint="Make one with `python -c 'import secrets; print(secrets.token_urlsafe(32))'`.",
            )


def _check_positive(field_name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise SettingsError(f"{field_name} is a number above 0, not {value!r}.")


def _check_at_least(field_name: str, value: int, least: int) -> None:
    if not value >= least:
        raise SettingsError(f"{field_name} is {least} or more, not {value!r}.")
