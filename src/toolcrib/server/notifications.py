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
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, get_args

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

from toolcrib.errors import AlreadyStarted, InvalidRequest, ToolcribError
from toolcrib.resources.manager import ResourceManager
from toolcrib.server.context import RequestContext, detach, to_context
from toolcrib.server.error_responses import as_mcp_errors, is_own_cancellation, isolate
from toolcrib.server.sdk_workarounds import connection_of
from toolcrib.types import Changes, Context, Object, Unsubscribe
from toolcrib.wire import is_modern

logger = logging.getLogger(__name__)


_SESSION_KEY: Final = "toolcrib.followed"


_LEVELS: Final[tuple[str, ...]] = get_args(mcp_types.LoggingLevel)
"""The least severe first."""


_FLUSH_S: Final = 1.0
"""How long an answer waits for what was said before it to be sent, in seconds."""


_SUBSCRIBE_TIMEOUT_S: Final = 6.0
"""How long a subscription waits for servers to agree, all together; it begins without those that do not."""


_MAX_WATCHED: Final = 1000
"""Resources that one session or subscription may watch."""


class _SessionSubscriptions:
    """What a connection with a handshake is told of."""

    def __init__(self, connection: Connection) -> None:
        self.outbox = NotificationQueue(connection.notify)
        self.watched: dict[str, Unsubscribe] = {}
        self.level: str | None = None


_DEBOUNCE_S: Final = 0.15


_MAX_SUBSCRIBERS: Final = 60_000


_MAX_PER_CALLER: Final = 6_000
"""Three a client: tools, prompts, resources."""


class FingerprintSource(Protocol):
    """Knows lists of tools apart."""

    async def fingerprint(self, ctx: Context) -> str:
        """Another text whenever the caller would be listed something else. Cheap, and without waiting for servers."""


Notify = Callable[[], Awaitable[None]]
"""Tells one client that its list changed."""


FingerprintList = Callable[[Context], Awaitable[str]]
"""Knows the lists of one kind apart: see `FingerprintSource`."""


class ListSubscriber:
    """A session or subscription that is told of changes. What waits to be told is one flag, however much changed."""

    def __init__(self, ctx: Context, tell: Notify, ready: anyio.Event, marker: FingerprintList) -> None:
        """Not told before `ready`."""
        self.ctx = ctx
        self.fingerprint_list = marker
        self.notify = tell
        self.ready = ready
        self.ended = anyio.Event()
        """Set when it will not be told any more."""
        self.fingerprint = ""
        self.busy = True
        self.recheck = False
        self.scope = anyio.CancelScope()
        self.unsubscribes: list[Unsubscribe] = []

    @property
    def owner(self) -> Hashable:
        """Whose place it takes."""
        return self.ctx.caller.tenant, self.ctx.caller.id

    @property
    def request_providers(self) -> tuple[object, ...]:
        """The providers that came with the request that opened it."""
        return (*self.ctx.providers, *self.ctx.overriding)


class ListChangeNotifier:
    """Who is told of changes, and what was told last. It tells while `run` runs."""

    def __init__(
        self,
        marks: FingerprintSource,
        source: Changes,
        *,
        debounce_s: float = _DEBOUNCE_S,
        limit: int = _MAX_SUBSCRIBERS,
        per_caller: int = _MAX_PER_CALLER,
    ) -> None:
        """`source` calls back when anything changed, such as a gateway's `live`.

        Changes within `debounce_s` seconds of a follower's first are told once. At most `limit` followers are kept, and
        of one caller at most `per_caller`, so that nobody takes all the places.
        """
        self.limit = limit
        self.per_caller = per_caller
        self._fingerprints = marks
        self._source = source
        self._debounce_s = debounce_s
        self._subscribers: set[ListSubscriber] = set()
        self._of_caller: Counter[Hashable] = Counter()
        self._group: anyio.abc.TaskGroup | None = None
        self._dirty = anyio.Event()

    @property
    def subscriber_count(self) -> int:
        """How many sessions and subscriptions are told of changes."""
        return len(self._subscribers)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Tell of changes until cancelled. Raises `AlreadyStarted` when it runs already."""
        if self._group is not None:
            raise AlreadyStarted("Changes are being told already.")
        self._dirty = anyio.Event()
        end = self._source.subscribe(self._mark_dirty)
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
            end()
            self.end_streams()

    def _mark_dirty(self) -> None:
        self._dirty.set()

    def start_task(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run something beside, until it ends or `run` does; whether that could be done."""
        if self._group is None:
            return False
        self._group.start_soon(work)
        return True

    # -- followers -------------------------------------------------------------------------------------------------

    async def subscribe(
        self, ctx: Context, tell: Notify, ready: anyio.Event, marker: FingerprintList | None = None
    ) -> ListSubscriber | None:
        """Tell of changes of this caller's list from now on, once `ready`; None where there are too many followers, or
        too many of this caller's.

        The list is that of the tools, unless a `marker` of another kind is given. The context is kept: it must hold
        nothing that ends with its request. Call `leave` in the end.
        """
        follower = ListSubscriber(ctx, tell, ready, marker or self._fingerprints.fingerprint)
        if len(self._subscribers) >= self.limit or self._of_caller[follower.owner] >= self.per_caller:
            return None
        self._subscribers.add(follower)
        self._of_caller[follower.owner] += 1
        try:
            for provider in follower.request_providers:
                if isinstance(provider, Changes):
                    follower.unsubscribes.append(provider.subscribe(partial(self._schedule_check, follower)))
            follower.fingerprint = await follower.fingerprint_list(ctx)
        except BaseException:
            self.unsubscribe(follower)
            raise
        follower.busy = False
        if follower.recheck:
            self._schedule_check(follower)
        return follower

    def unsubscribe(self, follower: ListSubscriber) -> None:
        """Tell this one nothing more; calling it twice is harmless."""
        if follower in self._subscribers:
            self._subscribers.discard(follower)
            self._of_caller[follower.owner] -= 1
            if not self._of_caller[follower.owner]:
                del self._of_caller[follower.owner]
        follower.ended.set()
        follower.scope.cancel()
        ends, follower.unsubscribes = follower.unsubscribes, []
        for end in ends:
            end()

    def end_streams(self) -> None:
        """End what only waits to be told; sessions stay."""
        for follower in tuple(self._subscribers):
            follower.ended.set()

    # -- telling ---------------------------------------------------------------------------------------------------

    async def _check_all(self) -> None:
        for follower in tuple(self._subscribers):
            # Providers of one's own may take their time, which must be nobody else's.
            if follower.request_providers or follower.busy or await self._has_changed(follower):
                self._schedule_check(follower)
            await anyio.lowlevel.checkpoint()

    async def _has_changed(self, follower: ListSubscriber) -> bool:
        """Whether the follower's list is another than the one remembered; not, where that cannot be known."""
        try:
            return await follower.fingerprint_list(follower.ctx) != follower.fingerprint
        except (Exception, asyncio.CancelledError) as error:
            if is_own_cancellation(error):
                raise
            logger.exception("a client's list of tools could not be compared with what it was")
            return False

    def _schedule_check(self, follower: ListSubscriber) -> None:
        """Have a task look at this follower; the one that is at it already looks again."""
        follower.recheck = True
        if self._group is not None and not follower.busy and follower in self._subscribers:
            follower.busy = True
            self._group.start_soon(self._run_checks, follower)

    async def _run_checks(self, follower: ListSubscriber) -> None:
        try:
            with follower.scope:
                while follower.recheck:
                    follower.recheck = False
                    await self._check_and_notify(follower)
        except (Exception, asyncio.CancelledError) as error:
            if is_own_cancellation(error):
                raise
            logger.exception("a client could not be told that its tools changed")
        finally:
            follower.busy = False
            follower.scope = anyio.CancelScope()

    async def _check_and_notify(self, follower: ListSubscriber) -> None:
        if not await self._has_changed(follower):
            return
        await follower.ready.wait()
        await anyio.sleep(self._debounce_s)
        follower.recheck = False
        follower.fingerprint = await follower.fingerprint_list(follower.ctx)
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await follower.notify()


SendNotification = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Sends one notification: its method and params."""


class NotificationQueue:
    """Takes notifications at any time, and sends them in their order while `run` runs."""

    def __init__(self, send: SendNotification) -> None:
        """Nothing waits."""
        self._send = send
        self._waiting: OrderedDict[object, tuple[str, dict[str, Any]]] = OrderedDict()
        self._numbers = count()
        self._filled = anyio.Event()
        self._empty = anyio.Event()
        self._empty.set()
        self._scope = anyio.CancelScope()

    def resource_updated(self, uri: str) -> None:
        """A resource changed; that is told once, however often it did meanwhile."""
        self._put(uri, "notifications/resources/updated", {"uri": uri})

    def log_message(self, message: dict[str, Any]) -> None:
        """A message for a log. The oldest of what waits gives way to it."""
        self._put(next(self._numbers), "notifications/message", message)

    def _put(self, key: object, method: str, params: dict[str, Any]) -> None:
        self._waiting[key] = (method, params)
        if len(self._waiting) > _MAX_QUEUED:
            self._waiting.popitem(last=False)
        self._filled.set()
        if self._empty.is_set():
            self._empty = anyio.Event()

    async def wait_empty(self) -> None:
        """Wait until all that came was sent."""
        await self._empty.wait()

    async def run(self) -> None:
        """Send until `close`. What cannot be sent, as the client is gone, is dropped."""
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


class SubscriptionHandlers:
    """Over one server."""

    def __init__(self, changes: ListChangeNotifier, library: ResourceManager) -> None:
        """`changes` runs elsewhere."""
        self._changes = changes
        self._library = library
        self._fingerprints: Mapping[str, FingerprintList | None] = {
            "tools": None,
            "prompts": lambda ctx: library.digest(ctx, "prompts"),
            "resources": lambda ctx: library.digest(ctx, "resources", "templates"),
        }

    def register(self, server: Server[Any]) -> None:
        """Have a server take these wishes."""
        server.add_request_handler("subscriptions/listen", mcp_types.SubscriptionsListenRequestParams, self.listen)
        server.add_request_handler("resources/subscribe", mcp_types.SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", mcp_types.UnsubscribeRequestParams, self.unsubscribe)
        server.add_request_handler("logging/setLevel", mcp_types.SetLevelRequestParams, self.set_level)
        server.middleware.append(self.subscribe_session)
        server.middleware.append(self.forward_logs)

    # -- sessions --------------------------------------------------------------------------------------------------

    async def subscribe_session(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Tell the session that opens here of changed lists, until its connection ends."""
        result = await call_next(ctx)
        if ctx.method == "initialize":
            try:
                await isolate(partial(self._subscribe_lists, ctx))
            except Exception:
                logger.exception("a session is not told when its lists change")
        return result

    async def _subscribe_lists(self, ctx: ServerRequestContext[Any, Any]) -> None:
        connection = connection_of(ctx)
        if _SESSION_KEY in connection.state:
            return
        session = connection.state[_SESSION_KEY] = _SessionSubscriptions(connection)
        connection.exit_stack.callback(self._end_session, session)
        self._changes.start_task(session.outbox.run)
        asker = detach(to_context(ctx))
        for kind in await self._list_kinds(asker):
            tell = partial(connection.notify, _list_changed_method(kind), None)
            follower = await self._changes.subscribe(asker, tell, connection.initialized, self._fingerprints[kind])
            if follower is None:
                logger.warning("too many sessions: one is not told when its lists change")
                return
            connection.exit_stack.callback(self._changes.unsubscribe, follower)

    async def _list_kinds(self, ctx: Context) -> list[str]:
        """The lists that the caller has."""
        try:
            offered = await isolate(partial(self._library.capabilities, ctx))
        except Exception:
            logger.exception("what a client may read could not be found out")
            return ["tools"]
        return ["tools", *(kind for kind in ("prompts", "resources") if getattr(offered, kind))]

    @staticmethod
    def _end_session(session: _SessionSubscriptions) -> None:
        session.outbox.close()
        for end in session.watched.values():
            end()

    def _session(self, request: RequestContext) -> _SessionSubscriptions:
        session = connection_of(request).state.get(_SESSION_KEY)
        if not isinstance(session, _SessionSubscriptions):
            raise MCPError(mcp_types.INVALID_REQUEST, "This connection cannot be told of anything.")
        return session

    async def subscribe(self, request: RequestContext, params: mcp_types.SubscribeRequestParams) -> HandlerResult:
        """Tell the session whenever a resource changed."""
        session = self._session(request)
        if params.uri not in session.watched:
            watch = partial(self._watch, detach(to_context(request)), params.uri, session.outbox, len(session.watched))
            end = await as_mcp_errors(isolate(watch))
            if (meanwhile := session.watched.pop(params.uri, None)) is not None:
                meanwhile()
            session.watched[params.uri] = end
        return mcp_types.EmptyResult()

    async def unsubscribe(self, request: RequestContext, params: mcp_types.UnsubscribeRequestParams) -> HandlerResult:
        """Tell the session no more of it."""
        end = self._session(request).watched.pop(params.uri, None)
        if end is not None:
            end()
        return mcp_types.EmptyResult()

    async def _watch(self, ctx: Context, uri: str, outbox: NotificationQueue, watched: int) -> Unsubscribe:
        if watched >= _MAX_WATCHED:
            raise InvalidRequest(f"{_MAX_WATCHED} resources are watched already.", hint="Give one up first.")
        return await self._library.subscribe(ctx, uri, outbox.resource_updated)

    async def set_level(self, request: RequestContext, params: mcp_types.SetLevelRequestParams) -> HandlerResult:
        """Tell the session what servers say for a log, from that level on."""
        session = self._session(request)
        if session.level is None:

            def said(message: Object) -> None:
                if _is_severe_enough(message, session.level):
                    session.outbox.log_message(dict(message))

            connection_of(request).exit_stack.callback(self._library.subscribe_logs(detach(to_context(request)), said))
        session.level = params.level
        return mcp_types.EmptyResult()

    # -- requests of the modern era --------------------------------------------------------------------------------

    async def forward_logs(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Tell who asks for it what servers say for a log while his request is answered."""
        level = (ctx.meta or {}).get(LOG_LEVEL_META_KEY)
        if level is None or ctx.request_id is None or not is_modern(ctx.protocol_version):
            return await call_next(ctx)

        async def send(_method: str, params: dict[str, Any]) -> None:
            message = mcp_types.LoggingMessageNotificationParams.model_validate(params)
            notification = mcp_types.LoggingMessageNotification(params=message)
            await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

        outbox = NotificationQueue(send)

        def said(message: Object) -> None:
            if _is_severe_enough(message, level):
                outbox.log_message(dict(message))

        end = self._library.subscribe_logs(detach(to_context(ctx)), said)
        try:
            return await _with_queue(outbox, partial(call_next, ctx))
        finally:
            end()

    async def listen(
        self, request: RequestContext, params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        """One stream of changes; it ends when its client goes, or the server does."""
        number = request.request_id
        if number is None:
            raise MCPError(mcp_types.INVALID_REQUEST, "subscriptions/listen needs a request id.")
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: number}
        known, ctx, wanted = anyio.Event(), detach(to_context(request)), params.notifications

        async def send(notification: mcp_types.ServerNotification) -> None:
            await request.session.send_notification(notification, related_request_id=number)

        async def send_update(_method: str, update: dict[str, Any]) -> None:
            about = mcp_types.ResourceUpdatedNotificationParams.model_validate({**update, "_meta": meta})
            await send(mcp_types.ResourceUpdatedNotification(params=about))

        async def tell(kind: str) -> None:
            await send(_LIST_CHANGED[kind](params=mcp_types.NotificationParams(_meta=meta)))

        outbox = NotificationQueue(send_update)
        with ExitStack() as stack:
            kinds = [kind for kind in await self._list_kinds(ctx) if getattr(wanted, f"{kind}_list_changed") is True]
            followers = [await self._subscribe_stream(stack, ctx, partial(tell, kind), known, kind) for kind in kinds]
            followers = followers or [await self._subscribe_stream(stack, ctx, _no_notification, known, "tools")]
            uris = await self._watch_all(stack, ctx, wanted.resource_subscriptions or (), outbox)
            opening = mcp_types.SubscriptionsAcknowledgedNotificationParams(
                notifications=mcp_types.SubscriptionFilter.model_validate(
                    {**{f"{kind}_list_changed": True for kind in kinds}, "resource_subscriptions": uris or None}
                ),
                _meta=meta,
            )
            await send(mcp_types.SubscriptionsAcknowledgedNotification(params=opening))
            known.set()
            async with anyio.create_task_group() as group:
                group.start_soon(outbox.run)
                await followers[0].ended.wait()
                outbox.close()
        return mcp_types.SubscriptionsListenResult(_meta=meta)

    async def _subscribe_stream(
        self, stack: ExitStack, ctx: Context, tell: Callable[[], Awaitable[None]], known: anyio.Event, kind: str
    ) -> ListSubscriber:
        follow = partial(self._changes.subscribe, ctx, tell, known, self._fingerprints[kind])
        follower = await as_mcp_errors(isolate(follow))
        if follower is None:
            raise MCPError(mcp_types.INTERNAL_ERROR, "Too many subscriptions are open; try again later.")
        stack.callback(self._changes.unsubscribe, follower)
        return follower

    async def _watch_all(self, stack: ExitStack, ctx: Context, uris: Any, outbox: NotificationQueue) -> list[str]:
        """The URIs that will be told of; those that cannot be are left out."""
        wanted, taken = tuple(dict.fromkeys(uris)), set[str]()

        async def watch(uri: str, before: int) -> None:
            async def attempt() -> None:
                stack.callback(await self._watch(ctx, uri, outbox, before))

            try:
                await isolate(attempt)
            except ToolcribError as error:
                logger.info("a resource cannot be watched: %s", error.message)
            except Exception:
                logger.exception("a resource cannot be watched")
            else:
                taken.add(uri)

        with anyio.move_on_after(_SUBSCRIBE_TIMEOUT_S):
            async with anyio.create_task_group() as group:
                for place, uri in enumerate(wanted):
                    group.start_soon(watch, uri, place)
        return [uri for uri in wanted if uri in taken]


_LIST_CHANGED: Final[Mapping[str, Callable[..., mcp_types.ServerNotification]]] = {
    "tools": mcp_types.ToolListChangedNotification,
    "prompts": mcp_types.PromptListChangedNotification,
    "resources": mcp_types.ResourceListChangedNotification,
}


async def _with_queue(outbox: NotificationQueue, work: Callable[[], Awaitable[HandlerResult]]) -> HandlerResult:
    """The outcome of the work, after what the outbox was given meanwhile."""
    result: HandlerResult = None
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(outbox.run)
        try:
            result = await work()
        except Exception as error:  # noqa: BLE001 - raised again below, not as a group
            failure = error
        with anyio.move_on_after(_FLUSH_S):
            await outbox.wait_empty()
        outbox.close()
    if failure is not None:
        raise failure
    return result


async def _no_notification() -> None:
    """For a stream that follows no list."""


def _list_changed_method(kind: str) -> str:
    return f"notifications/{kind}/list_changed"


def _is_severe_enough(message: Object, level: object) -> bool:
    return isinstance(level, str) and level in _LEVELS and _LEVELS.index(message["level"]) >= _LEVELS.index(level)


_MAX_QUEUED: Final = 1024
