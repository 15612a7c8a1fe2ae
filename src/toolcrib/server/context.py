"""From an exchange to the gateway's `Context` and the client behind it, and from errors to JSON-RPC errors."""

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from toolcrib.checks import unchecked
from toolcrib.containment import isolate
from toolcrib.errors import (
    AmbiguousName,
    InvalidRequest,
    NotFound,
    ToolcribError,
    UpstreamError,
)
from toolcrib.protocol.failures import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from toolcrib.protocol.versions import (
    ENVELOPE_KEYS,
    INPUT_REQUESTS,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    LOG_MESSAGE,
    PROGRESS_KEY,
    RESERVED_META,
    is_defined,
)
from toolcrib.providers.request_scope import apply_scope
from toolcrib.server.exchange import Exchange
from toolcrib.surfaces.reply import error_text
from toolcrib.types import (
    LACKING_SCOPES,
    SHOW_ALL_META,
    Context,
    Object,
    SessionClient,
    ToolResult,
)
from toolcrib.upstream.forwarding import ANSWER_TIMEOUT_S

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_DEFAULT_LEVEL: Final = "info"
_REPLICA_HINT: Final = re.compile(r"@[0-9a-f]{16}\.")
_NOT_FORWARDED: Final = frozenset({PROGRESS_KEY, SHOW_ALL_META})
_PLAIN_ENVELOPE: Final = ENVELOPE_KEYS - {LOG_LEVEL_KEY}
"""Keys of `_meta` of which nothing is forwarded."""
_FORWARDED_CAPABILITIES: Final = frozenset(INPUT_REQUESTS.values())
"""Capabilities whose requests and answers this server passes on."""
_new_context: Final = unchecked(Context)


# -- the request -------------------------------------------------------------------------------------------------------


def to_context(exchange: Exchange, *, repeats: bool = False) -> Context:
    """The context of a request; with `repeats`, of one that may repeat an earlier one with what was asked for."""
    head, meta, params = exchange.head, exchange.meta, exchange.params
    answers, state = (params.get("inputResponses"), params.get("requestState")) if repeats else (None, None)
    ctx = _new_context(
        caller=exchange.caller,
        session=exchange.session_id,
        show_all=meta.get(SHOW_ALL_META) is True if head.show_all is None else head.show_all,
        providers=head.providers,
        overriding=head.overriding,
        client=RequestClient(exchange),
        # Of a method that no version defines, both may be anything.
        input_responses=answers if isinstance(answers, dict) else None,
        request_state=_without_replica(state) if isinstance(state, str) else None,
        meta={} if exchange.session is None and meta.keys() <= _PLAIN_ENVELOPE else _forwarded_meta(exchange),
        token=head.token,
        memo={} if head.lacking is None else {LACKING_SCOPES: frozenset()},
    )
    return apply_scope(ctx)


def with_replica(exchange: Exchange, result: ToolResult) -> ToolResult:
    """The result, whose answers a client is to send back to this process if it is one of several."""
    if not exchange.head.replica or result.request_state is None:
        return result
    return replace(result, request_state=f"@{exchange.head.replica}.{result.request_state}")


def _without_replica(state: str) -> str:
    hint = _REPLICA_HINT.match(state)
    return state if hint is None else state[hint.end() :]


def detach(ctx: Context) -> Context:
    """The context without the parts that are valid only until the request is answered."""
    return replace(ctx, client=None, input_responses=None, request_state=None, meta={}, token="", memo=None)


def wanted_level(exchange: Exchange) -> str | None:
    """The level from which on the client wants log messages: of the request, or in older versions of its session.

    For a session that has not set a level, the protocol leaves the choice to the server.
    """
    if exchange.is_modern:
        level = exchange.meta.get(LOG_LEVEL_KEY)
        return level if level in LOG_LEVELS else None
    session = exchange.session
    return _DEFAULT_LEVEL if session is None or session.log_level is None else session.log_level


def is_severe_enough(level: object, least: str | None) -> bool:
    """Whether a client that wants log messages from `least` on wants those of this level; None is for none."""
    return least is not None and level in LOG_LEVELS and LOG_LEVELS.index(str(level)) >= LOG_LEVELS.index(least)


def forwarded_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """A request's `_meta` without the keys that concern only this hop."""
    return {
        key: value for key, value in meta.items() if key not in _NOT_FORWARDED and not key.startswith(RESERVED_META)
    }


def _forwarded_meta(exchange: Exchange) -> Object:
    """The request's `_meta` without the keys that concern only this hop, and with the level of log messages."""
    level, forwarded = wanted_level(exchange), forwarded_meta(exchange.meta)
    return forwarded if level is None else {**forwarded, LOG_LEVEL_KEY: level}


# -- the client --------------------------------------------------------------------------------------------------------


class RequestClient(SessionClient):
    """The client behind one request, valid until it is answered; that of a notification, as long as its session."""

    __slots__ = ("_exchange", "is_modern", "wants_progress")

    is_modern: bool
    """Whether the client answers questions by repeating its call, as of version 2026-07-28."""
    wants_progress: bool
    """Whether the request carries a progress token."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.is_modern = exchange.is_modern
        self.wants_progress = PROGRESS_KEY in exchange.meta

    @property
    def capabilities(self) -> Object:
        """The declared capabilities that upstream servers may use.

        Those are the ones whose answers can be passed back: by a repeated call or, in older versions, while the call
        waits.
        """
        declared = self.declared
        return declared if self.is_modern else {name: part for name, part in declared.items() if self._supports(name)}

    @property
    def declared(self) -> Object:
        """The same, whether or not the client can be reached now."""
        declared = self._exchange.capabilities
        return {name: declared[name] for name in declared if name in _FORWARDED_CAPABILITIES} if declared else declared

    @property
    def extensions(self) -> Object:
        """The extensions that it declared: with its session or, from 2026-07-28 on, with each request."""
        extensions = self._exchange.capabilities.get("extensions")
        return extensions if isinstance(extensions, Mapping) else {}

    def _supports(self, capability: str) -> bool:
        return self.can_elicit if capability == "elicitation" else self._exchange.channel.can_ask

    def can_ask(self, method: str) -> bool:
        """Whether the client can answer such a request while its own waits, as before version 2026-07-28."""
        needed = INPUT_REQUESTS.get(method)
        return needed is not None and not self.is_modern and needed in self.capabilities

    @property
    def can_elicit(self) -> bool:
        """Whether `elicit` can show the user a form while this request is being answered.

        True before version 2026-07-28 for clients that declare the capability: always over stdio, in memory and over
        HTTP+SSE; over streamable HTTP while the client holds its session's GET stream open, as SDK clients do. From
        2026-07-28 on, a call returns what it needs to know instead (`ToolResult.kind`).
        """
        declared = self._exchange.capabilities.get("elicitation")
        if not isinstance(declared, Mapping) or self.is_modern:
            return False
        if declared.get("form") is None and declared.get("url") is not None:
            return False
        return self._exchange.channel.can_ask

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress; does nothing if the client did not ask for it."""
        token = self._exchange.meta.get(PROGRESS_KEY)
        if token is not None:
            report = {"progressToken": token, "progress": done, "total": total, "message": message}
            params = {name: value for name, value in report.items() if value is not None}
            await self._exchange.channel.notify("notifications/progress", params)

    async def elicit(self, params: Object) -> Object:
        """Ask the user behind the client. Raises `RpcError` where the protocol cannot reach them."""
        if params.get("mode") == "url" and "elicitationId" not in params:
            # 2026-07-28 has dropped it; before, it is required.
            params = {**params, "elicitationId": secrets.token_hex(8)}
        return await self._ask("elicitation/create", params)

    async def sample(self, params: Object) -> Object:
        """Ask the client's model. Raises `RpcError` where the protocol cannot reach it."""
        return await self._ask("sampling/createMessage", params)

    async def list_roots(self) -> Object:
        """Ask for the client's roots. Raises `RpcError` where the protocol cannot reach it."""
        return await self._ask("roots/list", {})

    async def _ask(self, method: str, params: Object) -> Object:
        return await self._exchange.channel.ask(method, params, ANSWER_TIMEOUT_S)

    def may_receive(self, namespace: str, method: str, params: Object) -> bool:
        """Whether the policy lets a notification of an extension pass to the caller of the request."""
        exchange = self._exchange
        return exchange.may_receive is not None and exchange.may_receive(exchange.caller, namespace, method, params)

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification that belongs to the request: before its response, or on the session's own stream."""
        if method == LOG_MESSAGE:
            if not is_severe_enough(params.get("level"), wanted_level(self._exchange)):
                return
        elif self.is_modern and is_defined(method):
            return  # the version has no others on the stream of a response
        await self._exchange.channel.notify(method, params)


# -- errors ------------------------------------------------------------------------------------------------------------


async def as_rpc_errors(work: Awaitable[_T]) -> _T:
    """Await the work, and raise its errors as JSON-RPC errors that reveal no internals."""
    try:
        return await work
    except RpcError:
        raise
    except Exception as error:
        raise rpc_error(error) from error


def rpc_error(error: Exception) -> RpcError:
    """An error of a request as a JSON-RPC error that reveals no internals."""
    if isinstance(error, ToolcribError):
        return RpcError(_json_rpc_code(error), error_text(error), error.payload())
    logger.error("a request failed unexpectedly", exc_info=error)
    return RpcError(INTERNAL_ERROR, "Internal error; see the server's log for the cause.")


async def as_server_errors(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do the work like `as_rpc_errors`; an error of an upstream server arrives as it came."""
    try:
        return await as_rpc_errors(isolate(work))
    except RpcError as error:
        cause = error.__cause__
        if isinstance(cause, UpstreamError) and cause.rpc_error is not None:
            raise RpcError.of(cause.rpc_error) from cause
        raise


def _json_rpc_code(error: ToolcribError) -> int:
    return INVALID_PARAMS if isinstance(error, (NotFound, AmbiguousName, InvalidRequest)) else INTERNAL_ERROR
