"""`tools/list` at the cost of its bytes.

The SDK checks and copies a handler's whole result three times before it is encoded, which for large lists is nearly
all that they cost. Entries are checked when they are made (see `fragments`); here their encoded form is put straight
into the answer of an HTTP request, and the SDK is left to frame an answer that holds a mark in their place.
"""

import secrets
from collections.abc import Iterable, MutableMapping
from typing import Final

from starlette.types import Message, Scope, Send

PARTS_KEY: Final = "toolcrib.parts"
"""Where the ASGI scope says that marks in its answer will be filled in: by mark, what stands for each."""


def set_aside(scope: Scope, entries: Iterable[bytes]) -> str | None:
    """A mark in place of a list of these encoded entries; None where the answer will not be filled in."""
    parts: MutableMapping[str, bytes] | None = scope.get(PARTS_KEY)
    if parts is None:
        return None
    mark = secrets.token_hex(16)
    parts[mark] = b"[" + b",".join(entries) + b"]"
    return mark


class Filling:
    """ASGI `send` that puts what was set aside in the place of its marks. Of one request whose answer is one JSON."""

    def __init__(self, send: Send) -> None:
        """Give `parts` to the scope of the request."""
        self._send = send
        self._start: Message | None = None
        self.parts: dict[str, bytes] = {}

    async def __call__(self, message: Message) -> None:
        """Send a message on; the head of an answer waits for its body, which tells how long it is."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None and message["type"] == "http.response.body":
            start, self._start = self._start, None
            if self.parts:
                message = {**message, "body": self._filled(message["body"])}
                start = {**start, "headers": _with_length(start["headers"], len(message["body"]))}
            await self._send(start)
        await self._send(message)

    def _filled(self, body: bytes) -> bytes:
        for mark, part in self.parts.items():
            before, found, after = body.partition(b'"' + mark.encode() + b'"')
            # An error in the place of the answer has no mark.
            body = b"".join((before, part, after)) if found else body
        return body


def _with_length(headers: Iterable[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept: list[tuple[bytes, bytes]] = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*kept, (b"content-length", str(length).encode())]
