"""Pages, and cursors that are bound to one list."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog.catalog import Page, decode_cursor, encode_cursor, page
from toolcrib.errors import StaleCursor


def test_pages_lead_to_the_end_of_the_list() -> None:
    first = page("abcde", view_version="v", limit=2)
    second = page("abcde", view_version="v", limit=2, cursor=first.cursor)
    third = page("abcde", view_version="v", limit=2, cursor=second.cursor)
    assert [first.items, second.items, third.items] == [("a", "b"), ("c", "d"), ("e",)]
    assert third.cursor is None


def test_a_list_that_fits_is_one_page() -> None:
    assert (
        page("abc", view_version="v", limit=3)
        == page("abc", view_version="v")
        == Page(items=("a", "b", "c"), cursor=None)
    )
    assert page("", view_version="v", limit=3) == Page(items=(), cursor=None)


def test_a_page_is_limited_by_size_but_never_empty() -> None:
    sizes = [5, 6, 100, 1]
    first = page("abcd", view_version="v", sizes=sizes, max_size=11)
    second = page("abcd", view_version="v", sizes=sizes, max_size=11, cursor=first.cursor)
    third = page("abcd", view_version="v", sizes=sizes, max_size=11, cursor=second.cursor)
    assert [first.items, second.items, third.items] == [("a", "b"), ("c",), ("d",)]
    assert page("ab", view_version="v", limit=0).items == ("a",)


def test_a_cursor_of_an_older_view_is_refused_with_a_hint() -> None:
    with pytest.raises(StaleCursor) as caught:
        page("abc", view_version="new", cursor=encode_cursor("old", 1))
    assert str(caught.value) == "The list has changed since this cursor was created. Start again without a cursor."


def encoded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "a",
        "é",
        "x" * 10_000,
        encoded("5"),
        encoded("-1.v"),
        encoded("x.v"),
        encoded("1e3.v"),
        encoded("٣.v"),
        encoded("4.v"),
        "_w",
    ],
)
def test_an_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(StaleCursor, match=r"The cursor is not valid for this list\. Start again without a cursor\."):
        page("abc", view_version="v", cursor=text)


@given(st.text(max_size=40), st.integers(0, 10**9))
def test_a_cursor_round_trips(version: str, offset: int) -> None:
    assert decode_cursor(encode_cursor(version, offset), version) == offset


@given(st.text())
def test_any_text_is_decoded_or_refused(text: str) -> None:
    with pytest.raises(StaleCursor):
        decode_cursor(text, "a version that no text holds")


@given(st.lists(st.integers(0, 50)), st.integers(1, 5), st.integers(1, 100))
def test_pages_cover_the_list_exactly_once(sizes: list[int], limit: int, max_size: int) -> None:
    items = list(range(len(sizes)))
    seen: list[int] = []
    cursor: str | None = None
    while True:
        part = page(items, view_version="v", cursor=cursor, limit=limit, sizes=sizes, max_size=max_size)
        seen += part.items
        assert len(part.items) <= limit
        assert len(part.items) <= 1 or sum(sizes[item] for item in part.items) <= max_size
        cursor = part.cursor
        if cursor is None:
            break
    assert seen == items
