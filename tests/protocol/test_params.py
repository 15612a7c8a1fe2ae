"""Which params each version accepts, beside the SDK's generated validators, and who sent a request."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp_types import methods
from pydantic import ValidationError

from toolcrib.protocol.failures import INVALID_PARAMS, METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION, RpcError
from toolcrib.protocol.headers import RoutingHeaders
from toolcrib.protocol.params import Envelope, check_request, is_valid_notification, read_envelope
from toolcrib.protocol.versions import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    KNOWN_VERSIONS,
    LOG_LEVEL_KEY,
    PROTOCOL_VERSION_KEY,
    is_modern,
)

_METHODS = sorted(methods.SPEC_CLIENT_METHODS)
_NOTIFICATIONS = sorted(methods.SPEC_CLIENT_NOTIFICATION_METHODS)
_versions = st.sampled_from(KNOWN_VERSIONS)
_texts = st.sampled_from(["", "a", "debug", "ref/prompt", "ref/resource", "accept", "assistant", "2026-07-28"])
# Wrong in a way that the SDK does not convert: it takes "5" for a number, and 1 for true.
_wrong = st.sampled_from([None, [], {}, [None], {"x": None}, {"x": {"y": 1}}, ["a"], 1.5, "text"])


def _mixed(*right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(*right, *right, _wrong)


def _record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional={name.strip("_"): part for name, part in fields.items()})


_capabilities = _mixed(
    _record(
        elicitation=_mixed(_record(form=_wrong, url=_wrong)),
        sampling=_mixed(_record(context=_wrong, tools=_wrong)),
        roots=_mixed(_record(listChanged=_mixed(st.booleans()))),
        tasks=_mixed(_record(list=_wrong, requests=_mixed(_record(elicitation=_mixed(_record(create=_wrong)))))),
        experimental=_wrong,
        extensions=_wrong,
    )
)
_icons = _mixed(st.lists(_record(src=_texts, sizes=_wrong, theme=_mixed(st.just("dark"))), max_size=2))
_info = _mixed(_record(name=_mixed(_texts), version=_mixed(_texts), title=_mixed(_texts), icons=_icons))
_meta = st.fixed_dictionaries(
    {},
    optional={
        PROTOCOL_VERSION_KEY: _mixed(st.just("2026-07-28")),
        CLIENT_INFO_KEY: _info,
        CLIENT_CAPABILITIES_KEY: _capabilities,
        LOG_LEVEL_KEY: _mixed(st.just("debug")),
        "progressToken": _mixed(st.integers()),
        "traceparent": _wrong,
    },
)
_pairs = _mixed(st.dictionaries(_texts, _mixed(_texts), max_size=2))
_answers = _mixed(
    st.dictionaries(
        _texts,
        st.one_of(
            _wrong,
            _record(action=_mixed(st.sampled_from(["accept", "decline"])), content=_pairs),
            _record(roots=_mixed(st.lists(_record(uri=_mixed(_texts), name=_mixed(_texts)), max_size=2))),
            st.just({"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}}),
        ),
        max_size=2,
    )
)
_fields: dict[str, st.SearchStrategy[Any]] = {
    "_meta": _mixed(_meta),
    "name": _mixed(_texts),
    "uri": _mixed(_texts),
    "arguments": _pairs,
    "task": _mixed(_record(ttl=_mixed(st.integers()))),
    "cursor": _mixed(_texts),
    "level": _mixed(st.just("debug")),
    "protocolVersion": _mixed(_texts),
    "capabilities": _capabilities,
    "clientInfo": _info,
    "ref": _mixed(_record(type=_texts, name=_mixed(_texts), uri=_mixed(_texts))),
    "argument": _mixed(_record(name=_mixed(_texts), value=_mixed(_texts))),
    "context": _mixed(_record(arguments=_pairs)),
    "notifications": _mixed(
        _record(toolsListChanged=_mixed(st.booleans()), resourceSubscriptions=_mixed(st.lists(_texts, max_size=2)))
    ),
    "inputResponses": _answers,
    "requestState": _mixed(_texts),
    "requestId": _mixed(st.integers()),
    "reason": _mixed(_texts),
    "progressToken": _mixed(st.integers()),
    "progress": _mixed(st.floats(allow_nan=False)),
    "total": _mixed(st.floats(allow_nan=False)),
    "message": _mixed(_texts),
    "vendor": _wrong,
}
_params = st.none() | st.fixed_dictionaries({}, optional=_fields)
_NEEDED: dict[str, Any] = {
    "name": "a",
    "uri": "a",
    "level": "debug",
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "a", "version": "1"},
    "ref": {"type": "ref/prompt", "name": "a"},
    "argument": {"name": "a", "value": "b"},
    "notifications": {},
    "_meta": {PROTOCOL_VERSION_KEY: "2026-07-28", CLIENT_CAPABILITIES_KEY: {}},
}


def outcome(method: str, version: str, params: Mapping[str, Any] | None) -> int:
    """The code of the error; 0 without one."""
    try:
        check_request(method, version, params)
    except RpcError as error:
        return error.code
    return 0


def expected(method: str, version: str, params: Mapping[str, Any] | None) -> int:
    """The same, as the SDK's server has it."""
    try:
        methods.validate_client_request(method, version, params)
    except KeyError:
        return METHOD_NOT_FOUND
    except ValidationError:
        return INVALID_PARAMS
    return 0


@given(st.sampled_from(_METHODS), _versions, _params, st.booleans())
def test_params_are_accepted_as_by_the_generated_validators(
    method: str, version: str, params: dict[str, Any] | None, is_filled: bool
) -> None:
    if is_filled:  # so that one wrong part decides, and not all those that are missing
        params = {**_NEEDED, **(params or {})}
    assert outcome(method, version, params) == expected(method, version, params)


@given(st.sampled_from(_NOTIFICATIONS), _versions, _params)
def test_notifications_are_accepted_as_by_the_generated_validators(
    method: str, version: str, params: dict[str, Any] | None
) -> None:
    if params is None and method == "notifications/cancelled":
        return  # means nothing, with params and without
    try:
        methods.validate_client_notification(method, version, params)
        is_valid = True
    except (KeyError, ValidationError):
        is_valid = False
    assert is_valid_notification(method, version, params) == is_valid


def test_a_method_that_no_version_defines_passes_with_any_params() -> None:
    check_request("skills/list", "2026-07-28", {"anything": [1]})


def test_wrong_params_are_refused_with_the_name_of_the_field() -> None:
    with pytest.raises(RpcError, match="Invalid params of tools/call: arguments must be an object"):
        check_request("tools/call", "2025-06-18", {"name": "add", "arguments": [1]})
    info = {"name": "a", "version": "1", "icons": [{}]}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
    with pytest.raises(RpcError, match=r"Invalid params of initialize: clientInfo\.icons\.0\.src is required"):
        check_request("initialize", "2025-06-18", params)


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_calls_can_run_as_tasks_in_2025_11_25_only(version: str) -> None:
    code = outcome("tasks/get", version, {"taskId": "t"})
    assert code == (0 if version == "2025-11-25" else METHOD_NOT_FOUND)


_headers = st.fixed_dictionaries(
    {},
    optional={
        "mcp-protocol-version": st.sampled_from(["2026-07-28", "2025-06-18", "9"]),
        "mcp-method": st.sampled_from(["tools/call", "tools/list"]),
        "mcp-name": st.sampled_from(["add", "=?base64?YWRk?=", "=?base64?YWR?="]),
    },
)
_envelopes: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        PROTOCOL_VERSION_KEY: st.sampled_from(["2026-07-28", "2025-06-18", "9", 9, None]),
        CLIENT_CAPABILITIES_KEY: st.just({}),
    },
)


@given(st.sampled_from(["tools/call", "tools/list"]), _envelopes | st.none(), _headers | st.none())
def test_an_envelope_is_refused_for_the_first_reason_that_the_sdk_gives(
    method: str, meta: dict[str, Any] | None, headers: dict[str, str] | None
) -> None:
    params: dict[str, Any] = {"name": "add"} if meta is None else {"name": "add", "_meta": meta}
    found = classify_inbound_request({"method": method, "params": params}, headers=headers)
    try:
        routing = None if headers is None else RoutingHeaders.of(headers)
        assert read_envelope(method, params, routing).version == "2026-07-28"
        code = 0
    except RpcError as error:
        code = error.code
    assert code == (found.code if isinstance(found, InboundLadderRejection) else 0)


def test_an_envelope_says_who_sends_a_request() -> None:
    info = {"name": "c", "version": "1"}
    meta = {PROTOCOL_VERSION_KEY: "2026-07-28", CLIENT_CAPABILITIES_KEY: {"roots": {}}, CLIENT_INFO_KEY: info}
    meta[LOG_LEVEL_KEY] = "info"
    assert read_envelope("tools/list", {"_meta": meta}) == Envelope("2026-07-28", {"roots": {}}, info, "info")


def test_a_refused_version_names_those_that_are_spoken() -> None:
    with pytest.raises(RpcError) as caught:
        read_envelope("tools/list", {"_meta": {CLIENT_CAPABILITIES_KEY: {}, PROTOCOL_VERSION_KEY: "2027-01-01"}})
    assert caught.value.code == UNSUPPORTED_PROTOCOL_VERSION
    assert caught.value.data == {"supported": ["2026-07-28"], "requested": "2027-01-01"}


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_only_modern_versions_need_an_envelope(version: str) -> None:
    assert outcome("tools/list", version, None) == (INVALID_PARAMS if is_modern(version) else 0)
