"""The demo's agent: the official SDK client, in front of our own server, and what it costs in tokens."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anyio
from mcp import Client

from toolcrib.app import App
from toolcrib.errors import ExecutionFailed, MissingExtra
from toolcrib.tokens import ESTIMATE, LabelledCounter, counter

_ANSWER_S = 60.0


def tokens() -> LabelledCounter:
    """Exact counts where their library is installed, else an estimate; its label says which."""
    try:
        return counter("o200k_base")
    except MissingExtra:
        return counter(ESTIMATE)


def compact(value: Any) -> str:
    """JSON as it goes into a model's context."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back from a call."""

    text: str
    structured: Any
    is_error: bool


@contextlib.asynccontextmanager
async def connected(app: App) -> AsyncIterator["Agent"]:
    """An agent whose only way to tools is our own MCP server."""
    async with Client(app.server) as client:
        yield Agent(client)


@dataclass(frozen=True, slots=True)
class Agent:
    """What an agent can do: list tools, and call them."""

    client: Client

    async def definitions(self) -> list[dict[str, Any]]:
        """Every tool the agent is shown, as on the wire."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            found += [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def call(self, name: str, arguments: dict[str, Any]) -> Answer:
        """Call a tool. Raises `ExecutionFailed` when no answer comes."""
        try:
            with anyio.fail_after(_ANSWER_S):
                result = await self.client.call_tool(name, arguments)
        except TimeoutError:
            raise ExecutionFailed(f"{name} did not answer within {_ANSWER_S:.0f} seconds.") from None
        text = "\n".join(block.text for block in result.content if block.type == "text")
        return Answer(text=text, structured=result.structured_content, is_error=bool(result.is_error))
