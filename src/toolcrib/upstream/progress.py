"""Passes a server's progress notices on to the client behind a call."""

import logging
from collections import deque
from typing import Final

from toolcrib.protocols import Client

logger = logging.getLogger(__name__)

_WAITING: Final = 64
"""Notices kept for a client that is slower than the server; older ones are dropped."""


class Progress:
    """Called once a notice. Keeps their order, and never has more than one on its way."""

    def __init__(self, client: Client) -> None:
        """Reports to the client, until `close`."""
        self._client = client
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=_WAITING)
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
