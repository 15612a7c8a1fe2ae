"""Contain errors to the request that caused them, without leaking internals, and turn them into responses.

JSON-RPC errors for MCP requests, and error bodies for rejected HTTP requests. SDK clients show the message of a
JSON-RPC error whatever the HTTP status, and ignore any other body.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.containment import is_being_cancelled
from toolcrib.errors import AmbiguousName, ExecutionFailed, InvalidRequest, NotFound, NotStarted, ToolcribError
from toolcrib.surfaces.base import error_text

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHUTTING_DOWN: Final = "The server is shutting down; the call was cancelled."
"""Message for requests that are still unanswered at shutdown, sent with the JSON-RPC code `CONNECTION_CLOSED`."""

_BAD_REQUEST: Final = 400
_SERVER_ERROR: Final = 500
_BODY_HEADERS: Final = frozenset({"content-length", "content-type"})
_JSON: Final = "application/json"
_VALIDATION_DUMP: Final = b'"message":"Validation error: '
"""Marks a response in which the SDK lists every validation rule that a message breaks."""
_WRONG_CONTENT_TYPE: Final = b"Invalid Content-Type header"
_NOT_A_MESSAGE: Final = InvalidRequest(
    "The body is not a JSON-RPC message.",
    hint='Send one object, such as {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}.',
)
_NOT_RUNNING: Final = NotStarted(
    "The server is not running.",
    hint="Start the app it belongs to (`async with app`), or run the lifespan of the mounted app.",
)
_ERRORS: Final = {
    _BAD_REQUEST: InvalidRequest("The request does not declare a JSON body.", hint=f"Send Content-Type: {_JSON}."),
    405: InvalidRequest("This address does not support that HTTP method.", hint="Send MCP requests by POST."),
    406: InvalidRequest(
        "The Accept header allows no response format of this server.", hint=f"Send Accept: {_JSON}, text/event-stream."
    ),
}


async def isolate(work: Callable[[], Awaitable[T]]) -> T:
    """Run work that involves third-party code in a task of its own, and return its outcome.

    Third-party code may cancel its own task, or await a future that something else cancels. That would end the session
    or the server, so it raises `ExecutionFailed` here instead. Cancelling the caller still cancels the work.
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
        logger.error("a request was cancelled internally")
        raise ExecutionFailed("The call was cancelled internally; no client asked for that.")
    return outcome.pop()


def is_own_cancellation(error: BaseException) -> bool:
    """Whether the error really cancels the current task, rather than third-party code passing on its own cancellation.

    Code that cancels the task it runs in cannot be distinguished from the former; use `isolate` where that may happen.
    """
    return isinstance(error, asyncio.CancelledError) and is_being_cancelled()


async def as_mcp_errors(work: Awaitable[T]) -> T:
    """Await the work, and raise its errors as JSON-RPC errors that reveal no internals."""
    try:
        return await work
    except ToolcribError as error:
        raise MCPError(_json_rpc_code(error), error_text(error), error.payload()) from error
    except MCPError:
        raise
    except Exception as error:
        logger.exception("a request failed unexpectedly")
        raise MCPError(INTERNAL_ERROR, "Internal error; see the server's log for the cause.") from error


def _json_rpc_code(error: ToolcribError) -> int:
    return INVALID_PARAMS if isinstance(error, (NotFound, AmbiguousName, InvalidRequest)) else INTERNAL_ERROR


def error_response(
    status: int, error: ToolcribError, *, headers: Mapping[str, str] | None = None, code: int | None = None
) -> JSONResponse:
    """An HTTP response whose JSON-RPC error has the error and its hint as `message`, and its payload as `data`.

    Without `code`, the JSON-RPC error code follows from the status.

    >>> error_response(413, InvalidRequest("Too large.", hint="Send less.")).body[:88].decode()
    '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Too large. Send less.","dat'
    """
    if code is None:
        code = INTERNAL_ERROR if status >= _SERVER_ERROR else INVALID_REQUEST
    content = {"code": code, "message": str(error), "data": error.payload()}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": content}, status_code=status, headers=headers)


class ErrorMiddleware:
    """ASGI middleware: replaces terse rejections by the SDK's transports with errors that say what would work.

    Also answers 503 while the endpoint is not running.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        too_large = InvalidRequest(
            f"The request is larger than {max_body_bytes:,} bytes; nothing was run.",
            hint="Send less at once, or raise http.max_body_bytes in the server's settings.",
        )
        self._errors = {**_ERRORS, 413: too_large}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None

        async def send_explained(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] in self._errors:
                start = message  # the body decides whether to replace this response
                return
            if start is not None:
                head, start = start, None
                error = self._replacement(head, message.get("body", b""))
                if error is not None:
                    await error_response(head["status"], error, headers=_other_headers(head))(scope, receive, send)
                    return
                await send(head)
            await send(message)

        try:
            await self._app(scope, receive, send_explained)
        except NotStarted:
            await error_response(503, _NOT_RUNNING, headers={"Retry-After": "1"})(scope, receive, send)

    def _replacement(self, head: Message, body: bytes) -> InvalidRequest | None:
        """The error to send instead of a response; None where the response is clear enough."""
        if Headers(raw=list(head["headers"])).get("content-type", "").startswith(_JSON):
            return _NOT_A_MESSAGE if _VALIDATION_DUMP in body else None
        if head["status"] == _BAD_REQUEST and body != _WRONG_CONTENT_TYPE:
            return None
        return self._errors[head["status"]]


def _other_headers(head: Message) -> dict[str, str]:
    """The headers that do not describe the replaced body."""
    given = Headers(raw=list(head["headers"]))
    return {name: value for name, value in given.items() if name not in _BODY_HEADERS}
