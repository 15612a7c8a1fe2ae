"""toolcrib inside a FastAPI app: MCP at /mcp, the app's own routes beside it, and a FastMCP server behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP

from toolcrib import App

crib = App(name="shop")
orders = {"a1": "shipped"}


@crib.tool(namespace="orders", annotations={"readOnlyHint": True})
def order_status(order: str) -> str:
    """Return the status of an order."""
    return orders.get(order, "unknown")


# A server that you have already: one line, and its tools are searched with all others.
stock = FastMCP("stock")


@stock.tool
def count_stock(article: str) -> int:
    """Count the units of an article in stock."""
    return len(article)


crib.include(stock, "stock")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Run toolcrib while the web app runs."""
    async with crib:
        yield


web = FastAPI(lifespan=lifespan)


@web.get("/orders/{order}")
def show_order(order: str) -> dict[str, str]:
    """A route of the web app itself."""
    return {"order": order, "status": orders.get(order, "unknown")}


web.mount("/mcp", crib.asgi_mount())

if __name__ == "__main__":
    uvicorn.run(web, port=8000)
