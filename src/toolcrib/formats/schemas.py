"""A tool's schema as a provider takes it, and the way back for the arguments that come from it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from toolcrib.formats.fit import fitted
from toolcrib.formats.inline import inlined
from toolcrib.formats.rules import Rules
from toolcrib.formats.shape import current, with_object_top, without_all_of
from toolcrib.formats.strict import NotStrict, closed, counted
from toolcrib.formats.walk import names, needed
from toolcrib.model import Object
from toolcrib.schema.refs import pointed

_MAX_KEY: Final = 64
"""Characters of an argument's name."""

_MAX_LEVELS: Final = 100
"""Levels of arguments that are looked through on the way back."""

_NOT_A_KEY: Final = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A schema as a provider takes it."""

    schema: dict[str, Any]
    strict: bool = False
    """Whether the provider may hold the model to it."""
    reason: str = ""
    """Why it is not strict although that was asked."""
    hint: str = ""
    """A sentence for the tool's description: what the schema no longer says."""
    notes: tuple[str, ...] = ()
    """What the schema takes although the tool may not; empty where both take the same."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Arguments that have another name here, and the tool's own name for them."""
    optional: int = 0
    """Arguments that may be left out."""
    unions: int = 0
    """Arguments of several types."""
    before: Object | None = None
    """Before what is optional became null; None where it did not."""

    def restore(self, arguments: Object) -> dict[str, Any]:
        """The arguments as the tool takes them: with its own names, and without the nulls that say "nothing".

        >>> from toolcrib.formats.rules import OPENAI_STRICT
        >>> adapted = adapt({"type": "object", "properties": {"n": {"type": "integer"}}}, OPENAI_STRICT)
        >>> adapted.restore({"n": None}), adapted.restore({"n": 1})
        ({}, {'n': 1})
        """
        named = {self.renamed.get(name, name): value for name, value in arguments.items()}
        if self.before is None:
            return named
        given = _given(named, self.before, self.before, _MAX_LEVELS)
        return given if isinstance(given, dict) else named


def adapt(schema: Object, rules: Rules) -> Adapted:
    """The schema as the rules take it. It never fails: what cannot be strict is adapted without, and says why.

    What the tool takes, the adapted schema takes too (where it is strict, with null for what is left out); what it
    takes beyond that is in `notes`.
    """
    notes: list[str] = []
    plain = current(inlined(schema, recursion=rules.recursion, notes=notes))
    plain = plain if rules.all_of else without_all_of(plain, notes)
    top, hint = with_object_top(plain, notes)
    whole = top
    if rules.strict:
        try:
            whole = closed(top, rules)
        except NotStrict as error:
            return _not_strict(schema, rules, str(error))
    optional, unions = counted(whole)
    found, renamed = _renamed(fitted(whole, rules, notes), rules)
    return Adapted(
        schema=found,
        strict=rules.strict,
        hint=hint,
        notes=tuple(notes),
        renamed=renamed,
        optional=optional,
        unions=unions,
        before=top if rules.all_required else None,
    )


def _not_strict(schema: Object, rules: Rules, reason: str) -> Adapted:
    loose = adapt(schema, rules.otherwise or Rules())
    return Adapted(
        schema=loose.schema,
        reason=reason,
        hint=loose.hint,
        notes=loose.notes,
        renamed=loose.renamed,
        optional=loose.optional,
        unions=loose.unions,
    )


def _renamed(schema: dict[str, Any], rules: Rules) -> tuple[dict[str, Any], dict[str, str]]:
    """The schema with the arguments renamed whose names are not taken, and the new names with the old ones."""
    key = rules.key
    if key is None or all(key.fullmatch(name) for name in names(schema)):
        return schema, {}
    new: dict[str, str] = {name: name for name in names(schema) if key.fullmatch(name)}
    for name in names(schema):
        if name not in new:
            new[name] = _free(name, set(new.values()))
    whole = {**schema, "properties": {new[name]: part for name, part in names(schema).items()}}
    if "required" in schema:
        whole["required"] = [new.get(name, name) for name in needed(schema)]
    for rule in ("dependentRequired", "dependentSchemas", "propertyNames", "patternProperties"):
        whole.pop(rule, None)  # they speak of the old names
    return whole, {mine: theirs for theirs, mine in new.items() if mine != theirs}


def _free(name: str, taken: set[str]) -> str:
    stem = _NOT_A_KEY.sub("_", name).strip("_")[: _MAX_KEY - 6] or "argument"
    stem = stem if stem[0].isalpha() else f"_{stem}"
    place, found = 1, stem
    while found in taken:
        place += 1
        found = f"{stem}_{place}"
    return found


def _given(value: Any, schema: Any, root: Object, levels: int) -> Any:
    """The value without the nulls that stand for something optional that was left out."""
    if not levels or not isinstance(value, (dict, list)):
        return value
    node = _seen(schema, root)
    if isinstance(value, list):
        return [_given(item, node.get("items"), root, levels - 1) for item in value]
    for union in ("anyOf", "oneOf"):
        if isinstance(node.get(union), list):
            node = _branch(value, [_seen(branch, root) for branch in node[union]], node)
            break
    known, required = names(node), needed(node)
    return {
        name: _given(item, known.get(name), root, levels - 1)
        for name, item in value.items()
        if not (item is None and name in known and name not in required)
    }


def _seen(schema: Any, root: Object) -> Object:
    node = pointed(schema["$ref"], root) if isinstance(schema, Mapping) and "$ref" in schema else schema
    return node if isinstance(node, Mapping) else {}


def _branch(value: dict[str, Any], branches: list[Object], whole: Object) -> Object:
    """The alternative that an object is of: the one with all its names, and with the values it sets."""
    same = [branch for branch in branches if value.keys() <= names(branch).keys()]
    exact = [branch for branch in same if value.keys() == names(branch).keys()] or same
    fixed = [branch for branch in exact if all(_fits(value.get(name), part) for name, part in names(branch).items())]
    return (fixed or exact or [whole])[0]


def _fits(value: Any, part: Any) -> bool:
    if not isinstance(part, Mapping):
        return True
    return value == part["const"] if "const" in part else value in part["enum"] if "enum" in part else True
