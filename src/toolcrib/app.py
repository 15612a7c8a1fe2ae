"""The application: builds the gateway, the servers and the surfaces from the settings, and runs them."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final, Self

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib._version import VERSION
from toolcrib.checks import checked
from toolcrib.errors import AlreadyStarted, InvalidRequest, NotStarted, ServerUnavailable, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.keywords import Describe, load_hook
from toolcrib.gateway.policy import ReplaceablePolicy
from toolcrib.gateway.server_states import describe_state
from toolcrib.gateway.view import ResolvedTool
from toolcrib.middleware.audit import AuditSink
from toolcrib.middleware.audit_file import AuditFile
from toolcrib.providers.base import BackendSelector
from toolcrib.providers.builder import ToolBuilder
from toolcrib.providers.combined import ProviderList
from toolcrib.providers.functions import LocalTools, ToolDecorator
from toolcrib.providers.request_scope import apply_scope
from toolcrib.sandbox.languages import DEFAULT_LANGUAGE
from toolcrib.scripting.files import make_script
from toolcrib.scripting.runner import make_script_runner
from toolcrib.scripting.stored import StoredScripts
from toolcrib.search.options import BUILT_IN_EMBEDDER
from toolcrib.server.lifespan import ServableApp
from toolcrib.server.notifications import ListChangeNotifier
from toolcrib.server.options import WorkerPlace
from toolcrib.settings.options import Settings
from toolcrib.settings.reload import SettingsChange, compare, with_reloaded
from toolcrib.state.base import RemoteStore, StateStore, state_problem
from toolcrib.state.coordination import Peers
from toolcrib.state.memory import MemoryStore
from toolcrib.state.saved_index import SavedIndex
from toolcrib.state.stores import make_store
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.facade import ended_by_collision, watch_always_visible
from toolcrib.telemetry import Telemetry
from toolcrib.types import (
    LOCAL,
    Authenticator,
    CallMiddleware,
    Context,
    Object,
    Policy,
    SearchReply,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
)
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.server_manager import ServerManager
from toolcrib.usage.counts import UsageReport

logger = logging.getLogger(__name__)

_NAME: Final = "Give its id, such as files:read, or any usual spelling of it; search gives ids."
_HINTS: Final = {
    "settings": 'Load a file with load_settings("toolcrib.json").',
    "tool": 'Give the tool first and then its handler: register(Tool(name="add"), add).',
    "options": 'Such as ServerOptions(name="time", url="https://...").',
    "find.name": _NAME,
    "call.name": _NAME,
    "query": 'Give one text, such as "send mail"; an empty one lists every tool.',
    "limit": "Give a number of tools, such as 5.",
    "policy": "Give an object with the methods of its protocol.",
}
"""For errors about arguments."""
_NOT_STARTED: Final = "The app is not started, so no remote server is connected: use it inside `async with`."


@checked(
    hints=_HINTS,
    methods=(
        "register",
        "unregister",
        "add_server",
        "remove_server",
        "retry_server",
        "include",
        "add_script",
        "search",
        "tools",
        "find",
        "call",
        "run_script",
        "reload",
        "forget_requests",
        "usage_report",
    ),
)
class App(ToolDecorator, ServableApp):
    """A gateway over functions of this process, providers, and the servers of its settings.

    `async with App(settings) as app` starts the servers without waiting for them; `settled` waits. Only an embedder
    that the settings name is loaded first. Functions and providers can be found and called without starting the app.
    A stopped app can be started again. Registering is safe from any thread. A started app lives in the event loop it
    was started in; searches and calls from another thread's loop run there.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        name: str = "toolcrib",
        version: str = VERSION,
        title: str | None = None,
        policy: Policy | None = None,
        authenticator: Authenticator | None = None,
        middleware: Sequence[CallMiddleware] = (),
        selector: BackendSelector | None = None,
        audit: AuditSink | None = None,
        state: StateStore | None = None,
        describe: Describe | None = None,
        worker: WorkerPlace | None = None,
    ) -> None:
        """Build an app without starting it.

        Clients see `name`, `version` and `title` as those of the server. `audit` gets an event for every call and
        replaces the audit log. `state` keeps what several processes that serve one address share, and what should
        survive a restart; the app neither opens nor closes it. By default, `settings.state` says where. `describe`
        returns phrases by which people ask for a tool; while the app runs, it is called in the background, once for
        each tool and content, and replaces the function that the settings name. `worker` says which of several
        processes this one is; they need a shared `state`. Raises
        `InvalidRequest` for a part of another type, `SettingsError` for an unknown surface, and `MissingExtra` if the
        tokenizer that the settings name is not installed.
        """
        self._describe = describe
        self.settings = settings or Settings()
        self.settings_problem = ""
        """Why the settings file as it is now is not in use; empty if it is."""
        self._own_state = None if state is not None else make_store(self.settings.state)
        self.local = LocalTools(
            max_threads=self.settings.local.max_threads, mask_errors=self.settings.local.mask_errors
        )
        self.shared = ProviderList()
        self.servers = ServerManager(
            self.settings.fleet,
            self.settings.servers,
            state=state or self._own_state,
            wait_indexed=self._wait_indexed,
        )
        self._state: StateStore = state or self._own_state or MemoryStore()
        self.worker = worker
        """Which of several processes at one address this one is; None if it is alone, or another program runs them."""
        self.peers = Peers(self._state, "" if worker is None else worker.name)
        """The processes that share the state with this one."""
        self._recorder, self._desk = self._console_hooks()
        self.telemetry = Telemetry(
            self.settings,
            self._state,
            self._catalog,
            folder=None if worker is None else worker.folder / "metrics",
            listener=None if worker is None else worker.sockets.get("metrics"),
            recorder=self._recorder,
        )
        """What the settings count and measure of this app."""
        self._own_policy = ReplaceablePolicy(self.settings.policy) if policy is None else None
        self._started_with = self.settings
        cache = self.settings.gateway.index_cache
        self._audit_file = AuditFile.of(self.settings.gateway.calls, audit)
        self.gateway = Gateway(
            [self.local, self.shared, self.servers],
            policy=policy or self._own_policy,
            options=self.settings.gateway,
            middleware=middleware,
            selector=selector,
            audit=self._audit_file or audit,
            observer=self.telemetry.observer,
            definitions=self.telemetry.usage,
            gateway_id=self.servers.gateway_id,
            mask_errors=self.settings.local.mask_errors,
            state=self._state,
            desk=self._desk,
            saved_index=SavedIndex.of(self.settings.state.path, self.settings.origin, cache=cache),
            refused=self.telemetry.refused,
        )
        self.telemetry.show_state(self.gateway, self.statuses, audit=self._audit_file)
        self.scripts = make_script_runner(
            self.gateway,
            limits=self.settings.limits,
            sandbox=self.settings.sandbox,
            options=self.settings.scripts,
        )
        self.scripts.observe = None if self.telemetry.metrics is None else self.telemetry.metrics.script_ended
        self.stored = StoredScripts(self.scripts)
        if self.settings.script_folder is not None:
            self.stored.load(self.settings.script_folder)
            self.shared.add(self.stored)
        self.facade = make_facade(self.gateway, self.settings.surfaces, self.scripts, order=self.servers.names)
        self._identity = {"name": name, "version": version, "title": title or name}
        super().__init__(
            self.settings.http,
            authenticator=authenticator,
            problem=self.settings.http_problem,
            auth=self.settings.auth,
        )
        self.local.reserve(self.facade.meta_names)
        self.console = self._make_console()
        """The pages for the people who run the gateway, if the settings say where they are served; an ASGI app."""

    def _console_hooks(self) -> tuple[Any, Any]:
        """An observer of calls and a desk at which they wait for a person, if there are pages that show them."""
        if not self.settings.console.address:
            return None, None
        from toolcrib.console.app import make_hooks

        return make_hooks(self.settings, self._state)

    def _make_console(self) -> Any:
        if self._recorder is None:
            return None
        from toolcrib.console.app import make_console

        return make_console(
            gateway=self.gateway,
            facade=self.facade,
            recorder=self._recorder,
            desk=self._desk,
            usage=self.telemetry.usage,
            zero_hits=self.telemetry.zero_hits,
            statuses=self.statuses,
            peers=self.peers,
            settings=lambda: self.settings,
            settings_problem=lambda: self.settings_problem,
            authenticator=self._authenticator or self._own_authenticator(),
            problem="" if self._authenticator else self.settings.http_problem,
            listener=None if self.worker is None else self.worker.sockets.get("console"),
        )

    @cached_property
    def changes(self) -> ListChangeNotifier:
        """Notifies clients of changed lists."""
        return ListChangeNotifier(self.facade, self.gateway.refresher)

    @cached_property
    def engine(self) -> Any:
        """What answers clients, whichever way they connect: an `Engine`; untyped, because that takes long to import."""
        from toolcrib.server.engine import Engine

        return Engine(
            self.facade,
            **self._identity,
            changes=self.changes,
            observe=None if self.telemetry.metrics is None else self.telemetry.metrics.request_ended,
        )

    @cached_property
    def server(self) -> Any:
        """The app as the SDK's `Server`, for clients in memory; untyped, because that type takes long to import.

        Handlers and middleware that a program adds to it apply to clients of this object alone, and not to those that
        the app serves over stdio and HTTP.
        """
        from toolcrib.server.sdk import SdkServer

        return SdkServer(self.engine)

    def _warn_of_own_handlers(self) -> None:
        if "server" in self.__dict__ and self.server.is_changed:
            logger.warning(
                "Handlers or middleware were added to app.server. They apply to clients that connect to that object, "
                "and not over stdio or HTTP; add methods to app.engine.methods instead."
            )

    # -- the life cycle --------------------------------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        """The remote servers of this run."""
        return self.servers.fleet

    async def __aenter__(self) -> Self:
        """Start. Raises `ServerUnavailable` if a required server does not become ready, `SettingsError` for a state
        file of a newer version, and `SettingsError` or `MissingExtra` if the embedder cannot be loaded.
        """
        self._discard_closed_loop()
        if self._stack is not None or self._starting:
            raise AlreadyStarted("The app is running already.")
        stack = contextlib.AsyncExitStack()
        self._starting = True
        try:
            if self._own_state is not None:
                await stack.enter_async_context(self._own_state)
            if self._audit_file is not None:
                await stack.enter_async_context(self._audit_file)
            self._group = await stack.enter_async_context(self._running_gateway())
            if (described := await self._hook()) is not None:
                self._group.start_soon(described)
            await stack.enter_async_context(self.servers.running())
            await stack.enter_async_context(self._embedding())
            await stack.enter_async_context(self.scripts.engines)
            await stack.enter_async_context(self.telemetry.running(self._group))
            if self.console is not None:
                await stack.enter_async_context(self.console.served(self._group))
            await self._check_required()
            await self._run_mounts(self._group)
        except BaseException:
            self._group = None
            await stack.aclose()
            raise
        finally:
            self._starting = False
        self._stack, self._loop = stack, asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop: refuse new calls, close connections, and end child processes."""
        stack, self._stack, self._loop, self._group = self._stack, None, None, None
        if stack is not None:
            await stack.aclose()

    @contextlib.asynccontextmanager
    async def _running_gateway(self) -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as group:
            await group.start(self.gateway.refresher.run)
            await group.start(self.changes.run)
            await group.start(self.peers.run)
            if self.settings.gateway.past_requests is not None:
                await group.start(self.gateway.past.run)
            group.start_soon(watch_always_visible, self.gateway.refresher, self.settings.surfaces.always_visible)
            group.start_soon(self.stored.keep_checked)
            if self.settings.script_folder is not None:
                await group.start(self.stored.watch_folder, self.settings.scripts.watch_s)
            yield group
            group.cancel_scope.cancel()

    async def _hook(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Load the hook that describes tools; return what runs it, None without one."""
        name, hook = "", self._describe
        if hook is None and (name := self.settings.gateway.describe):
            hook = await anyio.to_thread.run_sync(load_hook, name, abandon_on_cancel=True)
        refresher = self.gateway.refresher
        return None if hook is None else partial(refresher.describe_tools, hook, self.gateway.state, name=name)

    @contextlib.asynccontextmanager
    async def _embedding(self) -> AsyncIterator[None]:
        """Load the embedder that the settings name, while the servers connect."""
        options = self.settings.gateway
        if options.embedder.strip() == BUILT_IN_EMBEDDER:
            yield
            return
        from toolcrib.embedders.cache import load_cached  # noqa: PLC0415 - most settings name no embedder

        load_both = partial(load_cached, options.embedder, options.embedder_cache, self.settings.state.path)
        embedder, cached = await anyio.to_thread.run_sync(load_both, abandon_on_cancel=True)
        with cached:
            self.gateway.use_embedder(embedder, cached)
            yield

    async def _wait_indexed(self) -> None:
        await self.gateway.refresher.wait_current()

    async def _check_required(self) -> None:
        required = {server.name for server in self.settings.servers if server.required}
        if not required:
            return
        await self.fleet.settled(required)
        for status in self.fleet.statuses():
            if status.name in required and status.state not in (ServerState.READY, ServerState.IDLE):
                raise ServerUnavailable(
                    f"Server {status.name} is required and {describe_state(status)}.",
                    hint="Fix the server, or set `required` to false.",
                )

    def _login_routes(self) -> Sequence[Any]:
        has_logins = self.settings.fleet.logins.public_url and any(one.auth for one in self.settings.servers)
        if not has_logins:
            return ()
        from toolcrib.server.auth.login_pages import login_routes

        logins: Any = self.servers.logins
        return login_routes(logins)

    # -- registering -----------------------------------------------------------------------------------------------

    @property
    def _own_tools(self) -> LocalTools:
        return self.local

    def register(self, tool: Tool | ToolBuilder, handler: Callable[..., Any], *, strict: bool = False) -> Tool:
        """Register a function for a tool with an explicit schema.

        The handler takes the arguments by name, or as one dict, with or without a leading context. A tool of the same
        name is replaced; with `strict`, a different definition raises `NameCollision`. Raises `InvalidTool` or
        `InvalidName`.
        """
        return self.local.register(tool, handler, strict=strict)

    def unregister(self, tool_id: str) -> None:
        """Unregister a function. Raises `ToolNotFound`."""
        self.local.unregister(tool_id)

    def add_provider(self, provider: object) -> None:
        """Offer a provider's tools to all callers. Raises `InvalidRequest` if it is not a provider."""
        self.shared.add(provider)

    def remove_provider(self, provider: object) -> None:
        """Stop offering a provider's tools. Raises `BackendNotFound`."""
        self.shared.remove(provider)

    def add_server(self, options: ServerOptions) -> None:
        """Add a remote server; it connects at once if the app is started. Raises `InvalidRequest` for a taken name."""
        self.servers.add(options)

    def remove_server(self, name: str) -> None:
        """Disconnect a remote server. Raises `BackendNotFound`."""
        self.servers.remove(name)

    async def retry_server(self, name: str) -> bool:
        """Try a server again that was given up after its `retries`; returns false for one that was not.

        The others are tried again by themselves. Raises `BackendNotFound`.
        """

        async def again() -> bool:
            return bool(self.servers.revive(name))

        return await self._in_app_loop(again)

    def add_script(
        self,
        name: str,
        source: str,
        *,
        description: str = "",
        parameters: Object | None = None,
        language: str = DEFAULT_LANGUAGE,
        **more: Any,
    ) -> Tool:
        """Add a script as the tool `scripts:name`. It runs with its caller's rights, and gets its arguments as `args`.

        `parameters` is their schema, and `more` are other fields of `StoredScript`. A script of the same name is
        replaced. Raises `InvalidTool`, `InvalidName` or `InvalidRequest`.
        """
        script = make_script(name, source, description=description, parameters=parameters, language=language, **more)
        tool = self.stored.add(script)
        self.shared.add(self.stored)
        return tool

    def include(self, server: object, name: str) -> None:
        """Add an MCP server object of this process, an SDK server or a FastMCP; `name` is its namespace.

        Raises `InvalidRequest` for anything else, and for a taken name.
        """
        from toolcrib.upstream.targets import is_target

        if not is_target(server):
            raise InvalidRequest(
                f"App.include: server must be an MCP server, not {type(server).__name__}.",
                hint="Give an SDK Server or MCPServer, or a FastMCP; add_server takes those with a command or a URL.",
            )
        self.add_server(ServerOptions(name=name, target=server))

    async def reload(self, settings: Settings) -> SettingsChange:
        """Change to these settings, and return what changed.

        Servers that are the same keep their connections; one that is gone or different is stopped once its running
        calls have finished, and one that was given up is tried again. The policy and the tokens apply to the next
        request, unless the app was given its own. Everything else applies when an app is built. Servers that
        `add_server` added stay. Raises `SettingsError` or `NameCollision`, and then nothing has changed.
        """
        return await self._in_app_loop(lambda: self._reload(settings))

    async def _reload(self, settings: Settings) -> SettingsChange:
        before = self.settings
        self._check_tokens(settings.http, settings.auth, settings.http_problem)
        change = compare(before, settings, self._started_with)
        self.servers.replace(before.servers, settings.servers)
        change = replace(change, retried=self.servers.revive())
        if change.policy and self._own_policy is not None:
            self._own_policy.replace(settings.policy)
            self.gateway.refresher.force_refresh()
        if change.keywords:
            self.gateway.refresher.use_keywords(settings.gateway.keywords)
        if change.tokens:
            self._replace_tokens(settings.http.tokens, settings.auth)
            await self._watch_keys()
        self.settings = with_reloaded(before, settings)
        return change

    # -- use -------------------------------------------------------------------------------------------------------

    def local_context(self) -> Context:
        """Return the context of local requests, with the providers and show-all flag of the surrounding code."""
        return apply_scope(Context(caller=LOCAL, session="local"))

    async def search(
        self,
        query: str | Sequence[str],
        limit: int | None = None,
        *,
        cursor: str | None = None,
        ctx: Context | None = None,
    ) -> SearchReply:
        """Return the tools that match; an empty query lists all, a page at a time.

        Several queries are one need in other words: each tool gets the best of its scores.
        `cursor`, from the previous reply to the same query, gives the next page. Raises `StaleCursor` if the tools have
        changed, and for the cursor of another query.
        """
        asker = ctx or self.local_context()
        request = SearchRequest.of(query, limit=limit, cursor=cursor)
        reply = await self._in_app_loop(lambda: self.gateway.search(asker, request))
        return replace(reply, note=f"{reply.note} {_NOT_STARTED}".strip()) if self._lacks_servers() else reply

    async def tools(self, *, ctx: Context | None = None) -> tuple[Tool, ...]:
        """Return every tool that a search can find, by id."""
        asker = ctx or self.local_context()
        return await self._in_app_loop(lambda: self.gateway.tools(asker))

    async def find(self, name: str, *, ctx: Context | None = None) -> ResolvedTool:
        """Return the tool that a spelling names. Raises `ToolNotFound`, `AmbiguousName` or `ServerUnavailable`."""
        asker = ctx or self.local_context()
        with self._hint_when_not_started():
            return await self._in_app_loop(lambda: self.gateway.find(asker, name))

    async def call(self, name: str, arguments: Object | None = None, *, ctx: Context | None = None) -> ToolResult:
        """Call a tool. Raises like `Gateway.call`; an error that the tool reports is a result with `is_error`."""
        asker = ctx or self.local_context()
        with self._hint_when_not_started():
            return await self._in_app_loop(lambda: self.gateway.call(asker, name, arguments))

    async def run_script(
        self,
        source: str,
        *,
        language: str = DEFAULT_LANGUAGE,
        arguments: Object | None = None,
        read_only: bool = False,
        ctx: Context | None = None,
    ) -> ToolResult:
        """Run a script that can call tools; if it fails, the result has `is_error`. Raises like `ScriptRunner.run`."""
        asker = ctx or self.local_context()
        return await self._in_app_loop(
            lambda: self.scripts.run(asker, source, language=language, arguments=arguments, read_only=read_only)
        )

    async def forget_requests(self, tenant: str | None = None, tool_id: str | None = None) -> int:
        """Forget the past requests of a tenant, or those of one tool, and the searches without hits that led to it.

        Also which tools its callers used, or that they used this one.
        Returns how many tools had past requests, and how many groups of searches there were, together.

        `tenant` is None for callers without one. Raises `StateUnavailable` if the state file cannot be written.
        """

        async def forget() -> int:
            zero_hits = (
                0 if self.telemetry.zero_hits is None else await self.telemetry.zero_hits.forget(tenant, tool_id)
            )
            await self.gateway.sessions.forget_used(tenant, tool_id)
            return zero_hits + await self.gateway.past.forget(tenant, tool_id)

        return await self._in_app_loop(forget)

    async def usage_report(self, days: int = 30) -> UsageReport:
        """Return how much the app was used in the last `days` days, at most 90, and which tools were not.

        Raises `InvalidRequest` if usage is not counted, and `StateUnavailable` if the state file cannot be read.
        """
        recorder = self.telemetry.usage
        if recorder is None:
            raise InvalidRequest("Usage is not counted.", hint="Set telemetry.usage to true.")
        return await self._in_app_loop(lambda: recorder.report(days))

    def _catalog(self) -> Sequence[Tool]:
        """The tools of all callers."""
        return self.gateway.refresher.snapshot.catalog.tools

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Return the status of each server, and of each provider that failed or has rejected tools, by name."""
        return self.gateway.refresher.statuses()

    async def settled(self) -> None:
        """Wait until each server is ready or failed, and its tools can be found. Raises `NotStarted` if stopped."""
        await self._in_app_loop(self.gateway.refresher.wait_settled)

    async def refresh(self) -> None:
        """List the tools of every provider and the folder of scripts again, and wait for the result.

        Raises `NotStarted` if the app is stopped meanwhile.
        """

        async def again() -> None:
            await self.stored.reload()
            self.gateway.refresher.force_refresh()
            await self.gateway.refresher.wait_current()

        await self._in_app_loop(again)

    def _lacks_servers(self) -> bool:
        """Whether there are remote servers whose tools are unknown because the app is not started."""
        return not self.running and not self._starting and self.servers.configured

    @contextlib.contextmanager
    def _hint_when_not_started(self) -> Iterator[None]:
        try:
            yield
        except ToolNotFound as error:
            if self._lacks_servers():
                error.hint = f"{error.hint} {_NOT_STARTED}".strip()
            raise

    # -- serving -------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _watch_collisions(self) -> AsyncIterator[None]:
        """Stop serving if wire names turn out to collide soon after the start."""
        if self._stack is None:
            raise NotStarted("The app is not running.", hint="Use it inside `async with`.")
        if self.settings.surfaces.prefix:
            yield
            return
        async with ended_by_collision(self.facade, self.local_context()):
            yield

    def _state_store(self) -> StateStore:
        return self._state

    def _readiness(self) -> tuple[bool, dict[str, Any]]:
        live, names = self.gateway.refresher, {server.name for server in self.fleet.servers()}
        counts = dict(Counter(str(status.state) for status in live.statuses() if status.name in names))
        starting = any(status.is_missing for status in live.statuses())
        waiting = live.maintenance.waiting()
        more: dict[str, Any] = {} if waiting is None else {"tools_to_embed": waiting}
        if self.settings_problem:
            more["settings"] = "the changed file is invalid, and not in use"
        if isinstance(self.gateway.state, RemoteStore):
            status = self.gateway.state.status()
            more["state"] = "connected" if status.away_since is None else "away"
        if state_problem(self._state):
            more["state"] = "failing"
        refusing = False
        if self._audit_file is not None:
            audit = self._audit_file.status()  # without the reason, which may name a file: anyone may ask
            more["audit"] = "failing" if audit.reason else "written"
            more |= {"audit_waiting": audit.waiting, "audit_lost": audit.lost}
            refusing = bool(audit.reason) and self._audit_file.options.required
        return self.running and not starting and not refusing, {
            "servers": counts,
            "tools": len(live.snapshot.catalog),
            **more,
        }
