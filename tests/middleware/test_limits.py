"""Limits on calls: rates, retries and deadlines."""

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.middleware.support import ANN, BOB, Clock, Provider, Stack, Step, a_call, failed, immediate, said

from toolcrib.errors import (
    CallTimeout,
    ConnectionLost,
    ExecutionFailed,
    RateLimited,
    ServerUnavailable,
    ToolcribError,
    UpstreamError,
)
from toolcrib.middleware.limits import RateMiddleware
from toolcrib.middleware.options import CallOptions, RateOptions, RetryOptions
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Call, Caller, CallNext, Context, Object, ToolResult

pytestmark = pytest.mark.anyio

PAUSES = st.lists(st.floats(min_value=0, max_value=5), min_size=1, max_size=60)


def limited(clock: Clock, provider: Provider, **options: Any) -> CallNext:
    return Stack(CallOptions(**options), clock=clock, wall=clock)(provider)


def limits(rate: RateOptions, clock: Clock, **more: Any) -> RateMiddleware:
    return RateMiddleware(rate, (), MemoryStore(clock=clock), wall=clock, **more)


async def test_a_burst_is_let_through_and_then_calls_are_refused_with_the_time_to_wait() -> None:
    clock, provider = Clock(), Provider()
    run = limited(clock, provider, rate=RateOptions(per_second=4, burst=2))
    await run(ANN, a_call())
    await run(ANN, a_call())
    with pytest.raises(RateLimited, match="github:read was not run") as refused:
        await run(ANN, a_call())
    assert refused.value.data["retry_after_s"] == 0.25
    assert refused.value.hint == "Wait 0.25 s before the next call."
    assert provider.runs == 2
    clock.now += refused.value.data["retry_after_s"]
    await run(ANN, a_call())
    assert provider.runs == 3


async def test_a_callers_rate_is_independent_of_other_callers_and_of_namesakes_in_another_tenant_or_of_an_issuer() -> (
    None
):
    run = limited(Clock(), Provider(), rate=RateOptions(per_second=1, burst=1))
    namesake = Context(caller=Caller(id="ann", tenant="other"))
    vouched = Context(caller=Caller(id="ann", tenant="acme", issuer="https://login.example"))
    for ctx in (ANN, BOB, namesake, vouched):
        await run(ctx, a_call())
        with pytest.raises(RateLimited):
            await run(ctx, a_call())


async def test_a_tool_can_have_its_own_rate_in_addition_to_the_callers() -> None:
    clock = Clock()
    slow = ("*:send_*", RateOptions(per_second=0.1, burst=1))
    run = limited(clock, Provider(), rate=RateOptions(per_second=100, burst=3), tool_rates=(slow,))
    await run(ANN, a_call("send_mail"))
    await run(ANN, a_call("send_fax"))
    with pytest.raises(RateLimited) as refused:
        await run(ANN, a_call("send_mail"))
    assert refused.value.data["retry_after_s"] == 10
    await run(ANN, a_call("read"))  # the refusal took nothing from the caller's own rate
    with pytest.raises(RateLimited):
        await run(ANN, a_call("read"))


async def test_a_fast_tool_does_not_lift_the_callers_own_rate() -> None:
    fast = ("*", RateOptions(per_second=1000, burst=1000))
    run = limited(Clock(), Provider(), rate=RateOptions(per_second=1, burst=1), tool_rates=(fast,))
    await run(ANN, a_call())
    with pytest.raises(RateLimited) as refused:
        await run(ANN, a_call())
    assert refused.value.data["retry_after_s"] == 1


@given(per_second=st.floats(min_value=0.1, max_value=1000), burst=st.integers(1, 20), pauses=PAUSES)
def test_never_more_than_the_burst_and_the_rate_over_the_time(
    per_second: float, burst: int, pauses: list[float]
) -> None:
    clock = Clock()
    limit = limits(RateOptions(per_second=per_second, burst=burst), clock)
    granted = []
    for pause in pauses:
        clock.now += pause
        if immediate(limit.take(ANN.caller, "tool")) == 0:
            granted.append(clock.now)
    for place, start in enumerate(granted):  # in every span of time, not only from the beginning
        for count, end in enumerate(granted[place:], start=1):
            assert count <= burst + per_second * (end - start) + 1e-3


@given(per_second=st.floats(min_value=0.1, max_value=1000), burst=st.integers(1, 20), calls=st.integers(1, 40))
def test_a_caller_that_waits_as_long_as_the_hint_says_is_let_through(per_second: float, burst: int, calls: int) -> None:
    clock = Clock()
    limit = limits(RateOptions(per_second=per_second, burst=burst), clock)
    for place in range(calls):
        wait = immediate(limit.take(ANN.caller, "tool"))
        assert (wait == 0) == (place < burst)
        clock.now += wait
        assert wait == 0 or immediate(limit.take(ANN.caller, "tool")) == 0


def test_the_memory_for_callers_is_bounded() -> None:
    limit = limits(RateOptions(per_second=0.001, burst=1), Clock(), max_callers=2)
    callers = [Caller(id=name) for name in ("one", "two", "three")]
    for caller in callers:
        assert immediate(limit.take(caller, "tool")) == 0
    assert immediate(limit.take(callers[2], "tool")) > 0
    assert immediate(limit.take(callers[0], "tool")) == 0  # forgotten: it called longest ago


async def test_two_gateways_with_one_store_share_a_callers_rate() -> None:
    clock = Clock()
    options, state = CallOptions(rate=RateOptions(per_second=1, burst=1)), MemoryStore(clock=clock)
    one, other = (Stack(options, state=state, wall=clock)(Provider()) for _ in range(2))
    await one(ANN, a_call())
    with pytest.raises(RateLimited):
        await other(ANN, a_call())


async def test_a_clock_that_was_set_back_keeps_no_caller_out_for_long() -> None:
    clock = Clock()
    state = MemoryStore(clock=Clock())
    run = Stack(CallOptions(rate=RateOptions(per_second=1, burst=2)), state=state, wall=clock)(Provider())
    await run(ANN, a_call())
    clock.now -= 3600
    with pytest.raises(RateLimited) as refused:
        await run(ANN, a_call())
    assert refused.value.data["retry_after_s"] <= 1


# -- retries -----------------------------------------------------------------------------------------------------------


async def ran(provider: Provider, clock: Clock, *, hints: Object | None = None, ctx: Context = ANN, **more: Any) -> Any:
    options = CallOptions(retry=RetryOptions(**{"attempts": 3, "jitter": 0, **more}))
    try:
        return await Stack(options, sleep=clock.sleep)(provider)(ctx, a_call(hints=hints))
    except ToolcribError as error:
        return error


async def test_an_unavailable_server_is_retried_for_any_tool() -> None:
    clock, provider = Clock(), Provider([ServerUnavailable("away"), said("here")])
    assert await ran(provider, clock) == said("here")
    assert (provider.runs, clock.slept) == (2, [0.2])


@pytest.mark.parametrize("error", [CallTimeout("slow"), ConnectionLost("gone")])
@pytest.mark.parametrize(
    ("hints", "runs"),
    [
        ({}, 1),
        ({"destructiveHint": False}, 1),
        ({"readOnlyHint": "true"}, 1),
        ({"readOnlyHint": True}, 2),
        ({"idempotentHint": True}, 2),
    ],
)
async def test_after_a_lost_answer_only_a_tool_that_says_it_may_be_repeated_is(
    error: ExecutionFailed, hints: Object, runs: int
) -> None:
    provider = Provider([error, said("here")])
    await ran(provider, Clock(), hints=hints)
    assert provider.runs == runs


@pytest.mark.parametrize("step", [failed("no"), UpstreamError("nonsense"), RateLimited("slow down")])
async def test_an_answer_is_an_answer(step: Step) -> None:
    provider = Provider([step])
    assert await ran(provider, Clock(), hints={"readOnlyHint": True}) is step
    assert provider.runs == 1


async def test_pauses_double_up_to_the_longest_and_the_last_error_is_raised() -> None:
    clock, provider = Clock(), Provider([ServerUnavailable("one"), ServerUnavailable("last")])
    error = await ran(provider, clock, attempts=5, first_s=1, longest_s=3)
    assert str(error) == "last"
    assert clock.slept == [1, 2, 3, 3]


async def test_pauses_are_shortened_at_random() -> None:
    clock = Clock()
    options = CallOptions(retry=RetryOptions(attempts=2, first_s=1, jitter=0.5))
    provider = Provider([ServerUnavailable("away")])
    with pytest.raises(ServerUnavailable):
        await Stack(options, sleep=clock.sleep, random=lambda: 0.5)(provider)(ANN, a_call())
    assert clock.slept == [0.75]


@pytest.mark.parametrize("said_before", [{"input_responses": {"q": {"action": "accept"}}}, {"request_state": "s"}])
async def test_a_call_that_carries_a_persons_answer_is_never_repeated(said_before: dict[str, Any]) -> None:
    provider = Provider([ServerUnavailable("away")])
    await ran(provider, Clock(), ctx=Context(caller=ANN.caller, **said_before))
    assert provider.runs == 1


async def test_a_question_of_the_tool_is_given_back_as_it_is() -> None:
    asks = ToolResult(kind="input_required", request_state="s")
    provider = Provider([asks])
    assert await ran(provider, Clock(), hints={"readOnlyHint": True}) is asks
    assert provider.runs == 1


async def test_nothing_is_tried_that_would_come_after_the_deadline() -> None:
    clock, provider = Clock(), Provider([ServerUnavailable("away")])
    options = CallOptions(deadline_s=30, retry=RetryOptions(attempts=5, first_s=31, longest_s=40, jitter=0))
    with pytest.raises(ServerUnavailable):
        await Stack(options, sleep=clock.sleep)(provider)(ANN, a_call())
    assert (provider.runs, clock.slept) == (1, [])


async def test_nothing_is_tried_before_the_server_says_it_is_worth_trying() -> None:
    clock, provider = Clock(), Provider([ServerUnavailable("away", data={"retry_after_s": 10})])
    await ran(provider, clock)
    assert (provider.runs, clock.slept) == (1, [])


async def test_a_caller_who_gives_up_during_a_pause_ends_the_call() -> None:
    provider = Provider([ServerUnavailable("away")])
    options = CallOptions(retry=RetryOptions(attempts=5, first_s=60, longest_s=60))
    with anyio.CancelScope() as scope:

        async def giving_up(seconds: float) -> None:
            scope.cancel()
            await anyio.sleep(seconds)

        await Stack(options, sleep=giving_up)(provider)(ANN, a_call())
    assert provider.runs == 1


# -- deadlines ---------------------------------------------------------------------------------------------------------


class Hanging:
    """Never answers."""

    def __init__(self) -> None:
        self.cancelled = anyio.Event()
        self.runs = 0

    async def __call__(self, ctx: Context, call: Call) -> ToolResult:
        self.runs += 1
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
        raise AssertionError


async def test_a_call_that_hangs_is_cancelled_and_its_tool_named() -> None:
    hanging = Hanging()
    with anyio.fail_after(5):
        with pytest.raises(CallTimeout, match=r"github:read did not answer within 0\.01 s"):
            await Stack(CallOptions(deadline_s=0.01))(hanging)(ANN, a_call())
        await hanging.cancelled.wait()


async def test_a_call_in_time_is_left_alone() -> None:
    result = await Stack(CallOptions(deadline_s=60))(Provider())(ANN, a_call())
    assert not result.is_error


async def test_the_deadline_bounds_all_attempts_together() -> None:
    hanging = Hanging()
    options = CallOptions(deadline_s=0.01, retry=RetryOptions(attempts=10))
    with anyio.fail_after(5):
        with pytest.raises(CallTimeout):
            await Stack(options)(hanging)(ANN, a_call(hints={"readOnlyHint": True}))
    assert hanging.runs == 1


async def test_a_caller_who_gives_up_gets_no_error() -> None:
    hanging = Hanging()
    with anyio.move_on_after(0.01) as scope:
        await Stack(CallOptions(deadline_s=60))(hanging)(ANN, a_call())
    assert scope.cancelled_caught
    assert hanging.cancelled.is_set()


async def test_a_providers_own_timeout_is_not_taken_for_ours() -> None:
    with pytest.raises(TimeoutError, match="its own"):
        await Stack(CallOptions(deadline_s=60))(Provider([TimeoutError("its own")]))(ANN, a_call())
