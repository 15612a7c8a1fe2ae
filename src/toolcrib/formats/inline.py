"""References written out: a schema that stands by itself, of bounded size."""

import re
from collections.abc import Mapping
from typing import Any, Final

from toolcrib.formats.walk import changed, sound
from toolcrib.model import Object
from toolcrib.schema.refs import merged, pointed

_MAX_PARTS: Final = 10_000
"""Parts of a schema once its references are written out."""

_MAX_DEPTH: Final = 60
"""Levels of a schema once its references are written out."""

_NOT_CARRIED: Final = frozenset(
    {"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment", "$defs"}
    | {"definitions", "$ref", "$dynamicRef", "$recursiveRef"}
)

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")

_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "deprecated"})

_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


def inlined(schema: Object, *, recursion: bool, notes: list[str]) -> dict[str, Any]:
    """The schema with its local references written out; what a definition says of itself stays a reference.

    Where recursion is not taken, or a schema grows too large, the part is left open and `notes` say so. References to
    other documents are never followed.

    >>> inlined({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, recursion=True, notes=[])
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
        """The part of a schema, inside these definitions, with its references written out."""
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, Mapping):
            return {}
        self._left -= 1
        if self._left < 0 or len(inside) > _MAX_DEPTH:
            self._note("the schema is too large: deep parts of it are left open")
            return {}
        own = changed(
            {key: value for key, value in schema.items() if _carried(key, value)},
            lambda part: self.read(part, (*inside, 0)),
        )
        reference = next((schema[key] for key in _REFERENCES if key in schema), None)
        return own if reference is None else self._with_target(own, reference, inside)

    def _with_target(self, own: dict[str, Any], reference: Any, inside: tuple[int, ...]) -> dict[str, Any]:
        target = pointed(reference, self._root)
        if not isinstance(target, Mapping):
            self._note(f"what {str(reference)[:80]!r} refers to is not in the schema")
            return own
        if id(target) in inside:
            return self._again(own, target, str(reference))
        found = self.read(target, (*inside, id(target)))
        if id(target) in self._names:
            return self._pointer(own, target)
        return merged([own, found]) if own else found

    def _again(self, own: dict[str, Any], target: Object, reference: str) -> dict[str, Any]:
        """The place where a definition comes to itself."""
        if not self._recursion:
            self._note(f"{reference[:80]!r} refers to itself: the inner part is left open")
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
            self._note("a rule beside a reference of a schema to itself is left out")
        return {"$ref": f"#/$defs/{self._names[id(target)]}"}

    def _name(self, reference: str) -> str:
        name = _NOT_A_NAME.sub("_", reference.rpartition("/")[2].lstrip("#")) or "root"
        taken = self.kept.keys()
        return (
            name
            if name not in taken
            else next(f"{name}_{i}" for i in range(2, _MAX_PARTS) if f"{name}_{i}" not in taken)
        )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)


def _carried(key: str, value: Any) -> bool:
    """Whether a keyword means something by itself, and has a value that it can have."""
    old_id = key == "id" and isinstance(value, str)
    return key not in _NOT_CARRIED and not old_id and sound(key, value)
