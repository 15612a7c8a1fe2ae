"""Say why an exchange over HTTP failed, in words for people: from its status, its body, or the error underneath.

Each text is one line without a full stop.
"""

import re
import socket
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

from pydantic_core import from_json

from toolcrib.sanitize import MAX_REASON, one_line

NOT_IN_TIME: Final = "no connection in time"
NO_DATA: Final = "no data in time"
INVALID_REQUEST: Final = "the url or a header contains a character that HTTP does not allow"
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
SPEAKS_TLS: Final = '; if this port speaks TLS, begin the url with "https://"'
_TITLE: Final = re.compile(rb"<title[^>]{0,200}>(?P<title>[^<]*)<", re.IGNORECASE)
_MAX_TITLE: Final = 80
_MESSAGE_KEYS: Final = ("error_description", "message", "detail", "error")
_MAX_RETRY_AFTER_S: Final = 3600.0


# -- statuses ----------------------------------------------------------------------------------------------------------


def describe_status(status: int, headers: Mapping[str, str], body: bytes, *, sse: bool = False) -> str:
    """Explain an HTTP error status, given the headers by lower-case name; `sse` if the older transport was tried.

    >>> describe_status(429, {"retry-after": "30"}, b"")
    'HTTP 429 Too Many Requests, retry after 30'
    """
    text = _status_line(status, headers)
    advice = (_ADVICE_SSE if sse else _ADVICE).get(status, "")
    if is_web_page(headers) and status == _FORBIDDEN:
        return f"{text}: {_web_page(body)} came back, {_FIREWALL}"
    if is_web_page(headers) and not advice:
        return f"{text}: {describe_web_page(body)}"
    return f"{text}: {advice}{_said(headers, body)}" if advice else f"{text}{_said(headers, body)}"


def describe_endpoint_status(path: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Explain an error status of the endpoint for messages that a server of the older transport has named.

    >>> describe_endpoint_status("/v1/messages", 404, {}, b"")
    'the message endpoint /v1/messages that it named answered 404 Not Found'
    """
    if status not in _WRONG_PATH:
        return describe_status(status, headers, body)
    line = _status_line(status, headers).removeprefix("HTTP ")
    return f"the message endpoint {path} that it named answered {line}{_said(headers, body)}"


def _status_line(status: int, headers: Mapping[str, str]) -> str:
    try:
        text = f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        text = f"HTTP {status}"
    after = headers.get("retry-after")
    return text if after is None else f"{text}, retry after {after}"


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return how long a response asks to wait, in seconds, at most an hour; 0 if it does not say.

    >>> retry_after_s({"retry-after": "2"}), retry_after_s({"retry-after": "soon"})
    (2.0, 0.0)
    """
    text = headers.get("retry-after", "").strip()
    try:
        found = float(text) if text.isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(found, 0.0), _MAX_RETRY_AFTER_S)


def is_web_page(headers: Mapping[str, str]) -> bool:
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


def _said(headers: Mapping[str, str], body: bytes) -> str:
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


# -- errors of a connection --------------------------------------------------------------------------------------------


def describe_connect_error(error: Exception) -> str:
    """Explain why there is no connection.

    >>> describe_connect_error(ConnectionRefusedError(111, "Connection refused"))
    'connection refused'
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {(error.verify_message or 'it could not be verified').rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return "no TLS connection; check that the url begins with the right scheme"
    if isinstance(error, socket.gaierror):
        return "its host name is unknown; check the url"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return "no connection; the host cannot be reached"
