"""Schemas of functions equal those that pydantic derives for the whole, with or without the cache of types."""

import datetime as dt
import enum
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypeVar, Union
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, Field, Json, PositiveInt, WithJsonSchema
from typing_extensions import TypedDict

from toolcrib.errors import InvalidTool
from toolcrib.providers.functions import LocalTools, function_tool


class Color(enum.Enum):
    RED = "red"


class Rank(enum.IntEnum):
    FIRST = 1


class Model(BaseModel):
    x: int


@dataclass
class Data:
    y: str = "q"


class Typed(TypedDict):
    z: int


class Named(NamedTuple):
    a: int


def unchanged(value: int) -> int:
    return value


TYPES: tuple[Any, ...] = (
    *(int, str, float, bool, None, Any, object, bytes, dict, list, set, tuple, Decimal, UUID, dt.date),
    *(list[int], dict[str, int], tuple[int, str], tuple[int, ...], set[str], Sequence[int], Mapping[str, float]),
    *(int | None, int | str, str | int, Optional[float], Union[None, int, str], list[int | str], list[str | int]),  # noqa: UP007, UP045 - the old spellings too
    *(Literal["a"] | None, Literal[1], Literal[True], Literal["a", "b"], Literal["b", "a"]),
    *(Color, Rank, Model, Data, Typed, Named, list[Model], Color | None, dict[str, list[Color]]),
    *(NewType("Age", int), TypeVar("T"), Json[list[int]], PositiveInt),
    *(Annotated[int, Field(ge=1)], Annotated[float, Field(ge=1.0)], Annotated[int, Field(ge=1.0)]),
    *(Annotated[int | str, AfterValidator(unchanged)], Annotated[str | int, AfterValidator(unchanged)]),
    *(Annotated[str, Field(min_length=2, pattern="^a", description="why")], Annotated[str, "words"]),
    *(Annotated[int, Field(title="T")], Annotated[int, Field(examples=[1])], Annotated[int, Field(alias="other")]),
    *(Annotated[int, Field(json_schema_extra={"q": 1})], Annotated[int, Field(deprecated=True)]),
    *(Annotated[int, AfterValidator(unchanged)], Annotated[Any, WithJsonSchema({"format": "x"})]),
    *(Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=3)], Annotated[str, Field(repr=False)]),
)
DEFAULTS: tuple[Any, ...] = (
    *(inspect.Parameter.empty, None, 1, 1.5, 10**30, "x", True, (1, 2), [1], {"a": 1}, b"x", Color.RED),
    *(Rank.FIRST, dt.date(2020, 1, 1), Field(3), Field(default_factory=list), Field(description="said")),
)


def taking(**parameters: tuple[Any, Any]) -> Any:
    """A function of parameters, each with a type and a default."""

    def function(**_: Any) -> None: ...

    kind = inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter(name, kind, annotation=one[0], default=one[1]) for name, one in parameters.items()]
    function.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]  # as inspect reads it
    return function


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("annotation", TYPES, ids=lambda one: re.sub(r" at 0x\w+", "", str(one)))
def test_the_schema_of_a_parameter_is_that_which_pydantic_gives_for_the_whole_function(annotation: Any) -> None:
    for default in DEFAULTS:
        alone = function_tool(taking(a=(annotation, default)), name="t").tool.input_schema
        # A model beside it has all schemas made at once, by pydantic alone.
        beside = function_tool(taking(a=(annotation, default), model=(Model, Model(x=1))), name="t").tool.input_schema
        others = {name: schema for name, schema in beside["properties"].items() if name != "model"}
        assert json.dumps(alone["properties"]) == json.dumps(others), default
        assert alone.get("required") == beside.get("required")
        assert alone["additionalProperties"] == beside["additionalProperties"]


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (Annotated[dt.date, Field(ge=1)], inspect.Parameter.empty),
        (Annotated[str, Field(max_length=-1)], "x"),
        (Annotated[int | str, Field(strict=True)], None),
        (Annotated[str, Field(default="x")], Field(default_factory=str)),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_registered_and_names_the_parameter(
    annotation: Any, default: Any
) -> None:
    with pytest.raises(InvalidTool, match='t: the type of "a" cannot be used') as caught:
        function_tool(taking(a=(annotation, default)), name="t")
    assert "building" not in str(caught.value)


def test_equal_types_with_different_schemas_have_separate_cache_entries() -> None:
    tools = LocalTools()

    def first(a: int | str) -> None: ...
    def second(a: str | int) -> None: ...

    schemas = [tools.register_function(function).input_schema["properties"]["a"] for function in (first, second)]
    assert [[one["type"] for one in schema["anyOf"]] for schema in schemas] == [
        ["integer", "string"],
        ["string", "integer"],
    ]
