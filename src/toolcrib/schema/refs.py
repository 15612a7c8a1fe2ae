"""Reading a schema by parts: local references, `allOf`, and the guards that keep hostile ones cheap.

It never fetches anything, and never fails: what cannot be read is an empty schema, which allows everything.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from toolcrib.model import Object

_MAX_HOPS = 16
"""How many references in a row are followed."""

_MERGED = ("allOf", "$ref")


def resolve(schema: Any, root: Object) -> Object:
    """The schema with its own `$ref` and `allOf` read into it, one level deep; {} for what is no object.

    >>> resolve({"$ref": "#/$defs/a", "title": "T"}, {"$defs": {"a": {"type": "string"}}})
    {'title': 'T', 'type': 'string'}
    """
    parts = _parts(schema, root)
    if len(parts) == 1 and not any(key in parts[0] for key in _MERGED):
        return parts[0]
    return merged({key: value for key, value in part.items() if key not in _MERGED} for part in parts)


def merged(parts: Iterable[Object]) -> dict[str, Any]:
    """Several schemas as one: properties and requirements joined; of other keywords, the first one seen stays.

    >>> merged([{"required": ["a"], "title": "T"}, {"required": ["b"], "title": "U"}])
    {'required': ['a', 'b'], 'title': 'T'}
    """
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            whole[key] = _joined(key, whole[key], value) if key in whole else value
    return whole


def at(schema: Object, path: Iterable[str | int]) -> Any:
    """The part of a schema at the end of a path that may lead through references; {} where it leads nowhere."""
    node: Any = schema
    for step in path:
        if step == "$ref" and isinstance(node, Mapping):
            node = pointed(node.get("$ref"), schema)
        elif isinstance(node, Mapping):
            node = node.get(str(step))
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            return {}
    return node


def properties(schema: Object) -> Mapping[str, Any]:
    """The properties of a resolved schema; empty where there are none.

    >>> properties({"properties": 3})
    {}
    """
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def required(schema: Object) -> tuple[str, ...]:
    """The required names of a resolved schema, each once, in order."""
    found = schema.get("required")
    return tuple(dict.fromkeys(name for name in found if isinstance(name, str))) if isinstance(found, list) else ()


def _parts(schema: Any, root: Object) -> list[Object]:
    """The schema, then what its `$ref` and `allOf` bring, nearest first; each object once."""
    parts: list[Object] = []
    seen: set[int] = set()
    queue = [schema]
    while queue and len(parts) < _MAX_HOPS:
        part = queue.pop(0)
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        parts.append(part)
        if "$ref" in part:
            queue.append(pointed(part["$ref"], root))
        if isinstance(all_of := part.get("allOf"), list):
            queue.extend(all_of[:_MAX_HOPS])
    return parts or [{}]


def _joined(key: str, first: Any, second: Any) -> Any:
    if key == "properties" and isinstance(first, Mapping) and isinstance(second, Mapping):
        return {**first, **{name: node for name, node in second.items() if name not in first}}
    if key == "required" and isinstance(first, list) and isinstance(second, list):
        return [*first, *(name for name in second if name not in first)]
    return first


def pointed(reference: Any, root: Object) -> Any:
    """What a local reference (`#`, `#/a/b`, `#anchor`) points to; None for any other.

    >>> pointed("#/$defs/a~1b", {"$defs": {"a/b": {"type": "null"}}})
    {'type': 'null'}
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    pointer = unquote(reference[1:])
    if pointer and not pointer.startswith("/"):
        return _anchored(pointer, root)
    node: Any = root
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def _anchored(anchor: str, root: Object) -> Any:
    """The definition with that `$anchor`; only definitions are looked through."""
    for home in ("$defs", "definitions"):
        found = root.get(home)
        for definition in found.values() if isinstance(found, Mapping) else ():
            if isinstance(definition, Mapping) and definition.get("$anchor") == anchor:
                return definition
    return None
