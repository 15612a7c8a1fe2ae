"""What the gateway itself adds, without any transport: a call, a search, a list; and the cost of an HTTP client."""

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import uvloop

import load
import processes
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, running
from toolcrib.types import Caller, Context, SearchRequest, Tool
from toolcrib.upstream.transports.http_client import DirectClient, HttpUrl, RequestHead

TOOLS = 5_000
VERBS = ("create", "list", "delete", "update", "search")
NOUNS = ("issue", "invoice", "message", "folder", "sensor", "booking", "photo", "ticket", "branch", "report")
ME = Context(caller=Caller(id="bench"))


async def each(name: str, times: int, work: Callable[[], Awaitable[Any]]) -> None:
    """Print the wall time of one round, in microseconds, after a warm-up."""
    await work()
    begun = time.perf_counter()
    for _ in range(times):
        await work()
    print(f"{name:52}{(time.perf_counter() - begun) / times * 1e6:9.0f} us")


async def layers() -> None:
    """The gateway over a provider that answers at once."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tools = [
        Tool(
            name=f"{VERBS[number % 5]}_{NOUNS[number // 5 % 10]}_{number}",
            namespace=f"server{number % 20}",
            description=f"{VERBS[number % 5]} a {NOUNS[number // 5 % 10]}",
            input_schema=schema,
        )
        for number in range(TOOLS)
    ]
    async with running(FakeSource(FakeProvider(tools))) as gateway:
        facade = make_facade(gateway, SurfaceOptions())
        name, wanted = tools[7].id, SearchRequest(queries=("create an invoice for a customer",))
        found = (await gateway.view(ME)).find(name)
        await each(f"gateway.find, of {TOOLS:,} tools", 2_000, lambda: gateway.find(ME, name))
        await each(
            "gateway.run: policy, arguments, schema, provider", 2_000, lambda: gateway.run(ME, found, {"text": "x"})
        )
        await each("gateway.search", 200, lambda: gateway.search(ME, wanted))
        await each("tools/list of the two meta-tools", 200, lambda: facade.page(ME))


async def clients(url: str) -> None:
    """One POST through httpx2's transport, and through our client: processor time of this process."""
    message = load.request(url, "echo", {"text": "x"})
    head, _, body = message.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    headers.pop("Content-Length", None)
    transport, client = httpx2.AsyncHTTPTransport(), DirectClient()
    asked = RequestHead.of("POST", HttpUrl.parse(url), headers.items())

    async def theirs() -> None:
        answer = await transport.handle_async_request(httpx2.Request("POST", url, headers=headers, content=body))
        await answer.aread()
        await answer.aclose()

    async def ours() -> None:
        answer = await client.send(asked, body, connect_s=5)
        await answer.aclose()

    for name, post in (("httpx2's transport", theirs), ("toolcrib's client", ours)):
        for times in (20, 500):
            used = cpu_s()
            for _ in range(times):
                await post()
        print(f"{'a POST through ' + name:52}{(cpu_s() - used) / times * 1e6:9.0f} us CPU")
    await transport.aclose()
    await client.aclose()


def cpu_s() -> float:
    """Processor time of this process so far, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory() -> None:
    """Resident memory of an interpreter that holds the SDK's server, and of one that holds all of toolcrib."""
    for name, module in (("the SDK's server", "mcp.server.lowlevel"), ("a gateway", "toolcrib.app")):
        program = f"import {module}; print(int(open('/proc/self/statm').read().split()[1]) * 4096 // 1_000_000)"
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
        print(f"{'memory after importing ' + name:52}{int(shown.stdout):9} MB")


def main() -> None:
    """Print every figure."""
    asyncio.run(layers())
    with processes.server(str(Path(__file__).parent / "servers.py"), "upstream", "50") as (url, _):
        uvloop.run(clients(url))  # as `serve --http` runs
    memory()


if __name__ == "__main__":
    main()
