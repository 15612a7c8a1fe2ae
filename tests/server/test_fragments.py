"""Entries of a list are made once."""

import json
from typing import Any

import mcp
import pytest
from tests.server.conftest import crib, names, native

from toolcrib.server import sdk_workarounds
from toolcrib.server.sdk_workarounds import EntryCache
from toolcrib.surfaces.facade import ListedTool
from toolcrib.types import Tool
from toolcrib.wire import tool_to_wire

pytestmark = pytest.mark.anyio


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tools for which an entry was made."""
    made: list[str] = []

    def noted(tool: Tool, name: str) -> dict[str, Any]:
        made.append(name)
        return tool_to_wire(tool, name)

    monkeypatch.setattr(sdk_workarounds, "tool_to_wire", noted)
    return made


async def test_a_second_list_makes_no_entry_again_and_a_changed_tool_alone_is_made_anew(made: list[str]) -> None:
    async with crib(native("add"), native("sub"), surfaces=["direct"]) as served:
        for _ in range(2):
            async with mcp.Client(served.server, mode="legacy") as client:
                assert await names(client) == ["add", "sub"]
        assert made == ["add", "sub"]
        await served.offer(native("add"), native("sub", description="Takes away"))
        async with mcp.Client(served.server, mode="legacy") as client:
            assert [tool.description for tool in (await client.list_tools()).tools] == [None, "Takes away"]
        assert made == ["add", "sub", "sub"]


def listed(number: int, **more: Any) -> ListedTool:
    return ListedTool(f"t{number}", Tool(name=f"t{number}", **more), 1, b"%d" % number)


def entry(known: EntryCache, tool: ListedTool, version: str) -> dict[str, Any]:
    fragment = known.get(tool, version)
    assert fragment is not None
    assert json.loads(fragment.encoded) == fragment.entry
    return fragment.entry


def test_the_eras_have_entries_of_their_own() -> None:
    known, tool = EntryCache(), listed(1, output_schema={"type": "array"})
    assert "outputSchema" in entry(known, tool, "2026-07-28")
    assert "outputSchema" not in entry(known, tool, "2025-11-25")
    assert entry(known, tool, "2025-06-18") is entry(known, tool, "2025-11-25")


def test_only_so_many_entries_are_kept(made: list[str]) -> None:
    known = EntryCache(limit=2)
    for number in (1, 2, 3, 3, 2, 1):
        assert entry(known, listed(number), "2026-07-28")["name"] == f"t{number}"
    assert made == ["t1", "t2", "t3", "t1"]
