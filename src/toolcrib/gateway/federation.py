"""Tools outside the snapshot: of request-scoped providers, and of providers that search or look up tools themselves.

Providers are asked concurrently. One that fails or hangs is named in the reply and costs the others nothing.
"""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from toolcrib import search
from toolcrib.catalog import Catalog, build_entry
from toolcrib.containment import contained
from toolcrib.errors import InvalidName, InvalidTool, ServerUnavailable, ToolcribError
from toolcrib.gateway.disk_catalog import DiskCatalog, searches_on_disk
from toolcrib.gateway.policy import allows_everything, may_see_some
from toolcrib.gateway.provider_state import declared_cache_s, failure_reason, read_tools
from toolcrib.gateway.server_states import namespace_of
from toolcrib.gateway.snapshot import MergedTools, ProviderTools, Snapshot, invalid_field, reject_invalid
from toolcrib.gateway.view import ResolvedTool, View, may_see, resolve_at
from toolcrib.gateway.visibility import namespace_counts
from toolcrib.providers.adapters import adapt
from toolcrib.providers.base import Backend, Provider, ProviderFeature, display_name
from toolcrib.schema import signature
from toolcrib.types import (
    BackendKind,
    Context,
    Filters,
    Hit,
    Policy,
    SearchReply,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    Visibility,
)

logger = logging.getLogger(__name__)

_MAX_MESSAGE_CHARS: Final = 100
"""Characters of an error's message that a status repeats."""


@dataclass(frozen=True, slots=True)
class FederatedHits:
    """What searching providers found, and the statuses of those that failed."""

    hits: tuple[Hit, ...]
    failed: tuple[ServerStatus, ...] = ()


class FederatedSearch:
    """Asks providers that search or look up tools themselves."""

    def __init__(self, backends: Callable[[], Sequence[Backend]], policy: Policy, timeout_s: float) -> None:
        """`backends` returns the current shared providers; each has `timeout_s` seconds to answer."""
        self._backends = backends
        self._policy = policy
        self._timeout_s = timeout_s

    async def search(self, ctx: Context, view: View, request: SearchRequest) -> FederatedHits | None:
        """Return what searching providers found; None if there are no such providers."""
        backends = self._providers_with(ctx, view, ProviderFeature.SEARCH)
        if backends and not allows_everything(self._policy):
            backends = [backend for backend in backends if not searches_on_disk(backend.provider)]
        if not backends:
            return None

        def is_new(tool: Tool) -> bool:
            # If a tool in view has the same key, a call would run that one.
            shown = tool.visibility is not Visibility.HIDDEN and may_see(self._policy, ctx.caller, tool)
            return shown and view.get(tool.key) is None

        asked = await search_providers(ctx, request, backends, timeout_s=self._timeout_s, sees=is_new)
        if allows_everything(self._policy):
            return asked
        known = namespace_counts(view)
        return replace(asked, failed=tuple(status for status in asked.failed if namespace_of(status) in known))

    async def look_up(self, ctx: Context, view: View, name: str) -> ResolvedTool | None:
        """Look up a tool at providers with too many tools to list. Raises `ServerUnavailable`."""
        backends = self._providers_with(ctx, view, ProviderFeature.LOOKUP)
        if not backends:
            return None
        return await look_up_tool(
            ctx, name, backends, timeout_s=self._timeout_s, sees=lambda tool: may_see(self._policy, ctx.caller, tool)
        )

    def lookup_namespaces(self, ctx: Context, view: View) -> frozenset[str]:
        """Return the namespaces of the providers that look up tools; an empty one if a provider does not say."""
        return frozenset(
            _provider_namespace(backend) for backend in self._providers_with(ctx, view, ProviderFeature.LOOKUP)
        )

    def has_searching_provider(self, ctx: Context, view: View) -> bool:
        """Whether there is a searching provider of which the caller may see something.

        What a shared provider without a namespace finds is not known before the search: it counts if the caller may see
        a tool without a namespace, or sees one that it lists.
        """
        own = (*ctx.overriding, *ctx.providers)
        if any(ProviderFeature.SEARCH in adapt(provider).features for provider in own):
            return True
        finders = [backend for backend in self._backends() if ProviderFeature.SEARCH in backend.provider.features]
        return any(self._may_see_any(ctx, view, backend) for backend in finders)

    def _may_see_any(self, ctx: Context, view: View, backend: Backend) -> bool:
        space = _provider_namespace(backend)
        if space in namespace_counts(view) if space else _lists_visible_tool(view.base or view, backend):
            return True
        return may_see_some(self._policy, ctx.caller, space)

    def _providers_with(self, ctx: Context, view: View, feature: ProviderFeature) -> list[Backend]:
        """Return the providers with the feature that may be asked for this caller, overriding ones first.

        One without a known namespace is always asked, because its answers are filtered.
        """
        shared = [backend for backend in self._backends() if feature in backend.provider.features]
        if shared:
            shared = [backend for backend in shared if self._may_ask(ctx, view, _provider_namespace(backend))]
        first, last = (
            [as_backend(adapted) for provider in own if feature in (adapted := adapt(provider)).features]
            for own in (ctx.overriding, ctx.providers)
        )
        return [*first, *shared, *last]

    def _may_ask(self, ctx: Context, view: View, space: str) -> bool:
        return not space or space in namespace_counts(view) or may_see_some(self._policy, ctx.caller, space)


def _lists_visible_tool(view: View, backend: Backend) -> bool:
    """Whether this provider lists a tool in view."""

    def found(one: View) -> bool:
        seen = one.mask or bytes(len(one.snapshot.backends)).replace(b"\0", b"\1")
        pairs = zip(one.snapshot.backends, seen, strict=True)
        return any(shown and any(each is backend for each in held) for held, shown in pairs)

    return view.memoized(("lists", id(backend)), found)


def _provider_namespace(backend: Backend) -> str:
    """The namespace of a provider's tools; empty where it has none, or several."""
    space = getattr(backend.provider, "namespace", None)
    return space if isinstance(space, str) else ""


async def search_providers(
    ctx: Context,
    request: SearchRequest,
    backends: Sequence[Backend],
    *,
    timeout_s: float,
    sees: Callable[[Tool], bool],
) -> FederatedHits:
    """Ask each of them at once; who fails or hangs is named, and costs the others nothing."""
    found: list[Sequence[Hit]] = [()] * len(backends)
    problems: dict[int, str] = {}

    async def ask(place: int) -> None:
        provider = backends[place].provider
        try:
            with anyio.fail_after(timeout_s):
                found[place] = _valid_hits(await contained(provider.find_tools(ctx, request)))
        except Exception as error:
            problems[place] = _search_failure(error, timeout_s)
            logger.warning("%s could not be searched", backends[place].name, exc_info=True)

    async with anyio.create_task_group() as group:
        for place in range(len(backends)):
            group.start_soon(ask, place)
    failed = tuple(
        ServerStatus(
            name=backends[place].name,
            state=ServerState.DEGRADED,
            since=time.time(),
            reason=why,
            transport="local",
            namespace=_provider_namespace(backends[place]),
        )
        for place, why in sorted(problems.items())
    )
    hits = tuple(hit for some in found for hit in some if sees(hit.tool))
    return FederatedHits(hits, failed)


def merge_hits(reply: SearchReply, more: Sequence[Hit], request: SearchRequest, limit: int) -> SearchReply:
    """Merge other hits into a reply: by query, then by score, then by id.

    A tool in the caller's view takes precedence over another one of the same key. More hits can remove the note that
    nothing matches, but never add it.
    """
    if request.phrasings:
        more = [replace(hit, query=0) for hit in sorted(more, key=lambda hit: -hit.score)]
    own = {(hit.query, hit.tool.key) for hit in reply.hits}
    fresh: dict[tuple[int, object], Hit] = {}
    for hit in more:
        passes = _passes_filters(hit.tool, request.filters) and 0 <= hit.query < max(1, len(request.queries))
        if passes and hit.score > 0 and (hit.query, hit.tool.key) not in own:
            score = min(1.0, hit.score)
            line = hit.signature or signature(hit.tool)
            fresh.setdefault(
                (hit.query, hit.tool.key), replace(hit, score=score, signature=line, detail=request.detail)
            )
    if not fresh:
        return reply
    answered = {hit.query for hit in fresh.values()}
    # Fallback hits only fill the answer to a query without any other hit.
    kept = [hit for hit in reply.hits if not (hit.fallback and hit.query in answered)]
    named = [hit for hit in kept if hit.named]
    others = [hit for hit in (*kept, *fresh.values()) if not hit.named]
    ordered = [*named, *sorted(others, key=lambda hit: (-hit.score, hit.tool.id))]
    ordered.sort(key=lambda hit: hit.query)
    if request.group_same:
        ordered = search.group_same_tools(ordered)
    shown: list[Hit] = []
    counts: dict[int, int] = {}
    for hit in ordered:
        counts[hit.query] = counts.get(hit.query, 0) + 1
        if counts[hit.query] <= limit or hit.named:
            shown.append(hit)
    note = reply.note if not reply.note.startswith("Nothing fits") else ""
    reply = replace(reply, hits=tuple(shown), total=reply.total + len(fresh), note=note)
    if any(not (hit.weak or hit.fallback) for hit in fresh.values()):
        # Another search does not say which words it matched, and a tool that fits needs no other names.
        return replace(reply, unmatched=(), nearest=())
    matched = {word for hit in fresh.values() for word in hit.matched}
    return replace(reply, unmatched=tuple(word for word in reply.unmatched if word not in matched))


def _passes_filters(tool: Tool, filters: Filters) -> bool:
    if filters.namespaces and tool.namespace not in filters.namespaces:
        return False
    if not filters.tags <= frozenset(tool.tags):
        return False
    if filters.read_only is not None and (tool.annotations.get("readOnlyHint") is True) != filters.read_only:
        return False
    return not filters.visibility or tool.visibility in filters.visibility


async def look_up_tool(
    ctx: Context, name: str, backends: Sequence[Backend], *, timeout_s: float, sees: Callable[[Tool], bool]
) -> ResolvedTool | None:
    """Return the tool of the first provider that has it.

    Raises `ServerUnavailable` if no provider has it, and one failed.
    """
    failed: ServerUnavailable | None = None
    for backend in backends:
        provider = backend.provider
        try:
            with anyio.fail_after(timeout_s):
                tool = await contained(provider.get_tool(ctx, name))
        except Exception as error:  # noqa: BLE001 - third-party code; raised below if no other provider has the tool
            failed = failed or _lookup_failure(name, backend, error)
            continue
        if isinstance(tool, Tool) and not invalid_field(tool) and sees(tool):
            owners = provider.backends_of(tool.key) if isinstance(provider, DiskCatalog) else (backend,)
            return _resolve(tool, owners[0]) if owners else None
    if failed is not None:
        raise failed
    return None


def _lookup_failure(name: str, backend: Backend, error: Exception) -> ServerUnavailable:
    """Say why a provider could not look up a tool, without leaking its exception's message."""
    if isinstance(error, ServerUnavailable):
        return error
    logger.warning("%s could not be asked for a tool", backend.name, exc_info=error)
    return ServerUnavailable(
        f"{name} cannot be looked up: {backend.name} failed ({type(error).__name__}).",
        hint="Try again later, or search for another tool.",
    )


def _valid_hits(found: Any) -> tuple[Hit, ...]:
    """Return the valid hits of an answer."""
    if not isinstance(found, (list, tuple)):
        raise TypeError("an answer that is not a list of hits")
    valid = (_as_used(hit) for hit in found if isinstance(hit, Hit) and _is_valid_hit(hit))
    return tuple(hit for hit in valid if hit is not None)


def _as_used(hit: Hit) -> Hit | None:
    """The hit with its tool as a catalog would use it; None for one that no catalog takes.

    What a provider finds may be from a file or from another gateway, and has passed no catalog.
    """
    try:
        tool = build_entry(hit.tool).tool
    except (InvalidName, InvalidTool) as error:
        logger.warning("a tool that was found is left out: %s", error)
        return None
    return hit if tool is hit.tool else replace(hit, tool=tool, signature=signature(tool))


def _is_valid_hit(hit: Any) -> bool:
    figures = isinstance(hit.score, (int, float)) and math.isfinite(hit.score) and isinstance(hit.query, int)
    return figures and isinstance(hit.tool, Tool) and not invalid_field(hit.tool)


def _resolve(tool: Tool, backend: Backend) -> ResolvedTool | None:
    gathered = MergedTools.merge([ProviderTools(backend, [tool])])
    catalog = Catalog.build(gathered.tools)
    return resolve_at(Snapshot.from_parts(gathered, catalog, None), 0) if len(catalog) else None


def _search_failure(error: Exception, timeout_s: float) -> str:
    if isinstance(error, ToolcribError):
        return error.message[:_MAX_MESSAGE_CHARS]
    if isinstance(error, TimeoutError):
        return f"it did not answer within {timeout_s:g} s"
    return f"its search failed ({type(error).__name__})"


_NO_CACHE_KEY: Final = object()

_MAX_CACHED_LISTS: Final = 1024
"""Lists of request providers that are cached at the same time."""


@dataclass(frozen=True, slots=True)
class RequestTools:
    """What the providers of a request list, and the statuses of those that failed."""

    plain: tuple[ProviderTools, ...]
    overriding: tuple[ProviderTools, ...]
    failed: tuple[ServerStatus, ...]


class RequestToolLister:
    """Lists the tools of a request's providers."""

    def __init__(self, policy: Policy, timeout_s: float, known: Callable[[tuple[Tool, ...]], bool]) -> None:
        """Providers are asked concurrently, with `timeout_s` seconds each; `known` tools are not checked again."""
        self._is_known = known
        self._policy = policy
        self._timeout_s = timeout_s
        self._lists: OrderedDict[Hashable, tuple[float, tuple[Tool, ...]]] = OrderedDict()

    async def list_all(self, ctx: Context) -> RequestTools:
        """List the tools that the policy shows. Raises `InvalidRequest` if something is not a provider."""
        everybody = tuple(map(adapt, (*ctx.overriding, *ctx.providers)))
        answers: list[tuple[Tool, ...]] = [()] * len(everybody)
        problems: dict[int, str] = {}

        async def ask(place: int) -> None:
            provider = everybody[place]
            try:
                answers[place] = await self._list(ctx, provider)
            except Exception as error:
                logger.warning("%s could not list its tools for a request", display_name(provider), exc_info=True)
                problems[place] = failure_reason(error, self._timeout_s)

        if len(everybody) == 1:
            await ask(0)
        else:
            async with anyio.create_task_group() as group:
                for place in range(len(everybody)):
                    group.start_soon(ask, place)
        offers = [
            ProviderTools(as_backend(provider), [tool for tool in tools if may_see(self._policy, ctx.caller, tool)])
            for provider, tools in zip(everybody, answers, strict=True)
        ]
        first = len(ctx.overriding)
        failed = tuple(_failed_status(everybody[place], why) for place, why in sorted(problems.items()))
        return RequestTools(tuple(offers[first:]), tuple(offers[:first]), failed)

    async def _list(self, ctx: Context, provider: Provider) -> tuple[Tool, ...]:
        kept_s = declared_cache_s(provider)
        mark = _cache_key(provider) if kept_s is not None and kept_s > 0 else _NO_CACHE_KEY
        if kept_s is None or mark is _NO_CACHE_KEY:
            return await self._fetch(ctx, provider)
        # A cached list is only ever for one caller and one provider, whatever key the provider gives: where requests
        # are not authenticated, or share a credential, only the provider distinguishes their users.
        key = (ctx.caller, type(provider), provider.cache_owner, mark)
        until, tools = self._lists.get(key, (0.0, ()))
        if until <= time.monotonic():
            tools = await self._fetch(ctx, provider)
            now = time.monotonic()
            self._lists[key] = (now + kept_s, tools)
            self._lists.move_to_end(key)
            # The keys hold providers of requests that are over.
            while len(self._lists) > _MAX_CACHED_LISTS or next(iter(self._lists.values()), (math.inf,))[0] <= now:
                self._lists.popitem(last=False)
        return tools

    async def _fetch(self, ctx: Context, provider: Provider) -> tuple[Tool, ...]:
        with anyio.fail_after(self._timeout_s):
            tools, rejected = read_tools(await contained(provider.list_tools(ctx)), who=display_name(provider))
        if not rejected and self._is_known(tools):
            return tools
        fields = [invalid_field(tool) for tool in tools]
        broken = [reject_invalid(tool, field) for tool, field in zip(tools, fields, strict=True) if field]
        for refused in (*rejected, *broken):
            logger.warning(
                "%s lists something that is not a tool: %s: %s", display_name(provider), refused.tool, refused.reason
            )
        if broken:
            tools = tuple(tool for tool, field in zip(tools, fields, strict=True) if not field)
        return tools


def _cache_key(provider: Provider) -> Hashable:
    """Return the provider's cache key, or `_NO_CACHE_KEY`."""
    try:
        key = provider.cache_key
        hash(key)
    except Exception:
        logger.warning(
            "%s has no cache_key that can be used; its list is not kept", display_name(provider), exc_info=True
        )
        return _NO_CACHE_KEY
    return _NO_CACHE_KEY if key is None else key


def as_backend(provider: Provider) -> Backend:
    """Return a request provider as a backend."""
    return Backend(kind=BackendKind.PROVIDER, name=display_name(provider), provider=provider)


def _failed_status(provider: Provider, why: str) -> ServerStatus:
    return ServerStatus(
        name=display_name(provider), state=ServerState.FAILED, since=time.time(), reason=why, transport="local"
    )
