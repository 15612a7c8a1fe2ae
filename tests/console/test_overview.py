"""The overview shows servers with their states, what agents carry, and what was called."""

import re

import anyio
import httpx2
import pytest
from tests.console.support import Browser, console_app, words

from toolcrib.app import App
from toolcrib.errors import ToolcribError
from toolcrib.testing import FakeProvider
from toolcrib.types import Caller, Context, Rejected, ServerState, ServerStatus, Tool

pytestmark = pytest.mark.anyio


async def with_servers(app: App, *statuses: ServerStatus) -> App:
    for status in statuses:
        tools = [
            Tool(namespace=status.name, name=f"tool_{place}", description="Does it") for place in range(status.tools)
        ]
        app.add_provider(FakeProvider(tools, status=status))
    await app.refresh()
    return app


async def test_servers_with_problems_come_first_with_their_reasons() -> None:
    app = await with_servers(
        console_app(),
        ServerStatus(name="files", state=ServerState.READY, since=0, tools=3, transport="stdio"),
        ServerStatus(
            name="mail",
            state=ServerState.FAILED,
            since=0,
            reason="no such host",
            rejected=(Rejected(tool="x", reason="bad"),),
        ),
        ServerStatus(name="git", state=ServerState.DEGRADED, since=0, tools=2, stale=True, reason="connection lost"),
    )
    async with Browser(app) as browser:
        page = words(await browser.load("/"))
    assert page.index("mail failed no such host 1 rejected") < page.index("git degraded stale tools connection lost")
    assert page.index("git degraded") < page.index("files ready")
    assert "5 of 3 servers" in page


async def test_an_empty_gateway_says_how_to_add_a_server() -> None:
    async with Browser(console_app()) as browser:
        page = words(await browser.load("/"))
    assert "There are no servers yet." in page
    assert "toolcrib add time -- uvx mcp-server-time" in page
    assert "No tool was called yet." in page
    assert "Nothing went wrong." in page


async def test_the_tokens_of_all_definitions_stand_beside_those_that_an_agent_carries() -> None:
    tools = [Tool(namespace="x", name=f"tool_{place}", description="A long description. " * 20) for place in range(60)]
    app = console_app(*tools)
    async with Browser(app) as browser:
        page = words(await browser.load("/"))
    found = re.search(r"Tokens in an agent.s context ([\d,]+) instead of ([\d,]+) .(\d+) %", page)
    assert found is not None
    now, everything = (int(found[place].replace(",", "")) for place in (1, 2))
    assert 0 < now < everything / 2
    assert abs(int(found[3]) - 100 * (1 - now / everything)) <= 1


async def test_calls_and_errors_are_counted_and_listed() -> None:
    app = console_app(Tool(name="ping", namespace="net"))
    ctx = Context(caller=Caller(id="ann"))
    for name in ("net:ping", "net:ping", "net:missing"):
        try:
            await app.call(name, ctx=ctx)
        except ToolcribError:
            continue
    await app.search("ping")
    async with Browser(app) as browser:
        page = words(await browser.load("/"))
    assert "3 calls and 1 searches in the last hour" in page
    assert "Errors 1 33 % of the last hour" in page
    assert "net:missing tool not found" in page


async def test_a_server_has_a_page_with_its_facts_its_tools_and_what_was_rejected() -> None:
    app = await with_servers(
        console_app(),
        ServerStatus(
            name="git hub/x",
            namespace="github",
            state=ServerState.READY,
            since=0,
            protocol="2026-07-28",
            rejected=(Rejected(tool="bad tool", reason="its name is empty"),),
        ),
    )
    app.add_provider(FakeProvider([Tool(namespace="github", name="create_issue", description="Create an issue")]))
    await app.refresh()
    async with Browser(app) as browser:
        overview = await browser.load("/")
        assert 'href="/servers/git%20hub%2Fx"' in overview
        page = words(await browser.load("/servers/git%20hub%2Fx"))
        missing = await browser.get("/servers/nothing")
    for part in ("2026-07-28", "bad tool rejected: its name is empty", "create_issue Create an issue"):
        assert part in page
    assert missing.status_code == 404
    assert "There is no server nothing." in missing.text


async def test_names_and_reasons_of_servers_are_shown_as_text() -> None:
    app = await with_servers(
        console_app(),
        ServerStatus(name="<script>x</script>", state=ServerState.FAILED, since=0, reason="<img src=x onerror=y>"),
    )
    async with Browser(app) as browser:
        page = await browser.load("/")
    assert "<script>x" not in page
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=y&gt;" in page


async def test_an_open_page_learns_of_calls_and_servers_and_of_nothing_else() -> None:
    with anyio.fail_after(20):
        async with console_app(Tool(name="ping", description="secret words"), address="127.0.0.1:0") as app:
            async with httpx2.AsyncClient(base_url=app.console.url) as http:
                await http.get("/")
                async with http.stream("GET", "/events") as events:
                    lines = events.aiter_lines()
                    assert (await anext(lines)).startswith("retry:")
                    await app.call("ping")
                    text = ""
                    while "event: calls" not in text:
                        text += f"{await anext(lines)}\n"
                    assert "ping" not in text
                    app.add_provider(
                        FakeProvider([], status=ServerStatus(name="new", state=ServerState.READY, since=0))
                    )
                    await app.refresh()
                    while "event: servers" not in text:
                        text += f"{await anext(lines)}\n"
                    assert "new" not in text
