"""BM25F: worked examples, what counts as a word, and the options."""

from math import log
from typing import Any

import pytest

from toolcrib.search.index import Index, IndexView
from toolcrib.search.options import Bm25Options, ScorerOptions
from toolcrib.search.scorers.base import ScorerResult
from toolcrib.search.scorers.bm25 import rank, score
from toolcrib.types import Reason, Tool

TOOLS = [
    Tool(namespace="utility", name="echo", description="Echoes back input", tags=("echo", "debug")),
    Tool(namespace="github", name="create_issue", description="Opens an issue in a repository."),
    Tool(namespace="github", name="listPullRequests", description="Lists the pull requests of a repository."),
    Tool(namespace="files", name="read", description="Reads a file.", title="Read a file", keywords=("open",)),
]


def ask(text: str, *tools: Tool, seen: bytes | None = None, **settings: Any) -> ScorerResult:
    view = IndexView.of(*Index.build(tools or TOOLS).parts(seen))
    return rank(view, text, 10, [part.visible for part in view.parts], ScorerOptions(bm25=Bm25Options(**settings)))


def ids(ranked: ScorerResult) -> list[str]:
    return [TOOLS[hit.position].id for hit in ranked.hits]


def test_one_word_in_one_name_has_the_score_of_the_formula() -> None:
    (hit,) = ask("issue", Tool(name="issue"), Tool(name="other")).hits
    assert hit.raw == pytest.approx(log(1 + 1.5 / 1.5) * 3 / (1.2 + 3))


def test_fields_are_weighted_and_long_ones_count_less() -> None:
    tools = [
        Tool(name="a", description="alpha"),
        Tool(name="b", tags=("alpha",)),
        Tool(name="alpha"),
        Tool(name="d", description="alpha one two three"),
        Tool(name="e"),
    ]
    rare = log(1 + 1.5 / 4.5)
    expected = {2: 3.0, 1: 2.0, 0: 1 / (0.25 + 0.75 / 2.5), 3: 1 / (0.25 + 0.75 * 4 / 2.5)}
    found = {hit.position: hit.raw for hit in ask("alpha", *tools).hits}
    assert found == pytest.approx({place: rare * tf / (1.2 + tf) for place, tf in expected.items()})


def test_identifiers_are_split() -> None:
    assert ids(ask("issue"))[0] == "github:create_issue"
    assert ids(ask("pull requests"))[0] == "github:listPullRequests"
    assert ids(ask("createIssue"))[0] == "github:create_issue"


def test_the_namespace_and_the_tags_are_searched() -> None:
    assert ids(ask("utility")) == ids(ask("debug")) == ["utility:echo"]
    assert set(ids(ask("github"))) == {"github:create_issue", "github:listPullRequests"}


def test_words_are_not_stemmed() -> None:
    assert ids(ask("issues")) == []
    assert ask("issues").unmatched == ("issues",)


def test_stop_words_are_ignored_unless_there_is_nothing_else() -> None:
    assert ids(ask("the issue")) == ["github:create_issue"]
    assert ask("the issue").unmatched == ()
    assert [hit.position for hit in ask("who", Tool(name="who"), Tool(name="what")).hits] == [0]


def test_rare_words_count_more_than_frequent_ones() -> None:
    hits = ask("repository opens").hits
    gains = {reason.word: reason.gain for reason in hits[0].reasons}
    assert gains["opens"] > gains["repository"]


def test_document_frequency_counts_only_visible_tools() -> None:
    alone, among = ask("issue"), ask("issue", *TOOLS, *[Tool(name=f"issue_{n}") for n in range(9)])
    assert alone.hits[0].raw > among.hits[0].raw
    hidden = ask("issue", *TOOLS, *[Tool(name=f"issue_{n}") for n in range(9)], seen=b"\1" * 4 + b"\0" * 9)
    assert hidden == alone


def test_a_reason_names_the_word_and_its_field() -> None:
    hit = ask("echo Debug").hits[0]
    assert {(reason.word, reason.field, reason.how) for reason in hit.reasons} == {
        ("echo", "name", "exact"),
        ("echo", "tags", "exact"),
        ("Debug", "tags", "exact"),
    }
    assert [reason.gain for reason in hit.reasons] == sorted((reason.gain for reason in hit.reasons), reverse=True)
    assert hit.matched == ("echo", "Debug")
    assert sum(reason.gain for reason in hit.reasons) == pytest.approx(hit.raw)


def test_only_the_unknown_part_of_an_identifier_is_unmatched() -> None:
    assert ask("createBlockchain xyzzy").unmatched == ("blockchain", "xyzzy")


def test_a_weight_of_zero_leaves_a_field_out() -> None:
    assert ids(ask("utility", namespace=0.0)) == []
    assert ask("utility", namespace=0.0).unmatched == ("utility",)


def test_max_text_limits_how_much_of_a_description_is_read() -> None:
    assert ids(ask("repository", max_text=16)) == []
    assert ids(ask("issue", max_text=16)) == ["github:create_issue"]


def test_max_docs_limits_the_search_to_the_first_tools() -> None:
    assert ids(ask("echo", max_docs=3)) == []
    assert ids(ask("echo", max_docs=4)) == ["utility:echo"]


def test_the_public_score_rises_with_the_raw_one_and_stays_below_1() -> None:
    assert [score(raw) for raw in (0, 5, 45)] == [0.0, 0.5, 0.9]


def test_a_boost_adds_its_logarithm_and_is_a_reason() -> None:
    view = IndexView.of(*Index.build(TOOLS).parts(None))
    masks = [part.visible for part in view.parts]
    plain = rank(view, "echo", 10, masks, ScorerOptions())
    (hit,) = rank(view, "echo", 10, masks, ScorerOptions(), {"utility:echo": 2.0, "nobody": 9.0}).hits
    assert hit.raw == pytest.approx(plain.hits[0].raw + log(2))
    assert hit.reasons[-1] == Reason(word="", field="session", how="use", gain=hit.raw - plain.hits[0].raw)


def test_a_use_of_another_tool_never_outranks_an_exact_name() -> None:
    tools = [
        Tool(name="create_issue", description="Create one."),
        Tool(name="create_issue_comment", description="Create a comment on an issue: create it on the issue."),
        *(Tool(name=f"other_{number}", description="Something else.") for number in range(50)),
    ]
    view = IndexView.of(*Index.build(tools).parts(None))
    masks = [part.visible for part in view.parts]
    for query in ("create_issue", "createIssue", "create issue"):
        (hit,) = rank(view, query, 1, masks, ScorerOptions(), {"create_issue_comment": 4.4}).hits
        assert tools[hit.position].name == "create_issue"
