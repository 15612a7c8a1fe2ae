"""Tools that come with a request, worked out once for as long as they stay the same."""

import marshal
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from operator import attrgetter, is_

from toolcrib.catalog.catalog import Catalog
from toolcrib.gateway.snapshot import Gathered, Offer, Snapshot
from toolcrib.gateway.view import View
from toolcrib.model import Key, Tool
from toolcrib.search.index import Index


@dataclass(frozen=True, slots=True)
class _Kept:
    tools: tuple[Tool, ...]
    catalog: Catalog
    index: Index
    mark: str
    """Of the catalog's content."""
    beside: str = ""
    """The version of a view in which no shared tool stands before any of these."""


class Overlays:
    """Catalogs and indexes of request tools. Who brought the tools is no part of what is kept."""

    def __init__(self, most: int) -> None:
        """Keeps at most so many tools in all; those not seen for longest go first."""
        self._most = most
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._same: dict[tuple[int, ...], int] = {}
        """Where those are that are kept, by their very objects."""
        self._count = 0
        self._lock = threading.Lock()

    def knows(self, tools: tuple[Tool, ...]) -> bool:
        """Whether these very objects were looked into before. Tools are never changed once they are made."""
        return self._place_of_same(tools) is not None

    def over(self, view: View, plain: Sequence[Offer], overriding: Sequence[Offer] = ()) -> View:
        """The view with these tools; its version changes with them. `overriding` stand before shared tools."""
        if len(plain) == 1 and not overriding and (again := self._again(view, plain[0])) is not None:
            return again
        taken = {tool.key for offer in overriding for tool in offer.tools}
        fresh = [
            replace(offer, tools=[tool for tool in offer.tools if not _is_shared(view, tool, taken)]) for offer in plain
        ]
        gathered = Gathered.of((*overriding, *fresh))
        if not gathered.tools:
            return view
        alone = len(fresh) == 1 and not overriding and len(fresh[0].tools) == len(plain[0].tools)
        kept = self._of(gathered.tools, view.snapshot.index, view.version if alone else "")
        overlay = Snapshot.joined(gathered, kept.catalog, kept.index)
        version = f"{view.version}.{kept.mark}"
        shadowed = [place for key in taken if (place := view.position(key)) is not None]
        if not shadowed:
            return replace(view, overlay=overlay, version=version, memo={}, base=view)
        return _shadowing(replace(view, overlay=overlay, version=version, memo={}, base=view), shadowed)

    def _again(self, view: View, offer: Offer) -> View | None:
        """The view with the tools of the only provider of a request, where they stood beside the same view before."""
        tools = tuple(offer.tools)
        kept = self._known(self._place(tools), tools, view.snapshot.index)
        if kept is None or kept.beside != view.version or offer.rejected or kept.catalog.rejected:
            return None
        overlay = Snapshot(kept.catalog, kept.index, ((offer.backend,),) * len(kept.catalog))
        return replace(view, overlay=overlay, version=f"{view.version}.{kept.mark}", memo={}, base=view)

    def _of(self, tools: tuple[Tool, ...], shared: Index, beside: str) -> _Kept:
        place = self._place(tools)
        kept = self._known(place, tools, shared)
        if kept is not None and (kept.beside == beside or not beside):
            return kept
        if kept is None:
            catalog = Catalog.build(tools)
            index = Index.build(catalog.tools, options=shared.options, meaning=shared.meaning)
            made = _Kept(tools, catalog, index, catalog.fingerprint(None), beside)
        else:
            made = replace(kept, beside=beside)
        self._keep(place, made)
        return made

    def _place(self, tools: tuple[Tool, ...]) -> int:
        place = self._place_of_same(tools)
        return _place(tools) if place is None else place

    def _place_of_same(self, tools: tuple[Tool, ...]) -> int | None:
        with self._lock:
            place = self._same.get(tuple(map(id, tools)), -1)
            kept = self._kept.get(place)
        return place if kept is not None and all(map(is_, kept.tools, tools)) else None

    def _known(self, place: int, tools: tuple[Tool, ...], shared: Index) -> _Kept | None:
        with self._lock:
            kept = self._kept.get(place)
            if kept is None or not _serves(kept, tools, shared):
                return None
            self._kept.move_to_end(place)
            if not all(map(is_, kept.tools, tools)):  # made anew, and perhaps kept from now on
                self._put(place, replace(kept, tools=tools))
        return kept

    def _keep(self, place: int, made: _Kept) -> None:
        if len(made.tools) > self._most:
            return
        with self._lock:
            self._put(place, made)
            while self._count > self._most:
                self._drop(next(iter(self._kept)))

    def _put(self, place: int, made: _Kept) -> None:
        if place in self._kept:
            self._drop(place)
        self._kept[place] = made
        self._same[tuple(map(id, made.tools))] = place
        self._count += len(made.tools)

    def _drop(self, place: int) -> None:
        tools = self._kept.pop(place).tools
        self._count -= len(tools)
        self._same.pop(tuple(map(id, tools)), None)


def _shadowing(view: View, places: Sequence[int]) -> View:
    """The view without the shared tools at these places."""
    mask = bytearray(view.mask or b"\x01" * len(view.snapshot.catalog))
    for place in places:
        mask[place] = 0
    keys = frozenset(view.snapshot.catalog.tools[place].key for place in places)
    mark = blake2b("\0".join(sorted(map(str, keys))).encode(), digest_size=4).hexdigest()
    return replace(view, mask=bytes(mask), version=f"{view.version}.{mark}", shadowed=keys)


def _place(tools: tuple[Tool, ...]) -> int:
    """Tells lists of tools apart to the letter: what is equal in Python may differ in JSON, as 1 and true do, and the
    order of parameters shows in a signature.
    """
    return hash((*map(_letters, tools), *[type(tool.visibility) for tool in tools]))


_written = attrgetter(*(item.name for item in fields(Tool) if item.name != "visibility"))
"""All of a tool but its visibility, which marshal does not take; comparing tells it apart from all but a plain text."""


def _letters(tool: Tool) -> bytes | str:
    try:
        return marshal.dumps(_written(tool), 0)
    except ValueError:  # something that is not plain JSON, such as a mapping of another class
        return _spelt(tool)


def _spelt(tool: Tool) -> str:
    try:
        return repr(_written(tool))
    except RecursionError:  # the catalog sets it aside
        return tool.id


def _serves(kept: _Kept, tools: tuple[Tool, ...], shared: Index) -> bool:
    """Whether what is kept is of these very tools, and compares meanings as the shared index does."""
    return kept.tools == tools and kept.index.meaning == shared.meaning and kept.index.options == shared.options


def _is_shared(view: View, tool: Tool, taken: set[Key]) -> bool:
    return tool.key in taken or view.sees(tool)
