"""What browsers and authorization servers ask of a gateway during a login at one of its servers.

A login of a caller begins at a page of the gateway, which says whose login it is: a person who opens the address of a
login lends their account to that caller, so an address that someone else has sent must not lead straight to a login
page. A cookie then binds the login to the browser in which it was confirmed, and the answer is taken from no other.
"""

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from html import escape
from typing import Any, Final
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from toolcrib.errors import SettingsError, StateUnavailable
from toolcrib.upstream.logins.service import CALLBACK_PATH, METADATA_PATH, PAGE_HEADERS, PAGE_PATH, LoginService, page
from toolcrib.upstream.logins.vault import LoginPage, caller_of

_COOKIE: Final = "toolcrib_login"
_COOKIE_BYTES: Final = 32
_AWAY: Final = "<!doctype html><title>toolcrib</title><p>Logins are not possible right now. Try again in a minute."
_PUBLIC: Final = {"Cache-Control": "max-age=300", "X-Content-Type-Options": "nosniff"}


def login_routes(logins: LoginService) -> Sequence[BaseRoute]:
    """The routes of a gateway with a public URL, which need no token."""
    pages = _LoginPages(logins)
    return (
        Route(CALLBACK_PATH, _if_stored(pages.come_back), methods=["GET"]),
        Route(f"{PAGE_PATH}/{{ticket}}", _if_stored(pages.show), methods=["GET"]),
        Route(METADATA_PATH, pages.show_client, methods=["GET"]),
    )


class _LoginPages:
    def __init__(self, logins: LoginService) -> None:
        self._logins = logins

    async def show(self, request: Request) -> Response:
        """Say whose login it is; once that is confirmed, lead to the login page."""
        ticket = request.path_params["ticket"]
        shown = await self._logins.vault.page(ticket)
        if shown is None:
            return _ended()
        cookie = request.cookies.get(_COOKIE, "")
        proof = request.query_params.get("confirm", "")
        # No other site knows the cookie, so none can confirm in a person's place.
        if proof and cookie and hmac.compare_digest(proof.encode(), _proof(cookie, ticket).encode()):
            url = await self._logins.confirm(shown, cookie)
            return RedirectResponse(url, 303, headers=_plain_headers()) if url else _ended()
        cookie = cookie or secrets.token_urlsafe(_COOKIE_BYTES)
        link = f"{self._public_path}{PAGE_PATH}/{quote(ticket)}?confirm={_proof(cookie, ticket)}"
        response = HTMLResponse(_question(shown, link), headers=PAGE_HEADERS)
        # Not strict: the login page of another site leads back here.
        response.set_cookie(
            _COOKIE,
            cookie,
            max_age=int(self._logins.options.wait_s),
            path=self._public_path or "/",
            secure=self._logins.options.public_url.startswith("https://"),
            httponly=True,
            samesite="lax",
        )
        return response

    @property
    def _public_path(self) -> str:
        return urlsplit(self._logins.options.public_url).path.rstrip("/")

    async def come_back(self, request: Request) -> Response:
        """Take the answer of an authorization server from the browser that it was confirmed in."""
        known = await self._logins.deliver(dict(request.query_params), request.cookies.get(_COOKIE, ""))
        return HTMLResponse(page(known=known), 200 if known else 404, headers=PAGE_HEADERS)

    async def show_client(self, _: Request) -> Response:
        """Say who the gateway is, for authorization servers that take the address of this document as a client's id."""
        document = self._logins.client_metadata()
        return JSONResponse(document, headers=_PUBLIC) if document else JSONResponse({"error": "not_found"}, 404)


def _if_stored(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The same, with a page for a time in which the logins cannot be read."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except (StateUnavailable, SettingsError):
            return HTMLResponse(_AWAY, 503, headers=PAGE_HEADERS)

    return endpoint


def _ended() -> Response:
    return HTMLResponse(page(known=False), 404, headers=PAGE_HEADERS)


def _plain_headers() -> dict[str, str]:
    return {name: value for name, value in PAGE_HEADERS.items() if name != "content-type"}


def _proof(cookie: str, ticket: str) -> str:
    return hashlib.sha256(f"{cookie} {ticket}".encode("utf-8", "surrogateescape")).hexdigest()


def _question(shown: LoginPage, link: str) -> str:
    """The page that asks whether the login is the person's own."""
    caller: Any = caller_of(shown.principal)
    who = f"<strong>{escape(caller.id)}</strong>"
    if caller.tenant and caller.tenant != caller.issuer:
        who += f" of <strong>{escape(caller.tenant)}</strong>"
    if caller.issuer:
        who += f", who signed in at <strong>{escape(caller.issuer)}</strong>"
    server, host = escape(shown.server), escape(urlsplit(shown.url).hostname or "")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Log in to {server}</title><h1>Log in to {server}</h1>"
        f"<p>This login is for {who}. From then on, this gateway uses your account at {server} whenever that caller"
        f" calls its tools.</p>"
        "<p>Continue only if you are this caller and have just asked for it. If someone has sent you this address,"
        " close the page: they would get the use of your account.</p>"
        f"<p><a href='{escape(link)}'>This is me; continue to {host}</a></p></html>"
    )
