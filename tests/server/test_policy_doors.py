"""What no rule covers, through every door: hidden by the default, it looks exactly like what does not exist."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import mcp
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from tests.server.shop import FAST, Shop

from toolcrib.app import App
from toolcrib.errors import ToolcribError
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Effect, Rule
from toolcrib.settings.options import Settings
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, ready
from toolcrib.types import Caller, Context, SearchRequest, Tool
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

COVERED = ("desk:read_note", "own:read_own", "shop:link", "shop:greet", "shop:memo://x", "shop:shop://users/*")
"""What the rule of these tests covers; beside each there is something that it does not cover."""
SURFACES = SurfaceOptions(surfaces=("search", "direct", "progressive"))
_WHO = {"name": "who", "value": ""}


@dataclass(frozen=True)
class World:
    """A gateway as one caller meets it, with or without the things that no rule covers."""

    app: App
    client: mcp.Client
    ctx: Context

    async def called(self, meta_tool: str, **arguments: Any) -> Any:
        answer = await self.client.call_tool(meta_tool, arguments)
        return [answer.is_error, answer.structured_content, [block.model_dump() for block in answer.content]]


def tools(namespace: str, kept: str, *, full: bool) -> list[Tool]:
    names = [kept, "wipe_everything"] if full else [kept]
    return [Tool(name=name, namespace=namespace, description=name.replace("_", " ")) for name in names]


@asynccontextmanager
async def world(effect: Effect, default: Effect | None, *, full: bool) -> AsyncIterator[World]:
    policy = ByScopes([Rule(tools=COVERED, effect=effect)], default=default)
    names, uris = (["greet", "wipe"], ["memo://x", "memo://wipe"]) if full else (["greet"], ["memo://x"])
    shop = Shop("shop", prompts=names, uris=uris)
    settings = Settings(
        servers=(ServerOptions(name="shop", target=shop.server),),
        fleet=FAST,
        gateway=GatewayOptions(page_size=1),
        surfaces=SURFACES,
    )
    app = App(settings, policy=policy)
    app.add_provider(FakeProvider(tools("desk", "read_note", full=full), status=ready("desk", namespace="desk")))
    async with app:
        await app.settled()
        ctx = Context(caller=Caller(id="ann")).with_providers(FakeProvider(tools("own", "read_own", full=full)))
        async with mcp.Client(app.server, mode="auto") as client:
            yield World(app, client, ctx)


async def said(work: Awaitable[Any]) -> Any:
    """The answer, or the error in its place."""
    try:
        return await work
    except MCPError as error:
        return "refused", error.code, str(error), error.data
    except ToolcribError as error:
        return "refused", error.payload()


async def library_lists(it: World) -> Any:
    return [tool.id for tool in await it.app.tools(ctx=it.ctx)]


async def pages(it: World) -> Any:
    """Every page of the list of tools by name."""
    found, cursor = [], None
    while True:
        page = await it.client.list_tools(cursor=cursor)
        found.append([tool.name for tool in page.tools])
        if (cursor := page.next_cursor) is None:
            return found


async def searches(it: World) -> Any:
    reply = await it.app.gateway.search(it.ctx, SearchRequest(queries=("wipe everything", "read note"), limit=1))
    hits = [(hit.tool.id, round(hit.score, 6)) for hit in reply.hits]
    return hits, reply.total, bool(reply.cursor), reply.note, await it.called("tool_search", query="wipe everything")


async def describes(it: World) -> Any:
    return [await said(it.app.find(name, ctx=it.ctx)) for name in ("desk:wipe_everything", "own:wipe_everything")]


async def suggests(it: World) -> Any:
    names = ("desk:wipe_everythin", "wipe_everythin", "desk:wipe")
    return [await said(it.app.find(name, ctx=it.ctx)) for name in names]


async def calls(it: World) -> Any:
    library = [await said(it.app.call(name, ctx=it.ctx)) for name in ("desk:wipe_everything", "own:wipe_everything")]
    by_name = await said(it.called("desk__wipe_everything"))
    return library, by_name, await it.called("execute_tool", name="desk:wipe_everything", arguments={})


async def runs(it: World) -> Any:
    answer = await said(it.app.run_script("return desk.wipe_everything{}:await()", ctx=it.ctx))
    return answer if isinstance(answer, tuple) else (answer.is_error, answer.text)


async def servers(it: World) -> Any:
    return await it.called("list-servers")


async def prompts(it: World) -> Any:
    listed = [prompt.name for prompt in (await it.client.list_prompts()).prompts]
    return listed, await said(it.client.get_prompt("shop__wipe", {"who": "me"}))


async def resources(it: World) -> Any:
    listed = [one.uri for one in (await it.client.list_resources()).resources]
    return listed, await said(it.client.read_resource("toolcrib://shop/memo://wipe"))


async def completes(it: World) -> Any:
    return await said(it.client.complete(types.PromptReference(type="ref/prompt", name="shop__wipe"), _WHO))


DOORS: tuple[Callable[[World], Awaitable[Any]], ...] = (
    library_lists,
    pages,
    searches,
    describes,
    suggests,
    calls,
    runs,
    servers,
    prompts,
    resources,
    completes,
)
OPEN = {("allow", "allow"), ("hide", "allow"), ("approve", "allow"), ("hide", None), ("approve", None)}
"""Effects and defaults with which everybody may use what no rule covers."""


@pytest.mark.parametrize("default", [None, "allow", "hide"])
@pytest.mark.parametrize("effect", ["allow", "hide", "approve"])
async def test_what_no_rule_covers_looks_missing_unless_the_default_allows_it(
    effect: Effect, default: Effect | None
) -> None:
    with anyio.fail_after(60):
        async with world(effect, default, full=True) as full, world(effect, default, full=False) as bare:
            for door in DOORS:
                got, missing = [json.dumps(await door(one), default=str) for one in (full, bare)]
                assert (got != missing) is ((effect, default) in OPEN), (door.__name__, got, missing)


@pytest.mark.parametrize("default", [None, "allow", "hide"])
@pytest.mark.parametrize(
    ("effect", "code"), [("allow", None), ("hide", "tool_not_found"), ("approve", "approval_required")]
)
async def test_what_a_rule_covers_is_not_touched_by_the_default(
    effect: Effect, code: str | None, default: Effect | None
) -> None:
    with anyio.fail_after(60):
        async with world(effect, default, full=False) as it:
            for name in ("desk:read_note", "own:read_own"):
                answer = await said(it.app.call(name, ctx=it.ctx))
                assert (answer[1]["code"] if isinstance(answer, tuple) else None) == code
            listed = {"desk:read_note", "own:read_own", "shop:link"}
            assert set(await library_lists(it)) == (set() if effect == "hide" else listed)
            shown = (await it.client.list_prompts()).prompts
            assert [prompt.name for prompt in shown] == ([] if effect == "hide" else ["shop__greet"])


async def test_the_gateways_own_meta_tools_are_listed_whatever_the_policy_hides() -> None:
    with anyio.fail_after(30):
        async with App(Settings(surfaces=SURFACES), policy=ByScopes([], default="hide")) as app:
            app.tool(name="wipe")(lambda: "gone")
            async with mcp.Client(app.server, mode="auto") as client:
                listed = {tool.name for tool in (await client.list_tools()).tools}
                assert {"list-servers", "execute"} <= listed
                assert "wipe" not in listed
