"""Tool lists: paged, partly invalid, endless, changing."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.upstream.support import CTX, FAST, READY, call, call_json, fleet_of, names, raw, server_of, until

from toolcrib import wire
from toolcrib.types import Rejected, ServerState
from toolcrib.upstream.catalog import listing

LATE_RETRY = replace(FAST, backoff_first_s=100, backoff_max_s=200)


def tool(name: str, **more: Any) -> dict[str, Any]:
    """A definition as it goes over the wire."""
    return {"name": name, "inputSchema": {"type": "object"}, **more}


async def test_all_pages_are_read_in_order() -> None:
    pages = [
        {"tools": [tool("a"), tool("b")], "nextCursor": "1"},
        {"tools": [], "nextCursor": "2"},
        {"tools": [tool("c")]},
    ]
    async with server_of(raw(pages=pages)) as server:
        assert names(server) == ["a", "b", "c"]
        assert (server.status.state, server.status.tools, server.status.rejected) == (READY, 3, ())


async def test_one_invalid_definition_does_not_affect_the_others() -> None:
    tools = {
        "no_object": {"inputSchema": {"type": "array"}},
        "no_schema": {"inputSchema": "none"},
        "good": {"inputSchema": {"type": "object"}, "title": "Good"},
    }
    async with server_of(raw(tools=tools, only=["echo", "no_object", "no_schema", "good"])) as server:
        assert names(server) == ["echo", "good"]
        assert server.status.state is READY
        assert [rejected.tool for rejected in server.status.rejected] == ["no_object", "no_schema"]
        assert all("must be an object" in rejected.reason for rejected in server.status.rejected)
        assert await server.call_tool(CTX, "no_object", {}) is None


@pytest.mark.parametrize("entry", [None, 7, "tool", [], {}, {"name": 3, "inputSchema": {"type": "object"}}])
async def test_entries_that_are_not_definitions_are_rejected(entry: object) -> None:
    async with server_of(raw(pages=[{"tools": [entry, tool("a")]}])) as server:
        assert names(server) == ["a"]
        assert [rejected.tool for rejected in server.status.rejected] == ["(unnamed)"]


async def test_a_definition_that_is_nested_too_deep_does_not_affect_the_others() -> None:
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"type": "object", "properties": {"in": deep}}
    tools = {"deep": {"inputSchema": deep}, "flat": {"inputSchema": {"type": "object"}}}
    lists = {"prompts/list": {"prompts": [{"name": "deep", "_meta": deep}, {"name": "flat"}]}}
    async with server_of(raw(tools=tools, only=["deep", "flat"], lists=lists, capabilities={"prompts": {}})) as server:
        assert names(server) == ["flat"]
        assert [(one.tool, one.reason) for one in server.status.rejected] == [
            ("deep", "it is nested more than 200 levels deep")
        ]
        await until(server, lambda: server.documents() is not None)
        documents = server.documents()
        assert documents is not None
        assert list(documents.prompts) == ["flat"]


async def test_a_tool_that_is_listed_twice_is_used_once() -> None:
    pages = [{"tools": [tool("a", description="first")], "nextCursor": "1"}, {"tools": [tool("a")]}]
    async with server_of(raw(pages=pages)) as server:
        assert [(found.name, found.description) for found in server.tools] == [("a", "first")]
        assert server.status.rejected == (Rejected(tool="a", reason="listed twice; the first is used"),)


async def test_a_header_annotation_that_is_invalid_rejects_the_tool_with_newer_servers() -> None:
    bad = {"inputSchema": {"type": "object", "properties": {"p": {"type": "object", "x-mcp-header": "P"}}}}
    async with server_of(raw(discover="serve", tools={"bad": bad}, only=["echo", "bad"])) as server:
        assert names(server) == ["echo"]
        (rejected,) = server.status.rejected
        assert rejected.tool == "bad"
        assert "x-mcp-header" in rejected.reason
    async with server_of(raw(tools={"bad": bad}, only=["echo", "bad"])) as server:
        assert names(server) == ["echo", "bad"]


async def test_a_failing_page_keeps_the_pages_before_it_and_is_reported() -> None:
    pages = [{"tools": [tool("a")], "nextCursor": "1"}, {"error": -32603}]
    async with server_of(raw(pages=pages), LATE_RETRY) as server:
        assert names(server) == ["a"]
        assert server.status.state is ServerState.DEGRADED
        assert server.status.reason == "page 2 of its tool list failed: no"
        assert (await call(server, "a")).content[0]["text"] == "there is no such tool"


async def test_a_page_without_a_list_is_skipped_and_reported() -> None:
    pages = [{"tools": "many", "nextCursor": "1"}, {"tools": [tool("a")]}]
    async with server_of(raw(pages=pages)) as server:
        assert names(server) == ["a"]
        assert server.status.reason == "page 1 of its tool list has no list of tools"


async def test_a_list_that_starts_over_ends() -> None:
    pages = [{"tools": [tool("a")], "nextCursor": "1"}, {"tools": [tool("b")], "nextCursor": "1"}]
    async with server_of(raw(pages=pages)) as server:
        assert names(server) == ["a", "b"]
        assert server.status.reason == "its tool list starts over after page 2"


async def test_an_endless_list_is_cut() -> None:
    async with server_of(raw(endless=True), replace(FAST, max_pages=5)) as server:
        assert names(server) == ["t0", "t1", "t2", "t3", "t4"]
        assert server.status.reason == "its tool list was cut after 5 pages"
    async with server_of(raw(endless=True), replace(FAST, max_tools=3)) as server:
        assert names(server) == ["t0", "t1", "t2"]
        assert server.status.reason == "its tool list was cut at 3 tools"


async def test_a_server_that_cannot_list_at_all_fails() -> None:
    async with server_of(raw(pages=[{"error": -32603}]), LATE_RETRY) as server:
        assert server.status.state is ServerState.FAILED
        assert server.status.reason == "tools/list: no"


async def test_a_server_that_does_not_list_in_time_fails() -> None:
    given = raw(endless=True, options={"list_timeout_s": 0.3})
    async with server_of(given, replace(LATE_RETRY, max_pages=10**9, max_tools=10**9)) as server:
        assert server.status.state is ServerState.FAILED
        assert server.status.reason == "no tool list within 0.3 s"


async def test_a_changed_list_is_read_again_and_what_did_not_change_is_the_same_object() -> None:
    async with server_of(raw()) as server:
        before = {found.name: found for found in server.tools}
        await call(server, "grow", name="new")
        await until(server, lambda: "new" in names(server))
        after = {found.name: found for found in server.tools}
        assert after.keys() - before.keys() == {"new"}
        assert all(after[name] is before[name] for name in before)
        assert server.status.tools == len(after)


async def test_a_changed_definition_is_a_new_object() -> None:
    async with server_of(raw(tools={"t": {"description": "old", "inputSchema": {"type": "object"}}})) as server:
        await call(server, "grow", name="t", description="new")
        await until(server, lambda: any(found.description == "new" for found in server.tools))
        assert server.status.state is READY


async def test_many_notifications_cause_few_refreshes() -> None:
    async with server_of(raw(), replace(FAST, debounce_s=0.2)) as server:
        for number in range(30):
            await call(server, "grow", name=f"new{number}")
        await until(server, lambda: "new29" in names(server))
        assert Counter(await call_json(server, "seen"))["tools/list"] <= 4


async def test_a_list_that_fails_later_leaves_the_last_good_one_marked_stale() -> None:
    async with server_of(raw(), LATE_RETRY) as server:
        before = server.tools
        await call(server, "spoil")
        await until(server, lambda: server.status.state is ServerState.DEGRADED)
        assert (server.status.stale, server.status.reason) == (True, "tools/list: no")
        assert server.status.retry_at is not None
        assert server.tools is before
        assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_a_list_that_hangs_later_leaves_the_last_good_one_marked_stale() -> None:
    async with server_of(raw(options={"list_timeout_s": 1.0}), LATE_RETRY) as server:
        before = server.tools
        await call(server, "stall")
        await until(server, lambda: server.status.state is ServerState.DEGRADED)
        assert (server.status.stale, server.status.reason) == (True, "no tool list within 1 s")
        assert server.tools is before


async def test_a_list_that_turns_incomplete_does_not_replace_a_complete_one() -> None:
    async with server_of(raw(only=["echo", "tear"]), LATE_RETRY) as server:
        await call(server, "tear")
        await until(server, lambda: server.status.state is ServerState.DEGRADED)
        assert server.status.reason == "page 2 of its tool list failed: no"
        assert names(server) == ["echo", "tear"]


async def test_a_bug_of_ours_while_listing_fails_that_server_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_tool(raw_tool: object, *, namespace: str) -> wire.ReadTool:
        if namespace == "bad":
            raise ZeroDivisionError("by zero")
        return wire.read_tool({"name": "t", "inputSchema": {"type": "object"}}, namespace=namespace)

    monkeypatch.setattr(listing, "read_tool", read_tool)
    async with fleet_of(raw("bad"), raw("good", only=["echo"]), options=LATE_RETRY) as fleet:
        assert fleet.server("good").status.state is READY
        assert fleet.server("bad").status.reason == "ZeroDivisionError: by zero"
    assert "the connection to bad failed" in caplog.text


async def test_the_tools_survive_a_restart_as_the_same_objects() -> None:
    async with server_of(raw()) as server:
        before = server.tools
        with pytest.raises(Exception, match="lost during the call"):
            await call(server, "die")
        await until(server, lambda: server.status.state is READY)
        assert all(old is new for old, new in zip(before, server.tools, strict=True))


async def test_an_unpaired_surrogate_in_one_tool_does_not_affect_others() -> None:
    odd = {"description": "caf\udce9", "inputSchema": {"type": "object"}}
    async with server_of(raw(tools={"odd": odd})) as server:
        assert {"odd", "echo"} <= set(names(server))
        assert next(tool.description for tool in server.tools if tool.name == "odd") == "caf\ufffd"
