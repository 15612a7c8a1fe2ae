"""How much code one request touches: the modules and functions of toolcrib that run for it, in order, and all calls.

A gateway serves HTTP on a socket, as `toolcrib serve` does, in front of three servers: over HTTP, over stdio, and an
object of this process. A client calls tools of each over one connection, in both eras of the protocol. Each answer is
checked, and each figure is the least of several walks, because timers run beside some of them. Calls are those of any
function, in whatever library: unlike processor time, they are the same on a busy machine.

`--names` also prints the modules and functions, `--json` prints the figures for a program.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import anyio

import mcp_client
import processes
import toolcrib
from toolcrib import App, Settings
from toolcrib.options import ServerOptions, SurfaceOptions

ROOT = Path(toolcrib.__file__).parent
BENCH = str(Path(__file__).parent)
SERVERS = Path(__file__).parent / "servers.py"
NAMESPACES = ("http", "stdio", "memory")
WALKS = 5
AFTERWARDS_S = 0.05
"""How long what a call leaves to be done later may take."""
MARK = "found its way back"


@dataclass(frozen=True)
class Request:
    """A request of the client, and what its answer must hold."""

    title: str
    tool: str
    arguments: Mapping[str, Any]
    expected: str = MARK


def requests() -> Iterator[Request]:
    """Everything that is walked, but for the eras."""
    for namespace in NAMESPACES:
        call = {"name": f"{namespace}:echo", "arguments": {"text": MARK}}
        yield Request(f"execute_tool, {namespace} server", "execute_tool", call)
    yield Request("tool_search", "tool_search", {"query": "echo a text"}, expected="http:echo")
    for namespace in NAMESPACES:
        script = f'return {namespace}.echo{{text = "{MARK}"}}:await()'
        yield Request(f"script, {namespace} server", "execute", {"script": script})


class Walk:
    """Collect the toolcrib functions that are entered while it is active, in this thread and in new ones."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], None] = {}
        self.calls = 0

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        self.calls += event in ("call", "c_call") and not file.startswith(BENCH)
        if event == "call" and file.startswith(str(ROOT)) and not frame.f_code.co_name.startswith("<"):
            self.seen.setdefault((str(Path(file).relative_to(ROOT)), frame.f_code.co_qualname))

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it, which the stub does not say

    @property
    def counts(self) -> tuple[int, int, int]:
        """Modules, functions and calls."""
        return len({module for module, _ in self.seen}), len(self.seen), self.calls


@asynccontextmanager
async def gateway(http_url: str) -> AsyncIterator[str]:
    """A gateway in front of the three servers: the address at which this process serves it."""
    app = App(Settings(surfaces=SurfaceOptions(surfaces=("search", "progressive"))), name="walk")
    app.add_server(ServerOptions(name="http", url=http_url))
    app.add_server(ServerOptions(name="stdio", command=sys.executable, args=(str(SERVERS), "stdio", "3")))
    app.include(in_memory(), "memory")
    stop, address = anyio.Event(), asyncio.Future[str]()
    async with app, anyio.create_task_group() as group:
        await app.settled()
        group.start_soon(lambda: app.serve_http("127.0.0.1", 0, stop=stop, started=address.set_result))
        yield await address
        stop.set()


def in_memory() -> Any:
    """The server in this process."""
    from servers import echo_server

    return echo_server(3)


async def ask(client: mcp_client.Caller, request: Request) -> None:
    """Send the request. Raises `SystemExit` unless the answer is right."""
    answer = await client.call(request.tool, request.arguments)
    if answer.get("result", {}).get("isError", False) or request.expected not in (mcp_client.text_of(answer) or ""):
        raise SystemExit(f"{request.title} failed: {json.dumps(answer)}")


async def walk(client: mcp_client.Caller, request: Request) -> Walk:
    """The shortest of several walks, once everything is warm."""
    for _ in range(3):
        await ask(client, request)
    walks = []
    for _ in range(WALKS):
        with Walk() as steps:
            await ask(client, request)
            await asyncio.sleep(AFTERWARDS_S)
        walks.append(steps)
    return min(walks, key=lambda one: one.counts[1:])


async def walks() -> dict[str, Walk]:
    """A walk for each request in each era."""
    found: dict[str, Walk] = {}
    with processes.server(str(SERVERS), "upstream", "3") as (url, _):
        async with gateway(url) as address:
            for era, is_modern in ((mcp_client.MODERN, True), (mcp_client.OLDER, False)):
                client = mcp_client.Caller(address, modern=is_modern)
                for request in requests():
                    found[f"{request.title}, {era}"] = await walk(client, request)
                await client.delete()
                client.close()
    return found


def main() -> None:
    """Walk, and print what was counted."""
    logging.disable(logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print the modules and functions")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    with ExitStack() as stack:
        os.environ["XDG_STATE_HOME"] = stack.enter_context(tempfile.TemporaryDirectory())
        found = asyncio.run(walks())
    if given.json:
        print(json.dumps({title: steps.counts for title, steps in found.items()}))
        return
    for title, steps in found.items():
        modules, functions, calls = steps.counts
        print(f"{title:42}{modules:5} modules {functions:5} functions {calls:6} calls")
        for module, function in steps.seen if given.names else ():
            print(f"    {module:40} {function}")


if __name__ == "__main__":
    main()
