"""Flows of OAuth for one server, run outside of the requests that need them, on those of the SDK.

The SDK's providers discover authorization servers, register, and build and check every request. A flow here gets from
one what it needs: the challenge of a server, what an earlier login knows, and a person.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import (
    build_protected_resource_metadata_discovery_urls,
    create_oauth_metadata_request,
    extract_field_from_www_auth,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    handle_protected_resource_response,
    issuers_match,
    union_scopes,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl
from pydantic_core import from_json

from toolcrib.protocol.failures import ExchangeError
from toolcrib.sanitize import MAX_REASON, one_line
from toolcrib.types import Object
from toolcrib.upstream.guarded_fetch import GuardedFetch, TrustedHosts
from toolcrib.upstream.logins.vault import Login
from toolcrib.upstream.options import OAuthClientOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url
from toolcrib.upstream.transports.http_client import HttpUrl
from toolcrib.upstream.transports.http_requests import VERSION_HEADER, parse_url, proxy_of

logger = logging.getLogger(__name__)

_FLOW_ERRORS: Final = (
    OAuthFlowError,
    OAuthTokenError,
    OAuthRegistrationError,
    httpx2.InvalidURL,
    ValueError,  # the SDK's models refuse what an authorization server says
)
_OWN_HEADERS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""Headers that the client writes itself."""
_PKCE_METHOD: Final = "S256"
_SECRET_FIELDS: Final = ("assertion", "client_assertion", "code", "code_verifier", "refresh_token", "subject_token")
_IN_FLOW: ContextVar[bool] = ContextVar("in_flow", default=False)

Ask = Callable[[str], Awaitable[AuthorizationCodeResult]]
"""Brings a person to the address of a login page, and returns what the authorization server answers."""


class LoginFailed(Exception):
    """A login did not succeed; `reason` is one line without secrets and without a full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


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


class FlowRunner:
    """Runs the SDK's OAuth flows for one server, outside of the requests that need them."""

    def __init__(self, options: ServerOptions) -> None:
        self._url = bare_url(options.url)
        self._trusted = _trusted_hosts(options)
        self._pinned = "" if options.auth is None else options.auth.issuer
        self._redact = Redactor(options)

    def failure(self, reason: str, sent: Iterable[str] = ()) -> LoginFailed:
        """Return the error for a reason, which may be what an authorization server says, without secrets that were
        sent to it.
        """
        return LoginFailed(one_line(reason, MAX_REASON, self._redact.values.adding(sent)).rstrip("."))

    async def run(
        self,
        flow: httpx2.Auth,
        challenge: Challenge | None,
        check: Callable[[httpx2.Response], None] = lambda _: None,
    ) -> None:
        """Run a flow up to the point at which it would send the server's request: the first time without a challenge,
        else the second time. `check` sees every response. Raises `LoginFailed`, and what `check` raises.
        """
        headers = {VERSION_HEADER: challenge.version} if challenge is not None and challenge.version else {}
        request = httpx2.Request("POST", self._url, headers=headers)
        given = None if challenge is None else challenge.response
        token = _IN_FLOW.set(True)
        sent = list[str]()
        _quiet_sdk()
        try:
            issuers = _IssuerNames(self._pinned)
            while not await self._drive(flow, request, given, check, sent, issuers):
                pass
        except _FLOW_ERRORS as error:
            raise self.failure(_flow_reason(error), sent) from error
        finally:
            _IN_FLOW.reset(token)

    async def _drive(
        self,
        flow: httpx2.Auth,
        request: httpx2.Request,
        given: httpx2.Response | None,
        check: Callable[[httpx2.Response], None],
        sent: list[str],
        issuers: "_IssuerNames",
    ) -> bool:
        """Return whether the flow has come to its end; if not, it is to begin again with what `issuers` has learned."""
        steps = flow.async_auth_flow(request)
        try:
            outgoing = await anext(steps)
            while outgoing is not request or given is not None:
                if outgoing is request and given is not None:
                    response, given = given, None
                else:
                    sent += _secrets_in(outgoing)
                    response = await self.send(outgoing)
                    check(response)
                    if issuers.learns_from(response):
                        return False
                outgoing = await steps.asend(issuers.corrected(response))
        except StopAsyncIteration:
            pass
        finally:
            await steps.aclose()
        return True

    async def find_issuer(self, challenge: Challenge) -> str:
        """Return the authorization server that the server names, first of all; else the server's own origin.

        Raises `LoginFailed`.
        """
        named = extract_resource_metadata_from_www_auth(challenge.response)
        for url in build_protected_resource_metadata_discovery_urls(named, self._url):
            found = await handle_protected_resource_response(await self.send(create_oauth_metadata_request(url)))
            if found is not None:
                return str(found.authorization_servers[0])
        return urlunsplit(urlsplit(self._url)._replace(path="", query=""))

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a single request. Raises `LoginFailed`."""
        headers = [(name, value) for name, value in request.headers.items() if name not in _OWN_HEADERS]
        try:
            fetch = GuardedFetch(self._trusted, proxy=proxy_of(parse_url(self._url, self._redact)))
            found = await fetch(request.method, str(request.url), headers, request.content)
        except ExchangeError as error:
            reason = one_line(error.reason, MAX_REASON).rstrip(".")
            raise LoginFailed(f"its authorization server cannot be used: {reason}") from error
        return httpx2.Response(found.status, headers=found.headers, content=found.body, request=request)


class _IssuerNames:
    """How an authorization server that is an origin writes its name: with the slash at its end, or without.

    Frameworks add that slash to what servers say of their authorization server, and the SDK compares exactly.
    """

    def __init__(self, pinned: str) -> None:
        """The name in the settings counts, if there is one, as long as nothing else is known."""
        self._names = {name: pinned for name in _spellings(pinned) if name != pinned}
        self._advertised: list[str] = []
        self._has_learned = False

    def corrected(self, response: httpx2.Response) -> httpx2.Response:
        """Return what a server says of its authorization servers, with the names by which they call themselves."""
        found = json_object(response)
        advertised = found.get("authorization_servers")
        if not isinstance(advertised, list):
            return response
        self._advertised = [self._names.get(name, name) for name in advertised if isinstance(name, str)]
        body = {**found, "authorization_servers": self._advertised}
        return httpx2.Response(response.status_code, json=body, request=response.request)

    def learns_from(self, response: httpx2.Response) -> bool:
        """Whether metadata shows that an authorization server writes its name in the other way."""
        name = json_object(response).get("issuer")
        if self._has_learned or not isinstance(name, str) or name in self._advertised:
            return False
        others = [one for one in self._advertised if issuers_match(one, name)]
        if others:
            self._names, self._has_learned = dict.fromkeys(others, name), True
        return bool(others)


def _spellings(issuer: str) -> tuple[str, ...]:
    other = issuer.removesuffix("/") if issuer.endswith("/") else f"{issuer}/"
    return (issuer, other) if issuer and issuers_match(issuer, other) else (issuer,)


def json_object(response: httpx2.Response) -> dict[str, Any]:
    """Return the JSON object in a response; an empty one if there is none."""
    try:
        found: Any = from_json(response.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _trusted_hosts(options: ServerOptions) -> TrustedHosts:
    """Return the hosts that the settings of a server name."""
    auth = options.auth or OAuthClientOptions()
    provider = auth.identity_provider.issuer if auth.identity_provider is not None else ""
    return TrustedHosts((options.url, auth.issuer, provider), auth.allowed_hosts)


def _secrets_in(request: httpx2.Request) -> list[str]:
    """Return the secrets in the form that a request sends."""
    form = dict(parse_qsl(request.content.decode("utf-8", "replace")))
    return [form[name] for name in _SECRET_FIELDS if name in form]


def _flow_reason(error: Exception) -> str:
    """Explain why a flow stopped, without what a response held beside its error."""
    if isinstance(error, OAuthFlowError) and not isinstance(error, (OAuthTokenError, OAuthRegistrationError)):
        return str(error)
    if not isinstance(error, (OAuthTokenError, OAuthRegistrationError)):
        return "its authorization server sent something that cannot be read"
    text, brace, body = str(error).partition("{")
    try:
        found: Any = from_json(brace + body) if brace else None
    except ValueError:
        found = None
    said = [found[key] for key in ("error", "error_description") if isinstance(found.get(key), str)] if found else []
    return ": ".join([text.partition(":")[0].rstrip(), *said])


def _not_of_our_flows(_: logging.LogRecord) -> bool:
    return not _IN_FLOW.get()


def _quiet_sdk() -> None:
    """Keep the SDK from logging the errors of our flows with their tracebacks; they are reported once, by us."""
    sdk = logging.getLogger("mcp.client.auth.oauth2")
    if _not_of_our_flows not in sdk.filters:
        sdk.addFilter(_not_of_our_flows)


class KeptTokens:
    """What a flow of the SDK stores."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Nothing: the flow itself knows its client."""


def name_no_resource(flow: OAuthClientProvider) -> None:
    """Have a flow ask for tokens without naming the server: some authorization servers refuse that."""
    # The SDK has no setting for it, so the method of this one flow is replaced.
    flow.context.should_include_resource_param = lambda *_, **__: False  # type: ignore[method-assign]  # as said above


class PersonFlow(OAuthClientProvider):
    """The flow with a login page. Begins with what an earlier login knows, and is good for one login or refresh."""

    def __init__(
        self,
        options: ServerOptions,
        auth: OAuthClientOptions,
        known: Login | None,
        *,
        redirect: str = "",
        ask: Ask | None = None,
    ) -> None:
        """Without `ask`, the flow refreshes the known login."""
        self.kept = KeptTokens()
        self._trusted = _trusted_hosts(options)
        self._auth = auth
        self._known = known
        self._ask = ask
        self._page = ""
        metadata = OAuthClientMetadata(
            redirect_uris=[AnyUrl(redirect or "http://127.0.0.1/oauth/callback")],
            client_name="toolcrib",
            scope=" ".join(auth.scopes) or None,
            application_type="native" if redirect.startswith("http://") else "web",
        )
        super().__init__(
            bare_url(options.url), metadata, self.kept, self._to_page, self._from_page, auth.client_metadata_url or None
        )
        if not auth.resource:
            name_no_resource(self)

    async def _initialize(self) -> None:
        """Take over what the earlier login knows: the SDK would ask for the tokens only, and then take the server for
        its authorization server.
        """
        context, known = self.context, self._known
        context.client_info = self._registered()
        if known is not None:
            context.auth_server_url = known.issuer or None
            if known.tokens:
                context.current_tokens = OAuthToken.model_validate(known.tokens)
            if known.metadata:
                context.oauth_metadata = OAuthMetadata.model_validate(known.metadata)
            if known.resource:
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(known.resource)
        context.token_expiry_time = None if self._ask is not None else 1.0  # long ago: it is to be refreshed
        self._initialized = True

    def _registered(self) -> OAuthClientInformationFull | None:
        """Return the client of the settings, else the one that was registered for an earlier login."""
        auth, known = self._auth, self._known
        if auth.client_id:
            return OAuthClientInformationFull(
                client_id=auth.client_id,
                client_secret=auth.client_secret or None,
                token_endpoint_auth_method=auth.client_auth,
                redirect_uris=None,
                issuer=self._pinned or None,
            )
        if known is None or not known.client:
            return None
        client = OAuthClientInformationFull.model_validate(known.client)
        redirects = [str(uri) for uri in client.redirect_uris or ()]
        wanted = [str(uri) for uri in self.context.client_metadata.redirect_uris or ()]
        return client if self._ask is None or not redirects or set(wanted) <= set(redirects) else None

    @property
    def _pinned(self) -> str:
        """The only issuer that may get the credentials of the settings: the one they name, or the first that did."""
        return self._auth.issuer or (self._known.issuer if self._known is not None and self._auth.client_id else "")

    def _select_authorization_server(self, advertised: list[str]) -> str:
        pinned = self._pinned
        if not pinned:
            return advertised[0]
        found = next((one for one in advertised if issuers_match(one, pinned)), None)
        if found is None:
            raise OAuthFlowError(
                f"The server names another authorization server ({bare_url(advertised[0])}) than {bare_url(pinned)}"
            )
        return found

    async def _perform_authorization(self) -> httpx2.Request:
        context, auth = self.context, self._auth
        metadata = context.oauth_metadata
        # Without any, the SDK takes the server for its authorization server, as in 2025-03-26.
        named = self._pinned or context.auth_server_url or ""
        if named and not (metadata is not None and issuers_match(str(metadata.issuer), named)):
            raise OAuthFlowError(f"No metadata of the authorization server {bare_url(named)} was found")
        if metadata is not None:
            self._check_pkce(metadata)
        if auth.scopes:
            granted = context.current_tokens.scope if context.current_tokens else None
            more = context.client_metadata.scope if granted else None
            context.client_metadata.scope = union_scopes(" ".join(auth.scopes), more)
        self._choose_client_authentication()
        return await super()._perform_authorization()

    def _check_pkce(self, metadata: OAuthMetadata) -> None:
        """Refuse an authorization server that does not say that it checks code challenges (RFC 7636): its codes could
        be used by anyone who gets them. Some that do check them leave it out; the settings can name those.
        """
        methods = metadata.code_challenge_methods_supported
        if methods is None and self._auth.issuer:
            return
        if _PKCE_METHOD not in (methods or ()):
            raise OAuthFlowError(
                f"The authorization server does not say that it supports PKCE ({_PKCE_METHOD})"
                + ("" if methods else "; if it does, name it in auth.issuer")
            )

    async def _refresh_token(self) -> httpx2.Request:
        self._choose_client_authentication()
        return await super()._refresh_token()

    def _choose_client_authentication(self) -> None:
        """Choose how the secret of the settings is sent: the first way that the authorization server takes."""
        metadata, client = self.context.oauth_metadata, self.context.client_info
        if client is None or not client.client_secret or client.token_endpoint_auth_method is not None:
            return
        taken = (metadata.token_endpoint_auth_methods_supported if metadata is not None else None) or ()
        posts = "client_secret_post" in taken and "client_secret_basic" not in taken
        client.token_endpoint_auth_method = "client_secret_post" if posts else "client_secret_basic"

    async def _to_page(self, url: str) -> None:
        metadata = self.context.oauth_metadata
        endpoint = "" if metadata is None else str(metadata.authorization_endpoint)
        if "?" in endpoint:  # the SDK adds a second question mark
            url = f"{endpoint}&{url.removeprefix(f'{endpoint}?')}"
        try:
            problem = self._trusted.problem(HttpUrl.parse(url))
        except ValueError as error:
            problem = str(error)
        if problem:
            raise OAuthFlowError(f"The login page cannot be used: {problem}")
        parts = urlsplit(url)
        more = urlencode(dict(self._auth.parameters))
        self._page = urlunsplit(parts._replace(query=f"{parts.query}&{more}" if more else parts.query))

    async def _from_page(self) -> AuthorizationCodeResult:
        if self._ask is None:
            raise OAuthFlowError("a person must log in")
        return await self._ask(self._page)

    async def revocation(self, login: Login) -> httpx2.Request:
        """Return the request that revokes a login (RFC 7009)."""
        await self._initialize()
        data = {"token": login.refresh_token or login.access_token}
        if self.context.client_info is not None:
            data["client_id"] = self.context.client_info.client_id
        self._choose_client_authentication()
        data, headers = self.context.prepare_token_auth(data, {})
        return httpx2.Request("POST", str(login.metadata["revocation_endpoint"]), data=data, headers=headers)

    def login(self, base: Login) -> Login:
        """Return the login that the flow ended with."""
        context = self.context
        client = context.client_info
        metadata, resource = context.oauth_metadata, context.protected_resource_metadata
        return replace(
            base,
            issuer=str(metadata.issuer) if metadata is not None else self._expected_issuer(),
            tokens={},
            # What the settings say stays there.
            client={} if client is None or self._auth.client_id else plain_model(client),
            metadata={} if metadata is None else plain_model(metadata),
            resource={} if resource is None else plain_model(resource),
            logged_in_at=time.time(),
        ).renewed(plain_model(self.kept.tokens), time.time())


def plain_model(
    model: OAuthToken | OAuthMetadata | OAuthClientInformationFull | ProtectedResourceMetadata | None,
) -> Object:
    return {} if model is None else model.model_dump(mode="json", exclude_none=True)
