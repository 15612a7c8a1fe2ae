"""Read the input schema of a tool from elsewhere: as it is if it is valid, and repaired where that is clear.

A valid schema stays the same object. In an invalid one, what has only one meaning is written in a valid way, such as
`"type": "str"`, `"required": null` or a missing `"type": "object"` at the root, and what has none is left out. If the
result still cannot be compiled, such as a schema that refers to another document, the tool is offered all the same:
its server checks the arguments. Only a root that no arguments can fit makes a tool unusable.

A client gets the schema as it is used here: a client that compiles the schemas of a list, or the API behind it, would
refuse an invalid one, and with it perhaps the whole list. Every step takes time linear in the size of the schema.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

from toolcrib.errors import InvalidTool
from toolcrib.sanitize import shorten, visible
from toolcrib.schema.signature import resolve_pointer
from toolcrib.schema.validate import Schema, is_pattern
from toolcrib.types import Object, Rejected

_SCHEMAS_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_SCHEMA_LISTS: Final = frozenset({"prefixItems", "allOf", "anyOf", "oneOf"})
_SINGLE_SCHEMAS: Final = frozenset(
    {"additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "propertyNames"}
    | {"contains", "not", "if", "then", "else", "contentSchema"}
)
_TEXTS: Final = frozenset(
    {"title", "description", "$comment", "format", "contentEncoding", "contentMediaType"}
    | {"$id", "$anchor", "$dynamicAnchor", "$dynamicRef"}
)
_FLAGS: Final = frozenset({"uniqueItems", "readOnly", "writeOnly", "deprecated"})
_COUNTS: Final = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)
_BOUNDS: Final = frozenset({"minimum", "maximum", "multipleOf"})
_EXCLUSIVE: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_OTHER_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("dict", "map", "struct"), "object"),
    **dict.fromkeys(("list", "tuple", "set"), "array"),
    **dict.fromkeys(("none", "nil", "nonetype"), "null"),
}
"""What programming languages call the types of JSON."""
_MAX_NOTES: Final = 5
"""Repairs that are named; the others are counted."""
LEFT_OUT: Final = "was left out"
"""How the note of a repair ends that makes a schema accept more."""
_MAX_NAME: Final = 60
_MAX_PLACE: Final = 200


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """An input schema as it is used and shown, and what checks arguments against it."""

    schema: Object
    """The same object that was read, if nothing was repaired."""
    check: Schema
    repairs: tuple[str, ...] = ()
    """What was repaired, each with its place."""

    @property
    def is_valid(self) -> bool:
        """Whether it is used as it was read, and all arguments are checked."""
        return not self.repairs and not self.check.unchecked

    @property
    def remark(self) -> str:
        """What an operator should know of it, in a line; empty if it is valid and checked."""
        named = [*self.repairs[:_MAX_NOTES]]
        if len(self.repairs) > _MAX_NOTES:
            named.append(f"and {len(self.repairs) - _MAX_NOTES} more")
        repaired = f"its input schema was repaired: {', '.join(named)}" if named else ""
        return "; ".join(filter(None, (repaired, self.check.unchecked)))


def read_schema(raw: Any, who: str) -> ReadSchema:
    """Read an input schema. Raises `InvalidTool` for one that no arguments can fit.

    >>> read_schema({"properties": {"n": {"type": "int"}}, "required": None}, "double").schema
    {'type': 'object', 'properties': {'n': {'type': 'integer'}}}
    >>> read_schema({"type": "string"}, "double")
    Traceback (most recent call last):
    toolcrib.errors.InvalidTool: double: its arguments would have to be string, and must be an object.
    """
    try:
        return ReadSchema(raw, Schema(raw, who))
    except InvalidTool:
        work = _Repair(raw, who)
    try:
        schema = work.root()
        check = _checked(schema, who)
        return ReadSchema(schema, check, tuple(dict.fromkeys(work.repairs))) if work.repairs else ReadSchema(raw, check)
    except RecursionError:
        raise InvalidTool(f"{who}: its input schema is nested too deep.") from None


def _checked(schema: dict[str, Any], who: str) -> Schema:
    """What checks the arguments: a schema without what refers to other documents, or nothing."""
    try:
        return Schema(schema, who)
    except InvalidTool as error:
        reason = error.message.removeprefix(f"{who}: ").rstrip(".")
    without = _without_remote(schema, schema)
    try:
        return Schema(without, who, unchecked=f"what it refers to elsewhere is left to its server: {reason}")
    except InvalidTool:
        return Schema(schema, who, compiles=False, unchecked=f"its arguments are left to its server: {reason}")


def _without_remote(node: Any, root: Object) -> Any:
    """A schema in which a reference to another document allows anything."""
    if isinstance(node, list):
        return [_without_remote(item, root) for item in node]
    if not isinstance(node, Mapping):
        return node
    reference = node.get("$ref")
    kept = node
    if isinstance(reference, str) and resolve_pointer(reference, root) is None:
        kept = {key: value for key, value in node.items() if key != "$ref"}
    return {key: _without_remote(value, root) for key, value in kept.items()}


@dataclass(frozen=True, slots=True)
class ReadDefinition:
    """The definition of a tool as it is used and shown."""

    entry: Any
    """The same object that was read, if nothing was repaired."""
    schema: ReadSchema | None = None
    left_out: tuple[str, ...] = ()
    """Optional fields that cannot be used."""

    def remark(self, tool: str) -> Rejected | None:
        """What an operator should know of it; None for a definition that is valid and checked."""
        if not self.left_out and (self.schema is None or self.schema.is_valid):
            return None
        repaired = f"without its {' and '.join(self.left_out)}, which cannot be read" if self.left_out else ""
        reason = "; ".join(filter(None, (repaired, self.schema.remark if self.schema else "")))
        unchecked = self.schema is not None and bool(self.schema.check.unchecked)
        return Rejected(
            tool=tool, reason=reason, state="unchecked" if unchecked else "repaired", todo="correct it at its source"
        )


def read_definition(raw: Mapping[str, Any], who: str) -> ReadDefinition:
    """Read the schemas of an entry of `tools/list`. Raises `InvalidTool`, which begins with `who`."""
    given = raw.get("inputSchema")
    read = read_schema(given, who)
    entry = raw if read.schema is given else {**raw, "inputSchema": read.schema}
    output = raw.get("outputSchema")
    usable = _read_output(output, who)
    if usable is output:
        return ReadDefinition(entry, read)
    kept = {name: value for name, value in entry.items() if name != "outputSchema"}
    if usable is None:
        return ReadDefinition(kept, read, ("outputSchema",))
    return ReadDefinition({**kept, "outputSchema": usable}, replace(read, repairs=(*read.repairs, "outputSchema")))


def _read_output(raw: Any, who: str) -> Any:
    """An output schema that a client can compile; None for one that no client can. The same object if it is valid."""
    if not isinstance(raw, Mapping) or raw.get("type") not in ("object", None):
        return raw if raw is None or isinstance(raw, Mapping) else None
    try:
        return raw if "type" not in raw else read_schema(raw, who).schema
    except InvalidTool:
        return None


class _Repair:
    """Repairs one schema, and notes what it changes."""

    def __init__(self, raw: Any, who: str) -> None:
        self._raw = raw
        self._who = who
        self._is_draft_04 = isinstance(raw, Mapping) and "draft-04" in str(raw.get("$schema"))
        self.repairs: list[str] = []

    def root(self) -> dict[str, Any]:
        """The schema, with an object at its root. Raises `InvalidTool` if that is something else."""
        raw = self._raw
        if raw is None or raw is True or raw == []:
            self._note("", "it said nothing" if raw is None else "it was no object")
            return {"type": "object"}
        if not isinstance(raw, Mapping):
            raise InvalidTool(f"{self._who}: its input schema is {_kind_of(raw)}, and must be an object.")
        schema = self.node(raw, "")
        kinds = schema.pop("type", None)
        listed = [kinds] if isinstance(kinds, str) else kinds or ["object"]
        if "object" not in listed:
            expected = " or ".join(listed)
            raise InvalidTool(f"{self._who}: its arguments would have to be {expected}, and must be an object.")
        if kinds != "object":
            self._note("", "its root says type object")
        return {"type": "object", **schema}

    def node(self, raw: Any, place: str) -> Any:
        """A valid schema for what is at this place."""
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, Mapping):
            kind = _type_name(raw)
            self._note(place, "was no schema")
            return {"type": kind} if kind else {}
        self._check_names(raw)
        found: dict[str, Any] = {}
        for key, value in raw.items():
            repair = _KEYWORDS.get(key)
            kept = value if repair is None else repair(self, key, value, f"{place}.{key}" if place else key)
            if kept is not _DROPPED:
                found[key] = kept
        if not self._is_draft_04 and not found.keys().isdisjoint(_EXCLUSIVE):
            self._modernize_bounds(found, place)
        if isinstance(raw.get("properties"), Mapping):
            self._hoist_required(found, raw["properties"], place)
        return found

    def by_name(self, key: str, value: Any, place: str) -> Any:
        if not isinstance(value, Mapping):
            return self._drop(place)
        self._check_names(value)
        if key == "patternProperties":
            value = {name: part for name, part in value.items() if self.pattern(key, name, place) is not _DROPPED}
        return {name: self.node(part, f"{place}.{_short(name)}") for name, part in value.items()}

    def schemas(self, _: str, value: Any, place: str) -> Any:
        if not isinstance(value, list) or not value:
            return self._drop(place)
        return [self.node(part, f"{place}.{index}") for index, part in enumerate(value)]

    def schema(self, _: str, value: Any, place: str) -> Any:
        return self.node(value, place) if isinstance(value, (Mapping, bool)) else self._drop(place)

    def items(self, key: str, value: Any, place: str) -> Any:
        return self.schemas(key, value, place) if isinstance(value, list) else self.schema(key, value, place)

    def type(self, _: str, value: Any, place: str) -> Any:
        if isinstance(value, str) and value in _TYPES:
            return value
        listed = value if isinstance(value, list) else [value]
        known = list(dict.fromkeys(name for each in listed if (name := _type_name(each))))
        if not known or len(known) < len({str(each) for each in listed}):  # it allows more than what is known
            return self._drop(place)
        if known != listed:
            self._note(place, f"is {' or '.join(known)}")
        return known if isinstance(value, list) else known[0]

    def required(self, _: str, value: Any, place: str) -> Any:
        if value is True:  # see `_hoist_required`
            return _DROPPED
        names = list(dict.fromkeys(name for name in value if isinstance(name, str))) if isinstance(value, list) else []
        if names == value and (names or not self._is_draft_04):
            return value
        self._note(place, "has only names" if names else LEFT_OUT)
        return names or _DROPPED

    def values(self, _: str, value: Any, place: str) -> Any:
        return value if isinstance(value, list) and value else self._drop(place)

    def examples(self, _: str, value: Any, place: str) -> Any:
        return value if isinstance(value, list) else self._drop(place)

    def text(self, _: str, value: Any, place: str) -> Any:
        return value if isinstance(value, str) else self._drop(place)

    def flag(self, _: str, value: Any, place: str) -> Any:
        return value if isinstance(value, bool) else self._drop(place)

    def count(self, _: str, value: Any, place: str) -> Any:
        return value if _is_number(value) and value >= 0 and value == int(value) else self._drop(place)

    def bound(self, key: str, value: Any, place: str) -> Any:
        fits = _is_number(value) and (key != "multipleOf" or value > 0)
        return value if fits or (key in _EXCLUSIVE and isinstance(value, bool)) else self._drop(place)

    def pattern(self, _: str, value: Any, place: str) -> Any:
        return value if isinstance(value, str) and is_pattern(value) else self._drop(place)

    def reference(self, _: str, value: Any, place: str) -> Any:
        """Leave out a reference within the schema that leads nowhere."""
        leads = isinstance(value, str) and (
            not value.startswith("#") or isinstance(resolve_pointer(value, self._raw), (Mapping, bool))
        )
        return value if leads else self._drop(place)

    def dialect(self, _: str, value: Any, place: str) -> Any:
        known = isinstance(value, str) and _DIALECT.match(value)
        return value if known else self._drop(place)

    def dependencies(self, key: str, value: Any, place: str) -> Any:
        if not isinstance(value, Mapping):
            return self._drop(place)
        self._check_names(value)
        lists = {name: names for name, names in value.items() if isinstance(names, list)}
        rest = {name: part for name, part in value.items() if name not in lists and key == "dependencies"}
        texts = {name: [each for each in names if isinstance(each, str)] for name, names in lists.items()}
        if texts != lists or len(texts) + len(rest) < len(value):
            self._note(place, "has only names")
        return {**texts, **{name: self.node(part, f"{place}.{_short(name)}") for name, part in rest.items()}}

    def _modernize_bounds(self, node: dict[str, Any], place: str) -> None:
        """Write the exclusive bounds of draft-04 as numbers."""
        for exclusive, bound in _EXCLUSIVE.items():
            if isinstance(node.get(exclusive), bool):
                self._note(f"{place}.{exclusive}" if place else exclusive, "is a number")
                if node.pop(exclusive) and bound in node:
                    node[exclusive] = node.pop(bound)

    def _hoist_required(self, node: dict[str, Any], named: Object, place: str) -> None:
        """Make properties required that say so themselves, as in draft-03."""
        own = [name for name, part in named.items() if isinstance(part, Mapping) and part.get("required") is True]
        if own and "properties" in node:
            self._note(f"{place}.required" if place else "required", f"names {', '.join(map(_short, own[:3]))}")
            node["required"] = list(dict.fromkeys([*node.get("required", ()), *own]))

    def _check_names(self, value: Mapping[Any, Any]) -> None:
        if not all(isinstance(name, str) for name in value):  # a function's schema may be any Python value
            raise InvalidTool(f"{self._who}: the names in its input schema must be strings.")

    def _drop(self, place: str) -> Any:
        self._note(place, LEFT_OUT)
        return _DROPPED

    def _note(self, place: str, text: str) -> None:
        # The places of a deep schema are long, and the wrong ones of a wide one are many.
        shown = place if len(place) <= _MAX_PLACE else f"…{place[1 - _MAX_PLACE :]}"
        self.repairs.append(f"{shown} {text}".strip())


_DROPPED: Final = object()
_DIALECT: Final = re.compile(r"https?://json-schema\.org/(?:draft-0[4-7]|draft/20(?:19-09|20-12))/schema#?$")
_Keyword = Callable[[_Repair, str, Any, str], Any]
_KEYWORDS: Final[Mapping[str, _Keyword]] = {
    **dict.fromkeys(_SCHEMAS_BY_NAME, _Repair.by_name),
    **dict.fromkeys(_SCHEMA_LISTS, _Repair.schemas),
    **dict.fromkeys(_SINGLE_SCHEMAS, _Repair.schema),
    **dict.fromkeys(_TEXTS, _Repair.text),
    **dict.fromkeys(_FLAGS, _Repair.flag),
    **dict.fromkeys(_COUNTS, _Repair.count),
    **dict.fromkeys((*_BOUNDS, *_EXCLUSIVE), _Repair.bound),
    "items": _Repair.items,
    "type": _Repair.type,
    "required": _Repair.required,
    "enum": _Repair.values,
    "examples": _Repair.examples,
    "pattern": _Repair.pattern,
    "$ref": _Repair.reference,
    "$schema": _Repair.dialect,
    "dependencies": _Repair.dependencies,
    "dependentRequired": _Repair.dependencies,
}
"""How the value of each keyword is repaired."""


def _type_name(value: Any) -> str:
    """The JSON type that a word means; empty if it means none."""
    if not isinstance(value, str):
        return "null" if value is None else ""
    name = value.strip().lower()
    return name if name in _TYPES else _OTHER_NAMES.get(name, "")


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "false"
    return "a string" if isinstance(value, str) else "a list" if isinstance(value, list) else "a number"


def _is_number(value: Any) -> bool:
    if isinstance(value, float):  # a whole number may be too large to be one
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _short(name: str) -> str:
    return shorten(name, _MAX_NAME)


# -- texts that people cannot see -------------------------------------------------------------------------------------

_SUSPICIOUS: Final = (rb"\u", rb"\b", rb"\f", b"\x7f")
"""How control characters are written in JSON, and backslashes before some letters."""
_TEXT_KEYS: Final = frozenset({"description", "title", "$comment"})
"""Keywords of a schema that are prose."""
_VALUE_KEYS: Final = frozenset({"default", "const", "enum", "examples"})
"""Keywords whose values a server compares; they stay as they are."""
_NAME_KEYS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords with an object whose keys are names, and not keywords."""


def is_plain(encoded: bytes) -> bool:
    """Whether the JSON of a value shows at a glance that all of its texts are `visible`.

    >>> is_plain(b'{"description": "Adds."}'), is_plain('{"description": "é"}'.encode())
    (True, False)
    """
    return encoded.isascii() and not any(escape in encoded for escape in _SUSPICIOUS)


def with_visible_texts(value: Any, *, named: bool = False) -> Any:
    """A definition or schema whose descriptions, titles and comments are `visible`; the same object if they all were.

    With `named`, the keys of the value are names.

    >>> with_visible_texts({"description": "a\\u200bb", "enum": ["a\\u200bb"]})
    {'description': 'ab', 'enum': ['a\\u200bb']}
    """
    if isinstance(value, Mapping):
        changed = {key: new for key, old in value.items() if (new := _visible_entry(key, old, named=named)) is not old}
        return {**value, **changed} if changed else value
    if isinstance(value, list):
        items = [with_visible_texts(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _visible_entry(key: Any, value: Any, *, named: bool) -> Any:
    if named:
        return with_visible_texts(value)
    if isinstance(value, str):
        return visible(value) if key in _TEXT_KEYS else value
    return value if key in _VALUE_KEYS else with_visible_texts(value, named=key in _NAME_KEYS)
