"""Resource subscriptions: confirmed, refused, coalesced."""

from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from tests.upstream.in_process import sdk_server
from tests.upstream.support import CTX, call, call_json, raw, server_of

from toolcrib.errors import UpstreamError
from toolcrib.providers.base import LogAudience
from toolcrib.types import Caller, Context
from toolcrib.upstream import subscriptions
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

OTHER = Context(caller=Caller(id="other"))
OLDER = {"capabilities": {"resources": {"subscribe": True}}}


def updated(uri: str) -> dict[str, Any]:
    return {"method": "notifications/resources/updated", "params": {"uri": uri}}


def newer(listen: Any) -> ServerOptions:
    """A server of this process that answers subscriptions so."""

    async def resources(ctx: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(uri="memo://x", name="x")])

    return ServerOptions(name="new", target=sdk_server(on_list_resources=resources, on_subscriptions_listen=listen))


async def never(ctx: Any, params: Any) -> Any:
    await anyio.sleep_forever()


async def test_a_refusal_reaches_every_waiting_subscriber() -> None:
    refused: list[str] = []

    async def try_it() -> None:
        with pytest.raises(UpstreamError, match="nobody watches that"):
            await server.watch_resource(CTX, "no", lambda _: None)
        refused.append("no")

    async with server_of(raw(**OLDER)) as server:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(try_it)
        assert refused == ["no"] * 3
        assert (await call_json(server, "watched")).count("resources/subscribe no") == 1
        await try_it()


async def test_a_waiting_subscriber_takes_over_from_a_cancelled_one() -> None:
    async with server_of(raw(**OLDER)) as server, anyio.create_task_group() as group:
        scope, done = anyio.CancelScope(), anyio.Event()

        async def give_up() -> None:
            with scope:
                await server.watch_resource(CTX, "memo://x", lambda _: None)

        async def wait() -> None:
            await server.watch_resource(CTX, "memo://x", lambda _: None)
            done.set()

        group.start_soon(give_up)
        group.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        scope.cancel()
        await done.wait()


async def test_a_server_that_never_confirms_counts_as_refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_CONFIRM_TIMEOUT_S", 0.05)
    async with server_of(newer(never)) as server:
        for _ in range(2):
            with pytest.raises(UpstreamError, match=r"did not confirm the subscription within 0\.05 s"):
                await server.watch_resource(CTX, "memo://x", lambda _: None)


async def test_only_confirmed_resources_are_subscribed() -> None:
    bus = InMemorySubscriptionBus()
    agreeing = ListenHandler(bus)

    async def listen(ctx: Any, params: types.SubscriptionsListenRequestParams) -> Any:
        wanted = [uri for uri in params.notifications.resource_subscriptions or () if uri != "memo://no"]
        part = params.notifications.model_copy(update={"resource_subscriptions": wanted})
        return await agreeing(ctx, params.model_copy(update={"notifications": part}))

    received: list[str] = []
    async with server_of(newer(listen)) as server:
        await server.watch_resource(CTX, "memo://x", received.append)
        for _ in range(2):
            with pytest.raises(UpstreamError, match="does not support"):
                await server.watch_resource(CTX, "memo://no", received.append)
        await server.watch_resource(CTX, "memo://y", received.append)
        while not received:
            await bus.publish(ResourceUpdated(uri="memo://y"))
            await anyio.lowlevel.checkpoint()
    assert set(received) == {"memo://y"}


async def test_a_subscriber_counts_as_a_user_of_the_connection_and_its_successors() -> None:
    received: list[LogAudience | None] = []
    notice = {"method": "notifications/message", "params": {"level": "info", "data": "bob's"}}
    async with server_of(raw(**OLDER)) as server:
        server.subscribe_notifications(lambda recipient, *_: received.append(recipient))
        await call(server, "tell", notices=[notice])
        lost = anyio.Event()
        await server.watch_resource(OTHER, "memo://x", lambda _: lost.set())
        await call(server, "tell", notices=[notice])
        with pytest.raises(Exception, match="lost"):
            await call(server, "die")
        await lost.wait()
        await call(server, "tell", notices=[notice])
    assert received == [(CTX.caller, None), None, None]


async def test_a_flood_of_updates_is_coalesced_and_its_end_is_reported() -> None:
    received: list[str] = []
    done = anyio.Event()

    def note(uri: str) -> None:
        received.append(uri)
        if uri == "memo://last":
            done.set()

    async with server_of(raw(**OLDER)) as server:
        for uri in ("memo://x", "memo://last"):
            await server.watch_resource(CTX, uri, note)
        await call(server, "tell", notices=[updated("memo://x")] * 3000 + [updated("memo://last")])
        await done.wait()
    assert received[0] == "memo://x"
    assert len(received) < 300


async def test_several_parts_that_changed_at_once_are_reported_as_the_whole() -> None:
    received: list[str] = []
    async with server_of(raw(**OLDER)) as server:
        await server.watch_resource(CTX, "memo://x", received.append)
        await call(server, "tell", notices=[updated(f"memo://x/{part}") for part in "abc"])
        while len(received) < 2:
            await anyio.lowlevel.checkpoint()
    assert received == ["memo://x/a", "memo://x"]
