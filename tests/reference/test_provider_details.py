"""Behaviour of the tool-provider system beyond its guide, row by row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import mcp
import mcp_types
import pytest
from mcp.shared.exceptions import MCPError
from tests.reference.support import META, call, execute, found, names, text_in

from toolcrib import (
    App,
    Context,
    Settings,
    Tool,
    Visibility,
    get_tool_providers,
    new_tool,
    with_show_all,
    with_tool_providers,
)
from toolcrib.fields import String
from toolcrib.options import ServerOptions, SurfaceOptions
from toolcrib.providers import content
from toolcrib.providers.combined import Many

pytestmark = pytest.mark.anyio

NATIVE, DISCOVERABLE, HIDDEN = Visibility.NATIVE, Visibility.DISCOVERABLE, Visibility.HIDDEN


@dataclass
class Provider:
    """Fixed tools; a call returns `value`, or raises it."""

    tools: Sequence[Tool] = (Tool(name="lamp", description="Switch the lamp", visibility=NATIVE),)
    value: Any = "done"
    listing: Exception | None = None

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        if self.listing is not None:
            raise self.listing
        return self.tools

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def native(*names: str) -> list[Tool]:
    return [Tool(name=name, visibility=NATIVE) for name in names]


# -- visibility and listing ----------------------------------------------------------------------------------------


def test_visibilities_are_words_and_a_built_tool_is_native() -> None:
    assert [str(one) for one in Visibility] == ["native", "discoverable", "hidden"]
    assert new_tool("a").to_tool().visibility is NATIVE


@pytest.mark.parametrize(("given", "listed"), [({}, True), ({"visibility": "discoverable"}, False)])
async def test_a_tool_of_the_execute_shape_is_native_by_default(given: Any, listed: bool) -> None:
    class Plain:
        async def get_tools(self, ctx: Context) -> list[dict[str, Any]]:
            return [{"name": "plain", "inputSchema": {"type": "object"}, **given}]

        async def execute_tool(self, ctx: Context, name: str, params: Mapping[str, Any]) -> str:
            return "done"

    app = App()
    app.add_provider(Plain())
    async with mcp.Client(app.server) as client:
        assert ("plain" in await names(client)) is listed


async def test_the_list_is_sorted_and_paged_with_the_meta_tools_first() -> None:
    app = App(Settings(surfaces=SurfaceOptions(list_page_bytes=2000)))
    app.add_provider(Provider([*native(*(f"lamp_{number:02}" for number in range(20, 0, -1))), Tool(name="far")]))
    listed, cursor = list[str](), None
    async with mcp.Client(app.server) as client:
        for _ in range(100):
            page = await client.list_tools(cursor=cursor)
            listed.extend(tool.name for tool in page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
    assert listed == [*META, *(f"lamp_{number:02}" for number in range(1, 21))]


async def test_show_all_lists_the_hidden_tools_of_remote_servers_too() -> None:
    behind, front = App(name="behind"), App(name="front")
    behind.register(Tool(name="far", description="Far away"), lambda: "far")
    front.add_server(ServerOptions(name="behind", target=behind.server, show_all=True))
    with anyio.fail_after(5):
        async with front, mcp.Client(front.server) as client:
            await front.settled()
            with with_show_all():
                assert await names(client) == ["behind__far"]


async def test_hidden_tools_are_neither_listed_nor_found_and_can_be_called() -> None:
    app = App()
    app.register(Tool(name="secret", visibility=HIDDEN), lambda: "told")
    async with mcp.Client(app.server) as client:
        with with_show_all():
            assert await names(client) == []
        assert await names(client) == []
        assert await found(client, "secret") == []
        assert text_in(await call(client, "secret")) == "told"


async def test_registering_with_another_visibility_moves_the_tool_and_its_keywords_stay() -> None:
    app = App()
    async with mcp.Client(app.server) as client:
        for visibility, listed in ((NATIVE, ["lamp"]), (DISCOVERABLE, META), (NATIVE, ["lamp"])):
            app.register(Tool(name="lamp", keywords=("bulb",), visibility=visibility), lambda: "done")
            await app.refresh()
            assert await names(client) == listed
            assert await found(client, "bulb") == ["lamp"]


# -- providers -----------------------------------------------------------------------------------------------------


async def test_tasks_that_run_at_once_do_not_see_each_others_providers() -> None:
    app, seen = App(), dict[str, list[str]]()
    both = anyio.Event()

    async def one(user: str) -> None:
        with with_tool_providers(Provider(native(user))):
            if len(seen) == 0:
                seen[user] = []
                await both.wait()
            else:
                both.set()
            seen[user] = [tool.id for tool in await app.tools()]

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for user in ("ann", "bob"):
                group.start_soon(one, user)
    assert seen == {"ann": ["ann"], "bob": ["bob"]}
    assert get_tool_providers() == ()


async def test_a_provider_that_cannot_list_hides_nothing_of_the_others() -> None:
    broken, well = Provider(listing=OSError("down")), Provider([Tool(name="far", description="Far away")])
    async with mcp.Client(App().server) as client:
        with with_tool_providers(broken, well):
            assert await names(client) == META
            assert await found(client, "far away") == ["far"]


async def test_registered_tools_win_over_providers_and_the_first_provider_over_the_next() -> None:
    app = App()
    app.register(Tool(name="lamp", visibility=NATIVE), lambda: "registered")
    async with mcp.Client(app.server) as client:
        with with_tool_providers(Provider(native("lamp", "fan"), "first"), Provider(native("fan"), "second")):
            assert await names(client) == ["fan", "lamp"]
            assert text_in(await call(client, "lamp")) == "registered"
            assert text_in(await call(client, "fan")) == "first"


async def test_a_tool_with_the_name_of_a_meta_tool_is_never_listed_beside_it() -> None:
    own = [Tool(name="tool_search", visibility=NATIVE), Tool(name="tool_search", namespace="mine", visibility=NATIVE)]
    app = App()
    app.add_provider(Provider([*own, Tool(name="far")]))
    async with mcp.Client(app.server) as client:
        assert await names(client) == [*META, "mine__tool_search"]
        assert text_in(await call(client, "mine__tool_search")) == "done"
        with with_show_all():
            assert await names(client) == ["far", "mine__tool_search", "tool_search"]
            assert text_in(await call(client, "tool_search")) == "done"


@pytest.mark.parametrize("value", [float("nan"), b"bytes", object()])
async def test_what_json_cannot_hold_is_an_error_and_no_success(value: Any) -> None:
    app = App()
    app.add_provider(Provider(value=value))
    async with mcp.Client(app.server) as client:
        result = await call(client, "lamp")
    assert (result.is_error, "JSON cannot represent" in text_in(result)) == (True, True)


@pytest.mark.parametrize("arguments", [{}, {"room": None}, {"room": 7}, {"room": "attic"}])
async def test_arguments_are_checked_against_the_whole_schema_for_every_kind_of_tool(arguments: dict[str, Any]) -> None:
    room = {"type": "string", "enum": ["hall", "kitchen"]}
    tool = Tool(
        name="lamp",
        visibility=NATIVE,
        input_schema={"type": "object", "properties": {"room": room}, "required": ["room"]},
    )
    app = App()
    app.add_provider(Provider([tool]))
    async with mcp.Client(app.server) as client:
        result = await call(client, "lamp", arguments)
        assert (result.is_error, "room" in text_in(result)) == (True, True)
        assert text_in(await call(client, "lamp", {"room": "hall"})) == "done"


async def test_several_providers_can_be_put_together_in_an_order() -> None:
    app = App()
    app.add_provider(Many(Provider(native("lamp"), "first"), Provider(native("lamp", "fan"), "second")))
    assert [tool.id for tool in await app.tools()] == ["fan", "lamp"]
    assert (await app.call("lamp")).content[0]["text"] == "first"


# -- dynamic states ------------------------------------------------------------------------------------------------


@dataclass
class ByPlan:
    """More tools for paying users, and one that a flag makes native."""

    plan: str
    flag: bool = False

    async def list_tools(self, ctx: Context) -> list[Tool]:
        export = Tool(name="export", description="Export", visibility=NATIVE if self.flag else DISCOVERABLE)
        return [*native("read"), *(native("audit") if self.plan == "enterprise" else []), export]

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{name} for {self.plan}"


@pytest.mark.parametrize(
    ("plan", "flag", "listed"),
    [
        ("free", False, [*META, "read"]),
        ("free", True, ["export", "read"]),
        ("enterprise", False, [*META, "audit", "read"]),
        ("enterprise", True, ["audit", "export", "read"]),
    ],
)
async def test_plans_and_feature_flags_decide_request_by_request(plan: str, flag: bool, listed: list[str]) -> None:
    async with mcp.Client(App().server) as client:
        with with_tool_providers(ByPlan("free", flag=not flag)):
            assert await names(client)
        with with_tool_providers(ByPlan(plan, flag)):
            assert await names(client) == listed
            assert text_in(await call(client, "export")) == f"export for {plan}"
            assert text_in(await execute(client, "export")) == f"export for {plan}"


# -- the protocol --------------------------------------------------------------------------------------------------

JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
CLIENT = {"capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}


async def asked(*requests: tuple[str, dict[str, Any]]) -> list[httpx2.Response]:
    """The replies of one session over HTTP."""
    app = App()
    app.register(Tool(name="lamp", visibility=NATIVE), lambda: "done")
    mount = app.asgi_mount()
    transport = httpx2.ASGITransport(app=mount)
    answers, headers = list[httpx2.Response](), dict(JSON)
    async with app, httpx2.AsyncClient(transport=transport) as http:
        for number, (method, params) in enumerate(requests):
            numbered = {} if method.startswith("notifications/") else {"id": number}
            body = {"jsonrpc": "2.0", "method": method, "params": params, **numbered}
            answers.append(await http.post("http://localhost/mcp", json=body, headers=headers))
            if session := answers[-1].headers.get("mcp-session-id"):
                headers |= {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    return answers


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ],
)
async def test_initialize_agrees_on_a_version_and_offers_one_if_the_clients_is_unknown(
    offered: str, agreed: str
) -> None:
    (answer,) = await asked(("initialize", {"protocolVersion": offered, **CLIENT}))
    assert answer.json()["result"]["protocolVersion"] == agreed
    assert answer.json()["result"]["capabilities"]["tools"] == {"listChanged": True}


async def test_ping_and_notifications_are_answered_as_the_protocol_says() -> None:
    first = ("initialize", {"protocolVersion": "2025-11-25", **CLIENT})
    _, notified, ping, unknown = await asked(first, ("notifications/initialized", {}), ("ping", {}), ("no/such", {}))
    assert (notified.status_code, ping.json()["result"]) == (202, {})
    assert unknown.json()["error"]["code"] == -32601


async def test_an_unknown_tool_is_an_invalid_parameter_and_a_failing_one_an_error_in_band() -> None:
    app = App()
    app.add_provider(Provider(value=PermissionError("access denied")))
    async with mcp.Client(app.server) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("absent", {})
        result = await call(client, "lamp")
    assert caught.value.error.code == -32602
    assert (result.is_error, "access denied" in text_in(result)) == (True, True)


async def test_clients_are_notified_of_a_changed_list_by_the_protocols_own_name() -> None:
    app, told_of = App(), anyio.Event()

    async def received(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            told_of.set()

    with anyio.fail_after(5):
        async with app, mcp.Client(app.server, mode="legacy", message_handler=received) as client:
            await client.list_tools()
            app.register(Tool(name="lamp", visibility=NATIVE), lambda: "done")
            await told_of.wait()
            assert await names(client) == ["lamp"]


async def test_a_remote_tool_keeps_its_title_annotations_output_schema_and_error() -> None:
    tool = Tool(
        name="lamp",
        title="The lamp",
        annotations={"readOnlyHint": True},
        output_schema={"type": "object"},
        visibility=NATIVE,
    )

    def fails() -> Any:
        raise OSError("no power")

    behind, front = App(), App(Settings(surfaces=SurfaceOptions(surfaces=("direct",))))
    behind.register(tool, fails)
    front.include(behind.server, "behind")
    with anyio.fail_after(5):
        async with front, mcp.Client(front.server) as client:
            await front.settled()
            (listed,) = (await client.list_tools(cache_mode="bypass")).tools
            result = await call(client, "behind__lamp")
    assert (listed.title, listed.output_schema) == ("The lamp", {"type": "object"})
    assert listed.annotations is not None
    assert listed.annotations.read_only_hint is True
    assert (result.is_error, "no power" in text_in(result)) == (True, True)


# -- kinds of results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kinds", "structured"),
    [
        pytest.param(content.text("a"), ["text"], None, id="text"),
        pytest.param(content.image(b"a"), ["image"], None, id="image"),
        pytest.param(content.audio(b"a"), ["audio"], None, id="audio"),
        pytest.param(content.resource("file:///a", "text"), ["resource"], None, id="resource"),
        pytest.param(content.resource_link("file:///a", "a"), ["resource_link"], None, id="resource-link"),
        pytest.param(content.structured({"a": 1}), ["text"], {"a": 1}, id="structured"),
        pytest.param({"a": 1}, ["text"], {"a": 1}, id="json"),
        pytest.param(
            content.several("see", content.structured({"a": 1}), content.structured({"a": 2})),
            ["text", "text", "text"],
            {"a": 2},
            id="several: the last structured one counts",
        ),
    ],
)
async def test_kinds_of_results(value: Any, kinds: list[str], structured: Any) -> None:
    app = App()
    app.add_provider(Provider(value=value))
    async with mcp.Client(app.server) as client:
        result = await call(client, "lamp")
    assert [block.type for block in result.content] == kinds
    assert result.structured_content == structured
    if kinds == ["resource_link"]:
        (link,) = result.content
        assert isinstance(link, mcp_types.ResourceLink)
        assert str(link.uri) == "file:///a"


# -- federation ----------------------------------------------------------------------------------------------------


async def test_servers_have_namespaces_and_may_be_narrowed_to_some_of_their_own_names() -> None:
    behind, front = App(), App()
    for name in ("lamp", "fan"):
        behind.register(Tool(name=name, visibility=NATIVE), lambda: "done")
    front.add_server(ServerOptions(name="house", target=behind.server, allowed_tools=("lamp",)))
    front.add_server(ServerOptions(name="other", target=behind.server))
    with anyio.fail_after(5):
        async with front:
            await front.settled()
            assert [tool.id for tool in await front.tools()] == ["house:lamp", "other:fan", "other:lamp"]
            assert (await front.find("house__lamp")).tool.id == "house:lamp"
            front.remove_server("other")
            await front.settled()
            assert [tool.id for tool in await front.tools()] == ["house:lamp"]


async def test_a_search_can_be_left_to_a_server_behind_without_anything_found_twice() -> None:
    behind, front = App(name="behind"), App(name="front")
    behind.register(Tool(name="lamp", description="Switch the lamp", visibility=NATIVE), lambda: "done")
    behind.register(Tool(name="fan", description="Switch the fan"), lambda: "done")
    behind_options = ServerOptions(name="behind", target=behind.server, delegate_search=True)
    front.add_server(behind_options)
    with anyio.fail_after(5):
        async with front, mcp.Client(front.server) as client:
            await front.settled()
            assert sorted(await found(client, "switch")) == ["behind:fan", "behind:lamp"]
            assert text_in(await execute(client, "behind:fan")) == "done"


async def test_calls_side_by_side_keep_their_order_and_fail_alone() -> None:
    async def switch(room: str) -> str:
        if room == "attic":
            raise OSError("no power")
        return room

    app, answers = App(), dict[str, str | Exception]()
    app.register(new_tool("lamp", "", String("room", required=True)), switch)

    async def one(room: str) -> None:
        try:
            answers[room] = (await app.call("lamp", {"room": room})).content[0]["text"]
        except Exception as error:  # noqa: BLE001 - to be looked at below
            answers[room] = error

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for room in ("hall", "attic", "kitchen"):
                group.start_soon(one, room)
    assert (answers["hall"], answers["kitchen"]) == ("hall", "kitchen")
    assert isinstance(answers["attic"], Exception)
