"""`toolcrib search --tools`: a search over a file, without servers or settings."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ran

from toolcrib.cli.files import FileError, read_queries, read_tools
from toolcrib.cli.render import hit_json, print_reply, reply_json, tool_id
from toolcrib.cli.tables import print_parts
from toolcrib.types import Hit, Reason, ScorePart, SearchReply, Tool

Command = Callable[..., Ran]

ROWS: list[dict[str, Any]] = [
    {
        "id": "t1",
        "namespace": "git",
        "name": "git_log",
        "description": "Show the commits.\nNewest first.",
        "parameters": {"type": "object", "properties": {"count": {"type": "integer"}}},
        "tags": ["history"],
    },
    {"id": "t2", "namespace": "git", "name": "git_log", "description": "Show the commits of a branch.", "tags": []},
    {"id": "t3", "namespace": "mail", "name": "send_mail", "description": "Send a message to a person."},
]


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(*rows: Any) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    return written(tmp_path / "tools.jsonl", lines(*ROWS))


# -- searching ---------------------------------------------------------------------------------------------------------


def test_a_file_is_searched_without_any_settings(command: Command, tools: Path) -> None:
    ran = command("search", "send", "a", "message", "--tools", tools)
    assert (ran.code, ran.err) == (0, "")
    score, name, description = ran.out.splitlines()[0].split("  ")
    assert 0 < float(score.split()[0]) <= 1
    assert (name, description) == ("t3", "Send a message to a person.")


def test_rows_that_share_namespace_and_name_are_both_kept_under_their_own_ids(command: Command, tools: Path) -> None:
    found = command("search", "commits", "--tools", tools, "--json").json["hits"]
    assert {(hit["id"], hit["namespace"], hit["name"]) for hit in found} == {
        ("t1", "git", "git_log"),
        ("t2", "git", "git_log"),
    }


def test_two_equal_rows_are_two_tools(command: Command, tmp_path: Path) -> None:
    twice = written(tmp_path / "twice.jsonl", lines(ROWS[0], ROWS[0], {**ROWS[0], "id": "other"}))
    found = command("search", "commits", "--tools", twice, "--json").json["hits"]
    assert sorted(hit["id"] for hit in found) == ["other", "t1", "t1"]


def test_a_file_can_be_narrowed_to_a_namespace_and_to_a_number(command: Command, tools: Path) -> None:
    def found(*words: str) -> list[str]:
        return [hit["id"] for hit in command("search", *words, "--tools", tools, "--json").json["hits"]]

    assert set(found("show send", "--namespace", "mail")) == {"t3"}
    assert len(found("commits", "--limit", "1")) == 1


def test_the_best_of_several_phrasings_of_a_need_decides_on_each_tool(command: Command, tools: Path) -> None:
    def found(*words: str) -> dict[str, float]:
        ran = command("search", "--limit", "9", *words, "--tools", tools, "--json")
        return {hit["id"]: hit["score"] for hit in ran.json["hits"]}

    mail, log = found("send message"), found("newest commits")
    both = found("send", "message", "--or", "zyxwv qwert", "--or", "newest commits")
    assert both == {id_: max(mail.get(id_, 0.0), log.get(id_, 0.0)) for id_ in mail | log}
    assert set(both) == {"t1", "t2", "t3"}
    assert list(both.values()) == sorted(both.values(), reverse=True)
    assert len(found("send message", "--or", "newest commits", "--limit", "1")) == 1


def test_an_unknown_namespace_names_those_of_the_file(command: Command, tools: Path) -> None:
    ran = command("search", "log", "--tools", tools, "-n", "gti")
    assert (ran.code, ran.err) == (4, "toolcrib: No server is called gti.\nServers: git, mail.\n")


def test_an_error_names_only_some_of_many_namespaces(command: Command, tmp_path: Path) -> None:
    many = written(tmp_path / "many.jsonl", lines(*({"name": "x", "namespace": f"n{number}"} for number in range(25))))
    assert "n19 and 5 more." in command("search", "x", "--tools", many, "-n", "q").err


@pytest.mark.parametrize("scorer", ["hybrid", "tiers", "bm25", "points"])
def test_every_scorer_finds_a_tool_by_its_name(command: Command, tools: Path, scorer: str) -> None:
    ran = command("search", "send_mail", "--tools", tools, "--scorer", scorer, "--json")
    assert ran.json["hits"][0]["id"] == "t3"


def test_an_unknown_scorer_names_those_there_are(command: Command, tools: Path) -> None:
    ran = command("search", "log", "--tools", tools, "--scorer", "magic")
    assert ran.code == 2
    assert all(name in ran.err for name in ("hybrid", "tiers", "bm25", "points"))


def test_names_that_are_close_are_the_ids_of_the_file(command: Command, tools: Path) -> None:
    nearest = command("search", "sendmial", "--tools", tools, "--json").json
    assert set(nearest["nearest"]) | {hit["id"] for hit in nearest["hits"]} <= {"t1", "t2", "t3"}


# -- the arithmetic ----------------------------------------------------------------------------------------------------

HIT = Hit(
    tool=Tool(name="log", namespace="git"),
    score=0.5,
    raw=2.5,
    reasons=(Reason(word="logs", field="name", how="stem", matched="log", gain=1.25),),
    parts=(ScorePart(name="coverage", value=0.5, weight=4.0), ScorePart(name="verb\x1b[31m", value=1.0, weight=0.5)),
)


def test_explain_shows_a_table_for_each_hit(command: Command, tools: Path) -> None:
    ran = command("search", "commits", "--tools", tools, "--explain")
    assert ran.code == 0
    assert "\n1. t" in ran.out
    assert "\n2. t" in ran.out
    plain = command("search", "commits", "--tools", tools)
    assert ran.out.startswith(plain.out)


def test_the_arithmetic_names_value_weight_product_and_sum(capsys: pytest.CaptureFixture[str]) -> None:
    print_parts((HIT,), tool_id)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1.", "git:log", "0.50"] in rows
    assert ["coverage", "0.500", "4.000", "2.000"] in rows
    assert ["verb[31m", "1.000", "0.500", "0.500"] in rows
    assert ["sum", "2.500"] in rows
    assert ["logs", "name", "stem", "log", "1.250"] in rows


def test_a_hit_as_json_carries_its_arithmetic_and_its_marks() -> None:
    shape = hit_json(HIT)
    assert shape["parts"][0] == {"name": "coverage", "value": 0.5, "weight": 4.0, "product": 2.0}
    assert (shape["weak"], shape["fallback"], shape["similar"]) == (False, False, [])


def test_likely_hits_as_json_come_with_a_compact_schema() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
    }
    schema |= {"properties": {"n": {"type": "integer", "title": "N"}}}
    tool = Tool(name="log", input_schema=schema)
    shown = reply_json(SearchReply(hits=tuple(Hit(tool=tool, score=score, raw=1) for score in (0.9, 0.8, 0.2))))
    schemas = [hit.get("input_schema") for hit in shown["hits"]]
    compact = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert schemas == [compact, compact, None]


def test_near_duplicates_are_counted_and_the_first_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    tool = Tool(name="log", namespace="git", description="Show commits.")
    few = Hit(tool=tool, score=0.5, raw=1, similar=("hg:log", "svn:log"))
    many = Hit(tool=tool, score=0.5, raw=1, similar=tuple(f"n{number}:log" for number in range(5)))
    print_reply(SearchReply(hits=(few, many)))
    shown = capsys.readouterr().out
    assert "+ 2 like it: hg:log, svn:log. Show commits." in shown
    assert "+ 5 like it: n0:log, n1:log, n2:log, ..." in shown


def test_similar_names_are_printed_beside_hits_too(capsys: pytest.CaptureFixture[str]) -> None:
    hit = Hit(tool=Tool(name="log"), score=0.5, raw=1)
    print_reply(SearchReply(hits=(hit,), nearest=("git:logs",)))
    assert "Similar names: git:logs" in capsys.readouterr().err


def test_a_weak_hit_and_one_shown_instead_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    tool = Tool(name="log")
    weak, instead = Hit(tool=tool, score=0.2, raw=1, weak=True), Hit(tool=tool, score=0, raw=0, fallback=True)
    print_reply(SearchReply(hits=(weak, instead)))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["0.20", "weak", "log"],
        ["0.00", "instead", "log"],
    ]


# -- the files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        lines(*ROWS),
        f"\ufeff{lines(*ROWS)}",
        lines(*ROWS).replace("\n", "\r\n\n"),
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        json.dumps({"tools": ROWS}, indent=2),
        json.dumps({"tools": ROWS}),
        gzip.compress(lines(*ROWS).encode(), mtime=0),
    ],
)
def test_every_usual_form_of_a_file_is_read_alike(tmp_path: Path, text: str | bytes) -> None:
    file = read_tools(written(tmp_path / "file", text))
    assert file.ids == ("t1", "t2", "t3")
    assert file.tools[0] == Tool(
        namespace="git",
        name="git_log",
        description="Show the commits.\nNewest first.",
        input_schema={"type": "object", "properties": {"count": {"type": "integer"}}},
        tags=("history",),
    )


def test_standard_input_is_read_for_a_dash(command: Command) -> None:
    assert command("search", "commits", "--tools", "-", stdin=lines(*ROWS)).code == 0


@pytest.mark.parametrize("name", ["parameters", "inputSchema", "input_schema"])
def test_the_schema_goes_by_mcps_own_names_too(tmp_path: Path, name: str) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    (tool,) = read_tools(written(tmp_path / "file", lines({"name": "read", name: schema}))).tools
    assert tool.input_schema == schema


def test_a_row_without_an_id_is_called_by_namespace_and_name(tmp_path: Path) -> None:
    rows = ({"name": "a"}, {"name": "b", "namespace": "n"}, {"name": "c", "server": "s"}, {"id": 7, "name": "d"})
    assert read_tools(written(tmp_path / "file", lines(*rows))).ids == ("a", "n:b", "s:c", "7")


def test_a_line_separator_inside_a_text_does_not_end_its_line(tmp_path: Path) -> None:
    text = '{"name": "a", "description": "one\u2028two"}\n{"name": "b"}\n'
    assert read_tools(written(tmp_path / "file", text)).ids == ("a", "b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "a"}\n{"name": }\n', "file:2: is not JSON: Expecting value, column 10."),
        ('{"name": "a"}\n["b"]\n', "file:2: is a list, not a JSON object."),
        ('{"name": "a"}\n\n{"nmae": "b"}\n', "file:3: name is missing."),
        ('{"name": ""}', "file:1: name is empty."),
        ('{"name": "a"}\n{"name": 3}\n', "file:2: name must be a string, not a number."),
        ('{"name": "a", "parameters": []}', "file:1: parameters must be a JSON object, not a list."),
        ('{"name": "a", "inputSchema": "x"}', "file:1: inputSchema must be a JSON object, not a string."),
        ('{"name": "a", "description": true}', "file:1: description must be a string, not true or false."),
        ('{"name": "a", "tags": "x"}', "file:1: tags must be a list of strings."),
        ('[{"name": "a"}, null]', "file: item 2: is null, not a JSON object."),
        ('{"tools": [\n  {"name": "a"},\n  {"name": }]}', "file:3: is not JSON: Expecting value, column 12."),
        ("[" * 100_000, "file:1: cannot be read: maximum recursion depth exceeded"),
        ("", "file: holds no tool."),
        ("[]", "file: holds no tool."),
        (b"\xff\xfe", "file: is not UTF-8 text, from byte 0 on."),
        (gzip.compress(b"x" * 999, mtime=0)[:20], "file: is not a whole gzip file"),
    ],
)
def test_an_unreadable_file_is_reported_with_its_place_and_a_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | bytes, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError) as caught:
        read_tools(written(Path("file"), text))
    assert caught.value.message.startswith(said)
    assert '"name": "log"' in caught.value.hint or "UTF-8" in said or "gzip" in said


def test_a_file_that_is_not_there_ends_with_code_2(command: Command) -> None:
    said = "none.jsonl: cannot be read: No such file or directory."
    assert command("search", "x", "--tools", "none.jsonl") == Ran(2, "", f"toolcrib: {said}\n")
    assert command("search", "x", "--tools", "none.jsonl", "--json").json["error"] == {
        "code": "invalid_file",
        "message": said,
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"relevant": ["a"]}, "file:1: query is missing."),
        ({"query": "x"}, "file:1: relevant must name at least one tool."),
        ({"query": "x", "relevant": "a"}, "file:1: relevant must be a list of strings."),
    ],
)
def test_a_query_needs_its_text_and_its_right_tools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError) as caught:
        read_queries(written(Path("file"), lines(row)))
    assert caught.value.message == said


def test_a_query_that_nothing_answers_needs_only_its_text(tmp_path: Path) -> None:
    (query,) = read_queries(written(tmp_path / "file", lines({"query": "x", "relevant": "?"})), answerable=False)
    assert (query.id, query.text, query.relevant) == ("1", "x", frozenset())
