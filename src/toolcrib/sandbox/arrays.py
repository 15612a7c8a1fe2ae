"""Empty tables where a schema wants arrays: Lua has one kind of empty table, JSON two."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from toolcrib.model import JSON, Object

_DEPTH: Final = 16
_ALTERNATIVES: Final = 64
"""Schemas that are looked at for one value; more are as good as none."""


def as_schema_says(arguments: dict[str, Any], schema: Object) -> dict[str, Any]:
    """The arguments with `[]` for `{}` wherever the schema takes an array there and no object.

    >>> as_schema_says({"tags": {}, "more": {}}, {"properties": {"tags": {"type": "array"}}})
    {'tags': [], 'more': {}}
    >>> tags = {"anyOf": [{"type": "array"}, {"type": "null"}]}
    >>> as_schema_says({"tags": {}}, {"properties": {"tags": {"$ref": "#/$defs/Tags"}}, "$defs": {"Tags": tags}})
    {'tags': []}
    """
    root = {**schema, "type": "object"}
    fixed: dict[str, Any] = _fixed(arguments, [root], root, 0)
    return fixed


def _fixed(value: JSON, schemas: Sequence[JSON], root: Object, depth: int) -> JSON:
    if depth > _DEPTH or not schemas or not isinstance(value, dict | list):
        return value
    known = list(_alternatives(schemas, root))
    if isinstance(value, list):
        items = [schema["items"] for schema in known if "items" in schema]
        return [_fixed(item, items, root, depth + 1) for item in value]
    if not value:
        return [] if _takes_array_only(known) else value
    return {name: _fixed(item, _of_property(known, name), root, depth + 1) for name, item in value.items()}


def _alternatives(schemas: Sequence[JSON], root: Object) -> Iterator[Object]:
    """What the schemas say themselves, by reference, and by their alternatives."""
    left, looked_at = list(schemas), 0
    while left and looked_at < _ALTERNATIVES:
        schema, looked_at = left.pop(), looked_at + 1
        if not isinstance(schema, dict):
            continue
        yield schema
        if isinstance(schema.get("$ref"), str):
            left.append(_referred(schema["$ref"], root))
        for many in ("allOf", "anyOf", "oneOf"):
            if isinstance(schema.get(many), list):
                left.extend(schema[many])


def _referred(reference: str, root: Object) -> JSON:
    """What a reference within the schema means; None for any other."""
    if not reference.startswith("#"):
        return None
    place: JSON = dict(root)
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, dict) else None
    return place


def _of_property(schemas: Sequence[Object], name: str) -> list[JSON]:
    found: list[JSON] = []
    for schema in schemas:
        properties = schema.get("properties")
        if isinstance(properties, dict) and name in properties:
            found.append(properties[name])
        else:
            found.append(schema.get("additionalProperties"))
    return found


def _takes_array_only(schemas: Sequence[Object]) -> bool:
    kinds: set[JSON] = set()
    for schema in schemas:
        kind = schema.get("type")
        kinds.update(item for item in (kind if isinstance(kind, list) else [kind]) if isinstance(item, str))
        if "properties" in schema:
            kinds.add("object")
    return "array" in kinds and "object" not in kinds
