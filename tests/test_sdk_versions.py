"""toolcrib works with every release of the SDK that it allows, and with one whose private names are others."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import anyio
import mcp
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from tests.e2e.conftest import http_notes, notes

from toolcrib.testing import text_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROOT: Final = Path(__file__).parents[1]
ERAS: Final = "tests/server/test_eras.py::test_every_server_can_ask_every_client_and_send_it_logs_and_progress"
WAYS: Final = {
    "clients in memory": (ERAS, "-k", "memory"),
    "clients over stdio": (ERAS, "-k", "stdio"),
    "clients over HTTP": (ERAS, "tests/server/test_http.py", "-k", "http"),
    "servers of every kind": ("tests/upstream/test_connection.py",),
}
"""Tests that a release must pass, by the way from clients to servers, in both eras."""
RUN_S: Final = 500


def passes(way: str, *options: str, **environ: str) -> None:
    """Run the tests of a way in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *WAYS[way]]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("way", WAYS)
def test_no_way_depends_on_private_names_of_the_sdk(way: str) -> None:
    passes(way, "-p", "tests.fixtures.servers.renamed_sdk")


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_command_line_serves_without_private_names_of_the_sdk(tmp_path: Path, mode: Any) -> None:
    with anyio.fail_after(60), http_notes(tmp_path) as url:
        config = tmp_path / "toolcrib.json"
        config.write_text(json.dumps({"mcpServers": {"pipe": notes(), "web": {"url": url}}}))
        command = ["-m", "tests.fixtures.servers.renamed_sdk", "serve", "--config", str(config)]
        serve = StdioServerParameters(command=sys.executable, args=command, cwd=ROOT, env=dict(os.environ))
        async with mcp.Client(stdio_client(serve), mode=mode) as client:
            for server in ("pipe", "web"):
                call = {"name": f"{server}:add_note", "arguments": {"text": "milk"}}
                assert "kept" in text_of(await client.call_tool("execute_tool", call))


@pytest.fixture(params=["lowest-direct", "highest"])
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the oldest or newest release that the project allows, and what it needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (allowed,) = (one for one in project["dependencies"] if re.match(r"mcp\b", one))
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(tmp_path),
        "--resolution",
        request.param,
        allowed,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode:
        pytest.skip(f"the package index cannot be reached: {done.stderr[-200:]}")
    (found,) = tmp_path.glob("mcp-*.dist-info")
    if found.name == f"mcp-{version('mcp')}.dist-info":
        pytest.skip(f"{found.stem} is the release that all tests run with")
    return tmp_path


@pytest.mark.network
def test_every_way_works_with_the_oldest_and_the_newest_release(release: Path) -> None:
    for way in WAYS:
        passes(way, PYTHONPATH=str(release))
