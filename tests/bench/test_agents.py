"""The benchmark of agents: what a recording holds, how calls are read from answers, and what the table counts."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "bench" / "agents"
MODEL = """
import json, re, sys
request = re.search(r"A user asks: (.*)", sys.stdin.read())[1]
if "weather" in request:
    print("I would look out of the window.")
else:
    print("Sure.", json.dumps({"name": "tool_search", "arguments": {"query": " ".join(request.split()[:6])}}))
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is a folder with scripts and no package."""
    names = ("models", "recordings")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            sys.modules.pop(name)


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(FOLDER), *arguments, "--set", "everyday"]
    environment = {"TOOLCRIB_BENCH_AGENTS": str(folder), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.slow
def test_a_recording_has_what_the_model_saw_and_its_first_calls(tmp_path: Path, bench: SimpleNamespace) -> None:
    script, folder = tmp_path / "model.py", tmp_path / "recordings"
    script.write_text(MODEL, encoding="utf-8")
    arguments = ("--model", "scripted", "--per-set", "4", "--command", f"{sys.executable} {script}")
    run(folder, "record", "test.jsonl", *arguments)
    session, calls = bench.recordings.read_session(folder / "everyday-test.jsonl")
    assert (session.model, session.tools, len(calls)) == ("scripted", "alone", 4)
    assert [tool["name"] for tool in session.definitions][:2] == ["tool_search", "execute_tool"]
    assert "Servers:" in session.definitions[0]["description"]
    assert all(call.arguments is None or call.arguments["query"] for call in calls)
    for call in calls:
        assert session.prompt.format(request=call.request).count(call.request) == 1


@pytest.mark.slow
def test_the_table_has_the_calls_of_a_model_and_the_requests_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("fastmcp")
    first = {"query": "send email"}
    session = {"model": "scripted", "date": "2026-01-01", "system": "0", "definitions": [], "instructions": ""}
    lines = [
        {**session, "prompt": "{request}", "tools": "alone"},
        {"set": "everyday", "request": "send an email", "arguments": first, "answer": "tool_search"},
        {"set": "everyday", "request": "a request of an earlier version", "arguments": first, "answer": "tool_search"},
    ]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    printed = run(tmp_path, "report")
    rows = [[cell.strip() for cell in line.split("|")[2:7]] for line in printed.splitlines() if "everyday, 167" in line]
    assert "requests that everyday no longer has: 1." in printed
    assert [row[0].startswith("scripted") for row in rows] == [True, True, False, False]
    assert [row[1].split()[0] for row in rows] == ["toolcrib", "fastmcp"] * 2
    assert rows[0][2:] == ["1", "1", "100%"]
    assert rows[2][2] == rows[2][3] != "1"


@pytest.mark.slow
def test_a_second_table_has_what_a_second_call_finds_beside_the_first_one(tmp_path: Path) -> None:
    pytest.importorskip("fastmcp")
    session = {"model": "scripted", "date": "2026-01-01", "system": "0", "definitions": [], "instructions": ""}
    first = {"set": "everyday", "request": "send an email", "arguments": {"query": "delete"}, "answer": "tool_search"}
    lines = [{**session, "prompt": "{request}", "tools": "alone"}, first]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (tmp_path / "second").mkdir()
    second = json.dumps({**first, "arguments": {"query": "send email"}})
    (tmp_path / "second" / "test.jsonl").write_text(second, encoding="utf-8")
    _, _, table = run(tmp_path, "report").partition("requests asked twice")
    rows = [[cell.strip() for cell in line.split("|")[2:6]] for line in table.splitlines() if "everyday, 167" in line]
    assert [row[0].split()[0] for row in rows] == ["toolcrib", "fastmcp"]
    assert rows[0][1:] == ["1", "0", "1"]


@pytest.mark.parametrize("path", sorted((FOLDER / "recordings").glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_kept_recording_shows_no_tool_of_the_catalog(path: Path, bench: SimpleNamespace) -> None:
    session, calls = bench.recordings.read_session(path)
    assert [tool["name"] for tool in session.definitions] == ["tool_search", "execute_tool"]
    assert len({call.request for call in calls}) == len(calls) > 100


def test_without_recordings_there_is_no_table(tmp_path: Path) -> None:
    assert "There are no recordings" in run(tmp_path, "report")


def test_a_line_that_is_no_call_is_named(tmp_path: Path, bench: SimpleNamespace) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"model": "m"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 1"):
        bench.recordings.read_session(path)


CALL = {"query": "send mail"}
ANSWERS: dict[str, Any] = {
    "openai": {
        "choices": [
            {
                "message": {
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "tool_search", "arguments": json.dumps(CALL)},
                        }
                    ],
                }
            }
        ]
    },
    "anthropic": {
        "content": [
            {"type": "text", "text": "I search."},
            {"type": "tool_use", "id": "1", "name": "tool_search", "input": CALL},
        ]
    },
}


@pytest.mark.parametrize("shape", ANSWERS)
def test_the_first_call_is_read_from_an_answer_of_either_shape(bench: SimpleNamespace, shape: str) -> None:
    assert bench.models.read_answer(ANSWERS[shape], shape) == ("tool_search", CALL)


def test_an_answer_without_a_call_is_its_text(bench: SimpleNamespace) -> None:
    assert bench.models.read_answer({"choices": [{"message": {"content": "No."}}]}, "openai") == "No."
    assert bench.models.find_call("{not json} and {} and [1]") == "{not json} and {} and [1]"
