"""The servers that the benchmarks start, each in its own process: `servers.py KIND [UPSTREAM_URL] [TOOLS]`.

Each prints its address on the first line of standard output, but for `stdio`.
"""

import asyncio
import json
import socket
import sys
from typing import Any

import uvicorn


def echo_server(tools: int) -> Any:
    """An SDK server with one tool that echoes, and others that are only there."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    names = ["echo", *(f"other_{number}" for number in range(tools - 1))]
    listed = [types.Tool(name=name, description=f"The tool {name}", input_schema=schema) for name in names]

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = (params.arguments or {})["text"]
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    return Server("upstream", on_list_tools=list_tools, on_call_tool=call_tool, get_tool_input_schema=lambda _: None)


def upstream(tools: int) -> Any:
    """The same over HTTP."""
    return echo_server(tools).streamable_http_app(json_response=True)


async def stdio(tools: int) -> None:
    """The same over stdio."""
    from mcp.server.stdio import stdio_server

    server = echo_server(tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def plain(tools: int) -> Any:
    """The same tools without the SDK, so that the server takes little of the machine: 2026-07-28 only, no checks."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    names = ["echo", *(f"other_{number}" for number in range(tools - 1))]
    listed = [{"name": name, "description": f"The tool {name}", "inputSchema": schema} for name in names]
    discovered = {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "upstream", "version": "1"},
        "ttlMs": 60_000,
        "cacheScope": "public",
        "resultType": "complete",
    }

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "tools/call":
            text = message["params"]["arguments"]["text"]
            return {"content": [{"type": "text", "text": text}], "resultType": "complete"}
        if message["method"] == "tools/list":
            return {"tools": listed, "ttlMs": 60_000, "cacheScope": "public", "resultType": "complete"}
        return discovered

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (event := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{event['type']}.complete"})
            return await send({"type": "lifespan.shutdown.complete"})
        body = b""
        while (event := await receive()) and event["type"] == "http.request":
            body += event["body"]
            if not event.get("more_body"):
                break
        message = json.loads(body) if body else {}
        if "id" not in message:
            await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
            return await send({"type": "http.response.body", "body": b""})
        reply = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(reply)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        return await send({"type": "http.response.body", "body": reply})

    return app


def fastmcp_default(url: str) -> Any:
    """The proxy as its documentation shows it."""
    from fastmcp.server import create_proxy

    return create_proxy(url).http_app(json_response=True, stateless_http=True)


async def fastmcp_connected(url: str, sock: socket.socket) -> None:
    """The proxy over one client that stays connected."""
    from fastmcp import Client
    from fastmcp.server import create_proxy

    async with Client(url) as client:
        app = create_proxy(client).http_app(json_response=True, stateless_http=True)
        await serve(app, sock)


async def serve(app: Any, sock: socket.socket) -> None:
    """Serve the app on a bound socket."""
    config = uvicorn.Config(app, log_level="error", access_log=False)
    await uvicorn.Server(config).serve(sockets=[sock])


async def main() -> None:
    """Bind, say where, serve."""
    kind, *rest = sys.argv[1:]
    if kind == "stdio":
        await stdio(int(rest[0]))
        return
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(512)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}/mcp", flush=True)
    if kind == "upstream":
        await serve(upstream(int(rest[0])), sock)
    elif kind == "plain":
        await serve(plain(int(rest[0])), sock)
    elif kind == "fastmcp-default":
        await serve(fastmcp_default(rest[0]), sock)
    else:
        await fastmcp_connected(rest[0], sock)


if __name__ == "__main__":
    asyncio.run(main())
