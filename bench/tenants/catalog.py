"""Made-up tools: shared ones, and those of each tenant."""

from collections.abc import Sequence
from typing import Any

from toolcrib.types import Context, Tool

OWN = 20
"""Tools of a tenant."""
QUERIES = (
    "create an invoice for a customer",
    "find the order of last week",
    "send a message about a shipment",
    "delete old backups",
)
VERBS = ("create", "list", "delete", "update", "find", "send", "archive", "restore", "export", "import")
NOUNS = ("issue", "invoice", "message", "folder", "sensor", "booking", "photo", "ticket", "branch", "report", "order")
PLACES = ("office", "warehouse", "shop", "laboratory", "garage", "library", "factory")


def tool(namespace: str, number: int, place: str) -> Tool:
    """One tool, made again on each call."""
    verb, noun = VERBS[number % len(VERBS)], NOUNS[number // len(VERBS) % len(NOUNS)]
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": f"What the {noun} says."},
            "limit": {"type": "integer", "default": 10},
        },
        "required": ["text"],
    }
    about = f"{verb.title()} a {noun} in the {place}, and tell who did it and when."
    return Tool(name=f"{verb}_{noun}_{number}", namespace=namespace, description=about, input_schema=schema)


def shared(count: int) -> list[Tool]:
    """The shared tools, of fifty servers."""
    return [tool(f"server{number % 50}", number, PLACES[number % len(PLACES)]) for number in range(count)]


def own(tenant: int) -> list[Tool]:
    """A tenant's tool, with a word of its own."""
    return [tool("own", 7 * number, f"house of tenant{tenant}") for number in range(OWN)]


class Made:
    """A tenant's provider, which makes its tools again for each request."""

    def __init__(self, tenant: int) -> None:
        self.tenant = tenant
        self.name = f"tenant{tenant}"

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        return own(self.tenant)

    async def call_tool(self, ctx: Context, name: str, arguments: Any) -> str:  # noqa: ARG002 - the protocol's signature
        """Never asked here."""
        return name


class Kept(Made):
    """The same, but it keeps its tools."""

    def __init__(self, tenant: int) -> None:
        super().__init__(tenant)
        self._tools = own(tenant)

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        return self._tools
