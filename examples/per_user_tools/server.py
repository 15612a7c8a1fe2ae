"""Each user sees the tools of their role; tokens identify the users."""

from collections.abc import Sequence
from dataclasses import dataclass

import uvicorn
from starlette.requests import Request

from toolcrib import App, Caller, CallerProviders, Context, StaticTokens, Tool, ToolProvider, Visibility
from toolcrib.options import Token
from toolcrib.providers.wrappers import ForCaller
from toolcrib.types import Object

TOKENS = StaticTokens(
    [
        Token(secret="anns-token", caller="ann", tenant="acme", scopes=frozenset({"admin"})),
        Token(secret="bobs-token", caller="bob", tenant="acme"),
    ]
)
"""In earnest they come from the settings, which read them from the environment."""

PROFILE = Tool(name="get_profile", description="Get your own profile.", visibility=Visibility.NATIVE)
SETTINGS = Tool(name="advanced_settings", description="Change advanced options.", keywords=("config", "preferences"))
PANEL = Tool(name="admin_panel", description="Look after the users.", visibility=Visibility.NATIVE)


@dataclass(frozen=True)
class UserTools:
    """The tools of one user, made for one request."""

    user: Caller

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """Two for everyone, one of which is found by search; one more for admins."""
        return (PROFILE, SETTINGS, PANEL) if "admin" in self.user.scopes else (PROFILE, SETTINGS)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str | None:
        """Only tools that are listed for this user are ever called."""
        return f"{name} of {self.user.id}"


async def tools_of(user: Caller, _: Request) -> ToolProvider:
    """The provider of the user who sends this request."""
    return ForCaller(UserTools(user), user.id, tenant=user.tenant)


app = App(name="per-user", authenticator=TOKENS)


@app.tool(visibility=Visibility.NATIVE)
def ping() -> str:
    """Answer at once; every user has this tool."""
    return "pong"


mount = app.asgi()
http = CallerProviders(mount, tools_of)

if __name__ == "__main__":
    uvicorn.run(http, port=8000)
