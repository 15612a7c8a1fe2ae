"""Tools that a script names, and of which no list tells: those of providers that are only asked for one by its name.

What is named is read off the source, before the script runs: a name that is put together in the script is not found.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import anyio

from toolcrib.errors import ServerUnavailable
from toolcrib.gateway.calls.hints import reads_only
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.shelves import Shelves, identifiers
from toolcrib.gateway.view import View
from toolcrib.model import Key, Tool
from toolcrib.protocols import Context
from toolcrib.providers.keyed import spelled

_MOST: Final = 64
"""Names of one script that are asked for."""
_AT_ONCE: Final = 8
_PATIENCE: Final = 2
"""How long all answers together are waited for, in times of how long one may take."""
_TOLD: Final = 3
"""Failures that are told of."""

_WORD: Final = r"([A-Za-z_]\w{0,127})"
_TEXT: Final = r"""(?:"([^"\n]{1,128})"|'([^'\n]{1,128})')"""
_IN_TABLE: Final = re.compile(rf"(?:\b{_WORD}|\[\s*{_TEXT}\s*\])\s*(?=(?:[.:]\s*{_WORD}|\[\s*{_TEXT}\s*\]))", re.ASCII)
"""`server.tool`, `server["tool"]`, and `_G["server"]["tool"]`."""
_BY_NAMES: Final = re.compile(rf"call_tool\s*\(\s*{_TEXT}\s*,\s*{_TEXT}")
_LIBRARIES: Final = frozenset({"asyncio", "coroutine", "json", "math", "os", "re", "string", "table", "utf8"})
"""What scripts have by themselves, and call all the time; no provider that names no namespace is asked for these."""


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What providers said of the names in a script."""

    tools: tuple[Tool, ...] = ()
    notes: tuple[str, ...] = ()
    """Why some could not say."""


async def looked_up(
    gateway: Gateway, ctx: Context, view: View, shelved: Shelves, source: str, *, read_only: bool = False
) -> LookedUp:
    """The tools that the source names, and that the caller may see, but in no list; with `read_only`, as ever."""
    spaces = gateway.elsewhere.spaces(ctx, view)
    keys = list(islice(_keys(source, view, shelved, spaces), _MOST)) if spaces else []
    found: dict[Key, Tool] = {}
    troubles: dict[Key, str] = {}
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def ask(key: Key) -> None:
        async with limiter:
            try:
                known = await gateway.elsewhere.look_up(ctx, view, spelled(key))
            except ServerUnavailable as error:
                troubles[key] = error.message
                return
        if known is not None and known.tool.key == key and not (read_only and not reads_only(known.tool)):
            found[key] = known.tool

    patience_s = _PATIENCE * gateway.options.find_timeout_s
    with anyio.move_on_after(patience_s) as waiting:
        async with anyio.create_task_group() as group:
            for key in keys:
                group.start_soon(ask, key)
    told = [troubles[key] for key in keys if key in troubles][:_TOLD]
    if waiting.cancelled_caught:
        told.append(f"Not all tools that the script names could be looked up within {patience_s:g} s.")
    return LookedUp(tuple(found[key] for key in keys if key in found), tuple(told))


def _keys(source: str, view: View, shelved: Shelves, spaces: frozenset[str]) -> Iterator[Key]:
    """What the source may mean that is not in view, once each, in the order of the source."""
    known = [space for space in spaces | shelved.listed.keys() if space]
    words = {word: space for space in known for word in identifiers(space)} | {space: space for space in known}
    seen: set[Key] = set()
    for server, tool in _named(source):
        space = "" if server == shelved.bare else words.get(server, server)
        asked = space in spaces or ("" in spaces and server not in _LIBRARIES)
        key = Key(space, tool)
        if asked and key not in seen and view.holds(key) is None:
            seen.add(key)
            yield key


def _named(source: str) -> Iterator[tuple[str, str]]:
    """What looks like a tool of a server, as the two are written.

    >>> list(_named("post.send{} post['send-all']{} call_tool('post', 'x')"))
    [('post', 'send'), ('post', 'send-all'), ('post', 'x')]
    """
    for match in _IN_TABLE.finditer(source):
        yield match[1] or match[2] or match[3], match[4] or match[5] or match[6]
    for match in _BY_NAMES.finditer(source):
        yield match[1] or match[2], match[3] or match[4]
