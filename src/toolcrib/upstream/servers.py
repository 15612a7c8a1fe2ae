"""The remote servers of an app, whether it runs or not: a fleet for each run, over one set of options."""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace

from toolcrib.errors import BackendNotFound, InvalidRequest, ToolcribError
from toolcrib.model import BackendKind
from toolcrib.protocols import Unsubscribe
from toolcrib.upstream.board import Listeners
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.server import Server


class Servers:
    """A `ProviderSource` that outlives its fleets. Servers may be added and removed from any thread."""

    kind = BackendKind.MCP

    def __init__(self, options: FleetOptions, servers: Iterable[ServerOptions] = ()) -> None:
        """These servers to begin with; nothing runs before `running`."""
        self._options = options if options.gateway_id else replace(options, gateway_id=secrets.token_hex(8))
        self._servers = tuple(servers)
        self._listeners = Listeners()
        self._lock = threading.Lock()
        self._home: tuple[asyncio.AbstractEventLoop, int] | None = None
        self.fleet = Fleet(self._options)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        """A fleet of the servers, which are being connected; their connections are closed in the end."""
        self.fleet = Fleet(self._options)
        end = self.fleet.subscribe(self._listeners.tell)
        try:
            async with self.fleet as fleet:
                self._home = (asyncio.get_running_loop(), threading.get_ident())
                try:
                    self._take_in()
                    yield fleet
                finally:
                    self._home = None
        finally:
            end()
            self.fleet = Fleet(self._options)
            self._listeners.tell()

    def add(self, options: ServerOptions) -> None:
        """One more. Raises `InvalidRequest` for a name that is empty or taken.

        From another thread than that of the event loop, it waits until the loop has taken it in, at most 10 s; a loop
        that is busy for longer takes it in as soon as it can.
        """
        if not options.name.strip():
            raise InvalidRequest("A server needs a name.", hint="It is the namespace of its tools.")
        with self._lock:
            if any(server.name == options.name for server in self._servers):
                raise InvalidRequest(
                    f"A server called {options.name} is there already.", hint="Remove it first, or take another name."
                )
            self._servers = (*self._servers, options)
        try:
            self._apply()
        except ToolcribError:
            with self._lock:
                self._servers = tuple(server for server in self._servers if server is not options)
            raise

    def remove(self, name: str) -> None:
        """One less; waits as `add` does. Raises `BackendNotFound`."""
        with self._lock:
            kept = tuple(server for server in self._servers if server.name != name)
            if len(kept) == len(self._servers):
                known = tuple(server.name for server in self._servers)
                raise BackendNotFound(f"There is no server {name}.", suggestions=known)
            self._servers = kept
        self._apply()

    def _apply(self) -> None:
        """Have the event loop take in what the servers are by then. Not under the lock, which the loop may need."""
        home = self._home
        if home is None:
            return
        loop, thread = home
        if threading.get_ident() == thread:
            self._take_in()
            return
        taken: Future[None] = Future()

        def take_in() -> None:
            try:
                self._take_in()
            except ToolcribError as error:
                taken.set_exception(error)
            finally:
                if not taken.done():
                    taken.set_result(None)

        try:
            loop.call_soon_threadsafe(take_in)
        except RuntimeError:  # a loop that was closed runs no fleet any more
            return
        with contextlib.suppress(TimeoutError):
            taken.result(_PATIENCE_S)

    def _take_in(self) -> None:
        if self._home is not None:
            self.fleet.set_servers(self._servers)

    def names(self) -> tuple[str, ...]:
        """What the servers are called, in the order of the settings."""
        return tuple(server.name for server in self._servers)

    @property
    def configured(self) -> bool:
        """Whether there are any servers, connected or not."""
        return bool(self._servers)

    # -- a source of providers -------------------------------------------------------------------------------------

    @property
    def gateway_id(self) -> str:
        """Tells this gateway from others in a chain; the same for every run."""
        return self._options.gateway_id

    def providers(self) -> tuple[Server, ...]:
        """The servers of the present fleet, by name."""
        return self.fleet.providers()

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever a server came, went, or changed its tools or its status."""
        return self._listeners.add(callback)


_PATIENCE_S = 10.0
"""How long another thread waits for the event loop to take in a change, in seconds."""
