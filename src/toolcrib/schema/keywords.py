"""Which keywords of JSON Schema hold schemas, and functions to walk and change them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from toolcrib.types import Object

SCHEMAS_BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas", "$defs")
"""Keywords with schemas by name."""
SCHEMA_LISTS: Final = ("prefixItems", "allOf", "anyOf", "oneOf")
"""Keywords with a list of schemas."""
SINGLE_SCHEMAS: Final = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "propertyNames",
    "contains",
    "not",
    "if",
    "then",
    "else",
)
"""Keywords with one schema."""
SchemaChange = Callable[[Any], Any]


def map_subschemas(schema: Object, change: SchemaChange) -> dict[str, Any]:
    """Copy a schema with each of its direct subschemas changed.

    >>> map_subschemas({"type": "array", "items": {"type": "string"}}, lambda part: {**part, "title": "T"})
    {'type': 'array', 'items': {'type': 'string', 'title': 'T'}}
    """
    return {key: _map_keyword(key, value, change) for key, value in schema.items()}


def _map_keyword(key: str, value: Any, change: SchemaChange) -> Any:
    if key in SCHEMAS_BY_NAME and isinstance(value, Mapping):
        return {name: change(part) for name, part in value.items()}
    if (key in SCHEMA_LISTS or key == "items") and isinstance(value, list):
        return [change(part) for part in value]
    if key in SINGLE_SCHEMAS and isinstance(value, Mapping):
        return change(value)
    return value


def subschemas(schema: Object) -> list[Any]:
    """The direct subschemas of a schema.

    >>> subschemas({"properties": {"a": {"type": "string"}}, "anyOf": [True]})
    [{'type': 'string'}, True]
    """
    found: list[Any] = []
    map_subschemas(schema, found.append)
    return found


def walk_schema(schema: Any) -> Iterator[Object]:
    """The schema and all subschemas that are objects, itself first."""
    queue = [schema]
    for node in queue:
        if isinstance(node, Mapping):
            yield node
            queue.extend(subschemas(node))
