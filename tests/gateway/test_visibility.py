"""Rejected definitions: which callers see them reported, and how."""

import logging

import anyio
import mcp
import pytest
from mcp.shared.exceptions import MCPError
from tests.upstream.in_process import sdk_server

from toolcrib.app import App
from toolcrib.errors import InvalidTool, ToolNotFound
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.settings.options import Settings
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running
from toolcrib.types import Caller, Context, ServerState, Tool

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
QUIET = GatewayOptions(search_wait_s=0, list_wait_s=0)
BROKEN = {"type": "array"}
GOOD = Tool(name="good", namespace="bank")
BAD = Tool(name="pay", namespace="bank", input_schema=BROKEN)
ONLY_ADMINS = ByScopes([Rule(tools=("bank:*",), scopes=("admin",))], default="allow")


@pytest.mark.parametrize("spelling", ["bank:pay", "bank__pay", "bank.pay", "pay"])
async def test_a_call_of_a_tool_that_was_set_aside_says_so_and_why(spelling: str) -> None:
    async with running(FakeSource(FakeProvider([GOOD, BAD], status=ready("bank", tools=2)))) as gateway:
        for ask in (gateway.call, gateway.describe):
            with pytest.raises(ToolNotFound, match=r'"bank:pay" cannot be used: .* rejected: .*must be an object'):
                await ask(ME, spelling)


async def test_a_client_gets_the_same_error() -> None:
    async with running(FakeSource(FakeProvider([GOOD, BAD]))) as gateway, connect(gateway) as client:
        with pytest.raises(MCPError, match="rejected"):
            await client.call_tool("bank__pay", {})


@pytest.mark.parametrize("secret", [{"namespace": "bank"}, {"namespace": "open", "tags": ("secret",)}])
async def test_a_tool_that_was_set_aside_and_may_not_be_seen_is_like_one_that_does_not_exist(secret: object) -> None:
    assert isinstance(secret, dict)
    policy = ByScopes(
        [Rule(tools=("bank:*",), scopes=("admin",)), Rule(tags=("secret",), scopes=("admin",))], default="allow"
    )
    bad = Tool(**{"name": "pay", "input_schema": BROKEN, **secret})
    reported = []
    for tools in ([bad], []):
        others = [Tool(name="read", namespace="open")]
        async with running(FakeSource(FakeProvider([*others, *tools])), policy=policy) as gateway:
            with pytest.raises(ToolNotFound) as missing:
                await gateway.call(ME, bad.id)
            reported.append((str(missing.value), missing.value.suggestions, missing.value.data))
    assert reported[0] == reported[1]


async def test_rejected_tools_of_a_shared_provider_are_logged_once_and_shown_in_the_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()
    provider = FakeProvider([GOOD, BAD])
    app.add_provider(provider)
    with caplog.at_level(logging.WARNING, "toolcrib"):
        async with app:
            assert [tool.id for tool in await app.tools()] == ["bank:good"]
            (status,) = app.statuses()
            await app.refresh()
    assert (status.name, status.state, status.tools) == ("FakeProvider", ServerState.READY, 1)
    assert [(one.tool, "array" in one.reason) for one in status.rejected] == [("pay", True)]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("FakeProvider: 1 tool was rejected: pay (")


async def test_a_broken_tool_of_a_provider_makes_it_no_server_for_clients() -> None:
    odd = [Tool(name="x", namespace="one"), Tool(name="y", namespace="two"), Tool(name="z", input_schema=BROKEN)]
    async with running(FakeSource(FakeProvider(odd))) as gateway:
        assert [status.rejected[0].tool for status in gateway.refresher.statuses()] == ["z"]
        assert await gateway.servers(ME) == ()
        assert await gateway.namespaces(ME) == {"one", "two"}


async def test_each_of_two_servers_of_one_namespace_has_its_own_broken_tools() -> None:
    one = FakeProvider([GOOD, BAD], status=ready("one", namespace="bank", tools=2))
    two = FakeProvider([GOOD], status=ready("two", namespace="bank", tools=1))
    async with running(FakeSource(one, two)) as gateway:
        reported = {status.name: (status.tools, len(status.rejected)) for status in gateway.refresher.statuses()}
    assert reported == {"one": (1, 1), "two": (1, 0)}


def test_a_function_with_a_lone_surrogate_in_its_definition_is_refused_at_registration() -> None:
    app = App()
    with pytest.raises(InvalidTool, match="lone surrogate"):

        @app.tool(description="half \ud83d")
        def act() -> None: ...

    with pytest.raises(InvalidTool, match="lone surrogate"):
        app.register(Tool(name="act", meta={"note": "\ude00"}), lambda arguments: None)
    assert app.local.tools() == ()


@pytest.mark.parametrize(
    ("spelling", "said"),
    [
        ("mail:sned_mail", ["always_visible: No tool is called", "Did you mean mail:send_mail?"]),
        ("nail:send_mail", ["there is no namespace", "Namespaces: mail"]),
        ("sned_mail", ["Did you mean mail:send_mail?"]),
    ],
)
async def test_a_name_in_always_visible_that_no_tool_has_is_warned_of_once(
    spelling: str, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    options = SurfaceOptions(always_visible=("mail:send_mail", spelling))
    with anyio.fail_after(5):
        async with App(Settings(gateway=QUIET, surfaces=options)) as app:
            app.include(sdk_server("send_mail"), "mail")
            await app.settled()
            await app.refresh()
            async with mcp.Client(app.server) as client:
                assert "mail__send_mail" in [tool.name for tool in (await client.list_tools()).tools]
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert all(part in warned[0] for part in said)
