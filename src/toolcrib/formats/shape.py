"""A schema in the shape of the current draft, with an object at the top and nothing beside it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from toolcrib.formats.walk import changed, names, needed, types
from toolcrib.model import Object
from toolcrib.schema.refs import merged

_REFUSED_AT_TOP: Final = ("allOf", "anyOf", "oneOf", "enum", "const", "not", "if", "then", "else")

_MAX_HINT: Final = 300
"""Characters of a hint."""

_JOINED: Final = frozenset({"properties", "required", "$defs"})
"""Keywords that are joined without loss."""

_WORDS: Final = frozenset({"title", "description", "default", "examples"})


def current(schema: Any) -> dict[str, Any]:
    """The schema in the words of draft 2020-12: tuples, exclusive bounds and nullability of older drafts rewritten.

    >>> current({"type": "string", "nullable": True})
    {'type': ['string', 'null']}
    >>> current({"minimum": 1, "exclusiveMinimum": True})
    {'exclusiveMinimum': 1}
    """
    node = changed(schema, current) if isinstance(schema, Mapping) else {}
    _exclusive(node, "minimum", "exclusiveMinimum")
    _exclusive(node, "maximum", "exclusiveMaximum")
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    node.pop("additionalItems", None)
    nullable = node.pop("nullable", None)
    return with_null(node) if nullable is True else node


def _exclusive(node: dict[str, Any], bound: str, exclusive: str) -> None:
    if isinstance(node.get(exclusive), bool) and node.pop(exclusive) and bound in node:
        node[exclusive] = node.pop(bound)


def with_null(node: Object) -> dict[str, Any]:
    """The schema, taking null as well.

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
    if (kinds := types(node)) and "null" not in kinds:
        node["type"] = [*kinds, "null"]
    for union in ("anyOf", "oneOf"):
        if isinstance(node.get(union), list):
            node[union] = [*node[union], {"type": "null"}]
    return node


def joined(schemas: Iterable[Object], notes: list[str]) -> dict[str, Any]:
    """Schemas that all hold, as one; of a rule that several of them set, the first stays and a note says so."""
    listed = [_flat(schema, notes) for schema in schemas]
    seen: dict[str, Any] = {}
    for schema in listed:
        for key, value in schema.items():
            if key in seen and key not in _JOINED | _WORDS and seen[key] != value:
                _note(notes, f"of several rules on {key!r} that all hold, one is kept")
            if key == "properties" and any(seen.get(key, {}).get(name, part) != part for name, part in value.items()):
                _note(notes, "of several rules on one property that all hold, one is kept")
            seen.setdefault(key, value)
            if key == "properties":
                seen[key] = {**value, **seen[key]}
    return merged(listed)


def _flat(schema: Object, notes: list[str]) -> dict[str, Any]:
    """The schema with its own `allOf` joined into it."""
    listed = schema.get("allOf")
    if not isinstance(listed, list):
        return dict(schema)
    own = {key: value for key, value in schema.items() if key != "allOf"}
    return joined([own, *(part for part in listed if isinstance(part, Mapping))], notes)


def without_all_of(schema: Any, notes: list[str]) -> dict[str, Any]:
    """The schema without `allOf` anywhere."""
    return _flat(
        changed(schema, lambda part: without_all_of(part, notes)) if isinstance(schema, Mapping) else {}, notes
    )


def with_object_top(schema: Object, notes: list[str]) -> tuple[dict[str, Any], str]:
    """The schema as one object without alternatives at its top, and a sentence on the alternatives it had.

    Alternatives become one object that has the properties of all and requires what all of them require.
    """
    node = _flat(schema, notes)
    hint = ""
    for union in ("anyOf", "oneOf"):
        if isinstance(node.get(union), list):
            branches = [_flat(branch, notes) for branch in node.pop(union) if isinstance(branch, Mapping)]
            hint = _hint(branches, hint)
            node = _either(node, [branch for branch in branches if types(branch) in ([], ["object"])])
            _note(notes, f"{union!r} at the top is joined into one object")
    for key in _REFUSED_AT_TOP:
        if key in node:
            del node[key]
            _note(notes, f"{key!r} at the top is left out")
    rest = {key: value for key, value in node.items() if key not in ("type", "properties", "required")}
    required = {"required": needed(node)} if needed(node) else {}
    return {"type": "object", "properties": dict(names(node)), **required, **rest}, hint


def _either(base: Object, branches: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for branch in branches:
        for name, part in names(branch).items():
            found.setdefault(name, [])
            if part not in found[name]:
                found[name].append(part)
    known = names(base)
    everywhere = {name for name in found if all(name in names(branch) for branch in branches)}
    union = {
        name: known[name] if name in known and name not in everywhere else _one_of(parts)
        for name, parts in found.items()
    }
    shared = (
        [name for name in needed(branches[0]) if all(name in needed(each) for each in branches)] if branches else []
    )
    required = list(dict.fromkeys([*needed(base), *shared]))
    said = bool(branches) and all("additionalProperties" in branch for branch in branches)
    whole = {key: value for key, value in base.items() if key != "required"}
    if said and "additionalProperties" not in whole:
        whole["additionalProperties"] = any(branch["additionalProperties"] is not False for branch in branches)
    whole["properties"] = {**known, **union}
    return {**whole, "required": required} if required else whole


def _one_of(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Mapping) and "const" in part for part in parts):
        return {"enum": [part["const"] for part in parts]}
    return {"anyOf": parts}


def _hint(branches: list[dict[str, Any]], before: str) -> str:
    """Which arguments go together, in a sentence; empty where the alternatives require nothing."""
    ways = [" and ".join(_way(branch)) for branch in branches]
    if not all(ways) or len(ways) < 2:  # noqa: PLR2004
        return before
    text = f"{before} Needs one of: {'; '.join(dict.fromkeys(ways))}.".strip()
    return text if len(text) <= _MAX_HINT else f"{text[: _MAX_HINT - 1]}…"


def _way(branch: Object) -> list[str]:
    known = names(branch)
    return [
        f"{name}={known[name]['const']!r}" if isinstance(known.get(name), Mapping) and "const" in known[name] else name
        for name in needed(branch)
    ]


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)
