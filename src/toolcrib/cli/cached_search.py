"""The verbs that search or list the tools that the servers listed last."""

from dataclasses import replace
from importlib import import_module
from types import ModuleType

from toolcrib.catalog import Catalog
from toolcrib.cli.cached import CachedServers, read_cached
from toolcrib.cli.render import check_server, print_failing, print_search, print_tools
from toolcrib.gateway.offers import MergedTools
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.past import PastRecorder
from toolcrib.gateway.policy import AllowAll
from toolcrib.gateway.server_states import unavailable_servers
from toolcrib.gateway.snapshot import Snapshot
from toolcrib.gateway.view import View, ViewCache
from toolcrib.gateway.visibility import visible_servers
from toolcrib.search.index import Index
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import Scorer
from toolcrib.search.past import PastRequests
from toolcrib.search.text import parse_query
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.state.saved_index import SavedIndex
from toolcrib.types import LOCAL, Context, SearchRequest, ServerStatus, Visibility


def list_tools(settings: Settings, namespace: str | None, *, as_json: bool) -> None:
    """Print every tool, or those of one namespace."""
    cached = read_cached(settings)
    if cached is None:
        _session().list_tools(settings, namespace, as_json=as_json)
        return
    view = view_of(cached)
    statuses = _seen_from(view, cached)
    print_failing(statuses)
    if namespace is not None:
        check_server(namespace, statuses)
    shown = (tool for tool in view.tools() if tool.visibility is not Visibility.HIDDEN)
    tools = [tool for tool in shown if namespace in (None, tool.namespace)]
    print_tools(tools, statuses, as_json=as_json)


def search(settings: Settings, request: SearchRequest, scorer: Scorer | None, *, as_json: bool) -> None:
    """Search, and print the hits. Raises `BackendNotFound` for a namespace that no server has."""
    plain = settings.gateway.embedder == GatewayOptions().embedder and parse_query(request.queries[0]).words
    past: list[PastRequests | None] = []

    async def read_past(store: StateStore) -> None:
        recorder = PastRecorder(settings.gateway.past_requests, store, sessions=1)
        past.append(await recorder.of(Context(caller=LOCAL)))

    cached = read_cached(settings, read_past) if plain else None
    if cached is None:
        _session().search(settings, request, scorer, as_json=as_json)
        return
    options = settings.gateway.search if scorer is None else replace(settings.gateway.search, scorer=scorer)
    view = view_of(cached, to_search=True)
    statuses = _seen_from(view, cached)
    print_failing(statuses)
    for namespace in request.filters.namespaces:
        check_server(namespace, statuses)
    synonyms = settings.gateway.synonyms
    reply = view.search(
        replace(request, group=request.group or settings.gateway.group),
        options,
        lexicon=Lexicon.default().with_pairs(synonyms) if synonyms else None,
        past=past[0],
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


def view_of(cached: CachedServers, *, to_search: bool = False) -> View:
    """What a local caller sees. Only a view that is made to be searched has an index."""
    merged = MergedTools.merge(cached.offers)
    catalog = Catalog.build(merged.tools)
    state, gateway = cached.settings.state, cached.settings.gateway
    saved = SavedIndex.of(state.path, cached.settings.origin, cache=to_search and gateway.index_cache)
    build = Index.build if saved is None else saved.build
    index = build(catalog.tools if to_search else (), options=gateway.search)
    snapshot = Snapshot.from_parts(merged, catalog, index)
    return ViewCache(snapshot, cached.settings.policy or AllowAll()).for_caller(LOCAL)


def _seen_from(view: View, cached: CachedServers) -> tuple[ServerStatus, ...]:
    """The servers that the caller of the view may know of."""
    return visible_servers(view, cached.statuses, cached.settings.policy or AllowAll(), LOCAL)


def _session() -> ModuleType:
    return import_module("toolcrib.cli.session")
