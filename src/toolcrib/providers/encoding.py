"""What a tool returned, as JSON: every usual Python value, or an error that says what and where it is not."""

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from os import PathLike, fspath
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from toolcrib.errors import ExecutionFailed
from toolcrib.model import JSON

_MAX_STEPS: Final = 20
"""How far down a fault is looked for."""

_MAX_LEVELS: Final = 200
"""How deep a value may be nested: JSON readers of clients give up soon after."""

_MAX_KEY: Final = 40
"""Characters of a key that a message repeats."""
_FAULTS = (TypeError, ValueError, RecursionError, PydanticSerializationError)
_RAW = (bytes, bytearray, memoryview)
_ORDINARY = "Return text, numbers, lists, dicts, dataclasses or pydantic models."


def encoded(value: Any, who: str) -> tuple[str, JSON]:
    """The value as compact JSON text, and as plain JSON that shares nothing with it.

    `who` stands at the beginning of the message of `ExecutionFailed`, which is raised for what JSON cannot hold.

    >>> encoded({"at": {3, 1}}, "The tool")
    ('{"at":[1,3]}', {'at': [1, 3]})
    """
    try:
        text = _dumped(value)
        plain = from_json(text)
        shorter = len(to_json(plain)) < len(text.encode())
    except _FAULTS as error:
        raise _refused(value, who, error) from error
    if shorter and (twice := _twice(value)):
        raise ExecutionFailed(
            f'{who} returned an object with two keys that are both "{twice[:_MAX_KEY]}" as text.',
            hint="Give the keys as text, each once.",
        )
    return text, plain


def readable(text: str, who: str) -> str:
    """The text itself. Raises `ExecutionFailed` when it holds halves of characters, which no encoding can carry."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ExecutionFailed(
            f"{who} returned text that is not Unicode: a half of a surrogate pair at {error.start}.",
            hint='Return text.encode(errors="replace").decode().',
        ) from error
    return text


def _dumped(value: Any) -> str:
    try:
        return _json(value)
    except TypeError as error:
        if "keys must be" not in str(error):
            raise
        return _json(_with_text_keys(value))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_simpler)


def _simpler(value: Any) -> Any:
    """A value one step nearer to JSON. Raises `TypeError` or pydantic's own error where there is none."""
    if isinstance(value, (*_RAW, Iterator, type)):
        raise TypeError(type(value).__name__)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (AbstractSet, deque)):
        return _ordered(value)
    return _of_object(value)


def _of_object(value: Any) -> Any:
    serializer = getattr(value, "__pydantic_serializer__", None)
    if serializer is not None:  # a model, or one of pydantic's dataclasses
        return serializer.to_python(value, mode="json", by_alias=True)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, PathLike):
        return fspath(value)
    plain = getattr(value, "tolist", None)  # numbers and arrays of numpy and its kin
    return plain() if callable(plain) else to_jsonable_python(value)


def _ordered(values: Any) -> list[Any]:
    """A list; of a set in order, where it has one, so that equal sets read alike."""
    try:
        return sorted(values) if isinstance(values, AbstractSet) else list(values)
    except TypeError:
        return list(values)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_key(name): _with_text_keys(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(item) for item in value]
    return value


def _key(name: Any) -> Any:
    return name if isinstance(name, (str, int, float, type(None))) else to_jsonable_python(name)


def _refused(value: Any, who: str, error: Exception) -> ExecutionFailed:
    path, culprit = _culprit(value)
    what, hint = _fault(culprit, error)
    where = f" at {path}" if path else ""
    return ExecutionFailed(f"{who} returned {what}{where}, which JSON cannot hold.", hint=hint)


def _fault(culprit: Any, error: Exception) -> tuple[str, str]:
    if isinstance(culprit, float) and not math.isfinite(culprit):
        return f"the number {culprit}", "Return None in its place, or text."
    if isinstance(culprit, _RAW):
        return type(culprit).__name__, (
            'Return text (data.decode()), or image(data, "image/png"), audio(...) or resource(...) of '
            "toolcrib.providers.results."
        )
    if isinstance(culprit, str):
        return "text with half of a surrogate pair", 'Return text.encode(errors="replace").decode().'
    if isinstance(error, RecursionError) or "recursion" in str(error) or "Circular" in str(error):
        return f"a value that holds itself, or is nested more than {_MAX_LEVELS} levels deep,", _ORDINARY
    if isinstance(culprit, Iterator):
        return f"a {type(culprit).__name__}", "Return list(...) of it."
    return f"a value of type {type(culprit).__name__}", _ORDINARY


def _culprit(value: Any) -> tuple[str, Any]:
    """The innermost part of the value that cannot be encoded, and the way to it."""
    path = ""
    for _ in range(_MAX_STEPS):
        bad = next(((step, part) for step, part in _parts(value) if not _encodes(part)), None)
        if bad is None:
            break
        path, value = path + bad[0], bad[1]
    return path.removeprefix("."), value


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name, None) for name in type(value).model_fields}
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in fields(value)}
    if isinstance(value, Mapping):
        return [(f".{name}", item) for name, item in value.items()]
    if isinstance(value, (list, tuple, AbstractSet, deque)):
        return [(f"[{place}]", item) for place, item in enumerate(_ordered(value))]
    return []


def _twice(value: Any) -> str:
    """A key that two keys of one object are as text; empty where there is none."""
    todo = [value]
    while todo:
        parts = _parts(todo.pop())
        steps = [step for step, _ in parts]
        for place, step in enumerate(steps if len(set(steps)) < len(steps) else ()):
            if step in steps[:place]:
                return step.removeprefix(".")
        todo.extend(part for _, part in parts)
    return ""


def _encodes(value: Any) -> bool:
    try:
        from_json(_dumped(value))
    except _FAULTS:
        return False
    return True
