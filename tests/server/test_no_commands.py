"""No request can name a program that the gateway then runs: not by any route, method, meta-tool, header or query."""

import inspect
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types
import pytest
from pydantic import BaseModel
from starlette.routing import Route
from tests.server.conftest import JSON

from toolcrib import App, Settings, Tool
from toolcrib.options import SurfaceOptions
from toolcrib.server.http.app import HttpApp
from toolcrib.surfaces.options import SURFACES

pytestmark = pytest.mark.anyio

METHODS = sorted(
    {
        default
        for made in vars(mcp_types).values()
        if inspect.isclass(made) and issubclass(made, BaseModel) and "method" in made.model_fields
        if isinstance(default := made.model_fields["method"].default, str)
    }
)
"""Every method of the protocol, of both sides and all versions."""
SCRIPTED = frozenset({"execute"})
"""Meta-tools that run scripts, in processes of the gateway's own; the scripts are no programs."""
PROGRAM_WORDS = frozenset({"command", "cmd", "args", "argv", "program", "executable", "shell", "cwd", "env", "exec"})
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")


class Started:
    """The programs that this process starts while a test looks."""

    def __init__(self) -> None:
        self.programs: list[str] | None = None

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.programs is not None and event.startswith(STARTS):
            self.programs.append(f"{event} {arguments}")


STARTED = Started()
sys.addaudithook(STARTED.audit)  # an audit hook cannot be removed: it looks only while a test wants it to


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    """A program that leaves a file if it is run."""
    made = tmp_path / "program"
    made.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    made.chmod(0o700)
    STARTED.programs = []
    yield made
    STARTED.programs = None


def commands(program: Path) -> list[dict[str, Any]]:
    """A program, as servers are written in settings and as models would ask for one."""
    entry = {"command": str(program), "args": [], "type": "stdio", "transport": "stdio"}
    return [
        entry,
        {"mcpServers": {"new": entry}},
        {"server": entry, "options": entry, "settings": {"mcpServers": {"new": entry}}},
        {"name": str(program), "arguments": entry, "cmd": str(program), "shell": str(program)},
        {"uri": f"file://{program}", "url": f"stdio://{program}", "ref": {"type": "ref/resource", "uri": str(program)}},
    ]


def messages(program: Path, names: Sequence[str]) -> Iterator[Any]:
    """Every method with each form of a command, and each meta-tool called with it."""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    for method, params in itertools.product(METHODS, commands(program)):
        yield {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        yield {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    for name, given in itertools.product(names, commands(program)):
        yield {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": given}}
    yield from commands(program)


def the_app(surfaces: Sequence[str] = SURFACES) -> App:
    app = App(Settings(surfaces=SurfaceOptions(surfaces=tuple(surfaces), call_many=True, summary=True)))
    app.register(Tool(name="add"), lambda: 1)
    return app


def paths(app: App) -> list[str]:
    """Each path that the app has a route for, and some that it has not."""
    found: set[str] = {"/", "/mcp", "/sse", "/messages/", "/servers", "/run", "/admin"}
    for mount in (app.asgi_mount(), app.sse_mount()):
        found.add(mount.path)
        assert isinstance(mount, HttpApp)
        found |= {route.path for route in mount.routes if isinstance(route, Route)}
    assert {"/healthz", "/readyz"} <= found
    return sorted(found)


async def test_no_request_starts_a_program_that_it_names(program: Path) -> None:
    async with the_app() as app:
        names = [name for name in app.facade.meta_names if name not in SCRIPTED]
        assert {"tool_search", "execute_tool", "call_many", "call_tool", "tool-details"} <= set(names)
        query = {"command": str(program), "cmd": str(program)}
        for mount, path in itertools.product((app.asgi_mount(), app.sse_mount()), paths(app)):
            transport = httpx2.ASGITransport(app=mount)
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
                headers = {**JSON, "x-command": str(program), "mcp-session-id": str(program)}
                for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "POST"):
                    with anyio.fail_after(5):
                        await http.request(method, path, params=query, headers=headers, json=commands(program)[1])
        transport = httpx2.ASGITransport(app=app.asgi_mount())
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for message in messages(program, names):
                with anyio.move_on_after(0.5):  # a subscription never ends by itself
                    await http.post("/mcp", headers=JSON, json=message)
    assert STARTED.programs is not None
    assert [one for one in STARTED.programs if str(program) in one] == []
    assert not (program.parent / "ran").exists()
    assert app.servers.names() == ()


async def test_the_programs_of_a_request_would_be_seen(program: Path) -> None:
    await anyio.run_process([str(program)])
    assert STARTED.programs is not None
    assert any(str(program) in one for one in STARTED.programs)
    assert (program.parent / "ran").exists()


@pytest.mark.parametrize("surface", SURFACES)
async def test_no_meta_tool_has_an_argument_for_a_program(surface: str) -> None:
    app = the_app([surface])
    async with app:
        listed = await app.facade.page(app.local_context())
        arguments = {
            name for entry in listed.items if entry.tool.name in app.facade.meta_names
            for name in entry.tool.input_schema.get("properties", {})
        }  # fmt: skip
    assert {name for name in arguments if name.casefold() in PROGRAM_WORDS} == set()
    assert os.environ.get("TOOLCRIB_COMMAND") is None
