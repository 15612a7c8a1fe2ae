"""One remote MCP server as a provider of tools, prompts and resources: its calls, and the errors that callers see.

A client is asked to have its user log in to a server by URL elicitation, in the form of its protocol version. A client
of 2026-07-28 gets the question as the answer of its call, and calls again. An older client that can open addresses is
asked while its call waits. Any other client gets an error with the address.
"""

import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
from pydantic_core import to_json

from toolcrib.errors import (
    CallTimeout,
    ConnectionLost,
    ExecutionFailed,
    LoginRequired,
    ServerUnavailable,
    UpstreamError,
)
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.protocol.headers import HeaderMap
from toolcrib.providers.base import Documents, OnNotification
from toolcrib.types import (
    Client,
    Context,
    Key,
    Object,
    ServerState,
    ServerStatus,
    SessionClient,
    Tool,
    ToolResult,
    Unsubscribe,
)
from toolcrib.upstream.catalog.cache import CatalogCache
from toolcrib.upstream.catalog.listing import RemoteTool
from toolcrib.upstream.catalog.pins import TRUST_META
from toolcrib.upstream.connection import CallerRequest, ServerConnection
from toolcrib.upstream.deadlines import Deadline, SharedTimer, paused
from toolcrib.upstream.open_calls import OpenCalls, is_open_call
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.remote_server import Listeners, Logins, RemoteServer
from toolcrib.upstream.session_connections import SessionLease, SessionUnavailable
from toolcrib.upstream.supervisor import Supervisor
from toolcrib.wire import read_document, read_result

logger = logging.getLogger(__name__)

_UNKNOWN_EFFECT: Final = "Whether the call took effect is unknown; check before repeating it."
_SESSION_FORGOTTEN: Final = "it does not know the session it has just opened"
_FIRST_RESEND_S: Final = 0.05
_MAX_RESEND_S: Final = 0.4
_MAX_ERROR_DATA_BYTES: Final = 8192
"""Larger `data` of a server's error is not passed on."""
LOGIN_KEY: Final = "toolcrib_login"
"""The key of the question among a result's input requests, and of its answer."""
_NOTIFY_TIMEOUT_S: Final = 1.0
"""How long a server may take to accept a notification, in seconds: the client's next message waits for it."""
LOGIN_WAIT_S: Final = 50.0
"""How long a call waits for a login once the user has agreed to open its page."""
_STATE: Final = "toolcrib-login"
"""The `requestState` of a call that waits for a login. It holds nothing: the vault knows who has logged in."""


class UpstreamServer(RemoteServer):
    """The provider of one MCP server's tools, prompts and resources.

    Its namespace is its name, unless the options give another.
    """

    runs_elsewhere = True

    def __init__(
        self,
        options: ServerOptions,
        fleet: FleetOptions,
        cache: CatalogCache | None = None,
        logins: Logins | None = None,
    ) -> None:
        """Nothing is tried before `run`. `cache` keeps the catalog for the next run."""
        self.options = options
        self.gateway_id = fleet.gateway_id
        """The id of its fleet."""
        self._resend_s = fleet.resend_s
        self._supervisor = Supervisor(options, fleet, cache, logins)
        self._logins = logins
        self._open_calls = OpenCalls(self._supervisor.sessions.start_soon)
        self._timer = SharedTimer()
        """Of the deadlines of calls."""
        self._running = 0
        """Requests of callers."""
        self._idle: anyio.Event | None = None
        """Set when none is running any more; None until that is waited for."""

    @property
    def name(self) -> str:
        """Unique within its fleet."""
        return self.options.name

    @property
    def namespace(self) -> str:
        """Namespace of its tools."""
        return self.options.namespace or self.options.name

    @property
    def status(self) -> ServerStatus:
        return self._supervisor.status_store.status

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools as last read. A tool whose definition did not change stays the same object."""
        return self._supervisor.tool_list.tools

    async def restore(self) -> None:
        """Take over the catalog of an earlier run, if it is known."""
        await self._supervisor.restore()

    async def run(self) -> None:
        """Keep it connected until cancelled; then close everything it holds."""
        await self._supervisor.run()

    def revive(self) -> bool:
        """Try the server again if it was given up. Returns whether it was."""
        return self._supervisor.revive()

    @property
    def found_changes(self) -> Listeners:
        """Notified when its list of tools was found to be another one, unless another process has said so."""
        return self._supervisor.found_changes

    def list_again(self) -> None:
        """List again soon, because another process has found that the lists changed."""
        self._supervisor.list_again()

    def end(self) -> None:
        """Refuse what waits for a connection, as none will come any more."""
        self._supervisor.end()

    def succeed(self, earlier: RemoteServer | None) -> None:
        self._open_calls.earlier = earlier._open_calls if isinstance(earlier, UpstreamServer) else None  # noqa: SLF001 - of the same class

    async def wait_idle(self) -> None:
        """Wait until no request of a caller is running, and none waits for a person's answer."""
        while self._running or self._open_calls.is_waiting:
            if self._running:
                self._idle = self._idle or anyio.Event()
                await self._idle.wait()
            else:
                await self._open_calls.wait_over()

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Its one status."""
        return (self.status,)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever its tools or its status changed."""
        return self._supervisor.status_store.listeners.add(callback)

    async def list_tools(self, ctx: Context) -> tuple[Tool, ...]:  # noqa: ARG002 - the same for every caller
        """Return its tools as last read, without a request to the server."""
        return self.tools

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run a tool by the server's own name for it, with one request. Returns None if there is no such tool.

        A result with `is_error` is returned, not raised. Raises `ServerUnavailable` (nothing ran), `CallTimeout`,
        `ConnectionLost` (unknown whether it ran), `UpstreamError`, and `InvalidArguments` for arguments that are not
        JSON.
        """
        if ctx.request_state is not None and (earlier := self._open_calls.earlier) is not None:
            holding = earlier.holding(ctx)
            if holding is not None:
                return self._read(_read_call, await holding.resume(ctx))
        known = self._supervisor.tool_list.by_name if self._supervisor.connection else await self._listed_tools(ctx)
        tool = known.get(name)
        if tool is None:
            return None
        result = await self._run(ctx, tool, arguments, name)
        note = self._supervisor.pins.note(tool.own_name)
        return replace(result, meta={**result.meta, TRUST_META: note}) if note else result

    def call_key(self, ctx: Context, key: Key, arguments: Object) -> Coroutine[Any, Any, ToolResult | None]:
        """Run a tool by its key: all have one namespace."""
        return self.call_tool(ctx, key.name, arguments)

    def explain_change(self, key: Key, arguments: Object) -> str:
        """What changed in a tool, if the arguments fit its trusted definition and not the current one."""
        tool = self._supervisor.tool_list.by_name.get(key.name)
        return "" if tool is None else self._supervisor.pins.review.explain(tool.own_name, arguments)

    async def _listed_tools(self, ctx: Context) -> Mapping[str, RemoteTool]:
        """Return the tools by name, once connected or if only a login is missing. Raises `ServerUnavailable`."""
        connected, known = await self._supervisor.wait_connected(), self._supervisor.tool_list.by_name
        if connected is None and not (known and self.status.state is ServerState.NEEDS_LOGIN):
            raise await self._not_connected(ctx)
        return known

    async def _run(
        self, ctx: Context, tool: RemoteTool, arguments: Object, name: str, limit: Deadline | None = None
    ) -> ToolResult:
        """Call the tool within the limit, or the call timeout; `name` is the tool that a timeout error names."""
        sent = dict(arguments) if tool.override is None else tool.override.arguments_for(arguments)
        params: dict[str, Any] = {"name": tool.own_name, "arguments": sent}
        if ctx.task is not None and tool.tool.may_be_task:
            params["task"] = {} if ctx.task.ttl_ms is None else {"ttl": ctx.task.ttl_ms}
        elif tool.is_task:
            params["task"] = {}
        raw = await self._request(ctx, "tools/call", params, name, limit, tool.header_map)
        if self._supervisor.status_store.status.stale:
            self._supervisor.wake()
        return self._read(_read_call, raw)

    async def _request(
        self,
        ctx: Context,
        method: str,
        params: Object,
        name: str = "",
        limit: Deadline | None = None,
        header_map: HeaderMap | None = None,
    ) -> dict[str, Any]:
        """Send a caller's request, and return its raw result; or what an older server asks, for a newer client.

        It ends within the limit, which is that of calls if there is none; a timeout error names what `name` says.
        """
        limit = limit or Deadline(self.options.call_timeout_s, self.options.call_max_timeout_s, self._timer)
        request = CallerRequest(ctx, method, params, header_map, limit)
        self._running += 1
        try:
            with limit:
                return await (self._route(request) if self._logins is None else self._with_login(self._logins, request))
        except TimeoutError:
            raise self._timeout(name or method, limit) from None
        finally:
            self._running -= 1
            if not self._running and self._idle is not None:
                self._idle.set()
                self._idle = None

    async def _with_login(self, logins: Logins, request: CallerRequest) -> dict[str, Any]:
        """Do the same for a server that may need a login: ask the client to have its user log in."""
        ctx = request.ctx
        logins.present(ctx, self.options)
        if _is_login_answer(ctx):
            request = request._replace(ctx=_without_login_answer(ctx))
            await self._wait_login(logins, ctx, request.limit)
        try:
            return await self._route(request)
        except LoginRequired as error:
            question = _login_question(error)
            if question is None or ctx.client is None:
                raise
            if _can_return_question(ctx.client):
                return _as_input_required(question)
            if not _can_be_asked(ctx.client):
                raise
            with paused(request.limit):
                answer = await ctx.client.elicit(question)
            if answer.get("action") != "accept":
                raise
            await self._wait_login(logins, ctx, request.limit)
            return await self._route(request)

    async def _wait_login(self, logins: Logins, ctx: Context, limit: Deadline | None) -> None:
        with paused(limit):
            await logins.wait_ended(ctx, self.options, LOGIN_WAIT_S)
        self._supervisor.expect_login()

    async def _route(self, request: CallerRequest) -> dict[str, Any]:
        """Resume an open call, open one, or send the request."""
        connection = self._supervisor.connection
        if connection is not None and connection.protocol.modern:
            return await self._send(request)
        ctx = request.ctx
        await self._supervisor.declare_client(ctx)
        connection = self._supervisor.connection
        is_modern = connection is not None and connection.protocol.modern
        if is_open_call(ctx) and not is_modern:
            return await self._open_calls.resume(ctx)
        if not self._stays_open(ctx):
            return await self._send(request)
        first = request._replace(ctx=replace(ctx, input_responses=None, request_state=None))
        return await self._open_calls.begin(ctx, lambda call: self._send(first._replace(open_call=call)))

    def _stays_open(self, ctx: Context) -> bool:
        """Whether the server may ask during the request, and its client answers by repeating it."""
        client, connection = ctx.client, self._supervisor.connection
        if client is None or connection is None or connection.protocol.modern:
            return False
        if not isinstance(client, SessionClient) or not client.repeats_requests:
            return False
        own = self.options.asks is None and self._supervisor.sessions.wants_own(ctx)
        return bool((connection.messages.may_ask or own) and client.capabilities)

    async def _send(self, request: CallerRequest) -> dict[str, Any]:
        """Send a request, and return its raw result.

        The request is sent again if it provably did not run: once in a new session, if the server forgot the old one,
        and for a moment if the server cannot be reached, since it may be restarting.
        """
        session_lost = False
        pauses: Iterator[float] | None = None
        while True:
            shared = self._supervisor.connection
            try:
                if shared is not None and not self._supervisor.sessions.wants_own(request.ctx):
                    shared.messages.record_caller(request.ctx)
                    return await shared.request(request)
                lease = await self._lease(request.ctx)
                try:
                    return await lease.connection.request(request)
                finally:
                    lease.release()
            except ExchangeError as error:
                if error.kind is FailureKind.LOGIN:
                    raise await self._login_required(request.ctx, error.reason) from error
                pauses = pauses or self._pauses()
                pause = next(pauses, None) if error.kind is FailureKind.UNSENT else None
                if pause is None and (session_lost or error.kind is not FailureKind.SESSION):
                    raise self._caller_error(error) from error
                session_lost = session_lost or error.kind is FailureKind.SESSION
            await anyio.sleep(pause or 0.0)

    async def _lease(self, ctx: Context) -> SessionLease:
        """Return the connection of the request's session, or the one that all clients share, and note its use.

        Raises `ServerUnavailable`.
        """
        sessions, shared = self._supervisor.sessions, self._supervisor.connection
        if shared is None and not sessions.are_independent:
            shared = await self._connected(ctx)
        if sessions.wants_own(ctx):
            own = await self._own_lease(ctx)
            if own is not None:
                return own
            shared = None  # it may have been closed meanwhile
        shared = shared or await self._connected(ctx)
        shared.messages.record_caller(ctx)
        return SessionLease(shared, _keep)

    async def _connected(self, ctx: Context) -> ServerConnection:
        shared = await self._supervisor.wait_connected()
        if shared is None:
            raise await self._not_connected(ctx)
        return shared

    async def _own_lease(self, ctx: Context) -> SessionLease | None:
        """Return the connection of the request's session; None if there is none, and the shared one serves it."""
        sessions = self._supervisor.sessions
        try:
            return await sessions.lease(ctx)
        except SessionUnavailable as error:
            if sessions.falls_back:
                return None
            if error.needs_login:
                raise await self._login_required(ctx, error.reason) from error
            raise self._unavailable(error.reason) from error

    def _pauses(self) -> Iterator[float]:
        """Yield the pauses between attempts to send, in seconds; none if the server has been away for long."""
        status = self.status
        left = self._resend_s - (0.0 if status.state is ServerState.READY else time.time() - status.since)
        pause = _FIRST_RESEND_S
        while left >= pause:
            left -= pause
            yield pause
            pause = min(2 * pause, _MAX_RESEND_S)

    def _read(self, read: Callable[[dict[str, Any]], ToolResult], raw: dict[str, Any]) -> ToolResult:
        try:
            for key in ("content", "contents", "messages"):
                blocks = raw.get(key)
                if isinstance(blocks, list) and len(blocks) > self.options.max_result_blocks:
                    raise _too_many(len(blocks), self.options.max_result_blocks)
            return read(raw)
        except UpstreamError as error:
            raise UpstreamError(f'"{self.name}": {error.message}', data={"server": self.name}) from error

    async def request_task(self, ctx: Context, method: str, task_id: str) -> ToolResult:
        """Return the task that a call has created or, for `tasks/result`, its result. Raises as `call_tool` does.

        A client waits for `tasks/result` for as long as it likes.
        """
        params = {"taskId": task_id}
        if method == "tasks/result":
            return self._read(read_result, await self._request(ctx, method, params, limit=Deadline(math.inf)))
        return ToolResult(kind="task", structured=await self._request(ctx, method, params))

    # -- prompts and resources -------------------------------------------------------------------------------------

    def documents(self) -> Documents | None:
        """Return its prompts and resources as last read; None before the first time."""
        return self._supervisor.document_lister.documents

    async def request_document(self, ctx: Context, method: str, params: Object) -> ToolResult:
        """Return the whole result of a request about a prompt or a resource, as structured content.

        Raises as `call_tool` does.
        """
        return self._read(partial(read_document, method), await self._request(ctx, method, params))

    def extensions(self) -> Mapping[str, Object]:
        """Return the extensions that it declared last, other than tasks: no client of it gets one."""
        return self._supervisor.sessions.extensions

    async def request_extension(self, ctx: Context, method: str, params: Object) -> ToolResult:
        """Return the whole result of a method that no version defines, unread. Raises as `call_tool` does."""
        return ToolResult(structured=await self._request(ctx, method, params))

    async def notify_extension(self, ctx: Context, method: str, params: Object) -> None:
        """Send a notification that no version defines, unread; it is dropped if the server does not take it at once."""
        await self._supervisor.declare_client(ctx)
        with anyio.move_on_after(_NOTIFY_TIMEOUT_S) as limit:
            try:
                lease = await self._lease(ctx)
                try:
                    await lease.connection.notify(ctx, method, params)
                finally:
                    lease.release()
            except (ExchangeError, ExecutionFailed) as error:
                logger.info("%s was not sent %s: %s", self.name, method, error)
        if limit.cancelled_caught:
            logger.info("%s did not take %s within %g s", self.name, method, _NOTIFY_TIMEOUT_S)

    async def watch_resource(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call back with the URI whenever the resource, or one below it, changed.

        Raises as `request_document` does, and `UpstreamError` if the server does not support it.
        """
        self._supervisor.wake()
        use = partial(self._supervisor.record_caller, ctx)
        try:
            with Deadline(self.options.call_timeout_s):
                return await self._supervisor.subscriptions.add(uri, callback, use)
        except TimeoutError:
            raise self._timeout("resources/subscribe") from None
        except ExchangeError as error:
            raise self._caller_error(error) from error

    def subscribe_notifications(self, callback: OnNotification) -> Unsubscribe:
        """Call back with each log message, and notification of an extension, that belongs to no running request."""
        return self._supervisor.logs.subscribe(callback)

    def roots_changed(self, ctx: Context) -> None:
        """Notify the server that the roots of the context's session changed, if it can ask that session for them."""
        self._supervisor.roots_changed(ctx)

    def end_session(self, ctx: Context) -> None:
        """Close the connections that belong to the context's session, which has ended."""
        if ctx.session is not None:
            self._supervisor.sessions.end_session(ctx.caller, ctx.session)

    def wake(self) -> None:
        """Cut the pause before the next attempt to connect short."""
        self._supervisor.wake()

    # -- errors ----------------------------------------------------------------------------------------------------

    def _unavailable(self, reason: str = "") -> ServerUnavailable:
        status = self.status
        reason = reason or status.reason or "it is still connecting"
        # How long it was ready says nothing about a server that is unavailable now.
        lasting = f" ({status.state.value} for {_duration(time.time() - status.since)})"
        since = "" if status.state is ServerState.READY else lasting
        return ServerUnavailable(
            f'The server "{self.name}" is not available: {reason}{since}.',
            hint=f"Nothing was run. {self._next_try()}",
            data={
                "server": self.name,
                "state": status.state.value,
                "reason": reason,
                "since": status.since,
                "retry_at": status.retry_at,
            },
        )

    async def _not_connected(self, ctx: Context) -> ExecutionFailed:
        if self.status.state is ServerState.NEEDS_LOGIN:
            return await self._login_required(ctx, self.status.reason, shared=True)
        return self._unavailable()

    async def _login_required(self, ctx: Context, reason: str, *, shared: bool = False) -> ExecutionFailed:
        if self._logins is None:
            return self._unavailable(reason)
        return await self._logins.require(ctx, self.options, reason, shared=shared)

    def _timeout(self, name: str, deadline: Deadline | None = None) -> CallTimeout:
        """The error for a request that has met its deadline; it says which limit that was."""
        limit, seconds, what = "timeouts.call", self.options.call_timeout_s, f"did not answer {name} within"
        if deadline is not None and deadline.is_extended and deadline.is_last:
            limit, seconds, what = "timeouts.call_max", self.options.call_max_timeout_s, f"still worked on {name} after"
        elif deadline is not None and deadline.is_extended:
            what = f"reported no progress of {name} for"
        return CallTimeout(
            f'"{self.name}" {what} {seconds:g} s ({limit}) and was cancelled.',
            hint=_UNKNOWN_EFFECT,
            data={"server": self.name, "timeout_s": seconds, "limit": limit},
        )

    def _caller_error(self, error: ExchangeError) -> ExecutionFailed:
        """The error that a caller of this server sees."""
        if error.kind is FailureKind.UNSENT:
            self._supervisor.report_unreachable(error.reason)
            return self._unavailable(error.reason)
        if error.kind is FailureKind.SESSION:
            return self._unavailable(f"{_SESSION_FORGOTTEN}: {error.reason}")
        if error.kind in (FailureKind.CLOSED, FailureKind.LOST):
            return self._lost(error)
        data: dict[str, Any] = {"server": self.name}
        if error.code is not None:
            data["rpc_code"] = error.code
        if error.retry_after_s:
            data["retry_after_s"] = error.retry_after_s
        if error.data is not None and len(to_json(error.data)) <= _MAX_ERROR_DATA_BYTES:
            data["rpc_data"] = error.data
        answer = None if error.answer is None else error.answer.to_wire()
        return UpstreamError(f'"{self.name}" answered with an error: {error.reason}', data=data, rpc_error=answer)

    def _lost(self, error: ExchangeError) -> ConnectionLost:
        return ConnectionLost(
            f'The connection to "{self.name}" was lost during the call: {error.reason}.',
            hint=_UNKNOWN_EFFECT,
            data={"server": self.name, "reason": error.reason},
        )

    def _next_try(self) -> str:
        retry_at = self.status.retry_at
        if self.options.problem:
            return "Fix its configuration to have it tried again."
        if self._supervisor.given_up:
            return "It is not tried again until the settings are reloaded or the gateway is restarted."
        if retry_at is None:
            return "It is being tried right now."
        return f"It is tried again in {max(0, round(retry_at - time.time()))} s."


def _keep() -> None:
    """Keep the connection that all clients share after a request."""


def _too_many(blocks: int, most: int) -> UpstreamError:
    text = f"The server's result holds {blocks:,} blocks and was dropped; the limit of {most:,} is results.max_blocks."
    return UpstreamError(text)


def _read_call(raw: dict[str, Any]) -> ToolResult:
    task = raw.get("task")
    return ToolResult(kind="task", structured=task) if isinstance(task, dict) else read_result(raw)


def _duration(seconds: float) -> str:
    """Format a duration roughly.

    >>> _duration(5.2), _duration(90), _duration(7200)
    ('5 s', '1 min', '2 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _login_question(error: LoginRequired) -> Object | None:
    """Return the params of an `elicitation/create` request; None if the caller has no address to log in at."""
    url = error.data.get("url")
    if not isinstance(url, str) or not url:
        return None
    return {"mode": "url", "message": f'The server "{error.data.get("server")}" needs a login.', "url": url}


def _can_return_question(client: Client) -> bool:
    """Whether the client takes the question as the answer of its call, and opens addresses."""
    return isinstance(client, SessionClient) and client.repeats_requests and _opens_urls(client)


def _can_be_asked(client: Client) -> bool:
    """Whether the client can be asked while its call waits, and opens addresses."""
    return isinstance(client, SessionClient) and client.can_ask("elicitation/create") and _opens_urls(client)


def _opens_urls(client: Client) -> bool:
    elicitation = client.capabilities.get("elicitation")
    return isinstance(elicitation, dict) and "url" in elicitation


def _as_input_required(question: Object) -> dict[str, Any]:
    """Return the question as the raw result of a call."""
    request = {"method": "elicitation/create", "params": dict(question)}
    return {"resultType": "input_required", "inputRequests": {LOGIN_KEY: request}, "requestState": _STATE}


def _is_login_answer(ctx: Context) -> bool:
    """Whether the request repeats one that needed a login. Raises `LoginRequired` if the user has declined it."""
    if ctx.request_state != _STATE:
        return False
    answer = (ctx.input_responses or {}).get(LOGIN_KEY)
    if isinstance(answer, dict) and answer.get("action") in ("decline", "cancel"):
        raise LoginRequired("Nothing was run: the login was declined.", hint="Call again to be asked again.")
    return True


def _without_login_answer(ctx: Context) -> Context:
    """Return the context for the server, which knows nothing of the question."""
    return replace(ctx, request_state=None, input_responses=None)
