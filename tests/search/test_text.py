"""Splitting text into words: identifiers, prose, any script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.search.text import MAX_WORD, split_identifier, split_words, stem


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
        ("東京都の天気", "東京 京都 都の の天 天気"),
        ("天", "天"),
        ("날씨", "날씨"),
        ("ひらがな", "ひら らが がな"),
        ("东京weather2", "东京 weather 2"),
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
    "word", ["status", "bus", "this", "is", "id", "ids", "red", "ring", "string", "press", "東京", "v2s", "ключи"]
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
