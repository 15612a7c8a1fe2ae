"""OAuth clients of others log in at an authorization server and use a gateway that accepts its tokens.

The conformance suite judges OAuth clients, and authorization servers; it has nothing for a resource server. Its own
client is that of the TypeScript SDK, which is used here, in both versions. Version 1 answers a call that lacks a scope
by refreshing its token, so only version 2 is asked for more scopes.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from fastmcp import Client as FastMCPClient
from fastmcp.client.auth import OAuth
from mcp.client.auth import AuthorizationCodeResult
from tests.conformance.suite import ENVIRONMENT, install
from tests.server.test_oauth_login import JwtIssuer, Person, gateway
from tests.upstream.support import serving

from toolcrib import Action, ByScopes, Rule

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).with_name("oauth_client.mjs")
WHOAMI = {"name": "whoami"}
NEEDS_RUN = ByScopes([Rule(action=Action.SEE), Rule(tools=("whoami",), action=Action.CALL, scopes=("run",))])


class Headless(OAuth):
    """FastMCP's OAuth client, with a person in place of a browser and of a port to which it comes back."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._person = Person()

    async def redirect_handler(self, authorization_url: str) -> None:
        await self._person.visit(authorization_url)

    async def callback_handler(self) -> AuthorizationCodeResult:
        return await self._person.come_back()


@pytest.mark.filterwarnings("ignore:Using in-memory token storage")
@pytest.mark.parametrize(("mode", "speaks"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
async def test_the_client_of_fastmcp_logs_in_and_calls(mode: Any, speaks: str) -> None:
    issuer = JwtIssuer()
    with anyio.fail_after(30):
        async with serving(issuer.app) as login:
            issuer.issuer = login
            issuer.metadata = {"jwks_uri": f"{login}/keys"}
            async with gateway(login, scopes=("read",)) as url:
                async with FastMCPClient(url, auth=Headless(url), mode=mode) as client:
                    result = await client.call_tool("execute_tool", WHOAMI)
                    assert result.content[0].text == "ann with read"
                    assert client.session.protocol_version == speaks
        (asked,) = [form for path, form in issuer.requests if path == "/authorize"]
        assert asked["resource"] == url


@pytest.fixture(scope="session")
def node() -> Path:
    return install().node


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    ("version", "speaks", "policy"),
    [("1", "2025-11-25", None), ("2", "2026-07-28", None), ("2", "2026-07-28", NEEDS_RUN)],
    ids=["1", "2", "2, more scopes"],
)
async def test_the_client_of_the_typescript_sdk_logs_in_and_calls(
    node: Path, version: str, speaks: str, policy: ByScopes | None
) -> None:
    issuer = JwtIssuer()
    with anyio.fail_after(60):
        async with serving(issuer.app) as login:
            issuer.issuer = login
            issuer.metadata = {"jwks_uri": f"{login}/keys"}
            async with gateway(login, policy, scopes=("read",), step_up=policy is not None) as url:
                words = [str(node), str(PROGRAM), version, url, "execute_tool", json.dumps(WHOAMI)]
                ran = await anyio.run_process(words, cwd=ENVIRONMENT, check=False, stderr=subprocess.PIPE)
                assert ran.returncode == 0, ran.stderr.decode()
    said = json.loads(ran.stdout)
    more = [] if policy is None else [{"resource": url, "scope": "read run"}]
    assert said["text"] == ("ann with read" if policy is None else "ann with read run")
    assert said["speaks"] == speaks
    assert said["asked"] == [{"resource": url, "scope": "read"}, *more]
