"""Names depend only on a tool's own key, and two tools never share one."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolcrib.errors import InvalidName
from toolcrib.names import (
    MAX_WIRE,
    Tier,
    check_key,
    check_name,
    check_namespace,
    exact_spellings,
    fold,
    nearest,
    similarities,
    spellings,
    wire_name,
)
from toolcrib.types import Key

NASTY = st.text(st.sampled_from("ab_-.:/ éA漢\ud800"), max_size=6)
KEYS = st.builds(Key, NASTY, NASTY)


@pytest.mark.parametrize(
    ("namespace", "name", "wire"),
    [
        ("github", "create_issue", "github__create_issue"),
        ("", "search", "search"),
        ("", "_private", "_private"),
        ("_a", "b_", "_a__b_"),
        ("my-server", "get-file", "my-server__get-file"),
        ("s", "n" * 61, "s__" + "n" * 61),
    ],
)
def test_a_plain_key_keeps_a_plain_wire_name(namespace: str, name: str, wire: str) -> None:
    assert wire_name(Key(namespace, name)) == wire


@pytest.mark.parametrize(
    ("namespace", "name", "wire"),
    [
        ("a", "_b", "a__b__d5tdna23xt"),
        ("a_", "b", "a__b__p7qvqxlj4d"),
        ("a__b", "c", "a_b__c__lascjcoqr6"),
        ("a", "b__c", "a__b_c__camclyvjp5"),
        ("", "a__b", "a_b___fk3uspyq45"),
        ("", "日本", "tool___v3xurx456x"),
    ],
)
def test_a_wire_name_that_was_given_out_once_never_changes(namespace: str, name: str, wire: str) -> None:
    assert wire_name(Key(namespace, name)) == wire


def test_a_hashed_wire_name_stays_readable() -> None:
    assert wire_name(Key("café", "menü.zeigen")).startswith("cafe__menu_zeigen__")
    assert wire_name(Key("@scope/server", "x" * 200)).startswith("scope_server__xxx")
    assert wire_name(Key("n" * 200, "create_issue")).startswith("nnnnnnnnnnnnnnnnnnnn")
    assert "__create_issue__" in wire_name(Key("n" * 200, "create_issue"))


@given(KEYS)
def test_a_wire_name_is_legal_whatever_the_key(key: Key) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]*", wire_name(key))
    assert len(wire_name(key)) <= MAX_WIRE


@given(st.text(min_size=50, max_size=300), st.text(min_size=1, max_size=300))
def test_a_wire_name_is_never_too_long(namespace: str, name: str) -> None:
    assert 0 < len(wire_name(Key(namespace, name))) <= MAX_WIRE


@given(KEYS, KEYS)
@example(Key("a", "_b"), Key("a_", "b"))
@example(Key("a__b", "c"), Key("a", "b__c"))
@example(Key("", "a__b"), Key("a", "b"))
@example(Key("a", "b"), Key("", "a__b"))
@example(Key("", "a___b"), Key("a", "_b"))
@example(Key("a", ""), Key("", "a__"))
def test_different_keys_have_different_wire_names(one: Key, other: Key) -> None:
    assert one == other or wire_name(one) != wire_name(other)


@given(KEYS, KEYS)
def test_a_tool_named_like_the_wire_name_of_another_does_not_take_it(one: Key, other: Key) -> None:
    squatter = Key(other.namespace, wire_name(one))
    assert squatter == one or wire_name(squatter) != wire_name(one)


@pytest.mark.parametrize("text", ["github", "My Server", "@scope/pkg", "a.b", "a__b", "日本", "x" * 128])
def test_a_namespace_may_be_any_key_of_a_configuration(text: str) -> None:
    check_namespace(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        ("a:b", "it holds a colon"),
        ("x" * 129, "it has 129 characters, 128 are allowed"),
        (" a", "it begins or ends with a space"),
        ("a\nb", "it holds a control character"),
        ("a\u2028b", "it holds a control character"),
        ("a\ud800", "it holds a control character"),
    ],
)
def test_a_namespace_that_cannot_be_one_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(InvalidName, match=problem) as caught:
        check_namespace(text)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_a_tool_name_may_be_long_and_hold_a_colon_but_not_be_empty() -> None:
    check_name("a:b")
    check_name("x" * 256)
    with pytest.raises(InvalidName, match="it is empty"):
        check_name("")
    with pytest.raises(InvalidName, match="257 characters"):
        check_name("x" * 257)


def test_a_name_without_a_namespace_may_not_read_as_one_with() -> None:
    check_key(Key("github", "a:b"))
    check_key(Key("", "a"))
    with pytest.raises(InvalidName, match="has no namespace"):
        check_key(Key("", "github:create_issue"))
    with pytest.raises(InvalidName, match="colon"):
        check_key(Key("a:b", "c"))


@pytest.mark.parametrize(
    "text",
    ["create_pull_request", "createPullRequest", "CreatePullRequest", "create-pull-request", "CREATE PULL REQUEST"],
)
def test_folding_forgets_case_and_separators(text: str) -> None:
    assert fold(text) == "createpullrequest"


@pytest.mark.parametrize("text", ["x:search", "x.search", "x/search", "x__search"])
def test_folding_keeps_what_parts_a_namespace_from_a_name(text: str) -> None:
    assert fold(text) in ("x:search", "x.search")
    assert fold(text) != fold("x_search")


@given(st.text())
@example("İ")
@example("ﬀ")
@example("T¨")
@example("\u212a_e\uff0dl vin")
def test_folding_twice_changes_nothing(text: str) -> None:
    assert fold(fold(text)) == fold(text)


@given(st.text(st.characters(codec="ascii")))
def test_folding_is_the_same_for_ascii_as_for_any_text(text: str) -> None:
    assert fold(text) == fold(text + "é").removesuffix("é")


def test_a_tool_answers_to_all_the_usual_spellings() -> None:
    assert spellings(Key("GitHub", "create_issue"), "2") == {
        "GitHub:create_issue": Tier.ID,
        "GitHub__create_issue": Tier.WIRE,
        "GitHub.create_issue": Tier.SPELLED,
        "GitHub/create_issue": Tier.SPELLED,
        "GitHub:create_issue:2": Tier.SPELLED,
        "create_issue": Tier.BARE,
        "createissue": Tier.FOLDED,
        "github.createissue": Tier.FOLDED,
        "githubcreateissue": Tier.FOLDED,
    }


def test_a_tool_without_a_namespace_answers_to_its_name() -> None:
    assert spellings(Key("", "math.Factorial")) == {
        "math.Factorial": Tier.ID,
        wire_name(Key("", "math.Factorial")): Tier.WIRE,
        "math.factorial": Tier.FOLDED,
        "mathfactorial": Tier.FOLDED,
    }


def test_a_name_with_a_colon_has_no_spelling_that_would_read_as_a_namespace() -> None:
    assert list(spellings(Key("a", "b:C"))) == ["a:b:C", "a__b_C__" + wire_name(Key("a", "b:C"))[-10:], "a.b:c", "ab:c"]


def test_an_exact_spelling_is_the_id_or_the_wire_name() -> None:
    assert exact_spellings(Key("a", "b_c")) == {"a:b_c": Tier.ID, "a__b_c": Tier.WIRE}
    assert exact_spellings(Key("", "b")) == {"b": Tier.ID}


@given(KEYS)
def test_no_spelling_is_empty(key: Key) -> None:
    assert "" not in spellings(key)


# -- the nearest names -------------------------------------------------------------------------------------------------


def test_the_nearest_word_comes_first_and_ties_are_alphabetical() -> None:
    assert nearest("lists", ["listz", "lista", "lists_all", "delete", "list"]) == ["list", "lista", "listz"]


def test_nothing_alike_is_nothing() -> None:
    assert nearest("weather", ["commit", "branch"]) == []
    assert nearest("", ["commit"]) == []
    assert nearest("commit", []) == []
    assert nearest("commit", ["commit"], limit=0) == []


def test_a_lower_cutoff_lets_more_through() -> None:
    assert nearest("colour", ["color"], cutoff=95) == []
    assert nearest("colour", ["color"], cutoff=80) == ["color"]


def test_similarity_distinguishes_equal_candidates_by_position() -> None:
    assert similarities("ab", ["ab", "x", "ab"]) == {0: 100.0, 2: 100.0}


@given(st.text(), st.lists(st.text()), st.integers(0, 5))
def test_the_order_of_the_candidates_does_not_matter(word: str, candidates: list[str], limit: int) -> None:
    found = nearest(word, candidates, limit=limit, cutoff=30)
    assert found == nearest(word, reversed(candidates), limit=limit, cutoff=30)
    assert len(found) <= limit
    assert set(found) <= set(candidates)
