"""How a connection agrees on a protocol version, and what that version puts around each request.

`server/discover` is sent first. Any error, or no answer in time, means an older server: it gets the `initialize`
handshake and is never offered more than the newest version that has one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mcp import ClientSession
from mcp.shared.exceptions import MCPError
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
    CONNECTION_CLOSED,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    DiscoverResult,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from toolcrib._version import VERSION
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.types import SHOW_ALL_META, Context, Object
from toolcrib.upstream.transports.base import embedded_failure

_EMPTY: Final[Object] = {}
SDK_CLOSED: Final = "Connection closed"
"""How the SDK says that a whole connection has ended, and not the response to one request."""
HeaderMap = Mapping[tuple[str, ...], str]
"""Which arguments, by path, a tool wants repeated as headers (its `x-mcp-header` annotations)."""
CLIENT_INFO: Final = {"name": "toolcrib", "version": VERSION}
_CONNECTION_KEYS: Final = frozenset(
    {"progressToken", PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, SHOW_ALL_META}
)
"""`_meta` keys of a caller's request that belong to the caller's own connection."""
TASKS_VERSION: Final = "2025-11-25"
"""The only version whose servers run calls as tasks; later ones have an extension for it."""
TASKS_CAPABILITY: Final[Object] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
"""What a server declares that runs calls of tools as tasks."""
_USED_CAPABILITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "tools": ("listChanged",),
    "prompts": ("listChanged",),
    "resources": ("listChanged", "subscribe"),
    "completions": (),
    "logging": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """How to begin a connection: which protocol versions to try, and what to declare to an older server."""

    discover: bool = True
    """Whether to try a version without handshake (2026-07-28), first."""
    initialize: bool = True
    """Whether to try one with handshake."""
    version: str = LATEST_HANDSHAKE_VERSION
    """The version to offer in the handshake."""
    capabilities: Object = field(default_factory=dict)
    """The client capabilities to declare in the handshake, as wire JSON."""

    @classmethod
    def of(cls, protocol: str, *, capabilities: Object = _EMPTY) -> "Handshake":
        """Return the one for a server whose settings name this version, or "auto"."""
        if protocol in HANDSHAKE_PROTOCOL_VERSIONS:
            return cls(discover=False, version=protocol, capabilities=capabilities)
        return cls(initialize=protocol == "auto", capabilities=capabilities)


class Probe(Protocol):
    """Where the time limit of `server/discover` is kept."""

    probe_timeout_s: float


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "modern", self.version in MODERN_PROTOCOL_VERSIONS)

    def meta(self, forwarded: Object, capabilities: Object) -> dict[str, Any]:
        """Return the `_meta` of a request: what the caller sent, then what this version requires."""
        meta = {key: value for key, value in forwarded.items() if key not in _CONNECTION_KEYS}
        if self.show_all:
            meta[SHOW_ALL_META] = True
        if not self.modern:
            meta.pop(LOG_LEVEL_META_KEY, None)
        if self.modern:
            meta[PROTOCOL_VERSION_META_KEY] = self.version
            meta[CLIENT_INFO_META_KEY] = CLIENT_INFO
            meta[CLIENT_CAPABILITIES_META_KEY] = dict(capabilities)
        return meta

    def params(self, ctx: Context, params: Object) -> dict[str, Any]:
        """Return a caller's params with `_meta`, and with the answers to an earlier request for input."""
        whole = dict(params)
        capabilities = ctx.client.capabilities if self.modern and ctx.client is not None else {}
        if meta := self.meta(ctx.meta, capabilities):
            whole["_meta"] = meta
        if self.modern and ctx.input_responses is not None:
            whole["inputResponses"] = dict(ctx.input_responses)
        if self.modern and ctx.request_state is not None:
            whole["requestState"] = ctx.request_state
        return whole

    def headers(self, method: str, params: Object = _EMPTY, header_map: HeaderMap | None = None) -> dict[str, str]:
        """Return the headers of a request. Transports other than HTTP ignore them."""
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.version}
        if not self.modern:
            return headers
        headers[MCP_METHOD_HEADER] = method
        if isinstance(name := params.get(NAME_BEARING_METHODS.get(method, "")), str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        if header_map:
            headers.update(mcp_param_headers(header_map, params["arguments"]))
        return headers


class ClosedOnDiscover(ExchangeError):
    """The server closed the connection on `server/discover`; it may accept no request before the handshake."""


async def negotiate(client: ClientSession, probe: Probe, handshake: Handshake, *, patience_s: float) -> None:
    """Negotiate a version. Raises `MCPError` if no way works, and `ClosedOnDiscover`."""
    if handshake.discover and await _discover(client):
        return
    if not handshake.initialize:
        raise ExchangeError(FailureKind.ANSWER, f"it does not speak {LATEST_MODERN_VERSION}")
    try:
        await client.initialize()
    except MCPError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION or not handshake.discover:
            raise
        # It answered the probe after all, but too late, as on a slow start; now it rejects the handshake.
        probe.probe_timeout_s = patience_s
        if not await _discover(client):
            raise


async def _discover(client: ClientSession) -> bool:
    """Return whether the server speaks a version without handshake; if so, it is adopted."""
    version = LATEST_MODERN_VERSION
    for attempt in range(2):
        try:
            raw = await client.send_discover(version)
        except MCPError as error:
            failure = embedded_failure(error)
            if failure is not None and failure.kind in (FailureKind.UNSENT, FailureKind.LOGIN):
                raise
            if failure is None and error.code == CONNECTION_CLOSED and error.message == SDK_CLOSED:
                raise ClosedOnDiscover(FailureKind.CLOSED, "the connection was closed") from error
            mutual = _mutual_version(error)
            if mutual is None or attempt:
                return False
            version = mutual
            continue
        result = DiscoverResult.model_validate(raw, by_name=False)
        if not any(version in MODERN_PROTOCOL_VERSIONS for version in result.supported_versions):
            return False
        client.adopt(result)
        return True
    return False


def _mutual_version(error: MCPError) -> str | None:
    """The newest version without handshake that a refusal names as supported, if both sides speak it.

    It may be the one that was refused: some servers refuse a first request only to name their versions.
    """
    data = error.error.data
    named = data.get("supported") if isinstance(data, dict) else None
    if error.code != UNSUPPORTED_PROTOCOL_VERSION or not isinstance(named, list):
        return None
    return next((version for version in reversed(MODERN_PROTOCOL_VERSIONS) if version in named), None)


def _normalize_initialize(raw: dict[str, Any]) -> dict[str, Any]:
    """Fix the version: some servers repeat whatever they are offered, some name one without a handshake."""
    version = raw.get("protocolVersion")
    return {
        "protocolVersion": version if version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
        "capabilities": _used_capabilities(raw),
        "serverInfo": _implementation(raw.get("serverInfo")),
        **_instructions(raw),
    }


def _normalize_discover(raw: dict[str, Any]) -> dict[str, Any]:
    meta = raw.get("_meta")
    info = meta.get(SERVER_INFO_META_KEY) if isinstance(meta, dict) else None
    versions = raw.get("supportedVersions")
    return {
        "resultType": "complete",
        "supportedVersions": [v for v in versions if isinstance(v, str)] if isinstance(versions, list) else [],
        "capabilities": _used_capabilities(raw),
        "_meta": {SERVER_INFO_META_KEY: _implementation(info)},
        **_instructions(raw),
    }


def _used_capabilities(raw: dict[str, Any]) -> dict[str, Any]:
    """Keep only what is used here: which features there are, and whether they notify changes."""
    given = raw.get("capabilities")
    if not isinstance(given, dict):
        return {}
    used: dict[str, Any] = {
        name: {flag: part.get(flag) is True for flag in flags}
        for name, flags in _USED_CAPABILITIES.items()
        if isinstance(part := given.get(name), dict)
    }
    return {**used, "tasks": TASKS_CAPABILITY} if _takes_tasks(given) else used


def _takes_tasks(capabilities: Object) -> bool:
    part: Any = capabilities
    for name in ("tasks", "requests", "tools", "call"):
        part = part.get(name) if isinstance(part, dict) else None
    return isinstance(part, dict)


def _implementation(info: Any) -> dict[str, Any]:
    known = info if isinstance(info, dict) else {}
    texts = {
        key: value for key in ("name", "version", "title", "description") if isinstance(value := known.get(key), str)
    }
    return {"name": "", "version": "", **texts}


def _instructions(raw: dict[str, Any]) -> dict[str, str]:
    text = raw.get("instructions")
    return {"instructions": text} if isinstance(text, str) else {}


NORMALIZE: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "initialize": _normalize_initialize,
    "server/discover": _normalize_discover,
}
