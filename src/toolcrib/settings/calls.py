"""The table `calls` of our section: what stands in the way of every call."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from toolcrib.gateway.calls.options import (
    Approval,
    BreakerOptions,
    CacheOptions,
    CallOptions,
    RateOptions,
    RetryOptions,
)
from toolcrib.settings.document import dotted
from toolcrib.settings.patterns import is_pattern, patterns
from toolcrib.settings.section import Section, kind, over
from toolcrib.settings.variables import Expansion, Surroundings

_APPROVALS: Final[tuple[Approval, ...]] = get_args(Approval)
_SHARING: Final[tuple[Literal["caller", "scope"], ...]] = ("caller", "scope")
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?[A-Za-z_][A-Za-z0-9_]*\}")
_KEY_CHARS: Final = 16


@dataclass(slots=True)
class Calls:
    """Reads the table, and gathers why its secret is not to be had."""

    surroundings: Surroundings
    missing: list[str] = field(default_factory=list)

    def read(self, calls: Section) -> CallOptions:
        """The table's values over the defaults."""
        options = over(
            CallOptions(),
            audit=_audit(calls),
            deadline_s=calls.seconds("deadline"),
            rate=_rate(calls.section("rate")),
            tool_rates=_tool_rates(calls),
            breaker=_breaker(calls.switched("breaker")),
            retry=_retry(calls.switched("retry")),
            cache=_cache(calls.switched("cache")),
            approval=calls.choice("approval", _APPROVALS),
            approved=patterns(calls, "approved"),
            approval_wait_s=calls.seconds("approval_wait"),
            approval_expires_s=calls.seconds("approval_expires"),
            approval_key=self._key(calls),
        )
        calls.refuse_unknown()
        return options

    def _key(self, calls: Section) -> str | None:
        """The secret out of its variable; where it is not to be had, each process has a key of its own."""
        text = calls.text("approval_key", secret=True)
        if text is None:
            return None
        at = (*calls.at, str(calls.spelling("approval_key")))
        if not _VARIABLE.fullmatch(text.strip()):
            calls.problems.add(at, "is a secret, which does not belong in this file; write ${NAME} and set NAME")
            return None
        expansion = Expansion(self.surroundings)
        key = expansion.fill(text.strip(), dotted(at)).strip()
        self.missing += expansion.missing
        if not expansion.missing and len(key) < _KEY_CHARS:
            self.missing.append(f"{dotted(at)} is too short: {_KEY_CHARS} characters are the least")
        return key if len(key) >= _KEY_CHARS else None


def _audit(calls: Section) -> bool | str | None:
    entry = calls.spelling("audit")
    value = None if entry is None else calls.table[entry]
    if entry is None or isinstance(value, bool) or (isinstance(value, str) and value.strip()):
        return value
    calls.wrong(entry, "must be true, false or the name of a logger", value)
    return None


def _rate(rate: Section | None) -> RateOptions | None:
    if rate is None:
        return None
    per_second, burst = rate.above_zero("per_second"), rate.count("burst", low=1)
    if rate.spelling("per_second") is None:
        rate.problems.add(rate.at, "must say how many calls a second: per_second")
    rate.refuse_unknown()
    return None if per_second is None else over(RateOptions(per_second=per_second), burst=burst)


def _tool_rates(calls: Section) -> tuple[tuple[str, RateOptions], ...] | None:
    """Patterns, each with its rate, in the order of the file."""
    table = calls.section("tool_rates")
    return None if table is None else tuple(_rates(table))


def _rates(table: Section) -> Iterator[tuple[str, RateOptions]]:
    for pattern, value in table.table.items():
        at = (*table.at, pattern)
        if not is_pattern(pattern, at, table.problems):
            continue
        if not isinstance(value, dict):
            table.problems.add(at, f"must be an object with per_second, not {kind(value)}")
            continue
        rate = _rate(Section(value, at, table.problems))
        if rate is not None:
            yield pattern, rate


def _breaker(table: Section | None) -> BreakerOptions | None:
    if table is None:
        return None
    options = over(
        BreakerOptions(),
        failures=table.count("failures", low=1),
        share=table.share("share", zero=False),
        window=table.count("window", low=1),
        open_s=table.seconds("open"),
    )
    table.refuse_unknown()
    return options


def _retry(table: Section | None) -> RetryOptions | None:
    if table is None:
        return None
    options = over(
        RetryOptions(),
        attempts=table.count("attempts", low=1),
        first_s=table.seconds("first"),
        longest_s=table.seconds("longest"),
        jitter=table.share("jitter"),
    )
    table.refuse_unknown()
    return options


def _cache(table: Section | None) -> CacheOptions | None:
    if table is None:
        return None
    options = over(
        CacheOptions(),
        seconds=table.seconds("seconds"),
        max_entries=table.count("max_entries", low=1),
        max_bytes=table.count("max_bytes", low=1),
        tools=patterns(table, "tools"),
        per=table.choice("per", _SHARING),
    )
    table.refuse_unknown()
    return options
