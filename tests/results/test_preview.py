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
