"""Test doubles for programs built on toolcrib."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import anyio

from toolcrib.errors import missing_extra
from toolcrib.gateway.options import GatewayOptions
from toolcrib.providers.base import Provider
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.types import (
    BackendKind,
    Context,
    Object,
    Policy,
    ServerState,
    ServerStatus,
    Tool,
    ToolProvider,
    ToolResult,
    Unsubscribe,
)

try:
    import mcp

    from toolcrib.gateway.gateway import Gateway
    from toolcrib.server.engine import Engine
    from toolcrib.server.sdk import SdkServer
    from toolcrib.surfaces.builtin import make_facade
except ModuleNotFoundError as error:
    raise missing_extra(error.name, "toolcrib-slim[server]", needed_by="toolcrib.testing") from error

Handler = Callable[[Context, str, Object], Awaitable[ToolResult | None]]
"""Handles a call of a fake provider: context, the tool's own name, arguments."""


async def echo(ctx: Context, name: str, arguments: Object) -> ToolResult:  # noqa: ARG001 - the shape of a handler
    """Return the call itself, as text and as structured content."""
    said = {"tool": name, "arguments": dict(arguments)}
    return ToolResult(content=({"type": "text", "text": f"{name} {dict(arguments)}"},), structured=said)


class FakeProvider(Provider):
    """A provider whose tools a test can change; with a status, it represents a server."""

    def __init__(self, tools: Sequence[Tool], handler: Handler = echo, *, status: ServerStatus | None = None) -> None:
        """`lists` counts requests for the tools, and `calls` records calls."""
        self.tools = list(tools)
        self.handler = handler
        self.status = status
        self.lists = 0
        self.calls: list[tuple[str, Object]] = []

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        """List the current tools."""
        self.lists += 1
        return tuple(self.tools)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Call the handler; None for an unknown name."""
        if not any(tool.name == name for tool in self.tools):
            return None
        self.calls.append((name, arguments))
        return await self.handler(ctx, name, arguments)

    def statuses(self) -> Sequence[ServerStatus]:
        """The status it was given, if any."""
        return (self.status,) if self.status is not None else ()


class FakeSource:
    """A changing set of providers."""

    kind = BackendKind.PROVIDER

    def __init__(self, *providers: ToolProvider) -> None:
        self._providers = list(providers)
        self._callbacks: list[Callable[[], None]] = []

    def providers(self) -> Sequence[ToolProvider]:
        """The current providers."""
        return tuple(self._providers)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back on every `changed` and `replace`."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def changed(self) -> None:
        """Notify subscribers of a change."""
        for callback in tuple(self._callbacks):
            callback()

    def replace(self, *providers: ToolProvider) -> None:
        """Replace the providers, and notify subscribers."""
        self._providers = list(providers)
        self.changed()


def ready(name: str, **changes: Any) -> ServerStatus:
    """The status of a server that is ready."""
    return ServerStatus(**{"name": name, "state": ServerState.READY, "since": 0.0, **changes})


@contextlib.asynccontextmanager
async def running(
    *sources: FakeSource, policy: Policy | None = None, options: GatewayOptions | None = None
) -> AsyncIterator[Gateway]:
    """Run a gateway over the sources, with all their tools in its snapshot."""
    gateway = Gateway(sources, policy=policy, options=options or GatewayOptions(search_wait_s=0, list_wait_s=0))
    async with anyio.create_task_group() as group:
        await group.start(gateway.refresher.run)
        await gateway.refresher.wait_current()
        yield gateway
        group.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def connect(gateway: Gateway, options: SurfaceOptions | None = None, **client: Any) -> AsyncIterator[mcp.Client]:
    """Connect an SDK client in memory; `client` are arguments of `mcp.Client`."""
    engine = Engine(make_facade(gateway, options or SurfaceOptions()))
    async with mcp.Client(SdkServer(engine), **client) as connected:
        yield connected


def text_of(result: Any) -> str:
    """The text blocks of an SDK call result, joined."""
    return "\n".join(block.text for block in result.content if block.type == "text")


__all__ = ["FakeProvider", "FakeSource", "Handler", "connect", "echo", "ready", "running", "text_of"]
