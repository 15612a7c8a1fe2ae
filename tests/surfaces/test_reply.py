"""Search replies: how hits are rendered, what they cost, and how they fit a token budget."""

import json
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.surfaces.reply import TOKENS_META, Costs, ReplyRenderer, fit_details, shorten
from toolcrib.tokens import ESTIMATE, counter
from toolcrib.types import Detail, Hit, SearchReply, SearchRequest, Tool, ToolResult

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {f"field_{number}": {"type": "string", "description": "Words. " * 9} for number in range(5)},
}


def hit(name: str = "log", **more: Any) -> Hit:
    tool = Tool(name=name, namespace="git", description="Show commits. " * 40, input_schema=SCHEMA)
    return Hit(**{"tool": tool, "score": 0.512345, "raw": 1.0, **more})


def result(*hits: Hit, tokens: str = ESTIMATE, reply: dict[str, Any] | None = None, **request: Any) -> ToolResult:
    asked = SearchRequest(**{"queries": ("q",), **request})
    return ReplyRenderer(counter(tokens)).render(SearchReply(hits=hits, **(reply or {})), asked)


def entries(made: ToolResult) -> Any:
    assert json.loads(made.content[0]["text"]) == made.structured["hits"]
    return made.structured["hits"]


def text(made: ToolResult) -> str:
    return "\n".join(block["text"] for block in made.content)


# -- hits --------------------------------------------------------------------------------------------------------------


def test_a_score_has_three_digits() -> None:
    assert entries(result(hit()))[0]["score"] == 0.512


def test_a_confident_unique_hit_has_no_flags() -> None:
    assert set(entries(result(hit()))[0]) == {"name", "description", "score", "input_schema", "example"}


def test_weak_hits_are_marked() -> None:
    weak, instead = entries(result(hit(weak=True), hit(fallback=True)))
    assert weak["weak"] is True
    assert instead["fallback"] is True
    assert "fallback" not in weak


def test_fallback_hits_are_explained_once() -> None:
    said = "Hits marked as fallback are shown instead"
    assert text(result(hit(fallback=True), hit(fallback=True))).count(said) == 1
    assert said not in text(result(hit()))
    assert said not in text(result(hit(fallback=True), reply={"note": "Popular tools are shown instead."}))


def test_near_duplicates_are_named_and_many_are_counted() -> None:
    few, many = entries(
        result(hit(similar=("svn:log", "hg:log")), hit(similar=tuple(f"n{number}:log" for number in range(8))))
    )
    assert few["similar"] == ["svn:log", "hg:log"]
    assert "more_similar" not in few
    assert (many["similar"], many["more_similar"]) == ([f"n{number}:log" for number in range(5)], 3)


def test_a_hit_says_which_of_several_queries_it_answers() -> None:
    first, second = entries(result(hit(query=0), hit(query=1), queries=("show commits", "send mail " * 20)))
    assert first["query"] == "show commits"
    assert second["query"].startswith("send mail send mail")
    assert len(second["query"]) <= 80
    assert "query" not in entries(result(hit(), queries=("show commits",)))[0]


def test_nearest_names_and_unmatched_words_are_listed_even_with_hits() -> None:
    reply = text(result(hit(), reply={"nearest": ("git:logs",), "unmatched": ("xyzzy",)}))
    assert "Nearest names: git:logs" in reply
    assert "Words that match nothing: xyzzy" in reply


def test_a_lower_detail_has_a_shorter_description() -> None:
    lengths = [
        len(entries(result(hit(detail=detail), detail=detail))[0]["description"])
        for detail in ("summary", "signature", "full")
    ]
    assert lengths[0] <= 100 < lengths[1] <= 300 < lengths[2]


def test_a_summary_still_warns_of_a_tool_that_may_destroy() -> None:
    def hints(detail: str, **annotations: Any) -> Any:
        tool = Tool(name="drop", annotations=annotations)
        found = Hit(tool=tool, score=1, raw=1, detail=detail)  # type: ignore[arg-type]  # a parameter of the test
        return entries(result(found))[0].get("annotations")

    assert hints("full", destructiveHint=False, readOnlyHint=True) == {"readOnlyHint": True, "destructiveHint": False}
    assert hints("summary", destructiveHint=True, readOnlyHint=False) == {"destructiveHint": True}
    assert hints("summary", destructiveHint=False, readOnlyHint=True) is None


@pytest.mark.parametrize("most", [20, 60, 100])
@pytest.mark.parametrize(
    "said", ["", "word", "two words", "x" * 500, "a b " * 200, " \n" * 900 + "late", "日本語" * 90]
)
def test_a_text_is_cut_to_its_length(said: str, most: int) -> None:
    assert len(shorten(said, most)) <= most


# -- costs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", ["estimate", "o200k_base"])
@pytest.mark.parametrize("budget", [None, 20_000, 900, 500, 50])
def test_the_count_is_that_of_the_text_and_says_how_it_was_made(tokens: str, budget: int | None) -> None:
    made = result(*map(hit, "abcd"), tokens=tokens, budget=budget)
    counts = made.meta[TOKENS_META]
    count = counter(tokens).count
    assert counts["reply"] == sum(count(block["text"]) for block in made.content)
    assert (counts["counter"], counts["of"]) == (tokens, "text")
    whole = result(*map(hit, "abcd"), tokens=tokens).meta[TOKENS_META]
    assert whole["full"] == whole["reply"]
    assert whole["reply"] <= counts["full"] <= whole["reply"] + 12


@pytest.mark.parametrize("tokens", ["estimate", "o200k_base"])
@pytest.mark.parametrize("budget", [400, 500, 700, 900, 1200, 2000])
def test_a_reply_keeps_its_budget_note_and_marks_included(tokens: str, budget: int) -> None:
    hits = [hit(name, weak=True, similar=("x:y",)) for name in "abcd"]
    made = result(*hits, tokens=tokens, budget=budget, reply={"note": "Something. " * 9, "unmatched": ("x", "y")})
    assert made.meta[TOKENS_META]["reply"] <= budget


def test_a_shortened_reply_says_how_to_see_more() -> None:
    note = result(*map(hit, "abcd"), budget=700).structured["note"]
    assert note == (
        "To save tokens (budget 700), 3 of the hits are shortened. To see one in full, search for its name "
        "with max_results 1 and a larger budget."
    )
    assert result(*map(hit, "abcd"), budget=20_000).structured["note"] == ""


def test_cached_costs_are_not_used_for_another_definition_of_a_tool() -> None:
    replies = ReplyRenderer(counter(ESTIMATE))
    schemas = ({"type": "object", "properties": {key: {"type": "string"}}} for key in ("b", "b" * 4000))
    small, large = (Hit(tool=Tool(name="a", input_schema=schema), score=1, raw=1) for schema in schemas)
    request = SearchRequest(queries=("q",), budget=400)
    shown = [replies.render(SearchReply(hits=(one,)), request).structured["hits"][0] for one in (small, large, small)]
    assert ["input_schema" in entry for entry in shown] == [True, False, True]


# -- budget ------------------------------------------------------------------------------------------------------------


COST: Costs = {"full": 100, "signature": 30, "summary": 10}
DETAILS: tuple[Detail, ...] = get_args(Detail)
LETTERS = {"full": "F", "signature": "s", "summary": "."}


def hits(*queries: int, detail: Detail = "full") -> list[Hit]:
    return [Hit(tool=Tool(name="x"), score=0.5, raw=1, query=query, detail=detail) for query in queries]


def shown(found: Sequence[Hit], budget: int, costs: Sequence[Costs] | None = None) -> str:
    return "".join(LETTERS[detail] for detail in fit_details(found, costs or [COST] * len(found), budget))


@pytest.mark.parametrize(
    ("budget", "wanted"),
    [
        (400, "FFFF"),
        (399, "FFFs"),
        (260, "FFss"),
        (190, "Fsss"),
        (170, "Fss."),
        (130, "F..."),
        (129, "ssss"),
        (100, "sss."),
        (40, "...."),
        (0, "...."),
    ],
)
def test_the_worst_hits_are_shortened_first(budget: int, wanted: str) -> None:
    assert shown(hits(0, 0, 0, 0), budget) == wanted


def test_the_best_of_each_query_stays_whole_longest() -> None:
    assert shown(hits(0, 0, 1, 1), 260) == "FsFs"
    assert shown(hits(0, 0, 1, 1), 220) == "F.F."
    assert shown(hits(0, 0, 0, 1, 1, 1), 460) == "FFsFFs"


def test_a_best_hit_that_can_never_fit_is_shortened_with_the_others() -> None:
    huge: Costs = {"full": 1000, "signature": 30, "summary": 10}
    assert shown(hits(0, 0, 0), 90, [huge, COST, COST]) == "sss"


@given(
    budget=st.integers(-10, 500),
    asked=st.sampled_from(DETAILS),
    queries=st.lists(st.integers(0, 2), max_size=8).map(sorted),
    data=st.data(),
)
def test_no_hit_shows_more_than_requested_and_the_budget_is_kept_if_possible(
    budget: int, asked: Detail, queries: list[int], data: st.DataObject
) -> None:
    sizes = [sorted(data.draw(st.lists(st.integers(1, 99), min_size=3, max_size=3))) for _ in queries]
    costs: list[Costs] = [dict(zip(DETAILS, size, strict=True)) for size in sizes]
    details = fit_details(hits(*queries, detail=asked), costs, budget)
    assert all(DETAILS.index(detail) <= DETAILS.index(asked) for detail in details)
    total = sum(cost[detail] for cost, detail in zip(costs, details, strict=True))
    assert total <= budget or set(details) <= {"summary"}
