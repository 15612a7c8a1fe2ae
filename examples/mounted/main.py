"""toolcrib inside a FastAPI app: its own routes at /mcp, the app's beside them, a FastMCP server behind."""

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
    """Tell how far an order is."""
    return orders.get(order, "unknown")


# A server that you have already: one line, and its tools are searched with all others.
stock = FastMCP("stock")


@stock.tool
def count_stock(article: str) -> int:
    """Count how many of an article are left."""
    return len(article)


crib.include(stock, "stock")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """While the web app runs, so does toolcrib."""
    async with crib:
        yield


web = FastAPI(lifespan=lifespan)


@web.get("/orders/{order}")
def show_order(order: str) -> dict[str, str]:
    """A route of the web app's own."""
    return {"order": order, "status": orders.get(order, "unknown")}


web.mount("/mcp", crib.asgi_mount())

if __name__ == "__main__":
    uvicorn.run(web, port=8000)
