"""Why an HTTP exchange failed, in words that say what to do about it."""

import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

import httpx2
from pydantic_core import from_json

_ADVICE: Final = {
    401: "its credentials are missing or were refused; check the headers",
    403: "these credentials do not give access to it; check the headers",
    404: 'there is no MCP endpoint at this path; check the url, or set type "sse" for an older server',
    405: 'this path does not take MCP requests; check the url, or set type "sse" for an older server',
    407: "the proxy asks for credentials",
}
_NO_STREAM: Final = 'there is no event stream of an older server at this path; check the url, or set type "http"'
_ADVICE_SSE: Final = {**_ADVICE, **dict.fromkeys((400, 404, 405, 406), _NO_STREAM)}
NO_MESSAGE: Final = "its answer says that it is JSON, but is no JSON-RPC message; check the url"
_TELLING: Final = ("error_description", "message", "detail", "error")


def of_status(status: int, headers: httpx2.Headers, body: bytes, *, sse: bool = False) -> str:
    """What an HTTP error status says; `sse` where the older transport was tried.

    >>> of_status(429, httpx2.Headers({"retry-after": "30"}), b"")
    'HTTP 429 Too Many Requests, retry after 30'
    """
    try:
        told = f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        told = f"HTTP {status}"
    if (after := headers.get("retry-after")) is not None:
        told += f", retry after {after}"
    said = _said(body)
    advice = (_ADVICE_SSE if sse else _ADVICE).get(status, "")
    return ": ".join(part for part in (told, advice) if part) + (f' (it said "{said}")' if said else "")


def _said(body: bytes) -> str:
    """The explanation in a JSON body, where it has one at a usual place."""
    try:
        value: Any = from_json(body)
    except ValueError:
        return ""
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        value = value["error"]
    if not isinstance(value, dict):
        return ""
    return next((value[key] for key in _TELLING if isinstance(value.get(key), str)), "")


def of_error(error: httpx2.TransportError) -> str:
    """What broke, by the deepest cause that says something.

    >>> of_error(httpx2.ReadError(""))
    'the connection broke off'
    """
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "no TLS connection; check that the url begins with the right scheme"
        if isinstance(cause, socket.gaierror):
            return "its host name is not known; check the url"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
    return next((told for kind, told in _BROKEN if isinstance(error, kind)), "the connection broke off")


_BROKEN: Final = (
    (httpx2.ConnectTimeout, "no connection in time"),
    (httpx2.PoolTimeout, "no free connection in time"),
    (httpx2.TimeoutException, "no data in time"),
    (httpx2.ProxyError, "the proxy refused the connection"),
    (httpx2.ConnectError, "no connection; the host cannot be reached"),
    (httpx2.RemoteProtocolError, "the connection was closed without an answer"),
    (httpx2.LocalProtocolError, "the url or a header holds a character that HTTP does not allow"),
    (httpx2.UnsupportedProtocol, "the url must begin with http:// or https://"),
)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from; deepest last."""
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
