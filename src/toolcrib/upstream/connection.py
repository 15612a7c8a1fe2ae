"""A negotiated connection to one server: requests as plain JSON, with results exactly as the server sent them.

The SDK's own client session parses whole replies, and so loses a whole reply over one invalid part. It is used for
the handshake, for answering the server's own requests, and for subscriptions.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

import anyio
import anyio.abc
from mcp import ClientSession
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions, DispatchContext, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CONNECTION_CLOSED,
    LOG_LEVEL_META_KEY,
    PARSE_ERROR,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.sanitize import MAX_ERROR, MAX_INSTRUCTIONS, MAX_NAME, one_line
from toolcrib.tracing import TRACING
from toolcrib.types import Client, Context, Object, ServerInfo, SessionClient
from toolcrib.upstream.forwarding import CallDeadline, ServerMessages, UpstreamExchange
from toolcrib.upstream.negotiation import (
    CLIENT_INFO,
    NORMALIZE,
    SDK_CLOSED,
    TASKS_VERSION,
    Handshake,
    HeaderMap,
    NegotiatedProtocol,
    negotiate,
)
from toolcrib.upstream.open_calls import OpenCall
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import (
    NO_MESSAGE,
    Channel,
    Exchange,
    FastPathUnavailable,
    ReadRest,
    Streams,
    embedded_failure,
    encode_message,
)
from toolcrib.wire import CLIENT_CAPABILITIES, RELATED_TASK_META, replace_surrogates

_EMPTY: Final[Object] = {}
_SDK_STREAM_ENDED: Final = "SSE stream ended"
"""How the SDK's messages begin if the response's own stream broke off."""
_SDK_PARSE_FAILURE: Final = "Failed to parse JSON response: "
"""How the SDK begins its list of every rule that a response breaks."""
_CANCEL_TIMEOUT_S: Final = 1.0
"""For a server to accept that a task is cancelled."""


@asynccontextmanager
async def open_connection(
    channel: Channel,
    options: ServerOptions,
    fleet: FleetOptions,
    redact: Redactor,
    messages: ServerMessages,
    handshake: Handshake,
) -> AsyncIterator["Connection"]:
    """Connect and negotiate. Raises `ExchangeError`, alone or in a group.

    `messages` handles what the server sends outside of any response.
    """
    async with channel.transport as streams, anyio.create_task_group() as group:
        # Without another way, a server that starts slowly must not be taken for one of another version.
        patience_s = fleet.probe_timeout_s if handshake.initialize else options.start_timeout_s
        dispatcher = RawJsonDispatcher(streams, channel, messages, handshake, probe_timeout_s=patience_s)
        async with ClientSession(
            dispatcher=dispatcher,
            client_info=Implementation.model_validate(CLIENT_INFO),
            read_timeout_seconds=options.start_timeout_s,
        ) as client:
            try:
                await negotiate(client, dispatcher, handshake, patience_s=options.start_timeout_s)
            except MCPError as error:
                raise _exchange_error(error, redact) from error
            messages.start_soon = group.start_soon
            channel.notifications.on_message = messages.notify
            try:
                yield Connection(client, dispatcher, channel, redact, messages, show_all=options.show_all)
            finally:
                messages.start_soon = None
        group.cancel_scope.cancel()


class RawJsonDispatcher(JSONRPCDispatcher[TransportContext]):
    """The SDK's dispatcher with plain JSON results, tolerant of invalid handshakes and floods of notifications.

    Built on the public methods of `JSONRPCDispatcher`: `send_raw_request` and `run`.
    """

    def __init__(
        self,
        streams: Streams,
        channel: Channel,
        messages: ServerMessages,
        handshake: Handshake,
        *,
        probe_timeout_s: float,
    ) -> None:
        super().__init__(*streams)
        self._channel = channel
        self._messages = messages
        self._handshake = handshake
        self.probe_timeout_s = probe_timeout_s
        """How long to wait for the response to `server/discover`."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **routing: Any
    ) -> dict[str, Any]:
        """Return the result as it came, except for those of the handshake, which are normalized. Raises `MCPError`."""
        if method == "server/discover":
            opts = {**(opts or {}), "timeout": self.probe_timeout_s}
        if method == "initialize":
            offered = {"protocolVersion": self._handshake.version, "capabilities": dict(self._handshake.capabilities)}
            params = {**(params or {}), **offered}
        raw = await super().send_raw_request(method, params, opts, **routing)
        tidy = NORMALIZE.get(method)
        return raw if tidy is None else tidy(raw)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection until it ends, then set the channel's `closed`."""

        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            if on_notify_intercept is not None:
                on_notify_intercept(method, params)
            if method == "notifications/tools/list_changed":
                self._channel.refresh_needed.set()
            else:
                self._channel.notifications.dispatch(method, params)
            # Stop here: each notification passed on would cost a task.
            return True

        async def respond(
            dctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            if method in CLIENT_CAPABILITIES:
                return await self._messages.answer(method, params or {})
            return await on_request(dctx, method, params)

        try:
            await super().run(respond, on_notify, intercept, task_status=task_status)
        finally:
            self._channel.closed.set("the connection was closed")


class CallerRequest(NamedTuple):
    """A request of a caller's to one server."""

    ctx: Context
    method: str
    params: Object
    header_map: HeaderMap | None = None
    """That of the called tool."""
    limit: CallDeadline | None = None
    """A limit that does not run while the client answers a question."""
    open_call: OpenCall | None = None
    """What answers the server's questions in place of the client."""


class Connection:
    """A negotiated connection. Safe to use from several tasks at once."""

    def __init__(
        self,
        client: ClientSession,
        dispatcher: RawJsonDispatcher,
        channel: Channel,
        redact: Redactor,
        messages: ServerMessages,
        *,
        show_all: bool,
    ) -> None:
        self._client = client
        self._dispatcher = dispatcher
        self._redact = redact
        self._pending = 0
        self._idle: anyio.Event | None = None
        """Set when no request is under way; None until that is waited for."""
        self._level: object = "info"
        """The level of log messages that was last asked for; at first, it is the server's choice."""
        self.messages = messages
        self.channel = channel
        self.protocol = NegotiatedProtocol(client.protocol_version or "", show_all)
        self.capabilities = client.server_capabilities or ServerCapabilities()
        changing = (self.capabilities.tools, self.capabilities.prompts, self.capabilities.resources)
        self.takes_tasks = self.protocol.version == TASKS_VERSION and self.capabilities.tasks is not None
        """Whether the server runs calls of tools as tasks."""
        self.can_subscribe = self.protocol.modern and any(part is not None and part.list_changed for part in changing)

    @property
    def protocol_version(self) -> str:
        return self.protocol.version

    @property
    def info(self) -> ServerInfo:
        """What the server says about itself, truncated to a reasonable length."""
        server = self._client.server_info
        instructions = self._redact.prose(self._client.instructions or "", MAX_INSTRUCTIONS)
        if server is None:
            return ServerInfo(instructions=instructions)
        name, version, title = (one_line(text or "", MAX_NAME) for text in (server.name, server.version, server.title))
        about = self._redact.prose(server.description or "", MAX_INSTRUCTIONS)
        return ServerInfo(name=name, version=version, title=title, description=about, instructions=instructions)

    @property
    def has_tools(self) -> bool:
        """Whether the server declares tools at all."""
        return self.capabilities.tools is not None

    async def list_page(self, method: str, cursor: str | float | None, meta: Object = _EMPTY) -> dict[str, Any]:
        """Return one page of a list, such as `tools/list`; `meta` is added to `_meta`. Raises `ExchangeError`."""
        params: dict[str, Any] = {"cursor": cursor} if cursor is not None else {}
        if wire_meta := self.protocol.meta(meta, {}):
            params["_meta"] = wire_meta
        return await self._send_direct(method, params, self.protocol.headers(method))

    async def request(self, request: CallerRequest) -> dict[str, Any]:
        """Send a caller's request, and return its raw result.

        Raises `ExchangeError`, and `InvalidArguments` for params that cannot be encoded as JSON.
        """
        ctx, method, params, header_map, limit, open_call = request
        whole = self.protocol.params(ctx, params)
        encode_message(whole)
        headers = self.protocol.headers(method, params, header_map)
        if ctx.client is None:
            raw = await self._send_direct(method, whole, headers)
            return await self._task_result(request, raw, headers, None) if "task" in params else raw
        running = UpstreamExchange(
            ctx.client,
            self.messages.logs,
            may_ask=self.messages.may_ask,
            wants_logs=self._wants_logs(ctx),
            limit=limit,
            task="" if ctx.task is None else ctx.task.id,
        )
        if open_call is not None:
            running.ask, open_call.on_client = open_call.ask, running.replace_client
        with self.messages.track(running):
            try:
                raw = await self._send_direct(method, whole, headers, running)
                return await self._task_result(request, raw, headers, running) if "task" in params else raw
            finally:
                await running.close()

    def takes_plain_calls(self, ctx: Context) -> bool:
        """Whether nothing but the result of a call concerns the client, so that `call_plain` can be tried.

        What the server sends outside of the response is then for no client in particular, or for that of the session.
        """
        fast_path, client, messages = self.channel.fast_path, ctx.client, self.messages
        return (
            fast_path is not None
            and fast_path.is_usable
            and (fast_path.has_streams if messages.users == "session" else self._is_for_all)
            and (client is None or (isinstance(client, SessionClient) and not client.wants_progress))
            and (fast_path.has_streams or not self._wants_logs(ctx))
            and not TRACING.is_on
        )

    @property
    def _is_for_all(self) -> bool:
        """Whether no client in particular is concerned by what the server sends outside of its responses."""
        return self.messages.users == "all" and not self.messages.may_ask

    def _wants_logs(self, ctx: Context) -> bool:
        """Whether log messages that come with a response are for the client."""
        return self.protocol.modern and LOG_LEVEL_META_KEY in ctx.meta

    def call_plain(self, ctx: Context, params: Object, timeout_s: float) -> Awaitable[dict[str, Any] | None]:
        """Send such a call, and return its raw result; None if it has to be sent by `request`.

        Raises as `request` does, and `TimeoutError`.
        """
        if self.messages.users == "all" or ctx.client is None:
            return self._call_plain(ctx, params, timeout_s)
        return self._call_tracked(ctx, ctx.client, params, timeout_s)

    async def _call_tracked(
        self, ctx: Context, client: Client, params: Object, timeout_s: float
    ) -> dict[str, Any] | None:
        running = UpstreamExchange(client, self.messages.logs, may_ask=self.messages.may_ask)
        with self.messages.track(running):
            try:
                return await self._call_plain(ctx, params, timeout_s, running)
            finally:
                await running.close()

    async def _call_plain(
        self, ctx: Context, params: Object, timeout_s: float, running: UpstreamExchange | None = None
    ) -> dict[str, Any] | None:
        fast_path = self.channel.fast_path
        if fast_path is None:
            return None
        begun_at = asyncio.get_running_loop().time()
        self._pending += 1
        try:
            found = await fast_path.call_plain(self.protocol.params(ctx, params), self.protocol, timeout_s)
            if found is None or isinstance(found, dict):
                return found
            with anyio.move_on_at(begun_at + timeout_s) as scope:
                limit = CallDeadline(scope, timeout_s, timeout_s)
                return await (self._read_rest(ctx, found, limit) if running is None else found(running))
            raise TimeoutError
        except FastPathUnavailable:
            return None
        except (MCPError, ExchangeError) as error:
            raise await self._failure(error) from error
        finally:
            self._ended()

    async def _read_rest(self, ctx: Context, read: ReadRest, limit: CallDeadline) -> dict[str, Any]:
        """Read a response that is a stream, or a long one: the client may be asked something before its end."""
        if ctx.client is None:
            return await read(None)
        running = UpstreamExchange(
            ctx.client,
            self.messages.logs,
            may_ask=self.messages.may_ask,
            wants_logs=self._wants_logs(ctx),
            limit=limit,
        )
        with self.messages.track(running):
            try:
                return await read(running)
            finally:
                await running.close()

    async def _task_result(
        self, request: CallerRequest, created: dict[str, Any], headers: dict[str, str], exchange: Exchange | None
    ) -> dict[str, Any]:
        """Return the task that a call has created, to a client that wants a task; to others, its result.

        The task is cancelled if such a client does not wait for it.
        """
        task = created.get("task")
        task_id = task.get("taskId") if isinstance(task, dict) else None
        if not isinstance(task, dict) or not isinstance(task_id, str):
            return created
        if request.ctx.task is not None:
            self.messages.follow_task(task, request.ctx.task)
            return created
        try:
            result = await self._send_direct("tasks/result", {"taskId": task_id}, headers, exchange)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_CANCEL_TIMEOUT_S, shield=True), suppress(ExchangeError):
                await self._send_direct("tasks/cancel", {"taskId": task_id}, headers)
            raise
        if isinstance(meta := result.get("_meta"), dict):
            # The caller knows nothing of the task.
            meta.pop(RELATED_TASK_META, None)
        return result

    def lacks_log_level(self, ctx: Context) -> bool:
        """Whether an older server has to be asked for log messages of the level that the client wants."""
        level = ctx.meta.get(LOG_LEVEL_META_KEY)
        is_known = self.protocol.modern or level is None or level == self._level
        return not is_known and self.capabilities.logging is not None

    async def set_log_level(self, ctx: Context) -> None:
        """Ask an older server for log messages of the level that the client wants, if it does not know yet."""
        if not self.lacks_log_level(ctx):
            return
        level = self._level = ctx.meta[LOG_LEVEL_META_KEY]
        with suppress(ExchangeError):
            await self._send("logging/setLevel", {"level": level}, self.protocol.headers("logging/setLevel"))

    async def notify_roots_changed(self) -> None:
        """Notify a server of an older version that its client's roots changed."""
        await self._dispatcher.notify("notifications/roots/list_changed", None)

    async def subscribe_resource(self, uri: str, *, on: bool) -> None:
        """Subscribe to a resource of a server of an older version, or unsubscribe. Raises `ExchangeError`."""
        method = "resources/subscribe" if on else "resources/unsubscribe"
        await self._send(method, {"uri": uri}, self.protocol.headers(method))

    async def follow_list_changes(self, retry_s: float) -> None:
        """Subscribe to list changes for as long as the connection lasts, and set the channel's events."""
        capabilities, notifications = self.capabilities, self.channel.notifications
        while True:
            try:
                async with listen(
                    self._client,
                    tools_list_changed=_list_changes(capabilities.tools),
                    prompts_list_changed=_list_changes(capabilities.prompts),
                    resources_list_changed=_list_changes(capabilities.resources),
                ) as subscription:
                    async for _ in subscription:
                        pass
            except (SubscriptionLost, TimeoutError):
                pass
            except MCPError as error:
                if embedded_failure(error) is None:
                    return
            await anyio.sleep(retry_s)
            self.channel.refresh_needed.set()
            notifications.lists_changed.set()

    @asynccontextmanager
    async def resource_updates(self, uris: Iterable[str]) -> AsyncIterator[Subscription]:
        """Subscribe to these resources of a server of a newer version; entered once it has confirmed.

        Raises `ExchangeError`. Iteration ends, or raises `SubscriptionLost`, when the subscription ends.
        """
        try:
            async with listen(self._client, resource_subscriptions=tuple(uris)) as subscription:
                yield subscription
        except MCPError as error:
            raise _exchange_error(error, self._redact) from error

    async def wait_idle(self) -> None:
        """Wait until no request is under way."""
        while self._pending:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def _ended(self) -> None:
        self._pending -= 1
        if not self._pending and self._idle is not None:
            self._idle.set()
            self._idle = None

    async def _send_direct(
        self, method: str, params: dict[str, Any], headers: dict[str, str], exchange: Exchange | None = None
    ) -> dict[str, Any]:
        """Send a request on the fast path, if there is one."""
        fast_path, modern = self.channel.fast_path, self.protocol.modern
        if fast_path is not None and fast_path.is_usable:
            try:
                with TRACING.request(method, params):
                    return await self._exchange(
                        fast_path.call(method, params, headers, modern=modern, exchange=exchange)
                    )
            except FastPathUnavailable:
                pass
        return await self._send(method, params, headers, exchange)

    async def _send(
        self, method: str, params: dict[str, Any], headers: dict[str, str], exchange: Exchange | None = None
    ) -> dict[str, Any]:
        opts: CallOptions = {"headers": headers}
        if exchange is not None:
            opts["on_progress"] = exchange.progress
        return await self._exchange(self._dispatcher.send_raw_request(method, params, opts))

    async def _exchange(self, exchange: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        self._pending += 1
        try:
            return await exchange
        except (MCPError, ExchangeError) as error:
            raise await self._failure(error) from error
        finally:
            self._ended()

    async def _failure(self, error: MCPError | ExchangeError) -> ExchangeError:
        failure = _exchange_error(error, self._redact) if isinstance(error, MCPError) else error
        if failure.kind is FailureKind.LOST:
            self.channel.refresh_needed.set()
        if failure.kind is FailureKind.CLOSED and self.channel.closed.is_set:
            failure = ExchangeError(FailureKind.CLOSED, self.channel.closed.reason)
        if _blames_session(failure) and not self.protocol.modern and await self.channel.has_lost_session():
            failure = ExchangeError(FailureKind.SESSION, failure.reason)
        return failure


def _blames_session(failure: ExchangeError) -> bool:
    """Whether a server may say that it does not know the session; servers say it in many ways, and tools too."""
    return failure.kind in (FailureKind.ANSWER, FailureKind.STATUS) and "session" in failure.reason.lower()


def _list_changes(part: ToolsCapability | PromptsCapability | ResourcesCapability | None) -> bool:
    return part is not None and part.list_changed is True


def _exchange_error(error: MCPError, redact: Redactor) -> ExchangeError:
    """Map the SDK's single error type to the kinds of failures."""
    failure = embedded_failure(error)
    if failure is not None:
        return failure
    message = redact(error.message, MAX_ERROR)
    if error.code == CONNECTION_CLOSED and message == SDK_CLOSED:
        return ExchangeError(FailureKind.CLOSED, "the connection was closed")
    if error.code == CONNECTION_CLOSED and message.startswith(_SDK_STREAM_ENDED):
        return ExchangeError(FailureKind.LOST, "the connection broke off")
    if error.code == PARSE_ERROR and message.startswith(_SDK_PARSE_FAILURE):
        return ExchangeError(FailureKind.ANSWER, NO_MESSAGE)
    return ExchangeError(FailureKind.ANSWER, message, code=error.code, data=replace_surrogates(error.data))
