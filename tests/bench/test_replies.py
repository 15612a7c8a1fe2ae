"""The benchmark of replies: what its agent does, when it takes a schema for complete, and what its figures count."""

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolcrib.types import Tool

ROOT = Path(__file__).parents[2]
SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}, "cc": {"type": "string"}}, "required": ["to"]}
SEND = Tool(name="send", namespace="mail", description="Send a mail.", input_schema=SCHEMA)
RIGHT = {"mail:send": SEND}


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is a folder with scripts and no package."""
    names = ("agent", "catalogs", "examples", "report", "systems")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench" / "replies"))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            sys.modules.pop(name)


class Scripted:
    """A system whose replies are given by what is asked."""

    name, fixed_tokens = "scripted", 0

    def __init__(self, first: Any, details: tuple[Any, ...] = (), more: tuple[Any, ...] = ()) -> None:
        self._first, self._details, self._more = first, details, more
        self.asked: list[str] = []

    def search(self, text: str) -> Any:
        self.asked.append(text)
        return self._first

    def details(self, text: str, id_: str) -> Iterator[Any]:
        for reply in self._details:
            self.asked.append(id_)
            yield reply

    def more(self, text: str) -> Iterator[Any]:
        for reply in self._more:
            self.asked.append("more")
            yield reply


# -- the agent -------------------------------------------------------------------------------------------------------


def test_the_agent_calls_a_right_tool_whose_schema_is_there(bench: SimpleNamespace) -> None:
    reply = bench.agent.Reply(hits={"mail:list": {}, "mail:send": SCHEMA}, tokens=100, request_tokens=5)
    system = Scripted(reply)
    made = bench.agent.attempt(system, "send a mail", RIGHT)
    assert (made.called, made.is_complete, made.rank, made.round_trips, made.tokens) == (True, True, 2, 2, 105)
    assert system.asked == ["send a mail"]


def test_the_agent_asks_by_name_for_a_right_tool_without_its_schema(bench: SimpleNamespace) -> None:
    named, bare, whole = (
        bench.agent.Reply(hits={"mail:send": schema}, tokens=tokens)
        for schema, tokens in ((None, 100), (None, 10), (SCHEMA, 50))
    )
    system = Scripted(named, details=(bare, whole))
    made = bench.agent.attempt(system, "send a mail", RIGHT)
    assert (made.called, made.is_complete, made.rank, made.round_trips, made.tokens) == (True, False, 1, 4, 160)
    assert system.asked == ["send a mail", "mail:send", "mail:send"]


def test_the_agent_asks_for_more_results_where_no_right_tool_is_shown(bench: SimpleNamespace) -> None:
    nothing = bench.agent.Reply(hits={"mail:list": SCHEMA}, tokens=100)
    more = bench.agent.Reply(hits={"mail:list": None, "mail:send": SCHEMA}, tokens=300)
    made = bench.agent.attempt(Scripted(nothing, more=(more,)), "send a mail", RIGHT)
    assert (made.called, made.is_complete, made.rank, made.round_trips, made.tokens) == (True, False, None, 3, 400)


def test_the_agent_gives_up_without_a_right_tool_among_more_results(bench: SimpleNamespace) -> None:
    nothing = bench.agent.Reply(hits={}, tokens=20)
    system = Scripted(nothing, details=(nothing,), more=(nothing,))
    made = bench.agent.attempt(system, "send a mail", RIGHT)
    assert (made.called, made.round_trips, made.tokens) == (False, 2, 40)
    assert system.asked == ["send a mail", "more"]


# -- complete schemas ------------------------------------------------------------------------------------------------


def one(argument: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": argument}, "required": ["x"], **more}


TEXT, DATE, NULL = {"type": "string"}, {"type": "string", "format": "date"}, {"type": "null"}
SAME = {
    "noise": (SCHEMA, {**SCHEMA, "additionalProperties": False, "$schema": "any"}),
    "optional left out": ({"properties": {"to": TEXT}, "required": ["to"]}, SCHEMA),
    "reference": (one(TEXT), one({"$ref": "#/$defs/A"}, **{"$defs": {"A": TEXT}})),
    "one choice": (one({"enum": ["km"]}), one({"type": "string", "const": "km"})),
    "text or null": (one({"type": ["string", "null"]}), one({"anyOf": [TEXT, NULL]})),
    "date or null": (one({"type": ["string", "null"], "format": "date"}), one({"anyOf": [DATE, NULL]})),
    "choice or null": (one({"enum": ["a", "b", None]}), one({"oneOf": [{"enum": ["b", "a"]}, NULL]})),
}
LESS = {
    "argument": ({}, SCHEMA),
    "type": (one({}), one(TEXT)),
    "choices": (one(TEXT), one({"type": "string", "enum": ["a", "b"]})),
    "format": (one(TEXT), one(DATE)),
    "items": (one({"type": "array"}), one({"type": "array", "items": TEXT})),
    "argument inside": (one({"type": "object"}), one(one(TEXT))),
    "null": (one(TEXT), one({"type": ["string", "null"]})),
}


@pytest.mark.parametrize(("shown", "original"), SAME.values(), ids=SAME)
def test_a_schema_that_says_the_same_in_other_words_is_complete(
    bench: SimpleNamespace, shown: Mapping[str, Any], original: Mapping[str, Any]
) -> None:
    assert bench.agent.is_complete(shown, original)


@pytest.mark.parametrize(("shown", "original"), LESS.values(), ids=LESS)
def test_a_schema_without_a_fact_that_a_call_needs_is_not_complete(
    bench: SimpleNamespace, shown: Mapping[str, Any], original: Mapping[str, Any]
) -> None:
    assert not bench.agent.is_complete(shown, original)


def test_a_schema_that_refers_to_itself_is_compared_to_a_depth(bench: SimpleNamespace) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    schema = one({"$ref": "#/$defs/node"}, **{"$defs": {"node": node}})
    assert bench.agent.is_complete(schema, schema)


# -- catalogs --------------------------------------------------------------------------------------------------------


def test_the_requests_are_those_of_the_development_sets(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TOOLCRIB_RETRIEVAL_DATA", raising=False)
    everyday, own = bench.catalogs.development_sets()
    lines = (ROOT / "tests/retrieval/everyday/queries.jsonl").read_text(encoding="utf-8").splitlines()
    assert {request.text for request in everyday.requests} <= {json.loads(line)["query"] for line in lines}
    assert (everyday.name, own.name) == ("everyday", "real_servers")
    assert everyday == bench.catalogs.development_sets()[0]
    assert "TOOLCRIB_RETRIEVAL_DATA" in capsys.readouterr().out


def test_a_recorded_copy_of_a_right_tool_is_right_too(bench: SimpleNamespace) -> None:
    copy = Tool(name="send", namespace="post", description=SEND.description)
    other = Tool(name="send", namespace="fax", description="Send a fax.")
    request = bench.catalogs.Request("send a mail", frozenset({"mail:send"}))
    alone = bench.catalogs.Catalog("made up", RIGHT, (request,))
    beside = bench.catalogs.among(alone, {each.id: each for each in (copy, other)})
    assert beside.requests[0].right == {"mail:send", "post:send"}
    assert set(beside.tools) == {"mail:send", "post:send", "fax:send"}


# -- systems and figures ---------------------------------------------------------------------------------------------


def test_toolcrib_answers_through_its_meta_tool(bench: SimpleNamespace) -> None:
    with bench.systems.toolcrib("toolcrib", ROOT / "src", RIGHT) as system:
        made = bench.agent.attempt(system, "send a mail", RIGHT)
    assert (made.called, made.is_complete, made.is_structured_complete, made.rank) == (True, True, True, 1)
    assert 0 < made.first.tokens < 300
    assert made.first.structured_tokens > 0
    assert system.fixed_tokens > 300


def test_the_surface_dynamic_names_tools_and_has_their_schemas_apart(bench: SimpleNamespace) -> None:
    with bench.systems.toolcrib("dynamic", ROOT / "src", RIGHT, "dynamic") as system:
        made = bench.agent.attempt(system, "send a mail", RIGHT)
    assert (made.called, made.rank, made.round_trips) == (True, 1, 2 if made.is_complete else 3)


def test_fastmcp_answers_through_its_search_tool(bench: SimpleNamespace) -> None:
    with bench.systems.fastmcp(RIGHT) as system:
        made = bench.agent.attempt(system, "send a mail", RIGHT)
        nothing = bench.agent.attempt(system, "zzz", RIGHT)
    assert (made.called, made.is_complete, made.round_trips) == (True, True, 2)
    assert (nothing.called, nothing.rank, nothing.round_trips) == (False, None, 1)


def test_a_commit_that_the_history_does_not_have_is_left_out(bench: SimpleNamespace) -> None:
    assert bench.systems.source_at("0" * 40) is None


def test_the_cost_of_requests_that_give_up_is_part_of_the_cost_of_a_call(bench: SimpleNamespace) -> None:
    def attempt(rank: int | None, tokens: int, *, is_complete: bool, called: bool) -> Any:
        first = bench.agent.Reply(hits={}, tokens=tokens)
        return bench.agent.Attempt("", first, rank, is_complete, is_complete, called, 1 + called, tokens)

    attempts = [
        attempt(1, 100, is_complete=True, called=True),
        attempt(3, 200, is_complete=False, called=True),
        attempt(None, 300, is_complete=False, called=False),
        attempt(7, 400, is_complete=False, called=False),
    ]
    figures = bench.report.figures(attempts)
    assert (figures["p50"], figures["p95"]) == (200, 400)
    assert (figures["top3"], figures["top3_complete"], figures["complete"], figures["called"]) == (0.5, 0.5, 0.25, 0.5)
    assert (figures["call_tokens"], figures["round_trips"]) == (500, 3.0)


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_the_figures_that_the_benchmark_wrote(bench: SimpleNamespace) -> None:
    page = (ROOT / "docs" / "explanation" / "replies.md").read_text(encoding="utf-8")
    kept = json.loads((ROOT / "bench" / "results" / "replies.json").read_text(encoding="utf-8"))
    assert bench.report.replaced(page, "figures", bench.report.table(kept)) == page


def test_only_the_text_between_its_marks_is_replaced(bench: SimpleNamespace) -> None:
    page = "Before.\n<!-- figures: written by make bench-replies -->\nold\n<!-- end of figures -->\nAfter."
    replaced = bench.report.replaced(page, "figures", "new")
    assert replaced == page.replace("\nold\n", "\n\nnew\n\n")


def test_the_tokens_of_a_reply_are_shown_by_what_they_are_for(bench: SimpleNamespace) -> None:
    hits = [
        {"name": "mail:send", "description": "Send a mail.", "score": 0.9, "input_schema": SCHEMA},
        {"name": "mail:list", "description": "List all mails.", "score": 0.1, "weak": True},
    ]
    texts = (json.dumps(hits), "One note.")
    reply = bench.agent.Reply(hits={}, tokens=sum(map(bench.systems.tokens_of, texts)), texts=texts)
    spent = bench.examples.spending(reply)
    assert sum(spent.values()) == reply.tokens
    assert (spent["examples"], spent["signatures"]) == (0, 0)
    assert spent["schemas"] > spent["names"] > spent["note"] > 0
    shown = bench.examples.markdown([bench.examples.Example("send a mail", reply, reply)])
    assert '### "send a mail"' in shown
    assert "  schema         mail:send\n" in shown
    assert "  text           mail:list\n" in shown
