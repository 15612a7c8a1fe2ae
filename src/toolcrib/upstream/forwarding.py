"""Forward what a server sends on its own to the clients it concerns: log messages, questions and progress.

All callers share one connection, and nothing in a log message or a question says which call caused it. Both are
therefore forwarded only while a single caller has used the connection.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import mcp_types
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel
from pydantic_core import to_json

from toolcrib.providers.base import LogAudience
from toolcrib.types import Client, Context, Object, Unsubscribe
from toolcrib.upstream.redact import Redactor
from toolcrib.wire import replace_surrogates

logger = logging.getLogger(__name__)

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.ERROR,
    "alert": logging.ERROR,
    "emergency": logging.ERROR,
}
_MAX_LOGGED: Final = 1000
_MAX_PER_SECOND: Final = 20
"""Messages forwarded per server and second; further ones are only counted."""
_MAX_DEPTH: Final = 20
_MAX_QUEUED: Final = 64
"""Notifications kept for a client that is slower than the server; older ones are dropped."""


class LogForwarder:
    """Forwards one server's log messages (`notifications/message`) to our log and to subscribers.

    A message may quote what a caller asked, so it names a recipient only while that caller alone has used the
    connection.
    """

    def __init__(self, name: str, redact: Redactor, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        self._name = name
        self._redact = redact
        self._clock = clock
        self._listeners: dict[object, Callable[[LogAudience | None, Object], None]] = {}
        self._users: dict[tuple[str | None, str], LogAudience] = {}
        self._second, self._count = 0, 0

    def reset(self) -> None:
        """Forget who used the connection: a new one begins."""
        self._users.clear()

    def record_caller(self, ctx: Context) -> None:
        """Remember that this caller uses the connection."""
        key = (ctx.caller.tenant, ctx.caller.id)
        known = self._users.get(key)
        if known is not None:
            if known[1] != ctx.session:
                self._users[key] = (ctx.caller, None)
        elif len(self._users) < 2:  # noqa: PLR2004 - one, or several
            self._users[key] = (ctx.caller, ctx.session)

    @property
    def recipient(self) -> LogAudience | None:
        """The only caller that has used the connection, with their session if it was one; None if there were
        several.
        """
        return next(iter(self._users.values())) if len(self._users) == 1 else None

    def subscribe(self, callback: Callable[[LogAudience | None, Object], None]) -> Unsubscribe:
        """Call back with the recipient and the message, for each message."""
        place = object()
        self._listeners[place] = callback
        return lambda: (self._listeners.pop(place, None), None)[1]

    def emit(self, params: Mapping[str, Any]) -> None:
        """Forward a message."""
        level = params.get("level")
        if level not in _LEVELS or "data" not in params or not self._has_room():
            return
        data = replace_surrogates(params["data"])
        if logger.isEnabledFor(_LEVELS[level]):
            logger.log(_LEVELS[level], "%s logged: %s", self._name, self._redact(_log_text(data), _MAX_LOGGED))
        if not self._listeners:
            return
        own = params.get("logger")
        name = f"{self._name}.{own}" if isinstance(own, str) and own else self._name
        message = {"level": level, "logger": replace_surrogates(name), "data": self._redacted(data, _MAX_DEPTH)}
        recipient = self.recipient
        for callback in tuple(self._listeners.values()):
            try:
                callback(recipient, message)
            except Exception:
                # Third-party code must not end the server's connection.
                logger.exception("a log subscriber of %s raised", self._name)

    def _has_room(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            if self._count > _MAX_PER_SECOND:
                logger.info("%s sent %d more log messages", self._name, self._count - _MAX_PER_SECOND)
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= _MAX_PER_SECOND

    def _redacted(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._redact.blank(value)
        if depth == 0:
            return None
        if isinstance(value, dict):
            return {key: self._redacted(one, depth - 1) for key, one in value.items()}
        return [self._redacted(one, depth - 1) for one in value] if isinstance(value, list) else value


def _log_text(data: Any) -> str:
    return data if isinstance(data, str) else to_json(data, inf_nan_mode="constants").decode("utf-8", "replace")


class ServerRequests:
    """Answers what one server asks during a call: elicitation and sampling, in versions before 2026-07-28.

    Nothing in such a request says which call it belongs to. It goes to the client of the latest call, and only while
    one caller, in one session, has used the connection.
    """

    def __init__(self, logs: LogForwarder) -> None:
        self._logs = logs
        self._calls: dict[object, Context] = {}

    @contextmanager
    def track_call(self, ctx: Context) -> Iterator[None]:
        """Mark a call as running."""
        place = object()
        self._calls[place] = ctx
        try:
            yield
        finally:
            del self._calls[place]

    def _client(self, capability: str) -> Client | None:
        recipient = self._logs.recipient
        if recipient is None or recipient[1] is None or not self._calls:
            return None
        client = self._calls[list(self._calls)[-1]].client
        return client if client is not None and capability in client.capabilities else None

    async def elicit(
        self,
        context: ClientRequestContext,  # noqa: ARG002 - the SDK's signature
        params: mcp_types.ElicitRequestParams,
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        """Return the user's answer; `cancel` if no user can be asked."""
        client = self._client("elicitation")
        if client is None:
            return mcp_types.ElicitResult(action="cancel")
        try:
            return mcp_types.ElicitResult.model_validate(await client.elicit(_request_params(params)), by_name=False)
        except Exception as error:  # noqa: BLE001 - a client's failure must not end the server's connection
            return _error_response(error)

    async def sample(
        self,
        context: ClientRequestContext,  # noqa: ARG002 - the SDK's signature
        params: mcp_types.CreateMessageRequestParams,
    ) -> mcp_types.CreateMessageResult | mcp_types.CreateMessageResultWithTools | mcp_types.ErrorData:
        """Return the answer of the client's model."""
        client = self._client("sampling")
        if client is None:
            return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message="The client has no model to ask.")
        try:
            return mcp_types.CreateMessageResult.model_validate(
                await client.sample(_request_params(params)), by_name=False
            )
        except Exception as error:  # noqa: BLE001 - as above
            return _error_response(error)


def _request_params(params: BaseModel) -> Mapping[str, Any]:
    wire: dict[str, Any] = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    wire.pop("_meta", None)
    return wire


def _error_response(error: Exception) -> mcp_types.ErrorData:
    logger.info("a client failed to answer a server's request", exc_info=error)
    if isinstance(error, MCPError):
        return mcp_types.ErrorData(code=error.code, message=error.message)
    return mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message="The client failed to answer.")


class ProgressForwarder:
    """Forwards the progress notifications of one call to its client, in order and one at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=_MAX_QUEUED)
        self._busy = False
        self._open = True

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward one notification, after those before it."""
        self._waiting.append((progress, total, message))
        if self._busy:
            return
        self._busy = True
        try:
            while self._open and self._waiting:
                await self._client.progress(*self._waiting.popleft())
        except Exception:
            # A disconnected client must not end the server's connection.
            self._open = False
            logger.debug("a client no longer takes progress", exc_info=True)
        finally:
            self._busy = False

    def close(self) -> None:
        """Drop what arrives after the call has ended."""
        self._open = False
