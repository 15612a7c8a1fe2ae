"""Parsing a query into words, terms, names and clauses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.search.text import STOP_WORDS, parse_query


def clauses(text: str) -> list[str]:
    return [" ".join(clause) for clause in parse_query(text).clauses]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("find a flight to Oslo", ["find a flight to oslo"]),
        ("find a flight to Oslo, then book a hotel", ["find a flight to oslo", "then book a hotel"]),
        ("read the mail and then delete the mail", ["read the mail and then", "delete the mail"]),
        ("Read my mail. Delete my files! Send news?", ["read my mail", "delete my files", "send news"]),
        ("read mail; send mail\nlist files", ["read mail", "send mail", "list files"]),
        ("salt and pepper", ["salt and pepper"]),
        ("list files, folders", ["list files folders"]),
        ("version 2.0 of a.b", ["version 2 0 of a b"]),
        ("", [""]),
    ],
)
def test_a_query_is_split_where_it_passes_to_the_next_need(text: str, parts: list[str]) -> None:
    assert clauses(text) == parts


def test_there_are_at_most_eight_clauses_and_no_word_is_lost() -> None:
    text = "; ".join(f"alpha{chr(97 + number)} beta" for number in range(12))
    assert len(clauses(text)) == 8
    assert len(" ".join(clauses(text)).split()) == 24


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["list", "the", "a", "mail", ", ", "; ", " and ", ". ", "\n"]), max_size=30).map(" ".join)
)
def test_every_clause_has_content_words_and_all_words_stay_in_order(text: str) -> None:
    query = parse_query(text)
    assert [word for clause in query.clauses for word in clause] == [word for _, word in query.sequence]
    if len(query.clauses) > 1:
        assert all(sum(word not in STOP_WORDS for word in clause) >= 2 for clause in query.clauses)


def test_each_stem_is_looked_up_once_and_shown_as_typed() -> None:
    found = [(term.stem, term.surface, term.typed) for term in parse_query("Issues of the createIssue ISSUE").terms]
    assert found == [("issu", "issues", "Issues"), ("creat", "create", "create")]


def test_stop_words_are_looked_up_only_if_there_is_nothing_else() -> None:
    assert [term.surface for term in parse_query("who am i").terms] == ["who", "am", "i"]
    assert [term.surface for term in parse_query("who am i, the admin").terms] == ["admin"]


def names(text: str, heads: set[str]) -> dict[str, bool]:
    """The whole names in a text, and whether each is explicit."""
    query = parse_query(text)
    found: dict[str, bool] = {}
    for name, places in query.find_names(heads.__contains__, lambda _: True):
        found[name] = found.get(name, False) or query.name_term(name, places).is_explicit
    return found


def test_only_consecutive_words_that_spell_a_name_form_one() -> None:
    query = parse_query("please create pull request now")
    found = [*query.find_names({"create"}.__contains__, {"=createpull", "=now"}.__contains__)]
    assert found == [("createpull", range(1, 3)), ("now", range(4, 5))]


def test_consecutive_words_can_form_a_name() -> None:
    found = names("please create pull request now", {"create"})
    assert found["createpullrequest"] is False
    assert "pullrequest" not in found


@pytest.mark.parametrize(
    "text", ["createPullRequest", "create_pull_request", "create pull request", "CREATE-PULL-REQUEST"]
)
def test_a_name_in_one_token_or_as_the_entire_query_is_explicit(text: str) -> None:
    assert names(text, {"create"})["createpullrequest"]


def test_a_name_of_separate_words_is_short_and_one_in_a_token_can_be_long() -> None:
    long = "list_all_open_pull_requests_of_a_user"
    assert long.replace("_", "") in names(f"call {long} now", {"list"})
    assert long.replace("_", "") not in names(f"call {long.replace('_', ' ')} now", {"list"})


@settings(deadline=None)
@given(st.text(st.characters()))
def test_any_text_is_parsed(text: str) -> None:
    query = parse_query(text)
    assert all(0 <= place < len(query.words) for term in query.terms for place in term.word_range)
    assert len({term.stem for term in query.terms}) == len(query.terms)
    assert len(query.clauses) >= 1


def test_only_the_beginning_of_an_endless_query_is_parsed() -> None:
    query = parse_query("word " * 100_000)
    assert len(query.sequence) == 256
    assert len(parse_query("a1b2" * 50_000).terms) <= 256
