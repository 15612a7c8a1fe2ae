"""Track client subscriptions and deliver their notifications: changed lists, changed resources, log messages.

Sessions of versions before 2026-07-28 get them until their connection ends; later clients on the stream of their
`subscriptions/listen`, and log messages on the stream of the request that asked for them.

For each session and subscription the notifier keeps a fingerprint of every list it follows, as that caller would get
it. When anything changes, it computes the fingerprints again and notifies only clients whose own list changed, once
for all changes within a short delay. The delay starts with the client's own change, so that the timing of
notifications reveals nothing about other callers.
"""

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
import mcp_types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import LOG_LEVEL_META_KEY

from toolcrib.containment import is_own_cancellation, isolate
from toolcrib.errors import AlreadyStarted, InvalidRequest, ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.providers.adapters import adapt
from toolcrib.providers.base import ChangeSource, ProviderFeature
from toolcrib.server.context import (
    LOG_LEVEL_STATE,
    LOG_LEVELS,
    RequestContext,
    as_mcp_errors,
    detach,
    to_context,
)
from toolcrib.server.dormant import DormantSessions
from toolcrib.server.sdk_workarounds import connection_of
from toolcrib.types import Context, Object, Unsubscribe
from toolcrib.wire import is_modern

logger = logging.getLogger(__name__)

_DEBOUNCE_S: Final = 0.15
_MAX_SUBSCRIBERS: Final = 60_000
_MAX_PER_CALLER: Final = 6_000
"""Each client needs three: tools, prompts, resources."""
_MAX_QUEUED: Final = 1024
_MAX_WATCHED: Final = 1000
"""Resources that one session or subscription may watch."""
_FLUSH_S: Final = 1.0
"""How long a response waits for earlier log messages to be sent, in seconds."""
_SUBSCRIBE_TIMEOUT_S: Final = 6.0
"""How long upstream servers may take to accept all resource subscriptions together, in seconds."""
_SESSION_KEY: Final = "toolcrib.subscriptions"
_LIST_CHANGED: Final[Mapping[str, Callable[..., mcp_types.ServerNotification]]] = {
    "tools": mcp_types.ToolListChangedNotification,
    "prompts": mcp_types.PromptListChangedNotification,
    "resources": mcp_types.ResourceListChangedNotification,
}

Notify = Callable[[], Awaitable[None]]
"""Notifies one client that its list changed."""
FingerprintList = Callable[[Context], Awaitable[str]]
"""Computes the fingerprint of one kind of list; see `FingerprintSource`."""
SendNotification = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Sends one notification: its method and params."""


class FingerprintSource(Protocol):
    """Computes fingerprints of tool lists."""

    async def fingerprint(self, ctx: Context) -> str:
        """A text that changes whenever the caller's list does. Cheap, and makes no upstream request."""


# -- changed lists ---------------------------------------------------------------------------------------------------


class ListSubscriber:
    """A session or subscription to notify of changes to one list. Pending changes are one flag, however many."""

    def __init__(self, ctx: Context, notify: Notify, ready: anyio.Event, fingerprint_list: FingerprintList) -> None:
        """No notification is sent before `ready`."""
        self.ctx = ctx
        self.fingerprint_list = fingerprint_list
        self.notify = notify
        self.ready = ready
        self.ended = anyio.Event()
        """Set when no more notifications will come."""
        self.fingerprint = ""
        self.busy = True
        self.recheck = False
        self.scope = anyio.CancelScope()
        self.unsubscribes: list[Unsubscribe] = []

    @property
    def owner(self) -> Hashable:
        """The caller whose quota this counts against."""
        return self.ctx.caller.key

    @property
    def request_providers(self) -> tuple[object, ...]:
        """The providers of the request that opened it."""
        return (*self.ctx.providers, *self.ctx.overriding)


class ListChangeNotifier:
    """Notifies subscribers when their own list changed, while `run` runs."""

    def __init__(
        self,
        fingerprints: FingerprintSource,
        source: ChangeSource,
        *,
        debounce_s: float = _DEBOUNCE_S,
        limit: int = _MAX_SUBSCRIBERS,
        per_caller: int = _MAX_PER_CALLER,
    ) -> None:
        """`source` calls back when anything changed, such as a gateway's catalog.

        Changes within `debounce_s` seconds of a subscriber's first one are one notification. There are at most `limit`
        subscribers, and at most `per_caller` of one caller, so that no caller takes all places.
        """
        self.limit = limit
        self.per_caller = per_caller
        self._fingerprints = fingerprints
        self._source = source
        self._debounce_s = debounce_s
        self._subscribers: set[ListSubscriber] = set()
        self._of_caller: Counter[Hashable] = Counter()
        self._group: anyio.abc.TaskGroup | None = None
        self._dirty = anyio.Event()

    @property
    def subscriber_count(self) -> int:
        """How many lists of sessions and subscriptions are followed."""
        return len(self._subscribers)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Notify subscribers until cancelled. Raises `AlreadyStarted` when running already."""
        if self._group is not None:
            raise AlreadyStarted("The notifier is running already.")
        self._dirty = anyio.Event()
        unsubscribe = self._source.subscribe(self._mark_dirty)
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                self._mark_dirty()
                task_status.started()
                while True:
                    await self._dirty.wait()
                    self._dirty = anyio.Event()
                    await self._check_all()
        finally:
            self._group = None
            unsubscribe()
            self.end_streams()

    def _mark_dirty(self) -> None:
        self._dirty.set()

    def start_task(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run work in the background until it or `run` ends. Returns False if not running."""
        if self._group is None:
            return False
        self._group.start_soon(work)
        return True

    async def subscribe(
        self, ctx: Context, notify: Notify, ready: anyio.Event, fingerprint_list: FingerprintList | None = None
    ) -> ListSubscriber | None:
        """Notify of changes to this caller's list from now on, once `ready`.

        The list is that of the tools, unless `fingerprint_list` is given. Returns None if there are too many
        subscribers, or too many of this caller. The context is kept, and must hold nothing that ends with its request.
        Call `unsubscribe` at the end.
        """
        subscriber = ListSubscriber(ctx, notify, ready, fingerprint_list or self._fingerprints.fingerprint)
        if len(self._subscribers) >= self.limit or self._of_caller[subscriber.owner] >= self.per_caller:
            return None
        self._subscribers.add(subscriber)
        self._of_caller[subscriber.owner] += 1
        try:
            for provider in subscriber.request_providers:
                if ProviderFeature.CHANGES in (adapted := adapt(provider)).features:
                    subscriber.unsubscribes.append(adapted.subscribe(partial(self._schedule_check, subscriber)))
            subscriber.fingerprint = await subscriber.fingerprint_list(ctx)
        except BaseException:
            self.unsubscribe(subscriber)
            raise
        subscriber.busy = False
        if subscriber.recheck:
            self._schedule_check(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: ListSubscriber) -> None:
        """Send no more notifications. Calling it twice is harmless."""
        if subscriber in self._subscribers:
            self._subscribers.discard(subscriber)
            self._of_caller[subscriber.owner] -= 1
            if not self._of_caller[subscriber.owner]:
                del self._of_caller[subscriber.owner]
        subscriber.ended.set()
        subscriber.scope.cancel()
        unsubscribes, subscriber.unsubscribes = subscriber.unsubscribes, []
        for unsubscribe in unsubscribes:
            unsubscribe()

    def end_streams(self) -> None:
        """End the responses of `subscriptions/listen`; sessions stay."""
        for subscriber in tuple(self._subscribers):
            subscriber.ended.set()

    async def _check_all(self) -> None:
        for subscriber in tuple(self._subscribers):
            # Request providers may be slow: check those lists in tasks, so that no other client waits for them.
            if subscriber.request_providers or subscriber.busy or await self._has_changed(subscriber):
                self._schedule_check(subscriber)
            await anyio.lowlevel.checkpoint()

    async def _has_changed(self, subscriber: ListSubscriber) -> bool:
        """Whether the list differs from the last notification; False if the comparison fails."""
        try:
            return await subscriber.fingerprint_list(subscriber.ctx) != subscriber.fingerprint
        except (Exception, asyncio.CancelledError) as error:
            if is_own_cancellation(error):
                raise
            logger.exception("cannot check whether a client's list changed")
            return False

    def _schedule_check(self, subscriber: ListSubscriber) -> None:
        """Check the subscriber in a task; one that is running already checks again."""
        subscriber.recheck = True
        if self._group is not None and not subscriber.busy and subscriber in self._subscribers:
            subscriber.busy = True
            self._group.start_soon(self._run_checks, subscriber)

    async def _run_checks(self, subscriber: ListSubscriber) -> None:
        try:
            with subscriber.scope:
                while subscriber.recheck:
                    subscriber.recheck = False
                    await self._check_and_notify(subscriber)
        except (Exception, asyncio.CancelledError) as error:
            if is_own_cancellation(error):
                raise
            logger.exception("cannot notify a client that its list changed")
        finally:
            subscriber.busy = False
            subscriber.scope = anyio.CancelScope()

    async def _check_and_notify(self, subscriber: ListSubscriber) -> None:
        if not await self._has_changed(subscriber):
            return
        await subscriber.ready.wait()
        await anyio.sleep(self._debounce_s)
        subscriber.recheck = False
        subscriber.fingerprint = await subscriber.fingerprint_list(subscriber.ctx)
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await subscriber.notify()


class NotificationQueue:
    """Accepts notifications at any time, and sends them in order while `run` runs."""

    def __init__(self, send: SendNotification) -> None:
        self._send = send
        self._waiting: OrderedDict[object, tuple[str, dict[str, Any]]] = OrderedDict()
        self._numbers = count()
        self._filled = anyio.Event()
        self._empty = anyio.Event()
        self._empty.set()
        self._scope = anyio.CancelScope()

    def resource_updated(self, uri: str) -> None:
        """Queue one notification for the resource, however often it changes before that is sent."""
        self._put(uri, "notifications/resources/updated", {"uri": uri})

    def log_message(self, message: dict[str, Any]) -> None:
        """Queue a log message. A full queue drops its oldest notification."""
        self._put(next(self._numbers), "notifications/message", message)

    def task_status(self, task: dict[str, Any]) -> None:
        """Queue the status of a task; it replaces an earlier one that was not sent yet."""
        self._put(("task", task.get("taskId")), "notifications/tasks/status", task)

    def _put(self, key: object, method: str, params: dict[str, Any]) -> None:
        self._waiting[key] = (method, params)
        if len(self._waiting) > _MAX_QUEUED:
            self._waiting.popitem(last=False)
        self._filled.set()
        if self._empty.is_set():
            self._empty = anyio.Event()

    async def wait_empty(self) -> None:
        """Wait until everything queued so far was sent."""
        await self._empty.wait()

    async def run(self) -> None:
        """Send until `close`. Notifications for a client that disconnected are dropped."""
        with self._scope:
            while True:
                await self._filled.wait()
                self._filled = anyio.Event()
                while self._waiting:
                    _, (method, params) = self._waiting.popitem(last=False)
                    try:
                        await self._send(method, params)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        self._waiting.clear()
                self._empty.set()

    def close(self) -> None:
        """Send nothing more."""
        self._scope.cancel()


# -- request handlers ------------------------------------------------------------------------------------------------


class _SessionSubscriptions:
    """The subscriptions of one session with a handshake."""

    def __init__(self, connection: Connection) -> None:
        self.id = connection.session_id
        self.queue = NotificationQueue(connection.notify)
        self.watched: dict[str, Unsubscribe] = {}
        """By resource URI."""
        self.level: str | None = None
        self.mark = object()
        """What distinguishes the connection of the session from a later one."""

    def may_rest(self) -> bool:
        """Whether nothing is lost if the connection is closed while the client listens to no stream."""
        return self.level is None and not self.watched


def session_queue(request: RequestContext) -> NotificationQueue | None:
    """The notifications of the request's session; None if it cannot receive any."""
    session = connection_of(request).state.get(_SESSION_KEY)
    return session.queue if isinstance(session, _SessionSubscriptions) else None


class SubscriptionHandlers:
    """Request handlers and middleware for subscriptions of one server."""

    def __init__(self, changes: ListChangeNotifier, gateway: Gateway, dormant: DormantSessions) -> None:
        """The caller has to run `changes`."""
        self._changes = changes
        self._dormant = dormant
        self._end_gateway_session = gateway.end_session
        self._resources = resources = gateway.resources
        self._fingerprints: Mapping[str, FingerprintList | None] = {
            "tools": None,
            "prompts": lambda ctx: resources.digest(ctx, "prompts"),
            "resources": lambda ctx: resources.digest(ctx, "resources", "templates"),
        }

    def register(self, server: Server[Any]) -> None:
        """Add the handlers to a server; the middleware is the caller's to add."""
        server.add_request_handler("subscriptions/listen", mcp_types.SubscriptionsListenRequestParams, self.listen)
        server.add_request_handler("resources/subscribe", mcp_types.SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", mcp_types.UnsubscribeRequestParams, self.unsubscribe)
        server.add_request_handler("logging/setLevel", mcp_types.SetLevelRequestParams, self.set_level)

    async def subscribe_session(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware: subscribe a new session to changes of its lists, until its connection ends."""
        result = await call_next(ctx)
        try:
            await isolate(partial(self._subscribe_lists, ctx))
        except Exception:
            logger.exception("a session will not be notified when its lists change")
        return result

    async def _subscribe_lists(self, ctx: ServerRequestContext[Any, Any]) -> None:
        connection = connection_of(ctx)
        if _SESSION_KEY in connection.state:
            return
        session = connection.state[_SESSION_KEY] = _SessionSubscriptions(connection)
        # The request that opens a session over HTTP does not name it yet.
        caller_ctx = detach(to_context(ctx))
        caller_ctx = replace(caller_ctx, session=session.id or caller_ctx.session)
        if session.id is not None:
            self._dormant.opened(session.id, session.mark, session.may_rest)
        connection.exit_stack.push_async_callback(self._end_session, session, caller_ctx)
        self._changes.start_task(session.queue.run)
        self._changes.start_task(partial(self._watch_again, session, caller_ctx))
        for kind in await self._list_kinds(caller_ctx):
            notify = partial(connection.notify, f"notifications/{kind}/list_changed", None)
            fingerprint_list = self._fingerprints[kind]
            subscriber = await self._changes.subscribe(caller_ctx, notify, connection.initialized, fingerprint_list)
            if subscriber is None:
                logger.warning("too many sessions: one will not be notified when its lists change")
                return
            connection.exit_stack.callback(self._changes.unsubscribe, subscriber)

    async def _list_kinds(self, ctx: Context) -> list[str]:
        """The kinds of list that the caller can request."""
        try:
            capabilities = await isolate(partial(self._resources.capabilities, ctx))
        except Exception:
            logger.exception("cannot determine the capabilities for a client")
            return ["tools"]
        return ["tools", *(kind for kind in ("prompts", "resources") if getattr(capabilities, kind))]

    async def _watch_again(self, session: _SessionSubscriptions, ctx: Context) -> None:
        """Watch what the session watched in the process that served it before."""
        for uri in await self._resources.subscribed_uris.get(ctx.caller, session.id):
            try:
                await isolate(partial(self._watch_once, session, ctx, uri))
            except Exception as error:  # noqa: BLE001 - the client was promised the others too
                logger.info("cannot watch a resource of a session again: %s", error)

    async def _end_session(self, session: _SessionSubscriptions, ctx: Context) -> None:
        session.queue.close()
        for unsubscribe in session.watched.values():
            unsubscribe()
        await self._dormant.closed(session.id or "", session.mark, partial(self._end_gateway_session, ctx))

    def _session(self, request: RequestContext) -> _SessionSubscriptions:
        session = connection_of(request).state.get(_SESSION_KEY)
        if not isinstance(session, _SessionSubscriptions):
            raise MCPError(mcp_types.INVALID_REQUEST, "This connection cannot receive notifications.")
        return session

    async def subscribe(self, request: RequestContext, params: mcp_types.SubscribeRequestParams) -> HandlerResult:
        """`resources/subscribe`."""
        session, ctx = self._session(request), detach(to_context(request))
        await as_mcp_errors(isolate(partial(self._watch_once, session, ctx, params.uri)))
        await self._resources.subscribed_uris.add(ctx.caller, session.id, params.uri)
        return mcp_types.EmptyResult()

    async def _watch_once(self, session: _SessionSubscriptions, ctx: Context, uri: str) -> None:
        if uri in session.watched:
            return
        unsubscribe = await self._watch(ctx, uri, session.queue, len(session.watched))
        if (concurrent := session.watched.pop(uri, None)) is not None:
            concurrent()
        session.watched[uri] = unsubscribe

    async def unsubscribe(self, request: RequestContext, params: mcp_types.UnsubscribeRequestParams) -> HandlerResult:
        """`resources/unsubscribe`."""
        session = self._session(request)
        unsubscribe = session.watched.pop(params.uri, None)
        if unsubscribe is not None:
            unsubscribe()
        await self._resources.subscribed_uris.discard(to_context(request).caller, session.id, params.uri)
        return mcp_types.EmptyResult()

    async def _watch(self, ctx: Context, uri: str, queue: NotificationQueue, watched: int) -> Unsubscribe:
        if watched >= _MAX_WATCHED:
            raise InvalidRequest(
                f"There are {_MAX_WATCHED} resource subscriptions already.", hint="Unsubscribe from one first."
            )
        return await self._resources.subscribe(ctx, uri, queue.resource_updated)

    async def set_level(self, request: RequestContext, params: mcp_types.SetLevelRequestParams) -> HandlerResult:
        """`logging/setLevel`: forward log messages of servers from that level on."""
        session = self._session(request)
        if session.level is None:

            def forward(message: Object) -> None:
                if _is_severe_enough(message, session.level):
                    session.queue.log_message(dict(message))

            unsubscribe = self._resources.subscribe_logs(detach(to_context(request)), forward)
            connection_of(request).exit_stack.callback(unsubscribe)
        session.level = connection_of(request).state[LOG_LEVEL_STATE] = params.level
        return mcp_types.EmptyResult()

    async def forward_logs(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware: forward log messages of servers during a modern request that asks for them."""
        level = (ctx.meta or {}).get(LOG_LEVEL_META_KEY)
        if level is None or ctx.request_id is None or not is_modern(ctx.protocol_version):
            return await call_next(ctx)

        async def send(_method: str, params: dict[str, Any]) -> None:
            message = mcp_types.LoggingMessageNotificationParams.model_validate(params)
            notification = mcp_types.LoggingMessageNotification(params=message)
            await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

        queue = NotificationQueue(send)

        def forward(message: Object) -> None:
            if _is_severe_enough(message, level):
                queue.log_message(dict(message))

        unsubscribe = self._resources.subscribe_logs(detach(to_context(ctx)), forward)
        try:
            return await _with_queue(queue, partial(call_next, ctx))
        finally:
            unsubscribe()

    async def listen(
        self, request: RequestContext, params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        """`subscriptions/listen`: one stream of changes, until the client disconnects or the server stops."""
        if request.request_id is None:
            raise MCPError(mcp_types.INVALID_REQUEST, "subscriptions/listen needs a request id.")
        stream = _ListenStream(request, request.request_id)
        acknowledged, ctx, wanted = anyio.Event(), detach(to_context(request)), params.notifications
        queue = NotificationQueue(stream.send_update)
        with ExitStack() as stack:
            kinds = [kind for kind in await self._list_kinds(ctx) if getattr(wanted, f"{kind}_list_changed") is True]
            subscribers = [
                await self._subscribe_stream(stack, ctx, partial(stream.notify, kind), acknowledged, kind)
                for kind in kinds
            ]
            # Without any list, one silent subscriber still counts against the quota and ends with the server.
            subscribers = subscribers or [
                await self._subscribe_stream(stack, ctx, _no_notification, acknowledged, "tools")
            ]
            uris = await self._watch_all(stack, ctx, wanted.resource_subscriptions or (), queue)
            await stream.acknowledge(kinds, uris)
            acknowledged.set()
            async with anyio.create_task_group() as group:
                group.start_soon(queue.run)
                await subscribers[0].ended.wait()
                queue.close()
        return mcp_types.SubscriptionsListenResult(_meta=stream.meta)

    async def _subscribe_stream(
        self, stack: ExitStack, ctx: Context, notify: Notify, ready: anyio.Event, kind: str
    ) -> ListSubscriber:
        subscribe = partial(self._changes.subscribe, ctx, notify, ready, self._fingerprints[kind])
        subscriber = await as_mcp_errors(isolate(subscribe))
        if subscriber is None:
            raise MCPError(mcp_types.INTERNAL_ERROR, "Too many subscriptions are open; try again later.")
        stack.callback(self._changes.unsubscribe, subscriber)
        return subscriber

    async def _watch_all(self, stack: ExitStack, ctx: Context, uris: Any, queue: NotificationQueue) -> list[str]:
        """Subscribe to resources, and return the URIs for which that worked in time."""
        wanted, watched = tuple(dict.fromkeys(uris)), set[str]()

        async def watch(uri: str, before: int) -> None:
            async def attempt() -> None:
                stack.callback(await self._watch(ctx, uri, queue, before))

            try:
                await isolate(attempt)
            except ToolcribError as error:
                logger.info("cannot subscribe to a resource: %s", error.message)
            except Exception:
                logger.exception("cannot subscribe to a resource")
            else:
                watched.add(uri)

        with anyio.move_on_after(_SUBSCRIBE_TIMEOUT_S):
            async with anyio.create_task_group() as group:
                for place, uri in enumerate(wanted):
                    group.start_soon(watch, uri, place)
        return [uri for uri in wanted if uri in watched]


class _ListenStream:
    """The notifications on the stream of one `subscriptions/listen` request."""

    def __init__(self, request: RequestContext, request_id: str | int) -> None:
        self._request = request
        self._request_id = request_id
        self.meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: request_id}

    async def _send(self, notification: mcp_types.ServerNotification) -> None:
        await self._request.session.send_notification(notification, related_request_id=self._request_id)

    async def send_update(self, _method: str, params: dict[str, Any]) -> None:
        """Send that a resource changed."""
        update = mcp_types.ResourceUpdatedNotificationParams.model_validate({**params, "_meta": self.meta})
        await self._send(mcp_types.ResourceUpdatedNotification(params=update))

    async def notify(self, kind: str) -> None:
        """Send that a list changed."""
        await self._send(_LIST_CHANGED[kind](params=mcp_types.NotificationParams(_meta=self.meta)))

    async def acknowledge(self, kinds: Sequence[str], uris: Sequence[str]) -> None:
        """Send which lists and resources the subscription covers."""
        accepted = mcp_types.SubscriptionFilter.model_validate(
            {**{f"{kind}_list_changed": True for kind in kinds}, "resource_subscriptions": uris or None}
        )
        params = mcp_types.SubscriptionsAcknowledgedNotificationParams(notifications=accepted, _meta=self.meta)
        await self._send(mcp_types.SubscriptionsAcknowledgedNotification(params=params))


async def _with_queue(queue: NotificationQueue, work: Callable[[], Awaitable[HandlerResult]]) -> HandlerResult:
    """Run the work, and return its outcome after the notifications that were queued meanwhile."""
    result: HandlerResult = None
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(queue.run)
        try:
            result = await work()
        except Exception as error:  # noqa: BLE001 - raised again below, not as a group
            failure = error
        with anyio.move_on_after(_FLUSH_S):
            await queue.wait_empty()
        queue.close()
    if failure is not None:
        raise failure
    return result


async def _no_notification() -> None:
    """For a stream that follows no list."""


def _is_severe_enough(message: Object, level: object) -> bool:
    return (
        isinstance(level, str) and level in LOG_LEVELS and LOG_LEVELS.index(message["level"]) >= LOG_LEVELS.index(level)
    )
