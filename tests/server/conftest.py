"""Shared by the tests of the server: a running server with tools of two tenants, and clients of each transport."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client

from toolcrib.gateway.gateway import Gateway
from toolcrib.server.asgi import AsgiApp
from toolcrib.server.engine import Engine
from toolcrib.server.notifications import ListChangeNotifier
from toolcrib.server.options import HttpOptions, Token
from toolcrib.server.processes.process import serve_http
from toolcrib.server.sdk import SdkServer
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, Handler, echo, running
from toolcrib.types import Action, Caller, Context, Decision, Object, Policy, Tool, ToolResult, Visibility

TOKENS = (Token(secret="s3cret-a", caller="ann", tenant="acme"), Token(secret="s3cret-b", caller="bob", tenant="bits"))
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def native(name: str, namespace: str = "", description: str = "") -> Tool:
    """A tool that is listed by name."""
    return Tool(name=name, namespace=namespace, description=description, visibility=Visibility.NATIVE)


class PerTenant:
    """A policy that shows tools in a tenant's namespace only to that tenant."""

    def scope(self, caller: Caller) -> str | None:
        return caller.tenant

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        mine = tool.namespace in ("", "x", caller.tenant)
        return Decision.ALLOW if mine else Decision.HIDE


@dataclass
class Crib:
    """A server under test, and the parts that tests change."""

    gateway: Gateway
    engine: Engine
    server: SdkServer
    """For clients in memory."""
    source: FakeSource
    provider: FakeProvider
    changes: ListChangeNotifier
    received: list[str] = field(default_factory=list)

    async def offer(self, *tools: Tool) -> None:
        """Change the shared provider's tools, and wait until they are in the catalog."""
        self.provider.tools = list(tools)
        self.source.changed()
        await self.gateway.refresher.wait_current()


@contextlib.asynccontextmanager
async def crib(
    *tools: Tool, handler: Handler = echo, policy: Policy | None = None, surfaces: Sequence[str] = ("search",)
) -> AsyncIterator[Crib]:
    """A server over one shared provider, which reports changes at once."""
    provider = FakeProvider(tools or [Tool(name="echo", namespace="x", description="Echoes")], handler)
    source = FakeSource(provider)
    async with running(source, policy=policy) as gateway, anyio.create_task_group() as group:
        facade = make_facade(gateway, SurfaceOptions(surfaces=tuple(surfaces)))
        changes = ListChangeNotifier(facade, gateway.refresher, debounce_s=0.01)
        await group.start(changes.run)
        engine = Engine(facade, changes=changes)
        yield Crib(gateway, engine, SdkServer(engine), source, provider, changes)
        group.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def at_address(app: AsgiApp, *, stop: anyio.Event | None = None) -> AsyncIterator[str]:
    """Serve an app through a real socket, and yield its address without a path."""
    stop, bound, addresses = stop or anyio.Event(), anyio.Event(), list[str]()

    def started(address: str) -> None:
        addresses.append(address.removesuffix(app.path))
        bound.set()

    options = HttpOptions(port=0, drain_s=0.5)
    async with anyio.create_task_group() as group:

        async def serve() -> None:
            await serve_http(app, options, stop=stop, started=started, flush_s=0)

        group.start_soon(serve)
        await bound.wait()
        try:
            yield addresses[0]
        finally:
            stop.set()


@contextlib.asynccontextmanager
async def client_at(
    url: str, mode: Any = "auto", headers: Mapping[str, str] | None = None, **client: Any
) -> AsyncIterator[mcp.Client]:
    """An SDK client over streamable HTTP."""
    async with httpx2.AsyncClient(headers=dict(headers or {}), follow_redirects=True) as http:
        async with mcp.Client(streamable_http_client(url, http_client=http), mode=mode, **client) as connected:
            yield connected


def token(secret: str) -> dict[str, str]:
    """The authentication header of a caller."""
    return {"Authorization": f"Bearer {secret}"}


class Notices:
    """A client's message handler that counts notifications of changed tools."""

    def __init__(self) -> None:
        self.count = 0
        self._event = anyio.Event()

    async def __call__(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self.count += 1
            self._event.set()
            self._event = anyio.Event()

    async def next(self) -> None:
        """Wait for the next notification."""
        await self._event.wait()


async def names(client: mcp.Client) -> list[str]:
    """The names that the client lists, bypassing its cache."""
    return [tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools]


class Own:
    """A provider of one user's tools, which reports changes."""

    def __init__(self, *tools: Tool) -> None:
        self.tools = list(tools)
        self.callbacks: list[Callable[[], None]] = []

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return tuple(self.tools)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        if not any(tool.name == name for tool in self.tools):
            return None
        return ToolResult(content=({"type": "text", "text": f"{name} of {ctx.caller.id}"},))

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback) if callback in self.callbacks else None

    def offer(self, *tools: Tool) -> None:
        self.tools = list(tools)
        for callback in tuple(self.callbacks):
            callback()


async def until(true: Callable[[], bool]) -> None:
    """Wait until a condition holds; call this under a deadline."""
    while not true():  # noqa: ASYNC110 - the library has no event for this
        await anyio.sleep(0.01)
