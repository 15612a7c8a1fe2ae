"""What tools are called that are listed without their namespace; of two that want one name, only one has it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from re import compile as pattern
from typing import Final

from toolcrib.errors import NameCollision
from toolcrib.gateway.view import View
from toolcrib.model import BackendKind, Key, Tool
from toolcrib.protocols import Backend

PUBLIC: Final = pattern(r"[A-Za-z0-9_-]{1,64}")
"""Names that every client takes."""
REMEDY: Final = "Set prefix = true, or leave one out with allowedTools."

_KINDS: Final = {kind: place for place, kind in enumerate(BackendKind)}

Order = Callable[[], Sequence[str]]
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

    def why(self) -> str:
        """Why the other one is not listed."""
        return f"it is not listed: {self.first} has the name {self.name} already; {REMEDY[0].lower()}{REMEDY[1:]}"


@dataclass(frozen=True, slots=True)
class Names:
    """What the listed tools of a view are called."""

    tools: Mapping[str, Tool]
    """By name."""
    collisions: tuple[Collision, ...] = ()

    def withheld(self) -> dict[Key, str]:
        """Why each tool is not listed that has no name."""
        return {one.tool.key: one.why() for one in self.collisions}


def bare_names(view: View, shown: Sequence[Tool], metas: Collection[str], order: Sequence[str]) -> Names:
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
        wanted = [tool.name] if PUBLIC.fullmatch(tool.name) else [wire]
        name = next((one for one in ([*wanted, wire] if own else wanted) if one not in owners), None)
        if name is None:
            collisions.append(Collision(wanted[0], owners[wanted[0]] or f"the meta-tool {wanted[0]}", tool))
        else:
            owners[name], tools[name] = tool.id, tool
    return Names(tools, tuple(collisions))


def _rank(view: View, tool: Tool, places: Mapping[str, int]) -> tuple[float, float]:
    position = None if tool.key in view.shadowed else view.position(tool.key)
    if position is None:
        return inf, inf
    first: Backend = view.snapshot.backends[position][0]
    return _KINDS[first.kind], places.get(first.name, inf) if first.kind is BackendKind.MCP else 0
