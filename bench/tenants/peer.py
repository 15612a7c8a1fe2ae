"""`fastmcp` with tenants, by its own means: a provider that lists the caller's tools, and its search over the list."""

from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

from catalog import own, shared
from fastmcp import FastMCP
from fastmcp.server.providers.base import Provider
from fastmcp.server.transforms.search.bm25 import BM25SearchTransform
from fastmcp.tools.base import Tool

import toolcrib.types

asking: ContextVar[int | None] = ContextVar("asking", default=None)
"""The tenant of the request; a server reads it from the token."""


def converted(tools: Sequence[toolcrib.types.Tool]) -> list[Tool]:
    """Our made-up tools as fastmcp's."""
    return [
        Tool(name=f"{one.namespace}__{one.name}", description=one.description, parameters=dict(one.input_schema))
        for one in tools
    ]


@cache
def kept(tenant: int) -> list[Tool]:
    """A tenant's tools, made once."""
    return converted(own(tenant))


class Tenants(Provider):
    """The shared tools, and those of the caller."""

    def __init__(self, tools: int) -> None:
        super().__init__()
        self._shared = converted(shared(tools))

    async def _list_tools(self) -> Sequence[Tool]:
        tenant = asking.get()
        return self._shared if tenant is None else [*self._shared, *kept(tenant)]


def server(tools: int) -> FastMCP[Any]:
    """A server with tenants and a search."""
    made: FastMCP[Any] = FastMCP("peer", providers=[Tenants(tools)])
    made.add_transform(BM25SearchTransform(max_results=10))
    return made


async def search(made: FastMCP[Any], tenant: int | None, query: str) -> Any:
    """What a tenant's model gets for a query."""
    token = asking.set(tenant)
    try:
        return await made.call_tool("search_tools", {"query": query})
    finally:
        asking.reset(token)
