"""Contain errors to the request that caused them, without leaking internals, and turn them into responses.

JSON-RPC errors for MCP requests, and error bodies for rejected HTTP requests. SDK clients show the message of a
JSON-RPC error whatever the HTTP status, and nothing of any other body.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import anyio
import mcp_types
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.containment import is_being_cancelled
from toolcrib.errors import AmbiguousName, ExecutionFailed, InvalidRequest, NotFound, ToolcribError
from toolcrib.surfaces.base import error_text

logger = logging.getLogger(__name__)


T = TypeVar("T")


async def isolate(work: Callable[[], Awaitable[T]]) -> T:
    """The outcome of work in which foreign code takes part.

    Where that code is cancelled by something of its own, such as a future that was given up, or cancels its own task,
    this raises `ExecutionFailed`: a cancellation that nobody asked for would end the session, or the server. Whoever
    cancels the caller of this cancels the work.
    """
    outcome: list[T] = []
    failures: list[Exception] = []

    async def run() -> None:
        try:
            outcome.append(await work())
        except Exception as error:  # noqa: BLE001 - raised again below, not as a group
            failures.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    if failures:
        raise failures.pop()
    if not outcome:
        logger.error("a request was cancelled from within")
        raise ExecutionFailed("It was cancelled from within, by nobody's request.")
    return outcome.pop()


def is_own_cancellation(error: BaseException) -> bool:
    """Whether the current task is really being cancelled by that error, and not foreign code by something of its own.

    Code that cancels the task it runs in looks like the first; where it may come, use `isolated`.
    """
    return isinstance(error, asyncio.CancelledError) and is_being_cancelled()


async def as_mcp_errors(work: Awaitable[T]) -> T:
    """The work's outcome; its errors as JSON-RPC errors that tell nothing of the inside."""
    try:
        return await work
    except ToolcribError as error:
        raise MCPError(_json_rpc_code(error), error_text(error), error.payload()) from error
    except MCPError:
        raise
    except Exception as error:
        logger.exception("a request failed inside")
        raise MCPError(mcp_types.INTERNAL_ERROR, "Internal error; the server's log has the cause.") from error


def _json_rpc_code(error: ToolcribError) -> int:
    teachable = isinstance(error, (NotFound, AmbiguousName, InvalidRequest))
    return mcp_types.INVALID_PARAMS if teachable else mcp_types.INTERNAL_ERROR


SHUTTING_DOWN: Final = "The server is shutting down; the call was given up."
"""What is still unanswered when a server ends is told this, with the code of SDKs for a connection that closed."""


_BAD_REQUEST: Final = 400


_SERVER_ERROR: Final = 500


_BODY_HEADERS: Final = frozenset({"content-length", "content-type"})


_JSON: Final = "application/json"


_VALIDATION_DUMP: Final = b'"message":"Validation error: '
"""How the SDK begins to list every rule of its own that a message breaks."""


_WRONG_CONTENT_TYPE: Final = b"Invalid Content-Type header"


_NOT_A_MESSAGE: Final = InvalidRequest(
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


def error_response(
    status: int, error: ToolcribError, *, headers: Mapping[str, str] | None = None, code: int | None = None
) -> JSONResponse:
    """The answer with that status: the error with its hint as the message of JSON-RPC, and whole as its `data`.

    `code` is that of JSON-RPC; without it, the status decides.

    >>> error_response(413, InvalidRequest("Too large.", hint="Send less.")).body[:88].decode()
    '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Too large. Send less.","dat'
    """
    if code is None:
        code = INTERNAL_ERROR if status >= _SERVER_ERROR else INVALID_REQUEST
    told = {"code": code, "message": str(error), "data": error.payload()}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": told}, status_code=status, headers=headers)


class ErrorMiddleware:
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
                    await error_response(head["status"], error, headers=_other_headers(head))(scope, receive, send)
                    return
                await send(head)
            await send(message)

        await self._app(scope, receive, explained)

    def _error(self, head: Message, body: bytes) -> InvalidRequest | None:
        """What to say in place of an answer; None where it says enough."""
        if Headers(raw=list(head["headers"])).get("content-type", "").startswith(_JSON):
            return _NOT_A_MESSAGE if _VALIDATION_DUMP in body else None
        if head["status"] == _BAD_REQUEST and body != _WRONG_CONTENT_TYPE:
            return None
        return self._errors[head["status"]]


def _other_headers(head: Message) -> dict[str, str]:
    """The headers that are not about the body which is replaced."""
    given = Headers(raw=list(head["headers"]))
    return {name: value for name, value in given.items() if name not in _BODY_HEADERS}
