"""What an HTTP request is answered that is turned away: its status, and an error that MCP clients show to people.

An SDK client shows the message of a JSON-RPC error in whatever status it comes, and of anything else none.
"""

from collections.abc import Mapping
from typing import Final

from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import InvalidRequest, ToolcribError

SHUTTING_DOWN: Final = "The server is shutting down; the call was given up."
"""What is still unanswered when a server ends is told this, with the code of SDKs for a connection that closed."""

_BAD_REQUEST: Final = 400
_SERVER_ERROR: Final = 500
_OF_THE_BODY: Final = frozenset({"content-length", "content-type"})
_JSON: Final = "application/json"
_LISTING_RULES: Final = b'"message":"Validation error: '
"""How the SDK begins to list every rule of its own that a message breaks."""
_WRONG_TYPE: Final = b"Invalid Content-Type header"
_NO_MESSAGE: Final = InvalidRequest(
    "The body is no JSON-RPC message.",
    hint='Send one object, such as {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}.',
)
_ERRORS: Final = {
    _BAD_REQUEST: InvalidRequest("The body is not said to be JSON.", hint=f"Send Content-Type: {_JSON}."),
    405: InvalidRequest("This address does not take that HTTP method.", hint="MCP requests are sent by POST."),
    406: InvalidRequest(
        "The Accept header leaves no form in which to answer.", hint=f"Send Accept: {_JSON}, text/event-stream."
    ),
}


def refusal(
    status: int, error: ToolcribError, *, headers: Mapping[str, str] | None = None, code: int | None = None
) -> JSONResponse:
    """The answer with that status: the error with its hint as the message of JSON-RPC, and whole as its `data`.

    `code` is that of JSON-RPC; without it, the status decides.

    >>> refusal(413, InvalidRequest("Too large.", hint="Send less.")).body[:88].decode()
    '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Too large. Send less.","dat'
    """
    if code is None:
        code = INTERNAL_ERROR if status >= _SERVER_ERROR else INVALID_REQUEST
    told = {"code": code, "message": str(error), "data": error.payload()}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": told}, status_code=status, headers=headers)


class Explained:
    """ASGI: where an app of the SDK's turns a request away in words for machines, the answer says what would work."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        """Wrap an ASGI app that takes bodies up to that size."""
        self._app = app
        too_large = InvalidRequest(
            f"The request is larger than {max_body_bytes:,} bytes; nothing was run.",
            hint="Send less at once, or raise http.max_body_bytes in the server's settings.",
        )
        self._errors = {**_ERRORS, 413: too_large}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        start: Message | None = None

        async def explained(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] in self._errors:
                start = message  # its body tells whether that will do
                return
            if start is not None:
                head, start = start, None
                error = self._error(head, message.get("body", b""))
                if error is not None:
                    await refusal(head["status"], error, headers=_kept(head))(scope, receive, send)
                    return
                await send(head)
            await send(message)

        await self._app(scope, receive, explained)

    def _error(self, head: Message, body: bytes) -> InvalidRequest | None:
        """What to say in place of an answer; None where it says enough."""
        if Headers(raw=list(head["headers"])).get("content-type", "").startswith(_JSON):
            return _NO_MESSAGE if _LISTING_RULES in body else None
        if head["status"] == _BAD_REQUEST and body != _WRONG_TYPE:
            return None
        return self._errors[head["status"]]


def _kept(head: Message) -> dict[str, str]:
    """The headers that are not about the body which is replaced."""
    given = Headers(raw=list(head["headers"]))
    return {name: value for name, value in given.items() if name not in _OF_THE_BODY}
