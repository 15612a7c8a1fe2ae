"""Tools that come with a request: only this request sees them, in the right order, and they are indexed once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import pytest

from toolcrib import App, Many, with_tool_providers
from toolcrib.errors import ToolNotFound
from toolcrib.gateway.options import GatewayOptions
from toolcrib.providers.wrappers import Cached as WrappedCached
from toolcrib.providers.wrappers import Namespaced
from toolcrib.search.index import Index
from toolcrib.testing import FakeProvider, FakeSource, running
from toolcrib.types import Caller, Context, Object, SearchReply, SearchRequest, Tool, ToolResult

pytestmark = pytest.mark.anyio

ANN, BOB = Context(caller=Caller(id="ann")), Context(caller=Caller(id="bob"))
SHARED = Tool(name="send_mail", description="Send an electronic letter.")
OWN = Tool(name="water_plants", namespace="garden", description="Water the plants.")


async def search(gateway: "object", ctx: Context, query: str) -> SearchReply:
    return await gateway.search(ctx, SearchRequest(queries=(query,)))  # type: ignore[attr-defined, no-any-return]  # a Gateway


async def answer(ctx: Context, name: str, arguments: Object) -> ToolResult:
    return ToolResult(content=({"type": "text", "text": f"{ctx.caller.id} {name}"},))


def ids(reply: SearchReply) -> list[str]:
    return [hit.tool.id for hit in reply.hits]


async def test_the_tools_of_a_request_are_found_and_called_by_that_request_only() -> None:
    with anyio.fail_after(5):
        async with running(FakeSource(FakeProvider([SHARED]))) as gateway:
            hers = ANN.with_providers(FakeProvider([OWN], answer))
            assert ids(await search(gateway, hers, "water the plants")) == ["garden:water_plants"]
            assert (await gateway.call(hers, "garden:water_plants")).content[0]["text"] == "ann water_plants"
            assert ids(await search(gateway, BOB, "water the plants")) == []
            with pytest.raises(ToolNotFound) as caught:
                await gateway.call(BOB, "garden:water_plants")
            assert "plants" not in str(caught.value).replace('"garden:water_plants"', "")
            assert caught.value.suggestions == ()


async def test_shared_tools_stand_before_those_of_a_request_unless_these_override() -> None:
    async def mine(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(structured="mine")

    async def shared(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(structured="shared")

    other = Tool(name="send_mail", description="Send a pigeon.")
    with anyio.fail_after(5):
        async with running(FakeSource(FakeProvider([SHARED], shared))) as gateway:
            plain = ANN.with_providers(FakeProvider([other], mine))
            assert (await gateway.call(plain, "send_mail")).structured == "shared"
            assert await gateway.tools(plain) == (SHARED,)
            overriding = ANN.with_providers(FakeProvider([other], mine), override=True)
            assert (await gateway.call(overriding, "send_mail")).structured == "mine"
            assert await gateway.tools(overriding) == (other,)
            assert ids(await search(gateway, overriding, "pigeon")) == ["send_mail"]
            assert ids(await search(gateway, overriding, "electronic letter")) == []
            assert (await gateway.view(plain)).version != (await gateway.view(overriding)).version


async def test_of_two_providers_of_a_request_the_first_wins() -> None:
    first, second = FakeProvider([OWN], answer), FakeProvider([Tool(name="water_plants", namespace="garden")], answer)
    with anyio.fail_after(5):
        async with running(FakeSource()) as gateway:
            ctx = ANN.with_providers(first).with_providers(second)
            assert await gateway.tools(ctx) == (OWN,)
            await gateway.call(ctx, "garden:water_plants")
            assert len(first.calls) == 1
            assert second.calls == []


@dataclass
class Broken:
    name: str = "broken"
    hangs: bool = False

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        if self.hangs:
            await anyio.sleep_forever()
        raise RuntimeError("the password is 1234")

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        raise AssertionError("never listed, never called")


@pytest.mark.parametrize(("hangs", "why"), [(False, "RuntimeError"), (True, "did not list its tools within 0.05 s")])
async def test_a_provider_that_fails_or_hangs_costs_the_others_nothing_and_is_named(hangs: bool, why: str) -> None:
    options = GatewayOptions(search_wait_s=0, list_wait_s=0, list_timeout_s=0.05)
    with anyio.fail_after(5):
        async with running(FakeSource(FakeProvider([SHARED])), options=options) as gateway:
            ctx = ANN.with_providers(Broken(hangs=hangs), FakeProvider([OWN], answer))
            reply = await search(gateway, ctx, "water the plants")
            assert ids(reply) == ["garden:water_plants"]
            (status,) = reply.servers
            assert (status.name, status.state) == ("broken", "failed")
            assert why in status.reason
            assert "1234" not in status.reason
            with pytest.raises(ToolNotFound, match="broken may have it") as caught:
                await gateway.call(ctx, "broken:thing")
            assert "1234" not in str(caught.value)


async def test_a_request_provider_is_asked_once_if_the_context_remembers() -> None:
    provider = FakeProvider([OWN], answer)
    with anyio.fail_after(5):
        async with running(FakeSource()) as gateway:
            ctx = Context(caller=Caller(id="ann"), providers=(provider,), memo={})
            await search(gateway, ctx, "water the plants")
            await gateway.call(ctx, "garden:water_plants")
            assert provider.lists == 1
            await search(gateway, ANN.with_providers(provider), "water the plants")
            await search(gateway, ANN.with_providers(provider), "water the plants")
            assert provider.lists == 3


class Cached(FakeProvider):
    cache_for_s = 60.0
    cache_key = "same"


async def test_a_cached_list_is_only_used_for_the_same_caller_and_provider() -> None:
    provider, others = Cached([OWN], answer), Cached([SHARED], answer)
    with anyio.fail_after(5):
        async with running(FakeSource()) as gateway:
            assert await gateway.tools(ANN.with_providers(provider)) == (OWN,)
            assert await gateway.tools(ANN.with_providers(provider)) == (OWN,)
            assert provider.lists == 1
            assert await gateway.tools(ANN.with_providers(others)) == (SHARED,)
            assert await gateway.tools(BOB.with_providers(provider)) == (OWN,)
            assert provider.lists == 2


@dataclass(frozen=True)
class Inbox:
    """The tools of one user; equal for the same user."""

    user: str
    asked: list[str] = field(compare=False)

    async def list_tools(self, ctx: Context) -> list[Tool]:
        self.asked.append(self.user)
        return [Tool(name=f"inbox_of_{self.user}")]

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return self.user


class PlainInbox:
    """The same, without `==`."""

    cache_for_s, cache_key = 60.0, "the same for all"

    def __init__(self, user: str, asked: list[str]) -> None:
        self.inbox = Inbox(user, asked)

    async def list_tools(self, ctx: Context) -> list[Tool]:
        return await self.inbox.list_tools(ctx)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return self.inbox.user


@dataclass
class MutableInbox(PlainInbox):
    """The same, and it cannot be hashed."""

    user: str
    asked: list[str]

    def __post_init__(self) -> None:
        super().__init__(self.user, self.asked)


@pytest.mark.parametrize(
    "make",
    [
        PlainInbox,
        MutableInbox,
        lambda user, asked: WrappedCached(PlainInbox(user, asked), 60, "the same for all"),
        lambda user, asked: WrappedCached(Inbox(user, asked), 60, "the same for all"),
        lambda user, asked: Namespaced(WrappedCached(Inbox(user, asked), 60, "same"), "mail"),
        lambda user, asked: Many(WrappedCached(Inbox(user, asked), 60, "same")),
    ],
)
async def test_a_constant_cache_key_never_shows_one_users_tools_to_another(make: Callable[..., object]) -> None:
    """Both users are one caller: the server authenticates no one, or they share a credential."""
    app, asked = App(), list[str]()
    with anyio.fail_after(5):
        for user in ("ann", "bob", "ann"):
            with with_tool_providers(make(user, asked)):
                assert [tool.name for tool in await app.tools()] == [f"inbox_of_{user}"]
                assert [hit.tool.name for hit in await app.search("inbox")] == [f"inbox_of_{user}"]


async def test_equal_providers_share_a_cached_list() -> None:
    app, asked = App(), list[str]()
    with anyio.fail_after(5):
        for user in ("ann", "bob", "ann"):
            with with_tool_providers(WrappedCached(Inbox(user, asked), 60, "the same for all")):
                await app.tools()
    assert asked == ["ann", "bob"]


async def test_the_same_tools_are_indexed_once_however_often_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = Index.build

    def counting(tools: Sequence[Tool], **more: object) -> Index:
        built.append(len(tools))
        return build(tools, **more)  # type: ignore[arg-type]  # passed on as it came

    with anyio.fail_after(5):
        async with running(FakeSource(FakeProvider([SHARED]))) as gateway:
            monkeypatch.setattr(Index, "build", counting)
            for _ in range(5):
                fresh = Tool(name="water_plants", namespace="garden", description="Water the plants.")
                reply = await search(gateway, ANN.with_providers(FakeProvider([fresh], answer)), "water the plants")
                assert ids(reply) == ["garden:water_plants"]
    assert built == [1]


async def test_equal_tools_of_two_tenants_are_each_run_by_their_own_provider() -> None:
    with anyio.fail_after(5):
        async with running(FakeSource()) as gateway:
            for ctx in (ANN, BOB, ANN):
                mine = ctx.with_providers(FakeProvider([OWN], answer))
                assert (await gateway.call(mine, "garden:water_plants")).content[0][
                    "text"
                ] == f"{ctx.caller.id} water_plants"


async def test_a_list_in_a_request_that_holds_nonsense_loses_only_that() -> None:
    with anyio.fail_after(5):
        async with running(FakeSource()) as gateway:
            provider = FakeProvider([OWN, {"description": "no name"}, 7], answer)  # type: ignore[list-item]  # nonsense
            assert await gateway.tools(ANN.with_providers(provider)) == (OWN,)
