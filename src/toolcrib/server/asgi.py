"""The ASGI apps that this package makes, as programs see them."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from toolcrib.server.options import HttpOptions


class AsgiApp(ABC):
    """An ASGI app that answers requests while it runs: by its lifespan, `running` or `run`."""

    options: HttpOptions
    path: str
    """Where clients connect when the app is served by itself."""
    end_streams: Callable[[], None]
    """Ends responses that never end by themselves."""
    listening: Callable[[str, int, Path | None], None]
    """Called with the host and port at which the app is served by itself, and the socket of this process alone."""
    direct_paths: frozenset[str] = frozenset()
    """Where POSTs need no ASGI."""
    count_refusal: Callable[[str], None] | None = None
    """Counts connections that are refused, by the setting whose limit was reached."""

    @abstractmethod
    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one connection, or the lifespan."""

    async def serve(self, request: Any) -> None:
        """Answer a POST to one of the `direct_paths` that did not come over ASGI: a `http.requests.HttpRequest`."""
        raise NotImplementedError  # only an app with `direct_paths` is asked, and has its own

    @abstractmethod
    def end_session_streams(self) -> None:
        """End the event streams of sessions, which clients open again if they still may."""

    @abstractmethod
    def running(self) -> AbstractAsyncContextManager[None]:
        """Answer requests inside the context."""

    @abstractmethod
    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until cancelled."""

    @abstractmethod
    def run_soon(self, group: anyio.abc.TaskGroup) -> None:
        """Answer requests until the task group is cancelled; those that come before it has started wait for that."""
