"""Searches and lists of the tools that the servers listed last."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from toolcrib import search
from toolcrib.catalog import Catalog
from toolcrib.cli.render import check_server, print_failing
from toolcrib.cli.source import SearchFindings
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.past import PastRecorder
from toolcrib.gateway.policy import ReplaceablePolicy
from toolcrib.gateway.server_states import unavailable_servers
from toolcrib.gateway.snapshot import MergedTools, ProviderTools, Snapshot
from toolcrib.gateway.view import View, ViewCache
from toolcrib.gateway.visibility import visible_servers
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import Scorer
from toolcrib.search.text import parse_query
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.state.saved_index import SavedIndex
from toolcrib.types import LOCAL, Context, SearchRequest, ServerStatus, Tool, Visibility


def find_tools(
    settings: Settings, offers: Sequence[ProviderTools], statuses: tuple[ServerStatus, ...], namespace: str | None
) -> tuple[Sequence[Tool], Sequence[ServerStatus]]:
    """Find every tool, or those of one namespace, and the servers that the caller may know of."""
    view = view_of(settings, offers)
    seen = _visible_servers(view, settings, statuses)
    print_failing(seen)
    if namespace is not None:
        check_server(namespace, seen)
    shown = (tool for tool in view.tools() if tool.visibility is not Visibility.HIDDEN)
    return [tool for tool in shown if namespace in (None, tool.namespace)], seen


class CachedSearch:
    """A search of what the servers listed last."""

    def __init__(self, settings: Settings, request: SearchRequest, scorer: Scorer | None) -> None:
        """Nothing is read yet."""
        self._settings = settings
        self._request = request
        self._options = settings.gateway.search if scorer is None else replace(settings.gateway.search, scorer=scorer)
        self._past: search.PastRequests | None = None

    @property
    def is_possible(self) -> bool:
        """Whether the search needs no embedder, and has words."""
        plain = self._settings.gateway.embedder == GatewayOptions().embedder
        return plain and bool(parse_query(self._request.queries[0]).words)

    async def read_past(self, store: StateStore) -> None:
        """Read what was asked before."""
        recorder = PastRecorder(self._settings.gateway.past_requests, store, sessions=1)
        self._past = await recorder.of(Context(caller=LOCAL))

    def run(self, offers: Sequence[ProviderTools], statuses: tuple[ServerStatus, ...]) -> SearchFindings:
        """Search. Raises `BackendNotFound` for a namespace that no server has."""
        # Threads of OpenBLAS wait for work by spinning, an eighth of the processor time of the whole command.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        settings, request = self._settings, self._request
        view = view_of(settings, offers, to_search=True)
        seen = _visible_servers(view, settings, statuses)
        print_failing(seen)
        for namespace in request.filters.namespaces:
            check_server(namespace, seen)
        synonyms = settings.gateway.synonyms
        reply = view.search(
            replace(request, group=request.group or settings.gateway.group),
            self._options,
            lexicon=Lexicon.default().with_pairs(synonyms) if synonyms else None,
            past=self._past,
        )
        return SearchFindings(
            reply=replace(reply, servers=unavailable_servers(seen, request.filters)),
            has_tools=bool(view.tools()),
            has_policy=settings.policy is not None,
        )


def view_of(settings: Settings, offers: Sequence[ProviderTools], *, to_search: bool = False) -> View:
    """What a local caller sees. Only a view that is made to be searched has an index."""
    merged = MergedTools.merge(offers)
    catalog = Catalog.build(merged.tools)
    index = None
    if to_search:
        saved = SavedIndex.of(settings.state.path, settings.origin, cache=settings.gateway.index_cache)
        build = search.Index.build if saved is None else saved.build
        index = build(catalog.tools, options=settings.gateway.search)
    snapshot = Snapshot.from_parts(merged, catalog, index)
    return ViewCache(snapshot, ReplaceablePolicy(settings.policy)).for_caller(LOCAL)


def _visible_servers(view: View, settings: Settings, statuses: tuple[ServerStatus, ...]) -> tuple[ServerStatus, ...]:
    return visible_servers(view, statuses, ReplaceablePolicy(settings.policy), LOCAL)
