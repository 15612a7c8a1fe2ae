"""Find the tools that a query names in full, in any spelling that clients write.

Agents that know what they want write `github:create_issue`, `mcp__github__create_issue` or `select:create_issue,log`.
Such tools come first in every ranking. Spellings are compared without case and separators, as `toolcrib.names.fold`
does; a name of one word counts only where the query is a list of names.
"""

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.names import fold_id, wire_name
from toolcrib.search.index import IndexView
from toolcrib.search.segment import Bools, Segment
from toolcrib.types import Tool

Places = npt.NDArray[np.intp]
Place = tuple[int, int]
"""The part of a view that has a tool, and its position there."""
MAX_NAMESAKES = 5
"""Tools that a name without a namespace puts first; any others are ranked like the rest."""
_MAX_NAMES = 256
"""Names of a query that are looked up."""
_MAX_NAME = 512
"""Longer words, in characters, are no names."""
_MAY_NAME = re.compile(r"\w[:/._-]+\w|[a-z0-9][A-Z]|[,;|]|^\s*select\s*:")
"""What a query has that names a tool in the middle of other words, or is a list."""
_GAP = re.compile(r"[\s,;|\"'`()\[\]{}<>]+")
_LIST_GAP = re.compile("[,;|]")
_SELECT = re.compile(r"\s*select\s*:\s*", re.IGNORECASE)
"""How a client asks for tools by name."""
_IN_CLIENT = re.compile(r"mcp_+", re.IGNORECASE)
"""How clients begin the name of a tool of a server."""
_HASHED = re.compile(r".*__[a-z2-7]{10}")
"""The shape of a wire name with a hash."""
_JOINED = re.compile(r"[_:/.-]|[a-z0-9][A-Z]")
"""What a name of several words has between two of them."""


class NamedTool(NamedTuple):
    """A tool that a query names."""

    part: int
    position: int
    name: int
    """Which of the names it has, counted from 0."""


def find_named(view: IndexView, text: str, allowed: Sequence[Bools]) -> list[NamedTool]:
    """The allowed tools that the query names in full, by the order of the names; each once.

    If it names a server too, as a word of its own, then of tools that share a name it means those of that server.
    """
    names, listed = _names(text)
    servers = frozenset() if listed else _servers(view, text)
    if not names and not servers:
        return []
    lookup = _Lookup(view, allowed)
    if servers:
        words = filter(None, map(_stripped, _GAP.split(text)))
        others = [word for word in words if fold_id(word) not in servers][:_MAX_NAMES]
        inside = [_within(view, places, servers) for places in _distinct(lookup.places(others, listed=True))]
        if inside and all(inside):
            return _each_once(inside)
    found = _distinct(lookup.places(names, listed=listed))
    return _each_once([_within(view, places, servers) or places for places in found] if servers else found)


def _servers(view: IndexView, text: str) -> AbstractSet[str]:
    """The keys of the namespaces that the query begins or ends with."""
    words = text.split()
    ends = {*words[:1], *words[-1:]}
    keys = ends if _is_plain(text) else {fold_id(_stripped(word)) for word in ends}
    return {key for part in view.parts for key in keys & _names_of(part.segment).namespaces}


def _is_plain(text: str) -> bool:
    """Whether a text consists of words in small letters, which is cheap to find out: most queries do."""
    return text.isascii() and text.islower() and text.replace(" ", "").isalpha()


def _within(view: IndexView, places: Sequence[Place], servers: AbstractSet[str]) -> list[Place]:
    return [(part, at) for part, at in places if fold_id(view.parts[part].segment.tools[at].namespace) in servers]


def _each_once(names: Sequence[Sequence[Place]]) -> list[NamedTool]:
    found: dict[Place, NamedTool] = {}
    for number, places in enumerate(names):
        for place in places:
            found.setdefault(place, NamedTool(*place, number))
    return [*found.values()]


def without_select(text: str) -> str:
    """The query without what asks for tools by name in a client of many: `select:`."""
    selected = _SELECT.match(text) if ":" in text else None
    return text[selected.end() :] if selected else text


def is_selected(text: str, named: Sequence[NamedTool]) -> bool:
    """Whether the query asks for tools by name and for nothing else, and all of them are there."""
    return _SELECT.match(text) is not None and len({one.name for one in named}) == len(_names(text)[0])


def prepare_names(segment: Segment) -> None:
    """Compute the tables that `find_named` needs, so that no search has to."""
    _names_of(segment)
    _hashed_names(segment)


def _names(text: str) -> tuple[list[str], bool]:
    """The words of a query that may be names of tools, and whether it is nothing but a list of words."""
    if " " in text and (_is_plain(text) or not _MAY_NAME.search(text)):
        return [], False
    items = [item for item in map(_stripped, _LIST_GAP.split(without_select(text))) if item]
    listed = _SELECT.match(text) is not None or not any(map(_GAP.search, items))
    words = items if listed else [word for word in map(_stripped, _GAP.split(text)) if _JOINED.search(word)]
    return [word for word in dict.fromkeys(words) if len(word) <= _MAX_NAME][:_MAX_NAMES], listed


def _stripped(word: str) -> str:
    return word.strip(" \t\r\n\"'`()[]{}<>.:?!")


def _readings(text: str) -> Iterator[str]:
    """The name itself; without a version; and without what a client puts before it: `mcp__`, and the gateway's name."""
    yield text
    head, colon, _ = text.rpartition(":")
    if colon and ":" in head:
        yield head
    if inside := _IN_CLIENT.match(text):
        rest = text[inside.end() :]
        yield rest
        _, mark, further = rest.partition("__")
        if mark and further:
            yield further


class _Lookup:
    """Looks names up among the allowed tools: each once, however many spellings of it a query has."""

    def __init__(self, view: IndexView, allowed: Sequence[Bools]) -> None:
        self._view = view
        self._allowed = allowed
        self._known: dict[tuple[str, str, bool, bool], Sequence[Place]] = {}

    def places(self, names: Sequence[str], *, listed: bool) -> list[Sequence[Place]]:
        """Part and position of the tools of each name: with its namespace or, if there are none, without.

        Spellings of one name have the same object.
        """
        return [self._places(name, listed=listed) for name in names]

    def _places(self, name: str, *, listed: bool) -> Sequence[Place]:
        for text in _readings(name):
            if found := self._find(text, full=True, listed=listed):
                return found
        return self._find(name, full=False, listed=listed)

    def _find(self, text: str, *, full: bool, listed: bool) -> Sequence[Place]:
        if full and _HASHED.fullmatch(text):
            return self._search(text, full=full, listed=listed)
        head, colon, _ = text.partition(":")
        key = fold_id(text), fold_id(head) + colon if colon else "", full, listed
        if key not in self._known:
            self._known[key] = self._search(text, full=full, listed=listed)
        return self._known[key]

    def _search(self, text: str, *, full: bool, listed: bool) -> list[Place]:
        key = fold_id(text)
        found = []
        for number, (part, passes) in enumerate(zip(self._view.parts, self._allowed, strict=True)):
            positions = _names_of(part.segment).positions(key, full=full) if key else []
            if full and _HASHED.fullmatch(text):
                positions += _hashed_names(part.segment).get(text, ())
            found += [
                (number, position)
                for position in positions
                if passes[position] and _may_be(part.segment.tools[position], text, full=full, listed=listed)
            ]
        return found


def _distinct(found: Sequence[Sequence[Place]]) -> list[Sequence[Place]]:
    return [*{id(places): places for places in found}.values()]


def _may_be(tool: Tool, text: str, *, full: bool, listed: bool) -> bool:
    """Whether a text with the letters of a tool's name is that name.

    A namespace before a colon must be the tool's; and in the middle of other words, a name of one word is none.
    """
    head, colon, _ = text.partition(":")
    if colon:
        return fold_id(head) == fold_id(tool.namespace)
    return listed or (full and bool(tool.namespace)) or _JOINED.search(tool.name) is not None


class _NameTable:
    """The names of a segment's tools, with and without namespace, by hash: eight bytes and a position each."""

    __slots__ = ("_bare", "_full", "_segment", "namespaces")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        namespaces = {namespace: fold_id(namespace) for namespace in {tool.namespace for tool in segment.tools}}
        self.namespaces = frozenset(filter(None, namespaces.values()))
        """The keys of the namespaces."""
        bare = [fold_id(tool.name) for tool in segment.tools]
        self._bare = _sorted_hashes(bare)
        self._full = _sorted_hashes(
            [namespaces[tool.namespace] + name for tool, name in zip(segment.tools, bare, strict=True)]
        )

    def positions(self, key: str, *, full: bool) -> list[int]:
        """The tools whose name, or namespace and name, has this key."""
        hashes, order = self._full if full else self._bare
        start, stop = np.searchsorted(hashes, hash(key), "left"), np.searchsorted(hashes, hash(key), "right")
        tools = self._segment.tools
        return [
            position
            for position in order[start:stop].tolist()
            if key == (fold_id(tools[position].namespace) if full else "") + fold_id(tools[position].name)
        ]


def _sorted_hashes(keys: Sequence[str]) -> tuple[npt.NDArray[np.int64], Places]:
    hashes = np.fromiter(map(hash, keys), dtype=np.int64, count=len(keys))
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order


def _names_of(segment: Segment) -> _NameTable:
    known: _NameTable | None = segment.memo.get("named tools")
    if known is None:
        known = segment.memo["named tools"] = _NameTable(segment)
    return known


def _hashed_names(segment: Segment) -> dict[str, list[int]]:
    """The positions of the tools whose wire name is not just namespace and name, by that name."""
    known: dict[str, list[int]] | None = segment.memo.get("hashed names")
    if known is None:
        known = segment.memo["hashed names"] = {}
        for position, tool in enumerate(segment.tools):
            wire = wire_name(tool.key)
            if _HASHED.fullmatch(wire):
                known.setdefault(wire, []).append(position)
    return known
