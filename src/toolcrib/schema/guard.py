"""How much work a schema with references can make of an argument, worked out before any is done.

A definition that refers twice to another, which refers twice to a third, is small to write and takes for ever to
check. A recursive one can do the same with a deep argument. Both are counted here, on the schema alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import log
from typing import Any

from toolcrib.model import Object
from toolcrib.schema.refs import pointed

_MAX_WORK = 10_000_000
"""Schema steps one check may take: about 0.1 s."""

_MAX_EFFORT = 200_000
"""Steps the count itself may take."""

_MAX_DEPTH = 100
"""Levels of an argument that are checked at all: a check recurses, and deep enough it would exhaust the stack."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
_HERE = ("not", "if", "then", "else")
_SEVERAL_HERE = ("allOf", "anyOf", "oneOf")
_NAMED_HERE = ("dependentSchemas", "dependencies")
_BELOW = ("items", "additionalProperties", "additionalItems", "contains", "unevaluatedItems", "unevaluatedProperties")
_ANYWHERE = ""
"""The name of a child that may be any child."""


def max_depth(schema: Object) -> int | None:
    """How deep an argument may be nested to be checked; None when it does not matter.

    0 when nothing can be checked against the schema in reasonable time.

    >>> max_depth({"type": "object"}), max_depth({"properties": {"next": {"$ref": "#"}}})
    (None, 100)
    """
    if not _refers(schema):
        return None
    try:
        growth = _Guard(schema).growth()
    except (OverflowError, RecursionError):
        return 0
    return _MAX_DEPTH if growth <= 1 else min(_MAX_DEPTH, int(log(_MAX_WORK) / log(growth)))


def checkable(value: Any, limit: int | None) -> bool:
    """Whether a value is nested no deeper than the limit; a value of its own has depth 1.

    >>> checkable({"a": [1]}, 2), checkable({"a": [1]}, 1), checkable({}, None)
    (True, False, True)
    """
    if limit is None:
        return True
    level = [value]
    for _ in range(limit):
        level = [child for node in level for child in _contents(node) if isinstance(child, (Mapping, list, tuple))]
        if not level:
            return True
    return False


def _contents(node: Any) -> Any:
    return node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ()


class _Guard:
    """The parts of one schema, and how often a check of one comes to the others."""

    def __init__(self, root: Object) -> None:
        self._root = root
        self._nodes = [node for node in _walk(root) if isinstance(node, Mapping)]
        self._named = [node for node in self._nodes if any(name in node for name in _NAMES)] or [root]
        self._applied: dict[int, Counter[int]] = {}
        self._by_id = {id(node): node for node in self._nodes}
        self._effort = 0

    def growth(self) -> int:
        """How many times more parts a check may meet with each level of the argument."""
        return max((self._growth(node) for node in self._nodes), default=1)

    def _growth(self, node: Object) -> int:
        times: Counter[str] = Counter()
        for part, count in self._all_applied(node).items():
            for name, child in _below(self._by_id[part]):
                if _refers(child):
                    times[name] += count
        anywhere = times.pop(_ANYWHERE, 0)
        return anywhere + max(times.values(), default=0)

    def _all_applied(self, node: Object) -> Counter[int]:
        """The parts that are applied to whatever this one is applied to, and how often."""
        known = self._applied.get(id(node))
        if known is not None:
            return known
        self._applied[id(node)] = Counter()
        found = Counter([id(node)])
        for part in self._here(node):
            found.update(self._all_applied(part))
            self._effort += len(found)
            if found.total() > _MAX_WORK or self._effort > _MAX_EFFORT:
                raise OverflowError
        self._applied[id(node)] = found
        return found

    def _here(self, node: Object) -> Iterator[Object]:
        for part in _applied_here(node):
            if isinstance(part, Mapping) and id(part) in self._by_id:
                yield part
        for key in _REFERENCES:
            if key in node:
                target = pointed(node[key], self._root)
                yield from [target] if isinstance(target, Mapping) and id(target) in self._by_id else self._named


def _applied_here(node: Object) -> Iterator[Any]:
    """The parts of a schema that are applied to the same value."""
    for key in _HERE:
        yield node.get(key)
    for key in _SEVERAL_HERE:
        yield from _contents(node.get(key))
    for key in _NAMED_HERE:
        yield from _contents(node.get(key))


def _below(node: Object) -> Iterator[tuple[str, Any]]:
    """The parts of a schema that are applied to what is inside the value, by name."""
    for key in _BELOW:
        if key in node:
            yield _ANYWHERE, node[key]
    for child in _contents(node.get("prefixItems")):
        yield _ANYWHERE, child
    for child in _contents(node.get("patternProperties")):
        yield _ANYWHERE, child
    found = node.get("properties")
    if isinstance(found, Mapping):
        yield from found.items()


def _refers(node: Any) -> bool:
    text = repr(node)
    return any(reference in text for reference in _REFERENCES)


def _walk(root: Any) -> Iterator[Any]:
    """Every value in a schema, itself first, the same object once."""
    queue, seen = [root], {id(root)}
    for node in queue:
        yield node
        for child in _contents(node):
            if isinstance(child, (Mapping, list)) and id(child) not in seen:
                seen.add(id(child))
                queue.append(child)
