"""The built-in surfaces by name, and the facade over those that the settings choose.

The module of a surface is loaded when the settings choose it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from toolcrib.errors import SettingsError
from toolcrib.gateway.gateway import Gateway
from toolcrib.scripting.runner import ScriptRunner
from toolcrib.surfaces.facade import CallerView, MetaToolHandler, PassOn, ServerOrder, Surface, ToolFacade
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.types import Tool


class DirectSurface:
    """The surface `direct`: every tool by its public name, and no meta-tools."""

    name = "direct"
    introduction = ""
    lists_all = True
    describes_servers = False
    handlers: Mapping[str, MetaToolHandler] = {}
    passes_on: Mapping[str, PassOn] = {}
    reads_results = None

    def meta_tools(self, caller: CallerView) -> tuple[Tool, ...]:  # noqa: ARG002 - a Surface
        """Return no tools: this surface lists only those of the view."""
        return ()


def _search(gateway: Gateway, options: SurfaceOptions, _: ScriptRunner | None) -> Surface:
    from toolcrib.surfaces.search import SearchSurface  # noqa: PLC0415 - see the module

    return SearchSurface(gateway, options)


def _dynamic(gateway: Gateway, options: SurfaceOptions, _: ScriptRunner | None) -> Surface:
    from toolcrib.surfaces.dynamic import DynamicSurface  # noqa: PLC0415 - see the module

    return DynamicSurface(gateway, options.guards, budget=options.reply_tokens, tokens=options.tokens)


def _progressive(gateway: Gateway, options: SurfaceOptions, scripts: ScriptRunner | None) -> Surface:
    from toolcrib.surfaces.progressive import ProgressiveSurface  # noqa: PLC0415 - see the module

    return ProgressiveSurface(gateway, options, scripts)


_FACTORIES: Final[Mapping[str, Callable[[Gateway, SurfaceOptions, ScriptRunner | None], Surface]]] = {
    "search": _search,
    "dynamic": _dynamic,
    "progressive": _progressive,
    "direct": lambda *_: DirectSurface(),
}
"""How to make each of `SURFACES`."""


def make_surfaces(
    gateway: Gateway, options: SurfaceOptions, scripts: ScriptRunner | None = None
) -> tuple[Surface, ...]:
    """The surfaces that the options name. Raises `SettingsError` for a name that does not exist."""
    unknown = [name for name in options.surfaces if name not in SURFACES]
    if unknown or not options.surfaces:
        problem = f"There is no surface {unknown[0]!r}." if unknown else "The settings name no surface."
        raise SettingsError(problem, hint=f"Surfaces: {', '.join(SURFACES)}.")
    return tuple(_FACTORIES[name](gateway, options, scripts) for name in dict.fromkeys(options.surfaces))


def make_facade(
    gateway: Gateway, options: SurfaceOptions, scripts: ScriptRunner | None = None, *, order: ServerOrder = tuple
) -> ToolFacade:
    """The facade over the surfaces that the options name. Raises `SettingsError` for a name that does not exist.

    `scripts` runs the scripts of the surface `progressive`; `order` is that of the servers in the settings.
    """
    return ToolFacade(gateway, options, make_surfaces(gateway, options, scripts), order=order)
