"""MCP Apps: tools of several servers keep their apps, whose addresses lead back to their own server."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import mcp
import mcp_types as types
import pytest
from mcp.client.extension import advertise
from mcp.server.lowlevel import Server
from tests.server.shop import FAST

from toolcrib.app import App
from toolcrib.settings.options import Settings
from toolcrib.surfaces.facade import APPS_EXTENSION
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

PAGE = "ui://app/index.html"


class Clock:
    """A server with a tool that has an app, and one that has none."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.server: Server[Any] = Server(
            name,
            on_list_tools=self._tools,
            on_call_tool=self._call,
            on_list_resources=self._resources,
            on_list_resource_templates=self._templates,
            on_read_resource=self._read,
        )

    async def _tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        meta = {"ui": {"resourceUri": PAGE, "visibility": ["model", "app"]}, "other": "https://ui.example"}
        show = types.Tool(name="show_time", input_schema={"type": "object"}, _meta=meta)
        return types.ListToolsResult(tools=[show, types.Tool(name="set_time", input_schema={"type": "object"})])

    async def _call(self, ctx: Any, params: Any) -> types.CallToolResult:
        link = types.ResourceLink(type="resource_link", uri=PAGE, name="page")
        return types.CallToolResult(content=[link], _meta={"ui": {"resourceUri": PAGE}})

    async def _resources(self, ctx: Any, params: Any) -> types.ListResourcesResult:
        page = types.Resource(uri=PAGE, name="page", mime_type="text/html;profile=mcp-app")
        return types.ListResourcesResult(resources=[page])

    async def _templates(self, ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(uri_template="ui://app/{zone}", name="zone")
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def _read(self, ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        text = f"{self.name} has {params.uri}"
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])


@contextlib.asynccontextmanager
async def clocks(*, shows_apps: bool = False, **options: Any) -> AsyncIterator[mcp.Client]:
    """A client of a gateway in front of two servers with the same address of an app."""
    servers = tuple(ServerOptions(name=name, target=Clock(name).server) for name in ("a", "b"))
    async with App(Settings(servers=servers, surfaces=SurfaceOptions(**options), fleet=FAST)) as app:
        await app.settled()
        extensions = [advertise(APPS_EXTENSION)] if shows_apps else None
        async with mcp.Client(app.server, extensions=extensions) as client:
            yield client


async def test_two_servers_with_the_same_app_address_each_keep_their_app() -> None:
    with anyio.fail_after(10):
        async with clocks(surfaces=("direct",)) as client:
            tools = {tool.name: tool.meta for tool in (await client.list_tools()).tools}
            listed = [resource.uri for resource in (await client.list_resources()).resources]
            assert sorted(listed) == ["ui://a/app/index.html", "ui://b/app/index.html"]
            for name, server in (("a__show_time", "a"), ("b__show_time", "b")):
                meta: Any = tools[name]
                address = meta["ui"]["resourceUri"]
                assert address in listed
                assert (meta["ui"]["visibility"], meta["other"]) == (["model", "app"], "https://ui.example")
                part = (await client.read_resource(address)).contents[0]
                assert part == types.TextResourceContents(uri=address, text=f"{server} has {PAGE}")
                result = await client.call_tool(name, {})
                assert isinstance(result, types.CallToolResult)
                assert isinstance(result.content[0], types.ResourceLink)
                assert result.content[0].uri == (result.meta or {})["ui"]["resourceUri"] == address


async def test_the_address_of_an_app_from_a_template_leads_back_to_its_server() -> None:
    with anyio.fail_after(10):
        async with clocks(surfaces=("direct",)) as client:
            templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
            assert sorted(templates) == ["ui://a/app/{zone}", "ui://b/app/{zone}"]
            (part,) = (await client.read_resource("ui://b/app/utc")).contents
            assert part == types.TextResourceContents(uri="ui://b/app/utc", text="b has ui://app/utc")


async def test_a_client_that_shows_apps_lists_their_tools_unless_the_settings_say_otherwise() -> None:
    with anyio.fail_after(10):
        async with clocks(shows_apps=True) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["tool_search", "execute_tool", "a__show_time", "b__show_time"]
        for options in ({"apps": False}, {"meta_only": True}, {"shows_apps": False}):
            async with clocks(**{"shows_apps": True, **options}) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["tool_search", "execute_tool"]
