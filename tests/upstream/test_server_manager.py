"""Processes that share a state let each other know of servers whose lists have changed."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import mcp_types
import pytest
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent
from tests.upstream.support import FAST, call, names, until

from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Object
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.remote_server import RemoteServer
from toolcrib.upstream.server_manager import ServerManager

pytestmark = pytest.mark.anyio


class SharedStore(MemoryStore):
    """State that managers of this process share as if they were processes, with what they sent."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Object] = []

    def channel(self, name: str) -> Any:
        return _Recorded(super().channel(name), self.sent)


class _Recorded:
    """A channel that notes what is sent."""

    def __init__(self, channel: Any, sent: list[Object]) -> None:
        self._channel = channel
        self._sent = sent
        self.subscribe = channel.subscribe

    async def publish(self, message: Object) -> None:
        self._sent.append(message)
        await self._channel.publish(message)


class GrowingServer:
    """A server that reports a new tool only to the client whose call has added it."""

    def __init__(self) -> None:
        self.names = ["grow"]
        self.lists = 0
        self.server: Server[Any] = Server("growing", version="1", on_list_tools=self._list, on_call_tool=self._call)
        self.options = ServerOptions(name="growing", target=self.server, protocol="2025-11-25")

    async def _list(self, ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        self.lists += 1
        return ListToolsResult(
            tools=[mcp_types.Tool(name=name, input_schema={"type": "object"}) for name in self.names]
        )

    async def _call(self, ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        self.names.append(f"tool_{len(self.names)}")
        await ctx.session.send_tool_list_changed()
        return CallToolResult(content=[TextContent(type="text", text="grown")])


@asynccontextmanager
async def processes(options: ServerOptions, state: StateStore) -> AsyncIterator[list[RemoteServer]]:
    """The server as two processes have it, connected."""
    with anyio.fail_after(20):
        async with AsyncExitStack() as stack:
            fleets = [
                await stack.enter_async_context(ServerManager(FAST, [options], state=state).running()) for _ in range(2)
            ]
            for fleet in fleets:
                await fleet.settled()
            yield [fleet.server(options.name) for fleet in fleets]


async def test_a_change_that_one_process_finds_is_listed_by_the_others() -> None:
    growing, state = GrowingServer(), SharedStore()
    async with processes(growing.options, state) as (first, second):
        await call(first, "grow")
        for server in (first, second):
            await until(server, lambda server=server: names(server) == ["grow", "tool_1"])  # type: ignore[misc]
        await call(second, "grow")
        for server in (first, second):
            await until(server, lambda server=server: "tool_2" in names(server))  # type: ignore[misc]
    # One message for each change: who lists again because of one sends none.
    assert [message["server"] for message in state.sent] == ["growing", "growing"]


async def test_processes_that_share_no_state_send_nothing() -> None:
    growing, state = GrowingServer(), SharedStore()
    state.shared = False
    async with processes(growing.options, state) as (first, second):
        await call(first, "grow")
        await until(first, lambda: "tool_1" in names(first))
        assert names(second) == ["grow"]
    assert state.sent == []


async def test_an_error_inside_a_running_manager_is_raised_as_it_is() -> None:
    with anyio.fail_after(20), pytest.raises(ZeroDivisionError):
        async with ServerManager(FAST, state=SharedStore()).running():
            raise ZeroDivisionError
