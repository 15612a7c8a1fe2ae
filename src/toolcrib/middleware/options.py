"""Options of the call pipeline. With the defaults, no layer is on."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from toolcrib.checks import Constraint, Count, Positive, PositiveShare, Seconds, Share, checked, whole_from
from toolcrib.errors import SettingsError
from toolcrib.file_values import InFiles, Text, file_problem
from toolcrib.gateway.policy import Pattern, Patterns

ApprovalMode = Literal["never", "destructive", "writing", "always"]
"""Which calls a person must agree to.

`destructive` covers tools that are marked as such (`destructiveHint: true` without `readOnlyHint: true`). MCP regards
tools without annotations as destructive too, but most tools have none, and people stop reading a question that comes
with every call. `writing` is stricter: every tool that is not marked `readOnlyHint: true`.
"""

_MIN_KEY_CHARS: Final = 16
_LEAST_SEARCH_RATE: Final = 1.0
_LEAST_SEARCH_BURST: Final = 20
"""A client that connects makes up to six lists at once, and may soon connect again."""


@checked(error=SettingsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class RateOptions:
    """Limit of one caller's calls."""

    per_second: Positive
    """Calls a second in the long run, above 0."""
    burst: Count = 10
    """Calls at once after a pause, 1 or more."""


@checked(error=SettingsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOptions:
    """When calls of a backend stop, and for how long."""

    failures: Count = 5
    """Failures in a row that open the breaker, 1 or more."""
    share: PositiveShare | None = None
    """The breaker also opens when this share of the last `window` calls failed, above 0 and up to 1; or None."""
    window: Count = 20
    """Number of calls that `share` is a share of; it has no effect before there were as many."""
    open_s: Seconds = 15.0
    """How long the breaker stays open, in seconds; then one call is let through as a probe."""


@checked(error=SettingsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """How often a call is tried if repeating it is safe."""

    attempts: Count = 3
    """Attempts in all, 1 or more."""
    first_s: Seconds = 0.2
    """The first pause, in seconds; each further one is twice as long."""
    longest_s: Seconds = 5.0
    """No pause is longer, in seconds."""
    jitter: Share = 0.5
    """The largest share by which a pause is shortened at random, 0 to 1."""


@checked(error=SettingsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Which answers are cached, who shares them, and for how long."""

    seconds: Seconds = 60.0
    """How long an answer is reused, above 0."""
    max_entries: Count = 1000
    max_bytes: Count = 16 * 1024 * 1024
    """Approximate size of all answers together; a larger answer is not cached."""
    tools: tuple[Pattern, ...] = ()
    """Patterns of the tools whose answers are cached, whatever their annotations; empty means every tool with
    `readOnlyHint: true`."""
    per: Literal["caller", "scope"] = "caller"
    """Who shares answers: the requests of one caller, or callers of one tenant to which the policy gives the same
    rights. The second is for tools that give everyone the same answer."""

    def __post_init__(self) -> None:
        """Raise `SettingsError` for a pattern or a key that cannot be used."""
        Patterns(self.tools)


@checked(error=SettingsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFileOptions:
    """The file of an audit log that shows whether it was changed."""

    path: Annotated[Path, InFiles(file_problem, raw=True)]
    max_bytes: Annotated[int, whole_from(1024)] = 64 * 1024 * 1024
    """About how large the file may become before a new one is begun; the old one keeps the number of its last record
    in its name."""
    max_files: Count = 10
    """How many files are kept, the current one included."""
    sync: bool = False
    """Wait until the disk has each record. Without it, a crash of the machine may lose the last ones."""
    required: bool = False
    """Refuse calls while the file cannot be written. Without it, they go on, and the log counts those it lacks."""
    key: Text | None = field(default=None, repr=False)
    """Signs the records, and keys the digests in them; at least 16 characters. Without it, a program that
    may write the file can also make a new chain, and the digests can be compared only within one run."""

    def __post_init__(self) -> None:
        """Raise `SettingsError` for a key that cannot be used."""
        _check_key(self.key, "audit_file.key")


@checked(error=SettingsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The middleware around every call; the docstring of `toolcrib.middleware` has the order."""

    audit: Annotated[bool | Text, InFiles(Constraint("true, false or the name of a logger"))] = False
    """Log a line of JSON for every call, to the logger `toolcrib.audit` or to the one named here."""
    audit_file: AuditFileOptions | None = None
    """Write a record of every call to this file too."""
    deadline_s: Seconds | None = None
    """How long a call may take with all its attempts, in seconds. Remote servers also have their own limit."""
    rate: RateOptions | None = None
    """The limit for each caller over all tools."""
    tool_rates: tuple[tuple[str, RateOptions], ...] = ()
    """Limits for each caller and tool, in addition to `rate`: the first pattern that matches the tool's id applies."""
    search_rate: RateOptions | None = None
    """The limit of each caller's searches, descriptions and lists; None for as many as `rate` allows calls, but at
    least one a second and 20 at once, because clients list tools, prompts and resources as they connect."""
    search_queue: Count = 256
    """How many searches and lists of one caller may wait for their turn."""
    search_share: PositiveShare = 0.1
    """The share of the event loop's time that searches and lists of one caller may take while others are active."""
    breaker: BreakerOptions | None = None
    """One breaker for each backend. Off by default: calls of an unreachable server fail at once anyway, and
    hanging calls of one caller would cut off all others."""
    retry: RetryOptions | None = None
    cache: CacheOptions | None = None
    approval: ApprovalMode = "never"
    """Which calls need approval, in addition to those for which the policy asks."""
    approved: tuple[Pattern, ...] = ()
    """Patterns of tools that `approval` does not apply to. The policy's own decisions are not affected."""
    approval_wait_s: Seconds = 120.0
    """How long a call waits for a person's answer, in seconds."""
    approval_expires_s: Seconds = 600.0
    """How long a question that a client shows to a person stays valid, in seconds."""
    approval_key: Text | None = field(default=None, repr=False)
    """Signs the questions; at least 16 characters, and the same for all processes that serve one address. Without it,
    each process makes its own key."""

    def __post_init__(self) -> None:
        """Raise `SettingsError` for a pattern or a key that cannot be used."""
        Patterns(self.approved, field="approved")
        Patterns([pattern for pattern, _ in self.tool_rates], field="tool_rates")
        _check_key(self.approval_key, "approval_key")

    @property
    def limit_of_searches(self) -> RateOptions | None:
        """The limit of searches and lists that applies.

        >>> CallOptions(rate=RateOptions(per_second=2, burst=1)).limit_of_searches
        RateOptions(per_second=2, burst=20)
        """
        if self.search_rate is not None or self.rate is None:
            return self.search_rate
        return RateOptions(
            per_second=max(self.rate.per_second, _LEAST_SEARCH_RATE), burst=max(self.rate.burst, _LEAST_SEARCH_BURST)
        )


def _check_key(key: str | None, name: str) -> None:
    if key is not None and len(key) < _MIN_KEY_CHARS:
        raise SettingsError(
            f"{name} is too short: it needs at least {_MIN_KEY_CHARS} characters.",
            hint="Make one with `python -c 'import secrets; print(secrets.token_urlsafe(32))'`.",
        )
