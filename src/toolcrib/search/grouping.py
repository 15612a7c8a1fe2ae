"""Group what a search found: near-duplicates, or the same tool of several servers, are under the best of them."""

import re
from collections import defaultdict
from collections.abc import Container, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from toolcrib.names import fold
from toolcrib.search.index import IndexView
from toolcrib.types import Hit, Object, Tool

# -- near-duplicates -------------------------------------------------------------------------------------------------


_DUPLICATE_COSINE = 0.9
"""Two tools are near-duplicates from this cosine on."""
_SAME_NAME_COSINE = 0.7
"""The same for tools of one name. Source of both: tried on a catalog of 20,000 public tools."""


def near_duplicates(
    view: IndexView, places: Sequence[tuple[int, int]], tools: Sequence[Tool]
) -> Mapping[int, tuple[str, ...]]:
    """The number of each tool that is the best of its near-duplicates, in order, with the ids of the others.

    `places` has part and position of each tool.
    """
    rows = [view.parts[part].segment.features.meaning.dequantize(np.array([position])) for part, position in places]
    vectors = np.concatenate(rows)
    likeness = (vectors @ vectors.T).tolist()
    names = [fold(tool.name) for tool in tools]
    leaders: dict[int, list[str]] = {}
    for place, tool in enumerate(tools):
        under = next(
            (leader for leader in leaders if likeness[leader][place] >= _duplicate_threshold(names, leader, place)),
            None,
        )
        if under is None:
            leaders[place] = []
        else:
            leaders[under].append(tool.id)
    return {leader: tuple(ids) for leader, ids in leaders.items()}


def _duplicate_threshold(names: Sequence[str], one: int, other: int) -> float:
    return _SAME_NAME_COSINE if names[one] == names[other] else _DUPLICATE_COSINE


# -- the same tool of several servers --------------------------------------------------------------------------------

_SAME_WORDS = 0.8
"""Two descriptions say the same if they share at least this part of their words. Of 246 pairs of tools with one name at
160 public servers, nine have equal parameters: four pairs share 0.89 or more, the others 0.7 or less."""
_COMPARED_CHARS = 2_000
"""Characters of a description that are compared."""
_WORD = re.compile(r"\w+")
_HINTS = ("readOnlyHint", "destructiveHint")
_PROSE = frozenset({"title", "description", "default", "examples", "$schema", "additionalProperties"})
"""Keywords that do not tell which arguments a tool takes."""


def same_tools(tools: Sequence[Tool], names: Sequence[str], limit: int) -> Mapping[int, tuple[str, ...]]:
    """The number of each tool that is the best of the same tools, in order, with the ids of those of other servers.

    `names` has the folded name of each tool. Only the first groups are made, up to the limit.
    """
    groups = _same_tools(tools, names, limit)
    shown = {tools[best].id for best in groups}
    return {best: _without([tools[place].id for place in places], shown) for best, places in groups.items()}


def group_same_tools(hits: Sequence[Hit]) -> list[Hit]:
    """Put the same tool of other servers under the best hit of each query, but no tool that the query names.

    Hits that have a group already keep it.
    """
    names = [(hit.query, fold(hit.tool.name)) for hit in hits]
    if len(set(names)) == len(names):
        return list(hits)
    named = {place for place, hit in enumerate(hits) if hit.named}
    groups = _same_tools([hit.tool for hit in hits], names, len(hits), named)
    shown: defaultdict[int, set[str]] = defaultdict(set)
    for best in groups:
        shown[hits[best].query].add(hits[best].tool.id)
    return [
        _with_similar(hits[best], [hits[place] for place in places], shown[hits[best].query])
        for best, places in groups.items()
    ]


def _same_tools(
    tools: Sequence[Tool], names: Sequence[Hashable], limit: int, apart: Container[int] = ()
) -> Mapping[int, Sequence[int]]:
    """The numbers of the best tools, in order, with those of the same tools; those `apart` are under no other."""
    namesakes: dict[Hashable, list[int]] = {}
    groups: dict[int, list[int]] = {}
    for place, name in enumerate(names):
        known = namesakes.get(name)
        best = None
        if known and place not in apart:
            best = next((one for one in known if is_same_tool(tools[one], tools[place])), None)
        if best is not None:
            groups[best].append(place)
        elif len(groups) < limit:
            groups[place] = []
            namesakes.setdefault(name, []).append(place)
    return groups


def _with_similar(hit: Hit, others: Sequence[Hit], shown: AbstractSet[str]) -> Hit:
    ids = [*hit.similar, *chain.from_iterable([(other.tool.id, *other.similar) for other in others])]
    similar = _without(ids, shown)
    return hit if similar == hit.similar else replace(hit, similar=similar)


def _without(ids: Sequence[str], shown: AbstractSet[str]) -> tuple[str, ...]:
    return tuple([id_ for id_ in dict.fromkeys(ids) if id_ not in shown])


def is_same_tool(one: Tool, other: Tool) -> bool:
    """Whether two tools with one name are the same tool of two servers.

    They have the same parameters and hints, and almost the same description.
    """
    return (
        one.namespace != other.namespace
        and _takes_same(one.input_schema, other.input_schema)
        and _says_same(one.description, other.description)
        and all(one.annotations.get(hint) == other.annotations.get(hint) for hint in _HINTS)
    )


def _says_same(one: str, other: str) -> bool:
    if one == other:
        return True
    words, others = (set(_WORD.findall(text[:_COMPARED_CHARS].lower())) for text in (one, other))
    return 2 * len(words & others) >= _SAME_WORDS * (len(words) + len(others))


def _takes_same(one: Object, other: Object) -> bool:
    """Whether two schemas take the same arguments, apart from what they say about them."""
    if one == other:
        return True
    nodes, others = one.get("properties", {}), other.get("properties", {})
    if nodes.keys() != others.keys() or set(one.get("required", ())) != set(other.get("required", ())):
        return False
    rest, more = ({**_without_prose(schema), "properties": None, "required": None} for schema in (one, other))
    return rest == more and all(_without_prose(node) == _without_prose(others[name]) for name, node in nodes.items())


def _without_prose(node: Any) -> Any:
    return {key: node[key] for key in node if key not in _PROSE} if isinstance(node, Mapping) else node
