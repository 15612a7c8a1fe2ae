"""Three kinds of tools that clients find by search instead of in their list, and some that belong to each user."""

from collections.abc import Sequence
from dataclasses import dataclass

import uvicorn
from starlette.requests import Request

from toolcrib import App, Context, RequestProviders, Tool, new_tool
from toolcrib.fields import String
from toolcrib.types import Object

app = App(name="office")


# Functions: the schema comes from the signature, the description from the docstring.
@app.tool(namespace="database", keywords=("sql", "rows"), annotations={"readOnlyHint": True})
def run_query(sql: str, limit: int = 100) -> list[dict[str, str]]:
    """Run a SQL query and return its rows."""
    return [{"sql": sql, "limit": str(limit)}]


@app.tool(namespace="database", keywords=("schema", "columns"), annotations={"readOnlyHint": True})
def describe_table(table: str) -> dict[str, str]:
    """Show the columns of a database table."""
    return {"table": table, "columns": "id, name, created_at"}


@app.tool(namespace="documents", keywords=("pdf", "file"))
async def create_document(title: str, text: str = "") -> str:
    """Create a document with a title."""
    return f"{title}: {len(text)} characters"


@app.tool(namespace="documents")
async def find_document(words: str) -> list[str]:
    """Find documents by the words in them."""
    return [f"Notes about {words}"]


# The same with the schema written out; the handler takes the arguments by name.
async def send_email(to: str, subject: str) -> str:
    """Pretend to send."""
    return f"sent {subject!r} to {to}"


app.register(
    new_tool(
        "send_email",
        "Send an email to a recipient",
        String("to", "Recipient email", required=True),
        String("subject", "Email subject", required=True),
    ).discoverable("email", "communication", "smtp"),
    send_email,
)


@dataclass
class Bookmarks:
    """A provider: the tools of one user, listed with each of their requests."""

    user: str

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """One tool; the description is the user's own."""
        return (Tool(name="open_bookmark", description=f"Open one of {self.user}'s bookmarks by its label."),)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str | None:
        """Run it; None means that there is no such tool."""
        return f"{self.user}'s bookmark" if name == "open_bookmark" else None


def bookmarks_of(request: Request) -> Bookmarks | None:
    """The provider for a request; a request without a user brings none."""
    user = request.headers.get("x-user")
    return Bookmarks(user) if user else None


mount = app.asgi()
http = RequestProviders(mount, bookmarks_of)  # ASGI middleware; the lifespan below passes through it

if __name__ == "__main__":
    uvicorn.run(http, port=8000)
