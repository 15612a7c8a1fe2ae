"""Where the parts of a JSON Schema are, so that a change can be made to each of them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from toolcrib.model import Object

BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas", "$defs")
"""Keywords that hold schemas by name."""

IN_ORDER: Final = ("prefixItems", "allOf", "anyOf", "oneOf")
"""Keywords that hold a list of schemas."""

ALONE: Final = (
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
"""Keywords that hold one schema."""

Change = Callable[[Any], Any]


def changed(schema: Object, change: Change) -> dict[str, Any]:
    """A copy of a schema with each of its direct parts changed; what is no schema stays as it is.

    >>> changed({"type": "array", "items": {"type": "string"}}, lambda part: {**part, "title": "T"})
    {'type': 'array', 'items': {'type': 'string', 'title': 'T'}}
    """
    return {key: _changed(key, value, change) for key, value in schema.items()}


def _changed(key: str, value: Any, change: Change) -> Any:
    if key in BY_NAME and isinstance(value, Mapping):
        return {name: change(part) for name, part in value.items()}
    if (key in IN_ORDER or key == "items") and isinstance(value, list):
        return [change(part) for part in value]
    if key in ALONE and isinstance(value, Mapping):
        return change(value)
    return value


def parts(schema: Object) -> Iterator[Any]:
    """The direct parts of a schema.

    >>> list(parts({"properties": {"a": {"type": "string"}}, "anyOf": [True]}))
    [{'type': 'string'}, True]
    """
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, Mapping):
            yield from value.values()
        elif (key in IN_ORDER or key == "items") and isinstance(value, list):
            yield from value
        elif key in ALONE and isinstance(value, Mapping):
            yield value


def every(schema: Any) -> Iterator[Object]:
    """The schema and everything below it that is an object, the schema first."""
    queue = [schema]
    for node in queue:
        if isinstance(node, Mapping):
            yield node
            queue.extend(parts(node))


def sound(key: str, value: Any) -> bool:
    """Whether a keyword has a value of the kind that it must have.

    >>> sound("properties", {}), sound("properties", None), sound("type", [])
    (True, False, False)
    """
    if key in BY_NAME:
        return isinstance(value, Mapping)
    if key in IN_ORDER or key in ("required", "enum"):
        return isinstance(value, list)
    if key in ALONE:
        return isinstance(value, (Mapping, bool)) or (key == "items" and isinstance(value, list))
    if key == "type":
        return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(map(_is_text, value)))
    return key not in ("title", "description") or isinstance(value, str)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def types(schema: Object) -> list[str]:
    """The types a schema names; empty where it names none.

    >>> types({"type": "string"}), types({"type": ["string", "null"]}), types({})
    (['string'], ['string', 'null'], [])
    """
    kind = schema.get("type")
    return [kind] if isinstance(kind, str) else [each for each in kind or () if isinstance(each, str)]


def names(schema: Object) -> Mapping[str, Any]:
    """The properties of an object schema; empty where there are none."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def needed(schema: Object) -> list[str]:
    """The names a schema requires, each once."""
    found = schema.get("required")
    return list(dict.fromkeys(name for name in found if isinstance(name, str))) if isinstance(found, list) else []
