"""Previews: what failed first, then the parts that say most."""

import json

from hypothesis import given
from hypothesis import strategies as st

from toolcrib.results.preview import parse_document, preview
from toolcrib.tokens import estimate_tokens


def shown(value: object, tokens: int = 250) -> str:
    return preview(parse_document(value if isinstance(value, str) else json.dumps(value)), tokens)


def test_a_table_shows_how_often_values_occur_then_its_first_rows_and_its_last() -> None:
    rows = [{"id": n, "state": "open" if n % 4 else "closed", "site": "x.org"} for n in range(100)]
    assert shown({"issues": rows, "total": 100}).splitlines() == [
        "total: 100",
        "issues: list of 100",
        "state: open 75, closed 25",
        "site: x.org 100",
        "id | state | … 1 more",
        "0 | closed",
        "1 | open",
        "2 | open",
        "3 | open",
        "…",
        "99 | open",
    ]


def test_what_a_json_result_reports_as_failed_comes_first() -> None:
    text = shown({"data": list(range(50)), "errors": [{"message": "quota exceeded"}]})
    assert text.splitlines()[0] == "errors: [{message: quota exceeded}]"


def test_lines_of_a_text_that_mention_a_failure_come_first_with_their_numbers() -> None:
    lines = ["starting"] * 500
    lines[321] = "Traceback (most recent call last):"
    assert shown("\n".join(lines)).splitlines()[0] == "line 322: Traceback (most recent call last):"


def test_the_headings_of_a_page_are_shown_with_their_lines() -> None:
    page = "# Guide\nWelcome.\n\n## Install\nRun it.\n" + "Text.\n" * 400 + "## Licence\nFree.\n"
    text = shown(page)
    assert "line 4: ## Install" in text
    assert "line 406: ## Licence" in text


def test_a_text_of_columns_shows_its_head_without_looking_for_failures() -> None:
    table = "id,name,note\n" + "".join(f"{n},user {n},error {n}\n" for n in range(300))
    assert shown(table).splitlines()[:2] == ["id,name,note", "0,user 0,error 0"]


def test_columns_of_short_distinct_values_are_preferred_to_long_ones() -> None:
    rows = [
        {**{f"url{k}": f"https://x.org/{k}/{n}" for k in range(8)}, "id": n, "title": f"Title {n}"} for n in range(20)
    ]
    header = next(line for line in shown(rows).splitlines() if " | " in line)
    assert "id" in header
    assert "title" in header


def test_json_values_that_follow_each_other_are_a_list() -> None:
    assert parse_document('{"a": 1}\n\n{\n "a": 2}').value == [{"a": 1}, {"a": 2}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=60,
)


@given(value=JSON, tokens=st.integers(1, 300))
def test_a_preview_of_any_value_is_within_its_budget(value: object, tokens: int) -> None:
    assert estimate_tokens(shown(value, tokens)) <= tokens


def test_a_column_of_five_values_is_counted_and_one_of_six_is_not() -> None:
    rows = [{"id": n, "few": "abcde"[n % 5], "more": "abcdef"[n % 6]} for n in range(60)]
    assert shown(rows).splitlines()[:2] == ["few: a 12, b 12, c 12, d 12, e 12", "id | few | more"]


def test_the_values_of_three_columns_are_counted_from_five_rows_on() -> None:
    rows = [dict.fromkeys("abcd", n % 2) for n in range(5)]
    assert shown(rows).splitlines()[:4] == ["a: 0 3, 1 2", "b: 0 3, 1 2", "c: 0 3, 1 2", "a | b | c | d"]
    assert shown(rows[:4]).splitlines()[0] == "a | b | c | d"


def test_of_a_wide_table_six_columns_are_shown() -> None:
    rows = [dict.fromkeys("abcdefgh", n) for n in range(60)]
    assert shown(rows).splitlines()[0] == "a | b | c | d | e | f | … 2 more"


def test_a_list_whose_first_fifty_items_are_objects_is_shown_as_a_table() -> None:
    rows: list[object] = [{"name": f"{n:02}" + "n" * 60, "a": n} for n in range(50)]
    assert shown([*rows, "odd"]).splitlines()[:2] == ["name | a", f"00{'n' * 37}… | 0"]
    assert shown([*rows[:49], "odd"]).splitlines()[0].startswith("{name: ")


def test_an_object_of_many_keys_is_shown_by_its_first_ones() -> None:
    few, many = ({f"k{n}": "v" * 100 for n in range(count)} for count in (25, 26))
    assert shown(few, 2_000).splitlines() == [f"k{n}: {'v' * 79}…" for n in range(25)]
    assert shown(many, 2_000).splitlines() == [*(f"k{n}: {'v' * 79}…" for n in range(12)), "… 26 keys in all"]
    nested = {"inner": {f"n{n}": n for n in range(7)}, **many}
    assert "inner: {n0, n1, n2, n3, n4, n5, … 7 keys}" in shown(nested, 2_000)


def test_of_many_lines_that_mention_a_failure_the_first_four_are_shown() -> None:
    lines = ["fine"] * 5 + ["error " + "z" * 200] * 6
    text = shown("\n".join(lines), 400).splitlines()
    assert text[0] == "6 lines mention an error or a failure; the first:"
    assert text[1:5] == [f"line {place}: error {'z' * 133}…" for place in (6, 7, 8, 9)]
    assert text[5] == "fine"


def test_a_text_is_a_table_if_its_first_eight_lines_have_as_many_columns() -> None:
    table = ["id,name,note", *(f"{n},user {n},error {n}" for n in range(20))]
    assert shown("\n".join([*table[:8], "and so on", *table[8:]])).splitlines()[0] == "id,name,note"
    assert shown("\n".join([*table[:7], "and so on", *table[7:]])).splitlines()[0].endswith("the first:")
