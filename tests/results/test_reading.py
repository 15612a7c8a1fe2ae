"""Reading parts of a large result: by path, pattern, page and range, each within a budget."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import InvalidRequest
from toolcrib.results.preview import parse_document
from toolcrib.results.reading import ReadRequest, pack, parse_read, read, unpack
from toolcrib.tokens import estimate_tokens

ROWS = [{"id": n, "name": f"user {n}", "tags": ["a", "b"]} for n in range(500)]
USERS = parse_document(json.dumps({"users": ROWS, "next": None}))
LOG = parse_document("\n".join(f"line {n} {'ERROR disk full' if n % 50 == 0 else 'ok'}" for n in range(1, 1001)))


def test_a_path_to_one_value_returns_the_value() -> None:
    assert read(USERS, ReadRequest(path="$.users[3].name"), 500) == "user 3"


def test_a_path_to_several_values_returns_them_with_their_number() -> None:
    text = read(USERS, ReadRequest(path="$.users[?@.id > 497].id"), 500)
    assert text == "498\n499\n[items 1-2 of 2]"


def test_a_path_that_matches_nothing_says_what_there_is() -> None:
    with pytest.raises(InvalidRequest, match=r"Nothing in the result matches.*users: \{ id: integer"):
        read(USERS, ReadRequest(path="$.people"), 500)


@pytest.mark.parametrize("path", ["users[0]", "$.users[", "$.a ~ ", "$[?@.a == 1 &&]"])
def test_an_invalid_path_is_refused_with_an_example(path: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a JSONPath query"):
        read(USERS, ReadRequest(path=path), 500)


def test_a_pattern_finds_the_lines_of_a_text_with_their_numbers() -> None:
    text = read(LOG, ReadRequest(grep="line 5[05]0 ERROR"), 500)
    assert text == "500: line 500 ERROR disk full\n550: line 550 ERROR disk full\n[matches 1-2 of 2]"


def test_a_pattern_finds_values_of_json_with_their_paths() -> None:
    text = read(USERS, ReadRequest(grep="^user 49[89]$"), 500)
    assert text == '$.users[498].name: "user 498"\n$.users[499].name: "user 499"\n[matches 1-2 of 2]'


def test_a_pattern_finds_the_keys_of_objects_and_lists_too() -> None:
    document = parse_document('{"files": {"/a/orders.csv": {"ranges": [1, 2]}, "/a/notes.md": ["x"]}}')
    assert read(document, ReadRequest(grep="orders"), 500) == '$.files["/a/orders.csv"]: an object of 1'
    assert read(document, ReadRequest(grep="notes"), 500).startswith('$.files["/a/notes.md"]: a list of 1')


def test_a_pattern_finds_the_lines_of_a_long_text_in_json() -> None:
    document = parse_document(json.dumps({"pages": [{"text": "one\ntwo needle\nthree"}]}))
    assert read(document, ReadRequest(grep="needle"), 500) == "$.pages[0].text line 2: two needle"


def test_a_path_of_a_match_reads_its_value() -> None:
    found = read(parse_document('{"a b": [{"x": "needle"}]}'), ReadRequest(grep="needle"), 500)
    path = found.partition(": ")[0]
    assert read(parse_document('{"a b": [{"x": "needle"}]}'), ReadRequest(path=path), 500) == "needle"


def test_a_pattern_without_matches_says_so() -> None:
    assert read(LOG, ReadRequest(grep="no such"), 500) == "No match is found."


def test_a_range_returns_the_items_of_a_list() -> None:
    text = read(USERS, ReadRequest(path="$.users", range=(2, 3)), 500)
    assert text.splitlines()[:2] == [
        '{"id":1,"name":"user 1","tags":["a","b"]}',
        '{"id":2,"name":"user 2","tags":["a","b"]}',
    ]
    assert text.splitlines()[2] == "[items 2-3 of 500]"


def test_a_range_returns_the_lines_of_a_text() -> None:
    assert read(LOG, ReadRequest(range=(999, 1000)), 500).splitlines()[0] == "line 999 ok"


def test_pages_cover_every_item_once_and_each_is_within_the_budget() -> None:
    seen: list[int] = []
    page = 1
    while True:
        text = read(USERS, ReadRequest(path="$.users[*].id", page=page), 300)
        assert estimate_tokens(text) <= 300
        seen += [int(line) for line in text.splitlines() if line.isdecimal()]
        if f'"page": {page + 1} continues' not in text:
            break
        page += 1
    assert seen == list(range(500))
    assert page > 3


def test_a_page_after_the_last_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="There is no page 99"):
        read(LOG, ReadRequest(page=99), 5_000)


def test_an_item_that_fills_a_page_is_shown_by_its_shape_and_the_path_that_reads_it() -> None:
    document = parse_document(json.dumps([{"blob": "x" * 50_000, "id": 1}, {"id": 2}]))
    text = read(document, ReadRequest(), 400)
    assert "blob: string, id: integer" in text
    assert "path $[0]" in text
    assert '{"id":2}' in text


def test_an_object_that_is_too_large_is_read_key_by_key() -> None:
    document = parse_document(json.dumps({"meta": {"count": 2}, "rows": list(range(5_000))}))
    text = read(document, ReadRequest(), 400)
    assert '"meta": {"count":2}' in text
    assert "integer[]" in text
    assert "path $.rows" in text


@given(
    text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r")),
    tokens=st.integers(100, 400),
)
def test_the_pages_of_any_text_hold_all_of_it_within_the_budget(text: str, tokens: int) -> None:
    document = parse_document("text " + text * 20)
    parts: list[str] = []
    for page in range(1, 200):
        answer = read(document, ReadRequest(page=page), tokens)
        assert estimate_tokens(answer) <= tokens
        body, _, footer = answer.rpartition("\n[line") if "\n[line" in answer else (answer, "", "")
        parts.append(body)
        if "continues]" not in footer:
            break
    assert "".join("".join(parts).split()) == "".join(document.text.split())


def test_arguments_in_usual_forms_are_read() -> None:
    handle, request = parse_read({"handle": " r_abc ", "range": [3, 5], "page": "2", "grep": "x"})
    assert (handle, request) == ("r_abc", ReadRequest(grep="x", page=2, range=(3, 5)))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "needs the handle"),
        ({"handle": "r_a", "query": "x"}, "no parameter 'query'"),
        ({"handle": "r_a", "page": 0}, "page must be"),
        ({"handle": "r_a", "range": "9-3"}, "range must be"),
        ({"handle": "r_a", "grep": "x" * 1000}, "at most 500 characters"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(reason)):
        parse_read(arguments)


@given(st.text())
def test_a_packed_text_is_unpacked_unchanged(text: str) -> None:
    sound = text.encode(errors="replace").decode()
    assert unpack(pack(text)) == sound


def test_a_range_with_a_million_numbers_is_refused_without_writing_them_out() -> None:
    class Unwritten(int):
        def __str__(self) -> str:
            raise AssertionError("written")

    with pytest.raises(InvalidRequest, match="range must be"):
        parse_read({"handle": "r_a", "range": [1, 2, 3, Unwritten(4)]})
