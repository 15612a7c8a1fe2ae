"""Requests to addresses that others name, such as those of authorization servers: only to public hosts, and bounded.

Without this, an address could send the gateway to any service of the network that it runs in.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import anyio

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.redact import bare_url
from toolcrib.upstream.transports.bounds import Bounds
from toolcrib.upstream.transports.http_bodies import read_bounded
from toolcrib.upstream.transports.http_client import DirectClient, HttpClient, HttpUrl, RequestHead
from toolcrib.upstream.transports.http_connection import Headers
from toolcrib.upstream.transports.http_requests import proxied_client

REQUEST_TIMEOUT_S: Final = 10.0
"""For one request, in seconds."""
_BOUNDS: Final = Bounds(256 * 1024, 10_000, bytes_setting="", nodes_setting="")
_PRIVATE: Final = "has a private address; if that is meant, allow the host in"
_SETTING: Final = "auth.allowed_hosts"
_BODY_HEADERS: Final = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""All other IPv6 addresses are for special uses (RFC 4291)."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_CLOUD_METADATA: Final = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Public addresses at which a cloud serves its own machines: Azure's."""


class TrustedHosts:
    """The hosts that requests may go to whatever their addresses are: those that the operator has named."""

    def __init__(
        self, urls: Iterable[str], hosts: Iterable[str] = (), *, insecure: bool = False, setting: str = _SETTING
    ) -> None:
        """Hosts that are named may be reached without TLS if one of the URLs is, or with `insecure`; `setting` is where
        an operator names them.
        """
        named = [urlsplit(url) for url in urls if url]
        self._hosts = {(one.hostname or "").lower() for one in named} | {host.lower() for host in hosts}
        self._insecure = insecure or any(one.scheme == "http" for one in named)
        self._setting = setting

    def problem(self, url: HttpUrl) -> str:
        """Say why a request must not be sent to the URL; empty if it may, as far as that is known by its text."""
        host = url.host
        if url.scheme == "http" and not (self._insecure and (host in self._hosts or host in _LOCAL_NAMES)):
            return f"{host} is to be reached without TLS"
        if url.user or url.password:
            return "the address holds a user"
        return self.address_problem(host, host)

    def address_problem(self, host: str, address: str) -> str:
        """Say why a request for the host must not go to the address, which may also be a name that is not resolved
        yet; empty if it may.
        """
        is_allowed = host.lower() in self._hosts or is_public(address)
        return "" if is_allowed else f"{host} {_PRIVATE} {self._setting}"


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


class FetchedResponse(NamedTuple):
    """A whole response."""

    status: int
    headers: Headers
    """With names in lower case, and without those that say how the body was sent."""
    body: bytes


class GuardedFetch:
    """Sends single requests to allowed hosts only, and reads whole responses of a bounded size within a bounded time.

    What is checked is what is connected to: names are resolved once. A proxy resolves names itself, and has to guard
    them. No redirect is followed, and no cookie kept.
    """

    def __init__(
        self, trusted: TrustedHosts, *, proxy: str | None = None, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self._trusted = trusted
        self._proxy = proxy
        self._timeout_s = timeout_s

    async def __call__(
        self, method: str, url: str, headers: Iterable[tuple[str, str]] = (), content: bytes = b""
    ) -> FetchedResponse:
        """Return the response to a request. Raises `ExchangeError`, of the kind `UNSENT` if it was not allowed."""
        try:
            parsed = HttpUrl.parse(url)
        except ValueError as error:
            raise _not_asked(url, str(error)) from error
        if problem := self._trusted.problem(parsed):
            raise _not_asked(url, problem)
        # Some token endpoints answer with a form otherwise.
        head = RequestHead.of(method, parsed, (("accept", "application/json"), *headers))
        client = self._client()
        try:
            with anyio.fail_after(self._timeout_s):
                response = await client.send(head, content, connect_s=None)
                body = await read_bounded(response, _BOUNDS)
        except TimeoutError as error:
            raise ExchangeError(FailureKind.LOST, f"{parsed.host} did not answer in time") from error
        finally:
            with anyio.CancelScope(shield=True):
                await client.aclose()
        if isinstance(body, str):
            raise ExchangeError(FailureKind.LOST, f"the response of {parsed.host} {body}")
        return FetchedResponse(
            response.status, [pair for pair in response.headers if pair[0] not in _BODY_HEADERS], body
        )

    def _client(self) -> HttpClient:
        return DirectClient(check=self._check) if self._proxy is None else proxied_client(self._proxy)

    def _check(self, host: str, address: str) -> None:
        if problem := self._trusted.address_problem(host, address):
            raise ExchangeError(FailureKind.UNSENT, problem)


def _not_asked(url: str, problem: str) -> ExchangeError:
    return ExchangeError(FailureKind.UNSENT, f"{bare_url(url)} is not asked: {problem}")
