"""Everything one client may list and call: the meta-tools of the surfaces in use, and the tools listed beside them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from toolcrib.catalog.misses import SEARCH
from toolcrib.catalog.paging import Page, page
from toolcrib.errors import AmbiguousName, SettingsError, ToolcribError, ToolNotFound
from toolcrib.gateway.gateway import SEARCH_ELSEWHERE, Gateway
from toolcrib.gateway.scripts import Scripts
from toolcrib.gateway.view import Found, View, with_more
from toolcrib.model import Key, Object, Tool, ToolResult, Visibility
from toolcrib.protocols import Context
from toolcrib.surfaces.base import Surface
from toolcrib.surfaces.digest import digest
from toolcrib.surfaces.direct import DirectSurface
from toolcrib.surfaces.dynamic import DynamicSurface
from toolcrib.surfaces.naming import Collision, Names, Order, bare_names
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.surfaces.progressive import ProgressiveSurface
from toolcrib.surfaces.search import SearchSurface

_INTRODUCTION: Final = (
    "This server stands in front of many tools that it does not list. Search for what you need, then call what you "
    "found."
)

_MAKERS: Final[Mapping[str, Callable[[Gateway, SurfaceOptions, Scripts | None], Surface]]] = {
    "search": lambda gateway, options, _: SearchSurface(gateway, options),
    "dynamic": lambda gateway, options, _: DynamicSurface(gateway, options.guards),
    "progressive": ProgressiveSurface,
    "direct": lambda *_: DirectSurface(),
}
"""How each of `SURFACES` is made."""
_OTHER_HINTS: Final[Mapping[str, str]] = {
    SEARCH: "List the tools to see which there are.",
    SEARCH_ELSEWHERE: "Try again once it is mended.",
}
"""What is said instead where there is no search."""
_KEYS_SIZE: Final = 100
"""What the keys of a list entry take, in bytes."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool under the name by which this client calls it."""

    name: str
    tool: Tool
    size: int
    """About how many bytes it takes in a list."""
    mark: bytes
    """Stands for the entry: equal marks, equal entries."""


class Front:
    """The surfaces in use, over one gateway."""

    def __init__(
        self,
        gateway: Gateway,
        options: SurfaceOptions,
        scripts: Scripts | None = None,
        *,
        order: Order = tuple,
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
        self._surfaces = tuple(_MAKERS[name](gateway, options, scripts) for name in dict.fromkeys(options.surfaces))
        self._lists_all = "direct" in options.surfaces
        self._meta_names = [name for surface in self._surfaces for name in surface.names]
        self._order = order
        if not options.prefix:
            gateway.withheld = lambda view: self._called(view, everything=self._lists_all).withheld()

    @property
    def gateway(self) -> Gateway:
        """What it stands before."""
        return self._gateway

    @property
    def meta_names(self) -> frozenset[str]:
        """The names of the meta-tools; a tool of such a name and without a namespace could not be called."""
        return frozenset(self._meta_names)

    # -- listing ---------------------------------------------------------------------------------------------------

    async def page(self, ctx: Context, cursor: str | None = None) -> Page[Listed]:
        """One page of the list. Raises `StaleCursor`."""
        await self._gateway.live.grace()
        view = await self._gateway.view(ctx)
        entries = [*await self._metas(ctx, view), *self._beside(ctx, view)]
        return page(
            entries,
            view_version=f"{view.version}/{'all' if ctx.show_all else 'list'}",
            cursor=cursor,
            sizes=[entry.size for entry in entries],
            max_size=self._options.list_page_bytes,
        )

    async def mark(self, ctx: Context) -> str:
        """Stands for the list that this client would get: while it is the same, so is the list."""
        view = await self._gateway.view(ctx)
        told = "\0".join(entry.tool.description for entry in await self._metas(ctx, view))
        natives = b"".join(entry.mark for entry in self._beside(ctx, view))
        return blake2b(told.encode("utf-8", "replace") + b"\0" + natives, digest_size=12).hexdigest()

    def _beside(self, ctx: Context, view: View) -> Sequence[Listed]:
        """The tools listed by name beside the meta-tools."""
        if self._options.meta_only and not ctx.show_all:
            return ()
        return self._natives(view, everything=self._everything(ctx))

    def _everything(self, ctx: Context) -> bool:
        return ctx.show_all or self._lists_all

    async def _metas(self, ctx: Context, view: View) -> list[Listed]:
        """The meta-tools; made anew only when a status changed. None where every tool is listed by name."""
        if ctx.show_all:
            return []
        statuses, searched = await self._gateway.servers(ctx), self._gateway.elsewhere.is_searched(ctx, view)
        made = view.memo.get((self, "metas", searched))
        if made is None or made[0] is not statuses:
            tools = [tool for one in self._surfaces for tool in one.meta_tools(view, statuses, searched=searched)]
            made = view.memo[self, "metas", searched] = (statuses, [_listed(tool.name, tool) for tool in tools])
        found: list[Listed] = made[1]
        return found

    def _natives(self, view: View, *, everything: bool) -> Sequence[Listed]:
        """The tools listed by name, by id; made anew only when one was seen to break a promise."""
        if view.base is not None and self._options.prefix:
            more = self._entries(view, view.added(), everything=everything)
            shared = self._natives(view.base, everything=everything)
            if view.shadowed:
                shared = [entry for entry in shared if entry.tool.key not in view.shadowed]
            return with_more(shared, more, key=lambda entry: entry.tool.id)
        key, promises = (self, "natives", everything), self._gateway.broken_promises
        made = view.memo.get(key)
        if made is None or made[0] != promises:
            made = view.memo[key] = (promises, self._entries(view, view.tools(), everything=everything))
        found: tuple[Listed, ...] = made[1]
        return found

    def _entries(self, view: View, tools: Iterable[Tool], *, everything: bool) -> tuple[Listed, ...]:
        """Those of the tools that are listed; none under the name of a meta-tool that is listed beside them."""
        if self._options.prefix:
            called: Mapping[str, Tool] = self._full(view, self._shown(view, tools, everything=everything))
        else:
            called = self._called(view, everything=everything).tools
        names = sorted(called.items(), key=lambda pair: pair[1].id)
        taken = () if everything and not self._lists_all else self._meta_names
        return tuple(_listed(name, self._promised(tool)) for name, tool in names if name not in taken)

    def _promised(self, tool: Tool) -> Tool:
        """The tool without its output schema, where it does not keep what that promises."""
        return tool if self._gateway.keeps_promise(tool) else replace(tool, output_schema=None)

    # -- names -----------------------------------------------------------------------------------------------------

    def _called(self, view: View, *, everything: bool) -> Names:
        """Public names of the tools that are listed: with their namespace, or, where the setting says so, without."""
        key = (self, "names", everything)
        if key not in view.memo:
            shown = self._shown(view, view.tools(), everything=everything)
            view.memo[key] = (
                Names(self._full(view, shown))
                if self._options.prefix
                else bare_names(view, shown, self._meta_names, self._order())
            )
        found: Names = view.memo[key]
        return found

    @staticmethod
    def _full(view: View, shown: Sequence[Tool]) -> dict[str, Tool]:
        return {view.wire_name(tool): tool for tool in shown}

    def _shown(self, view: View, tools: Iterable[Tool], *, everything: bool) -> list[Tool]:
        """Those of the view's tools that are listed by name, by id."""
        chosen = frozenset() if everything else frozenset(self._chosen(view))
        return [
            tool
            for tool in tools
            if tool.visibility is Visibility.NATIVE
            or (everything and tool.visibility is not Visibility.HIDDEN)
            or tool.key in chosen
        ]

    def _chosen(self, view: View) -> Iterator[Key]:
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
        return self._called(await self._gateway.view(ctx), everything=self._lists_all).collisions

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
            return await self._gateway.run(ctx, await self._found(ctx, name), arguments)
        except ToolcribError as error:
            if ctx.show_all or all(surface.name == "direct" for surface in self._surfaces):
                for hint, other in _OTHER_HINTS.items():
                    error.hint = error.hint.replace(hint, other)
            raise

    async def knows(self, ctx: Context, name: str) -> bool:
        """Whether a meta-tool, or a tool of the caller, has exactly that public name."""
        if not ctx.show_all and name in self._meta_names:
            return True
        view = await self._gateway.view(ctx)
        return view.by_wire(name) is not None or name in self._called(view, everything=self._everything(ctx)).tools

    async def _found(self, ctx: Context, name: str) -> Found:
        view = await self._gateway.view(ctx)
        if not self._options.prefix:
            tool = self._called(view, everything=self._everything(ctx)).tools.get(name)
            if tool is not None:
                return view.find(tool.id)
        return view.by_wire(name) or await self._gateway.find(ctx, name)

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


def _listed(name: str, tool: Tool) -> Listed:
    """The tool under a name, with about how many bytes it takes in a list."""
    definition: dict[str, Any] = {
        "schemas": [tool.input_schema, tool.output_schema],
        "about": [name, tool.title, tool.description],
        "more": [tool.annotations, list(tool.icons), tool.meta],
    }
    text = json.dumps(definition, default=_plain)
    return Listed(name, tool, len(text) + _KEYS_SIZE, blake2b(text.encode(), digest_size=12).digest())


def _plain(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
