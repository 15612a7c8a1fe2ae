"""Messages from bytes and to bytes, beside the SDK's own models."""

import json
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.protocol import messages
from toolcrib.protocol.failures import INVALID_REQUEST, PARSE_ERROR, RpcError
from toolcrib.protocol.messages import (
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    RawJson,
    Request,
    Response,
    decode,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
    read_lenient,
    read_message,
    request_id_in,
    response_id_in,
    response_parts,
)

_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(st.text(max_size=6), _json, max_size=4)
_ids = st.integers(-(2**53), 2**53) | st.text(max_size=8)
_errors = st.builds(RpcError, st.integers(-33000, 33000), st.text(max_size=8), st.none() | _objects)
_messages = st.one_of(
    st.builds(Request, _ids, st.text(max_size=8), st.none() | _objects),
    st.builds(Notification, st.text(max_size=8), st.none() | _objects),
    st.builds(Response, _ids, _objects),
    st.builds(ErrorResponse, st.none() | _ids, _errors),
)


def encode(message: Message) -> bytes:
    """A message of any kind, encoded."""
    match message:
        case Request(request_id, method, params):
            return encode_request(request_id, method, params)
        case Notification(method, params):
            return encode_notification(method, params)
        case Response(request_id, result):
            return encode_response(request_id, result)
        case ErrorResponse(request_id, error):
            return encode_error(request_id, error)


def plain(message: Message) -> dict[str, Any]:
    """A message as the SDK's model of it would be written."""
    found: dict[str, Any] = json.loads(encode(message))
    return found


@given(_messages)
def test_the_sdk_reads_every_encoded_message_as_it_was(message: Message) -> None:
    text = encode(message)
    read = mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    assert json.loads(read.model_dump_json(by_alias=True, exclude_unset=True)) == json.loads(text)
    assert type(read).__name__ == f"JSONRPC{type(message).__name__.removesuffix('Response') or 'Response'}"


@given(_objects, st.integers(0, 30), st.integers(1, 3))
def test_a_response_in_parts_is_the_same_text(result: dict[str, Any], size: int, group: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "PART_SIZE", max(size, 1))
        patch.setattr(messages, "_GROUP", group)
        assert b"".join(response_parts(1, result)) == encode_response(1, result)


@pytest.mark.parametrize(
    "value",
    [
        "é" * 3_000_000,
        [{"type": "text", "text": "x" * 100_000}] * 40,
        {"rows": [{"id": n, "name": "x" * 40} for n in range(50_000)]},
        {f"key {n}": {"deep": ["x" * 30]} for n in range(50_000)},
        {"a": {"b": {"c": [["x" * 2_000_000], {5: "y" * 2_000_000}]}}},
    ],
    ids=["text", "blocks", "rows", "keys", "deep"],
)
def test_no_part_of_a_large_response_is_long(value: Any) -> None:
    parts = list(response_parts(1, {"content": value}))
    assert b"".join(parts) == encode_response(1, {"content": value})
    assert max(map(len, parts)) < 1_000_000


@given(_messages)
def test_every_encoded_message_is_decoded_to_the_same(message: Message) -> None:
    assert plain(decode(encode(message))) == plain(message)
    lenient = read_lenient(json.loads(encode(message)))
    if not isinstance(message, ErrorResponse) or message.id is not None:
        assert lenient is not None
        assert plain(lenient) == plain(message)


_parts = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2]),
        "id": _ids | st.none() | st.booleans(),
        "method": st.text(max_size=5) | st.integers(),
        "params": _objects | st.lists(_json, max_size=2) | st.none(),
        "result": _json,
        "error": _json | st.fixed_dictionaries({"code": st.integers(), "message": st.text(max_size=5)}),
    },
)


def is_accepted(value: dict[str, Any]) -> bool:
    """Whether a client may send the message."""
    try:
        read_message(value)
    except InvalidMessage:
        return False
    return True


def is_accepted_by_sdk(value: dict[str, Any]) -> bool:
    """The same, to the SDK."""
    try:
        mcp_types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValueError:
        return False
    return True


@given(_parts)
def test_messages_of_clients_are_accepted_as_by_the_sdk(value: dict[str, Any]) -> None:
    # To the SDK, a request whose id is neither text nor a number is a notification, so that its client waits for ever,
    # and a message with several of these keys is whichever of them is valid.
    is_request_without_id = "method" in value and "id" in value and type(value["id"]) not in (int, str)
    if not is_request_without_id and len(value.keys() & {"method", "result", "error"}) < 2:
        assert is_accepted(value) == is_accepted_by_sdk(value)


@pytest.mark.parametrize(
    ("text", "code", "problem", "request_id"),
    [
        (b"{", PARSE_ERROR, "not valid JSON", None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {', PARSE_ERROR, "not valid JSON", 7),
        (b"[" * 300, PARSE_ERROR, "200 levels", None),
        (b"[]", INVALID_REQUEST, "one JSON object", None),
        (b'{"id": 1, "method": "ping"}', INVALID_REQUEST, "jsonrpc is required", 1),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', INVALID_REQUEST, "id must be", None),
        (b'{"jsonrpc": "2.0", "id": "a", "method": "ping", "params": 1}', INVALID_REQUEST, "params must be", "a"),
        (b'{"jsonrpc": "2.0", "id": 1}', INVALID_REQUEST, "result is required", 1),
    ],
)
def test_an_invalid_message_is_refused_with_its_field_and_its_id(
    text: bytes, code: int, problem: str, request_id: int | str | None
) -> None:
    with pytest.raises(InvalidMessage, match=problem) as caught:
        decode(text)
    assert caught.value.error.code == code
    assert caught.value.id == request_id


def test_of_keys_that_come_twice_the_last_one_counts() -> None:
    assert decode(b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "ping"}') == Request(2, "ping")


@given(_ids, _objects, st.dictionaries(st.text(max_size=6), _json, max_size=2))
def test_encoded_parts_of_a_result_are_written_as_they_are(
    request_id: int | str, result: dict[str, Any], encoded: dict[str, Any]
) -> None:
    parts = {name: RawJson(json.dumps(value).encode()) for name, value in encoded.items()}
    whole = json.loads(encode_response(request_id, {**result, **parts}))
    assert whole == {"jsonrpc": "2.0", "id": request_id, "result": {**result, **encoded}}


def test_an_encoded_part_within_another_value_is_refused() -> None:
    with pytest.raises(ValueError, match="RawJson"):
        encode_response(1, {"_meta": {"tools": RawJson(b"[]")}})


def test_numbers_that_are_not_finite_are_null_in_a_result_and_refused_in_a_request() -> None:
    assert json.loads(encode_response(1, {"sum": float("nan")}))["result"] == {"sum": None}
    assert b"NaN" in encode_request(1, "tools/call", {"name": "NaN"})
    with pytest.raises(ValueError, match="expected value"):
        encode_request(1, "tools/call", {"name": "NaN", "arguments": {"x": float("inf")}})


def test_an_unpaired_surrogate_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        encode_response(1, {"text": "\ud83d"})


@given(st.one_of(st.builds(Request, _ids, st.text(max_size=8), _objects), st.builds(Response, _ids, _objects)))
def test_the_id_in_a_broken_text_is_the_right_one_or_none(message: Request | Response) -> None:
    text = encode(message)
    for cut in range(len(text)):
        head = text[:cut]
        assert request_id_in(head) in (None, message.id if isinstance(message, Request) else None)
        assert response_id_in(head) in (None, message.id if isinstance(message, Response) else None)
