"""What is compared: two engines of toolcrib, one of them in two ways, and fastmcp's code mode, bare and as a server."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastmcp import Client, FastMCP
from fastmcp.experimental.transforms.code_mode import CodeMode, MontySandboxProvider
from mcp import Client as McpClient

from toolcrib import App, Settings
from toolcrib.sandbox import Limits, LuaSandbox, PythonSandbox, SandboxOptions
from toolcrib.surfaces.options import SurfaceOptions

WAIT_S = 0.1
LIMITS = Limits(inflight=100, calls=2000)
THEIR_LIMITS: Any = {"max_feed_duration_secs": 30.0, "max_memory": 100_000_000, "max_suspensions": 30_000}
"""Theirs by default, and enough calls for what is asked here."""

Run = Any
"""Runs a script and gives its value: async, of one text."""
LUA = {
    "none": "return 1",
    "one": "return calc.add{a = 1, b = 2}:await()",
    "twenty": "local s = 0 for _ = 1, 20 do s = calc.add{a = s, b = 1}:await() end return s",
    "sequence": "local s = 0 for _ = 1, 1000 do s = calc.add{a = s, b = 1}:await() end return s",
    "together": "local t = {} for i = 1, 100 do t[i] = calc.wait{} end return #await_all(t)",
    "held": "return calc.hold{}:await()",
}
PYTHON = {
    "none": "1",
    "one": "await calc.add(a=1, b=2)",
    "twenty": "s = 0\nfor _ in range(20):\n    s = await calc.add(a=s, b=1)\ns",
    "sequence": "s = 0\nfor _ in range(1000):\n    s = await calc.add(a=s, b=1)\ns",
    "together": "import asyncio\nlen(await asyncio.gather(*[calc.wait() for _ in range(100)]))",
    "held": "await calc.hold()",
}
THEIRS = {
    "none": "return 1",
    "one": "return await call_tool('add', {'a': 1, 'b': 2})",
    "twenty": "s = 0\nfor _ in range(20):\n    s = await call_tool('add', {'a': s, 'b': 1})\nreturn s",
    "sequence": "s = 0\nfor _ in range(1000):\n    s = await call_tool('add', {'a': s, 'b': 1})\nreturn s",
    "together": "import asyncio\nreturn len(await asyncio.gather(*[call_tool('wait', {}) for _ in range(100)]))",
    "held": "return await call_tool('hold', {})",
}
SERVED = {
    name: code.replace("{'a': s, 'b': 1})", "{'a': s, 'b': 1})\n    s = s['result']") for name, code in THEIRS.items()
}
"""Its server wraps a number in an object."""
_NUMBER = {"type": "integer"}
SCHEMAS: Mapping[str, Any] = {
    "add": {
        "type": "object",
        "properties": {"a": _NUMBER, "b": _NUMBER},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "wait": {"type": "object", "properties": {}},
    "hold": {"type": "object", "properties": {}},
}
"""As the server derives them from the functions: a Python script is checked against them before it runs."""
EXPECTED = {"none": 1, "one": 3, "twenty": 20, "sequence": 1000, "together": 100}


class Tools:
    """The tools that scripts call."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.let_go = asyncio.Event()

    async def add(self, arguments: dict[str, Any]) -> Any:
        """The sum, at once."""
        return arguments["a"] + arguments["b"]

    async def wait(self, arguments: dict[str, Any]) -> Any:  # noqa: ARG002 - a tool takes arguments
        """Wait a moment, like a remote server."""
        await asyncio.sleep(WAIT_S)
        return 1

    async def hold(self, arguments: dict[str, Any]) -> Any:  # noqa: ARG002 - as above
        """Wait until the benchmark has measured."""
        self.arrived.set()
        await self.let_go.wait()
        return 1

    def named(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        """The tools by name."""
        return {"add": self.add, "wait": self.wait, "hold": self.hold}

    def functions(self) -> Sequence[Callable[..., Any]]:
        """The tools as functions with parameters, for a server to register."""

        async def add(a: int, b: int) -> int:
            return int(await self.add({"a": a, "b": b}))

        async def wait() -> int:
            return int(await self.wait({}))

        async def hold() -> int:
            return int(await self.hold({}))

        return add, wait, hold


@dataclass(frozen=True)
class Subject:
    """One way to run a script."""

    name: str
    scripts: Mapping[str, str]
    open: Callable[[Tools], AbstractAsyncContextManager[Run]]


def _ours(engine: type[LuaSandbox | PythonSandbox], **options: Any) -> Callable[[Tools], Any]:
    @asynccontextmanager
    async def opened(tools: Tools) -> Any:
        async with engine(limits=LIMITS, options=SandboxOptions(**options)) as box:

            async def run(source: str) -> Any:
                return (await box.run(source, {"calc": tools.named()}, schemas={"calc": SCHEMAS})).value

            yield run

    return opened


def _served(language: str) -> Callable[[Tools], Any]:
    """Our server: its `execute` over an in-memory connection, with everything that a call goes through."""

    @asynccontextmanager
    async def opened(tools: Tools) -> Any:
        app = App(Settings(limits=LIMITS, surfaces=SurfaceOptions(surfaces=("progressive",))))

        for function in tools.functions():
            app.tool(namespace="calc")(function)
        async with app, McpClient(app.server, mode="2026-07-28") as client:

            async def run(source: str) -> Any:
                said = await client.call_tool("execute", {"script": source, "language": language})
                return json.loads(said.content[0].text)

            yield run

    return opened


@asynccontextmanager
async def _provider(tools: Tools) -> Any:
    engine, functions = MontySandboxProvider(limits=THEIR_LIMITS), tools.named()

    async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
        return await functions[name](arguments)

    async def run(source: str) -> Any:
        return await engine.run(source, external_functions={"call_tool": call_tool})

    yield run


@asynccontextmanager
async def _server(tools: Tools) -> Any:
    mode = CodeMode(sandbox_provider=MontySandboxProvider(limits=THEIR_LIMITS), max_tool_calls=None)
    server: Any = FastMCP("bench", transforms=[mode])

    for function in tools.functions():
        server.tool(function)
    async with Client(server) as client:

        async def run(source: str) -> Any:
            said = await client.call_tool("execute", {"code": source})
            return json.loads(said.content[0].text)

        yield run


SUBJECTS = (
    Subject("toolcrib, Lua, forked", LUA, _ours(LuaSandbox)),
    Subject("toolcrib, Lua, spawned", LUA, _ours(LuaSandbox, zygote=False)),
    Subject("toolcrib, Python", PYTHON, _ours(PythonSandbox)),
    Subject("toolcrib, Lua, server", LUA, _served("lua")),
    Subject("toolcrib, Python, server", PYTHON, _served("python")),
    Subject("fastmcp code mode, engine", THEIRS, _provider),
    Subject("fastmcp code mode, server", SERVED, _server),
)
