"""Behaviour of the discovery package beyond its document, row by row: what is the same here, and what was fixed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import mcp
import pytest
from mcp.server import MCPServer
from tests.reference.support import ME, META, TIERS, call, execute, found, hits, ids, names, scores, text_in

from toolcrib import (
    App,
    Context,
    ExecutionFailed,
    Tool,
    ToolMetadata,
    ToolNotFound,
    get_tool_providers,
    new_tool,
    with_request_providers,
    with_tool_providers,
)
from toolcrib.errors import BackendNotFound, NameCollision
from toolcrib.fields import Array, Object, String
from toolcrib.registry import ToolRegistry

pytestmark = pytest.mark.anyio


@dataclass
class Provider:
    """Tools of these names; a call returns `value`, or raises it."""

    names: tuple[str, ...] = ("lamp",)
    description: str = "Switch the lamp"
    value: Any = "done"
    listing: Exception | None = None

    async def list_tools(self, ctx: Context) -> list[Tool]:
        if self.listing is not None:
            raise self.listing
        return [Tool(name=name, description=self.description) for name in self.names]

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value if name in self.names else None


def said(text: str) -> Any:
    return lambda: text


# -- types and registration ----------------------------------------------------------------------------------------


async def test_the_same_name_again_replaces_the_tool_with_an_event_or_is_refused_when_strict() -> None:
    registry, received = ToolRegistry(), list[str]()
    registry.register_tool(new_tool("lamp", "Old"), said("old"))
    registry.subscribe(lambda: received.append("changed"))
    registry.register_tool(new_tool("lamp", "New"), said("new"))
    assert [tool.description for tool in await registry.list_tools(ME)] == ["New"]
    assert (await registry.execute("lamp")).content[0]["text"] == "new"
    assert received == ["changed"]
    with pytest.raises(NameCollision):
        registry.app.register(Tool(name="lamp", description="Newest"), said("newest"), strict=True)


def test_white_space_of_a_description_becomes_single_spaces() -> None:
    assert new_tool("a", " one\n\ttwo   three ").to_tool().description == "one two three"


def test_the_builders_schemas_are_closed_objects_and_free_ones_stay_free() -> None:
    schema = new_tool("a", "", Object("any"), Array("list", items="string")).to_tool().input_schema
    assert (schema["type"], schema["additionalProperties"], "required" in schema) == ("object", False, False)
    assert schema["properties"]["any"] == {"type": "object", "additionalProperties": True}
    assert schema["properties"]["list"] == {"type": "array", "items": {"type": "string"}}
    assert new_tool("a", "", String("b", required=True)).to_tool().input_schema["required"] == ["b"]


class Odd(ToolNotFound):
    """Not the error itself, but a subclass."""


async def test_a_missing_tool_is_reported_by_none_or_by_any_error_of_its_kind() -> None:
    for value in (None, ToolNotFound("No such tool."), Odd("No such tool.")):
        registry = ToolRegistry()
        registry.add_provider(Provider(value=value))
        async with mcp.Client(App().server) as client:
            with with_request_providers(registry):
                result = await execute(client, "lamp")
        assert (result.is_error, result.structured_content is not None) == (True, True)


async def test_removing_a_provider_goes_by_identity_and_reports_an_unknown_one() -> None:
    one, twin, registry = Provider(), Provider(), ToolRegistry()
    registry.add_provider(one)
    with pytest.raises(BackendNotFound):
        registry.remove_provider(twin)
    registry.remove_provider(one)
    assert await ids(registry) == []


def test_request_providers_add_to_those_that_are_there() -> None:
    one, two = Provider(), Provider()
    with with_request_providers(one), with_request_providers(two):
        assert get_tool_providers() == (one, two)


async def test_a_registry_as_a_provider_offers_its_providers_tools_too() -> None:
    inner, outer = ToolRegistry(), ToolRegistry()
    inner.register_tool(new_tool("own"), said("own"))
    inner.add_provider(Provider())
    outer.add_provider(inner)
    assert await ids(outer) == ["lamp", "own"]
    assert (await outer.execute("lamp")).content[0]["text"] == "done"


async def test_a_registry_that_contains_itself_never_asks_itself_endlessly() -> None:
    one, two = ToolRegistry(), ToolRegistry()
    one.add_provider(two)
    two.add_provider(one)
    two.register_tool(new_tool("far"), said("far"))
    with anyio.fail_after(5), with_request_providers(one, two):
        with pytest.raises(ToolNotFound):
            await one.execute("absent")
        assert (await one.execute("far")).content[0]["text"] == "far"


# -- search --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "keyword", "query", "score"),
    [
        pytest.param("send_email", "email", "  EMAIL ", 0.85, id="case-and-space"),
        pytest.param("send_email", "email", "send email", 0.7875, id="all-words-met: 0.9 of the mean"),
        pytest.param("send_email", "email", "send invoice", 0.225, id="some-words-met: the mean times their share"),
        pytest.param("database", "x", "databse", 0.6125, id="fuzzy-name"),
        pytest.param("report", "x", "reprot", 0.467, id="fuzzy-name-two-slips"),
        pytest.param("thing", "database", "databse", 0.525, id="fuzzy-keyword"),
        pytest.param("über_straße", "x", "über_strase", 0.7 * (1 - 1 / 11), id="lengths-in-characters"),
    ],
)
async def test_figures_of_the_tiers(tool: str, keyword: str, query: str, score: float) -> None:
    registry = ToolRegistry(TIERS)
    registry.register_tool(new_tool(tool), said("x"), keyword)
    assert await scores(registry, query) == {tool: pytest.approx(score, abs=0.001)}


@pytest.mark.parametrize(("typo", "tool"), [("kuberntes", "kubernetes_deploy"), ("emial", "send_email")])
@pytest.mark.parametrize("settings", [None, TIERS])
async def test_typos_that_the_package_could_not_correct_are_corrected(typo: str, tool: str, settings: Any) -> None:
    registry = ToolRegistry(settings)
    registry.register_tool(new_tool(tool), said("x"))
    registry.register_tool(new_tool("unrelated"), said("x"))
    assert next(iter(await scores(registry, typo))) == tool


async def test_an_empty_query_lists_every_tool_by_name() -> None:
    registry = ToolRegistry()
    for name in ("beta", "alpha"):
        registry.register_tool(new_tool(name), said(name))
    assert list(await scores(registry, "  ")) == ["alpha", "beta"]


async def test_equal_scores_are_ordered_by_name() -> None:
    registry = ToolRegistry(TIERS)
    for name in ("mail_b", "mail_a", "mail_c"):
        registry.register_tool(new_tool(name), said(name))
    assert list(await scores(registry, "mail")) == ["mail_a", "mail_b", "mail_c"]


# -- precedence ----------------------------------------------------------------------------------------------------


async def test_of_two_tools_of_one_name_only_the_one_that_would_be_called_is_found() -> None:
    registry = ToolRegistry()
    registry.register_tool(new_tool("lamp", "Describe the weather"), said("registered"))
    registry.add_provider(Provider(description="Switch the lamp in the kitchen"))
    assert list(await scores(registry, "kitchen")) == []
    assert (await registry.execute("lamp")).content[0]["text"] == "registered"


async def test_a_failing_provider_is_skipped_by_the_others_and_named_in_the_reply() -> None:
    app = App()
    app.add_provider(Provider(listing=RuntimeError("a secret")))
    app.add_provider(Provider(("fan",), "Switch the fan"))
    async with mcp.Client(app.server) as client:
        result = await call(client, "tool_search", {"query": "switch the fan"})
        assert [hit["name"] for hit in await hits(client, "switch the fan")] == ["fan"]
    assert result.structured_content is not None
    assert [server["state"] for server in result.structured_content["servers"]] == ["failed"]
    assert "secret" not in str(result)


class Halved:
    """A provider with one tool that cannot be described."""

    async def list_tool_metadata(self, ctx: Context) -> list[ToolMetadata]:
        return [ToolMetadata(name="whole"), ToolMetadata(name="broken")]

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        if name == "broken":
            raise OSError("no disk")
        return Tool(name=name)

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> str:
        return name


async def test_a_tool_that_cannot_be_described_is_left_out_and_the_others_stay() -> None:
    registry = ToolRegistry()
    registry.add_provider(Halved())
    assert await ids(registry) == ["whole"]


async def test_a_request_can_override_a_shared_tool_when_it_says_so() -> None:
    app = App()
    app.register(new_tool("lamp"), said("shared"))
    for override, text in ((False, "shared"), (True, "done")):
        with with_tool_providers(Provider(), override=override):
            assert (await app.call("lamp")).content[0]["text"] == text


# -- the meta-tools ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({}, 10),
        ({"max_results": 3}, 3),
        ({"max_results": "3"}, 3),
        ({"max_results": 2.9}, 2),
        ({"max_results": "many"}, 10),
        ({"max_results": 1000}, 100),
        ({"max_results": -5}, 1),
    ],
)
async def test_max_results_is_ten_and_at_most_a_hundred_and_never_an_error(asked: dict[str, Any], count: int) -> None:
    app = App()
    app.add_provider(Provider(tuple(f"lamp_{number:03}" for number in range(120))))
    async with mcp.Client(app.server) as client:
        assert len(await found(client, "switch the lamp", **asked)) == count


@pytest.mark.parametrize("query", [5, None, ["lamp"], ""])
async def test_a_query_that_is_not_text_is_converted_if_possible(query: Any) -> None:
    app = App()
    app.add_provider(Provider())
    async with mcp.Client(app.server) as client:
        result = await call(client, "tool_search", {"query": query})
    assert result.is_error is False


async def test_no_hit_is_an_answer_that_says_what_to_try_and_no_error() -> None:
    registry = ToolRegistry()
    registry.register_tool(new_tool("lamp", "Switch the lamp"), said("x"))
    server = MCPServer("my-server")
    registry.attach(server)
    async with mcp.Client(server) as client:
        result = await call(client, "tool_search", {"query": "xylophone"})
    assert (result.is_error, "Try other words" in text_in(result)) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "invalid_request"),
        ({"name": ""}, "invalid_request"),
        ({"name": 7}, "invalid_request"),
        ({"name": "absent"}, "tool_not_found"),
        ({"name": "lamp", "arguments": {}}, "invalid_arguments"),
        ({"name": "lamp", "arguments": {"room": 7}}, "invalid_arguments"),
    ],
)
async def test_what_execute_tool_cannot_do_is_an_error_in_band_with_a_code(arguments: Any, code: str) -> None:
    app = App()
    app.register(new_tool("lamp", "", String("room", required=True)).discoverable(), lambda room: room)
    async with mcp.Client(app.server) as client:
        result = await call(client, "execute_tool", arguments)
    assert result.structured_content is not None
    assert (result.is_error, result.structured_content["error"]["code"]) == (True, code)


@pytest.mark.parametrize(
    "envelope",
    [
        {"name": "lamp", "arguments": {"room": "hall"}},
        {"name": "lamp", "parameters": {"room": "hall"}},
        {"tool_name": "lamp", "arguments": '{"room": "hall"}'},
        {"name": "lamp", "room": "hall"},
    ],
)
async def test_arguments_are_taken_in_every_form_that_models_send(envelope: dict[str, Any]) -> None:
    app = App()
    app.register(new_tool("lamp", "", String("room", required=True)).discoverable(), lambda room: room)
    async with mcp.Client(app.server) as client:
        assert text_in(await call(client, "execute_tool", envelope)) == "hall"


async def test_a_tool_that_fails_is_an_error_in_band_too() -> None:
    def breaks() -> None:
        raise OSError("no disk")

    app = App()
    app.register(new_tool("breaks").discoverable(), breaks)
    async with mcp.Client(app.server) as client:
        result = await execute(client, "breaks")
    assert (result.is_error, "no disk" in text_in(result)) == (True, True)
    with pytest.raises(ExecutionFailed):
        await app.call("breaks")


async def test_native_tools_are_found_and_executed_by_the_meta_tools_too() -> None:
    app = App()
    app.register(new_tool("near", "Something near"), said("near"))
    app.register(new_tool("far", "Something far").discoverable(), said("far"))
    async with mcp.Client(app.server) as client:
        assert await names(client) == [*META, "near"]
        assert sorted(await found(client, "something")) == ["far", "near"]
        assert text_in(await execute(client, "near")) == "near"
        assert text_in(await call(client, "far")) == "far"


async def test_the_meta_tools_accept_the_documented_arguments() -> None:
    app = App()
    app.register(new_tool("far").discoverable(), said("far"))
    async with mcp.Client(app.server) as client:
        search, run = (await client.list_tools()).tools
    assert {"query", "max_results"} <= set(search.input_schema["properties"])
    assert "required" not in search.input_schema
    assert run.input_schema["required"] == ["name"]
    assert run.input_schema["properties"]["arguments"]["type"] == "object"
    assert "execute_tool" in (search.description or "")
