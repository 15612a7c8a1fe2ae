"""From an SDK request to the gateway's `Context`, and to the client behind it.

The ASGI scope carries what a request brings besides itself, put there by middleware: the caller (`toolcrib.caller`,
else a user of the SDK's or FastMCP's own authentication), request providers (`toolcrib.providers`,
`toolcrib.overriding`), and whether to list every tool by name (`toolcrib.show_all`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import LOG_LEVEL_META_KEY, InputResponseRequestParams
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Scope

from toolcrib.gateway.sessions import LOCAL
from toolcrib.providers.request_scope import SHOW_ALL_HEADER, apply_scope, current_scope
from toolcrib.server.auth import CALLER_KEY, sdk_caller
from toolcrib.types import Caller, Context, Object
from toolcrib.wire import is_modern

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


_REQUEST_SCOPE_KEY: Final = "toolcrib.surroundings"


_RESERVED_PREFIX: Final = "io.modelcontextprotocol/"


_NOT_FORWARDED: Final = frozenset({"progress_token", "progressToken", SHOW_ALL_META})


RequestContext = ServerRequestContext[Any, Request]


def to_context(
    request: RequestContext, *, input_responses: Object | None = None, request_state: str | None = None
) -> Context:
    """The context of one request."""
    http = request.request
    scope = http.scope if http is not None else {}
    ctx = Context(
        caller=_request_caller(scope if http is not None else None),
        session=http.headers.get(SESSION_HEADER) if http is not None else "stdio",
        show_all=bool(scope.get(SHOW_ALL_KEY, _client_wants_show_all(request))),
        providers=tuple(scope.get(PROVIDERS_KEY, ())),
        overriding=tuple(scope.get(OVERRIDING_KEY, ())),
        client=RequestClient(request),
        input_responses=input_responses,
        request_state=request_state,
        meta=_forwarded_meta(request.meta),
        memo={},
    )
    return apply_scope(ctx, scope.get(_REQUEST_SCOPE_KEY))


def to_call_context(request: RequestContext, params: InputResponseRequestParams) -> Context:
    """The same with what answers an earlier question of a tool, or of a server for one of its documents."""
    responses = params.input_responses
    return to_context(
        request,
        input_responses=responses_to_wire(responses) if responses is not None else None,
        request_state=params.request_state,
    )


def capture_request_scope(scope: Scope) -> Scope:
    """The scope of an HTTP request with what the code around says; a session serves it in a task of its own.

    Call this in the request's own task.
    """
    return {**scope, _REQUEST_SCOPE_KEY: current_scope()}


def responses_to_wire(responses: Mapping[str, Any]) -> Object:
    """Input responses as wire JSON."""
    return {
        key: value.model_dump(by_alias=True, mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
        for key, value in responses.items()
    }


def detach(ctx: Context) -> Context:
    """The context without what is valid only while its request is being answered."""
    return replace(ctx, client=None, input_responses=None, request_state=None, meta={}, memo=None)


def wants_show_all(headers: Mapping[str, str], query: Mapping[str, str]) -> bool:
    """Whether a request asks for every tool by name; the header wins over the query."""
    asked = headers.get(SHOW_ALL_HEADER) or query.get(_SHOW_ALL_QUERY) or ""
    return asked.strip().lower() == "true"


def _request_caller(scope: Scope | None) -> Caller:
    """Whom the authentication knows: toolcrib's, else that of the server around."""
    caller: Caller | None = scope.get(CALLER_KEY) if scope is not None else None
    return caller or sdk_caller(scope) or LOCAL


def _client_wants_show_all(request: RequestContext) -> bool:
    """Whether the client itself asks for every tool: by header, else by query, else by `_meta`."""
    http, meta = request.request, request.meta
    if http is not None and (http.headers.get(SHOW_ALL_HEADER) or http.query_params.get(_SHOW_ALL_QUERY)):
        return wants_show_all(http.headers, http.query_params)
    return meta is not None and dict(meta).get(SHOW_ALL_META) is True


def _forwarded_meta(meta: Mapping[str, Any] | None) -> Object:
    """The request's `_meta` without what belongs to this hop."""
    if not meta:
        return {}
    return {
        key: value
        for key, value in meta.items()
        if key not in _NOT_FORWARDED and (not key.startswith(_RESERVED_PREFIX) or key == LOG_LEVEL_META_KEY)
    }


BACK_CHANNEL_KEY: Final = "toolcrib.back_channel"
"""Where the ASGI scope says, when called, whether the client holds a stream open for what the server asks."""


_FORWARDED_CAPABILITIES: Final = {"elicitation", "sampling", "roots"}
"""Capabilities whose requests and answers pass through a repeated call."""


_REQUIRED_CAPABILITY: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The capability that each request of a server needs."""


_ANSWER_TIMEOUT_S: Final = 600.0
"""How long a person or a model may take to answer, in seconds."""


class RequestClient:
    """The client behind one request."""

    def __init__(self, request: ServerRequestContext[Any, Request]) -> None:
        """Valid while the request is being answered."""
        self._request = request

    @property
    def capabilities(self) -> Object:
        """What the client declared and a server behind us may use: that to which its answers can be carried back, by a
        repeated call, or, in older versions, while the call waits.
        """
        declared = self._request.session.client_capabilities
        if declared is None:
            return {}
        carried = declared.model_dump(by_alias=True, mode="json", exclude_none=True, include=_FORWARDED_CAPABILITIES)
        if self.is_modern:
            return cast("Object", carried)
        return {name: part for name, part in carried.items() if self._supports(name)}

    @property
    def is_modern(self) -> bool:
        """Whether what a call needs to know is its answer, and the client calls again."""
        return is_modern(self._request.protocol_version)

    def _supports(self, capability: str) -> bool:
        if capability == "elicitation":
            return self.can_elicit
        return self._request.session.can_send_request or self._has_open_stream()

    def can_answer(self, request: Object) -> bool:
        """Whether the client can be asked this now, in a version in which it is asked while its call waits."""
        needed = _REQUIRED_CAPABILITY.get(str(request.get("method")))
        return needed is not None and needed in self.capabilities

    async def answer(self, request: Object) -> Object:
        """What the client says to a request of a server's; one that it can answer. Raises `MCPError`."""
        params = request.get("params") or {}
        method = request["method"]
        if method == "elicitation/create":
            return await self.elicit(params)
        if method == "sampling/createMessage":
            return await self.sample(params)
        return await self._send(mcp_types.ListRootsRequest(), mcp_types.ListRootsResult)

    @property
    def can_elicit(self) -> bool:
        """Whether `elicit` reaches the person behind the client, with a form, while this request is being answered.

        So it is before 2026-07-28, for clients that declare it: over stdio, in memory and over HTTP+SSE always, over
        streamable HTTP while the client holds the stream of its session open (GET), as those of the SDKs do. In
        2026-07-28 a call is answered with what it needs to know instead (`ToolResult.kind`).
        """
        declared = self._request.session.client_capabilities
        if declared is None or declared.elicitation is None or is_modern(self._request.protocol_version):
            return False
        if declared.elicitation.form is None and declared.elicitation.url is not None:
            return False
        return self._request.session.can_send_request or self._has_open_stream()

    def _has_open_stream(self) -> bool:
        http = self._request.request
        return http is not None and BACK_CHANNEL_KEY in http.scope and bool(http.scope[BACK_CHANNEL_KEY]())

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress; does nothing when the client did not ask for it."""
        await self._request.session.report_progress(done, total, message)

    async def elicit(self, params: Object) -> Object:
        """Ask the person behind the client; fails where the protocol has no way back to him."""
        request = mcp_types.ElicitRequest.model_validate({"method": "elicitation/create", "params": params})
        return await self._send(request, mcp_types.ElicitResult)

    async def sample(self, params: Object) -> Object:
        """Ask the client's model; fails where the protocol has no way back to it."""
        request = mcp_types.CreateMessageRequest.model_validate({"method": "sampling/createMessage", "params": params})
        return await self._send(request, mcp_types.CreateMessageResult)

    async def _send(self, request: mcp_types.ServerRequest, answer: type[mcp_types.Result]) -> Object:
        session = self._request.session
        related = ServerMessageMetadata(related_request_id=self._request.request_id)
        if not session.can_send_request:
            if is_modern(self._request.protocol_version) or not self._has_open_stream():
                raise NoBackChannelError(request.method)
            related = ServerMessageMetadata()
        result = await session.send_request(request, answer, _ANSWER_TIMEOUT_S, metadata=related)
        return cast("Object", result.model_dump(by_alias=True, mode="json", exclude_none=True))
