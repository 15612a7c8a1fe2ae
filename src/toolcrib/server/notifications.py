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
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from toolcrib.containment import is_own_cancellation
from toolcrib.errors import AlreadyStarted
from toolcrib.providers.adapters import adapt
from toolcrib.providers.base import ChangeSource, ProviderFeature
from toolcrib.types import Context, Unsubscribe

logger = logging.getLogger(__name__)

_DEBOUNCE_S: Final = 0.15
_MAX_SUBSCRIBERS: Final = 60_000
_MAX_PER_CALLER: Final = 6_000
"""Each client needs three: tools, prompts, resources."""
_MAX_QUEUED: Final = 1024

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

    def add(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a log message, or a notification of an extension. A full queue drops its oldest notification."""
        self._put(next(self._numbers), method, dict(params))

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
