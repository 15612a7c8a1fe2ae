"""The ASGI app, served by itself or mounted in somebody else's."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp
from tests.server.conftest import JSON, TOKENS, Crib, client_at, crib, names

from toolcrib.errors import SettingsError
from toolcrib.server.asgi import HttpApp
from toolcrib.server.http import bind_socket, http_app
from toolcrib.server.options import HttpOptions
from toolcrib.server.sse import sse_app
from toolcrib.testing import text_of

pytestmark = pytest.mark.anyio

META = ["tool_search", "execute_tool"]


def anywhere(served: Crib, **options: Any) -> HttpApp:
    return http_app(served.server, HttpOptions(**options), ready=lambda: (True, {"tools": 1}), anywhere=True)


@asynccontextmanager
async def hosted(app: ASGIApp) -> AsyncIterator[str]:
    """The origin of an app that a plain uvicorn serves, lifespan and all."""
    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # it is no process of its own
    with bind_socket("127.0.0.1", 0) as sock:
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                await server.serve(sockets=[sock])

            group.start_soon(serve)
            try:
                yield f"http://127.0.0.1:{sock.getsockname()[1]}"
            finally:
                server.should_exit = True


def fastapi_with(app: HttpApp) -> ASGIApp:
    host = FastAPI()

    @host.get("/hello")
    async def hello() -> str:
        return "hello"

    host.mount("/tools", app)
    return host


def starlette_mounting(app: HttpApp) -> ASGIApp:
    return Starlette(routes=[Mount("/tools", app=app)])


def starlette_routing(app: HttpApp) -> ASGIApp:
    return Starlette(routes=[Route("/tools/mcp", endpoint=app)])


def below_another_mount(app: HttpApp) -> ASGIApp:
    return Starlette(routes=[Mount("/tools", routes=[Mount("/deep", app=app), Mount("/", app=app)])])


HOSTS = [fastapi_with, starlette_mounting, starlette_routing, below_another_mount]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("host", HOSTS)
async def test_a_mounted_app_serves_both_eras_while_its_owner_runs_it(
    host: Callable[[HttpApp], ASGIApp], mode: Any
) -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = anywhere(served)
            async with app.running(), hosted(host(app)) as url, client_at(f"{url}/tools/mcp", mode) as client:
                assert await names(client) == META
                result = await client.call_tool("execute_tool", {"name": "x:echo", "arguments": {"a": 1}})
                assert text_of(result) == "echo {'a': 1}"


@pytest.mark.parametrize("path", ["/tools/", "/tools/mcp", "/tools/any/where", "/tools"])
async def test_every_path_below_the_mount_answers(path: str) -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = anywhere(served)
            async with app.running(), hosted(fastapi_with(app)) as url, client_at(f"{url}{path}") as client:
                assert await names(client) == META


async def test_its_own_lifespan_runs_it() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            async with hosted(anywhere(served)) as url, client_at(f"{url}/mcp", "legacy") as client:
                assert await names(client) == META


async def test_it_may_run_as_a_task_and_again_after_it_ended() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = anywhere(served)
            async with hosted(fastapi_with(app)) as url:
                for _ in range(2):
                    async with anyio.create_task_group() as group:
                        await group.start(app.run)
                        async with client_at(f"{url}/tools/mcp", "legacy") as client:
                            assert await names(client) == META
                        group.cancel_scope.cancel()


async def test_who_runs_it_beside_its_owner_ends_nothing() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = anywhere(served)
            async with app.running(), http_of(app) as http:
                async with app.running():
                    pass
                assert (await http.get("/readyz")).status_code == 200


def http_of(app: ASGIApp, **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers={**JSON, **headers})


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("make", [http_app, sse_app])
async def test_while_nobody_runs_it_it_says_so(make: Callable[..., HttpApp], version: str) -> None:
    async with crib() as served:
        app = make(served.server, HttpOptions(), ready=lambda: (True, {}), anywhere=True)
        async with http_of(app, **{"mcp-protocol-version": version}) as http:
            answer = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
            error = answer.json()["error"]
            assert (answer.status_code, error["data"]["code"]) == (503, "not_started")
            assert "`async with app`" in error["message"]
            assert (await http.get("/healthz")).text == "ok"
            assert (await http.get("/readyz")).status_code == 503


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/tools/healthz", 200),
        ("GET", "/tools/readyz", 200),
        ("POST", "/tools/healthz", 405),
        ("GET", "/tools/.well-known/oauth-protected-resource", 404),
        ("GET", "/hello", 200),
        ("GET", "/other", 404),
    ],
)
async def test_what_is_not_the_protocols_stays_what_it_is(method: str, path: str, status: int) -> None:
    async with crib() as served:
        app = anywhere(served)
        async with app.running(), http_of(fastapi_with(app)) as http:
            assert (await http.request(method, path)).status_code == status


@pytest.mark.parametrize(("path", "status"), [("/mcp", 400), ("/mcp/", 400), ("/", 404), ("/other", 404)])
async def test_served_by_itself_it_answers_at_its_own_path(path: str, status: int) -> None:
    async with crib() as served:
        app = http_app(served.server, HttpOptions(), ready=lambda: (True, {}))
        async with app.running(), http_of(app) as http:
            assert (await http.post(path, content=b"{")).status_code == status


@pytest.mark.parametrize("make", [http_app, sse_app])
async def test_the_guards_stand_before_a_mounted_app_too(make: Callable[..., HttpApp]) -> None:
    options = HttpOptions(tokens=TOKENS, allowed_hosts=("tools.example",))
    async with crib() as served:
        app = make(served.server, options, ready=lambda: (True, {}), anywhere=True)
        async with app.running(), http_of(starlette_mounting(app)) as http:
            assert (await http.get("/tools/sse")).status_code == 401
            assert (await http.get("/tools/sse", headers={"host": "tools.example"})).status_code == 401
            assert (await http.get("/tools/sse", headers={"host": "evil.example"})).status_code == 421
            assert (await http.get("/tools/sse", headers={"origin": "https://evil.example"})).status_code == 403


@pytest.mark.parametrize("make", [http_app, sse_app])
async def test_an_app_that_others_reach_needs_a_token(make: Callable[..., HttpApp]) -> None:
    async with crib() as served:
        with pytest.raises(SettingsError, match="without a token"):
            make(served.server, HttpOptions(host="0.0.0.0"), ready=lambda: (True, {}))


async def test_a_websocket_is_refused() -> None:
    async with crib() as served:
        app = anywhere(served)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        scope = {"type": "websocket", "path": "/", "headers": [(b"host", b"localhost")], "root_path": ""}
        await app(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
