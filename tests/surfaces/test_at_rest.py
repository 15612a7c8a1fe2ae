"""What a list costs before the agent has asked for anything, and which clients see tools with an app beside it."""

import json
from collections.abc import Sequence
from typing import Any

import mcp
import pytest
from mcp.client.extension import advertise

from toolcrib.surfaces.facade import APPS_EXTENSION
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running, text_of
from toolcrib.tokens import ExactTokens
from toolcrib.types import Tool, Visibility

pytestmark = pytest.mark.anyio

SERVERS = 160
AT_REST = 1_200
"""Tokens that a client may spend on tools that it did not ask for, with the instructions."""
SHOWS_APPS: dict[str, Any] = {"extensions": [advertise(APPS_EXTENSION, {"mimeTypes": ["text/html;profile=mcp-app"]})]}
THINGS = (
    *("issue", "pull request", "commit", "invoice", "customer", "payment", "message", "channel", "calendar event"),
    *("spreadsheet row", "document", "database table", "bucket object", "container", "workflow", "forecast", "route"),
    *("playlist", "ticket", "contact", "deployment", "metric", "alert", "recipe", "citation"),
)
DOES = ("list", "create", "update", "delete", "search", "export")
VENDORS = ("acme", "northwind", "initech", "umbrella", "globex", "hooli", "vandelay", "stark")


def _tool(namespace: str, verb: str, thing: str, **more: Any) -> Tool:
    parameters = {
        key: {"type": "string", "description": f"The {key} of the {thing}, as {namespace} shows it in its own pages."}
        for key in ("id", "workspace", "fields", "filter")
    }
    return Tool(
        name=f"{verb}_{thing.replace(' ', '_')}",
        namespace=namespace,
        description=f"{verb.capitalize()} a {thing} in {namespace}. Needs the id of the workspace. " * 3,
        input_schema={"type": "object", "properties": parameters, "required": ["id"]},
        **more,
    )


def _server(number: int) -> FakeProvider:
    """A server with six tools; every eighth has an app for three of them, as recorded servers do."""
    thing = THINGS[number % len(THINGS)]
    name = f"{VENDORS[number % len(VENDORS)]}-mcp-server-{thing.replace(' ', '-')}"
    app = {"ui": {"resourceUri": f"ui://{thing.replace(' ', '-')}/page.html"}}
    tools = [
        _tool(
            name,
            verb,
            thing,
            annotations={"readOnlyHint": verb in ("list", "search")},
            meta=app if number % 8 == 0 and place < 3 else {},
        )
        for place, verb in enumerate(DOES)
    ]
    return FakeProvider(tools, status=ready(name, tools=len(tools)))


FLEET = [_server(number) for number in range(SERVERS)]


async def _listed(options: SurfaceOptions, source: FakeSource, **client: Any) -> tuple[list[mcp.types.Tool], str]:
    async with running(source) as gateway, connect(gateway, options, **client) as one:
        return (await one.list_tools()).tools, one.instructions or ""


def _cost(tools: Sequence[mcp.types.Tool], instructions: str) -> int:
    """What a model reads of them, in tokens."""
    entries = [{"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in tools]
    shown = [json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries]
    return ExactTokens().count("\n".join((*shown, instructions)))


@pytest.mark.parametrize("surface", [name for name in SURFACES if name != "direct"])
async def test_what_a_client_lists_in_front_of_160_servers_costs_at_most_1200_tokens(surface: str) -> None:
    tools, instructions = await _listed(SurfaceOptions(surfaces=(surface,)), FakeSource(*FLEET))
    assert not [tool.name for tool in tools if "__" in tool.name]
    assert _cost(tools, instructions) <= AT_REST
    told = instructions + "".join(tool.description or "" for tool in tools)
    assert told.count("Servers:\n") == 1, "the digest is there, once"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_only_clients_that_show_apps_list_tools_with_an_app_and_others_find_them(mode: str) -> None:
    source = FakeSource(_server(0))
    for client, apps in ((SHOWS_APPS, 3), ({}, 0)):
        async with running(source) as gateway, connect(gateway, mode=mode, **client) as one:
            names = [tool.name for tool in (await one.list_tools()).tools if "__" in tool.name]
            assert len(names) == apps
            assert f"{FLEET[0].tools[0].namespace}:create_issue" in text_of(
                await one.call_tool("tool_search", {"query": "create issue"})
            )


def _shown(name: str, *, words: int, **ui: Any) -> Tool:
    return Tool(name=name, namespace=name[0], description="show " * words, meta={"ui": ui})


async def test_tools_with_an_app_are_listed_within_a_budget_the_cheapest_server_first() -> None:
    tools = [
        _shown("a_large", words=900),
        _shown("b_small", words=90),
        _shown("b_other", words=90),
        _shown("c_called_by_apps", words=5_000, visibility=["app"]),
        _shown("d_callable_too", words=900, visibility=["model", "app"]),
        Tool(name="own", description="A function of the app. " * 900, visibility=Visibility.NATIVE, meta={"ui": {}}),
    ]
    source = FakeSource(FakeProvider(tools))
    for budget, expected in (
        (500, {"b_small", "b_other", "c_called_by_apps"}),
        (200, {"b_other", "c_called_by_apps"}),
        (0, {"a_large", "b_small", "b_other", "c_called_by_apps", "d_callable_too"}),
    ):
        options = SurfaceOptions(app_tokens=budget)
        listed, _ = await _listed(options, source, **SHOWS_APPS)
        assert {tool.name[3:] for tool in listed if "__" in tool.name} == expected
        assert "own" in {tool.name for tool in listed}


async def test_a_tool_that_is_always_visible_is_listed_whether_or_not_the_client_shows_its_app() -> None:
    source = FakeSource(FakeProvider([_shown("a_large", words=9_000)]))
    listed, _ = await _listed(SurfaceOptions(always_visible=("a:a_large",)), source)
    assert "a__a_large" in {tool.name for tool in listed}
