"""The five meta-tools over any port: requests and responses."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from tests.discovery.support import FakeProvider, FakeTool, toolbox

from toolcrib.discovery.envelope import Envelope, success
from toolcrib.discovery.host_tools import META_TOOLS, MetaTools, ToolPage, ToolPort, is_meta_tool
from toolcrib.errors import ServerUnavailable, ToolNotFound
from toolcrib.schema.arguments import merge_arguments
from toolcrib.types import Object, Visibility


class FakePort:
    """A port without tools, whose calls wait for each other."""

    def __init__(self, together: int = 1) -> None:
        self.together = together
        self.running = self.most = 0
        self.full = anyio.Event()

    async def list(self, limit: int) -> ToolPage:
        return ToolPage(entries=[{"name": "a"}][:limit], total=7)

    async def find(self, query: str | Sequence[str], limit: int) -> Sequence[Object]:
        raise ServerUnavailable("the server of the tools is down")

    async def schema(self, name: str) -> Object:
        if name == "down":
            raise ServerUnavailable("the server of the tools is down")
        raise ToolNotFound(f"Tool '{name}' not found.", suggestions=["near"])

    async def call(self, name: str, given: Any, loose: Object) -> Envelope:
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self.together:
            self.full.set()
        await self.full.wait()
        self.running -= 1
        if name == "bad":
            raise RuntimeError("broken inside")
        return success({"name": name, **merge_arguments(given, loose, {}, tool=name)})


def test_the_port_is_a_protocol_of_four_methods() -> None:
    port: ToolPort = FakePort()
    assert port is not None


def test_each_meta_tool_has_a_title_annotations_and_a_closed_schema() -> None:
    for tool in META_TOOLS:
        assert tool.title == tool.annotations["title"]
        assert tool.annotations["readOnlyHint"] is (tool.name != "call_tool")
        assert tool.input_schema["additionalProperties"] is (tool.name == "call_tool")
        assert tool.visibility is Visibility.NATIVE
        assert is_meta_tool(tool.name)
    assert not is_meta_tool(None)


async def test_the_total_is_that_of_the_port() -> None:
    answer = await MetaTools(FakePort()).run("list_tools", {})
    assert answer == {"success": True, "result": [{"name": "a"}], "count": 1, "total_available": 7}


async def test_an_outage_is_never_an_empty_result() -> None:
    meta = MetaTools(FakePort())
    for name, arguments in (("search_tools", {"query": "x"}), ("get_tool_schemas", {"tool_names": ["x", "down"]})):
        answer = await meta.run(name, arguments)
        assert answer == {"success": False, "error": "the server of the tools is down"}


async def test_a_batch_repeats_the_suggestions_of_each_name() -> None:
    answer = await MetaTools(FakePort()).run("get_tool_schemas", {"tool_names": ["x"]})
    assert answer["errors"] == [{"tool_name": "x", "error": "Tool 'x' not found.", "suggestions": ["near"]}]


# What models send


@pytest.mark.parametrize(
    "arguments",
    [
        {"tool_name": "add", "a": 1, "b": 2},
        {"tool_name": "add", "arguments": {"a": 1, "b": 2}},
        {"tool_name": "add", "arguments": '{"a": 1, "b": 2}'},
        {"tool_name": "add", "parameters": {"a": 1, "b": 2}},
        {"tool_name": "add", "arguments": {"arguments": {"a": 1, "b": 2}}},
        {"tool_name": "add", "arguments": {"a": 1}, "b": 2},
        {"tool_name": " add ", "arguments": {"a": 1, "b": 2}},
        {"name": "math.add", "arguments": {"a": 1, "b": 2}},
        '{"tool_name": "add", "a": 1, "b": 2}',
    ],
)
async def test_arguments_may_be_nested_flat_or_a_json_text(arguments: Any) -> None:
    answer = await FakeProvider().execute_dynamic_tool("call_tool", arguments)
    assert answer == {"success": True, "result": {"a": 1, "b": 2}}


TRICKY = FakeTool(
    "run", parameters={"properties": {"tool_name": {"type": "string"}, "arguments": {"type": "string"}, "n": {}}}
)


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ({"arguments": {"tool_name": "ls", "arguments": "-l"}}, {"tool_name": "ls", "arguments": "-l"}),
        ({"arguments": {"arguments": "-l"}}, {"arguments": "-l"}),
        ({"arguments": "-l", "n": 1}, {"arguments": "-l", "n": 1}),
        ({"n": 1}, {"n": 1}),
    ],
)
async def test_parameters_called_tool_name_or_arguments_stay_reachable(sent: Any, got: Any) -> None:
    answer = await FakeProvider([TRICKY]).execute_dynamic_tool("call_tool", {"tool_name": "run", **sent})
    assert answer == {"success": True, "result": got}


def test_a_parameter_called_arguments_may_be_an_object() -> None:
    schema = {"type": "object", "properties": {"arguments": {"type": "object"}}}
    for given in ({"arguments": {"x": 1}}, {"x": 1}):
        assert merge_arguments(given, {}, schema, tool="t") == {"arguments": {"x": 1}}


async def test_a_descriptive_name_suggests_the_tool_that_does_it() -> None:
    answer = await FakeProvider().get_tool_schema("average of numbers")
    assert answer["suggestions"] == ["calculate_mean"]


@pytest.mark.parametrize(
    ("arguments", "taught"),
    [
        ({}, "needs the name of a tool"),
        ({"tool_name": ""}, "needs the name of a tool"),
        ({"tool_name": 7}, "needs the name of a tool"),
        ([1], "must be an object"),
        ("{", "not a JSON object"),
        ({"tool_name": "add", "arguments": [1, 2]}, "must be an object"),
        ({"tool_name": "add", "arguments": "a=1"}, "not a JSON object"),
        ({"tool_name": "calculate_mean", "vaules": [1]}, "Did you mean values?"),
        ({"tool_name": "add", "zz": 1}, "'zz' is not a parameter"),
        ({"tool_name": "add", "arguments": {"a": 1}, "a": 2}, "cannot be given beside"),
        ({"tool_name": "add", "arguments": {"a": "1"}}, "must be number"),
        ({"tool_name": "search_tools", "query": "x"}, "called directly"),
    ],
)
async def test_invalid_arguments_are_explained(arguments: Any, taught: str) -> None:
    answer = await FakeProvider().execute_dynamic_tool("call_tool", arguments)
    assert answer["success"] is False
    assert taught in answer["error"]


@pytest.mark.parametrize(
    ("name", "arguments", "taught"),
    [
        ("search_tools", {}, '"query" is required'),
        ("search_tools", {"q": "x"}, '"q" is not a parameter'),
        ("search_tools", {"query": 3}, "must be string"),
        ("search_tools", {"query": "x", "limit": "ten"}, "limit must be a whole number"),
        ("list_tools", {"limit": [1]}, "limit must be a whole number"),
        ("list_tools", 3, "must be an object"),
        ("get_tool_schema", {}, '"tool_name" is required'),
        ("get_tool_schema", {"tool_name": " "}, "must be the name of a tool"),
        ("get_tool_schemas", {"tool_names": {"a": 1}}, "must be array"),
        ("get_tool_schemas", {"tool_names": ["x"] * 101}, "at most 100"),
        ("get_tool_schemas", {}, '"tool_names" is required'),
    ],
)
async def test_wrong_arguments_of_a_meta_tool_are_explained(name: str, arguments: Any, taught: str) -> None:
    answer = await FakeProvider().execute_dynamic_tool(name, arguments)
    assert answer["success"] is False
    assert taught in answer["error"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list_tools", None),
        ("list_tools", ""),
        ("list_tools", {"limit": None}),
        ("list_tools", {"arguments": {"limit": 2}}),
        ("search_tools", '{"query": "add"}'),
        ("search_tools", {"query": "add", "limit": "3"}),
        ("search_tools", {"query": "add", "limit": 10**12}),
        ("search_tools", {"query": ""}),
        ("search_tools", {"query": "x" * 100_000}),
        ("get_tool_schemas", {"tool_names": "add, multiply"}),
        ("get_tool_schemas", {"tool_names": '["add", "multiply"]'}),
        ("get_tool_schemas", {"tool_names": []}),
    ],
)
async def test_lenient_arguments_are_accepted(name: str, arguments: Any) -> None:
    answer = await FakeProvider().execute_dynamic_tool(name, arguments)
    assert answer["success"] is True
    assert json.loads(json.dumps(answer)) == answer


async def test_names_that_are_not_strings_are_reported_one_by_one() -> None:
    answer = await FakeProvider().execute_dynamic_tool("get_tool_schemas", {"tool_names": ["add", 7, None]})
    assert (answer["success"], answer["count"]) == (False, 1)
    assert [error["tool_name"] for error in answer["errors"]] == ["7", "None"]


@pytest.mark.parametrize("name", ["search_tool", "", None, 7, "x" * 10_000])
async def test_an_unknown_meta_tool_lists_the_five(name: Any) -> None:
    answer = await FakeProvider().execute_dynamic_tool(name, {})
    assert answer["success"] is False
    assert "Unknown dynamic tool" in answer["error"]
    assert "call_tool" in answer["error"]
    assert len(answer["error"]) < 300


async def test_a_misspelt_meta_tool_suggests_the_right_one() -> None:
    assert (await FakeProvider().execute_dynamic_tool("search_tool"))["suggestions"][0] == "search_tools"


# Several calls


async def test_independent_calls_run_at_once_and_answer_in_order() -> None:
    port = FakePort(together=3)
    with anyio.fail_after(5):
        answers = await MetaTools(port).call_many([{"tool_name": "a", "n": 1}, ("bad", {}), ("c", '{"n": 3}')])
    assert answers == [
        {"success": True, "result": {"name": "a", "n": 1}},
        {"success": False, "error": "broken inside"},
        {"success": True, "result": {"name": "c", "n": 3}},
    ]


async def test_no_more_calls_than_allowed_run_at_once() -> None:
    port = FakePort(together=2)
    with anyio.fail_after(5):
        answers = await MetaTools(port, at_once=2).call_many([("a", {})] * 10)
    assert [answer["success"] for answer in answers] == [True] * 10
    assert port.most == 2


@pytest.mark.parametrize("call", [None, 7, "add", ("add",), {}, {"tool_name": None}])
async def test_an_invalid_call_does_not_affect_the_others(call: Any) -> None:
    first, last = await FakeProvider(toolbox()).call_many([call, ("add", {"a": 1})])
    assert first["success"] is False
    assert last == {"success": True, "result": {"a": 1}}


async def test_no_calls_give_no_responses() -> None:
    assert await FakeProvider().call_many([]) == []
