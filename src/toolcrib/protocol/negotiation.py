"""How a client and a server agree on a protocol version, and what that version puts around each request. No I/O.

`server/discover` is sent first. Any error, or no answer in time, means an older server: it gets the `initialize`
handshake and is never offered more than the newest version that has one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from toolcrib._version import VERSION
from toolcrib.protocol.failures import UNSUPPORTED_PROTOCOL_VERSION, ExchangeError
from toolcrib.protocol.headers import NAMED, HeaderMap, request_headers
from toolcrib.protocol.versions import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    HANDSHAKE_VERSIONS,
    LATEST_HANDSHAKE,
    LOG_LEVEL_KEY,
    MODERN_VERSIONS,
    PROGRESS_KEY,
    PROTOCOL_VERSION_KEY,
    SERVER_INFO_KEY,
    TASKS_EXTENSION,
    has_tasks,
    is_defined,
    is_modern,
    negotiated,
)
from toolcrib.types import SHOW_ALL_META, Client, Context, Object, SessionClient

_EMPTY: Final[Object] = {}
CLIENT_INFO: Final[Object] = {"name": "toolcrib", "version": VERSION}
_CONNECTION_KEYS: Final = frozenset(
    {PROGRESS_KEY, PROTOCOL_VERSION_KEY, CLIENT_INFO_KEY, CLIENT_CAPABILITIES_KEY, SHOW_ALL_META}
)
"""`_meta` keys of a caller's request that belong to the caller's own connection."""
TASKS_CAPABILITY: Final[Object] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
"""What a server declares that runs calls of tools as tasks."""
_MAX_CACHED_HEADERS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """How to begin a connection: which protocol versions to try, and what to declare to an older server."""

    discover: bool = True
    """Whether to try a version without handshake (2026-07-28), first."""
    initialize: bool = True
    """Whether to try one with handshake."""
    version: str = LATEST_HANDSHAKE
    """The version to offer in the handshake."""
    capabilities: Object = field(default_factory=dict)
    """The client capabilities to declare in the handshake, as wire JSON."""

    @classmethod
    def of(cls, protocol: str, *, capabilities: Object = _EMPTY) -> "Handshake":
        """Return the one for a server whose settings name this version, or "auto"."""
        if protocol in HANDSHAKE_VERSIONS:
            return cls(discover=False, version=protocol, capabilities=capabilities)
        return cls(initialize=protocol == "auto", capabilities=capabilities)


class ClosedOnDiscover(ExchangeError):
    """The server closed the connection on `server/discover`; it may accept no request before the handshake."""


@dataclass(frozen=True, slots=True)
class NegotiatedProtocol:
    """The metadata around requests: `_meta` and headers of the negotiated protocol version.

    Versions before 2026-07-28 agree once, in the handshake, and repeat only the version header. From 2026-07-28 on,
    each request carries the client and its capabilities in `_meta`, and repeats in headers what a proxy may route by.
    """

    version: str
    show_all: bool = False
    """Whether to ask a server that hides tools for all of them."""

    modern: bool = field(init=False)
    """Whether each request carries all it needs."""
    _headers: dict[tuple[str, Any], dict[str, str]] = field(init=False, default_factory=dict)
    _plain_meta: dict[str, Any] = field(init=False)
    """The `_meta` of most requests: their clients add nothing to it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "modern", is_modern(self.version))
        object.__setattr__(self, "_plain_meta", self.meta({}, {}))

    def meta(self, forwarded: Object, capabilities: Object) -> dict[str, Any]:
        """Return the `_meta` of a request: what the caller sent, then what this version requires."""
        meta = {key: value for key, value in forwarded.items() if key not in _CONNECTION_KEYS}
        if self.show_all:
            meta[SHOW_ALL_META] = True
        if self.modern:
            meta |= envelope(self.version, capabilities)
        else:
            meta.pop(LOG_LEVEL_KEY, None)
        return meta

    def params(self, ctx: Context, params: Object, method: str) -> dict[str, Any]:
        """Return a caller's params with `_meta`, and with the answers to an earlier request for input.

        What the client declares of extensions comes with their own methods alone: with it, a server may answer others
        in ways that only the extension defines.
        """
        whole, client = dict(params), ctx.client
        capabilities = client.capabilities if self.modern and client is not None else _EMPTY
        if client is not None and not is_defined(method) and isinstance(client, SessionClient):
            capabilities = {**capabilities, "extensions": dict(client.extensions)}
        if meta := self.meta(ctx.meta, capabilities) if capabilities or ctx.meta else self._plain_meta.copy():
            whole["_meta"] = meta
        if self.modern and ctx.input_responses is not None:
            whole["inputResponses"] = dict(ctx.input_responses)
        if self.modern and ctx.request_state is not None:
            whole["requestState"] = ctx.request_state
        return whole

    def headers(self, method: str, params: Object = _EMPTY, header_map: HeaderMap | None = None) -> dict[str, str]:
        """Return the headers of a request, which only HTTP sends; for the same values, the same object."""
        if header_map:
            return request_headers(method, self.version, params, header_map)
        key = (method, params.get(NAMED.get(method, "")))
        found = self._headers.get(key)
        if found is None:
            if len(self._headers) >= _MAX_CACHED_HEADERS:
                self._headers.clear()
            found = self._headers[key] = request_headers(method, self.version, params)
        return found


def envelope(version: str, capabilities: Object) -> dict[str, Any]:
    """Return what each request of a modern version says of its client in `_meta`."""
    return {
        PROTOCOL_VERSION_KEY: version,
        CLIENT_INFO_KEY: CLIENT_INFO,
        CLIENT_CAPABILITIES_KEY: dict(capabilities),
    }


def extensions_in(capabilities: Object) -> dict[str, Object]:
    """Return the extensions among the capabilities of a peer that pass through a gateway: all but tasks.

    >>> extensions_in({"extensions": {"com.example/skills": {}, TASKS_EXTENSION: {}}, "tools": {}})
    {'com.example/skills': {}}
    """
    declared = capabilities.get("extensions")
    known = declared if isinstance(declared, Mapping) else {}
    return {name: about for name, about in known.items() if name != TASKS_EXTENSION}


def shares_extension(client: Client | None, declared: Mapping[str, Object]) -> bool:
    """Whether the client declares one of a server's extensions, so that both may use its messages."""
    return isinstance(client, SessionClient) and not declared.keys().isdisjoint(client.extensions)


def version_in(refusal: ExchangeError) -> str | None:
    """The newest version without handshake that a refusal names as supported, if both sides speak it.

    It may be the one that was refused: some servers refuse a first request only to name their versions.
    """
    named = refusal.data.get("supported") if isinstance(refusal.data, Mapping) else None
    if refusal.code != UNSUPPORTED_PROTOCOL_VERSION or not isinstance(named, list):
        return None
    return next((version for version in reversed(MODERN_VERSIONS) if version in named), None)


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """What a server says about itself when a connection begins. All of it may be missing."""

    version: str = ""
    """The protocol version to speak; empty if there is none."""
    capabilities: Object = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    """Its `name`, `version`, `title` and `description`, as far as they are texts."""
    instructions: str = ""

    def has(self, feature: str) -> bool:
        """Whether the server declares a feature, such as `tools`."""
        return isinstance(self.capabilities.get(feature), Mapping)

    def can(self, feature: str, flag: str) -> bool:
        """Whether it declares a part of a feature, such as `listChanged`."""
        part = self.capabilities.get(feature)
        return isinstance(part, Mapping) and part.get(flag) is True

    @property
    def extensions(self) -> Mapping[str, Object]:
        """The extensions that the server declares, other than tasks: that one changes what calls are answered with."""
        return extensions_in(self.capabilities)

    @property
    def takes_tasks(self) -> bool:
        """Whether it runs calls of tools as tasks, in a version that has them."""
        part: Any = self.capabilities
        for name in ("tasks", "requests", "tools", "call"):
            part = part.get(name) if isinstance(part, Mapping) else None
        return isinstance(part, Mapping) and has_tasks(self.version)


def read_initialize(result: Object) -> ServerProfile:
    """Read the answer to the handshake: some servers repeat whatever they are offered, or name a modern version."""
    return _profile(result, negotiated(result.get("protocolVersion")), result.get("serverInfo"))


def read_discover(result: Object) -> ServerProfile:
    """Read the answer to `server/discover`, with the newest version that both sides speak."""
    meta, named = result.get("_meta"), result.get("supportedVersions")
    known = named if isinstance(named, list) else []
    version = next((version for version in reversed(MODERN_VERSIONS) if version in known), "")
    return _profile(result, version, meta.get(SERVER_INFO_KEY) if isinstance(meta, Mapping) else None)


def _profile(result: Object, version: str, info: Any) -> ServerProfile:
    capabilities, instructions = result.get("capabilities"), result.get("instructions")
    return ServerProfile(
        version,
        capabilities if isinstance(capabilities, dict) else {},
        {key: text for key, text in info.items() if isinstance(text, str)} if isinstance(info, dict) else {},
        instructions if isinstance(instructions, str) else "",
    )
