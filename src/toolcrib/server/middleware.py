"""ASGI middleware for apps that decide, request by request, which tools come with it."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from toolcrib.errors import NotAuthenticated
from toolcrib.protocols import ToolProvider
from toolcrib.providers.adapt import adapt
from toolcrib.server.auth import refusal
from toolcrib.server.context import OVERRIDING_KEY, PROVIDERS_KEY

logger = logging.getLogger(__name__)

Resolve = Callable[[Request], object | Awaitable[object]]
"""The providers of a request: one, a list of several in the order in which they take precedence, or None.

Whatever `toolcrib.providers.adapt.adapt` takes is a provider.
"""

_FAILED: Final = {
    "error": {"code": "internal_error", "message": "The tools of this request could not be had; the log has the cause."}
}


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
        """
        self._app = app
        self._resolve = resolve
        self._key = OVERRIDING_KEY if override else PROVIDERS_KEY

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            found = await self._found(Request(scope))
        except NotAuthenticated as error:
            await refusal(error)(scope, receive, send)
        except Exception:
            logger.exception("the providers of a request could not be resolved")
            await JSONResponse(_FAILED, status_code=500)(scope, receive, send)
        else:
            await self._app({**scope, self._key: (*scope.get(self._key, ()), *found)}, receive, send)

    async def _found(self, request: Request) -> tuple[ToolProvider, ...]:
        found = self._resolve(request)
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            return ()
        return tuple(adapt(provider) for provider in (found if isinstance(found, (list, tuple)) else (found,)))
