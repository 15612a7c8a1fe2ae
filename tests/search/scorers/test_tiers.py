"""Tiers: the documented list of values, cases that it leaves open, and the reasons."""

from collections.abc import Sequence
from typing import Any

import pytest

from toolcrib.search.index import Index, IndexView
from toolcrib.search.options import ScorerOptions, TiersOptions
from toolcrib.search.scorers.base import ExplainedTool, ScorerResult
from toolcrib.search.scorers.tiers import rank
from toolcrib.types import Reason, Tool

SEND = Tool(name="send_email", description="Send an email to a recipient", keywords=("email", "communication", "smtp"))
SQL = Tool(name="sql_query", description="Execute SQL queries", keywords=("database", "sql", "query"))


def ask(text: str, *tools: Tool, options: ScorerOptions | None = None, **boosts: float) -> ScorerResult:
    view = IndexView.of(*Index.build(tools).parts(None))
    return rank(view, text, 10, [part.visible for part in view.parts], options or ScorerOptions(), boosts)


def only(text: str, tool: Tool) -> ExplainedTool:
    (hit,) = ask(text, tool).hits
    return hit


def names(ranked: ScorerResult, tools: Sequence[Tool]) -> list[str]:
    return [tools[hit.position].name for hit in ranked.hits]


@pytest.mark.parametrize(
    ("query", "tool", "value"),
    [
        ("send_email", {"name": "send_email"}, 1.0),
        (" Send_Email ", {"name": "send_email"}, 1.0),
        ("send", {"name": "send_email"}, 0.9),
        ("smtp", {"name": "mailer", "keywords": ("SMTP",)}, 0.85),
        ("email", {"name": "send_email"}, 0.8),
        ("mail", {"name": "notify", "keywords": ("e-mail",)}, 0.7),
        ("recipient", {"name": "notify", "description": "Tell a recipient."}, 0.6),
        ("recip", {"name": "notify", "description": "Tell a recipient."}, 0.5),
    ],
)
def test_a_word_has_the_documented_value(query: str, tool: dict[str, Any], value: float) -> None:
    assert only(query, Tool(**tool)).raw == value


def test_the_best_of_several_matches_counts() -> None:
    assert only("email", SEND).raw == 0.85


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [("databse", "database", 0.7 * 0.875), ("reprot", "report", 0.7 * 2 / 3), ("send_emial", "send_email", 0.7 * 0.8)],
)
def test_a_misspelt_name_scores_seven_tenths_of_its_similarity(query: str, name: str, value: float) -> None:
    assert only(query, Tool(name=name)).raw == pytest.approx(value)


def test_a_misspelt_keyword_scores_six_tenths_of_its_similarity() -> None:
    assert only("datbase", Tool(name="x", keywords=("database",))).raw == pytest.approx(0.6 * 0.875)


def test_a_similarity_of_exactly_six_tenths_does_not_count() -> None:
    assert ask("emial", Tool(name="x", keywords=("email",))).hits == []


def test_similarity_counts_characters_and_not_bytes() -> None:
    assert only("größ", Tool(name="größe")).raw == 0.9
    assert only("grüße", Tool(name="größe")).raw == pytest.approx(0.7 * 0.8)


def test_a_misspelt_word_finds_the_name_that_contains_it() -> None:
    assert only("emial", SEND).raw == pytest.approx(0.5 * 0.8)
    assert only("kuberntes", Tool(name="kubernetes_deploy")).raw == pytest.approx(0.5 * 0.9)


def test_a_word_of_a_visible_tool_is_not_corrected_to_another() -> None:
    tools = [Tool(name="sent_mails"), Tool(name="send_mail_now")]
    assert names(ask("sent", *tools), tools) == ["sent_mails"]


def test_a_misspelling_never_beats_a_listed_match() -> None:
    tools = [Tool(name="send_email"), Tool(name="x", description="Fixes every emailing slip.")]
    assert names(ask("emaili", *tools), tools) == ["x"]


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("send email", 0.9 * (0.9 + 0.85) / 2),
        ("send a blockchain", (0.9 + 0.8) / 3 * 2 / 3),
        ("send blockchain", 0.9 / 2 / 2),
        ("send send blockchain", (0.9 + 0.9) / 3 * 2 / 3),
    ],
)
def test_several_words_score_their_mean_times_their_coverage(query: str, value: float) -> None:
    assert only(query, SEND).raw == pytest.approx(value)


def test_a_query_without_a_match_finds_nothing_and_lists_its_words() -> None:
    ranked = ask("xyzzy blockchain", SEND)
    assert (ranked.hits, ranked.total, ranked.unmatched) == ([], 0, ("xyzzy", "blockchain"))


def test_the_id_and_the_wire_name_are_the_name_too() -> None:
    tool = Tool(namespace="github", name="create_issue")
    assert [only(query, tool).raw for query in ("github:create_issue", "github__create_issue")] == [1.0, 1.0]


def test_tags_and_the_namespace_are_keywords() -> None:
    tool = Tool(namespace="github", name="create_issue", tags=("tracker",))
    assert [only(query, tool).raw for query in ("github", "tracker")] == [0.85, 0.85]
    assert [only(query, tool).reasons[0].field for query in ("github", "tracker")] == ["namespace", "tags"]


def test_punctuation_around_a_word_and_case_do_not_matter() -> None:
    assert only('"Recipient"?', SEND).raw == only("recipient", SEND).raw == 0.6


def test_equal_values_are_in_the_order_of_ids() -> None:
    tools = [Tool(namespace=space, name="ping") for space in "cab"]
    assert [tools[hit.position].namespace for hit in ask("ping", *tools).hits] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("send", Reason(word="send", field="name", how="prefix", matched="send_email", gain=0.9)),
        ("SMTP", Reason(word="SMTP", field="keywords", how="exact", gain=0.85)),
        ("communi", Reason(word="communi", field="keywords", how="part", matched="communication", gain=0.7)),
        ("recipient", Reason(word="recipient", field="description", how="exact", gain=0.6)),
        ("cipi", Reason(word="cipi", field="description", how="part", matched="recipient", gain=0.5)),
        ("send_emial", Reason(word="send_emial", field="name", how="spelling", matched="send_email", gain=0.56)),
        ("emial", Reason(word="emial", field="name", how="spelling", matched="email", gain=0.4)),
        ("send_email", Reason(word="send_email", field="name", how="exact", gain=1.0)),
    ],
)
def test_a_reason_says_where_and_how_a_word_matched(query: str, reason: Reason) -> None:
    (given,) = only(query, SEND).reasons
    assert given._replace(gain=round(given.gain, 9)) == reason


def test_a_hit_says_which_words_it_covers_and_what_each_added() -> None:
    hit = only("send an Email via blockchain", SEND)
    assert hit.matched == ("send", "an", "Email")
    assert {part.name: part.value for part in hit.parts} == {
        "send in name": 0.9,
        "an in description": 0.6,
        "Email in keywords": 0.85,
    }
    assert all(part.weight == pytest.approx(3 / 25) for part in hit.parts)


def test_a_boost_raises_the_score_towards_that_of_an_exact_name_and_is_a_reason() -> None:
    tools = [SEND, SQL]
    assert names(ask("query email", *tools), tools) == ["send_email", "sql_query"]
    boosted = ask("query email", *tools, sql_query=3.0)
    assert names(boosted, tools) == ["sql_query", "send_email"]
    gain = boosted.hits[0].raw - ask("query email", SQL).hits[0].raw
    assert boosted.hits[0].reasons[-1] == Reason(word="", field="session", how="use", gain=gain)


def test_a_use_of_another_tool_never_outranks_an_exact_name() -> None:
    tools = [SEND, Tool(name="send_email_later", description="Send an email later.")]
    assert names(ask("send_email", *tools, send_email_later=4.4), tools) == ["send_email", "send_email_later"]
    twice = [Tool(namespace="gmail", name="send"), Tool(namespace="outlook", name="send")]
    view = IndexView.of(*Index.build(twice).parts(None))
    found = rank(view, "send", 10, [part.visible for part in view.parts], ScorerOptions(), {"outlook:send": 2.9})
    assert [twice[hit.position].namespace for hit in found.hits] == ["outlook", "gmail"]


def test_equal_scores_are_ordered_by_id_however_they_were_added_up() -> None:
    tools = [Tool(name="alpha_z_beta", description="The gamma."), Tool(name="alpha_a_gamma", description="The beta.")]
    found = ask("alpha beta gamma", *tools)  # 0.9 + 0.8 + 0.6, and 0.9 + 0.6 + 0.8, which differ in the last bit
    assert names(found, tools) == ["alpha_a_gamma", "alpha_z_beta"]
    assert found.hits[0].raw == found.hits[1].raw


def test_every_value_is_an_option() -> None:
    options = ScorerOptions(tiers=TiersOptions(prefix=0.2, contains=0.3))
    assert ask("send", Tool(name="send_email"), options=options).hits[0].raw == 0.3
