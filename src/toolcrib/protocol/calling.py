"""The client's side of a connection to one server, for every version of the protocol. No I/O.

`ClientSession` makes what is to be sent, and reads what has arrived. `upstream.connection` moves both over a transport.
"""

import itertools
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from toolcrib.protocol.failures import UNSUPPORTED_PROTOCOL_VERSION, ExchangeError, FailureKind, RpcError
from toolcrib.protocol.headers import HeaderMap, request_headers
from toolcrib.protocol.messages import (
    ErrorResponse,
    Notification,
    Request,
    RequestId,
    Response,
    encode_request,
    read_lenient,
    to_wire,
)
from toolcrib.protocol.negotiation import (
    CLIENT_INFO,
    ClosedOnDiscover,
    Handshake,
    NegotiatedProtocol,
    ServerProfile,
    envelope,
    read_discover,
    read_initialize,
    version_in,
)
from toolcrib.protocol.versions import LATEST_MODERN, OPENING_METHODS, PROGRESS_KEY
from toolcrib.types import Object

Json: TypeAlias = dict[str, Any]
SUBSCRIPTION_META: Final = "io.modelcontextprotocol/subscriptionId"
_MAX_DIGITS: Final = 18
"""Of an id that this side may have written."""


@dataclass(slots=True)
class OutgoingRequest:
    """A request on its way to a server."""

    id: int
    method: str
    params: Json
    data: bytes
    """The whole message, encoded, without a line end."""
    headers: dict[str, str]
    """What HTTP sends with it. Requests that need the same headers share one object."""
    modern: bool
    """Whether the version is 2026-07-28 or later, which has no sessions, and no resumed responses."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request has come."""

    request_id: RequestId
    done: float
    total: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The server no longer wants an answer to its question, or ends a subscription."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The server has confirmed a subscription, as far as it can serve it."""

    request_id: RequestId
    agreed: Object


Event: TypeAlias = Request | Notification | Progress | Cancelled | Subscribed
"""What a server sends besides outcomes. A `Request` is a question that wants an answer."""
Negotiation: TypeAlias = Generator[OutgoingRequest, Object | ExchangeError, None]
"""Yields requests one at a time, and takes the result of each, or why there is none."""


class ClientSession:
    """The state of one connection: what was agreed on, and the ids in use."""

    def __init__(self, handshake: Handshake, *, show_all: bool = False) -> None:
        """`show_all` is whether to ask a server that hides tools for all of them."""
        self._handshake = handshake
        self._show_all = show_all
        self._ids = itertools.count(1)
        self.profile = ServerProfile()
        self.protocol = NegotiatedProtocol("", show_all)
        self.is_patient = not handshake.initialize
        """Whether to wait for the answer to `server/discover` as long as for any: there is no other way to begin."""

    # -- the beginning ---------------------------------------------------------------------------------------------

    def negotiate(self) -> Negotiation:
        """Agree on a version. Raises `ExchangeError`, and `ClosedOnDiscover`."""
        if self._handshake.discover and (yield from self._discover()):
            return
        if not self._handshake.initialize:
            raise ExchangeError(FailureKind.ANSWER, f"it does not speak {LATEST_MODERN}")
        outcome = yield self._initialize()
        if isinstance(outcome, ExchangeError):
            if outcome.code == UNSUPPORTED_PROTOCOL_VERSION and self._handshake.discover:
                # It answered the probe after all, but too late, as on a slow start; now it rejects the handshake.
                self.is_patient = True
                if (yield from self._discover()):
                    return
            raise outcome
        self._adopt(read_initialize(outcome))

    def _discover(self) -> Generator[OutgoingRequest, Object | ExchangeError, bool]:
        """Return whether the server speaks a version without handshake; if so, it is adopted."""
        outcome = yield self._probe(LATEST_MODERN)
        if isinstance(outcome, ExchangeError) and (named := version_in(outcome)) is not None:
            outcome = yield self._probe(named)
        if isinstance(outcome, ExchangeError):
            if outcome.kind in (FailureKind.UNSENT, FailureKind.LOGIN):
                raise outcome
            if outcome.kind is FailureKind.CLOSED:
                raise ClosedOnDiscover(FailureKind.CLOSED, outcome.reason) from outcome
            return False
        profile = read_discover(outcome)
        if profile.version:
            self._adopt(profile)
        return bool(profile.version)

    def _probe(self, version: str) -> OutgoingRequest:
        params = {"_meta": envelope(version, {})}
        return self._handshake_request(
            "server/discover", params, request_headers("server/discover", version, {}), modern=True
        )

    def _initialize(self) -> OutgoingRequest:
        params = {
            "protocolVersion": self._handshake.version,
            "capabilities": dict(self._handshake.capabilities),
            "clientInfo": CLIENT_INFO,
        }
        return self._handshake_request("initialize", params, {}, modern=False)

    def _adopt(self, profile: ServerProfile) -> None:
        self.profile, self.protocol = profile, NegotiatedProtocol(profile.version, self._show_all)

    # -- sending ---------------------------------------------------------------------------------------------------

    def request(
        self, method: str, params: Json, header_map: HeaderMap | None = None, *, wants_progress: bool = False
    ) -> OutgoingRequest:
        """Return a request with these params, whose `_meta` is complete but for the token of its progress.

        Raises `ValueError` for params that are not JSON.
        """
        protocol, request_id = self.protocol, next(self._ids)
        headers = protocol.headers(method, params, header_map)
        if wants_progress:
            params = {**params, "_meta": {**params.get("_meta", {}), PROGRESS_KEY: request_id}}
        data = encode_request(request_id, method, params or None)
        return OutgoingRequest(request_id, method, params, data, headers, protocol.modern)

    def _handshake_request(
        self, method: str, params: Json, headers: dict[str, str], *, modern: bool
    ) -> OutgoingRequest:
        request_id = next(self._ids)
        return OutgoingRequest(request_id, method, params, encode_request(request_id, method, params), headers, modern)

    @staticmethod
    def cancellation(request: OutgoingRequest) -> Json | None:
        """Return the notification that a request was given up; None for one of the handshake, which has none."""
        if request.method in OPENING_METHODS:
            return None
        params = {"requestId": request.id, "reason": "caller cancelled"}
        return to_wire(Notification("notifications/cancelled", params))

    @staticmethod
    def answer(question: Request, outcome: Object | RpcError) -> Json:
        """Return the answer to a question of the server."""
        if isinstance(outcome, RpcError):
            return to_wire(ErrorResponse(question.id, outcome))
        return to_wire(Response(question.id, outcome))

    # -- receiving -------------------------------------------------------------------------------------------------

    @staticmethod
    def receive(message: Json) -> Event | None:
        """Read a message that is not the outcome of a request; None for one that says nothing."""
        found = read_lenient(message)
        if isinstance(found, Request):
            return found
        if not isinstance(found, Notification):
            return None
        params = found.params or {}
        if found.method == "notifications/progress":
            return _progress(params)
        if found.method == "notifications/cancelled":
            request_id = same_id(params.get("requestId"))
            return None if request_id is None else Cancelled(request_id)
        if found.method == "notifications/subscriptions/acknowledged":
            return _subscribed(params)
        return found


def _progress(params: Object) -> Progress | None:
    token, done = same_id(params.get(PROGRESS_KEY)), params.get("progress")
    total, message = params.get("total"), params.get("message")
    if token is None or not isinstance(done, int | float):
        return None
    return Progress(
        token,
        done,
        total if isinstance(total, int | float) else None,
        message if isinstance(message, str) else None,
    )


def _subscribed(params: Object) -> Subscribed | None:
    meta, agreed = params.get("_meta"), params.get("notifications")
    found = same_id(meta.get(SUBSCRIPTION_META)) if isinstance(meta, dict) else None
    return None if found is None or not isinstance(agreed, dict) else Subscribed(found, agreed)


def same_id(value: Any) -> RequestId | None:
    """Return an id as this side wrote it: some servers answer a number with the same digits as text.

    >>> same_id("7"), same_id(7.0), same_id("call-7"), same_id(True)
    (7, 7, 'call-7', None)
    """
    if type(value) is int:
        return value
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and value.isascii() and value.isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, str) else None
