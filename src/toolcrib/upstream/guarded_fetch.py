"""Requests to addresses that a server names, such as its authorization server: only to public hosts, and bounded.

A server that is not trusted could otherwise send the gateway to any service of the network that it runs in.
"""

import ipaddress
import socket
import ssl
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import anyio
import httpx2
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from toolcrib.upstream.redact import bare_url
from toolcrib.upstream.transports.bounds import Bounds
from toolcrib.upstream.transports.http_bodies import read_bounded
from toolcrib.upstream.transports.http_pool import AiohttpTransport

REQUEST_TIMEOUT_S: Final = 10.0
"""For one request, in seconds."""
_BOUNDS: Final = Bounds(256 * 1024, 10_000)
_PRIVATE: Final = "has a private address, which a server may not lead to; allow the host in auth.allowed_hosts"
_BODY_HEADERS: Final = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""All other IPv6 addresses are for special uses (RFC 4291)."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_CLOUD_METADATA: Final = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Public addresses at which a cloud serves its own machines: Azure's."""


class TrustedHosts:
    """The hosts that requests may go to whatever their addresses are: those that the operator has named."""

    def __init__(self, urls: Iterable[str], hosts: Iterable[str] = ()) -> None:
        named = [urlsplit(url) for url in urls if url]
        self._hosts = {(one.hostname or "").lower() for one in named} | {host.lower() for host in hosts}
        self._insecure = any(one.scheme == "http" for one in named)

    def problem(self, url: httpx2.URL) -> str:
        """Say why a request must not be sent to the URL; empty if it may, as far as that is known by its text."""
        host = url.host.lower()
        if url.scheme == "http" and not (self._insecure and (host in self._hosts or host in _LOCAL_NAMES)):
            return f"{host} is to be reached without TLS"
        if url.scheme not in ("http", "https"):
            return f"the address begins with {url.scheme}:"
        if url.userinfo:
            return "the address holds a user"
        return "" if self.allows(host, host) else f"{host} {_PRIVATE}"

    def allows(self, host: str, address: str) -> bool:
        """Whether a request for the host may go to the address, which may also be a name that is not resolved yet."""
        return host.lower() in self._hosts or is_public(address)


def is_public(address: str) -> bool:
    """Whether an address is reachable from everywhere; true for names, whose addresses are not known yet.

    An IPv6 address that leads to an IPv4 address counts as that one.

    >>> is_public("10.0.0.1"), is_public("::ffff:127.0.0.1"), is_public("93.184.216.34"), is_public("example.com")
    (False, False, True, True)
    >>> is_public("64:ff9b::10.0.0.1"), is_public("64:ff9b::93.184.216.34"), is_public("::10.0.0.1")
    (False, True, False)
    """
    if address.lower() == "localhost" or address.lower().endswith(".localhost"):
        return False
    try:
        parsed = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        # "0x7f000001" is an address too for the system's resolver, which is asked next.
        return True
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or _translated(parsed)
        if inner is not None:
            return is_public(str(inner))
        return parsed in _GLOBAL_UNICAST and parsed.is_global
    return parsed.is_global and not parsed.is_multicast and parsed not in _CLOUD_METADATA


def _translated(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that a network translates the address to (RFC 6052)."""
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


class _GuardedResolver(AbstractResolver):
    """Resolves names, and refuses those with an address that is not allowed: what was checked is what is used."""

    def __init__(self, trusted: TrustedHosts) -> None:
        self._trusted = trusted
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if not all(self._trusted.allows(host, one["host"]) for one in found):
            raise httpx2.UnsupportedProtocol(f"{host} {_PRIVATE}")
        return found

    async def close(self) -> None:
        await self._resolver.close()


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to allowed hosts only, and reads whole responses of a bounded size within a bounded time.

    A proxy resolves names itself, and has to guard them.
    """

    def __init__(self, ssl_context: ssl.SSLContext, trusted: TrustedHosts, *, proxy: str | None) -> None:
        resolver = None if proxy else _GuardedResolver(trusted)
        self._inner = AiohttpTransport(ssl_context, proxy=proxy, resolver=resolver, keep_cookies=False)
        self._trusted = trusted

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response with its body. Raises `httpx2.TransportError`, whose text says what was wrong."""
        if problem := self._trusted.problem(request.url):
            raise httpx2.UnsupportedProtocol(f"{bare_url(str(request.url))} is not asked: {problem}")
        request.headers.setdefault("accept", "application/json")  # some token endpoints answer with a form otherwise
        try:
            with anyio.fail_after(REQUEST_TIMEOUT_S):
                response = await self._inner.handle_async_request(request)
                body = await read_bounded(response, _BOUNDS)
        except TimeoutError as error:
            raise httpx2.ReadTimeout(f"{request.url.host} did not answer in time") from error
        if isinstance(body, str):
            raise httpx2.ReadError(f"the response of {request.url.host} {body}")
        headers = [pair for pair in response.headers.raw if pair[0].lower() not in _BODY_HEADERS]
        return httpx2.Response(response.status_code, headers=headers, content=body)
