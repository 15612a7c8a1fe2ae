"""Servers for the scripts of these tests, and sandboxes that a test file shares."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolcrib.sandbox import Limits, LuaSandbox, PythonSandbox, SandboxOptions
from toolcrib.sandbox.calls import Tools

QUICK = Limits(wall_s=20, stall_s=15, soft_cpu_s=0.4, cpu_s=1)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop per file, for the sandboxes below."""
    return "asyncio"


class Servers:
    """`calculator` and `slow`, with a record of their calls."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.arrived = asyncio.Event()
        self.expected = 1

    def tools(self) -> Tools:
        """server -> tool -> function."""
        return {
            "calculator": {"add": self._add, "multiply": self._multiply},
            "slow": {
                "echo": self._echo,
                "sleep": self._sleep,
                "fail": self._fail,
                "big": self._big,
                "fixture": self._fixture,
                "bigint": self._bigint,
            },
        }

    async def _add(self, arguments: dict[str, Any]) -> Any:
        self.started.append("add")
        return {"result": arguments["a"] + arguments["b"]}

    async def _multiply(self, arguments: dict[str, Any]) -> Any:
        return {"result": arguments["a"] * arguments["b"]}

    async def _echo(self, arguments: dict[str, Any]) -> Any:
        return arguments

    async def _sleep(self, arguments: dict[str, Any]) -> Any:
        self.started.append("sleep")
        if len(self.started) >= self.expected:
            self.arrived.set()
        try:
            await asyncio.sleep(arguments.get("s", 0.1))
        except asyncio.CancelledError:
            self.cancelled.append("sleep")
            raise
        return arguments.get("v")

    async def _fail(self, arguments: dict[str, Any]) -> Any:
        raise RuntimeError("boom")

    async def _big(self, arguments: dict[str, Any]) -> Any:
        return {"s": "z" * arguments["n"]}

    async def _fixture(self, arguments: dict[str, Any]) -> Any:
        return {"n": None, "e": [], "o": {}, "x": [1, None, 3]}

    async def _bigint(self, arguments: dict[str, Any]) -> Any:
        return {"v": 2**64}


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def tools(servers: Servers) -> Tools:
    return servers.tools()


@pytest.fixture(scope="module")
async def lua(anyio_backend: str) -> AsyncIterator[LuaSandbox]:
    async with LuaSandbox(limits=QUICK, options=SandboxOptions(workers=4)) as box:
        yield box


@pytest.fixture(scope="module")
async def python(anyio_backend: str) -> AsyncIterator[PythonSandbox]:
    async with PythonSandbox(limits=QUICK, options=SandboxOptions(workers=4)) as box:
        yield box


@pytest.fixture(scope="module", params=["lua", "python"])
async def box(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[LuaSandbox | PythonSandbox]:
    """Each engine in turn."""
    engine = LuaSandbox if request.param == "lua" else PythonSandbox
    async with engine(limits=QUICK, options=SandboxOptions(workers=4)) as sandbox:
        yield sandbox
