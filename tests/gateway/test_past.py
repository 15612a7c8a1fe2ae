"""Past requests through the gateway: what is recorded, whose searches it changes, and how long it is kept."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcrib.app import App
from toolcrib.errors import StateUnavailable
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.past import PastRecorder, saved_table
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.search.options import PastOptions
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.state.options import StateOptions
from toolcrib.state.sqlite import SqliteStore
from toolcrib.testing import FakeProvider, FakeSource
from toolcrib.types import Caller, Context, Object, Policy, SearchReply, SearchRequest, Tool, ToolResult

pytestmark = pytest.mark.anyio

ANN = Context(caller=Caller(id="ann", tenant="acme", scopes=frozenset({"ops"})), session="s1")
BOB = Context(caller=Caller(id="bob", tenant="acme"), session="s2")
EVE = Context(caller=Caller(id="eve", tenant="evil", scopes=frozenset({"ops"})), session="s3")
WAKE = "who can I wake tonight"
SHIFTS = "ops:list_shifts"
TOOLS = [
    Tool(namespace="ops", name="list_shifts", description="Shows the people on duty."),
    Tool(namespace="mail", name="send", description="Send a message to a person."),
    Tool(namespace="files", name="read", description="Give the content of a file."),
]


async def respond(ctx: Context, name: str, arguments: Object) -> ToolResult:
    return ToolResult(content=({"type": "text", "text": name},), is_error=bool(arguments.get("fail")))


@asynccontextmanager
async def serving(
    state: StateStore | None = None,
    *,
    past: PastOptions | None = PastOptions(),  # noqa: B008 - frozen
    policy: Policy | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway whose background tasks run until the end of the block."""
    options = GatewayOptions(search_wait_s=0, list_wait_s=0, past_requests=past)
    gateway = Gateway([FakeSource(FakeProvider(TOOLS, respond))], policy=policy, options=options, state=state)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await gateway.refresher.wait_current()
            if past is not None:
                await group.start(gateway.past.run)
            yield gateway
            group.cancel_scope.cancel()


async def ask(gateway: Gateway, ctx: Context, text: str) -> SearchReply:
    return await gateway.search(ctx, SearchRequest(queries=(text,)))


async def use(gateway: Gateway, ctx: Context, text: str, tool: str, times: int = 1, **arguments: Any) -> None:
    """Search, and call a tool with success."""
    for _ in range(times):
        await ask(gateway, ctx, text)
        await gateway.call(ctx, tool, arguments)


async def words(gateway: Gateway, ctx: Context = ANN) -> Mapping[str, Mapping[str, int]]:
    past = await gateway.past.of(ctx)
    assert past is not None
    return past.tools()


def fresh(ctx: Context) -> Context:
    """The same caller in a session that used nothing."""
    return replace(ctx, session="fresh")


# -- what is recorded --------------------------------------------------------------------------------------------------


async def test_the_words_of_a_search_lead_later_searches_of_the_tenant_to_the_tool_that_was_called() -> None:
    async with serving() as gateway:
        assert SHIFTS not in [hit.tool.id for hit in (await ask(gateway, fresh(BOB), WAKE)).hits[:1]]
        await use(gateway, ANN, WAKE, SHIFTS, times=15)
        reply = await ask(gateway, fresh(BOB), WAKE)
        assert reply.hits[0].tool.id == SHIFTS
        assert {reason.field for reason in reply.hits[0].reasons} >= {"past requests"}


async def test_without_the_setting_nothing_is_recorded() -> None:
    state = MemoryStore()
    async with serving(state, past=None) as gateway:
        before = await ask(gateway, fresh(ANN), WAKE)
        await use(gateway, ANN, WAKE, SHIFTS, times=15)
        assert await gateway.past.of(ANN) is None
        assert await ask(gateway, fresh(ANN), WAKE) == before
        assert await gateway.past.forget("acme") == 0
    assert await saved_table(state).items() == {}


async def test_a_failed_call_and_a_search_without_a_call_record_nothing() -> None:
    async with serving() as gateway:
        await use(gateway, ANN, WAKE, SHIFTS, fail=True)
        await ask(gateway, ANN, WAKE)
        await gateway.call(EVE, SHIFTS, {})
        assert await words(gateway) == {}
        assert await words(gateway, EVE) == {}


async def test_a_call_of_a_tool_that_no_search_found_was_for_the_last_search() -> None:
    async with serving() as gateway:
        await use(gateway, ANN, "zyzzyva tonight", SHIFTS)
        await gateway.call(ANN, "mail:send", {})
        assert await words(gateway) == {SHIFTS: {"tonight": 1, "zyzzyva": 1}}


async def test_a_call_of_a_found_tool_was_for_the_search_that_found_it() -> None:
    async with serving() as gateway:
        await ask(gateway, ANN, "send a message")
        await ask(gateway, ANN, "content of a file")
        await gateway.call(ANN, "mail:send", {})
        await gateway.call(ANN, "files:read", {})
        await gateway.call(ANN, "files:read", {})
        assert await words(gateway) == {
            "mail:send": {"messag": 1, "send": 1},
            "files:read": {"content": 1, "fil": 1},
        }


async def test_sessions_do_not_mix_their_searches() -> None:
    async with serving() as gateway:
        await ask(gateway, ANN, "send a message")
        await gateway.call(BOB, "mail:send", {})
        assert await words(gateway) == {}


async def test_nothing_is_recorded_of_anonymous_requests_and_of_tools_that_came_with_a_request() -> None:
    anonymous = Context(caller=Caller(id="local"))
    own = FakeProvider([Tool(namespace="own", name="dial", description="Ring a number.")], respond)
    async with serving() as gateway:
        await use(gateway, anonymous, WAKE, SHIFTS)
        assert await words(gateway, anonymous) == {}
        ctx = ANN.with_providers(own)
        await ask(gateway, ctx, "ring a number")
        await gateway.call(ctx, "own:dial", {})
        assert await words(gateway) == {}


# -- whose searches it changes -----------------------------------------------------------------------------------------


async def test_the_past_of_one_tenant_changes_nothing_for_another() -> None:
    async with serving() as gateway:
        before = await ask(gateway, fresh(EVE), WAKE)
        await use(gateway, ANN, WAKE, SHIFTS, times=15)
        assert await ask(gateway, fresh(EVE), WAKE) == before


async def test_the_past_of_a_tool_that_a_caller_may_not_see_shows_in_nothing() -> None:
    policy = ByScopes([Rule(tools=("ops:*",), scopes=("ops",))], default="allow")
    async with serving(policy=policy) as gateway:
        await use(gateway, ANN, "send a letter", "mail:send", times=8)
        texts = (WAKE, "tonight", "send a letter tonight", "letter", "content of a file")
        before = [await ask(gateway, fresh(BOB), text) for text in texts]
        await use(gateway, ANN, WAKE, SHIFTS, times=15)
        after = [await ask(gateway, fresh(BOB), text) for text in texts]
        assert after == before
        assert [[*hit.reasons] for reply in after for hit in reply.hits] == [
            [*hit.reasons] for reply in before for hit in reply.hits
        ]


# -- how long it is kept -----------------------------------------------------------------------------------------------


async def test_the_past_survives_a_restart_without_the_text_of_requests(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    async with SqliteStore(path) as store, serving(store) as gateway:
        await use(gateway, ANN, "Please wake Ann Smith tonight, 4711", SHIFTS, times=15)
    async with SqliteStore(path) as store, serving(store) as gateway:
        assert await words(gateway) == {SHIFTS: {"tonight": 15, "wak": 15}}
        assert (await ask(gateway, fresh(BOB), WAKE)).hits[0].tool.id == SHIFTS
        saved = json.dumps([past.to_dict() for past in (await saved_table(store).items()).values()])
    assert "Smith" not in saved
    assert "4711" not in saved


async def test_two_processes_add_to_one_past(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    async with SqliteStore(path) as one, SqliteStore(path) as other:
        async with serving(one) as first, serving(other) as second:
            await use(first, ANN, "wake tonight", SHIFTS)
            await use(second, ANN, "page tonight", SHIFTS)
        async with serving(one) as gateway:
            assert await words(gateway) == {SHIFTS: {"tonight": 2, "pag": 1, "wak": 1}}


async def test_saving_keeps_what_searches_computed_unless_the_store_has_more() -> None:
    recorder = PastRecorder(PastOptions(), MemoryStore(), sessions=10)
    await recorder.searched(ANN, ["wake tonight"], ())
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            await group.start(recorder.run)
            await recorder.called(ANN, SHIFTS)
            before = await recorder.of(ANN)
            group.cancel_scope.cancel()
    assert before is not None
    assert before.tools() == {SHIFTS: {"tonight": 1, "wak": 1}}
    assert await recorder.of(ANN) is before


async def test_what_another_process_forgot_is_forgotten_here_too() -> None:
    now = 100.0

    def clock() -> float:
        return now

    state = MemoryStore()
    recorder = PastRecorder(PastOptions(), state, sessions=10, clock=clock)
    tool = replace(TOOLS[0])
    await recorder.searched(ANN, ["wake tonight"], ())
    await recorder.called(ANN, tool.id)
    await saved_table(state).delete('"acme"')
    known = await recorder.of(ANN)
    assert known is not None
    assert len(known) == 1
    now += 31.0
    known = await recorder.of(ANN)
    assert known is not None
    assert len(known) == 0


async def test_a_tool_or_a_tenant_can_be_forgotten_for_good(tmp_path: Path) -> None:
    options = StateOptions(path=tmp_path / "state.sqlite")
    settings = Settings(gateway=GatewayOptions(past_requests=PastOptions()), state=options)

    async def run(work: Callable[[App], Any]) -> Any:
        with anyio.fail_after(20):
            async with App(settings) as app:
                for tool in TOOLS:
                    app.register(tool, lambda: "done")
                return await work(app)

    async def fill(app: App) -> None:
        for text, tool in ((WAKE, SHIFTS), ("content of a file", "files:read"), ("send a letter", "mail:send")):
            await app.search(text)
            await app.call(tool)

    async def kept(app: App) -> list[str]:
        past = await app.gateway.past.of(app.local_context())
        return sorted([] if past is None else past.tools())

    await run(fill)
    assert await run(kept) == ["files:read", "mail:send", SHIFTS]
    assert await run(lambda app: app.forget_requests(tool_id=SHIFTS)) == 1
    assert await run(kept) == ["files:read", "mail:send"]
    assert await run(lambda app: app.forget_requests("other tenant")) == 0
    assert await run(lambda app: app.forget_requests()) == 2
    assert await run(kept) == []


async def test_tools_and_tenants_are_bounded() -> None:
    state = MemoryStore()
    async with serving(state, past=PastOptions(tools=1, words=2, tenants=2)) as gateway:
        for number in range(5):
            ctx = replace(ANN, caller=Caller(id="x", tenant=f"t{number}"))
            await use(gateway, ctx, "alpha beta gamma", SHIFTS)
            await use(gateway, ctx, "delta omega sigma", "mail:send")
            assert [len(words) for words in (await words(gateway, ctx)).values()] == [2]
    assert len(await saved_table(state).items()) == 2


async def test_a_store_that_cannot_be_used_loses_no_search_and_no_call(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryStore):
        def table(self, name: str, *args: Any, **options: Any) -> Any:
            return BrokenTable() if name == "past requests" else super().table(name, *args, **options)

    class BrokenTable:
        async def get(self, key: str) -> None:
            raise StateUnavailable("The disk is full.")

        async def update(self, key: str, change: object, **_: object) -> None:
            raise StateUnavailable("The disk is full.")

    async with serving(Broken()) as gateway:
        await use(gateway, ANN, WAKE, SHIFTS, times=15)
        assert (await ask(gateway, fresh(BOB), WAKE)).hits[0].tool.id == SHIFTS
    assert [record.levelname for record in caplog.records] == ["WARNING"]
