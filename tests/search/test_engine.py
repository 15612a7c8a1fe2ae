"""The search through its public function: which hits, in which order, why, and the note if there are none."""

import sys
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.deadlines import cpu_deadline

from toolcrib.search.engine import HOW_TO_ASK, listing, prepare, search
from toolcrib.search.features import SemanticModel
from toolcrib.search.index import Index
from toolcrib.search.options import SearchOptions
from toolcrib.search.telling import telling_part
from toolcrib.search.vectors import WordPieceTable
from toolcrib.types import Filters, Reason, SearchReply, SearchRequest, Tool, Visibility


def tool(id_: str, description: str = "", **more: Any) -> Tool:
    namespace, _, name = id_.rpartition(":")
    return replace(Tool(namespace=namespace, name=name, description=description), **more)


TOOLS = [
    tool("files:read_file", "Reads the contents of a file."),
    tool("files:write_file", "Writes text to a file."),
    tool("github:create_issue", "Opens a new issue in a repository.", tags=("tracker", "write"), title="New issue"),
    tool("github:create_pull_request", "Opens a pull request from a branch.", tags=("write",)),
    tool(
        "github:list_issues", "Lists the issues of a repository.", tags=("tracker",), annotations={"readOnlyHint": True}
    ),
    tool("jira:create_issue", "Creates an issue in a project.", tags=("tracker",)),
    tool("secrets:rotate", "Rotates a secret.", visibility=Visibility.HIDDEN),
    tool(
        "weather:forecast",
        "Tells how the weather will be.",
        visibility=Visibility.NATIVE,
        keywords=("rain", "snow"),
        input_schema={"type": "object", "properties": {"city_name": {"type": "string", "description": "The town."}}},
    ),
]
INDEX = Index.build(TOOLS)


def ask(*queries: str, index: Index = INDEX, **more: Any) -> SearchReply:
    request = {name: more.pop(name) for name in ("limit", "filters", "detail") if name in more}
    return search(index, SearchRequest(queries=queries, **request), **more)


def ids(reply: SearchReply) -> list[str]:
    return [hit.tool.id for hit in reply.hits]


def hiding(*hidden: str) -> bytes:
    return bytes(t.id not in hidden for t in TOOLS)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("createPullRequest", "github:create_pull_request"),
        ("create_pull_request", "github:create_pull_request"),
        ("create-pull-request", "github:create_pull_request"),
        ("CREATE PULL REQUEST", "github:create_pull_request"),
        ("createpullrequest", "github:create_pull_request"),
        ("github create issue", "github:create_issue"),
        ("github:create_issue", "github:create_issue"),
        ("please open an issue in jira", "jira:create_issue"),
        ("read the contents", "files:read_file"),
        ("will there be rain?", "weather:forecast"),
        ("forecasting for a town", "weather:forecast"),
        ("cityName", "weather:forecast"),
    ],
)
def test_the_right_tool_comes_first(query: str, first: str) -> None:
    assert ids(ask(query))[0] == first


def test_an_exact_name_inside_a_long_sentence_wins() -> None:
    crowd = [tool(f"s{number}:pull_{number}", "Create a request, create a pull, request it.") for number in range(50)]
    reply = ask("first run create_pull_request and then request a review", index=Index.build([*TOOLS, *crowd]))
    assert ids(reply)[0] == "github:create_pull_request"


def test_equal_scores_are_ordered_by_id_whatever_the_order_of_the_tools() -> None:
    same = [tool(name, "Pings.") for name in ("ping", "__ping", "_ping", "ping_", "Ping")]
    wanted = ["Ping", "__ping", "_ping", "ping", "ping_"]
    assert ids(ask("ping", index=Index.build(same), limit=3)) == wanted[:3]
    assert ids(ask("ping", index=Index.build(same[::-1]), limit=3)) == wanted[:3]
    assert ids(ask("ping", index=Index.build(same[:2]), overlay=Index.build(same[2:]))) == wanted


def test_a_hit_has_the_tool_its_score_and_its_signature() -> None:
    hit = ask("forecast", limit=1).hits[0]
    assert hit.tool is TOOLS[-1]
    assert 0 < hit.score <= 1
    assert hit.raw > 0
    assert hit.signature == "forecast(city_name?: string)"
    assert (hit.query, hit.detail) == (0, "full")


def test_a_summary_has_no_signature() -> None:
    assert ask("forecast", detail="summary").hits[0].signature == ""
    assert ask("", detail="summary").hits[0].signature == ""


def why(query: str) -> dict[tuple[str, str], Reason]:
    return {(reason.word, reason.field): reason for reason in ask(query).hits[0].reasons}


def test_each_reason_names_the_word_the_field_and_the_kind_of_match() -> None:
    found = why("Forecasts rain towns cities")
    assert {key: (reason.how, reason.matched) for key, reason in found.items()} == {
        ("Forecasts", "name"): ("stem", "forecast"),
        ("Forecasts", "description"): ("synonym", "weather"),
        ("rain", "keywords"): ("exact", ""),
        ("towns", "parameters"): ("stem", "town"),
        ("cities", "parameters"): ("stem", "city"),
        ("", "all"): ("meaning", ""),
    }


def test_a_whole_name_is_a_separate_reason() -> None:
    found = why("create issue github")
    assert found["create issue", "name"].how == "exact"
    assert found["github", "namespace"].how == "exact"
    assert {field for _, field in found} == {"name", "namespace", "description", "title", "all"}
    assert why("createIssue")["createIssue", "name"].gain > why("createIssue")["create", "name"].gain


def test_an_exact_match_takes_precedence_over_a_stem() -> None:
    both = Index.build([tool("a:b", "Issues an issue, issuing it.")])
    reasons = search(both, SearchRequest(queries=("issue",))).hits[0].reasons
    assert [(reason.how, reason.matched) for reason in reasons if reason.word] == [("exact", "")]


def test_the_gains_of_the_reasons_add_up_to_the_score() -> None:
    for query in ("create issue github", "read file", "open a new pull request from a branch of the repository"):
        for hit in ask(query).hits:
            assert sum(reason.gain for reason in hit.reasons) == pytest.approx(hit.raw)
            assert [r.gain for r in hit.reasons] == sorted((r.gain for r in hit.reasons), reverse=True)


def test_a_hit_names_the_query_words_it_covers_in_their_order() -> None:
    assert ask("Issue tracker: create blockchain, github!").hits[0].matched == ("Issue", "tracker", "create", "github")
    assert ask("createIssue").hits[0].matched == ("createIssue",)


def test_unmatched_words_are_listed_as_typed() -> None:
    reply = ask("create a Blockchain issue", "createFoobar issue", "FooBar")
    assert reply.unmatched == ("Blockchain", "foobar", "FooBar")


def test_stop_words_are_neither_searched_nor_reported_as_unmatched() -> None:
    reply = ask("what would you do with an issue")
    assert reply.unmatched == ()
    assert sorted(ids(reply)) == sorted(ids(ask("issue")))
    assert {reason.word for hit in reply.hits for reason in hit.reasons} <= {"", "issue"}


def test_a_query_of_only_stop_words_searches_for_them() -> None:
    who = Index.build([tool("sys:who_am_i", "Tells the user."), tool("sys:other", "All about who you are.")])
    assert ids(ask("who am i", index=who))[0] == "sys:who_am_i"
    assert ask("who am i", index=who).hits[0].matched == ("who", "am", "i")
    assert ask("who are they", index=who).unmatched == ("are", "they")


def test_if_nothing_fits_the_reply_has_unmatched_words_and_nearest_names() -> None:
    reply = ask("creatpulrequst")
    assert reply.hits == ()
    assert reply.total == 0
    assert reply.unmatched == ("creatpulrequst",)
    assert reply.nearest == ("github:create_pull_request",)
    assert reply.note == "Nothing fits; the nearest names are listed."


def test_thresholds_withhold_bad_hits_and_mark_weak_ones() -> None:
    strict, lax = SearchOptions(nothing_below=0.9999, weak_below=1.0), SearchOptions(nothing_below=0.0, weak_below=1.0)
    assert ask("read an issue", options=strict).hits == ()
    assert ask("read an issue", options=strict).note.startswith("Nothing fits")
    assert {hit.weak for hit in ask("read an issue", options=lax).hits} == {True}
    assert ask("read an issue", options=lax).note == f"Nothing fits well: these are the nearest. {HOW_TO_ASK}"
    assert not ask("read_file").hits[0].weak
    assert ask("read_file").note == ""


STORY = (
    "We moved to Oslo in spring, and the dog did not like the boat at all. My sister, who runs a bakery, sends her "
    "love and a cake. The weather was fine, by the way, and the forecast of last week was wrong, as usual. "
)


def test_a_long_request_is_also_read_without_the_sentences_that_only_tell_a_story() -> None:
    long = ask(STORY + "Please open a new issue in my repository.", index=INDEX)
    short = ask("Please open a new issue in my repository.", index=INDEX)
    assert long.hits[0].tool.id == short.hits[0].tool.id == "github:create_issue"
    assert long.hits[0].raw == short.hits[0].raw
    assert long.hits[0].reasons == short.hits[0].reasons
    assert long.hits[0].score == short.hits[0].score
    assert long.unmatched == short.unmatched
    assert [hit.raw for hit in long.hits] == sorted((hit.raw for hit in long.hits), reverse=True)
    assert len({hit.tool.id for hit in long.hits}) == len(long.hits)


def test_a_long_request_that_asks_in_every_sentence_is_read_as_a_whole() -> None:
    asked = (
        "Please list the open issues of the repository. Then create a new issue about the weather forecast, please. "
        "Could you also read the file with the notes of the last meeting? Finally, write a file with the summary."
    )
    assert {"github:list_issues", "github:create_issue", "files:read_file"} <= {*ids(ask(asked))}
    assert telling_part(asked, INDEX.model.table) == ""


def test_a_list_is_short_if_hardly_anything_fits_and_the_request_sets_no_limit() -> None:
    index = Index.build([tool(f"shop:item_{number}", "Order a chair for the office.") for number in range(20)])
    doubtful = SearchOptions(nothing_below=0.0, short_below=0.99)
    assert len(ask("chair", index=index).hits) == 10
    assert [hit.weak for hit in ask("chair", index=index, options=doubtful).hits] == [False] * 5
    assert len(ask("chair", index=index, options=doubtful, limit=12).hits) == 12


def test_the_only_tool_of_a_catalog_is_no_more_certain_than_one_among_thirty() -> None:
    only = Index.build([tool("shop:order_chair", "Order a chair for the office.")])
    among = Index.build([*only.tools, *(tool(f"shop:wait_{number}", "Wait.") for number in range(29))])
    alone, one_of_many = ask("chair", index=only).hits[0], ask("chair", index=among).hits[0]
    assert alone.score - one_of_many.score < 0.05


def test_a_misspelt_word_finds_its_tool() -> None:
    assert ids(ask("forcast"))[0] == "weather:forecast"
    assert ids(ask("open a new isssue"))[0] == "github:create_issue"
    assert ask("forcast").unmatched == ()


def test_a_word_similar_to_one_in_a_name_suggests_the_first_tool_with_it() -> None:
    assert ask("isue xyzzy").nearest == ("github:create_issue",)
    assert ask("xyzzy wrte plugh").nearest == ("files:write_file",)
    assert ask("isue", overlay=Index.build([tool("a:issue_log")])).nearest[0] == "a:issue_log"


def test_without_near_names_the_note_says_what_to_try() -> None:
    reply = ask("xyzzy plugh")
    assert (reply.hits, reply.nearest) == ((), ())
    assert reply.note == "Nothing fits. Try other words: what the tool does, or what it works on."


def test_nearest_names_are_omitted_if_something_fits() -> None:
    assert ask("forcast issue").nearest == ()


def test_a_query_without_words_lists_everything_by_id() -> None:
    reply = ask("")
    assert ids(reply) == [t.id for t in TOOLS if t.visibility is not Visibility.HIDDEN]
    assert {(hit.score, hit.raw, hit.reasons) for hit in reply.hits} == {(0.0, 0.0, ())}
    assert reply.total == 7
    assert ids(ask("  ?! 🎉", limit=2)) == ["files:read_file", "files:write_file"]


def test_a_listing_has_every_findable_tool() -> None:
    extra = Index.build([tool("a:a"), tool("z:z")])
    listed = [t.id for t in listing(INDEX, Filters(tags=frozenset({"tracker"})), mask=hiding("jira:create_issue"))]
    assert listed == ["github:create_issue", "github:list_issues"]
    assert [t.id for t in listing(INDEX, overlay=extra)][:2] == ["a:a", "files:read_file"]
    assert len(listing(INDEX, overlay=extra)) == 9


@pytest.mark.parametrize(("asked", "given"), [(None, 2), (0, 1), (-5, 1), (1, 1), (3, 3), (100, 4), (sys.maxsize, 4)])
def test_a_limit_out_of_range_is_clamped(asked: int | None, given: int) -> None:
    options = SearchOptions(default_limit=2, max_limit=4)
    reply = ask("issue file create read", limit=asked, options=options)
    assert len(reply.hits) == given
    assert reply.total == 6


def test_several_queries_are_answered_in_order() -> None:
    reply = ask("read file", "xyzzy", "forecast", limit=1)
    assert [(hit.tool.id, hit.query) for hit in reply.hits] == [("files:read_file", 0), ("weather:forecast", 2)]
    assert reply.total == 3
    assert reply.unmatched == ("xyzzy",)


def test_too_many_queries_are_cut_and_the_reply_says_so() -> None:
    reply = ask(*["forecast"] * 19, limit=1)
    assert len(reply.hits) == 16
    assert reply.note == "The last 3 queries were left out: ask them separately."


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (Filters(namespaces=frozenset({"jira"})), ["jira:create_issue"]),
        (Filters(namespaces=frozenset({"nowhere"})), []),
        (Filters(tags=frozenset({"tracker", "write"})), ["github:create_issue"]),
        (Filters(tags=frozenset({"nowhere"})), []),
        (Filters(read_only=True), ["github:list_issues"]),
        (Filters(read_only=False), ["github:create_issue", "jira:create_issue"]),
        (Filters(visibility=frozenset({Visibility.NATIVE})), []),
        (
            Filters(visibility=frozenset({Visibility.NATIVE, Visibility.DISCOVERABLE})),
            ["github:create_issue", "jira:create_issue", "github:list_issues"],
        ),
        (Filters(namespaces=frozenset({"secrets"}), visibility=frozenset({Visibility.HIDDEN})), []),
    ],
)
def test_filters_narrow_the_hits(filters: Filters, left: list[str]) -> None:
    assert sorted(ids(ask("issue", filters=filters))) == sorted(left)


def test_filters_change_neither_raw_nor_reasons_nor_what_counts_as_unknown() -> None:
    narrowed = ask("read an issue", filters=Filters(namespaces=frozenset({"jira"})))
    assert narrowed.unmatched == ()
    whole = [hit for hit in ask("read an issue").hits if hit.tool.namespace == "jira"]
    assert [replace(hit, score=0.0, weak=False) for hit in narrowed.hits] == [
        replace(hit, score=0.0, weak=False) for hit in whole
    ]


def test_a_hidden_tool_is_neither_found_nor_suggested() -> None:
    reply = ask("rotate a secret")
    assert reply.hits == ()
    assert reply.unmatched == ("rotate", "secret")
    assert "secrets:rotate" not in reply.nearest
    assert "secrets:rotate" not in ids(ask(""))


def test_a_denied_tool_looks_exactly_like_a_missing_one() -> None:
    mask = hiding("weather:forecast")
    reply = ask("forecast the weather issue", "forcast", "", mask=mask)
    alone = Index.build([t for t in TOOLS if t.id != "weather:forecast"])
    assert reply == ask("forecast the weather issue", "forcast", "", index=alone)


def test_any_nonzero_byte_of_a_mask_shows_a_tool() -> None:
    assert ask("issue", mask=bytes([255, 2, 128, 1, 1, 7, 1, 1])) == ask("issue")
    assert ask("issue", "", mask=bytes(len(TOOLS))).hits == ()


def test_a_mask_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="the mask has 1 bytes for 8 tools"):
        ask("issue", mask=b"\1")


def test_an_overlay_is_searched_as_if_it_were_part_of_the_index() -> None:
    extra = [tool("a:create_ticket", "Creates an issue in a queue."), tool("z:blockchain", "A chain of issues.")]
    assert ask("create an issue, blockchain", overlay=Index.build(extra)) == ask(
        "create an issue, blockchain", index=Index.build([*TOOLS, *extra])
    )


def test_an_empty_index_finds_nothing() -> None:
    empty = Index.build([])
    assert len(empty) == 0
    assert ask("issue", "", index=empty, mask=b"").hits == ()
    assert ask("issue", index=empty, overlay=INDEX).hits == ask("issue").hits
    assert Index.build([], previous=INDEX).tools == ()


@pytest.mark.parametrize(
    "query",
    [
        "issue " * 100_000,
        "x" * 1_000_000,
        " ".join(f"word{number}" for number in range(50_000)),
        "\ud800 issue \udfff",
        "\0" * 10_000,
        "漢" * 100_000,
        "é́́́" * 10_000,
        "aB" * 100_000,
        "_" * 100_000,
        "🎉" * 10_000,
        "a" + "́" * 100_000,
        "١٢٣ ½ Ⅷ ﷺ",
        "_; _, _",
        "_\x80",
    ],
    ids=range(14),
)
def test_a_query_of_any_length_and_script_is_answered_in_bounded_time(query: str) -> None:
    with cpu_deadline(5):
        reply = ask(query)
    assert len(reply.hits) <= 10
    assert all(0 <= hit.score <= 1 for hit in reply.hits)


def test_a_tool_of_any_shape_is_indexed() -> None:
    nested: dict[str, object] = {"type": "object", "properties": {"deep": {"type": "string"}}}
    for _ in range(50):
        nested = {"type": "object", "properties": {"inner": nested, "list": {"items": nested}, "text": True}}
    odd = [
        tool("a:" + "x" * 256, "word " * 100_000, input_schema=nested, tags=("\ud800",), keywords=("漢字",)),
        tool("b:🎉", "\ud800", input_schema={"type": "object", "properties": []}),
        tool(
            "c:_",
            "\0",
            input_schema={"properties": {f"parameter{number}": {"description": 3} for number in range(5_000)}},
        ),
    ]
    with cpu_deadline(5):
        index = Index.build(odd)
    assert ids(ask("inner list", index=index)) == ["a:" + "x" * 256]
    assert ids(ask("漢字", index=index)) == ["a:" + "x" * 256]
    assert ids(ask("parameter1", index=index)) == ["c:_"]
    assert ids(ask("word", index=index)) == ["a:" + "x" * 256]


def test_options_default_to_those_of_the_previous_index() -> None:
    options = SearchOptions(max_limit=1)
    index = Index.build(TOOLS, options=options)
    assert Index.build(TOOLS, previous=index).options is options
    assert len(ask("issue", index=Index.build(TOOLS, previous=index), limit=9).hits) == 1
    assert Index.build(TOOLS, previous=index, options=SearchOptions()).options == SearchOptions()


def test_a_signature_is_computed_once_and_survives_a_rebuild() -> None:
    index = Index.build(TOOLS)
    hit = ask("forecast", index=index).hits[0]
    again = ask("forecast", index=Index.build(TOOLS[::-1], previous=index)).hits[0]
    assert again.signature is hit.signature


def test_the_history_of_an_index_does_not_change_reasons() -> None:
    forms = tool("a:forms", "create created creating creates", input_schema={"type": "object"})
    before = Index.build([tool("a:other", "creating"), tool("a:another", "creates created")])
    alone = ask("creation", "creater", "creates creating", index=Index.build([forms]))
    assert ask("creation", "creater", "creates creating", index=Index.build([forms], previous=before)) == alone
    assert {reason.how for hit in alone.hits for reason in hit.reasons} >= {"exact", "meaning"}


def test_the_words_of_removed_tools_are_dropped_eventually() -> None:
    index = Index.build([tool(f"a:t{number}", f"gone{number}x") for number in range(12_000)])
    kept = tool("a:kept", "stays")
    index = Index.build([kept], previous=index)
    assert index.segments[0].is_worn()
    fresh = Index.build([kept, tool("a:new")], previous=index).merged()
    fresh = Index.build([kept], previous=fresh).merged()
    assert not fresh.segments[0].is_worn()
    assert len(fresh.segments[0].vocabulary.words) < 10
    assert ids(ask("stays", index=fresh)) == ["a:kept"]


def test_a_reply_is_immutable() -> None:
    assert hash(ask("issue").hits[0].reasons)
    with pytest.raises(FrozenInstanceError):
        ask("issue").hits[0].score = 1.0  # type: ignore[misc]  # that it may not be done is the point


def test_an_abbreviation_with_digits_finds_its_meaning() -> None:
    index = Index.build([*TOOLS, tool("cluster:get_pods", "Lists the pods of a Kubernetes cluster.")])
    reply = ask("k8s", index=index)
    assert ids(reply)[0] == "cluster:get_pods"
    assert reply.hits[0].matched == ("k8s",)
    assert any((reason.word, reason.how) == ("k8s", "synonym") for reason in reply.hits[0].reasons)
    assert reply.unmatched == ()


def test_an_everyday_word_in_a_sentence_is_not_an_explicit_name() -> None:
    shop = Index.build(
        [tool("shop:check_out", "Pays for what is in the cart."), tool("shop:refund", "Gives money back.")]
    )
    sure = ask("checkout", index=shop).hits[0]
    aside = [hit for hit in ask("book a flight to Oslo after the checkout", index=shop).hits if not hit.weak]
    assert not sure.weak
    assert aside == []


def test_a_note_says_which_of_several_queries_found_nothing() -> None:
    reply = ask("create a pull request", "xyzzy frobnicate")
    assert reply.note.startswith('"xyzzy frobnicate": nothing fits')
    assert "create a pull request" not in reply.note


def test_groups_fill_the_limit_despite_many_near_duplicates() -> None:
    twins = [tool(f"server{number}:list_issues", "Lists the issues of a repository.") for number in range(60)]
    others = [tool("a:close_issue", "Closes an issue."), tool("b:issue_stats", "Counts the issues by month.")]
    reply = search(Index.build([*twins, *others]), SearchRequest(queries=("list issues",), group=True))
    assert {hit.tool.name for hit in reply.hits} == {"list_issues", "close_issue", "issue_stats"}


def test_adding_a_tool_replaces_the_one_with_its_id() -> None:
    index = INDEX.updated([tool("github:create_pull_request", "Opens a merge proposal.")])
    found = [hit.tool.description for hit in ask("create_pull_request", index=index).hits]
    assert found.count("Opens a merge proposal.") == 1
    assert len(index) == len(INDEX)


def test_an_overlay_with_another_embedder_is_refused() -> None:
    other = Index.build(TOOLS, model=SemanticModel(WordPieceTable.load(), Broken()))
    with pytest.raises(ValueError, match="another embedder"):
        search(INDEX, SearchRequest(queries=("issue",)), overlay=other)


def test_vectors_with_nan_or_infinity_are_ignored() -> None:
    index = Index.build(TOOLS, model=SemanticModel(WordPieceTable.load(), Broken()))
    assert ids(ask("create a pull request", index=index))[0] == "github:create_pull_request"


class Broken:
    name = "broken"
    dim = 8

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return np.full((len(texts), self.dim), np.nan, dtype=np.float32)


def test_among_thousands_of_namesakes_those_whose_other_words_match_come_first() -> None:
    many = [tool(f"s{number}:create_issue", f"Opens an issue in tracker {number}.") for number in range(3_000)]
    index = Index.build([*many, tool("other:read_mail")])
    assert ids(ask("create_issue in s2977", index=index))[0] == "s2977:create_issue"
    assert ids(ask("create issue tracker 1234", index=index))[0] == "s1234:create_issue"
    assert all(id_.endswith("create_issue") for id_ in ids(ask("createIssue", index=index, limit=100)))


def test_nothing_is_left_to_compute_from_a_prepared_index_for_the_first_searches() -> None:
    index = Index.build(TOOLS)
    prepare(index)
    segment = index.segments[0]
    known = {*segment.memo, *vars(segment)}
    for query in ("create isue", "wo sind die dateien in meinem ordner", "zzqy qqxv", "create_issue"):
        ask(query, index=index)
    ask("issue", index=index, filters=Filters(tags=frozenset({"tracker"})))
    assert {*segment.memo, *vars(segment)} == known
    assert "nearest names" in known
