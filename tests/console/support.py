"""A gateway with a console, and a browser without a window or a network."""

import re
from typing import Any

import httpx2

from toolcrib.app import App
from toolcrib.options import ConsoleOptions, HttpOptions, Token
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.types import Authenticator, Policy, Tool

ADDRESS = "127.0.0.1:8321"
PERSON = "person-0123456789abcdef"
AGENT = "agent-0123456789abcdef"
TOKENS = (
    Token(secret=PERSON, caller="ann", tenant="acme", scopes=frozenset({"console", "read"})),
    Token(secret=AGENT, caller="bot", tenant="acme", scopes=frozenset({"read"})),
)


def console_app(
    *tools: Tool,
    tokens: tuple[Token, ...] = (),
    policy: Policy | None = None,
    authenticator: Authenticator | None = None,
    http: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    state: StateStore | None = None,
    **console: Any,
) -> App:
    """An app with a console; without an address of its own it is not served, only asked."""
    own = Settings(
        console=ConsoleOptions(**{"address": ADDRESS, **console}),
        http=HttpOptions(**{"tokens": tokens, **(http or {})}),
        policy=policy,
        **(settings or {}),
    )
    app = App(own, authenticator=authenticator, state=state)
    for tool in tools:
        app.register(tool, lambda **arguments: arguments)
    return app


class Browser(httpx2.AsyncClient):
    """Keeps cookies, and sends the forms of a page with the proof that the page has."""

    def __init__(self, app: App, *, mount: str = "", peer: str = "127.0.0.1", **more: Any) -> None:
        transport = httpx2.ASGITransport(app=app.console, root_path=mount, client=(peer, 1))
        super().__init__(transport=transport, base_url=f"http://{ADDRESS}", **more)
        self.csrf = ""

    async def load(self, path: str) -> str:
        """The text of a page, which must be there."""
        response = await self.get(path)
        assert response.status_code == 200, (response.status_code, response.text)
        self.remember(response.text)
        return response.text

    def remember(self, text: str) -> None:
        found = re.search(r'data-csrf="([^"]+)"', text)
        self.csrf = found[1] if found else self.csrf

    async def submit(self, path: str, **fields: str) -> httpx2.Response:
        """Send a form of a page that was loaded before."""
        return await self.post(path, data={"csrf": self.csrf, **fields})

    async def sign_in(self, token: str = PERSON) -> None:
        response = await self.post("/sign-in", data={"token": token})
        assert response.status_code == 303, response.text
        await self.load("/")


def words(page: str) -> str:
    """The text of a page, without markup and repeated white space."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.partition("<main")[2]))
