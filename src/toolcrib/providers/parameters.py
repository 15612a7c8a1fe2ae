"""Python types to JSON Schema, and a call's arguments to what a function expects. Pydantic does the work."""

import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import PydanticSerializationError, core_schema, to_json

from toolcrib.errors import InvalidArguments, InvalidTool
from toolcrib.model import Object
from toolcrib.providers.target import Target
from toolcrib.schema.describe import signed
from toolcrib.words import nearest

_MAX_PROBLEMS: Final = 8
"""Problems listed in one error."""

_USABLE: Final = "Use a type that pydantic knows: text, numbers, lists, dicts, enums, dataclasses, models."


class PlainSchema(GenerateJsonSchema):
    """JSON Schema without the titles that pydantic makes up; those that were given stay."""

    ignored_warning_kinds: set[Any] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own way

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        """Never: a title that repeats the name says nothing."""
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Without the name of the class as its title."""
        return _untitled(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Without the name of the class as its title."""
        return _untitled(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """Without the name of the class as its title."""
        made = super().typed_dict_schema(schema)
        return _untitled(made, schema["cls"]) if "cls" in schema else made

    def generate(self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        """With an object at the root, where there is one, and not a reference to it; enums without their names."""
        made = super().generate(schema, mode)
        definitions = made.get("$defs", {})
        for name, node in definitions.items():
            if not node.keys().isdisjoint(("enum", "const")) and name.endswith(node.get("title", "")):
                node.pop("title", None)
        root = str(made.get("$ref", "")).removeprefix("#/$defs/")
        return {**definitions[root], "$defs": definitions} if root in definitions else made


def _untitled(made: JsonSchemaValue, cls: type[Any]) -> JsonSchemaValue:
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    if made.get("title") == cls.__name__ and not config.get("title"):
        made = {key: value for key, value in made.items() if key != "title"}
    return made


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
            f"p{place}": (parameter, _field(parameter, described.get(parameter.name)))
            for place, parameter in enumerate(target.parameters)
        }
        # A name that is filled in already must not come in through **kwargs.
        self._taken = target.bound | {parameter.name for parameter in target.order}
        _refuse_twins(who, [_public(*pair) for pair in self._fields.values()])
        self._model = self._made(target.extra)
        self.schema: Object = self._written()

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

    def _made(self, extra: inspect.Parameter | None) -> type[BaseModel]:
        definitions: dict[str, Any] = {
            name: (field.annotation, _renamed(field, _public(parameter, field)))
            for name, (parameter, field) in self._fields.items()
        }
        try:
            return create_model("Arguments", __base__=_base(extra, self._who), **definitions)
        except (PydanticUserError, TypeError, ValueError) as error:
            raise self._unusable(extra, error) from error

    def _written(self) -> dict[str, Any]:
        try:
            schema = self._model.model_json_schema(schema_generator=PlainSchema)
        except (PydanticUserError, ValueError, RecursionError) as error:
            raise self._unusable(None, error) from error
        schema.setdefault("properties", {})
        return schema

    def _unusable(self, extra: inspect.Parameter | None, error: Exception) -> InvalidTool:
        """The error of the first parameter whose type cannot be used."""
        for parameter, field in self._fields.values():
            if why := _problem(Annotated[field.annotation, field] if field.metadata else field.annotation):
                return InvalidTool(f'{self._who}: the type of "{parameter.name}" cannot be used: {why}', hint=_USABLE)
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


def _field(parameter: inspect.Parameter, described: str | None) -> FieldInfo:
    """The parameter as one of pydantic's fields, with its description from wherever there is one."""
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    if parameter.default is parameter.empty:
        field = FieldInfo.from_annotation(annotation)
    else:
        field = FieldInfo.from_annotated_attribute(annotation, parameter.default)
    if field.description is None:
        field.description = next(_notes(field.metadata), described)
    field.metadata = [item for item in field.metadata if not isinstance(item, str)]
    return field


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
    except (PydanticUserError, TypeError, ValueError, RecursionError) as error:
        return _line(error)
    return ""


def json_schema(annotation: Any, mode: JsonSchemaMode) -> dict[str, Any]:
    """The JSON Schema of a type. Raises pydantic's own errors, or `TypeError`."""
    return TypeAdapter[Any](annotation).json_schema(mode=mode, schema_generator=PlainSchema)


def _line(error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return first.partition(". Set `arbitrary_types_allowed")[0].rstrip(".")[:200] + "."


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
