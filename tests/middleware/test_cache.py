"""The result cache: off by default, and never shared between callers by accident."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.middleware.support import ANN, BOB, READ, Clock, Provider, Stack, Step, a_call, failed, said

from toolcrib.errors import ConnectionLost
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.middleware.cache import CacheMiddleware
from toolcrib.middleware.options import BreakerOptions, CacheOptions, CallOptions
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Call, Caller, CallNext, Context, Object, Tool, ToolResult

pytestmark = pytest.mark.anyio

LOOK = a_call("look", hints=READ, path="a")


def cached(provider: Provider, clock: Clock | None = None, **options: Any) -> CallNext:
    return Stack(CallOptions(cache=CacheOptions(**options)), clock=clock or Clock())(provider)


def numbered(count: int = 20) -> Provider:
    return Provider([said(f"answer {number}") for number in range(count)])


class NoTools:
    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return ()

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        return None


async def test_an_answer_of_a_tool_that_only_reads_is_given_again_until_it_is_old() -> None:
    clock, provider = Clock(), numbered()
    run = cached(provider, clock, seconds=60)
    assert await run(ANN, LOOK) == await run(ANN, LOOK) == said("answer 0")
    clock.now += 60
    assert await run(ANN, LOOK) == said("answer 1")


async def test_changing_an_answer_does_not_change_the_cached_one() -> None:
    answer = ToolResult(content=({"type": "text", "text": "kept"},), structured={"x": 1})
    run = cached(Provider([answer]))
    for _ in range(3):
        given = await run(ANN, LOOK)
        assert (given.content[0]["text"], given.structured) == ("kept", {"x": 1})
        block: Any = given.content[0]
        block["text"] = "changed"
        assert isinstance(given.structured, dict)
        given.structured["x"] = 666


async def test_the_order_of_arguments_does_not_matter_and_their_types_do() -> None:
    provider = numbered()
    run = cached(provider)
    for arguments in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": 2}, {"a": True, "b": 2}, {"a": "1", "b": 2}):
        await run(ANN, a_call(hints=READ, **arguments))
    assert provider.runs == 4


@pytest.mark.parametrize(
    "other",
    [
        BOB,
        Context(caller=replace(ANN.caller, tenant="other")),
        Context(caller=replace(ANN.caller, issuer="https://login.example")),
        Context(caller=replace(ANN.caller, scopes=frozenset({"admin"}))),
        Context(caller=ANN.caller, session="another"),
    ],
)
async def test_no_caller_gets_the_answer_to_another(other: Context) -> None:
    provider = numbered()
    run = cached(provider)
    assert await run(ANN, LOOK) != await run(other, LOOK)


@pytest.mark.parametrize(
    "other",
    [
        a_call("see", hints=READ, path="a"),
        a_call("look", hints=READ, path="b"),
        a_call("look", hints=READ, path="a", backend="mirror"),
        Call(
            tool=replace(LOOK.tool, description="Other."),
            arguments={"path": "a"},
            backend="github",
        ),
    ],
)
async def test_another_tool_definition_backend_or_argument_is_another_answer(other: Call) -> None:
    run = cached(numbered())
    assert await run(ANN, LOOK) != await run(ANN, other)


async def test_an_equal_definition_read_again_is_the_same_tool() -> None:
    run = cached(numbered())
    again = Call(tool=replace(LOOK.tool), arguments={"path": "a"}, backend="github")
    assert await run(ANN, LOOK) == await run(ANN, again)


@pytest.mark.parametrize("hints", [{}, {"readOnlyHint": False}, {"readOnlyHint": "yes"}, {"idempotentHint": True}])
async def test_a_tool_that_is_not_declared_read_only_is_called_every_time(hints: Object) -> None:
    provider = numbered()
    run = cached(provider)
    await run(ANN, a_call(hints=hints))
    await run(ANN, a_call(hints=hints))
    assert provider.runs == 2


async def test_the_settings_can_name_the_tools_instead() -> None:
    provider = numbered()
    run = cached(provider, tools=("*:status",))
    for name, hints in (("status", None), ("status", None), ("look", READ), ("look", READ)):
        await run(ANN, a_call(name, hints=hints))
    assert provider.runs == 3


@pytest.mark.parametrize(
    "step", [failed("no"), ToolResult(kind="input_required", request_state="s"), said("x", structured={1, 2})]
)
async def test_errors_questions_and_values_that_are_not_json_are_not_cached(step: Step) -> None:
    provider = Provider([step])
    run = cached(provider)
    await run(ANN, LOOK)
    await run(ANN, LOOK)
    assert provider.runs == 2


@pytest.mark.parametrize(
    "special",
    [
        {"providers": (NoTools(),)},
        {"overriding": (NoTools(),)},
        {"request_state": "s"},
        {"input_responses": {}},
    ],
)
async def test_a_request_with_its_own_tools_or_answers_shares_nothing(special: dict[str, Any]) -> None:
    provider = numbered()
    run = cached(provider)
    ctx = replace(ANN, **special)
    await run(ctx, LOOK)
    await run(ctx, LOOK)
    assert provider.runs == 2


async def test_arguments_that_are_not_json_are_no_key() -> None:
    provider = numbered()
    run = cached(provider)
    for _ in range(2):
        await run(ANN, a_call(hints=READ, value={1, 2}))
    assert provider.runs == 2


async def test_a_call_that_may_write_makes_the_answers_of_its_backend_old() -> None:
    provider = numbered()
    run = cached(provider)
    await run(ANN, LOOK)
    await run(ANN, a_call("look", hints=READ, backend="files"))
    await run(BOB, a_call("write"))
    assert await run(ANN, LOOK) == said("answer 3")
    assert await run(ANN, a_call("look", hints=READ, backend="files")) == said("answer 1")


async def tried(run: CallNext, call: Call) -> None:
    await run(ANN, call)


async def test_an_answer_from_before_a_write_is_not_kept_after_it() -> None:
    entered, go_on = anyio.Event(), anyio.Event()
    answers = iter(("before", "after"))

    async def backend(ctx: Context, call: Call) -> ToolResult:
        if call.tool.name == "write":
            return said("written")
        answer = next(answers)
        if answer == "before":
            entered.set()
            await go_on.wait()
        return said(answer)

    run = Stack(CallOptions(cache=CacheOptions()))(backend)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(tried, run, LOOK)
            await entered.wait()
            await run(ANN, a_call("write"))
            go_on.set()
    assert await run(ANN, LOOK) == said("after")


async def test_callers_of_one_tenant_with_the_same_rights_share_if_the_settings_say_so() -> None:
    policy = ByScopes([Rule(tools=("admin:*",), scopes=("admin",))], default="allow")
    provider = numbered()
    run = Stack(CallOptions(cache=CacheOptions(per="scope")), policy=policy)(provider)
    root = Context(caller=Caller(id="root", tenant="acme", scopes=frozenset({"admin"})))
    stranger = Context(caller=Caller(id="ann", tenant="other"))
    assert await run(ANN, LOOK) == await run(BOB, LOOK)
    assert len({str(await run(ctx, LOOK)) for ctx in (ANN, root, stranger)}) == 3


async def test_no_more_is_kept_than_the_settings_allow() -> None:
    clock = Clock()
    cache = CacheMiddleware(CacheOptions(max_entries=2, max_bytes=5_000), None, MemoryStore(clock=clock))
    provider = Provider([said("x" * 100), said("y"), said("z"), said("long" * 2_000)])
    for path in "abc":
        await cache(ANN, a_call(hints=READ, path=path), provider)
    await cache(ANN, a_call(hints=READ, path="b"), provider)
    assert provider.runs == 3
    await cache(ANN, a_call(hints=READ, path="too long"), provider)
    await cache(ANN, a_call(hints=READ, path="c"), provider)
    assert provider.runs == 4
    await cache(ANN, a_call(hints=READ, path="a"), provider)  # the first was dropped for the third
    assert provider.runs == 5


async def test_dropped_entries_make_room_for_new_ones() -> None:
    cache = CacheMiddleware(CacheOptions(max_bytes=5_000), None, MemoryStore())
    provider = numbered(1)
    for path in range(50):
        await cache(ANN, a_call(hints=READ, path=path), provider)
    for path in (49, 48, 47):
        await cache(ANN, a_call(hints=READ, path=path), provider)
    assert provider.runs == 50


async def test_calls_for_one_answer_at_the_same_time_are_one_call() -> None:
    entered, go_on, runs = anyio.Event(), anyio.Event(), 0

    async def slow(ctx: Context, call: Call) -> ToolResult:
        nonlocal runs
        runs += 1
        entered.set()
        await go_on.wait()
        return said("once")

    run = Stack(CallOptions(cache=CacheOptions()))(slow)
    answers: list[ToolResult] = []

    async def ask() -> None:
        answers.append(await run(ANN, LOOK))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask)
            await entered.wait()
            await anyio.wait_all_tasks_blocked()
            go_on.set()
    assert (runs, answers) == (1, [said("once")] * 5)


async def test_when_the_first_fails_or_gives_up_the_others_ask_for_themselves() -> None:
    entered, runs = anyio.Event(), 0
    first = anyio.CancelScope()

    async def slow(ctx: Context, call: Call) -> ToolResult:
        nonlocal runs
        runs += 1
        if runs == 1:
            entered.set()
            await anyio.sleep_forever()
        return said(f"answer {runs}")

    run = Stack(CallOptions(cache=CacheOptions()))(slow)
    answers: list[ToolResult] = []

    async def give_up() -> None:
        with first:
            await run(ANN, LOOK)

    async def ask() -> None:
        answers.append(await run(ANN, LOOK))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(give_up)
            await entered.wait()
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            first.cancel()
    assert answers == [said("answer 2")]


async def test_an_answer_that_was_kept_is_given_while_its_backend_is_away() -> None:
    provider = Provider([said("kept"), ConnectionLost("gone")])
    run = Stack(CallOptions(cache=CacheOptions(), breaker=BreakerOptions(failures=1)))(provider)
    await run(ANN, LOOK)
    with pytest.raises(ConnectionLost):
        await run(ANN, a_call("other", hints=READ))
    assert await run(ANN, LOOK) == said("kept")
