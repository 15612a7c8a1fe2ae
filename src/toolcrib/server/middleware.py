"""ASGI middleware for apps that decide, request by request, which tools come with it."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from toolcrib.errors import ExecutionFailed, NotAuthenticated
from toolcrib.model import Caller
from toolcrib.protocols import ToolProvider
from toolcrib.providers.adapt import adapt
from toolcrib.providers.foreign import uncancelled
from toolcrib.server.auth import unknown
from toolcrib.server.context import CALLER_KEY, LOCAL, OVERRIDING_KEY, PROVIDERS_KEY
from toolcrib.server.refusals import refusal
from toolcrib.server.users import known_user

logger = logging.getLogger(__name__)

Resolve = Callable[[Request], object | Awaitable[object]]
"""The providers of a request: one, a list of several in the order in which they take precedence, or None.

Whatever `toolcrib.providers.adapt.adapt` takes is a provider.
"""

ResolveFor = Callable[[Caller, Request], object | Awaitable[object]]
"""The same, for the caller who sends it."""

_FAILED: Final = "The tools of this request could not be had; the server's log has the cause."
_LATER_KEY: Final = "toolcrib.later"
"""What is to be asked once it is known who calls: pairs of a `ResolveFor` and a key of the scope."""


class RequestProviders:
    """Adds providers to a request: their tools are there for it alone, beside those of other middleware.

    Put it around toolcrib's ASGI app, or into the middleware of the app in which that is mounted. Where `resolve`
    raises, the request is answered with 500, or with 401 for `NotAuthenticated`.

    >>> async def app(scope, receive, send): ...
    >>> mine = RequestProviders(app, lambda request: None)
    """

    def __init__(self, app: ASGIApp, resolve: Resolve, *, override: bool = False) -> None:
        """Wrap an ASGI app. With `override`, these tools stand before shared ones of the same name.

        `resolve` is called once a request, plainly or as a coroutine; it sees the head of the request, not its body.
        It stands outside of toolcrib's authentication, and must itself know who calls; see `CallerProviders`.
        """
        self._app = app
        self._resolve = resolve
        self._key = OVERRIDING_KEY if override else PROVIDERS_KEY

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Asked(self._app, partial(self._resolve, Request(scope)), self._key)(scope, receive, send)


class CallerProviders:
    """The same for providers that depend on who calls: `resolve` is asked after the authentication.

    Put it where `RequestProviders` would stand, with toolcrib's own ASGI app inside: that one authenticates the request
    and then asks, so that a request which is refused, or is none of its own, never gets so far.

    >>> async def app(scope, receive, send): ...
    >>> mine = CallerProviders(app, lambda caller, request: None)
    """

    def __init__(self, app: ASGIApp, resolve: ResolveFor, *, override: bool = False) -> None:
        """Wrap an ASGI app. With `override`, these tools stand before shared ones of the same name.

        `resolve` is called with the caller and the head of the request, plainly or as a coroutine. Where nobody is
        asked who he is, the caller is the one called `local`.
        """
        self._app = app
        self._later = (resolve, OVERRIDING_KEY if override else PROVIDERS_KEY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        await self._app({**scope, _LATER_KEY: (*scope.get(_LATER_KEY, ()), self._later)}, receive, send)


class AskedLater:
    """ASGI, inside of the authentication: has those asked who wait for it."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an ASGI app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        app = self._app
        for resolve, key in reversed(scope.get(_LATER_KEY, ())):
            app = _Asked(app, partial(resolve, _caller(scope), Request(scope)), key)
        await app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _Asked:
    """ASGI: one request, with the providers that somebody gives for it."""

    app: ASGIApp
    ask: Callable[[], object | Awaitable[object]]
    key: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            found = await uncancelled(self._found())
        except NotAuthenticated as error:
            await unknown(error)(scope, receive, send)
        except Exception:
            logger.exception("the providers of a request could not be resolved")
            await refusal(500, ExecutionFailed(_FAILED))(scope, receive, send)
        else:
            await self.app({**scope, self.key: (*scope.get(self.key, ()), *found)}, receive, send)

    async def _found(self) -> tuple[ToolProvider, ...]:
        found = self.ask()
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            return ()
        return tuple(adapt(provider) for provider in (found if isinstance(found, (list, tuple)) else (found,)))


def _caller(scope: Scope) -> Caller:
    caller: Caller | None = scope.get(CALLER_KEY)
    return caller or known_user(scope) or LOCAL
