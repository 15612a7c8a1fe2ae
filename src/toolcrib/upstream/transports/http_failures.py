"""Say why an exchange over HTTP failed, in words for people: from its status, its body, or the error underneath.

Each text is one line without a full stop. The errors underneath are those of the HTTP library in use; what it raises
for each failure is known from running it, not from its documentation.
"""

import re
import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

import httpx2
from pydantic_core import from_json

from toolcrib.sanitize import MASK, MAX_REASON, one_line
from toolcrib.upstream.transports.http_connection import BadResponse
from toolcrib.upstream.transports.http_pool import ProxyFailure

NOT_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
)
"""Errors after which the server provably got no request."""
_FORBIDDEN: Final = 403
_ADVICE: Final = {
    401: "its credentials are missing or were rejected; check the headers",
    _FORBIDDEN: "these credentials do not give access to it; check the headers",
    404: 'there is no MCP endpoint at this path; check the url, or set type "sse" for an older server',
    405: 'this path does not accept MCP requests; check the url, or set type "sse" for an older server',
    407: "the proxy requires credentials",
}
_NO_STREAM: Final = 'there is no event stream of an older server at this path; check the url, or set type "http"'
_ADVICE_SSE: Final = {**_ADVICE, **dict.fromkeys((400, 404, 405, 406), _NO_STREAM)}
_WRONG_PATH: Final = (404, 405, 410)
_FIREWALL: Final = "as a firewall sends one; check the url and the headers"
_SPEAKS_TLS: Final = '; if this port speaks TLS, begin the url with "https://"'
_TITLE: Final = re.compile(rb"<title[^>]{0,200}>(?P<title>[^<]*)<", re.IGNORECASE)
_MAX_TITLE: Final = 80
_MESSAGE_KEYS: Final = ("error_description", "message", "detail", "error")
_MAX_RETRY_AFTER_S: Final = 3600.0
_ERROR_TEXTS: Final = (
    (httpx2.ConnectTimeout, "no connection in time"),
    (httpx2.PoolTimeout, "no free connection in time"),
    (httpx2.TimeoutException, "no data in time"),
    (httpx2.ConnectError, "no connection; the host cannot be reached"),
    (httpx2.RemoteProtocolError, "the connection was closed without an answer"),
    (httpx2.LocalProtocolError, "the url or a header contains a character that HTTP does not allow"),
    (httpx2.UnsupportedProtocol, "the url must begin with http:// or https://"),
)


class NoAccessToken(httpx2.ConnectError):
    """A request was not sent because there is no access token for it."""

    def __init__(self, reason: str) -> None:
        """`reason` is one line without a full stop."""
        super().__init__(reason)
        self.reason = reason


class LoginNeeded(NoAccessToken):
    """A request was not sent, or not accepted, because there is no login that allows it. Nothing ran."""


# -- statuses ----------------------------------------------------------------------------------------------------------


def describe_status(status: int, headers: httpx2.Headers, body: bytes, *, sse: bool = False) -> str:
    """Explain an HTTP error status; `sse` if the older transport was tried.

    >>> describe_status(429, httpx2.Headers({"retry-after": "30"}), b"")
    'HTTP 429 Too Many Requests, retry after 30'
    """
    text = _status_line(status, headers)
    advice = (_ADVICE_SSE if sse else _ADVICE).get(status, "")
    if is_web_page(headers) and status == _FORBIDDEN:
        return f"{text}: {_web_page(body)} came back, {_FIREWALL}"
    if is_web_page(headers) and not advice:
        return f"{text}: {describe_web_page(body)}"
    return f"{text}: {advice}{_said(headers, body)}" if advice else f"{text}{_said(headers, body)}"


def describe_endpoint_status(path: str, status: int, headers: httpx2.Headers, body: bytes) -> str:
    """Explain an error status of the endpoint for messages that a server of the older transport has named.

    >>> describe_endpoint_status("/v1/messages", 404, httpx2.Headers(), b"")
    'the message endpoint /v1/messages that it named answered 404 Not Found'
    """
    if status not in _WRONG_PATH:
        return describe_status(status, headers, body)
    line = _status_line(status, headers).removeprefix("HTTP ")
    return f"the message endpoint {path} that it named answered {line}{_said(headers, body)}"


def _status_line(status: int, headers: httpx2.Headers) -> str:
    try:
        text = f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        text = f"HTTP {status}"
    after = headers.get("retry-after")
    return text if after is None else f"{text}, retry after {after}"


def retry_after_s(headers: httpx2.Headers) -> float:
    """Return how long a response asks to wait, in seconds, at most an hour; 0 if it does not say.

    >>> retry_after_s(httpx2.Headers({"retry-after": "2"})), retry_after_s(httpx2.Headers({"retry-after": "soon"}))
    (2.0, 0.0)
    """
    text = headers.get("retry-after", "").strip()
    try:
        found = float(text) if text.isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(found, 0.0), _MAX_RETRY_AFTER_S)


def is_web_page(headers: httpx2.Headers) -> bool:
    """Whether a response is a page for people."""
    return headers.get("content-type", "").lower().startswith("text/html")


def describe_web_page(body: bytes) -> str:
    """Explain an answer that is a page for people, by its title.

    >>> describe_web_page(b"<html><title>Sign in</title>")
    'a web page ("Sign in") came back, not an MCP message; check the url'
    """
    return f"{_web_page(body)} came back, not an MCP message; check the url"


def _web_page(body: bytes) -> str:
    found = _TITLE.search(body)
    title = " ".join(found["title"].decode(errors="replace").split()) if found else ""
    return f'a web page ("{title[:_MAX_TITLE]}")' if title else "a web page"


def without_token(request: httpx2.Request, text: str) -> str:
    """Return what a server says, without the access token of the request."""
    token = request.headers.get("authorization", "").partition(" ")[2]
    return text.replace(token, MASK) if token else text


def _said(headers: httpx2.Headers, body: bytes) -> str:
    """Quote the explanation in a body: JSON that has one in a usual place, or plain text."""
    if headers.get("content-type", "").lower().startswith("text/plain"):
        detail = one_line(body.decode(errors="replace"), MAX_REASON)
    else:
        detail = _json_message(body)
    return f' (its message: "{detail}")' if detail else ""


def _json_message(body: bytes) -> str:
    try:
        value: Any = from_json(body, cache_strings="keys")
    except ValueError:
        return ""
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        value = value["error"]
    if not isinstance(value, dict):
        return ""
    return next((value[key] for key in _MESSAGE_KEYS if isinstance(value.get(key), str)), "")


# -- errors of a transport ---------------------------------------------------------------------------------------------


def describe_transport_error(error: httpx2.TransportError, *, maybe_tls: bool = False) -> str:
    """Explain a transport error by its deepest known cause. `maybe_tls` if a port that never answered in plain HTTP may
    expect TLS.

    >>> describe_transport_error(httpx2.ReadError(""))
    'the connection broke off'
    """
    for cause in _causes(error):
        if isinstance(cause, NoAccessToken | ProxyFailure | BadResponse) and str(cause):
            return str(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _describe_certificate_error(error)
        if isinstance(cause, ssl.SSLError):
            return "no TLS connection; check that the url begins with the right scheme"
        if isinstance(cause, socket.gaierror):
            return "its host name is unknown; check the url"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
    text = next((text for kind, text in _ERROR_TEXTS if isinstance(error, kind)), "the connection broke off")
    return f"{text}{_SPEAKS_TLS}" if maybe_tls and isinstance(error, httpx2.RemoteProtocolError) else text


def _describe_certificate_error(error: BaseException) -> str:
    """Say what is wrong with a certificate. Only the innermost error knows: aiohttp's shares its base class."""
    messages = (getattr(cause, "verify_message", "") for cause in _causes(error))
    message: str = next((message for message in messages if message), "it could not be verified")
    return f"its certificate is not trusted: {message.rstrip('.')}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, deepest last."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        cause = left.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        left += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            left += cause.exceptions
