"""What callers may have under way at once: bytes of requests, and open streams, each one alone and all together.

Applies once a request is authenticated and before its body is read. Connections have their own bounds, by address.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Literal

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import RateLimited, ToolcribError
from toolcrib.server.context import error_response, request_caller
from toolcrib.server.options import HttpOptions
from toolcrib.types import LOCAL, Caller

Owner = tuple[str | None, str | None, str]
"""Whose use is counted: the key of a caller, or an address."""
ReportRefusal = Callable[[Caller, str, ToolcribError], None]
"""Learns of a refused request: its caller, its HTTP method or what it asks for, and the error. Must not raise."""

LISTEN_METHOD: Final = "subscriptions/listen"
_RETRY_AFTER_S: Final = 5
_MIB: Final = 1024 * 1024


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
        if left:
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
        self.bytes = Budget(options.max_pending_bytes, options.max_pending_bytes_per_caller)
        self.streams = Budget(options.max_streams, options.max_streams_per_caller)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or answer 429 or 503."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        owner = owner_of(scope)
        if scope["method"] == "GET" or Headers(scope=scope).get("mcp-method") == LISTEN_METHOD:
            await self._serve_stream(owner, scope, receive, send)
        else:
            await self._serve_body(owner, scope, receive, send)

    async def _serve_stream(self, owner: Owner, scope: Scope, receive: Receive, send: Send) -> None:
        if (of := self.streams.lack(owner)) is not None:
            await self._refuse(_too_many_streams(of, self._options), scope, receive, send)
            return
        self.streams.take(owner)
        try:
            await self._serve_body(owner, scope, receive, send)
        finally:
            self.streams.give_back(owner)

    async def _serve_body(self, owner: Owner, scope: Scope, receive: Receive, send: Send) -> None:
        body = _CountedBody(self.bytes, owner, receive)
        try:
            # A body that is too large for any request is answered without being read.
            if (length := _declared(scope)) is not None and length <= self._options.max_body_bytes:
                body.declare(length)
            await self._app(scope, receive if length is not None else body.receive, send)
        except _NoRoom as full:
            await self._refuse(_too_many_bytes(full.of, self._options), scope, receive, send)
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

    def declare(self, length: int) -> None:
        """Count this many bytes. Raises `_NoRoom`."""
        if length and (of := self.budget.lack(self.owner, length)) is not None:
            raise _NoRoom(of)
        self.budget.take(self.owner, length)
        self.taken += length

    async def receive(self) -> Message:
        """ASGI `receive` that counts the bytes as they come."""
        message = await self.inner()
        if message["type"] == "http.request":
            self.declare(len(message.get("body", b"")))
        return message

    def end(self) -> None:
        """Count them no longer."""
        if self.taken:
            self.budget.give_back(self.owner, self.taken)


def _declared(scope: Scope) -> int | None:
    """The length of the body that the head declares."""
    given = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(given) if given.isdigit() else None


def _too_many_bytes(of: Literal["caller", "all"], options: HttpOptions) -> RateLimited:
    if of == "all":
        most, whose, setting = options.max_pending_bytes, "All callers together", "http.max_pending_bytes"
    else:
        most, whose = options.max_pending_bytes_per_caller, "You"
        setting = "http.max_pending_bytes_per_caller"
    return _refusal(f"{whose} have requests of almost {most / _MIB:g} MiB under way", of, setting)


def _too_many_streams(of: Literal["caller", "all"], options: HttpOptions) -> RateLimited:
    if of == "all":
        most, whose, setting = options.max_streams, "All callers together", "http.max_streams"
    else:
        most, whose, setting = options.max_streams_per_caller, "You", "http.max_streams_per_caller"
    return _refusal(f"{whose} have {most} streams open", of, setting)


def _refusal(problem: str, of: str, setting: str) -> RateLimited:
    return RateLimited(
        f"{problem} ({setting}); nothing was run.",
        hint=f"Wait until some have ended, and try again after {_RETRY_AFTER_S} s.",
        data={"retry_after_s": _RETRY_AFTER_S, "limit": setting, "of": of},
    )
