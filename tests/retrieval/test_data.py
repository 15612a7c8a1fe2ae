"""The retrieval test set is complete and documents its sources."""

import re
from collections import Counter

from tests.retrieval.loading import DATA, answerable, cases, rows, tools

KINDS = {"terse", "sentence", "long", "two_needs", "typo", "name", "unanswerable", "near_miss"}
WITHOUT_AN_ANSWER = {"unanswerable", "near_miss"}

SOURCE = re.compile(
    r"^\| (?P<namespace>[\w-]+) \| \[(?P<package>[^\]]+)\]\((?P<registry>https://(?:pypi\.org|www\.npmjs\.com)/[^)]+)\)"
    r" \| (?P<version>\d[\w.]*) \| (?P<licence>MIT|Apache-2\.0|BSD-3-Clause) \| (?P<repository>https://github\.com/\S+)"
    r" \| (?P<copyright>[^|]+) \|$",
    re.MULTILINE,
)
MACHINE_PATH = re.compile(r"(?<![\w.:])/(?:root|tmp|work|home|Users)/|[A-Z]:\\\\Users")


def sources() -> dict[str, re.Match[str]]:
    text = (DATA / "SOURCES.md").read_text(encoding="utf-8")
    return {found["namespace"]: found for found in SOURCE.finditer(text)}


def test_the_set_is_large_enough() -> None:
    assert len(tools()) >= 150
    assert len({tool.namespace for tool in tools()}) >= 14
    assert len(cases()) >= 120
    assert len(answerable()) >= 100


def test_every_id_is_unique() -> None:
    ids = Counter(tool.id for tool in tools()) + Counter(case.id for case in cases())
    assert [id_ for id_, count in ids.items() if count > 1] == []


def test_a_tool_has_the_id_that_its_row_says_and_the_rows_are_in_order() -> None:
    assert [tool.id for tool in tools()] == [row["id"] for row in rows("tools")]
    assert [tool.id for tool in tools()] == sorted(tool.id for tool in tools())


def test_every_tool_has_a_description_and_an_object_schema() -> None:
    assert [tool.id for tool in tools() if not tool.description.strip()] == []
    assert [tool.id for tool in tools() if tool.input_schema.get("type") != "object"] == []


def test_every_relevant_tool_exists() -> None:
    known = {tool.id for tool in tools()}
    assert {case.id: case.relevant - known for case in cases() if case.relevant - known} == {}


def test_queries_are_unique_and_not_empty() -> None:
    texts = Counter(case.query.casefold().strip() for case in cases())
    assert [text for text, count in texts.items() if count > 1 or not text] == []


def test_only_the_unanswerable_and_the_near_misses_have_no_answer() -> None:
    assert {case.kind for case in cases()} == KINDS
    assert {case.kind for case in cases() if not case.relevant} == WITHOUT_AN_ANSWER
    assert [case.id for case in answerable() if case.kind in WITHOUT_AN_ANSWER] == []


def test_two_needs_take_at_least_two_tools() -> None:
    assert [case.id for case in cases("two_needs") if len(case.relevant) < 2] == []


def test_a_name_is_the_name_of_each_of_its_tools() -> None:
    def letters(text: str) -> str:
        return re.sub(r"[\W_]", "", text).casefold()

    names = {tool.id: tool.name for tool in tools()}
    wrong = {
        (case.query, id_)
        for case in cases("name")
        for id_ in case.relevant
        if letters(case.query) not in letters(names[id_])
    }
    assert wrong == set()


def test_only_queries_of_kind_name_contain_the_name_of_a_tool() -> None:
    names = {tool.name for tool in tools() if "_" in tool.name or "-" in tool.name}
    assert {case.id for case in cases() if case.kind != "name" and names & set(case.query.split())} == set()


def test_every_server_has_its_package_version_licence_and_repository() -> None:
    assert set(sources()) == {tool.namespace for tool in tools()}
    assert all(found["copyright"].strip() for found in sources().values())


def test_the_text_of_every_licence_is_included() -> None:
    text = (DATA / "SOURCES.md").read_text(encoding="utf-8")
    missing = {found["licence"] for found in sources().values() if f"### {found['licence']}" not in text}
    assert missing == set()


def test_no_file_mentions_a_local_path() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in DATA.iterdir()}
    assert {name: MACHINE_PATH.findall(text) for name, text in texts.items() if MACHINE_PATH.search(text)} == {}


def test_the_files_are_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 600_000
