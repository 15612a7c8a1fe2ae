"""The guide to tool providers: each of its blocks, lists and figures, in Python."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import mcp
import pytest
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.reference.support import ME, META, call, execute, found, hits, names, over_http, text_in

from toolcrib import (
    App,
    Caller,
    Context,
    RequestProviders,
    Tool,
    ToolProvider,
    ToolRequest,
    ToolResult,
    Visibility,
    get_tool_providers,
    new_tool,
    show_all_from_request,
    with_show_all,
    with_tool_providers,
)
from toolcrib.fields import String
from toolcrib.options import ServerOptions

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"user_id": {"type": "string"}}}
NATIVE = Tool(name="visible_tool", visibility=Visibility.NATIVE)
DISCOVERABLE = Tool(name="hidden_tool", keywords=("search", "keywords"), visibility=Visibility.DISCOVERABLE)


@dataclass
class UserToolProvider:
    """The guide's provider, method for method."""

    user_id: str
    roles: Sequence[str] = ()

    async def get_tools(self, ctx: Context) -> list[Tool]:
        tools = [
            Tool(
                name="get_profile",
                description="Get user profile",
                input_schema=SCHEMA,
                visibility=Visibility.NATIVE,
            )
        ]
        if "admin" in self.roles:
            tools.append(Tool(name="admin_panel", description="Access admin panel", visibility=Visibility.NATIVE))
        tools.append(
            Tool(
                name="advanced_settings",
                description="Advanced configuration options",
                keywords=("config", "settings", "advanced"),
                visibility=Visibility.DISCOVERABLE,
            )
        )
        return tools

    async def execute_tool(self, ctx: Context, name: str, params: dict[str, Any]) -> Any:
        match name:
            case "get_profile":
                return {"user": self.user_id}
            case "admin_panel":
                if "admin" not in self.roles:
                    raise PermissionError("access denied")
                return "the panel"
            case "advanced_settings":
                return ["dark", "light"]
        return None


@dataclass
class Fixed:
    """A provider of the given tools, with fixed results."""

    tools: Sequence[Tool]
    value: Any = "done"
    calls: list[str] = field(default_factory=list)

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return self.tools

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        if all(tool.name != name for tool in self.tools):
            return None
        self.calls.append(name)
        return self.value


USERS = {"Bearer a": ("ann", ("admin",)), "Bearer b": ("bob", ())}


def handler(inner: ASGIApp) -> ASGIApp:
    """The guide's HTTP handler: identifies the user, gets their tools, and checks whether to show all."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        user = USERS.get(request.headers.get("authorization", ""))
        if user is None:
            await PlainTextResponse("Unauthorized", 401)(scope, receive, send)
            return
        with with_tool_providers(UserToolProvider(*user)), with_show_all(show_all_from_request(request)):
            await inner(scope, receive, send)

    return handle


@asynccontextmanager
async def served() -> AsyncIterator[ASGIApp]:
    app = App()
    mount = app.asgi_mount()
    with anyio.fail_after(10):
        async with app:
            yield handler(mount)


@asynccontextmanager
async def client_with(*providers: object) -> AsyncIterator[mcp.Client]:
    with with_tool_providers(*providers):
        async with mcp.Client(App().server) as client:
            yield client


# -- when to use them ----------------------------------------------------------------------------------------------


async def test_registered_tools_are_global_and_seen_by_every_request() -> None:
    app = App()
    app.register(new_tool("everyone", "For everyone"), lambda: "yes")
    async with mcp.Client(app.server) as client:
        for user in ("ann", "bob"):
            with with_tool_providers(UserToolProvider(user)):
                assert "everyone" in await names(client)


@pytest.mark.parametrize("whose", ["tenant", "user"])
async def test_when_to_use_tenants_and_users_have_tools_of_their_own_and_none_of_the_others(whose: str) -> None:
    async with mcp.Client(App().server) as client:
        for mine, other in ((f"{whose}_a", f"{whose}_b"), (f"{whose}_b", f"{whose}_a")):
            with with_tool_providers(Fixed([Tool(name=mine, description="Read the notes")])):
                assert await found(client, "read the notes") == [mine]
                assert text_in(await execute(client, mine)) == "done"
                refused = await execute(client, other)
                assert refused.is_error
                assert refused.structured_content is not None
                assert set(refused.structured_content["error"].get("suggestions", ())) <= {mine}


async def test_when_to_use_tools_are_loaded_for_each_request() -> None:
    provider = Fixed([NATIVE])
    async with client_with(provider) as client:
        assert await names(client) == ["visible_tool"]
        provider.tools = [Tool(name="other", visibility=Visibility.NATIVE)]
        assert await names(client) == ["other"]


# -- the quick example ---------------------------------------------------------------------------------------------


async def test_quick_example_each_user_has_the_tools_of_their_roles() -> None:
    async with served() as app:
        async with over_http(app, {"authorization": "Bearer a"}) as ann:
            assert await names(ann) == [*META, "admin_panel", "get_profile"]
            assert text_in(await call(ann, "admin_panel")) == "the panel"
            assert text_in(await execute(ann, "advanced_settings")) == '["dark","light"]'
        async with over_http(app, {"authorization": "Bearer b"}) as bob:
            assert await names(bob) == [*META, "get_profile"]
            assert (await call(bob, "get_profile")).structured_content == {"user": "bob"}
            assert await found(bob, "config") == ["advanced_settings"]
            with pytest.raises(MCPError) as caught:
                await bob.call_tool("admin_panel", {})
            assert caught.value.error.code == -32602


async def test_quick_example_without_a_user_is_unauthorized() -> None:
    async with served() as app, httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
        answer = await http.post("http://localhost/mcp", json={})
    assert (answer.status_code, answer.text) == (401, "Unauthorized")


async def test_quick_example_show_all_lists_discoverable_tools_too() -> None:
    async with served() as app, over_http(app, {"authorization": "Bearer b", "x-mcp-show-all": "true"}) as bob:
        assert await names(bob) == ["advanced_settings", "get_profile"]


async def test_a_provider_is_never_asked_for_a_tool_that_it_did_not_list_for_this_caller() -> None:
    async with client_with(UserToolProvider("bob")) as client:
        refused = await execute(client, "admin_panel")
    assert refused.structured_content is not None
    assert refused.structured_content["error"]["code"] == "tool_not_found"
    assert "access denied" not in text_in(refused)


# -- visibility ----------------------------------------------------------------------------------------------------


async def test_native_tools_are_listed_and_called_directly() -> None:
    async with client_with(Fixed([NATIVE])) as client:
        assert await names(client) == ["visible_tool"]
        assert text_in(await call(client, "visible_tool")) == "done"


async def test_discoverable_tools_are_hidden_searchable_and_executable() -> None:
    async with client_with(Fixed([DISCOVERABLE])) as client:
        assert "hidden_tool" not in await names(client)
        assert await found(client, "keywords") == ["hidden_tool"]
        assert text_in(await execute(client, "hidden_tool")) == "done"


@pytest.mark.parametrize(
    ("tools", "listed"),
    [([], []), ([NATIVE], ["visible_tool"]), ([DISCOVERABLE], META), ([NATIVE, DISCOVERABLE], [*META, "visible_tool"])],
)
async def test_the_two_meta_tools_appear_when_any_tool_is_discoverable(tools: list[Tool], listed: list[str]) -> None:
    async with client_with(Fixed(tools)) as client:
        assert await names(client) == listed


async def test_show_all_lists_everything_by_code() -> None:
    async with client_with(Fixed([NATIVE, DISCOVERABLE])) as client:
        with with_show_all():
            assert await names(client) == ["hidden_tool", "visible_tool"]
            assert text_in(await call(client, "hidden_tool")) == "done"


@pytest.mark.parametrize(
    ("headers", "query", "everything"),
    [
        ({"X-MCP-Show-All": "true"}, "", True),
        ({"X-MCP-Show-All": "TRUE"}, "", True),
        ({}, "?show_all=true", True),
        ({}, "?show_all=1", False),
        ({"X-MCP-Show-All": "false"}, "?show_all=true", False),
        ({}, "", False),
    ],
)
async def test_show_all_is_triggered_by_header_or_query(headers: dict[str, str], query: str, everything: bool) -> None:
    app = App()
    app.add_provider(Fixed([NATIVE, DISCOVERABLE]))
    mount = app.asgi_mount()
    with anyio.fail_after(5):
        async with app, over_http(mount, headers, query=query) as client:
            expected = ["hidden_tool", "visible_tool"] if everything else [*META, "visible_tool"]
            assert await names(client) == expected


async def test_show_all_lets_one_toolcrib_stand_before_another() -> None:
    behind, front = App(name="behind"), App(name="front")
    behind.add_provider(Fixed([NATIVE, DISCOVERABLE]))
    front.add_server(ServerOptions(name="behind", target=behind.server, show_all=True))
    with anyio.fail_after(5):
        async with front, mcp.Client(front.server) as client:
            await front.settled()
            assert await found(client, "") == ["behind:hidden_tool", "behind:visible_tool"]
            assert text_in(await execute(client, "behind:hidden_tool")) == "done"


# -- keywords ------------------------------------------------------------------------------------------------------


@dataclass
class Built:
    """The guide's provider of built tools."""

    user_id: str = "ann"

    async def get_tools(self, ctx: Context) -> list[Tool]:
        profile = new_tool("get_profile", "Get user profile", String("user_id", "User ID")).to_mcp_tool()
        email = (
            new_tool(
                "send_email",
                "Send an email",
                String("to", "Recipient", required=True),
                String("subject", "Subject"),
            )
            .discoverable("email", "communication", "smtp")
            .to_mcp_tool()
        )
        return [profile, email]

    async def execute_tool(self, ctx: Context, name: str, params: dict[str, Any]) -> str:
        return name


@dataclass
class Direct(Built):
    """The same tool, written by hand."""

    async def get_tools(self, ctx: Context) -> list[Tool]:
        return [
            Tool(
                name="send_email",
                description="Send an email",
                keywords=("email", "communication", "smtp"),
                visibility=Visibility.DISCOVERABLE,
                input_schema={"type": "object", "properties": {"to": {"type": "string"}}},
            )
        ]


async def test_keywords_by_the_builder() -> None:
    async with client_with(Built()) as client:
        assert await names(client) == [*META, "get_profile"]
        assert await found(client, "smtp") == ["send_email"]


async def test_keywords_written_out() -> None:
    async with client_with(Direct()) as client:
        assert await names(client) == META
        assert await found(client, "communication") == ["send_email"]


async def test_keywords_are_searched_and_never_listed() -> None:
    async with client_with(Built()) as client:
        with with_show_all():
            listed = (await client.list_tools(cache_mode="bypass")).model_dump_json()
        found_too = str(await hits(client, "communication"))
    assert "send_email" in listed
    assert "smtp" not in listed
    assert "smtp" not in found_too


# -- to_mcp_tool ---------------------------------------------------------------------------------------------------


async def test_to_mcp_tool_makes_native_and_discoverable_tools() -> None:
    native = new_tool("basic_tool", "A basic tool", String("input", "Input parameter")).to_mcp_tool()
    hidden = (
        new_tool("advanced_tool", "An advanced tool", String("query", "Search query"))
        .discoverable("advanced", "search", "special")
        .to_mcp_tool()
    )
    async with client_with(Fixed([native, hidden])) as client:
        assert await names(client) == [*META, "basic_tool"]
        assert await found(client, "special") == ["advanced_tool"]


def test_key_point_1_to_mcp_tool_takes_no_arguments() -> None:
    with pytest.raises(TypeError):
        new_tool("a").to_mcp_tool("keyword")  # type: ignore[call-arg]  # the wrong call is what is tested


def test_key_point_2_discoverable_marks_the_tool_and_adds_keywords() -> None:
    tool = new_tool("a").discoverable("one").discoverable("two").to_mcp_tool()
    assert (tool.visibility, tool.keywords) == (Visibility.DISCOVERABLE, ("one", "two"))


def test_key_point_3_without_it_a_tool_is_native() -> None:
    assert new_tool("a").to_mcp_tool().visibility is Visibility.NATIVE


# -- security ------------------------------------------------------------------------------------------------------


async def test_security_1_each_request_gets_its_own_providers() -> None:
    made = list[str]()

    def resolve(request: Request) -> UserToolProvider:
        made.append(request.headers["x-user"])
        return UserToolProvider(request.headers["x-user"])

    app = App()
    mount = RequestProviders(app.asgi_mount(), resolve)
    with anyio.fail_after(5):
        async with app:
            async with over_http(mount, {"x-user": "ann"}) as ann, over_http(mount, {"x-user": "bob"}) as bob:
                for client, user in ((ann, "ann"), (bob, "bob"), (ann, "ann")):
                    assert (await call(client, "get_profile")).structured_content == {"user": user}
    assert {"ann", "bob"} == set(made)
    assert made.count("ann") >= 2


@dataclass
class Validating:
    """The guide's pattern: tools for its own user only."""

    user_id: str

    async def get_tools(self, ctx: Context) -> list[Tool] | None:
        if ctx.caller.id != self.user_id:
            return None
        return [NATIVE, DISCOVERABLE]

    async def execute_tool(self, ctx: Context, name: str, params: dict[str, Any]) -> str:
        return f"{name} of {self.user_id}"


@pytest.mark.parametrize(("caller", "tools"), [("ann", ["hidden_tool", "visible_tool"]), ("bob", [])])
async def test_security_2_a_provider_that_sees_another_user_yields_no_tools_and_no_error(
    caller: str, tools: list[str]
) -> None:
    ctx, app = Context(caller=Caller(id=caller)), App()
    with with_tool_providers(Validating("ann")):
        mixed = ctx.with_providers(*get_tool_providers())
    assert [tool.id for tool in await app.tools(ctx=mixed)] == tools
    reply = await app.search("", ctx=mixed)
    assert ([hit.tool.id for hit in reply.hits], reply.servers) == (tools, ())


async def test_security_3_nothing_of_a_request_stays_behind() -> None:
    app = App()
    async with mcp.Client(app.server) as client:
        with with_tool_providers(UserToolProvider("ann", ("admin",))):
            assert await found(client, "admin panel") == ["admin_panel"]
            await execute(client, "admin_panel")
        assert (await names(client), await found(client, "")) == ([], [])
        reply = await call(client, "tool_search", {"query": "admin_pane"})
        assert "admin_panel" not in str(reply.content)
        assert "admin_panel" not in text_in(await execute(client, "admin_panl"))


async def test_security_4_of_several_providers_the_first_wins() -> None:
    first, second = Fixed([NATIVE], "first"), Fixed([NATIVE], "second")
    async with client_with(first, second) as client:
        assert await names(client) == ["visible_tool"]
        assert text_in(await call(client, "visible_tool")) == "first"
    assert second.calls == []


# -- the interface -------------------------------------------------------------------------------------------------


async def test_a_provider_has_two_methods_by_either_name() -> None:
    with with_tool_providers(UserToolProvider("ann"), Fixed([NATIVE])):
        providers = get_tool_providers()
    assert len(providers) == 2
    assert all(isinstance(provider, ToolProvider) for provider in providers)
    assert [tool.name for tool in await providers[0].list_tools(ME)] == ["get_profile", "advanced_settings"]


async def test_the_guides_own_provider_as_the_other_guide_prints_it() -> None:
    class UserTools:
        def __init__(self, user: str) -> None:
            self.user = user

        async def list_tools(self, ctx: Context) -> list[Tool]:
            return [Tool(name="whoami", description="Who am I")]

        async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> str | None:
            return self.user if name == "whoami" else None

    app = App()
    with with_tool_providers(UserTools("ann")):
        assert (await app.call("whoami")).content[0]["text"] == "ann"
    ctx = ME.with_providers(UserTools("bob"))
    assert (await app.call("whoami", ctx=ctx)).content[0]["text"] == "bob"


def test_with_tool_providers_takes_several_and_adds_to_those_around() -> None:
    one, two, three = Fixed([]), Fixed([]), Fixed([])
    with with_tool_providers(one, two):
        with with_tool_providers(three):
            assert get_tool_providers() == (one, two, three)
        assert get_tool_providers() == (one, two)
    assert get_tool_providers() == ()


@pytest.mark.parametrize(
    ("header", "query", "asked"),
    [(b"true", b"", True), (b"no", b"show_all=true", False), (b"", b"show_all=true", True)],
)
def test_show_all_from_request_reads_the_header_then_the_query(header: bytes, query: bytes, asked: bool) -> None:
    scope = {"type": "http", "headers": [(b"x-mcp-show-all", header)], "query_string": query}
    assert show_all_from_request(scope) is asked
    assert show_all_from_request(Request(scope)) is asked


# -- discoverable tools --------------------------------------------------------------------------------------------


async def test_discoverable_tools_as_printed_over_http() -> None:
    app = App()
    mount = app.asgi_mount()

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        with with_tool_providers(Fixed([NATIVE, DISCOVERABLE])):
            await mount(scope, receive, send)

    with anyio.fail_after(5):
        async with app, over_http(handle) as client:
            assert await names(client) == [*META, "visible_tool"]
            assert await found(client, "keywords") == ["hidden_tool"]
            assert text_in(await execute(client, "hidden_tool")) == "done"


# -- what a call returns -------------------------------------------------------------------------------------------


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        pytest.param(ToolResult(content=({"type": "text", "text": "as it is"},)), "as it is", None, id="a-result"),
        pytest.param("plain", "plain", None, id="a-text"),
        pytest.param({"a": 1}, '{"a":1}', {"a": 1}, id="a-dict"),
        pytest.param([1, "two"], '[1,"two"]', {"result": [1, "two"]}, id="a-list"),
        pytest.param(7, "7", {"result": 7}, id="a-number"),
        pytest.param(True, "true", {"result": True}, id="a-truth"),
        pytest.param(Point(1, 2), '{"x":1,"y":2}', {"x": 1, "y": 2}, id="a-dataclass"),
    ],
)
async def test_return_values(value: Any, text: str, structured: Any) -> None:
    tool = Tool(name="any", visibility=Visibility.NATIVE)
    with with_tool_providers(Fixed([tool], value)):
        async with mcp.Client(App().server, mode="legacy") as client:
            result = await call(client, "any")
    assert (text_in(result), result.structured_content, result.is_error) == (text, structured, False)


async def test_a_builder_and_a_request_serve_where_a_function_is_registered() -> None:
    async def greet(request: ToolRequest) -> str:
        return f"Hello {request.string('name')}"

    app = App()
    app.register(new_tool("greet", "Greet", String("name", "Whom", required=True)), greet)
    async with mcp.Client(app.server) as client:
        assert await names(client) == ["greet"]
        assert text_in(await call(client, "greet", {"name": "ann"})) == "Hello ann"
