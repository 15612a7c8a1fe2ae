"""Headers that repeat a request, beside the SDK's own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound

from toolcrib.protocol.failures import HEADER_MISMATCH, RpcError
from toolcrib.protocol.headers import (
    check_param_headers,
    decode_header,
    encode_header,
    read_header_map,
    repeated_header,
    request_headers,
)
from toolcrib.protocol.negotiation import NegotiatedProtocol

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from([" a", "=?base64?YQ==?="])


@pytest.mark.parametrize(
    ("method", "param"), [("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri")]
)
def test_requests_one_after_the_other_repeat_their_own_names(method: str, param: str) -> None:
    protocol = NegotiatedProtocol("2026-07-28")
    assert [protocol.headers(method, {param: name})["mcp-name"] for name in ("a", "b", "a")] == ["a", "b", "a"]


@given(_texts)
def test_a_text_is_the_same_after_its_way_through_a_header(text: str) -> None:
    assert encode_header(text) == inbound.encode_header_value(text)
    assert decode_header(encode_header(text)) == text


@given(st.text(st.sampled_from("=?base64YQ-"), max_size=20).map(lambda inner: f"=?base64?{inner}?=") | _texts)
def test_a_header_is_decoded_as_the_sdk_does(value: str) -> None:
    assert decode_header(value) == inbound.decode_header_value(value)


_values = st.none() | st.booleans() | st.integers() | st.floats() | _texts | st.just(10**5000) | st.just([1])
_SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "x-mcp-header": "N"},
        "at": {"type": "object", "properties": {"place": {"type": "string", "x-mcp-header": "Place"}}},
    },
}
_MAP = inbound.x_mcp_header_map(_SCHEMA)


@given(_values, _values)
def test_arguments_are_repeated_as_the_sdk_does(n: Any, place: Any) -> None:
    arguments = {"n": n, "at": {"place": place}}
    params = {"name": "f", "arguments": arguments}
    found = request_headers("tools/call", "2026-07-28", params, _MAP)
    repeated = {name: value for name, value in found.items() if name.startswith("mcp-param-")}
    assert repeated == {f"mcp-param-{name[10:]}": v for name, v in inbound.mcp_param_headers(_MAP, arguments).items()}


_given = st.none() | _texts.map(encode_header) | st.sampled_from(["1", "1.0", "1.5", "-3", "true", "=?base64?Y?="])


@given(_values | st.sampled_from([1, 1.0, 1.5, True]), st.none() | _texts, _given, _given)
def test_headers_of_arguments_are_compared_as_the_sdk_does(n: Any, place: Any, first: Any, second: Any) -> None:
    arguments = {"n": n, "at": {"place": place}}
    headers = {"mcp-param-n": first, "mcp-param-place": second}
    headers = {name: value for name, value in headers.items() if value is not None}
    wrong = inbound.validate_mcp_param_headers(_SCHEMA, arguments, headers)
    try:
        check_param_headers(headers, _MAP, arguments)
        code = 0
    except RpcError as error:
        code = error.code
    assert code == (0 if wrong is None else wrong.code)


def test_a_text_that_looks_like_a_number_is_compared_as_text() -> None:
    with pytest.raises(RpcError) as caught:
        check_param_headers({"mcp-param-place": "1.0"}, {("place",): "Place"}, {"place": "1"})
    assert caught.value.code == HEADER_MISMATCH


def test_a_header_that_comes_twice_is_found_whatever_its_case() -> None:
    assert repeated_header([("Mcp-Method", "a"), ("MCP-METHOD", "a")]) == "mcp-method"
    assert repeated_header([("Mcp-Param-N", "1"), ("mcp-param-n", "2")]) == "mcp-param-n"
    assert repeated_header([("accept", "a"), ("accept", "b"), ("mcp-name", "c")]) is None


_annotated = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "number", "object", None]),
        "x-mcp-header": st.sampled_from(["A", "a", "B", "not a token", "", 7]),
    },
)
_schemas = st.recursive(
    _annotated,
    lambda inner: st.dictionaries(
        st.sampled_from(["properties", "$defs", "items", "anyOf", "default", "additionalProperties"]),
        inner | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2) | st.lists(inner, max_size=2),
        max_size=2,
    ),
    max_leaves=6,
)


@given(_schemas)
def test_the_arguments_to_repeat_are_those_that_the_sdk_finds(schema: dict[str, Any]) -> None:
    if inbound.find_invalid_x_mcp_header(schema) is not None:
        with pytest.raises(ValueError, match="x-mcp-header"):
            read_header_map(schema)
    else:
        assert read_header_map(schema) == inbound.x_mcp_header_map(schema)
