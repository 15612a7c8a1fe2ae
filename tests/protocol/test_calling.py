"""The client's side of a connection, driven without a transport: recorded exchanges, and properties."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.protocol.calling import Cancelled, ClientSession, OutgoingRequest, Progress, Subscribed, same_id
from toolcrib.protocol.failures import METHOD_NOT_FOUND, ExchangeError, FailureKind, RpcError
from toolcrib.protocol.messages import Notification, Request
from toolcrib.protocol.negotiation import ClosedOnDiscover, Handshake
from toolcrib.protocol.versions import HANDSHAKE_VERSIONS, KNOWN_VERSIONS, LATEST_HANDSHAKE, LATEST_MODERN
from toolcrib.types import Caller, Context

NOT_FOUND = ExchangeError(FailureKind.ANSWER, "Method not found", answer=RpcError(METHOD_NOT_FOUND, "Method not found"))
UNSUPPORTED = ExchangeError(
    FailureKind.ANSWER, "Unsupported", answer=RpcError(-32022, "Unsupported", {"supported": [LATEST_MODERN]})
)
OLDER: dict[str, Any] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {"listChanged": True}, "experimental": {"x": {}}},
    "serverInfo": {"name": "git", "version": "1.2", "icons": []},
    "instructions": "Be careful.",
}
NEWER: dict[str, Any] = {
    "resultType": "complete",
    "supportedVersions": [LATEST_MODERN, "2099-01-01"],
    "capabilities": {"tools": {}, "extensions": {"com.example/x": {"a": 1}}},
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "git", "version": "2"}},
}
CTX = Context(caller=Caller(id="ann"), meta={"progressToken": 9, "com.example/trace": "t"})


def negotiated(
    outcomes: Iterable[Any], handshake: Handshake | None = None
) -> tuple[ClientSession, list[OutgoingRequest]]:
    """Return the session after these outcomes, one for each request, and the requests."""
    session = ClientSession(handshake or Handshake())
    steps = session.negotiate()
    sent = [next(steps)]
    for outcome in outcomes:
        try:
            sent.append(steps.send(outcome))
        except StopIteration:
            return session, sent
    raise AssertionError(f"another request wants an answer: {sent[-1].method}")


def methods(sent: list[OutgoingRequest]) -> list[str]:
    return [request.method for request in sent]


def test_a_server_of_an_older_version_is_asked_in_vain_and_then_gets_the_handshake() -> None:
    session, sent = negotiated([NOT_FOUND, OLDER])
    assert [json.loads(request.data) for request in sent] == [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "server/discover",
            "params": {
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": LATEST_MODERN,
                    "io.modelcontextprotocol/clientInfo": sent[1].params["clientInfo"],
                    "io.modelcontextprotocol/clientCapabilities": {},
                }
            },
        },
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "initialize",
            "params": {
                "protocolVersion": LATEST_HANDSHAKE,
                "capabilities": {},
                "clientInfo": sent[1].params["clientInfo"],
            },
        },
    ]
    assert [request.headers for request in sent] == [
        {"mcp-protocol-version": LATEST_MODERN, "mcp-method": "server/discover"},
        {},
    ]
    profile = session.profile
    assert (profile.version, profile.info["name"], profile.instructions) == ("2025-06-18", "git", "Be careful.")
    assert profile.can("tools", "listChanged")
    assert not profile.has("prompts")


def test_a_server_of_the_newer_version_is_asked_once_and_what_it_declares_is_kept() -> None:
    session, sent = negotiated([NEWER])
    assert methods(sent) == ["server/discover"]
    assert (session.protocol.version, session.protocol.modern) == (LATEST_MODERN, True)
    assert session.profile.capabilities == NEWER["capabilities"]


def test_a_refusal_that_names_the_version_as_supported_is_asked_again_once() -> None:
    session, sent = negotiated([UNSUPPORTED, NEWER])
    assert methods(sent) == ["server/discover", "server/discover"]
    assert session.protocol.version == LATEST_MODERN
    session, sent = negotiated([UNSUPPORTED, UNSUPPORTED, OLDER])
    assert methods(sent) == ["server/discover", "server/discover", "initialize"]


def test_a_probe_that_was_answered_too_late_is_repeated_patiently() -> None:
    late = ExchangeError(FailureKind.TIMED_OUT, "no answer")
    session, sent = negotiated([late, UNSUPPORTED, NEWER])
    assert methods(sent) == ["server/discover", "initialize", "server/discover"]
    assert session.is_patient


@pytest.mark.parametrize("kind", [FailureKind.UNSENT, FailureKind.LOGIN])
def test_a_server_that_was_not_reached_is_not_asked_in_another_way(kind: FailureKind) -> None:
    with pytest.raises(ExchangeError) as caught:
        negotiated([ExchangeError(kind, "no")])
    assert caught.value.kind is kind


def test_a_server_that_closes_the_connection_on_the_probe_is_a_case_of_its_own() -> None:
    with pytest.raises(ClosedOnDiscover):
        negotiated([ExchangeError(FailureKind.CLOSED, "exited with code 1")])


def test_a_named_version_is_tried_alone() -> None:
    assert methods(negotiated([OLDER], Handshake.of("2025-06-18"))[1]) == ["initialize"]
    with pytest.raises(ExchangeError, match="does not speak 2026-07-28"):
        negotiated([NOT_FOUND], Handshake.of(LATEST_MODERN))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from((*KNOWN_VERSIONS, "tools")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("protocolVersion", "supportedVersions", "capabilities", "serverInfo", "_meta", "tools")),
            inner,
        )
    ),
    max_leaves=10,
)
OUTCOMES = (
    st.dictionaries(
        st.sampled_from(
            ("protocolVersion", "supportedVersions", "capabilities", "serverInfo", "_meta", "instructions")
        ),
        JSON,
    )
    | st.sampled_from((OLDER, NEWER))
    | st.builds(
        ExchangeError,
        st.sampled_from(FailureKind),
        st.just("no"),
        answer=st.none() | st.builds(RpcError, st.just(-32022), st.just("no"), JSON),
    )
)


@given(st.lists(OUTCOMES, min_size=5, max_size=5), st.sampled_from(("auto", *KNOWN_VERSIONS)))
def test_whatever_a_server_answers_a_known_version_is_agreed_on_or_the_connection_fails(
    outcomes: list[Any], protocol: str
) -> None:
    try:
        session, sent = negotiated(outcomes, Handshake.of(protocol))
    except ExchangeError:
        return
    assert session.protocol.version in KNOWN_VERSIONS
    assert len({request.id for request in sent}) == len(sent)
    if protocol in HANDSHAKE_VERSIONS:
        assert not session.protocol.modern


def test_a_request_carries_what_the_caller_sent_but_nothing_of_the_callers_own_connection() -> None:
    older, newer = negotiated([NOT_FOUND, OLDER])[0], negotiated([NEWER])[0]
    params = {"name": "größe", "arguments": {}}
    assert older.protocol.params(CTX, params, "tools/call") == {**params, "_meta": {"com.example/trace": "t"}}
    meta = newer.protocol.params(CTX, params, "tools/call")["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == LATEST_MODERN
    assert "progressToken" not in meta
    request = newer.request("tools/call", params)
    assert request.headers["mcp-name"] == "=?base64?Z3LDtsOfZQ==?="
    assert newer.request("tools/call", params).headers is request.headers
    assert older.request("tools/call", params).headers == {"mcp-protocol-version": "2025-06-18"}


def test_a_progress_token_is_added_only_for_a_client_that_wants_progress() -> None:
    session = negotiated([NOT_FOUND, OLDER])[0]
    quiet = session.request("tools/call", {"name": "a"})
    assert "_meta" not in json.loads(quiet.data)["params"]
    loud = session.request("tools/call", {"name": "a"}, wants_progress=True)
    token = json.loads(loud.data)["params"]["_meta"]["progressToken"]
    report = {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "total": "x"}}
    assert session.receive(report) == Progress(loud.id, 1, None, None)


def test_a_request_that_is_given_up_is_cancelled_unless_it_begins_the_connection() -> None:
    session, sent = negotiated([NOT_FOUND, OLDER])
    request = session.request("tools/call", {"name": "a"})
    notice = session.cancellation(request)
    assert notice is not None
    assert (notice["method"], notice["params"]["requestId"]) == ("notifications/cancelled", request.id)
    assert [session.cancellation(one) for one in sent] == [None, None]


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"id": 7, "method": "roots/list"}, Request(7, "roots/list")),
        ({"id": "a", "method": "ping", "params": {}}, Request("a", "ping", {})),
        ({"method": "notifications/cancelled", "params": {"requestId": "7"}}, Cancelled(7)),
        ({"method": "notifications/cancelled", "params": {"requestId": None}}, None),
        ({"method": "notifications/progress", "params": {"progressToken": 7}}, None),
        ({"method": "com.example/news", "params": {"a": 1}}, Notification("com.example/news", {"a": 1})),
        ({"id": 7, "result": {}}, None),
        (
            {
                "method": "notifications/subscriptions/acknowledged",
                "params": {"notifications": {"a": 1}, "_meta": {"io.modelcontextprotocol/subscriptionId": "3"}},
            },
            Subscribed(3, {"a": 1}),
        ),
    ],
)
def test_what_a_server_sends_is_read(message: dict[str, Any], event: object) -> None:
    assert ClientSession.receive(message) == event


@given(
    st.dictionaries(
        st.sampled_from(("jsonrpc", "id", "method", "params", "result", "error")),
        JSON | st.sampled_from(("notifications/progress", "notifications/cancelled", "ping")),
    )
)
def test_no_message_breaks_the_session(message: dict[str, Any]) -> None:
    ClientSession.receive(message)


def test_a_question_gets_an_answer_under_its_own_id() -> None:
    question = Request("q1", "roots/list")
    assert ClientSession.answer(question, {"roots": []}) == {"jsonrpc": "2.0", "id": "q1", "result": {"roots": []}}
    assert ClientSession.answer(question, RpcError(-1, "no", [1])) == {
        "jsonrpc": "2.0",
        "id": "q1",
        "error": {"code": -1, "message": "no", "data": [1]},
    }


@given(st.integers(0, 10**17))
def test_an_id_is_known_again_in_whatever_form_a_server_repeats_it(number: int) -> None:
    assert same_id(number) == same_id(str(number)) == number
    assert same_id(str(number) * 400) == str(number) * 400
