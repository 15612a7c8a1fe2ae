"""The HTTP client for a server: direct, or through the proxy that the environment names."""

from urllib.request import getproxies, proxy_bypass

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.transports.http_client import DirectClient, HttpClient, HttpUrl


def open_client(url: HttpUrl) -> HttpClient:
    """Return the client for a server, through the proxy that the environment names for it. Raises `ExchangeError`."""
    proxy = proxy_of(url)
    return DirectClient() if proxy is None else proxied_client(proxy)


def proxied_client(proxy: str) -> HttpClient:
    """Return a client whose requests go through a proxy."""
    from toolcrib.upstream.transports.http_proxy import ProxiedClient  # noqa: PLC0415 - few need one, and it is heavy

    return ProxiedClient(proxy)


def proxy_of(url: HttpUrl) -> str | None:
    """Return the proxy that the environment names for the URL's host, if any. Raises `ExchangeError`."""
    proxies = {} if proxy_bypass(url.host) else getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy is not None and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        raise ExchangeError(FailureKind.UNSENT, "the proxy in the environment is not supported")
    return proxy
