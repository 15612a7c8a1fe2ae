"""`toolcrib serve --console` serves the console beside stdio and beside HTTP."""

import os
import re
import subprocess
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.e2e.conftest import TOOLCRIB, Files, notes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.mark.parametrize("more", [(), ("--http", "127.0.0.1:0")])
async def test_the_console_is_served_beside_stdio_and_beside_http(more: tuple[str, ...], tmp_path: Path) -> None:
    config = Files(tmp_path).config({"notes": notes()})
    command = [*TOOLCRIB, "serve", *more, "--console", "127.0.0.1:0", "--config", str(config)]
    environment = {name: value for name, value in os.environ.items() if name != "TOOLCRIB_TOKEN"}
    with anyio.fail_after(60):
        process = await anyio.open_process(command, stdin=subprocess.PIPE, env=environment)
        try:
            assert process.stderr is not None
            received = ""
            async for chunk in process.stderr:
                received += chunk.decode()
                if found := re.search(r"the console is at (http://127\.0\.0\.1:\d+/)", received):
                    break
            else:
                raise AssertionError(received)
            async with httpx2.AsyncClient(follow_redirects=True) as http:
                page = await http.get(found[1])
                assert page.status_code == 200
                assert "notes" in page.text
                assert (await http.get(f"{found[1]}mcp")).status_code == 404
        finally:
            process.terminate()
            await process.wait()
            await process.aclose()
    assert process.returncode == 0


async def test_tokens_without_the_scope_end_the_command_with_what_to_do(tmp_path: Path) -> None:
    config = Files(tmp_path).config({})
    command = [*TOOLCRIB, "serve", "--http", "127.0.0.1:0", "--console", "--config", str(config)]
    environment = {**os.environ, "TOOLCRIB_TOKEN": "a-token-of-an-agent-0123"}
    with anyio.fail_after(60):
        done = await anyio.run_process(command, env=environment, check=False)
    assert done.returncode != 0
    assert 'no token has the scope "console"' in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
