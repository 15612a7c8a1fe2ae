"""Explain what was wrong with some arguments, so that the next call succeeds.

Values are shown only when they are short: arguments may be large, or not meant for a log.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationError
from jsonschema_rs import ValidationErrorKind as Kind

from toolcrib.names import nearest
from toolcrib.schema.signature import literal, properties, resolve, subschema_at
from toolcrib.types import Object

MAX_VIOLATIONS = 5
"""Violations that are listed; the rest are counted."""
_MAX_NODES = 2_000
"""Number of values in the arguments above which only the first violation is reported: finding all of them costs a
hundred times more."""
_MAX_OPTIONS = 10
"""Allowed values that are listed."""
_MAX_PATH = 120
_MAX_KEY = 60
_MAX_VALUE = 40
_MAX_BRANCHES = 8
_MIN_SIMILARITY = 55.0
"""Similarity, 0 to 100, from which a name is suggested. It is low because a tool has few parameters."""
_JSON_TYPES: tuple[tuple[Any, str], ...] = (
    (type(None), "null"),
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    ((list, tuple), "array"),
    (Mapping, "object"),
)
_RuleText = Callable[[Any, Any], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaViolation:
    """One violation of the schema, and what to try instead."""

    text: str
    suggestions: tuple[str, ...] = ()
    rank: int = 2
    """0 for missing, 1 for unknown, 2 for other violations."""


def explain_violations(validator: jsonschema_rs.Validator, arguments: Any, schema: Object) -> list[SchemaViolation]:
    """Describe what is wrong, missing parameters first: at most 5, then how many more."""
    errors = list(validator.iter_errors(arguments)) if _is_small(arguments) else [_first_error(validator, arguments)]
    found = sorted((fault for error in errors[: MAX_VIOLATIONS * 4] for fault in _violations(error, schema)), key=_rank)
    found = list({fault.text: fault for fault in found}.values())
    more = len(found) - MAX_VIOLATIONS + max(0, len(errors) - MAX_VIOLATIONS * 4)
    return [*found[:MAX_VIOLATIONS], SchemaViolation(text=f"and {more} more")] if more > 0 else found


def _rank(fault: SchemaViolation) -> int:
    return fault.rank


def _first_error(validator: jsonschema_rs.Validator, arguments: Any) -> ValidationError:
    try:
        validator.validate(arguments)
    except ValidationError as error:
        return error
    raise AssertionError("the arguments changed while they were checked")


def _is_small(value: Any) -> bool:
    queue = [value]
    for node in queue:
        queue.extend(node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ())
        if len(queue) > _MAX_NODES:
            return False
    return True


def _violations(error: ValidationError, schema: Object) -> list[SchemaViolation]:
    kind = error.kind
    if isinstance(kind, Kind.AdditionalProperties | Kind.UnevaluatedProperties):
        return [_unknown_property(name, error, schema) for name in kind.unexpected[:MAX_VIOLATIONS]]
    if isinstance(kind, Kind.Required):
        return [_missing_property(kind.property, error, schema)]
    if isinstance(kind, Kind.AnyOf | Kind.OneOfNotValid):
        return _branch_violations(kind.context, error, schema)
    if isinstance(kind, Kind.Enum):
        return [_not_an_option(kind.options, error)]
    return [SchemaViolation(text=f"{_path_text(error.instance_path)} {_rule_text(error)}")]


def _rule_text(error: ValidationError) -> str:
    """Describe the rule that was broken."""
    kind = error.kind
    for types, say in _RULE_TEXTS:
        if isinstance(kind, types):
            return say(kind, error.instance)
    return f"does not fit ({kind.name})"


def _missing_property(name: str, error: ValidationError, schema: Object) -> SchemaViolation:
    path = _path_text([*error.instance_path, name])
    known = set(properties(_schema_at(error, schema)))
    strangers = [key for key in error.instance if key not in known] if isinstance(error.instance, Mapping) else []
    close = nearest(name, strangers, limit=1, cutoff=_MIN_SIMILARITY)
    said = f' (not "{_printable(close[0])}")' if close else ""
    return SchemaViolation(text=f"{path} is required{said}", suggestions=(name[:_MAX_KEY],) if close else (), rank=0)


def _unknown_property(name: str, error: ValidationError, schema: Object) -> SchemaViolation:
    close = nearest(name, properties(_schema_at(error, schema)), limit=1, cutoff=_MIN_SIMILARITY)
    said = f', did you mean "{_printable(close[0])}"?' if close else ""
    return SchemaViolation(
        text=f"{_path_text([*error.instance_path, name])} is no parameter{said}", suggestions=tuple(close), rank=1
    )


def _not_an_option(options: Sequence[Any], error: ValidationError) -> SchemaViolation:
    shown = [literal(option, _MAX_VALUE) for option in options[:_MAX_OPTIONS]]
    more = f" or {len(options) - _MAX_OPTIONS} others" if len(options) > _MAX_OPTIONS else ""
    value = error.instance
    texts = [option for option in options if isinstance(option, str)]
    close = nearest(value, texts, limit=1, cutoff=_MIN_SIMILARITY) if isinstance(value, str) else []
    return SchemaViolation(
        text=f"{_path_text(error.instance_path)} must be one of {', '.join(shown)}{more}{_but_was(value)}",
        suggestions=tuple(word[:_MAX_KEY] for word in close),
    )


def _branch_violations(
    context: Sequence[Sequence[ValidationError]], error: ValidationError, schema: Object
) -> list[SchemaViolation]:
    """Why a value fits no alternative: of those of its own type, if there are any."""
    branches = [branch for branch in context[:_MAX_BRANCHES] if branch]
    here = error.instance_path
    apart = [branch for branch in branches if _is_of_other_type(branch, here)]
    near = [branch for branch in branches if branch not in apart]
    # A constant such as "kind": "circle" identifies an alternative; those with another constant were not meant.
    near = [branch for branch in near if not any(isinstance(item.kind, Kind.Constant) for item in branch)] or near
    if not near:
        types = dict.fromkeys(kind for branch in apart for kind in _expected_types(branch))
        return [
            SchemaViolation(text=f"{_path_text(here)} must be {' or '.join(types)}, not {_json_type(error.instance)}")
        ]
    texts = [[fault for item in branch[:MAX_VIOLATIONS] for fault in _violations(item, schema)] for branch in near]
    shortest = min(texts, key=len)
    if len(near) == 1:
        return shortest
    combined = dict.fromkeys(" and ".join(fault.text for fault in branch) for branch in texts if len(branch) <= 2)  # noqa: PLR2004
    options = list(combined)[:3] or [" and ".join(fault.text for fault in shortest)]
    return [SchemaViolation(text=" or ".join(options), suggestions=shortest[0].suggestions)]


def _is_of_other_type(branch: Sequence[ValidationError], path: list[str | int]) -> bool:
    return any(isinstance(error.kind, Kind.Type) and error.instance_path == path for error in branch)


def _expected_types(branch: Iterable[ValidationError]) -> list[str]:
    return [name for error in branch if isinstance(error.kind, Kind.Type) for name in error.kind.types]


def _schema_at(error: ValidationError, schema: Object) -> Object:
    """The schema whose rule was broken, resolved."""
    return resolve(subschema_at(schema, error.evaluation_path[:-1]), schema)


def _path_text(path: Sequence[str | int]) -> str:
    """A path as text: `"labels"`, `"items[0].name"`, or `the arguments` for the root."""
    text = ""
    for part in islice(path, 16):
        text += f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" if text else _printable(part)
    return f'"{text if len(text) <= _MAX_PATH else text[: _MAX_PATH - 1] + "…"}"' if text else "the arguments"


def _printable(text: str) -> str:
    shown = text if len(text) <= _MAX_KEY else f"{text[: _MAX_KEY - 1]}…"
    return "".join(char if char.isprintable() else "\ufffd" for char in shown)


def _but_was(value: Any) -> str:
    """The text ", not ..." for a value that is short enough to show."""
    if value is None or isinstance(value, (bool, int, float)):
        shown = literal(value, _MAX_VALUE)
    elif isinstance(value, str) and len(value) <= _MAX_VALUE:
        shown = literal(value, _MAX_VALUE + 2)
    else:
        return f", not {_json_type(value)}" if not isinstance(value, str) else ""
    return f", not {shown}"


def _json_type(value: Any) -> str:
    for kinds, name in _JSON_TYPES:
        if isinstance(value, kinds):
            return name
    return "something that is not JSON"


def _count(number: Any, unit: str) -> str:
    units = "properties" if unit == "property" else f"{unit}s"
    return f"{number} {unit if number == 1 else units}"


_RULE_TEXTS: tuple[tuple[Any, _RuleText], ...] = (
    (Kind.Type, lambda kind, value: f"must be {' or '.join(kind.types)}, not {_json_type(value)}"),
    (Kind.Constant, lambda kind, value: f"must be {literal(kind.expected_value, _MAX_VALUE)}{_but_was(value)}"),
    (Kind.Minimum, lambda kind, value: f"must be at least {kind.limit}{_but_was(value)}"),
    (Kind.Maximum, lambda kind, value: f"must be at most {kind.limit}{_but_was(value)}"),
    (Kind.ExclusiveMinimum, lambda kind, value: f"must be more than {kind.limit}{_but_was(value)}"),
    (Kind.ExclusiveMaximum, lambda kind, value: f"must be less than {kind.limit}{_but_was(value)}"),
    (Kind.MultipleOf, lambda kind, value: f"must be a multiple of {kind.multiple_of}{_but_was(value)}"),
    (Kind.MinLength, lambda kind, _: f"must have at least {_count(kind.limit, 'character')}"),
    (Kind.MaxLength, lambda kind, value: f"must have at most {_count(kind.limit, 'character')}, not {len(value)}"),
    (Kind.MinItems, lambda kind, value: f"must have at least {_count(kind.limit, 'item')}, not {len(value)}"),
    (Kind.MaxItems, lambda kind, value: f"must have at most {_count(kind.limit, 'item')}, not {len(value)}"),
    (Kind.AdditionalItems, lambda kind, value: f"must have at most {_count(kind.limit, 'item')}, not {len(value)}"),
    (Kind.MinProperties, lambda kind, value: f"must have at least {_count(kind.limit, 'property')}, not {len(value)}"),
    (Kind.MaxProperties, lambda kind, value: f"must have at most {_count(kind.limit, 'property')}, not {len(value)}"),
    (Kind.UniqueItems, lambda _kind, _: "must not hold the same item twice"),
    (Kind.Contains, lambda _kind, _: "lacks an item that it must hold"),
    (Kind.Pattern, lambda kind, value: f"must match the pattern {literal(kind.pattern, 80)}{_but_was(value)}"),
    (Kind.BacktrackLimitExceeded, lambda _kind, _: "is too hard to hold against its pattern: send something simpler"),
    (Kind.FalseSchema, lambda _kind, _: "is not allowed"),
    (Kind.Not, lambda _kind, value: f"is not allowed to be so{_but_was(value)}"),
    (Kind.OneOfMultipleValid, lambda _kind, _: "fits several of its alternatives, and must fit only one"),
    (Kind.PropertyNames, lambda _kind, _: "holds a key that is not allowed"),
)
