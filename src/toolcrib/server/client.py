"""The client behind one request: what it can do, and the ways back to it."""

from typing import Any, Final, cast

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from starlette.requests import Request

from toolcrib.model import Object
from toolcrib.wire import is_modern

BACK_CHANNEL_KEY: Final = "toolcrib.back_channel"
"""Where the ASGI scope says, when called, whether the client holds a stream open for what the server asks."""

_CARRIED: Final = {"elicitation", "sampling", "roots"}
"""Capabilities whose requests and answers pass through a repeated call."""
_ANSWER_S: Final = 600.0
"""How long a person or a model may take to answer, in seconds."""


class RequestClient:
    """The client behind one request."""

    def __init__(self, request: ServerRequestContext[Any, Request]) -> None:
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
        return self._request.session.can_send_request or self._has_standing_stream()

    def _has_standing_stream(self) -> bool:
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
            if is_modern(self._request.protocol_version) or not self._has_standing_stream():
                raise NoBackChannelError(request.method)
            related = ServerMessageMetadata()
        result = await session.send_request(request, answer, _ANSWER_S, metadata=related)
        return cast("Object", result.model_dump(by_alias=True, mode="json", exclude_none=True))
