"""Answers `tools/call` and `tools/list` over HTTP without the SDK's transport, through the same handlers.

The SDK validates and copies each message several times, which takes longer than the call itself. Only requests whose
every part is certain to be valid are answered here; any other one, wrong ones among them, goes to the SDK, which says
what is wrong with it.
"""

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple, cast

import mcp_types
from mcp.server.connection import Connection
from mcp.server.context import HandlerResult
from mcp.server.runner import modern_error_data
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    ErrorData,
    JSONRPCError,
    methods,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import ASGIApp, Scope, Send

from toolcrib.checks import unchecked
from toolcrib.server.auth.authentication import CALLER_KEY, OWN_CREDENTIAL_KEY
from toolcrib.server.context import (
    REPLICA_KEY,
    RequestClient,
    RequestContext,
    forwarded_capabilities,
    forwarded_meta,
    refusal_status,
    to_context,
)
from toolcrib.server.handlers import ToolServer, error_outcome, outcome_of
from toolcrib.server.plain_connection import PlainAnswer, SendEvent
from toolcrib.server.sdk_workarounds import (
    SPLICES_KEY,
    defer_large_parts,
    is_large,
    restore_large_parts,
    serialize_result,
    spliced,
)
from toolcrib.tracing import TRACING
from toolcrib.types import LOCAL, SHOW_ALL_META, Caller, Context, Object, ToolResult

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
_MAX_TEXT_CHARS: Final = 2_500
"""Longer texts may be large once encoded, and are left to `defer_large_parts`."""
_new_context: Final = unchecked(Context)
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class _ReplySession:
    """The SDK's session as far as a request can use it whose client gets nothing but the response."""

    can_send_request = False

    def __init__(self, capabilities: mcp_types.ClientCapabilities | None) -> None:
        self.client_capabilities = capabilities
        self.declared = forwarded_capabilities(capabilities)
        """The capabilities that servers may use, as wire JSON."""

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Do nothing: the request asks for no progress."""

    async def send_notification(self, notification: mcp_types.ServerNotification, **_: Any) -> None:
        """Do nothing: the response carries no notifications."""

    async def send_request(self, request: mcp_types.ServerRequest, *_: Any, **__: Any) -> Any:
        """Raise `NoBackChannelError`."""
        raise NoBackChannelError(request.method)


class _ReplyClient(RequestClient):
    """The client of such a request. Nothing that it declares differs from one of its requests to the next."""

    def __init__(self, request: "DirectRequest") -> None:
        self._request = request  # type: ignore[assignment]  # it has what is read of the SDK's context
        self._declared = request.session.declared

    @property
    def capabilities(self) -> Object:
        """The capabilities that servers may use."""
        return self._declared

    @property
    def declared(self) -> Object:
        """The same."""
        return self._declared

    @property
    def is_modern(self) -> bool:
        """True."""
        return True

    @property
    def wants_progress(self) -> bool:
        """False."""
        return False


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


class DirectRequest:
    """One request, with what handlers read of the SDK's context of a request."""

    __slots__ = (
        "_request",
        "_scope",
        "caller",
        "head",
        "meta",
        "method",
        "params",
        "protocol_version",
        "request_id",
        "session",
    )

    def __init__(
        self,
        scope: Scope,
        version: str,
        message: Mapping[str, Any],
        session: "_ReplySession",
        head: RequestHead | None = None,
        caller: Caller = LOCAL,
    ) -> None:
        """Without a `head`, the request has passed the layers, which put what they found into the scope."""
        self.method: str = message["method"]
        self.params: dict[str, Any] = message["params"]
        self.meta: dict[str, Any] = self.params["_meta"]
        self.request_id: int | str = message["id"]
        self.protocol_version = version
        self.session = session
        self.head = head
        self.caller = caller
        self._scope = scope
        self._request: Request | None = None

    @property
    def request(self) -> Request:
        """The request as the SDK's transport would hand it on."""
        if self._request is None:
            known: dict[str, Any] = {SPLICES_KEY: {}}
            if self.caller is not LOCAL:
                known |= {CALLER_KEY: self.caller, OWN_CREDENTIAL_KEY: True}
            self._request = Request({**self._scope, **known})
        return self._request


class DirectMethods:
    """What answers such requests. Safe to use for as long as the server."""

    def __init__(self, server: ToolServer, *, replica: str | None = None) -> None:
        """`replica` is the id of this process, if others may serve the same address."""
        self._server = server
        self._replica = replica
        self._envelopes: dict[str, _ReplySession | None] = {}
        """By the client's part of `_meta`; None for an invalid one."""
        self._stamp = {SERVER_INFO_META_KEY: server.server_info_stamp}
        self._encoded_stamp = _encode(self._stamp)

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
        session = None if message is None else self._session(message["params"]["_meta"], head.version)
        if message is None or session is None:
            return None
        scope = head.scope if self._replica is None else {**head.scope, REPLICA_KEY: self._replica}
        return DirectRequest(scope, head.version, message, session, head, caller)

    def _read(self, scope: Scope, body: bytes) -> DirectRequest | None:
        """Read a request of 2026-07-28; None if it is not certain that it can be answered here."""
        if scope["method"] != "POST" or TRACING.is_on or not self._server.is_unchanged:
            return None
        headers = _read_headers(scope)
        if headers is None:
            return None
        version = headers["mcp-protocol-version"]
        message = _read_message(headers["mcp-method"], headers.get("mcp-name", ""), body)
        session = None if message is None else self._session(message["params"]["_meta"], version)
        return None if message is None or session is None else DirectRequest(scope, version, message, session)

    def _context(self, request: DirectRequest) -> Context:
        """The context of a call."""
        head = request.head
        if head is None:
            return to_context(cast("RequestContext", request))
        meta = {} if request.meta.keys() <= _ENVELOPE_KEYS else forwarded_meta(request.meta)
        show_all = request.meta.get(SHOW_ALL_META) is True
        client = _ReplyClient(request)
        return _new_context(
            caller=request.caller, session=head.session, show_all=show_all, client=client, meta=meta, memo={}
        )

    def _session(self, meta: Any, version: str) -> _ReplySession | None:
        """The client that `_meta` describes; None if it is invalid, or wants more than a response."""
        if not isinstance(meta, dict) or meta.get(PROTOCOL_VERSION_META_KEY) != version:
            return None
        envelope = meta
        if not meta.keys() <= _ENVELOPE_KEYS:
            if any(key in _STREAM_KEYS or (key.startswith(_RESERVED_META) and key not in _ENVELOPE) for key in meta):
                return None
            envelope = {key: meta[key] for key in _ENVELOPE if key in meta}
        key = repr(envelope)
        if len(key) > _MAX_KEPT_CHARS:
            return _read_envelope(envelope, version)
        if key not in self._envelopes:
            if len(self._envelopes) >= _MAX_ENVELOPES:
                self._envelopes.clear()
            self._envelopes[key] = _read_envelope(envelope, version)
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
        started, outcome, observe = time.monotonic(), "cancelled", self._server.observe
        try:
            result, body = await self._answer(request)
            outcome = outcome_of(result)
        except Exception as error:  # noqa: BLE001 - as the SDK does
            outcome, failed = error_outcome(error), modern_error_data(error)
            status, headers = refusal_status(failed) or (ERROR_CODE_HTTP_STATUS.get(failed.code, _OK), {})
            lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items()).encode()
            return PlainAnswer(status, _error_body(request.request_id, failed), lines)
        else:
            return PlainAnswer(_OK, body)
        finally:
            if observe is not None:
                observe(request.method, outcome, time.monotonic() - started)

    async def _answer(self, request: DirectRequest) -> tuple[HandlerResult, bytes]:
        """The result of a request, and the whole response with it."""
        ctx = cast("RequestContext", request)  # with all that the handlers of these methods read
        if request.method == "tools/list":
            page = await self._server.tools.list_tools_encoded(ctx, _no_other_handler)
            return page, self._encoded(request, page)
        params, tools = request.params, self._server.tools
        found = await tools.call(ctx, self._context(request), params["name"], params.get("arguments"))
        if (body := self._short_text(request, found)) is not None:
            return {"isError": found.is_error}, body
        result = await tools.to_wire(ctx, found)
        return result, self._plain_text(request, result) or await self._checked(request, result)

    def _short_text(self, request: DirectRequest, result: ToolResult) -> bytes | None:
        """The response with a single short text of ASCII characters, as most results are; None for any other result."""
        text = short_text(result)
        if text is None:
            return None
        failed = "true" if result.is_error else "false"
        number = request.request_id
        known = number if type(number) is int else encode_basestring_ascii(str(number))
        return (
            f'{{"jsonrpc":"2.0","id":{known},"result":{{"content":[{{"text":{encode_basestring_ascii(text)},'
            f'"type":"text"}}],"isError":{failed},"resultType":"complete","_meta":{self._encoded_stamp}}}}}'
        ).encode()

    def _plain_text(self, request: DirectRequest, result: dict[str, Any]) -> bytes | None:
        """The response with a short result of plain text, as the SDK would write it; None for any other result."""
        content = result.get("content")
        if content is None or not result.keys() <= _PLAIN_KEYS:
            return None
        blocks, chars = [], 0
        for block in content:
            if block.keys() != _TEXT_KEYS or block["type"] != "text" or not isinstance(block["text"], str):
                return None
            blocks.append({"text": block["text"], "type": "text"})
            chars += len(block["text"])
        if chars > _MAX_TEXT_CHARS:
            return None
        plain: dict[str, Any] = {"content": blocks, "isError": result["isError"], "resultType": "complete"}
        if "structuredContent" in result:
            structured = plain["structuredContent"] = result["structuredContent"]
            if is_large(structured):
                return None
        plain["_meta"] = self._stamp
        try:
            return _encode({"jsonrpc": "2.0", "id": request.request_id, "result": plain}).encode()
        except (ValueError, TypeError):  # such as a number that is not finite, which the SDK replaces
            return None

    async def _checked(self, request: DirectRequest, result: dict[str, Any]) -> bytes:
        """The response with any result, checked and written by the SDK but for its large parts."""

        async def checked(_: RequestContext) -> dict[str, Any]:
            small = await defer_large_parts(result)
            return serialize_result(self._server, request.method, request.protocol_version, small)

        return self._encoded(request, await restore_large_parts(cast("RequestContext", request), checked))

    def _encoded(self, request: DirectRequest, result: HandlerResult) -> bytes:
        text = json.dumps({"jsonrpc": "2.0", "id": request.request_id, "result": result}, separators=(",", ":"))
        return spliced(text.encode(), request.request.scope[SPLICES_KEY])


def short_text(result: ToolResult) -> str | None:
    """The text of a result that is nothing but a short one of ASCII characters; None for any other result."""
    if result.kind != "complete" or len(result.content) != 1 or result.meta or result.structured is not None:
        return None
    block = result.content[0]
    text = block.get("text")
    if len(block) != len(_TEXT_KEYS) or block.get("type") != "text" or not isinstance(text, str):
        return None
    return text if len(text) <= _MAX_TEXT_CHARS and text.isascii() else None


async def _no_other_handler(_: RequestContext) -> HandlerResult:
    raise AssertionError("the middleware answers by itself")


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


def _read_envelope(envelope: Mapping[str, Any], version: str) -> _ReplySession | None:
    try:
        methods.validate_client_request("tools/list", version, {"_meta": envelope})
    except (ValidationError, KeyError):
        return None
    info, capabilities = envelope.get(CLIENT_INFO_META_KEY), envelope[CLIENT_CAPABILITIES_META_KEY]
    return _ReplySession(Connection.from_envelope(version, info, capabilities).client_capabilities)


def _error_body(request_id: int | str, error: ErrorData) -> bytes:
    message = JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
    return json.dumps(message.model_dump(mode="json", by_alias=True, exclude_none=True), separators=(",", ":")).encode()
