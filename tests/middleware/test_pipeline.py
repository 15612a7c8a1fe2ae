"""Custom middleware: whatever it does, a call ends with a result or with an error that explains it."""

import asyncio
from typing import Any

import pytest
from tests.middleware.support import ANN, Provider, Stack, a_call, said

from toolcrib.errors import ExecutionFailed, RateLimited
from toolcrib.middleware.options import CallOptions
from toolcrib.types import Call, CallMiddleware, CallNext, Context, ToolResult

pytestmark = pytest.mark.anyio

LOOK = a_call("look")


def through(middleware: CallMiddleware, provider: Provider | None = None) -> CallNext:
    return Stack(CallOptions(), extra=[middleware])(provider or Provider())


async def test_a_middleware_that_raises_fails_the_call_with_its_message() -> None:
    async def broken(ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        raise RuntimeError("secret")

    with pytest.raises(ExecutionFailed, match="failed in a middleware") as caught:
        await through(broken)(ANN, LOOK)
    assert "secret" not in str(caught.value)


async def test_the_error_for_a_middleware_without_a_result_says_what_to_return() -> None:
    async def forgetful(ctx: Context, call: Call, call_next: CallNext) -> Any:
        await call_next(ctx, call)

    with pytest.raises(ExecutionFailed, match="a middleware returned NoneType instead of a result"):
        await through(forgetful)(ANN, LOOK)


async def test_a_middleware_may_refuse_in_its_own_words() -> None:
    async def slower(ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        raise RateLimited("Once a day.")

    with pytest.raises(RateLimited, match="Once a day"):
        await through(slower)(ANN, LOOK)


async def test_an_internal_cancellation_in_a_middleware_fails_the_call() -> None:
    async def cancelled(ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        raise asyncio.CancelledError

    with pytest.raises(ExecutionFailed, match="failed in a middleware"):
        await through(cancelled)(ANN, LOOK)


async def test_what_comes_back_passes_as_it_is() -> None:
    async def idle(ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        return await call_next(ctx, call)

    assert await through(idle, Provider([said("x")]))(ANN, LOOK) == said("x")
    error = RateLimited("slowly")
    with pytest.raises(RateLimited) as caught:
        await through(idle, Provider([error]))(ANN, LOOK)
    assert caught.value is error
