"""One remote MCP server as a tool provider: what callers of its tools meet."""

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

import anyio
from pydantic_core import to_json

from toolcrib.errors import CallTimeout, ConnectionLost, ExecutionFailed, ServerUnavailable, UpstreamError
from toolcrib.model import Object, ServerState, ServerStatus, Tool, ToolResult
from toolcrib.protocols import Context, Documents, DueTo, Unsubscribe
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.http import Network
from toolcrib.upstream.listing import Offer
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.session import Session
from toolcrib.upstream.supervisor import Supervisor
from toolcrib.wire import read_document, read_result

_UNKNOWN_EFFECT: Final = "Whether the call took effect is unknown; check before you repeat it."
_FORGETFUL: Final = "it does not know the session that it has only just opened"
_FIRST_PAUSE_S: Final = 0.05
_MOST_PAUSE_S: Final = 0.4
_DATA_BYTES: Final = 8192
"""The largest `data` of a server's error that is passed on."""


class Server:
    """A `ToolProvider`, with `Changes`, `StatusSource` and `DocumentSource`.

    The namespace of what it offers is its name, or that of the options.
    """

    def __init__(self, options: ServerOptions, fleet: FleetOptions, network: Network) -> None:
        """Nothing is tried before `run`."""
        self.options = options
        self.gateway_id = fleet.gateway_id
        """Of the fleet it belongs to."""
        self._resend_s = fleet.resend_s
        self._supervisor = Supervisor(options, fleet, network)

    @property
    def name(self) -> str:
        """Unique in its fleet."""
        return self.options.name

    @property
    def namespace(self) -> str:
        """Of its tools."""
        return self.options.namespace or self.options.name

    @property
    def status(self) -> ServerStatus:
        """Where it stands."""
        return self._supervisor.board.status

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools as last read. A tool whose definition did not change is the same object as before."""
        return self._supervisor.listing.tools

    async def run(self) -> None:
        """Keep it connected until cancelled; then everything it holds is closed."""
        await self._supervisor.run()

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Its one status."""
        return (self.status,)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever its tools or its status changed."""
        return self._supervisor.board.listeners.add(callback)

    async def list_tools(self, ctx: Context) -> tuple[Tool, ...]:  # noqa: ARG002 - the same for every caller
        """Its tools as last read; the server is never asked."""
        return self.tools

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run a tool by its own name: one request to the server. None when it has no such tool.

        A result that tells of an error is a result. Raises `ServerUnavailable` (nothing ran), `CallTimeout`,
        `ConnectionLost` (unknown whether it ran), `UpstreamError`, and `InvalidArguments` for what is not JSON.
        """
        offer = await self._offer(name)
        return None if offer is None else await self._run(ctx, offer, arguments, name)

    async def _offer(self, name: str) -> Offer | None:
        """What is listed by that name. Raises `ServerUnavailable`."""
        if await self._supervisor.connected() is None:
            raise self._unavailable()
        return self._supervisor.listing.offers.get(name)

    async def _run(self, ctx: Context, offer: Offer, arguments: Object, name: str) -> ToolResult:
        """One call within its deadline; `name` is the tool that an error tells of."""
        with anyio.move_on_after(self.options.call_timeout_s):
            return await self._call(ctx, offer, arguments)
        raise self._late(name)

    async def _call(self, ctx: Context, offer: Offer, arguments: Object) -> ToolResult:
        raw = await self._exchanged(
            ctx, lambda session: session.call(ctx, offer.tool.name, arguments, offer.wanted_headers)
        )
        if self.status.stale:
            self._supervisor.wake()
        return self._read(read_result, raw)

    async def _exchanged(self, ctx: Context, work: Callable[[Session], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """What the server answers to a caller."""
        self._supervisor.voice.used_by(ctx)
        with self._supervisor.asked.during(ctx):
            return await self._answered(work)

    async def _answered(self, work: Callable[[Session], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Asked again where nothing ran: once in a new session, where the server forgot the old one, and for a moment
        where it cannot be reached, since it may only restart.
        """
        forgotten, pauses = False, self._pauses()
        while True:
            try:
                return await work(await self._session())
            except ExchangeError as error:
                pause = next(pauses, None) if error.kind is Kind.UNSENT else None
                if pause is None and (forgotten or error.kind is not Kind.SESSION):
                    raise self._named(error) from error
                forgotten = forgotten or error.kind is Kind.SESSION
            await anyio.sleep(pause or 0.0)

    def _pauses(self) -> Iterator[float]:
        """Between attempts to send, in seconds, as long as the server has only just gone; none where it long has."""
        status = self.status
        left = self._resend_s - (0.0 if status.state is ServerState.READY else time.time() - status.since)
        pause = _FIRST_PAUSE_S
        while left >= pause:
            left -= pause
            yield pause
            pause = min(2 * pause, _MOST_PAUSE_S)

    async def _session(self) -> Session:
        session = self._supervisor.session or await self._supervisor.connected()
        if session is None:
            raise self._unavailable()
        return session

    def _read(self, read: Callable[[dict[str, Any]], ToolResult], raw: dict[str, Any]) -> ToolResult:
        try:
            return read(raw)
        except UpstreamError as error:
            raise UpstreamError(f'"{self.name}": {error.message}', data={"server": self.name}) from error

    # -- what it offers to read ------------------------------------------------------------------------------------

    def documents(self) -> Documents | None:
        """Its prompts and resources as last read; None before the first time."""
        return self._supervisor.keeper.documents

    async def ask(self, ctx: Context, method: str, params: Object) -> ToolResult:
        """The answer to one request about a prompt or a resource, whole, as structured content. Raises as `call_tool`
        does.
        """
        with anyio.move_on_after(self.options.call_timeout_s):
            raw = await self._exchanged(ctx, lambda session: session.ask(ctx, method, params))
            return self._read(partial(read_document, method), raw)
        raise self._late(method)

    async def watch(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call back, with its URI, whenever the resource or one below it changed. Raises as `ask` does, and
        `UpstreamError` where the server does not agree.
        """
        with anyio.move_on_after(self.options.call_timeout_s):
            try:
                return await self._supervisor.watches.add(uri, callback, partial(self._supervisor.voice.used_by, ctx))
            except ExchangeError as error:
                raise self._named(error) from error
        raise self._late("resources/subscribe")

    def hear(self, callback: Callable[[DueTo | None, Object], None]) -> Unsubscribe:
        """Call back with each message for a log, and with the one caller it can be due to."""
        return self._supervisor.voice.hear(callback)

    # -- errors ----------------------------------------------------------------------------------------------------

    def _unavailable(self, reason: str = "") -> ServerUnavailable:
        status = self.status
        reason = reason or status.reason or "it is still connecting"
        # How long it was ready tells nothing of a server that is not there for this call.
        lasting = f" ({status.state.value} for {_duration(time.time() - status.since)})"
        since = "" if status.state is ServerState.READY else lasting
        return ServerUnavailable(
            f'The server "{self.name}" is not available: {reason}{since}.',
            hint=f"Nothing was run. {self._next_try()}",
            data={
                "server": self.name,
                "state": status.state.value,
                "reason": reason,
                "since": status.since,
                "retry_at": status.retry_at,
            },
        )

    def _late(self, name: str) -> CallTimeout:
        return CallTimeout(
            f'"{self.name}" did not answer {name} within {self.options.call_timeout_s:g} s and was told to stop.',
            hint=_UNKNOWN_EFFECT,
            data={"server": self.name, "timeout_s": self.options.call_timeout_s},
        )

    def _named(self, error: ExchangeError) -> ExecutionFailed:
        """The error that a caller of this server sees."""
        if error.kind is Kind.UNSENT:
            self._supervisor.missed(error.reason)
            return self._unavailable(error.reason)
        if error.kind is Kind.SESSION:
            return self._unavailable(_FORGETFUL)
        if error.kind in (Kind.CLOSED, Kind.LOST):
            return self._lost(error)
        data: dict[str, Any] = {"server": self.name}
        if error.code is not None:
            data["rpc_code"] = error.code
        if error.data is not None and len(to_json(error.data)) <= _DATA_BYTES:
            data["rpc_data"] = error.data
        return UpstreamError(f'"{self.name}" answered with an error: {error.reason}', data=data, rpc_code=error.code)

    def _lost(self, error: ExchangeError) -> ConnectionLost:
        return ConnectionLost(
            f'The connection to "{self.name}" was lost during the call: {error.reason}.',
            hint=_UNKNOWN_EFFECT,
            data={"server": self.name, "reason": error.reason},
        )

    def _next_try(self) -> str:
        retry_at = self.status.retry_at
        if self.options.problem:
            return "It is tried again once its configuration is mended."
        if self._supervisor.given_up:
            return "It is not tried again; restart it once it can be reached."
        if retry_at is None:
            return "It is being tried right now."
        return f"It is tried again in {max(0, round(retry_at - time.time()))} s."


def _duration(seconds: float) -> str:
    """Roughly how long.

    >>> _duration(5.2), _duration(90), _duration(7200)
    ('5 s', '1 min', '2 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
