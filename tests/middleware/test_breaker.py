"""The circuit breaker: stops calling a failing backend, then probes it once."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from tests.middleware.support import ANN, Clock, Provider, Stack, Step, a_call, failed, said

from toolcrib.errors import CallTimeout, ConnectionLost, ServerUnavailable, ToolcribError, UpstreamError
from toolcrib.middleware.breaker import BreakerState
from toolcrib.middleware.options import BreakerOptions, CallOptions, RetryOptions
from toolcrib.types import Call, CallNext, Context, Object, Tool, ToolResult

pytestmark = pytest.mark.anyio

GONE = ConnectionLost("gone")


def guarded(clock: Clock, **options: Any) -> Stack:
    breaker = BreakerOptions(**{"failures": 2, "open_s": 10, **options})
    return Stack(CallOptions(breaker=breaker), clock=clock, wall=lambda: clock() + 1_000_000)


async def tried(way: CallNext, *, times: int = 1, backend: str = "github") -> ToolResult | ToolcribError | None:
    last: ToolResult | ToolcribError | None = None
    for _ in range(times):
        try:
            last = await way(ANN, a_call(backend=backend))
        except ToolcribError as error:
            last = error
    return last


@pytest.mark.parametrize("failure", [GONE, CallTimeout("slow"), ServerUnavailable("away")])
async def test_after_some_failures_in_a_row_calls_are_refused_with_when_it_is_tried_again(failure: Step) -> None:
    clock, provider = Clock(), Provider([failure])
    run = guarded(clock)(provider)
    await tried(run, times=2)
    clock.now += 4
    refused = await tried(run)
    assert isinstance(refused, ServerUnavailable)
    assert str(refused) == "github:read was not run: github has kept failing for 4 s. It is tried again in 6.0 s."
    assert refused.data == {"server": "github", "since": 1_001_000.0, "retry_after_s": 6.0}
    assert provider.runs == 2


@pytest.mark.parametrize("answer", [failed("no such file"), UpstreamError("nonsense"), said("fine")])
async def test_an_answer_of_any_kind_ends_the_row(answer: Step) -> None:
    provider = Provider([GONE, answer, GONE, answer, GONE])
    await tried(guarded(Clock())(provider), times=5)
    assert provider.runs == 5


async def test_one_backend_is_not_punished_for_another() -> None:
    provider = Provider([GONE])
    way = guarded(Clock())
    await tried(way(provider), times=3, backend="github")
    await tried(way(provider), backend="files")
    assert provider.runs == 3
    assert [(state.backend, state.state) for state in way.breaker_states()] == [("files", "closed"), ("github", "open")]


async def test_a_call_without_a_backends_name_always_goes_through() -> None:
    provider = Provider([GONE])
    await tried(guarded(Clock())(provider), times=5, backend="")
    assert provider.runs == 5


class Garden:
    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return ()

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        return None


async def test_a_provider_that_came_with_a_request_always_goes_through() -> None:
    provider = Provider([GONE])
    run = guarded(Clock())(provider)
    for _ in range(5):
        with pytest.raises(ConnectionLost):
            await run(ANN.with_providers(Garden()), a_call(backend="Garden"))
    await tried(run, times=3)
    assert provider.runs == 7


async def test_a_share_of_failures_opens_it_too() -> None:
    provider = Provider([GONE, said("fine"), GONE, said("fine"), said("never asked")])
    way = guarded(Clock(), failures=100, share=0.5, window=3)
    await tried(way(provider), times=4)
    assert provider.runs == 3


async def test_after_the_pause_one_call_is_let_through_and_its_success_closes_it() -> None:
    clock, provider = Clock(), Provider([GONE, GONE, said("back")])
    way = guarded(clock)
    run = way(provider)
    await tried(run, times=3)
    clock.now += 10
    assert await tried(run, times=2) == said("back")
    assert provider.runs == 4
    assert way.breaker_states() == (BreakerState(backend="github", state="closed"),)


async def test_a_failure_of_that_call_leaves_it_closed_for_another_pause() -> None:
    clock, provider = Clock(), Provider([GONE])
    way = guarded(clock)
    run = way(provider)
    await tried(run, times=2)
    clock.now += 10
    await tried(run, times=2)
    assert provider.runs == 3
    (state,) = way.breaker_states()
    assert (state.state, state.since, state.retry_at) == ("open", 1_001_000.0, 1_001_020.0)


async def test_only_one_call_at_a_time_sees_whether_it_is_back() -> None:
    clock, entered, go_on = Clock(), anyio.Event(), anyio.Event()
    runs = 0

    async def slow(ctx: Context, call: Call) -> ToolResult:
        nonlocal runs
        runs += 1
        if runs <= 2:
            raise GONE
        entered.set()
        await go_on.wait()
        return said("back")

    way = guarded(clock)
    run = way(slow)
    await tried(run, times=2)
    clock.now += 10
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(tried, run)
            await entered.wait()
            assert way.breaker_states()[0].state == "half_open"
            refused = await tried(run)
            assert isinstance(refused, ServerUnavailable)
            assert refused.hint == "It is tried again right now, by another call."
            go_on.set()
    assert runs == 3
    assert way.breaker_states()[0].state == "closed"


async def test_a_probe_that_its_caller_gave_up_says_nothing_and_makes_room_for_the_next() -> None:
    clock, provider = Clock(), Provider([GONE, GONE, said("back")])
    run = guarded(clock)(provider)
    await tried(run, times=2)
    clock.now += 10
    with anyio.CancelScope() as scope:
        provider.meanwhile = scope.cancel
        await run(ANN, a_call())
    provider.meanwhile = None
    assert await tried(run) == said("back")


async def test_a_call_that_runs_into_the_deadline_counts_and_one_that_was_given_up_does_not() -> None:
    async def hang(ctx: Context, call: Call) -> ToolResult:
        await anyio.sleep_forever()
        raise AssertionError

    options = CallOptions(deadline_s=0.01, breaker=BreakerOptions(failures=1))
    patient = Stack(CallOptions(deadline_s=60, breaker=BreakerOptions(failures=1)))
    hurried = Stack(options)
    with anyio.fail_after(5):
        with anyio.move_on_after(0.01):
            await patient(hang)(ANN, a_call())
        await tried(hurried(hang))
    assert patient.breaker_states()[0].state == "closed"
    assert hurried.breaker_states()[0].state == "open"


async def test_an_outcome_from_before_it_opened_does_not_close_it() -> None:
    entered, go_on = anyio.Event(), anyio.Event()

    async def late(ctx: Context, call: Call) -> ToolResult:
        if not call.arguments:
            raise GONE
        entered.set()
        await go_on.wait()
        return said("late")

    way = guarded(Clock())
    run = way(late)

    async def late_call() -> None:
        await run(ANN, a_call(late=True))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(late_call)
            await entered.wait()
            await tried(run, times=2)
            go_on.set()
    assert way.breaker_states()[0].state == "open"


async def test_each_attempt_counts_and_an_open_breaker_allows_none() -> None:
    clock, provider = Clock(), Provider([ServerUnavailable("away")])
    options = CallOptions(breaker=BreakerOptions(failures=2, open_s=60), retry=RetryOptions(attempts=5))
    way = Stack(options, clock=clock, wall=clock, sleep=clock.sleep)
    await tried(way(provider))
    assert provider.runs == 2
    assert len(clock.slept) == 2  # the second pause is before the attempt that finds it open
