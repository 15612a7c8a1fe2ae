"""A negotiated connection to one server: requests as plain JSON, with results exactly as the server sent them.

Moves what a `ClientSession` makes and reads over a `Transport`. What the server sends of its own goes to the request
that it concerns, or to the handlers of the connection.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import anyio.abc

from toolcrib.errors import InvalidArguments
from toolcrib.protocol.calling import (
    Cancelled,
    ClientSession,
    Event,
    OutgoingRequest,
    Progress,
    Subscribed,
)
from toolcrib.protocol.failures import METHOD_NOT_FOUND, ExchangeError, FailureKind, RpcError
from toolcrib.protocol.headers import HeaderMap
from toolcrib.protocol.messages import Notification, Request, RequestId, to_wire
from toolcrib.protocol.negotiation import Handshake, ServerProfile, shares_extension
from toolcrib.protocol.versions import INPUT_REQUESTS, LOG_LEVEL_KEY, LOG_MESSAGE, RELATED_TASK_KEY, is_defined
from toolcrib.sanitize import MAX_ERROR, MAX_INSTRUCTIONS, MAX_NAME, one_line
from toolcrib.tracing import TRACING
from toolcrib.types import Client, Context, Object, ServerInfo, SessionClient
from toolcrib.upstream.deadlines import Deadline
from toolcrib.upstream.forwarding import TASK_STATUS, ServerMessages, UpstreamExchange, refuse
from toolcrib.upstream.open_calls import OpenCall
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import AutoResetEvent, Message, OnMessage, Transport, result_of
from toolcrib.wire import replace_surrogates

logger = logging.getLogger(__name__)

_EMPTY: Final[Object] = {}
_CANCEL_TIMEOUT_S: Final = 1.0
"""For a server to accept that a request or a task is cancelled."""
_MAX_QUESTIONS: Final = 256
"""Questions of one server that are answered at the same time."""
_LIST_CHANGED: Final = frozenset({"notifications/prompts/list_changed", "notifications/resources/list_changed"})
_CHANGING: Final = ("tools", "prompts", "resources")
_CLIENT_NOTIFICATIONS: Final = frozenset({LOG_MESSAGE, "notifications/elicitation/complete"})

Ask = Callable[[], Awaitable[Object]]
"""Finds the answer to a question of a server. Raises `RpcError`."""


@asynccontextmanager
async def open_connection(
    transport: Transport,
    options: ServerOptions,
    fleet: FleetOptions,
    redact: Redactor,
    messages: ServerMessages,
    handshake: Handshake,
) -> AsyncIterator["ServerConnection"]:
    """Connect and negotiate. Raises `ExchangeError`, alone or in a group.

    `messages` handles what the server sends outside of any response.
    """
    session = ClientSession(handshake, show_all=options.show_all)
    connection = ServerConnection(session, transport, redact, messages, patience_s=options.start_timeout_s)
    async with transport.opened(connection.receive), anyio.create_task_group() as group:
        try:
            connection.begin(group)
            await connection.negotiate(fleet.probe_timeout_s)
            yield connection
        finally:
            connection.end()
            group.cancel_scope.cancel()


class CallerRequest(NamedTuple):
    """A request of a caller's to one server."""

    ctx: Context
    method: str
    params: Object
    header_map: HeaderMap | None = None
    """That of the called tool."""
    limit: Deadline | None = None
    """A limit that does not run while the client answers a question."""
    open_call: OpenCall | None = None
    """What answers the server's questions in place of the client."""


class Subscription:
    """A subscription stream of a server of a newer version."""

    def __init__(self) -> None:
        self.agreed: Object = {}
        """What the server has agreed to report."""
        self._confirmed, self._ended = anyio.Event(), anyio.Event()
        self._failure: ExchangeError | None = None

    def confirm(self, agreed: Object) -> None:
        if not self._confirmed.is_set():
            self.agreed = agreed
            self._confirmed.set()

    def end(self, failure: ExchangeError | None = None) -> None:
        self._failure = self._failure or failure
        self._ended.set()
        self._confirmed.set()

    async def wait_confirmed(self) -> None:
        """Wait for the server's answer. Raises `ExchangeError` if it refused, or if the stream ended before."""
        await self._confirmed.wait()
        if self._failure is not None:
            raise self._failure

    async def wait_ended(self) -> None:
        """Wait until the stream ends, in whichever way."""
        await self._ended.wait()


class ServerConnection:
    """A negotiated connection. Safe to use from several tasks at once."""

    def __init__(
        self,
        session: ClientSession,
        transport: Transport,
        redact: Redactor,
        messages: ServerMessages,
        *,
        patience_s: float,
    ) -> None:
        """`patience_s` is how long to wait for an answer that has to come."""
        self._session = session
        self.protocol = session.protocol
        """The version, and what it puts around requests; known once that was negotiated."""
        self._redact = redact
        self._patience_s = patience_s
        self._names_requests = False
        """Whether what the server sends says which request it belongs to, and only those get it that want it."""
        self._group: anyio.abc.TaskGroup | None = None
        self._begun = anyio.Event()
        self._pending = 0
        self._idle: anyio.Event | None = None
        """Set when no request is under way; None until that is waited for."""
        self._level: object = "info"
        """The level of log messages that was last asked for; at first, it is the server's choice."""
        self._reporting: dict[RequestId, UpstreamExchange] = {}
        """The requests that want to know how far they are."""
        self._questions: dict[anyio.CancelScope, RequestId] = {}
        """The tasks that answer questions of the server, of which several may have the same id."""
        self._refuses_questions = False
        """Whether there were too many."""
        self._subscriptions: dict[RequestId, Subscription] = {}
        self.messages = messages
        self.transport = transport
        self.lists_changed = AutoResetEvent()
        """Set when prompts and resources should be listed again."""
        self.on_resource_updated: Callable[[str], object] | None = None
        """Called with the URI of a resource that changed."""

    # -- from beginning to end -------------------------------------------------------------------------------------

    def begin(self, group: anyio.abc.TaskGroup) -> None:
        """Take what the server sends; its questions are answered in tasks of the group."""
        self._group = group
        self.messages.start_soon = group.start_soon
        self._begun.set()

    async def negotiate(self, probe_s: float) -> None:
        """Agree on a version: wait `probe_s` for a server that may be an older one. Raises `ExchangeError`."""
        negotiation = self._session.negotiate()
        with suppress(StopIteration):
            request = next(negotiation)
            while True:
                is_probe = request.method == "server/discover" and not self._session.is_patient
                request = negotiation.send(await self._step(request, probe_s if is_probe else self._patience_s))
        self.protocol = self._session.protocol
        is_sorted = self.transport.has_response_streams or self.messages.users == "all"
        self._names_requests = self.protocol.modern and is_sorted
        self.messages.extensions = self.profile.extensions
        if not self.protocol.modern:
            await self._post("notifications/initialized")

    async def _step(self, request: OutgoingRequest, timeout_s: float) -> Object | ExchangeError:
        try:
            with Deadline(timeout_s):
                return await self._exchange(request, self._receive_unclaimed)
        except TimeoutError:
            return ExchangeError(FailureKind.TIMED_OUT, f"no answer to {request.method} within {timeout_s:g} s")
        except ExchangeError as error:
            return error

    def end(self) -> None:
        """Take nothing any more."""
        self.messages.start_soon = None
        for subscription in self._subscriptions.values():
            subscription.end(ExchangeError(FailureKind.CLOSED, "the connection was closed"))

    async def wait_idle(self) -> None:
        """Wait until no request is under way."""
        while self._pending:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    # -- what was agreed on ----------------------------------------------------------------------------------------

    @property
    def profile(self) -> ServerProfile:
        """What the server declares."""
        return self._session.profile

    @property
    def info(self) -> ServerInfo:
        """What the server says about itself, truncated to a reasonable length."""
        profile = self.profile
        name, version, title = (one_line(profile.info.get(key, ""), MAX_NAME) for key in ("name", "version", "title"))
        about = self._redact.prose(profile.info.get("description", ""), MAX_INSTRUCTIONS)
        instructions = self._redact.prose(profile.instructions, MAX_INSTRUCTIONS)
        return ServerInfo(name=name, version=version, title=title, description=about, instructions=instructions)

    @property
    def can_subscribe(self) -> bool:
        """Whether it reports changes of its lists to those who subscribe."""
        return self.protocol.modern and any(self.profile.can(feature, "listChanged") for feature in _CHANGING)

    # -- requests --------------------------------------------------------------------------------------------------

    async def list_page(self, method: str, cursor: str | float | None, meta: Object = _EMPTY) -> dict[str, Any]:
        """Return one page of a list, such as `tools/list`; `meta` is added to `_meta`. Raises `ExchangeError`."""
        params: dict[str, Any] = {"cursor": cursor} if cursor is not None else {}
        if wire_meta := self.protocol.meta(meta, {}):
            params["_meta"] = wire_meta
        return await self._send(method, params)

    async def request(self, request: CallerRequest) -> dict[str, Any]:
        """Send a caller's request, and return its raw result.

        Raises `ExchangeError`, and `InvalidArguments` for params that cannot be encoded as JSON.
        """
        ctx, method = request.ctx, request.method
        client, params = ctx.client, self.protocol.params(ctx, request.params, method)
        if client is None or (self._names_requests and not self._may_reach(client, ctx)):
            on_message = self._receive_unclaimed if client is None else self._receive_unheard
            raw = await self._send(method, params, request.header_map, on_message)
            return await self._task_result(request, raw, None) if "task" in params else raw
        running = UpstreamExchange(
            client,
            self.messages.logs,
            may_ask=self.messages.may_ask,
            wants_logs=self.protocol.modern and LOG_LEVEL_KEY in ctx.meta,
            limit=request.limit,
            task="" if ctx.task is None else ctx.task.id,
            extensions=self.messages.extensions,
        )
        if request.open_call is not None:
            running.ask, request.open_call.on_client = request.open_call.ask, running.replace_client
        self.messages.track(running)
        try:
            raw = await self._send(method, params, request.header_map, running=running)
            return await self._task_result(request, raw, running) if "task" in params else raw
        finally:
            self.messages.untrack(running)
            await running.close()

    def _may_reach(self, client: Client, ctx: Context) -> bool:
        """Whether a server of a newer version may have something for a client before the result."""
        if not isinstance(client, SessionClient) or not client.is_modern:
            return True
        extensions = self.messages.extensions
        return (
            client.wants_progress
            or LOG_LEVEL_KEY in ctx.meta
            or bool(extensions and shares_extension(client, extensions))
        )

    async def _task_result(
        self, request: CallerRequest, created: dict[str, Any], running: UpstreamExchange | None
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
            result = await self._send("tasks/result", {"taskId": task_id}, running=running)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_CANCEL_TIMEOUT_S, shield=True), suppress(ExchangeError):
                await self._send("tasks/cancel", {"taskId": task_id})
            raise
        if isinstance(meta := result.get("_meta"), dict):
            # The caller knows nothing of the task.
            meta.pop(RELATED_TASK_KEY, None)
        return result

    async def set_log_level(self, ctx: Context) -> None:
        """Ask an older server for log messages of the level that the client wants, if it does not know yet."""
        level = ctx.meta.get(LOG_LEVEL_KEY)
        if level is None or level == self._level or self.protocol.modern or not self.profile.has("logging"):
            return
        self._level = level
        with suppress(ExchangeError):
            await self._send("logging/setLevel", {"level": level})

    async def notify_roots_changed(self) -> None:
        """Notify a server of an older version that its client's roots changed."""
        with suppress(ExchangeError):
            await self._post("notifications/roots/list_changed")

    async def notify(self, ctx: Context, method: str, params: Object) -> None:
        """Send a caller's notification. Raises `ExchangeError`."""
        await self._post(method, self.protocol.params(ctx, params, method))

    async def _post(self, method: str, params: Object = _EMPTY) -> None:
        await self.transport.post(to_wire(Notification(method, params or None)), self.protocol.headers(method, params))

    async def _send(
        self,
        method: str,
        params: dict[str, Any],
        header_map: HeaderMap | None = None,
        on_message: OnMessage | None = None,
        running: UpstreamExchange | None = None,
    ) -> dict[str, Any]:
        """Send a request, and return its result. What comes before it belongs to the running request of a caller, if
        there is one. Raises `ExchangeError`.
        """
        on_message = on_message or (self._receive_unclaimed if running is None else partial(self._receive_for, running))
        self._pending += 1
        try:
            if not TRACING.is_on:
                return await self._exchange(self._outgoing(method, params, header_map, running), on_message, running)
            with TRACING.request(method, params):
                return await self._exchange(self._outgoing(method, params, header_map, running), on_message, running)
        finally:
            self._pending -= 1
            if not self._pending and self._idle is not None:
                self._idle.set()
                self._idle = None

    def _outgoing(
        self, method: str, params: dict[str, Any], header_map: HeaderMap | None, running: UpstreamExchange | None
    ) -> OutgoingRequest:
        wants_progress = running is not None and running.wants_progress
        try:
            request = self._session.request(method, params, header_map, wants_progress=wants_progress)
        except (ValueError, TypeError) as error:
            raise _not_json() from error
        if running is not None and wants_progress:
            self._reporting[request.id] = running
        return request

    async def _exchange(
        self, request: OutgoingRequest, on_message: OnMessage, running: UpstreamExchange | None = None
    ) -> dict[str, Any]:
        """Return the result of a request. Raises `ExchangeError`."""
        try:
            return result_of(await self.transport.exchange(request, on_message))
        except RpcError as error:
            raise await self._failure(self._answered(error)) from error
        except ExchangeError as error:
            raise await self._failure(error) from error
        except anyio.get_cancelled_exc_class():
            await self._cancel(request)
            if running is not None:
                running.raise_failure()
            raise
        finally:
            if running is not None:
                self._reporting.pop(request.id, None)

    async def _cancel(self, request: OutgoingRequest) -> None:
        """Notify the server that nothing waits for the response any more."""
        notice = self._session.cancellation(request)
        if notice is None or (request.modern and self.transport.has_response_streams):
            return
        with anyio.move_on_after(_CANCEL_TIMEOUT_S, shield=True), suppress(ExchangeError):
            await self.transport.post(notice, request.headers)

    def _answered(self, error: RpcError) -> ExchangeError:
        """The failure with a line about it, and the server's own error without the secrets of its options."""
        message = self._redact.blank(replace_surrogates(error.message))
        answer = RpcError(error.code, message, replace_surrogates(error.data))
        return ExchangeError(FailureKind.ANSWER, self._redact(error.message, MAX_ERROR), answer=answer)

    async def _failure(self, failure: ExchangeError) -> ExchangeError:
        """What a failure means for the connection, and with what is known of its end."""
        closed = self.transport.closed
        if failure.kind is FailureKind.LOST:
            self.transport.refresh_needed.set()
        if failure.kind is FailureKind.CLOSED and closed.is_set:
            return ExchangeError(FailureKind.CLOSED, closed.reason)
        if _blames_session(failure) and not self.protocol.modern and await self.transport.has_lost_session():
            return ExchangeError(FailureKind.SESSION, failure.reason)
        return failure

    # -- what the server sends -------------------------------------------------------------------------------------

    async def receive(self, message: Message) -> None:
        """Take a message that came outside of the response to a request."""
        if self._group is None:
            await self._begun.wait()
        event = self._session.receive(message)
        match event:
            case Request():
                self._start_answer(event, partial(self.messages.answer, event.method, event.params or {}))
            case Progress() if event.request_id in self._reporting:
                running = self._reporting[event.request_id]
                self._start_soon(running.progress, event.done, event.total, event.message)
            case _:
                self._note(event)

    async def _receive_for(self, running: UpstreamExchange, message: Message) -> None:
        """Take a message that came with the response to a caller's request."""
        event = self._session.receive(message)
        match event:
            case Request():
                self._start_answer(event, partial(running.answer, event.method, event.params or {}), running)
            case Progress() if self._reporting.get(event.request_id) is running:
                await running.progress(event.done, event.total, event.message)
            case Notification(method, params) if _concerns_client(method):
                await running.notify(method, params or {})
            case _:
                self._note(event)

    async def _receive_unclaimed(self, message: Message) -> None:
        """Take a message that came with the response to a request of no client."""
        event = self._session.receive(message)
        if isinstance(event, Request):
            self._start_answer(event, None)
        else:
            self._note(event)

    async def _receive_unheard(self, message: Message) -> None:
        """Take a message that came with the response to a request of a client which gets nothing but its result."""
        event = self._session.receive(message)
        match event:
            case Request():
                self._start_answer(event, partial(_refused, event.method))
            case Notification("notifications/message", params):
                self.messages.logs.accept(params or {})
            case Notification(method) if _concerns_client(method):
                pass
            case _:
                self._note(event)

    def _note(self, event: Event | None) -> None:
        """Take what concerns the connection, or no request in particular."""
        match event:
            case Notification("notifications/tools/list_changed"):
                self.transport.refresh_needed.set()
            case Notification(method) if method in _LIST_CHANGED:
                self.lists_changed.set()
            case Notification("notifications/resources/updated", params):
                uri = (params or {}).get("uri")
                if isinstance(uri, str) and self.on_resource_updated is not None:
                    self.on_resource_updated(uri)
            case Notification(method, params) if _concerns_client(method) or method == TASK_STATUS:
                self.messages.notify(method, params or {})
            case Subscribed(request_id, agreed) if request_id in self._subscriptions:
                self._subscriptions[request_id].confirm(agreed)
            case Cancelled(request_id) if request_id in self._subscriptions:
                self._subscriptions[request_id].end()
            case Cancelled(request_id):
                for scope in [scope for scope, asked in self._questions.items() if asked == request_id]:
                    scope.cancel()

    def _start_soon(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        if self._group is not None:
            self._group.start_soon(work, *arguments)

    def _start_answer(self, question: Request, ask: Ask | None, running: UpstreamExchange | None = None) -> None:
        """Answer a question of the server in a task of its own."""
        if len(self._questions) >= _MAX_QUESTIONS:  # each may wait with a connection of its own
            self._refuse_question()
            return
        scope = anyio.CancelScope()
        self._questions[scope] = question.id
        if running is not None:
            running.is_asked()
            running.answers.add(scope)
        self._start_soon(self._answer, scope, question, ask, running)

    def _refuse_question(self) -> None:
        if not self._refuses_questions:
            self._refuses_questions = True
            text = "%s asks more than %d questions at once; further ones are not answered"
            logger.warning(text, self.messages.logs.name, _MAX_QUESTIONS)

    async def _answer(
        self, scope: anyio.CancelScope, question: Request, ask: Ask | None, running: UpstreamExchange | None
    ) -> None:
        try:
            with scope:
                outcome = await _outcome_of(question, ask)
                headers = self.protocol.headers(question.method) if self.protocol.version else {}
                await self.transport.post(self._session.answer(question, outcome), headers)
        except ExchangeError as error:
            logger.info("the answer to a question of a server could not be sent: %s", error.reason)
            if running is not None:
                running.interrupt(error)
        finally:
            del self._questions[scope]
            if running is not None:
                running.answers.discard(scope)

    # -- subscriptions ---------------------------------------------------------------------------------------------

    async def subscribe_resource(self, uri: str, *, on: bool) -> None:
        """Subscribe to a resource of a server of an older version, or unsubscribe. Raises `ExchangeError`."""
        await self._send("resources/subscribe" if on else "resources/unsubscribe", {"uri": uri})

    async def follow_list_changes(self, retry_s: float) -> None:
        """Subscribe to list changes for as long as the connection lasts, and set the events of changes."""
        wanted = {f"{name}ListChanged": True for name in _CHANGING if self.profile.can(name, "listChanged")}
        while True:
            try:
                async with self.subscribed(wanted) as subscription:
                    await subscription.wait_ended()
            except ExchangeError as error:
                if error.kind is FailureKind.ANSWER:
                    return
            await anyio.sleep(retry_s)
            self.list_again()

    def list_again(self) -> None:
        """Have tools, prompts and resources listed again."""
        self.transport.refresh_needed.set()
        self.lists_changed.set()

    @asynccontextmanager
    async def subscribed(self, wanted: Object) -> AsyncIterator[Subscription]:
        """Subscribe to changes at a server of a newer version; entered once it has confirmed.

        Raises `ExchangeError`.
        """
        if self._group is None:
            raise ExchangeError(FailureKind.CLOSED, self.transport.closed.reason)
        params = {"notifications": dict(wanted), "_meta": self.protocol.meta({}, {})}
        request = self._session.request("subscriptions/listen", params)
        subscription, scope = Subscription(), anyio.CancelScope()
        self._subscriptions[request.id] = subscription
        self._group.start_soon(self._follow, request, subscription, scope)
        try:
            with Deadline(self._patience_s):
                await subscription.wait_confirmed()
            yield subscription
        except TimeoutError as error:
            raise ExchangeError(FailureKind.TIMED_OUT, "it did not confirm a subscription in time") from error
        finally:
            del self._subscriptions[request.id]
            scope.cancel()

    async def _follow(self, request: OutgoingRequest, subscription: Subscription, scope: anyio.CancelScope) -> None:
        failure = None
        with scope:
            try:
                # A result, whatever it holds, is the orderly end of the stream.
                await self._exchange(request, self._receive_unclaimed)
            except ExchangeError as error:
                failure = error
        subscription.end(failure)


def _concerns_client(method: str) -> bool:
    """Whether a notification of a server is for the client of a request, and not about the connection.

    Those that no version defines are, too: they belong to an extension.
    """
    return method in _CLIENT_NOTIFICATIONS or not is_defined(method)


async def _outcome_of(question: Request, ask: Ask | None) -> Object | RpcError:
    if question.method == "ping":
        return {}
    if ask is None or question.method not in INPUT_REQUESTS:
        return RpcError(METHOD_NOT_FOUND, "Method not found", question.method)
    try:
        return await ask()
    except RpcError as error:
        return error


async def _refused(method: str) -> Object:
    return refuse(method)


def _not_json() -> InvalidArguments:
    return InvalidArguments(
        "The arguments cannot be encoded as JSON.",
        hint="Use only strings of valid Unicode, finite numbers, true, false, null, lists and objects.",
    )


def _blames_session(failure: ExchangeError) -> bool:
    """Whether a server may say that it does not know the session; servers say it in many ways, and tools too."""
    return failure.kind in (FailureKind.ANSWER, FailureKind.STATUS) and "session" in failure.reason.lower()
