"""Requests about notifications: subscriptions to resources and lists, log levels, and `subscriptions/listen`.

What a session has subscribed to is in its `ServerSession`. Something runs for it only while a stream of notifications
to its client is open, or while it watches resources.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.abc

from toolcrib.containment import isolate
from toolcrib.errors import InvalidRequest, ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.protocol.failures import INTERNAL_ERROR, INVALID_REQUEST, RpcError
from toolcrib.protocol.negotiation import extensions_in
from toolcrib.protocol.serving import ServerSession
from toolcrib.protocol.versions import LOG_MESSAGE
from toolcrib.server.context import detach, is_severe_enough, to_context, wanted_level
from toolcrib.server.exchange import Exchange
from toolcrib.server.methods import Method
from toolcrib.server.notifications import (
    FingerprintList,
    ListChangeNotifier,
    ListSubscriber,
    NotificationQueue,
    Notify,
    SendNotification,
)
from toolcrib.types import Context, Object, Unsubscribe

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_MAX_WATCHED: Final = 1000
"""Resources that one session or subscription may watch."""
_FLUSH_S: Final = 1.0
"""How long a response waits for earlier log messages to be sent, in seconds."""
_SUBSCRIBE_TIMEOUT_S: Final = 6.0
"""How long upstream servers may take to accept all resource subscriptions together, in seconds."""
_SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
_WANTED: Final = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}
"""What asks for changes of each kind of list in `subscriptions/listen`."""


class _LiveSession:
    """What runs for one session."""

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.queue = NotificationQueue(self._send)
        self.streams: list[SendNotification] = []
        """The open ways to the client, the latest last."""
        self.watched: dict[str, Unsubscribe] = {}
        """By resource URI."""
        self.end_following: Unsubscribe | None = None
        """Ends what servers send of their own: log messages, and notifications of extensions."""

    async def _send(self, method: str, params: dict[str, Any]) -> None:
        if self.streams:
            await self.streams[-1](method, params)

    def forward(self, method: str, params: Object) -> None:
        """Forward what a server sends of its own; a log message only if the session wants its level."""
        if method != LOG_MESSAGE or is_severe_enough(params["level"], self.session.log_level):
            self.queue.add(method, params)

    def close(self) -> None:
        """Run nothing more."""
        self.queue.close()
        for unsubscribe in (*self.watched.values(), self.end_following):
            if unsubscribe is not None:
                unsubscribe()


class SubscriptionMethods:
    """What answers requests about notifications, and sends those notifications."""

    def __init__(self, changes: ListChangeNotifier, gateway: Gateway) -> None:
        """The caller has to run `changes`."""
        self._changes = changes
        self._admission = gateway.admission
        self._resources = resources = gateway.resources
        self._live: dict[str, _LiveSession] = {}
        """By the id of the session."""
        self._fingerprints: Mapping[str, FingerprintList | None] = {
            "tools": None,
            "prompts": lambda ctx: resources.digest(ctx, "prompts"),
            "resources": lambda ctx: resources.digest(ctx, "resources", "templates"),
        }

    def table(self) -> dict[str, Method]:
        """What answers each method."""
        return {
            "resources/subscribe": self.subscribe,
            "resources/unsubscribe": self.unsubscribe,
            "logging/setLevel": self.set_level,
            "subscriptions/listen": self.listen,
        }

    # -- sessions ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(
        self, session: ServerSession, ctx: Context, send: SendNotification, ready: anyio.Event
    ) -> AsyncIterator[None]:
        """Send a session the notifications that it has subscribed to, and those of changed lists, inside the block.

        `ctx` is the context of the session, without what belongs to a request. Lists may change from now on, but the
        client is not notified before `ready`.
        """
        live = self._started(session)
        live.streams.append(send)
        try:
            with ExitStack() as stack:
                self._changes.start_task(partial(self._watch_again, live, ctx))
                if session.log_level is not None or extensions_in(session.capabilities):
                    self._follow_servers(live, ctx)
                try:
                    await isolate(partial(self._follow_lists, stack, ctx, send, ready))
                except Exception:
                    logger.exception("a session will not be notified when its lists change")
                yield
        finally:
            live.streams.remove(send)
            if not live.streams and not live.watched:
                self.close(session)

    def close(self, session: ServerSession) -> None:
        """Run nothing more for a session."""
        live = self._live.pop(session.id, None)
        if live is not None:
            live.close()

    def report_task(self, session: ServerSession | None, status: dict[str, Any]) -> None:
        """Send a session the status of a task, if it can be reached."""
        live = None if session is None else self._live.get(session.id)
        if live is not None:
            live.queue.task_status(status)

    def _started(self, session: ServerSession) -> _LiveSession:
        live = self._live.get(session.id)
        if live is None:
            live = self._live[session.id] = _LiveSession(session)
            self._changes.start_task(live.queue.run)
        return live

    async def _follow_lists(self, stack: ExitStack, ctx: Context, send: SendNotification, ready: anyio.Event) -> None:
        for kind in await self._list_kinds(ctx):
            notify = partial(send, f"notifications/{kind}/list_changed", {})
            subscriber = await self._changes.subscribe(ctx, notify, ready, self._fingerprints[kind])
            if subscriber is None:
                logger.warning("too many sessions: one will not be notified when its lists change")
                return
            stack.callback(self._changes.unsubscribe, subscriber)

    async def _list_kinds(self, ctx: Context) -> list[str]:
        """The kinds of list that the caller can request."""
        try:
            capabilities = await isolate(partial(self._resources.capabilities, ctx))
        except Exception:
            logger.exception("cannot determine the capabilities for a client")
            return ["tools"]
        return ["tools", *(kind for kind in ("prompts", "resources") if getattr(capabilities, kind))]

    async def _watch_again(self, live: _LiveSession, ctx: Context) -> None:
        """Watch what the session watched before, here or in another process."""
        known = await self._resources.subscribed_uris.get(ctx.caller, live.session.id)
        for uri in (*live.session.watched, *known):
            try:
                await isolate(partial(self._watch_once, live, ctx, uri))
            except Exception as error:  # noqa: BLE001 - the client was promised the others too
                logger.info("cannot watch a resource of a session again: %s", error)

    async def subscribe(self, exchange: Exchange) -> dict[str, Any]:
        """`resources/subscribe`."""
        session, ctx, uri = _session_of(exchange), detach(to_context(exchange)), exchange.params["uri"]
        live = self._started(session)
        try:
            await isolate(partial(self._watch_once, live, ctx, uri))
        finally:
            if not live.streams and not live.watched:
                self.close(session)
        session.watched.add(uri)
        await self._resources.subscribed_uris.add(ctx.caller, session.id, uri)
        return {}

    async def _watch_once(self, live: _LiveSession, ctx: Context, uri: str) -> None:
        if uri in live.watched:
            return
        unsubscribe = await self._watch(ctx, uri, live.queue, len(live.watched))
        if (concurrent := live.watched.pop(uri, None)) is not None:
            concurrent()
        live.watched[uri] = unsubscribe
        if self._live.get(live.session.id) is not live:  # it has ended meanwhile
            unsubscribe()

    async def unsubscribe(self, exchange: Exchange) -> dict[str, Any]:
        """`resources/unsubscribe`."""
        session, uri = _session_of(exchange), exchange.params["uri"]
        session.watched.discard(uri)
        live = self._live.get(session.id)
        if live is not None and (unsubscribe := live.watched.pop(uri, None)) is not None:
            unsubscribe()
        await self._resources.subscribed_uris.discard(exchange.caller, session.id, uri)
        return {}

    async def _watch(self, ctx: Context, uri: str, queue: NotificationQueue, watched: int) -> Unsubscribe:
        if watched >= _MAX_WATCHED:
            raise InvalidRequest(
                f"There are {_MAX_WATCHED} resource subscriptions already.", hint="Unsubscribe from one first."
            )
        return await self._resources.subscribe(ctx, uri, queue.resource_updated)

    async def set_level(self, exchange: Exchange) -> dict[str, Any]:
        """`logging/setLevel`: forward log messages of servers from that level on."""
        session = _session_of(exchange)
        session.log_level = exchange.params["level"]
        if (live := self._live.get(session.id)) is not None:
            self._follow_servers(live, detach(to_context(exchange)))
        return {}

    def _follow_servers(self, live: _LiveSession, ctx: Context) -> None:
        if live.end_following is None:
            extensions = extensions_in(live.session.capabilities)
            live.end_following = self._resources.subscribe_notifications(ctx, extensions, live.forward)

    # -- requests of 2026-07-28 ----------------------------------------------------------------------------------------

    async def with_logs(self, exchange: Exchange, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do the work of a request, and forward log messages of servers meanwhile, if the request asks for them."""
        level = wanted_level(exchange)
        queue = NotificationQueue(exchange.channel.notify)

        def forward(method: str, params: Object) -> None:
            if is_severe_enough(params["level"], level):
                queue.add(method, params)

        unsubscribe = self._resources.subscribe_notifications(detach(to_context(exchange)), {}, forward)
        try:
            return await _with_queue(queue, work)
        finally:
            unsubscribe()

    async def listen(self, exchange: Exchange) -> dict[str, Any]:
        """`subscriptions/listen`: one stream of changes, until the client disconnects or the server stops."""
        stream = _ListenStream(exchange)
        acknowledged, ctx, wanted = anyio.Event(), detach(to_context(exchange)), exchange.params["notifications"]
        queue = NotificationQueue(stream.send_update)
        with ExitStack() as stack:
            async with self._admission.admitted(ctx, exchange.method):
                kinds = [kind for kind in await self._list_kinds(ctx) if wanted.get(_WANTED[kind]) is True]
                subscribers = [
                    await self._subscribe_stream(stack, ctx, partial(stream.notify, kind), acknowledged, kind)
                    for kind in kinds
                ]
                # Without any list, one silent subscriber still counts against the quota and ends with the server.
                subscribers = subscribers or [
                    await self._subscribe_stream(stack, ctx, _no_notification, acknowledged, "tools")
                ]
                uris = await self._watch_all(stack, ctx, wanted.get("resourceSubscriptions") or (), queue)
            await stream.acknowledge(kinds, uris)
            acknowledged.set()
            async with anyio.create_task_group() as group:
                group.start_soon(queue.run)
                await subscribers[0].ended.wait()
                queue.close()
        return {"_meta": stream.meta}

    async def _subscribe_stream(
        self, stack: ExitStack, ctx: Context, notify: Notify, ready: anyio.Event, kind: str
    ) -> ListSubscriber:
        subscriber = await isolate(partial(self._changes.subscribe, ctx, notify, ready, self._fingerprints[kind]))
        if subscriber is None:
            raise RpcError(INTERNAL_ERROR, "Too many subscriptions are open; try again later.")
        stack.callback(self._changes.unsubscribe, subscriber)
        return subscriber

    async def _watch_all(
        self, stack: ExitStack, ctx: Context, uris: Sequence[str], queue: NotificationQueue
    ) -> list[str]:
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


def _session_of(exchange: Exchange) -> ServerSession:
    if exchange.session is None:
        raise RpcError(INVALID_REQUEST, "This connection cannot receive notifications.")
    return exchange.session


class _ListenStream:
    """The notifications on the stream of one `subscriptions/listen` request."""

    def __init__(self, exchange: Exchange) -> None:
        self._send = exchange.channel.notify
        self.meta: dict[str, Any] = {_SUBSCRIPTION_ID: exchange.id}

    async def send_update(self, method: str, params: dict[str, Any]) -> None:
        """Send that a resource changed."""
        await self._send(method, {**params, "_meta": self.meta})

    async def notify(self, kind: str) -> None:
        """Send that a list changed."""
        await self._send(f"notifications/{kind}/list_changed", {"_meta": self.meta})

    async def acknowledge(self, kinds: Sequence[str], uris: Sequence[str]) -> None:
        """Send which lists and resources the subscription covers."""
        accepted: dict[str, Any] = {_WANTED[kind]: True for kind in kinds}
        if uris:
            accepted["resourceSubscriptions"] = list(uris)
        await self._send("notifications/subscriptions/acknowledged", {"notifications": accepted, "_meta": self.meta})


async def _with_queue(queue: NotificationQueue, work: Callable[[], Awaitable[_T]]) -> _T:
    """Run the work, and return its result after the notifications that were queued meanwhile."""
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
