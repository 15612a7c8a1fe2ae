"""A negotiated connection to one server: requests as plain JSON, with results exactly as the server sent them.

The SDK's own client session parses whole replies, and so loses a whole reply over one invalid part. It is used for
the handshake, for answering the server's own requests, and for subscriptions.

`server/discover` is sent first. Any error, or no answer in time, means an older server: it gets the `initialize`
handshake and is never offered more than the newest version that has one.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.abc
from mcp import ClientSession
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
)
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    LOG_LEVEL_META_KEY,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    DiscoverResult,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic_core import to_json

from toolcrib._version import VERSION
from toolcrib.errors import InvalidArguments
from toolcrib.types import SHOW_ALL_META, Context, Object, ServerInfo
from toolcrib.upstream.channel import (
    NO_MESSAGE,
    AutoResetEvent,
    Channel,
    ExchangeError,
    FailureKind,
    FastPathUnavailable,
    Streams,
    embedded_failure,
)
from toolcrib.upstream.forwarding import ProgressForwarder, ServerRequests
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bounded
from toolcrib.wire import replace_surrogates

_EMPTY: Final[Object] = {}
_SDK_CLOSED: Final = "Connection closed"
_SDK_STREAM_ENDED: Final = "SSE stream ended"
"""How the SDK's messages begin if the response's own stream broke off."""
_SDK_PARSE_FAILURE: Final = "Failed to parse JSON response: "
"""How the SDK begins its list of every rule that a response breaks."""
_MAX_MESSAGE: Final = 1000
_MAX_NAME: Final = 200
_MAX_INSTRUCTIONS: Final = 20_000
HeaderMap = Mapping[tuple[str, ...], str]
"""Which arguments, by path, a tool wants repeated as headers (its `x-mcp-header` annotations)."""
CLIENT_INFO: Final = {"name": "toolcrib", "version": VERSION}
_CONNECTION_KEYS: Final = frozenset(
    {"progressToken", PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, SHOW_ALL_META}
)
"""`_meta` keys of a caller's request that belong to the caller's own connection."""
_USED_CAPABILITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "tools": ("listChanged",),
    "prompts": ("listChanged",),
    "resources": ("listChanged", "subscribe"),
    "completions": (),
    "logging": (),
}


@asynccontextmanager
async def open_connection(
    channel: Channel,
    options: ServerOptions,
    fleet: FleetOptions,
    redact: Redactor,
    server_requests: ServerRequests,
    *,
    discover: bool = True,
) -> AsyncIterator["Connection"]:
    """Connect and negotiate; without `discover`, with the handshake only. Raises `ExchangeError`, alone or in a group.

    `server_requests` answers what an older server asks, if the options allow it.
    """
    async with channel.transport as streams:
        dispatcher = RawJsonDispatcher(streams, channel, probe_timeout_s=fleet.probe_timeout_s)
        async with ClientSession(
            dispatcher=dispatcher,
            client_info=Implementation.model_validate(CLIENT_INFO),
            read_timeout_seconds=options.start_timeout_s,
            elicitation_callback=server_requests.elicit if options.asks else None,
            sampling_callback=server_requests.sample if options.asks else None,
        ) as client:
            try:
                await negotiate(client, dispatcher, patience_s=options.start_timeout_s, discover=discover)
            except MCPError as error:
                raise _exchange_error(error, redact) from error
            yield Connection(client, dispatcher, channel, redact, show_all=options.show_all)


class RawJsonDispatcher(JSONRPCDispatcher[TransportContext]):
    """The SDK's dispatcher with plain JSON results, tolerant of invalid handshakes and floods of notifications.

    Built on the public methods of `JSONRPCDispatcher`: `send_raw_request` and `run`.
    """

    def __init__(self, streams: Streams, channel: Channel, *, probe_timeout_s: float) -> None:
        super().__init__(*streams)
        self._channel = channel
        self.probe_timeout_s = probe_timeout_s
        """How long to wait for the response to `server/discover`."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **routing: Any
    ) -> dict[str, Any]:
        """Return the result as it came, except for those of the handshake, which are normalized. Raises `MCPError`."""
        if method == "server/discover":
            opts = {**(opts or {}), "timeout": self.probe_timeout_s}
        raw = await super().send_raw_request(method, params, opts, **routing)
        tidy = _NORMALIZE.get(method)
        return raw if tidy is None else tidy(raw)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection until it ends, then set the channel's `closed`."""

        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            if on_notify_intercept is not None:
                on_notify_intercept(method, params)
            if method == "notifications/tools/list_changed":
                self._channel.refresh_needed.set()
            else:
                self._channel.notifications.dispatch(method, params)
            # Stop here: each notification passed on would cost a task.
            return True

        try:
            await super().run(on_request, on_notify, intercept, task_status=task_status)
        finally:
            self._channel.closed.set("the connection was closed")


class Connection:
    """A negotiated connection. Safe to use from several tasks at once."""

    def __init__(
        self,
        client: ClientSession,
        dispatcher: RawJsonDispatcher,
        channel: Channel,
        redact: Redactor,
        *,
        show_all: bool,
    ) -> None:
        self._client = client
        self._dispatcher = dispatcher
        self._redact = redact
        self._pending = 0
        self._finished = AutoResetEvent()
        self.channel = channel
        self.protocol = NegotiatedProtocol(client.protocol_version or "", show_all)
        self.capabilities = client.server_capabilities or ServerCapabilities()
        changing = (self.capabilities.tools, self.capabilities.prompts, self.capabilities.resources)
        self.can_subscribe = self.protocol.modern and any(part is not None and part.list_changed for part in changing)

    @property
    def protocol_version(self) -> str:
        return self.protocol.version

    @property
    def info(self) -> ServerInfo:
        """What the server says about itself, truncated to a reasonable length."""
        server = self._client.server_info
        instructions = bounded(self._client.instructions or "", _MAX_INSTRUCTIONS)
        if server is None:
            return ServerInfo(instructions=instructions)
        name, version, title = (bounded(text or "", _MAX_NAME) for text in (server.name, server.version, server.title))
        about = bounded(server.description or "", _MAX_INSTRUCTIONS)
        return ServerInfo(name=name, version=version, title=title, description=about, instructions=instructions)

    @property
    def has_tools(self) -> bool:
        """Whether the server declares tools at all."""
        return self.capabilities.tools is not None

    async def list_page(self, method: str, cursor: str | None, meta: Object = _EMPTY) -> dict[str, Any]:
        """Return one page of a list, such as `tools/list`; `meta` is added to `_meta`. Raises `ExchangeError`."""
        params: dict[str, Any] = {"cursor": cursor} if cursor is not None else {}
        if wire_meta := self.protocol.meta(meta, {}):
            params["_meta"] = wire_meta
        return await self._send(method, params, self.protocol.headers(method))

    async def request(
        self, ctx: Context, method: str, params: Object, header_map: HeaderMap | None = None
    ) -> dict[str, Any]:
        """Send a caller's request, and return its raw result. `header_map` is that of the called tool.

        Raises `ExchangeError`, and `InvalidArguments` for params that cannot be encoded as JSON.
        """
        whole = self.protocol.params(ctx, params)
        _check_sendable(whole)
        headers = self.protocol.headers(method, params, header_map)
        if ctx.client is None:
            return await self._send(method, whole, headers)
        progress = ProgressForwarder(ctx.client)
        try:
            return await self._send(method, whole, headers, progress)
        finally:
            progress.close()

    async def subscribe_resource(self, uri: str, *, on: bool) -> None:
        """Subscribe to a resource of a server of an older version, or unsubscribe. Raises `ExchangeError`."""
        method = "resources/subscribe" if on else "resources/unsubscribe"
        await self._send(method, {"uri": uri}, self.protocol.headers(method))

    async def follow_list_changes(self, retry_s: float) -> None:
        """Subscribe to list changes for as long as the connection lasts, and set the channel's events."""
        capabilities, notifications = self.capabilities, self.channel.notifications
        while True:
            try:
                async with listen(
                    self._client,
                    tools_list_changed=_list_changes(capabilities.tools),
                    prompts_list_changed=_list_changes(capabilities.prompts),
                    resources_list_changed=_list_changes(capabilities.resources),
                ) as subscription:
                    async for _ in subscription:
                        pass
            except (SubscriptionLost, TimeoutError):
                pass
            except MCPError as error:
                if embedded_failure(error) is None:
                    return
            await anyio.sleep(retry_s)
            self.channel.refresh_needed.set()
            notifications.lists_changed.set()

    @asynccontextmanager
    async def resource_updates(self, uris: Iterable[str]) -> AsyncIterator[Subscription]:
        """Subscribe to these resources of a server of a newer version; entered once it has confirmed.

        Raises `ExchangeError`. Iteration ends, or raises `SubscriptionLost`, when the subscription ends.
        """
        try:
            async with listen(self._client, resource_subscriptions=tuple(uris)) as subscription:
                yield subscription
        except MCPError as error:
            raise _exchange_error(error, self._redact) from error

    async def wait_idle(self) -> None:
        """Wait until no request is under way."""
        while self._pending:
            await self._finished.wait()

    async def _send(
        self, method: str, params: dict[str, Any], headers: dict[str, str], progress: ProgressForwarder | None = None
    ) -> dict[str, Any]:
        fast_path, modern = self.channel.fast_path, self.protocol.modern
        if method == "tools/call" and fast_path is not None and fast_path.supports(modern=modern):
            try:
                return await self._exchange(fast_path.call(params, headers, modern=modern, progress=progress))
            except FastPathUnavailable:
                pass
        opts: CallOptions = {"headers": headers}
        if progress is not None:
            opts["on_progress"] = progress
        return await self._exchange(self._dispatcher.send_raw_request(method, params, opts))

    async def _exchange(self, exchange: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        self._pending += 1
        try:
            return await exchange
        except (MCPError, ExchangeError) as error:
            failure = _exchange_error(error, self._redact) if isinstance(error, MCPError) else error
            if failure.kind is FailureKind.LOST:
                self.channel.refresh_needed.set()
            if failure.kind is FailureKind.CLOSED and self.channel.closed.is_set:
                failure = ExchangeError(FailureKind.CLOSED, self.channel.closed.reason)
            raise failure from error
        finally:
            self._pending -= 1
            self._finished.set()


def _list_changes(part: ToolsCapability | PromptsCapability | ResourcesCapability | None) -> bool:
    return part is not None and part.list_changed is True


def _exchange_error(error: MCPError, redact: Redactor) -> ExchangeError:
    """Map the SDK's single error type to the kinds of failures."""
    failure = embedded_failure(error)
    if failure is not None:
        return failure
    message = redact(error.message, _MAX_MESSAGE)
    if error.code == CONNECTION_CLOSED and message == _SDK_CLOSED:
        return ExchangeError(FailureKind.CLOSED, "the connection was closed")
    if error.code == CONNECTION_CLOSED and message.startswith(_SDK_STREAM_ENDED):
        return ExchangeError(FailureKind.LOST, "the connection broke off")
    if error.code == PARSE_ERROR and message.startswith(_SDK_PARSE_FAILURE):
        return ExchangeError(FailureKind.ANSWER, NO_MESSAGE)
    return ExchangeError(
        FailureKind.ANSWER, replace_surrogates(message), code=error.code, data=replace_surrogates(error.data)
    )


def _check_sendable(params: dict[str, Any]) -> None:
    """Reject a request that cannot be encoded here: further down it would break the whole connection."""
    try:
        data = to_json(params, inf_nan_mode="constants")
        if b"NaN" in data or b"Infinity" in data:
            json.dumps(params, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise InvalidArguments(
            "The arguments cannot be encoded as JSON.",
            hint="Use only strings of valid Unicode, finite numbers, true, false, null, lists and objects.",
        ) from error


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
        if meta := self.meta(ctx.meta, ctx.client.capabilities if ctx.client is not None else {}):
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


async def negotiate(
    client: ClientSession, dispatcher: RawJsonDispatcher, *, patience_s: float, discover: bool = True
) -> None:
    """Negotiate a version; without `discover`, with the handshake only.

    Raises `MCPError` if neither way works, and `ClosedOnDiscover`.
    """
    if discover and await _discover(client):
        return
    try:
        await client.initialize()
    except MCPError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        # It answered the probe after all, but too late, as on a slow start; now it rejects the handshake.
        dispatcher.probe_timeout_s = patience_s
        if not await _discover(client):
            raise


async def _discover(client: ClientSession) -> bool:
    """Return whether the server speaks a version without handshake; if so, it is adopted."""
    try:
        raw = await client.send_discover(LATEST_MODERN_VERSION)
    except MCPError as error:
        failure = embedded_failure(error)
        if failure is not None and failure.kind is FailureKind.UNSENT:
            raise
        if failure is None and error.code == CONNECTION_CLOSED:
            raise ClosedOnDiscover(FailureKind.CLOSED, "the connection was closed") from error
        return False
    result = DiscoverResult.model_validate(raw, by_name=False)
    if not any(version in MODERN_PROTOCOL_VERSIONS for version in result.supported_versions):
        return False
    client.adopt(result)
    return True


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
    return {
        name: {flag: part.get(flag) is True for flag in flags}
        for name, flags in _USED_CAPABILITIES.items()
        if isinstance(part := given.get(name), dict)
    }


def _implementation(info: Any) -> dict[str, Any]:
    known = info if isinstance(info, dict) else {}
    texts = {
        key: value for key in ("name", "version", "title", "description") if isinstance(value := known.get(key), str)
    }
    return {"name": "", "version": "", **texts}


def _instructions(raw: dict[str, Any]) -> dict[str, str]:
    text = raw.get("instructions")
    return {"instructions": text} if isinstance(text, str) else {}


_NORMALIZE: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "initialize": _normalize_initialize,
    "server/discover": _normalize_discover,
}
