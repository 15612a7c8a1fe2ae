"""JSON Schemas of Python types. Pydantic does the work, and what it says of a type is remembered."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

_REMEMBERED: Final = 1024
"""Types: most functions have the same few."""


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


class NotPlain(Exception):
    """The schema of this does not stand by itself."""


def plain_schema(annotation: Any, constraints: Iterable[Any] = ()) -> Mapping[str, Any]:
    """The JSON Schema of a type, for what is sent, where it needs no definitions beside it; it is shared.

    `constraints` are what else may stand in an `Annotated`. Raises `NotPlain`, pydantic's own errors, or `TypeError`.

    >>> plain_schema(list[int])
    {'items': {'type': 'integer'}, 'type': 'array'}
    """
    more = tuple(constraints)
    made = _plain(annotation, more, repr((annotation, more)))
    if made is None:
        raise NotPlain
    return made


@lru_cache(_REMEMBERED)
def _plain(annotation: Any, constraints: tuple[Any, ...], _written: str) -> Mapping[str, Any] | None:
    # Types may be equal and yet be written in another way, such as the members of a union, or 1 and 1.0. That is also
    # why constraints stand in a field: Annotated itself remembers what it was given, and gives what is equal.
    if constraints:
        field = FieldInfo()
        field.metadata = list(constraints)
        annotation = Annotated[annotation, field]
    made = json_schema(list[annotation], "validation")  # at the root, a definition would stand in its own place
    return None if "$defs" in made else made["items"]


def promised(annotation: Any) -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    """What checks the values of a type, and the JSON Schema of what is given for them; both are shared.

    Raises pydantic's own errors, or `TypeError`.
    """
    return _promised(annotation, repr(annotation))


@lru_cache(_REMEMBERED)
def _promised(annotation: Any, _written: str) -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    adapter = TypeAdapter[Any](annotation)
    return adapter, adapter.json_schema(mode="serialization", schema_generator=PlainSchema)


def json_schema(annotation: Any, mode: JsonSchemaMode) -> dict[str, Any]:
    """The JSON Schema of a type. Raises pydantic's own errors, or `TypeError`."""
    return TypeAdapter[Any](annotation).json_schema(mode=mode, schema_generator=PlainSchema)
