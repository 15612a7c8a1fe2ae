"""Text: words of identifiers and prose in any script, literals and verbs, and parsed queries."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.search.literals import FORMAT_KINDS, LITERAL_KINDS, PARAMETER_KINDS, literal_kinds, literal_names
from toolcrib.search.text import (
    MAX_WORD,
    STOP_WORDS,
    parse_query,
    read_queries,
    split_identifier,
    split_words,
    stem,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("createPullRequest", "create pull request"),
        ("CreatePullRequest", "create pull request"),
        ("create_pull_request", "create pull request"),
        ("create-pull-request", "create pull request"),
        ("github:create_issue", "github create issue"),
        ("parseJSONFile", "parse json file"),
        ("HTTPServer", "http server"),
        ("getURLs2Go", "get urls 2 go"),
        ("v2ToV3", "v 2 to v 3"),
        ("ISO8601", "iso 8601"),
        ("normalCdf", "normal cdf"),
        ("API", "api"),
        ("Find the area.", "find the area"),
        ("don't stop", "don t stop"),
        ("__init__", "init"),
        ("Café MÜNCHEN", "cafe munchen"),
        ("\uff26\uff35\uff2c\uff2c", "full"),
        ("straße", "strasse"),
        ("ключДоступа", "ключ доступа"),
        ("東京都の天気", "東京 京都 東 京 都 の 天気 天 気"),
        ("天", "天"),
        ("날씨", "날씨 날 씨"),
        ("ひらがな", "ひら らが がな"),
        ("検索する", "検索 検 索 する"),
        ("我的文件", "文件 文 件"),
        ("东京weather2", "东京 东 京 weather 2"),
        ("สวัสดี", "สว วั ัส สด ดี"),
        ("हिन्दी मौसम", "हिन्दी मौसम"),
        ("مرحبا", "مرحبا"),
        ("🎉 !?", ""),
        ("", ""),
    ],
)
def test_a_text_is_split_into_words(text: str, found: str) -> None:
    assert " ".join(split_words(text)) == found


def test_a_very_long_word_is_cut() -> None:
    assert split_words("x" * 10_000) == ["x" * MAX_WORD]
    assert split_words("é" * 10_000) == ["e" * MAX_WORD]
    assert split_words("ж" * 10_000) == ["ж" * MAX_WORD]


@pytest.mark.parametrize(
    "family",
    [
        "issue issues",
        "query queries",
        "create creates created creating",
        "file files filing",
        "stop stops stopped stopping",
        "delete deleted deleting",
        "process processes",
        "class classes",
        "convert converting converts",
    ],
)
def test_forms_of_one_word_share_a_stem(family: str) -> None:
    assert len({stem(word) for word in family.split()}) == 1


@pytest.mark.parametrize(
    "word", ["status", "bus", "this", "is", "id", "ids", "red", "ring", "string", "press", "東京", "v2s", "ключ"]
)
def test_a_word_that_only_looks_inflected_is_not_stemmed(word: str) -> None:
    assert stem(word) == word


@given(st.text())
def test_the_words_of_any_text_are_short_folded_and_not_empty(text: str) -> None:
    for word in split_words(text):
        assert 0 < len(word) <= MAX_WORD + 20
        assert stem(word)
        assert split_identifier(word) or not word.isalnum()


@given(st.lists(st.sampled_from(["create", "pull", "request", "file", "get"]), min_size=1, max_size=5))
def test_every_way_to_join_words_splits_into_the_same_words(parts: list[str]) -> None:
    capitals = [part.capitalize() for part in parts]
    joined = ["_".join(parts), "-".join(parts), " ".join(parts), ".".join(parts), "".join(capitals)]
    assert {tuple(split_words(text)) for text in joined} == {tuple(parts)}


# -- literals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("", ()),
        ("nothing of the kind", ()),
        ("open https://example.org/a", ("url",)),
        ("open www.example.org", ("url",)),
        ("mail ann.b+c@example.org!", ("email",)),
        ("ping 10.0.0.1", ("ip",)),
        ("read /etc/hosts/x", ("path",)),
        ("read ~/notes/a", ("path",)),
        ("read my-notes.txt", ("path",)),
        (r"read C:\notes", ("path",)),
        ("on 2026-01-31", ("date",)),
        ("Tomorrow", ("date",)),
        ("next week", ("date",)),
        ("at 5 pm", ("time",)),
        ("at 17:30", ("time",)),
        ("pay $5", ("money",)),
        ("pay 1,000.50 dollars", ("money",)),
        ("the first 3", ("number",)),
        ("at 52.5200, 13.4050", ("coordinates",)),
        ("of 0xdeadbeef00", ("hash",)),
        ("version2 of utf8", ()),
        ("3 files of ann@example.org", ("email", "number")),
        ("please pay 5 dollars, say when", ("money",)),
        ("what is due next monday", ("date",)),
        ("find the march 3 notes", ("date", "number")),
        ("show me today", ("date",)),
        ("say a hello to ann@example.org please", ("email",)),
        ("see www.example.org or a plain.word", ("url",)),
        ("open the notes.txt file", ("path",)),
        ("READ THE NOTES.TXT FILE", ("path",)),
        ("grüße an ann@example.org, heute", ("email",)),
        (f"the {'abcdef' * 6} one", ("hash",)),
    ],
)
def test_a_text_has_the_expected_kinds_of_literals(text: str, kinds: tuple[str, ...]) -> None:
    assert literal_names(literal_kinds(text)) == kinds


@pytest.mark.parametrize(
    "run", ["a", "a-", "a.", "1.1.", "1,", "x.y", "-", "a-1-", "ab@", "a@b-", "/a", "0", "0x", "1:", "www.", "~", "$"]
)
def test_a_long_run_of_characters_takes_linear_time(run: str) -> None:
    # A search that backtracks would take hours for the long run.
    assert literal_kinds(run * (200_000 // len(run))) >= 0


@settings(deadline=None)
@given(st.text(st.characters(), max_size=200))
def test_the_kinds_of_any_text_have_names(text: str) -> None:
    found = literal_kinds(text)
    assert 0 <= found < 1 << len(LITERAL_KINDS)
    assert len(literal_names(found)) == found.bit_count()


def test_every_word_of_the_tables_has_a_kind() -> None:
    assert all(
        0 < kinds < 1 << len(LITERAL_KINDS) for table in (PARAMETER_KINDS, FORMAT_KINDS) for kinds in table.values()
    )
    assert literal_names(FORMAT_KINDS["date-time"]) == ("date", "time")


# -- queries -----------------------------------------------------------------------------------------------------------


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
def test_a_query_is_split_where_the_next_need_begins(text: str, parts: list[str]) -> None:
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
    assert parse_query("word " * 100_000).text == "word " * 1_600
    assert len(parse_query(" ".join(f"word{number}" for number in range(60_000))).terms) <= 256
    assert len(parse_query("a1b2" * 50_000).terms) <= 256


def test_repeated_words_do_not_keep_later_ones_from_being_read() -> None:
    query = " ".join(["the", "same", "words"] * 200) + " then archive the channel"
    assert [term.stem for term in parse_query(query).terms][-2:] == ["archiv", "channel"]
    assert read_queries((query,)) == ((query,), False)


@pytest.mark.parametrize("words", [("one word {}",) * 400, ("{}" * 40,), ("{} " * 900,)])
def test_the_queries_of_a_request_share_what_is_read_of_them(words: tuple[str, ...]) -> None:
    numbers = itertools.count()
    asked = [text.replace("{}", "x") + f" n{next(numbers)}" for text in words]
    parts, _ = read_queries(asked)
    assert len({word for part in parts for word in split_words(part)}) <= 256
    assert sum(map(len, parts)) <= 8_000
    assert read_queries(parts) == (parts, False)


@pytest.mark.parametrize(
    "endless", ["aBcD" * 20_000, "".join(f"w{number}X" for number in range(9_000)), "日本" * 9_000]
)
def test_a_query_of_one_endless_word_is_not_taken_for_an_empty_one(endless: str) -> None:
    parts, is_cut = read_queries((endless,))
    assert is_cut
    assert parse_query(parts[0]).terms
