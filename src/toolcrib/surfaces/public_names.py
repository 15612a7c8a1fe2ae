"""The names by which clients call listed tools, and collisions between names without a namespace."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from re import compile as pattern
from typing import Final

from toolcrib.errors import NameCollision
from toolcrib.gateway.view import View
from toolcrib.providers.base import Backend
from toolcrib.types import BackendKind, Key, Tool

PUBLIC_NAME: Final = pattern(r"[A-Za-z0-9_-]{1,64}")
"""Names that every client accepts."""
REMEDY: Final = "Set prefix = true, or leave one out with allowedTools."
_KINDS: Final = tuple(BackendKind)


@dataclass(frozen=True, slots=True)
class Collision:
    """Two listed tools, or a meta-tool and a listed tool, that claim the same name."""

    name: str
    first: str
    """The id of the tool that gets the name."""
    tool: Tool
    """The other one, which is not listed."""

    def error(self) -> NameCollision:
        """An error that names both."""
        return NameCollision(f"{self.first} and {self.tool.id} both claim the name {self.name}.", hint=REMEDY)

    def reason(self) -> str:
        """Why the other one is not listed."""
        return f"it is not listed, because {self.first} has the name {self.name}; {REMEDY[0].lower()}{REMEDY[1:]}"


@dataclass(frozen=True, slots=True)
class PublicNames:
    """The names of the listed tools of a view."""

    tools: Mapping[str, Tool]
    """By name."""
    collisions: tuple[Collision, ...] = ()

    def excluded(self) -> dict[Key, str]:
        """For each tool without a name, why it is not listed."""
        return {collision.tool.key: collision.reason() for collision in self.collisions}


def assign_bare_names(view: View, shown: Sequence[Tool], metas: Collection[str], order: Sequence[str]) -> PublicNames:
    """Assign names without namespaces, except to tools whose bare name is not a `PUBLIC_NAME`.

    When tools collide, a meta-tool takes precedence, then a function, then a provider, then servers in the given order.
    Tools of the request come last, and get their full name instead.
    """
    places = {name: place for place, name in enumerate(order)}
    ranked = sorted(shown, key=lambda tool: (*_rank(view, tool, places), tool.id))
    tools: dict[str, Tool] = {}
    owners = dict.fromkeys(metas, "")
    collisions: list[Collision] = []
    for tool in ranked:
        of_request = view.position(tool.key) is None or tool.key in view.shadowed
        wire = view.wire_name(tool)
        wanted = [tool.name] if PUBLIC_NAME.fullmatch(tool.name) else [wire]
        name = next((one for one in ([*wanted, wire] if of_request else wanted) if one not in owners), None)
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
    return _KINDS.index(first.kind), places.get(first.name, inf) if first.kind is BackendKind.MCP else 0
