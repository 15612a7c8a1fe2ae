"""The requests to one server: with its credentials, through its proxy, along its redirects, and with failures in words.

Secrets (headers, user, password, query) are added here, below everything that logs.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol
from urllib.request import getproxies, proxy_bypass

from toolcrib.protocol.failures import METHOD_NOT_FOUND, ExchangeError, FailureKind
from toolcrib.protocol.headers import METHOD_HEADER, SESSION_HEADER, VERSION_HEADER
from toolcrib.protocol.messages import error_in
from toolcrib.sanitize import MASK
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url
from toolcrib.upstream.transports.base import AutoResetEvent, Message
from toolcrib.upstream.transports.bounds import Bounds
from toolcrib.upstream.transports.http_bodies import discard, read_bounded
from toolcrib.upstream.transports.http_client import DirectClient, HttpClient, HttpUrl, RequestHead, UnsupportedScheme
from toolcrib.upstream.transports.http_connection import UNANSWERED, HttpResponse
from toolcrib.upstream.transports.http_failures import (
    SPEAKS_TLS,
    describe_endpoint_status,
    describe_status,
    retry_after_s,
)

_MESSAGE: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
"""Headers of every POST."""
_PROBE: Final = "server/discover"
_PROTOCOL_HEADERS: Final = frozenset({"accept", "connection", "content-length", "content-type", "transfer-encoding"})
"""Headers that belong to the protocol; those in the options are ignored."""
_SHOW_ALL: Final = {"x-mcp-show-all": "true"}
"""Asks a server that hides tools to list them all."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEPING_METHOD: Final = frozenset({307, 308})
"""Redirects along which a POST stays one."""
_MAX_REDIRECTS: Final = 5
_NOT_FOLLOWED: Final = "not followed; use that URL as the endpoint if it is the intended server"
_UNAUTHORIZED: Final = 401
_REFUSED: Final = frozenset({_UNAUTHORIZED, 403})
_SERVER_STATUSES: Final = frozenset({401, 403, 404, 405, 410})
"""Statuses that concern the server as a whole, not one request; so do those from 500 on."""
_SERVER_ERROR: Final = 500
GONE: Final = frozenset({404, 410})
"""Statuses by which a server says that it does not know a session, whatever else it says."""
SESSION_ENDED: Final = "its session has ended"
ERROR_BOUNDS: Final = Bounds(65536, 65536)
"""Of the body of an error."""
_MAX_ANSWERS: Final = 2
"""How many challenges of a server are answered for one request."""
_MAX_HEADS: Final = 256


class NoAccessToken(ExchangeError):
    """A request was not sent because there is no access token for it."""

    def __init__(self, reason: str, kind: FailureKind = FailureKind.UNSENT) -> None:
        """`reason` is one line without a full stop."""
        super().__init__(kind, reason)


class LoginNeeded(NoAccessToken):
    """A request was not sent, or not accepted, because there is no login that allows it. Nothing ran."""

    def __init__(self, reason: str) -> None:
        """`reason` is one line without a full stop."""
        super().__init__(reason, FailureKind.LOGIN)


class Refusal(NamedTuple):
    """A response by which a server asks for another access token, or for one with more rights."""

    status: int
    www_authenticate: str
    version: str
    """The protocol version of the request; empty if it named none."""
    is_probe: bool = False
    """Whether the request was `server/discover`."""


def refusal_in(response: HttpResponse, headers: Mapping[str, str]) -> Refusal:
    """Return the refusal in the response to a request with these headers."""
    return Refusal(
        response.status,
        response.header(b"www-authenticate"),
        headers.get(VERSION_HEADER, ""),
        headers.get(METHOD_HEADER) == _PROBE,
    )


class AccessTokens(Protocol):
    """Where the access tokens for the requests to one server come from."""

    async def token(self) -> str | None:
        """Return a token; None to try without. Raises `NoAccessToken`."""

    async def after(self, refusal: Refusal, used: str | None) -> str | None:
        """Return a token that should satisfy the server, which refused the used one; None if there is none.

        Raises `NoAccessToken`.
        """


class Reply(NamedTuple):
    """A response, the access token that its request had, and the address that it came from."""

    response: HttpResponse
    token: str | None
    url: HttpUrl


@dataclass(frozen=True, slots=True)
class _Message:
    """What to send, wherever it may have to go."""

    method: str
    headers: Mapping[str, str]
    content: bytes
    session: str | None
    for_caller: bool = False
    timeout_s: float | None = None


class _KnownHead(NamedTuple):
    """A head, and what it was made of. As long as it keeps the headers, nothing else has their identity."""

    url: HttpUrl
    headers: Mapping[str, str]
    session: str | None
    token: str | None
    head: RequestHead


class ServerRequests:
    """Sends requests to one server over its HTTP client. To be closed."""

    def __init__(
        self,
        options: ServerOptions,
        fleet: FleetOptions,
        redact: Redactor,
        tokens: AccessTokens | None,
        refresh_needed: AutoResetEvent,
    ) -> None:
        """`refresh_needed` is set when the server may be in trouble. Raises `ExchangeError` for options that cannot
        work.
        """
        self.url = parse_url(options.url, redact)
        self._has_one_path = options.transport == "http"
        self._secrets = {**_secret_headers(options, self.url), **(_SHOW_ALL if options.show_all else {})}
        self._client = open_client(self.url)
        self._redact = redact
        self._connect_s = fleet.http_connect_timeout_s
        self._tokens = tokens
        self._refresh_needed = refresh_needed
        self._is_answered = False
        """Whether a request ever got a response."""
        self._heads: dict[int, _KnownHead] = {}
        """Those of recent POSTs, by the identity of their headers, which requests share."""

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def send_for_caller(
        self, url: HttpUrl, headers: Mapping[str, str], content: bytes, session: str | None
    ) -> Reply:
        """POST a message of a caller. Raises `ExchangeError`."""
        token = None if self._tokens is None else await self._token()
        waiting = self._client.send_idle(self._head(url, headers, session, token), content)
        if waiting is None:
            return await self.send("POST", url, headers, content, session=session, for_caller=True)
        try:
            response = await waiting
        except ExchangeError as error:
            raise self._noted(error) from None
        reply = Reply(response, token, url)
        if response.status in _REDIRECTS or response.status in _REFUSED:
            message = _Message("POST", headers, content, session, for_caller=True)
            return await self._answered(message, await self._followed(message, reply))
        return reply

    async def send(
        self,
        method: str,
        url: HttpUrl,
        headers: Mapping[str, str],
        content: bytes = b"",
        *,
        session: str | None = None,
        for_caller: bool = False,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request, in a session if there is one, and return the response, which is to be closed.

        Cookies in the response to a caller are not kept. `timeout_s` is how long the response may take to begin.
        Raises `ExchangeError`.
        """
        message = _Message(method, headers, content, session, for_caller=for_caller, timeout_s=timeout_s)
        return await self._answered(message, await self._sent(message, url, await self._token()))

    async def _answered(self, message: "_Message", reply: Reply) -> Reply:
        """Send a message again with another access token, if the server has refused the one that it had."""
        for _ in range(_MAX_ANSWERS):
            if self._tokens is None or reply.response.status not in _REFUSED:
                break
            fresh = await self._token_after(reply, message.headers)
            if fresh is None:
                break
            await discard(reply.response)
            reply = await self._sent(message, reply.url, fresh)
        return reply

    async def _token(self) -> str | None:
        if self._tokens is None:
            return None
        try:
            return await self._tokens.token()
        except NoAccessToken:
            self._refresh_needed.set()
            raise

    async def _token_after(self, reply: Reply, headers: Mapping[str, str]) -> str | None:
        refusal = refusal_in(reply.response, headers)
        try:
            return None if self._tokens is None else await self._tokens.after(refusal, reply.token)
        except NoAccessToken:
            self._refresh_needed.set()
            await discard(reply.response)
            raise

    async def _sent(self, message: "_Message", url: HttpUrl, token: str | None) -> Reply:
        """Send a message along redirects within the origin."""
        return await self._followed(message, await self._sent_once(message, url, token))

    async def _followed(self, message: "_Message", reply: Reply) -> Reply:
        for _ in range(_MAX_REDIRECTS):
            response = reply.response
            if response.status not in _REDIRECTS or not (location := response.header(b"location")):
                return reply
            await discard(response)
            url = self._redirected(message.method, reply.url, response.status, location)
            reply = await self._sent_once(message, url, reply.token)
        raise ExchangeError(FailureKind.STATUS, f"it redirects more than {_MAX_REDIRECTS} times")

    async def _sent_once(self, message: "_Message", url: HttpUrl, token: str | None) -> Reply:
        head = self._new_head(message.method, url, message.headers, message.session, token)
        try:
            response = await self._client.send(
                head,
                message.content,
                connect_s=self._connect_s,
                timeout_s=message.timeout_s,
                keeps_cookies=not message.for_caller,
            )
        except ExchangeError as error:
            raise self._noted(error) from None
        self._is_answered = True
        return Reply(response, token, url)

    def _noted(self, error: ExchangeError) -> ExchangeError:
        """Return the error of an exchange, after it has been noted that the server may be in trouble."""
        self._refresh_needed.set()
        if error.reason == UNANSWERED and not self._is_answered and self.url.scheme == "http":
            return ExchangeError(error.kind, f"{UNANSWERED}{SPEAKS_TLS}")
        return error

    def _head(self, url: HttpUrl, headers: Mapping[str, str], session: str | None, token: str | None) -> RequestHead:
        """Return the head of a POST."""
        known = self._heads.get(id(headers))
        if known is None or known.url is not url or (known.session, known.token) != (session, token):
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            head = self._new_head("POST", url, headers, session, token)
            known = self._heads[id(headers)] = _KnownHead(url, headers, session, token, head)
        return known.head

    def _new_head(
        self, method: str, url: HttpUrl, headers: Mapping[str, str], session: str | None, token: str | None
    ) -> RequestHead:
        found = {**_MESSAGE, **headers} if method == "POST" else dict(headers)
        if session is not None:
            found[SESSION_HEADER] = session
        if self.url.shares_origin(url):
            found |= self._secrets
            if token is not None:
                found["authorization"] = f"Bearer {token}"
        return RequestHead.of(method, url, found.items())

    async def refused(self, reply: Reply, *, in_session: bool, named: str = "") -> Message:
        """Return the JSON-RPC error in the response to a refused message. Raises `ExchangeError` if it has none.

        `named` is the path of the endpoint if a server of the older transport has named it.
        """
        response, status = reply.response, reply.response.status
        found = await read_bounded(response, ERROR_BOUNDS)
        body = found if isinstance(found, bytes) else b""
        message = error_in(body)
        if in_session and is_session_gone(status, message):
            raise ExchangeError(FailureKind.SESSION, SESSION_ENDED)
        # Bad credentials concern the whole server, whatever the body says.
        if message is not None and status != _UNAUTHORIZED:
            return message
        if status in _SERVER_STATUSES or status >= _SERVER_ERROR:
            self._refresh_needed.set()
        headers = response.texts
        if named:
            reason = describe_endpoint_status(named, status, headers, body)
        else:
            reason = describe_status(status, headers, body)
        raise self.status_error(reply, reason)

    def status_error(self, reply: Reply, reason: str) -> ExchangeError:
        """Return the error for a status, without secrets that the server repeats."""
        text = reason.replace(reply.token, MASK) if reply.token else reason
        after_s = retry_after_s(reply.response.texts)
        return ExchangeError(FailureKind.STATUS, self._redact(text), retry_after_s=after_s)

    def _redirected(self, method: str, url: HttpUrl, status: int, location: str) -> HttpUrl:
        """Return where a redirect leads, if it stays within the origin and keeps the request as it is."""
        try:
            target = url.join(location)
        except ValueError as error:
            raise ExchangeError(FailureKind.STATUS, "it redirects to something that is no address") from error
        if not self.url.shares_origin(target) or (method == "POST" and status not in _KEEPING_METHOD):
            raise ExchangeError(FailureKind.STATUS, f"Redirect to {bare_url(target.text)} {_NOT_FOLLOWED}")
        return self.with_query(target)

    def with_query(self, url: HttpUrl) -> HttpUrl:
        """Return an address of the server with the query of the options, unless it has one of its own."""
        if url.query or not (self._has_one_path or url.path == self.url.path):
            return url
        return replace(url, query=self.url.query)


def open_client(url: HttpUrl) -> HttpClient:
    """Return the client for a server, through the proxy that the environment names for it. Raises `ExchangeError`."""
    proxy = proxy_of(url)
    return DirectClient() if proxy is None else proxied_client(proxy)


def proxied_client(proxy: str) -> HttpClient:
    """Return a client whose requests go through a proxy."""
    from toolcrib.upstream.transports.http_proxy import ProxiedClient  # noqa: PLC0415 - few need one, and it is heavy

    return ProxiedClient(proxy)


def proxy_of(url: HttpUrl) -> str | None:
    """Return the proxy that the environment names for the URL's host, if any. Raises `ExchangeError`."""
    proxies = {} if proxy_bypass(url.host) else getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy is not None and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        raise ExchangeError(FailureKind.UNSENT, "the proxy in the environment is not supported")
    return proxy


def parse_url(text: str, redact: Redactor) -> HttpUrl:
    """Read the address of a server. Raises `ExchangeError`."""
    try:
        return HttpUrl.parse(text)
    except UnsupportedScheme as error:
        raise ExchangeError(FailureKind.UNSENT, str(error)) from error
    except ValueError as error:
        raise ExchangeError(FailureKind.UNSENT, f"its url is not valid: {redact(str(error))}") from error


def _secret_headers(options: ServerOptions, url: HttpUrl) -> dict[str, str]:
    """Return the secret headers by lower-case name. Raises `ExchangeError` for one that HTTP cannot send."""
    headers = {}
    if url.user or url.password:
        pair = f"{url.user}:{url.password}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    for name, value in options.headers.items():
        if not (name + value).isascii():
            raise ExchangeError(FailureKind.UNSENT, f'the header "{name}" holds a character that no header can have')
        if name.lower() not in _PROTOCOL_HEADERS and not name.lower().startswith("mcp-"):
            headers[name.lower()] = value
    return headers


def is_session_gone(status: int, message: Message | None) -> bool:
    """Whether a status says by itself that the session of its request is unknown."""
    code = None if message is None else message["error"].get("code")
    return status in GONE and code != METHOD_NOT_FOUND
