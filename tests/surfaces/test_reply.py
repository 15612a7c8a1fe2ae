"""Search replies: how hits are rendered, what they cost, and how they fit a token budget."""

import json
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from toolcrib.middleware.admission import FairQueue
from toolcrib.surfaces.reply import TOKENS_META, ReplyRenderer, shorten
from toolcrib.tokens import ESTIMATE, counter
from toolcrib.types import LOCAL, Hit, SearchReply, SearchRequest, ServerState, ServerStatus, Tool, ToolResult

TURNS = FairQueue(share=1, waiting=8)
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


# -- hits ------------------------------------------------------------------------------------


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


# -- costs ------------------------------------------------------------------------------------


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


# -- what a reply shows of how to call ---------------------------------------------------------------------------


def tool(name: str, properties: dict[str, Any], *needed: str) -> Tool:
    return Tool(name=name, description="Do it.", input_schema=obj(properties, *needed))


def obj(properties: dict[str, Any], *needed: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(needed)}


def found(one: Tool, score: float = 0.9, **more: Any) -> Hit:
    return Hit(tool=one, score=score, raw=1, **more)


def economical(*hits: Hit, **request: Any) -> ToolResult:
    asked = SearchRequest(**{"queries": ("q",), "budget": 800, **request})
    return ReplyRenderer(counter(ESTIMATE)).render(SearchReply(hits=hits), asked, economical=True)


TEXT = {"type": "string"}


def test_unlikely_tools_are_left_out_and_counted_unless_a_number_of_hits_is_asked_for() -> None:
    hits = [found(tool("a", {"x": TEXT}, "x"), 0.99), *(found(tool(name, {"x": TEXT}, "x"), 0.1) for name in "bc")]
    clear = economical(*hits)
    assert [one["name"] for one in entries(clear)] == ["a"]
    assert clear.structured["note"] == "2 unlikely tools are left out; max_results shows more."
    asked = economical(*hits, limit=3)
    assert [set(one) for one in entries(asked)[1:]] == [{"name", "score"}] * 2
    assert asked.structured["note"] == "Search for a name to see its schema."


def test_a_hit_too_large_for_the_budget_shows_what_a_call_needs_and_names_the_rest() -> None:
    options = {f"option_{number:02}": {"type": "string", "description": "Words. " * 20} for number in range(20)}
    [shown] = entries(economical(found(tool("a", {"to": TEXT, **options}, "to"))))
    assert shown["input_schema"] == obj({"to": TEXT}, "to")
    assert (shown["optional"][0], len(shown["optional"]), shown["more_optional"]) == ("option_00", 12, 8)


def test_every_value_of_a_long_enum_and_the_whole_description_can_be_asked_for() -> None:
    codes = [f"code_{number}" for number in range(60)]
    one = Tool(name="a", description="Words. " * 100, input_schema=obj({"code": {"enum": codes}}, "code"))
    [brief] = entries(economical(found(one)))
    assert "One of 60 values: code_0, " in brief["input_schema"]["properties"]["code"]["description"]
    [whole] = entries(result(found(one), budget=20_000))
    assert whole["input_schema"]["properties"]["code"]["enum"] == codes
    assert whole["description"] == one.description


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        (TEXT, None),
        ({"type": "string", "description": "Such as 'Asia/Tokyo'"}, None),
        ({"type": "string", "format": "date"}, None),
        ({"type": "string", "pattern": "^T-[0-9]{3}$"}, "T-000"),
        ({"type": "array", "items": obj({"sku": TEXT}, "sku")}, [{"sku": "sku"}]),
        (obj({"lat": {"type": "number"}}, "lat"), {"lat": 1}),
    ],
)
def test_an_example_beside_a_schema_shows_only_what_is_hard_to_read_off_it(node: dict[str, Any], shown: Any) -> None:
    [entry] = entries(economical(found(tool("a", {"x": node}, "x"))))
    assert entry.get("example") == (shown and {"name": "a", "arguments": {"x": shown}})


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        (TEXT, None),
        ({"type": "string", "description": "Such as 'Asia/Tokyo'"}, "Asia/Tokyo"),
        ({"type": "string", "format": "date"}, "2026-01-31"),
        ({"type": "string", "examples": ["C0123"]}, "C0123"),
        ({"enum": ["open", "closed"]}, None),
    ],
)
def test_an_example_beside_a_signature_shows_what_types_do_not(node: dict[str, Any], shown: Any) -> None:
    [entry] = entries(result(found(tool("a", {"x": node}, "x"), detail="signature")))
    assert entry.get("example") == (shown and {"name": "a", "arguments": {"x": shown}})


def test_only_some_of_many_servers_with_a_problem_are_described_unless_asked_for() -> None:
    servers = tuple(ServerStatus(name=f"s{number}", state=ServerState.FAILED, since=0) for number in range(30))
    reply = SearchReply(hits=(found(tool("a", {})),), servers=servers)
    request = SearchRequest(queries=("q",), budget=20_000)
    renderer = ReplyRenderer(counter(ESTIMATE))
    few = renderer.render(reply, request, economical=True).structured
    assert (len(few["servers"]), few["more_servers"]) == (20, 10)
    every = renderer.render(reply, request).structured
    assert len(every["servers"]) == 30
    assert "more_servers" not in every


@pytest.mark.anyio
async def test_forms_that_are_not_cached_are_computed_in_a_thread_and_others_at_once() -> None:
    renderer = ReplyRenderer(counter(ESTIMATE))
    hits = [found(tool(name, {"x": TEXT}, "x")) for name in "ab"]
    request = SearchRequest(queries=("q",), budget=800)
    threads = []

    def work() -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        renderer.render(SearchReply(hits=tuple(hits)), request, economical=True)

    for _ in range(2):
        await renderer.run(hits, work, economical=True, queue=TURNS, caller=LOCAL)
    await renderer.run(hits, work, economical=False, queue=TURNS, caller=LOCAL)
    assert threads == [False, True, False]


@pytest.mark.anyio
@pytest.mark.parametrize("economical", [True, False])
async def test_tools_of_one_name_never_share_a_rendered_form(*, economical: bool) -> None:
    renderer = ReplyRenderer(counter(ESTIMATE))
    definitions = ("Show commits.", "Write a log.", "Show commits.")
    hits = [
        replace(one, tool=replace(one.tool, description=text))
        for one, text in zip([hit()] * 3, definitions, strict=True)
    ]
    for budget in (2000, None):
        for one in (*hits, *reversed(hits)):
            reply, request = SearchReply(hits=(one,)), SearchRequest(queries=("q",), budget=budget)
            work = partial(renderer.render, reply, request, economical=economical)
            (entry,) = entries(await renderer.run(reply.hits, work, economical=economical, queue=TURNS, caller=LOCAL))
            assert entry["description"] == one.tool.description
