"""Who watches single resources of a server: what it agrees to, what it refuses, and what it tells without end."""

from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from tests.upstream.inside import sdk_server
from tests.upstream.support import CTX, call, raw, said, server_of

from toolcrib.errors import UpstreamError
from toolcrib.types import Caller, Context, LogAudience
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


async def test_a_refusal_is_that_of_all_who_wait_for_it() -> None:
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
        assert (await said(server, "watched")).count("resources/subscribe no") == 1
        await try_it()


async def test_who_waited_for_one_that_gave_up_asks_himself() -> None:
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


async def test_a_server_that_never_agrees_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_CONFIRM_TIMEOUT_S", 0.05)
    async with server_of(newer(never)) as server:
        for _ in range(2):
            with pytest.raises(UpstreamError, match=r"did not confirm the subscription within 0\.05 s"):
                await server.watch_resource(CTX, "memo://x", lambda _: None)


async def test_only_what_a_server_agreed_to_is_watched() -> None:
    bus = InMemorySubscriptionBus()
    agreeing = ListenHandler(bus)

    async def listen(ctx: Any, params: types.SubscriptionsListenRequestParams) -> Any:
        wanted = [uri for uri in params.notifications.resource_subscriptions or () if uri != "memo://no"]
        part = params.notifications.model_copy(update={"resource_subscriptions": wanted})
        return await agreeing(ctx, params.model_copy(update={"notifications": part}))

    heard: list[str] = []
    async with server_of(newer(listen)) as server:
        await server.watch_resource(CTX, "memo://x", heard.append)
        for _ in range(2):
            with pytest.raises(UpstreamError, match="does not support"):
                await server.watch_resource(CTX, "memo://no", heard.append)
        await server.watch_resource(CTX, "memo://y", heard.append)
        while not heard:
            await bus.publish(ResourceUpdated(uri="memo://y"))
            await anyio.lowlevel.checkpoint()
    assert set(heard) == {"memo://y"}


async def test_who_watches_has_used_the_connection_and_its_successors() -> None:
    heard: list[LogAudience | None] = []
    notice = {"method": "notifications/message", "params": {"level": "info", "data": "bob's"}}
    async with server_of(raw(**OLDER)) as server:
        server.subscribe_logs(lambda due_to, _: heard.append(due_to))
        await call(server, "tell", notices=[notice])
        lost = anyio.Event()
        await server.watch_resource(OTHER, "memo://x", lambda _: lost.set())
        await call(server, "tell", notices=[notice])
        with pytest.raises(Exception, match="lost"):
            await call(server, "die")
        await lost.wait()
        await call(server, "tell", notices=[notice])
    assert heard == [(CTX.caller, None), None, None]


async def test_a_flood_of_changes_is_folded_and_its_end_is_told() -> None:
    heard: list[str] = []
    done = anyio.Event()

    def note(uri: str) -> None:
        heard.append(uri)
        if uri == "memo://last":
            done.set()

    async with server_of(raw(**OLDER)) as server:
        for uri in ("memo://x", "memo://last"):
            await server.watch_resource(CTX, uri, note)
        await call(server, "tell", notices=[updated("memo://x")] * 3000 + [updated("memo://last")])
        await done.wait()
    assert heard[0] == "memo://x"
    assert len(heard) < 300


async def test_several_parts_that_changed_at_once_are_a_change_of_the_whole() -> None:
    heard: list[str] = []
    async with server_of(raw(**OLDER)) as server:
        await server.watch_resource(CTX, "memo://x", heard.append)
        await call(server, "tell", notices=[updated(f"memo://x/{part}") for part in "abc"])
        while len(heard) < 2:
            await anyio.lowlevel.checkpoint()
    assert heard == ["memo://x/a", "memo://x"]
