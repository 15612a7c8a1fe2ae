"""Streamable HTTP: the SDK's transport over a client of ours."""

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
from toolcrib.upstream.aio import Connections
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.gate import Gate
from toolcrib.upstream.link import Bell, End, Link, Notices, Streams
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.posts import Posts
from toolcrib.upstream.redact import Redactor, bare_url

_IO_TIMEOUT_S: Final = 30.0
"""To write a request, or to wait for a free connection."""
_LEAVE_S: Final = 1.0
"""For the server to take note that its session is over."""


class Network:
    """What the HTTP servers of a fleet share."""

    @cached_property
    def ssl_context(self) -> ssl.SSLContext:
        """Made once, when it is first needed: it costs 15 ms and more."""
        return httpx2.create_ssl_context()

    def gate(self, options: ServerOptions, fleet: FleetOptions, redact: Redactor, end: End, doubt: Bell) -> Gate:
        """The way to the options' URL. Raises `ExchangeError` when there can be none."""
        try:
            url = httpx2.URL(options.url)
        except httpx2.InvalidURL as error:
            raise ExchangeError(Kind.UNSENT, f"its url is not valid: {redact(str(error))}") from error
        return Gate(self._connections(url), options, fleet, redact, end, doubt)

    def _connections(self, url: httpx2.URL) -> httpx2.AsyncBaseTransport:
        """To the URL's host, through the proxy that the environment names for it."""
        proxies = {} if proxy_bypass(url.host) else getproxies()
        proxy = proxies.get(url.scheme) or proxies.get("all")
        if proxy is not None and "://" not in proxy:
            proxy = f"http://{proxy}"
        if proxy is not None and not proxy.startswith(("http://", "https://")):
            raise ExchangeError(Kind.UNSENT, "the proxy that the environment names cannot be used")
        return Connections(self.ssl_context, proxy=proxy)


def client_of(gate: Gate, fleet: FleetOptions) -> httpx2.AsyncClient:
    """A client whose every request passes the gate. It waits for answers without limit: each call has its own."""
    timeout = httpx2.Timeout(_IO_TIMEOUT_S, connect=fleet.http_connect_timeout_s, read=None)
    agent = {"user-agent": f"toolcrib/{VERSION}"}
    return httpx2.AsyncClient(transport=gate, timeout=timeout, headers=agent, trust_env=False)


def http_link(options: ServerOptions, fleet: FleetOptions, network: Network, redact: Redactor) -> Link:
    """A link to a streamable HTTP endpoint; nothing is sent before the session speaks."""
    end, doubt, notices = End(), Bell(), Notices()
    posts = Posts(options, fleet, doubt.ring, notices)
    transport = _streamable(options, fleet, network, redact, end, doubt, posts)
    return Link(transport=transport, end=end, doubt=doubt, notices=notices, shortcut=posts)


@asynccontextmanager
async def _streamable(
    options: ServerOptions,
    fleet: FleetOptions,
    network: Network,
    redact: Redactor,
    end: End,
    doubt: Bell,
    posts: Posts,
) -> AsyncIterator[Streams]:
    gate = network.gate(options, fleet, redact, end, doubt)
    url = bare_url(options.url)
    async with client_of(gate, fleet) as client:
        try:
            async with streamable_http_client(
                url, http_client=client, terminate_on_close=False, max_sse_event_size=options.max_message_bytes
            ) as streams:
                posts.open(gate, url)
                yield streams
        finally:
            posts.close()
            await _leave(client, url, gate)


async def _leave(client: httpx2.AsyncClient, url: str, gate: Gate) -> None:
    """Tell the server that its session is over, for politeness; briefly, also when we are cancelled."""
    if gate.session_headers:
        with anyio.move_on_after(_LEAVE_S, shield=True), suppress(httpx2.HTTPError):
            await client.delete(url, headers=gate.session_headers, follow_redirects=True)
