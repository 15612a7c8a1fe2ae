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
_NEEDED: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The capability that each request of a server needs."""
_ANSWER_S: Final = 600.0
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
        carried = declared.model_dump(by_alias=True, mode="json", exclude_none=True, include=_CARRIED)
        if self.is_modern:
            return cast("Object", carried)
        return {name: part for name, part in carried.items() if self._can_give(name)}

    @property
    def is_modern(self) -> bool:
        """Whether what a call needs to know is its answer, and the client calls again."""
        return is_modern(self._request.protocol_version)

    def _can_give(self, capability: str) -> bool:
        if capability == "elicitation":
            return self.can_elicit
        return self._request.session.can_send_request or self._has_standing_stream()

    def can_answer(self, request: Object) -> bool:
        """Whether the client can be asked this now, in a version in which it is asked while its call waits."""
        needed = _NEEDED.get(str(request.get("method")))
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
