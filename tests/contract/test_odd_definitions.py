"""Odd definitions from every source: each is offered, repaired, left to its server or rejected alone, with a reason."""

import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from tests.upstream.support import FAST, SERVERS

from toolcrib import App, DiskIndex, Settings
from toolcrib.discovery import ToolSearchEngine
from toolcrib.errors import InvalidArguments, InvalidTool
from toolcrib.gateway.disk_catalog import DiskTools
from toolcrib.options import ServerOptions
from toolcrib.providers.base import Provider
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Context, Hit, Object, SearchRequest, ServerStatus, Tool
from toolcrib.upstream.catalog.cache import CatalogCache

pytestmark = pytest.mark.anyio

Fate = Literal["offered", "repaired", "unchecked", "rejected"]


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


ODD: Mapping[str, tuple[Fate, Any]] = {
    "plain": ("offered", of(n={"type": "integer"})),
    "no_type": ("repaired", {"properties": {"n": {"type": "integer"}}}),
    "empty": ("repaired", {}),
    "required_null": ("repaired", {**of(n={}), "required": None}),
    "required_false": ("repaired", of(n={"required": False})),
    "bad_pattern": ("repaired", of(n={"pattern": "("})),
    "python_types": ("repaired", of(n={"type": "int"}, s={"type": "str"}, d={"type": "date"})),
    "properties_list": ("repaired", {"type": "object", "properties": []}),
    "dangling": ("repaired", of(n={"$ref": "#/$defs/Nope"})),
    "remote": ("unchecked", of(n={"$ref": "https://example.invalid/s.json"})),
    "by_id": ("offered", {**of(n={"$ref": "urn:n"}), "$defs": {"N": {"$id": "urn:n", "type": "integer"}}}),
    "loop": ("offered", {**of(n={"$ref": "#/$defs/A"}), "$defs": {"A": {"$ref": "#/$defs/A"}}}),
    "text": ("rejected", {"type": "string"}),
    "many_properties": ("repaired", of(**{f"p{i}": {"type": "str"} for i in range(5_000)})),
    "many_values": ("repaired", of(n={"type": "str", "enum": [f"v{i}" for i in range(10_000)]})),
}
HIDDEN = "Adds\u200b two\U000e0041 numbers"
"""With characters that people cannot see."""
DEFINITIONS = [
    {"name": name, "description": f"Does {name}.", "inputSchema": schema} for name, (_, schema) in ODD.items()
]
EXPECTED: Mapping[str, Fate] = {name: fate for name, (fate, _) in ODD.items()}


class Listed(Provider):
    """A provider that lists these items."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    async def list_tools(self, ctx: Context) -> Any:
        return self._items

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return "done"


@asynccontextmanager
async def _provider(items: Sequence[Any]) -> AsyncIterator[App]:
    async with App() as app:
        app.add_provider(Listed(items))
        await app.settled()
        yield app


def mappings(_: Path) -> AbstractAsyncContextManager[App]:
    return _provider(DEFINITIONS)


def tools(_: Path) -> AbstractAsyncContextManager[App]:
    return _provider([Tool(name=one["name"], input_schema=one["inputSchema"]) for one in DEFINITIONS])


def _server(folder: Path) -> ServerOptions:
    spec = folder / "spec.json"
    spec.write_text(json.dumps({"pages": [{"tools": DEFINITIONS}]}))
    launcher = "import runpy, sys; sys.argv = ['raw.py', open(sys.argv[1]).read()]; runpy.run_path(sys.argv[0])"
    program = launcher.replace("sys.argv[0])", f"{str(SERVERS / 'raw.py')!r}, run_name='__main__')")
    return ServerOptions(name="odd", command=sys.executable, args=("-I", "-S", "-c", program, str(spec)))


@asynccontextmanager
async def stdio(folder: Path) -> AsyncIterator[App]:
    async with App(Settings(servers=(_server(folder),), fleet=FAST), state=MemoryStore()) as app:
        await app.settled()
        yield app


@asynccontextmanager
async def stored(_: Path) -> AsyncIterator[App]:
    """A catalog of an earlier run, before the server has answered."""
    state = MemoryStore()
    silent = ServerOptions(name="odd", command=sys.executable, args=("-c", "import sys; sys.stdin.read()"))
    cache = CatalogCache(state)
    names = tuple(one["name"] for one in DEFINITIONS)
    changes = {"read_at": 1.0, "protocol": "2025-06-18", "tools": tuple(DEFINITIONS), "accepted": names}
    await cache.update(await cache.key(silent, ""), 1000, changes)
    async with App(Settings(servers=(silent,), fleet=FAST), state=state) as app:
        while not await app.tools():  # noqa: ASYNC110 - it has no event to wait for
            await anyio.sleep(0.01)
        yield app


Source = Callable[[Path], AbstractAsyncContextManager[App]]


def fates(app_tools: Sequence[Tool], status: ServerStatus) -> dict[str, str]:
    found = {one.tool: str(one.state) for one in (*status.rejected, *status.marked)}
    return {tool.name: "offered" for tool in app_tools} | found


@pytest.mark.parametrize("source", [mappings, tools, stdio, stored])
async def test_each_definition_has_its_fate_and_costs_no_other(source: Source, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with source(tmp_path) as app:
            [status] = app.statuses()
            offered = await app.tools()
            assert fates(offered, status) == dict(EXPECTED)
            assert status.tools == len(offered) == sum(fate != "rejected" for fate in EXPECTED.values())
            assert all(one.reason for one in (*status.rejected, *status.marked))
            for tool in offered:
                assert tool.input_schema["type"] == "object"
                if EXPECTED[tool.name] == "offered":
                    assert tool.input_schema == ODD[tool.name][1]
            for seen in await app.gateway.servers(app.local_context()):
                assert seen.tools == len(offered)
                assert seen.marked == ()


async def test_a_repaired_definition_is_found_described_and_checked() -> None:
    with anyio.fail_after(30):
        async with _provider(DEFINITIONS) as app:
            hits = {hit.tool.name: hit.signature for hit in (await app.search("does python types")).hits}
            assert hits["python_types"] == "python_types(n?: integer, s?: string, d?: any)"
            assert (await app.call("python_types", {"n": 3})).text == "done"
            with pytest.raises(InvalidArguments):
                await app.call("python_types", {"n": [3]})
            assert (await app.call("remote", {"n": [3]})).text == "done"


async def test_the_definitions_of_an_agent_loop_are_repaired_too() -> None:
    engine: ToolSearchEngine[Any] = ToolSearchEngine()
    engine.set_tools([{"name": one["name"], "parameters": one["inputSchema"]} for one in DEFINITIONS])
    assert {one.name for one in engine.toolset.tools} == {name for name, fate in EXPECTED.items() if fate != "rejected"}
    assert [one.tool for one in engine.rejected] == ["text"]
    (found,) = [one for one in engine.toolset.tools if one.name == "python_types"]
    assert found.tool.input_schema["properties"]["n"] == {"type": "integer"}


@pytest.mark.parametrize("name", [name for name, fate in EXPECTED.items() if fate != "offered"])
async def test_a_tool_of_this_program_is_refused_when_it_is_registered(name: str) -> None:
    async with App() as app:
        with pytest.raises(InvalidTool):
            app.register(Tool(name=name, input_schema=ODD[name][1]), lambda: "done")


HIDING: Mapping[str, Any] = {
    "name": "add",
    "title": HIDDEN,
    "description": HIDDEN,
    "inputSchema": of(n={"type": "integer", "description": HIDDEN, "enum": [1]}),
}


class Finds(Provider):
    """A provider with a search of its own, which lists nothing."""

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return ()

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        return (
            Hit(tool=Tool(name="add", description=HIDDEN, input_schema=HIDING["inputSchema"]), score=0.9, raw=1.0),
            Hit(tool=Tool(name="text", description="Adds.", input_schema={"type": "string"}), score=0.9, raw=1.0),
            Hit(tool=Tool(name="int", description="Adds.", input_schema=of(n={"type": "int"})), score=0.9, raw=1.0),
        )

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        return next((hit.tool for hit in await self.find_tools(ctx, SearchRequest()) if hit.tool.name == name), None)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return "done"


def assert_visible(tool: Tool) -> None:
    assert tool.description == "Adds two numbers"
    assert tool.input_schema["properties"]["n"]["description"] == "Adds two numbers"


async def test_no_source_shows_what_people_cannot_see() -> None:
    as_tool = Tool(name="add", title=HIDDEN, description=HIDDEN, input_schema=HIDING["inputSchema"])
    with anyio.fail_after(60):
        for items in ([HIDING], [as_tool]):
            async with _provider([*items, {"name": "hid\u200bden"}]) as app:
                [tool] = await app.tools()
                assert_visible(tool)
                [status] = app.statuses()
                [refused] = status.rejected
                assert (refused.tool, "characters that cannot be seen" in refused.reason) == ("hidden", True)
        async with App() as app:
            app.register(as_tool, lambda n=1: "done")
            assert_visible((await app.tools())[0])
        async with App() as app:
            app.add_provider(Finds())
            hits = {hit.tool.name: hit for hit in (await app.search("adds")).hits}
            assert hits.keys() == {"add", "int"}
            assert_visible(hits["add"].tool)
            assert hits["int"].signature == "int(n?: integer)"
            assert_visible((await app.gateway.describe(app.local_context(), "add")).tool)
    engine: ToolSearchEngine[Any] = ToolSearchEngine()
    engine.set_tools([HIDING])
    assert_visible(engine.toolset.tools[0].tool)


async def test_an_index_on_disk_shows_nothing_that_people_cannot_see(tmp_path: Path) -> None:
    async def call(ctx: Context, tool: Tool, arguments: Object) -> str:
        return "done"

    with anyio.fail_after(60), DiskIndex(tmp_path) as index:
        index.update([Tool(name="add", description=HIDDEN, input_schema=HIDING["inputSchema"])])
        async with App() as app:
            app.add_provider(DiskTools(index, call))
            [hit] = (await app.search("adds numbers")).hits
            assert_visible(hit.tool)
