"""Repair arguments that differ from their schema only in form, as models often write them.

This is the whole rule. It applies where a schema does not accept the arguments, at any depth:

- null for an optional property that does not allow null is left out;
- a text for an integer, a number or a boolean becomes the value that it writes as JSON: `"1"`, `"2.5"`, `"true"`;
- a text for a list or an object becomes the one that it writes as JSON.

A text stays a text wherever the schema allows one. What is still wrong afterwards is for the check to report.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from toolcrib.schema.signature import properties, required, resolve
from toolcrib.types import Object

_MAX_DEPTH: Final = 8
"""Deeper arguments stay as they are."""
_MAX_TEXT: Final = 100_000
"""Characters of a text that may hold a list or an object."""
_UNIONS: Final = ("anyOf", "oneOf")
_ANY: Final = frozenset({"any"})
_FLAGS: Final = {"True": "true", "False": "false"}


def repair(arguments: Object, schema: Object) -> dict[str, Any]:
    """The arguments with what can be repaired unambiguously.

    >>> fields = {"n": {"type": "integer"}, "all": {"type": "boolean"}, "note": {"type": "string"}}
    >>> repair({"n": "1", "all": "true", "note": None}, {"type": "object", "properties": fields})
    {'n': 1, 'all': True}
    """
    return _repair_object(arguments, resolve(schema, schema), schema, _MAX_DEPTH)


def _repair_object(given: Object, schema: Object, root: Object, depth: int) -> dict[str, Any]:
    known, needed = properties(schema), required(schema)
    kept: dict[str, Any] = {}
    for name, value in given.items():
        expected = resolve(known.get(name), root)
        if value is None and name in known and name not in needed and not _allows(expected, root, "null"):
            continue
        kept[name] = _repair_value(value, expected, root, depth - 1)
    return kept


def _repair_value(value: Any, schema: Object, root: Object, depth: int) -> Any:
    if depth == 0 or not schema:
        return value
    if isinstance(value, str):
        return _repair_text(value, schema, root, depth)
    if isinstance(value, Mapping):
        return _repair_object(value, schema, root, depth)
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        inside = resolve(items, root)
        return [_repair_value(item, inside, root, depth - 1) for item in value]
    return value


def _repair_text(text: str, schema: Object, root: Object, depth: int) -> Any:
    """The value that a text writes as JSON, if the schema allows that and no text."""
    if len(text) > _MAX_TEXT or _allows(schema, root, "string"):
        return text
    try:
        value = json.loads(_FLAGS.get(text, text), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    kind = _json_type(value)
    if kind == "string" or not (_allows(schema, root, kind) or (kind == "integer" and _allows(schema, root, "number"))):
        return text
    return _repair_value(value, schema, root, depth - 1) if isinstance(value, (dict, list)) else value


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    kinds = {float: "number", dict: "object", list: "array", str: "string"}
    return kinds.get(type(value), "null")


def _allows(schema: Object, root: Object, kind: str) -> bool:
    """Whether a resolved schema allows values of this JSON type. A schema that does not say so allows all."""
    types = _types(schema, root, _MAX_DEPTH)
    return types is _ANY or kind in types


def _types(schema: Object, root: Object, depth: int) -> frozenset[str]:
    """The JSON types that a resolved schema names; `_ANY` if it names none."""
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(map(str, named))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(map(_json_type, values))
    for union in _UNIONS:
        if isinstance(parts := schema.get(union), list) and parts and depth:
            each = [_types(resolve(part, root), root, depth - 1) for part in parts]
            return _ANY if any(one is _ANY for one in each) else frozenset().union(*each)
    return _ANY
