"""Workarounds for the MCP SDK: access to its private parts, and lists and large results at the cost of their bytes.

The SDK copies a whole result three times before encoding it, which is nearly all of the cost of a large one. So it
frames a result with a placeholder, which is replaced in the response.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from starlette.requests import Request
from starlette.types import Message, Send

SPLICES_KEY: Final = "toolcrib.splices"
"""ASGI scope key: maps placeholders in a response to the encoded lists that replace them."""

RequestContext = ServerRequestContext[Any, Request]


# -- private parts of the SDK ----------------------------------------------------------------------------------------


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """The connection of a request, which has its notifications, state and exit stack."""
    return ctx.session._connection  # noqa: SLF001 - the SDK has no public way


def may_send_requests(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the connection is initialized, so that the SDK would accept requests other than the handshake."""
    return connection_of(ctx).initialize_accepted


class Splicer:
    """ASGI `send` that replaces placeholders in the response: in a single JSON body, or in a stream of events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self.splices: dict[str, bytes] = {}
        """Put this into the request's scope under `SPLICES_KEY`."""

    async def __call__(self, message: Message) -> None:
        """Send a message on. The head of a JSON response waits for the body, which determines its length."""
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            if not headers.get(b"content-type", b"").startswith(b"text/event-stream"):
                self._start = message
                return
        elif message["type"] == "http.response.body":
            if self.splices:
                message = {**message, "body": spliced(message.get("body", b""), self.splices)}
            if self._start is not None:
                start, self._start = self._start, None
                if self.splices:
                    start = {**start, "headers": _with_length(start["headers"], len(message["body"]))}
                await self._send(start)
        await self._send(message)


def spliced(body: bytes, splices: Mapping[str, bytes]) -> bytes:
    """The body with encoded values in place of placeholders.

    >>> spliced(b'{"tools":"4711"}', {"4711": b"[{}]"})
    b'{"tools":[{}]}'
    """
    for placeholder, encoded in splices.items():
        before, found, after = body.partition(b'"' + placeholder.encode() + b'"')
        # An error response contains no placeholder.
        body = b"".join((before, encoded, after)) if found else body
    return body


def _with_length(headers: Iterable[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    others: list[tuple[bytes, bytes]] = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*others, (b"content-length", str(length).encode())]
