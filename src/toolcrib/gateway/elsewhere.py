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
from toolcrib.gateway.known import namespaces, space_of
from toolcrib.gateway.offered import as_backend
from toolcrib.gateway.policy import AllowAll
from toolcrib.gateway.snapshot import EMPTY, Gathered, Offer, Snapshot, unsound_field
from toolcrib.gateway.view import Found, View, found_at, may_see
from toolcrib.model import Filters, Hit, SearchReply, SearchRequest, ServerState, ServerStatus, Tool, Visibility
from toolcrib.protocols import Backend, Context, Policy, ToolFinder, ToolLookup
from toolcrib.providers.foreign import uncancelled
from toolcrib.providers.keyed import offers
from toolcrib.schema import signature

logger = logging.getLogger(__name__)

_SHOWN: Final = 100
"""Characters of an error's message that a status repeats."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the providers that search by themselves found, and those that could not be asked."""

    hits: tuple[Hit, ...]
    troubled: tuple[ServerStatus, ...] = ()


class Elsewhere:
    """The providers of a gateway that can be asked beside its snapshot."""

    def __init__(self, backends: Callable[[], Sequence[Backend]], policy: Policy, timeout_s: float) -> None:
        """`backends` gives the shared providers of the moment; each has `timeout_s` seconds to answer."""
        self._backends = backends
        self._policy = policy
        self._timeout_s = timeout_s

    async def search(self, ctx: Context, view: View, request: SearchRequest) -> Asked | None:
        """What providers that search by themselves found; None where there are none."""
        backends = self._speakers(ctx, view, ToolFinder)
        if not backends:
            return None

        def is_new(tool: Tool) -> bool:
            # A tool in view of the same key is the one that would be called.
            shown = tool.visibility is not Visibility.HIDDEN and may_see(self._policy, ctx.caller, tool)
            return shown and view.holds(tool.key) is None

        asked = await find_all(ctx, request, backends, timeout_s=self._timeout_s, sees=is_new)
        if isinstance(self._policy, AllowAll):
            return asked
        known = namespaces(view)
        return replace(asked, troubled=tuple(status for status in asked.troubled if space_of(status) in known))

    async def look_up(self, ctx: Context, view: View, name: str) -> Found | None:
        """The tool of that name at a provider that is too large to list. Raises `ServerUnavailable`."""
        backends = self._speakers(ctx, view, ToolLookup)
        if not backends:
            return None
        return await look_up(
            ctx, name, backends, timeout_s=self._timeout_s, sees=lambda tool: may_see(self._policy, ctx.caller, tool)
        )

    def spaces(self, ctx: Context, view: View) -> frozenset[str]:
        """The namespaces of the providers that may be asked for a tool by its name; empty for one that does not say."""
        return frozenset(_space(backend) for backend in self._speakers(ctx, view, ToolLookup))

    def is_searched(self, ctx: Context, view: View) -> bool:
        """Whether some provider searches by itself of which the caller may see something, as far as that is known.

        What a shared one without a namespace would find, nobody knows before he asks: such a one counts for who may
        see a tool without a namespace, or sees one that it lists.
        """
        own = (*ctx.overriding, *ctx.providers)
        if any(offers(type(provider), ToolFinder) for provider in own):
            return True
        finders = [backend for backend in self._backends() if offers(type(backend.provider), ToolFinder)]
        return any(self._shows(ctx, view, backend) for backend in finders)

    def _shows(self, ctx: Context, view: View, backend: Backend) -> bool:
        space = _space(backend)
        if space in namespaces(view) if space else _lists(view.base or view, backend):
            return True
        return may_see(self._policy, ctx.caller, Tool(name="", namespace=space))

    def _speakers(self, ctx: Context, view: View, protocol: type) -> list[Backend]:
        """The providers which have the protocol, and may be asked for this caller, those that override first.

        One whose namespace is not known is asked in any case: what it answers is sifted.
        """
        shared = [backend for backend in self._backends() if offers(type(backend.provider), protocol)]
        if shared:
            shared = [backend for backend in shared if self._may_ask(ctx, view, _space(backend))]
        first, last = (
            [as_backend(provider) for provider in own if offers(type(provider), protocol)]
            for own in (ctx.overriding, ctx.providers)
        )
        return [*first, *shared, *last]

    def _may_ask(self, ctx: Context, view: View, space: str) -> bool:
        nameless = Tool(name="", namespace=space)
        return not space or space in namespaces(view) or may_see(self._policy, ctx.caller, nameless)


def _lists(view: View, backend: Backend) -> bool:
    """Whether a tool in view is one that this provider lists."""

    def found(one: View) -> bool:
        seen = one.mask or bytes(len(one.snapshot.backends)).replace(b"\0", b"\1")
        pairs = zip(one.snapshot.backends, seen, strict=True)
        return any(shown and any(each is backend for each in held) for held, shown in pairs)

    return view.remembered(("lists", id(backend)), found)


def _space(backend: Backend) -> str:
    """The namespace of a provider's tools; empty where it has none, or several."""
    space = getattr(backend.provider, "namespace", None)
    return space if isinstance(space, str) else ""


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
                    found[place] = _sound_hits(await uncancelled(provider.find_tools(ctx, request)))
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
            namespace=_space(backends[place]),
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
                tool = await uncancelled(provider.get_tool(ctx, name))
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
