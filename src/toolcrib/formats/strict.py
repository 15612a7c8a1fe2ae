"""A schema that a model can be held to: closed objects, every part typed, and what is optional said by null."""

from collections.abc import Mapping
from typing import Any, Final

from toolcrib.formats.fit import typed
from toolcrib.formats.rules import Rules
from toolcrib.formats.shape import with_null
from toolcrib.formats.walk import every, names, needed, parts, types
from toolcrib.model import Object
from toolcrib.schema.refs import pointed

_MAX_HOPS: Final = 16
"""How many references in a row are followed."""


class NotStrict(Exception):
    """The schema cannot be strict, for the reason given."""


def closed(schema: Object, rules: Rules) -> dict[str, Any]:
    """The schema for strict mode. Raises `NotStrict`, which says what stands against it.

    >>> from toolcrib.formats.rules import OPENAI_STRICT
    >>> closed({"type": "object", "properties": {"n": {"type": "integer"}}}, OPENAI_STRICT)["properties"]
    {'n': {'type': ['integer', 'null']}}
    """
    work = _Closer(schema, rules)
    whole = work.close({key: value for key, value in schema.items() if key != "$defs"}, "the top", top=True)
    definitions = schema.get("$defs")
    if isinstance(definitions, Mapping):
        whole["$defs"] = {name: work.close(part, f"{name!r}") for name, part in definitions.items()}
    _check_size(whole, rules)
    return whole


def takes_null(schema: Any, root: Object) -> bool:
    """Whether null fits the schema, as far as its types and values say."""
    node = schema
    for _ in range(_MAX_HOPS):
        if not isinstance(node, Mapping):
            return True
        if "$ref" not in node:
            break
        node = pointed(node["$ref"], root)
    if "const" in node or "enum" in node:
        return node.get("const", 0) is None or None in (node.get("enum") or ())
    if kinds := types(node):
        return "null" in kinds
    branches = node.get("anyOf") or node.get("oneOf")
    return any(takes_null(branch, root) for branch in branches) if isinstance(branches, list) else True


def counted(schema: Object) -> tuple[int, int]:
    """How many arguments of a schema are optional, and how many are of several types."""
    optional = unions = 0
    for node in every(schema):
        required = needed(node)
        for name, part in names(node).items():
            optional += name not in required
            unions += isinstance(part, Mapping) and ("anyOf" in part or isinstance(part.get("type"), list))
    return optional, unions


class _Closer:
    def __init__(self, root: Object, rules: Rules) -> None:
        self._root = root
        self._rules = rules

    def close(self, schema: Any, where: str, *, top: bool = False) -> dict[str, Any]:
        node = typed(schema) if isinstance(schema, Mapping) else {}
        if "$ref" in node:
            return {"$ref": node["$ref"]}
        for union in ("anyOf", "oneOf"):
            if isinstance(node.get(union), list):
                node[union] = [self.close(branch, where) for branch in node[union]]
        kinds = types(node)
        if not kinds and "anyOf" not in node and "oneOf" not in node:
            raise NotStrict(f"{where} has no type")
        if "array" in kinds:
            if not isinstance(node.get("items"), Mapping) or "prefixItems" in node:
                raise NotStrict(f"the items of {where} have no one type")
            node["items"] = self.close(node["items"], f"the items of {where}")
        return self._object(node, where, top=top) if "object" in kinds else node

    def _object(self, node: dict[str, Any], where: str, *, top: bool) -> dict[str, Any]:
        more = node.get("additionalProperties", False if names(node) or top else None)
        if more is not False or "patternProperties" in node or node.get("unevaluatedProperties"):
            raise NotStrict(f"{where} takes properties of any name")
        required = needed(node)
        if unknown := [name for name in required if name not in names(node)]:
            raise NotStrict(f"{where} requires {unknown[0]!r} without saying what it is")
        properties = {
            name: self._property(name, part, optional=name not in required) for name, part in names(node).items()
        }
        node = {**node, "properties": properties, "additionalProperties": False}
        if self._rules.all_required:
            node["required"] = list(properties)
        return node

    def _property(self, name: str, part: Any, *, optional: bool) -> dict[str, Any]:
        node = self.close(part, f"{name!r}")
        if not optional or not self._rules.all_required:
            return node
        if not takes_null(part, self._root):
            return with_null(node)
        if part.get("default", 0) is not None:
            raise NotStrict(f"for {name!r}, null and nothing may not mean the same")
        return node


def _check_size(schema: Object, rules: Rules) -> None:
    properties = enums = text = 0
    for node in every(schema):
        values = node.get("enum") if isinstance(node.get("enum"), list) else [node["const"]] if "const" in node else []
        properties += len(names(node))
        enums += len(values or ())
        text += sum(len(name) for name in names(node)) + sum(len(str(value)) for value in values or ())
    optional, unions = counted(schema)
    for count, most, what in (
        (properties, rules.max_properties, "properties"),
        (enums, rules.max_enum, "enum values"),
        (text, rules.max_text, "characters of names and values"),
        (_levels(schema), rules.max_depth, "levels of objects"),
        (optional, rules.max_optional, "optional arguments"),
        (unions, rules.max_unions, "arguments of several types"),
    ):
        if most is not None and count > most:
            raise NotStrict(f"it has {count:,} {what}, {most:,} are allowed")


def _levels(schema: Object) -> int:
    """Levels of objects within objects; 1 for an object of plain values."""
    deepest = 0
    queue: list[tuple[Object, int]] = [(schema, 0)]
    for node, above in queue:
        level = above + bool("object" in types(node))
        deepest = max(deepest, level)
        queue.extend((part, level) for part in parts(node) if isinstance(part, Mapping))
    return deepest
