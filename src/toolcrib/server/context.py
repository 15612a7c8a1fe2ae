"""From an SDK request to the gateway's `Context`.

What a request brings besides itself stands in the ASGI scope, put there by middleware: who calls (`toolcrib.caller`,
else a user of the SDK's or FastMCP's own authentication), providers that come with the request (`toolcrib.providers`,
`toolcrib.overriding`), and whether every tool is listed by name (`toolcrib.show_all`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp_types import LOG_LEVEL_META_KEY, InputResponseRequestParams
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Scope

from toolcrib.gateway.sessions import LOCAL
from toolcrib.model import Caller, Object
from toolcrib.protocols import Context
from toolcrib.providers.ambient import SHOW_ALL_HEADER, surrounded, surroundings
from toolcrib.server.client import RequestClient
from toolcrib.server.users import known_user

CALLER_KEY: Final = "toolcrib.caller"
"""Where the authentication leaves the caller in the ASGI scope."""
PROVIDERS_KEY: Final = "toolcrib.providers"
"""A tuple of providers that come with this request, in the ASGI scope."""
OVERRIDING_KEY: Final = "toolcrib.overriding"
"""The same, of providers that stand before shared ones."""
SHOW_ALL_KEY: Final = "toolcrib.show_all"
"""Whether every tool is listed by name, in the ASGI scope; it counts more than what the client asks for."""
SHOW_ALL_META: Final = "toolcrib/showAll"
"""The same in a request's `_meta`, for clients without headers."""

SESSION_HEADER: Final = "mcp-session-id"
_SHOW_ALL_QUERY: Final = "show_all"
_SURROUNDINGS_KEY: Final = "toolcrib.surroundings"
_RESERVED: Final = "io.modelcontextprotocol/"
_NOT_CARRIED: Final = frozenset({"progress_token", "progressToken", SHOW_ALL_META})

RequestContext = ServerRequestContext[Any, Request]


def to_context(
    request: RequestContext, *, input_responses: Object | None = None, request_state: str | None = None
) -> Context:
    """The context of one request."""
    http = request.request
    scope = http.scope if http is not None else {}
    ctx = Context(
        caller=_caller(scope if http is not None else None),
        session=http.headers.get(SESSION_HEADER) if http is not None else "stdio",
        show_all=bool(scope.get(SHOW_ALL_KEY, _asks_for_all(request))),
        providers=tuple(scope.get(PROVIDERS_KEY, ())),
        overriding=tuple(scope.get(OVERRIDING_KEY, ())),
        client=RequestClient(request),
        input_responses=input_responses,
        request_state=request_state,
        meta=_own_meta(request.meta),
        memo={},
    )
    return surrounded(ctx, scope.get(_SURROUNDINGS_KEY))


def answering(request: RequestContext, params: InputResponseRequestParams) -> Context:
    """The same with what answers an earlier question of a tool, or of a server for one of its documents."""
    responses = params.input_responses
    return to_context(
        request,
        input_responses=plain_responses(responses) if responses is not None else None,
        request_state=params.request_state,
    )


def captured(scope: Scope) -> Scope:
    """The scope of an HTTP request with what the code around says; a session serves it in a task of its own.

    Call this in the request's own task.
    """
    return {**scope, _SURROUNDINGS_KEY: surroundings()}


def plain_responses(responses: Mapping[str, Any]) -> Object:
    """Input responses as wire JSON."""
    return {
        key: value.model_dump(by_alias=True, mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
        for key, value in responses.items()
    }


def kept(ctx: Context) -> Context:
    """The context without what is valid only while its request is being answered."""
    return replace(ctx, client=None, input_responses=None, request_state=None, meta={}, memo=None)


def show_all(headers: Mapping[str, str], query: Mapping[str, str]) -> bool:
    """Whether a request asks for every tool by name; the header wins over the query."""
    asked = headers.get(SHOW_ALL_HEADER) or query.get(_SHOW_ALL_QUERY) or ""
    return asked.strip().lower() == "true"


def _caller(scope: Scope | None) -> Caller:
    """Whom the authentication knows: toolcrib's, else that of the server around."""
    caller: Caller | None = scope.get(CALLER_KEY) if scope is not None else None
    return caller or known_user(scope) or LOCAL


def _asks_for_all(request: RequestContext) -> bool:
    """Whether the client itself asks for every tool: by header, else by query, else by `_meta`."""
    http, meta = request.request, request.meta
    if http is not None and (http.headers.get(SHOW_ALL_HEADER) or http.query_params.get(_SHOW_ALL_QUERY)):
        return show_all(http.headers, http.query_params)
    return meta is not None and dict(meta).get(SHOW_ALL_META) is True


def _own_meta(meta: Mapping[str, Any] | None) -> Object:
    """The request's `_meta` without what belongs to this hop."""
    if not meta:
        return {}
    return {
        key: value
        for key, value in meta.items()
        if key not in _NOT_CARRIED and (not key.startswith(_RESERVED) or key == LOG_LEVEL_META_KEY)
    }


__all__ = [
    "CALLER_KEY",
    "LOCAL",
    "OVERRIDING_KEY",
    "PROVIDERS_KEY",
    "SESSION_HEADER",
    "SHOW_ALL_KEY",
    "SHOW_ALL_META",
    "RequestContext",
    "answering",
    "captured",
    "kept",
    "plain_responses",
    "show_all",
    "to_context",
]
