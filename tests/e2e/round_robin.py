"""A load balancer without stickiness: each request goes to the next gateway that accepts a connection."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import cycle

import anyio
import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.upstream.support import serving

_DROPPED = ("transfer-encoding", "connection", "content-length", "keep-alive")
_PATIENT = httpx2.Timeout(None, connect=2)


@contextlib.asynccontextmanager
async def round_robin(ports: Sequence[int]) -> AsyncIterator[str]:
    """Balance over these ports of this machine, and yield the address for clients."""
    turns = cycle(range(len(ports)))
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(limits=limits, timeout=_PATIENT, trust_env=False) as client:

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            body = await request.body()
            first = next(turns)
            for turn in range(len(ports)):
                port = ports[(first + turn) % len(ports)]
                try:
                    response = await _pass_on(client, request, port, body)
                except httpx2.ConnectError:
                    continue
                except httpx2.TransportError:
                    response = JSONResponse({"error": "the gateway ended during the request"}, status_code=502)
                await response(scope, receive, send)
                return
            await JSONResponse({"error": "no gateway"}, status_code=503)(scope, receive, send)

        async with serving(Starlette(routes=[Mount("", _until_disconnect(handle))])) as address:
            yield f"{address}/mcp"


def _until_disconnect(handle: ASGIApp) -> ASGIApp:
    """End a request when its client disconnects, also before its response has begun."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await Request(scope, receive).body()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        gone = anyio.Event()

        async def receive_again() -> dict[str, object]:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                gone.set()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            await handle(scope, receive_again, send)
            group.cancel_scope.cancel()

    return app


async def _pass_on(client: httpx2.AsyncClient, request: Request, port: int, body: bytes) -> Response:
    headers = [pair for pair in request.headers.items() if pair[0] not in (*_DROPPED, "host")]
    url = request.url.replace(scheme="http", hostname="127.0.0.1", port=port)
    asked = client.build_request(request.method, str(url), headers=headers, content=body or None)
    response = await client.send(asked, stream=True)
    kept = {name: value for name, value in response.headers.items() if name not in _DROPPED}
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return StreamingResponse(_parts(response), response.status_code, kept)
    try:
        content = b"".join([part async for part in response.aiter_raw()])
    finally:
        await response.aclose()
    return Response(content, response.status_code, kept)


async def _parts(response: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        with contextlib.suppress(httpx2.TransportError):
            async for part in response.aiter_raw():
                yield part
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()
