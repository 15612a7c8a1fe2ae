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

from toolcrib.types import Client, Context, LogAudience, Object, Unsubscribe
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
"""Messages of one server that are passed on in a second; the others are counted."""


_MAX_DEPTH: Final = 20


class LogForwarder:
    """Of one server."""

    def __init__(self, name: str, redact: Redactor, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody listens yet, and nobody has used it. `clock` is in seconds."""
        self._name = name
        self._redact = redact
        self._clock = clock
        self._listeners: dict[object, Callable[[LogAudience | None, Object], None]] = {}
        self._users: dict[tuple[str | None, str], LogAudience] = {}
        self._second, self._count = 0, 0

    def reset(self) -> None:
        """The connection is a new one."""
        self._users.clear()

    def record_caller(self, ctx: Context) -> None:
        """The caller of this request uses the connection."""
        key = (ctx.caller.tenant, ctx.caller.id)
        known = self._users.get(key)
        if known is not None:
            if known[1] != ctx.session:
                self._users[key] = (ctx.caller, None)
        elif len(self._users) < 2:  # noqa: PLR2004 - one, or several
            self._users[key] = (ctx.caller, ctx.session)

    @property
    def recipient(self) -> LogAudience | None:
        """The one caller that has used the connection, with his session if it was one; None where it is not one."""
        return next(iter(self._users.values())) if len(self._users) == 1 else None

    def subscribe(self, callback: Callable[[LogAudience | None, Object], None]) -> Unsubscribe:
        """Call back with each message, and whom it is due to."""
        place = object()
        self._listeners[place] = callback
        return lambda: (self._listeners.pop(place, None), None)[1]

    def emit(self, params: Mapping[str, Any]) -> None:
        """Pass a message on."""
        level = params.get("level")
        if level not in _LEVELS or "data" not in params or not self._has_room():
            return
        data = replace_surrogates(params["data"])
        if logger.isEnabledFor(_LEVELS[level]):
            logger.log(_LEVELS[level], "%s says: %s", self._name, self._redact(_log_text(data), _MAX_LOGGED))
        if not self._listeners:
            return
        own = params.get("logger")
        name = f"{self._name}.{own}" if isinstance(own, str) and own else self._name
        message = {"level": level, "logger": replace_surrogates(name), "data": self._redacted(data, _MAX_DEPTH)}
        due_to = self.recipient
        for callback in tuple(self._listeners.values()):
            try:
                callback(due_to, message)
            except Exception:
                # It is foreign code, and must not end the server's connection.
                logger.exception("who listens to %s raised", self._name)

    def _has_room(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            if self._count > _MAX_PER_SECOND:
                logger.info("%s said %d more", self._name, self._count - _MAX_PER_SECOND)
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
    """Of one server."""

    def __init__(self, voice: LogForwarder) -> None:
        """Who has used the connection is known from the server's voice."""
        self._voice = voice
        self._calls: dict[object, Context] = {}

    @contextmanager
    def track_call(self, ctx: Context) -> Iterator[None]:
        """A call is under way."""
        place = object()
        self._calls[place] = ctx
        try:
            yield
        finally:
            del self._calls[place]

    def _client(self, capability: str) -> Client | None:
        due_to = self._voice.recipient
        if due_to is None or due_to[1] is None or not self._calls:
            return None
        client = self._calls[list(self._calls)[-1]].client
        return client if client is not None and capability in client.capabilities else None

    async def elicit(
        self,
        context: ClientRequestContext,  # noqa: ARG002 - the SDK's signature
        params: mcp_types.ElicitRequestParams,
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        """What the person says; that he does not want to, where nobody can be asked."""
        client = self._client("elicitation")
        if client is None:
            return mcp_types.ElicitResult(action="cancel")
        try:
            return mcp_types.ElicitResult.model_validate(await client.elicit(_request_params(params)), by_name=False)
        except Exception as error:  # noqa: BLE001 - of the client's; it must not end the server's connection
            return _error_response(error)

    async def sample(
        self,
        context: ClientRequestContext,  # noqa: ARG002 - the SDK's signature
        params: mcp_types.CreateMessageRequestParams,
    ) -> mcp_types.CreateMessageResult | mcp_types.CreateMessageResultWithTools | mcp_types.ErrorData:
        """What the client's model says."""
        client = self._client("sampling")
        if client is None:
            return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message="There is no model to be asked.")
        try:
            return mcp_types.CreateMessageResult.model_validate(
                await client.sample(_request_params(params)), by_name=False
            )
        except Exception as error:  # noqa: BLE001 - as above
            return _error_response(error)


def _request_params(params: BaseModel) -> Mapping[str, Any]:
    said: dict[str, Any] = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    said.pop("_meta", None)
    return said


def _error_response(error: Exception) -> mcp_types.ErrorData:
    logger.info("a client failed to answer what a server asked", exc_info=error)
    if isinstance(error, MCPError):
        return mcp_types.ErrorData(code=error.code, message=error.message)
    return mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message="The client failed to answer.")


_MAX_QUEUED: Final = 64
"""Notices kept for a client that is slower than the server; older ones are dropped."""


class ProgressForwarder:
    """Called once a notice. Keeps their order, and never has more than one on its way."""

    def __init__(self, client: Client) -> None:
        """Reports to the client, until `close`."""
        self._client = client
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=_MAX_QUEUED)
        self._busy = False
        self._open = True

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass one notice on, after those before it."""
        self._waiting.append((progress, total, message))
        if self._busy:
            return
        self._busy = True
        try:
            while self._open and self._waiting:
                await self._client.progress(*self._waiting.popleft())
        except Exception:
            # A client that is gone must not end the server's connection.
            self._open = False
            logger.debug("a client takes no progress any more", exc_info=True)
        finally:
            self._busy = False

    def close(self) -> None:
        """The call is over; what comes late is dropped."""
        self._open = False
