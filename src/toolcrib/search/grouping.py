"""Group hits: near-duplicates, or the same tool of several servers, are listed as similar under the best of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
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


def group_duplicates(view: IndexView, places: Sequence[tuple[int, int]], hits: Sequence[Hit]) -> list[Hit]:
    """Put near-duplicates under the best of them. `places` has part and position of each hit."""
    rows = [view.parts[part].segment.features.meaning.dequantize(np.array([position])) for part, position in places]
    vectors = np.concatenate(rows)
    likeness = (vectors @ vectors.T).tolist()
    names = [fold(hit.tool.name) for hit in hits]
    leaders: dict[int, list[str]] = {}
    for place, hit in enumerate(hits):
        under = next(
            (leader for leader in leaders if likeness[leader][place] >= _duplicate_threshold(names, leader, place)),
            None,
        )
        if under is None:
            leaders[place] = []
        else:
            leaders[under].append(hit.tool.id)
    return [replace(hits[leader], similar=tuple(ids)) for leader, ids in leaders.items()]


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


def group_same_tools(hits: Sequence[Hit]) -> list[Hit]:
    """Put the same tool of other servers under the best hit of each query, but no tool that the query names.

    Hits that have a group already keep it.
    """
    names = [(hit.query, fold(hit.tool.name)) for hit in hits]
    if len(set(names)) == len(names):
        return list(hits)
    namesakes: dict[tuple[int, str], list[int]] = {}
    groups: dict[int, list[str]] = {}
    for place, (hit, name) in enumerate(zip(hits, names, strict=True)):
        known = namesakes.setdefault(name, [])
        best = None if hit.named else next((one for one in known if is_same_tool(hits[one].tool, hit.tool)), None)
        if best is None:
            known.append(place)
            groups[place] = [*hit.similar]
        else:
            groups[best] += [hit.tool.id, *hit.similar]
    shown = {(hits[place].query, hits[place].tool.id) for place in groups}
    return [_with_similar(hits[place], ids, shown) for place, ids in groups.items()]


def _with_similar(hit: Hit, ids: Sequence[str], shown: set[tuple[int, str]]) -> Hit:
    similar = tuple(id_ for id_ in dict.fromkeys(ids) if (hit.query, id_) not in shown)
    return hit if similar == hit.similar else replace(hit, similar=similar)


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
    nodes, others = one.get("properties", {}), other.get("properties", {})
    if nodes.keys() != others.keys() or set(one.get("required", ())) != set(other.get("required", ())):
        return False
    if one == other:
        return True
    rest, more = ({**_without_prose(schema), "properties": None, "required": None} for schema in (one, other))
    return rest == more and all(_without_prose(node) == _without_prose(others[name]) for name, node in nodes.items())


def _without_prose(node: Any) -> Any:
    return {key: node[key] for key in node if key not in _PROSE} if isinstance(node, Mapping) else node
