"""Python types to JSON Schema, and a call's arguments to what a function expects. Pydantic does the work."""

import inspect
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, SchemaError, to_json

from toolcrib.errors import InvalidArguments, InvalidTool
from toolcrib.model import Object
from toolcrib.providers.schemas import NotPlain, PlainSchema, json_schema, plain_schema
from toolcrib.providers.target import Target
from toolcrib.schema.describe import signed
from toolcrib.words import nearest

_MAX_PROBLEMS: Final = 8
"""Problems listed in one error."""

_USABLE: Final = "Use a type that pydantic knows: text, numbers, lists, dicts, enums, dataclasses, models."


_FAULTS: Final = (PydanticUserError, SchemaError, TypeError, ValueError, RuntimeError)
"""What pydantic raises for a type that it cannot use."""

_PLAIN_DEFAULTS: Final = (str, int, bool, type(None))
_SAID_OTHERWISE: Final = (
    "alias",
    "default_factory",
    "deprecated",
    "discriminator",
    "examples",
    "field_title_generator",
    "json_schema_extra",
    "title",
    "validation_alias",
)
"""What a field may say that changes its schema, beside its description and its metadata."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Parameters:
    """What a function takes: its JSON Schema, and the way from arguments to values."""

    def __init__(self, target: Target, described: Mapping[str, str], who: str) -> None:
        """`described` is the meaning of parameters, by name. Raises `InvalidTool` that names the parameter."""
        self._who = who
        self._fields = {
            f"p{place}": (parameter, _field(who, parameter, described.get(parameter.name)))
            for place, parameter in enumerate(target.parameters)
        }
        # A name that is filled in already must not come in through **kwargs.
        self._taken = target.bound | {parameter.name for parameter in target.order}
        _refuse_twins(who, [_public(*pair) for pair in self._fields.values()])
        self._extra = target.extra
        self.schema: Object = self._joined() or self._written()

    def values(self, arguments: Object) -> dict[str, Any]:
        """The values for a call, by parameter. Raises `InvalidArguments` that names each field."""
        try:
            made = self._model.__pydantic_validator__.validate_json(to_json(arguments, inf_nan_mode="constants"))
        except ValidationError as error:
            raise self._taught(error, arguments) from error
        except (PydanticSerializationError, ValueError) as error:
            raise InvalidArguments(
                f"{self._who}: the arguments are not JSON: {str(error)[:120]}.", hint=self._valid()
            ) from error
        extra = made.model_extra or {}
        for name in extra:
            if name in self._taken:
                raise InvalidArguments(f'{self._who}: there is no parameter "{name}".', hint=self._valid())
        return {**extra, **dict(self._set(made))}

    def _set(self, made: BaseModel) -> Iterator[tuple[str, Any]]:
        """What was given; of what was not, only defaults that the function itself does not have."""
        for name, (parameter, field) in self._fields.items():
            own = parameter.default is not parameter.empty and not isinstance(parameter.default, FieldInfo)
            if name in made.model_fields_set or not own or field.default_factory is not None:
                yield parameter.name, getattr(made, name)

    @cached_property
    def _model(self) -> type[BaseModel]:
        """What checks arguments; made for the first call, as that takes a while."""
        extra = self._extra
        definitions: dict[str, Any] = {
            name: (field.annotation, _renamed(field, _public(parameter, field)))
            for name, (parameter, field) in self._fields.items()
        }
        try:
            return create_model("Arguments", __base__=_base(extra, self._who), **definitions)
        except _FAULTS as error:
            raise self._unusable(extra, error) from error

    def _joined(self) -> dict[str, Any] | None:
        """The schema that `_written` gives, out of those of its types; None where it is not that simple."""
        if self._extra is not None and self._extra.annotation not in (self._extra.empty, Any):
            return None
        try:
            known = {_public(parameter, field): _piece(field) for parameter, field in self._fields.values()}
        except (NotPlain, *_FAULTS):
            return None  # where that is a fault, the model says which
        needed = [_public(parameter, field) for parameter, field in self._fields.values() if field.is_required()]
        return {
            "additionalProperties": self._extra is not None,
            "properties": known,
            **({"required": needed} if needed else {}),
            "type": "object",
        }

    def _written(self) -> dict[str, Any]:
        try:
            schema = self._model.model_json_schema(schema_generator=PlainSchema)
        except _FAULTS as error:
            raise self._unusable(None, error) from error
        schema.setdefault("properties", {})
        return schema

    def _unusable(self, extra: inspect.Parameter | None, error: Exception) -> InvalidTool:
        """The error of the first parameter whose type cannot be used."""
        for parameter, field in self._fields.values():
            if why := _problem(Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation):
                return _refused(self._who, parameter, why)
        what = f"**{extra.name}" if extra else "its parameters"
        return InvalidTool(f"{self._who}: the type of {what} cannot be used: {_line(error)}", hint=_USABLE)

    def _taught(self, error: ValidationError, arguments: Object) -> InvalidArguments:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        names = [_public(*pair) for pair in self._fields.values()]
        close: list[str] = []
        texts: dict[str, None] = {}
        for problem in problems:
            path = _path(problem["loc"], arguments)
            if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
                close += nearest(str(problem["loc"][0]), names)
            texts[_said(problem["type"], path, problem["msg"])] = None
        more = f"; and {len(texts) - _MAX_PROBLEMS} more" if len(texts) > _MAX_PROBLEMS else ""
        return InvalidArguments(
            f"{self._who}: {'; '.join(list(texts)[:_MAX_PROBLEMS])}{more}.",
            hint=self._valid(),
            suggestions=tuple(dict.fromkeys(close)),
        )

    def _valid(self) -> str:
        return f"Valid: {signed(self._who, self.schema)}"


def _field(who: str, parameter: inspect.Parameter, described: str | None) -> FieldInfo:
    """The parameter as one of pydantic's fields, with its description from wherever there is one."""
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    try:
        if parameter.default is parameter.empty:
            field = FieldInfo.from_annotation(annotation)
        else:
            field = FieldInfo.from_annotated_attribute(annotation, parameter.default)
    except _FAULTS as error:
        raise _refused(who, parameter, _line(error)) from error
    if field.description is None:
        field.description = next(_notes(field.metadata), described)
    field.metadata = [item for item in field.metadata if not isinstance(item, str)]
    return field


def _piece(field: FieldInfo) -> dict[str, Any]:
    """The schema of a parameter that is simple in every way. Raises `NotPlain`, and whatever pydantic raises."""
    if any(getattr(field, name) is not None for name in _SAID_OTHERWISE):
        raise NotPlain
    made = dict(plain_schema(field.annotation, field.metadata))
    if not field.is_required():
        default = field.default
        if type(default) not in _PLAIN_DEFAULTS and not (type(default) is float and math.isfinite(default)):
            raise NotPlain
        made["default"] = default
    if field.description is not None:
        made["description"] = field.description
    return dict(sorted(made.items()))


def _refused(who: str, parameter: inspect.Parameter, why: str) -> InvalidTool:
    return InvalidTool(f'{who}: the type of "{parameter.name}" cannot be used: {why}', hint=_USABLE)


def _notes(metadata: Sequence[Any]) -> Iterator[str]:
    """The descriptions in `Annotated[int, "how many"]`, and in `Doc("how many")`."""
    for item in metadata:
        text = item if isinstance(item, str) else getattr(item, "documentation", None)
        if isinstance(text, str):
            yield text


def _public(parameter: inspect.Parameter, field: FieldInfo) -> str:
    """The name that a caller uses: its alias, where it has one."""
    alias = field.validation_alias if isinstance(field.validation_alias, str) else field.alias
    return alias or parameter.name


def _renamed(field: FieldInfo, name: str) -> Any:
    """The field under a public name; inside it is called p0, p1, ..., so that no name is forbidden."""
    field.alias = field.validation_alias = field.serialization_alias = name
    field.alias_priority = 2
    return field


def _base(extra: inspect.Parameter | None, who: str) -> type[BaseModel]:
    if extra is None:
        return _Closed
    if typing.get_origin(extra.annotation) is typing.Unpack:
        raise InvalidTool(f"{who}: **{extra.name} with Unpack cannot be used.", hint="Write its parameters out.")
    held = Any if extra.annotation is extra.empty else extra.annotation
    if held is Any:
        return _Open
    kinds = {"__pydantic_extra__": types.GenericAlias(dict, (str, held))}
    return type("Typed", (_Open,), {"__annotations__": kinds, "__module__": __name__})


def _refuse_twins(who: str, names: list[str]) -> None:
    twin = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twin is not None:
        raise InvalidTool(f'{who}: two parameters are called "{twin}".', hint="Give one of them another alias.")


def _problem(annotation: Any) -> str:
    """Why pydantic cannot use a type; empty where it can."""
    try:
        json_schema(annotation, "validation")
    except _FAULTS as error:
        return _line(error)
    return ""


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = lines[-1].strip() if isinstance(error, SchemaError) else lines[0]  # that one tells the way to it first
    return said.partition(". Set `arbitrary_types_allowed")[0].rstrip(".")[:200] + "."


def _path(loc: tuple[int | str, ...], arguments: Any) -> str:
    """Where in the arguments a problem is: without the steps that are only pydantic's, such as a union's member."""
    path, value = "", arguments
    for place, step in enumerate(loc):
        here = isinstance(value, Mapping) and step in value
        if here or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
            value = value[step]
        elif place + 1 < len(loc) or not isinstance(value, Mapping):
            continue
        path = f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}" if path else str(step)
    return path


def _said(kind: str, path: str, message: str) -> str:
    if kind == "missing":
        return f'"{path}" is missing'
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f'there is no parameter "{path}"'
    said = message[:1].lower() + message[1:]
    return f'"{path}": {said}' if path else said
