"""What callers used, beyond a session and a restart: whose searches it changes, and how it is kept and forgotten."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions, SessionOptions
from toolcrib.gateway.sessions import HALF_LIFE_S, UsedTools, forget_used
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.state.sqlite import SqliteStore
from toolcrib.testing import FakeProvider, FakeSource
from toolcrib.types import LOCAL, Caller, Context, Object, SearchRequest, Tool, ToolResult

pytestmark = pytest.mark.anyio

TOOLS = [Tool(namespace=name, name="list_events", description="Lists events.") for name in ("a", "b", "c")]
ANN = Context(caller=Caller(id="ann", tenant="acme"), session="s1")
BOB = Context(caller=Caller(id="bob", tenant="acme"), session="s2")
EVE = Context(caller=Caller(id="ann", tenant="evil"), session="s3")
LATER = replace(ANN, session="s9")


async def respond(ctx: Context, name: str, arguments: Object) -> ToolResult:
    return ToolResult(content=({"type": "text", "text": name},), is_error=bool(arguments.get("fail")))


@asynccontextmanager
async def serving(state: StateStore | None = None, **sessions: Any) -> AsyncIterator[Gateway]:
    options = GatewayOptions(search_wait_s=0, list_wait_s=0, sessions=SessionOptions(**sessions))
    gateway = Gateway([FakeSource(FakeProvider(TOOLS, respond))], options=options, state=state)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await gateway.refresher.wait_current()
            yield gateway
            group.cancel_scope.cancel()


async def first(gateway: Gateway, ctx: Context) -> str:
    """The best hit for a request that fits all tools alike; the first by id unless one was used."""
    return (await gateway.search(ctx, SearchRequest(queries=("list events",)))).hits[0].tool.id


async def test_what_a_session_used_survives_a_restart(tmp_path: Path) -> None:
    for expected in ("a:list_events", "b:list_events"):
        async with SqliteStore(tmp_path / "state.sqlite") as state, serving(state) as gateway:
            assert await first(gateway, ANN) == expected
            await gateway.call(ANN, "b:list_events", {})


async def test_another_session_of_the_caller_learns_only_with_the_setting() -> None:
    async with serving() as gateway:
        await gateway.call(ANN, "b:list_events", {})
        assert await first(gateway, LATER) == "a:list_events"
    async with serving(across=True) as gateway:
        await gateway.call(ANN, "b:list_events", {})
        assert await first(gateway, LATER) == "b:list_events"


async def test_what_a_caller_used_changes_nothing_for_other_callers_and_tenants() -> None:
    async with serving(across=True) as gateway:
        await gateway.call(ANN, "c:list_events", {})
        assert await first(gateway, LATER) == "c:list_events"
        assert {await first(gateway, other) for other in (BOB, EVE)} == {"a:list_events"}


async def test_failed_calls_and_anonymous_requests_are_not_learned_from() -> None:
    anonymous = Context(caller=LOCAL)
    async with serving(across=True) as gateway:
        await gateway.call(ANN, "b:list_events", {"fail": True})
        await gateway.call(anonymous, "c:list_events", {})
        assert {await first(gateway, ctx) for ctx in (LATER, anonymous)} == {"a:list_events"}


async def test_a_tool_counts_once_for_each_session_that_used_it() -> None:
    async with serving(across=True) as gateway:
        for session in ("s1", "s1", "s1", "s4"):
            await gateway.call(replace(ANN, session=session), "b:list_events", {})
        boosts = await gateway.sessions.boosts(LATER)
    assert {tool: round(boost, 3) for tool, boost in boosts.items()} == {"b:list_events": 1.396}


async def test_it_is_kept_in_the_file_across_restarts_without_words_of_requests(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    async with SqliteStore(path) as state, serving(state, across=True) as gateway:
        await gateway.search(ANN, SearchRequest(queries=("zanzibar timetable",)))
        await gateway.call(ANN, "b:list_events", {"note": "secret argument"})
    kept = b"".join([file.read_bytes() for file in tmp_path.iterdir()])  # noqa: ASYNC240
    assert b"b:list_events" in kept
    assert not [word for word in (b"zanzibar", b"timetable", b"secret") if word in kept]
    async with SqliteStore(path) as state, serving(state, across=True) as gateway:
        assert await first(gateway, LATER) == "b:list_events"


async def test_it_is_forgotten_by_tool_caller_and_tenant() -> None:
    async def learned(**forget: Any) -> tuple[int, set[str]]:
        state = MemoryStore()
        async with serving(state, across=True) as gateway:
            for ctx in (ANN, BOB, EVE):
                await gateway.call(ctx, "b:list_events", {})
                await gateway.call(ctx, "c:list_events", {})
            forgotten = await forget_used(state, **forget)
            left = [(ctx, await gateway.sessions.boosts(ctx)) for ctx in (ANN, LATER, BOB, EVE)]
        return forgotten, {f"{ctx.session} {tool[0]}" for ctx, boosts in left for tool in boosts}

    every = {f"{session} {tool}" for session in ("s1", "s9", "s2", "s3") for tool in "bc"}
    assert await learned(tenant="nobody") == (0, every)
    assert await learned(tenant="acme") == (2, {"s3 b", "s3 c"})
    assert await learned(tenant="acme", caller="bob") == (1, every - {"s2 b", "s2 c"})
    assert await learned(tenant="acme", tool_id="b:list_events") == (2, every - {"s1 b", "s9 b", "s2 b"})


def test_uses_fade_and_the_least_used_tools_are_forgotten_first() -> None:
    used = UsedTools().with_use("x:old", 0.0)
    assert used.boosts(HALF_LIFE_S)["x:old"] == pytest.approx(1.146, abs=0.001)
    for number in range(300):
        used = used.with_use("x:often", 1.0).with_use(f"x:{number}", 2.0 + number)
    assert len(used) == 256
    assert "x:old" not in used.uses
    assert used.boosts(302.0)["x:often"] == 1.75
    assert set(used.with_use("x:new", 10 * HALF_LIFE_S).uses) == {"x:often", "x:new"}
