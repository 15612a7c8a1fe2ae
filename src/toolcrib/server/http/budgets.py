"""What callers may have under way at once: bytes of requests, and open streams, each one alone and all together.

Applies once a request is authenticated and before its body is read. Connections have their own bounds, by address.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import RateLimited, ToolcribError
from toolcrib.server.context import error_response
from toolcrib.server.exchange import request_caller
from toolcrib.server.options import HttpOptions
from toolcrib.types import LOCAL, Caller

Owner = tuple[str | None, str | None, str]
"""Whose use is counted: the key of a caller, or an address."""
ReportRefusal = Callable[[Caller, str, ToolcribError], None]
"""Learns of a refused request: its caller, its HTTP method or what it asks for, and the error. Must not raise."""

LISTEN_METHOD: Final = "subscriptions/listen"
_LISTEN: Final = LISTEN_METHOD.encode()
_LENGTH_DIGITS: Final = 18
"""Of a length; one with more is too large anyway, and takes long to be read."""
_RETRY_AFTER_S: Final = 5
_ALL_BYTES: Final = "http.max_pending_bytes"
_ALL_STREAMS: Final = "http.max_streams"


def owner_of(scope: Scope) -> Owner:
    """The caller of a request; its address if no caller has to authenticate."""
    caller = request_caller(scope)
    if caller is not LOCAL:
        return caller.key
    return None, None, f"{(scope.get('client') or [''])[0]}"


class Budget:
    """An amount that all share, and of which each may take a part."""

    __slots__ = ("_by_owner", "each", "taken", "total")

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self.taken = 0
        self._by_owner: Counter[Hashable] = Counter()

    def lack(self, owner: Hashable, amount: int = 1) -> Literal["caller", "all"] | None:
        """Who has too much for another amount: this owner, or all together; None if there is room."""
        if self._by_owner.get(owner, 0) + amount > self.each:
            return "caller"
        return "all" if self.taken + amount > self.total else None

    def take(self, owner: Hashable, amount: int = 1) -> None:
        """Count an amount, whether or not there is room for it."""
        self.taken += amount
        self._by_owner[owner] += amount

    def give_back(self, owner: Hashable, amount: int = 1) -> None:
        """Count it no longer."""
        self.taken -= amount
        left = self._by_owner[owner] - amount
        if left > 0:
            self._by_owner[owner] = left
        else:
            del self._by_owner[owner]


class BudgetMiddleware:
    """ASGI middleware, inside authentication: refuses requests that their caller, or all callers, have no room for.

    The bytes of a request count until it is answered: those that its head declares at once, others as they come.
    """

    def __init__(self, app: ASGIApp, options: HttpOptions, report: ReportRefusal | None = None) -> None:
        self._app = app
        self._options = options
        self._report = report
        # The largest body that is allowed has to fit, or it would be refused for ever as if it could come later.
        least = options.max_body_bytes
        self.bytes = Budget(max(options.max_pending_bytes, least), max(options.max_pending_bytes_per_caller, least))
        self.streams = Budget(options.max_streams, options.max_streams_per_caller)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or answer 429 or 503."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        owner, (length, listens) = owner_of(scope), _read_head(scope)
        if scope["method"] == "GET" or listens:
            await self._serve_stream(owner, length, scope, receive, send)
        elif length is None:
            await self._serve_chunked(owner, scope, receive, send)
        else:
            await self._serve_body(owner, length, scope, receive, send)

    async def _serve_stream(self, owner: Owner, length: int | None, scope: Scope, receive: Receive, send: Send) -> None:
        if (of := self.streams.lack(owner)) is not None:
            await self._refuse(_too_many_streams(of, self.streams), scope, receive, send)
            return
        self.streams.take(owner)
        try:
            if length is None:
                await self._serve_chunked(owner, scope, receive, send)
            else:
                await self._serve_body(owner, length, scope, receive, send)
        finally:
            self.streams.give_back(owner)

    async def _serve_body(self, owner: Owner, length: int, scope: Scope, receive: Receive, send: Send) -> None:
        if length > self._options.max_body_bytes:
            length = 0  # it is answered without being read
        if (of := self.bytes.lack(owner, length)) is not None and length:
            await self._refuse(_too_many_bytes(of, self.bytes), scope, receive, send)
            return
        self.bytes.take(owner, length)
        try:
            await self._app(scope, receive, send)
        finally:
            self.bytes.give_back(owner, length)

    async def _serve_chunked(self, owner: Owner, scope: Scope, receive: Receive, send: Send) -> None:
        body = _CountedBody(self.bytes, owner, receive)
        try:
            await self._app(scope, body.receive, send)
        except _NoRoom as full:
            await self._refuse(_too_many_bytes(full.of, self.bytes), scope, receive, send)
        finally:
            body.end()

    async def _refuse(self, error: RateLimited, scope: Scope, receive: Receive, send: Send) -> None:
        if self._report is not None:
            self._report(request_caller(scope), scope["method"], error)
        await error_response(503 if error.data["of"] == "all" else 429, error)(scope, receive, send)


class _NoRoom(Exception):
    """There is no room for the bytes of a request."""

    def __init__(self, of: Literal["caller", "all"]) -> None:
        super().__init__(of)
        self.of = of


@dataclass(slots=True, eq=False)
class _CountedBody:
    """What the body of one request has taken of the budget."""

    budget: Budget
    owner: Owner
    inner: Receive
    taken: int = 0

    async def receive(self) -> Message:
        """ASGI `receive` that counts the bytes as they come. Raises `_NoRoom`."""
        message = await self.inner()
        length = len(message.get("body", b""))
        if length and (of := self.budget.lack(self.owner, length)) is not None:
            raise _NoRoom(of)
        self.budget.take(self.owner, length)
        self.taken += length
        return message

    def end(self) -> None:
        """Count them no longer."""
        self.budget.give_back(self.owner, self.taken)


def _read_head(scope: Scope) -> tuple[int | None, bool]:
    """The length of the body that the head declares, and whether the request is for a stream of changes."""
    length, listens = None, False
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = read_length(value)
        elif name == b"mcp-method":
            listens = value == _LISTEN
    return length, listens


def read_length(value: bytes) -> int | None:
    """The length that a head declares, in bytes; None if that is no number.

    >>> read_length(b"007"), read_length(b"9" * 5_000) == 10**18 - 1, read_length(b"-7")
    (7, True, None)
    """
    return int(value.lstrip(b"0")[:_LENGTH_DIGITS] or b"0") if value.isdigit() else None


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
