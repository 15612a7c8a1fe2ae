"""Rewrite a tool's schema to the rules of a model provider, and restore the arguments that come back.

Keywords that a provider does not accept move into the description. In strict mode, objects are closed, every part has
a type, and optional arguments become nullable.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from toolcrib.errors import InvalidTool
from toolcrib.formats.rules import SchemaRules
from toolcrib.formats.schema_normalize import (
    add_note,
    inline_references,
    modernized,
    types_of,
    with_null,
    with_object_top,
    without_all_of,
)
from toolcrib.sanitize import shorten
from toolcrib.schema.repair import LEFT_OUT, read_schema
from toolcrib.schema.signature import map_subschemas, properties, required, resolve_pointer, subschemas, walk_schema
from toolcrib.types import Object, Tool

_MAX_KEY: Final = 64
"""Maximum length of an argument name."""
_MAX_LEVELS: Final = 100
"""Depth to which arguments are restored."""
_INVALID_KEY_CHARS: Final = re.compile(r"[^A-Za-z0-9_]+")
_LOOKAROUND: Final = re.compile(r"\(\?<?[=!]")
_HARMLESS_KEYWORDS: Final = frozenset({"default", "examples"})
"""Described keywords that do not restrict values."""
_RESTRICTING_KEYWORDS: Final = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "items", "prefixItems"}
    | {"minContains", "maxContains", "dependentSchemas", "dependencies", "if", "then", "else", "enum", "const"}
    | {"anyOf", "oneOf", "allOf", "type", "required", "properties"}
)
"""Keywords that restrict values and are not described."""
_DESCRIBED_KEYWORDS: Final = frozenset(
    {"minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "default", "examples"}
    | {"propertyNames", "contains", "not", "dependentRequired"}
)
"""Keywords that move to the description if they are not accepted."""
_MAX_DESCRIBED: Final = 120
"""Maximum length of one rule in the description."""
_JSON_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_RULES_OF_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
}
"""Keywords that apply to values of one type only, and that every provider reads."""
_MAX_HOPS: Final = 16
"""References in a row that are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedSchema:
    """A schema adapted to a provider, and how to restore its arguments."""

    schema: dict[str, Any]
    strict: bool = False
    """Whether the provider may enforce it."""
    reason: str = ""
    """Why it is not strict although that was requested."""
    hint: str = ""
    """A sentence for the description: what the schema no longer says."""
    notes: tuple[str, ...] = ()
    """What the schema accepts although the tool may not; empty if both accept the same."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Renamed arguments, with the tool's own names for them."""
    optional: int = 0
    """Number of optional arguments."""
    unions: int = 0
    """Number of arguments of several types."""
    before: Object | None = None
    """The schema before optional arguments became nullable; None if they did not."""

    def restore(self, arguments: Object) -> dict[str, Any]:
        """Restore arguments to what the tool takes: its own names, and no nulls for omitted arguments.

        >>> from toolcrib.formats.rules import OPENAI_STRICT
        >>> adapted = adapt_schema({"type": "object", "properties": {"n": {"type": "integer"}}}, OPENAI_STRICT)
        >>> adapted.restore({"n": None}), adapted.restore({"n": 1})
        ({}, {'n': 1})
        """
        named = {self.renamed.get(name, name): value for name, value in arguments.items()}
        if self.before is None:
            return named
        given = _without_placeholder_nulls(named, self.before, self.before, _MAX_LEVELS)
        return given if isinstance(given, dict) else named


def adapt_schema(schema: Object, rules: SchemaRules) -> AdaptedSchema:
    """Adapt a schema to rules. Never fails: a schema that cannot be strict is adapted without, with the reason.

    The adapted schema accepts everything that the tool accepts (if it is strict, with null for omitted arguments).
    What it accepts beyond that is listed in `notes`.
    """
    notes: list[str] = []
    schema = _readable(schema, notes)
    plain = modernized(inline_references(schema, recursion=rules.recursion, notes=notes))
    plain = plain if rules.all_of else without_all_of(plain, notes)
    top, hint = with_object_top(plain, notes)
    whole = top
    if rules.strict:
        try:
            whole = make_strict(top, rules)
        except NotStrict as error:
            return _adapt_loosely(schema, rules, str(error))
    optional, unions = count_optional_and_unions(whole)
    found, renamed = _rename_arguments(apply_rules(whole, rules, notes), rules)
    return AdaptedSchema(
        schema=found,
        strict=rules.strict,
        hint=hint,
        notes=tuple(notes),
        renamed=renamed,
        optional=optional,
        unions=unions,
        before=top if rules.all_required else None,
    )


def _readable(schema: Object, notes: list[str]) -> Object:
    """The schema as it is used elsewhere: repaired, if it is not valid; any object, if nothing can be made of it."""
    try:
        read = read_schema(schema, "the tool")
    except InvalidTool:
        add_note(notes, "the schema cannot be read: any object is accepted")
        return {"type": "object"}
    for repair in read.repairs:
        if repair.endswith(LEFT_OUT):
            add_note(notes, repair)
    return read.schema


def _adapt_loosely(schema: Object, rules: SchemaRules, reason: str) -> AdaptedSchema:
    loose = adapt_schema(schema, rules.otherwise or SchemaRules())
    return AdaptedSchema(
        schema=loose.schema,
        reason=reason,
        hint=loose.hint,
        notes=loose.notes,
        renamed=loose.renamed,
        optional=loose.optional,
        unions=loose.unions,
    )


def _rename_arguments(schema: dict[str, Any], rules: SchemaRules) -> tuple[dict[str, Any], dict[str, str]]:
    """Rename arguments whose names are not accepted; return the schema, and the old names by new name."""
    key = rules.key
    if key is None or all(key.fullmatch(name) for name in properties(schema)):
        return schema, {}
    new: dict[str, str] = {name: name for name in properties(schema) if key.fullmatch(name)}
    for name in properties(schema):
        if name not in new:
            new[name] = _unused_name(name, set(new.values()))
    whole = {**schema, "properties": {new[name]: part for name, part in properties(schema).items()}}
    if "required" in schema:
        whole["required"] = [new.get(name, name) for name in required(schema)]
    for rule in ("dependentRequired", "dependentSchemas", "propertyNames", "patternProperties"):
        whole.pop(rule, None)  # they refer to the old names
    return whole, {mine: theirs for theirs, mine in new.items() if mine != theirs}


def _unused_name(name: str, taken: set[str]) -> str:
    stem = _INVALID_KEY_CHARS.sub("_", name).strip("_")[: _MAX_KEY - 6] or "argument"
    stem = stem if stem[0].isalpha() else f"_{stem}"
    place, found = 1, stem
    while found in taken:
        place += 1
        found = f"{stem}_{place}"
    return found


def _without_placeholder_nulls(value: Any, schema: Any, root: Object, levels: int) -> Any:
    """Remove the nulls that stand for omitted arguments."""
    if not levels or not isinstance(value, (dict, list)):
        return value
    node = _resolved(schema, root)
    if isinstance(value, list):
        return [_without_placeholder_nulls(item, node.get("items"), root, levels - 1) for item in value]
    node = _matching_branch(value, _alternatives(node, root), node)
    known, needed = properties(node), required(node)
    return {
        name: _without_placeholder_nulls(item, known.get(name), root, levels - 1)
        for name, item in value.items()
        if not (item is None and name in known and name not in needed)
    }


def _alternatives(schema: Object, root: Object) -> list[Object]:
    """All branches of a union, with those of unions inside it; a schema without a union is its only alternative."""
    found, seen, left = [], set[int](), [schema]
    while left:
        node = left.pop(0)
        union = next((node[key] for key in ("anyOf", "oneOf") if isinstance(node.get(key), list)), None)
        if union is None:
            found.append(node)
        elif id(node) not in seen:  # recursive references end here
            seen.add(id(node))
            left = [*(_resolved(branch, root) for branch in union), *left]
    return found


def _matching_branch(value: dict[str, Any], branches: list[Object], whole: Object) -> Object:
    """The alternative that an object matches, by its names and constants."""
    same = [branch for branch in branches if value.keys() <= properties(branch).keys()]
    exact = [branch for branch in same if value.keys() == properties(branch).keys()] or same
    fixed = [
        branch
        for branch in exact
        if all(_matches_constant(value.get(name), part) for name, part in properties(branch).items())
    ]
    return (fixed or exact or [whole])[0]


def _matches_constant(value: Any, part: Any) -> bool:
    if not isinstance(part, Mapping):
        return True
    return value == part["const"] if "const" in part else value in part["enum"] if "enum" in part else True


def apply_rules(schema: Any, rules: SchemaRules, notes: list[str]) -> dict[str, Any]:
    """Remove or rewrite everything that the rules do not accept; `notes` collects what became looser.

    >>> from toolcrib.formats.rules import GEMINI
    >>> apply_rules({"type": "string", "minLength": 2}, GEMINI, [])
    {'type': 'string', 'description': '(minLength: 2)'}
    """
    if not isinstance(schema, Mapping):
        return {}
    node = with_inferred_type(map_subschemas(schema, lambda part: apply_rules(part, rules, notes)))
    if rules.keywords is not None:
        _drop_idle(node)
    _fit_values(node, rules, notes)
    _fit_bounds(node, rules)
    _fit_arrays(node, rules, notes)
    if not rules.one_of and "oneOf" in node:
        _as_any_of(node, notes)
    for key in [key for key, value in node.items() if not _is_accepted(key, value, rules)]:
        _move_to_description(node, key, notes)
    if not rules.types:
        node = _with_nullable(node)
    if rules.capitals and isinstance(node.get("type"), str):
        node["type"] = node["type"].upper()
    return node


def with_inferred_type(node: Object) -> dict[str, Any]:
    """Add the type of a constant or enum, if the schema names none.

    >>> with_inferred_type({"const": 1}), with_inferred_type({"enum": ["a", None]})
    ({'type': 'integer', 'const': 1}, {'type': ['string', 'null'], 'enum': ['a', None]})
    """
    values = [node["const"]] if "const" in node else node.get("enum")
    if "type" in node or not isinstance(values, list) or not all(type(value) in _JSON_TYPES for value in values):
        return dict(node)
    kinds = list(dict.fromkeys(_JSON_TYPES[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, **node} if kinds else dict(node)


def _drop_idle(node: dict[str, Any]) -> None:
    """Remove what says nothing, and what a provider with few keywords refuses: rules for values of other types, and
    requirements of names that are not listed.
    """
    kinds = types_of(node)
    for kind, keywords in _RULES_OF_TYPES.items():
        for key in keywords if kinds and kind not in kinds else ():
            node.pop(key, None)
    if "required" in node:
        named = [name for name in required(node) if name in properties(node)]
        node["required"] = named
        if not named:
            del node["required"]


def _fit_values(node: dict[str, Any], rules: SchemaRules, notes: list[str]) -> None:
    if not rules.const and "const" in node:
        node["enum"] = [node.pop("const")]
    values = node.get("enum")
    if rules.enums is None or not isinstance(values, list) or all(type(value) in rules.enums for value in values):
        return
    if rules.enums == (str,) and all(type(value) in (int, float, str) for value in values):
        node["enum"] = [str(value) for value in values]  # the type still says what they are
        return
    if None in values and "null" in types_of(node):
        rest = [kind for kind in types_of(node) if kind != "null"]
        del node["enum"]
        kept = [value for value in values if value is not None]
        inner = apply_rules({"type": rest[0] if len(rest) == 1 else rest, "enum": kept}, rules, notes)
        del node["type"]
        node["anyOf"] = [inner, {"type": "null"}]
        return
    _move_to_description(node, "enum", notes)


def _fit_bounds(node: dict[str, Any], rules: SchemaRules) -> None:
    """Replace the exclusive bounds of integers by inclusive ones."""
    if rules.keywords is None or types_of(node) != ["integer"]:
        return
    for exclusive, bound, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        value = node.get(exclusive)
        if exclusive not in rules.keywords and type(value) is int and bound not in node:
            node[bound] = node.pop(exclusive) + step


def _fit_arrays(node: dict[str, Any], rules: SchemaRules, notes: list[str]) -> None:
    if "prefixItems" in node and rules.keywords is not None and "prefixItems" not in rules.keywords:
        listed = node.pop("prefixItems")
        rest = [node["items"]] if isinstance(node.get("items"), Mapping) else []
        kinds: list[Any] = []
        for part in [*listed, *rest]:
            if part not in kinds:
                kinds.append(part)
        node["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        add_note(notes, "the order of the kinds of items in an array is left out")
    if rules.array_items and "array" in types_of(node) and not isinstance(node.get("items"), Mapping):
        node["items"] = {}


def _as_any_of(node: dict[str, Any], notes: list[str]) -> None:
    branches = node.pop("oneOf")
    add_note(notes, "'oneOf' is read as 'anyOf'")
    if "anyOf" not in node:
        node["anyOf"] = branches


def _is_accepted(key: str, value: Any, rules: SchemaRules) -> bool:
    if rules.keywords is not None and key not in rules.keywords:
        return rules.recursion and key in ("$ref", "$defs")
    if key == "format":
        return rules.formats is None or value in rules.formats
    if key == "pattern":
        return rules.patterns or not _LOOKAROUND.search(str(value))
    if key == "minItems":
        return rules.min_items is None or (isinstance(value, int) and value <= rules.min_items)
    return True


def _move_to_description(node: dict[str, Any], key: str, notes: list[str]) -> None:
    """Remove a rule, and put it in the description if possible."""
    value = node.pop(key)
    if key in _RESTRICTING_KEYWORDS or (key in _DESCRIBED_KEYWORDS and key not in _HARMLESS_KEYWORDS):
        add_note(notes, f"{key!r} is left out, or only mentioned in the description")
    if key in _DESCRIBED_KEYWORDS or key == "enum":
        text = f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}"
        node["description"] = f"{node.get('description', '')} ({shorten(text, _MAX_DESCRIBED)})".strip()


def _with_nullable(node: dict[str, Any]) -> dict[str, Any]:
    """Replace lists of types and the type null by `nullable` and `anyOf`."""
    kinds = types_of(node)
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


class NotStrict(Exception):
    """The schema cannot be strict; the message says why."""


def make_strict(schema: Object, rules: SchemaRules) -> dict[str, Any]:
    """Convert a schema for strict mode. Raises `NotStrict`.

    >>> from toolcrib.formats.rules import OPENAI_STRICT
    >>> make_strict({"type": "object", "properties": {"n": {"type": "integer"}}}, OPENAI_STRICT)["properties"]
    {'n': {'type': ['integer', 'null']}}
    """
    work = _StrictConverter(schema, rules)
    whole = work.close({key: value for key, value in schema.items() if key != "$defs"}, "the top", top=True)
    definitions = schema.get("$defs")
    if isinstance(definitions, Mapping):
        whole["$defs"] = {name: work.close(part, f"{name!r}") for name, part in definitions.items()}
    _check_size(whole, rules)
    return whole


def accepts_null(schema: Any, root: Object) -> bool:
    """Whether the schema accepts null, judging by its types and values."""
    if not isinstance(schema, Mapping):
        return True
    node = _resolved(schema, root)
    if "const" in node or "enum" in node or types_of(node):
        return _alternative_accepts_null(node)
    alternatives = _alternatives(node, root)
    return not alternatives or any(map(_alternative_accepts_null, alternatives))


def _alternative_accepts_null(node: Object) -> bool:
    if "const" in node or "enum" in node:
        return node.get("const", 0) is None or None in (node.get("enum") or ())
    kinds = types_of(node)
    return not kinds or "null" in kinds


def _resolved(schema: Any, root: Object) -> Object:
    """Follow references, a limited number of times; {} for what is not an object."""
    node: Any = schema
    for _ in range(_MAX_HOPS):
        if not isinstance(node, Mapping):
            return {}
        if "$ref" not in node:
            break
        node = resolve_pointer(node["$ref"], root)
    return node if isinstance(node, Mapping) else {}


def count_optional_and_unions(schema: Object) -> tuple[int, int]:
    """Count the optional arguments of a schema, and those of several types."""
    optional = unions = 0
    for node in walk_schema(schema):
        needed = required(node)
        for name, part in properties(node).items():
            optional += name not in needed
            unions += isinstance(part, Mapping) and ("anyOf" in part or isinstance(part.get("type"), list))
    return optional, unions


class _StrictConverter:
    def __init__(self, root: Object, rules: SchemaRules) -> None:
        self._root = root
        self._rules = rules

    def close(self, schema: Any, where: str, *, top: bool = False) -> dict[str, Any]:
        node = with_inferred_type(schema) if isinstance(schema, Mapping) else {}
        if "$ref" in node:
            if top:
                raise NotStrict(f"{where} is a reference")
            return {"$ref": node["$ref"]}
        for union in ("anyOf", "oneOf"):
            if isinstance(node.get(union), list):
                node[union] = [self.close(branch, where) for branch in node[union]]
        kinds = types_of(node)
        if not kinds and "anyOf" not in node and "oneOf" not in node:
            raise NotStrict(f"{where} has no type")
        if "array" in kinds:
            if not isinstance(node.get("items"), Mapping) or "prefixItems" in node:
                raise NotStrict(f"the items of {where} have no single type")
            node["items"] = self.close(node["items"], f"the items of {where}")
        return self._object(node, where, top=top) if "object" in kinds else node

    def _object(self, node: dict[str, Any], where: str, *, top: bool) -> dict[str, Any]:
        more = node.get("additionalProperties", False if properties(node) or top else None)
        if more is not False or "patternProperties" in node or node.get("unevaluatedProperties"):
            raise NotStrict(f"{where} accepts properties of any name")
        known, needed = properties(node), required(node)
        if unknown := [name for name in needed if name not in known]:
            raise NotStrict(f"{where} requires {unknown[0]!r} but does not define it")
        closed = {name: self._property(name, part, optional=name not in needed) for name, part in known.items()}
        node = {**node, "properties": closed, "additionalProperties": False}
        if self._rules.all_required:
            node["required"] = list(closed)
        return node

    def _property(self, name: str, part: Any, *, optional: bool) -> dict[str, Any]:
        node = self.close(part, f"{name!r}")
        if not optional or not self._rules.all_required:
            return node
        if not accepts_null(part, self._root):
            return with_null(node)
        if part.get("default", 0) is not None:
            raise NotStrict(f"for {name!r}, null and nothing may not mean the same")
        return node


def _check_size(schema: Object, rules: SchemaRules) -> None:
    names = enums = text = 0
    for node in walk_schema(schema):
        values = node.get("enum") if isinstance(node.get("enum"), list) else [node["const"]] if "const" in node else []
        names += len(properties(node))
        enums += len(values or ())
        text += sum(len(name) for name in properties(node)) + sum(len(str(value)) for value in values or ())
    optional, unions = count_optional_and_unions(schema)
    for count, most, what in (
        (names, rules.max_properties, "properties"),
        (enums, rules.max_enum, "enum values"),
        (text, rules.max_text, "characters of names and values"),
        (_object_depth(schema), rules.max_depth, "levels of objects"),
        (optional, rules.max_optional, "optional arguments"),
        (unions, rules.max_unions, "arguments of several types"),
    ):
        if most is not None and count > most:
            raise NotStrict(f"it has {count:,} {what}, {most:,} are allowed")


def _object_depth(schema: Object) -> int:
    """Depth of nested objects; 1 for an object of plain values."""
    deepest = 0
    queue: list[tuple[Object, int]] = [(schema, 0)]
    for node, above in queue:
        level = above + bool("object" in types_of(node))
        deepest = max(deepest, level)
        queue.extend((part, level) for part in subschemas(node) if isinstance(part, Mapping))
    return deepest


def describe_tool(tool: Tool, adapted: AdaptedSchema) -> str:
    """The description for a model: that of the tool, or its title, and what its schema no longer says."""
    words = tool.description or tool.title or tool.name
    return f"{words}\n{adapted.hint}" if adapted.hint else words
