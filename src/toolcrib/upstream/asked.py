"""What a server of an older version asks in the middle of a call, through the connection that all callers share.

Nothing in such a question says whose call it is about. So it is passed on only while one caller, in one session, has
used the connection, and to the client of his latest call.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mcp_types
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from toolcrib.protocols import Client, Context
from toolcrib.upstream.voice import Voice

logger = logging.getLogger(__name__)


class Asked:
    """Of one server."""

    def __init__(self, voice: Voice) -> None:
        """Who has used the connection is known from the server's voice."""
        self._voice = voice
        self._calls: dict[object, Context] = {}

    @contextmanager
    def during(self, ctx: Context) -> Iterator[None]:
        """A call is under way."""
        place = object()
        self._calls[place] = ctx
        try:
            yield
        finally:
            del self._calls[place]

    def _client(self, capability: str) -> Client | None:
        due_to = self._voice.due_to
        if due_to is None or due_to[1] is None or not self._calls:
            return None
        client = self._calls[list(self._calls)[-1]].client
        return client if client is not None and capability in client.capabilities else None

    async def elicit(
        self,
        context: ClientRequestContext,  # noqa: ARG002 - the SDK's signature
        params: mcp_types.ElicitRequestParams,
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        """What the person says; that he does not want to, where nobody can be asked."""
        client = self._client("elicitation")
        if client is None:
            return mcp_types.ElicitResult(action="cancel")
        try:
            return mcp_types.ElicitResult.model_validate(await client.elicit(_plain(params)), by_name=False)
        except Exception as error:  # noqa: BLE001 - of the client's; it must not end the server's connection
            return _failed(error)

    async def sample(
        self,
        context: ClientRequestContext,  # noqa: ARG002 - the SDK's signature
        params: mcp_types.CreateMessageRequestParams,
    ) -> mcp_types.CreateMessageResult | mcp_types.CreateMessageResultWithTools | mcp_types.ErrorData:
        """What the client's model says."""
        client = self._client("sampling")
        if client is None:
            return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message="There is no model to be asked.")
        try:
            return mcp_types.CreateMessageResult.model_validate(await client.sample(_plain(params)), by_name=False)
        except Exception as error:  # noqa: BLE001 - as above
            return _failed(error)


def _plain(params: BaseModel) -> Mapping[str, Any]:
    said: dict[str, Any] = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    said.pop("_meta", None)
    return said


def _failed(error: Exception) -> mcp_types.ErrorData:
    logger.info("a client failed to answer what a server asked", exc_info=error)
    if isinstance(error, MCPError):
        return mcp_types.ErrorData(code=error.code, message=error.message)
    return mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message="The client failed to answer.")
