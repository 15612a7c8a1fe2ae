"""Retries: only where nothing can happen twice that must happen once."""

from typing import Any

import anyio
import pytest
from tests.middleware.support import ANN, Clock, Provider, Step, a_call, failed, said

from toolcrib.errors import (
    CallTimeout,
    ConnectionLost,
    ExecutionFailed,
    RateLimited,
    ServerUnavailable,
    ToolcribError,
    UpstreamError,
)
from toolcrib.middleware.options import CallOptions, RetryOptions
from toolcrib.middleware.pipeline import build_stack
from toolcrib.types import Context, Object, ToolResult

pytestmark = pytest.mark.anyio


async def ran(provider: Provider, clock: Clock, *, hints: Object | None = None, ctx: Context = ANN, **more: Any) -> Any:
    options = CallOptions(retry=RetryOptions(**{"attempts": 3, "jitter": 0, **more}))
    try:
        return await build_stack(options, sleep=clock.sleep)(provider)(ctx, a_call(hints=hints))
    except ToolcribError as error:
        return error


async def test_a_server_that_was_away_is_asked_again_for_any_tool() -> None:
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
        await build_stack(options, sleep=clock.sleep, random=lambda: 0.5)(provider)(ANN, a_call())
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
        await build_stack(options, sleep=clock.sleep)(provider)(ANN, a_call())
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

        await build_stack(options, sleep=giving_up)(provider)(ANN, a_call())
    assert provider.runs == 1
