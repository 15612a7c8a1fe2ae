"""A negotiated connection to one server: lists and calls, as plain JSON, exactly as the server answered.

The SDK's own client session parses whole replies, and so loses all of a reply over one bad part. It is used for what
it is good at: the handshake, answering the server's own requests, and subscriptions.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from mcp import ClientSession
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from pydantic_core import to_json

from toolcrib.errors import InvalidArguments
from toolcrib.model import Object, ServerInfo
from toolcrib.protocols import Context
from toolcrib.upstream.asked import Asked
from toolcrib.upstream.dispatcher import RawDispatcher
from toolcrib.upstream.envelope import CLIENT_INFO, Envelope, HeaderMap
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.gate import marked
from toolcrib.upstream.link import Bell, Link, Unsuited
from toolcrib.upstream.negotiation import negotiate
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.progress import Progress
from toolcrib.upstream.reasons import NO_MESSAGE
from toolcrib.upstream.redact import Redactor, bounded
from toolcrib.wire import mended

_NOTHING: Final[Object] = {}
_CLOSED: Final = "Connection closed"
_BROKEN_STREAM: Final = "SSE stream ended"
"""How the SDK's messages begin where the answer's own stream broke off."""
_NO_MESSAGE: Final = "Failed to parse JSON response: "
"""How the SDK begins to list every rule of its own that an answer breaks."""
_MESSAGE_LENGTH: Final = 1000
_NAME_LENGTH: Final = 200
_INSTRUCTIONS_LENGTH: Final = 20_000


@asynccontextmanager
async def open_session(
    link: Link,
    options: ServerOptions,
    fleet: FleetOptions,
    redact: Redactor,
    asked: Asked,
    *,
    discover: bool = True,
) -> AsyncIterator["Session"]:
    """Connect and negotiate, with `discover` beyond the handshake; `asked` is what an older server asks, where the
    options let it. Raises `ExchangeError`, alone or in a group.
    """
    async with link.transport as streams:
        dispatcher = RawDispatcher(streams, link, probe_timeout_s=fleet.probe_timeout_s)
        async with ClientSession(
            dispatcher=dispatcher,
            client_info=Implementation.model_validate(CLIENT_INFO),
            read_timeout_seconds=options.start_timeout_s,
            elicitation_callback=asked.elicit if options.asks else None,
            sampling_callback=asked.sample if options.asks else None,
        ) as client:
            try:
                await negotiate(client, dispatcher, patience_s=options.start_timeout_s, discover=discover)
            except MCPError as error:
                raise _fault(error, redact) from error
            yield Session(client, dispatcher, link, redact, show_all=options.show_all)


class Session:
    """Its methods may be used from any task, side by side."""

    def __init__(
        self, client: ClientSession, dispatcher: RawDispatcher, link: Link, redact: Redactor, *, show_all: bool
    ) -> None:
        """The client has negotiated."""
        self._client = client
        self._dispatcher = dispatcher
        self._redact = redact
        self._under_way = 0
        self._answered = Bell()
        self.link = link
        self.envelope = Envelope(client.protocol_version or "", show_all)
        self.offers = client.server_capabilities or ServerCapabilities()
        """What the server says that it has."""
        changing = (self.offers.tools, self.offers.prompts, self.offers.resources)
        self.can_listen = self.envelope.modern and any(part is not None and part.list_changed for part in changing)

    @property
    def protocol(self) -> str:
        """The protocol version that was agreed on."""
        return self.envelope.version

    @property
    def info(self) -> ServerInfo:
        """Who the server says it is, as far as that is of a reasonable length."""
        said = self._client.server_info
        instructions = bounded(self._client.instructions or "", _INSTRUCTIONS_LENGTH)
        if said is None:
            return ServerInfo(instructions=instructions)
        name, version, title = (bounded(text or "", _NAME_LENGTH) for text in (said.name, said.version, said.title))
        about = bounded(said.description or "", _INSTRUCTIONS_LENGTH)
        return ServerInfo(name=name, version=version, title=title, description=about, instructions=instructions)

    @property
    def has_tools(self) -> bool:
        """Whether the server says that it has tools at all."""
        return self.offers.tools is not None

    async def page(self, method: str, cursor: str | None, told: Object = _NOTHING) -> dict[str, Any]:
        """One page of a list, such as `tools/list`; `told` is said along in `_meta`. Raises `ExchangeError`."""
        params: dict[str, Any] = {"cursor": cursor} if cursor is not None else {}
        if meta := self.envelope.meta(told, {}):
            params["_meta"] = meta
        return await self._request(method, params, {"headers": self.envelope.headers(method)})

    async def ask(self, ctx: Context, method: str, params: Object) -> dict[str, Any]:
        """The result of any other request of a caller. Raises `ExchangeError`, and `InvalidArguments` as `call`."""
        whole = self._with_rounds(ctx, dict(params))
        _check_sendable(whole)
        opts: CallOptions = {"headers": self.envelope.named_headers(method, params)}
        if ctx.client is None:
            return await self._request(method, whole, opts)
        progress = Progress(ctx.client)
        try:
            return await self._request(method, whole, {**opts, "on_progress": progress})
        finally:
            progress.close()

    async def watch(self, uri: str, *, on: bool) -> None:
        """Have a server of an older version tell of changes of a resource, or not any more. Raises `ExchangeError`."""
        method = "resources/subscribe" if on else "resources/unsubscribe"
        await self._request(method, {"uri": uri}, {"headers": self.envelope.headers(method)})

    async def call(self, ctx: Context, name: str, arguments: Object, wanted: HeaderMap) -> dict[str, Any]:
        """The result of one `tools/call`. Raises `ExchangeError`, and `InvalidArguments` for what is not JSON."""
        params = self._call_params(ctx, name, arguments)
        _check_sendable(params)
        headers = self.envelope.call_headers(name, arguments, wanted)
        if ctx.client is None:
            return await self._called(params, headers, None)
        progress = Progress(ctx.client)
        try:
            return await self._called(params, headers, progress)
        finally:
            progress.close()

    async def _called(
        self, params: dict[str, Any], headers: dict[str, str], progress: Progress | None
    ) -> dict[str, Any]:
        shortcut = self.link.shortcut
        if shortcut is not None and shortcut.suits(modern=self.envelope.modern):
            try:
                return await self._exchange(
                    shortcut.call(params, headers, modern=self.envelope.modern, progress=progress)
                )
            except Unsuited:
                pass
        opts: CallOptions = {"headers": headers}
        if progress is not None:
            opts["on_progress"] = progress
        return await self._request("tools/call", params, opts)

    def _call_params(self, ctx: Context, name: str, arguments: Object) -> dict[str, Any]:
        return self._with_rounds(ctx, {"name": name, "arguments": dict(arguments)})

    def _with_rounds(self, ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        """With `_meta`, and what answers an earlier question of the server."""
        if meta := self.envelope.meta(ctx.meta, ctx.client.capabilities if ctx.client is not None else {}):
            params["_meta"] = meta
        if self.envelope.modern and ctx.input_responses is not None:
            params["inputResponses"] = dict(ctx.input_responses)
        if self.envelope.modern and ctx.request_state is not None:
            params["requestState"] = ctx.request_state
        return params

    async def listen(self, retry_s: float) -> None:
        """Have the server tell of changed lists, for as long as the session lasts; the link's bells then ring."""
        offers, told = self.offers, self.link.notices
        while True:
            try:
                async with listen(
                    self._client,
                    tools_list_changed=_changes(offers.tools),
                    prompts_list_changed=_changes(offers.prompts),
                    resources_list_changed=_changes(offers.resources),
                ) as subscription:
                    async for _ in subscription:
                        pass
            except (SubscriptionLost, TimeoutError):
                pass
            except MCPError as error:
                if marked(error) is None:
                    return
            await anyio.sleep(retry_s)
            self.link.doubt.ring()
            told.revised.ring()

    @asynccontextmanager
    async def watching(self, uris: Iterable[str]) -> AsyncIterator[Subscription]:
        """Have a server of a newer version tell of changes of these resources; entered once it has agreed.

        Raises `ExchangeError`. Iterating ends, or raises `SubscriptionLost`, when the server tells no more.
        """
        try:
            async with listen(self._client, resource_subscriptions=tuple(uris)) as subscription:
                yield subscription
        except MCPError as error:
            raise _fault(error, self._redact) from error

    async def drained(self) -> None:
        """Wait until no request is under way."""
        while self._under_way:
            await self._answered.wait()

    async def _request(self, method: str, params: dict[str, Any], opts: CallOptions) -> dict[str, Any]:
        return await self._exchange(self._dispatcher.send_raw_request(method, params, opts))

    async def _exchange(self, exchange: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        self._under_way += 1
        try:
            return await exchange
        except (MCPError, ExchangeError) as error:
            fault = _fault(error, self._redact) if isinstance(error, MCPError) else error
            if fault.kind is Kind.LOST:
                self.link.doubt.ring()
            if fault.kind is Kind.CLOSED and self.link.end.has_come:
                fault = ExchangeError(Kind.CLOSED, self.link.end.reason)
            raise fault from error
        finally:
            self._under_way -= 1
            self._answered.ring()


def _changes(part: ToolsCapability | PromptsCapability | ResourcesCapability | None) -> bool:
    return part is not None and part.list_changed is True


def _fault(error: MCPError, redact: Redactor) -> ExchangeError:
    """What the SDK's one error type stands for."""
    fault = marked(error)
    if fault is not None:
        return fault
    message = redact(error.message, _MESSAGE_LENGTH)
    if error.code == CONNECTION_CLOSED and message == _CLOSED:
        return ExchangeError(Kind.CLOSED, "the connection was closed")
    if error.code == CONNECTION_CLOSED and message.startswith(_BROKEN_STREAM):
        return ExchangeError(Kind.LOST, "the connection broke off")
    if error.code == PARSE_ERROR and message.startswith(_NO_MESSAGE):
        return ExchangeError(Kind.ANSWER, NO_MESSAGE)
    return ExchangeError(Kind.ANSWER, mended(message), code=error.code, data=mended(error.data))


def _check_sendable(params: dict[str, Any]) -> None:
    """A request that cannot be encoded must fail here: further down it would take the connection with it."""
    try:
        data = to_json(params, inf_nan_mode="constants")
        if b"NaN" in data or b"Infinity" in data:
            json.dumps(params, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise InvalidArguments(
            "The arguments cannot be sent as JSON.",
            hint="Use only strings of valid Unicode, finite numbers, true, false, null, lists and objects.",
        ) from error
