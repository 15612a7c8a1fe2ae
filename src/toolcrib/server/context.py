"""From an SDK request to the gateway's `Context`."""

from collections.abc import Mapping
from typing import Any, Final, cast

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.message import ServerMessageMetadata
from starlette.requests import Request

from toolcrib.model import Caller, Object
from toolcrib.protocols import Context
from toolcrib.wire import is_modern

LOCAL: Final = Caller(id="local")
"""Who asks over stdio, or over HTTP without authentication."""

CALLER_KEY: Final = "toolcrib.caller"
"""Where the authentication leaves the caller in the ASGI scope."""

SHOW_ALL_HEADER: Final = "x-mcp-show-all"
_SHOW_ALL_QUERY: Final = "show_all"
_SESSION_HEADER: Final = "mcp-session-id"
_CARRIED: Final = {"elicitation", "sampling", "roots"}
"""Capabilities whose requests and answers pass through a repeated call."""
_RESERVED: Final = "io.modelcontextprotocol/"

RequestContext = ServerRequestContext[Any, Request]


def to_context(
    request: RequestContext, *, input_responses: Object | None = None, request_state: str | None = None
) -> Context:
    """The context of one request."""
    http = request.request
    return Context(
        caller=http.scope.get(CALLER_KEY, LOCAL) if http is not None else LOCAL,
        session=http.headers.get(_SESSION_HEADER) if http is not None else "stdio",
        show_all=http is not None and show_all(http.headers, http.query_params),
        client=RequestClient(request),
        input_responses=input_responses,
        request_state=request_state,
        meta=_own_meta(request.meta),
    )


def show_all(headers: Mapping[str, str], query: Mapping[str, str]) -> bool:
    """Whether a request asks for every tool by name; the header wins over the query."""
    asked = headers.get(SHOW_ALL_HEADER) or query.get(_SHOW_ALL_QUERY) or ""
    return asked.strip().lower() == "true"


def _own_meta(meta: Mapping[str, Any] | None) -> Object:
    """The request's `_meta` without what belongs to this hop."""
    if not meta:
        return {}
    return {
        key: value
        for key, value in meta.items()
        if key not in ("progress_token", "progressToken") and not key.startswith(_RESERVED)
    }


class RequestClient:
    """The client behind one request."""

    def __init__(self, request: RequestContext) -> None:
        """Valid while the request is being answered."""
        self._request = request

    @property
    def capabilities(self) -> Object:
        """What the client declared and a server behind us may use: its answers to questions can only be carried back
        in the versions in which a call is simply repeated with them.
        """
        if not is_modern(self._request.protocol_version):
            return {}
        declared = self._request.session.client_capabilities
        if declared is None:
            return {}
        return declared.model_dump(by_alias=True, mode="json", exclude_none=True, include=_CARRIED)

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
        related = ServerMessageMetadata(related_request_id=self._request.request_id)
        result = await self._request.session.send_request(request, answer, metadata=related)
        return cast("Object", result.model_dump(by_alias=True, mode="json", exclude_none=True))
