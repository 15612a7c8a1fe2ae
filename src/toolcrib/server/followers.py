"""Which client wants to be told of what, and how he is told: changed lists, changed resources, messages for logs.

Sessions of versions before 2026-07-28 are told until their connection ends; later clients on the stream of their
`subscriptions/listen`, and of messages for a log on that of the request which asks for them.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, get_args

import anyio
import mcp_types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import LOG_LEVEL_META_KEY

from toolcrib.errors import InvalidRequest, ToolcribError
from toolcrib.gateway.library import Library
from toolcrib.model import Object
from toolcrib.protocols import Context, Unsubscribe
from toolcrib.server.changes import Follower, ListChanges, Marker
from toolcrib.server.context import RequestContext, kept, to_context
from toolcrib.server.failures import guarded, isolated
from toolcrib.server.outbox import Outbox
from toolcrib.wire import is_modern

logger = logging.getLogger(__name__)

_STATE: Final = "toolcrib.followed"
_LEVELS: Final[tuple[str, ...]] = get_args(mcp_types.LoggingLevel)
"""The least severe first."""
_LAST_WORDS_S: Final = 1.0
"""How long an answer waits for what was said before it to be sent, in seconds."""
_AGREE_S: Final = 6.0
"""How long a subscription waits for servers to agree, all together; it begins without those that do not."""
_WATCHED: Final = 1000
"""Resources that one session or subscription may watch."""


class _Session:
    """What a connection with a handshake is told of."""

    def __init__(self, connection: Connection) -> None:
        self.outbox = Outbox(connection.notify)
        self.watched: dict[str, Unsubscribe] = {}
        self.level: str | None = None


class Followers:
    """Over one server."""

    def __init__(self, changes: ListChanges, library: Library) -> None:
        """`changes` runs elsewhere."""
        self._changes = changes
        self._library = library
        self._markers: Mapping[str, Marker | None] = {
            "tools": None,
            "prompts": lambda ctx: library.mark(ctx, "prompts"),
            "resources": lambda ctx: library.mark(ctx, "resources", "templates"),
        }

    def register(self, server: Server[Any]) -> None:
        """Have a server take these wishes."""
        server.add_request_handler("subscriptions/listen", mcp_types.SubscriptionsListenRequestParams, self.listen)
        server.add_request_handler("resources/subscribe", mcp_types.SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", mcp_types.UnsubscribeRequestParams, self.unsubscribe)
        server.add_request_handler("logging/setLevel", mcp_types.SetLevelRequestParams, self.set_level)
        server.middleware.append(self.follow_session)
        server.middleware.append(self.say_meanwhile)

    # -- sessions --------------------------------------------------------------------------------------------------

    async def follow_session(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Tell the session that opens here of changed lists, until its connection ends."""
        result = await call_next(ctx)
        if ctx.method == "initialize":
            try:
                await isolated(partial(self._follow, ctx))
            except Exception:
                logger.exception("a session is not told when its lists change")
        return result

    async def _follow(self, ctx: ServerRequestContext[Any, Any]) -> None:
        connection = _connection(ctx)
        if _STATE in connection.state:
            return
        session = connection.state[_STATE] = _Session(connection)
        connection.exit_stack.callback(self._end, session)
        self._changes.start(session.outbox.run)
        asker = kept(to_context(ctx))
        for kind in await self._kinds(asker):
            tell = partial(connection.notify, _changed(kind), None)
            follower = await self._changes.follow(asker, tell, connection.initialized, self._markers[kind])
            if follower is None:
                logger.warning("too many sessions: one is not told when its lists change")
                return
            connection.exit_stack.callback(self._changes.leave, follower)

    async def _kinds(self, ctx: Context) -> list[str]:
        """The lists that the caller has."""
        try:
            offered = await isolated(partial(self._library.offered, ctx))
        except Exception:
            logger.exception("what a client may read could not be found out")
            return ["tools"]
        return ["tools", *(kind for kind in ("prompts", "resources") if getattr(offered, kind))]

    @staticmethod
    def _end(session: _Session) -> None:
        session.outbox.close()
        for end in session.watched.values():
            end()

    def _session(self, request: RequestContext) -> _Session:
        session = _connection(request).state.get(_STATE)
        if not isinstance(session, _Session):
            raise MCPError(mcp_types.INVALID_REQUEST, "This connection cannot be told of anything.")
        return session

    async def subscribe(self, request: RequestContext, params: mcp_types.SubscribeRequestParams) -> HandlerResult:
        """Tell the session whenever a resource changed."""
        session = self._session(request)
        if params.uri not in session.watched:
            watch = partial(self._watch, kept(to_context(request)), params.uri, session.outbox, len(session.watched))
            end = await guarded(isolated(watch))
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

    async def _watch(self, ctx: Context, uri: str, outbox: Outbox, watched: int) -> Unsubscribe:
        if watched >= _WATCHED:
            raise InvalidRequest(f"{_WATCHED} resources are watched already.", hint="Give one up first.")
        return await self._library.watch(ctx, uri, outbox.updated)

    async def set_level(self, request: RequestContext, params: mcp_types.SetLevelRequestParams) -> HandlerResult:
        """Tell the session what servers say for a log, from that level on."""
        session = self._session(request)
        if session.level is None:

            def said(message: Object) -> None:
                if _is_wanted(message, session.level):
                    session.outbox.said(dict(message))

            _connection(request).exit_stack.callback(self._library.hear(kept(to_context(request)), said))
        session.level = params.level
        return mcp_types.EmptyResult()

    # -- requests of the modern era --------------------------------------------------------------------------------

    async def say_meanwhile(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Tell who asks for it what servers say for a log while his request is answered."""
        level = (ctx.meta or {}).get(LOG_LEVEL_META_KEY)
        if level is None or ctx.request_id is None or not is_modern(ctx.protocol_version):
            return await call_next(ctx)

        async def send(_method: str, params: dict[str, Any]) -> None:
            message = mcp_types.LoggingMessageNotificationParams.model_validate(params)
            notification = mcp_types.LoggingMessageNotification(params=message)
            await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

        outbox = Outbox(send)

        def said(message: Object) -> None:
            if _is_wanted(message, level):
                outbox.said(dict(message))

        end = self._library.hear(kept(to_context(ctx)), said)
        try:
            return await _beside(outbox, partial(call_next, ctx))
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
        known, ctx, wanted = anyio.Event(), kept(to_context(request)), params.notifications

        async def send(notification: mcp_types.ServerNotification) -> None:
            await request.session.send_notification(notification, related_request_id=number)

        async def send_update(_method: str, update: dict[str, Any]) -> None:
            about = mcp_types.ResourceUpdatedNotificationParams.model_validate({**update, "_meta": meta})
            await send(mcp_types.ResourceUpdatedNotification(params=about))

        async def tell(kind: str) -> None:
            await send(_NOTICES[kind](params=mcp_types.NotificationParams(_meta=meta)))

        outbox = Outbox(send_update)
        with ExitStack() as stack:
            kinds = [kind for kind in await self._kinds(ctx) if getattr(wanted, f"{kind}_list_changed") is True]
            followers = [await self._follow_stream(stack, ctx, partial(tell, kind), known, kind) for kind in kinds]
            followers = followers or [await self._follow_stream(stack, ctx, _nothing, known, "tools")]
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

    async def _follow_stream(
        self, stack: ExitStack, ctx: Context, tell: Callable[[], Awaitable[None]], known: anyio.Event, kind: str
    ) -> Follower:
        follow = partial(self._changes.follow, ctx, tell, known, self._markers[kind])
        follower = await guarded(isolated(follow))
        if follower is None:
            raise MCPError(mcp_types.INTERNAL_ERROR, "Too many subscriptions are open; try again later.")
        stack.callback(self._changes.leave, follower)
        return follower

    async def _watch_all(self, stack: ExitStack, ctx: Context, uris: Any, outbox: Outbox) -> list[str]:
        """The URIs that will be told of; those that cannot be are left out."""
        wanted, taken = tuple(dict.fromkeys(uris)), set[str]()

        async def watch(uri: str, before: int) -> None:
            async def attempt() -> None:
                stack.callback(await self._watch(ctx, uri, outbox, before))

            try:
                await isolated(attempt)
            except ToolcribError as error:
                logger.info("a resource cannot be watched: %s", error.message)
            except Exception:
                logger.exception("a resource cannot be watched")
            else:
                taken.add(uri)

        with anyio.move_on_after(_AGREE_S):
            async with anyio.create_task_group() as group:
                for place, uri in enumerate(wanted):
                    group.start_soon(watch, uri, place)
        return [uri for uri in wanted if uri in taken]


_NOTICES: Final[Mapping[str, Callable[..., mcp_types.ServerNotification]]] = {
    "tools": mcp_types.ToolListChangedNotification,
    "prompts": mcp_types.PromptListChangedNotification,
    "resources": mcp_types.ResourceListChangedNotification,
}


async def _beside(outbox: Outbox, work: Callable[[], Awaitable[HandlerResult]]) -> HandlerResult:
    """The outcome of the work, after what the outbox was given meanwhile."""
    result: HandlerResult = None
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(outbox.run)
        try:
            result = await work()
        except Exception as error:  # noqa: BLE001 - raised again below, not as a group
            failure = error
        with anyio.move_on_after(_LAST_WORDS_S):
            await outbox.emptied()
        outbox.close()
    if failure is not None:
        raise failure
    return result


async def _nothing() -> None:
    """For a stream that follows no list."""


def _changed(kind: str) -> str:
    return f"notifications/{kind}/list_changed"


def _is_wanted(message: Object, level: object) -> bool:
    return isinstance(level, str) and level in _LEVELS and _LEVELS.index(message["level"]) >= _LEVELS.index(level)


def _connection(ctx: ServerRequestContext[Any, Any]) -> Connection:
    # The SDK shows handlers neither the notifications of a connection nor its end; a request's session does.
    return ctx.session._connection  # noqa: SLF001 - the one way to both
