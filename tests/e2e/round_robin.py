"""A load balancer without stickiness: each request goes to the next gateway that accepts a connection."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import cycle

import aiohttp
from aiohttp import web

_DROPPED = ("transfer-encoding", "connection", "content-length", "keep-alive")


@contextlib.asynccontextmanager
async def round_robin(ports: Sequence[int]) -> AsyncIterator[str]:
    """Balance over these ports of this machine, and yield the address for clients."""
    turns = cycle(range(len(ports)))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            first = next(turns)
            for turn in range(len(ports)):
                port = ports[(first + turn) % len(ports)]
                try:
                    return await _pass_on(session, request, port, body)
                except aiohttp.ClientConnectorError:
                    continue
                except aiohttp.ClientError:
                    return web.json_response({"error": "the gateway ended during the request"}, status=502)
            return web.json_response({"error": "no gateway"}, status=503)

        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        finally:
            await runner.cleanup()


async def _pass_on(session: aiohttp.ClientSession, request: web.Request, port: int, body: bytes) -> web.StreamResponse:
    headers = {name: value for name, value in request.headers.items() if name.lower() not in (*_DROPPED, "host")}
    url = f"http://127.0.0.1:{port}{request.path_qs}"
    async with session.request(request.method, url, headers=headers, data=body or None) as response:
        kept = {name: value for name, value in response.headers.items() if name.lower() not in _DROPPED}
        answer = web.StreamResponse(status=response.status, headers=kept)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            content = await response.read()
            return web.Response(status=response.status, headers=kept, body=content)
        await answer.prepare(request)
        with contextlib.suppress(aiohttp.ClientError):
            async for part in response.content.iter_any():
                await answer.write(part)
        await answer.write_eof()
        return answer
