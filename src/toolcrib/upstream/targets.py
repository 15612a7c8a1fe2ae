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
from toolcrib.upstream.channel import (
    AutoResetEvent,
    Channel,
    CloseEvent,
    ExchangeError,
    FailureKind,
    Streams,
    flatten_errors,
)
from toolcrib.upstream.options import FleetOptions, ServerOptions, TransportName
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.stdio import stdio_channel

_SDK_SERVER_FIELDS: Final = ("_lowlevel_server", "_mcp_server")
"""Where MCPServer and FastMCP hold the SDK server that they are built on; neither has a public way to it."""


_MAX_QUEUED: Final = 256


_SINGLE_USE: Final = "its transport can be entered only once; give a function that makes a new one for each connection"


_INVALID_TARGET: Final = "its target is neither a server, nor a transport, nor a function that gives one"


def sdk_server(target: object) -> Server[Any] | None:
    """The SDK server that the target is, or is built on; None where it is something else."""
    for found in (target, *(getattr(target, name, None) for name in _SDK_SERVER_FIELDS)):
        if isinstance(found, Server):
            return found
    return None


def transport_name(options: ServerOptions) -> TransportName:
    """How the server is reached, as far as that can be told beforehand."""
    if options.target is None:
        return options.transport
    return "memory" if sdk_server(options.target) is not None else "custom"


def resolve_command(options: ServerOptions) -> ServerOptions:
    """The options with the command of a target that is only another way to write one."""
    given = options.target
    return _as_command(options, given) if isinstance(given, StdioServerParameters) else options


def target_channel(options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> Channel:
    """A link to the options' target. One that a function gives is made when the transport is entered."""
    end = CloseEvent()
    return Channel(transport=_enter_target(options, fleet, redact, end), closed=end, refresh_needed=AutoResetEvent())


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
    options: ServerOptions, fleet: FleetOptions, redact: Redactor, end: CloseEvent
) -> AsyncIterator[Streams]:
    """Raises `ExchangeError` for a target that cannot be used."""
    target = await _create_target(options.target)
    server = sdk_server(target)
    async with AsyncExitStack() as stack:
        if server is not None:
            yield await stack.enter_async_context(_run_in_process(server, fleet, redact, end))
        elif isinstance(target, StdioServerParameters):
            yield await stack.enter_async_context(_child_streams(_as_command(options, target), fleet, end))
        elif isinstance(target, AbstractAsyncContextManager):
            yield await _enter_custom(stack, target)
        else:
            raise ExchangeError(FailureKind.UNSENT, _INVALID_TARGET)


async def _create_target(target: object) -> object:
    """The target itself, or what the function that it is gives."""
    if sdk_server(target) is not None or isinstance(target, AbstractAsyncContextManager) or not callable(target):
        return target
    made = target()
    return await made if inspect.isawaitable(made) else made


async def _enter_custom(stack: AsyncExitStack, transport: AbstractAsyncContextManager[Any]) -> Streams:
    """The streams of a transport of somebody else's."""
    try:
        incoming, outgoing, *_ = await stack.enter_async_context(transport)
    except ToolcribError as error:
        raise ExchangeError(FailureKind.UNSENT, str(error).rstrip(".")) from error
    except (AttributeError, RuntimeError) as error:
        # What a generator that was used before raises when it is entered again.
        if isinstance(transport, AsyncContextDecorator):
            raise ExchangeError(FailureKind.UNSENT, _SINGLE_USE) from error
        raise
    return incoming, outgoing


@asynccontextmanager
async def _child_streams(options: ServerOptions, fleet: FleetOptions, end: CloseEvent) -> AsyncIterator[Streams]:
    """A child process, whose end is told as ours."""
    link = stdio_channel(options, fleet, Redactor(options))

    async def pass_on() -> None:
        await link.closed.wait()
        end.set(link.closed.reason)

    async with anyio.create_task_group() as group, link.transport as streams:
        group.start_soon(pass_on)
        yield streams


@asynccontextmanager
async def _run_in_process(
    server: Server[Any], fleet: FleetOptions, redact: Redactor, end: CloseEvent
) -> AsyncIterator[Streams]:
    """The server, with its lifespan, in a task of its own; it is asked to end before it is made to.

    Plain streams, unlike those of the SDK's own clients, carry no context variables over: what is known of the request
    behind a call, such as its credentials, stays on this side.
    """
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_MAX_QUEUED)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
    done, scope = anyio.Event(), anyio.CancelScope(shield=True)

    async def serve() -> None:
        try:
            # A copy: the server closes its streams before it says why.
            with scope, from_session, to_session.clone() as copy:
                await server.run(from_session, copy, server.create_initialization_options())
            end.set("its task ended")
        except Exception as error:  # noqa: BLE001 - whatever ends a server, it is told as the reason
            cause = next(flatten_errors(error))
            end.set(redact(f"its task ended with {type(cause).__name__}: {cause}"))
        finally:
            to_session.close()
            done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        try:
            yield incoming, outgoing
        finally:
            end.set("stopped")
            outgoing.close()
            incoming.close()
            with anyio.move_on_after(fleet.stop_timeout_s, shield=True):
                await done.wait()
            scope.cancel()
