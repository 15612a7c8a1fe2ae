"""Transports to servers given as objects: a server in this process, or a custom transport.

FastMCP is not imported: its servers are recognized by where their class comes from.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncContextDecorator, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
from mcp import StdioServerParameters
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from toolcrib.errors import ToolcribError
from toolcrib.protocol import messages
from toolcrib.protocol.calling import OutgoingRequest, same_id
from toolcrib.protocol.failures import ExchangeError, FailureKind, RpcError
from toolcrib.protocol.messages import ErrorResponse, Notification, Request, Response, read_lenient, to_wire
from toolcrib.types import Object
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import (
    AutoResetEvent,
    CloseEvent,
    Message,
    OnMessage,
    Transport,
    flatten_errors,
)
from toolcrib.upstream.transports.bounds import run_in_steps, value_problem
from toolcrib.upstream.transports.duplex import CLOSED, PIPE_CLOSED, DuplexTransport
from toolcrib.upstream.transports.framing import Unreadable
from toolcrib.upstream.transports.stdio import StdioTransport

logger = logging.getLogger(__name__)

_MAX_QUEUED: Final = 256
_SINGLE_USE: Final = "its transport can be entered only once; pass a function that creates one for each connection"
_INVALID_TARGET: Final = "its target is not a server, a transport, or a function that returns one"


def sdk_server(target: object) -> Server[Any] | None:
    """Return the SDK server that the target is or wraps, or None."""
    if isinstance(target, MCPServer):
        return _served_by(target)
    if isinstance(target, Server):
        return target
    # FastMCP has no public name for the SDK server that it is built on, so whatever it holds is looked through.
    is_fastmcp = any(kind.__module__.partition(".")[0] == "fastmcp" for kind in type(target).__mro__)
    return next((held for held in vars(target).values() if isinstance(held, Server)), None) if is_fastmcp else None


def _served_by(target: MCPServer[Any]) -> Server[Any]:
    """Return the SDK server that the manager of its sessions serves; one is made unless there is one already."""
    try:
        manager = target.session_manager
    except RuntimeError:
        target.streamable_http_app()
        manager = target.session_manager
    return manager.app


def is_target(target: object) -> bool:
    """Whether the object may be a target: a server, a command, a transport, or a function that returns one."""
    known = isinstance(target, (StdioServerParameters, AbstractAsyncContextManager, DuplexTransport))
    return known or callable(target) or sdk_server(target) is not None


def resolve_target(options: ServerOptions) -> ServerOptions:
    """Return the options with the target's transport; a target that is a command becomes one."""
    target = options.target
    if isinstance(target, StdioServerParameters):
        return _as_command(options, target)
    return replace(options, transport="memory" if sdk_server(target) is not None else "custom")


def open_transport(options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> Transport:
    """Return a transport to the options' target. A function is called when the transport is opened."""
    return _known_transport(options, options.target, fleet, redact) or _CreatedTransport(options, fleet, redact)


def _known_transport(
    options: ServerOptions, target: object, fleet: FleetOptions, redact: Redactor
) -> DuplexTransport | None:
    """Return the transport to a target that is no function; None for any other."""
    server = sdk_server(target)
    if server is not None:
        return _ServerTransport(options, server, fleet, redact)
    if isinstance(target, DuplexTransport):
        return target
    if isinstance(target, StdioServerParameters):
        given = _as_command(options, target)
        return StdioTransport(given, fleet, Redactor(given))
    return _CustomTransport(options, target) if isinstance(target, AbstractAsyncContextManager) else None


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


class _CreatedTransport:
    """A transport to what a function returns, which is called for each connection."""

    has_response_streams = False
    has_session = True

    def __init__(self, options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> None:
        self.closed, self.refresh_needed = CloseEvent(), AutoResetEvent()
        self._options, self._fleet, self._redact = options, fleet, redact
        self._inner: DuplexTransport | None = None

    @asynccontextmanager
    async def opened(self, receive: OnMessage) -> AsyncIterator[None]:
        """Raises `ExchangeError` for a target that cannot be used."""
        function = self._options.target
        made = function() if callable(function) else function
        target = await made if inspect.isawaitable(made) else made
        self._inner = _known_transport(self._options, target, self._fleet, self._redact)
        if self._inner is None:
            raise ExchangeError(FailureKind.UNSENT, _INVALID_TARGET)
        self._inner.closed, self._inner.refresh_needed = self.closed, self.refresh_needed
        async with self._inner.opened(receive):
            yield

    async def exchange(self, request: OutgoingRequest, on_message: OnMessage) -> Message:
        return await self._opened().exchange(request, on_message)

    async def post(self, message: Message, headers: Mapping[str, str]) -> None:
        await self._opened().post(message, headers)

    async def wait_listening(self) -> None:
        await self._opened().wait_listening()

    async def has_lost_session(self) -> bool:
        return await self._opened().has_lost_session()

    def stderr_tail(self) -> str:
        return "" if self._inner is None else self._inner.stderr_tail()

    def _opened(self) -> DuplexTransport:
        if self._inner is None:
            raise ExchangeError(FailureKind.CLOSED, CLOSED)
        return self._inner


class _SdkStreams(DuplexTransport):
    """A transport over the SDK's streams of messages."""

    _outgoing: Any

    async def post(self, message: Message, headers: Mapping[str, str]) -> None:
        found = read_lenient(message)
        if found is not None:
            await self._send_sdk(_to_sdk(found), headers)

    async def _send_request(self, request: OutgoingRequest) -> None:
        await self._send_sdk(_to_sdk(Request(request.id, request.method, request.params or None)), request.headers)

    async def _send(self, line: bytes) -> None:
        """Do nothing: messages are sent as the SDK knows them."""

    async def _send_sdk(self, message: JSONRPCMessage, headers: Mapping[str, str]) -> None:
        # A custom transport over HTTP sends the headers.
        metadata = ClientMessageMetadata(headers=dict(headers)) if headers else None
        await self._outgoing.send(SessionMessage(message, metadata=metadata))

    async def _read(self, incoming: Any) -> None:
        with suppress(*PIPE_CLOSED):
            async for item in incoming:
                if isinstance(item, SessionMessage):
                    message = _from_sdk(item.message)
                    if problem := await self._problem(message):
                        await self._drop(message, problem)
                    elif not self._settle(message):
                        await self._pass_on(message)
        self.closed.set(CLOSED)
        self._fail_all()

    async def _problem(self, message: Message) -> str:
        """How a message breaks the bounds that hold for its text from any other server; empty if it does not."""
        try:
            return await run_in_steps(value_problem(message, self._expected.bounds_of(message)))
        except (ValueError, RecursionError):
            return "is not valid JSON"

    async def _drop(self, message: Message, problem: str) -> None:
        request_id = same_id(message.get("id"))
        if request_id is not None and "method" not in message:
            await self._take_broken(Unreadable(request_id, f"its response {problem}"))
        else:
            logger.debug("a message %s", problem)


class _CustomTransport(_SdkStreams):
    """A transport that the user has made."""

    def __init__(self, options: ServerOptions, transport: AbstractAsyncContextManager[Any]) -> None:
        super().__init__(options)
        self._transport = transport

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            incoming, self._outgoing, *_ = await self._enter(stack)
            async with anyio.create_task_group() as group, self._outgoing, incoming:
                group.start_soon(self._read, incoming)
                try:
                    yield
                finally:
                    group.cancel_scope.cancel()

    async def _enter(self, stack: AsyncExitStack) -> Any:
        try:
            return await stack.enter_async_context(self._transport)
        except ToolcribError as error:
            raise ExchangeError(FailureKind.UNSENT, str(error).rstrip(".")) from error
        except (AttributeError, RuntimeError) as error:
            # Raised by a generator-based context manager that is entered again.
            if isinstance(self._transport, AsyncContextDecorator):
                raise ExchangeError(FailureKind.UNSENT, _SINGLE_USE) from error
            raise


class _ServerTransport(_SdkStreams):
    """A server in this process. It runs with its lifespan in its own task, and is asked to stop before it is cancelled.

    Plain streams, unlike those of the SDK's own clients, carry no context variables over: what is known about the
    request behind a call, such as its credentials, stays on this side.
    """

    def __init__(self, options: ServerOptions, server: Server[Any], fleet: FleetOptions, redact: Redactor) -> None:
        super().__init__(options)
        self._server = server
        self._stop_timeout_s = fleet.stop_timeout_s
        self._redact = redact
        self._done = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_MAX_QUEUED)
        self._outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
        async with anyio.create_task_group() as group:
            group.start_soon(self._serve, from_client, to_client)
            group.start_soon(self._read, incoming)
            try:
                yield
            finally:
                self.closed.set("stopped")
                self._outgoing.close()
                incoming.close()
                with anyio.move_on_after(self._stop_timeout_s, shield=True):
                    await self._done.wait()
                self._scope.cancel()
                group.cancel_scope.cancel()

    async def _serve(self, from_client: Any, to_client: Any) -> None:
        try:
            # A clone, because the server closes its streams before it reports why.
            with self._scope, from_client, to_client.clone() as copy:
                await self._server.run(from_client, copy, self._server.create_initialization_options())
            self.closed.set("its task ended")
        except Exception as error:  # noqa: BLE001 - any exception is reported as the reason
            cause = next(flatten_errors(error))
            self.closed.set(self._redact(f"its task ended with {type(cause).__name__}: {cause}"))
        finally:
            to_client.close()
            self._done.set()


def _to_sdk(message: messages.Message) -> JSONRPCMessage:
    match message:
        case Request(request_id, method, params):
            return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, **_given(params))
        case Notification(method, params):
            return JSONRPCNotification(jsonrpc="2.0", method=method, **_given(params))
        case Response(request_id, result):
            return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=dict(result))
        case ErrorResponse(error_id, error):
            return JSONRPCError(jsonrpc="2.0", id=error_id, error=ErrorData(**error.to_wire()))


def _given(params: Object | None) -> dict[str, Any]:
    return {} if params is None else {"params": dict(params)}


def _from_sdk(message: JSONRPCMessage) -> Message:
    if isinstance(message, JSONRPCResponse):  # its result is plain JSON already, and may be long
        return to_wire(Response(message.id, message.result))
    if isinstance(message, JSONRPCError):
        return to_wire(ErrorResponse(message.id, RpcError.of(message.error.model_dump(exclude_none=True))))
    if isinstance(message, JSONRPCNotification):
        return to_wire(Notification(message.method, message.params))
    return to_wire(Request(message.id, message.method, message.params))
