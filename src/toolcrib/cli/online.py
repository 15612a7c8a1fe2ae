"""A search over the tools of the configured servers."""

from dataclasses import replace
from pathlib import Path

from toolcrib.app import App
from toolcrib.cli.session import run
from toolcrib.cli.shapes import check_server
from toolcrib.gateway.options import GatewayOptions
from toolcrib.model import SearchReply, SearchRequest
from toolcrib.search.options import Scorer
from toolcrib.settings.loader import load
from toolcrib.settings.options import Settings


def ask(config: Path | None, request: SearchRequest, scorer: Scorer | None = None) -> SearchReply:
    """The reply, once each server is ready or failed; raises `BackendNotFound` for a namespace that no server has.

    All is as the settings say, but for the scorer where one is given.
    """
    settings = load(config)
    if scorer is not None:
        settings = _ranked_by(settings, scorer)

    async def found(app: App) -> SearchReply:
        ctx = app.local_context()
        if settings.gateway.embedder != GatewayOptions().embedder:
            await app.gateway.live.idle()
        for namespace in request.filters.namespaces:
            check_server(namespace, await app.gateway.servers(ctx))
        return await app.gateway.search(ctx, replace(request, group=request.group or settings.gateway.group))

    return run(settings, found)


def _ranked_by(settings: Settings, scorer: Scorer) -> Settings:
    options = replace(settings.gateway.search, scorer=scorer)
    return replace(settings, gateway=replace(settings.gateway, search=options))
