"""What callers may have under way at once: bytes of requests, and open streams, each one alone and all together.

Applies once a request is authenticated and before its body is read. Connections have their own bounds, by address.
"""

from collections.abc import Hashable
from typing import Final, Literal

from toolcrib.errors import RateLimited
from toolcrib.server.http.requests import HttpRequest
from toolcrib.server.options import HttpOptions
from toolcrib.types import LOCAL

_RETRY_AFTER_S: Final = 5
_ALL_BYTES: Final = "http.max_pending_bytes"
_ALL_STREAMS: Final = "http.max_streams"


class Budget:
    """An amount that all share, and of which each may take a part."""

    __slots__ = ("_by_owner", "each", "taken", "total")

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self.taken = 0
        self._by_owner: dict[Hashable, int] = {}

    def take(self, owner: Hashable, amount: int = 1) -> Literal["caller", "all"] | None:
        """Count another amount if there is room for it, else return who has too much: this owner, or all together."""
        taken = self._by_owner.get(owner, 0) + amount
        if taken > self.each:
            return "caller"
        if self.taken + amount > self.total:
            return "all"
        self.taken += amount
        self._by_owner[owner] = taken
        return None

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

    def take(self, request: HttpRequest) -> None:
        """Take what a request needs. Raises `RateLimited`; `give_back` has to follow in any case.

        The bytes of a request count until it is answered: those that its head declares at once, others as they come.
        """
        caller, head = request.caller, request.head
        address = "" if request.client is None else request.client[0]
        request.owner = owner = (None, None, address) if caller is LOCAL else caller.key
        if head.listens:
            if (of := self.streams.take(owner)) is not None:
                raise _too_many_streams(of, self.streams)
            request.is_counted_stream = True
        # Without a length it comes in chunks, and if it is too large, it is answered without being read.
        if head.length and head.length <= self._max_body_bytes:
            if (of := self.bytes.take(owner, head.length)) is not None:
                raise _too_many_bytes(of, self.bytes)
            request.counted_bytes = head.length

    def count(self, request: HttpRequest, size: int) -> None:
        """Take the bytes of a part of the body, unless its head has declared them. Raises `RateLimited`."""
        if request.head.length is None and size:
            if (of := self.bytes.take(request.owner, size)) is not None:
                raise _too_many_bytes(of, self.bytes)
            request.counted_bytes += size

    def give_back(self, request: HttpRequest) -> None:
        """Give back what a request has taken."""
        if request.counted_bytes:
            self.bytes.give_back(request.owner, request.counted_bytes)
            request.counted_bytes = 0
        if request.is_counted_stream:
            self.streams.give_back(request.owner)
            request.is_counted_stream = False


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
