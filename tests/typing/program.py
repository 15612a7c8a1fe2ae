"""A program as a user would write it: it type-checks and runs without casts or ignores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from toolcrib import (
    App,
    Caller,
    Context,
    SearchReply,
    Settings,
    SyncApp,
    Tool,
    ToolcribError,
    ToolNotFound,
    ToolResult,
    Visibility,
    new_tool,
)
from toolcrib.discovery import ToolSearchEngine
from toolcrib.errors import InvalidArguments
from toolcrib.fields import Integer, String
from toolcrib.options import SearchOptions, ServerOptions, SurfaceOptions


@dataclass
class Order:
    item: str
    count: int


class Orders:
    """A provider as a plain class."""

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return [Tool(name="cancel", namespace="orders", description=f"Cancel an order of {ctx.caller.id}.")]

    async def call_tool(self, ctx: Context, name: str, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(structured={"cancelled": name})


app = App(Settings(surfaces=SurfaceOptions(always_visible=("order",))), name="shop")


@app.tool(keywords=("purchase",), visibility=Visibility.NATIVE)
def order(item: str, count: int = 1) -> Order:
    """Order an item from the shop."""
    return Order(item, count)


def fetch(ctx: Context, key: str, limit: int) -> str:
    return f"{ctx.caller.id} {key} {limit}"


async def main() -> None:
    app.register(new_tool("fetch", "Fetch a row", String("key", required=True), Integer("limit", default=1)), fetch)
    app.add_provider(Orders())
    same: Order = order("pen")
    reply: SearchReply = await app.search("buy something", limit=3)
    signatures: list[str] = [hit.signature for hit in reply.hits]
    result: ToolResult = await app.call("order", {"item": same.item})
    caller = Context(caller=Caller(id="ann", scopes=frozenset({"read"})))
    try:
        await app.call("fetch", {"limit": "many"}, ctx=caller)
    except InvalidArguments as error:
        print(error.message, error.hint)
    except (ToolNotFound, ToolcribError) as error:
        print(error.code)
    engine = ToolSearchEngine()
    engine.set_tools([{"name": "mean", "description": "The arithmetic mean."}])
    names: list[str] = [found.name for found in engine.search("average")]
    server = ServerOptions(name="time", command="uvx", args=("mcp-server-time",))
    text: str = result.raise_for_error().text
    print(signatures, text, result.data, names, server.name, SearchOptions().scorer)


def script() -> None:
    with SyncApp(App()) as tools:

        @tools.app.tool
        def twice(n: int) -> int:
            return 2 * n

        found: list[str] = [hit.tool.id for hit in tools.search("twice")]
        answer: ToolResult = tools.call("twice", n=2)
        print(found, answer.text, twice(3), tools.describe("twice").name, len(tools.servers()))


if __name__ == "__main__":
    anyio.run(main)
    script()
