"""Which protocol a server speaks.

`server/discover` comes first. Any error to it, or silence, means a server of the older kind, which gets the handshake
and is never offered more than the newest version that has one. A server that ends upon it is `Unheard`: it may be one
that bears no request before the handshake.
"""

from mcp import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, UNSUPPORTED_PROTOCOL_VERSION, DiscoverResult
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from toolcrib.upstream.dispatcher import RawDispatcher
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.gate import marked


class Unheard(ExchangeError):
    """The connection ended upon the first question."""


async def negotiate(
    client: ClientSession, dispatcher: RawDispatcher, *, patience_s: float, discover: bool = True
) -> None:
    """Agree with the server; without `discover`, by the handshake at once. Raises `MCPError` when neither way works,
    and `Unheard`.
    """
    if discover and await _discovered(client):
        return
    try:
        await client.initialize()
    except MCPError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        # It answered the probe after all, only too late for us, as a slow start does; now it takes no handshake.
        dispatcher.probe_timeout_s = patience_s
        if not await _discovered(client):
            raise


async def _discovered(client: ClientSession) -> bool:
    """Whether the server said that it speaks a version without handshake; then that is settled."""
    try:
        raw = await client.send_discover(LATEST_MODERN_VERSION)
    except MCPError as error:
        fault = marked(error)
        if fault is not None and fault.kind is Kind.UNSENT:
            raise
        if fault is None and error.code == CONNECTION_CLOSED:
            raise Unheard(Kind.CLOSED, "the connection was closed") from error
        return False
    result = DiscoverResult.model_validate(raw, by_name=False)
    if not any(version in MODERN_PROTOCOL_VERSIONS for version in result.supported_versions):
        return False
    client.adopt(result)
    return True
