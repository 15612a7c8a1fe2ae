"""The surface `search`, through an MCP client in memory."""

import json
import time
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import mcp
import mcp_types
import pytest
from mcp.shared.exceptions import MCPError

from toolcrib.app import App
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.settings.options import LocalOptions, Settings
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running, text_of
from toolcrib.tokens import estimate_tokens
from toolcrib.types import (
    Action,
    Caller,
    Context,
    Decision,
    Hit,
    Object,
    Policy,
    SearchRequest,
    ServerInfo,
    ServerState,
    Tool,
    ToolResult,
    Visibility,
)

pytestmark = pytest.mark.anyio

MAIL: dict[str, Any] = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "subject": {"type": "string"}, "name": {"type": "string"}},
    "required": ["to"],
}


def mail() -> FakeProvider:
    tools = [
        Tool(name="send_email", namespace="mail", description="Send an email to a recipient", input_schema=MAIL),
        Tool(
            name="list_folders",
            namespace="mail",
            description="List the folders of the mailbox",
            annotations={"readOnlyHint": True},
            tags=("personal", "storage"),
        ),
    ]
    info = ServerInfo(name="mail", instructions="Mail for everyone. Second sentence.")
    return FakeProvider(tools, status=ready("mail", tools=2, info=info))


def down() -> FakeProvider:
    return FakeProvider([], status=ready("git", state=ServerState.FAILED, reason="exited with code 1"))


async def call(client: mcp.Client, name: str, arguments: Any) -> mcp_types.CallToolResult:
    result = await client.call_tool(name, arguments)
    assert isinstance(result, mcp_types.CallToolResult)
    return result


def structured(result: mcp_types.CallToolResult) -> Any:
    return result.structured_content


async def test_with_meta_only_native_tools_are_found_but_not_listed() -> None:
    lever = Tool(name="lever", namespace="x", description="Pull a lever", visibility=Visibility.NATIVE)
    options = SurfaceOptions(meta_only=True, always_visible=("x:lever",))
    async with running(FakeSource(FakeProvider([lever]))) as gateway, connect(gateway, options) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["tool_search", "execute_tool"]
        found = structured(await call(client, "tool_search", {"query": "pull a lever"}))
        assert [hit["name"] for hit in found["hits"]] == ["x:lever"]


async def test_a_client_sees_the_meta_tools_with_titles_and_annotations() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == ["tool_search", "execute_tool", "read_tool"]
    assert [tool.title for tool in tools] == ["Search tools", "Execute a tool", "Call a read-only tool"]
    assert tools[2].annotations is not None
    assert tools[2].annotations.read_only_hint is True
    assert tools[0].annotations is not None
    assert tools[0].annotations.read_only_hint is True
    assert tools[1].annotations is not None
    assert tools[1].annotations.destructive_hint is True
    assert tools[1].input_schema["properties"]["arguments"]["type"] == "object"


async def test_read_tool_runs_only_tools_that_say_that_they_only_read() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        read = await call(client, "read_tool", {"name": "mail:list_folders"})
        refused = await call(client, "read_tool", {"name": "mail:send_email", "arguments": {"to": "a@b.c"}})
    assert not read.is_error
    assert refused.is_error
    assert "mail:send_email does not say that it only reads" in text_of(refused)
    assert "Call it with execute_tool." in text_of(refused)


async def test_read_tool_is_listed_only_where_it_is_wanted_and_of_use() -> None:
    for provider, options in ((mail(), SurfaceOptions(read_tool=False)), (FakeProvider([Tool(name="a")]), None)):
        async with running(FakeSource(provider)) as gateway, connect(gateway, options) as client:
            assert "read_tool" not in [tool.name for tool in (await client.list_tools()).tools]


@pytest.mark.parametrize("surface", ["search", "dynamic", "progressive"])
async def test_clients_load_the_meta_tools_at_once_and_see_which_arguments_are_optional(surface: str) -> None:
    options = SurfaceOptions(surfaces=(surface,), call_many=True, summary=True)
    async with running(FakeSource(mail())) as gateway, connect(gateway, options) as client:
        tools = (await client.list_tools()).tools
    for tool in tools:
        assert tool.meta is not None
        assert tool.meta["anthropic/alwaysLoad"] is True
        for name, schema in tool.input_schema["properties"].items():
            assert schema.get("nullable", False) is (name not in tool.input_schema.get("required", ())), (tool, name)
    sizes = {tool.name: (tool.meta or {}).get("anthropic/maxResultSizeChars") for tool in tools}
    assert surface != "search" or sizes.pop("tool_search") == 100_000
    assert set(sizes.values()) == {None}


async def test_optional_arguments_of_meta_tools_may_be_null() -> None:
    nothing = dict.fromkeys(("max_results", "namespace", "tags", "read_only", "group", "detail", "budget", "cursor"))
    for surface, name in (("search", "tool_search"), ("dynamic", "search_tools")):
        arguments = {"query": "list folders", **(nothing if surface == "search" else {"limit": None})}
        async with running(FakeSource(mail())) as gateway:
            async with connect(gateway, SurfaceOptions(surfaces=(surface,))) as client:
                found = await call(client, name, arguments)
        assert "mail:list_folders" in text_of(found)


async def test_search_text_is_a_json_array_with_name_description_score_and_schema_first() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", {"query": "send an email", "max_results": 1})
    assert isinstance(result.content[0], mcp_types.TextContent)
    (hit,) = json.loads(result.content[0].text)
    assert list(hit)[:4] == ["name", "description", "score", "input_schema"]
    assert hit["name"] == "mail:send_email"
    assert 0 < hit["score"] <= 1
    assert hit["input_schema"] == MAIL
    assert structured(result) == {"hits": [hit], "unmatched": [], "servers": [], "note": ""}
    counts = (result.meta or {})["toolcrib/tokens"]
    cost = estimate_tokens(result.content[0].text)
    assert counts == {"reply": cost, "full": counts["full"], "counter": "estimate", "of": "text"}
    assert cost <= counts["full"] <= cost + 4


async def test_the_example_of_a_hit_can_be_executed_unchanged() -> None:
    item = {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": item}}, "required": ["items"]}
    shop = FakeProvider([Tool(name="order", namespace="shop", description="Order some items", input_schema=schema)])
    async with running(FakeSource(shop)) as gateway, connect(gateway) as client:
        hit = structured(await call(client, "tool_search", {"query": "order items"}))["hits"][0]
        assert hit["example"] == {"name": "shop:order", "arguments": {"items": [{"sku": "sku"}]}}
        assert not (await call(client, "execute_tool", hit["example"])).is_error


async def test_a_query_without_matches_returns_an_empty_array_and_advice() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", {"query": "blockchain"})
    assert isinstance(result.content[0], mcp_types.TextContent)
    assert json.loads(result.content[0].text) == []
    assert structured(result)["unmatched"] == ["blockchain"]
    assert "Nothing fits" in structured(result)["note"]
    assert not result.is_error


async def test_a_failing_server_is_named_with_its_reason_in_the_reply() -> None:
    async with running(FakeSource(mail(), down())) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", {"query": "send an email"})
    assert structured(result)["servers"] == [{"name": "git", "state": "failed", "reason": "exited with code 1"}]
    assert "git has failed: exited with code 1" in text_of(result)


@pytest.mark.parametrize("arguments", [{}, {"namespace": "git"}])
async def test_a_search_says_that_there_is_nothing_to_search_when_every_server_failed(arguments: Object) -> None:
    others = [] if not arguments else [mail()]
    async with running(FakeSource(down(), *others)) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", {"query": "commit my changes", **arguments})
    assert text_of(result) == "[]\nThere are no tools to search.\nServer git has failed: exited with code 1"
    assert structured(result)["unmatched"] == []


async def test_a_reply_says_how_old_the_tools_of_a_server_are_that_cannot_be_reached() -> None:
    as_of = time.time() - 2.5 * 3600
    tools = [Tool(name="commit", namespace="git", description="Commit changes.")]
    status = ready("git", state=ServerState.DEGRADED, reason="no such file", stale=True, cached=True, as_of=as_of)
    async with running(FakeSource(FakeProvider(tools, status=status))) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", {"query": "commit changes"})
    assert structured(result)["hits"][0]["name"] == "git:commit"
    assert "Server git is degraded: no such file; its tools are 2 hours old" in text_of(result)
    (entry,) = structured(result)["servers"]
    assert entry == {"name": "git", "state": "degraded", "reason": "no such file", "stale": True, "as_of": as_of}


async def test_no_query_lists_every_tool_page_by_page() -> None:
    provider = FakeProvider([Tool(name=f"t{number:02}", namespace="x") for number in range(30)])
    options = GatewayOptions(page_size=20, search_wait_s=0, list_wait_s=0)
    async with running(FakeSource(provider), options=options) as gateway, connect(gateway) as client:
        first = structured(await call(client, "tool_search", {}))
        rest = structured(await call(client, "tool_search", {"cursor": first["cursor"]}))
    assert [hit["name"] for hit in (*first["hits"], *rest["hits"])] == [f"x:t{number:02}" for number in range(30)]


async def test_a_search_that_says_how_much_to_show_can_be_continued() -> None:
    provider = FakeProvider(
        [Tool(name=f"send_{number:02}", namespace="x", description="Send it.") for number in range(9)]
    )
    async with running(FakeSource(provider)) as gateway, connect(gateway) as client:
        first = structured(await call(client, "tool_search", {"query": "send", "max_results": 5, "detail": "summary"}))
        rest = await call(client, "tool_search", {"query": "send", "cursor": first["cursor"]})
        plain = await call(client, "tool_search", {"query": "send"})
    names = [hit["name"] for hit in (*first["hits"], *structured(rest)["hits"])]
    assert sorted(names) == [f"x:send_{number:02}" for number in range(9)]
    assert "cursor" not in structured(rest)
    assert "cursor" not in text_of(plain)


@pytest.mark.parametrize("limit", [0, -1, 1_000_000, "3", "ten", 2.7, None, True])
async def test_no_limit_is_an_error(limit: Any) -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", {"query": "email folder", "max_results": limit})
    assert not result.is_error
    assert structured(result)["hits"]


@pytest.mark.parametrize(
    ("arguments", "taught"),
    [
        ({"q": "email"}, "query"),
        ({"qurey": "email"}, "query"),
        ({"query": "email", "namespace": 5}, "name of a server"),
        ({"query": "email", "namespace": "mial"}, "mail"),
        ({"query": "email", "tags": 5}, "a string or a list of strings"),
        ({"query": "email", "tags": ["personl"]}, "personal"),
        ({"query": "email", "read_only": "maybe"}, "read_only must be true or false"),
        ({"query": "email", "group": 1}, "group must be true or false"),
        ({"query": "email", "cursor": "x"}, "cursor"),
        ({"cursor": "x"}, "cursor"),
    ],
)
async def test_a_wrong_argument_is_explained_rather_than_ignored(arguments: Any, taught: str) -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", arguments)
    assert result.is_error
    assert taught in text_of(result)


@pytest.mark.parametrize(
    "narrowed",
    [
        {"tags": "personal"},
        {"tags": ["personal", "storage"]},
        {"read_only": True},
        {"read_only": "true"},
        {"namespace": "mail", "tags": [], "read_only": True},
    ],
)
@pytest.mark.parametrize("query", ["mailbox email folders", ""])
async def test_searches_and_lists_use_the_same_filters(narrowed: Any, query: str) -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", {"query": query, **narrowed})
    assert [hit["name"] for hit in structured(result)["hits"]] == ["mail:list_folders"]


async def test_a_flag_that_is_false_narrows_nothing() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        asked = {"query": "", "read_only": False, "group": False, "tags": [], "namespace": ""}
        assert len(structured(await call(client, "tool_search", asked))["hits"]) == 2


async def test_several_needs_have_separate_results() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        hits = structured(await call(client, "tool_search", {"needs": ["send an email", "list the folders"]}))["hits"]
    best: dict[str, str] = {}
    for hit in hits:
        best.setdefault(hit["query"], hit["name"])
    assert best == {"send an email": "mail:send_email", "list the folders": "mail:list_folders"}


def near_duplicates() -> FakeProvider:
    texts = {"a": "Send an email to a person.", "b": "Send an email to someone, by mail."}
    return FakeProvider([Tool(name="send_email", namespace=name, description=text) for name, text in texts.items()])


@pytest.mark.parametrize(
    ("usual", "asked", "grouped"),
    [(False, {}, 0), (False, {"group": True}, 1), (True, {}, 1), (True, {"group": False}, 0)],
)
async def test_near_duplicates_are_grouped_by_the_request_or_else_the_settings(
    usual: bool, asked: Any, grouped: bool
) -> None:
    options = GatewayOptions(search_wait_s=0, list_wait_s=0, group=usual)
    async with running(FakeSource(near_duplicates()), options=options) as gateway, connect(gateway) as client:
        hits = structured(await call(client, "tool_search", {"query": "send an email", **asked}))["hits"]
    assert [len(hit.get("similar", ())) for hit in hits] == ([1] if grouped else [0, 0])


async def answer_with_server(server: str, ctx: Context, name: str, arguments: Object) -> ToolResult:
    return ToolResult(content=({"type": "text", "text": f"{server}:{name}"},))


def two_accounts() -> list[FakeProvider]:
    """Two servers with the same tools."""
    return [
        FakeProvider(
            [
                Tool(name="send_email", namespace=name, description="Send an email to a recipient", input_schema=MAIL),
                *(Tool(name=f"email_{n}", namespace=name, description=f"Email of kind {n}") for n in range(8)),
            ],
            partial(answer_with_server, name),
            status=ready(name),
        )
        for name in ("home", "work")
    ]


async def test_the_same_tool_of_two_servers_is_one_entry_with_both_names() -> None:
    async with running(FakeSource(*two_accounts())) as gateway, connect(gateway) as client:
        hits = structured(await call(client, "tool_search", {"query": "send an email"}))["hits"]
        names = [hits[0]["name"], *hits[0]["similar"]]
        assert "input_schema" in hits[0]
        for name in names:
            result = await call(client, "execute_tool", {"name": name, "arguments": {"to": "ann"}})
            assert text_of(result) == name
    assert sorted(names) == ["home:send_email", "work:send_email"]
    assert len({hit["name"].partition(":")[2] for hit in hits}) == len(hits)


@pytest.mark.parametrize("more", [{"group": False}, {"detail": "full"}, {"budget": 5_000}])
async def test_a_search_that_asks_for_everything_has_an_entry_for_each_server(more: dict[str, Any]) -> None:
    async with running(FakeSource(*two_accounts())) as gateway, connect(gateway) as client:
        hits = structured(await call(client, "tool_search", {"query": "send an email", **more}))["hits"]
    assert {hit["name"] for hit in hits} >= {"home:send_email", "work:send_email"}
    assert not any("similar" in hit for hit in hits)


async def test_a_server_that_a_caller_may_not_see_is_named_in_no_entry() -> None:
    policy = ByScopes([Rule(tools=("work:*",), effect="hide")])
    async with running(FakeSource(*two_accounts()), policy=policy) as gateway, connect(gateway) as client:
        assert "work" not in text_of(await call(client, "tool_search", {"query": "send an email"}))


@pytest.mark.parametrize(
    ("usual", "asked", "lowered"),
    [
        (800, {}, True),
        (800, {"budget": 20_000}, False),
        (800, {"budget": 0}, False),
        (800, {"budget": "20000"}, False),
        (800, {"budget": "much"}, True),
        (0, {}, False),
        (0, {"budget": 800}, True),
    ],
)
async def test_a_request_may_set_its_own_budget(usual: int, asked: Any, lowered: bool) -> None:
    options = SurfaceOptions(reply_tokens=usual)
    async with running(FakeSource(FakeProvider(large(10)))) as gateway, connect(gateway, options) as client:
        result = await call(client, "tool_search", {"query": "read file", **asked})
    assert ("to see its schema" in structured(result)["note"]) is lowered
    counts = (result.meta or {})["toolcrib/tokens"]
    assert (counts["reply"] < counts["full"]) is lowered


async def test_replies_can_be_text_only_unless_a_program_says_what_it_wants() -> None:
    options = SurfaceOptions(structured_replies=False)
    async with running(FakeSource(mail())) as gateway, connect(gateway, options) as client:
        plain = await call(client, "tool_search", {"query": "send an email"})
        asked = await call(client, "tool_search", {"query": "send an email", "budget": 0})
    assert plain.structured_content is None
    assert json.loads(text_of(plain).splitlines()[0])[0]["name"] == "mail:send_email"
    assert structured(asked)["hits"][0]["name"] == "mail:send_email"


async def test_no_request_may_ask_for_more_than_the_largest_budget() -> None:
    async with running(FakeSource(FakeProvider(large(90)))) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", {"query": "read file", "max_results": 90, "budget": 10**9})
    counts = (result.meta or {})["toolcrib/tokens"]
    assert 15_000 < counts["reply"] <= 20_000 < counts["full"]


async def test_the_settings_choose_the_token_counter() -> None:
    options = SurfaceOptions(tokens="o200k_base")
    async with running(FakeSource(mail())) as gateway, connect(gateway, options) as client:
        result = await call(client, "tool_search", {"query": "send an email"})
    assert (result.meta or {})["toolcrib/tokens"]["counter"] == "o200k_base"


async def test_a_query_without_words_lists_like_no_query() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        listed = structured(await call(client, "tool_search", {}))
        assert structured(await call(client, "tool_search", {"query": " ?!? "})) == listed


def large(count: int) -> list[Tool]:
    parameters = {f"parameter_{number}": {"type": "string", "description": "Words. " * 20} for number in range(9)}
    schema = {"type": "object", "properties": parameters}
    return [Tool(name=f"read_{number:02}", description="Read a file", input_schema=schema) for number in range(count)]


async def test_a_reply_keeps_its_budget_by_showing_less_of_the_last_hits() -> None:
    async with running(FakeSource(FakeProvider(large(10)))) as gateway, connect(gateway) as client:
        result = await call(client, "tool_search", {"query": "read file", "budget": 2_500})
    reply = structured(result)
    shown = [len(json.dumps(hit)) // 100 for hit in reply["hits"]]
    assert len(shown) == 10
    assert shown == sorted(shown, reverse=True)
    assert 2 * shown[-1] < shown[0]
    assert estimate_tokens(text_of(result)) <= 2_500
    assert reply["note"] == "Search for a name to see its schema."


async def test_detail_decides_how_much_of_a_tool_is_shown() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        shown = {
            detail: structured(await call(client, "tool_search", {"query": "send email", "detail": detail}))["hits"][0]
            for detail in ("summary", "signature", "full")
        }
        wrong = await call(client, "tool_search", {"query": "send email", "detail": "huge"})
    assert "input_schema" not in shown["summary"]
    assert shown["signature"]["signature"].startswith("send_email(") or "send_email(" in shown["signature"]["signature"]
    assert "input_schema" in shown["full"]
    assert wrong.is_error
    assert "summary, signature, full" in text_of(wrong)


@pytest.mark.parametrize(
    "envelope",
    [
        {"name": "mail:send_email", "arguments": {"to": "a@b.c"}},
        {"tool_name": "mail:send_email", "parameters": {"to": "a@b.c"}},
        {"name": "mail:send_email", "arguments": '{"to": "a@b.c"}'},
        {"name": "mail:send_email", "to": "a@b.c"},
        {"name": "mail__send_email", "arguments": {"arguments": {"to": "a@b.c"}}},
        {"name": "execute_tool", "arguments": {"name": "mail:send_email", "arguments": {"to": "a@b.c"}}},
    ],
)
async def test_execute_accepts_every_form_that_models_use(envelope: Any) -> None:
    provider = mail()
    async with running(FakeSource(provider)) as gateway, connect(gateway) as client:
        assert not (await call(client, "execute_tool", envelope)).is_error
    assert provider.calls == [("send_email", {"to": "a@b.c"})]


async def test_a_parameter_called_name_is_reached_through_the_nested_form() -> None:
    provider = mail()
    async with running(FakeSource(provider)) as gateway, connect(gateway) as client:
        nested = {"name": "mail:send_email", "arguments": {"to": "a@b.c", "name": "Ann"}}
        assert not (await call(client, "execute_tool", nested)).is_error
    assert provider.calls == [("send_email", {"to": "a@b.c", "name": "Ann"})]


async def test_a_mistake_is_explained_in_the_result() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        unknown = await call(client, "execute_tool", {"name": "mail:send_emial", "arguments": {}})
        wrong = await call(client, "execute_tool", {"name": "mail:send_email", "arguments": {"subject": 3}})
        nameless = await call(client, "execute_tool", {"arguments": {}})
    assert unknown.is_error
    assert structured(unknown)["error"]["code"] == "tool_not_found"
    assert structured(unknown)["error"]["suggestions"] == ["mail:send_email"]
    assert wrong.is_error
    assert structured(wrong)["error"]["code"] == "invalid_arguments"
    assert "to" in text_of(wrong)
    assert "send_email(" in text_of(wrong)
    assert nameless.is_error
    assert "needs the name" in text_of(nameless)


async def test_a_result_passes_through_whole() -> None:
    whole = ToolResult(
        content=(
            {"type": "text", "text": "hi", "annotations": {"audience": ["user"], "priority": 0.5}},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
        ),
        structured={"a": [1, None, {"b": 2.5}]},
        is_error=True,
        meta={"com.example/trace": "x"},
    )

    async def answer(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return whole

    provider = FakeProvider([Tool(name="act")], answer)
    async with running(FakeSource(provider)) as gateway, connect(gateway) as client:
        result = await call(client, "execute_tool", {"name": "act"})
    wire = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert tuple(wire["content"]) == whole.content
    assert wire["structuredContent"] == whole.structured
    assert wire["isError"] is True
    assert wire["_meta"]["com.example/trace"] == "x"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_structured_value_other_than_an_object_reaches_every_version(mode: str) -> None:
    async def answer(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "[1]"},), structured=[1])

    provider = FakeProvider([Tool(name="act")], answer)
    async with running(FakeSource(provider)) as gateway, connect(gateway, mode=mode) as client:
        result = await call(client, "execute_tool", {"name": "act"})
    assert structured(result) == ({"result": [1]} if mode == "legacy" else [1])


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
async def test_a_block_that_no_version_knows_arrives_as_text(mode: str) -> None:
    async def answer(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "hologram", "data": "x"}, {"type": "text", "text": 3}))

    provider = FakeProvider([Tool(name="act")], answer)
    async with running(FakeSource(provider)) as gateway, connect(gateway, mode=mode) as client:
        result = await call(client, "execute_tool", {"name": "act"})
    assert '"hologram"' in text_of(result)


async def test_always_visible_tools_are_listed_and_called_by_name() -> None:
    options = SurfaceOptions(always_visible=("mail:send_email", "no:such"))
    async with running(FakeSource(mail())) as gateway, connect(gateway, options) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await call(client, "mail__send_email", {"to": "a@b.c"})
    assert names == ["tool_search", "execute_tool", "read_tool", "mail__send_email"]
    assert not result.is_error


async def test_a_name_that_does_not_exist_is_a_protocol_error_with_suggestions() -> None:
    async with running(FakeSource(mail())) as gateway, connect(gateway) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("mail__send_emial", {})
    assert refused.value.code == mcp_types.INVALID_PARAMS
    assert "mail:send_email" in refused.value.message


@pytest.mark.parametrize("masked", [True, False])
async def test_a_provider_that_raises_leaks_nothing_to_the_client_if_errors_are_masked(masked: bool) -> None:
    async def fail(ctx: Context, name: str, arguments: Object) -> ToolResult:
        raise RuntimeError("hunter2 was refused")

    app = App(Settings(local=LocalOptions(mask_errors=masked)))
    app.add_provider(FakeProvider([Tool(name="act")], fail))
    async with app, mcp.Client(app.server) as client:
        result = await call(client, "execute_tool", {"name": "act"})
    assert result.is_error
    assert ("hunter2" in result.model_dump_json()) is not masked


class Ours:
    """A policy that shows only tools of the namespace `mail`."""

    def scope(self, caller: Caller) -> Hashable:
        return None

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        return Decision.ALLOW if tool.namespace == "mail" else Decision.HIDE


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "send an email", "group": True},
        {"query": ["send an emial", "secret lever"], "budget": 300},
        {"query": "secret"},
        {"query": "email", "tags": "secret"},
        {"query": "email", "namespace": "rival"},
        {"query": ""},
    ],
)
async def test_hidden_tools_change_no_reply_and_no_count(arguments: Any) -> None:
    theirs = [
        Tool(name="send_email", namespace="rival", description="Send an email to a recipient", tags=("secret",)),
        Tool(name="secret_lever", namespace="rival", description="Send an email.", tags=("secret",)),
    ]
    me, results = Context(caller=Caller(id="me")), []
    for providers in ((mail(),), (mail(), FakeProvider(theirs, status=ready("rival", tools=2)))):
        async with running(FakeSource(*providers), policy=Ours()) as gateway:
            results.append(await make_facade(gateway, SurfaceOptions()).call(me, "tool_search", arguments))
    assert results[0] == results[1]


# -- providers that search by themselves -------------------------------------------------------------------------------


class Finder(FakeProvider):
    """A provider with its own search."""

    def __init__(self, *listed: Tool, namespace: str = "") -> None:
        super().__init__(list(listed))
        self.namespace = namespace

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        return ()


async def listed(*providers: FakeProvider, policy: Policy | None = None) -> list[str]:
    async with running(FakeSource(*providers), policy=policy) as gateway, connect(gateway) as client:
        return [tool.name for tool in (await client.list_tools()).tools]


META = ["tool_search", "execute_tool"]
LEVER = Tool(name="lever", namespace="x", visibility=Visibility.NATIVE)


@pytest.mark.parametrize("namespace", ["", "post"])
async def test_search_is_offered_if_a_provider_has_its_own_search(namespace: str) -> None:
    assert await listed(Finder(namespace=namespace)) == META
    assert await listed(FakeProvider([])) == []


@pytest.mark.parametrize("namespace", ["", "post"])
async def test_search_is_not_offered_to_callers_that_could_find_nothing(namespace: str) -> None:
    nothing, mail = ByScopes([], default="hide"), ByScopes([Rule(tools=("x:*",))], default="hide")
    assert await listed(Finder(namespace=namespace), policy=nothing) == []
    assert await listed(Finder(namespace=namespace), FakeProvider([LEVER]), policy=mail) == ["x__lever"]


@pytest.mark.parametrize("namespace", ["", "x"])
async def test_search_is_offered_to_callers_that_see_a_searching_providers_tool(namespace: str) -> None:
    policy = ByScopes([Rule(tools=("x:*",))], default="hide")
    assert await listed(Finder(LEVER, namespace=namespace), policy=policy) == [*META, "x__lever"]


async def test_search_is_offered_to_callers_that_may_see_the_namespace_of_unknown_tools() -> None:
    policy = ByScopes([Rule(tools=("post:*",))], default="hide")
    assert await listed(Finder(namespace="post"), policy=policy) == META


async def test_a_searching_request_provider_offers_search_for_its_request_only() -> None:
    async with running(FakeSource(FakeProvider([LEVER]))) as gateway:
        facade = make_facade(gateway, SurfaceOptions())
        me = Context(caller=Caller(id="me"))
        for ctx, names in ((me, ["x__lever"]), (me.with_providers(Finder()), [*META, "x__lever"]), (me, ["x__lever"])):
            assert [entry.name for entry in (await facade.page(ctx)).items] == names


async def search_reply(app: App, **arguments: Any) -> ToolResult:
    return await app.facade.call(app.local_context(), "tool_search", arguments)


def shop(*namespaces: str) -> App:
    app = App()
    for number in range(30):
        space = namespaces[number % len(namespaces)] if namespaces else ""
        app.register(Tool(name=f"tool_{number}", namespace=space, description=f"Does thing {number}."), lambda: 1)
    return app


@pytest.mark.parametrize("query", ["z" * 20_000, " ".join(f"blarg{number}" for number in range(2_000))])
async def test_a_reply_does_not_repeat_a_long_query(query: str) -> None:
    reply = await search_reply(shop(), query=query)
    assert not reply.is_error
    assert estimate_tokens(reply.text) <= 800
    assert len(json.dumps(reply.structured)) < 2_000


async def test_an_unknown_namespace_is_met_with_similar_names_only() -> None:
    app = shop("github", "gitlab", "mail", "calendar", "weather", "files")
    with_git = await search_reply(app, query="thing", namespace="git")
    assert with_git.is_error
    assert all(name in with_git.text for name in ("github", "gitlab"))
    assert not any(name in with_git.text for name in ("mail", "calendar", "weather", "files"))
    nothing = await search_reply(app, query="thing", namespace="zebra")
    assert "Leave namespace out to search all." in nothing.text
    assert "github" not in nothing.text


async def test_unknown_arguments_beside_a_query_are_ignored_and_alone_refused() -> None:
    app = shop()
    for name in ("limit", "top_k", "k", "max_results"):
        reply = await search_reply(app, query="thing", fuzzy=True, **{name: 3})
        assert (reply.is_error, len(reply.structured["hits"])) == (False, 3)
    alone = await search_reply(app, text="thing")
    assert alone.is_error
    assert "tool_search has no parameter 'text'" in alone.text


async def test_a_list_has_more_tools_than_a_search() -> None:
    app = shop()
    assert len((await search_reply(app)).structured["hits"]) == 30
    (tool,) = [e.tool for e in (await app.facade.page(app.local_context())).items if e.tool.name == "tool_search"]
    assert "default 10; of a list, 100" in tool.input_schema["properties"]["max_results"]["description"]
