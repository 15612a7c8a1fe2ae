"""A provider that cannot list its tools, or has methods that cannot be called, is named with the reason."""

import logging
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from toolcrib import App
from toolcrib.errors import InvalidRequest, ServerUnavailable
from toolcrib.providers.base import Provider
from toolcrib.types import Context, Object, ServerState, Tool

pytestmark = pytest.mark.anyio


class Listed(Provider):
    """Lists what it was given, or raises it."""

    def __init__(self, listed: Any) -> None:
        self.listed = listed

    async def list_tools(self, ctx: Context) -> Any:
        if isinstance(self.listed, Exception):
            raise self.listed
        return self.listed

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return "done"


FAILURES = [
    (None, "it could not list its tools: Listed listed None as its tools"),
    (7, "it could not list its tools: Listed listed a int as its tools"),
    ("tools", "it could not list its tools: Listed listed a str as its tools"),
    ({"name": "x"}, "it could not list its tools: Listed listed a dict as its tools"),
    (ServerUnavailable("The billing database is down."), "it could not list its tools: The billing database is down"),
    (RuntimeError("password=hunter2"), "it could not list its tools (RuntimeError)"),
]


@pytest.mark.parametrize(("listed", "reason"), FAILURES, ids=[reason for _, reason in FAILURES])
async def test_a_list_that_fails_leaves_a_status_with_the_reason_and_a_line_in_the_log(
    listed: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with anyio.fail_after(30), caplog.at_level(logging.WARNING, "toolcrib"):
        async with App() as app:
            app.add_provider(Listed(listed))
            app.add_provider(Good())
            await app.settled()
            assert [tool.name for tool in await app.tools()] == ["good"]
            [status] = [one for one in app.statuses() if one.name == "Listed"]
            assert (status.state, status.reason) == (ServerState.FAILED, reason)
    assert f"Listed could not list its tools: {reason}" in caplog.messages


class Good(Provider):
    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return (Tool(name="good"),)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return "done"


class NoContext(Provider):
    async def list_tools(self) -> Sequence[Tool]:  # type: ignore[override]  # a mistake
        return ()

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return "done"


class PlainNoContext:
    def list_tools(self) -> Sequence[Tool]:
        return ()

    def call_tool(self, name: str, arguments: Object) -> str:
        return "done"


class Executes:
    async def get_tools(self) -> Sequence[Tool]:
        return ()

    async def execute_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return "done"


class Looks:
    async def list_tool_metadata(self, ctx: Context) -> Sequence[Any]:
        return ()

    async def get_tool(self, name: str) -> Tool | None:
        return None

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return "done"


class CallsWithTooLittle(Good):
    async def call_tool(self, ctx: Context, name: str) -> str:  # type: ignore[override]  # a mistake
        return "done"


@pytest.mark.parametrize(
    ("provider", "method", "arguments"),
    [
        (NoContext(), "NoContext.list_tools", "ctx"),
        (PlainNoContext(), "PlainNoContext.list_tools", "ctx"),
        (Executes(), "Executes.get_tools", "ctx"),
        (Looks(), "Looks.get_tool", "ctx, name"),
        (CallsWithTooLittle(), "CallsWithTooLittle.call_tool", "ctx, name, arguments"),
    ],
)
async def test_a_method_with_other_arguments_is_named_when_the_provider_is_added(
    provider: object, method: str, arguments: str
) -> None:
    async with App() as app:
        with pytest.raises(InvalidRequest) as caught:
            app.add_provider(provider)
    name = method.partition(".")[2]
    assert caught.value.message.startswith(f"{method} cannot be called as {name}({arguments}): ")
    assert caught.value.hint == f"Write it as: async def {name}(self, {arguments})"


class TakesAnything:
    async def list_tools(self, *args: Any, **more: Any) -> Sequence[Tool]:
        return (Tool(name="any"),)

    async def call_tool(self, *args: Any) -> str:
        return "done"


async def test_a_method_that_takes_any_arguments_is_fine() -> None:
    async with App() as app:
        app.add_provider(TakesAnything())
        await app.settled()
        assert [tool.name for tool in await app.tools()] == ["any"]


class Describes:
    """A provider of another shape, with a definition that cannot be read."""

    def get_tools(self, ctx: Context) -> Sequence[Any]:
        return ({"name": "good"}, {"name": "bad", "tags": "a"}, {"name": 5})

    def execute_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return "done"


async def test_a_definition_that_an_adapter_leaves_out_is_in_the_status() -> None:
    with anyio.fail_after(30):
        async with App() as app:
            app.add_provider(Describes())
            await app.settled()
            [status] = app.statuses()
            assert [one.tool for one in status.rejected] == ["bad", "5"]
            assert status.tools == 1
