"""What a server says for a log (`notifications/message`): into our log, and to those who listen.

A connection is shared by all callers. A message may hold what one of them asked, so that it is due to a caller only
while he alone has used the connection.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic_core import to_json

from toolcrib.model import Object
from toolcrib.protocols import Context, DueTo, Unsubscribe
from toolcrib.upstream.redact import Redactor
from toolcrib.wire import mended

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
_LENGTH: Final = 1000
_A_SECOND: Final = 20
"""Messages of one server that are passed on in a second; the others are counted."""
_DEPTH: Final = 20


class Voice:
    """Of one server."""

    def __init__(self, name: str, redact: Redactor, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody listens yet, and nobody has used it. `clock` is in seconds."""
        self._name = name
        self._redact = redact
        self._clock = clock
        self._listeners: dict[object, Callable[[DueTo | None, Object], None]] = {}
        self._users: dict[tuple[str | None, str], DueTo] = {}
        self._second, self._count = 0, 0

    def connected(self) -> None:
        """The connection is a new one."""
        self._users.clear()

    def used_by(self, ctx: Context) -> None:
        """The caller of this request uses the connection."""
        key = (ctx.caller.tenant, ctx.caller.id)
        known = self._users.get(key)
        if known is not None:
            if known[1] != ctx.session:
                self._users[key] = (ctx.caller, None)
        elif len(self._users) < 2:  # noqa: PLR2004 - one, or several
            self._users[key] = (ctx.caller, ctx.session)

    @property
    def due_to(self) -> DueTo | None:
        """The one caller that has used the connection, with his session if it was one; None where it is not one."""
        return next(iter(self._users.values())) if len(self._users) == 1 else None

    def hear(self, callback: Callable[[DueTo | None, Object], None]) -> Unsubscribe:
        """Call back with each message, and whom it is due to."""
        place = object()
        self._listeners[place] = callback
        return lambda: (self._listeners.pop(place, None), None)[1]

    def say(self, params: Mapping[str, Any]) -> None:
        """Pass a message on."""
        level = params.get("level")
        if level not in _LEVELS or "data" not in params or not self._has_room():
            return
        data = mended(params["data"])
        if logger.isEnabledFor(_LEVELS[level]):
            logger.log(_LEVELS[level], "%s says: %s", self._name, self._redact(_text(data), _LENGTH))
        if not self._listeners:
            return
        own = params.get("logger")
        name = f"{self._name}.{own}" if isinstance(own, str) and own else self._name
        message = {"level": level, "logger": mended(name), "data": self._redacted(data, _DEPTH)}
        due_to = self.due_to
        for callback in tuple(self._listeners.values()):
            try:
                callback(due_to, message)
            except Exception:
                # It is foreign code, and must not end the server's connection.
                logger.exception("who listens to %s raised", self._name)

    def _has_room(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            if self._count > _A_SECOND:
                logger.info("%s said %d more", self._name, self._count - _A_SECOND)
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= _A_SECOND

    def _redacted(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._redact.blank(value)
        if depth == 0:
            return None
        if isinstance(value, dict):
            return {key: self._redacted(one, depth - 1) for key, one in value.items()}
        return [self._redacted(one, depth - 1) for one in value] if isinstance(value, list) else value


def _text(data: Any) -> str:
    return data if isinstance(data, str) else to_json(data, inf_nan_mode="constants").decode("utf-8", "replace")
