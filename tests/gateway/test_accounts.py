"""Several accounts of one service as one set of tools: what each caller sees, where calls go, and what is refused."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp
import mcp_types
import pytest
from mcp.server.lowlevel import Server

from toolcrib.app import App
from toolcrib.errors import ApprovalRequired, InvalidArguments, ToolNotFound
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.middleware.audit import AuditEvent
from toolcrib.settings.options import Settings
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import text_of
from toolcrib.types import Caller, Context, Policy, SearchRequest, ServerState, ToolResult
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def both() -> ByScopes:
    rules = [Rule(tools=("hub-work:*",), scopes=("work",)), Rule(tools=("hub-home:*",), scopes=("home",))]
    return ByScopes(rules, default="allow")


def caller(*scopes: str) -> Context:
    return Context(caller=Caller(id=f"with {scopes}", scopes=frozenset(scopes)), session="s")


ANN, BOB, EVE = caller("work", "home"), caller("home"), caller()


class Hub:
    """A server that says for which account it was called."""

    def __init__(self, account: str, **more: dict[str, Any]) -> None:
        self.account = account
        self.tools: dict[str, dict[str, Any]] = {"create_issue": TITLE, "list_issues": {"type": "object"}, **more}
        self.meta: dict[str, Any] | None = None
        self.calls: list[dict[str, Any]] = []
        self.server = Server("hub", on_list_tools=self._list, on_call_tool=self._call)

    async def _list(self, *_: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(
            tools=[
                mcp_types.Tool(
                    name=name,
                    description=f"Tool to {name.replace('_', ' ')}",
                    input_schema=schema,
                    _meta=self.meta,
                )
                for name, schema in self.tools.items()
            ]
        )

    async def _call(self, _: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        self.calls.append(params.arguments or {})
        text = mcp_types.TextContent(type="text", text=f"{params.name} in {self.account}")
        return mcp_types.CallToolResult(content=[text])


@asynccontextmanager
async def running(
    *hubs: Hub, policy: Policy | None = None, surfaces: Sequence[str] = ("search",), **options: Any
) -> AsyncIterator[App]:
    servers = tuple(ServerOptions(name=f"hub-{one.account}", target=one.server, group="hub") for one in hubs)
    settings = Settings(servers=servers, surfaces=SurfaceOptions(surfaces=tuple(surfaces)))
    with anyio.fail_after(30):
        async with App(settings, policy=policy, **options) as app:
            await app.settled()
            yield app


def text(result: ToolResult) -> str:
    return str(result.content[0]["text"])


async def accounts(app: App, ctx: Context, name: str = "hub:create_issue") -> Any:
    found = await app.find(name, ctx=ctx)
    schema = found.tool.input_schema
    return schema["properties"]["account"].get("enum"), "account" in schema.get("required", ())


async def test_the_accounts_are_one_set_of_tools_and_each_call_goes_to_its_account() -> None:
    work, home = Hub("work"), Hub("home")
    async with running(work, home) as app:
        assert [tool.id for tool in await app.tools()] == ["hub:create_issue", "hub:list_issues"]
        servers = (await app.facade.page(ANN)).items[0].tool.description.partition("Servers:")[2]
        assert [line.partition(":")[0] for line in servers.splitlines() if line] == ["- hub"]
        assert await accounts(app, ANN) == (["home", "work"], True)
        result = await app.call("hub:create_issue", {"account": "work", "title": "a"})
        assert text(result) == "create_issue in work"
        assert (work.calls, home.calls) == ([{"title": "a"}], [])
        assert text(await app.call("hub:list_issues", {"account": "home"})) == "list_issues in home"


async def test_each_caller_sees_the_accounts_that_the_policy_allows_and_no_others() -> None:
    async with running(Hub("work"), Hub("home"), policy=both()) as app:
        assert await accounts(app, ANN) == (["home", "work"], True)
        assert await accounts(app, BOB) == (["home"], False)
        assert await app.tools(ctx=EVE) == ()
        with pytest.raises(ToolNotFound):
            await app.find("hub:create_issue", ctx=EVE)
        for ctx, names in ((ANN, ["home", "work"]), (BOB, ["home"])):
            reply = await app.gateway.search(ctx, SearchRequest(queries=("create issue",)))
            (hit,) = [hit for hit in reply.hits if hit.tool.name == "create_issue"]
            assert hit.tool.input_schema["properties"]["account"]["enum"] == names
            assert ("work" in hit.signature) == ("work" in names)
        assert "work" not in await app.facade.instructions(BOB)
        assert not any("work" in str(status) for status in await app.gateway.servers(BOB))


async def test_an_account_that_a_caller_may_not_use_is_refused_as_one_that_does_not_exist() -> None:
    work, home = Hub("work"), Hub("home")
    async with running(work, home, policy=both(), surfaces=("search", "direct")) as app:
        refusals = []
        for account in ("work", "nonsense"):
            with pytest.raises(InvalidArguments) as refused:
                await app.call("hub:create_issue", {"account": account, "title": "a"}, ctx=BOB)
            refusals.append(str(refused.value).replace(account, "X"))
            with pytest.raises(InvalidArguments) as refused:  # as a client calls a tool that it lists
                await app.facade.call(BOB, "hub__create_issue", {"account": account, "title": "a"})
            refusals.append(str(refused.value).replace(account, "X"))
        assert refusals[:2] == refusals[2:]
        assert "work" not in refusals[1]
        assert (work.calls, home.calls) == ([], [])
        assert text(await app.call("hub:create_issue", {"title": "a"}, ctx=BOB)) == "create_issue in home"


async def test_a_client_lists_and_calls_the_tools_of_the_group() -> None:
    async with running(Hub("work"), Hub("home"), surfaces=("direct",)) as app:
        async with mcp.Client(app.server) as client:
            listed = (await client.list_tools()).tools
            called = await client.call_tool("hub__create_issue", {"account": "home", "title": "a"})
    assert [tool.name for tool in listed] == ["hub__create_issue", "hub__list_issues"]
    assert listed[0].input_schema["properties"]["account"]["enum"] == ["home", "work"]
    assert text_of(called) == "create_issue in home"


async def test_rules_for_the_group_and_for_an_account_both_apply() -> None:
    rules = [
        Rule(tools=("hub:create_issue",), scopes=("write",)),
        Rule(tools=("hub-work:*",), effect="approve"),
    ]
    async with running(Hub("work"), Hub("home"), policy=ByScopes(rules, default="allow")) as app:
        assert [tool.id for tool in await app.tools(ctx=EVE)] == ["hub:list_issues"]
        with pytest.raises(ToolNotFound):
            await app.call("hub-home:create_issue", {"title": "a"}, ctx=EVE)
        with pytest.raises(ApprovalRequired):
            await app.call("hub:create_issue", {"account": "work", "title": "a"}, ctx=caller("write"))
        home = await app.call("hub:create_issue", {"account": "home", "title": "a"}, ctx=caller("write"))
        assert text(home) == "create_issue in home"


async def test_the_audit_and_the_usage_name_the_account() -> None:
    events: list[AuditEvent] = []
    async with running(Hub("work"), Hub("home"), audit=events.append) as app:
        await app.call("hub:create_issue", {"account": "work", "title": "a"})
        report = await app.usage_report()
    assert [(event.tool, event.outcome) for event in events] == [("hub-work:create_issue", "ok")]
    assert report.total.tools["hub-work:create_issue"].calls == 1
    assert report.unused == ("hub:list_issues",)


async def test_tools_that_differ_between_accounts_are_refused_with_a_reason() -> None:
    other = {"type": "object", "properties": {"name": {"type": "string"}}}
    own = {"type": "object", "properties": {"account": {"type": "string"}}}
    async with running(Hub("work", create_issue=other), Hub("home", log_in=own)) as app:
        assert [tool.id for tool in await app.tools()] == ["hub:list_issues"]
        (status,) = [one for one in app.statuses() if one.name == "hub"]
        reasons = {one.tool: one.reason for one in status.rejected}
        assert (status.state, status.tools) == (ServerState.READY, 1)
        assert reasons == {
            "create_issue": "its parameters, results or hints differ between accounts",
            "log_in": "it has an argument of its own that is called account",
        }
        with pytest.raises(ToolNotFound, match="differ between accounts"):
            await app.find("hub:create_issue")
        assert text(await app.call("hub-home:create_issue", {"title": "a"})) == "create_issue in home"


async def test_an_account_that_is_removed_is_offered_no_more() -> None:
    async with running(Hub("work"), Hub("home")) as app:
        app.remove_server("hub-work")
        await app.refresh()
        assert await accounts(app, ANN) == (["home"], False)
        app.remove_server("hub-home")
        await app.refresh()
        assert await app.tools() == ()


async def test_a_tool_that_only_one_account_has_is_offered_for_that_account() -> None:
    async with running(Hub("work", merge={"type": "object"}), Hub("home")) as app:
        assert await accounts(app, ANN, "hub:merge") == (["work"], False)
        assert text(await app.call("hub:merge")) == "merge in work"


async def test_a_server_cannot_make_itself_an_account_of_a_group() -> None:
    work, other = Hub("work"), Hub("zzz")
    other.meta = {"toolcrib/group": {"name": "hub", "account": "work", "visibility": "discoverable"}}
    servers = (
        ServerOptions(name="hub-work", target=work.server, group="hub"),
        ServerOptions(name="other", target=other.server),
    )
    with anyio.fail_after(30):
        async with App(Settings(servers=servers)) as app:
            await app.settled()
            reply = await app.gateway.call(ANN, "hub:create_issue", {"account": "work", "title": "secret"})
            assert text(reply) == "create_issue in work"
            assert other.calls == []
            assert text(await app.gateway.call(ANN, "other:list_issues", {})) == "list_issues in zzz"


async def test_the_groups_of_a_gateway_behind_this_one_can_be_called() -> None:
    async with running(Hub("work"), Hub("home"), surfaces=("direct",)) as inner:
        server = ServerOptions(name="inner", target=inner.server)
        async with App(Settings(servers=(server,))) as outer:
            await outer.settled()
            names = [tool.id for tool in (await outer.gateway.view(ANN)).tools() if "list_issues" in tool.id]
            assert len(names) == 1
            reply = await outer.gateway.call(ANN, names[0], {"account": "home"})
            assert text(reply) == "list_issues in home"
