"""Errors as HTTP responses, which hold the same as a JSON-RPC error: what was wrong, and what would work."""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.responses import Response
from starlette.types import Scope

from toolcrib.errors import InsufficientScope, InvalidRequest, NotAuthenticated, RateLimited, ToolcribError
from toolcrib.protocol.failures import INTERNAL_ERROR, INVALID_REQUEST, RpcError
from toolcrib.protocol.messages import encode_error
from toolcrib.server.auth.authentication import CHALLENGE, RequestAuthenticator
from toolcrib.server.options import HttpOptions
from toolcrib.types import Authenticator, AuthenticatorWithChallenge

_SERVER_ERROR: Final = 500


def unauthorized(
    error: NotAuthenticated, authenticator: Authenticator | None = None, scope: Scope | None = None
) -> Response:
    """A 401 response, with the authenticator's own challenge where it has one."""
    return error_response(401, error, headers={"WWW-Authenticate": _challenge(error, authenticator, scope)})


def forbidden(error: InsufficientScope, authenticator: Authenticator, scope: Scope) -> Response:
    """A 403 response that names the scopes that are needed."""
    return error_response(403, error, headers={"WWW-Authenticate": _challenge(error, authenticator, scope)})


def _challenge(
    error: NotAuthenticated | InsufficientScope, authenticator: Authenticator | None, scope: Scope | None
) -> str:
    if scope is not None and isinstance(authenticator, RequestAuthenticator):
        return authenticator.challenge_for(scope, error)
    if isinstance(authenticator, AuthenticatorWithChallenge) and isinstance(error, NotAuthenticated):
        return authenticator.challenge(error)
    return CHALLENGE


def error_response(
    status: int, error: ToolcribError, *, headers: Mapping[str, str] | None = None, code: int | None = None
) -> Response:
    """An HTTP response whose JSON-RPC error has the error and its hint as `message`, and its payload as `data`.

    Without `code`, the JSON-RPC error code follows from the status. An error that says when to try again says so in the
    header `Retry-After` too.

    >>> error_response(413, InvalidRequest("Too large.", hint="Send less.")).body[:88].decode()
    '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Too large. Send less.","dat'
    """
    if code is None:
        code = INTERNAL_ERROR if status >= _SERVER_ERROR else INVALID_REQUEST
    body = encode_error(None, RpcError(code, str(error), error.payload()))
    if (after_s := error.data.get("retry_after_s")) is not None:
        headers = {"Retry-After": str(math.ceil(after_s)), **(headers or {})}
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def refusal_status(error: RpcError) -> tuple[int, dict[str, str]] | None:
    """The HTTP status and headers of the response to a request that a limit refused; None for another error.

    Only for clients of 2026-07-28: older ones take the status for the end of their session, and read the error alone.
    """
    if not isinstance(error.data, dict) or error.data.get("code") != RateLimited.code:
        return None
    details = error.data["details"]
    status = HTTPStatus.SERVICE_UNAVAILABLE if details.get("of") == "all" else HTTPStatus.TOO_MANY_REQUESTS
    return status, {"Retry-After": str(math.ceil(details["retry_after_s"]))}


def body_too_large(options: HttpOptions, size: int | None = None) -> InvalidRequest:
    """The error for a body that has too many bytes or, if it is of this size and that is allowed, too many values."""
    what, setting = f"is larger than {options.max_body_bytes:,} bytes", "http.max_body_bytes"
    if size is not None and size <= options.max_body_bytes:
        what, setting = f"holds more than {options.max_body_nodes:,} values", "http.max_body_nodes"
    return InvalidRequest(
        f"The request {what}; nothing was run.",
        hint=f"Send less at once, or raise {setting} in the server's settings.",
    )
