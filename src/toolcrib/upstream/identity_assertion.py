"""Access tokens by identity assertion: a caller's identity provider vouches for them to authorization servers.

The caller's token is exchanged at the identity provider for an assertion that is good at one authorization server, for
one server (an ID-JAG, "identity assertion authorization grant"). That one gives an access token for it. No person has
to agree, because those who run the identity provider decide which servers its people may use. The second step is the
SDK's; this is the first.
"""

from typing import Any, Final

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    create_oauth_metadata_request,
    handle_auth_metadata_response,
    validate_metadata_issuer,
)
from pydantic_core import from_json

from toolcrib.errors import mask_secrets
from toolcrib.upstream.oauth_flows import FlowRunner, KeptTokens, LoginFailed
from toolcrib.upstream.options import IdentityProviderOptions, OAuthClientOptions, ServerOptions
from toolcrib.upstream.redact import bare_url, bounded, plain

EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - its type
_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - its type
_ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
_SUBJECTS: Final = {"access_token": ACCESS_TOKEN, "id_token": _ID_TOKEN}
_MAX_REASON: Final = 200


class AssertionFlow(IdentityAssertionOAuthProvider):
    """The SDK's flow, with an assertion for the token of one caller."""

    def __init__(self, options: ServerOptions, auth: OAuthClientOptions, kept: KeptTokens, subject: str) -> None:
        scope = " ".join(auth.scopes) or None
        provider = _IdentityProvider(options, auth.identity_provider or IdentityProviderOptions(), scope)

        async def assertion(audience: str, resource: str) -> str:
            return await provider.assertion(subject, audience, resource)

        super().__init__(
            bare_url(options.url),
            kept,
            auth.client_id,
            auth.client_secret,
            auth.issuer,
            assertion,
            scope,
            "client_secret_post" if auth.client_auth == "client_secret_post" else "client_secret_basic",
        )


class _IdentityProvider:
    """Where callers log in, as a client of which toolcrib asks for assertions."""

    def __init__(self, options: ServerOptions, provider: IdentityProviderOptions, scope: str | None) -> None:
        self._runner = FlowRunner(options)
        self._provider = provider
        self._scope = scope

    async def assertion(self, subject: str, audience: str, resource: str) -> str:
        """Return an assertion of who has the token, for a server and its authorization server. Raises `LoginFailed`."""
        provider = self._provider
        form = {
            "grant_type": EXCHANGE,
            "requested_token_type": _ID_JAG,
            "audience": audience,
            "resource": resource,
            "subject_token": subject,
            "subject_token_type": _SUBJECTS[provider.subject],
            **({"scope": self._scope} if self._scope else {}),
        }
        if provider.client_auth == "client_secret_post":
            form |= {"client_id": provider.client_id, "client_secret": provider.client_secret}
        request = httpx2.Request("POST", await self._token_endpoint(), data=form)
        if provider.client_auth != "client_secret_post":
            signed = httpx2.BasicAuth(_quoted(provider.client_id), _quoted(provider.client_secret))
            request = next(signed.sync_auth_flow(request))
        response = await self._runner.send(request)
        answer = _object(response)
        if response.status_code != httpx2.codes.OK:
            why = _reason(answer, response.status_code)
            raise self._runner.failure(f"the identity provider refused an assertion: {why}", (subject,))
        found = answer.get("access_token")
        if answer.get("issued_token_type") != _ID_JAG or not isinstance(found, str) or not found:
            raise LoginFailed("the identity provider gave something other than an assertion")
        return found

    async def _token_endpoint(self) -> str:
        issuer = self._provider.issuer
        for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, issuer):
            goes_on, metadata = await handle_auth_metadata_response(
                await self._runner.send(create_oauth_metadata_request(url))
            )
            if metadata is not None:
                try:
                    validate_metadata_issuer(metadata, issuer)
                except OAuthFlowError as error:
                    raise LoginFailed("the metadata of the identity provider names another issuer") from error
                return str(metadata.token_endpoint)
            if not goes_on:
                break
        raise LoginFailed(f"no metadata of the identity provider {bare_url(issuer)} was found")


def _quoted(text: str) -> str:
    # RFC 6749: both are form-encoded first.
    return str(httpx2.QueryParams({"": text})).removeprefix("=")


def _object(response: httpx2.Response) -> dict[str, Any]:
    try:
        found: Any = from_json(response.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(answer: dict[str, Any], status: int) -> str:
    said = [answer[name] for name in ("error", "error_description") if isinstance(answer.get(name), str)]
    return bounded(mask_secrets(plain(": ".join(said))), _MAX_REASON).rstrip(".") or f"HTTP {status}"
