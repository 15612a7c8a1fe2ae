"""Workarounds for the MCP SDK: access to its private parts, and `tools/list` at the cost of its bytes.

The SDK validates and copies a handler's whole result three times before encoding it, which for large lists is nearly
all of their cost. Entries are validated and encoded once per definition and protocol era, the SDK frames a result
with a placeholder, and `ListSplicer` puts the encoded entries into the HTTP response.
"""

import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp_types import methods
from pydantic import ValidationError
from starlette.types import Message, Scope, Send

from toolcrib.surfaces.facade import ListedTool
from toolcrib.wire import entry_for_version, is_modern, tool_to_wire

SPLICES_KEY: Final = "toolcrib.parts"
"""Where the ASGI scope says that marks in its answer will be filled in: by mark, what stands for each."""


def defer_entries(scope: Scope, entries: Iterable[bytes]) -> str | None:
    """A mark in place of a list of these encoded entries; None where the answer will not be filled in."""
    parts: MutableMapping[str, bytes] | None = scope.get(SPLICES_KEY)
    if parts is None:
        return None
    mark = secrets.token_hex(16)
    parts[mark] = b"[" + b",".join(entries) + b"]"
    return mark


class ListSplicer:
    """ASGI `send` that puts what was set aside in the place of its marks. Of one request whose answer is one JSON."""

    def __init__(self, send: Send) -> None:
        """Give `parts` to the scope of the request."""
        self._send = send
        self._start: Message | None = None
        self.splices: dict[str, bytes] = {}

    async def __call__(self, message: Message) -> None:
        """Send a message on; the head of an answer waits for its body, which tells how long it is."""
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
        for mark, part in self.splices.items():
            before, found, after = body.partition(b'"' + mark.encode() + b'"')
            # An error in the place of the answer has no mark.
            body = b"".join((before, part, after)) if found else body
        return body


def _with_length(headers: Iterable[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept: list[tuple[bytes, bytes]] = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*kept, (b"content-length", str(length).encode())]


logger = logging.getLogger(__name__)


_MAX_ENTRIES: Final = 65_536
"""How many entries are kept. An entry refers to the tool's own schemas; encoded, it takes as much as on the wire."""


_SHARED_KEYS: Final = ("inputSchema", "outputSchema", "_meta")
"""What an entry has of the tool's own, rather than copied, where it is the same."""


_MODERN_FIELDS: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class EncodedEntry:
    """One entry."""

    __slots__ = ("_encoded", "entry")

    def __init__(self, entry: dict[str, Any]) -> None:
        """Of plain JSON, as the SDK would send it."""
        self.entry = entry
        self._encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """As JSON; made when it is first asked for."""
        if self._encoded is None:
            self._encoded = json.dumps(self.entry, separators=(",", ":")).encode()
        return self._encoded


class EntryCache:
    """The entries of the tools listed last; those made longest ago are forgotten first."""

    def __init__(self, limit: int = _MAX_ENTRIES) -> None:
        """None yet."""
        self._limit = limit
        self._entries: OrderedDict[tuple[bytes, bool], EncodedEntry | None] = OrderedDict()

    def get(self, tool: ListedTool, version: str) -> EncodedEntry | None:
        """The tool in the shape that clients of this version take; None for one that the version cannot carry."""
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
        logger.exception("%s cannot be listed: its definition is none", tool.tool.id)
        return None
    entry: dict[str, Any] = page["tools"][0]
    for key in _SHARED_KEYS:
        if key in entry and type(whole[key]) is dict and whole[key] == entry[key] and _is_plain_json(whole[key]):
            entry[key] = whole[key]
    return EncodedEntry(entry)


def _is_plain_json(value: Any) -> bool:
    """Whether it is plain JSON as it is: a mapping that is no dict is not."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    # The SDK shows handlers neither the notifications of a connection nor its end; a request's session does.
    return ctx.session._connection  # noqa: SLF001 - the one way to both
