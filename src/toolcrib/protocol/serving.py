"""What the messages of one client mean to a server: the era, the handshake, requests under way and questions. No I/O.

A `ServerSession` is plain data. `receive` takes one message of the client and says what to do about it; what reads the
messages, answers the requests and writes the responses is elsewhere. A session of a version before 2026-07-28 can go on
in another process from its `row`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from toolcrib.protocol.failures import INVALID_PARAMS, INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION, RpcError
from toolcrib.protocol.messages import ErrorResponse, Message, Notification, Object, Request, RequestId, Response
from toolcrib.protocol.params import read_envelope
from toolcrib.protocol.versions import (
    CLIENT_CAPABILITIES_KEY,
    LATEST_HANDSHAKE,
    LATEST_MODERN,
    MODERN_VERSIONS,
    PROTOCOL_VERSION_KEY,
    client_requests,
    negotiated,
)

_WITHOUT_HANDSHAKE: Final = ("initialize", "ping")
_CANCELLED: Final = "notifications/cancelled"
_MAX_DIGITS: Final = 18
_INITIALIZED: Final = "notifications/initialized"


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A request to answer. Once it is answered or cancelled, `ServerSession.answered` has to be called."""

    request: Request
    version: str
    capabilities: Object
    """What the client declared."""


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The client no longer wants the response to a request that is under way."""

    id: RequestId


@dataclass(frozen=True, slots=True)
class NotificationReceived:
    """A notification of the client."""

    notification: Notification
    version: str
    capabilities: Object
    """What the client declared."""


@dataclass(frozen=True, slots=True)
class QuestionAnswered:
    """The client has answered a request of the server."""

    id: RequestId
    outcome: Response | ErrorResponse


Event: TypeAlias = RequestReceived | RequestCancelled | NotificationReceived | QuestionAnswered | ErrorResponse
"""An `ErrorResponse` is to be sent to the client."""


@dataclass(slots=True, kw_only=True)
class ServerSession:
    """What a server knows of one client: of its session or, where a client has none, of its connection."""

    id: str
    version: str = ""
    """Of the protocol, from the handshake on; empty before, and for clients of 2026-07-28, which have none."""
    client: Object = field(default_factory=dict)
    """What the client said of itself in the handshake: its capabilities and its name."""
    is_initialized: bool = False
    """Whether the client has confirmed the handshake, so that it may be sent notifications."""
    log_level: str | None = None
    """From which level on it wants log messages, once it has said so."""
    watched: set[str] = field(default_factory=set)
    """The URIs of the resources that it has subscribed to."""
    is_modern: bool | None = None
    """Whether its requests need no handshake, as of 2026-07-28; None until the first request shows that."""
    has_era: bool = False
    """Whether something else than its messages says which era they belong to, such as a header of HTTP."""
    under_way: Counter[RequestId] = field(default_factory=Counter)
    """The ids of its requests that are not answered yet."""
    questions: set[RequestId] = field(default_factory=set)
    """The ids of the requests to it that it has not answered yet."""
    asked: int = 0
    """How many requests were sent to it."""

    @property
    def capabilities(self) -> Object:
        """What the client declared in the handshake."""
        declared = self.client.get("capabilities")
        return declared if isinstance(declared, Mapping) else {}

    # -- messages of the client ------------------------------------------------------------------------------------

    def receive(self, message: Message) -> Event | None:
        """Say what a message means; None for one that means nothing any more, such as a late answer."""
        match message:
            case Request():
                return self._receive_request(message)
            case Notification():
                return self._receive_notification(message)
            case Response() | ErrorResponse():
                return self._receive_answer(message)

    def _receive_request(self, request: Request) -> Event:
        if self.is_modern is None:
            self.is_modern = request.method != "initialize" and _has_envelope(request.params)
        try:
            event = self._modern(request) if self.is_modern else self._with_handshake(request)
        except RpcError as error:
            return ErrorResponse(request.id, error)
        self.under_way[correlated(request.id)] += 1
        return event

    def _modern(self, request: Request) -> RequestReceived:
        if request.method == "initialize":
            raise _handshake_refused(request.params)
        envelope = read_envelope(request.method, request.params)
        return RequestReceived(request, envelope.version, envelope.capabilities)

    def _with_handshake(self, request: Request) -> RequestReceived:
        if not self.has_era and request.method != "initialize" and _has_envelope(request.params):
            raise RpcError(
                INVALID_REQUEST,
                "This session was opened with initialize, so its requests cannot carry the envelope of 2026-07-28.",
            )
        version = self.version or LATEST_HANDSHAKE
        # An unknown method is reported as such even now: clients that look for a server's era rely on that.
        if not self.version and request.method not in _WITHOUT_HANDSHAKE and request.method in client_requests(version):
            raise RpcError(INVALID_PARAMS, "The session is not initialized; send initialize first.")
        return RequestReceived(request, version, self.capabilities)

    def _receive_notification(self, notification: Notification) -> Event | None:
        if notification.method == _CANCELLED:
            request_id = (notification.params or {}).get("requestId")
            if isinstance(request_id, int | str) and correlated(request_id) in self.under_way:
                return RequestCancelled(correlated(request_id))
            return None
        if self.is_modern:
            return NotificationReceived(notification, LATEST_MODERN, declared_in(notification.params))
        if not self.version:
            return None
        if notification.method == _INITIALIZED:
            self.is_initialized = True
        return NotificationReceived(notification, self.version, self.capabilities)

    def _receive_answer(self, answer: Response | ErrorResponse) -> QuestionAnswered | None:
        question = None if answer.id is None else correlated(answer.id)
        if question is None or question not in self.questions:
            return None
        self.questions.discard(question)
        return QuestionAnswered(question, answer)

    def open(self, params: Object) -> str:
        """Open the session with the valid params of `initialize`, and return the version that both speak from now on.

        >>> ServerSession(id="a").open({"protocolVersion": "2025-06-18", "capabilities": {}})
        '2025-06-18'
        """
        self.version = negotiated(params.get("protocolVersion"))
        self.client = {key: params[key] for key in ("capabilities", "clientInfo") if key in params}
        return self.version

    def answered(self, request_id: RequestId) -> None:
        """Note that a request is under way no longer."""
        key = correlated(request_id)
        self.under_way[key] -= 1
        if self.under_way[key] <= 0:
            del self.under_way[key]

    # -- messages to the client ------------------------------------------------------------------------------------

    def ask(self, method: str, params: Object | None) -> Request:
        """Return a request for the client, whose answer will be a `QuestionAnswered`."""
        self.asked += 1
        self.questions.add(self.asked)
        return Request(self.asked, method, params)

    def forget_question(self, question_id: RequestId) -> None:
        """Note that an answer is no longer wanted."""
        self.questions.discard(question_id)

    # -- sessions that go on elsewhere -----------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """Return what is left to know of an idle session, as JSON; `from_row` is the opposite."""
        return {
            "id": self.id,
            "version": self.version,
            "client": dict(self.client),
            "initialized": self.is_initialized,
            "log_level": self.log_level,
            "watched": sorted(self.watched),
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "ServerSession":
        """Return the session of a row.

        >>> session = ServerSession(id="a")
        >>> _ = session.open({"protocolVersion": "2025-06-18", "capabilities": {"roots": {}}})
        >>> ServerSession.from_row(session.row()).capabilities
        {'roots': {}}
        """
        return cls(
            id=row["id"],
            version=row["version"],
            client=row["client"],
            is_initialized=row["initialized"],
            log_level=row["log_level"],
            watched=set(row["watched"]),
            is_modern=False,
        )


def declared_in(params: Object | None) -> Object:
    """What the client of a modern version declares with a message; a notification need not say anything of it."""
    declared = _meta_of(params).get(CLIENT_CAPABILITIES_KEY)
    return declared if isinstance(declared, Mapping) else {}


def correlated(request_id: RequestId) -> RequestId:
    """The id by which messages about a request find it: some clients write a number as a text in one of the two.

    >>> correlated("7"), correlated("a7")
    (7, 'a7')
    """
    is_number = isinstance(request_id, str) and request_id.isdecimal() and len(request_id) <= _MAX_DIGITS
    return int(request_id) if is_number else request_id


def _has_envelope(params: Object | None) -> bool:
    """Whether a request says its version itself, as of 2026-07-28, even if the rest of what it needs is missing."""
    return PROTOCOL_VERSION_KEY in _meta_of(params)


def _meta_of(params: Object | None) -> Object:
    meta = (params or {}).get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def _handshake_refused(params: Object | None) -> RpcError:
    data: dict[str, Any] = {"supported": list(MODERN_VERSIONS)}
    if isinstance(requested := (params or {}).get("protocolVersion"), str):
        data["requested"] = requested
    return RpcError(
        UNSUPPORTED_PROTOCOL_VERSION, "This connection has begun without a handshake, in version 2026-07-28.", data
    )
