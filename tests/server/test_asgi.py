"""The ASGI app, served by itself or mounted in another app, and middleware that adds providers to requests."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import mcp
import pytest
import uvicorn
from fastapi import FastAPI
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.server.conftest import JSON, TOKENS, Crib, Own, client_at, crib, names, native, token

from toolcrib.app import App
from toolcrib.errors import NotAuthenticated, RateLimited, SettingsError
from toolcrib.providers.request_scope import with_show_all, with_tool_providers
from toolcrib.server.asgi import AsgiApp
from toolcrib.server.http.app import CallerProviders, HttpApp, RequestProviders
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.http.sse import sse_app
from toolcrib.server.options import HttpOptions
from toolcrib.server.processes.process import bind_socket
from toolcrib.testing import text_of
from toolcrib.types import Caller, Context, Tool

pytestmark = pytest.mark.anyio


META = ["tool_search", "execute_tool"]


def anywhere(served: Crib, **options: Any) -> HttpApp:
    return http_app(served.engine, HttpOptions(**options), ready=lambda: (True, {"tools": 1}), anywhere=True)


@asynccontextmanager
async def hosted(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an app with plain uvicorn, including its lifespan, and yield its origin."""
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


async def test_an_app_runs_by_its_own_lifespan() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            async with hosted(anywhere(served)) as url, client_at(f"{url}/mcp", "legacy") as client:
                assert await names(client) == META


async def test_an_app_can_run_in_a_task_and_run_again() -> None:
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


async def test_leaving_a_nested_run_ends_nothing() -> None:
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
async def test_an_app_that_is_not_running_answers_503(make: Callable[..., HttpApp], version: str) -> None:
    async with crib() as served:
        app = make(served.engine, HttpOptions(), ready=lambda: (True, {}), anywhere=True)
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
async def test_other_paths_and_methods_are_not_handled_as_mcp(method: str, path: str, status: int) -> None:
    async with crib() as served:
        app = anywhere(served)
        async with app.running(), http_of(fastapi_with(app)) as http:
            assert (await http.request(method, path)).status_code == status


@pytest.mark.parametrize(
    ("options", "peer", "host", "status"),
    [
        ({}, "127.0.0.1", "localhost", 200),
        ({}, "::ffff:127.0.0.1", "localhost", 200),
        ({}, "::1", "[::1]:8000", 200),
        ({}, "10.0.0.7", "localhost", 403),
        ({}, "10.0.0.7", "127.0.0.1:8000", 403),
        ({}, "2001:db8::1", "localhost", 403),
        ({}, "10.0.0.7", "tools.example", 421),
        ({"allowed_hosts": ("tools.example",)}, "10.0.0.7", "tools.example", 200),
        ({"allowed_hosts": ("tools.example",)}, "10.0.0.7", "localhost", 403),
        ({"tokens": TOKENS}, "10.0.0.7", "localhost", 401),
    ],
)
async def test_an_app_without_authentication_is_for_this_machine_alone(
    options: dict[str, Any], peer: str, host: str, status: int
) -> None:
    async with crib() as served:
        app = anywhere(served, **options)
        transport = httpx2.ASGITransport(app=fastapi_with(app), client=(peer, 1))
        async with app.running(), httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
            answer = await http.post("/tools/mcp", headers=JSON, json=OPENING)
            assert answer.status_code == status
            assert ("result" in answer.json()) is (status == 200)
            if status != 421:  # an unknown host has no health either, but for probes of containers
                assert (await http.get("/tools/healthz")).status_code == 200


async def test_a_caller_that_the_app_around_it_has_authenticated_may_be_anywhere() -> None:
    async with crib() as served:
        app = anywhere(served)

        async def authenticated(scope: Scope, receive: Receive, send: Send) -> None:
            user = AuthenticatedUser(AccessToken(token="", client_id="ann", scopes=[]))
            await app({**scope, "user": user}, receive, send)

        transport = httpx2.ASGITransport(app=authenticated, client=("10.0.0.7", 1))
        async with app.running(), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.post("/mcp", headers=JSON, json=OPENING)).status_code == 200


@pytest.mark.parametrize(("path", "status"), [("/mcp", 400), ("/mcp/", 400), ("/", 404), ("/other", 404)])
async def test_an_app_served_by_itself_answers_at_its_own_path(path: str, status: int) -> None:
    async with crib() as served:
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
        async with app.running(), http_of(app) as http:
            assert (await http.post(path, content=b"{")).status_code == status


@pytest.mark.parametrize("make", [http_app, sse_app])
async def test_a_mounted_app_checks_hosts_and_tokens_too(make: Callable[..., HttpApp]) -> None:
    options = HttpOptions(tokens=TOKENS, allowed_hosts=("tools.example",))
    async with crib() as served:
        app = make(served.engine, options, ready=lambda: (True, {}), anywhere=True)
        async with app.running(), http_of(starlette_mounting(app)) as http:
            assert (await http.get("/tools/sse")).status_code == 401
            assert (await http.get("/tools/sse", headers={"host": "tools.example"})).status_code == 401
            assert (await http.get("/tools/sse", headers={"host": "evil.example"})).status_code == 421
            assert (await http.get("/tools/sse", headers={"origin": "https://evil.example"})).status_code == 403


@pytest.mark.parametrize("make", [http_app, sse_app])
async def test_an_app_that_other_machines_can_reach_needs_a_token(make: Callable[..., HttpApp]) -> None:
    async with crib() as served:
        with pytest.raises(SettingsError, match="without a token"):
            make(served.engine, HttpOptions(host="0.0.0.0"), ready=lambda: (True, {}))


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


OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}


async def opened(http: httpx2.AsyncClient, headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """Open a session, and return its headers."""
    own = dict(headers or {})
    answer = await http.post("/mcp", headers=own, json=OPENING)
    session = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await http.post("/mcp", headers={**own, **session}, json=ready)
    return session


async def listed(http: httpx2.AsyncClient, headers: dict[str, str]) -> list[str]:
    answer = await http.post("/mcp", headers=headers, json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
    return [tool["name"] for tool in answer.json()["result"]["tools"]]


def of_user(request: Request) -> Own | None:
    """The tools of the user that a header names."""
    user = request.headers.get("x-user")
    return Own(native(f"of_{user}")) if user else None


async def test_request_tools_exist_for_that_request_only_even_within_one_session() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            async with app.running(), http_of(RequestProviders(app, of_user)) as http:
                session = await opened(http)
                assert await listed(http, {**session, "x-user": "ann"}) == [*META, "of_ann"]
                assert await listed(http, {**session, "x-user": "bob"}) == [*META, "of_bob"]
                assert await listed(http, session) == META


async def test_interleaved_requests_of_concurrent_sessions_never_mix() -> None:
    waiting = {"ann": anyio.Event(), "bob": anyio.Event()}

    class Slow(Own):
        async def call_tool(self, ctx: Context, name: str, arguments: Any) -> Any:
            waiting[name.removeprefix("of_")].set()
            for event in waiting.values():
                await event.wait()
            tools = [tool for provider in ctx.providers for tool in await provider.list_tools(ctx)]
            return {"tool": name, "seen": [tool.name for tool in tools]}

    def resolve(request: Request) -> Own:
        return Slow(native(f"of_{request.headers['x-user']}"))

    answers: dict[str, Any] = {}
    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            async with (
                app.running(),
                http_of(RequestProviders(app, resolve)) as http,
                anyio.create_task_group() as group,
            ):

                async def call(user: str) -> None:
                    session = {**await opened_as(http, user), "x-user": user}
                    params = {"name": f"of_{user}", "arguments": {}}
                    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
                    answers[user] = (await http.post("/mcp", headers=session, json=body)).json()

                group.start_soon(call, "ann")
                group.start_soon(call, "bob")
    for user in ("ann", "bob"):
        assert f"of_{user}" in str(answers[user])
        assert answers[user]["result"]["structuredContent"]["seen"] == [f"of_{user}"]


async def test_a_resolver_that_limits_the_rate_answers_429_with_the_time_to_wait() -> None:
    def limited(_: Request) -> None:
        raise RateLimited("Too many requests.", data={"retry_after_s": 2.4})

    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            async with app.running(), http_of(RequestProviders(app, limited)) as http:
                refused = await http.post("/mcp", json=OPENING)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert refused.json()["error"]["message"] == "Too many requests."


async def opened_as(http: httpx2.AsyncClient, user: str) -> dict[str, str]:
    answer = await http.post("/mcp", headers={"x-user": user}, json=OPENING)
    return {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}


async def test_providers_of_several_middlewares_accumulate_and_override_on_request() -> None:
    async def later(request: Request) -> list[Own]:
        return [Own(native("second")), Own(native("third"))]

    with anyio.fail_after(10):
        async with crib(native("shared")) as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            inner = RequestProviders(app, lambda _: Own(native("shared", description="mine")), override=True)
            outer = RequestProviders(RequestProviders(inner, later), lambda _: Own(native("first")))
            async with app.running(), http_of(outer) as http:
                session = await opened(http)
                answer = await http.post(
                    "/mcp", headers=session, json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
                )
    tools = {tool["name"]: tool.get("description") for tool in answer.json()["result"]["tools"]}
    assert {"first", "second", "third"} <= tools.keys()
    assert tools["shared"] == "mine"


@pytest.mark.parametrize("wrong", [lambda _: 1 / 0, lambda _: "no provider", lambda _: [object()]])
async def test_a_resolver_that_fails_is_answered_without_details(
    wrong: Callable[[Request], object], caplog: pytest.LogCaptureFixture
) -> None:
    async with http_of(RequestProviders(refusing, wrong)) as http:
        answer = await http.post("/mcp", json=OPENING)
    assert answer.status_code == 500
    assert answer.json()["error"]["data"]["code"] == "execution_failed"
    assert "division" not in answer.text
    assert "cannot resolve the providers" in caplog.text


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the app was asked")


async def test_a_resolver_may_reject_an_unknown_caller() -> None:
    async def resolve(request: Request) -> None:
        raise NotAuthenticated("Who are you?")

    async with http_of(RequestProviders(refusing, resolve)) as http:
        answer = await http.post("/mcp", json=OPENING)
    assert (answer.status_code, answer.json()["error"]["message"]) == (401, "Who are you?")


@pytest.mark.parametrize("leave", [lambda _: sys.exit(3), lambda _: anyio.to_thread.run_sync(sys.exit)])
async def test_a_resolver_that_calls_sys_exit_fails_only_its_request(leave: Callable[..., object]) -> None:
    async with http_of(RequestProviders(refusing, leave)) as http:
        assert (await http.post("/mcp", json=OPENING)).status_code == 500


# -- providers that depend on the caller -------------------------------------------------------------------------------


def of_caller(caller: Caller, request: Request) -> Own:
    return Own(native(f"of_{caller.id}"), native(f"by_{request.headers.get('x-user', 'nobody')}"))


async def test_a_caller_resolver_receives_the_authenticated_caller() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
            async with app.running(), http_of(CallerProviders(app, of_caller)) as http:
                for user, secret in (("ann", "s3cret-a"), ("bob", "s3cret-b")):
                    headers = {**token(secret), "x-user": user}
                    session = {**headers, **await opened(http, headers)}
                    assert await listed(http, session) == [*META, f"by_{user}", f"of_{user}"]


async def test_without_authentication_the_caller_is_the_local_one() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}), anywhere=True)
            within = [Middleware(CallerProviders, resolve=of_caller)]
            host = Starlette(routes=[Mount("/", app=app)], middleware=within)
            async with app.running(), http_of(host) as http:
                assert await listed(http, await opened(http)) == [*META, "by_nobody", "of_local"]


async def test_no_resolver_runs_for_rejected_requests_or_other_paths() -> None:
    asked: list[str] = []

    def resolve(caller: Caller, request: Request) -> None:
        asked.append(caller.id)

    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
            async with app.running(), http_of(CallerProviders(app, resolve)) as http:
                assert (await http.post("/mcp", json=OPENING)).status_code == 401
                assert (await http.post("/mcp", headers=token("wrong"), json=OPENING)).status_code == 401
                assert (await http.get("/healthz")).status_code == 200
                assert (await http.get("/elsewhere", headers=token("s3cret-a"))).status_code == 404
                assert asked == []
                await opened(http, token("s3cret-a"))
    assert set(asked) == {"ann"}


async def test_both_kinds_of_middleware_accumulate_and_override_on_request() -> None:
    with anyio.fail_after(10):
        async with crib(native("shared")) as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            inner = CallerProviders(app, lambda *_: Own(native("shared", description="mine")), override=True)
            outer = CallerProviders(
                RequestProviders(inner, lambda _: Own(native("plain"))), lambda *_: Own(native("x"))
            )
            async with app.running(), http_of(outer) as http:
                session = await opened(http)
                body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
                answer = await http.post("/mcp", headers=session, json=body)
    tools = {tool["name"]: tool.get("description") for tool in answer.json()["result"]["tools"]}
    assert {"plain", "x"} <= tools.keys()
    assert tools["shared"] == "mine"


@pytest.mark.parametrize("kind", [RequestProviders, CallerProviders])
async def test_of_two_middlewares_the_outer_one_takes_precedence(kind: Any) -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            inner = kind(app, lambda *_: Own(native("twice", description="inner")))
            outer = kind(inner, lambda *_: Own(native("twice", description="outer")))
            async with app.running(), http_of(outer) as http:
                session = await opened(http)
                body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
                tools = (await http.post("/mcp", headers=session, json=body)).json()["result"]["tools"]
    assert [tool["description"] for tool in tools if tool["name"] == "twice"] == ["outer"]


@pytest.mark.parametrize(
    ("error", "status"), [(NotAuthenticated("Who are you?"), 401), (ValueError("secret"), 500), (SystemExit(3), 500)]
)
async def test_a_resolver_for_callers_that_fails_is_answered_without_details(error: BaseException, status: int) -> None:
    def resolve(caller: Caller, request: Request) -> None:
        raise error

    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            async with app.running(), http_of(CallerProviders(app, resolve)) as http:
                answer = await http.post("/mcp", json=OPENING)
    assert answer.status_code == status
    assert "secret" not in answer.text


async def test_middleware_of_a_host_app_reaches_the_mounted_one() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}), anywhere=True)
            host = Starlette(routes=[Mount("/", app=app)], middleware=[Middleware(RequestProviders, resolve=of_user)])
            async with app.running(), http_of(host) as http:
                session = await opened(http)
                assert await listed(http, {**session, "x-user": "ann"}) == [*META, "of_ann"]


def surrounding(app: ASGIApp, around: Callable[[], Any]) -> ASGIApp:
    async def surrounded(scope: Scope, receive: Receive, send: Send) -> None:
        with around():
            await app(scope, receive, send)

    return surrounded


async def test_request_scope_around_the_app_reaches_a_session_in_another_task() -> None:
    users = iter(["ann", "bob"])

    @contextmanager
    def next_user() -> Iterator[None]:
        with with_tool_providers(Own(native(f"of_{next(users)}"))):
            yield

    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            async with app.running(), http_of(app) as plain:
                session = await opened(plain)
                async with http_of(surrounding(app, next_user)) as http:
                    assert await listed(http, session) == [*META, "of_ann"]
                    assert await listed(http, session) == [*META, "of_bob"]
                assert await listed(plain, session) == META
                async with http_of(surrounding(app, with_show_all)) as http:
                    assert await listed(http, session) == ["x__echo"]


async def test_the_request_scope_of_the_handshake_does_not_stay_with_the_session() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            async with app.running(), http_of(app) as plain:
                with with_tool_providers(Own(native("of_ann"))), with_show_all():
                    session = await opened(plain)
                    assert await listed(plain, session) == ["of_ann", "x__echo"]
                assert await listed(plain, session) == META


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_request_scope_around_an_in_memory_server_applies_at_request_time(mode: Any) -> None:
    with anyio.fail_after(10):
        async with crib() as served, mcp.Client(served.server, mode=mode) as client:
            assert await names(client) == META
            with with_tool_providers(Own(native("mine"))):
                assert await names(client) == [*META, "mine"]
                result = await client.call_tool("mine", {})
                assert text_of(result) == "mine of local"
            assert await names(client) == META


@pytest.mark.parametrize(
    ("headers", "query", "shown"),
    [
        ({}, "", False),
        ({"x-mcp-show-all": "TRUE"}, "", True),
        ({"x-mcp-show-all": "1"}, "", False),
        ({}, "?show_all=true", True),
        ({"x-mcp-show-all": "false"}, "?show_all=true", False),
        ({"x-mcp-show-all": "true"}, "?show_all=false", True),
    ],
)
async def test_the_show_all_header_takes_precedence_over_the_query(
    headers: dict[str, str], query: str, shown: bool
) -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            async with app.running(), http_of(app, **headers) as http:
                session = await opened(http)
                body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
                answer = await http.post(f"/mcp{query}", headers=session, json=body)
                tools = [tool["name"] for tool in answer.json()["result"]["tools"]]
    assert tools == (["x__echo"] if shown else META)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_without_headers_can_ask_for_all_tools_in_meta(mode: Any) -> None:
    with anyio.fail_after(10):
        async with crib() as served, mcp.Client(served.server, mode=mode) as client:
            all_of_them = await client.list_tools(meta={"toolcrib/showAll": True}, cache_mode="bypass")  # type: ignore[arg-type]  # a key of ours
            assert [tool.name for tool in all_of_them.tools] == ["x__echo"]
            some = await client.list_tools(meta={"toolcrib/showAll": "true"}, cache_mode="bypass")  # type: ignore[arg-type]  # as above
            assert [tool.name for tool in some.tools] == META


async def test_clients_do_not_cache_a_list_with_request_tools() -> None:
    with anyio.fail_after(10):
        async with crib() as served, mcp.Client(served.server, mode="2026-07-28") as client:
            assert (await client.list_tools(cache_mode="bypass")).ttl_ms == 5000
            with with_tool_providers(Own(native("mine"))):
                assert (await client.list_tools(cache_mode="bypass")).ttl_ms == 0


def found(result: Any) -> list[tuple[str, float]]:
    return [(hit["name"], hit["score"]) for hit in result.structured_content["hits"]]


async def test_calls_of_an_anonymous_user_do_not_affect_searches_of_the_next() -> None:
    tools = [Tool(name=name, namespace="crm", description="Handle customer records") for name in ("alpha", "beta")]
    with anyio.fail_after(10):
        async with crib() as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            own = RequestProviders(app, lambda _: Own(*tools))
            async with hosted(own) as url, client_at(f"{url}/mcp", "2026-07-28") as client:
                search = {"query": "customer records"}
                before = found(await client.call_tool("tool_search", search))
                for _ in range(3):
                    assert not (await client.call_tool("execute_tool", {"name": "crm:beta"})).is_error
                assert found(await client.call_tool("tool_search", search)) == before
            async with mcp.Client(served.server) as client:
                with with_tool_providers(Own(*tools)):
                    await client.call_tool("execute_tool", {"name": "crm:beta"})
                    after = found(await client.call_tool("tool_search", search))
    assert dict(after)["crm:beta"] > dict(before)["crm:beta"], "a client in memory has an identity"


@pytest.mark.parametrize("make", [App.asgi_mount, App.sse_mount])
async def test_an_app_mounted_while_it_runs_answers_the_first_request(make: Callable[[App], AsgiApp]) -> None:
    async with App() as app:
        mount = make(app)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=mount), base_url="http://localhost") as http:
            with anyio.fail_after(5):
                assert (await http.get("/readyz")).status_code == 200
