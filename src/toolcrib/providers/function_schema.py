"""JSON Schemas of a function's parameters and return type, and validation of its arguments and results.

Pydantic does the work; this module removes the titles it makes up and rewords its errors for a model to read.
"""

import inspect
import math
import types
import typing
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import PydanticSerializationError, SchemaError, core_schema, to_json

from toolcrib.errors import ExecutionFailed, InvalidArguments, InvalidTool
from toolcrib.names import nearest
from toolcrib.providers.callable_info import CallableInfo
from toolcrib.providers.content import OutputPromise, as_tool_result, is_block_model, structured, to_result
from toolcrib.schema.signature import signature_line
from toolcrib.types import Object, ToolResult

_CACHED_TYPES: Final = 1024
"""Types whose schemas are cached: most functions use the same few."""
_MAX_PROBLEMS: Final = 8
"""Problems listed in one error."""
_USABLE_TYPES: Final = "Use a type that pydantic knows: text, numbers, lists, dicts, enums, dataclasses, models."
_PYDANTIC_ERRORS: Final = (PydanticUserError, SchemaError, TypeError, ValueError, RuntimeError)
"""Raised by pydantic for a type that it does not support."""
_PLAIN_DEFAULTS: Final = (str, int, bool, type(None))
_SCHEMA_ATTRIBUTES: Final = (
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
"""Attributes of a field that change its schema, apart from description and metadata."""
_UNSTRUCTURED_TYPES: Final = (str, bytes, bytearray, memoryview, ToolResult, type(None), Iterator, AsyncIterable)
"""Types that become text, content or nothing."""
_RETURN_HINT: Final = "Return what the annotation says, or register the tool with output_schema=False."


class UntitledJsonSchema(GenerateJsonSchema):
    """JSON Schema without the titles that pydantic makes up; explicit titles stay."""

    ignored_warning_kinds: set[Any] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own way

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        """Never add a title that repeats the name."""
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _without_class_title(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _without_class_title(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        made = super().typed_dict_schema(schema)
        return _without_class_title(made, schema["cls"]) if "cls" in schema else made

    def generate(self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        """Inline a reference at the root, and remove the class names of enums."""
        made = super().generate(schema, mode)
        definitions = made.get("$defs", {})
        for name, node in definitions.items():
            if not node.keys().isdisjoint(("enum", "const")) and name.endswith(node.get("title", "")):
                node.pop("title", None)
        root = str(made.get("$ref", "")).removeprefix("#/$defs/")
        return {**definitions[root], "$defs": definitions} if root in definitions else made


def _without_class_title(made: JsonSchemaValue, cls: type[Any]) -> JsonSchemaValue:
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    if made.get("title") == cls.__name__ and not config.get("title"):
        made = {key: value for key, value in made.items() if key != "title"}
    return made


class NeedsDefinitions(Exception):
    """The schema needs definitions beside it."""


def standalone_schema(annotation: Any, constraints: Iterable[Any] = ()) -> Mapping[str, Any]:
    """The input schema of a type, if it needs no definitions beside it. Shared: do not change it.

    `constraints` is the metadata of an `Annotated`. Raises `NeedsDefinitions`, pydantic's errors, or `TypeError`.

    >>> standalone_schema(list[int])
    {'items': {'type': 'integer'}, 'type': 'array'}
    """
    more = tuple(constraints)
    made = _standalone_schema(annotation, more, repr((annotation, more)))
    if made is None:
        raise NeedsDefinitions
    return made


@lru_cache(_CACHED_TYPES)
def _standalone_schema(annotation: Any, constraints: tuple[Any, ...], _written: str) -> Mapping[str, Any] | None:
    # Equal types may have different schemas, such as unions in another order, or 1 and 1.0; so the repr is in the
    # cache key. Annotated has such a cache of its own, so constraints are passed in a field instead.
    if constraints:
        field = FieldInfo()
        field.metadata = list(constraints)
        annotation = Annotated[annotation, field]
    made = json_schema(list[annotation], "validation")  # as the root, a definition would be inlined
    return None if "$defs" in made else made["items"]


def output_adapter(annotation: Any) -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    """The adapter that validates values of a type, and its output schema. Shared: do not change them.

    Raises pydantic's errors, or `TypeError`.
    """
    return _output_adapter(annotation, repr(annotation))


@lru_cache(_CACHED_TYPES)
def _output_adapter(annotation: Any, _written: str) -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    adapter = TypeAdapter[Any](annotation)
    return adapter, adapter.json_schema(mode="serialization", schema_generator=UntitledJsonSchema)


def json_schema(annotation: Any, mode: JsonSchemaMode) -> dict[str, Any]:
    """The JSON Schema of a type. Raises pydantic's errors, or `TypeError`."""
    return TypeAdapter[Any](annotation).json_schema(mode=mode, schema_generator=UntitledJsonSchema)


class _ClosedModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _OpenModel(BaseModel):
    model_config = ConfigDict(extra="allow")


class ParameterModel:
    """The parameters of a function: their JSON Schema, and the conversion of arguments to values."""

    def __init__(self, target: CallableInfo, described: Mapping[str, str], who: str) -> None:
        """`described` has descriptions by parameter name. Raises `InvalidTool`, which names the parameter."""
        self._who = who
        self._fields = {
            f"p{place}": (parameter, _field_info(who, parameter, described.get(parameter.name)))
            for place, parameter in enumerate(target.parameters)
        }
        # A bound parameter must not be set through **kwargs.
        self._taken = target.bound | {parameter.name for parameter in target.order}
        _reject_duplicate_names(who, [_public_name(*pair) for pair in self._fields.values()])
        self._extra = target.extra
        self.schema: Object = self._joined() or self._written()

    def values(self, arguments: Object) -> dict[str, Any]:
        """Convert arguments to values by parameter. Raises `InvalidArguments`, which names each field."""
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
        """The given values, and those defaults that the function itself does not have."""
        for name, (parameter, field) in self._fields.items():
            own = parameter.default is not parameter.empty and not isinstance(parameter.default, FieldInfo)
            if name in made.model_fields_set or not own or field.default_factory is not None:
                yield parameter.name, getattr(made, name)

    @cached_property
    def _model(self) -> type[BaseModel]:
        """The model that validates arguments. Made at the first call, because that is slow."""
        extra = self._extra
        definitions: dict[str, Any] = {
            name: (field.annotation, _with_alias(field, _public_name(parameter, field)))
            for name, (parameter, field) in self._fields.items()
        }
        try:
            return create_model("Arguments", __base__=_base_model(extra, self._who), **definitions)
        except _PYDANTIC_ERRORS as error:
            raise self._unusable(extra, error) from error

    def _joined(self) -> dict[str, Any] | None:
        """The schema that `_written` would return, joined from cached ones; None if that is not possible."""
        if self._extra is not None and self._extra.annotation not in (self._extra.empty, Any):
            return None
        try:
            known = {_public_name(parameter, field): _field_schema(field) for parameter, field in self._fields.values()}
        except (NeedsDefinitions, *_PYDANTIC_ERRORS):
            return None  # if a type is at fault, building the model reports it
        needed = [_public_name(parameter, field) for parameter, field in self._fields.values() if field.is_required()]
        return {
            "additionalProperties": self._extra is not None,
            "properties": known,
            **({"required": needed} if needed else {}),
            "type": "object",
        }

    def _written(self) -> dict[str, Any]:
        try:
            schema = self._model.model_json_schema(schema_generator=UntitledJsonSchema)
        except _PYDANTIC_ERRORS as error:
            raise self._unusable(None, error) from error
        schema.setdefault("properties", {})
        return schema

    def _unusable(self, extra: inspect.Parameter | None, error: Exception) -> InvalidTool:
        """The error for the first parameter whose type cannot be used."""
        for parameter, field in self._fields.values():
            if why := _type_problem(
                Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            ):
                return _unusable_type(self._who, parameter, why)
        what = f"**{extra.name}" if extra else "its parameters"
        return InvalidTool(f"{self._who}: the type of {what} cannot be used: {_error_line(error)}", hint=_USABLE_TYPES)

    def _taught(self, error: ValidationError, arguments: Object) -> InvalidArguments:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        names = [_public_name(*pair) for pair in self._fields.values()]
        close: list[str] = []
        texts: dict[str, None] = {}
        for problem in problems:
            path = _argument_path(problem["loc"], arguments)
            if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
                close += nearest(str(problem["loc"][0]), names)
            texts[_problem_text(problem["type"], path, problem["msg"])] = None
        more = f"; and {len(texts) - _MAX_PROBLEMS} more" if len(texts) > _MAX_PROBLEMS else ""
        return InvalidArguments(
            f"{self._who}: {'; '.join(list(texts)[:_MAX_PROBLEMS])}{more}.",
            hint=self._valid(),
            suggestions=tuple(dict.fromkeys(close)),
        )

    def _valid(self) -> str:
        return f"Valid: {signature_line(self._who, self.schema)}"


def _field_info(who: str, parameter: inspect.Parameter, described: str | None) -> FieldInfo:
    """The parameter as a pydantic field, with its description from `Field`, `Annotated` or the docstring."""
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    try:
        if parameter.default is parameter.empty:
            field = FieldInfo.from_annotation(annotation)
        else:
            field = FieldInfo.from_annotated_attribute(annotation, parameter.default)
    except _PYDANTIC_ERRORS as error:
        raise _unusable_type(who, parameter, _error_line(error)) from error
    if field.description is None:
        field.description = next(_annotated_descriptions(field.metadata), described)
    field.metadata = [item for item in field.metadata if not isinstance(item, str)]
    return field


def _field_schema(field: FieldInfo) -> dict[str, Any]:
    """The schema of a simple parameter. Raises `NeedsDefinitions` for others, and pydantic's errors."""
    if any(getattr(field, name) is not None for name in _SCHEMA_ATTRIBUTES):
        raise NeedsDefinitions
    made = dict(standalone_schema(field.annotation, field.metadata))
    if not field.is_required():
        default = field.default
        if type(default) not in _PLAIN_DEFAULTS and not (type(default) is float and math.isfinite(default)):
            raise NeedsDefinitions
        made["default"] = default
    if field.description is not None:
        made["description"] = field.description
    return dict(sorted(made.items()))


def _unusable_type(who: str, parameter: inspect.Parameter, why: str) -> InvalidTool:
    return InvalidTool(f'{who}: the type of "{parameter.name}" cannot be used: {why}', hint=_USABLE_TYPES)


def _annotated_descriptions(metadata: Sequence[Any]) -> Iterator[str]:
    """The descriptions in `Annotated[int, "how many"]` and in `Doc("how many")`."""
    for item in metadata:
        text = item if isinstance(item, str) else getattr(item, "documentation", None)
        if isinstance(text, str):
            yield text


def _public_name(parameter: inspect.Parameter, field: FieldInfo) -> str:
    """The name that callers use: the alias, if there is one."""
    alias = field.validation_alias if isinstance(field.validation_alias, str) else field.alias
    return alias or parameter.name


def _with_alias(field: FieldInfo, name: str) -> Any:
    """Give the field its public name. In the model it is p0, p1, ..., so that every name is allowed."""
    field.alias = field.validation_alias = field.serialization_alias = name
    field.alias_priority = 2
    return field


def _base_model(extra: inspect.Parameter | None, who: str) -> type[BaseModel]:
    if extra is None:
        return _ClosedModel
    if typing.get_origin(extra.annotation) is typing.Unpack:
        raise InvalidTool(f"{who}: **{extra.name} with Unpack cannot be used.", hint="Write its parameters out.")
    held = Any if extra.annotation is extra.empty else extra.annotation
    if held is Any:
        return _OpenModel
    kinds = {"__pydantic_extra__": types.GenericAlias(dict, (str, held))}
    return type("Typed", (_OpenModel,), {"__annotations__": kinds, "__module__": __name__})


def _reject_duplicate_names(who: str, names: list[str]) -> None:
    twin = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twin is not None:
        raise InvalidTool(f'{who}: two parameters are called "{twin}".', hint="Give one of them another alias.")


def _type_problem(annotation: Any) -> str:
    """Why pydantic cannot use a type; empty if it can."""
    try:
        json_schema(annotation, "validation")
    except _PYDANTIC_ERRORS as error:
        return _error_line(error)
    return ""


def _error_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[-1].strip() if isinstance(error, SchemaError) else lines[0]  # a SchemaError begins with the path
    return line.partition(". Set `arbitrary_types_allowed")[0].rstrip(".")[:200] + "."


def _argument_path(loc: tuple[int | str, ...], arguments: Any) -> str:
    """The path of a problem in the arguments, without pydantic's own steps, such as a member of a union."""
    path, value = "", arguments
    for place, step in enumerate(loc):
        here = isinstance(value, Mapping) and step in value
        if here or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
            value = value[step]
        elif place + 1 < len(loc) or not isinstance(value, Mapping):
            continue
        path = f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}" if path else str(step)
    return path


def _problem_text(kind: str, path: str, message: str) -> str:
    if kind == "missing":
        return f'"{path}" is missing'
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f'there is no parameter "{path}"'
    text = message[:1].lower() + message[1:]
    return f'"{path}": {text}' if path else text


class ReturnConverter:
    """Converts what one function returns to results."""

    def __init__(self, annotation: Any, who: str, schema: Object | None = None) -> None:
        """`schema` is the output schema; by default that of the annotation, which may promise nothing."""
        self._who = who
        self._adapter, made = _output_type(annotation)
        self.schema = made if schema is None else schema
        self._promise = OutputPromise(self.schema, who)

    def result(self, value: Any) -> ToolResult:
        """Convert a returned value.

        Raises `ExecutionFailed` if it does not match the annotation or the output schema, or is not JSON.
        """
        if self._adapter is None or (not isinstance(value, Mapping) and as_tool_result(value) is not None):
            return self._promise.keep(to_result(value, who=self._who))
        try:
            fitting = self._adapter.validate_python(value, by_alias=True, by_name=True)
            plain = self._adapter.dump_python(fitting, mode="json", by_alias=True)
        except ValidationError as error:
            raise ExecutionFailed(
                f"{self._who} returned a value that does not match its return annotation: {_first_problem(error)}.",
                hint=_RETURN_HINT,
            ) from error
        except (PydanticSerializationError, ValueError, RecursionError):
            plain = value  # `structured` explains why it is not JSON
        return structured(plain, who=self._who)


def is_unstructured(annotation: Any) -> bool:
    """Whether a return annotation means text, content, nothing, or anything.

    >>> is_unstructured(str), is_unstructured(dict[str, int]), is_unstructured(int | None)
    (True, False, True)
    """
    if annotation in (inspect.Signature.empty, Any, object, None):
        return True
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return is_unstructured(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return any(isinstance(value, str | bytes | None) for value in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return any(is_unstructured(member) for member in typing.get_args(annotation))
    plain = origin or annotation
    if not isinstance(plain, type):
        return isinstance(annotation, typing.TypeVar) or _is_unstructured_alias(annotation)
    return (
        issubclass(plain, _UNSTRUCTURED_TYPES)
        or _is_content_type(plain)
        or any(map(_contains_content, typing.get_args(annotation)))
    )


def _is_unstructured_alias(annotation: Any) -> bool:
    """Whether a `NewType` or a `type X = ...` is an alias of an unstructured type."""
    behind = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    return behind is not None and is_unstructured(behind)


def _contains_content(annotation: Any) -> bool:
    """Whether a member of a list type is content."""
    if isinstance(annotation, type) and _is_content_type(annotation):
        return True
    return any(_contains_content(member) for member in typing.get_args(annotation))


def _is_content_type(cls: type[Any]) -> bool:
    fields: Mapping[str, Any] = getattr(cls, "model_fields", {})
    whole = "content" in fields and ("structured_content" in fields or "structuredContent" in fields)
    helper = any(hasattr(cls, f"to_{kind}_content") for kind in ("image", "audio", "resource"))
    asks = "result_type" in fields and "input_requests" in fields
    return issubclass(cls, ToolResult) or whole or helper or asks or is_block_model(cls)


def _output_type(annotation: Any) -> tuple[TypeAdapter[Any] | None, Object | None]:
    if is_unstructured(annotation):
        return None, None
    try:
        adapter, schema = output_adapter(annotation)
    except (PydanticUserError, TypeError, ValueError, NameError, RecursionError):
        return None, None
    return (adapter, schema) if schema else (None, None)


def _first_problem(error: ValidationError) -> str:
    """The first problem with its path, without the value."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(step) for step in problem["loc"])
    message = problem["msg"][:1].lower() + problem["msg"][1:]
    return f"{place}: {message}" if place else message
