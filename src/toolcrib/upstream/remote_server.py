"""What a fleet knows of a server and of logins, apart from the modules that implement them, which are heavy."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import anyio

from toolcrib.errors import ExecutionFailed
from toolcrib.providers.base import Provider
from toolcrib.types import Caller, Context, Object, ServerState, ServerStatus, Tool, ToolResult, Unsubscribe
from toolcrib.upstream.options import ServerOptions

logger = logging.getLogger(__name__)


class Listeners:
    """A set of callbacks without arguments."""

    def __init__(self) -> None:
        self._callbacks: dict[object, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None]) -> Unsubscribe:
        """Add a callback. Returns a function that removes it."""
        place = object()
        self._callbacks[place] = callback

        def remove() -> None:
            self._callbacks.pop(place, None)

        return remove

    def notify(self) -> None:
        """Call every callback; exceptions are logged."""
        for callback in tuple(self._callbacks.values()):
            try:
                callback()
            except Exception:
                # Third-party code must not end the server's own task.
                logger.exception("a listener of a server raised")


class StatusStore:
    """Holds one server's status, notifies listeners of each change, and has waiting tasks check their conditions."""

    def __init__(self, status: ServerStatus) -> None:
        self.status = status
        self.listeners = Listeners()
        self._changed = anyio.Event()

    def update(self, state: ServerState, *, tools_changed: bool = False, **fields: Any) -> None:
        """Change the status, with fields of `ServerStatus`. Notifies if anything is new.

        Waiting tasks check their conditions in any case, because these may not show in the status: a server that was
        ready and is connected again has the same one.
        """
        old = self.status
        since = old.since if state is old.state else time.time()
        self.status = replace(old, state=state, since=since, **fields)
        self._wake()
        if self.status != old or tools_changed:
            self.listeners.notify()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked again after each update."""
        while not condition():
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class RemoteServer(Provider, ABC):
    """A server as its fleet sees it. `UpstreamServer` implements it; importing that takes the whole MCP client."""

    options: ServerOptions

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique within its fleet."""

    @property
    @abstractmethod
    def namespace(self) -> str:
        """Namespace of its tools."""

    @property
    @abstractmethod
    def status(self) -> ServerStatus: ...

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """Its tools as last read."""

    @abstractmethod
    async def restore(self) -> None:
        """Take over what is known of it from an earlier run."""

    @abstractmethod
    async def run(self) -> None:
        """Keep it connected until cancelled."""

    @abstractmethod
    def revive(self) -> bool:
        """Try it again if it was given up. Returns whether it was."""

    @property
    @abstractmethod
    def found_changes(self) -> Listeners:
        """Notified when its list of tools was found to be another one, unless another process has said so."""

    @abstractmethod
    def list_again(self) -> None:
        """List again soon, because another process has found that the lists changed."""

    @abstractmethod
    def end(self) -> None:
        """Refuse what waits for a connection, as none will come any more. Harmless after `run`, or twice."""

    @abstractmethod
    def succeed(self, earlier: "RemoteServer | None") -> None:
        """Pass answers on to calls that are open at the server that this one replaces; None once it has stopped."""

    @abstractmethod
    async def wait_idle(self) -> None:
        """Wait until no request of a caller is running, and none waits for a person's answer."""

    @abstractmethod
    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run a tool by the server's own name for it; None if there is no such tool."""


class Logins(Protocol):
    """The logins of a fleet's servers. `LoginService` implements it; importing that takes the OAuth client."""

    start_soon: Callable[..., object] | None
    """Starts a task that lasts as long as the fleet; None while there is none."""

    def credentials(self, options: ServerOptions, caller: Caller | None = None) -> Any:
        """Return what adds access tokens to a transport's requests: the caller's own if they have any."""

    def present(self, ctx: Context, options: ServerOptions) -> None:
        """Take the caller's own token over, for a server whose tokens depend on it."""

    async def maintain(self, options: ServerOptions) -> None:
        """Refresh the shared login of a server before it expires, until cancelled."""

    async def wait_login(self, options: ServerOptions) -> None:
        """Wait for a shared login of the server that this process does not know yet."""

    async def require(
        self, ctx: Context, options: ServerOptions, reason: str, *, shared: bool = False
    ) -> ExecutionFailed:
        """Return the error for a request that needs a login, begun for its caller if they may log in. With `shared`, it
        is the one that lists the tools which is missing.
        """

    async def wait_ended(self, ctx: Context, options: ServerOptions, timeout_s: float) -> None:
        """Wait until no login of the caller at the server is under way, for `timeout_s` seconds at most."""

    async def deliver(self, parameters: Mapping[str, str], browser: str = "") -> bool:
        """Take the parameters over with which a browser came back, and its cookie. Returns whether a login waits for
        them, from this browser.
        """

    def close(self) -> None:
        """Give up the logins under way."""
