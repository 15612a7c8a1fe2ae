"""The reasons of a hit: each word, where and how it matched, and what it contributed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.search import explain
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.options import SearchOptions
from toolcrib.types import Hit, Reason, SearchRequest, Tool


def tool(id_: str, description: str = "", **more: Any) -> Tool:
    namespace, _, name = id_.rpartition(":")
    return Tool(namespace=namespace, name=name, description=description, **more)


TOOLS = [
    tool("files:read_file", "Reads the contents of a file.", title="File reader"),
    tool("files:remove_file", "Deletes a file at a path.", keywords=("erase",)),
    tool("github:create_issue", "Opens a new issue in a repository.", tags=("tracker",)),
    tool("github:create_pull_request", "Opens a pull request from a branch."),
    tool(
        "weather:forecast",
        "Tells how the weather will be.",
        input_schema={
            "type": "object",
            "properties": {"city_name": {"type": "string", "description": "The town."}, "days": {"type": "integer"}},
        },
    ),
    tool(
        "mail:send_message",
        "Sends a message to a person.",
        input_schema={"type": "object", "properties": {"recipient": {"format": "email"}, "text": {"type": "string"}}},
    ),
    tool("cinema:find_movie", "Finds a movie by its name."),
]
INDEX = Index.build(TOOLS)
SURE = SearchOptions(nothing_below=0.0)


def hits(text: str, **more: Any) -> dict[str, Hit]:
    request = SearchRequest(queries=(text,), explain=True)
    return {hit.tool.id: hit for hit in search(INDEX, request, options=SURE, **more).hits}


def why(text: str, id_: str, **more: Any) -> dict[tuple[str, str], Reason]:
    return {(reason.word, reason.field): reason for reason in hits(text, **more)[id_].reasons}


def summary(reason: Reason) -> tuple[str, str]:
    return reason.how, reason.matched


@pytest.mark.parametrize(
    ("text", "id_", "key", "expected"),
    [
        ("FILE please", "files:read_file", ("FILE", "name"), ("exact", "")),
        ("FILE please", "files:read_file", ("FILE", "title"), ("exact", "")),
        ("FILE please", "files:read_file", ("FILE", "namespace"), ("stem", "files")),
        ("Requests", "github:create_pull_request", ("Requests", "name"), ("stem", "request")),
        ("Repositry", "github:create_issue", ("Repositry", "description"), ("spelling", "repository")),
        ("watch a Film", "cinema:find_movie", ("Film", "name"), ("synonym", "movie")),
        ("erase", "files:remove_file", ("erase", "keywords"), ("exact", "")),
        ("tracker", "github:create_issue", ("tracker", "tags"), ("exact", "")),
        ("city", "weather:forecast", ("city", "parameters"), ("exact", "")),
        ("towns", "weather:forecast", ("towns", "parameters"), ("stem", "town")),
        ("weather reports", "weather:forecast", ("weather", "name"), ("synonym", "forecast")),
        ("on Github", "github:create_issue", ("Github", "description"), ("meaning", "repository")),
        ("open a Pull Request", "github:create_pull_request", ("Pull Request", "name"), ("phrase", "")),
        ("to create a PULL request", "github:create_pull_request", ("PULL", "name"), ("exact", "")),
        ("go create pull request", "github:create_pull_request", ("create pull request", "name"), ("exact", "")),
        ("use createIssue now", "github:create_issue", ("createIssue", "name"), ("exact", "")),
        ("new issue", "github:create_issue", ("new issue", "description"), ("phrase", "")),
        ("a pulll requst", "github:create_pull_request", ("pulll requst", "name"), ("phrase", "")),
        ("send ann@example.org", "mail:send_message", ("email", "parameters"), ("type", "")),
    ],
)
def test_a_reason_names_the_typed_word_the_field_and_the_kind_of_match(
    text: str, id_: str, key: tuple[str, str], expected: tuple[str, str]
) -> None:
    assert summary(why(text, id_)[key]) == expected


def test_each_hit_has_only_its_own_name_as_a_reason() -> None:
    text = "createIssue, then readFile"
    assert ("createIssue", "name") in why(text, "github:create_issue")
    assert ("readFile", "name") not in why(text, "github:create_issue")
    assert why(text, "files:read_file")["readFile", "name"].gain == SURE.weights.named
    assert ("createIssue", "name") not in why(text, "files:read_file")


def test_each_hit_names_the_verb_it_shares_or_else_the_first_one() -> None:
    text = "Read a file; Create an issue"
    own = [reason for reason in hits(text)["github:create_issue"].reasons if reason.word == "Create"]
    assert sum(reason.gain for reason in own) > 0
    assert all(reason.word != "Read" for reason in hits(text)["github:create_issue"].reasons)
    against = why(text, "files:remove_file")["Read", "name"]
    assert (against.how, against.gain) == ("verb", -SURE.weights.verb)


def test_a_reason_names_only_literals_that_the_tool_accepts() -> None:
    text = "send 3 messages to ann@example.org"
    assert why(text, "mail:send_message")["email", "parameters"].how == "type"
    assert why(text, "mail:send_message")["email", "parameters"].gain == SURE.weights.literal / 2


def test_a_word_is_one_reason_per_field() -> None:
    for hit in hits("Read the File, reads files; createIssue in the Repositry").values():
        keys = [(reason.word.lower(), reason.field) for reason in hit.reasons]
        assert len(keys) == len(set(keys))


def test_the_use_in_a_session_is_a_reason() -> None:
    found = why("read a file", "files:read_file", boosts={"files:read_file": 2.0})["", "session"]
    assert (found.how, round(found.gain, 4)) == ("use", 0.6931)


def test_a_signal_without_an_explanation_of_its_own_is_a_reason_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: by for name, by in explain._EXPLAINERS.items() if name != "topic"}
    monkeypatch.setattr(explain, "_EXPLAINERS", others)
    hit = hits("read a file")["files:read_file"]
    topic = next(reason for reason in hit.reasons if reason.how == "topic")
    part = next(part for part in hit.parts if part.name == "topic")
    assert topic.gain == pytest.approx(part.value * part.weight)
    assert sum(reason.gain for reason in hit.reasons) == pytest.approx(hit.raw)


def test_reasons_behave_like_a_tuple() -> None:
    reasons = hits("read a file")["files:read_file"].reasons
    assert tuple(reasons) == reasons
    assert reasons[:2] == (reasons[0], reasons[1])
    assert len(reasons) == len([*reasons])
    assert hash(reasons) == hash(tuple(reasons))
    assert "Reason(" in repr(reasons)


_WORDS = """
Create issue issues FILE files read the of pull request weather creating movie film Remove delete send message
email repositry requst wether find 3 ann@example.org createIssue read_file , ; and city towns
"""
WORDS = _WORDS.split()


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join), st.booleans())
def test_gains_and_parts_add_up_to_raw_and_come_in_order(text: str, used: bool) -> None:
    boosts = {"files:read_file": 3.0} if used else None
    for hit in hits(text, boosts=boosts).values():
        assert sum(reason.gain for reason in hit.reasons) == pytest.approx(hit.raw, abs=1e-6)
        assert sum(part.value * part.weight for part in hit.parts) == pytest.approx(hit.raw, abs=1e-6)
        assert [r.gain for r in hit.reasons] == sorted((r.gain for r in hit.reasons), reverse=True)


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=10).map(" ".join))
def test_reasons_use_words_of_the_query_and_matched_words_of_the_tool(text: str) -> None:
    folded = text.lower()
    for hit in hits(text).values():
        everything = repr(hit.tool).lower()
        for reason in hit.reasons:
            if reason.how != "type":
                assert all(word in folded for word in reason.word.lower().split())
            assert reason.matched in everything
        assert all(word in text for word in hit.matched)
