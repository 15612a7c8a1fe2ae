"""Local functions and two MCP servers in one registry: one server in this process, one in its own."""

import sys
from pathlib import Path

import anyio
from fastmcp import FastMCP
from mcp import StdioServerParameters

from toolcrib.registry import BackendConfig, Config, Registry
from toolcrib.types import Object, ServerInfo

notes = FastMCP("notes")


@notes.tool
def write_note(text: str) -> str:
    """Write a note."""
    return f"noted: {text}"


def echo(arguments: Object) -> Object:
    """A handler whose schema is written out below."""
    return {"echo": arguments["message"]}


registry = Registry(Config(server_info=ServerInfo(name="my-mcp", version="1.0.0")))
registry.register_local_func(
    "echo",
    "Echoes back input",
    {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
    echo,
    namespace="utility",
    tags=("echo", "debug"),
)


@registry.tool(namespace="math")
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


clock = StdioServerParameters(command=sys.executable, args=[str(Path(__file__).with_name("backend.py"))])
registry.register_mcp(BackendConfig(name="notes", transport=notes))
registry.register_mcp(BackendConfig(name="clock", transport=clock, max_retries=3, retry_interval=1.0))
# One behind a URL: BackendConfig(name="...", url="https://...", headers={"Authorization": "Bearer ..."})


async def main() -> None:
    """Find and run tools in the same way, wherever they are."""
    async with registry:
        await registry.app.settled()  # starting waits five seconds, then continues without slow servers
        print([tool.id for tool in await registry.list_all()])
        print((await registry.search("what time will it be in five hours")).hits[0].tool.id)
        print(await registry.execute("utility:echo", {"message": "hi"}))
        print(await registry.execute("math:add", {"a": 1, "b": 2}))
        print(await registry.execute("notes:write_note", {"text": "milk"}))
        print(await registry.execute("clock:add_hours", {"time": "21:30", "hours": 5}))


if __name__ == "__main__":
    anyio.run(main)
