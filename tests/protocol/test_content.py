"""What servers send, beside the SDK's generated validators of every version that differs."""

from collections.abc import Mapping
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import methods
from pydantic import ValidationError

from toolcrib.protocol.content import BLOCK, DOCUMENTS, LISTED, QUESTIONS, TOOL

_texts = st.sampled_from(["", "a", "text", "object", "assistant", "dark"])
# Wrong in a way that the SDK does not convert: it takes "5" for a number, and 1 for true.
_wrong = st.sampled_from([[], {}, [None], {"x": None}, ["a"], 1.5])


def _mixed(*right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(*right, *right, *right, _wrong)


def _record(needed: Mapping[str, Any], /, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with the needed fields, or without some of them, and with any of the others."""
    whole = {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in needed.items()}
    complete = st.fixed_dictionaries(whole, optional=optional)
    return st.one_of(complete, complete, complete, st.fixed_dictionaries({}, optional={**whole, **optional}))


_text = _mixed(_texts)
_flag = _mixed(st.booleans() | st.none())
_number = _mixed(st.integers(-2, 2), st.floats(-1, 2), st.none())
_meta = _mixed(st.dictionaries(_texts, _texts, max_size=1))
_icons = _mixed(st.lists(_record({"src": _text}, mimeType=_text, sizes=_mixed(st.lists(_text, max_size=2)))))
_about = {
    "_meta": _meta,
    "annotations": _mixed(_record({}, audience=_mixed(st.lists(_texts, max_size=2)), priority=_number)),
    "vendor": _wrong,
}
_schema = _record(
    {"type": st.sampled_from(["object", "object", "object", "string"])},
    properties=_mixed(st.dictionaries(_texts, st.booleans() | _wrong, max_size=2)),
    required=_mixed(st.lists(_texts, max_size=2)),
)
_dialect = st.builds(lambda schema, found: {**schema, **found}, _schema, _record({}, **{"$schema": _text}))
_hints = _mixed(_record({}, title=_text, readOnlyHint=_flag, destructiveHint=_flag, vendor=_wrong))
_tools = _record(
    {"name": _text, "inputSchema": _dialect | _wrong},
    title=_text,
    description=_text,
    outputSchema=_dialect | _wrong,
    annotations=_hints,
    icons=_icons,
    execution=_mixed(_record({}, taskSupport=st.sampled_from(["forbidden", "optional", "never"]))),
    _meta=_meta,
    vendor=_wrong,
)
_resources = _record({"uri": _text, "text": _text}, mimeType=_text) | _record({"uri": _text, "blob": _text})
_blocks = st.one_of(
    _record({"type": "text", "text": _text}, **_about),
    _record({"type": st.sampled_from(["image", "audio", "video"]), "data": _text, "mimeType": _text}, **_about),
    _record({"type": "resource_link", "uri": _text, "name": _text}, size=_number, icons=_icons, **_about),
    _record({"type": "resource", "resource": _resources | _wrong}, **_about),
    _wrong,
)
_sampled = st.one_of(
    _blocks,
    _record({"type": "tool_use", "id": _text, "name": _text, "input": _meta}),
    _record({"type": "tool_result", "toolUseId": _text, "content": st.lists(_blocks, max_size=1)}, isError=_flag),
)
_said = _record(
    {"role": st.sampled_from(["assistant", "user", "tool"]), "content": _sampled | st.lists(_sampled, max_size=2)}
)
_sampling = _record(
    {"messages": _mixed(st.lists(_said, max_size=2)), "maxTokens": _mixed(st.integers(0, 9))},
    systemPrompt=_text,
    temperature=_number,
    modelPreferences=_mixed(_record({}, hints=_mixed(st.lists(_record({}, name=_text))), speedPriority=_number)),
    tools=_mixed(st.lists(_record({"name": _text, "inputSchema": _dialect}), max_size=1)),
    toolChoice=_mixed(_record({}, mode=st.sampled_from(["auto", "any"]))),
    metadata=_meta,
)
_asked = _record(
    {
        "message": _text,
        "requestedSchema": _record({"type": "object", "properties": _meta}, required=_mixed(st.lists(_texts))) | _wrong,
    },
    mode=st.sampled_from(["form", "url", "page"]),
    url=_text,
)
_questions = st.one_of(
    st.fixed_dictionaries({"method": st.just("elicitation/create"), "params": _asked | _wrong}),
    st.fixed_dictionaries({"method": st.just("sampling/createMessage"), "params": _sampling | _wrong}),
    st.fixed_dictionaries({"method": st.just("roots/list")}, optional={"params": _record({}, _meta=_meta)}),
)
_documents = {
    "prompts/get": _record(
        {"messages": _mixed(st.lists(_record({"role": _text, "content": _blocks}), max_size=2))}, description=_text
    ),
    "resources/read": _record({"contents": _mixed(st.lists(_resources, max_size=2))}, _meta=_meta),
    "completion/complete": _record(
        {"completion": _record({"values": _mixed(st.lists(_text, max_size=2))}, total=_number, hasMore=_flag)}
    ),
}
_arguments = _mixed(st.lists(_record({"name": _text}, description=_text, required=_flag), max_size=2))
_entries = {
    "prompts/list": _record({"name": _text}, title=_text, arguments=_arguments, icons=_icons, _meta=_meta),
    "resources/list": _record({"name": _text, "uri": _text}, size=_number, mimeType=_text, icons=_icons, **_about),
    "resources/templates/list": _record({"name": _text, "uriTemplate": _text}, mimeType=_text, icons=_icons, **_about),
}
_MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def accepted(method: str, version: str, result: Mapping[str, Any]) -> bool:
    """Whether the SDK would send the result to a client of the version."""
    try:
        methods.validate_server_result(method, version, result)
    except ValidationError:
        return False
    return True


def fits(model: type[Any], value: Any) -> bool:
    """Whether the SDK's client reads the value."""
    try:
        model.model_validate(value, by_name=False)
    except ValidationError:
        return False
    return True


@given(_tools)
def test_a_tool_is_accepted_if_the_clients_of_all_versions_can_read_it(tool: dict[str, Any]) -> None:
    older = tool
    output = tool.get("outputSchema")
    if isinstance(output, dict) and output.get("type") != "object":  # which is not sent to clients of older versions
        older = {name: value for name, value in tool.items() if name != "outputSchema"}
    expected = (
        fits(mcp_types.Tool, tool)
        and accepted("tools/list", "2025-11-25", {"tools": [older]})
        and accepted("tools/list", "2026-07-28", {"tools": [tool], **_MODERN})
    )
    assert (TOOL(tool) is None) == expected


@given(_blocks)
def test_a_block_is_accepted_as_by_the_generated_validators(block: Any) -> None:
    assert (BLOCK(block) is None) == accepted("tools/call", "2025-11-25", {"content": [block]})


@pytest.mark.parametrize("method", sorted(DOCUMENTS))
@given(st.data())
def test_a_document_is_accepted_as_by_the_generated_validators(method: str, data: st.DataObject) -> None:
    document = data.draw(_documents[method])
    # In 2026-07-28, whatever is no document is a request for input to the SDK.
    assert (DOCUMENTS[method](document) is None) == accepted(method, "2025-11-25", document)


@given(_questions)
def test_a_question_is_accepted_as_by_the_generated_validators(question: dict[str, Any]) -> None:
    page = {"resultType": "input_required", "inputRequests": {"q": question}}
    assert (QUESTIONS[question["method"]](question) is None) == accepted("tools/call", "2026-07-28", page)


@pytest.mark.parametrize("method", sorted(LISTED))
@given(st.data())
def test_an_entry_of_a_list_is_accepted_if_the_clients_of_all_versions_can_read_it(
    method: str, data: st.DataObject
) -> None:
    entry = data.draw(_entries[method])
    key = "resourceTemplates" if "templates" in method else method.partition("/")[0]
    older, newer = {key: [entry]}, {key: [entry], **_MODERN}
    expected = accepted(method, "2025-11-25", older) and accepted(method, "2026-07-28", newer)
    assert (LISTED[method](entry) is None) == expected
