"""Workarounds for the MCP SDK: access to its private parts, and `tools/list` at the cost of its bytes.

The SDK validates and copies a handler's whole result three times before encoding it, which for large lists is nearly
all of their cost. Entries are validated and encoded once per definition and protocol era, the SDK frames a result
with a placeholder, and `ListSplicer` puts the encoded entries into the HTTP response.
"""

import json
import logging
import secrets
import weakref
from collections import OrderedDict
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp_types import methods
from pydantic import ValidationError
from starlette.types import Message, Scope, Send

from toolcrib.surfaces.facade import ListedTool
from toolcrib.wire import entry_for_version, is_modern, tool_to_wire

logger = logging.getLogger(__name__)

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


def may_send_requests(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the connection is initialized, so that the SDK would accept requests other than the handshake."""
    return connection_of(ctx).initialize_accepted


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


class ListSplicer:
    """ASGI `send` that replaces placeholders in the response, which has to be a single JSON body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self.splices: dict[str, bytes] = {}
        """Put this into the request's scope under `SPLICES_KEY`."""

    async def __call__(self, message: Message) -> None:
        """Send a message on. The head of a response waits for the body, which determines its length."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None and message["type"] == "http.response.body":
            start, self._start = self._start, None
            if self.splices:
                message = {**message, "body": self._splice(message["body"])}
                start = {**start, "headers": _with_length(start["headers"], len(message["body"]))}
            await self._send(start)
        await self._send(message)

    def _splice(self, body: bytes) -> bytes:
        for placeholder, entries in self.splices.items():
            before, found, after = body.partition(b'"' + placeholder.encode() + b'"')
            # An error response contains no placeholder.
            body = b"".join((before, entries, after)) if found else body
        return body


def _with_length(headers: Iterable[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    others: list[tuple[bytes, bytes]] = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*others, (b"content-length", str(length).encode())]


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
