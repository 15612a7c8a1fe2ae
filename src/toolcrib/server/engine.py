"""Answers the requests of clients: the one place that dispatches, observes, maps errors and writes the response.

Transports make an `Exchange` of each message and send what `Engine.answer` returns. The handshake is here too: what a
client learns of this server, and which versions both speak.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import anyio.lowlevel

from toolcrib._version import VERSION
from toolcrib.containment import is_being_cancelled, isolate
from toolcrib.errors import ExecutionFailed, ToolcribError
from toolcrib.middleware.admission import CountRefusal
from toolcrib.protocol.failures import INTERNAL_ERROR, RpcError
from toolcrib.protocol.messages import (
    PART_SIZE,
    RequestId,
    encode_error,
    encode_response,
    is_larger,
    response_parts,
)
from toolcrib.protocol.negotiation import TASKS_CAPABILITY
from toolcrib.protocol.params import check_request, is_valid_notification
from toolcrib.protocol.serving import ServerSession
from toolcrib.protocol.versions import LOG_LEVEL_KEY, MODERN_VERSIONS, SERVER_INFO_KEY, has_tasks, is_defined, is_modern
from toolcrib.resources.manager import DocumentCapabilities
from toolcrib.server.context import detach, rpc_error, to_context
from toolcrib.server.exchange import Exchange
from toolcrib.server.methods import DocumentMethods, Method, TaskMethods, ToolMethods
from toolcrib.server.notifications import ListChangeNotifier, SendNotification
from toolcrib.server.subscriptions import SubscriptionMethods
from toolcrib.surfaces.facade import ToolFacade
from toolcrib.tracing import TRACING
from toolcrib.types import Caller, Context, Object

logger = logging.getLogger(__name__)

_OPTIONAL_CAPABILITIES: Final = ("prompts", "resources", "completions", "logging")
"""Capabilities that depend on the upstream servers; fields of `DocumentCapabilities`."""

ObserveRequest = Callable[[str, str, float], None]
"""Learns of the end of a request: its method, its outcome, and how many seconds it took. Must not raise."""


class EngineAnswer(NamedTuple):
    """The response to a request."""

    body: bytes
    """A JSON-RPC message."""
    error: RpcError | None = None
    """The error in it; None for a result."""


class Engine:
    """An MCP server for a facade, for any transport."""

    def __init__(
        self,
        facade: ToolFacade,
        *,
        name: str = "toolcrib",
        version: str = VERSION,
        title: str | None = "toolcrib",
        changes: ListChangeNotifier | None = None,
        observe: ObserveRequest | None = None,
    ) -> None:
        """Clients see `name`, `version` and `title` as those of the server.

        With `changes`, which the caller has to run, clients are notified when their lists change: sessions of versions
        before 2026-07-28 by a notification, later clients by `subscriptions/listen`. `observe` learns of the end of
        each request.
        """
        self.info: dict[str, Any] = {"name": name, "version": version, **({"title": title} if title else {})}
        """What clients learn of the server."""
        self._facade = facade
        self._observe = observe
        self._admission = facade.gateway.admission
        self._changes = changes
        self._subscriptions = None if changes is None else SubscriptionMethods(changes, facade.gateway)
        self._documents = DocumentMethods(facade.gateway)
        self._may_receive = facade.gateway.resources.extensions.may_receive
        tasks = TaskMethods(facade, self._report_task)
        tools = ToolMethods(facade, tasks.start)
        self.methods: dict[str, Method] = {
            "initialize": self._initialize,
            "server/discover": self._discover,
            "ping": _ping,
            "tools/list": tools.list,
            "tools/call": tools.call,
            **self._documents.table(),
            **tasks.table(),
            **({} if self._subscriptions is None else self._subscriptions.table()),
        }
        """What answers each method."""

    # -- requests and notifications ------------------------------------------------------------------------------------

    async def answer(self, exchange: Exchange) -> EngineAnswer:
        """Answer a request. Never raises, but for cancellation."""
        assert exchange.id is not None  # noqa: S101 - only requests are answered
        try:
            result = await (self._traced(exchange) if TRACING.is_on else self.result(exchange))
            if is_larger(result, PART_SIZE):
                return EngineAnswer(await _encode_in_steps(exchange.id, result))
            return EngineAnswer(encode_response(exchange.id, result))
        except RpcError as error:
            return EngineAnswer(encode_error(exchange.id, error), error)
        except (ValueError, TypeError, RecursionError):
            logger.exception("cannot encode the result of %s as JSON", exchange.method)
            unencodable = RpcError(INTERNAL_ERROR, "The result cannot be encoded as JSON.")
            return EngineAnswer(encode_error(exchange.id, unencodable), unencodable)

    async def _traced(self, exchange: Exchange) -> dict[str, Any]:
        assert exchange.id is not None  # noqa: S101 - as above
        with TRACING.serving(exchange.method, exchange.version, exchange.id, exchange.params) as span:
            result = await self.result(exchange)
            if result.get("isError") is True:
                TRACING.fail(span, "tool_error")
            return result

    async def result(self, exchange: Exchange) -> dict[str, Any]:
        """The result of a request, some of whose values may be `RawJson`. Raises `RpcError`."""
        check_request(exchange.method, exchange.version, exchange.params, has_envelope=True)
        started, outcome = time.monotonic(), "cancelled"
        exchange.may_receive = self._may_receive
        try:
            method = self.methods.get(exchange.method, self._documents.extension)
            if LOG_LEVEL_KEY in exchange.meta and exchange.is_modern and self._subscriptions is not None:
                result = await self._subscriptions.with_logs(exchange, partial(method, exchange))
            else:
                result = await method(exchange)
            outcome = "tool_error" if result.get("isError") is True else "ok"
        except RpcError as error:
            outcome = str(error.code)
            raise
        except Exception as error:
            found = rpc_error(error)
            outcome = str(found.code)
            raise found from error
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            # What the request waited for was cancelled, and not the request: its client waits for an answer.
            found = rpc_error(ExecutionFailed("The request was cancelled internally; no client asked for that."))
            outcome = str(found.code)
            logger.exception("%s was cancelled internally", exchange.method)
            raise found from error
        finally:
            if self._observe is not None:
                self._observe(exchange.method, outcome, time.monotonic() - started)
        if exchange.is_modern:
            result.setdefault("resultType", "complete")
            meta = result.get("_meta")
            result["_meta"] = {**(meta if isinstance(meta, Mapping) else {}), SERVER_INFO_KEY: self.info}
        return result

    async def notified(self, exchange: Exchange) -> None:
        """Act upon a notification of a client. Never raises, but for cancellation."""
        forward = _FORWARDED.get(exchange.method) if is_defined(exchange.method) else DocumentMethods.extension_notified
        if not is_valid_notification(exchange.method, exchange.version, exchange.params):
            logger.info("ignored a notification that is not valid in version %s", exchange.version)
        elif forward is not None:
            try:
                await isolate(partial(forward, self._documents, exchange))
            except ToolcribError as error:
                logger.info("a notification of a client was not forwarded: %s", error.message)
            except Exception:
                logger.exception("cannot forward a notification of a client")

    # -- sessions ------------------------------------------------------------------------------------------------------

    def listening(
        self, exchange: Exchange, send: SendNotification, ready: anyio.Event | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Send a session its notifications inside the block, such as those of changed lists.

        The exchange is any of the session, such as the one that opens the stream to its client. With `ready`, changes
        count from now on, but the client is not notified before that event.
        """
        session = exchange.session
        if self._subscriptions is None or session is None:
            return nullcontext()
        if ready is None:
            ready = anyio.Event()
            ready.set()
        return self._subscriptions.listening(session, detach(to_context(exchange)), send, ready)

    async def end_session(self, session: ServerSession, caller: Caller) -> None:
        """Forget what belongs to a session that has ended."""
        if self._subscriptions is not None:
            self._subscriptions.close(session)
        ctx = Context(caller=caller, session=session.id)
        try:
            await isolate(partial(self._facade.gateway.end_session, ctx))
        except Exception:
            logger.exception("cannot end a session at the servers")

    @property
    def notifies(self) -> bool:
        """Whether clients are notified of changes."""
        return self._changes is not None

    def end_streams(self) -> None:
        """End the responses that never end by themselves."""
        if self._changes is not None:
            self._changes.end_streams()

    def _report_task(self, session: ServerSession | None, status: dict[str, Any]) -> None:
        if self._subscriptions is not None:
            self._subscriptions.report_task(session, status)

    # -- refusals before a request is read -----------------------------------------------------------------------------

    def report_refusal(self, caller: Caller, action: str, error: ToolcribError) -> None:
        """Report a request that a transport has refused."""
        self._admission.report_refusal(Context(caller=caller), action, error)

    @property
    def count_refusal(self) -> CountRefusal | None:
        """What counts refusals, by the setting; None if nothing does."""
        return self._admission.count

    # -- the handshake -------------------------------------------------------------------------------------------------

    async def _initialize(self, exchange: Exchange) -> dict[str, Any]:
        """`initialize`: open the session of the exchange."""
        if exchange.session is not None:
            exchange.version = exchange.session.open(exchange.params)
            exchange.capabilities = exchange.session.capabilities
        about = await self.introduction(exchange)
        return {"protocolVersion": exchange.version, "serverInfo": self.info, **about}

    async def _discover(self, exchange: Exchange) -> dict[str, Any]:
        """`server/discover`."""
        about = await self.introduction(exchange)
        return {"supportedVersions": list(MODERN_VERSIONS), "cacheScope": "private", "ttlMs": 0, **about}

    async def introduction(self, exchange: Exchange) -> dict[str, Any]:
        """The caller's own capabilities and instructions, for the result of the handshake."""
        ctx = to_context(exchange)
        instructions = await self._instructions(ctx)
        notifies = self._subscriptions is not None and (is_modern(exchange.version) or exchange.session is not None)
        capabilities = _filtered(_all_capabilities(notifies=notifies), await self._available(ctx))
        if ctx.session is not None and has_tasks(exchange.version) and await self._offers_tasks(ctx):
            capabilities["tasks"] = TASKS_CAPABILITY
        return {"capabilities": capabilities, **({"instructions": instructions} if instructions else {})}

    async def _available(self, ctx: Context) -> DocumentCapabilities:
        """What the caller may request; everything if that cannot be determined."""
        try:
            return await isolate(partial(self._facade.gateway.resources.capabilities, ctx))
        except Exception:
            logger.exception("cannot determine the capabilities for a client")
            return DocumentCapabilities(
                prompts=True, resources=True, completions=True, subscriptions=True, logging=True
            )

    async def _offers_tasks(self, ctx: Context) -> bool:
        try:
            return await isolate(partial(self._facade.offers_tasks, ctx))
        except Exception:
            logger.exception("cannot determine whether a client may run tasks")
            return False

    async def _instructions(self, ctx: Context) -> str:
        """The caller's instructions; empty on failure, because later requests will report the problem."""
        try:
            return await isolate(partial(self._facade.instructions, ctx))
        except Exception:
            logger.exception("cannot build the instructions for a client")
            return ""


_FORWARDED: Final = {"notifications/roots/list_changed": DocumentMethods.roots_changed}
"""What forwards the notifications of clients that servers are to learn of."""


async def _encode_in_steps(request_id: RequestId, result: Object) -> bytes:
    """Encode a large result, with other requests served between the steps. Raises `ValueError`."""
    parts = []
    for part in response_parts(request_id, result):
        parts.append(part)
        await anyio.lowlevel.checkpoint()
    whole = b"".join(parts)
    await anyio.lowlevel.checkpoint()  # writing it takes as long as putting it together
    return whole


async def _ping(_: Exchange) -> dict[str, Any]:
    return {}


def _all_capabilities(*, notifies: bool) -> dict[str, Any]:
    lists = {"listChanged": notifies}
    resources = {"subscribe": notifies, **lists}
    capabilities = {"tools": lists, "prompts": lists, "resources": resources, "completions": {}}
    return {**capabilities, "logging": {}} if notifies else capabilities


def _filtered(capabilities: dict[str, Any], available: DocumentCapabilities) -> dict[str, Any]:
    """The capabilities without those that no upstream server provides."""
    filtered = {
        name: part
        for name, part in capabilities.items()
        if name not in _OPTIONAL_CAPABILITIES or getattr(available, name)
    }
    if "resources" in filtered and not available.subscriptions:
        filtered["resources"] = {**filtered["resources"], "subscribe": False}
    return {**filtered, "extensions": available.extensions} if available.extensions else filtered
