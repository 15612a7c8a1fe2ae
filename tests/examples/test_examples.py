"""The examples run, print what their pages say, and are quoted there unchanged."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

ROOT = Path(__file__).parents[2]
PAGES = {
    "tool_discovery": "tool-discovery",
    "per_user_tools": "per-user-tools",
    "registry": "registry",
    "chaining": "chaining",
    "mounted": "mounting",
}
"""The page of each example."""
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.anyio


def blocks(example: str, language: str) -> list[str]:
    page = (ROOT / "docs" / "how-to" / f"{PAGES[example]}.md").read_text()
    return [match[2] for match in FENCE.finditer(page) if match[1] == language]


@pytest.mark.parametrize("example", PAGES)
def test_a_page_shows_every_file_of_its_example_and_nothing_else(example: str) -> None:
    files = sorted(path.read_text() for path in (ROOT / "examples" / example).glob("*.py"))
    assert sorted(blocks(example, "python")) == files
    assert all(len(text.splitlines()) < 100 for text in files)


def commands() -> Iterator[tuple[str, str, str]]:
    for example in PAGES:
        for block in blocks(example, "console"):
            command, _, output = block.removeprefix("$ ").partition("\n")
            yield example, command, output


QUICK = "tool_discovery"
"""The example that runs each time; the others take a second or two of processor time each."""


@pytest.mark.parametrize(
    ("example", "command", "output"),
    [pytest.param(*one, marks=() if one[0] == QUICK else pytest.mark.slow) for one in commands()],
)
def test_a_command_of_a_page_prints_what_the_page_says(example: str, command: str, output: str) -> None:
    words = command.split()
    assert words[0] == "python"
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=ROOT / "examples" / example,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_every_page_has_a_command() -> None:
    assert {example for example, _, _ in commands()} == set(PAGES)


def loaded(example: str, name: str) -> ModuleType:
    """Import a file of an example as a module, without running it as a program."""
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", ROOT / "examples" / example / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def found(app: Any, query: str, **headers: str) -> list[str]:
    """The names that a client over HTTP finds."""
    web = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), headers=headers)
    async with web, Client(streamable_http_client("http://localhost/mcp", http_client=web)) as client:
        result = await client.call_tool("tool_search", {"query": query})
        return [hit["name"] for hit in (result.structured_content or {})["hits"]]


async def test_middleware_adds_the_tools_of_the_user_in_the_request() -> None:
    server = loaded("tool_discovery", "server")
    with anyio.fail_after(20):
        async with server.mount.running():
            assert (await found(server.http, "open a bookmark", **{"x-user": "ann"}))[0] == "open_bookmark"
            assert "open_bookmark" not in await found(server.http, "open a bookmark")
            assert (await found(server.http, "email somebody"))[0] == "send_email"


async def test_a_tool_of_another_role_is_as_good_as_missing() -> None:
    server = loaded("per_user_tools", "server")
    with anyio.fail_after(20):
        async with server.mount.running():
            admin, user = {"authorization": "Bearer anns-token"}, {"authorization": "Bearer bobs-token"}
            assert "admin_panel" in await found(server.http, "look after users", **admin)
            assert "admin_panel" not in await found(server.http, "look after users", **user)
            assert "advanced_settings" in await found(server.http, "preferences", **user)
            stranger = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=server.http), base_url="http://localhost")
            async with stranger:
                assert (await stranger.post("/mcp", json={})).status_code == 401


async def test_tools_behind_tools_are_called_through_the_front() -> None:
    chain = loaded("chaining", "main")
    with anyio.fail_after(20):
        async with chain.office, chain.archive, chain.front:
            await chain.front.settled()
            result = await chain.front.call("archive:papers:find_paper", {"words": "roof"})
    assert result.content[0]["text"] == "a paper about roof"
