"""Answers `tools/call` and `tools/list` over HTTP without the SDK's transport, through the same handlers.

The SDK validates and copies each message several times, which takes longer than the call itself. Only requests whose
every part is certain to be valid are answered here; any other one, wrong ones among them, goes to the SDK, which says
what is wrong with it.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from mcp.server.streamable_http import check_accept_headers
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import ASGIApp, Scope, Send

from toolcrib.protocol.failures import RpcError
from toolcrib.protocol.params import read_envelope
from toolcrib.server.auth.authentication import OWN_CREDENTIAL_KEY
from toolcrib.server.context import refusal_status
from toolcrib.server.exchange import REPLICA_KEY, SESSION_HEADER, Exchange, HttpHead, http_head, request_caller
from toolcrib.server.handlers import ToolServer
from toolcrib.server.plain_connection import PlainAnswer, SendEvent
from toolcrib.tracing import TRACING
from toolcrib.types import LOCAL, Caller, Object

_JSON: Final = b"application/json"
_OK: Final = 200
_ROUTING_HEADERS: Final = frozenset({b"mcp-protocol-version", b"mcp-method", b"mcp-name"})
_READ_HEADERS: Final = _ROUTING_HEADERS | {b"content-type", b"accept"}
_REQUEST_KEYS: Final = {"jsonrpc", "id", "method", "params"}
_PLAIN_KEYS: Final = {"content", "isError", "structuredContent", "resultType"}
_TEXT_KEYS: Final = {"type", "text"}
_ENCODED_NAME: Final = "=?"
"""How a header begins whose value is encoded."""
_PARAMS: Final = {"tools/call": frozenset({"name", "arguments", "_meta"}), "tools/list": frozenset({"cursor", "_meta"})}
"""The parts of each method's params that are understood here."""
_ENVELOPE: Final = (PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY)
_ENVELOPE_KEYS: Final = frozenset(_ENVELOPE)
_STREAM_KEYS: Final = ("progressToken", "progress_token", LOG_LEVEL_META_KEY)
"""A request with one of these may want notifications before its response."""
_RESERVED_META: Final = "io.modelcontextprotocol/"
_MAX_ENVELOPES: Final = 256
_MAX_KEPT_CHARS: Final = 4_096
"""Of an envelope that is kept; a longer one is checked each time."""


class RequestHead(NamedTuple):
    """The head of a request that needs no layer of the app."""

    version: str
    method: str
    """Empty for a request of a session, whose body alone has it."""
    name: str
    """The value of `Mcp-Name`; empty without one."""
    session: str | None
    scope: Scope
    """The ASGI scope of the request, as far as handlers read it."""


class DirectRequest(NamedTuple):
    """One request, with what the layers of the app have found out about it."""

    message: Mapping[str, Any]
    version: str
    capabilities: Object
    """What the client declared."""
    http: HttpHead
    caller: Caller
    session_id: str | None


class DirectMethods:
    """What answers such requests. Safe to use for as long as the server."""

    def __init__(self, server: ToolServer, *, replica: str | None = None) -> None:
        """`replica` is the id of this process, if others may serve the same address."""
        self._server = server
        self._engine = server.engine
        self._replica = replica
        self._envelopes: dict[str, Object | None] = {}
        """What the client declares, by its part of `_meta`; None for an invalid one."""

    def app(self, scope: Scope, body: bytes) -> ASGIApp | None:
        """What answers a request; None if it has to be left to the SDK."""
        request = self._read(scope, body)
        if request is None:
            return None
        return lambda _scope, _receive, send: self.respond(request, send)

    def read_plain(self, head: RequestHead, caller: Caller, body: bytes) -> DirectRequest | None:
        """Read a request to which the layers of the app would add nothing but the caller; None as for `app`."""
        if TRACING.is_on or not self._server.is_unchanged or (self._replica is not None and head.session is not None):
            return None
        message = _read_message(head.method, head.name, body)
        declared = None if message is None else self._declared(message["params"]["_meta"], head.version)
        if message is None or declared is None:
            return None
        scope = head.scope if self._replica is None else {**head.scope, REPLICA_KEY: self._replica}
        http = http_head(scope if caller is LOCAL else {**scope, OWN_CREDENTIAL_KEY: True})
        return DirectRequest(message, head.version, declared, http, caller, head.session)

    def _read(self, scope: Scope, body: bytes) -> DirectRequest | None:
        """Read a request of 2026-07-28; None if it is not certain that it can be answered here."""
        if scope["method"] != "POST" or TRACING.is_on or not self._server.is_unchanged:
            return None
        headers = _read_headers(scope)
        if headers is None:
            return None
        version = headers["mcp-protocol-version"]
        message = _read_message(headers["mcp-method"], headers.get("mcp-name", ""), body)
        declared = None if message is None else self._declared(message["params"]["_meta"], version)
        if message is None or declared is None:
            return None
        http = http_head(scope)
        return DirectRequest(message, version, declared, http, request_caller(scope), http.headers.get(SESSION_HEADER))

    def _declared(self, meta: Any, version: str) -> Object | None:
        """What the client declares that `_meta` describes; None if it is invalid, or wants more than a response."""
        if not isinstance(meta, dict) or meta.get(PROTOCOL_VERSION_META_KEY) != version:
            return None
        envelope = meta
        if not meta.keys() <= _ENVELOPE_KEYS:
            if any(key in _STREAM_KEYS or (key.startswith(_RESERVED_META) and key not in _ENVELOPE) for key in meta):
                return None
            envelope = {key: meta[key] for key in _ENVELOPE if key in meta}
        key = repr(envelope)
        if len(key) > _MAX_KEPT_CHARS:
            return _read_envelope(envelope)
        if key not in self._envelopes:
            if len(self._envelopes) >= _MAX_ENVELOPES:
                self._envelopes.clear()
            self._envelopes[key] = _read_envelope(envelope)
        return self._envelopes[key]

    async def respond(self, request: DirectRequest, send: Send) -> None:
        """Answer a request as an ASGI app does."""
        status, body, lines = await self.answer(request)
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", _JSON)]
        headers += [(name, value) for name, _, value in (line.partition(b": ") for line in lines.splitlines())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def answer(self, request: DirectRequest, _: SendEvent | None = None) -> PlainAnswer:
        """Return the answer to a request, which has no events before it."""
        message, version, capabilities, http, caller, session_id = request
        exchange = Exchange(
            method=message["method"],
            params=message["params"],
            id=message["id"],
            version=version,
            caller=caller,
            session_id=session_id,
            capabilities=capabilities,
            http=http,
        )
        body, error = await self._engine.answer(exchange)
        if error is None:
            return PlainAnswer(_OK, body)
        status, headers = refusal_status(error) or (ERROR_CODE_HTTP_STATUS.get(error.code, _OK), {})
        lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items()).encode()
        return PlainAnswer(status, body, lines)


def _read_headers(scope: Scope) -> dict[str, str] | None:
    """The headers that decide how a request is answered; None for an unusual request."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in _READ_HEADERS:
            key = name.decode()
            if key in found:
                return None
            found[key] = value.decode("latin-1")
    if found.get("content-type", "").lower() != "application/json" or not accepts_json(
        found.get("accept", "").encode("latin-1")
    ):
        return None
    is_known = found.get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS and is_answered(found.get("mcp-method"))
    return found if is_known else None


def is_answered(method: str | None) -> bool:
    """Whether requests of this method can be answered here."""
    return method in _PARAMS


@lru_cache(maxsize=64)
def accepts_json(accept: bytes) -> bool:
    """Whether an `Accept` header allows what the SDK requires of it."""
    return check_accept_headers(Request({"type": "http", "headers": [(b"accept", accept)]}))[0]


def _read_message(method: str, name: str, body: bytes) -> dict[str, Any] | None:
    """The JSON-RPC request of the method and name that the headers say; None if it may be invalid."""
    try:
        message = from_json(body, allow_inf_nan=False, cache_strings="keys")  # NaN is for the SDK
    except ValueError:
        return None
    if not isinstance(message, dict) or message.keys() != _REQUEST_KEYS:
        return None
    params = message["params"]
    if message["jsonrpc"] != "2.0" or message["method"] != method or type(message["id"]) not in (int, str):
        return None
    if not isinstance(params, dict) or "_meta" not in params or not params.keys() <= _PARAMS[method]:
        return None
    is_valid = _is_call(params, name) if method == "tools/call" else _is_list(params)
    return message if is_valid else None


def _is_call(params: Mapping[str, Any], name: str) -> bool:
    """Whether these are the params of a call of the tool that the header names."""
    if not name or params.get("name") != name or name.startswith(_ENCODED_NAME):
        return False
    return "arguments" not in params or isinstance(params["arguments"], dict)


def _is_list(params: Mapping[str, Any]) -> bool:
    return "cursor" not in params or isinstance(params["cursor"], str)


def _read_envelope(envelope: Mapping[str, Any]) -> Object | None:
    try:
        return read_envelope("tools/list", {"_meta": envelope}).capabilities
    except RpcError:
        return None
