"""Empty tables where a schema wants arrays: Lua has one kind of empty table, JSON two."""

from typing import Any

from toolcrib.model import JSON, Object

_DEPTH = 16


def as_schema_says(arguments: dict[str, Any], schema: Object) -> dict[str, Any]:
    """The arguments with `[]` for `{}` wherever the schema says array and not object.

    >>> as_schema_says({"tags": {}, "more": {}}, {"properties": {"tags": {"type": "array"}}})
    {'tags': [], 'more': {}}
    """
    fixed: dict[str, Any] = _fixed(arguments, {**schema, "type": "object"}, 0)
    return fixed


def _fixed(value: JSON, schema: JSON, depth: int) -> JSON:
    if not isinstance(schema, dict) or depth > _DEPTH or not isinstance(value, dict | list):
        return value
    if value == {} and isinstance(value, dict):
        return [] if _is_array(schema) else value
    if isinstance(value, list):
        items = schema.get("items")
        return [_fixed(item, items, depth + 1) for item in value] if isinstance(items, dict) else value
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return value
    return {name: _fixed(item, properties.get(name), depth + 1) for name, item in value.items()}


def _is_array(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return "array" in kinds and "object" not in kinds
