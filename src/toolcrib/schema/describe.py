"""A schema in words a model reads at a glance: its parameters, and the tool's signature in one line."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from toolcrib.model import Object, Tool
from toolcrib.schema.refs import properties, required, resolve

MAX_SIGNATURE = 400
"""Characters of a signature."""

MAX_PARAMETERS = 200
"""Parameters that are read from a schema; the rest are not described."""

_MAX_TYPE = 80
"""Characters of one type."""

_MAX_OPTIONS = 6
"""Values of an enum, or branches of a union, that are spelled out."""

_MAX_LITERAL = 24
"""Characters of one literal value."""

_DEPTH = 2
"""Levels of nested objects that are spelled out."""

_IDENTIFIER = re.compile(r"[^\W\d][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    type: str
    """Readable: `string`, `integer[]`, `"open"|"closed"`, `{id: string, …}`."""
    required: bool = False
    description: str = ""
    default: Any = None
    """None where there is none, and where it is null."""


def parameters(schema: Object) -> tuple[Parameter, ...]:
    """The parameters of an input schema, in its order; `$ref`, `allOf` and nullable unions are read through.

    >>> parameters({"type": "object", "properties": {"n": {"type": "integer", "default": 3}}, "required": ["n"]})
    (Parameter(name='n', type='integer', required=True, description='', default=3),)
    """
    whole = resolve(schema, schema)
    needed = frozenset(required(whole))
    found = list(properties(whole).items())[:MAX_PARAMETERS]
    return tuple(_parameter(name, node, schema, needed=name in needed) for name, node in found)


def signature(tool: Tool) -> str:
    """One line of at most 400 characters: name, parameters, types; required ones first, `?` marks optional ones.

    >>> signature(Tool(name="add", input_schema={"type": "object", "properties": {"a": {"type": "number"}}}))
    'add(a?: number)'
    """
    return signed(tool.name, tool.input_schema)


def signed(name: str, schema: Object) -> str:
    """The signature of a tool of that name with that input schema."""
    found = parameters(schema)
    ordered = sorted(found, key=lambda parameter: not parameter.required)
    shown = _one_line(name, MAX_SIGNATURE // 2)
    words = [_field(parameter.name, parameter.type, needed=parameter.required) for parameter in ordered]
    return f"{shown}({_fitted(words, MAX_SIGNATURE - len(shown) - 2, len(words))})"


def type_text(node: Any, root: Object, depth: int = _DEPTH) -> str:
    """The type of one schema as text of at most 80 characters.

    >>> type_text({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}, {})
    'string[]|null'
    """
    if node is False:
        return "never"
    return _cut(_type(resolve(node, root), root, depth), _MAX_TYPE)


def literal(value: Any, limit: int = _MAX_LITERAL) -> str:
    """A JSON value on one line, cut to a length."""
    if isinstance(value, str):
        return json.dumps(_cut(value[: limit + 1], limit), ensure_ascii=False)
    if isinstance(value, (dict, list)):
        return "{…}" if isinstance(value, dict) and value else "[…]" if value else json.dumps(value)
    return _cut(json.dumps(value, default=repr), limit)


def _parameter(name: str, node: Any, root: Object, *, needed: bool) -> Parameter:
    schema = resolve(node, root)
    description = schema.get("description")
    return Parameter(
        name=name,
        type=type_text(node, root),
        required=needed,
        description=description if isinstance(description, str) else "",
        default=schema.get("default"),
    )


def _type(schema: Object, root: Object, depth: int) -> str:
    if "const" in schema:
        return literal(schema["const"])
    if isinstance(options := schema.get("enum"), list) and options:
        return _union((literal(option) for option in options[: _MAX_OPTIONS + 1]), len(options))
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list) and branches and "properties" not in schema:
            if depth <= 0:
                return "any"
            texts = (type_text(branch, root, depth - 1) for branch in branches[: _MAX_OPTIONS + 1])
            return _union(texts, len(branches))
    return _plain(schema, root, depth)


def _plain(schema: Object, root: Object, depth: int) -> str:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return _union((_of_kind(kind, schema, root, depth) for kind in kinds[: _MAX_OPTIONS + 1]), len(kinds))
    if isinstance(kinds, str):
        return _of_kind(kinds, schema, root, depth)
    return _of_kind(
        "object" if "properties" in schema else "array" if "items" in schema else "any", schema, root, depth
    )


def _of_kind(kind: Any, schema: Object, root: Object, depth: int) -> str:
    if kind == "array":
        items = type_text(schema["items"], root, depth - 1) if depth > 0 and "items" in schema else "any"
        return f"({items})[]" if "|" in items and not items.startswith("{") else f"{items}[]"
    if kind == "object" and depth > 0 and (found := properties(schema)):
        needed = frozenset(required(schema))
        words = (
            _field(name, type_text(node, root, depth - 1), needed=name in needed)
            for name, node in list(found.items())[:_MAX_OPTIONS]
        )
        return "{" + _fitted(list(words), _MAX_TYPE - 2, len(found)) + "}"
    return str(kind) if isinstance(kind, str) else "any"


def _union(texts: Iterable[str], total: int) -> str:
    shown: list[str] = []
    for text in dict.fromkeys(texts):
        if len(shown) == _MAX_OPTIONS or sum(map(len, shown)) + len(shown) + len(text) > _MAX_TYPE - 8:
            return "|".join([*shown, "…"])
        shown.append(text)
    return "|".join([*shown, "…"] if total > _MAX_OPTIONS else shown)


def _field(name: str, kind: str, *, needed: bool) -> str:
    shown = name if _IDENTIFIER.fullmatch(name) and len(name) <= _MAX_TYPE else literal(name, _MAX_TYPE)
    return f"{shown}{'' if needed else '?'}: {kind}"


def _fitted(words: list[str], room: int, total: int) -> str:
    """The words, comma-separated; those of the total that do not fit are counted."""
    text = ", ".join(words)
    if len(text) <= room and total == len(words):
        return text
    shown: list[str] = []
    used = len("… +000 more")
    for word in words:
        used += len(word) + 2
        if used > room:
            break
        shown.append(word)
    return ", ".join([*shown, f"… +{total - len(shown)} more"])


def _one_line(text: str, limit: int) -> str:
    return _cut(" ".join(text[: limit + 1].split()), limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
