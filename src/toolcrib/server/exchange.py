"""One request of a client, whichever way it came: what handlers read of it, and how they reach its client meanwhile.

A transport makes an `Exchange` of each message, and `Engine` answers it. What a transport knows beyond the message,
such as the caller and the headers, is in the fields; how it reaches the client before the response is its `Channel`.
`Questions` are the requests to a client, which wait for its answers.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio

from toolcrib.protocol.failures import CONNECTION_CLOSED, INVALID_REQUEST, REQUEST_TIMEOUT, RpcError
from toolcrib.protocol.messages import ErrorResponse, RequestId, Response, encode_notification, encode_request
from toolcrib.protocol.serving import QuestionAnswered, ServerSession
from toolcrib.protocol.versions import is_modern
from toolcrib.types import LOCAL, Caller, Object, ToolProvider

SendMessage = Callable[[bytes], Awaitable[None]]
"""Sends one message to the client."""
MayReceive = Callable[[Caller, str, str, Object], bool]
"""Whether a notification of an extension may pass to a caller, by the server's namespace, the method and the params."""
_WITHDRAW_S: Final = 1.0
"""How long to try to withdraw a question, in seconds, from a client that may no longer read."""


class Channel(Protocol):
    """How a server reaches the client of a request besides the response.

    That of a request is valid until the response; that of a notification, as long as its session.
    """

    @property
    def can_ask(self) -> bool:
        """Whether the client can be sent a request now, as before version 2026-07-28."""

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        """Send a request, and return its result. Raises `RpcError` for an error, or without a way to the client."""

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification; drops it without a way to the client."""


class ResponseOnly:
    """The channel of a client that gets nothing but the response."""

    can_ask = False

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:  # noqa: ARG002 - of the protocol
        """Raise `RpcError`."""
        raise RpcError(INVALID_REQUEST, f"The client cannot be sent {method} now: only a response reaches it.")

    async def notify(self, method: str, params: Object) -> None:
        """Drop the notification."""


RESPONSE_ONLY: Final[Channel] = ResponseOnly()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHead:
    """What the head of an HTTP request says, and what middleware has added to it. Safe to share between requests."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""
    show_all: bool | None = None
    """Whether to list every tool by name; None leaves it to the message."""
    token: str = ""
    """The caller's bearer token, for servers that take it; empty for a credential that only this server knows."""
    providers: tuple[ToolProvider, ...] = ()
    """Providers of this request only."""
    overriding: tuple[ToolProvider, ...] = ()
    """The same, whose tools take precedence over shared ones."""
    replica: str = ""
    """The id of this process, if others may serve the same address."""
    lacking: set[str] | None = None
    """Takes the scopes that the request lacks, if its client can get them."""


NO_HEAD: Final = HttpHead()


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request, or one notification, of a client."""

    method: str
    params: Mapping[str, Any]
    """As they came; empty if the message has none."""
    id: RequestId | None = None
    """None for a notification."""
    version: str
    """The protocol version of the request, whose envelope has been read, or before 2026-07-28 of its session."""
    caller: Caller = LOCAL
    session_id: str | None = None
    """The name of the client's session or connection; None for a request that belongs to none."""
    session: ServerSession | None = None
    """What is known of the session; None for a request of 2026-07-28 or later."""
    capabilities: Object = field(default_factory=dict)
    """What the client declared."""
    head: HttpHead = NO_HEAD
    """What the HTTP request says that it came by; nothing for a message that came in another way."""
    channel: Channel = RESPONSE_ONLY
    may_receive: MayReceive | None = None
    """What the engine decides about notifications of extensions; without it, none passes."""

    meta: Mapping[str, Any] = field(init=False)
    """The message's `_meta`; empty without one."""
    is_modern: bool = field(init=False)
    """Whether it is of 2026-07-28 or later."""

    def __post_init__(self) -> None:
        meta = self.params.get("_meta")
        self.meta = meta if type(meta) is dict or isinstance(meta, Mapping) else {}
        self.is_modern = is_modern(self.version)

    def ask_for_scopes(self, scopes: frozenset[str]) -> None:
        """Have the request answered with the scopes that it lacks, if its client can get them."""
        if self.head.lacking is not None:
            self.head.lacking.update(scopes)


# -- requests to a client, which wait for its answers ------------------------------------------------------------------


class _ClientQuestion:
    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.outcome: Response | ErrorResponse | None = None


class Questions:
    """The requests to one client that it has not answered yet."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._open: dict[RequestId, _ClientQuestion] = {}

    async def ask(self, send: SendMessage, method: str, params: Object, timeout_s: float) -> Object:
        """Send a request, and return its result. Raises `RpcError` for an error, after `timeout_s`, and at the end."""
        request = self._session.ask(method, params)
        question = self._open[request.id] = _ClientQuestion()
        try:
            with anyio.move_on_after(timeout_s):
                await send(encode_request(request.id, request.method, request.params))
                await question.answered.wait()
        finally:
            del self._open[request.id]
            if not question.answered.is_set():
                self._session.forget_question(request.id)
                with anyio.move_on_after(_WITHDRAW_S, shield=True):
                    await send(encode_notification("notifications/cancelled", {"requestId": request.id}))
        return _result(question.outcome, is_closed=question.answered.is_set())

    def answered(self, event: QuestionAnswered) -> None:
        """Pass on an answer."""
        question = self._open.get(event.id)
        if question is not None:
            question.outcome = event.outcome
            question.answered.set()

    def close(self) -> None:
        """Fail what waits: the client is gone."""
        for question in self._open.values():
            question.answered.set()


def _result(outcome: Response | ErrorResponse | None, *, is_closed: bool) -> Object:
    match outcome:
        case Response(_, result):
            return result
        case ErrorResponse(_, error):
            raise error
        case None if is_closed:
            raise RpcError(CONNECTION_CLOSED, "The client disconnected before it answered.")
        case None:
            raise RpcError(REQUEST_TIMEOUT, "The client did not answer in time.")
