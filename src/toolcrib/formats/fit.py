"""One schema brought to what the rules take; what they do not take is said in the description."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from toolcrib.formats.rules import Rules
from toolcrib.formats.walk import changed, types
from toolcrib.model import Object

_LOOKS_AROUND: Final = re.compile(r"\(\?<?[=!]")

_WORDS: Final = frozenset({"default", "examples"})
"""Keywords of those that are said in the description which refuse nothing."""

_REFUSES: Final = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "items", "prefixItems"}
    | {"minContains", "maxContains", "dependentSchemas", "dependencies", "if", "then", "else", "enum", "const"}
    | {"anyOf", "oneOf", "allOf", "type", "required", "properties"}
)
"""Keywords that refuse something and are not said in the description."""

_SAID: Final = frozenset(
    {"minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "default", "examples"}
    | {"propertyNames", "contains", "not", "dependentRequired"}
)
"""Keywords that are said in the description where they cannot stand."""

_MAX_SAID: Final = 120
"""Characters of one rule that is said in the description."""

_KINDS: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def fitted(schema: Any, rules: Rules, notes: list[str]) -> dict[str, Any]:
    """The schema with nothing in it that the rules do not take; `notes` gets what became looser.

    >>> from toolcrib.formats.rules import GEMINI
    >>> fitted({"type": "string", "minLength": 2}, GEMINI, [])
    {'type': 'string', 'description': '(minLength: 2)'}
    """
    if not isinstance(schema, Mapping):
        return {}
    node = typed(changed(schema, lambda part: fitted(part, rules, notes)))
    _values(node, rules, notes)
    _bounds(node, rules)
    _arrays(node, rules, notes)
    if not rules.one_of and "oneOf" in node:
        _as_any_of(node, notes)
    for key in [key for key, value in node.items() if not _taken(key, value, rules)]:
        _said(node, key, notes)
    if not rules.types:
        node = _one_type(node)
    if rules.capitals and isinstance(node.get("type"), str):
        node["type"] = node["type"].upper()
    return node


def typed(node: Object) -> dict[str, Any]:
    """The schema with the type of its only values, where it names none.

    >>> typed({"const": 1}), typed({"enum": ["a", None]})
    ({'type': 'integer', 'const': 1}, {'type': ['string', 'null'], 'enum': ['a', None]})
    """
    values = [node["const"]] if "const" in node else node.get("enum")
    if "type" in node or not isinstance(values, list) or not all(type(value) in _KINDS for value in values):
        return dict(node)
    kinds = list(dict.fromkeys(_KINDS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, **node} if kinds else dict(node)


def _values(node: dict[str, Any], rules: Rules, notes: list[str]) -> None:
    if not rules.const and "const" in node:
        node["enum"] = [node.pop("const")]
    values = node.get("enum")
    if rules.enums is None or not isinstance(values, list) or all(type(value) in rules.enums for value in values):
        return
    if rules.enums == (str,) and all(type(value) in (int, float, str) for value in values):
        node["enum"] = [str(value) for value in values]  # the type says what they are
        return
    if None in values and "null" in types(node):
        rest = [kind for kind in types(node) if kind != "null"]
        del node["enum"]
        kept = [value for value in values if value is not None]
        inner = fitted({"type": rest[0] if len(rest) == 1 else rest, "enum": kept}, rules, notes)
        del node["type"]
        node["anyOf"] = [inner, {"type": "null"}]
        return
    _said(node, "enum", notes)


def _bounds(node: dict[str, Any], rules: Rules) -> None:
    """For whole numbers, a bound that is not reached is a bound that is, one further in."""
    if rules.keywords is None or types(node) != ["integer"]:
        return
    for exclusive, bound, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        value = node.get(exclusive)
        if exclusive not in rules.keywords and type(value) is int and bound not in node:
            node[bound] = node.pop(exclusive) + step


def _arrays(node: dict[str, Any], rules: Rules, notes: list[str]) -> None:
    if "prefixItems" in node and rules.keywords is not None and "prefixItems" not in rules.keywords:
        listed = node.pop("prefixItems")
        rest = [node["items"]] if isinstance(node.get("items"), Mapping) else []
        kinds: list[Any] = []
        for part in [*listed, *rest]:
            if part not in kinds:
                kinds.append(part)
        node["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        _note(notes, "the order of the kinds of items in an array is left out")
    if rules.array_items and "array" in types(node) and not isinstance(node.get("items"), Mapping):
        node["items"] = {}


def _as_any_of(node: dict[str, Any], notes: list[str]) -> None:
    branches = node.pop("oneOf")
    _note(notes, "'oneOf' is read as 'anyOf'")
    if "anyOf" not in node:
        node["anyOf"] = branches


def _taken(key: str, value: Any, rules: Rules) -> bool:
    if rules.keywords is not None and key not in rules.keywords:
        return rules.recursion and key in ("$ref", "$defs")
    if key == "format":
        return rules.formats is None or value in rules.formats
    if key == "pattern":
        return rules.patterns or not _LOOKS_AROUND.search(str(value))
    if key == "minItems":
        return rules.min_items is None or (isinstance(value, int) and value <= rules.min_items)
    return True


def _said(node: dict[str, Any], key: str, notes: list[str]) -> None:
    """Take a rule out; the description says it."""
    value = node.pop(key)
    if key in _REFUSES or (key in _SAID and key not in _WORDS):
        _note(notes, f"{key!r} is left out, or only said in the description")
    if key in _SAID or key == "enum":
        text = f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}"
        text = text if len(text) <= _MAX_SAID else f"{text[: _MAX_SAID - 1]}…"
        node["description"] = f"{node.get('description', '')} ({text})".strip()


def _one_type(node: dict[str, Any]) -> dict[str, Any]:
    """Without lists of types and without the type null: `nullable` and `anyOf` in their place."""
    kinds = types(node)
    branches = node.get("anyOf")
    if isinstance(branches, list):
        rest = [branch for branch in branches if branch.get("type") != "NULL"]
        if len(rest) < len(branches):
            node["nullable"] = True
            del node["anyOf"]
            node = {**rest[0], **node} if len(rest) == 1 else {**node, "anyOf": rest}
    if not isinstance(node.get("type"), list):
        return node
    rest_kinds = [kind for kind in kinds if kind != "null"]
    del node["type"]
    if len(rest_kinds) < len(kinds):
        node["nullable"] = True
    if len(rest_kinds) == 1:
        return {"type": rest_kinds[0], **node}
    return {**node, "anyOf": [{"type": kind.upper()} for kind in rest_kinds]} if rest_kinds else node


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)
