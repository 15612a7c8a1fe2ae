"""Everything one client may list and call: the meta-tools of the surfaces in use, and tools listed by name.

Also assigns public names, and watches for collisions while servers connect.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import inf
from re import compile as pattern
from typing import Any, Final, NoReturn

import anyio

from toolcrib.catalog.catalog import SEARCH_HINT
from toolcrib.catalog.paging import Page, page
from toolcrib.errors import AmbiguousName, NameCollision, NotStarted, SettingsError, ToolcribError, ToolNotFound
from toolcrib.gateway.gateway import SEARCH_ELSEWHERE_HINT, Gateway
from toolcrib.gateway.refresh import CatalogRefresher
from toolcrib.gateway.view import ResolvedTool, View, merge_sorted
from toolcrib.gateway.visibility import CONNECTING_STATES, NAMESPACE_SEPARATORS, namespace_of
from toolcrib.scripting.runner import ScriptRunner
from toolcrib.surfaces.base import DirectSurface, Surface
from toolcrib.surfaces.dynamic import DynamicSurface
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.surfaces.progressive import ProgressiveSurface
from toolcrib.surfaces.reply import digest
from toolcrib.surfaces.search import SearchSurface
from toolcrib.types import (
    Backend,
    BackendKind,
    Context,
    Key,
    Object,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Visibility,
)

_INTRODUCTION: Final = (
    "This server stands in front of many tools that it does not list. Search for what you need, then call what you "
    "found."
)


_FACTORIES: Final[Mapping[str, Callable[[Gateway, SurfaceOptions, ScriptRunner | None], Surface]]] = {
    "search": lambda gateway, options, _: SearchSurface(gateway, options),
    "dynamic": lambda gateway, options, _: DynamicSurface(gateway, options.guards),
    "progressive": ProgressiveSurface,
    "direct": lambda *_: DirectSurface(),
}
"""How each of `SURFACES` is made."""


_OTHER_HINTS: Final[Mapping[str, str]] = {
    SEARCH_HINT: "List the tools to see which there are.",
    SEARCH_ELSEWHERE_HINT: "Try again once it is mended.",
}
"""What is said instead where there is no search."""


_KEYS_BYTES: Final = 100
"""What the keys of a list entry take, in bytes."""


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool under the name by which this client calls it."""

    name: str
    tool: Tool
    size: int
    """About how many bytes it takes in a list."""
    fingerprint: bytes
    """Stands for the entry: equal marks, equal entries."""


ServerOrder = Callable[[], Sequence[str]]
"""The names of the remote servers, in the order of the settings."""


@dataclass(frozen=True, slots=True)
class Collision:
    """Two listed tools, or a meta-tool and one, that want one name."""

    name: str
    first: str
    """The id of the tool that has the name."""
    tool: Tool
    """The other one."""

    def error(self) -> NameCollision:
        """A refusal that names both."""
        return NameCollision(f"{self.first} and {self.tool.id} both want the name {self.name}.", hint=REMEDY)

    def reason(self) -> str:
        """Why the other one is not listed."""
        return f"it is not listed: {self.first} has the name {self.name} already; {REMEDY[0].lower()}{REMEDY[1:]}"


@dataclass(frozen=True, slots=True)
class PublicNames:
    """What the listed tools of a view are called."""

    tools: Mapping[str, Tool]
    """By name."""
    collisions: tuple[Collision, ...] = ()

    def excluded(self) -> dict[Key, str]:
        """Why each tool is not listed that has no name."""
        return {one.tool.key: one.reason() for one in self.collisions}


class ToolFacade:
    """The surfaces in use, over one gateway."""

    def __init__(
        self,
        gateway: Gateway,
        options: SurfaceOptions,
        scripts: ScriptRunner | None = None,
        *,
        order: ServerOrder = tuple,
    ) -> None:
        """`scripts` run what the progressive surface is given; `order` is that of the servers in the settings.

        Raises `SettingsError` for a surface that does not exist.
        """
        self._gateway = gateway
        self._options = options
        unknown = [name for name in options.surfaces if name not in SURFACES]
        if unknown or not options.surfaces:
            what = f"There is no surface {unknown[0]!r}." if unknown else "No surface is named."
            raise SettingsError(what, hint=f"Surfaces: {', '.join(SURFACES)}.")
        self._surfaces = tuple(_FACTORIES[name](gateway, options, scripts) for name in dict.fromkeys(options.surfaces))
        self._lists_all = "direct" in options.surfaces
        self._meta_names = [name for surface in self._surfaces for name in surface.names]
        self._order = order
        if not options.prefix:
            gateway.exclusions = lambda view: self._public_names(view, everything=self._lists_all).excluded()

    @property
    def gateway(self) -> Gateway:
        """What it stands before."""
        return self._gateway

    @property
    def meta_names(self) -> frozenset[str]:
        """The names of the meta-tools; a tool of such a name and without a namespace could not be called."""
        return frozenset(self._meta_names)

    # -- listing ---------------------------------------------------------------------------------------------------

    async def page(self, ctx: Context, cursor: str | None = None) -> Page[ListedTool]:
        """One page of the list. Raises `StaleCursor`."""
        await self._gateway.refresher.wait_startup()
        view = await self._gateway.view(ctx)
        entries = [*await self._meta_tools(ctx, view), *self._native_tools(ctx, view)]
        return page(
            entries,
            view_version=f"{view.version}/{'all' if ctx.show_all else 'list'}",
            cursor=cursor,
            sizes=[entry.size for entry in entries],
            max_size=self._options.list_page_bytes,
        )

    async def fingerprint(self, ctx: Context) -> str:
        """Stands for the list that this client would get: while it is the same, so is the list."""
        view = await self._gateway.view(ctx)
        told = "\0".join(entry.tool.description for entry in await self._meta_tools(ctx, view))
        natives = b"".join(entry.fingerprint for entry in self._native_tools(ctx, view))
        return blake2b(told.encode("utf-8", "replace") + b"\0" + natives, digest_size=12).hexdigest()

    def _native_tools(self, ctx: Context, view: View) -> Sequence[ListedTool]:
        """The tools listed by name beside the meta-tools."""
        if self._options.meta_only and not ctx.show_all:
            return ()
        return self._listed_tools(view, everything=self._everything(ctx))

    def _everything(self, ctx: Context) -> bool:
        return ctx.show_all or self._lists_all

    async def _meta_tools(self, ctx: Context, view: View) -> list[ListedTool]:
        """The meta-tools; made anew only when a status changed. None where every tool is listed by name."""
        if ctx.show_all:
            return []
        statuses, searched = (
            await self._gateway.servers(ctx),
            self._gateway.federation.has_searching_provider(ctx, view),
        )
        made = view.memo.get((self, "metas", searched))
        if made is None or made[0] is not statuses:
            tools = [tool for one in self._surfaces for tool in one.meta_tools(view, statuses, searched=searched)]
            made = view.memo[self, "metas", searched] = (statuses, [_list_entry(tool.name, tool) for tool in tools])
        found: list[ListedTool] = made[1]
        return found

    def _listed_tools(self, view: View, *, everything: bool) -> Sequence[ListedTool]:
        """The tools listed by name, by id; made anew only when one was seen to break a promise."""
        if view.base is not None and self._options.prefix:
            more = self._entries(view, view.overlay_tools(), everything=everything)
            shared = self._listed_tools(view.base, everything=everything)
            if view.shadowed:
                shared = [entry for entry in shared if entry.tool.key not in view.shadowed]
            return merge_sorted(shared, more, key=lambda entry: entry.tool.id)
        key, promises = (self, "natives", everything), self._gateway.schema_violations
        made = view.memo.get(key)
        if made is None or made[0] != promises:
            made = view.memo[key] = (promises, self._entries(view, view.tools(), everything=everything))
        found: tuple[ListedTool, ...] = made[1]
        return found

    def _entries(self, view: View, tools: Iterable[Tool], *, everything: bool) -> tuple[ListedTool, ...]:
        """Those of the tools that are listed; none under the name of a meta-tool that is listed beside them."""
        if self._options.prefix:
            called: Mapping[str, Tool] = self._wire_names(view, self._shown(view, tools, everything=everything))
        else:
            called = self._public_names(view, everything=everything).tools
        names = sorted(called.items(), key=lambda pair: pair[1].id)
        taken = () if everything and not self._lists_all else self._meta_names
        return tuple(_list_entry(name, self._with_kept_schema(tool)) for name, tool in names if name not in taken)

    def _with_kept_schema(self, tool: Tool) -> Tool:
        """The tool without its output schema, where it does not keep what that promises."""
        return tool if self._gateway.honors_output_schema(tool) else replace(tool, output_schema=None)

    # -- names -----------------------------------------------------------------------------------------------------

    def _public_names(self, view: View, *, everything: bool) -> PublicNames:
        """Public names of the tools that are listed: with their namespace, or, where the setting says so, without."""
        key = (self, "names", everything)
        if key not in view.memo:
            shown = self._shown(view, view.tools(), everything=everything)
            view.memo[key] = (
                PublicNames(self._wire_names(view, shown))
                if self._options.prefix
                else assign_bare_names(view, shown, self._meta_names, self._order())
            )
        found: PublicNames = view.memo[key]
        return found

    @staticmethod
    def _wire_names(view: View, shown: Sequence[Tool]) -> dict[str, Tool]:
        return {view.wire_name(tool): tool for tool in shown}

    def _shown(self, view: View, tools: Iterable[Tool], *, everything: bool) -> list[Tool]:
        """Those of the view's tools that are listed by name, by id."""
        chosen = frozenset() if everything else frozenset(self._always_visible_keys(view))
        return [
            tool
            for tool in tools
            if tool.visibility is Visibility.NATIVE
            or (everything and tool.visibility is not Visibility.HIDDEN)
            or tool.key in chosen
        ]

    def _always_visible_keys(self, view: View) -> Iterator[Key]:
        """The keys of the tools that settings list beside the surface."""
        for spelling in self._options.always_visible:
            try:
                yield view.find(spelling).tool.key
            except (ToolNotFound, AmbiguousName):
                continue

    async def check_names(self, ctx: Context) -> None:
        """Refuse two listed tools of one public name. Raises `NameCollision`, naming both.

        Only names without their namespace can collide.
        """
        for collision in await self.collisions(ctx):
            raise collision.error()

    async def collisions(self, ctx: Context) -> tuple[Collision, ...]:
        """The tools that are not listed, as another one has their name."""
        return self._public_names(await self._gateway.view(ctx), everything=self._lists_all).collisions

    # -- calling ---------------------------------------------------------------------------------------------------

    async def call(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
        """Call by public name. Raises `ToolNotFound` for a name that this client could not have listed or searched.

        Meta-tools tell their errors in band; the errors of a tool called by name rise.
        """
        if not ctx.show_all:
            for surface in self._surfaces:
                result = await surface.call(ctx, name, arguments)
                if result is not None:
                    return result
        try:
            return await self._gateway.run(ctx, await self._find(ctx, name), arguments)
        except ToolcribError as error:
            if ctx.show_all or all(surface.name == "direct" for surface in self._surfaces):
                for hint, other in _OTHER_HINTS.items():
                    error.hint = error.hint.replace(hint, other)
            raise

    async def has_tool(self, ctx: Context, name: str) -> bool:
        """Whether a meta-tool, or a tool of the caller, has exactly that public name."""
        if not ctx.show_all and name in self._meta_names:
            return True
        view = await self._gateway.view(ctx)
        return (
            view.find_wire(name) is not None or name in self._public_names(view, everything=self._everything(ctx)).tools
        )

    async def _find(self, ctx: Context, name: str) -> ResolvedTool:
        view = await self._gateway.view(ctx)
        if not self._options.prefix:
            tool = self._public_names(view, everything=self._everything(ctx)).tools.get(name)
            if tool is not None:
                return view.find(tool.id)
        return view.find_wire(name) or await self._gateway.find(ctx, name)

    # -- words -----------------------------------------------------------------------------------------------------

    async def instructions(self, ctx: Context) -> str:
        """What the server says of itself to this caller; empty where it lists every tool anyway."""
        own = (self._options.instructions,) if self._options.instructions else ()
        if self._lists_all and len(self._surfaces) == 1:
            return "".join(own)
        view = await self._gateway.view(ctx)
        servers = digest(view, await self._gateway.servers(ctx), tokens=self._options.digest_tokens)
        told = "\n\n".join((*own, *dict.fromkeys(_introduction(one) for one in self._surfaces if one.name != "direct")))
        return f"{told}\n\nServers:\n{servers}" if servers else told


def _introduction(surface: Surface) -> str:
    return surface.introduction if isinstance(surface, ProgressiveSurface) else _INTRODUCTION


def _list_entry(name: str, tool: Tool) -> ListedTool:
    """The tool under a name, with about how many bytes it takes in a list."""
    definition: dict[str, Any] = {
        "schemas": [tool.input_schema, tool.output_schema],
        "about": [name, tool.title, tool.description],
        "more": [tool.annotations, list(tool.icons), tool.meta],
    }
    text = json.dumps(definition, default=_json_default)
    return ListedTool(name, tool, len(text) + _KEYS_BYTES, blake2b(text.encode(), digest_size=12).digest())


def _json_default(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


PUBLIC_NAME: Final = pattern(r"[A-Za-z0-9_-]{1,64}")
"""Names that every client takes."""


REMEDY: Final = "Set prefix = true, or leave one out with allowedTools."


_KIND_ORDER: Final = {kind: place for place, kind in enumerate(BackendKind)}


def assign_bare_names(view: View, shown: Sequence[Tool], metas: Collection[str], order: Sequence[str]) -> PublicNames:
    """Names without namespaces, where clients can take them; else with them.

    Of several tools that want a name, that of a function has it, else of a provider, else of the server that comes
    first in the order; a meta-tool comes before all. A tool of the request comes last, and has its full name instead.
    """
    places = {name: place for place, name in enumerate(order)}
    ranked = sorted(shown, key=lambda tool: (*_rank(view, tool, places), tool.id))
    tools: dict[str, Tool] = {}
    owners = dict.fromkeys(metas, "")
    collisions: list[Collision] = []
    for tool in ranked:
        own = view.position(tool.key) is None or tool.key in view.shadowed
        wire = view.wire_name(tool)
        wanted = [tool.name] if PUBLIC_NAME.fullmatch(tool.name) else [wire]
        name = next((one for one in ([*wanted, wire] if own else wanted) if one not in owners), None)
        if name is None:
            collisions.append(Collision(wanted[0], owners[wanted[0]] or f"the meta-tool {wanted[0]}", tool))
        else:
            owners[name], tools[name] = tool.id, tool
    return PublicNames(tools, tuple(collisions))


def _rank(view: View, tool: Tool, places: Mapping[str, int]) -> tuple[float, float]:
    position = None if tool.key in view.shadowed else view.position(tool.key)
    if position is None:
        return inf, inf
    first: Backend = view.snapshot.backends[position][0]
    return _KIND_ORDER[first.kind], places.get(first.name, inf) if first.kind is BackendKind.MCP else 0


logger = logging.getLogger(__name__)


_GRACE_S: Final = 5.0
"""How long after the start two tools of one name end it, in seconds; later ones are withheld."""


async def watch_names(front: ToolFacade, ctx: Context, *, grace_s: float = _GRACE_S) -> NoReturn:
    """Look after the public names until cancelled.

    Raises `NameCollision` when two tools want one name that come within the first seconds, while servers connect for
    the first time. What comes later is logged, and not listed.
    """
    live = front.gateway.refresher
    with anyio.move_on_after(grace_s):
        await front.check_names(ctx)
        while live.is_connecting():
            await live.wait_changed()
            await front.check_names(ctx)
    known: set[tuple[str, str]] = set()
    while True:
        for collision in await front.collisions(ctx):
            if (pair := (collision.name, collision.tool.id)) not in known:
                logger.error("%s: %s", collision.tool.id, collision.reason())
                known.add(pair)
        await live.wait_changed()


async def watch_always_visible(live: CatalogRefresher, spellings: Sequence[str]) -> None:
    """Warn of each of `always_visible` that no tool answers to, once its server is ready; ends when all is said."""
    left = list(spellings)
    while left:
        for spelling, problem in tuple(_check_spellings(live, left)):
            left.remove(spelling)
            if problem:
                logger.warning("always_visible: %s", problem)
        if not left:
            return
        try:
            await live.wait_changed()
        except NotStarted:
            return


def _check_spellings(live: CatalogRefresher, spellings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Those about which something can be said by now, and what is wrong with each; nothing where it is a tool's."""
    statuses = live.statuses()
    for spelling in spellings:
        try:
            live.snapshot.catalog.find(spelling)
        except AmbiguousName as error:
            yield spelling, str(error)
        except ToolNotFound as error:
            if not _may_still_appear(spelling, statuses):
                yield spelling, str(error)
        else:
            yield spelling, ""


def _may_still_appear(spelling: str, statuses: Sequence[ServerStatus]) -> bool:
    """Whether some server may still bring the tool, or a name to suggest: the one it names, or, for no such, any."""
    named = [
        one for one in statuses if any(spelling.startswith(namespace_of(one) + mark) for mark in NAMESPACE_SEPARATORS)
    ]
    if named:
        return any(status.state is not ServerState.READY for status in named)
    return any(status.state in CONNECTING_STATES for status in statuses)
