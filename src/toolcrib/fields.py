"""Parameters of a tool with a handwritten schema: `String`, `Integer`, `Number`, `Boolean`, `Array`, `Object`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from toolcrib.checks import checked
from toolcrib.errors import InvalidArguments, InvalidTool, invalid_field
from toolcrib.sanitize import echo
from toolcrib.schema import Schema
from toolcrib.types import JSON

NO_DEFAULT: Final[Any] = object()
"""Marks a default that was not given; None is a default."""
TypeName = Literal["string", "integer", "number", "boolean", "array", "object"]
"""JSON Schema's names of types."""
_TYPE_NAMES: Final = frozenset({"string", "integer", "number", "boolean", "array", "object"})
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
__all__ = ["Array", "Boolean", "Integer", "Number", "Object", "String"]


class Parameter:
    """One parameter of a tool, or one property of an object. Validated when it is made, and immutable."""

    __slots__ = ("name", "required", "schema")

    def __init__(
        self,
        name: str,
        description: str,
        schema: Mapping[str, Any],
        *,
        required: bool,
        enum: Sequence[JSON] | None = None,
        default: JSON = NO_DEFAULT,
    ) -> None:
        """`schema` is the schema of its type and limits. Raises `InvalidTool`, which names the parameter."""
        who = f'The parameter "{str(name)[:80]}"'
        if not _NAME_PATTERN.fullmatch(str(name)):
            raise invalid_field(who, "name", "is not allowed", 'Use 1 to 64 letters, digits, "_", "-" or ".".')
        _check_description(who, description)
        if required and default is not NO_DEFAULT:
            raise invalid_field(who, "default", "contradicts required=True", "Leave out one of the two.")
        made = {key: value for key, value in schema.items() if value is not None}
        if description.strip():
            made["description"] = " ".join(description.split())
        if enum is not None:
            made["enum"] = _enum_values(who, enum)
        if default is not NO_DEFAULT:
            made["default"] = default
        _check_schema(name, made)
        self.name: Final = name
        self.schema: Final[Mapping[str, Any]] = made
        self.required: Final = required

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Parameter):
            return NotImplemented
        return (self.name, self.schema, self.required) == (other.name, other.schema, other.required)

    def __hash__(self) -> int:
        return hash((self.name, self.required))


@checked(error=InvalidTool)
class String(Parameter):
    """A string.

    >>> String("unit", "Of the answer", enum=["m", "km"], default="m").schema
    {'type': 'string', 'description': 'Of the answer', 'enum': ['m', 'km'], 'default': 'm'}
    """

    __slots__ = ()

    def __init__(
        self,
        name: str,
        description: str = "",
        *,
        required: bool = False,
        enum: Sequence[str] | None = None,
        default: str | None = NO_DEFAULT,
        min_length: int | None = None,
        max_length: int | None = None,
        pattern: str | None = None,
        format: str | None = None,  # noqa: A002 - JSON Schema's word
    ) -> None:
        """Lengths are in characters; `pattern` may match anywhere in the string; `format` is not validated."""
        _check_order(name, "length", min_length, max_length, least=0)
        limits = {"minLength": min_length, "maxLength": max_length, "pattern": pattern, "format": format}
        super().__init__(name, description, {"type": "string", **limits}, required=required, enum=enum, default=default)


@checked(error=InvalidTool)
class _Numeric(Parameter):
    __slots__ = ()
    kind = "number"

    def __init__(
        self,
        name: str,
        description: str = "",
        *,
        required: bool = False,
        enum: Sequence[float] | None = None,
        default: float | None = NO_DEFAULT,
        minimum: float | None = None,
        maximum: float | None = None,
        multiple_of: float | None = None,
    ) -> None:
        """Bounds are inclusive; `multiple_of` is above 0."""
        _check_order(name, "minimum and maximum", minimum, maximum)
        limits = {"minimum": minimum, "maximum": maximum, "multipleOf": multiple_of}
        schema = {"type": self.kind, **limits}
        super().__init__(name, description, schema, required=required, enum=enum, default=default)


class Number(_Numeric):
    """A number, possibly with a fraction."""

    __slots__ = ()


class Integer(_Numeric):
    """A whole number."""

    __slots__ = ()
    kind = "integer"


@checked(error=InvalidTool)
class Boolean(Parameter):
    """True or false."""

    __slots__ = ()

    def __init__(
        self, name: str, description: str = "", *, required: bool = False, default: bool | None = NO_DEFAULT
    ) -> None:
        super().__init__(name, description, {"type": "boolean"}, required=required, default=default)


@checked(error=InvalidTool)
class Array(Parameter):
    """A list.

    >>> Array("to", "Recipients", "string", min_items=1).schema
    {'type': 'array', 'items': {'type': 'string'}, 'minItems': 1, 'description': 'Recipients'}
    """

    __slots__ = ()

    def __init__(
        self,
        name: str,
        description: str = "",
        items: TypeName | Parameter | Mapping[str, Any] | None = None,
        *,
        required: bool = False,
        default: Sequence[JSON] | None = NO_DEFAULT,
        min_items: int | None = None,
        max_items: int | None = None,
        unique: bool = False,
    ) -> None:
        """`items` is the name of a type, a parameter (its name is ignored), a schema, or None for anything."""
        _check_order(name, "items", min_items, max_items, least=0)
        limits = {"minItems": min_items, "maxItems": max_items, "uniqueItems": unique or None}
        schema = {"type": "array", "items": _item_schema(name, items), **limits}
        given = list(default) if isinstance(default, tuple) else default
        super().__init__(name, description, schema, required=required, default=given)


@checked(error=InvalidTool)
class Object(Parameter):
    """An object with exactly these properties; with any properties if none are given.

    >>> Object("range", "", Integer("from", required=True)).schema["additionalProperties"], Object("any").schema
    (False, {'type': 'object', 'additionalProperties': True})
    """

    __slots__ = ()

    def __init__(
        self,
        name: str,
        description: str = "",
        *properties: Parameter,
        required: bool = False,
        default: Mapping[str, JSON] | None = NO_DEFAULT,
    ) -> None:
        """Raises `InvalidTool` if two properties have the same name."""
        schema = object_schema(f'The parameter "{name}"', properties, free=not properties)
        super().__init__(name, description, schema, required=required, default=default)


def object_schema(who: str, properties: Sequence[Any], *, free: bool = False) -> dict[str, Any]:
    """The schema of an object with these properties, or with any if `free`. Raises `InvalidTool`."""
    schemas: dict[str, Any] = {}
    for one in properties:
        if not isinstance(one, Parameter):
            hint = "Give String(...), Integer(...), Number(...), Boolean(...), Array(...) or Object(...)."
            raise invalid_field(who, "parameters", f"hold a value of type {type(one).__name__}", hint)
        if one.name in schemas:
            raise invalid_field(who, "parameters", f'hold "{one.name}" twice', "Rename one of them.")
        schemas[one.name] = dict(one.schema)
    needed = [one.name for one in properties if one.required]
    return {
        "type": "object",
        **({} if free else {"properties": schemas}),
        "additionalProperties": free,
        **({"required": needed} if needed else {}),
    }


def _item_schema(name: str, items: TypeName | Parameter | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if isinstance(items, Parameter):
        return dict(items.schema)
    if items is None or isinstance(items, Mapping):
        return None if items is None else dict(items)
    if items not in _TYPE_NAMES:
        options = ", ".join(sorted(_TYPE_NAMES))
        raise invalid_field(f'The parameter "{name}"', "items", f"cannot be {echo(items)}", f"Use one of: {options}.")
    return {"type": items}


def _check_description(who: str, description: object) -> None:
    if not isinstance(description, str):
        raise invalid_field(who, "description", "must be a string", "Give a str.")


def _enum_values(who: str, enum: object) -> list[JSON]:
    options = list(enum) if isinstance(enum, Sequence) and not isinstance(enum, str) else []
    if not options:
        raise invalid_field(who, "enum", "must be several values", 'Write enum=["a", "b"].')
    if any(option in options[:place] for place, option in enumerate(options)):
        raise invalid_field(who, "enum", "holds a value twice", "Leave one of them out.")
    return options


def _check_order(name: str, what: str, low: float | None, high: float | None, *, least: float | None = None) -> None:
    if low is not None and high is not None and low > high:
        raise invalid_field(f'The parameter "{name}"', what, f"cannot be between {low} and {high}", "Swap the two.")
    if least is not None and any(bound is not None and bound < least for bound in (low, high)):
        raise invalid_field(f'The parameter "{name}"', what, f"cannot be below {least}", "Leave the bound out.")


def _check_schema(name: str, schema: Mapping[str, Any]) -> None:
    """Raise `InvalidTool` unless the schema is valid and accepts its own enum and default values."""
    who = f'The parameter "{name}"'
    proven = Schema({"type": "object", "properties": {name: dict(schema)}}, who)
    default = {"default": [schema["default"]]} if schema.get("default") is not None else {}
    for word, values in {"enum": schema.get("enum", []), **default}.items():
        for value in values:
            try:
                proven.check({name: value})
            except InvalidArguments as error:
                problem = error.message.removeprefix(f"{who}: ")
                raise invalid_field(who, word, f"holds a value that does not fit: {problem.rstrip('.')}", "") from error
