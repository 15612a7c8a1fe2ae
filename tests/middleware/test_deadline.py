"""Deadlines: a call that takes too long is cancelled and named."""

import anyio
import pytest
from tests.middleware.support import ANN, Provider, a_call

from toolcrib.errors import CallTimeout
from toolcrib.middleware.options import CallOptions, RetryOptions
from toolcrib.middleware.pipeline import build_stack
from toolcrib.types import Call, Context, ToolResult

pytestmark = pytest.mark.anyio


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
            await build_stack(CallOptions(deadline_s=0.01))(hanging)(ANN, a_call())
        await hanging.cancelled.wait()


async def test_a_call_in_time_is_left_alone() -> None:
    result = await build_stack(CallOptions(deadline_s=60))(Provider())(ANN, a_call())
    assert not result.is_error


async def test_the_deadline_bounds_all_attempts_together() -> None:
    hanging = Hanging()
    options = CallOptions(deadline_s=0.01, retry=RetryOptions(attempts=10))
    with anyio.fail_after(5):
        with pytest.raises(CallTimeout):
            await build_stack(options)(hanging)(ANN, a_call(hints={"readOnlyHint": True}))
    assert hanging.runs == 1


async def test_a_caller_who_gives_up_gets_no_error() -> None:
    hanging = Hanging()
    with anyio.move_on_after(0.01) as scope:
        await build_stack(CallOptions(deadline_s=60))(hanging)(ANN, a_call())
    assert scope.cancelled_caught
    assert hanging.cancelled.is_set()


async def test_a_providers_own_timeout_is_not_taken_for_ours() -> None:
    with pytest.raises(TimeoutError, match="its own"):
        await build_stack(CallOptions(deadline_s=60))(Provider([TimeoutError("its own")]))(ANN, a_call())
