"""Providers and options that middleware sets for a request."""

from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from starlette.requests import Request

from toolcrib.errors import InvalidRequest
from toolcrib.providers.adapters import unadapted
from toolcrib.providers.request_scope import (
    allow_recursion,
    apply_scope,
    current_scope,
    get_tool_providers,
    guard_recursion,
    show_all_from_request,
    with_request_providers,
    with_show_all,
    with_tool_providers,
)
from toolcrib.testing import FakeProvider
from toolcrib.types import Caller, Context, Tool

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))


class Foreign:
    """A provider of another contract."""

    def get_tools(self, ctx: Context) -> Any:
        return []

    def execute_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        return None


A, B, C, F = FakeProvider([]), FakeProvider([]), FakeProvider([]), Foreign()


def here() -> list[object]:
    return [unadapted(provider) for provider in get_tool_providers()]


# -- providers ---------------------------------------------------------------------------------------------------------


async def test_blocks_accumulate_and_end() -> None:
    assert here() == []
    with with_tool_providers(A, F):
        with with_request_providers(B):
            assert here() == [A, F, B]
            with with_tool_providers(A, C):
                assert here() == [A, F, B, C]
        assert here() == [A, F]
    assert here() == []


async def test_a_block_that_is_left_by_an_error_ends_too() -> None:
    with pytest.raises(KeyError), with_tool_providers(A):
        raise KeyError
    assert here() == []


async def test_overriding_providers_stand_before_the_others() -> None:
    with with_tool_providers(A), with_tool_providers(B, override=True):
        ctx = apply_scope(ME)
        assert here() == [B, A]
    assert (ctx.providers, ctx.overriding) == ((A,), (B,))


async def test_a_context_keeps_its_own_providers_first() -> None:
    with with_tool_providers(A, B):
        assert apply_scope(ME.with_providers(C, B)).providers == (C, B, A)


async def test_without_a_scope_the_context_is_unchanged() -> None:
    assert apply_scope(ME) is ME
    with with_tool_providers(A):
        full = apply_scope(ME)
        assert apply_scope(full) is full


async def test_an_object_that_is_not_a_provider_is_refused_immediately() -> None:
    with pytest.raises(InvalidRequest):
        with_tool_providers(object())


async def test_it_decorates_async_functions() -> None:
    @with_tool_providers(A)
    async def answer(more: int) -> tuple[int, list[object]]:
        await anyio.lowlevel.checkpoint()
        return more, here()

    assert await answer(5) == (5, [A])
    assert answer.__name__ == "answer"
    assert here() == []


async def test_it_decorates_plain_functions_but_no_generators() -> None:
    assert with_tool_providers(A)(here)() == [A]

    async def stream() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(InvalidRequest, match="generator"):
        with_tool_providers(A)(stream)


async def test_tasks_that_share_a_block_do_not_meet() -> None:
    shared = with_tool_providers(A)
    inside, seen = anyio.Event(), dict[str, list[object]]()

    async def one() -> None:
        with shared, with_tool_providers(B):
            inside.set()
            await out.wait()
            seen["one"] = here()

    async def two() -> None:
        await inside.wait()
        seen["before"] = here()
        with shared:
            seen["two"] = here()
            out.set()
            await anyio.lowlevel.checkpoint()
        seen["after"] = here()

    out = anyio.Event()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(two)
    assert seen == {"before": [], "two": [A], "one": [A, B], "after": []}


async def test_tasks_and_threads_begun_inside_know_of_it() -> None:
    seen: list[list[object]] = []

    async def look() -> None:
        seen.append(here())

    async with anyio.create_task_group() as group:
        with with_tool_providers(A):
            group.start_soon(look)
            seen.append(await anyio.to_thread.run_sync(here))
    assert seen == [[A], [A]]


async def test_a_scope_can_be_carried_outside_its_block() -> None:
    with with_tool_providers(A), with_show_all():
        carried = current_scope()
    ctx = apply_scope(ME, carried)
    assert (ctx.providers, ctx.show_all) == ((A,), True)


# -- show all ----------------------------------------------------------------------------------------------------------


async def test_the_code_around_has_the_last_word_on_showing_all() -> None:
    asking_ = Context(caller=Caller(id="me"), show_all=True)
    assert not current_scope().show_all
    with with_show_all():
        assert current_scope().show_all
        assert apply_scope(ME).show_all
        with with_show_all(False):
            assert not current_scope().show_all
            assert not apply_scope(asking_).show_all
    assert not apply_scope(ME).show_all
    assert apply_scope(asking_).show_all


HEADER = "X-MCP-Show-All"


@pytest.mark.parametrize(
    ("headers", "query", "wanted"),
    [
        ({}, "", False),
        ({HEADER: "true"}, "", True),
        ({HEADER: "TRUE"}, "", True),
        ({HEADER.lower(): " True "}, "", True),
        ({HEADER: "1"}, "", False),
        ({}, "show_all=true", True),
        ({}, "a=b&show_all=True", True),
        ({}, "show_all=yes", False),
        ({}, "show_all", False),
        ({}, "show_all=false&show_all=true", True),
        ({HEADER: "false"}, "show_all=true", False),
        ({HEADER: "true"}, "show_all=false", True),
    ],
)
async def test_a_request_asks_by_its_header_or_else_by_its_query(
    headers: dict[str, str], query: str, wanted: bool
) -> None:
    scope = {
        "type": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "query_string": query.encode(),
    }
    request = Request(scope)
    plain = SimpleNamespace(headers=headers, query_params=dict(request.query_params))
    assert [show_all_from_request(one) for one in (scope, request, plain)] == [wanted] * 3


@pytest.mark.parametrize("request_", [None, {}, "show_all=true", SimpleNamespace(headers={})])
async def test_an_object_that_is_not_a_request_is_refused(request_: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not a request"):
        show_all_from_request(request_)


# -- providers of other contracts --------------------------------------------------------------------------------------


class Asks:
    """A provider over its own gateway, which offers that gateway's tools and those of the caller's request."""

    def __init__(self, *tools: Tool) -> None:
        self.tools = tools
        self.others: list[Any] = []
        self.asked = 0

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        with guard_recursion(self, "list") as may:
            if not may:
                return ()
            self.asked += 1
            found = list(self.tools)
            for other in (*self.others, *ctx.providers, *ctx.overriding):
                found.extend(await other.list_tools(ctx))
            return found

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        with guard_recursion(self, name) as may:
            if not may:
                return None
            if any(tool.name == name for tool in self.tools):
                return name
            for other in (*self.others, *ctx.providers, *ctx.overriding):
                if (result := await other.call_tool(ctx, name, arguments)) is not None:
                    return result
            return None


async def test_a_provider_that_comes_with_the_request_it_answers_is_asked_once() -> None:
    registry = Asks(Tool(name="own"))
    with with_tool_providers(registry, override=True), with_tool_providers(registry):
        ctx = apply_scope(ME)
    assert [tool.name for tool in await registry.list_tools(ctx)] == ["own"]
    assert await registry.call_tool(ctx, "missing", {}) is None
    assert registry.asked == 1


async def test_providers_that_ask_each_other_come_to_an_end() -> None:
    one, two = Asks(Tool(name="one")), Asks(Tool(name="two"))
    one.others, two.others = [two], [one]
    assert {tool.name for tool in await one.list_tools(ME)} == {"one", "two"}
    assert {tool.name for tool in await two.list_tools(ME)} == {"one", "two"}
    assert await one.call_tool(ME, "missing", {}) is None
    assert await one.call_tool(ME, "two", {}) == "two"


async def test_a_scope_of_one_task_does_not_affect_another() -> None:
    seen: list[bool] = []

    async def ask() -> None:
        with guard_recursion(A, "list") as may:
            seen.append(may)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        group.start_soon(ask)
    with guard_recursion(A, "list") as first, guard_recursion(B, "list") as second, guard_recursion(A, "x") as third:
        seen += [first, second, third]
    assert seen == [True] * 5


async def test_a_tools_own_code_may_ask_again() -> None:
    with guard_recursion(A, "x"):
        with allow_recursion(), guard_recursion(A, "x") as again:
            assert again
        with guard_recursion(A, "x") as nested:
            assert not nested
    with guard_recursion(A, "x") as afterwards:
        assert afterwards
