"""The verbs that look at tools, from what the servers listed last: no server is started, and no MCP library loaded.

Whatever the state file cannot answer is left to `toolcrib.cli.session`, which asks the servers: a server that was never
listed, stored scripts, an embedder, and a search that a server runs itself. Names for completion come from here too.
"""

import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import anyio

from toolcrib.catalog import Catalog
from toolcrib.cli.arguments import options_of
from toolcrib.cli.output import first_line
from toolcrib.cli.render import check_server, print_description, print_failing, print_search, print_servers, print_tools
from toolcrib.errors import AmbiguousName, ToolNotFound
from toolcrib.formats.mcp import read_entry
from toolcrib.gateway.keywords import add_keywords, read_descriptions
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.past import PastRecorder
from toolcrib.gateway.policy import AllowAll
from toolcrib.gateway.snapshot import MergedTools, ProviderTools, Snapshot
from toolcrib.gateway.view import View, ViewCache
from toolcrib.gateway.visibility import unavailable_servers, visible_servers
from toolcrib.providers.accounts import AccountGroup, account_tool, without_group
from toolcrib.providers.base import Backend, Provider
from toolcrib.schema import example, parameters
from toolcrib.schema.invisible import is_plain, with_visible_texts
from toolcrib.search.index import Index
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import Scorer
from toolcrib.search.past import PastRequests
from toolcrib.search.text import parse_query
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.state.options import has_store, make_store
from toolcrib.state.saved_index import SavedIndex
from toolcrib.types import (
    LOCAL,
    BackendKind,
    Context,
    Object,
    Rejected,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    Visibility,
)
from toolcrib.upstream.catalog_cache import CatalogCache, StoredCatalog
from toolcrib.upstream.options import ServerOptions

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
    past: PastRequests | None = None
    """The past requests of local callers."""

    def view(self, *, to_search: bool) -> View:
        """What a local caller sees. Only a view that is made to be searched has an index."""
        merged = MergedTools.merge(self.offers)
        catalog = Catalog.build(merged.tools)
        state, gateway = self.settings.state, self.settings.gateway
        saved = SavedIndex.of(state.path, self.settings.origin, cache=to_search and gateway.index_cache)
        build = Index.build if saved is None else saved.build
        index = build(catalog.tools if to_search else (), options=gateway.search)
        snapshot = Snapshot.from_parts(merged, catalog, index)
        return ViewCache(snapshot, self.settings.policy or AllowAll()).for_caller(LOCAL)

    def seen_from(self, view: View) -> tuple[ServerStatus, ...]:
        """The servers that the caller of the view may know of."""
        return visible_servers(view, self.statuses, self.settings.policy or AllowAll(), LOCAL)


def list_servers(settings: Settings, *, as_json: bool) -> None:
    """Print the state of each server."""
    cached = read_cached(settings)
    if cached is None:
        _session().list_servers(settings, as_json=as_json)
        return
    print_servers(cached.statuses, as_json=as_json)


def list_tools(settings: Settings, namespace: str | None, *, as_json: bool) -> None:
    """Print every tool, or those of one namespace."""
    cached = read_cached(settings)
    if cached is None:
        _session().list_tools(settings, namespace, as_json=as_json)
        return
    view = cached.view(to_search=False)
    statuses = cached.seen_from(view)
    print_failing(statuses)
    if namespace is not None:
        check_server(namespace, statuses)
    shown = (tool for tool in view.tools() if tool.visibility is not Visibility.HIDDEN)
    tools = [tool for tool in shown if namespace in (None, tool.namespace)]
    print_tools(tools, statuses, as_json=as_json)


def search(settings: Settings, request: SearchRequest, scorer: Scorer | None, *, as_json: bool) -> None:
    """Search, and print the hits. Raises `BackendNotFound` for a namespace that no server has."""
    plain = settings.gateway.embedder == GatewayOptions().embedder and parse_query(request.queries[0]).words
    cached = read_cached(settings) if plain else None
    if cached is None:
        _session().search(settings, request, scorer, as_json=as_json)
        return
    options = settings.gateway.search if scorer is None else replace(settings.gateway.search, scorer=scorer)
    view = cached.view(to_search=True)
    statuses = cached.seen_from(view)
    print_failing(statuses)
    for namespace in request.filters.namespaces:
        check_server(namespace, statuses)
    synonyms = settings.gateway.synonyms
    reply = view.search(
        replace(request, group=request.group or settings.gateway.group),
        options,
        lexicon=Lexicon.default().with_pairs(synonyms) if synonyms else None,
        past=cached.past,
    )
    missing = unavailable_servers(statuses, request.filters)
    print_search(
        replace(reply, servers=missing),
        as_json=as_json,
        explain=request.explain,
        has_tools=bool(view.tools()),
        has_policy=settings.policy is not None,
        limited=request.limit is not None,
    )


def describe_tool(settings: Settings, name: str, *, as_json: bool) -> None:
    """Print how to call a tool. If no server listed it, they are asked."""
    cached = read_cached(settings)
    try:
        tool = cached.view(to_search=False).find(name).tool if cached is not None else None
    except ToolNotFound:
        tool = None
    if tool is None:
        _session().describe_tool(settings, name, as_json=as_json)
    else:
        print_description(tool, example(tool), as_json=as_json)


def call_tool(settings: Settings, *arguments: object, **options: object) -> bool:
    """Call a tool, which starts its server."""
    failed: bool = _session().call_tool(settings, *arguments, **options)
    return failed


def _session() -> ModuleType:
    return import_module("toolcrib.cli.session")


# -- the state file ----------------------------------------------------------------------------------------------------


def read_cached(settings: Settings) -> CachedServers | None:
    """Read what the servers listed last; None if the servers must be asked."""
    if not _may_be_cached(settings):
        return None
    try:
        return anyio.run(_read_state, settings)
    except _Unknown:
        return None


async def read_tools(settings: Settings) -> tuple[Tool, ...] | None:
    """Read the tools that the servers listed last, of all callers; None if they are not known."""
    if not _may_be_cached(settings):
        return None
    try:
        return MergedTools.merge((await _read_state(settings)).offers).tools
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


async def _read_state(settings: Settings) -> CachedServers:
    """Read the catalog of each server, with the keywords from outside, and the past of local callers."""
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
            more = await read_descriptions(options.describe, one.tools, store) if options.describe else {}
            tools = add_keywords(one.tools, options.keywords, more)
            backend = Backend(kind=BackendKind.MCP, name=one.name, provider=_NotStarted(tools))
            offers.append((one.status, ProviderTools(backend, tools)))
        past = await PastRecorder(options.past_requests, store, sessions=1).of(Context(caller=LOCAL))
    statuses = sorted((status for status, _ in offers), key=lambda status: status.name)
    return CachedServers(settings, tuple(offer for _, offer in offers), tuple(statuses), past)


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
    catalog = await cache.load(await cache.key(server, ""))
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
    return replace(
        known,
        state=ServerState.IDLE,
        reason="",
        tools=tools,
        rejected=_rejected(server, catalog),
        cached=True,
        as_of=catalog.read_at,
        hung=catalog.hung,
        protocol=catalog.protocol,
        info=catalog.info,
    )


def _rejected(server: ServerOptions, catalog: StoredCatalog) -> tuple[Rejected, ...]:
    return tuple(one for one in catalog.rejected if server.offers(one.tool))


def _tools(server: ServerOptions, catalog: StoredCatalog | None) -> tuple[Tool, ...]:
    """The tools of a catalog that the server's options let it offer. Raises `_Unknown` for one never checked."""
    if catalog is None:
        return ()
    accepted, rejected = set(catalog.accepted), {one.tool for one in catalog.rejected}
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
        except (KeyError, TypeError, ValueError) as error:
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
    for tool in cached.view(to_search=False).tools() if cached is not None else ():
        yield tool.id, first_line(tool.description)


def parameter_words(config: Path | None, name: str, begun: str) -> Iterator[tuple[str, str]]:
    """`key=` for each parameter of a tool; once a key is written, `key=value` for each of its options."""
    cached = read_cached(load_settings(config))
    if cached is None:
        return
    try:
        schema = cached.view(to_search=False).find(name).tool.input_schema
    except (ToolNotFound, AmbiguousName):
        return
    key, equals, _ = begun.partition("=")
    if equals:
        yield from ((f"{key}={option}", "") for option in options_of(key, schema))
    else:
        yield from ((f"{one.name}=", one.description) for one in parameters(schema))
