"""Validate arguments against a JSON Schema, and explain what was wrong so that the next call succeeds.

A schema is compiled without ever reaching out of the process, and the work that one check can take is bounded first:
a definition that refers twice to another, which refers twice to a third, is small to write and takes forever to
check, and a recursive one can do the same with a deep argument. Errors show values only when they are short:
arguments may be large, or not meant for a log.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import log
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationError
from jsonschema_rs import ValidationErrorKind as Kind

from toolcrib.errors import InvalidArguments, InvalidTool
from toolcrib.names import nearest
from toolcrib.sanitize import shorten
from toolcrib.schema.arguments import repair
from toolcrib.schema.signature import (
    json_type,
    literal,
    properties,
    resolve,
    resolve_pointer,
    signature_line,
    subschema_at,
)
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
    found = sorted(
        (fault for error in errors[: MAX_VIOLATIONS * 4] for fault in _violations(error, schema)),
        key=lambda fault: fault.rank,
    )
    found = list({fault.text: fault for fault in found}.values())
    more = len(found) - MAX_VIOLATIONS + max(0, len(errors) - MAX_VIOLATIONS * 4)
    return [*found[:MAX_VIOLATIONS], SchemaViolation(text=f"and {more} more")] if more > 0 else found


def _first_error(validator: jsonschema_rs.Validator, arguments: Any) -> ValidationError:
    try:
        validator.validate(arguments)
    except ValidationError as error:
        return error
    raise AssertionError("the arguments changed while they were checked")


def _is_small(value: Any) -> bool:
    queue = [value]
    for node in queue:
        queue.extend(_children(node))
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
        text=f"{_path_text([*error.instance_path, name])} is not a parameter{said}", suggestions=tuple(close), rank=1
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
            SchemaViolation(text=f"{_path_text(here)} must be {' or '.join(types)}, not {json_type(error.instance)}")
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
    return f'"{shorten(text, _MAX_PATH)}"' if text else "the arguments"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in shorten(text, _MAX_KEY))


def _but_was(value: Any) -> str:
    """The text ", not ..." for a value that is short enough to show."""
    if value is None or isinstance(value, (bool, int, float)):
        shown = literal(value, _MAX_VALUE)
    elif isinstance(value, str) and len(value) <= _MAX_VALUE:
        shown = literal(value, _MAX_VALUE + 2)
    else:
        return f", not {json_type(value)}" if not isinstance(value, str) else ""
    return f", not {shown}"


def _count(number: Any, unit: str) -> str:
    units = "properties" if unit == "property" else f"{unit}s"
    return f"{number} {unit if number == 1 else units}"


_RULE_TEXTS: tuple[tuple[Any, _RuleText], ...] = (
    (Kind.Type, lambda kind, value: f"must be {' or '.join(kind.types)}, not {json_type(value)}"),
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
_MAX_MESSAGE = 800
"""Maximum length of a message, in characters."""
_BACKTRACK_LIMIT = 100_000
"""Backtracking steps of a regular expression, about 10 ms, so that a hostile pattern cannot stall a call."""
_MAX_REASON = 240
"""Maximum length of a reason, in characters."""
_DRAFT_07 = "http://json-schema.org/draft-07/schema#"
_MAX_PATTERN_BYTES = 400_000
"""Size of a compiled regular expression; a larger one is left to the server."""
_MAX_PATTERN_TEXT = 4_000
"""Characters of arguments that are matched: the time grows with their number times the size of the expression."""
_PATTERN_OPTIONS = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT, size_limit=_MAX_PATTERN_BYTES)
_LOOSE_DASH = re.compile(r"(\\[wWdDsS])-(?!\])|(?<!\[)-(\\[wWdDsS])")
_ECMA_ONLY = re.compile(r"\\p\{[\w=]{1,60}\}|\\u\{[0-9a-f]{1,6}\}", re.IGNORECASE)
"""Parts of regular expressions that JavaScript knows and Python does not."""
_MAX_WORK = 10_000_000
"""Schema steps of one check, about 0.1 s."""
_MAX_ESTIMATE_STEPS = 200_000
"""Steps of the estimate itself."""
_MAX_CHECKED_DEPTH = 100
"""Maximum depth of arguments: validation recurses, and would exhaust the stack."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
_BY_PATTERN = ("patternProperties", "additionalProperties", "unevaluatedProperties")
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_MANY = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
_CHILD_KEYWORDS = (
    *("items", "additionalProperties", "additionalItems", "contains", "unevaluatedItems", "unevaluatedProperties"),
)
_ANY_CHILD = ""
"""Name of a child schema that may apply to any child."""


class Schema:
    """A valid input schema, compiled when the first arguments are checked."""

    __slots__ = (
        *("_has_patterns", "_is_checked", "_loose", "_max_depth", "_properties", "_schema", "_validator", "_who"),
        "unchecked",
    )

    def __init__(self, schema: Object, who: str, *, compiles: bool = True, unchecked: str = "") -> None:
        """`who` names the tool in messages. Raises `InvalidTool` for an invalid schema.

        One that is known not to compile checks nothing. `unchecked` says what of it is not checked, and why.
        """
        if compiles:
            compile_schema(schema, who)
        self.unchecked = unchecked
        """What of the arguments is left to the server, and why; empty if all of them are checked."""
        self._is_checked = compiles
        self._max_depth: int | None = None
        self._properties: Object | None = None
        self._schema = schema
        self._who = who
        self._validator: jsonschema_rs.Validator | None = None
        self._has_patterns = False
        self._loose: jsonschema_rs.Validator | None = None
        """Without the patterns, for long arguments."""

    @property
    def properties(self) -> Object:
        """The properties of the schema with its references resolved; empty if there are none."""
        if self._properties is None:
            self._properties = properties(resolve(self._schema, self._schema))
        return self._properties

    def accept(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, repaired (see `schema.arguments`) where that is needed. Raises `InvalidArguments` as `check`.

        >>> schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}}}, "double")
        >>> schema.accept({"n": "1"})
        {'n': 1}
        """
        try:
            self.check(arguments)
        except InvalidArguments:
            arguments = repair(arguments, self._schema)
            self.check(arguments)
        return arguments

    def check(self, arguments: Any, who: str = "") -> None:
        """Check arguments. Raises `InvalidArguments`, which says what would be accepted.

        `who` replaces the name of the tool in the message.

        What cannot be checked in reasonable time, such as deeply nested arguments of a recursive schema, or patterns
        where the arguments have more than 4,000 characters, is left to the server.

        >>> schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "double")
        >>> schema.check({"n": 1})
        >>> schema.check({"n": "1"})
        Traceback (most recent call last):
        toolcrib.errors.InvalidArguments: double: "n" must be integer, not string. Valid: double(n: integer)
        """
        if not self._is_checked:
            return
        validator = self._validator
        if validator is None:
            # Not kept when the schema was checked: it takes 14 KB, and most tools are never called.
            validator = compile_schema(self._schema, self._who)
            self._max_depth = max_depth(self._schema)
            self._has_patterns = _has_patterns(self._schema)
            self._validator = validator
        if self._max_depth is not None and not checkable(arguments, self._max_depth):
            return
        if self._has_patterns and _is_long(arguments):
            validator = self._loose = self._loose or compile_schema(_without_patterns(self._schema), self._who)
        try:
            if validator.is_valid(arguments):
                return
            found = explain_violations(validator, arguments, self._schema)
        except (ValueError, RecursionError) as error:
            found = [SchemaViolation(text=f"the arguments cannot be read: {str(error)[:120]}")]
        raise self._taught(found, who or self._who)

    def _taught(self, found: list[SchemaViolation], who: str) -> InvalidArguments:
        text = f"{who}: {'; '.join(fault.text for fault in found)}"
        text = shorten(text, _MAX_MESSAGE)
        return InvalidArguments(
            text if text.endswith("?") else f"{text}.",
            hint=f"Valid: {signature_line(who, self._schema)}",
            suggestions=tuple(dict.fromkeys(word for fault in found for word in fault.suggestions)),
        )


def compile_schema(schema: Object, who: str) -> jsonschema_rs.Validator:
    """Compile an input schema of draft 2020-12, or of the draft in its `$schema`. Raises `InvalidTool`.

    References to other documents are refused, not followed. `format` is left to the server, as are regular
    expressions that JavaScript accepts and our engine does not. A list under `items`, without a `$schema`, means
    draft-07.
    """
    if not isinstance(schema, dict):
        raise InvalidTool(f"{who}: the input schema is not an object.")
    if schema.get("type") != "object":
        raise InvalidTool(f'{who}: the input schema must say "type": "object" at its root.')
    refused: list[str] = []
    try:
        return _validator(schema, refused)
    except jsonschema_rs.ValidationError as error:
        other = _alternative_reading(schema, error)
        if other is not None:
            return compile_schema(other, who)
        raise InvalidTool(f"{who}: {_broken_reason(schema, error, refused)}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidTool(f"{who}: the input schema cannot be read: {_one_line(str(error))}.") from error


def _validator(schema: dict[str, Any], refused: list[str]) -> jsonschema_rs.Validator:
    def refuse(uri: str) -> Any:
        refused.append(uri)
        raise LookupError(uri)

    return jsonschema_rs.validator_for(
        schema, retriever=refuse, validate_formats=False, mask="it", pattern_options=_PATTERN_OPTIONS
    )


def _alternative_reading(schema: dict[str, Any], error: jsonschema_rs.ValidationError) -> dict[str, Any] | None:
    """The schema as its author probably meant it, or None."""
    path = error.instance_path
    if path and path[-1] == "items" and "$schema" not in schema and isinstance(error.instance, list):
        return {"$schema": _DRAFT_07, **schema}
    if error.kind.name == "format":
        portable: dict[str, Any] = _with_portable_patterns(schema)
        return portable if portable != schema else None
    return None


def _broken_reason(schema: dict[str, Any], error: jsonschema_rs.ValidationError, refused: list[str]) -> str:
    dialect = schema.get("$schema")
    if refused and refused[0] != dialect:
        return f"the input schema refers to another document, {literal(refused[0], 100)}, and those are not fetched"
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        if refused or "meta-schema" in error.message:
            return f"the input schema is written in an unknown dialect, {literal(dialect, 100)}"
        return f"the input schema refers to something it does not hold: {_one_line(error.message)}"
    path = ".".join(str(part)[:40] for part in error.instance_path[:12])
    value = literal(error.instance, 40)
    return f"the input schema is broken at {path or 'its root'}: {value} is not allowed there"


def _one_line(text: str) -> str:
    return " ".join(text[:_MAX_REASON].split()).rstrip(".")


def _with_portable_patterns(node: Any) -> Any:
    """Rewrite or drop the patterns that only our engine cannot read; invalid ones stay, to be reported."""
    if isinstance(node, list):
        return [_with_portable_patterns(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    result = {key: _with_portable_patterns(value) for key, value in node.items()}
    pattern = node.get("pattern")
    if isinstance(pattern, str) and (readable := _portable_pattern(pattern)) != pattern:
        result.pop("pattern")
        if readable:
            result["pattern"] = readable
    if isinstance(named := result.get("patternProperties"), Mapping):
        readable_keys = {key: _portable_pattern(str(key)) for key in named}
        result["patternProperties"] = {readable_keys[key]: value for key, value in named.items() if readable_keys[key]}
    return result


def _portable_pattern(pattern: str) -> str:
    """The pattern as our engine reads it; "" if only our engine cannot; unchanged if it is invalid."""
    for text in (pattern, _LOOSE_DASH.sub(r"\1\\-\2", pattern)):
        try:
            _validator({"pattern": text}, [])
        except ValueError:
            continue
        return text
    return "" if is_pattern(pattern) else pattern


def _has_patterns(schema: Object) -> bool:
    return any(
        isinstance(node, Mapping) and (isinstance(node.get("pattern"), str) or "patternProperties" in node)
        for node in _walk_values(schema)
    )


def _without_patterns(node: Any) -> Any:
    """The schema without its patterns, and with any properties where it has them by pattern."""
    if isinstance(node, list):
        return [_without_patterns(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    left = {key: value for key, value in node.items() if key != "pattern" or not isinstance(value, str)}
    if isinstance(left.get("patternProperties"), Mapping):
        left = {key: value for key, value in left.items() if key not in _BY_PATTERN}
    return {key: _without_patterns(value) for key, value in left.items()}


def _is_long(arguments: Any) -> bool:
    """Whether arguments have more characters than are matched with patterns."""
    left, todo = _MAX_PATTERN_TEXT, [arguments]
    while todo and left >= 0:
        value = todo.pop()
        left -= len(value) if isinstance(value, str) else 1
        todo.extend(_children(value))
        if isinstance(value, Mapping):
            left -= sum(len(key) for key in value if isinstance(key, str))
    return left < 0


def is_pattern(pattern: str) -> bool:
    """Whether a text is a regular expression as far as JavaScript may know, and not only our engine.

    >>> is_pattern(r"^(?<year>\\d{4})-\\p{L}\\/$"), is_pattern("(")
    (True, False)
    """
    text = _ECMA_ONLY.sub(r"\\w", pattern).replace("(?<", "(?P<").replace("(?P<=", "(?<=").replace("(?P<!", "(?<!")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError):
            return False
    return True


def max_depth(schema: Object) -> int | None:
    """How deeply arguments may be nested to be checked; None for no limit.

    0 if nothing can be checked against the schema in reasonable time.

    >>> max_depth({"type": "object"}), max_depth({"properties": {"next": {"$ref": "#"}}})
    (None, 100)
    """
    if not _has_references(schema):
        return None
    try:
        growth = _GrowthEstimator(schema).growth()
    except (OverflowError, RecursionError):
        return 0
    return _MAX_CHECKED_DEPTH if growth <= 1 else min(_MAX_CHECKED_DEPTH, int(log(_MAX_WORK) / log(growth)))


def checkable(value: Any, limit: int | None) -> bool:
    """Whether a value is nested no deeper than the limit; a scalar has depth 1.

    >>> checkable({"a": [1]}, 2), checkable({"a": [1]}, 1), checkable({}, None)
    (True, False, True)
    """
    if limit is None:
        return True
    level = [value]
    for _ in range(limit):
        level = [child for node in level for child in _children(node) if isinstance(child, (Mapping, list, tuple))]
        if not level:
            return True
    return False


def _children(node: Any) -> Any:
    return node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ()


class _GrowthEstimator:
    """Estimates how fast the work of a check grows with the depth of the arguments."""

    def __init__(self, root: Object) -> None:
        self._root = root
        self._nodes = [node for node in _walk_values(root) if isinstance(node, Mapping)]
        self._named = [node for node in self._nodes if any(name in node for name in _ANCHORS)] or [root]
        self._applied: dict[int, Counter[int]] = {}
        self._by_id = {id(node): node for node in self._nodes}
        self._effort = 0

    def growth(self) -> int:
        """Factor by which the work may grow with each level of the arguments."""
        return max((self._growth(node) for node in self._nodes), default=1)

    def _growth(self, node: Object) -> int:
        times: Counter[str] = Counter()
        for part, count in self._all_applied(node).items():
            for name, child in _child_schemas(self._by_id[part]):
                if _has_references(child):
                    times[name] += count
        anywhere = times.pop(_ANY_CHILD, 0)
        return anywhere + max(times.values(), default=0)

    def _all_applied(self, node: Object) -> Counter[int]:
        """The subschemas that apply to the same value as this one, and how often."""
        known = self._applied.get(id(node))
        if known is not None:
            return known
        self._applied[id(node)] = Counter()
        found = Counter([id(node)])
        for part in self._here(node):
            found.update(self._all_applied(part))
            self._effort += len(found)
            if found.total() > _MAX_WORK or self._effort > _MAX_ESTIMATE_STEPS:
                raise OverflowError
        self._applied[id(node)] = found
        return found

    def _here(self, node: Object) -> Iterator[Object]:
        for part in _in_place_schemas(node):
            if isinstance(part, Mapping) and id(part) in self._by_id:
                yield part
        for key in _REFERENCES:
            if key in node:
                target = resolve_pointer(node[key], self._root)
                yield from [target] if isinstance(target, Mapping) and id(target) in self._by_id else self._named


def _in_place_schemas(node: Object) -> Iterator[Any]:
    """The subschemas that apply to the same value."""
    for key in _IN_PLACE:
        yield node.get(key)
    for key in _IN_PLACE_MANY:
        yield from _children(node.get(key))


def _child_schemas(node: Object) -> Iterator[tuple[str, Any]]:
    """The subschemas that apply to children of the value, by name."""
    for key in _CHILD_KEYWORDS:
        if key in node:
            yield _ANY_CHILD, node[key]
    for child in (*_children(node.get("prefixItems")), *_children(node.get("patternProperties"))):
        yield _ANY_CHILD, child
    found = node.get("properties")
    if isinstance(found, Mapping):
        yield from found.items()


def _has_references(node: Any) -> bool:
    text = repr(node)
    return any(reference in text for reference in _REFERENCES)


def _walk_values(root: Any) -> Iterator[Any]:
    """Every value in a schema, itself first, each object once."""
    queue, seen = [root], {id(root)}
    for node in queue:
        yield node
        for child in _children(node):
            if isinstance(child, (Mapping, list)) and id(child) not in seen:
                seen.add(id(child))
                queue.append(child)
