"""What a function promises to return: an output schema, and results that keep to it."""

import inspect
import types
import typing
from collections.abc import AsyncIterable, Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from toolcrib.errors import ExecutionFailed
from toolcrib.model import Object, ToolResult
from toolcrib.providers.blocks import block_fields, result_of
from toolcrib.providers.results import structured, to_result
from toolcrib.providers.schemas import promised

_UNSTRUCTURED: Final = (str, bytes, bytearray, memoryview, ToolResult, type(None), Iterator, AsyncIterable)
"""What is told as text or as content, or is nothing at all."""

_HINT: Final = "Return what the annotation says, or register the tool with output_schema=False."


class Returned:
    """What one function returns, as results."""

    def __init__(self, annotation: Any, who: str) -> None:
        """`schema` is None where the annotation promises no structured content."""
        self._who = who
        self._adapter, self.schema = _promise(annotation)

    def result(self, value: Any) -> ToolResult:
        """The result of a returned value. Raises `ExecutionFailed` for what was not promised, or is not JSON."""
        if self._adapter is None or (not isinstance(value, Mapping) and result_of(value) is not None):
            return to_result(value, who=self._who)
        try:
            fitting = self._adapter.validate_python(value, by_alias=True, by_name=True)
            plain = self._adapter.dump_python(fitting, mode="json", by_alias=True)
        except ValidationError as error:
            raise ExecutionFailed(
                f"{self._who} returned what its return annotation does not promise: {_first(error)}.", hint=_HINT
            ) from error
        except (PydanticSerializationError, ValueError, RecursionError):
            plain = value  # told in words where it is not JSON
        return structured(plain, who=self._who)


def promises_nothing(annotation: Any) -> bool:
    """Whether a return annotation stands for text, content, nothing, or anything at all.

    >>> promises_nothing(str), promises_nothing(dict[str, int]), promises_nothing(int | None)
    (True, False, True)
    """
    if annotation in (inspect.Signature.empty, Any, object, None):
        return True
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return promises_nothing(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return any(isinstance(value, str | bytes | None) for value in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return any(promises_nothing(member) for member in typing.get_args(annotation))
    plain = origin or annotation
    if not isinstance(plain, type):
        return isinstance(annotation, typing.TypeVar) or _named(annotation)
    return (
        issubclass(plain, _UNSTRUCTURED) or _is_content(plain) or any(map(_holds_content, typing.get_args(annotation)))
    )


def _named(annotation: Any) -> bool:
    """Whether a `NewType` or a `type X = ...` stands for what promises nothing."""
    behind = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    return behind is not None and promises_nothing(behind)


def _holds_content(annotation: Any) -> bool:
    """Whether a member of a list type is content."""
    if isinstance(annotation, type) and _is_content(annotation):
        return True
    return any(_holds_content(member) for member in typing.get_args(annotation))


def _is_content(cls: type[Any]) -> bool:
    fields: Mapping[str, Any] = getattr(cls, "model_fields", {})
    whole = "content" in fields and ("structured_content" in fields or "structuredContent" in fields)
    helper = any(hasattr(cls, f"to_{kind}_content") for kind in ("image", "audio", "resource"))
    asks = "result_type" in fields and "input_requests" in fields
    return issubclass(cls, ToolResult) or whole or helper or asks or block_fields(cls)


def _promise(annotation: Any) -> tuple[TypeAdapter[Any] | None, Object | None]:
    if promises_nothing(annotation):
        return None, None
    try:
        adapter, schema = promised(annotation)
    except (PydanticUserError, TypeError, ValueError, NameError, RecursionError):
        return None, None
    return (adapter, schema) if schema else (None, None)


def _first(error: ValidationError) -> str:
    """The first thing wrong, by place, without the value."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(step) for step in problem["loc"])
    message = problem["msg"][:1].lower() + problem["msg"][1:]
    return f"{place}: {message}" if place else message
