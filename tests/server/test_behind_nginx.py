"""Behind a proxy that shares its connections between clients, everybody gets the answers to their own requests only."""

import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.abc
import h11
import pytest
from tests.server.conftest import TOKENS, PerTenant, at_address, crib
from tests.server.test_requests import TOOLS, call, request_bytes, run

from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(NGINX is None, reason="nginx is not installed")]

CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr notice;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $connection_upgrade {{
        default upgrade;
        "" "";
    }}
    upstream gateway {{
        server {address};
        keepalive 1;
    }}
    server {{
        listen unix:{folder}/http;
        location / {{
            proxy_pass http://gateway;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_buffering off;
            proxy_request_buffering {buffering};
        }}
    }}
}}
"""
"""A proxy as many are: it forwards what websockets need, and keeps one connection to the gateway."""

HIDDEN = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
BODIES = {
    "a whole request": HIDDEN + b"2\r\n\r\n{}",
    "the head of a request that takes the next one for its body": HIDDEN + b"900\r\n\r\n",
}
ATTACK = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n"
PADDINGS = {"a short body": b"", "a body of several parts": b"x" * 8 * 1024 + b"\r\n" * 12 * 1024}


@contextlib.asynccontextmanager
async def nginx(folder: Path, address: str, buffering: str) -> AsyncIterator[Path]:
    """A proxy before the address: the path of its socket."""
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, address=address, buffering=buffering, user=user))
    command = [str(NGINX), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    async with await anyio.open_process(command, stdout=None) as process, anyio.create_task_group() as group:
        serves = anyio.Event()

        async def read_log() -> None:
            assert process.stderr is not None
            async for part in process.stderr:
                if b"start worker process" in part:
                    serves.set()

        group.start_soon(read_log)
        with anyio.fail_after(10):
            await serves.wait()
        try:
            yield folder / "http"
        finally:
            process.terminate()
            await process.wait()


async def exchange(path: Path, request: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer to a request on a connection of its own."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "localhost")]))
    reader.send(h11.EndOfMessage())
    status, body = 0, b""
    async with await anyio.connect_unix(path) as connection:
        await connection.send(request)
        while (event := reader.next_event()) is not h11.PAUSED and not isinstance(event, h11.EndOfMessage):
            if event is h11.NEED_DATA:
                reader.receive_data(await connection.receive())
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
    return status, body


@pytest.mark.parametrize("buffering", ["on", "off"])
@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS.keys())
@pytest.mark.parametrize("hidden", BODIES.values(), ids=BODIES.keys())
async def test_an_anonymous_client_cannot_shift_the_answers_of_others(
    hidden: bytes, padding: bytes, buffering: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    body = padding + hidden
    attack = ATTACK % len(body) + body
    callers = [json.dumps([token.caller, None, False, {}]) for token in TOKENS]
    async with crib(*TOOLS, handler=run, policy=PerTenant(), surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
        folder = tmp_path_factory.mktemp("nginx")
        async with at_address(app) as url, nginx(folder, url.removeprefix("http://"), buffering) as path:

            async def ask(tenant: int, number: int) -> None:
                headers: dict[str, str | None] = {"authorization": f"Bearer {TOKENS[tenant].secret}"}
                request = request_bytes(call("caller", headers=headers, message={"id": number}))
                status, answer = await exchange(path, request)
                assert status == 200
                found = json.loads(answer)
                assert (found["id"], found["result"]["content"][0]["text"]) == (number, callers[tenant])

            with anyio.fail_after(20):
                for number in range(0, 40, 4):
                    status, _ = await exchange(path, attack)
                    assert status == 401
                    await ask(0, number)
                    async with anyio.create_task_group() as group:
                        group.start_soon(ask, 0, number + 1)
                        group.start_soon(ask, 1, number + 2)
                        group.start_soon(exchange, path, attack)
                    await ask(1, number + 3)
