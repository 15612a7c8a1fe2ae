"""Calls: complete results, errors that say what happened, and exactly one request per call."""

import asyncio
import math
import os
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.upstream.support import CTX, FAST, READY, call, call_json, fleet_of, names, raw, server_of, until

from toolcrib.errors import CallTimeout, ConnectionLost, InvalidArguments, ServerUnavailable, UpstreamError
from toolcrib.types import Object, ServerState, ToolResult
from toolcrib.upstream.connection import ServerConnection
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.remote_server import RemoteServer
from toolcrib.upstream.transports.base import Message


@dataclass
class Watcher:
    """A client that records progress."""

    can_elicit = False
    capabilities: Object = field(default_factory=dict)
    reports: list[tuple[float, float | None, str | None]] = field(default_factory=list)

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.reports.append((done, total, message))

    async def elicit(self, params: Object) -> Object:
        """Not asked here."""
        raise AssertionError("this client is not asked")

    async def sample(self, params: Object) -> Object:
        """Not asked here."""
        raise AssertionError("this client is not asked")


async def test_a_call_is_one_request_and_no_list() -> None:
    async with server_of(raw()) as server:
        before = Counter(await call_json(server, "seen"))
        await call(server, "echo", a=1)
        assert Counter(await call_json(server, "seen")) - before == Counter({"tools/call": 2})


async def test_listing_makes_no_request() -> None:
    async with server_of(raw()) as server:
        assert [tool.id for tool in await server.list_tools(CTX)][:2] == ["raw:echo", "raw:params"]
        assert Counter(await call_json(server, "seen"))["tools/list"] == 1


async def test_a_result_is_kept_whole_whatever_is_in_it() -> None:
    async with server_of(raw()) as server:
        assert await call(server, "odd") == ToolResult(
            content=(
                {"type": "hologram", "data": 1},
                {"type": "text", "text": "t", "annotations": {"priority": 1}},
            ),
            structured=[1, 2],
            meta={"k": "v"},
        )


async def test_a_result_without_the_structured_content_that_was_declared_is_a_result() -> None:
    declared = {"inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "required": ["a"]}}
    async with server_of(raw(tools={"declares": declared})) as server:
        result = await call(server, "declares")
        assert (result.structured, result.content[0]["text"], result.is_error) == (None, "ran declares", False)


async def test_an_error_result_is_returned_not_raised() -> None:
    async with server_of(raw()) as server:
        result = await call(server, "fail")
        assert (result.is_error, result.content[0]["text"]) == (True, "it went wrong")


async def test_an_unlisted_tool_is_none_even_if_the_server_would_answer() -> None:
    async with server_of(raw(only=["echo", "seen"])) as server:
        assert await server.call_tool(CTX, "fail", {}) is None
        assert await server.call_tool(CTX, "no such tool", {}) is None
        assert "tools/call" not in (await call_json(server, "seen"))[:-1]


async def test_a_tool_that_runs_only_as_a_task_is_called_as_one_and_its_result_waited_for() -> None:
    job = {"inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
    declared: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}}}
    async with server_of(raw(version="2025-11-25", capabilities=declared, tools={"job": job, "slow": job})) as server:
        assert {"job", "slow"} <= set(names(server))
        assert (await call(server, "job")).text == "ran task-job"
        with anyio.move_on_after(0.1):
            await call(server, "slow")
        assert await call_json(server, "watched") == ["cancelled task-slow"]


async def test_an_error_response_keeps_its_code_and_a_bounded_message() -> None:
    async with server_of(raw()) as server:
        with pytest.raises(UpstreamError, match='"raw" answered with an error: Unknown tool, xxx') as caught:
            await call(server, "reject")
        assert caught.value.rpc_code == -32602
        assert caught.value.data == {"server": "raw", "rpc_code": -32602}
        assert len(caught.value.message) < 1100


async def test_an_invalid_response_fails_only_its_own_call_at_once() -> None:
    async with server_of(raw()) as server:
        with pytest.raises(UpstreamError, match="its response is not valid JSON"):
            await call(server, "broken")
        assert await call_json(server, "echo", a=1) == {"a": 1}
        assert server.status.state is READY


async def test_a_response_in_a_sloppy_frame_is_accepted() -> None:
    async with server_of(raw()) as server:
        assert (await call(server, "bare")).content[0]["text"] == "bare"


@pytest.mark.parametrize("last", [False, True])
async def test_an_oversized_response_fails_its_own_call_wherever_its_id_is(*, last: bool) -> None:
    async with server_of(raw(options={"max_message_bytes": 100_000})) as server:
        assert len((await call(server, "huge", size=90_000)).content[0]["text"]) == 90_000
        with pytest.raises(UpstreamError, match="larger than 100,000 bytes and was dropped"):
            await call(server, "huge", size=3_000_000, last=last)
        assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_a_large_response_within_the_limit_arrives_whole() -> None:
    async with server_of(raw()) as server:
        assert len((await call(server, "huge", size=8_000_000)).content[0]["text"]) == 8_000_000


async def test_a_call_that_hangs_times_out_and_is_cancelled_on_the_server() -> None:
    async with server_of(raw(options={"call_timeout_s": 0.5})) as server:
        with pytest.raises(CallTimeout, match=r'"raw" did not answer hang within 0\.5 s') as caught:
            await call(server, "hang")
        assert caught.value.data == {"server": "raw", "timeout_s": 0.5, "limit": "timeouts.call"}
        assert "unknown" in caught.value.hint
        assert (await call_json(server, "seen"))[-3:] == ["tools/call", "notifications/cancelled", "tools/call"]
        assert server.status.state is READY


async def test_a_cancelled_call_is_cancelled_on_the_server() -> None:
    async with server_of(raw()) as server:
        with anyio.move_on_after(0.05):
            await call(server, "hang")
        assert (await call_json(server, "seen"))[-2:] == ["notifications/cancelled", "tools/call"]


async def test_a_server_that_dies_during_a_call_is_named_with_its_stderr() -> None:
    async with server_of(raw()) as server:
        with pytest.raises(ConnectionLost) as caught:
            await call(server, "die")
        assert caught.value.message == (
            'The connection to "raw" was lost during the call: exited with code 3: Fatal error: the disk is on fire.'
        )
        assert "unknown" in caught.value.hint
        assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_a_server_that_closes_its_output_is_restarted() -> None:
    async with server_of(raw()) as server:
        (pid,) = await call_json(server, "pids")
        with pytest.raises(ConnectionLost, match="closed its output"):
            await call(server, "close_output")
        assert await call_json(server, "pids") != [pid]


@pytest.mark.parametrize("notices", [False, True])
async def test_a_flood_on_stdout_delays_only_its_own_call(*, notices: bool) -> None:
    async with fleet_of(raw("loud"), raw("calm"), limit_s=40) as fleet:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: call(fleet.server("loud"), "flood", lines=20_000, notices=notices))
            for number in range(20):
                assert await call_json(fleet.server("calm"), "echo", n=number) == {"n": number}
        assert await call_json(fleet.server("loud"), "echo", a=1) == {"a": 1}


async def test_a_thousand_reports_of_a_changed_list_at_once_count_as_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_on: list[object] = []
    receive = ServerConnection.receive

    async def noted(self: ServerConnection, message: Message) -> None:
        passed_on.append(message)
        await receive(self, message)

    monkeypatch.setattr(ServerConnection, "receive", noted)
    async with server_of(raw()) as server:
        await call(server, "grow", name="extra")
        passed_on.clear()
        await call(server, "flood", lines=5_000, changes=True)
        await until(server, lambda: "extra" in names(server))

    assert 0 < len(passed_on) < 500


async def test_many_calls_share_one_session() -> None:
    async with server_of(raw()) as server:
        found: dict[int, Any] = {}

        async def ask(number: int) -> None:
            found[number] = await call_json(server, "echo", n=number)

        async with anyio.create_task_group() as group:
            for number in range(64):
                group.start_soon(ask, number)
        assert found == {number: {"n": number} for number in range(64)}
        assert Counter(await call_json(server, "seen"))["initialize"] == 1


async def test_progress_reaches_the_client_in_order() -> None:
    watcher = Watcher()
    async with server_of(raw()) as server:
        await call(server, "report", replace(CTX, client=watcher))
        assert watcher.reports == [(1.0, 3.0, "step 1"), (2.0, 3.0, "step 2"), (3.0, 3.0, "step 3")]


async def test_progress_that_a_slow_client_has_not_received_by_the_end_of_the_call_is_dropped() -> None:
    received = anyio.Event()

    class Slow(Watcher):
        async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
            await super().progress(done, total, message)
            await received.wait()

    watcher = Slow()
    async with server_of(raw()) as server:
        await call(server, "report", replace(CTX, client=watcher))
        received.set()
        await call(server, "echo")
        assert [report[0] for report in watcher.reports] == [1.0]


async def test_a_client_that_rejects_progress_does_not_affect_the_call(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(Watcher):
        async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
            raise RuntimeError("gone")

    async with server_of(raw()) as server:
        assert (await call(server, "report", replace(CTX, client=Gone()))).content[0]["text"] == "done"
        assert server.status.state is READY
    assert caplog.text == ""


async def test_without_a_client_no_progress_is_requested() -> None:
    async with server_of(raw()) as server:
        assert await call_json(server, "params") == {"name": "params", "arguments": {}}


async def test_the_meta_of_a_request_is_forwarded_without_connection_keys() -> None:
    meta = {"traceparent": "00-1", "progressToken": 7, "io.modelcontextprotocol/protocolVersion": "x"}
    async with server_of(raw()) as server:
        assert (await call_json(server, "params", replace(CTX, meta=meta)))["_meta"] == {"traceparent": "00-1"}


async def test_a_newer_server_gets_the_capabilities_of_the_calling_client() -> None:
    watcher = Watcher(capabilities={"elicitation": {}})
    async with server_of(raw(discover="serve")) as server:
        meta = (await call_json(server, "params", replace(CTX, client=watcher)))["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "toolcrib"
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {}}


async def test_a_call_of_several_rounds_sends_the_input_responses() -> None:
    async with server_of(raw(discover="serve")) as server:
        first = await call(server, "ask_more")
        assert (first.kind, first.request_state) == ("input_required", "s1")
        assert first.input_requests is not None
        assert first.input_requests["q"]["method"] == "elicitation/create"
        answers = {"q": {"action": "accept"}}
        again = replace(CTX, input_responses=answers, request_state=first.request_state)
        assert await call_json(server, "ask_more", again) == [answers, "s1"]


@pytest.mark.parametrize("value", ["\ud800", math.nan, math.inf, object()])
async def test_arguments_that_are_not_json_fail_alone_before_they_are_sent(value: object) -> None:
    async with server_of(raw()) as server:
        with pytest.raises(InvalidArguments, match="cannot be encoded as JSON"):
            await call(server, "echo", value=value)
        assert "tools/call" not in (await call_json(server, "seen"))[:-1]


async def test_arguments_nested_beyond_reason_fail_alone() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    async with server_of(raw()) as server:
        with pytest.raises(InvalidArguments):
            await server.call_tool(CTX, "echo", deep)
        assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_only_allowed_tools_are_listed_and_called() -> None:
    async with server_of(raw(options={"allowed_tools": ("echo", "fail", "typo")})) as server:
        assert names(server) == ["echo", "fail"]
        assert await server.call_tool(CTX, "seen", {}) is None
        assert await call_json(server, "echo") == {}


async def test_denied_tools_are_neither_listed_nor_called_even_if_they_are_allowed() -> None:
    narrowed = {"allowed_tools": ("echo", "fai*", "seen"), "denied_tools": ("fail", "see*")}
    async with server_of(raw(options=narrowed)) as server:
        assert names(server) == ["echo"]
        assert await server.call_tool(CTX, "fail", {}) is None
        assert await server.call_tool(CTX, "seen", {}) is None
        assert await call_json(server, "echo") == {}


async def test_a_server_that_failed_is_named_with_state_reason_and_next_try() -> None:
    options = replace(FAST, backoff_first_s=100, backoff_max_s=200)
    async with server_of(raw(exit=2, say="TOKEN is required"), options) as server:
        with pytest.raises(ServerUnavailable) as caught:
            await call(server, "echo")
        assert caught.value.message == (
            'The server "raw" is not available: exited with code 2: TOKEN is required (failed for 0 s).'
        )
        assert caught.value.hint.startswith("Nothing was run. It is tried again in ")
        status = server.status
        assert caught.value.data == {
            "server": "raw",
            "state": "failed",
            "reason": "exited with code 2: TOKEN is required",
            "since": status.since,
            "retry_at": status.retry_at,
        }


async def test_a_call_waits_for_a_first_connection_that_is_under_way(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    found: list[Any] = []

    async def ask(server: RemoteServer) -> None:
        found.append(await call_json(server, "echo", a=1))

    with anyio.fail_after(20):
        async with Fleet(FAST) as fleet, anyio.create_task_group() as group:
            await fleet.apply([raw(gate=str(gate))])
            group.start_soon(ask, fleet.server("raw"))
            await until(fleet, lambda: fleet.server("raw").status.state is ServerState.CONNECTING)
            await anyio.to_thread.run_sync(gate.write_text, "go")
    assert found == [{"a": 1}]


async def test_a_call_waits_for_a_first_connection_for_a_limited_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with anyio.fail_after(20):
        async with Fleet(replace(FAST, connect_wait_s=0.05)) as fleet:
            await fleet.apply([raw(gate=str(tmp_path / "gate"))])
            with pytest.raises(ServerUnavailable, match="it is still connecting") as caught:
                await call(fleet.server("raw"), "echo")
            assert caught.value.hint == "Nothing was run. It is being tried right now."


async def test_short_and_long_calls_at_the_same_time_get_their_own_answers_over_pipes() -> None:
    async with server_of(raw()) as server:
        sent = [str(number) if number % 2 else str(number) + "x" * 200_000 for number in range(8)]
        got = await asyncio.gather(*(call_json(server, "echo", a=value) for value in sent))
    assert got == [{"a": value} for value in sent]


async def test_a_result_that_arrived_while_the_process_was_held_up_is_no_timeout() -> None:
    async with server_of(raw(options={"call_timeout_s": 0.3})) as server:
        results: list[Any] = []

        async def hang_on() -> None:
            results.append(await call_json(server, "echo", a=1))

        async with anyio.create_task_group() as group:
            group.start_soon(hang_on)
            await anyio.lowlevel.checkpoint()  # the call is sent
            time.sleep(0.6)  # noqa: ASYNC251 - the process is held up
        assert results == [{"a": 1}]
