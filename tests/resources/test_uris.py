"""URIs of resources, and URI templates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.resources.router import SessionUris
from toolcrib.resources.uris import UriTemplate, expand_template, normal_forms, qualified_uri, split_qualified_uri
from toolcrib.state.memory import MemoryStore

NAMES = st.text(min_size=1).filter(lambda text: text.isprintable() and ":" not in text)


@given(NAMES, st.text(min_size=1))
def test_a_qualified_uri_splits_into_its_namespace_and_uri(namespace: str, uri: str) -> None:
    assert split_qualified_uri(qualified_uri(namespace, uri)) == (namespace, uri)


@pytest.mark.parametrize("uri", ["memo://x", "toolcrib://", "toolcrib://a", "toolcrib://a/", "toolcrib:///x", ""])
def test_no_other_uri_is_a_qualified_one(uri: str) -> None:
    assert split_qualified_uri(uri) is None


def test_expanding_a_qualified_template_gives_a_qualified_uri() -> None:
    assert qualified_uri("a", "users://{id}").replace("{id}", "7") == qualified_uri("a", "users://7")


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("memo://x", "memo://x", True),
        ("memo://x", "memo://xy", False),
        ("users://{id}", "users://7", True),
        ("users://{id}", "users://7/notes", False),
        ("users://{id}/notes", "users://7/notes", True),
        ("users://{id}/notes", "users://7/8/notes", False),
        ("file:///{+path}", "file:///a/b.txt", True),
        ("file://{/path*}", "file:///a/b", True),
        ("q://{a}-{b}.txt", "q://1-2.txt", True),
        ("q://{a}-{b}.txt", "q://1-2", False),
        ("search://find{?q,limit}", "search://find?q=a/b&limit=2", True),
        ("search://find{?q}", "search://other?q=a", False),
        ("odd://{", "odd://{", True),
    ],
)
def test_a_template_matches_the_uris_that_it_expands_to(template: str, uri: str, *, fits: bool) -> None:
    assert UriTemplate(template).matches(uri) is fits


@given(st.lists(st.text(alphabet="abc/.{}", max_size=5), max_size=6), st.text(alphabet="abc/.", max_size=20))
def test_no_template_raises(parts: list[str], uri: str) -> None:
    assert UriTemplate("{x}".join(parts)).matches(uri) in (True, False)


def test_a_hostile_template_takes_linear_time() -> None:
    """Backtracking would take longer than the universe has lasted."""
    assert not UriTemplate("x://" + "{a}x" * 2000 + "!").matches("x://" + "x" * 8000)


def test_uris_are_remembered_for_a_while_and_only_for_their_session() -> None:
    uris = SessionUris(MemoryStore())
    uris.remember("ann", "memo://1", "a")
    assert (uris.get("ann", "memo://1"), uris.get("bob", "memo://1"), uris.get(None, "memo://1")) == ("a", None, None)
    for number in range(2, 502):
        uris.remember("ann", f"memo://{number}", "a")
    assert (uris.get("ann", "memo://1"), uris.get("ann", "memo://501")) == (None, "a")
    assert not uris.remember("ann", "memo://" + "x" * 500, "a")


@given(st.text(alphabet="aA:/.%25eE#\\?", max_size=30))
def test_a_normal_form_has_no_other_normal_form(text: str) -> None:
    for form in normal_forms(text):
        assert all(again in normal_forms(text) for again in normal_forms(form))


@pytest.mark.parametrize("uri", ["memo://x", "doc://a/", "file:///a/b.txt", "q://find?a=1", "doc://{+x}", "memo:a"])
def test_usual_uris_are_their_own_normal_form(uri: str) -> None:
    assert normal_forms(uri) == ()


def test_escapes_are_decoded_however_often_they_are_nested() -> None:
    assert normal_forms("doc://a/%" + "25" * 4000 + "73ecret") == ("doc://a/secret",)
    assert normal_forms("doc://a/%%37%33ecret") == ("doc://a/secret",)


def test_a_template_is_expanded_only_where_every_value_is_known() -> None:
    assert expand_template("a://{x}/{+y}{#z}", {"x": "1", "y": "2/3", "z": "4"}) == "a://1/2/3#4"
    assert expand_template("a://{x}/{y}", {"x": "1"}) is None
    assert expand_template("a://{?x,y}", {"x": "1", "y": "2"}) is None
