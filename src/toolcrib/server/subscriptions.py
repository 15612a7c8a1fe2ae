"""Requests about notifications: subscriptions to resources and lists, log levels, and `subscriptions/listen`."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

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

from toolcrib.containment import isolate
from toolcrib.errors import InvalidRequest, ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.protocol.versions import is_modern
from toolcrib.server.context import LOG_LEVEL_STATE, LOG_LEVELS, RequestContext, as_mcp_errors, detach, to_context
from toolcrib.server.dormant import DormantChannel, DormantSessions
from toolcrib.server.notifications import FingerprintList, ListChangeNotifier, ListSubscriber, NotificationQueue, Notify
from toolcrib.server.sdk_workarounds import connection_of
from toolcrib.types import Context, Object, Unsubscribe

logger = logging.getLogger(__name__)

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
        self._admission = gateway.admission
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
        """Middleware: subscribe a new session to changes of its lists, until its connection ends.

        A session without a connection cannot be notified; it is only noted what ends it.
        """
        result = await call_next(ctx)
        connection = connection_of(ctx)
        if isinstance(connection.outbound, DormantChannel):
            caller_ctx = _session_context(ctx, connection)
            connection.outbound.end_session = partial(self._end_gateway_session, caller_ctx)
            return result
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
        caller_ctx = _session_context(ctx, connection)
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

    @asynccontextmanager
    async def _admitted(self, ctx: Context, method: str) -> AsyncIterator[None]:
        """Subscribe inside, if the caller's limits allow that. Raises `MCPError` otherwise."""
        async with AsyncExitStack() as stack:
            await as_mcp_errors(stack.enter_async_context(self._admission.admitted(ctx, method)))
            yield

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
            async with self._admitted(ctx, request.method):
                kinds = [
                    kind for kind in await self._list_kinds(ctx) if getattr(wanted, f"{kind}_list_changed") is True
                ]
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


def _session_context(ctx: ServerRequestContext[Any, Any], connection: Connection) -> Context:
    """The context of a session, from the request that opens it; over HTTP, that request does not name it yet."""
    caller_ctx = detach(to_context(ctx))
    return replace(caller_ctx, session=connection.session_id or caller_ctx.session)


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
