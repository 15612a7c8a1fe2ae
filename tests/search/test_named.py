"""Tools that a query names in full: all of them come first, in every spelling that clients write."""

import json
from collections.abc import Callable, Sequence
from itertools import islice, product
from typing import Any, get_args
from unittest.mock import Mock

import pytest
from tests.growth import FLOOR_S, MAX_GROWTH, growth, measured

from toolcrib.discovery import ToolSearchEngine
from toolcrib.names import wire_name
from toolcrib.search import engine, ranking
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running, text_of
from toolcrib.types import Hit, SearchRequest, Tool

pytestmark = pytest.mark.anyio

VERBS = ("create", "list", "get", "update", "delete", "close", "search")
THINGS = ("issue", "pull_request", "commit", "branch", "comment", "label", "release")
SERVERS = ("github", "gitlab", "my-forge", "forge__x")


def _tool(namespace: str, name: str) -> Tool:
    words = name.replace("_", " ")
    schema = {"type": "object", "properties": {"repo": {"type": "string"}}, "required": ["repo"]}
    return Tool(
        namespace=namespace, name=name, description=f"{words.capitalize()} in {namespace}.", input_schema=schema
    )


TOOLS = [
    *(_tool(server, f"{verb}_{thing}") for server in SERVERS for verb in VERBS for thing in THINGS),
    _tool("github", "search"),
    _tool("time", "now"),
    _tool("", "roll_dice"),
]
INDEX = Index.build(TOOLS)


def found(query: str, *, scorer: Scorer = "hybrid", **more: Any) -> Sequence[Hit]:
    options = SearchOptions(scorer=scorer)
    return search(INDEX, SearchRequest(queries=(query,), **more), options=options).hits


def named(query: str, **more: Any) -> list[str]:
    return [hit.tool.id for hit in found(query, **more) if hit.named]


def camel(tool: Tool) -> str:
    first, *others = f"{tool.namespace}_{tool.name}".replace("-", "_").split("_")
    return first + "".join(map(str.title, others))


SPELLINGS: dict[str, Callable[[Tool], str]] = {
    "id": lambda tool: tool.id,
    "dot": lambda tool: f"{tool.namespace}.{tool.name}",
    "slash": lambda tool: f"{tool.namespace}/{tool.name}",
    "underscores": lambda tool: f"{tool.namespace}__{tool.name}",
    "wire": lambda tool: wire_name(tool.key),
    "camel": camel,
    "client": lambda tool: f"mcp__{tool.namespace}__{tool.name}",
    "client of a gateway": lambda tool: f"mcp__toolcrib__{tool.namespace}__{tool.name}",
    "client with one underscore": lambda tool: f"mcp_{tool.namespace}_{tool.name}",
    "version": lambda tool: f"{tool.id}:1.0",
    "capitals": lambda tool: tool.id.upper(),
}
FORMS = ("{}", "select:{}", "show me {} please", "[{}]")
JOINTS = (" ", ", ", ",", "\n")


@pytest.mark.parametrize("scorer", get_args(Scorer))
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_tool_named_in_full_comes_first_however_many_there_are(spelling: str, scorer: Scorer) -> None:
    for server, form, joint in zip(SERVERS, FORMS, JOINTS, strict=True):
        wanted = [tool for tool in TOOLS if tool.namespace == server][3:24:3]
        query = form.format(joint.join(SPELLINGS[spelling](tool) for tool in wanted))
        hits = found(query, scorer=scorer, limit=3)
        assert [hit.tool.id for hit in hits] == [tool.id for tool in wanted], query
        assert not any(hit.weak for hit in hits)


@pytest.mark.parametrize("query", ["github create_issue list_branch search", "create_issue search list_branch GitHub"])
def test_names_beside_the_name_of_their_server_mean_the_tools_of_that_server(query: str) -> None:
    assert set(named(query)) == {"github:create_issue", "github:list_branch", "github:search"}


def test_a_name_that_several_servers_have_brings_those_that_fit_best_and_the_others_stay_in_the_ranking() -> None:
    hits = found("use createIssue in gitlab please")
    assert {hit.tool.id for hit in hits if hit.named} == {f"{server}:create_issue" for server in SERVERS}
    assert hits[0].tool.id == "gitlab:create_issue"
    few = named("createIssue, listLabel, gitlab:get_commit", limit=3)
    assert [name.partition(":")[2] for name in few] == ["create_issue", "list_label", "get_commit"]
    many = [_tool(f"server-{place}", "create_issue") for place in range(30)]
    reply = search(Index.build(many), SearchRequest(queries=("create_issue",)))
    assert (sum(hit.named for hit in reply.hits), len(reply.hits)) == (5, 10)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("search", ["github:search"]),
        ("now", ["time:now"]),
        ("time:now", ["time:now"]),
        ("search, now", ["github:search", "time:now"]),
        ("roll_dice", ["roll_dice"]),
        ("search my issues now", []),
        ("GitHub search for pull requests", []),
        ("gitlab:search", []),
        ("gitlab:create", []),
        ("git:hub_search", []),
        ("a read-only, up-to-date list", []),
    ],
)
def test_a_name_of_one_word_counts_only_where_the_query_is_a_list_of_names(query: str, expected: list[str]) -> None:
    assert named(query) == expected


@pytest.mark.parametrize("query", ["github:craete_issue", "gihtub__create_issue", "mcp__github__create_isue"])
def test_a_name_with_a_typo_still_finds_its_tool(query: str) -> None:
    assert "create_issue" in {hit.tool.name for hit in found(query)[:3]}


def test_select_asks_for_nothing_but_the_tools_it_names_unless_one_is_not_there() -> None:
    assert [hit.tool.id for hit in found("select:github:create_issue,time:now")] == ["github:create_issue", "time:now"]
    some = found("select:github:create_issue,github:list_isues")
    assert some[0].tool.id == "github:create_issue"
    assert "list_issue" in {hit.tool.name for hit in some[1:]}


def test_a_named_tool_outside_the_mask_is_not_found() -> None:
    mask = bytes(tool.id != "github:create_issue" for tool in TOOLS)
    reply = search(INDEX, SearchRequest(queries=("github:create_issue",)), mask=mask)
    assert "github:create_issue" not in {hit.tool.id for hit in reply.hits}
    assert not any(hit.named for hit in reply.hits)


@pytest.mark.parametrize("scorer", get_args(Scorer))
def test_no_use_in_the_session_ranks_a_tool_above_one_that_the_query_names(scorer: Scorer) -> None:
    engine: ToolSearchEngine[Tool] = ToolSearchEngine(scorer)
    engine.set_tools(TOOLS)
    for _ in range(40):
        engine.record_tool_use("github:create_issue")
    for query in ("github:list_issue", "github.list_issue", "listIssue"):
        results = engine.search(query)
        assert results[0].name == "list_issue", query
        assert [result.score for result in results] == sorted((result.score for result in results), reverse=True)


def test_the_terms_of_a_score_still_add_up_where_a_name_decides() -> None:
    boosts = {"github:create_pull_request": 1e9}
    request = SearchRequest(queries=("create pull request or github:get_label",), explain=True)
    for hit in search(INDEX, request, boosts=boosts).hits:
        assert sum(part.value * part.weight for part in hit.parts) == pytest.approx(hit.raw, abs=1e-6)


async def test_the_reply_has_the_schema_of_every_named_tool_and_nothing_else_for_select() -> None:
    providers = [
        FakeProvider([tool for tool in TOOLS if tool.namespace == server], status=ready(server)) for server in SERVERS
    ]
    wanted = [f"github:{verb}_commit" for verb in VERBS]
    for surface, meta_tool, schema in (
        ("search", "tool_search", "input_schema"),
        ("dynamic", "search_tools", "parameters"),
    ):
        options = SurfaceOptions(surfaces=(surface,))
        async with running(FakeSource(*providers)) as gateway, connect(gateway, options) as client:
            text = text_of(await client.call_tool(meta_tool, {"query": f"select:{','.join(wanted)}"}))
        answer, _ = json.JSONDecoder().raw_decode(text)
        hits = answer if surface == "search" else answer["result"]
        assert [hit["name"] for hit in hits] == wanted
        assert all(hit[schema]["required"] == ["repo"] for hit in hits)


@pytest.mark.parametrize("unit", ["a:b,", "x", "mcp__", "a.b_c ", "'"])
def test_looking_for_names_takes_time_in_proportion_to_the_query(unit: str) -> None:
    assert growth(found, unit, 100_000) <= MAX_GROWTH


def spellings(word: str, count: int) -> str:
    return ",".join(islice(map("".join, product(*((letter, letter.upper()) for letter in word))), count))


def cpu_s(index: Index, query: str) -> float:
    def once() -> float:
        with measured() as cost:
            search(index, SearchRequest(queries=(query,)))
        return cost.seconds

    return min(once() for _ in range(3))


def test_many_spellings_of_a_name_cost_little_more_than_a_few_however_many_tools_have_it() -> None:
    index = Index.build([Tool(namespace=f"s{number}", name="search", description="Search.") for number in range(2_000)])
    few = cpu_s(index, spellings("search", 2))
    assert cpu_s(index, spellings("search", 64)) <= MAX_GROWTH * max(few, FLOOR_S)


def test_tools_of_one_name_that_the_words_of_the_query_do_not_find_are_ranked_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = Index.build([Tool(namespace=f"s{number}", name="search", description="Search.") for number in range(300)])
    rank = Mock(wraps=ranking.rank)
    monkeypatch.setattr(engine, "rank", rank)
    hits = search(index, SearchRequest(queries=("s-e-a-r-c-h,SeArCh",))).hits
    assert [hit.tool.name for hit in hits if hit.named] == ["search"] * 5
    assert rank.call_count < 10


def test_a_query_of_many_names_takes_time_in_proportion_to_their_number() -> None:
    index = Index.build([_tool("forge", f"do_thing_{number}") for number in range(250)])
    half, whole = (cpu_s(index, ",".join(f"do_thing_{number}" for number in range(count))) for count in (125, 250))
    assert whole <= MAX_GROWTH * max(half, FLOOR_S)
