"""One need in several words, and several needs: two inputs, kept apart in every way to search."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from toolcrib.app import App
from toolcrib.discovery import ToolSearchEngine
from toolcrib.formats import search_request
from toolcrib.gateway.gateway import Gateway
from toolcrib.registry import Registry
from toolcrib.search.engine import HOW_TO_ASK, search
from toolcrib.search.index import Index
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.sync import SyncApp
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running, text_of
from toolcrib.types import Filters, SearchReply, SearchRequest, Tool

pytestmark = pytest.mark.anyio

TOOLS = [
    Tool(namespace="mail", name="send_mail", description="Send an e-mail."),
    Tool(namespace="mail", name="delete_mail", description="Delete an e-mail."),
    Tool(namespace="cal", name="create_event", description="Put an event into the calendar."),
    Tool(namespace="files", name="write_file", description="Write text to a file."),
    Tool(namespace="weather", name="get_forecast", description="Get the weather forecast for a city."),
]
PHRASINGS = ["zyxwv qwert", "put event into calendar"]
"""Only the second one finds the tool."""
TOOL = "cal:create_event"


def registered(made: Any) -> Any:
    for tool in TOOLS:
        made.register(tool, lambda: "done")
    return made


async def app_search(query: Sequence[str]) -> list[str]:
    async with registered(App()) as app:
        return [hit.tool.id for hit in (await app.search(query)).hits]


async def registry_search(query: Sequence[str]) -> list[str]:
    async with registered(Registry()) as registry:
        return [hit.tool.id for hit in (await registry.search(query)).hits]


async def engine_search(query: Sequence[str]) -> list[str]:
    engine: ToolSearchEngine[Tool] = ToolSearchEngine()
    engine.set_tools(TOOLS)
    return [result.tool.id for result in engine.search(query)]


async def format_search(query: Sequence[str]) -> list[str]:
    request = search_request({"query": query[0], "phrasings": [*query[1:]]})
    return [hit.tool.id for hit in search(Index.build(TOOLS), request).hits]


async def surface_search(query: Sequence[str]) -> list[str]:
    return [hit["name"] for hit in (await replied({"query": query[0], "phrasings": [*query[1:]]}))[0]]


async def listed_search(query: Sequence[str]) -> list[str]:
    return [hit["name"] for hit in (await replied({"query": [*query]}))[0]]


async def dynamic_search(query: Sequence[str]) -> list[str]:
    arguments = {"query": query[0], "phrasings": [*query[1:]]}
    async with gateway() as one, connect(one, SurfaceOptions(surfaces=("dynamic",))) as client:
        answer = json.loads(text_of(await client.call_tool("search_tools", arguments)))
    return [entry["name"] for entry in answer["result"]]


def gateway() -> Any:
    names = dict.fromkeys(tool.namespace for tool in TOOLS)
    return running(
        FakeSource(
            *(FakeProvider([tool for tool in TOOLS if tool.namespace == name], status=ready(name)) for name in names)
        )
    )


async def replied(arguments: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The hits of `tool_search`, and its note."""
    async with gateway() as one, connect(one) as client:
        result = await client.call_tool("tool_search", arguments)
    structured: Any = result.structured_content
    return structured["hits"], structured["note"]


DOORS: list[Callable[[Sequence[str]], Any]] = [
    app_search,
    registry_search,
    engine_search,
    format_search,
    surface_search,
    listed_search,
    dynamic_search,
]


@pytest.mark.parametrize("door", DOORS)
async def test_the_best_phrasing_of_a_need_decides(door: Callable[[Sequence[str]], Any]) -> None:
    assert (await door(PHRASINGS))[0] == TOOL
    assert (await door(PHRASINGS[::-1]))[0] == TOOL


def test_phrasings_make_one_list_without_a_loop_too() -> None:
    with SyncApp() as tools:
        registered(tools.app)
        reply = tools.search(PHRASINGS)
    assert (reply.hits[0].tool.id, {hit.query for hit in reply.hits}) == (TOOL, {0})


def asked(*queries: str, **more: Any) -> SearchReply:
    return search(Index.build(TOOLS), SearchRequest(queries=queries, **more))


def test_phrasings_share_one_limit_and_each_tool_has_the_best_of_its_scores() -> None:
    each = [asked(query) for query in ("send mail", "delete mail")]
    both = asked("send mail", "delete mail", phrasings=True)
    best: dict[str, float] = {}
    for hit in (hit for reply in each for hit in reply.hits):
        best[hit.tool.id] = max(hit.score, best.get(hit.tool.id, 0.0))
    assert {hit.tool.id: hit.score for hit in both.hits} == best
    assert [hit.score for hit in both.hits] == sorted(best.values(), reverse=True)
    assert len(asked("send mail", "delete mail", phrasings=True, limit=1).hits) == 1
    assert len(asked("send mail", "delete mail", limit=1).hits) == 2


async def test_several_needs_are_answered_one_by_one() -> None:
    hits, _ = await replied({"needs": ["send mail", "put event into calendar"]})
    first = {hit["query"]: hit["name"] for hit in reversed(hits)}
    assert first == {"send mail": "mail:send_mail", "put event into calendar": TOOL}


async def test_hits_of_phrasings_do_not_repeat_a_query() -> None:
    hits, _ = await replied({"query": "send mail", "phrasings": ["write to someone"]})
    assert not any("query" in hit for hit in hits)


async def test_phrasings_of_several_needs_are_refused_with_what_would_work() -> None:
    async with gateway() as one, connect(one) as client:
        text = text_of(await client.call_tool("tool_search", {"needs": ["a", "b"], "query": "c", "phrasings": ["d"]}))
    assert "phrasings and needs exclude each other. Give one need in several words, or several needs." in text


STORY = "Good morning, I talked to my boss about the meeting yesterday and now I have to put an event into the calendar"


@pytest.mark.parametrize(
    ("query", "teaches"),
    [(STORY, True), ("send mail", False), ("put event into the calendar", False), ("mail:send_mail", False)],
)
async def test_a_reply_to_a_sentence_says_how_to_ask_and_that_query_finds_the_tool(query: str, teaches: bool) -> None:
    _, note = await replied({"query": query})
    assert (HOW_TO_ASK in note) is teaches
    assert len(HOW_TO_ASK.replace(":", "").split()) <= 10


async def test_a_reply_whose_best_hit_is_weak_says_how_to_ask() -> None:
    weak = [query for query in ("city event text", "remove forecast", "calendar mail") if asked(query).hits[0].weak]
    assert weak
    for query in weak:
        assert HOW_TO_ASK in asked(query).note


async def test_a_past_of_phrasings_and_filters_still_work() -> None:
    request = SearchRequest(
        queries=("zyxwv", "send mail"), phrasings=True, filters=Filters(namespaces=frozenset({"mail"}))
    )
    one: Gateway
    async with gateway() as one:
        reply = await one.search(App().local_context(), request)
    assert {hit.tool.namespace for hit in reply.hits} == {"mail"}
