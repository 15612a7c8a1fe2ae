"""All remote servers of an app. A server that fails or hangs does not affect the others.

`ServerManager` outlives the runs of an app and takes changes from any thread; each run has its own `Fleet`.
"""

import contextlib
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from toolcrib.errors import AlreadyStarted, BackendNotFound, ExecutionFailed, NameCollision, NotStarted
from toolcrib.providers.base import Provider
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.types import (
    BackendKind,
    Caller,
    Context,
    Object,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
)
from toolcrib.upstream.catalog.cache import CatalogCache
from toolcrib.upstream.options import FleetOptions, ServerOptions

logger = logging.getLogger(__name__)

_RESTORE_TIMEOUT_S = 15.0
"""How long the start of servers waits for the catalogs of an earlier run, even if the state store hangs."""
_INDEX_TIMEOUT_S = 5.0
"""How long servers whose catalogs were restored wait for these to be indexed."""
_STARTING = (ServerState.CONFIGURED, ServerState.CONNECTING)


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

    def with_tokens(self, options: ServerOptions, caller: Caller | None = None) -> Any:
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


class _FleetMember:
    """A running server."""

    def __init__(self, server: RemoteServer, predecessor: "_FleetMember | None") -> None:
        self.server = server
        self._predecessor = predecessor
        self._scope = anyio.CancelScope()
        self._done = anyio.Event()

    async def run(self) -> None:
        """Run until dismissed, and never beside a predecessor, which may hold resources that this one needs."""
        try:
            with self._scope:
                await self._wait_predecessor()
                await self.server.run()
        except Exception:
            # A bug of ours must not end the other servers' tasks, which share the task group.
            logger.exception("the task of the server %s failed", self.server.name)
        finally:
            # Also if it never started: its successor waits only for this one.
            with anyio.CancelScope(shield=True):
                await self._wait_predecessor()
            self.server.end()
            self._done.set()

    async def _wait_predecessor(self) -> None:
        if self._predecessor is not None:
            await self._predecessor.gone()
            self._predecessor = None
            self.server.succeed(None)

    def dismiss(self) -> None:
        self._scope.cancel()

    async def retire(self, drain_s: float) -> None:
        """Let running calls finish for up to `drain_s` seconds, then dismiss it."""
        with anyio.move_on_after(drain_s) as scope:
            # Calls that have just chosen this server begin first.
            await checkpoint()
            await self.server.wait_idle()
        if scope.cancelled_caught:
            logger.warning("%s was stopped while calls were running, after %g s", self.server.name, drain_s)
        self.dismiss()
        # It may still wait for its predecessor: then its calls must not.
        self.server.end()

    async def gone(self) -> None:
        """Wait until it has stopped and released everything."""
        await self._done.wait()


class Fleet:
    """A `ProviderSource` of MCP servers. Used once, as `async with Fleet() as fleet: await fleet.apply(...)`."""

    kind = BackendKind.MCP

    def __init__(
        self,
        options: FleetOptions | None = None,
        cache: CatalogCache | None = None,
        wait_indexed: Callable[[], Awaitable[None]] = checkpoint,
        make_logins: Callable[[], Logins] | None = None,
        found_changes: Callable[[str], None] | None = None,
    ) -> None:
        """`cache` keeps the catalogs of the servers for the next run. Servers with a restored catalog are started
        after `wait_indexed`, because connecting would delay the index of what is known already. `make_logins` is
        called for the first server with a login; by default, logins end with the process. `found_changes` gets the
        name of a server whose list of tools was found to be another one.
        """
        options = options or FleetOptions()
        self._cache = cache
        self._found_changes = found_changes
        self._make_logins = make_logins or partial(create_logins, MemoryStore(), options)
        self._logins: Logins | None = None
        self._wait_indexed = wait_indexed
        self._options = options if options.gateway_id else replace(options, gateway_id=secrets.token_hex(8))
        self._members: dict[str, _FleetMember] = {}
        self._retiring: dict[str, _FleetMember] = {}
        """By name: the last one that is no longer offered, until its calls have finished and it has stopped."""
        self._draining: set[_FleetMember] = set()
        """All that are no longer offered and have calls."""
        self._unsubscribes: dict[str, Unsubscribe] = {}
        self._listeners = Listeners()
        self._group: anyio.abc.TaskGroup | None = None
        self._entered = False
        self._quiet = False
        """Whether changes are reported later, all at once."""
        self._changed = anyio.Event()

    @property
    def gateway_id(self) -> str:
        """Identifies this gateway in a chain of gateways; see `loop_detection`."""
        return self._options.gateway_id

    async def __aenter__(self) -> Self:
        if self._entered:
            raise AlreadyStarted("This fleet was started before; create a new one.")
        self._entered = True
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop all servers concurrently, each within `stop_timeout_s`."""
        group, self._group = self._group, None
        if group is None:
            return None
        if self._logins is not None:
            self._logins.close()
        for member in (*self._members.values(), *self._draining):
            member.dismiss()
        if isinstance(error, Exception):
            # Not passed to the group, which would wrap it.
            return await group.__aexit__(None, None, None)
        return await group.__aexit__(kind, error, trace)

    async def apply(self, servers: Iterable[ServerOptions]) -> None:
        """Like `set_servers`, for callers that await it."""
        self.set_servers(servers)

    def set_servers(self, servers: Iterable[ServerOptions]) -> None:
        """Start new servers, stop removed ones, restart changed ones, and leave the others alone.

        A server is stopped once its running calls have finished, or after `drain_s`; new calls no longer reach it, but
        a person's answer reaches the call that waits for it.
        Does not wait for any of it. Must be called in the fleet's event loop. Raises `NameCollision` for a name used
        twice, and then changes nothing; raises `NotStarted` outside of `async with`.
        """
        if self._group is None:
            raise NotStarted("The fleet is not running.", hint="Use it inside `async with Fleet(...) as fleet`.")
        wanted = options_by_name(servers)
        kept = {name: member for name, member in self._members.items() if member.server.options == wanted.get(name)}
        for name in self._members.keys() - kept.keys():
            self._unsubscribes.pop(name)()
            self._retiring[name] = self._members[name]
            self._draining.add(self._members[name])
            self._group.start_soon(self._retire, name, self._members[name])
        started = {name: self._create(options) for name, options in wanted.items() if name not in kept}
        if started:
            self._group.start_soon(self._run, self._group, tuple(started.values()))
        if started or len(kept) < len(self._members):
            self._members = dict(sorted({**kept, **started}.items()))
            self._notify()

    async def _retire(self, name: str, member: _FleetMember) -> None:
        await member.retire(self._options.drain_s)
        self._draining.discard(member)
        await member.gone()
        if self._retiring.get(name) is member:
            del self._retiring[name]

    def _create(self, options: ServerOptions) -> _FleetMember:
        server = _create_server(options, self._options, self._cache, self._logins_for(options))
        self._unsubscribes[options.name] = server.subscribe(self._notify)
        if self._found_changes is not None:
            server.found_changes.add(partial(self._found_changes, options.name))
        predecessor = self._retiring.get(options.name)
        if predecessor is not None:
            server.succeed(predecessor.server)
        return _FleetMember(server, predecessor)

    def _logins_for(self, options: ServerOptions) -> Logins | None:
        if options.auth is None or self._group is None:
            return None
        if self._logins is None:
            self._logins = self._make_logins()
            self._logins.start_soon = self._group.start_soon
        return self._logins

    async def _run(self, group: anyio.abc.TaskGroup, members: Sequence[_FleetMember]) -> None:
        """Restore what is known of the servers, then start them: those first of which nothing is known."""
        left = list(members)
        try:
            if self._cache is not None:
                await self._restore(members)
                for member in [one for one in members if not one.server.status.cached]:
                    left.remove(member)
                    group.start_soon(member.run)
                if left:
                    with anyio.move_on_after(_INDEX_TIMEOUT_S), contextlib.suppress(NotStarted):
                        await self._wait_indexed()
        finally:
            for member in left:
                group.start_soon(member.run)

    async def _restore(self, members: Sequence[_FleetMember]) -> None:
        """Restore the catalogs of an earlier run, and report them all at once."""
        self._quiet = True
        try:
            with anyio.move_on_after(_RESTORE_TIMEOUT_S):
                for member in members:
                    await member.server.restore()
        finally:
            self._quiet = False
            self._notify()

    def servers(self) -> tuple[ServerOptions, ...]:
        """Return the options of the servers, by name."""
        return tuple(member.server.options for member in self._members.values())

    def providers(self) -> tuple[RemoteServer, ...]:
        """Return the servers, by name."""
        return tuple(member.server for member in self._members.values())

    def server(self, name: str) -> RemoteServer:
        """Return the server of that name. Raises `BackendNotFound`."""
        member = self._members.get(name)
        if member is None:
            raise BackendNotFound(f'There is no server "{name}".', suggestions=tuple(self._members))
        return member.server

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Return the status of each server, by name."""
        return tuple(server.status for server in self.providers())

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever a server was added or removed, or changed its tools or status."""
        return self._listeners.add(callback)

    async def settled(self, names: Container[str] | None = None) -> None:
        """Wait until every server, or every one of `names`, has finished its first attempt."""
        while any(s.state in _STARTING for s in self.statuses() if names is None or s.name in names):
            await self._changed.wait()

    def _notify(self) -> None:
        if self._quiet:
            return
        self._changed.set()
        self._changed = anyio.Event()
        self._listeners.notify()


def create_logins(state: StateStore, options: FleetOptions) -> Logins:
    made: Logins = import_module("toolcrib.upstream.logins.service").LoginService(state, options.logins)
    return made


def _create_server(
    options: ServerOptions, fleet: FleetOptions, cache: CatalogCache | None, logins: Logins | None
) -> RemoteServer:
    """Create the server, importing the MCP client for the first one."""
    module, name = ("chaining", "ChainedServer") if options.delegate_search else ("server", "UpstreamServer")
    server: RemoteServer = getattr(import_module(f"toolcrib.upstream.{module}"), name)(options, fleet, cache, logins)
    return server


def options_by_name(servers: Iterable[ServerOptions]) -> dict[str, ServerOptions]:
    wanted: dict[str, ServerOptions] = {}
    for options in servers:
        if options.name in wanted:
            raise NameCollision(
                f'Two servers are called "{options.name}".',
                hint="Replicas share one namespace, but each needs its own name.",
            )
        wanted[options.name] = options
    return wanted
