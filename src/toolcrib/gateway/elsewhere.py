"""Tools that are in no snapshot: those of providers that search by themselves, or are too large to list."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from toolcrib.catalog.catalog import Catalog
from toolcrib.errors import ServerUnavailable, ToolcribError
from toolcrib.gateway.snapshot import EMPTY, Gathered, Offer, Snapshot, unsound_field
from toolcrib.gateway.view import Found, found_at
from toolcrib.model import Filters, Hit, SearchReply, SearchRequest, ServerState, ServerStatus, Tool
from toolcrib.protocols import Backend, Context, ToolFinder, ToolLookup
from toolcrib.schema import signature

logger = logging.getLogger(__name__)

_SHOWN: Final = 100
"""Characters of an error's message that a status repeats."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the providers that search by themselves found, and those that could not be asked."""

    hits: tuple[Hit, ...]
    troubled: tuple[ServerStatus, ...] = ()


async def find_all(
    ctx: Context,
    request: SearchRequest,
    backends: Sequence[Backend],
    *,
    timeout_s: float,
    sees: Callable[[Tool], bool],
) -> Asked:
    """Ask each of them at once; who fails or hangs is named, and costs the others nothing."""
    found: list[Sequence[Hit]] = [()] * len(backends)
    problems: dict[int, str] = {}

    async def ask(place: int) -> None:
        provider = backends[place].provider
        try:
            with anyio.fail_after(timeout_s):
                if isinstance(provider, ToolFinder):
                    found[place] = _sound_hits(await provider.find_tools(ctx, request))
        except Exception as error:
            problems[place] = _why(error, timeout_s)
            logger.warning("%s could not be searched", backends[place].name, exc_info=True)

    async with anyio.create_task_group() as group:
        for place in range(len(backends)):
            group.start_soon(ask, place)
    troubled = tuple(
        ServerStatus(
            name=backends[place].name,
            state=ServerState.DEGRADED,
            since=time.time(),
            reason=why,
            transport="local",
            namespace=str(getattr(backends[place].provider, "namespace", None) or ""),
        )
        for place, why in sorted(problems.items())
    )
    hits = tuple(hit for some in found for hit in some if sees(hit.tool))
    return Asked(hits, troubled)


def merged(reply: SearchReply, more: Sequence[Hit], request: SearchRequest, limit: int) -> SearchReply:
    """A reply with hits from elsewhere among its own: by query, then by score, then by id.

    A tool of the caller's own view stands before one of the same key from elsewhere. What comes from elsewhere makes
    the doubts of this reply less, and never more.
    """
    own = {(hit.query, hit.tool.key) for hit in reply.hits}
    fresh: dict[tuple[int, object], Hit] = {}
    for hit in more:
        passes = _passes(hit.tool, request.filters) and 0 <= hit.query < max(1, len(request.queries))
        if passes and hit.score > 0 and (hit.query, hit.tool.key) not in own:
            score = min(1.0, hit.score)
            line = hit.signature or signature(hit.tool)
            fresh.setdefault(
                (hit.query, hit.tool.key), replace(hit, score=score, signature=line, detail=request.detail)
            )
    if not fresh:
        return reply
    answered = {hit.query for hit in fresh.values()}
    # Fillers stand only where nothing fits.
    kept = [hit for hit in reply.hits if not (hit.fallback and hit.query in answered)]
    ordered = sorted((*kept, *fresh.values()), key=lambda hit: (hit.query, -hit.score, hit.tool.id))
    shown: list[Hit] = []
    counts: dict[int, int] = {}
    for hit in ordered:
        counts[hit.query] = counts.get(hit.query, 0) + 1
        if counts[hit.query] <= limit:
            shown.append(hit)
    note = reply.note if not reply.note.startswith("Nothing fits") else ""
    return replace(reply, hits=tuple(shown), total=reply.total + len(fresh), note=note)


def _passes(tool: Tool, filters: Filters) -> bool:
    if filters.namespaces and tool.namespace not in filters.namespaces:
        return False
    if not filters.tags <= frozenset(tool.tags):
        return False
    if filters.read_only is not None and (tool.annotations.get("readOnlyHint") is True) != filters.read_only:
        return False
    return not filters.visibility or tool.visibility in filters.visibility


async def look_up(
    ctx: Context, name: str, backends: Sequence[Backend], *, timeout_s: float, sees: Callable[[Tool], bool]
) -> Found | None:
    """The tool of that name at the first provider that has it.

    Raises `ServerUnavailable` where none has it, and one could not say.
    """
    failed: ServerUnavailable | None = None
    for backend in backends:
        provider = backend.provider
        if not isinstance(provider, ToolLookup):
            continue
        try:
            with anyio.fail_after(timeout_s):
                tool = await provider.get_tool(ctx, name)
        except Exception as error:  # noqa: BLE001 - of another's code; told below, where nobody else has the tool
            failed = failed or _unanswered(name, backend, error)
            continue
        if isinstance(tool, Tool) and not unsound_field(tool) and sees(tool):
            return _found(tool, backend)
    if failed is not None:
        raise failed
    return None


def _unanswered(name: str, backend: Backend, error: Exception) -> ServerUnavailable:
    """Why a provider could not say whether it has a tool; without its inside, where it is no error of ours."""
    if isinstance(error, ServerUnavailable):
        return error
    logger.warning("%s could not be asked for a tool", backend.name, exc_info=error)
    return ServerUnavailable(
        f"{name} cannot be looked up: {backend.name} failed ({type(error).__name__}).",
        hint="Try again later, or search for another tool.",
    )


def _sound_hits(found: Any) -> tuple[Hit, ...]:
    """The hits of an answer; what is none is left out."""
    if not isinstance(found, (list, tuple)):
        raise TypeError("an answer that is no list of hits")
    return tuple(hit for hit in found if isinstance(hit, Hit) and _is_sound(hit))


def _is_sound(hit: Any) -> bool:
    figures = isinstance(hit.score, (int, float)) and math.isfinite(hit.score) and isinstance(hit.query, int)
    return figures and isinstance(hit.tool, Tool) and not unsound_field(hit.tool)


def _found(tool: Tool, backend: Backend) -> Found | None:
    gathered = Gathered.of([Offer(backend, [tool])])
    catalog = Catalog.build(gathered.tools)
    return found_at(Snapshot.joined(gathered, catalog, EMPTY.index), 0) if len(catalog) else None


def _why(error: Exception, timeout_s: float) -> str:
    if isinstance(error, ToolcribError):
        return error.message[:_SHOWN]
    if isinstance(error, TimeoutError):
        return f"it did not answer within {timeout_s:g} s"
    return f"its search failed ({type(error).__name__})"
