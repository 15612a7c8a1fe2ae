"""What a client's messages mean to its session: eras, the handshake, requests under way, questions and rows."""

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toolcrib.protocol.failures import INVALID_PARAMS, INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION, RpcError
from toolcrib.protocol.messages import ErrorResponse, Message, Notification, Request, RequestId, Response, read_message
from toolcrib.protocol.serving import (
    NotificationReceived,
    QuestionAnswered,
    RequestCancelled,
    RequestReceived,
    ServerSession,
)
from toolcrib.protocol.versions import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    HANDSHAKE_VERSIONS,
    LATEST_HANDSHAKE,
    LATEST_MODERN,
    PROTOCOL_VERSION_KEY,
)

OPENING = {"protocolVersion": "2025-06-18", "capabilities": {"roots": {}}, "clientInfo": {"name": "c", "version": "1"}}
MODERN: dict[str, Any] = {
    "_meta": {
        PROTOCOL_VERSION_KEY: "2026-07-28",
        CLIENT_CAPABILITIES_KEY: {"elicitation": {}},
        CLIENT_INFO_KEY: {"name": "c", "version": "1"},
    }
}

ids = st.one_of(st.integers(0, 5), st.sampled_from(["a", "b", "3"]))
params = st.sampled_from([None, {}, MODERN, {"_meta": {}}, {"requestId": 1}, {"requestId": "3"}, OPENING])
methods = st.sampled_from(["initialize", "ping", "tools/list", "tools/call", "server/discover", "vendor/x"])
notices = st.sampled_from(["notifications/cancelled", "notifications/initialized", "notifications/vendor"])
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Request, ids, methods, params),
    st.builds(Notification, notices, params),
    st.builds(Response, ids, st.just({})),
    st.builds(ErrorResponse, st.one_of(st.none(), ids), st.just(RpcError(1, "no"))),
)


def opened() -> ServerSession:
    """A session after its handshake."""
    session = ServerSession(id="s")
    session.receive(Request(0, "initialize", OPENING))
    session.open(OPENING)
    session.answered(0)
    return session


def code_of(event: Any) -> int:
    """The code of a refused request."""
    assert isinstance(event, ErrorResponse)
    return event.error.code


# -- eras --------------------------------------------------------------------------------------------------------------


def test_a_request_that_names_its_version_needs_no_handshake() -> None:
    event = ServerSession(id="s").receive(Request(1, "tools/list", MODERN))
    assert event == RequestReceived(Request(1, "tools/list", MODERN), LATEST_MODERN, {"elicitation": {}})


def test_an_older_request_before_the_handshake_is_refused() -> None:
    assert code_of(ServerSession(id="s").receive(Request(1, "tools/list"))) == INVALID_PARAMS


def test_an_unknown_method_before_the_handshake_is_passed_on_to_be_reported_as_unknown() -> None:
    event = ServerSession(id="s").receive(Request(1, "server/discover"))
    assert isinstance(event, RequestReceived)


def test_a_client_may_ping_before_the_handshake() -> None:
    assert isinstance(ServerSession(id="s").receive(Request(1, "ping")), RequestReceived)


def test_a_session_with_a_handshake_takes_no_request_that_names_its_version_itself() -> None:
    assert code_of(opened().receive(Request(1, "tools/list", MODERN))) == INVALID_REQUEST


def test_a_connection_without_a_handshake_takes_none_later_and_says_which_versions_it_speaks() -> None:
    session = ServerSession(id="s")
    session.receive(Request(1, "tools/list", MODERN))
    event = session.receive(Request(2, "initialize", OPENING))
    assert code_of(event) == UNSUPPORTED_PROTOCOL_VERSION
    assert isinstance(event, ErrorResponse)
    assert event.error.data == {"supported": [LATEST_MODERN], "requested": "2025-06-18"}


def test_a_handshake_that_also_names_a_version_itself_is_still_a_handshake() -> None:
    both = {**OPENING, **MODERN}
    event = ServerSession(id="s").receive(Request(1, "initialize", both))
    assert event == RequestReceived(Request(1, "initialize", both), LATEST_HANDSHAKE, {})


def test_an_unknown_version_is_answered_with_the_latest_one_that_has_a_handshake() -> None:
    assert ServerSession(id="s").open({**OPENING, "protocolVersion": "1999-01-01"}) == LATEST_HANDSHAKE


# -- requests under way ------------------------------------------------------------------------------------------------


def test_a_request_under_way_can_be_cancelled_even_if_its_id_is_written_in_another_type() -> None:
    session = opened()
    session.receive(Request(7, "tools/list"))
    cancel = Notification("notifications/cancelled", {"requestId": "7"})
    assert session.receive(cancel) == RequestCancelled(7)
    session.answered(7)
    assert session.receive(cancel) is None


@given(st.lists(messages, max_size=20))
def test_every_message_has_a_meaning_and_a_refused_request_is_not_under_way(received: list[Message]) -> None:
    session, under_way = ServerSession(id="s"), Counter[RequestId]()
    for message in received:
        event = session.receive(message)
        if isinstance(event, RequestReceived):
            under_way[int(event.request.id) if str(event.request.id).isdecimal() else event.request.id] += 1
        if isinstance(event, ErrorResponse):
            assert isinstance(message, Request)
            assert event.id == message.id
        if isinstance(event, RequestCancelled):
            assert under_way[event.id] > 0
    assert session.under_way == under_way
    for request_id in tuple(under_way.elements()):
        session.answered(request_id)
    assert not session.under_way


@given(st.lists(messages, max_size=20))
def test_a_client_stays_in_the_era_of_its_first_request(received: list[Message]) -> None:
    session, eras = ServerSession(id="s"), set[bool]()
    for message in received:
        event = session.receive(message)
        if isinstance(event, RequestReceived | NotificationReceived):
            eras.add(event.version == LATEST_MODERN)
    assert len(eras) <= 1


# -- questions ---------------------------------------------------------------------------------------------------------


def test_an_answer_is_taken_once_and_only_for_a_question_that_was_asked() -> None:
    session = opened()
    question = session.ask("roots/list", None)
    assert session.receive(Response(99, {})) is None
    assert session.receive(Response(str(question.id), {"roots": []})) == QuestionAnswered(
        question.id, Response(str(question.id), {"roots": []})
    )
    assert session.receive(Response(question.id, {})) is None


def test_the_answer_to_a_forgotten_question_means_nothing() -> None:
    session = opened()
    question = session.ask("roots/list", None)
    session.forget_question(question.id)
    assert session.receive(ErrorResponse(question.id, RpcError(1, "no"))) is None


@given(st.integers(1, 30))
def test_no_two_questions_have_the_same_id(count: int) -> None:
    session = opened()
    assert len({session.ask("ping", None).id for _ in range(count)}) == count


# -- rows --------------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(HANDSHAKE_VERSIONS),
    st.booleans(),
    st.sampled_from([None, "debug", "error"]),
    st.sets(st.text(max_size=5), max_size=3),
)
def test_a_session_goes_on_from_its_row_as_it_was(
    version: str, initialized: bool, level: str | None, watched: set[str]
) -> None:
    session = ServerSession(id="s")
    session.receive(read_message({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING}))
    session.open({**OPENING, "protocolVersion": version})
    session.answered(0)
    session.is_initialized, session.log_level, session.watched = initialized, level, watched
    assert ServerSession.from_row(json.loads(json.dumps(session.row()))) == session
