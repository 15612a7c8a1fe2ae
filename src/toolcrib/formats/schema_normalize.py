"""Bring a valid JSON Schema to one form: references inlined, older drafts modernized, a plain object at the top.

`schema.repair` makes a schema valid.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from toolcrib.sanitize import echo, shorten
from toolcrib.schema.signature import map_subschemas, merge_schemas, properties, required, resolve_pointer
from toolcrib.types import Object

_MAX_PARTS: Final = 10_000
"""Maximum size of a schema with inlined references, in subschemas."""
_MAX_DEPTH: Final = 60
"""Maximum depth of a schema with inlined references."""
_DROPPED_KEYWORDS: Final = frozenset(
    {"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment", "$defs"}
    | {"definitions", "$ref", "$dynamicRef", "$recursiveRef"}
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "deprecated"})
_INVALID_NAME_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]+")
_REFUSED_AT_TOP: Final = ("allOf", "anyOf", "oneOf", "enum", "const", "not", "if", "then", "else")
_MAX_HINT: Final = 300
"""Maximum length of a hint, in characters."""
_MERGED_KEYWORDS: Final = frozenset({"properties", "required", "$defs"})
"""Keywords that merge without loss."""
_ANNOTATION_KEYWORDS: Final = frozenset({"title", "description", "default", "examples"})


def types_of(schema: Object) -> list[str]:
    """The types that a schema names; empty if it names none.

    >>> types_of({"type": "string"}), types_of({"type": ["string", "null"]}), types_of({})
    (['string'], ['string', 'null'], [])
    """
    kind = schema.get("type")
    return [kind] if isinstance(kind, str) else [each for each in kind or () if isinstance(each, str)]


def inline_references(schema: Object, *, recursion: bool, notes: list[str]) -> dict[str, Any]:
    """Inline the local references of a schema; recursive definitions stay references.

    If recursion is not accepted, or the schema grows too large, the part accepts anything and `notes` say so.
    References to other documents are never followed.

    >>> inline_references({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, recursion=True, notes=[])
    {'type': 'object'}
    """
    work = _Inliner(schema, recursion=recursion, notes=notes)
    whole = work.read(schema, (id(schema),))
    return {**whole, "$defs": work.kept} if work.kept else whole


class _Inliner:
    def __init__(self, root: Object, *, recursion: bool, notes: list[str]) -> None:
        self.kept: dict[str, Any] = {}
        self._root = root
        self._recursion = recursion
        self._notes = notes
        self._names: dict[int, str] = {}
        self._left = _MAX_PARTS

    def read(self, schema: Any, inside: tuple[int, ...]) -> dict[str, Any]:
        """Inline the references of a part that is inside these definitions."""
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, Mapping):
            return {}
        self._left -= 1
        if self._left < 0 or len(inside) > _MAX_DEPTH:
            add_note(self._notes, "the schema is too large: deep parts of it are left open")
            return {}
        own = map_subschemas(
            {key: value for key, value in schema.items() if _is_kept(key, value)},
            lambda part: self.read(part, (*inside, 0)),
        )
        reference = next((schema[key] for key in _REFERENCES if key in schema), None)
        return own if reference is None else self._with_target(own, reference, inside)

    def _with_target(self, own: dict[str, Any], reference: Any, inside: tuple[int, ...]) -> dict[str, Any]:
        target = resolve_pointer(reference, self._root)
        if not isinstance(target, Mapping):
            add_note(self._notes, f"what {echo(reference)} refers to is not in the schema")
            return own
        if id(target) in inside:
            return self._again(own, target, str(reference))
        found = self.read(target, (*inside, id(target)))
        if id(target) in self._names:
            return self._pointer(own, target)
        return merge_schemas([own, found]) if own else found

    def _again(self, own: dict[str, Any], target: Object, reference: str) -> dict[str, Any]:
        """Handle a definition that refers to itself."""
        if not self._recursion:
            add_note(self._notes, f"{echo(reference)} refers to itself: the inner part is left open")
            note = "The same again, as deep as needed."
            kind = {"type": target["type"]} if "type" in target else {}
            return {**kind, **own, "description": f"{own.get('description', '')} {note}".strip()}
        if id(target) not in self._names:
            self._names[id(target)] = name = self._name(reference)
            self.kept[name] = {}
            self.kept[name] = self.read(target, (id(target),))
        return self._pointer(own, target)

    def _pointer(self, own: dict[str, Any], target: Object) -> dict[str, Any]:
        if own.keys() - _ANNOTATIONS:
            add_note(self._notes, "a rule beside a reference of a schema to itself is left out")
        return {"$ref": f"#/$defs/{self._names[id(target)]}"}

    def _name(self, reference: str) -> str:
        name = _INVALID_NAME_CHARS.sub("_", reference.rpartition("/")[2].lstrip("#")) or "root"
        taken = self.kept.keys()
        return (
            name
            if name not in taken
            else next(f"{name}_{i}" for i in range(2, _MAX_PARTS) if f"{name}_{i}" not in taken)
        )


def _is_kept(key: str, value: Any) -> bool:
    """Whether a keyword is kept: it needs no context."""
    old_id = key == "id" and isinstance(value, str)
    return key not in _DROPPED_KEYWORDS and not old_id


def modernized(schema: Any) -> dict[str, Any]:
    """Convert a schema to draft 2020-12: tuples, exclusive bounds and nullability of older drafts are rewritten.

    >>> modernized({"type": "string", "nullable": True})
    {'type': ['string', 'null']}
    >>> modernized({"minimum": 1, "exclusiveMinimum": True})
    {'exclusiveMinimum': 1}
    """
    node = map_subschemas(schema, modernized) if isinstance(schema, Mapping) else {}
    _modernize_bound(node, "minimum", "exclusiveMinimum")
    _modernize_bound(node, "maximum", "exclusiveMaximum")
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    node.pop("additionalItems", None)
    nullable = node.pop("nullable", None)
    return with_null(node) if nullable is True else node


def _modernize_bound(node: dict[str, Any], bound: str, exclusive: str) -> None:
    if isinstance(node.get(exclusive), bool) and node.pop(exclusive) and bound in node:
        node[exclusive] = node.pop(bound)


def with_null(node: Object) -> dict[str, Any]:
    """Make a schema accept null too.

    >>> with_null({"enum": ["a"]}), with_null({"$ref": "#/$defs/a"})
    ({'enum': ['a', None]}, {'anyOf': [{'$ref': '#/$defs/a'}, {'type': 'null'}]})
    """
    node = dict(node)
    if "$ref" in node:
        return {"anyOf": [node, {"type": "null"}]}
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if isinstance(node.get("enum"), list) and None not in node["enum"]:
        node["enum"] = [*node["enum"], None]
    if (kinds := types_of(node)) and "null" not in kinds:
        node["type"] = [*kinds, "null"]
    for union in ("anyOf", "oneOf"):
        if isinstance(node.get(union), list):
            node[union] = [*node[union], {"type": "null"}]
    return node


def merge_all(schemas: Iterable[Object], notes: list[str]) -> dict[str, Any]:
    """Merge schemas that all apply; of a conflicting rule, the first is kept and a note says so."""
    listed = [_without_own_all_of(schema, notes) for schema in schemas]
    seen: dict[str, Any] = {}
    for schema in listed:
        for key, value in schema.items():
            if key in seen and key not in _MERGED_KEYWORDS | _ANNOTATION_KEYWORDS and seen[key] != value:
                add_note(notes, f"of several rules on {key!r} that all apply, one is kept")
            if key == "properties" and any(seen.get(key, {}).get(name, part) != part for name, part in value.items()):
                add_note(notes, "of several rules on one property that all apply, one is kept")
            seen.setdefault(key, value)
            if key == "properties":
                seen[key] = {**value, **seen[key]}
    return merge_schemas(listed)


def _without_own_all_of(schema: Object, notes: list[str]) -> dict[str, Any]:
    """Merge the `allOf` of a schema into it."""
    listed = schema.get("allOf")
    if not isinstance(listed, list):
        return dict(schema)
    own = {key: value for key, value in schema.items() if key != "allOf"}
    return merge_all([own, *(part for part in listed if isinstance(part, Mapping))], notes)


def without_all_of(schema: Any, notes: list[str]) -> dict[str, Any]:
    """Merge every `allOf` in a schema."""
    return _without_own_all_of(
        map_subschemas(schema, lambda part: without_all_of(part, notes)) if isinstance(schema, Mapping) else {}, notes
    )


def with_object_top(schema: Object, notes: list[str]) -> tuple[dict[str, Any], str]:
    """Make the top of a schema one object without alternatives, and describe the alternatives it had.

    The object has the properties of all alternatives, and requires what all of them require.
    """
    node = _without_own_all_of(schema, notes)
    hint = ""
    for union in ("anyOf", "oneOf"):
        if isinstance(node.get(union), list):
            branches = [_without_own_all_of(branch, notes) for branch in node.pop(union) if isinstance(branch, Mapping)]
            hint = _alternatives_hint(branches, hint)
            node = _merge_branches(node, [branch for branch in branches if types_of(branch) in ([], ["object"])])
            add_note(notes, f"{union!r} at the top is joined into one object")
    for key in _REFUSED_AT_TOP:
        if key in node:
            del node[key]
            add_note(notes, f"{key!r} at the top is left out")
    rest = {key: value for key, value in node.items() if key not in ("type", "properties", "required")}
    needed = {"required": list(required(node))} if required(node) else {}
    return {"type": "object", "properties": dict(properties(node)), **needed, **rest}, hint


def _merge_branches(base: Object, branches: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for branch in branches:
        for name, part in properties(branch).items():
            found.setdefault(name, [])
            if part not in found[name]:
                found[name].append(part)
    known = properties(base)
    everywhere = {name for name in found if all(name in properties(branch) for branch in branches)}
    union = {
        name: known[name] if name in known and name not in everywhere else _alternatives(parts)
        for name, parts in found.items()
    }
    shared = (
        [name for name in required(branches[0]) if all(name in required(one) for one in branches)] if branches else ()
    )
    needed = list(dict.fromkeys([*required(base), *shared]))
    said = bool(branches) and all("additionalProperties" in branch for branch in branches)
    whole = {key: value for key, value in base.items() if key != "required"}
    if said and "additionalProperties" not in whole:
        whole["additionalProperties"] = any(branch["additionalProperties"] is not False for branch in branches)
    whole["properties"] = {**known, **union}
    return {**whole, "required": needed} if needed else whole


def _alternatives(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Mapping) and "const" in part for part in parts):
        return {"enum": [part["const"] for part in parts]}
    return {"anyOf": parts}


def _alternatives_hint(branches: list[dict[str, Any]], before: str) -> str:
    """Describe which arguments go together; empty if the alternatives require nothing."""
    ways = [" and ".join(_required_arguments(branch)) for branch in branches]
    if not all(ways) or len(ways) < 2:  # noqa: PLR2004
        return before
    return shorten(f"{before} Needs one of: {'; '.join(dict.fromkeys(ways))}.".strip(), _MAX_HINT)


def _required_arguments(branch: Object) -> list[str]:
    known = properties(branch)
    return [
        f"{name}={known[name]['const']!r}" if isinstance(known.get(name), Mapping) and "const" in known[name] else name
        for name in required(branch)
    ]


def add_note(notes: list[str], text: str) -> None:
    """Add a note, once."""
    if text not in notes:
        notes.append(text)
