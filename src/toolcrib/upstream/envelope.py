"""What goes around a request: `_meta` and headers, as the negotiated protocol version wants them.

Versions before 2026-07-28 agree once, in the handshake, and repeat only the version header. From 2026-07-28 on, each
request says in `_meta` who asks and what it can do, and repeats in headers what a proxy may want to route by.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolcrib._version import VERSION
from toolcrib.model import Object

CLIENT_INFO: Final = {"name": "toolcrib", "version": VERSION}
SHOW_ALL_KEY: Final = "toolcrib/showAll"
"""In the `_meta` of a request: whether every tool is listed by name. Over HTTP a header says the same."""
_HOP_KEYS: Final = frozenset(
    {"progressToken", PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, SHOW_ALL_KEY}
)
"""`_meta` of a caller's request that belongs to his connection, not to ours."""

HeaderMap = Mapping[tuple[str, ...], str]
"""Which arguments, by path, a tool wants repeated as headers (its `x-mcp-header` annotations)."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Wraps requests for one protocol version."""

    version: str
    show_all: bool = False
    """Whether a server that hides tools is asked for them all."""

    @property
    def modern(self) -> bool:
        """Whether each request carries all it needs."""
        return self.version in MODERN_PROTOCOL_VERSIONS

    def meta(self, forwarded: Object, capabilities: Object) -> dict[str, Any]:
        """The `_meta` of a request: what a caller sent along, then what this version asks for."""
        meta = {key: value for key, value in forwarded.items() if key not in _HOP_KEYS}
        if self.show_all:
            meta[SHOW_ALL_KEY] = True
        if not self.modern:
            meta.pop(LOG_LEVEL_META_KEY, None)
        if self.modern:
            meta[PROTOCOL_VERSION_META_KEY] = self.version
            meta[CLIENT_INFO_META_KEY] = CLIENT_INFO
            meta[CLIENT_CAPABILITIES_META_KEY] = dict(capabilities)
        return meta

    def headers(self, method: str) -> dict[str, str]:
        """The headers of a request. Transports other than HTTP ignore them."""
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.version}
        if self.modern:
            headers[MCP_METHOD_HEADER] = method
        return headers

    def named_headers(self, method: str, params: Object) -> dict[str, str]:
        """The headers of a request that may be about something with a name or a URI."""
        headers = self.headers(method)
        key = NAME_BEARING_METHODS.get(method)
        if self.modern and key is not None and isinstance(named := params.get(key), str):
            headers[MCP_NAME_HEADER] = encode_header_value(named)
        return headers

    def call_headers(self, name: str, arguments: Object, wanted: HeaderMap) -> dict[str, str]:
        """The headers of a `tools/call`."""
        headers = self.headers("tools/call")
        if self.modern:
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            headers.update(mcp_param_headers(wanted, arguments))
        return headers
