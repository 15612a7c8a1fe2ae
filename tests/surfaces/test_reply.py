"""Search replies: how hits are rendered, what they cost, and how they fit a token budget."""

import json
from typing import Any

import pytest

from toolcrib.surfaces.hits import shorten
from toolcrib.surfaces.reply import TOKENS_META, ReplyRenderer
from toolcrib.tokens import ESTIMATE, counter
from toolcrib.types import Hit, SearchReply, SearchRequest, Tool, ToolResult

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
    assert set(entries(result(hit()))[0]) == {"name", "description", "score", "input_schema"}


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
    assert result(*map(hit, "abcd"), budget=700).structured["note"] == "Search for a name to see its schema."
    assert result(*map(hit, "abcd"), budget=20_000).structured["note"] == ""


def test_cached_costs_are_not_used_for_another_definition_of_a_tool() -> None:
    replies = ReplyRenderer(counter(ESTIMATE))
    schemas = ({"type": "object", "properties": {key: {"type": "string"}}} for key in ("b", "b" * 4000))
    small, large = (Hit(tool=Tool(name="a", input_schema=schema), score=1, raw=1) for schema in schemas)
    request = SearchRequest(queries=("q",), budget=400)
    shown = [replies.render(SearchReply(hits=(one,)), request).structured["hits"][0] for one in (small, large, small)]
    assert ["input_schema" in entry for entry in shown] == [True, False, True]
