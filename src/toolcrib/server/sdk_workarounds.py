"""Workarounds for the MCP SDK: access to its private parts, and lists and large results at the cost of their bytes.

The SDK validates and copies a handler's whole result three times before encoding it, which is nearly all of the cost
of a large one. Entries of lists are encoded once per definition and protocol era, and large results in steps between
which other requests are served. The SDK frames a result with a placeholder, which is replaced in the response.
"""

import json
import logging
import secrets
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final

import anyio.lowlevel
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.runner import ServerRunner
from mcp_types import methods
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.types import Message, Scope, Send

from toolcrib.protocol.versions import is_modern
from toolcrib.surfaces.facade import ListedTool
from toolcrib.wire import entry_for_version, tool_to_wire

logger = logging.getLogger(__name__)

splices_on_stream: ContextVar[bool] = ContextVar("splices_on_stream", default=False)
"""Whether the writer of a connection without requests of HTTP replaces placeholders, with `spliced`."""
SPLICES_KEY: Final = "toolcrib.splices"
"""ASGI scope key: maps placeholders in a response to the encoded lists that replace them."""

_MAX_ENTRIES: Final = 65_536
"""How many entries a cache keeps. Each refers to its tool's own schemas; its encoding takes as much as on the wire."""
_SHARED_KEYS: Final = ("inputSchema", "outputSchema", "_meta")
"""Parts of an entry that refer to the tool's own objects, instead of copies, where they are equal."""
_MODERN_FIELDS: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


# -- private parts of the SDK ----------------------------------------------------------------------------------------


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """The connection of a request, which has its notifications, state and exit stack."""
    return ctx.session._connection  # noqa: SLF001 - the SDK has no public way


_local_sessions: "weakref.WeakKeyDictionary[object, str]" = weakref.WeakKeyDictionary()


def local_session(ctx: ServerRequestContext[Any, Any]) -> str:
    """A name for the session of a request that did not come over HTTP: the same for all requests of one connection.

    Random, since it must not be the name of another client's session over HTTP.
    """
    connection = connection_of(ctx)
    anchor = connection.outbound if connection.has_standalone_channel else _client_in_memory(ctx)
    name = _local_sessions.get(anchor)
    if name is None:
        name = _local_sessions[anchor] = f"local-{secrets.token_hex(8)}"
    return name


def _client_in_memory(ctx: ServerRequestContext[Any, Any]) -> object:
    """What identifies a client of 2026-07-28 in memory: its dispatcher, to which the request's channel leads back."""
    channel: Any = ctx.session._request_outbound  # noqa: SLF001 - the SDK has no public way
    send_back = getattr(getattr(channel, "_inner", channel), "_back_request", None)
    return next((cell.cell_contents for cell in getattr(send_back, "__closure__", None) or ()), ctx.session)


def has_progress_callback(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether a client in memory wants progress: it gives a callback, and no token in the request."""
    channel: Any = ctx.session._request_outbound  # noqa: SLF001 - the SDK has no public way
    return getattr(getattr(channel, "_inner", channel), "_on_progress", None) is not None


def may_send_requests(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the connection is initialized, so that the SDK would accept requests other than the handshake."""
    return connection_of(ctx).initialize_accepted


def serialize_result(server: Server[Any], method: str, version: str, result: dict[str, Any]) -> dict[str, Any]:
    """The result as the SDK would send it. Raises `MCPError` for an invalid one."""
    runner = ServerRunner(server, Connection.from_envelope(version, None, None), None)
    return runner._serialize(method, version, result)  # noqa: SLF001 - the SDK has no public way


class NotifyingServer(Server[Any]):
    """The SDK's server, with the capability to notify of list changes announced on every transport."""

    def __init__(self, name: str, *, notifies: bool, **options: Any) -> None:
        """`options` go to the SDK's server."""
        # Without this look-up, the SDK lists all tools before each modern call.
        super().__init__(name, get_tool_input_schema=lambda _: None, **options)
        self._notifies = notifies

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """The result of `initialize`. The SDK's HTTP transports call this without arguments."""
        on = self._notifies
        notification_options = notification_options or NotificationOptions(
            tools_changed=on, prompts_changed=on, resources_changed=on
        )
        return super().create_initialization_options(notification_options, experimental_capabilities, extensions)


# -- fast lists ------------------------------------------------------------------------------------------------------


def defer_entries(scope: Scope, entries: Iterable[bytes]) -> str | None:
    """A placeholder for a list of these encoded entries; None if nothing will replace it in the response."""
    splices: MutableMapping[str, bytes] | None = scope.get(SPLICES_KEY)
    if splices is None:
        return None
    placeholder = secrets.token_hex(16)
    splices[placeholder] = b"[" + b",".join(entries) + b"]"
    return placeholder


class Splicer:
    """ASGI `send` that replaces placeholders in the response: in a single JSON body, or in a stream of events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self.splices: dict[str, bytes] = {}
        """Put this into the request's scope under `SPLICES_KEY`."""

    async def __call__(self, message: Message) -> None:
        """Send a message on. The head of a JSON response waits for the body, which determines its length."""
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            if not headers.get(b"content-type", b"").startswith(b"text/event-stream"):
                self._start = message
                return
        elif message["type"] == "http.response.body":
            if self.splices:
                message = {**message, "body": spliced(message.get("body", b""), self.splices)}
            if self._start is not None:
                start, self._start = self._start, None
                if self.splices:
                    start = {**start, "headers": _with_length(start["headers"], len(message["body"]))}
                await self._send(start)
        await self._send(message)


def spliced(body: bytes, splices: Mapping[str, bytes]) -> bytes:
    """The body with encoded values in place of placeholders.

    >>> spliced(b'{"tools":"4711"}', {"4711": b"[{}]"})
    b'{"tools":[{}]}'
    """
    for placeholder, encoded in splices.items():
        before, found, after = body.partition(b'"' + placeholder.encode() + b'"')
        # An error response contains no placeholder.
        body = b"".join((before, encoded, after)) if found else body
    return body


def _with_length(headers: Iterable[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    others: list[tuple[bytes, bytes]] = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*others, (b"content-length", str(length).encode())]


# -- large results ---------------------------------------------------------------------------------------------------


_LARGE_BYTES: Final = 16 * 1024
"""Encoded parts of a result from this size on bypass the SDK."""
_BLOCKS_PER_STEP: Final = 200
_deferred: ContextVar[dict[str, "_DeferredPart"] | None] = ContextVar("deferred", default=None)
"""The parts of the current request's result that bypass the SDK; None where nothing replaces placeholders."""


class _DeferredPart(str):
    """A placeholder for an encoded part of a result."""

    encoded: bytes


async def restore_large_parts(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware: put placeholders into the result for the parts that its handler took out by `defer_large_parts`."""
    splices: MutableMapping[str, bytes] | None = ctx.request.scope.get(SPLICES_KEY) if ctx.request else None
    if splices is None and not splices_on_stream.get():
        return await call_next(ctx)
    parts: dict[str, _DeferredPart] = {}
    token = _deferred.set(parts)
    try:
        result = await call_next(ctx)
    finally:
        _deferred.reset(token)
    if not parts or not isinstance(result, dict):
        return result
    if splices is not None:
        splices.update({str(part): part.encoded for part in parts.values()})
    return {**result, **parts}


async def defer_large_parts(result: dict[str, Any]) -> dict[str, Any]:
    """The valid result without its large parts, which `restore_large_parts` adds after the SDK has validated it."""
    parts = _deferred.get()
    if parts is None:
        return result
    small = dict(result)
    for key, value in result.items():
        if key == "_meta" or not isinstance(value, (dict, list)):
            continue
        try:
            encoded = await _encoded(value)
        except (ValueError, TypeError):  # the transport answers with an error
            return result
        if len(encoded) >= _LARGE_BYTES:
            parts[key] = part = _DeferredPart(secrets.token_hex(16))
            part.encoded = encoded
            if isinstance(value, list):
                small[key] = []
            else:
                del small[key]
    return small


def is_large(value: Any) -> bool:
    """Whether a part of a result has to bypass the SDK, or cannot be sent at all."""
    try:
        return len(to_json(value)) >= _LARGE_BYTES
    except (ValueError, TypeError):
        return True


async def _encoded(value: Any) -> bytes:
    """A value as JSON; the items of a list in steps between which other tasks run."""
    if not isinstance(value, list) or len(value) <= _BLOCKS_PER_STEP:
        encoded = to_json(value)
        if len(encoded) >= _LARGE_BYTES:
            await anyio.lowlevel.checkpoint()
        return encoded
    parts = []
    for start in range(0, len(value), _BLOCKS_PER_STEP):
        parts.append(to_json(value[start : start + _BLOCKS_PER_STEP])[1:-1])
        await anyio.lowlevel.checkpoint()
    return b"[" + b",".join(parts) + b"]"


def deferred_parts(result: object) -> dict[str, bytes]:
    """What replaces the placeholders in a result."""
    if not isinstance(result, dict):
        return {}
    return {str(part): part.encoded for part in result.values() if isinstance(part, _DeferredPart)}


# -- entries of lists ------------------------------------------------------------------------------------------------


class EncodedEntry:
    """An entry of `tools/list`: plain JSON as the SDK would send it, encoded on first use."""

    __slots__ = ("_encoded", "entry")

    def __init__(self, entry: dict[str, Any]) -> None:
        self.entry = entry
        self._encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """The entry as JSON text."""
        if self._encoded is None:
            self._encoded = json.dumps(self.entry, separators=(",", ":")).encode()
        return self._encoded


class EntryCache:
    """Validated entries of listed tools, by definition and protocol era. Evicts the oldest entries first."""

    def __init__(self, limit: int = _MAX_ENTRIES) -> None:
        self._limit = limit
        self._entries: OrderedDict[tuple[bytes, bool], EncodedEntry | None] = OrderedDict()

    def get(self, tool: ListedTool, version: str) -> EncodedEntry | None:
        """The entry in the shape of the protocol version; None for a tool that it cannot represent."""
        key = (tool.fingerprint, is_modern(version))
        if key not in self._entries:
            self._entries[key] = _make_entry(tool, version)
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)
        return self._entries[key]


def _make_entry(tool: ListedTool, version: str) -> EncodedEntry | None:
    whole = entry_for_version(tool_to_wire(tool.tool, tool.name), version)
    try:
        page = methods.serialize_server_result("tools/list", version, {"tools": [whole], **_MODERN_FIELDS})
    except ValidationError:
        logger.exception("%s cannot be listed: its definition is invalid", tool.tool.id)
        return None
    entry: dict[str, Any] = page["tools"][0]
    for key in _SHARED_KEYS:
        if key in entry and type(whole[key]) is dict and whole[key] == entry[key] and _is_plain_json(whole[key]):
            entry[key] = whole[key]
    return EncodedEntry(entry)


def _is_plain_json(value: Any) -> bool:
    """Whether `json.dumps` accepts the value; mappings other than dicts fail."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
