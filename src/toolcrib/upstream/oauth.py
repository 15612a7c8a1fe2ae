"""Access tokens for requests to one server: toolcrib as an OAuth client, on the SDK's OAuth flows.

The SDK's providers discover authorization servers, register, and build and check every request of a flow. Here are the
parts around them: tokens that outlive a process, refreshed early and by one process at a time, and flows that wait
for a person outside of any request.
"""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth, issuers_match, union_scopes
from mcp.shared._httpx_utils import RedirectAwareAuth
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import AnyUrl
from pydantic_core import from_json

from toolcrib.errors import StateUnavailable, ToolcribError, mask_secrets
from toolcrib.types import Object
from toolcrib.upstream.guarded_fetch import REQUEST_TIMEOUT_S, GuardedTransport, TrustedHosts
from toolcrib.upstream.http import proxy_of, ssl_context
from toolcrib.upstream.http_pool import AiohttpTransport
from toolcrib.upstream.http_transport import (
    SESSION_HEADER,
    VERSION_HEADER,
    LoginNeeded,
    NoAccessToken,
    describe_transport_error,
    same_origin,
)
from toolcrib.upstream.login_vault import Login, LoginRejected, LoginVault, login_key
from toolcrib.upstream.negotiation import CLIENT_INFO
from toolcrib.upstream.options import OAuthClientOptions, ServerOptions
from toolcrib.upstream.redact import bare_url, bounded, plain

logger = logging.getLogger(__name__)

_UNAUTHORIZED: Final = httpx2.codes.UNAUTHORIZED
_FORBIDDEN: Final = httpx2.codes.FORBIDDEN
_METHOD_HEADER: Final = "mcp-method"
_MAX_ANSWERS: Final = 2
"""How many challenges of a server are answered for one request."""
_REFRESH_TIMEOUT_S: Final = 15.0
"""For a refresh with all its redirects; shorter than the lease under which it runs."""
_MAX_REASON: Final = 300
_MAX_CHALLENGE: Final = 4096
_FINAL_ERRORS: Final = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
"""Answers to a refresh after which the same request would fail again."""
_NEW_CLIENT: Final = "invalid_client"
_FLOW_ERRORS: Final = (
    OAuthFlowError,
    OAuthTokenError,
    OAuthRegistrationError,
    httpx2.InvalidURL,
    ValueError,  # the SDK's models refuse what an authorization server says
)
_NOT_LOGGED_IN: Final = "it needs a login"
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

    status: int = _UNAUTHORIZED
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
    def is_step_up(self) -> bool:
        """Whether the server wants more scopes than the token has."""
        return self.status == _FORBIDDEN


class OAuthTransport(httpx2.AsyncBaseTransport):
    """Adds access tokens to the requests to one server, and gets better ones if it refuses them."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, url: str, credentials: "ServerCredentials") -> None:
        self._inner = inner
        self._url = httpx2.URL(url)
        self._credentials = credentials

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response. Raises `LoginNeeded` if a person must log in first."""
        if not same_origin(self._url, request.url):
            return await self._inner.handle_async_request(request)
        await request.aread()
        used = await self._credentials.token()
        response = await self._inner.handle_async_request(_with_token(request, used))
        for _ in range(_MAX_ANSWERS):
            challenge = _challenge(request, response)
            fresh = None if challenge is None else await self._credentials.answer(challenge, used)
            if fresh is None:
                break
            await response.aclose()
            used = fresh
            response = await self._inner.handle_async_request(_with_token(request, used))
        return response


def _with_token(request: httpx2.Request, token: str | None) -> httpx2.Request:
    if token is not None:
        request.headers["authorization"] = f"Bearer {token}"
    return request


def _challenge(request: httpx2.Request, response: httpx2.Response) -> Challenge | None:
    """Return the challenge in a response: any 401, and a 403 for lack of scopes."""
    lacks_scope = (
        response.status_code == _FORBIDDEN and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    )
    # A server that does not know the probe may want every right for it.
    is_probe = request.headers.get(_METHOD_HEADER) == "server/discover"
    if response.status_code != _UNAUTHORIZED and (is_probe or not lacks_scope):
        return None
    header = response.headers.get("www-authenticate", "")[:_MAX_CHALLENGE]
    return Challenge(response.status_code, header, request.headers.get(VERSION_HEADER, ""))


async def first_challenge(options: ServerOptions) -> Challenge:
    """Return what the server answers to a request without a token, if it refuses it; else a challenge that says
    nothing. Raises `httpx2.TransportError`.
    """
    version = LATEST_HANDSHAKE_VERSION
    headers = {"accept": "application/json, text/event-stream", VERSION_HEADER: version}
    start = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT_INFO}
    transport = AiohttpTransport(ssl_context(), proxy=proxy_of(httpx2.URL(options.url)))
    async with httpx2.AsyncClient(transport=transport, headers=options.headers, trust_env=False) as client:
        with anyio.move_on_after(REQUEST_TIMEOUT_S):
            # Some servers let everybody begin, and ask for a token when the tools are listed.
            for method, params in (("initialize", start), ("tools/list", {})):
                message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                request = client.build_request("POST", bare_url(options.url), json=message, headers=headers)
                response = await client.send(request, stream=True)
                await response.aclose()
                if (found := _challenge(request, response)) is not None:
                    return found
                if SESSION_HEADER in response.headers:
                    headers[SESSION_HEADER] = response.headers[SESSION_HEADER]
    return Challenge()


# -- flows -------------------------------------------------------------------------------------------------------------


class FlowRunner:
    """Runs the SDK's OAuth flows for one server, outside of the requests that need them."""

    def __init__(self, options: ServerOptions) -> None:
        auth = options.auth or OAuthClientOptions()
        self._url = bare_url(options.url)
        self._trusted = TrustedHosts((options.url, auth.issuer), auth.allowed_hosts)

    async def run(
        self,
        flow: RedirectAwareAuth,
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
        _quiet_sdk()
        try:
            async with self._client() as client:
                steps = flow.async_auth_flow(request)
                try:
                    outgoing = await anext(steps)
                    while outgoing is not request or given is not None:
                        if outgoing is request and given is not None:
                            response, given = given, None
                        else:
                            response = await client.send(outgoing, follow_redirects=False)
                            check(response)
                        outgoing = await steps.asend(response)
                except StopAsyncIteration:
                    pass
                finally:
                    await steps.aclose()
        except httpx2.TransportError as error:
            raise LoginFailed(f"its authorization server cannot be used: {_transport_reason(error)}") from error
        except _FLOW_ERRORS as error:
            raise LoginFailed(_flow_reason(error)) from error
        finally:
            _IN_FLOW.reset(token)

    async def send(self, request: httpx2.Request) -> int:
        """Send a single request, and return the status of its response. Raises `LoginFailed`."""
        try:
            async with self._client() as client:
                return (await client.send(request, follow_redirects=False)).status_code
        except httpx2.TransportError as error:
            raise LoginFailed(f"its authorization server cannot be used: {_transport_reason(error)}") from error

    def _client(self) -> httpx2.AsyncClient:
        transport = GuardedTransport(ssl_context(), self._trusted, proxy=proxy_of(httpx2.URL(self._url)))
        return httpx2.AsyncClient(transport=transport, trust_env=False)


def _transport_reason(error: httpx2.TransportError) -> str:
    known = describe_transport_error(error)
    return _safe(str(error)) if isinstance(error, httpx2.UnsupportedProtocol) else known


def _flow_reason(error: Exception) -> str:
    """Explain why a flow stopped, without what a response held beside its error."""
    if isinstance(error, OAuthFlowError) and not isinstance(error, (OAuthTokenError, OAuthRegistrationError)):
        return _safe(str(error))
    if not isinstance(error, (OAuthTokenError, OAuthRegistrationError)):
        return "its authorization server sent something that cannot be read"
    text, brace, body = str(error).partition("{")
    try:
        found: Any = from_json(brace + body) if brace else None
    except ValueError:
        found = None
    said = [found[key] for key in ("error", "error_description") if isinstance(found.get(key), str)] if found else []
    return _safe(": ".join([text.partition(":")[0].rstrip(), *said]))


def _safe(text: str) -> str:
    """Return a message of the SDK or of an authorization server as one line without secrets and a full stop."""
    return bounded(mask_secrets(plain(text)), _MAX_REASON).rstrip(".")


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


class _PersonFlow(OAuthClientProvider):
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
        if self._pinned and not (metadata is not None and issuers_match(str(metadata.issuer), self._pinned)):
            raise OAuthFlowError(f"No metadata of the authorization server {bare_url(self._pinned)} was found")
        if auth.scopes:
            granted = context.current_tokens.scope if context.current_tokens else None
            more = context.client_metadata.scope if granted else None
            context.client_metadata.scope = union_scopes(" ".join(auth.scopes), more)
        self._choose_client_authentication()
        return await super()._perform_authorization()

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


# -- credentials -------------------------------------------------------------------------------------------------------


class ServerCredentials(ABC):
    """Where the access tokens of one principal for one server come from."""

    @abstractmethod
    async def token(self) -> str | None:
        """Return a token that has not expired, refreshed if need be; None to try without. Raises `LoginNeeded`, and
        `NoAccessToken` if there should be one but cannot be now.
        """

    @abstractmethod
    async def answer(self, challenge: Challenge, used: str | None) -> str | None:
        """Return a token that should satisfy the server, which refused the used one; None if there is no better one.

        Raises `LoginNeeded` if a person must log in first.
        """


class StoredLogin(ServerCredentials):
    """A person's login, kept in the vault."""

    def __init__(
        self, options: ServerOptions, auth: OAuthClientOptions, vault: LoginVault, principal: str = ""
    ) -> None:
        self.options = options
        self.principal = principal
        self.key = login_key(options, principal)
        self.challenge = Challenge()
        """The last one that only a person could answer."""
        self.changed = anyio.Event()
        """Set, and replaced, when there is a new login."""
        self.refused = 0.0
        """`logged_in_at` when it was last found that a person must log in: a login that differs may be tried."""
        self._auth = auth
        self._vault = vault
        self._login: Login | None = None
        self._loaded = False
        self._lock = anyio.Lock()
        self._rejected_after_refresh = ""
        """A token that was new when the server refused it."""
        self._stepped_up: set[str] = set()
        """The scopes for which a person has logged in again."""

    @property
    def logged_in_at(self) -> float:
        """When the login was made that this process knows; 0 without one that can be used."""
        login = self._login
        return 0.0 if login is None or login.problem else login.logged_in_at

    @property
    def until_refresh_s(self) -> float:
        """How long until the login is to be refreshed, in seconds."""
        login = self._login
        if login is None or login.problem or login.refresh_at is None:
            return math.inf
        return login.refresh_at - time.time()

    @property
    def runner(self) -> FlowRunner:
        return FlowRunner(self.options)

    async def token(self) -> str | None:
        login = self._login
        now = time.time()
        if login is not None and login.is_valid(now) and not login.needs_refresh(now):
            return login.access_token
        if login is not None and login.is_valid(now) and self._lock.locked():
            return login.access_token  # another task refreshes it right now
        async with self._lock:
            login = await self.current()
            if login is None:
                return None
            if login.problem:
                raise self._needed(f"{_NOT_LOGGED_IN}: {login.problem}")
            if login.needs_refresh(time.time()) and login.refresh_token:
                login = await self._refresh(login)
            return login.access_token if login is not None else None

    async def current(self) -> Login | None:
        """Return the login as this process knows it, read from the vault if it has expired here. Raises
        `NoAccessToken` if the vault cannot be read.
        """
        login = self._login
        if self._loaded and login is not None and login.is_valid(time.time()) and not login.needs_refresh(time.time()):
            return login
        return await self.reload()

    async def reload(self) -> Login | None:
        """Read the login from the vault, where another process may have stored a newer one."""
        try:
            login = await self._vault.load(self.key)
        except (StateUnavailable, ToolcribError) as error:
            raise NoAccessToken(error.message.rstrip(".")) from error
        self._loaded = True
        self._adopt(login)
        return login

    def _adopt(self, login: Login | None) -> None:
        before, self._login = self._login, login
        if login is not None and not login.problem and (before is None or before.logged_in_at != login.logged_in_at):
            self.changed.set()
            self.changed = anyio.Event()

    async def _refresh(self, login: Login, *, is_needed: bool = False) -> Login | None:
        """Return the refreshed login; the same one if that failed and it is still valid, unless the server refused it.

        Raises `LoginNeeded` and `NoAccessToken`.
        """
        try:
            fresh = await self._vault.refresh(self.key, login, self._fetch)
        except LoginRejected as error:
            self._login = replace(login, problem=str(error))
            raise self._needed(f"{_NOT_LOGGED_IN}: {error}") from error
        except (LoginFailed, ToolcribError) as error:
            if login.is_valid(time.time()) and not is_needed:
                return login
            reason = error.reason if isinstance(error, LoginFailed) else error.message.rstrip(".")
            raise NoAccessToken(f"its login could not be refreshed: {reason}") from error
        self._adopt(fresh)
        return fresh

    async def _fetch(self, login: Login) -> Object:
        """Get new tokens for the refresh token. Raises `LoginRejected` or `LoginFailed`."""
        flow = _PersonFlow(self.options, self._auth, login)
        with anyio.move_on_after(_REFRESH_TIMEOUT_S):
            await self.runner.run(flow, None, _check_refresh)
        if flow.kept.tokens is None:
            raise LoginFailed("its authorization server did not answer with tokens")
        return plain_model(flow.kept.tokens)

    async def answer(self, challenge: Challenge, used: str | None) -> str | None:
        async with self._lock:
            login = await self.reload()
            if login is not None and not login.problem and login.access_token != used and login.is_valid(time.time()):
                return login.access_token
            if challenge.is_step_up:
                self._step_up(challenge, login)
                return None
            can_refresh = login is not None and not login.problem and bool(login.refresh_token)
            if login is not None and can_refresh and used != self._rejected_after_refresh:
                fresh = await self._refresh(login, is_needed=True)
                if fresh is not None and fresh.access_token != used:
                    self._rejected_after_refresh = fresh.access_token
                    return fresh.access_token
            self.challenge = challenge
            raise self._needed(
                _NOT_LOGGED_IN if login is None else f"{_NOT_LOGGED_IN}: it does not accept the last one"
            )

    def _needed(self, reason: str) -> LoginNeeded:
        self.refused = self.logged_in_at
        return LoginNeeded(reason)

    def _step_up(self, challenge: Challenge, login: Login | None) -> None:
        """Have a person log in again for more scopes, once for each set of them."""
        wanted = challenge.scope
        has_all = login is not None and bool(wanted) and set(wanted.split()) <= set(login.scope.split())
        if has_all or wanted in self._stepped_up:
            return
        self.challenge = challenge
        raise self._needed(f"{_NOT_LOGGED_IN} with more rights: {_safe(wanted) or 'it does not say which'}")

    async def log_in(self, redirect: str, ask: Ask) -> Login:
        """Have a person log in, and store the login. Raises `LoginFailed` or `ToolcribError`."""
        known = await self._vault.load(self.key)
        challenge = self.challenge
        if known is not None and _NEW_CLIENT in known.problem:
            known = replace(known, client={})
        flow = _PersonFlow(self.options, self._auth, known, redirect=redirect, ask=ask)
        await self.runner.run(flow, challenge)
        if flow.kept.tokens is None:
            raise LoginFailed("its authorization server did not answer with tokens")
        base = Login(server=self.options.name, url=bare_url(self.options.url), principal=self.principal)
        login = flow.login(base)
        await self._vault.save(self.key, login)
        if challenge.is_step_up:
            self._stepped_up.add(challenge.scope)
        self.challenge = Challenge()
        self._loaded = True
        self._adopt(login)
        return login

    async def log_out(self) -> bool:
        """Delete the login; returns whether the authorization server has revoked it."""
        login = await self._vault.load(self.key)
        await self._vault.delete(self.key)
        self._login = None
        if login is None or not login.metadata.get("revocation_endpoint"):
            return False
        flow = _PersonFlow(self.options, self._auth, login)
        try:
            return await self.runner.send(await flow.revocation(login)) == httpx2.codes.OK
        except LoginFailed as error:
            logger.info("%s: the login was not revoked: %s", self.options.name, error.reason)
            return False


def _check_refresh(response: httpx2.Response) -> None:
    """Raise `LoginRejected` for an answer that ends the login, and `LoginFailed` for any other refusal."""
    if response.status_code == httpx2.codes.OK:
        return
    try:
        body: Any = from_json(response.content)
    except ValueError:
        body = None
    code = body.get("error") if isinstance(body, dict) else None
    if isinstance(code, str) and code in _FINAL_ERRORS:
        raise LoginRejected(f"its authorization server has ended the last one ({code})")
    raise LoginFailed(f"its authorization server returned HTTP {response.status_code}")
