"""The shapes of JSON values: types and field names, never values.

Field names are kept only for objects with few fields: an object with many is a table whose keys are data.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from toolcrib.sanitize import shorten
from toolcrib.schema.signature import json_type
from toolcrib.types import JSON

_MAX_CHARS: Final = 600
_MAX_FIELDS: Final = 25
"""An object with more fields is a table."""
_SAMPLED_ITEMS: Final = 5
_MAX_DEPTH: Final = 5
_FIELD_NAME: Final = re.compile(r"[^\W\d][\w.-]{0,39}")


def shape_of(value: JSON, max_chars: int = _MAX_CHARS) -> str:
    """Write the types of a value on one line of at most `max_chars` characters.

    >>> shape_of({"users": [{"id": 1, "name": "Ann"}, {"id": 2}], "next": None})
    '{ users: { id: integer, name?: string }[], next: null }'
    """
    return shorten(_shape(value, _MAX_DEPTH), max_chars)


def _shape(value: JSON, depth: int) -> str:
    if isinstance(value, dict):
        return _object_shape([value], depth)
    if isinstance(value, list):
        return _array_shape(value, depth)
    return json_type(value)


def _array_shape(items: list[Any], depth: int) -> str:
    if not items:
        return "[]"
    of = _union(items[:_SAMPLED_ITEMS], depth - 1)
    return f"({of})[]" if " | " in of and not of.startswith("{") else f"{of}[]"


def _union(values: list[Any], depth: int) -> str:
    """Merge the shapes of several values for the same place."""
    objects = [value for value in values if isinstance(value, dict)]
    others = dict.fromkeys(_shape(value, depth) for value in values if not isinstance(value, dict))
    return " | ".join([*([_object_shape(objects, depth)] if objects else []), *others])


def _object_shape(values: list[dict[str, Any]], depth: int) -> str:
    """Merge objects of one kind; a `?` marks a field that some of them lack."""
    names = list(dict.fromkeys(name for value in values for name in value))
    if not names:
        return "{}"
    if depth <= 0:
        return "{ … }"
    if len(names) > _MAX_FIELDS or not _are_fields(names):
        first = [item for value in values for item in list(value.values())[:_SAMPLED_ITEMS]]
        return f"{{ [key]: {_union(first[:_SAMPLED_ITEMS], depth - 1)} }}"
    return f"{{ {', '.join(_field(name, values, depth) for name in names)} }}"


def _field(name: str, values: list[dict[str, Any]], depth: int) -> str:
    found = [value[name] for value in values if name in value]
    return f"{name}{'' if len(found) == len(values) else '?'}: {_union(found, depth - 1)}"


def _are_fields(names: Iterable[str]) -> bool:
    return all(_FIELD_NAME.fullmatch(name) for name in names)
