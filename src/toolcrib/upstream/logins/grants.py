"""Access tokens that need no login of a person: toolcrib's own, and those for or of the caller of a request.

They are kept in memory only, because they can be had again at any time.

With identity assertion, the caller's token is exchanged at their identity provider for an assertion that is good at one
authorization server, for one server (an ID-JAG, "identity assertion authorization grant"). That one gives an access
token for it. No person has to agree, because those who run the identity provider decide which servers its people may
use. The second step is the SDK's; the first is here.
"""

import base64
import hashlib
import time
from abc import abstractmethod
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    create_oauth_metadata_request,
    handle_auth_metadata_response,
    issuers_match,
)
from mcp.shared.auth import OAuthToken
from pydantic_core import from_json

from toolcrib.sanitize import MAX_REASON, one_line
from toolcrib.upstream.logins.flows import (
    Challenge,
    FlowRunner,
    KeptTokens,
    LoginFailed,
    json_object,
    name_no_resource,
)
from toolcrib.upstream.logins.oauth import ServerCredentials
from toolcrib.upstream.options import IdentityProviderOptions, OAuthClientOptions, ServerOptions
from toolcrib.upstream.redact import bare_url
from toolcrib.upstream.transports.http_requests import NoAccessToken

_EARLY_S: Final = 60.0
_EARLY_SHARE: Final = 0.2
"""A token is replaced a minute before it expires, but not before it has used up four fifths of its time."""
_JWT_PARTS: Final = 3
_NO_TOKEN: Final = "the caller has no token that could be used for it"  # noqa: S105 - a message
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - its type
_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - its type
_ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
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

    def __init__(self, options: ServerOptions) -> None:
        self._runner = FlowRunner(options)
        self._token: str | None = None
        self._expires_at: float | None = None
        self._lock = anyio.Lock()

    @abstractmethod
    def _flow(self, kept: KeptTokens, challenge: Challenge) -> httpx2.Auth:
        """Return a flow that stores its tokens in `kept`."""

    def _known(self) -> str | None:
        expired = self._expires_at is not None and time.time() >= self._expires_at
        return None if expired else self._token

    async def token(self) -> str | None:
        return self._known()

    async def answer(self, challenge: Challenge, used: str | None) -> str | None:
        async with self._lock:
            known = self._known()
            return known if known is not None and known != used else await self._fetch(challenge)

    async def _fetch(self, challenge: Challenge) -> str | None:
        kept = KeptTokens()
        try:
            await self._runner.run(self._flow(kept, challenge), challenge)
        except LoginFailed as error:
            raise NoAccessToken(f"no access token: {error.reason}") from error
        self._keep(kept.tokens)
        return self._token

    def _keep(self, tokens: OAuthToken | None) -> None:
        self._token = None if tokens is None else tokens.access_token
        lasts_s = None if tokens is None else tokens.expires_in
        early_s = min(_EARLY_S, (lasts_s or 0) * _EARLY_SHARE)
        self._expires_at = None if lasts_s is None else time.time() + lasts_s - early_s


class OwnToken(_FetchedToken):
    """A token for toolcrib itself (`client_credentials`)."""

    def __init__(self, options: ServerOptions, auth: OAuthClientOptions) -> None:
        super().__init__(options)
        self._url = bare_url(options.url)
        self._auth = auth
        self._issuer = auth.issuer
        """The only authorization server that gets the credentials: that of the settings, or the first one named."""
        self._scope = " ".join(auth.scopes)

    async def _fetch(self, challenge: Challenge) -> str | None:
        try:
            self._issuer = self._issuer or await self._runner.find_issuer(challenge)
        except LoginFailed as error:
            raise NoAccessToken(f"no access token: {error.reason}") from error
        return await super()._fetch(challenge)

    def present(self, token: str, issuer: str | None) -> None:
        """Do nothing: calls without a caller of their own, such as those over stdio, are toolcrib's."""

    def _flow(self, kept: KeptTokens, challenge: Challenge) -> OAuthClientProvider:
        flow = self._sdk_flow(kept, challenge)
        if not self._auth.resource:
            name_no_resource(flow)
        return flow

    def _sdk_flow(self, kept: KeptTokens, challenge: Challenge) -> OAuthClientProvider:
        auth, scope = self._auth, self._scope or None
        if challenge.is_step_up:
            self._scope = " ".join(dict.fromkeys((*self._scope.split(), *challenge.scope.split())))
        if auth.private_key:
            signed = SignedJWTParameters(
                issuer=auth.client_id,
                subject=auth.client_id,
                signing_key=auth.private_key,
                signing_algorithm=auth.algorithm,
            )
            assertion = signed.create_assertion_provider()
            return PrivateKeyJWTOAuthProvider(self._url, kept, auth.client_id, assertion, scope, self._issuer)
        method = _secret_method(auth)
        return ClientCredentialsOAuthProvider(
            self._url, kept, auth.client_id, auth.client_secret, method, scope, self._issuer
        )


def _secret_method(auth: OAuthClientOptions) -> Literal["client_secret_basic", "client_secret_post"]:
    return "client_secret_post" if auth.client_auth == "client_secret_post" else "client_secret_basic"


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
        super().__init__(options)
        self._options = options
        self._auth = auth
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
        found = await self._fetch(Challenge())
        if found is None:
            raise NoAccessToken("no access token: its authorization server gave none for the caller's")
        return found

    def _flow(self, kept: KeptTokens, challenge: Challenge) -> httpx2.Auth:  # noqa: ARG002 - of the base class
        subject = self._subject

        async def subject_token(_: str, __: str) -> str:
            return subject

        return _ExchangeFlow(bare_url(self._options.url), kept, self._auth, subject_token)


class AssertedToken(ExchangedToken):
    """A token that the authorization server gives for an assertion of the caller's identity provider."""

    def _flow(self, kept: KeptTokens, challenge: Challenge) -> httpx2.Auth:  # noqa: ARG002 - of the base class
        return _AssertionFlow(self._options, self._auth, kept, self._subject)


class _ExchangeFlow(IdentityAssertionOAuthProvider):
    """The SDK's flow for a configured authorization server, with another grant: it, too, sends a token for a token."""

    def __init__(self, url: str, kept: KeptTokens, auth: OAuthClientOptions, subject_token: Any) -> None:
        method = _secret_method(auth)
        scope = " ".join(auth.scopes) or None
        super().__init__(url, kept, auth.client_id, auth.client_secret, auth.issuer, subject_token, scope, method)
        self._audience = auth.audience
        self._names_resource = auth.resource

    def _build_token_request(self, scope: str | None, assertion: str) -> httpx2.Request:
        request = super()._build_token_request(scope, assertion)
        form = dict(parse_qsl(request.content.decode()))
        if not self._names_resource:
            form.pop("resource", None)
        form |= {"grant_type": _EXCHANGE, "subject_token": form.pop("assertion"), "subject_token_type": _ACCESS_TOKEN}
        headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}
        data: dict[str, Any] = {**form, **({"audience": list(self._audience)} if self._audience else {})}
        return httpx2.Request("POST", request.url, data=data, headers=headers)


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


class _AssertionFlow(IdentityAssertionOAuthProvider):
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
            "grant_type": _EXCHANGE,
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
        answer = json_object(response)
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
                if not issuers_match(str(metadata.issuer), issuer):
                    raise LoginFailed("the metadata of the identity provider names another issuer")
                return str(metadata.token_endpoint)
            if not goes_on:
                break
        raise LoginFailed(f"no metadata of the identity provider {bare_url(issuer)} was found")


def _quoted(text: str) -> str:
    # RFC 6749: both are form-encoded first.
    return str(httpx2.QueryParams({"": text})).removeprefix("=")


def _reason(answer: dict[str, Any], status: int) -> str:
    said = [answer[name] for name in ("error", "error_description") if isinstance(answer.get(name), str)]
    return one_line(": ".join(said), MAX_REASON).rstrip(".") or f"HTTP {status}"
