"""A caller's tools by server, as scripts and the tools for finding out about servers see them.

Made once a view; a request that brings tools of its own costs what those cost, and a step for each server.
"""

import re
import unicodedata
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio

from toolcrib.gateway.calls.hints import reads_only
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.known import CONNECTING, space_of
from toolcrib.gateway.view import View
from toolcrib.model import ServerState, ServerStatus, Tool, Visibility
from toolcrib.protocols import Context

BARE: Final = "tools"
"""The server under which tools without a namespace stand."""

NOT_WORD: Final = re.compile(r"[^A-Za-z0-9_]")
"""What no identifier of a script holds."""

Shelf = Mapping[str, Tool]
"""Tools by their own names."""


@dataclass(frozen=True, slots=True)
class Shelves:
    """The tools of a view."""

    listed: Mapping[str, Shelf]
    """By server; without the hidden ones."""
    hidden: tuple[Tool, ...]
    """Those that answer only to who knows their names."""
    bare: str
    """The server that stands for no namespace."""

    def server_of(self, tool: Tool) -> str:
        """The server on whose shelf the tool stands."""
        return tool.namespace or self.bare


def shelves(view: View, statuses: Iterable[ServerStatus] = (), *, read_only: bool = False) -> Shelves:
    """The tools of a view by server, servers without any included; with `read_only`, those that only read."""
    spaces, hidden = _spaces(view, read_only=read_only)
    bare = BARE
    while bare in spaces:
        bare = f"own_{bare}"
    empty: dict[str, Shelf] = {space_of(status): {} for status in statuses}
    return Shelves({**empty, **{name or bare: shelf for name, shelf in spaces.items()}}, hidden, bare)


def _spaces(view: View, *, read_only: bool) -> tuple[Mapping[str, Shelf], tuple[Tool, ...]]:
    if view.base is None:
        key: Hashable = ("shelves", read_only)
        return view.remembered(key, lambda one: _sorted({}, (), one.tools(), read_only=read_only))
    before, hidden = _spaces(view.base, read_only=read_only)
    for key in view.shadowed:
        shelf = {name: tool for name, tool in before.get(key.namespace, {}).items() if name != key.name}
        before = {**before, key.namespace: shelf}
    return _sorted(before, hidden, view.added(), read_only=read_only)


def _sorted(
    before: Mapping[str, Shelf], hidden: tuple[Tool, ...], tools: Iterable[Tool], *, read_only: bool
) -> tuple[Mapping[str, Shelf], tuple[Tool, ...]]:
    fresh: dict[str, dict[str, Tool]] = {}
    unlisted = list(hidden)
    for tool in tools:
        if read_only and not reads_only(tool):
            fresh.setdefault(tool.namespace, {})  # the server is there, and has nothing for this script
            continue
        if tool.visibility is Visibility.HIDDEN:
            unlisted.append(tool)
        else:
            fresh.setdefault(tool.namespace, {})[tool.name] = tool
    joined = {name: {**before.get(name, {}), **shelf} for name, shelf in fresh.items()}
    return {**before, **joined}, tuple(unlisted)


def mentions(text: str, name: str) -> bool:
    """Whether a text holds the name as a word of its own.

    >>> mentions("calc.add{}", "add"), mentions("calc.address{}", "add")
    (True, False)
    """
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def identifiers(name: str) -> frozenset[str]:
    """What the name of a server or a tool may become in scripts, in any language, where it clashes with no other."""
    bare = "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))
    word = NOT_WORD.sub("_", bare)
    if not word.strip("_"):
        return frozenset({word, "_unnamed", "unnamed"})
    private = word[0] == "_" or word[0].isdigit()
    return frozenset({word, f"_{word}", f"{word}_", f"x{word}" if private else word})


async def awaited(gateway: Gateway, ctx: Context, servers: Iterable[str]) -> None:
    """Return when none of these servers is still connecting, or after the grace that a call is given."""
    names = frozenset(servers)
    if not names:
        return
    with anyio.move_on_after(gateway.options.call_grace_s):
        while any(status.state in CONNECTING and space_of(status) in names for status in await gateway.servers(ctx)):
            await gateway.live.changed()
    await gateway.live.fresh()


def troubled(status: ServerStatus) -> bool:
    """Whether there is something to say of the server's state."""
    return status.state is not ServerState.READY or status.stale
