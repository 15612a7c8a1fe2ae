"""Streamable HTTP: the SDK's transport over a client of ours."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import Final
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client

from toolcrib._version import VERSION
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.gate import Gate
from toolcrib.upstream.link import Bell, End, Link, Streams
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url

_IO_TIMEOUT_S: Final = 30.0
"""To write a request, or to wait for a free connection."""
_LEAVE_S: Final = 1.0
"""For the server to take note that its session is over."""
_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=30.0)
_SOCKET_OPTIONS: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    # A stream that waits for the server may be silent for hours; only this notices a peer that is gone.
    *([(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)] if hasattr(socket, "TCP_KEEPIDLE") else []),
]


class Network:
    """What the HTTP servers of a fleet share."""

    @cached_property
    def ssl_context(self) -> ssl.SSLContext:
        """Made once, when it is first needed: it costs 15 ms and more."""
        return httpx2.create_ssl_context()

    def gate(self, options: ServerOptions, redact: Redactor, end: End, doubt: Bell) -> Gate:
        """The way to the options' URL. Raises `ExchangeError` when there can be none."""
        try:
            url = httpx2.URL(options.url)
        except httpx2.InvalidURL as error:
            raise ExchangeError(Kind.UNSENT, f"its url is not valid: {redact(str(error))}") from error
        return Gate(self._connections(url), options, redact, end, doubt)

    def _connections(self, url: httpx2.URL) -> httpx2.AsyncBaseTransport:
        """To the URL's host, through the proxy that the environment names for it."""
        proxies = {} if proxy_bypass(url.host) else getproxies()
        try:
            return httpx2.AsyncHTTPTransport(
                verify=self.ssl_context,
                limits=_LIMITS,
                proxy=proxies.get(url.scheme) or proxies.get("all"),
                socket_options=_SOCKET_OPTIONS,
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            raise ExchangeError(Kind.UNSENT, "the proxy that the environment names cannot be used") from error


def client_of(gate: Gate, fleet: FleetOptions) -> httpx2.AsyncClient:
    """A client whose every request passes the gate. It waits for answers without limit: each call has its own."""
    timeout = httpx2.Timeout(_IO_TIMEOUT_S, connect=fleet.http_connect_timeout_s, read=None)
    agent = {"user-agent": f"toolcrib/{VERSION}"}
    return httpx2.AsyncClient(transport=gate, timeout=timeout, headers=agent, trust_env=False)


def http_link(options: ServerOptions, fleet: FleetOptions, network: Network, redact: Redactor) -> Link:
    """A link to a streamable HTTP endpoint; nothing is sent before the session speaks."""
    end, doubt = End(), Bell()
    return Link(transport=_streamable(options, fleet, network, redact, end, doubt), end=end, doubt=doubt)


@asynccontextmanager
async def _streamable(
    options: ServerOptions, fleet: FleetOptions, network: Network, redact: Redactor, end: End, doubt: Bell
) -> AsyncIterator[Streams]:
    gate = network.gate(options, redact, end, doubt)
    url = bare_url(options.url)
    async with client_of(gate, fleet) as client:
        try:
            async with streamable_http_client(
                url, http_client=client, terminate_on_close=False, max_sse_event_size=options.max_message_bytes
            ) as streams:
                yield streams
        finally:
            await _leave(client, url, gate)


async def _leave(client: httpx2.AsyncClient, url: str, gate: Gate) -> None:
    """Tell the server that its session is over, for politeness; briefly, also when we are cancelled."""
    if gate.session_headers:
        with anyio.move_on_after(_LEAVE_S, shield=True), suppress(httpx2.HTTPError):
            await client.delete(url, headers=gate.session_headers, follow_redirects=True)
