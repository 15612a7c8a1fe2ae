"""The servers of an app: which there are, and the fleet that runs them while the app runs."""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import anyio
from anyio.lowlevel import checkpoint

from toolcrib.errors import BackendNotFound, InvalidRequest, StateUnavailable, ToolcribError
from toolcrib.providers.accounts import AccountGroup
from toolcrib.providers.base import Provider
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.types import BackendKind, ServerStatus, Tool, Unsubscribe
from toolcrib.upstream.catalog.cache import CatalogCache
from toolcrib.upstream.fleet import Fleet, create_logins, options_by_name
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.remote_server import Listeners, Logins

_THREAD_TIMEOUT_S = 10.0
"""How long another thread waits for the event loop to apply a change, in seconds."""


class ServerManager:
    """A `ProviderSource` that outlives its fleets. Servers may be added and removed from any thread."""

    kind = BackendKind.MCP

    def __init__(
        self,
        options: FleetOptions,
        servers: Iterable[ServerOptions] = (),
        *,
        state: StateStore | None = None,
        wait_indexed: Callable[[], Awaitable[None]] = checkpoint,
    ) -> None:
        """Start with these servers; nothing runs before `running`. `state` keeps their catalogs for the next run;
        `wait_indexed` is as in `Fleet`.
        """
        self._wait_indexed = wait_indexed
        self._cache = None if state is None else CatalogCache(state)
        self._state = state or MemoryStore()
        self._changes = _ListChanges(self._state)
        self._logins: Logins | None = None
        self._options = options if options.gateway_id else replace(options, gateway_id=secrets.token_hex(8))
        self._servers = tuple(servers)
        self._listeners = Listeners()
        self._lock = threading.Lock()
        self._loop_ref: tuple[asyncio.AbstractEventLoop, int] | None = None
        self._groups: dict[str, AccountGroup] = {}
        self.fleet = self._new_fleet()

    def _new_fleet(self) -> Fleet:
        return Fleet(self._options, self._cache, self._wait_indexed, lambda: self.logins, self._changes.found)

    @property
    def logins(self) -> Logins:
        """The logins of its servers, made on first use."""
        if self._logins is None:
            self._logins = create_logins(self._state, self._options)
        return self._logins

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        """Run a fleet of the servers. They connect in the background; their connections are closed at the end."""
        self.fleet = self._new_fleet()
        end = self.fleet.subscribe(self._listeners.notify)
        try:
            async with self._changes.shared(self._list_again), self.fleet as fleet:
                self._loop_ref = (asyncio.get_running_loop(), threading.get_ident())
                try:
                    self._apply_in_loop()
                    yield fleet
                finally:
                    self._loop_ref = None
        finally:
            end()
            self.fleet = self._new_fleet()
            self._listeners.notify()

    def add(self, options: ServerOptions) -> None:
        """Add a server. Raises `InvalidRequest` for a name that is empty or taken.

        From another thread than the event loop's, it waits until the loop has applied the change, for 10 s at most; a
        loop that is busy for longer applies it as soon as it can.
        """
        if not options.name.strip():
            raise InvalidRequest("A server needs a name.", hint="It is the namespace of its tools.")
        with self._lock:
            if any(server.name == options.name for server in self._servers):
                raise InvalidRequest(
                    f"There is already a server called {options.name}.", hint="Remove it first, or choose another name."
                )
            self._servers = (*self._servers, options)
        try:
            self._apply()
        except ToolcribError:
            with self._lock:
                self._servers = tuple(server for server in self._servers if server is not options)
            raise

    def remove(self, name: str) -> None:
        """Remove a server; waits as `add` does. Raises `BackendNotFound`."""
        with self._lock:
            kept = tuple(server for server in self._servers if server.name != name)
            if len(kept) == len(self._servers):
                known = tuple(server.name for server in self._servers)
                raise BackendNotFound(f"There is no server {name}.", suggestions=known)
            self._servers = kept
        self._apply()

    def replace(self, before: Iterable[ServerOptions], after: Iterable[ServerOptions]) -> None:
        """Have the servers `after` instead of those of `before`, and keep the others; waits as `add` does.

        Raises `NameCollision`, and changes nothing, if one of the others has a name of a new one.
        """
        replaced = {server.name for server in before}
        with self._lock:
            own = tuple(server for server in self._servers if server.name not in replaced)
            servers = tuple(options_by_name((*after, *own)).values())
            self._servers = servers
        self._apply()

    def _apply(self) -> None:
        """Have the event loop apply the current servers. Must not hold the lock, which the loop may need."""
        loop_ref = self._loop_ref
        if loop_ref is None:
            return
        loop, thread = loop_ref
        if threading.get_ident() == thread:
            self._apply_in_loop()
            return
        applied: Future[None] = Future()

        def apply_in_loop() -> None:
            try:
                self._apply_in_loop()
            except ToolcribError as error:
                applied.set_exception(error)
            finally:
                if not applied.done():
                    applied.set_result(None)

        try:
            loop.call_soon_threadsafe(apply_in_loop)
        except RuntimeError:  # a closed loop runs no fleet
            return
        with contextlib.suppress(TimeoutError):
            applied.result(_THREAD_TIMEOUT_S)

    def _apply_in_loop(self) -> None:
        if self._loop_ref is not None:
            self.fleet.set_servers(self._servers)

    def revive(self, name: str | None = None) -> tuple[str, ...]:
        """Try a server again if it was given up, or all that were. Returns their names.

        Must be called in the fleet's event loop. Raises `BackendNotFound`.
        """
        servers = self.fleet.providers() if name is None else (self.fleet.server(name),)
        return tuple(server.name for server in servers if server.revive())

    def _list_again(self, name: str | None) -> None:
        for server in self.fleet.providers():
            if name in (None, server.name):
                server.list_again()

    def names(self) -> tuple[str, ...]:
        """Return the servers' names, in the order of the settings."""
        return tuple(server.name for server in self._servers)

    @property
    def configured(self) -> bool:
        """Whether there are any servers, connected or not."""
        return bool(self._servers)

    # -- ProviderSource ------------------------------------------------------------------------------------------

    @property
    def gateway_id(self) -> str:
        """Identifies this gateway in a chain of gateways; the same for every run."""
        return self._options.gateway_id

    def providers(self) -> tuple[Provider, ...]:
        """Return the servers of the current fleet, by name, and their groups."""
        servers = self.fleet.providers()
        names = sorted({server.options.group for server in servers if server.options.group})
        if list(self._groups) != names:
            self._groups = {
                name: self._groups.get(name) or AccountGroup(name, partial(self._accounts, name), self.subscribe)
                for name in names
            }
        return (*servers, *self._groups.values())

    def _accounts(self, group: str) -> Iterator[tuple[str, Sequence[Tool], ServerStatus]]:
        for server in self.fleet.providers():
            if server.options.group == group:
                yield server.options.account_name, server.tools, server.status

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever a server was added or removed, or changed its tools or status."""
        return self._listeners.add(callback)


class _ListChanges:
    """Exchanges with the other processes of a shared state which servers' lists of tools have changed.

    A server that reports changes does so to each process. For one that does not, the first process that finds a
    change, when it connects again for example, spares the others from offering the old tools.
    """

    def __init__(self, state: StateStore) -> None:
        self._is_shared = state.shared
        self._channel = state.channel("changed lists")
        self._process = secrets.token_hex(8)
        self._names: set[str] = set()
        self._event = anyio.Event()

    def found(self, name: str) -> None:
        """Tell the others that the list of this server has changed."""
        if self._is_shared:
            self._names.add(name)
            self._event.set()

    @contextlib.asynccontextmanager
    async def shared(self, list_again: Callable[[str | None], None]) -> AsyncIterator[None]:
        """Send and receive changes inside the block. `list_again` gets the name of a server, or None for all."""
        if not self._is_shared:
            yield
            return
        failed: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._send)
            group.start_soon(self._receive, list_again)
            try:
                yield
            except Exception as error:  # noqa: BLE001 - raised below: the group would wrap it
                failed = error
            group.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _send(self) -> None:
        while True:
            await self._event.wait()
            self._event = anyio.Event()
            while self._names:
                with contextlib.suppress(StateUnavailable):
                    await self._channel.publish({"from": self._process, "server": self._names.pop()})

    async def _receive(self, list_again: Callable[[str | None], None]) -> None:
        async with self._channel.subscribe() as messages:
            async for message in messages:
                if message is None:
                    list_again(None)
                elif message.get("from") != self._process:
                    list_again(str(message.get("server")))
