"""`toolcrib eval`: figures of the search over your own tools and queries."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from tests.cli.conftest import Ran

from toolcrib.search.vectors import Vectors
from toolcrib.types import Tool

Command = Callable[..., Ran]

QUALITY = ("recall@1", "recall@5", "recall@10", "mrr@10", "ndcg@10")
TOOLS: list[dict[str, Any]] = [
    {"id": "t1", "namespace": "git", "name": "git_log", "description": "Show the commits."},
    {"id": "t2", "namespace": "mail", "name": "send_mail", "description": "Send a message to a person."},
    {"id": "t3", "namespace": "disk", "name": "read_file", "description": "Give the content of a file."},
]
QUERIES: list[dict[str, Any]] = [
    {"id": "q1", "query": "show commits", "relevant": ["t1"]},
    {"id": "q2", "query": "send a message", "relevant": ["t2"]},
    {"id": "q3", "query": "content of a file", "relevant": ["t3", "t2"]},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder of the command, with three tools and three queries."""
    write(tmp_path / "tools.jsonl", TOOLS)
    write(tmp_path / "queries.jsonl", QUERIES)
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def figures(command: Command, *words: str) -> Any:
    ran = command("eval", "--tools", "tools.jsonl", "--queries", "queries.jsonl", "--json", *words)
    assert (ran.code, ran.err) == (0, "")
    return ran.json


@pytest.mark.usefixtures("folder")
def test_the_figures_are_shares_and_times(command: Command) -> None:
    got = figures(command)
    assert set(got) == {
        *QUALITY,
        *("p50_us", "p95_us", "build_s", "queries", "tools", "scorer"),
        *("lost_answer_rate", "lost_answer_rate_sure"),
    }
    assert (got["scorer"], got["tools"], got["queries"]) == ("hybrid", 3, 3)
    assert all(0 <= got[name] <= 1 for name in QUALITY)
    assert got["recall@1"] == pytest.approx((1 + 1 + 1 / 2) / 3)
    assert got["mrr@10"] == 1
    assert 0 < got["p50_us"] <= got["p95_us"]
    assert got["build_s"] > 0


def test_queries_that_nothing_answers_give_the_rate_of_false_answers(command: Command, folder: Path) -> None:
    write(folder / "others.jsonl", [{"query": "show commits"}, {"query": "xyzzy"}])
    got = figures(command, "--unanswerable", "others.jsonl")
    assert got["unanswerable"] == 2
    assert got["false_answer_rate"] == 1 / 2
    assert 0 <= got["false_answer_rate_sure"] <= got["false_answer_rate"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("scorer", ["tiers", "bm25", "points"])
def test_each_scorer_can_be_measured(command: Command, scorer: str) -> None:
    assert figures(command, "--scorer", scorer)["scorer"] == scorer


class Counting:
    """An embedder that knows one thing: a tally and commits are the same."""

    name, dim = "counting", 256

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One direction for texts about either, and others for all other texts."""
        same = [0 if "commit" in text or "tally" in text else 1 + crc32(text.encode()) % 255 for text in texts]
        return np.eye(self.dim, dtype=np.float32)[same]


def test_an_embedder_can_be_measured(command: Command, folder: Path) -> None:
    write(folder / "queries.jsonl", [{"id": "q1", "query": "tally", "relevant": ["t1"]}])
    assert figures(command)["recall@1"] == 0
    got = figures(command, "--embedder", "tests.cli.test_eval:Counting")
    assert (got["embedder"], got["recall@1"]) == ("counting", 1)


@pytest.mark.usefixtures("folder")
def test_an_unknown_embedder_is_refused_with_the_nearest_name(command: Command) -> None:
    ran = command("eval", "-t", "tools.jsonl", "-q", "queries.jsonl", "--embedder", "minilmm")
    assert (ran.code, ran.out) == (3, "")
    assert "Did you mean 'minilm'?" in ran.err


@pytest.mark.usefixtures("folder")
def test_without_json_the_figures_are_a_table(command: Command) -> None:
    ran = command("eval", "-t", "tools.jsonl", "-q", "queries.jsonl")
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["mrr@10", "1.000"] in rows
    assert ["scorer", "hybrid"] in rows


def test_right_tools_that_are_not_in_the_file_are_named(command: Command, folder: Path) -> None:
    write(folder / "queries.jsonl", [{"id": "q9", "query": "x", "relevant": ["t1", "send_mai", "b", "c", "d"]}])
    ran = command("eval", "-t", "tools.jsonl", "-q", "queries.jsonl")
    assert (ran.code, ran.out) == (2, "")
    assert "b (of query q9), c (of query q9), d (of query q9) and 1 more" in ran.err


@pytest.mark.usefixtures("folder")
def test_only_one_file_is_standard_input(command: Command) -> None:
    assert command("eval", "-t", "-", "-q", "-").code == 2
    given = "".join(f"{json.dumps(row)}\n" for row in QUERIES)
    assert command("eval", "-t", "tools.jsonl", "-q", "-", stdin=given).code == 0


def test_both_files_are_needed(command: Command) -> None:
    assert command("eval", "--tools", "tools.jsonl").code == 2
    assert "--tools" in command("eval", "--queries", "queries.jsonl").err


# -- comparing ---------------------------------------------------------------------------------------------------------


HARD = [
    {"id": "h1", "query": "zyzzyva of yesterday", "relevant": ["t1"]},
    {"id": "h2", "query": "quokka for Ann", "relevant": ["t2"]},
    {"id": "h3", "query": "content of a file", "relevant": ["t3"]},
]


def describe(tool: Tool) -> list[str]:
    """What a model of the user's might say."""
    return {"send_mail": ["quokka"], "git_log": ["zyzzyva"]}.get(tool.name, [])


@pytest.fixture
def hard(folder: Path) -> Path:
    write(folder / "queries.jsonl", HARD)
    return folder


def test_keywords_are_compared_with_the_search_without_them(command: Command, hard: Path) -> None:
    (hard / "words.json").write_text('{"git:git_log": ["zyzzyva"]}')
    got = figures(command, "--keywords", "words.json", "--compare")
    assert set(got) == {"before", "after", "change", "interval", "better", "worse"}
    assert (got["before"]["recall@1"], got["after"]["recall@1"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert got["change"]["recall@1"] == pytest.approx(1 / 3)
    low, high = got["interval"]["recall@1"]
    assert 0 <= low <= got["change"]["recall@1"] <= high <= 1
    assert got["better"] == [{"id": "h1", "query": "zyzzyva of yesterday", "before": None, "after": 1}]
    assert got["worse"] == []


@pytest.mark.usefixtures("hard")
def test_what_a_function_gives_is_compared(command: Command) -> None:
    got = figures(command, "--describe", "tests.cli.test_eval:describe", "--compare")
    assert [row["id"] for row in got["better"]] == ["h1", "h2"]
    assert figures(command, "--describe", "tests.cli.test_eval:describe")["recall@1"] == 1


def test_past_requests_are_compared(command: Command, hard: Path) -> None:
    write(hard / "past.jsonl", [{"query": "zyzzyva yesterday", "relevant": ["t1"]}] * 20)
    got = figures(command, "--past", "past.jsonl", "--compare")
    assert [row["id"] for row in got["better"]] == ["h1"]
    assert ("past" in got["before"], got["after"]["past"]) == (False, 20)


def test_half_of_the_queries_can_be_the_past_of_the_others(command: Command, folder: Path) -> None:
    write(folder / "queries.jsonl", [{"id": str(n), "query": "zyzzyva", "relevant": ["t1"]} for n in range(40)])
    got = figures(command, "--past", "half", "--compare")
    assert (got["after"]["queries"], got["after"]["past"]) == (20, 20)
    assert len(got["better"]) == 20


@pytest.mark.usefixtures("hard")
def test_a_comparison_for_people_names_the_queries_that_changed(command: Command) -> None:
    words = ("--describe", "tests.cli.test_eval:describe", "--compare")
    ran = command("eval", "-t", "tools.jsonl", "-q", "queries.jsonl", *words)
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["recall@1", "0.333", "1.000", "+0.667"] in [row[:4] for row in rows]
    assert "Better: 2 of 3 queries" in ran.out
    assert "  not found ->         1  quokka for Ann" in ran.out
    assert "Worse: 0 of 3 queries" in ran.out


@pytest.mark.usefixtures("hard")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--compare",), "--compare needs --keywords, --describe, --past or --embedder"),
        (("--past", "queries.jsonl"), "each query would find itself"),
        (("--past", "no.jsonl"), "no.jsonl: cannot be read"),
        (("--keywords", "no.toml"), "no.toml"),
        (("--describe", "no_such_module:f"), "no_such_module:f cannot be loaded"),
    ],
)
def test_what_cannot_be_compared_is_refused(command: Command, words: tuple[str, ...], said: str) -> None:
    ran = command("eval", "-t", "tools.jsonl", "-q", "queries.jsonl", *words)
    assert ran.code in (2, 3)
    assert said in ran.err


def test_a_bad_entry_of_the_keywords_is_named(command: Command, hard: Path) -> None:
    (hard / "words.json").write_text('{"git:git_log": ["zyzzyva"], "disk:read_file": 3}')
    ran = command("eval", "-t", "tools.jsonl", "-q", "queries.jsonl", "--keywords", "words.json", "--json")
    assert ran.json["recall@1"] == pytest.approx(2 / 3)
    assert 'words.json:1: "disk:read_file" is left out' in ran.err
