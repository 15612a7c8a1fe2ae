"""Properties that hold for any text, tool and history."""

import json
import string
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.discovery.support import FakeProvider

from toolcrib.discovery import (
    Session,
    ToolSearchEngine,
    expand_with_synonyms,
    extract_keywords,
    normalize_tool_name,
    tokenize,
)
from toolcrib.discovery.session import BoostOptions
from toolcrib.schema.arguments import merge_arguments

WORDS = st.lists(st.text(string.ascii_lowercase, min_size=2, max_size=8), min_size=1, max_size=5)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
EVENTS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.booleans(), st.sampled_from(["host", "call"])) | st.none(), max_size=40
)


@given(WORDS)
def test_joined_words_are_split_again(parts: list[str]) -> None:
    camel = parts[0] + "".join(part.capitalize() for part in parts[1:])
    for joined in ("_".join(parts), "-".join(parts), " ".join(parts), ".".join(parts), camel):
        assert tokenize(joined) == parts


@given(st.text(max_size=200))
def test_tokens_are_a_fixed_point(text: str) -> None:
    tokens = tokenize(text)
    assert all(token == token.lower() or not token.isascii() for token in tokens)
    ascii_tokens = [token for token in tokens if token.isascii()]
    assert tokenize(" ".join(ascii_tokens)) == ascii_tokens


@given(st.text(max_size=200))
def test_keywords_are_tokens_each_once(text: str) -> None:
    keywords = extract_keywords(text)
    assert {*keywords} <= {*tokenize(text)}
    assert len(keywords) == len({*keywords})
    assert bool(keywords) == bool(tokenize(text))


@given(st.lists(st.text(max_size=12), max_size=8))
def test_expanding_keeps_the_words(tokens: list[str]) -> None:
    assert {token.lower() for token in tokens} <= expand_with_synonyms(tokens)


@given(WORDS, st.text(string.ascii_lowercase, min_size=1, max_size=6))
def test_every_normalized_spelling_finds_the_tool(parts: list[str], namespace: str) -> None:
    name = "_".join(parts)
    engine: ToolSearchEngine[Any] = ToolSearchEngine()
    tool = {"name": name, "namespace": namespace}
    engine.set_tools([tool])
    for spelling in normalize_tool_name(f"{namespace}.{name}"):
        assert engine.find_exact(spelling) is tool


@given(EVENTS, st.integers(1, 4))
def test_a_session_is_bounded_and_survives_being_saved(events: list[Any], most: int) -> None:
    session, options = Session(max_tools=most), BoostOptions()
    for event in events:
        if event is None:
            session.advance_turn()
        else:
            session.record(event[0], event[1], by=event[2])
    assert len(session) <= most
    highest = 1 + options.recency + options.success + options.count * 4
    assert all(1.0 < boost <= highest for boost in session.boosts().values())
    again = Session.from_dict(json.loads(json.dumps(session.to_dict())), max_tools=most)
    assert again.to_dict() == session.to_dict()
    assert again.boosts() == session.boosts()


@given(st.text(max_size=30), st.booleans())
def test_a_failure_never_raises_and_a_success_never_lowers_a_boost_within_a_turn(tool: str, before: bool) -> None:
    session = Session()
    if before:
        session.record(tool)
    was = session.boost(tool)
    session.record(tool, success=False)
    failed = session.boost(tool)
    assert failed <= was
    session.record(tool)
    assert session.boost(tool) >= failed


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20) | st.sampled_from(["list_tools", "search_tools", "get_tool_schemas", "call_tool"]), JSON)
def test_the_response_is_always_an_envelope(name: str, arguments: Any) -> None:
    answer = anyio.run(_PROVIDER.execute_dynamic_tool, name, arguments)
    assert isinstance(answer["success"], bool)
    assert answer["success"] or answer.get("error") or answer.get("errors")
    json.dumps(answer)


@settings(max_examples=60, deadline=None)
@given(st.lists(JSON | st.fixed_dictionaries({"name": st.text(max_size=8), "parameters": JSON}), max_size=8), st.text())
def test_every_tool_is_searchable_or_rejected(tools: list[Any], query: str) -> None:
    engine: ToolSearchEngine[Any] = ToolSearchEngine()
    engine.set_tools(tools)
    assert len(engine.toolset) <= len(tools)
    assert all(one.reason for one in engine.rejected)
    engine.search(query)


@given(st.dictionaries(st.sampled_from(["a", "b", "arguments"]), st.integers(), max_size=3))
def test_the_nested_form_reaches_every_parameter(arguments: dict[str, int]) -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}, "arguments": {}}}
    assert merge_arguments(arguments, {}, schema, tool="t") == arguments


_PROVIDER = FakeProvider()
