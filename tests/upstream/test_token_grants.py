"""Tokens for a server by assertions of the caller's identity provider (ID-JAG)."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response
from tests.fixtures.servers.authorization import Issuer
from tests.upstream.support import call, serving
from tests.upstream.test_logins import ANN, HERE, MAIN, World, world

from toolcrib.errors import InvalidRequest, ServerUnavailable
from toolcrib.types import ServerState
from toolcrib.upstream.options import IdentityProviderOptions, OAuthClientOptions

pytestmark = pytest.mark.anyio

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


class IdentityProvider(Issuer):
    """Gives an assertion `jag-of-TOKEN` for each token that is not refused."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = ID_JAG
        self.refused = ""
        self.reason = "not employed here"
        self.asked: list[dict[str, str]] = []
        self.before_token = self._exchange

    def _exchange(self, form: Mapping[str, str]) -> Response:
        self.asked.append(dict(form))
        if form["subject_token"] == self.refused:
            return JSONResponse({"error": "invalid_grant", "error_description": self.reason}, 400)
        given = f"jag-of-{form['subject_token']}"
        return JSONResponse({"issued_token_type": self.kind, "access_token": given, "token_type": "N_A"})


@asynccontextmanager
async def employer() -> AsyncIterator[tuple[World, IdentityProvider, dict[str, Any]]]:
    """A server whose authorization server takes assertions, the identity provider, and the settings of both."""
    provider = IdentityProvider()
    async with world() as it, serving(provider.app) as address:
        provider.issuer = address
        it.issuer.clients["main"] = replace(MAIN)

        def give(form: Mapping[str, str]) -> Response | None:
            if form["grant_type"] != JWT_BEARER:
                return None
            token = form["assertion"].replace("jag-of-", "granted-for-")
            it.issuer.accept(token, form["resource"])
            return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 3600})

        it.issuer.before_token = give
        vouching = IdentityProviderOptions(issuer=address, client_id="gateway", client_secret="secret at the provider")
        auth = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        yield it, provider, {"grant": "identity_assertion", "identity_provider": vouching, **auth}


async def test_a_callers_token_becomes_an_assertion_and_that_a_token_for_the_server() -> None:
    async with employer() as (it, provider, auth), it.connected(**auth) as (server, _):
        ann = replace(ANN, token="token-of-ann")
        for _ in range(2):
            assert not (await call(server, "whoami", ann)).is_error
        assert "granted-for-token-of-ann" in it.protected.seen
        assert "token-of-ann" not in it.protected.seen
        (asked,) = provider.asked
        assert asked["requested_token_type"] == ID_JAG
        assert (asked["subject_token"], asked["audience"]) == ("token-of-ann", it.issuer.issuer)
        assert asked["resource"] == it.protected.url
        assert asked["subject_token_type"].endswith(":access_token")
        assert "client_secret" not in asked  # it is in the header
        (granted,) = [form for _, form in it.issuer.requests if form.get("grant_type") == JWT_BEARER]
        assert granted["assertion"] == "jag-of-token-of-ann"
        assert "secret at the provider" not in str(it.issuer.requests)
        assert not [form for _, form in it.issuer.requests if "token-of-ann" in form.values()]


async def test_an_id_token_is_named_as_one_and_a_secret_can_be_posted() -> None:
    async with employer() as (it, provider, auth):
        auth["identity_provider"] = replace(
            auth["identity_provider"], subject="id_token", client_auth="client_secret_post"
        )
        async with it.connected(**auth, scopes=("read",)) as (server, _):
            await call(server, "whoami", replace(ANN, token="id-of-ann"))
        (asked,) = provider.asked
        assert asked["subject_token_type"].endswith(":id_token")
        assert (asked["client_id"], asked["client_secret"]) == ("gateway", "secret at the provider")
        assert asked["scope"] == "read"


async def test_a_person_that_the_provider_does_not_vouch_for_gets_nothing_and_the_reason() -> None:
    async with employer() as (it, provider, auth), it.connected(**auth) as (server, _):
        provider.refused = "token-of-eve"
        with pytest.raises(
            ServerUnavailable, match="refused an assertion: invalid_grant: not employed here"
        ) as refused:
            await server.call_tool(replace(ANN, token="token-of-eve"), "whoami", {})
        assert "token-of-eve" not in str(refused.value)
        provider.reason = "token-of-eve, of a client with secret at the provider"
        with pytest.raises(ServerUnavailable, match=r"invalid_grant: \*\*\*, of a client with \*\*\*"):
            await server.call_tool(replace(ANN, token="token-of-eve"), "whoami", {})
        with pytest.raises(ServerUnavailable, match="no token"):
            await server.call_tool(ANN, "whoami", {})


async def test_a_token_that_is_no_assertion_is_not_sent_on() -> None:
    async with employer() as (it, provider, auth), it.connected(**auth) as (server, _):
        provider.kind = "urn:ietf:params:oauth:token-type:access_token"
        with pytest.raises(ServerUnavailable, match="something other than an assertion"):
            await server.call_tool(replace(ANN, token="token-of-ann"), "whoami", {})
        assert not [form for _, form in it.issuer.requests if form.get("grant_type") == JWT_BEARER]


async def test_a_provider_that_names_another_issuer_gets_no_token() -> None:
    async with employer() as (it, provider, auth), it.connected(**auth) as (server, _):
        provider.metadata = {"issuer": "https://evil.example"}
        with pytest.raises(ServerUnavailable, match="names another issuer"):
            await server.call_tool(replace(ANN, token="token-of-ann"), "whoami", {})
        assert not provider.asked


@pytest.mark.parametrize("who", ["authorization server", "identity provider"])
@pytest.mark.parametrize(("named", "itself"), [("/", ""), ("", "/"), ("/", "/")])
async def test_an_issuer_is_the_same_with_and_without_a_slash(who: str, named: str, itself: str) -> None:
    async with employer() as (it, provider, auth):
        if who == "identity provider":
            provider.metadata = {"issuer": f"{provider.issuer}{itself}"}
            vouching = auth["identity_provider"]
            auth["identity_provider"] = replace(vouching, issuer=f"{vouching.issuer}{named}")
        else:
            it.issuer.metadata = {"issuer": f"{it.issuer.issuer}{itself}"}
            auth["issuer"] += named
        async with it.connected(**auth) as (server, _):
            assert not (await call(server, "whoami", replace(ANN, token="token-of-ann"))).is_error
        (asked,) = provider.asked
        expected = it.issuer.issuer if who == "identity provider" else f"{it.issuer.issuer}{itself}"
        assert asked["audience"] == expected


async def test_tools_are_listed_with_toolcribs_own_credentials() -> None:
    async with employer() as (it, provider, auth), it.connected(**auth) as (server, _):
        assert server.status.state is ServerState.READY
        assert not (await call(server, "whoami", HERE)).is_error
        assert not provider.asked


PROVIDER = IdentityProviderOptions(issuer="https://idp.test", client_id="c", client_secret="s")
OWN = {"issuer": "https://a.test", "client_id": "c", "client_secret": "s"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"grant": "identity_assertion", **OWN}, "needs identity_provider"),
        ({"grant": "identity_assertion", "identity_provider": PROVIDER}, "needs issuer, client_id and client_secret"),
        (
            {"grant": "identity_assertion", **OWN, "identity_provider": replace(PROVIDER, client_id="")},
            "identity_provider",
        ),
        ({"grant": "token_exchange", **OWN, "identity_provider": PROVIDER}, "is for identity_assertion"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        OAuthClientOptions(**options)
