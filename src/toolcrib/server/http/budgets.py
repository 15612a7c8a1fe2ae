"""What callers may have under way at once: bytes of requests, and open streams, each one alone and all together.

Applies once a request is authenticated and before its body is read. Connections have their own bounds, by address.
"""

from collections.abc import Hashable
from typing import Final, Literal

from toolcrib.errors import RateLimited
from toolcrib.server.http.requests import HttpRequest
from toolcrib.server.options import HttpOptions
from toolcrib.types import LOCAL

Owner = tuple[str | None, str | None, str]
"""Whose use is counted: the key of a caller, or an address."""

_RETRY_AFTER_S: Final = 5
_ALL_BYTES: Final = "http.max_pending_bytes"
_ALL_STREAMS: Final = "http.max_streams"


def owner_of(request: HttpRequest) -> Owner:
    """The caller of a request; its address if no caller has to authenticate."""
    caller = request.caller
    if caller is not LOCAL:
        return caller.key
    return None, None, f"{(request.scope.get('client') or [''])[0]}"


class Budget:
    """An amount that all share, and of which each may take a part."""

    __slots__ = ("_by_owner", "each", "taken", "total")

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self.taken = 0
        self._by_owner: dict[Hashable, int] = {}

    def lack(self, owner: Hashable, amount: int = 1) -> Literal["caller", "all"] | None:
        """Who has too much for another amount: this owner, or all together; None if there is room."""
        if self._by_owner.get(owner, 0) + amount > self.each:
            return "caller"
        return "all" if self.taken + amount > self.total else None

    def take(self, owner: Hashable, amount: int = 1) -> None:
        """Count an amount, whether or not there is room for it."""
        self.taken += amount
        self._by_owner[owner] = self._by_owner.get(owner, 0) + amount

    def give_back(self, owner: Hashable, amount: int = 1) -> None:
        """Count it no longer."""
        self.taken -= amount
        left = self._by_owner[owner] - amount
        if left > 0:
            self._by_owner[owner] = left
        else:
            del self._by_owner[owner]


class RequestBudgets:
    """What requests may take, and what those under way have taken."""

    def __init__(self, options: HttpOptions) -> None:
        self._max_body_bytes = least = options.max_body_bytes
        # The largest body that is allowed has to fit, or it would be refused for ever as if it could come later.
        self.bytes = Budget(max(options.max_pending_bytes, least), max(options.max_pending_bytes_per_caller, least))
        self.streams = Budget(options.max_streams, options.max_streams_per_caller)

    def take(self, owner: Owner, length: int | None, *, is_stream: bool) -> "Taken":
        """Take what a request needs. Raises `RateLimited`.

        The bytes of a request count until it is answered: those that its head declares at once, others as they come.
        """
        if is_stream and (of := self.streams.lack(owner)) is not None:
            raise _too_many_streams(of, self.streams)
        # Without a length it comes in chunks, and if it is too large, it is answered without being read.
        declared = 0 if length is None or length > self._max_body_bytes else length
        taken = Taken(self, owner, is_stream=is_stream, is_declared=length is not None)
        if declared:
            taken.take(declared)
        if is_stream:
            self.streams.take(owner)
        return taken


class Taken:
    """What one request has taken."""

    __slots__ = ("_budgets", "_bytes", "_is_declared", "_is_stream", "_owner")

    def __init__(self, budgets: RequestBudgets, owner: Owner, *, is_stream: bool, is_declared: bool) -> None:
        self._budgets = budgets
        self._owner = owner
        self._is_stream = is_stream
        self._is_declared = is_declared
        self._bytes = 0

    def take(self, size: int) -> None:
        """Take more bytes. Raises `RateLimited`."""
        if size and (of := self._budgets.bytes.lack(self._owner, size)) is not None:
            raise _too_many_bytes(of, self._budgets.bytes)
        self._budgets.bytes.take(self._owner, size)
        self._bytes += size

    def count(self, size: int) -> None:
        """Take the bytes of a part of the body, unless its head has declared them. Raises `RateLimited`."""
        if not self._is_declared:
            self.take(size)

    def give_back(self) -> None:
        """Give all of it back."""
        if self._bytes:
            self._budgets.bytes.give_back(self._owner, self._bytes)
        if self._is_stream:
            self._budgets.streams.give_back(self._owner)


def _too_many_bytes(of: Literal["caller", "all"], budget: Budget) -> RateLimited:
    if of == "all":
        return _refusal(f"All callers together have {_mib(budget.total)} of requests under way", of, _ALL_BYTES)
    return _refusal(f"You have {_mib(budget.each)} of requests under way", of, f"{_ALL_BYTES}_per_caller")


def _too_many_streams(of: Literal["caller", "all"], budget: Budget) -> RateLimited:
    if of == "all":
        return _refusal(f"All callers together have {budget.total} streams open", of, _ALL_STREAMS)
    return _refusal(f"You have {budget.each} streams open", of, f"{_ALL_STREAMS}_per_caller")


def _mib(size: int) -> str:
    return f"almost {size / (1024 * 1024):.3g} MiB"


def _refusal(problem: str, of: str, setting: str) -> RateLimited:
    return RateLimited(
        f"{problem} ({setting}); nothing was run.",
        hint=f"Wait until some have ended, and try again after {_RETRY_AFTER_S} s.",
        data={"retry_after_s": _RETRY_AFTER_S, "limit": setting, "of": of},
    )
