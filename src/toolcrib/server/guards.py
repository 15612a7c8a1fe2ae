"""Who may speak to the server over HTTP: its own hosts and origins, and nobody unknown on an address others reach."""

import ipaddress
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from toolcrib.errors import InvalidRequest, SettingsError
from toolcrib.protocols import Authenticator
from toolcrib.server.auth import Authenticated, StaticTokens
from toolcrib.server.options import HttpOptions
from toolcrib.server.refusals import refusal

HEALTH: Final = ("/healthz", "/readyz")
"""Paths that need no token and name nobody."""

_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_SHOWN_LENGTH: Final = 100
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - recognised, not bound


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0"), is_loopback("example.com")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bracketed(host: str) -> str:
    """The host as it stands in a URL.

    >>> bracketed("::1"), bracketed("localhost")
    ('[::1]', 'localhost')
    """
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def authenticated(app: ASGIApp, options: HttpOptions, authenticator: Authenticator | None) -> ASGIApp:
    """The app, behind whoever is to be asked for the caller.

    Raises `SettingsError` when others could reach it and nobody is asked who he is.
    """
    if authenticator is None and options.tokens:
        authenticator = StaticTokens(options.tokens)
    if authenticator is None and not is_loopback(options.host):
        raise SettingsError(
            f"Refusing to serve on {options.host} without a token: anybody who reaches it could call every tool.",
            hint="Set http.tokens in the configuration, or TOOLCRIB_TOKEN, or bind to 127.0.0.1.",
        )
    return app if authenticator is None else Authenticated(app, authenticator)


class Guard:
    """ASGI: refuses requests that a foreign web page made a browser send (DNS rebinding, cross-origin)."""

    def __init__(self, app: ASGIApp, options: HttpOptions) -> None:
        """Wrap an ASGI app."""
        self._app = app
        everywhere = options.host in _WILDCARDS
        self._any_host = everywhere and not options.allowed_hosts
        own = {*_LOOPBACK_NAMES} if everywhere or is_loopback(options.host) else set()
        own |= set() if everywhere else {bracketed(options.host)}
        self._hosts = _lowered((*(f"{name}:*" for name in own), *own, *options.allowed_hosts))
        schemes = ("http", "https")
        self._origins = _lowered(
            (
                *(f"{scheme}://{name}{port}" for scheme in schemes for name in own for port in ("", ":*")),
                *options.allowed_origins,
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        problem = self._problem(below_mount(scope), Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        status, error = problem
        await refusal(status, error)(scope, receive, send)

    def _problem(self, path: str, headers: Headers) -> tuple[int, InvalidRequest] | None:
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        # A probe of a container's health comes by its address; it learns nothing that is worth guarding.
        if not self._any_host and path not in HEALTH and not _matches(host, self._hosts):
            return 421, _foreign("Host", host, "http.allowed_hosts")
        if origin and not _matches(origin, self._origins):
            return 403, _foreign("Origin", origin, "http.allowed_origins")
        return None


def _foreign(header: str, value: str, setting: str) -> InvalidRequest:
    shown = value if len(value) <= _SHOWN_LENGTH else f"{value[:_SHOWN_LENGTH]}..."
    return InvalidRequest(
        f'{header} "{shown}" is not allowed here; nothing was run.',
        hint=f"Use the server's own address, or add it to {setting} in the server's settings.",
    )


def below_mount(scope: Scope) -> str:
    """The path of a request below the place where the app is mounted.

    >>> below_mount({"path": "/tools/healthz", "root_path": "/tools"}), below_mount({"path": "/toolshed"})
    ('/healthz', '/toolshed')
    """
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    if not root:
        return path
    if path == root:
        return "/"
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _matches(value: str, allowed: frozenset[str]) -> bool:
    """Whether the value is allowed as it stands, or with any port.

    >>> _matches("localhost:80", frozenset({"localhost:*"})), _matches("localhost.evil.com", frozenset({"localhost:*"}))
    (True, False)
    """
    if value in allowed:
        return True
    base, colon, port = value.rpartition(":")
    return bool(colon) and port.isdigit() and f"{base}:*" in allowed
