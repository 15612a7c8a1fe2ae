"""The flows of OAuth for one server, run outside of the requests that need them.

The SDK's public functions know the documents and rules of MCP's authorization. A flow here asks for those documents
with guarded requests, and has a person or a stored login answer a server's challenge.
"""

import base64
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import httpx2
from mcp.client.auth import OAuthFlowError, PKCEParameters
from mcp.client.auth.oauth2 import check_registration_usable
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    create_client_info_from_metadata_url,
    create_client_registration_request,
    create_oauth_metadata_request,
    credentials_match_issuer,
    extract_field_from_www_auth,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    get_client_metadata_scopes,
    handle_auth_metadata_response,
    handle_protected_resource_response,
    is_valid_client_metadata_url,
    issuers_match,
    should_use_client_metadata_url,
    union_scopes,
    validate_authorization_response_iss,
)
from mcp.shared.auth import (
    DEFAULT_GRANT_TYPES,
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import AnyUrl, BaseModel
from pydantic_core import from_json

from toolcrib.protocol.failures import ExchangeError
from toolcrib.protocol.versions import is_since
from toolcrib.sanitize import MAX_REASON, one_line
from toolcrib.types import Object
from toolcrib.upstream.guarded_fetch import GuardedFetch, TrustedHosts
from toolcrib.upstream.logins.vault import Login
from toolcrib.upstream.options import OAuthClientOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url
from toolcrib.upstream.transports.http_client import HttpUrl
from toolcrib.upstream.transports.http_requests import parse_url, proxy_of

_OWN_HEADERS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""Headers that the client writes itself."""
_MAX_REDIRECTS: Final = 5
_PKCE_METHOD: Final = "S256"
_STATE_BYTES: Final = 32
_RESOURCE_SINCE: Final = "2025-06-18"
"""The first version of the protocol whose servers are named in requests for tokens."""
_GONE: Final = (httpx2.codes.NOT_FOUND, httpx2.codes.METHOD_NOT_ALLOWED, httpx2.codes.GONE)
_SENDABLE: Final = re.compile(r"[\x21-\x7e]+")
_MAX_LIFETIME_S: Final = 100 * 365 * 24 * 3600
"""What a longer lifetime counts as: times are floats, which not every number fits into."""
_MAX_PAGE_CHARS: Final = 8192
"""The longest address of a login page: models and people get it to read."""
_SECRET_FIELDS: Final = ("assertion", "client_assertion", "code", "code_verifier", "refresh_token", "subject_token")

Ask = Callable[[str], Awaitable[AuthorizationCodeResult]]
"""Brings a person to the address of a login page, and returns what the authorization server answers."""


class LoginFailed(Exception):
    """A login did not succeed; `reason` is one line without secrets and without a full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TokenRefused(LoginFailed):
    """A token endpoint has refused a request."""

    def __init__(self, reason: str, status: int, code: str) -> None:
        """`code` is the error that it names; empty if it names none."""
        super().__init__(reason)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Challenge:
    """A server's refusal of a request, which says what token it wants."""

    status: int = httpx2.codes.UNAUTHORIZED
    www_authenticate: str = ""
    version: str = ""
    """The protocol version of the request."""

    @property
    def response(self) -> httpx2.Response:
        headers = {"www-authenticate": self.www_authenticate} if self.www_authenticate else {}
        return httpx2.Response(self.status, headers=headers)

    @property
    def scope(self) -> str:
        return extract_scope_from_www_auth(self.response) or ""

    @property
    def error(self) -> str:
        """What kind of refusal the server says that it is."""
        return extract_field_from_www_auth(self.response, "error") or ""

    @property
    def is_step_up(self) -> bool:
        """Whether the server wants more scopes than the token has."""
        return self.status == httpx2.codes.FORBIDDEN


@dataclass(frozen=True, slots=True)
class AuthorizationServer:
    """The authorization server of one server, as far as both publish it."""

    issuer: str
    """As it writes its own name, if it publishes anything."""
    metadata: OAuthMetadata | None
    resource: ProtectedResourceMetadata | None
    """What the server publishes about itself."""

    def scopes(self, challenge: Challenge, grant_types: list[str]) -> str | None:
        """Return the scopes that a server asks for: those of its challenge, else all that are published."""
        return get_client_metadata_scopes(challenge.scope or None, self.resource, self.metadata, grant_types)


class OAuthClient:
    """toolcrib as the OAuth client of one server, for a single flow: finds its authorization server, and asks it."""

    def __init__(self, options: ServerOptions, auth: OAuthClientOptions) -> None:
        self.name = options.name
        self.url = bare_url(options.url)
        self.auth = auth
        provider = auth.identity_provider.issuer if auth.identity_provider is not None else ""
        self.trusted = TrustedHosts((options.url, auth.issuer, provider), auth.allowed_hosts)
        self._redact = Redactor(options)
        self._sent: list[str] = []
        """Secrets that were sent."""

    def failure(self, reason: str) -> LoginFailed:
        """Return the error for a reason, which may be what an authorization server says, without secrets."""
        return LoginFailed(self._shown(reason))

    def _shown(self, reason: str) -> str:
        return one_line(reason, MAX_REASON, self._redact.values.adding(self._sent)).rstrip(".")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Have what the SDK raises end as `LoginFailed`."""
        try:
            yield
        except OAuthFlowError as error:
            raise self.failure(str(error)) from error
        except (ValueError, httpx2.InvalidURL) as error:  # its models refuse what an authorization server says
            raise self.failure("its authorization server sent something that cannot be read") from error

    # -- requests --------------------------------------------------------------------------------------------------

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, also to where the same server redirects it. Raises `LoginFailed`."""
        response = await self._send_once(request)
        for _ in range(_MAX_REDIRECTS):
            following = _redirected(request, response)
            if following is None:
                break
            request, response = following, await self._send_once(following)
        return response

    async def _send_once(self, request: httpx2.Request) -> httpx2.Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in _OWN_HEADERS]
        try:
            fetch = GuardedFetch(self.trusted, proxy=proxy_of(parse_url(self.url, self._redact)))
            found = await fetch(request.method, str(request.url), headers, request.content)
        except ExchangeError as error:
            reason = one_line(error.reason, MAX_REASON).rstrip(".")
            raise LoginFailed(f"its authorization server cannot be used: {reason}") from error
        return httpx2.Response(found.status, headers=found.headers, content=found.body, request=request)

    async def post(
        self,
        endpoint: str,
        form: Mapping[str, Any],
        client: OAuthClientInformationFull,
        refused: str = "Token exchange failed",
    ) -> dict[str, Any]:
        """POST a form as the client, and return the JSON object that answers it.

        Raises `TokenRefused`, which begins with `refused`, and `LoginFailed`.
        """
        request = _form_request(endpoint, form, client)
        self._sent += [form[name] for name in _SECRET_FIELDS if name in form]
        self._sent += [client.client_secret] if client.client_secret else []
        response = await self.send(request)
        answer = _json_object(response)
        # Some name their error with status 200.
        if response.status_code not in (httpx2.codes.OK, httpx2.codes.CREATED) or "error" in answer:
            said = _said(answer) or f"HTTP {response.status_code}"
            code = answer.get("error")
            raise TokenRefused(
                self._shown(f"{refused}: {said}"), response.status_code, code if isinstance(code, str) else ""
            )
        return answer

    # -- discovery -------------------------------------------------------------------------------------------------

    async def find_server(self, challenge: Challenge, pinned: str, known: Login | None = None) -> AuthorizationServer:
        """Return the authorization server that may be asked for tokens: `pinned` if that is not empty, else the first
        that the server names, else the one of the known login. A server that names none, and has never had a login, is
        its own authorization server, as in 2025-03-26. Raises `LoginFailed`.
        """
        resource = await self._resource_metadata(challenge)
        issuer = pinned or ("" if known is None else known.issuer)
        if resource is not None:
            issuer = self._advertised([str(url) for url in resource.authorization_servers], pinned)
        metadata = await self.metadata(issuer)
        if metadata is None and known is not None and known.metadata and issuers_match(issuer, known.issuer):
            metadata = OAuthMetadata.model_validate(known.metadata)
        if metadata is None and issuer:
            raise self.failure(f"No metadata of the authorization server {bare_url(issuer)} was found")
        return AuthorizationServer(str(metadata.issuer) if metadata else _origin_of(self.url), metadata, resource)

    async def _resource_metadata(self, challenge: Challenge) -> ProtectedResourceMetadata | None:
        """Return what the server publishes about itself (RFC 9728)."""
        named = extract_resource_metadata_from_www_auth(challenge.response)
        failed = 0
        for url in build_protected_resource_metadata_discovery_urls(named, self.url):
            response = await self.send(create_oauth_metadata_request(url))
            found = await handle_protected_resource_response(response)
            if found is not None:
                wanted = resource_url_from_server_url(self.url)
                if not check_resource_allowed(wanted, str(found.resource)):
                    raise self.failure(f"Protected resource {found.resource} does not match expected {wanted}")
                return found
            if response.is_server_error or response.status_code == httpx2.codes.TOO_MANY_REQUESTS:
                failed = response.status_code
        if failed:
            # It may well publish something, so it must not pass for a server of 2025-03-26.
            raise self.failure(f"Protected resource metadata request failed: HTTP {failed}")
        return None

    def _advertised(self, issuers: list[str], pinned: str) -> str:
        """Return the issuer among those of a server that gets its requests."""
        found = next((one for one in issuers if not pinned or issuers_match(one, pinned)), None)
        if found is None:
            raise self.failure(
                f"The server names another authorization server ({bare_url(issuers[0])}) than {bare_url(pinned)}"
            )
        return found

    async def metadata(self, issuer: str, what: str = "authorization server") -> OAuthMetadata | None:
        """Return what an issuer publishes about itself (RFC 8414), else what the server itself does if `issuer` is
        empty; None for nothing. Raises `LoginFailed`, also if that names another issuer.
        """
        expected = issuer or _origin_of(self.url)
        for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, self.url):
            goes_on, found = await handle_auth_metadata_response(await self.send(create_oauth_metadata_request(url)))
            # Frameworks add a slash to an origin, and so differ from what the authorization server says of itself.
            if found is not None and not issuers_match(str(found.issuer), expected):
                raise self.failure(f"The metadata of the {what} names another issuer ({found.issuer}) than {expected}")
            if found is not None or not goes_on:
                return found
        return None

    async def configured_server(self) -> OAuthMetadata:
        """Return what the authorization server of the settings publishes; the server itself is not asked for one.

        Raises `LoginFailed`.
        """
        issuer = self.auth.issuer
        metadata = await self.metadata(issuer)
        if metadata is None:
            raise self.failure(f"No metadata of the authorization server {bare_url(issuer)} was found")
        # Nothing else vouches for another host, and a caller's token would go there.
        if HttpUrl.parse(str(metadata.token_endpoint)).origin != HttpUrl.parse(issuer).origin:
            raise self.failure(
                f"Token endpoint {metadata.token_endpoint} is not on the origin of the configured issuer {issuer}"
            )
        return metadata

    # -- what requests say -----------------------------------------------------------------------------------------

    def resource(self, published: ProtectedResourceMetadata | None, version: str) -> Mapping[str, str]:
        """Return the parameter that names the server (RFC 8707), if it is to be named at all."""
        if not self.auth.resource or not (published or is_since(version, _RESOURCE_SINCE)):
            return {}
        return {"resource": str(published.resource) if published else resource_url_from_server_url(self.url)}

    def client(self, metadata: OAuthMetadata | None) -> OAuthClientInformationFull:
        """Return the client of the settings."""
        auth = self.auth
        client = OAuthClientInformationFull(
            client_id=auth.client_id,
            client_secret=auth.client_secret or None,
            token_endpoint_auth_method=auth.client_auth,
        )
        return _authenticating(client, metadata)

    def read_tokens(self, answer: Mapping[str, Any], asked: str | None = None) -> OAuthToken:
        """Read the answer to a request for tokens with the scopes that were asked for, which are granted unless it
        names others (RFC 6749, section 5.1). Raises `LoginFailed`, and `ValueError` for anything else.
        """
        tokens = OAuthToken.model_validate(answer)
        if not _SENDABLE.fullmatch(tokens.access_token):
            raise self.failure("its authorization server gave an access token that HTTP cannot send")
        lasts_s = None if tokens.expires_in is None else min(tokens.expires_in, _MAX_LIFETIME_S)
        scope = asked if tokens.scope is None else tokens.scope
        return tokens.model_copy(update={"expires_in": lasts_s, "scope": scope})


class PersonFlow:
    """The flow with a login page, and what follows from it. Begins with what an earlier login knows."""

    def __init__(self, oauth: OAuthClient, known: Login | None = None, principal: str = "") -> None:
        self._oauth = oauth
        self._auth = oauth.auth
        self._known = known
        self._principal = principal

    async def log_in(self, challenge: Challenge, redirect: str, ask: Ask) -> Login:
        """Have a person log in. Raises `LoginFailed`."""
        oauth = self._oauth
        with oauth.explained():
            server = await oauth.find_server(challenge, self._pinned, self._known)
            self._check_pkce(server.metadata)
            scope = self._scope(challenge, server)
            client = self._known_client(server, redirect) or await self._register(challenge, server, redirect, scope)
            client = _authenticating(client, server.metadata)
            about = {
                "client_id": client.client_id,
                "redirect_uri": redirect,
                **oauth.resource(server.resource, challenge.version),
            }
            pkce = PKCEParameters.generate()
            code = await self._ask_code(server, about, pkce, scope, ask)
            form = {"grant_type": "authorization_code", "code": code, "code_verifier": pkce.code_verifier, **about}
            answer = await oauth.post(_token_endpoint(server.metadata, oauth.url), form, client)
            tokens = oauth.read_tokens(answer, scope)
        return self._login(server, client).renewed(plain_model(tokens), time.time())

    @property
    def _pinned(self) -> str:
        """The only issuer that may get the credentials of the settings: the one they name, or the first that did."""
        return self._auth.issuer or (self._known.issuer if self._known is not None and self._auth.client_id else "")

    def _check_pkce(self, metadata: OAuthMetadata | None) -> None:
        """Refuse an authorization server that does not say that it checks code challenges (RFC 7636): its codes could
        be used by anyone who gets them. Some that do check them leave it out; the settings can name those.
        """
        methods = metadata.code_challenge_methods_supported if metadata is not None else None
        if metadata is None or (methods is None and self._auth.issuer):
            return
        if _PKCE_METHOD not in (methods or ()):
            raise self._oauth.failure(
                f"The authorization server does not say that it supports PKCE ({_PKCE_METHOD})"
                + ("" if methods else "; if it does, name it in auth.issuer")
            )

    def _scope(self, challenge: Challenge, server: AuthorizationServer) -> str | None:
        """Return the scopes to ask for: those of the settings, else those that the server asks for; with those that an
        earlier login has, as far as the settings or the server have named them one by one.
        """
        own = " ".join(self._auth.scopes) or None
        asked = server.scopes(challenge, DEFAULT_GRANT_TYPES)
        if not own and not challenge.is_step_up:
            return asked
        knows = self._known is not None and issuers_match(self._known.issuer, server.issuer)
        granted = union_scopes(own, self._known.scope if self._known is not None and knows else None)
        return union_scopes(granted, asked) if challenge.is_step_up else granted

    def _known_client(self, server: AuthorizationServer, redirect: str) -> OAuthClientInformationFull | None:
        """Return the client of the settings, else the one that was registered for an earlier login, if it can still be
        used with this authorization server and this address to come back to.
        """
        if self._auth.client_id:
            return self._oauth.client(server.metadata)
        if self._known is None or not self._known.client:
            return None
        client = OAuthClientInformationFull.model_validate(self._known.client)
        redirects = [str(uri) for uri in client.redirect_uris or ()]
        fits = not redirects or redirect in redirects
        # 0 means never (RFC 7591).
        is_expired = 0 < (client.client_secret_expires_at or 0) <= time.time()
        own_url = self._auth.client_metadata_url or None
        is_usable = fits and not is_expired and credentials_match_issuer(client, server.issuer, own_url)
        return client if is_usable else None

    async def _register(
        self, challenge: Challenge, server: AuthorizationServer, redirect: str, scope: str | None
    ) -> OAuthClientInformationFull:
        """Return a new client: the document that describes toolcrib, if the authorization server reads it, else one
        that it registers (RFC 7591).
        """
        document, redirects = self._auth.client_metadata_url, [AnyUrl(redirect)]
        if document and not is_valid_client_metadata_url(document):
            raise self._oauth.failure("auth.client_metadata_url must be an https address with a path")
        if should_use_client_metadata_url(server.metadata, document):
            client = create_client_info_from_metadata_url(document, redirect_uris=redirects)
        else:
            described = OAuthClientMetadata(
                redirect_uris=redirects,
                client_name="toolcrib",
                # A later step-up may ask for any scope that the server has named.
                scope=union_scopes(scope, server.scopes(challenge, DEFAULT_GRANT_TYPES)),
                application_type="native" if redirect.startswith("http://") else "web",
            )
            client = await self._registered(server, described)
        return client.model_copy(update={"issuer": server.issuer if server.metadata is not None else None})

    async def _registered(
        self, server: AuthorizationServer, described: OAuthClientMetadata
    ) -> OAuthClientInformationFull:
        oauth, metadata = self._oauth, server.metadata
        origin = _origin_of(oauth.url)
        if metadata is not None and not metadata.registration_endpoint and not issuers_match(server.issuer, origin):
            raise oauth.failure(
                f"The authorization server {bare_url(server.issuer)} registers no clients; "
                "register one there, and name it in auth.client_id"
            )
        response = await oauth.send(create_client_registration_request(metadata, described, origin))
        answer = _json_object(response)
        if response.status_code not in (httpx2.codes.OK, httpx2.codes.CREATED):
            raise oauth.failure(f"Registration failed: {_said(answer) or f'HTTP {response.status_code}'}")
        client = OAuthClientInformationFull.model_validate(answer)
        check_registration_usable(client)
        return client

    async def _ask_code(
        self,
        server: AuthorizationServer,
        about: Mapping[str, str],
        pkce: PKCEParameters,
        scope: str | None,
        ask: Ask,
    ) -> str:
        """Return the code that the authorization server gives when a person has logged in there."""
        state = secrets.token_urlsafe(_STATE_BYTES)
        parameters = {
            "response_type": "code",
            **about,
            "state": state,
            "code_challenge": pkce.code_challenge,
            "code_challenge_method": _PKCE_METHOD,
            **({"scope": scope} if scope else {}),
            # OpenID Connect gives refresh tokens only to those who ask for consent.
            **({"prompt": "consent"} if scope and "offline_access" in scope.split() else {}),
            **self._auth.parameters,
        }
        answer = await ask(self._page(server.metadata, parameters))
        if answer.state is None or not secrets.compare_digest(answer.state.encode(), state.encode()):
            raise self._oauth.failure("The answer is to another login (its state differs)")
        validate_authorization_response_iss(answer.iss, server.metadata)
        return answer.code

    def _page(self, metadata: OAuthMetadata | None, parameters: Mapping[str, str]) -> str:
        """Return the address of the login page."""
        url = f"{_origin_of(self._oauth.url)}/authorize" if metadata is None else str(metadata.authorization_endpoint)
        try:
            problem = self._oauth.trusted.problem(HttpUrl.parse(url))
        except ValueError as error:
            problem = str(error)
        if problem:
            raise self._oauth.failure(f"The login page cannot be used: {problem}")
        parts = urlsplit(url)
        query = "&".join(filter(None, (parts.query, urlencode(parameters))))
        page = urlunsplit(parts._replace(query=query, fragment=""))
        if len(page) > _MAX_PAGE_CHARS:
            raise self._oauth.failure(
                f"The login page cannot be used: its address is longer than {_MAX_PAGE_CHARS:,} characters"
            )
        return page

    def _login(self, server: AuthorizationServer, client: OAuthClientInformationFull) -> Login:
        return Login(
            server=self._oauth.name,
            url=self._oauth.url,
            principal=self._principal,
            issuer=server.issuer,
            # What the settings say stays there.
            client={} if self._auth.client_id else plain_model(client),
            metadata=plain_model(server.metadata),
            resource=plain_model(server.resource),
            logged_in_at=time.time(),
        )

    # -- without a person ------------------------------------------------------------------------------------------

    async def refresh(self, login: Login) -> Object:
        """Return new tokens for the refresh token of a login. Raises `LoginFailed`, as `TokenRefused` if they were
        refused.
        """
        oauth = self._oauth
        with oauth.explained():
            metadata, client = self._stored(login)
            form = {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "client_id": client.client_id}
            published = ProtectedResourceMetadata.model_validate(login.resource) if login.resource else None
            form |= oauth.resource(published, "")
            endpoint = _token_endpoint(metadata, oauth.url)
            try:
                answer = await oauth.post(endpoint, form, client)
            except TokenRefused as error:
                newer = await oauth.metadata(login.issuer) if error.status in _GONE else None
                if newer is None or str(newer.token_endpoint) == endpoint:
                    raise
                # What was published when the person logged in no longer holds.
                answer = await oauth.post(str(newer.token_endpoint), form, client)
            return plain_model(oauth.read_tokens(answer))

    async def revoke(self, login: Login) -> bool:
        """Have the authorization server end a login (RFC 7009); returns whether it has. Raises `LoginFailed`."""
        with self._oauth.explained():
            metadata, client = self._stored(login)
            if metadata is None or metadata.revocation_endpoint is None:
                return False
            form = {"token": login.refresh_token or login.access_token, "client_id": client.client_id}
            request = _form_request(str(metadata.revocation_endpoint), form, client)
            return (await self._oauth.send(request)).status_code == httpx2.codes.OK

    def _stored(self, login: Login) -> tuple[OAuthMetadata | None, OAuthClientInformationFull]:
        metadata = OAuthMetadata.model_validate(login.metadata) if login.metadata else None
        if self._auth.client_id:
            return metadata, self._oauth.client(metadata)
        return metadata, _authenticating(OAuthClientInformationFull.model_validate(login.client), metadata)


def _redirected(request: httpx2.Request, response: httpx2.Response) -> httpx2.Request | None:
    """Return the request that a redirect asks for; None for one that is no redirect, or that changes the method or the
    server: what the request holds is for this one.
    """
    keeps_method = request.method == "GET" or response.status_code in (
        httpx2.codes.TEMPORARY_REDIRECT,
        httpx2.codes.PERMANENT_REDIRECT,
    )
    if not (response.has_redirect_location and keeps_method):
        return None
    old, new = request.url, request.url.join(response.headers["location"])
    upgraded = (old.scheme, old.port, new.scheme, new.port) == ("http", None, "https", None)
    if old.host != new.host or not (upgraded or (old.scheme, old.port) == (new.scheme, new.port)):
        return None
    return httpx2.Request(request.method, new, headers=request.headers, content=request.content)


def _form_request(endpoint: str, form: Mapping[str, Any], client: OAuthClientInformationFull) -> httpx2.Request:
    """Return the request that POSTs a form, authenticated as the client says (RFC 6749, section 2.3.1)."""
    secret, method, headers = client.client_secret or "", client.token_endpoint_auth_method, {}
    if secret and method == "client_secret_basic":
        pair = f"{quote(client.client_id, safe='')}:{quote(secret, safe='')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif secret and method == "client_secret_post":
        form = {**form, "client_id": client.client_id, "client_secret": secret}
    return httpx2.Request("POST", endpoint, data=form, headers=headers)


def _authenticating(client: OAuthClientInformationFull, metadata: OAuthMetadata | None) -> OAuthClientInformationFull:
    """Return the client with the way in which it sends its secret: the first that the authorization server takes, if
    neither the settings nor a registration say.
    """
    if not client.client_secret or client.token_endpoint_auth_method is not None:
        return client
    taken = (metadata.token_endpoint_auth_methods_supported if metadata is not None else None) or ()
    posts = "client_secret_post" in taken and "client_secret_basic" not in taken
    return client.model_copy(
        update={"token_endpoint_auth_method": "client_secret_post" if posts else "client_secret_basic"}
    )


def _token_endpoint(metadata: OAuthMetadata | None, url: str) -> str:
    """Return where tokens are to be had; as in 2025-03-26 for a server that publishes nothing."""
    return f"{_origin_of(url)}/token" if metadata is None else str(metadata.token_endpoint)


def _origin_of(url: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path="", query=""))


def _json_object(response: httpx2.Response) -> dict[str, Any]:
    """Return the JSON object in a response; an empty one if there is none."""
    try:
        found: Any = from_json(response.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _said(answer: Mapping[str, Any]) -> str:
    """Return the error in an answer, and nothing else that it holds."""
    return ": ".join(answer[name] for name in ("error", "error_description") if isinstance(answer.get(name), str))


def plain_model(model: BaseModel | None) -> Object:
    return {} if model is None else model.model_dump(mode="json", exclude_none=True)
