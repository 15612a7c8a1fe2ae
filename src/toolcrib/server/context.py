"""From an SDK request to the gateway's `Context` and the client behind it, and from errors to JSON-RPC and HTTP errors.

The ASGI scope carries what a request brings besides itself, put there by middleware: the caller (`toolcrib.caller`,
else a user of the SDK's or FastMCP's own authentication), request providers (`toolcrib.providers`,
`toolcrib.overriding`), and whether to list every tool by name (`toolcrib.show_all`).
"""

import logging
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, TypeVar, cast, get_args

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    ErrorData,
    InputResponseRequestParams,
)
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

from toolcrib.containment import isolate
from toolcrib.errors import (
    AmbiguousName,
    InsufficientScope,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    RateLimited,
    ToolcribError,
    UpstreamError,
)
from toolcrib.protocol.versions import is_modern
from toolcrib.providers.request_scope import SHOW_ALL_HEADER, apply_scope, current_scope
from toolcrib.server.auth.authentication import (
    CALLER_KEY,
    CHALLENGE,
    OWN_CREDENTIAL_KEY,
    STEP_UP_KEY,
    RequestAuthenticator,
    sdk_caller,
)
from toolcrib.server.options import HttpOptions
from toolcrib.server.sdk_workarounds import connection_of, has_progress_callback, local_session
from toolcrib.surfaces.reply import error_text
from toolcrib.types import (
    LACKING_SCOPES,
    LOCAL,
    SHOW_ALL_META,
    Authenticator,
    AuthenticatorWithChallenge,
    Caller,
    Context,
    Object,
    SessionClient,
    ToolResult,
)
from toolcrib.upstream.forwarding import ANSWER_TIMEOUT_S
from toolcrib.wire import CLIENT_CAPABILITIES

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

PROVIDERS_KEY: Final = "toolcrib.providers"
"""ASGI scope key: a tuple of providers that come with this request."""
OVERRIDING_KEY: Final = "toolcrib.overriding"
"""ASGI scope key: the same for providers that take precedence over shared ones."""
SHOW_ALL_KEY: Final = "toolcrib.show_all"
"""ASGI scope key: whether to list every tool by name, whatever the client asks for."""
BACK_CHANNEL_KEY: Final = "toolcrib.back_channel"
"""ASGI scope key: a function that returns whether the client holds a stream open for server requests."""
EVENTS_KEY: Final = "toolcrib.events"
"""ASGI scope key: a coroutine function that sends a JSON-RPC notification on the response to a session's request."""
LOG_LEVEL_STATE: Final = "toolcrib.log_level"
"""Where the state of a connection of an older version keeps the level that its client has set."""
_DEFAULT_LEVEL: Final = "info"
LOG_LEVELS: Final = get_args(mcp_types.LoggingLevel)
"""The levels of log messages, the least severe first."""
SESSION_HEADER: Final = "mcp-session-id"
REPLICA_KEY: Final = "toolcrib.replica"
"""ASGI scope key: the id of this process among those that serve the address together; missing if it is alone."""
_REPLICA_HINT: Final = re.compile(r"@[0-9a-f]{16}\.")

_SHOW_ALL_QUERY: Final = "show_all"
_REQUEST_SCOPE_KEY: Final = "toolcrib.request_scope"
_RESERVED_PREFIX: Final = "io.modelcontextprotocol/"
_NOT_FORWARDED: Final = frozenset({"progress_token", "progressToken", SHOW_ALL_META})
_FORWARDED_CAPABILITIES: Final = set(CLIENT_CAPABILITIES.values())
"""Capabilities whose requests and answers this server passes on."""

RequestContext = ServerRequestContext[Any, Request]
_SERVER_ERROR: Final = 500


def to_context(
    request: RequestContext, *, input_responses: Object | None = None, request_state: str | None = None
) -> Context:
    """The context of a request, with the input responses of a repeated call where given."""
    http = request.request
    scope = http.scope if http is not None else {}
    ctx = Context(
        caller=request_caller(scope if http is not None else None),
        session=http.headers.get(SESSION_HEADER) if http is not None else local_session(request),
        show_all=bool(scope.get(SHOW_ALL_KEY, _client_wants_show_all(request))),
        providers=tuple(scope.get(PROVIDERS_KEY, ())),
        overriding=tuple(scope.get(OVERRIDING_KEY, ())),
        client=RequestClient(request),
        input_responses=input_responses,
        request_state=request_state,
        meta=_forwarded_meta(request),
        token=_bearer_token(http) if http is not None else "",
        memo={LACKING_SCOPES: frozenset()} if STEP_UP_KEY in scope else {},
    )
    return apply_scope(ctx, scope.get(_REQUEST_SCOPE_KEY))


def _bearer_token(http: Request) -> str:
    """The caller's token, for servers that take it; a token of the settings and an API key are for this one only."""
    if http.scope.get(OWN_CREDENTIAL_KEY):
        return ""
    scheme, _, token = http.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def to_call_context(request: RequestContext, params: InputResponseRequestParams) -> Context:
    """The same for a request that may repeat an earlier one, with answers to what a tool or server asked for."""
    responses = params.input_responses
    return to_context(
        request,
        input_responses=responses_to_wire(responses) if responses is not None else None,
        request_state=_without_replica(params.request_state),
    )


def with_replica(request: RequestContext, result: ToolResult) -> ToolResult:
    """The result, whose answers a client is to send back to this process if it is one of several."""
    replica = None if request.request is None else request.request.scope.get(REPLICA_KEY)
    if replica is None or result.request_state is None:
        return result
    return replace(result, request_state=f"@{replica}.{result.request_state}")


def _without_replica(state: str | None) -> str | None:
    hint = None if state is None else _REPLICA_HINT.match(state)
    return state if state is None or hint is None else state[hint.end() :]


def capture_request_scope(scope: Scope) -> Scope:
    """The scope of an HTTP request, with the request-scoped providers and settings of the current task.

    Call this in the request's own task: sessions are served in other tasks, which do not see its context variables.
    """
    return {**scope, _REQUEST_SCOPE_KEY: current_scope()}


def responses_to_wire(responses: Mapping[str, Any]) -> Object:
    """Input responses as wire JSON."""
    return {
        key: value.model_dump(by_alias=True, mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
        for key, value in responses.items()
    }


def detach(ctx: Context) -> Context:
    """The context without the parts that are valid only until the request is answered."""
    return replace(ctx, client=None, input_responses=None, request_state=None, meta={}, token="", memo=None)


def wants_show_all(headers: Mapping[str, str], query: Mapping[str, str]) -> bool:
    """Whether a request asks for every tool by name; the header takes precedence over the query."""
    asked = headers.get(SHOW_ALL_HEADER) or query.get(_SHOW_ALL_QUERY) or ""
    return asked.strip().lower() == "true"


def request_caller(scope: Scope | None) -> Caller:
    """The caller that toolcrib's authentication found, else the surrounding server's; `LOCAL` without either."""
    caller: Caller | None = scope.get(CALLER_KEY) if scope is not None else None
    return caller or sdk_caller(scope) or LOCAL


def _client_wants_show_all(request: RequestContext) -> bool:
    """Whether the client asks for every tool: by header, else by query, else by `_meta`."""
    http, meta = request.request, request.meta
    if http is not None:
        query = http.query_params if http.scope.get("query_string") else {}
        if http.headers.get(SHOW_ALL_HEADER) or query.get(_SHOW_ALL_QUERY):
            return wants_show_all(http.headers, query)
    return meta is not None and dict(meta).get(SHOW_ALL_META) is True


def wanted_level(request: RequestContext) -> str | None:
    """The level from which on the client wants log messages: of the request, or in older versions of its session.

    For a session that has not set a level, the protocol leaves the choice to the server.
    """
    if is_modern(request.protocol_version):
        level = (request.meta or {}).get(LOG_LEVEL_META_KEY)
    else:
        level = connection_of(request).state.get(LOG_LEVEL_STATE, _DEFAULT_LEVEL)
    return level if isinstance(level, str) and level in LOG_LEVELS else None


def forwarded_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """A request's `_meta` without the keys that concern only this hop."""
    return {
        key: value for key, value in meta.items() if key not in _NOT_FORWARDED and not key.startswith(_RESERVED_PREFIX)
    }


def forwarded_capabilities(declared: mcp_types.ClientCapabilities | None) -> Object:
    """The declared capabilities whose requests and answers are passed on, as wire JSON."""
    if declared is None:
        return {}
    forwarded = declared.model_dump(by_alias=True, mode="json", exclude_none=True, include=_FORWARDED_CAPABILITIES)
    return cast("Object", forwarded)


def _forwarded_meta(request: RequestContext) -> Object:
    """The request's `_meta` without the keys that concern only this hop, and with the level of log messages."""
    level = wanted_level(request)
    forwarded = forwarded_meta(request.meta or {})
    return forwarded if level is None else {**forwarded, LOG_LEVEL_META_KEY: level}


class RequestClient(SessionClient):
    """The client behind one request. Valid until the request is answered."""

    def __init__(self, request: ServerRequestContext[Any, Request]) -> None:
        self._request = request

    @property
    def capabilities(self) -> Object:
        """The declared capabilities that upstream servers may use.

        Those are the ones whose answers can be passed back: by a repeated call or, in older versions, while the call
        waits.
        """
        declared = self.declared
        return declared if self.is_modern else {name: part for name, part in declared.items() if self._supports(name)}

    @property
    def declared(self) -> Object:
        """The same, whether or not the client can be reached now."""
        return forwarded_capabilities(self._request.session.client_capabilities)

    @property
    def extensions(self) -> Object:
        """The extensions that it declared: with its session or, from 2026-07-28 on, with each request."""
        declared = self._request.session.client_capabilities
        return (declared.extensions if declared is not None else None) or {}

    @property
    def is_modern(self) -> bool:
        """Whether the client answers questions by repeating its call, as of version 2026-07-28."""
        return is_modern(self._request.protocol_version)

    @property
    def wants_progress(self) -> bool:
        """Whether the request carries a progress token, or in memory a callback."""
        meta = self._request.meta
        if meta is not None and ("progress_token" in meta or "progressToken" in meta):
            return True
        return self._request.request is None and has_progress_callback(self._request)

    def _supports(self, capability: str) -> bool:
        if capability == "elicitation":
            return self.can_elicit
        return self._can_reach()

    def _can_reach(self) -> bool:
        """Whether the client can be sent a request now."""
        return self._request.session.can_send_request or self._has_open_stream()

    def can_ask(self, method: str) -> bool:
        """Whether the client can answer such a request while its own waits, as before version 2026-07-28."""
        needed = CLIENT_CAPABILITIES.get(method)
        return needed is not None and not self.is_modern and needed in self.capabilities

    @property
    def can_elicit(self) -> bool:
        """Whether `elicit` can show the user a form while this request is being answered.

        True before version 2026-07-28 for clients that declare the capability: always over stdio, in memory and over
        HTTP+SSE; over streamable HTTP while the client holds its session's GET stream open, as SDK clients do. From
        2026-07-28 on, a call returns what it needs to know instead (`ToolResult.kind`).
        """
        declared = self._request.session.client_capabilities
        if declared is None or declared.elicitation is None or is_modern(self._request.protocol_version):
            return False
        if declared.elicitation.form is None and declared.elicitation.url is not None:
            return False
        return self._can_reach()

    def _has_open_stream(self) -> bool:
        http = self._request.request
        return http is not None and BACK_CHANNEL_KEY in http.scope and bool(http.scope[BACK_CHANNEL_KEY]())

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress; does nothing if the client did not ask for it."""
        http, token = self._request.request, (self._request.meta or {}).get("progress_token")
        if http is None or EVENTS_KEY not in http.scope:
            await self._request.session.report_progress(done, total, message)
        elif token is not None:
            report = {"progressToken": token, "progress": done, "total": total, "message": message}
            params = {name: value for name, value in report.items() if value is not None}
            await http.scope[EVENTS_KEY]({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    async def elicit(self, params: Object) -> Object:
        """Ask the user behind the client. Raises `NoBackChannelError` where the protocol cannot reach them."""
        if params.get("mode") == "url" and "elicitationId" not in params:
            # 2026-07-28 has dropped it; before, it is required.
            params = {**params, "elicitationId": secrets.token_hex(8)}
        request = mcp_types.ElicitRequest.model_validate({"method": "elicitation/create", "params": params})
        return await self._send(request, mcp_types.ElicitResult)

    async def sample(self, params: Object) -> Object:
        """Ask the client's model. Raises `NoBackChannelError` where the protocol cannot reach it."""
        request = mcp_types.CreateMessageRequest.model_validate({"method": "sampling/createMessage", "params": params})
        return await self._send(request, mcp_types.CreateMessageResult)

    async def list_roots(self) -> Object:
        """Ask for the client's roots. Raises `NoBackChannelError` where the protocol cannot reach it."""
        return await self._send(mcp_types.ListRootsRequest(), mcp_types.ListRootsResult)

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification that belongs to the request: before its response, or on the session's own stream."""
        if method == "notifications/message" and not self._wants_level(params.get("level")):
            return
        http = self._request.request
        if http is not None and EVENTS_KEY in http.scope and (self._wants_progress or not self._has_open_stream()):
            await http.scope[EVENTS_KEY]({"jsonrpc": "2.0", "method": method, "params": dict(params)})
        elif not self.is_modern:
            await connection_of(self._request).notify(method, dict(params))
        elif method == "notifications/message":
            message = mcp_types.LoggingMessageNotificationParams.model_validate(params)
            notification = mcp_types.LoggingMessageNotification(params=message)
            await self._request.session.send_notification(notification, related_request_id=self._request.request_id)

    @property
    def _wants_progress(self) -> bool:
        return (self._request.meta or {}).get("progress_token") is not None

    def _wants_level(self, level: object) -> bool:
        """Whether the client wants log messages of the level. From 2026-07-28 on it gets none unless it says so."""
        least = wanted_level(self._request)
        return least is not None and level in LOG_LEVELS and LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)

    async def _send(self, request: mcp_types.ServerRequest, answer: type[mcp_types.Result]) -> Object:
        session = self._request.session
        related = ServerMessageMetadata(related_request_id=self._request.request_id)
        if not session.can_send_request:
            if is_modern(self._request.protocol_version) or not self._can_reach():
                raise NoBackChannelError(request.method)
            related = ServerMessageMetadata()
        result = await session.send_request(request, answer, ANSWER_TIMEOUT_S, metadata=related)
        return cast("Object", result.model_dump(by_alias=True, mode="json", exclude_none=True))


class IdleClient(RequestClient):
    """The client of a session of an older version while none of its requests runs; valid as long as its connection."""

    def _can_reach(self) -> bool:
        http = self._request.request
        return http is None or BACK_CHANNEL_KEY not in http.scope or self._has_open_stream()


async def as_mcp_errors(work: Awaitable[_T]) -> _T:
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


async def as_server_errors(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do the work like `as_mcp_errors`; an error of an upstream server keeps its JSON-RPC code."""
    try:
        return await as_mcp_errors(isolate(work))
    except MCPError as error:
        cause = error.__cause__
        if isinstance(cause, UpstreamError) and cause.rpc_code is not None:
            raise server_error(cause, cause.rpc_code) from cause
        raise


def server_error(error: UpstreamError, code: int) -> MCPError:
    """A server's JSON-RPC error for the client, with the server's own data if it sent any."""
    return MCPError(code, str(error), error.data.get("rpc_data", error.payload()))


def _json_rpc_code(error: ToolcribError) -> int:
    return INVALID_PARAMS if isinstance(error, (NotFound, AmbiguousName, InvalidRequest)) else INTERNAL_ERROR


# -- error responses ---------------------------------------------------------------------------------------------------


def unauthorized(
    error: NotAuthenticated, authenticator: Authenticator | None = None, scope: Scope | None = None
) -> JSONResponse:
    """A 401 response, with the authenticator's own challenge where it has one."""
    return error_response(401, error, headers={"WWW-Authenticate": _challenge(error, authenticator, scope)})


def forbidden(error: InsufficientScope, authenticator: Authenticator, scope: Scope) -> JSONResponse:
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
) -> JSONResponse:
    """An HTTP response whose JSON-RPC error has the error and its hint as `message`, and its payload as `data`.

    Without `code`, the JSON-RPC error code follows from the status. An error that says when to try again says so in the
    header `Retry-After` too.

    >>> error_response(413, InvalidRequest("Too large.", hint="Send less.")).body[:88].decode()
    '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Too large. Send less.","dat'
    """
    if code is None:
        code = INTERNAL_ERROR if status >= _SERVER_ERROR else INVALID_REQUEST
    content = {"code": code, "message": str(error), "data": error.payload()}
    if (after_s := error.data.get("retry_after_s")) is not None:
        headers = {"Retry-After": str(math.ceil(after_s)), **(headers or {})}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": content}, status_code=status, headers=headers)


REFUSALS_KEY: Final = "toolcrib.refusals"
"""ASGI scope key: a list that gets the HTTP status and the headers of a request's refusal, for its response."""


def note_refusal(request: RequestContext, error: MCPError) -> None:
    """Note the status of a request that was refused because its caller asks too much.

    Only for clients of 2026-07-28: older ones take the status for the end of their session, and read the error alone.
    """
    http = request.request
    if http is None or not is_modern(request.protocol_version) or (found := refusal_status(error.error)) is None:
        return
    http.scope.get(REFUSALS_KEY, []).append(found)


def refusal_status(error: ErrorData) -> tuple[int, dict[str, str]] | None:
    """The HTTP status and headers of the response to a request that a limit refused; None for another error."""
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
