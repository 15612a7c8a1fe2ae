"""Rates: refused at once with the time to wait, never more than was promised."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.middleware.support import ANN, BOB, Clock, Provider, a_call, immediate

from toolcrib.errors import RateLimited
from toolcrib.middleware.limits import RateMiddleware
from toolcrib.middleware.options import CallOptions, RateOptions
from toolcrib.middleware.pipeline import build_stack
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Caller, CallNext, Context

pytestmark = pytest.mark.anyio

PAUSES = st.lists(st.floats(min_value=0, max_value=5), min_size=1, max_size=60)


def limited(clock: Clock, provider: Provider, **options: Any) -> CallNext:
    return build_stack(CallOptions(**options), clock=clock, wall=clock)(provider)


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


async def test_a_callers_rate_is_independent_of_other_callers_and_of_a_namesake_in_another_tenant() -> None:
    run = limited(Clock(), Provider(), rate=RateOptions(per_second=1, burst=1))
    namesake = Context(caller=Caller(id="ann", tenant="other"))
    for ctx in (ANN, BOB, namesake):
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
    one, other = (build_stack(options, state=state, wall=clock)(Provider()) for _ in range(2))
    await one(ANN, a_call())
    with pytest.raises(RateLimited):
        await other(ANN, a_call())


async def test_a_clock_that_was_set_back_keeps_no_caller_out_for_long() -> None:
    clock = Clock()
    state = MemoryStore(clock=Clock())
    run = build_stack(CallOptions(rate=RateOptions(per_second=1, burst=2)), state=state, wall=clock)(Provider())
    await run(ANN, a_call())
    clock.now -= 3600
    with pytest.raises(RateLimited) as refused:
        await run(ANN, a_call())
    assert refused.value.data["retry_after_s"] <= 1
