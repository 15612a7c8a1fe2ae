"""Clients are notified when their own list of tools changed, over every transport and in both eras."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import mcp
import pytest
from tests.server.conftest import (
    TOKENS,
    Crib,
    Notices,
    Own,
    PerTenant,
    at_address,
    client_at,
    crib,
    names,
    native,
    token,
    until,
)

from toolcrib.errors import AlreadyStarted
from toolcrib.server.engine import Engine
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.notifications import ListChangeNotifier
from toolcrib.server.options import HttpOptions
from toolcrib.server.sdk import SdkServer
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeSource, ready, running
from toolcrib.types import Caller, Context, ServerState, Unsubscribe

pytestmark = pytest.mark.anyio

ADD, SUB = native("add", "x"), native("sub", "x")


@contextlib.asynccontextmanager
async def over(transport: str, served: Crib, **client: Any) -> AsyncIterator[mcp.Client]:
    """A client in memory or over HTTP."""
    if transport == "memory":
        async with mcp.Client(served.server, **client) as connected:
            yield connected
    else:
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
        async with at_address(app) as url, client_at(f"{url}/mcp", **client) as connected:
            yield connected


async def change_until_notified(served: Crib, notices: Notices) -> None:
    """Change the tools until the client is notified; it may miss changes before its stream is open."""
    offers = [(ADD,), (ADD, SUB)]
    while not notices.count:
        offers.reverse()
        await served.offer(*offers[0])
        with anyio.move_on_after(0.3):
            await notices.next()


@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_a_session_announces_list_changes_and_sends_them(transport: str) -> None:
    notices = Notices()
    with anyio.fail_after(10):
        async with crib(ADD) as served, over(transport, served, mode="legacy", message_handler=notices) as client:
            assert client.server_capabilities.tools is not None
            assert client.server_capabilities.tools.list_changed is True
            await change_until_notified(served, notices)
            await served.offer(ADD, SUB)
            assert "x__sub" in await names(client)


@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_a_subscription_gets_changes_and_ends_with_its_client(transport: str) -> None:
    with anyio.fail_after(10):
        async with crib(ADD) as served, over(transport, served, mode="2026-07-28") as client:
            async with client.listen(tools_list_changed=True, prompts_list_changed=True) as subscription:
                assert subscription.honored.tools_list_changed is True
                assert not subscription.honored.prompts_list_changed
                await served.offer(ADD, SUB)
                assert type(await anext(aiter(subscription))).__name__ == "ToolsListChanged"
            await until(lambda: served.changes.subscriber_count == 0)


async def test_a_server_without_changes_promises_none() -> None:
    async with running(FakeSource()) as gateway:
        server = SdkServer(Engine(make_facade(gateway, SurfaceOptions())))
        async with mcp.Client(server, mode="legacy") as client:
            assert client.server_capabilities.tools is not None
            assert not client.server_capabilities.tools.list_changed


async def test_no_client_is_notified_of_tools_it_cannot_see() -> None:
    shared, hers, his = native("shared", "x"), native("hers", "acme"), native("his", "bits")
    notified: list[str] = []

    async def listen(who: str, client: mcp.Client, opened: anyio.Event) -> None:
        async with client.listen(tools_list_changed=True) as subscription:
            opened.set()
            async for _ in subscription:
                notified.append(who)  # noqa: PERF401 - each at its time

    with anyio.fail_after(10):
        async with crib(shared, policy=PerTenant()) as served:
            app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
            async with (
                at_address(app) as url,
                client_at(f"{url}/mcp", "2026-07-28", token("s3cret-a")) as ann,
                client_at(f"{url}/mcp", "2026-07-28", token("s3cret-b")) as bob,
                anyio.create_task_group() as group,
            ):
                for who, client in (("ann", ann), ("bob", bob)):
                    opened = anyio.Event()
                    group.start_soon(listen, who, client, opened)
                    await opened.wait()
                await served.offer(shared, hers)
                await until(lambda: notified == ["ann"])
                await served.offer(shared, hers, his)
                await until(lambda: notified == ["ann", "bob"])
                await served.offer(shared, native("more", "x"), hers, his)
                await until(lambda: sorted(notified) == ["ann", "ann", "bob", "bob"])
                group.cancel_scope.cancel()
    assert notified[:2] == ["ann", "bob"]


async def test_a_client_is_notified_when_a_server_that_the_digest_only_named_has_started() -> None:
    async def servers(client: mcp.Client) -> str:
        search = (await client.list_tools(cache_mode="bypass")).tools[0]
        return (search.description or "").partition("Servers:\n")[2]

    notices = Notices()
    with anyio.fail_after(10):
        async with crib() as served:
            tools, served.provider.tools = served.provider.tools, []
            served.provider.status = ready("x", state=ServerState.CONNECTING)
            served.source.changed()
            await served.gateway.refresher.wait_current()
            async with over("memory", served, mode="legacy", message_handler=notices) as client:
                assert await servers(client) == "- x"
                served.provider.tools, served.provider.status = tools, ready("x", tools=1)
                served.source.changed()
                await notices.next()
                assert await servers(client) == "- x: echo"


async def test_a_tool_that_is_only_searchable_changes_no_list() -> None:
    """A list of meta-tools changes with their descriptions, not with every tool behind them."""
    facade = Marked("a")
    async with telling(facade) as (changes, source):
        subscriber, count = await subscribed(changes)
        source.changed()
        await until(lambda: facade.asked > 1)
        facade.marks = "b"
        source.changed()
        await until(lambda: count() > 0)
        assert count() == 1
        changes.unsubscribe(subscriber)


class Marked:
    """Fingerprints that a test changes by hand, for all callers or for one."""

    def __init__(self, marks: str) -> None:
        self.marks = marks
        self.of: dict[str, str] = {}
        self.asked = 0
        self.hanging = anyio.Event()

    async def fingerprint(self, ctx: Context) -> str:
        self.asked += 1
        if ctx.providers:
            await self.hanging.wait()
        return self.of.get(ctx.caller.id, self.marks)


class Source:
    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def changed(self) -> None:
        for callback in self.callbacks:
            callback()


@contextlib.asynccontextmanager
async def telling(
    marks: Marked, *, limit: int = 10, debounce_s: float = 0.01
) -> AsyncIterator[tuple[ListChangeNotifier, Source]]:
    source = Source()
    changes = ListChangeNotifier(marks, source, debounce_s=debounce_s, limit=limit)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            await group.start(changes.run)
            yield changes, source
            group.cancel_scope.cancel()
    assert source.callbacks == []


async def subscribed(changes: ListChangeNotifier, name: str = "ann", *own: Any) -> tuple[Any, Callable[[], int]]:
    """A ready subscriber, and a function that counts its notifications."""
    notified_at: list[float] = []

    async def tell() -> None:
        notified_at.append(anyio.current_time())

    ready = anyio.Event()
    ready.set()
    ctx = Context(caller=Caller(id=name), providers=tuple(own))
    subscriber = await changes.subscribe(ctx, tell, ready)
    assert subscriber is not None
    return subscriber, lambda: len(notified_at)


def reached(count: Callable[[], int], number: int) -> bool:
    return count() == number


async def test_many_changes_at_once_are_one_notification() -> None:
    marks = Marked("0")
    async with telling(marks, debounce_s=0.1) as (changes, source):
        _, count = await subscribed(changes)
        for number in range(20):
            marks.marks = f"{number + 1}"
            source.changed()
            await anyio.lowlevel.checkpoint()
        await until(lambda: count() == 1)
        marks.marks = "last"
        source.changed()
        await until(lambda: count() == 2)


async def test_a_list_that_changed_and_changed_back_is_notified_because_the_client_may_have_seen_it() -> None:
    marks = Marked("a")
    async with telling(marks, debounce_s=0.1) as (changes, source):
        _, count = await subscribed(changes)
        asked = marks.asked
        marks.marks = "b"
        source.changed()
        await until(lambda: marks.asked >= asked + 2)
        marks.marks = "a"
        source.changed()
        await until(lambda: count() > 0)
        assert count() == 1


async def test_a_client_that_does_not_read_delays_no_other_and_has_one_pending_notification() -> None:
    marks, stuck, told_slowly = Marked("0"), anyio.Event(), list[str]()

    async def tell() -> None:
        told_slowly.append(marks.marks)
        await stuck.wait()

    ready = anyio.Event()
    ready.set()
    async with telling(marks) as (changes, source):
        slow = await changes.subscribe(Context(caller=Caller(id="slow")), tell, ready)
        _, count = await subscribed(changes)
        for number in range(1, 6):
            marks.marks = f"{number}"
            source.changed()
            await until(partial(reached, count, number))
        assert told_slowly == ["1"]
        stuck.set()
        await until(lambda: told_slowly == ["1", "5"])
        assert slow is not None


async def test_a_request_provider_that_hangs_delays_no_other_client() -> None:
    marks = Marked("a")
    async with telling(marks) as (changes, source):
        marks.hanging.set()
        hanging, hers = await subscribed(changes, "ann", Own())
        _, his = await subscribed(changes, "bob")
        marks.hanging = anyio.Event()
        marks.marks = "b"
        source.changed()
        await until(lambda: his() == 1)
        assert hers() == 0
        changes.unsubscribe(hanging)


async def test_a_request_provider_with_changes_is_subscribed_to_and_unsubscribed_from() -> None:
    marks, own = Marked("a"), Own()
    marks.hanging.set()
    async with telling(marks) as (changes, _):
        subscriber, hers = await subscribed(changes, "ann", own)
        _, his = await subscribed(changes, "bob")
        marks.of["ann"] = "b"
        own.offer()
        await until(lambda: hers() == 1)
        changes.unsubscribe(subscriber)
        changes.unsubscribe(subscriber)
        assert (own.callbacks, his(), changes.subscriber_count) == ([], 0, 1)


async def test_a_subscriber_that_unsubscribed_gets_no_more_notifications() -> None:
    marks = Marked("a")
    async with telling(marks, debounce_s=0.05) as (changes, source):
        left, hers = await subscribed(changes, "ann")
        _, his = await subscribed(changes, "bob")
        asked = marks.asked
        marks.marks = "b"
        source.changed()
        await until(lambda: marks.asked >= asked + 2)
        changes.unsubscribe(left)
        await until(lambda: his() == 1)
        assert hers() == 0


async def test_subscribers_are_limited_and_unsubscribing_makes_room() -> None:
    async with telling(Marked("a"), limit=1) as (changes, _):
        subscriber, _ = await subscribed(changes)
        assert await changes.subscribe(subscriber.ctx, subscriber.notify, subscriber.ready) is None
        changes.unsubscribe(subscriber)
        await subscribed(changes)


async def test_one_caller_leaves_room_for_others() -> None:
    changes = ListChangeNotifier(Marked("a"), Source(), limit=10, per_caller=2)
    first, _ = await subscribed(changes, "greedy")
    await subscribed(changes, "greedy")
    assert await changes.subscribe(first.ctx, first.notify, first.ready) is None
    namesake = replace(first.ctx, caller=Caller(id="greedy", tenant="another"))
    assert await changes.subscribe(namesake, first.notify, first.ready) is not None
    await subscribed(changes, "ann")
    for _ in range(2):
        changes.unsubscribe(first)
    await subscribed(changes, "greedy")
    assert await changes.subscribe(first.ctx, first.notify, first.ready) is None
    assert changes.subscriber_count == 4


def test_one_caller_cannot_take_every_place_by_default() -> None:
    changes = ListChangeNotifier(Marked("a"), Source())
    assert changes.per_caller * 5 <= changes.limit


async def test_a_client_that_cannot_be_notified_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    marks = Marked("0")

    async def tell() -> None:
        raise OSError("gone")

    ready = anyio.Event()
    ready.set()
    async with telling(marks) as (changes, source):
        await changes.subscribe(Context(caller=Caller(id="gone")), tell, ready)
        _, count = await subscribed(changes)
        for number in (1, 2):
            marks.marks = f"{number}"
            source.changed()
            await until(partial(reached, count, number))
    assert "cannot notify a client" in caplog.text


async def test_a_notifier_cannot_run_twice() -> None:
    async with telling(Marked("a")) as (changes, _):
        with pytest.raises(AlreadyStarted):
            await changes.run()


async def test_subscriptions_end_gracefully_when_the_notifier_stops() -> None:
    with anyio.fail_after(10):
        async with crib(ADD) as served, mcp.Client(served.server, mode="2026-07-28") as client:
            async with client.listen(tools_list_changed=True) as subscription:
                served.changes.end_streams()
                assert [event async for event in subscription] == []


async def test_an_open_subscription_does_not_delay_a_shutdown() -> None:
    with anyio.fail_after(10):
        async with crib(ADD) as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            stop = anyio.Event()
            async with at_address(app, stop=stop) as url, client_at(f"{url}/mcp", "2026-07-28") as client:
                async with client.listen(tools_list_changed=True) as subscription:
                    stop.set()
                    assert [event async for event in subscription] == []


async def test_ended_sessions_are_unsubscribed() -> None:
    with anyio.fail_after(10):
        async with crib(ADD) as served:
            for _ in range(3):
                async with mcp.Client(served.server, mode="legacy"):
                    assert served.changes.subscriber_count == 1
            await until(lambda: served.changes.subscriber_count == 0)


class Unknown(Marked):
    async def fingerprint(self, ctx: Context) -> str:
        raise RuntimeError("no")


async def test_a_session_opens_even_if_its_list_fails(caplog: pytest.LogCaptureFixture) -> None:
    with anyio.fail_after(5):
        async with crib(ADD) as served:
            served.changes._fingerprints = Unknown("")
            async with mcp.Client(served.server, mode="legacy") as client:
                assert "x__add" in await names(client)
    assert "not be notified when its lists change" in caplog.text


async def test_a_list_that_fails_for_a_while_is_notified_later() -> None:
    marks = Marked("a")
    async with telling(marks) as (changes, source):
        _, count = await subscribed(changes)
        changes._fingerprints = Unknown("")
        source.changed()
        await anyio.wait_all_tasks_blocked()
        changes._fingerprints = marks
        marks.marks = "b"
        source.changed()
        await until(lambda: count() > 0)
        assert count() == 1
