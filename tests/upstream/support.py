"""Shared helpers: fleets with short timeouts, misbehaving servers, and ways to wait for them."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState as WebState

from toolcrib.types import Caller, Context, ServerState, ToolResult
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.remote_server import RemoteServer

SERVERS = Path(__file__).parent.parent / "fixtures" / "servers"
MARK = "TOOLCRIB_TEST_RUN"
"""A variable that every process started by these tests has."""
CTX = Context(caller=Caller(id="tester"))
READY = ServerState.READY
FAST = FleetOptions(
    probe_timeout_s=0.4,
    resend_s=0.1,
    backoff_first_s=0.02,
    backoff_max_s=0.1,
    stable_s=0.0,
    debounce_s=0.01,
    refresh_gap_s=0.01,
    listen_retry_s=0.05,
    exit_grace_s=0.2,
    term_grace_s=0.2,
)


def raw(name: str = "raw", /, *, options: dict[str, Any] | None = None, **spec: Any) -> ServerOptions:
    """The hand-written server, behaving as in `spec`; `options` go into the `ServerOptions`."""
    program = ("-I", "-S", str(SERVERS / "raw.py"), json.dumps(spec))
    given = options or {}
    env = {MARK: str(os.getpid()), **given.pop("env", {})}
    return ServerOptions(name=name, command=sys.executable, args=program, env=env, **given)


def sdk(name: str = "sdk", /, **options: Any) -> ServerOptions:
    """The server on the official SDK."""
    args = (str(SERVERS / "sdk.py"),)
    return ServerOptions(name=name, command=sys.executable, args=args, env={MARK: str(os.getpid())}, **options)


@asynccontextmanager
async def fleet_of(*servers: ServerOptions, options: FleetOptions = FAST, limit_s: float = 20) -> AsyncIterator[Fleet]:
    """A fleet of these, settled; all within the limit."""
    with anyio.fail_after(limit_s):
        async with Fleet(options) as fleet:
            await fleet.apply(servers)
            await fleet.settled()
            yield fleet


@asynccontextmanager
async def server_of(
    given: ServerOptions, options: FleetOptions = FAST, limit_s: float = 20
) -> AsyncIterator[RemoteServer]:
    """The one server of a fleet, settled."""
    async with fleet_of(given, options=options, limit_s=limit_s) as fleet:
        yield fleet.server(given.name)


async def until(source: Fleet | RemoteServer, condition: Callable[[], bool]) -> None:
    """Wait for the condition, checked after each change of status."""
    changed = anyio.Event()

    def ring() -> None:
        changed.set()

    unsubscribe = source.subscribe(ring)
    try:
        while not condition():
            await changed.wait()
            changed = anyio.Event()
    finally:
        unsubscribe()


async def call(server: RemoteServer, name: str, ctx: Context = CTX, /, **arguments: Any) -> ToolResult:
    """Return the result of an existing tool."""
    result = await server.call_tool(ctx, name, arguments)
    assert result is not None
    return result


async def call_each(server: RemoteServer, numbers: range) -> None:
    """Call `echo` with each number as `n`, all at once."""

    async def call_one(number: int) -> None:
        await call(server, "echo", n=number)

    async with anyio.create_task_group() as group:
        for number in numbers:
            group.start_soon(call_one, number)


async def call_json(server: RemoteServer, name: str, ctx: Context = CTX, /, **arguments: Any) -> Any:
    """Call a tool, and parse the only text block of its result."""
    result = await call(server, name, ctx, **arguments)
    return json.loads(result.content[0]["text"])


def names(server: RemoteServer) -> list[str]:
    """The names of its tools."""
    return [tool.name for tool in server.tools]


def alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def left_over() -> list[int]:
    """The processes that these tests started and that still run."""
    mark = f"{MARK}={os.getpid()}".encode()
    processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [int(entry.name) for entry in processes if _has_mark(entry, mark) and alive(int(entry.name))]


def _has_mark(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serving(app: Starlette, port: int = 0) -> AsyncIterator[str]:
    """The app on a loopback port; yields its address. It ends at once, like a process that is killed."""
    config = uvicorn.Config(app, log_level="critical", lifespan="off")
    config.load()
    state = WebState()

    def protocol() -> asyncio.Protocol:
        return H11Protocol(config=config, server_state=state, app_state={})

    async with app.router.lifespan_context(app):
        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in tuple(state.tasks):
                task.cancel()
            with anyio.CancelScope(shield=True):
                # A connection that was just accepted gets its transport a few turns of the loop later.
                for _ in range(5):
                    for connection in tuple(state.connections):
                        connection.transport.abort()
                    await anyio.lowlevel.checkpoint()
