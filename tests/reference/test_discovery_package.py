"""The document of the discovery package: each of its blocks, lists and figures, in Python."""

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

import anyio
import mcp
import pytest
from fastmcp import FastMCP
from mcp.server import MCPServer
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from tests.reference.support import ME, META, TIERS, call, execute, found, hits, ids, names, over_http, scores, text_in

from toolcrib import (
    App,
    Context,
    RequestProviders,
    Settings,
    Tool,
    ToolMetadata,
    ToolNotFound,
    ToolProvider,
    ToolRequest,
    new_tool,
    with_request_providers,
)
from toolcrib.fields import String
from toolcrib.options import GatewayOptions, SearchOptions
from toolcrib.registry import ToolRegistry

pytestmark = pytest.mark.anyio

SENDING = new_tool(
    "send_email",
    "Send an email to a recipient",
    String("to", "Recipient email", required=True),
    String("subject", "Email subject", required=True),
    String("body", "Email body", required=True),
)
HELLO = {"to": "user@example.com", "subject": "Hello", "body": "World"}


async def send_email(ctx: Context, request: ToolRequest) -> str:
    return f"Email sent to {request.string('to')}"


async def run_query(ctx: Context, request: ToolRequest) -> str:
    return f"Executed: {request.string('query')}"


def mailing() -> ToolRegistry:
    registry = ToolRegistry()
    registry.register_tool(SENDING, send_email, "email", "communication", "smtp")
    return registry


@contextlib.asynccontextmanager
async def attached(registry: ToolRegistry) -> AsyncIterator[mcp.Client]:
    server = MCPServer("my-server", version="1.0.0")
    registry.attach(server)
    async with mcp.Client(server) as client:
        yield client


# -- overview ------------------------------------------------------------------------------------------------------


async def test_overview_1_searchable_tools_are_hidden_from_the_list_and_found_by_a_search() -> None:
    async with attached(mailing()) as client:
        assert await names(client) == META
        assert await found(client, "email") == ["send_email"]


async def test_overview_2_dynamic_providers_bring_tools_from_elsewhere() -> None:
    registry = ToolRegistry()
    registry.add_provider(ScriptToolProvider({"backup": Script("backup", "Back up the database")}))
    async with attached(registry) as client:
        assert await found(client, "back up the database") == ["backup"]


async def test_overview_3_request_scoped_providers_bring_tools_of_one_user() -> None:
    async with attached(mailing()) as client:
        with with_request_providers(UserToolProvider("ann")):
            assert await found(client, "notes of ann") == ["ann_notes"]
        assert await found(client, "notes of ann") == []


async def test_overview_4_search_is_fuzzy_over_names_and_descriptions() -> None:
    async with attached(mailing()) as client:
        assert await found(client, "send_emial") == ["send_email"]
        assert await found(client, "recipient") == ["send_email"]


async def test_overview_5_execute_tool_calls_hidden_tools_through_a_visible_one() -> None:
    async with attached(mailing()) as client:
        assert text_in(await execute(client, "send_email", **HELLO)) == "Email sent to user@example.com"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("toolcrib.registry", "ToolRegistry"),
        ("toolcrib.fields", "String"),
        *(("toolcrib", name) for name in ("ToolMetadata", "ToolProvider", "new_tool", "with_request_providers")),
        ("toolcrib", "ToolNotFound"),
    ],
)
def test_installation_every_name_is_imported_from_its_public_module(module: str, name: str) -> None:
    assert name in import_module(module).__all__
    assert getattr(import_module(module), name) is not None


# -- quick start ---------------------------------------------------------------------------------------------------


async def test_quick_start_serves_a_hidden_tool_over_http() -> None:
    server = MCPServer("my-server", version="1.0.0")
    registry = ToolRegistry()
    registry.register_tool(
        new_tool(
            "send_email",
            "Send an email to a recipient",
            String("to", "Recipient email", required=True),
            String("subject", "Email subject", required=True),
            String("body", "Email body", required=True),
        ),
        send_email,
        "email",
        "communication",
        "smtp",
    )
    registry.attach(server)
    with anyio.fail_after(5):
        app = server.streamable_http_app(stateless_http=True, json_response=True)
        async with app.router.lifespan_context(app), over_http(app) as client:
            assert await names(client) == META
            assert await found(client, "smtp") == ["send_email"]
            assert text_in(await execute(client, "send_email", **HELLO)) == "Email sent to user@example.com"


@pytest.mark.parametrize("make", [Server, MCPServer, FastMCP])
async def test_quick_start_as_the_guide_prints_it_attaches_to_every_kind_of_server(make: type[Any]) -> None:
    async def send_email(to: str, subject: str) -> str:
        return f"{subject} to {to}"

    server = make("my-server")
    registry = ToolRegistry()
    registry.register_tool(
        new_tool(
            "send_email",
            "Send an email to a recipient",
            String("to", "Recipient email", required=True),
            String("subject", "Email subject", required=True),
        ),
        send_email,
        "email",
        "communication",
        "smtp",
    )
    registry.attach(server)
    inner = getattr(server, "_mcp_server", server)  # FastMCP keeps the server that the SDK's client takes
    async with mcp.Client(inner) as client:
        assert await names(client) == META
        assert await found(client, "communication") == ["send_email"]
        assert text_in(await execute(client, "send_email", to="ann", subject="Hello")) == "Hello to ann"


# -- core types ----------------------------------------------------------------------------------------------------


async def test_tool_registry_can_be_used_as_a_request_scoped_provider() -> None:
    registry, app = mailing(), App()
    assert isinstance(registry, ToolProvider)
    async with mcp.Client(app.server) as client:
        with with_request_providers(registry):
            assert await names(client) == META
            assert await found(client, "email") == ["send_email"]
            assert text_in(await execute(client, "send_email", **HELLO)) == "Email sent to user@example.com"
        assert await names(client) == []


async def test_tool_metadata_has_a_name_a_description_and_keywords() -> None:
    assert [field.name for field in fields(ToolMetadata)] == ["name", "description", "keywords"]
    assert ToolMetadata(name="a") == ToolMetadata(name="a", description="", keywords=())


async def test_tool_provider_of_three_methods_is_listed_described_and_called() -> None:
    registry = ToolRegistry()
    registry.add_provider(ScriptToolProvider({"greet": Script("greet", "Greet somebody", tags=("hello",))}))
    assert await ids(registry) == ["greet"]
    tool = await registry.get_tool(ME, "greet")
    assert tool is not None
    assert (tool.description, tool.keywords) == ("Greet somebody", ("hello",))
    assert await registry.get_tool(ME, "absent") is None
    assert (await registry.execute("greet")).content[0]["text"] == "greet executed"
    with pytest.raises(ToolNotFound):
        await registry.execute("absent")


# -- registering tools ---------------------------------------------------------------------------------------------


async def test_register_tool_takes_a_tool_a_handler_and_any_number_of_keywords() -> None:
    registry = ToolRegistry()
    tool = registry.register_tool(
        new_tool(
            "sql_query",
            "Execute SQL queries",
            String("query", "SQL query to execute", required=True),
            String("database", "Database name"),
        ),
        run_query,
        "database",
        "sql",
        "query",
    )
    assert tool.keywords == ("database", "sql", "query")
    assert tool.input_schema["required"] == ["query"]
    assert (await registry.execute("sql_query", {"query": "SELECT 1"})).content[0]["text"] == "Executed: SELECT 1"
    assert await ids(registry) == ["sql_query"]
    for keyword in tool.keywords:
        assert list(await scores(registry, keyword)) == ["sql_query"]


async def test_keywords_may_be_left_out() -> None:
    registry = ToolRegistry()
    assert registry.register_tool(SENDING, send_email).keywords == ()
    assert list(await scores(registry, "email")) == ["send_email"]


# -- dynamic tool providers ----------------------------------------------------------------------------------------


@dataclass
class Script:
    name: str
    description: str
    tags: Sequence[str] = ()


@dataclass
class ScriptToolProvider:
    """The document's provider, name for name."""

    scripts: dict[str, Script]

    async def list_tool_metadata(self, ctx: Context) -> list[ToolMetadata]:
        return [
            ToolMetadata(name=script.name, description=script.description, keywords=tuple(script.tags))
            for script in self.scripts.values()
        ]

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        script = self.scripts.get(name)
        if script is None:
            return None
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        return Tool(name=script.name, description=script.description, input_schema=schema)

    async def call_tool(self, ctx: Context, name: str, arguments: dict[str, Any]) -> str:
        if name not in self.scripts:
            raise ToolNotFound(f"No script is called {name}.")
        return f"{name} executed"


class UserToolProvider:
    def __init__(self, user: str) -> None:
        self.user = user

    async def list_tools(self, ctx: Context) -> list[Tool]:
        return [Tool(name=f"{self.user}_notes", description=f"Read the notes of {self.user}")]

    async def call_tool(self, ctx: Context, name: str, arguments: dict[str, Any]) -> str | None:
        return f"notes of {self.user}" if name == f"{self.user}_notes" else None


async def test_global_providers_are_there_for_all_requests() -> None:
    registry = ToolRegistry()
    registry.add_provider(
        ScriptToolProvider({"deploy": Script("deploy", "Deploy the application", ("release", "ship"))})
    )
    async with attached(registry) as first, attached(registry) as second:
        for client in (first, second):
            assert await names(client) == META
            (hit, *_) = await hits(client, "release")
            assert hit["name"] == "deploy"
            assert hit["input_schema"]["properties"] == {"path": {"type": "string"}}
            assert text_in(await execute(client, "deploy")) == "deploy executed"


async def test_request_scoped_providers_come_by_http_middleware() -> None:
    server = MCPServer("my-server", version="1.0.0")
    mailing().attach(server)

    def resolve(request: Request) -> object | None:
        user = request.headers.get("x-user-id", "")
        return UserToolProvider(user) if user else None

    with anyio.fail_after(5):
        app = server.streamable_http_app(stateless_http=True, json_response=True)
        handler = RequestProviders(app, resolve)
        async with app.router.lifespan_context(app):
            async with over_http(handler, {"X-User-ID": "ann"}) as ann, over_http(handler) as nobody:
                assert sorted(await found(ann, "")) == ["ann_notes", "send_email"]
                assert text_in(await execute(ann, "ann_notes")) == "notes of ann"
                assert await found(nobody, "") == ["send_email"]
                assert (await execute(nobody, "ann_notes")).is_error


# -- discovery tools -----------------------------------------------------------------------------------------------


async def test_attach_registers_two_tools_and_a_second_time_changes_nothing() -> None:
    server, registry = MCPServer("my-server"), mailing()
    registry.attach(server)
    registry.attach(server)
    async with mcp.Client(server) as client:
        assert await names(client) == META


async def test_attach_keeps_the_servers_own_tools() -> None:
    server = MCPServer("my-server")

    @server.tool()
    def ping() -> str:
        """Say that it is there."""
        return "pong"

    mailing().attach(server)
    async with mcp.Client(server) as client:
        assert await names(client) == [*META, "ping"]
        assert text_in(await call(client, "ping")) == "pong"


@pytest.mark.parametrize("make", [MCPServer, FastMCP])
async def test_the_servers_own_tool_keeps_its_name_whether_it_was_listed_before_or_not(make: type[Any]) -> None:
    server, registry = make("my-server"), mailing()

    @server.tool()  # type: ignore[untyped-decorator]  # of either kind of server
    def send_email() -> str:
        """Send it by the server's own means."""
        return "the server's own"

    registry.attach(server)
    async with mcp.Client(getattr(server, "_mcp_server", server)) as client:
        assert text_in(await call(client, "send_email")) == "the server's own"
        assert await names(client) == [*META, "send_email"]
        assert text_in(await call(client, "send_email")) == "the server's own"
        assert text_in(await execute(client, "send_email", **HELLO)) == "Email sent to user@example.com"


async def test_attach_keeps_the_servers_resources_and_prompts() -> None:
    server = MCPServer("my-server")

    @server.resource("file:///readme")
    def readme() -> str:
        return "Read me"

    @server.prompt()
    def greeting() -> str:
        return "Hello"

    mailing().attach(server)
    async with mcp.Client(server) as client:
        assert [str(one.uri) for one in (await client.list_resources()).resources] == ["file:///readme"]
        assert [one.name for one in (await client.list_prompts()).prompts] == ["greeting"]


async def test_tool_search_takes_the_printed_arguments_and_answers_in_the_printed_shape() -> None:
    async with attached(mailing()) as client:
        (hit,) = await hits(client, "email", max_results=10)
    assert {"name", "description", "score", "input_schema"} <= set(hit)
    assert (hit["name"], hit["description"]) == ("send_email", "Send an email to a recipient")
    assert hit["score"] >= 0.95
    schema = hit["input_schema"]
    assert schema["type"] == "object"
    assert schema["properties"] == {
        "to": {"type": "string", "description": "Recipient email"},
        "subject": {"type": "string", "description": "Email subject"},
        "body": {"type": "string", "description": "Email body"},
    }
    assert schema["required"] == ["to", "subject", "body"]


async def test_execute_tool_takes_the_printed_arguments() -> None:
    async with attached(mailing()) as client:
        result = await call(client, "execute_tool", {"name": "send_email", "arguments": HELLO})
    assert (text_in(result), result.is_error) == ("Email sent to user@example.com", False)


async def test_why_execute_tool_hidden_tools_are_not_in_the_list_that_clients_go_by() -> None:
    async with attached(mailing()) as client:
        assert "send_email" not in await names(client)
        assert "execute_tool" in await names(client)


# -- the search algorithm ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "score"),
    [
        pytest.param("send_email", 1.0, id="1-exact-name"),
        pytest.param("send", 0.9, id="2-name-prefix"),
        pytest.param("mail", 0.8, id="3-name-contains"),
        pytest.param("smtp", 0.85, id="4-keyword-exact"),
        pytest.param("commun", 0.7, id="5-keyword-contains"),
        pytest.param("recipient", 0.6, id="6-description-word"),
        pytest.param("recip", 0.5, id="7-description-contains"),
        pytest.param("send_emial", 0.56, id="8-fuzzy-scaled-by-similarity"),
    ],
)
async def test_search_algorithm(query: str, score: float) -> None:
    registry = ToolRegistry(TIERS)
    registry.register_tool(SENDING, send_email, "communication", "smtp")
    assert await scores(registry, query) == {"send_email": score}


async def test_results_are_sorted_by_score_and_limited_to_what_was_asked_for_or_ten() -> None:
    registry = ToolRegistry(TIERS)
    for number in range(20):
        registry.register_tool(new_tool(f"mail_{number:02}", "Anything"), send_email)
    registry.register_tool(new_tool("mail", "The one"), send_email)
    assert list(await scores(registry, "mail")) == ["mail", *(f"mail_{number:02}" for number in range(9))]
    assert [hit.tool.id for hit in await registry.search("mail", 3)] == ["mail", "mail_00", "mail_01"]
    async with attached(registry) as client:
        assert len(await found(client, "mail")) == 10
        assert len(await found(client, "mail", max_results=3)) == 3


async def test_the_default_of_ten_is_a_setting() -> None:
    registry = ToolRegistry(Settings(gateway=GatewayOptions(search=SearchOptions(scorer="tiers", default_limit=2))))
    for number in range(5):
        registry.register_tool(new_tool(f"mail_{number}", "Anything"), send_email)
    assert len(await registry.search("mail")) == 2


# -- thread safety -------------------------------------------------------------------------------------------------


def registers(registry: ToolRegistry, mark: int) -> None:
    for number in range(20):
        registry.register_tool(new_tool(f"task_{mark}_{number}", "Do a task"), run_query)


def provides(registry: ToolRegistry, mark: int) -> None:
    provider = ScriptToolProvider({f"script_{mark}": Script(f"script_{mark}", "Run a script")})
    for _ in range(20):
        registry.add_provider(provider)
        registry.remove_provider(provider)
    registry.add_provider(provider)


def uses(registry: ToolRegistry, _: int) -> None:
    async def work() -> None:
        for _ in range(20):
            assert any(hit.tool.id == "send_email" for hit in await registry.search("email"))
            assert (await registry.execute("send_email", HELLO)).is_error is False

    anyio.run(work)


def test_thread_safety_registering_providers_searching_and_calling_at_once() -> None:
    registry, start = mailing(), threading.Barrier(6)

    def at_once(work: Callable[[ToolRegistry, int], None], mark: int) -> None:
        start.wait(5)
        work(registry, mark)

    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(at_once, work, mark) for work in (registers, provides, uses) for mark in (1, 2)]
        for one in running:
            one.result(20)
    assert len(anyio.run(ids, registry)) == 1 + 40 + 2


async def test_a_tool_that_no_provider_has_is_unknown_to_the_server() -> None:
    server: Server[Any] = Server("my-server")
    mailing().attach(server)
    async with mcp.Client(server) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("absent", {})
    assert caught.value.error.code == -32602
