"""Access tokens that need no login of a person: toolcrib's own, and those for or of the caller of a request.

They are kept in memory only, because they can be had again at any time.

With identity assertion, the caller's token is exchanged at their identity provider for an assertion that is good at one
authorization server, for one server (an ID-JAG, "identity assertion authorization grant"). That one gives an access
token for it. No person has to agree, because those who run the identity provider decide which servers its people may
use.
"""

import base64
import hashlib
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import anyio
from mcp.client.auth.extensions.client_credentials import SignedJWTParameters
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE, OAuthClientInformationFull, OAuthMetadata, OAuthToken
from mcp.shared.auth_utils import resource_url_from_server_url
from pydantic_core import from_json

from toolcrib.upstream.logins.flows import Challenge, LoginFailed, OAuthClient
from toolcrib.upstream.logins.oauth import ServerCredentials
from toolcrib.upstream.logins.vault import refresh_time
from toolcrib.upstream.options import IdentityProviderOptions, OAuthClientOptions, ServerOptions
from toolcrib.upstream.redact import bare_url
from toolcrib.upstream.transports.http_requests import NoAccessToken

_JWT_PARTS: Final = 3
_MAX_SCOPE_CHARS: Final = 4096
"""A server may ask for further scopes with every request, and all of them are asked for from then on."""
_NO_TOKEN: Final = "the caller has no token that could be used for it"  # noqa: S105 - a message
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - its type
_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - its type
_ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
_JWT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_OWN_GRANT: Final = "client_credentials"
_SUBJECTS: Final = {"access_token": _ACCESS_TOKEN, "id_token": _ID_TOKEN}


def make_credentials(options: ServerOptions, auth: OAuthClientOptions, principal: str) -> ServerCredentials:
    """Return the credentials of a principal. Without one, they list the tools, as toolcrib itself if it can."""
    if auth.grant == "forward":
        return ForwardedToken(auth)
    if auth.grant == "token_exchange" and principal:
        return ExchangedToken(options, auth)
    if auth.grant == "identity_assertion" and principal:
        return AssertedToken(options, auth)
    return OwnToken(options, auth)


class _FetchedToken(ServerCredentials):
    """A token that a flow gets without a person."""

    def __init__(self, options: ServerOptions, auth: OAuthClientOptions) -> None:
        self._options = options
        self._auth = auth
        self._token: str | None = None
        self._replace_at: float | None = None
        self._lock = anyio.Lock()

    @abstractmethod
    async def _request(self, oauth: OAuthClient, challenge: Challenge) -> OAuthToken:
        """Return new tokens. Raises `LoginFailed`."""

    def _known(self) -> str | None:
        is_old = self._replace_at is not None and time.time() >= self._replace_at
        return None if is_old else self._token

    async def token(self) -> str | None:
        return self._known()

    async def answer(self, challenge: Challenge, used: str | None) -> str | None:
        async with self._lock:
            known = self._known()
            return known if known is not None and known != used else await self._fetch(challenge)

    async def _fetch(self, challenge: Challenge) -> str:
        oauth = OAuthClient(self._options, self._auth)
        try:
            with oauth.explained():
                tokens = await self._request(oauth, challenge)
        except LoginFailed as error:
            raise NoAccessToken(f"no access token: {error.reason}") from error
        self._token, lasts_s = tokens.access_token, tokens.expires_in
        now = time.time()
        self._replace_at = None if lasts_s is None else refresh_time(now, now + lasts_s)
        return self._token


class OwnToken(_FetchedToken):
    """A token for toolcrib itself (`client_credentials`)."""

    def __init__(self, options: ServerOptions, auth: OAuthClientOptions) -> None:
        super().__init__(options, auth)
        self._issuer = auth.issuer
        """The only authorization server that gets the credentials: that of the settings, or the first one named."""
        self._scope = " ".join(auth.scopes) or None
        """The scopes of the settings, and those that single requests have needed."""

    def present(self, token: str, issuer: str | None) -> None:
        """Do nothing: calls without a caller of their own, such as those over stdio, are toolcrib's."""

    async def _request(self, oauth: OAuthClient, challenge: Challenge) -> OAuthToken:
        server = await oauth.find_server(challenge, self._issuer)
        metadata = server.metadata
        if metadata is None:
            raise oauth.failure(f"No metadata of the authorization server {bare_url(server.issuer)} was found")
        self._issuer = self._issuer or server.issuer
        scope = server.scopes(challenge, [_OWN_GRANT])
        if challenge.is_step_up:
            scope = union_scopes(self._scope, scope) or ""
            if len(scope) > _MAX_SCOPE_CHARS:
                raise oauth.failure(f"the server asks for more than {_MAX_SCOPE_CHARS:,} characters of scopes")
            self._scope = scope
        elif self._auth.scopes:
            scope = self._scope
        form = {
            "grant_type": _OWN_GRANT,
            **oauth.resource(server.resource, challenge.version),
            **({"scope": scope} if scope else {}),
            **(await self._assertion(server.issuer) if self._auth.private_key else {}),
        }
        answer = await oauth.post(str(metadata.token_endpoint), form, oauth.client(metadata))
        return oauth.read_tokens(answer, scope)

    async def _assertion(self, issuer: str) -> Mapping[str, str]:
        """Return what proves that this client has the private key (RFC 7523)."""
        signed = SignedJWTParameters(
            issuer=self._auth.client_id,
            subject=self._auth.client_id,
            signing_key=self._auth.private_key,
            signing_algorithm=self._auth.algorithm,
        )
        assertion = await signed.create_assertion_provider()(issuer)
        return {"client_assertion": assertion, "client_assertion_type": _JWT_ASSERTION}


class _CallersToken:
    """The token that a caller was last authenticated by, for what still runs when its request is over."""

    _subject: str = ""

    def present(self, token: str, issuer: str | None) -> None:
        """Use the caller's token of this request from now on. A request without one gets the last one only if an issuer
        vouches for its caller: any other may have been authenticated by something else, such as an API key.
        """
        if token or issuer is None:
            self._subject = token


class ExchangedToken(_CallersToken, _FetchedToken):
    """A token that the authorization server gives in exchange for the caller's own (RFC 8693)."""

    def __init__(self, options: ServerOptions, auth: OAuthClientOptions) -> None:
        super().__init__(options, auth)
        self._exchanged = b""
        """Digest of the token that was exchanged."""

    async def token(self) -> str:
        """Return a token for the caller's current one. Raises `NoAccessToken` if there can be none."""
        async with self._lock:
            known = self._known() if self._exchanged == _digest(self._subject) else None
            return known or await self._exchange()

    async def answer(self, challenge: Challenge, used: str | None) -> str | None:  # noqa: ARG002 - of the base class
        """Return None: the token has just been exchanged, and another one would be no better."""
        return None

    async def _exchange(self) -> str:
        if not self._subject:
            raise NoAccessToken(_NO_TOKEN)
        # If this fails, what was exchanged for another token does not stand in.
        self._exchanged, self._token = _digest(self._subject), None
        return await self._fetch(Challenge())

    async def _request(self, oauth: OAuthClient, challenge: Challenge) -> OAuthToken:  # noqa: ARG002 - of the base class
        metadata = await oauth.configured_server()
        scope = " ".join(self._auth.scopes) or None
        form = {"client_id": self._auth.client_id, **({"scope": scope} if scope else {})}
        form |= await self._grant(oauth, metadata)
        answer = await oauth.post(str(metadata.token_endpoint), form, oauth.client(metadata))
        return oauth.read_tokens(answer, scope)

    async def _grant(self, oauth: OAuthClient, metadata: OAuthMetadata) -> dict[str, Any]:  # noqa: ARG002 - see `AssertedToken`
        """Return what a request says to get a token for the caller's."""
        return {
            "grant_type": _EXCHANGE,
            "subject_token": self._subject,
            "subject_token_type": _ACCESS_TOKEN,
            **({"resource": resource_url_from_server_url(oauth.url)} if self._auth.resource else {}),
            **({"audience": list(self._auth.audience)} if self._auth.audience else {}),
        }


class AssertedToken(ExchangedToken):
    """A token that the authorization server gives for an assertion of the caller's identity provider."""

    async def _grant(self, oauth: OAuthClient, metadata: OAuthMetadata) -> dict[str, Any]:
        resource = resource_url_from_server_url(oauth.url)
        provider = self._auth.identity_provider or IdentityProviderOptions()
        form = {
            "grant_type": _EXCHANGE,
            "requested_token_type": _ID_JAG,
            # As the authorization server writes its own name: it compares that with the assertion's audience.
            "audience": str(metadata.issuer),
            "resource": resource,
            "subject_token": self._subject,
            "subject_token_type": _SUBJECTS[provider.subject],
            **({"scope": " ".join(self._auth.scopes)} if self._auth.scopes else {}),
        }
        assertion = await _ask_assertion(oauth, provider, form)
        return {"grant_type": JWT_BEARER_GRANT_TYPE, "assertion": assertion, "resource": resource}


async def _ask_assertion(oauth: OAuthClient, provider: IdentityProviderOptions, form: Mapping[str, str]) -> str:
    """Return an assertion of who has a token, from where they logged in. Raises `LoginFailed`."""
    metadata = await oauth.metadata(provider.issuer, "identity provider")
    if metadata is None:
        raise oauth.failure(f"no metadata of the identity provider {bare_url(provider.issuer)} was found")
    client = OAuthClientInformationFull(
        client_id=provider.client_id,
        client_secret=provider.client_secret,
        token_endpoint_auth_method=provider.client_auth,
    )
    refused = "the identity provider refused an assertion"
    answer = await oauth.post(str(metadata.token_endpoint), form, client, refused)
    found = answer.get("access_token")
    if answer.get("issued_token_type") != _ID_JAG or not isinstance(found, str) or not found:
        raise LoginFailed("the identity provider gave something other than an assertion")
    return found


class ForwardedToken(_CallersToken, ServerCredentials):
    """The caller's own token, if its `aud` names this gateway and the server: it was issued for both."""

    def __init__(self, auth: OAuthClientOptions) -> None:
        self._audience = frozenset(auth.audience)

    async def token(self) -> str | None:
        """Return the caller's token; None where there is no caller. Raises `NoAccessToken` for one that was not
        issued for both.
        """
        if not self._subject:
            return None
        if not self._audience <= _audience_of(self._subject):
            raise NoAccessToken(f"{_NO_TOKEN}: its audience does not name both this gateway and the server")
        return self._subject

    async def answer(self, challenge: Challenge, used: str | None) -> str | None:  # noqa: ARG002 - of the base class
        """Return None: there is no other token."""
        return None


def _audience_of(token: str) -> frozenset[str]:
    """Return the `aud` of a JWT, whose signature was checked when the caller was authenticated; empty for any other."""
    parts = token.split(".")
    if len(parts) != _JWT_PARTS:
        return frozenset()
    try:
        claims: Any = from_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return frozenset()
    named = claims.get("aud") if isinstance(claims, dict) else None
    return frozenset([named] if isinstance(named, str) else filter(_is_text, named or ()))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
