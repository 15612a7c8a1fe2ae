"""Read a JSON Schema: follow references, walk subschemas, list parameters, write a tool's signature on one line.

Nothing here fetches or fails: what cannot be read counts as the empty schema, which allows everything.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote, urljoin

from toolcrib.sanitize import shorten
from toolcrib.types import Object, SameObject, Tool

_MAX_HOPS = 16
"""References in a row that are followed."""
_MERGED_KEYWORDS = ("allOf", "$ref")
MAX_SIGNATURE = 400
"""Maximum length of a signature, in characters."""
MAX_PARAMETERS = 200
"""Parameters that are read from a schema; the rest are ignored."""
_MAX_TYPE = 80
"""Maximum length of one type, in characters."""
_MAX_OPTIONS = 6
"""Values of an enum, or branches of a union, that are spelled out."""
_MAX_LITERAL = 24
"""Maximum length of one literal value, in characters."""
_MAX_DEPTH = 2
"""Levels of nested objects that are spelled out."""
_IDENTIFIER = re.compile(r"[^\W\d][\w.-]*")
SCHEMAS_BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas", "$defs")
"""Keywords with schemas by name."""
SCHEMA_LISTS: Final = ("prefixItems", "allOf", "anyOf", "oneOf")
"""Keywords with a list of schemas."""
SINGLE_SCHEMAS: Final = (
    *("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"),
    *("propertyNames", "contains", "not", "if", "then", "else"),
)
"""Keywords with one schema."""
_VALUE_KEYWORDS: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords with values in which nothing is a schema."""
_JSON_TYPES: tuple[tuple[Any, str], ...] = (
    (type(None), "null"),
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    ((list, tuple), "array"),
    (Mapping, "object"),
)
SchemaChange = Callable[[Any], Any]


def resolve(schema: Any, root: Object) -> Object:
    """Merge the `$ref` and `allOf` of a schema into it, one level deep; {} for what is not an object.

    >>> resolve({"$ref": "#/$defs/a", "title": "T"}, {"$defs": {"a": {"type": "string"}}})
    {'title': 'T', 'type': 'string'}
    """
    if type(schema) is dict and "$ref" not in schema and "allOf" not in schema:  # as most are
        return schema
    parts = _referenced_parts(schema, root)
    if len(parts) == 1 and not any(key in parts[0] for key in _MERGED_KEYWORDS):
        return parts[0]
    return merge_schemas({key: value for key, value in part.items() if key not in _MERGED_KEYWORDS} for part in parts)


def merge_schemas(parts: Iterable[Object]) -> dict[str, Any]:
    """Merge schemas: properties and requirements are joined; of other keywords, the first wins.

    >>> merge_schemas([{"required": ["a"], "title": "T"}, {"required": ["b"], "title": "U"}])
    {'required': ['a', 'b'], 'title': 'T'}
    """
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            whole[key] = _merge_keyword(key, whole[key], value) if key in whole else value
    return whole


def subschema_at(schema: Object, path: Iterable[str | int]) -> Any:
    """The subschema at a path, which may lead through references; {} if there is none."""
    node: Any = schema
    for step in path:
        if step == "$ref" and isinstance(node, Mapping):
            node = resolve_pointer(node.get("$ref"), schema)
        elif isinstance(node, Mapping):
            node = node.get(str(step))
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            return {}
    return node


def properties(schema: Object) -> Mapping[str, Any]:
    """The properties of a resolved schema; empty if there are none.

    >>> properties({"properties": 3})
    {}
    """
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def required(schema: Object) -> tuple[str, ...]:
    """The required names of a resolved schema, each once, in order."""
    found = schema.get("required")
    return tuple(dict.fromkeys(name for name in found if isinstance(name, str))) if isinstance(found, list) else ()


def _referenced_parts(schema: Any, root: Object) -> list[Object]:
    """The schema and those that its `$ref` and `allOf` lead to, nearest first, each once."""
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
            queue.append(resolve_pointer(part["$ref"], root))
        if isinstance(all_of := part.get("allOf"), list):
            queue.extend(all_of[:_MAX_HOPS])
    return parts or [{}]


def _merge_keyword(key: str, first: Any, second: Any) -> Any:
    if key == "properties" and isinstance(first, Mapping) and isinstance(second, Mapping):
        return {**first, **{name: node for name, node in second.items() if name not in first}}
    if key == "required" and isinstance(first, list) and isinstance(second, list):
        return [*first, *(name for name in second if name not in first)]
    return first


def resolve_pointer(reference: Any, root: Object) -> Any:
    """Resolve a reference within a schema: `#/a/b`, `#anchor`, or the `$id` of a part with or without these.

    None for a reference that leads nowhere, or to another document.

    >>> resolve_pointer("#/$defs/a~1b", {"$defs": {"a/b": {"type": "null"}}})
    {'type': 'null'}
    >>> resolve_pointer("urn:thing", {"$defs": {"T": {"$id": "urn:thing", "type": "integer"}}})
    {'$id': 'urn:thing', 'type': 'integer'}
    """
    if not isinstance(reference, str):
        return None
    document, _, fragment = reference.partition("#")
    node: Any = root
    if document:
        named = _named_parts(SameObject(root))
        node = named.get(document) or named.get(_absolute(document, _id_of(root)))
    pointer = unquote(fragment)
    if pointer and not pointer.startswith("/"):
        return None if node is None else _named_parts(SameObject(node)).get(f"#{pointer}")
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


@lru_cache(maxsize=8)
def _named_parts(root: SameObject[Object]) -> Mapping[str, Object]:
    """The parts of a schema by `$id` and by `#` with their anchor; read once for all references of a schema."""
    named: dict[str, Object] = {}
    base = _id_of(root.wrapped)
    queue: list[Any] = [root.wrapped]
    seen: set[int] = set()
    for node in queue:
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            if own := _id_of(node):
                named.setdefault(own, node)
                named.setdefault(_absolute(own, base), node)
            for anchor in (node.get("$anchor"), node.get("$dynamicAnchor")):
                if isinstance(anchor, str):
                    named.setdefault(f"#{anchor}", node)
            queue.extend(value for key, value in node.items() if key not in _VALUE_KEYWORDS)
        elif isinstance(node, list):
            queue.extend(node)
    return named


def _id_of(node: Object) -> str:
    own = node.get("$id", node.get("id"))
    return own.removesuffix("#") if isinstance(own, str) else ""


def _absolute(reference: str, base: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:  # such as a broken IPv6 address
        return reference


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterInfo:
    """One parameter of a tool."""

    name: str
    type: str
    """As text: `string`, `integer[]`, `"open"|"closed"`, `{id: string, …}`."""
    required: bool = False
    description: str = ""
    default: Any = None
    """None if there is none, or if it is null."""


def parameters(schema: Object) -> tuple[ParameterInfo, ...]:
    """List the parameters of an input schema, in order; `$ref`, `allOf` and nullable unions are resolved.

    >>> parameters({"type": "object", "properties": {"n": {"type": "integer", "default": 3}}, "required": ["n"]})
    (ParameterInfo(name='n', type='integer', required=True, description='', default=3),)
    """
    whole = resolve(schema, schema)
    needed = frozenset(required(whole))
    found = list(properties(whole).items())[:MAX_PARAMETERS]
    return tuple(_parameter_info(name, node, schema, needed=name in needed) for name, node in found)


def signature(tool: Tool) -> str:
    """Signature of a tool, at most 400 characters: required parameters first, then optional ones, marked with `?`.

    >>> signature(Tool(name="add", input_schema={"type": "object", "properties": {"a": {"type": "number"}}}))
    'add(a?: number)'
    """
    return signature_line(tool.name, tool.input_schema)


def signature_line(name: str, schema: Object) -> str:
    """Signature of a tool with this name and input schema."""
    found = parameters(schema)
    ordered = sorted(found, key=lambda parameter: not parameter.required)
    shown = _one_line(name, MAX_SIGNATURE // 2)
    words = [_parameter_text(parameter.name, parameter.type, needed=parameter.required) for parameter in ordered]
    return f"{shown}({_join_within(words, MAX_SIGNATURE - len(shown) - 2, len(words))})"


def type_text(node: Any, root: Object, depth: int = _MAX_DEPTH) -> str:
    """Describe the type of a schema in at most 80 characters.

    >>> type_text({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}, {})
    'string[]|null'
    """
    if node is False:
        return "never"
    return shorten(_type(resolve(node, root), root, depth), _MAX_TYPE)


def json_type(value: Any) -> str:
    """The name of a JSON value's type; every whole number that is no float is an integer.

    >>> json_type(True), json_type(2), json_type(2.0), json_type(None), json_type({1})
    ('boolean', 'integer', 'number', 'null', 'something that is not JSON')
    """
    return next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), "something that is not JSON")


def literal(value: Any, limit: int = _MAX_LITERAL) -> str:
    """Format a JSON value on one line, truncated to a length."""
    if isinstance(value, str):
        return json.dumps(shorten(value[: limit + 1], limit), ensure_ascii=False)
    if isinstance(value, (dict, list)):
        return "{…}" if isinstance(value, dict) and value else "[…]" if value else json.dumps(value)
    return shorten(json.dumps(value, default=repr), limit)


def _parameter_info(name: str, node: Any, root: Object, *, needed: bool) -> ParameterInfo:
    schema = resolve(node, root)
    description = schema.get("description")
    return ParameterInfo(
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
    return _type_from_keyword(schema, root, depth)


def _type_from_keyword(schema: Object, root: Object, depth: int) -> str:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return _union((_type_of_kind(kind, schema, root, depth) for kind in kinds[: _MAX_OPTIONS + 1]), len(kinds))
    if isinstance(kinds, str):
        return _type_of_kind(kinds, schema, root, depth)
    return _type_of_kind(
        "object" if "properties" in schema else "array" if "items" in schema else "any", schema, root, depth
    )


def _type_of_kind(kind: Any, schema: Object, root: Object, depth: int) -> str:
    if kind == "array":
        items = type_text(schema["items"], root, depth - 1) if depth > 0 and "items" in schema else "any"
        return f"({items})[]" if "|" in items and not items.startswith("{") else f"{items}[]"
    if kind == "object" and depth > 0 and (found := properties(schema)):
        needed = frozenset(required(schema))
        words = (
            _parameter_text(name, type_text(node, root, depth - 1), needed=name in needed)
            for name, node in list(found.items())[:_MAX_OPTIONS]
        )
        return "{" + _join_within(list(words), _MAX_TYPE - 2, len(found)) + "}"
    return str(kind) if isinstance(kind, str) else "any"


def _union(texts: Iterable[str], total: int) -> str:
    shown: list[str] = []
    for text in dict.fromkeys(texts):
        if len(shown) == _MAX_OPTIONS or sum(map(len, shown)) + len(shown) + len(text) > _MAX_TYPE - 8:
            return "|".join([*shown, "…"])
        shown.append(text)
    return "|".join([*shown, "…"] if total > _MAX_OPTIONS else shown)


def _parameter_text(name: str, kind: str, *, needed: bool) -> str:
    shown = name if _IDENTIFIER.fullmatch(name) and len(name) <= _MAX_TYPE else literal(name, _MAX_TYPE)
    return f"{shown}{'' if needed else '?'}: {kind}"


def _join_within(words: list[str], room: int, total: int) -> str:
    """Join words with commas; count those that do not fit."""
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
    return shorten(" ".join(text[: limit + 1].split()), limit)


# -- subschemas --------------------------------------------------------------------------------------------------------


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
