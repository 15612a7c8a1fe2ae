"""All remote servers of an app. A server that fails or hangs does not affect the others.

`ServerManager` outlives the runs of an app and takes changes from any thread; each run has its own `Fleet`.
"""

import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from toolcrib.errors import AlreadyStarted, BackendNotFound, NameCollision, NotStarted
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.types import (
    BackendKind,
    ServerState,
    ServerStatus,
    Unsubscribe,
)
from toolcrib.upstream.catalog.cache import CatalogCache
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.remote_server import Listeners, Logins, RemoteServer

logger = logging.getLogger(__name__)

_RESTORE_TIMEOUT_S = 15.0
"""How long the start of servers waits for the catalogs of an earlier run, even if the state store hangs."""
_INDEX_TIMEOUT_S = 5.0
"""How long servers whose catalogs were restored wait for these to be indexed."""
_STARTING = (ServerState.CONFIGURED, ServerState.CONNECTING)


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
    from toolcrib.upstream.logins.service import LoginService

    return LoginService(state, options.logins)


def _create_server(
    options: ServerOptions, fleet: FleetOptions, cache: CatalogCache | None, logins: Logins | None
) -> RemoteServer:
    """Create the server, importing the MCP client for the first one."""
    if options.delegate_search:
        from toolcrib.upstream.chaining import ChainedServer

        return ChainedServer(options, fleet, cache, logins)
    from toolcrib.upstream.server import UpstreamServer

    return UpstreamServer(options, fleet, cache, logins)


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
