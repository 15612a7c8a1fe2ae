"""All remote servers of an app. A server that fails or hangs does not affect the others.

`ServerManager` outlives the runs of an app and takes changes from any thread; each run has a `Fleet` of its own.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Container, Iterable
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Self

import anyio
import anyio.abc

from toolcrib.errors import AlreadyStarted, BackendNotFound, InvalidRequest, NameCollision, NotStarted, ToolcribError
from toolcrib.types import BackendKind, ServerState, ServerStatus, Unsubscribe
from toolcrib.upstream.chaining import ChainedServer
from toolcrib.upstream.http import HttpNetwork
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.server import UpstreamServer
from toolcrib.upstream.status import Listeners


class _FleetMember:
    """A server that runs."""

    def __init__(self, server: UpstreamServer, predecessor: "_FleetMember | None") -> None:
        self.server = server
        self._predecessor = predecessor
        self._scope = anyio.CancelScope()
        self._done = anyio.Event()

    async def run(self) -> None:
        """Until it is dismissed; never at the same time as those before it, which may hold what it needs."""
        try:
            with self._scope:
                await self._alone()
                await self.server.run()
        except Exception:
            # A bug of ours; it must not end the other servers' tasks, which are in the same group.
            logger.exception("the task of the server %s broke", self.server.name)
        finally:
            # Also when it never started: the next one waits for this one alone.
            with anyio.CancelScope(shield=True):
                await self._alone()
            self._done.set()

    async def _alone(self) -> None:
        if self._predecessor is not None:
            await self._predecessor.gone()
            self._predecessor = None

    def dismiss(self) -> None:
        """Have it stop."""
        self._scope.cancel()

    async def gone(self) -> None:
        """Until it has stopped, and holds nothing any more."""
        await self._done.wait()


class Fleet:
    """A `ProviderSource` and `StatusSource`. Used once, as `async with Fleet() as fleet: await fleet.apply(...)`."""

    kind = BackendKind.MCP

    def __init__(self, options: FleetOptions | None = None) -> None:
        """Nothing runs before it is entered."""
        options = options or FleetOptions()
        self._options = options if options.gateway_id else replace(options, gateway_id=secrets.token_hex(8))
        self._network = HttpNetwork()
        self._members: dict[str, _FleetMember] = {}
        self._unsubscribes: dict[str, Unsubscribe] = {}
        self._listeners = Listeners()
        self._group: anyio.abc.TaskGroup | None = None
        self._entered = False
        self._changed = anyio.Event()

    @property
    def gateway_id(self) -> str:
        """Tells this gateway from others in a chain; see `trail`."""
        return self._options.gateway_id

    async def __aenter__(self) -> Self:
        """Ready for `apply`."""
        if self._entered:
            raise AlreadyStarted("This fleet was started before; make a new one.")
        self._entered = True
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop all servers, side by side; each is bounded by `stop_timeout_s`."""
        group, self._group = self._group, None
        if group is None:
            return None
        for member in self._members.values():
            member.dismiss()
        if isinstance(error, Exception):
            # Not handed to the group, which would wrap it.
            return await group.__aexit__(None, None, None)
        return await group.__aexit__(kind, error, trace)

    async def apply(self, servers: Iterable[ServerOptions]) -> None:
        """As `set_servers`, for whoever awaits it from another thread."""
        self.set_servers(servers)

    def set_servers(self, servers: Iterable[ServerOptions]) -> None:
        """Make these the fleet: start what is new, stop what is gone, restart what changed, leave alone what did not.

        Does not wait for any of it. Raises `NameCollision` when two have one name, and then changes nothing; raises
        `NotStarted` outside of `async with`. Call it in the event loop of the fleet.
        """
        if self._group is None:
            raise NotStarted("The fleet is not running.", hint="Use it inside `async with Fleet(...) as fleet`.")
        wanted = _options_by_name(servers)
        kept = {name: member for name, member in self._members.items() if member.server.options == wanted.get(name)}
        for name in self._members.keys() - kept.keys():
            self._unsubscribes.pop(name)()
            self._members[name].dismiss()
        started = {name: self._start(options) for name, options in wanted.items() if name not in kept}
        if started or len(kept) < len(self._members):
            self._members = dict(sorted({**kept, **started}.items()))
            self._tell()

    def _start(self, options: ServerOptions) -> _FleetMember:
        kind = ChainedServer if options.delegate_search else UpstreamServer
        member = _FleetMember(kind(options, self._options, self._network), self._members.get(options.name))
        self._unsubscribes[options.name] = member.server.subscribe(self._tell)
        if self._group is not None:
            self._group.start_soon(member.run)
        return member

    def servers(self) -> tuple[ServerOptions, ...]:
        """The options of the servers, by name."""
        return tuple(member.server.options for member in self._members.values())

    def providers(self) -> tuple[UpstreamServer, ...]:
        """The servers, by name."""
        return tuple(member.server for member in self._members.values())

    def server(self, name: str) -> UpstreamServer:
        """The server of that name. Raises `BackendNotFound`."""
        member = self._members.get(name)
        if member is None:
            raise BackendNotFound(f'There is no server "{name}".', suggestions=tuple(self._members))
        return member.server

    def statuses(self) -> tuple[ServerStatus, ...]:
        """One status a server, by name."""
        return tuple(server.status for server in self.providers())

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever a server came, went, or changed its tools or its status."""
        return self._listeners.add(callback)

    async def settled(self, names: Container[str] | None = None) -> None:
        """Wait until no server, or none of those names, is in its first attempt any more."""
        while any(s.state in _STARTING for s in self.statuses() if names is None or s.name in names):
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        self._listeners.notify()


class ServerManager:
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
        end = self.fleet.subscribe(self._listeners.notify)
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
            self._listeners.notify()

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
            taken.result(_THREAD_TIMEOUT_S)

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

    def providers(self) -> tuple[UpstreamServer, ...]:
        """The servers of the present fleet, by name."""
        return self.fleet.providers()

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever a server came, went, or changed its tools or its status."""
        return self._listeners.add(callback)


_THREAD_TIMEOUT_S = 10.0
"""How long another thread waits for the event loop to take in a change, in seconds."""


logger = logging.getLogger(__name__)


_STARTING = (ServerState.CONFIGURED, ServerState.CONNECTING)


def _options_by_name(servers: Iterable[ServerOptions]) -> dict[str, ServerOptions]:
    wanted: dict[str, ServerOptions] = {}
    for options in servers:
        if options.name in wanted:
            raise NameCollision(
                f'Two servers are called "{options.name}".',
                hint="Servers that stand in for each other have one namespace, and names of their own.",
            )
        wanted[options.name] = options
    return wanted
