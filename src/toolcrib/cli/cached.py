"""The verbs that look at tools, from what the servers listed last: no server is started, and no MCP library loaded.

The search is in `toolcrib.cli.cached_search`: a look-up of one tool needs none of it.
Whatever the state file cannot answer is left to `toolcrib.cli.session`, which asks the servers: a server that was never
listed, stored scripts, an embedder, and a search that a server runs itself. Names for completion come from here too.
"""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio

from toolcrib.catalog import Catalog
from toolcrib.cli.arguments import CallArguments, options_of
from toolcrib.cli.output import first_line
from toolcrib.cli.source import SearchFindings, ToolView
from toolcrib.errors import AmbiguousName, InvalidTool, ToolNotFound
from toolcrib.formats.mcp import read_entry
from toolcrib.gateway.keywords import add_keywords, read_descriptions
from toolcrib.gateway.snapshot import MergedTools, ProviderTools
from toolcrib.providers.accounts import AccountGroup, account_tool, without_group
from toolcrib.providers.base import Backend, Provider
from toolcrib.schema import example, parameters
from toolcrib.schema.repair import is_plain, with_visible_texts
from toolcrib.search.options import Scorer
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.state.stores import has_store, make_store
from toolcrib.types import (
    LOCAL,
    BackendKind,
    Context,
    Object,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
)
from toolcrib.upstream.catalog.cache import CatalogCache, StoredCatalog
from toolcrib.upstream.options import ServerOptions

_NOT_USED: Final = ("rejected", "held")
_HUNG: Final = "it did not answer in time when it was last started; --fresh tries it again"


class _Unknown(Exception):
    """The state file does not say."""


class _NotStarted(Provider):
    """A server that lists what it listed last, and runs nothing."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - a Provider
        return self._tools

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> None:
        """Run nothing: calls go through a started app."""


@dataclass(frozen=True, slots=True)
class CachedServers:
    """What the servers of the settings listed last."""

    settings: Settings
    offers: tuple[ProviderTools, ...]
    statuses: tuple[ServerStatus, ...]

    def tools(self) -> Sequence[Tool]:
        """Every tool that a local caller sees, by id."""
        if self._shows_everything:
            return self._catalog.tools
        from toolcrib.cli.cached_search import view_of

        return view_of(self.settings, self.offers).tools()

    def find(self, name: str) -> Tool:
        """The tool that a spelling names. Raises `ToolNotFound` or `AmbiguousName`."""
        if self._shows_everything:
            catalog = self._catalog
            return catalog.tools[catalog.find(name)]
        from toolcrib.cli.cached_search import view_of

        return view_of(self.settings, self.offers).find(name).tool

    @property
    def _catalog(self) -> Catalog:
        return Catalog.build(MergedTools.merge(self.offers).tools)

    @property
    def _shows_everything(self) -> bool:
        """Whether no policy hides a tool, and none is shown with the accounts that its caller may use."""
        return self.settings.policy is None and not any(server.group for server in self.settings.servers)


class CachedView:
    """The tools that the servers listed last; what the state file does not say is asked from them (a `ToolView`)."""

    def __init__(self, settings: Settings) -> None:
        """The settings name the servers and the state file."""
        self._settings = settings

    def servers(self, show: Callable[[Sequence[ServerStatus]], None]) -> None:
        """Find the state of each server."""
        cached = read_cached(self._settings)
        if cached is None:
            self._start().servers(show)
        else:
            show(cached.statuses)

    def tools(self, namespace: str | None, show: Callable[[Sequence[Tool], Sequence[ServerStatus]], None]) -> None:
        """Find every tool, or those of one namespace."""
        from toolcrib.cli.cached_search import find_tools

        cached = read_cached(self._settings)
        if cached is None:
            self._start().tools(namespace, show)
        else:
            show(*find_tools(self._settings, cached.offers, cached.statuses, namespace))

    def search(self, request: SearchRequest, scorer: Scorer | None, show: Callable[[SearchFindings], None]) -> None:
        """Search what the servers listed last."""
        from toolcrib.cli.cached_search import CachedSearch

        found = CachedSearch(self._settings, request, scorer)
        cached = read_cached(self._settings, found.read_past) if found.is_possible else None
        if cached is None:
            self._start().search(request, scorer, show)
        else:
            show(found.run(cached.offers, cached.statuses))

    def describe(self, name: str, show: Callable[[Tool, Object], None]) -> None:
        """Find a tool, and an example of its arguments. If no server listed it, they are asked."""
        cached = read_cached(self._settings)
        try:
            tool = cached.find(name) if cached is not None else None
        except ToolNotFound:
            tool = None
        if tool is None:
            self._start().describe(name, show)
        else:
            show(tool, example(tool))

    def call(self, name: str, arguments: CallArguments, show: Callable[[ToolResult], bool], *, approved: bool) -> bool:
        """Call a tool, which starts its server."""
        return self._start().call(name, arguments, show, approved=approved)

    def _start(self) -> ToolView:
        from toolcrib.cli.session import StartedView

        return StartedView(self._settings)


# -- the state file ----------------------------------------------------------------------------------------------------


async def _nothing_more(_: StateStore) -> None:
    """Read nothing else."""


def read_cached(
    settings: Settings, more: Callable[[StateStore], Awaitable[None]] = _nothing_more
) -> CachedServers | None:
    """Read what the servers listed last; None if the servers must be asked. `more` reads more of the state."""
    if not _may_be_cached(settings):
        return None
    try:
        return anyio.run(_read_state, settings, more)
    except _Unknown:
        return None


async def read_tools(settings: Settings) -> tuple[Tool, ...] | None:
    """Read the tools that the servers listed last, of all callers; None if they are not known."""
    if not _may_be_cached(settings):
        return None
    try:
        return MergedTools.merge((await _read_state(settings, _nothing_more)).offers).tools
    except _Unknown:
        return None


def _may_be_cached(settings: Settings) -> bool:
    by_itself = any(server.delegate_search or server.target for server in settings.servers)
    broken = any(server.required and server.problem for server in settings.servers)
    return not by_itself and not broken and settings.script_folder is None and has_store(settings.state)


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a server, or a group of accounts, offers."""

    name: str
    status: ServerStatus
    tools: tuple[Tool, ...]


async def _read_state(settings: Settings, more: Callable[[StateStore], Awaitable[None]]) -> CachedServers:
    """Read the catalog of each server, with the keywords from outside."""
    options, now = settings.gateway, time.time()
    async with make_store(settings.state) as store:
        cache = CatalogCache(store)
        listed = []
        for server in settings.servers:
            catalog = await _read_catalog(cache, server)
            tools = _tools(server, catalog)
            listed.append((server, _Offer(server.name, _status(server, catalog, len(tools), now), tools)))
        offers = []
        for one in (*(offer for _, offer in listed), *[group async for group in _groups(listed)]):
            described = await read_descriptions(options.describe, one.tools, store) if options.describe else {}
            tools = add_keywords(one.tools, options.keywords, described)
            backend = Backend(kind=BackendKind.MCP, name=one.name, provider=_NotStarted(tools))
            offers.append((one.status, ProviderTools(backend, tools)))
        await more(store)
    statuses = sorted((status for status, _ in offers), key=lambda status: status.name)
    return CachedServers(settings, tuple(offer for _, offer in offers), tuple(statuses))


async def _groups(listed: Sequence[tuple[ServerOptions, _Offer]]) -> AsyncIterator[_Offer]:
    """The groups of accounts, with their tools as a running gateway has them."""
    for name in sorted({server.group for server, _ in listed if server.group}):
        accounts = [
            (server.account_name, offer.tools, offer.status) for server, offer in listed if server.group == name
        ]
        group = AccountGroup(name, accounts.__iter__, lambda _: lambda: None)
        tools = tuple(await group.list_tools(Context(caller=LOCAL)))
        for status in group.statuses():
            yield _Offer(name, status, tools)


async def _read_catalog(cache: CatalogCache, server: ServerOptions) -> StoredCatalog | None:
    if server.problem:
        return None
    catalog = await cache.load(await cache.key(server, ""), server)
    if catalog is None or (catalog.tools is None and not catalog.hung):
        raise _Unknown
    return catalog


def _status(server: ServerOptions, catalog: StoredCatalog | None, tools: int, now: float) -> ServerStatus:
    known = ServerStatus(
        name=server.name,
        state=ServerState.FAILED,
        since=now,
        reason=server.problem or _HUNG,
        transport=server.transport,
        namespace=server.namespace or "",
    )
    if catalog is None or catalog.tools is None:
        return known
    remarks = [one for one in catalog.rejected if one.held or server.offers(one.tool)]
    return replace(
        known,
        state=ServerState.IDLE,
        reason="",
        tools=tools,
        rejected=tuple(one for one in remarks if one.state in _NOT_USED),
        marked=tuple(one for one in remarks if one.state not in _NOT_USED),
        cached=True,
        as_of=catalog.read_at,
        hung=catalog.hung,
        protocol=catalog.protocol,
        info=catalog.info,
    )


def _tools(server: ServerOptions, catalog: StoredCatalog | None) -> tuple[Tool, ...]:
    """The tools of a catalog that the server's options let it offer. Raises `_Unknown` for one never checked."""
    if catalog is None:
        return ()
    accepted, rejected = set(catalog.accepted), {one.tool for one in catalog.rejected if one.state == "rejected"}
    tools = []
    for raw in catalog.tools or ():
        name = raw.get("name") if isinstance(raw, dict) else None
        if not isinstance(name, str) or not server.offers(name) or (name in rejected and name not in accepted):
            continue
        if name not in accepted or name in rejected:
            raise _Unknown
        try:
            visible = raw if is_plain(json.dumps(raw).encode()) else with_visible_texts(raw)
            own = without_group(read_entry(visible, server.namespace or server.name))
        except (KeyError, TypeError, ValueError, InvalidTool) as error:
            raise _Unknown from error
        tool = server.overrides[name].apply(own) if name in server.overrides else own
        if isinstance(tool, Tool):
            tools.append(account_tool(tool, server.group, server.account_name) if server.group else tool)
    return tuple(tools)


# -- names for completion ----------------------------------------------------------------------------------------------


def server_names(config: Path | None) -> Iterator[tuple[str, str]]:
    """The namespaces of the configured servers, each with how it is reached."""
    for server in load_settings(config).servers:
        yield server.namespace or server.name, server.transport


def tool_names(config: Path | None) -> Iterator[tuple[str, str]]:
    """The ids of the tools that are known without starting a server, each with what it does."""
    cached = read_cached(load_settings(config))
    for tool in cached.tools() if cached is not None else ():
        yield tool.id, first_line(tool.description)


def parameter_words(config: Path | None, name: str, begun: str) -> Iterator[tuple[str, str]]:
    """`key=` for each parameter of a tool; once a key is written, `key=value` for each of its options."""
    cached = read_cached(load_settings(config))
    if cached is None:
        return
    try:
        schema = cached.find(name).input_schema
    except (ToolNotFound, AmbiguousName):
        return
    key, equals, _ = begun.partition("=")
    if equals:
        yield from ((f"{key}={option}", "") for option in options_of(key, schema))
    else:
        yield from ((f"{one.name}=", one.description) for one in parameters(schema))
