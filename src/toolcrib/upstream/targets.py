"""Channels to servers given as objects: a server in this process, or a custom transport.

FastMCP is not imported: its servers are recognized by the SDK server inside them.
"""

import inspect
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncContextDecorator, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
from mcp import StdioServerParameters
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

from toolcrib.errors import ToolcribError
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports import stdio
from toolcrib.upstream.transports.base import AutoResetEvent, Channel, CloseEvent, Streams, flatten_errors

_SDK_SERVER_FIELDS: Final = ("_lowlevel_server", "_mcp_server")
"""Where MCPServer and FastMCP keep the SDK server they are built on; neither exposes it publicly."""
_MAX_QUEUED: Final = 256
_SINGLE_USE: Final = "its transport can be entered only once; pass a function that creates one for each connection"
_INVALID_TARGET: Final = "its target is not a server, a transport, or a function that returns one"


def sdk_server(target: object) -> Server[Any] | None:
    """Return the SDK server that the target is or wraps, or None."""
    for found in (target, *(getattr(target, name, None) for name in _SDK_SERVER_FIELDS)):
        if isinstance(found, Server):
            return found
    return None


def is_target(target: object) -> bool:
    """Whether the object may be a target: a server, a command, a transport, or a function that returns one."""
    known = isinstance(target, (StdioServerParameters, AbstractAsyncContextManager))
    return known or callable(target) or sdk_server(target) is not None


def resolve_target(options: ServerOptions) -> ServerOptions:
    """Return the options with the target's transport; a target that is a command becomes one."""
    target = options.target
    if isinstance(target, StdioServerParameters):
        return _as_command(options, target)
    return replace(options, transport="memory" if sdk_server(target) is not None else "custom")


def open_channel(options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> Channel:
    """Return a channel to the options' target. A function is called when the transport is entered."""
    closed = CloseEvent()
    return Channel(
        transport=_enter_target(options, fleet, redact, closed), closed=closed, refresh_needed=AutoResetEvent()
    )


def _as_command(options: ServerOptions, given: StdioServerParameters) -> ServerOptions:
    return replace(
        options,
        target=None,
        transport="stdio",
        command=given.command,
        args=tuple(given.args),
        env=given.env or {},
        cwd=Path(given.cwd) if given.cwd is not None else None,
    )


@asynccontextmanager
async def _enter_target(
    options: ServerOptions, fleet: FleetOptions, redact: Redactor, closed: CloseEvent
) -> AsyncIterator[Streams]:
    """Raises `ExchangeError` for a target that cannot be used."""
    target = await _create_target(options.target)
    server = sdk_server(target)
    async with AsyncExitStack() as stack:
        if server is not None:
            yield await stack.enter_async_context(_run_in_process(server, fleet, redact, closed))
        elif isinstance(target, StdioServerParameters):
            yield await stack.enter_async_context(_child_streams(_as_command(options, target), fleet, closed))
        elif isinstance(target, AbstractAsyncContextManager):
            yield await _enter_custom(stack, target)
        else:
            raise ExchangeError(FailureKind.UNSENT, _INVALID_TARGET)


async def _create_target(target: object) -> object:
    """Return the target itself, or the return value of a function."""
    if sdk_server(target) is not None or isinstance(target, AbstractAsyncContextManager) or not callable(target):
        return target
    made = target()
    return await made if inspect.isawaitable(made) else made


async def _enter_custom(stack: AsyncExitStack, transport: AbstractAsyncContextManager[Any]) -> Streams:
    """Enter a user-supplied transport."""
    try:
        incoming, outgoing, *_ = await stack.enter_async_context(transport)
    except ToolcribError as error:
        raise ExchangeError(FailureKind.UNSENT, str(error).rstrip(".")) from error
    except (AttributeError, RuntimeError) as error:
        # Raised by a generator-based context manager that is entered again.
        if isinstance(transport, AsyncContextDecorator):
            raise ExchangeError(FailureKind.UNSENT, _SINGLE_USE) from error
        raise
    return incoming, outgoing


@asynccontextmanager
async def _child_streams(options: ServerOptions, fleet: FleetOptions, closed: CloseEvent) -> AsyncIterator[Streams]:
    """Start a child process, and forward its close event."""
    channel = stdio.open_channel(options, fleet, Redactor(options))

    async def forward_end() -> None:
        await channel.closed.wait()
        closed.set(channel.closed.reason)

    async with anyio.create_task_group() as group, channel.transport as streams:
        group.start_soon(forward_end)
        yield streams


@asynccontextmanager
async def _run_in_process(
    server: Server[Any], fleet: FleetOptions, redact: Redactor, closed: CloseEvent
) -> AsyncIterator[Streams]:
    """Run the server with its lifespan in its own task. It is asked to stop before it is cancelled.

    Plain streams, unlike those of the SDK's own clients, carry no context variables over: what is known about the
    request behind a call, such as its credentials, stays on this side.
    """
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_MAX_QUEUED)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
    done, scope = anyio.Event(), anyio.CancelScope(shield=True)

    async def serve() -> None:
        try:
            # A clone, because the server closes its streams before it reports why.
            with scope, from_session, to_session.clone() as copy:
                await server.run(from_session, copy, server.create_initialization_options())
            closed.set("its task ended")
        except Exception as error:  # noqa: BLE001 - any exception is reported as the reason
            cause = next(flatten_errors(error))
            closed.set(redact(f"its task ended with {type(cause).__name__}: {cause}"))
        finally:
            to_session.close()
            done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        try:
            yield incoming, outgoing
        finally:
            closed.set("stopped")
            outgoing.close()
            incoming.close()
            with anyio.move_on_after(fleet.stop_timeout_s, shield=True):
                await done.wait()
            scope.cancel()
