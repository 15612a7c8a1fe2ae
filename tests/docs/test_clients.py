"""The page about the files of clients has what the table in the code has."""

from pathlib import Path

from toolcrib.settings.clients import CLIENTS, ClientApp, ClientFile
from toolcrib.settings.document import dotted
from toolcrib.settings.entries import ALIASES, TIMEOUTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "clients.md"
LIMITS = {"start": "to start", "list": "to list the tools", "call": "a call"}


SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}


def place(file: ClientFile) -> str:
    everywhere = len(file.platforms) == len(SYSTEMS)
    return f"`{file.path}`" + ("" if everywhere else f" ({', '.join(SYSTEMS[name] for name in file.platforms)})")


def row(client: ClientApp) -> str:
    """The row of a client in the page's table."""
    users = "<br>".join(place(file) for file in client.files if file.scope != "project")
    projects = "<br>".join(place(file) for file in client.files if file.scope == "project")
    servers = f"`{dotted(client.servers)}`" + (" (a list)" if client.as_list else "")
    timeout = ""
    if client.timeout is not None:
        option, unit = client.timeout
        timeout = f"{LIMITS[option]}, {'s' if unit == 1 else 'ms'}"
    return f"| {client.title} | `{client.id}` | {users} | {projects} | {servers} | {timeout} |"


def note(client: ClientApp) -> str:
    return f"- {client.title}: {client.note}."


def test_the_page_lists_every_client_as_the_code_knows_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    wanted = [row(client) for client in CLIENTS] + [note(client) for client in CLIENTS if client.note]
    assert [line for line in wanted if line not in text.splitlines()] == []


def test_the_page_names_every_key_that_is_mapped() -> None:
    text = PAGE.read_text(encoding="utf-8").replace("-", "_").lower()
    keys = [*ALIASES, *TIMEOUTS]
    assert [key for key in keys if f"`{key}`" not in text and f"`{key.replace('_', '')}`" not in text] == []
