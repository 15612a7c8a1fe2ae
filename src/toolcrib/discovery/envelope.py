"""Responses of meta-tools: `{"success": True, "result": ...}` or `{"success": False, "error": ...}`, always JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time
from enum import Enum
from math import isfinite
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from toolcrib.errors import ExecutionFailed, ToolcribError
from toolcrib.sanitize import one_line
from toolcrib.types import Object, ToolResult

Envelope = dict[str, Any]
MAX_SIZE: Final = 5_000_000
"""Default maximum size of a result, in characters."""
_MAX_REASON: Final = 500
_MAX_DEPTH: Final = 100
_MAX_KEY: Final = 40
_MAX_DIGITS: Final = 4_300
"""Of a whole number; Python and others read and write as many."""
_MAX_BITS: Final = 14_284
"""The bits of a number with that many digits."""
_VALUE_COST: Final = 2
"""What a value costs besides its own characters."""


def success(result: Any, **more: Any) -> Envelope:
    """Return the envelope of a success; `more` is `count` and `total_available` if they are known.

    >>> success([1, 2], count=2)
    {'success': True, 'result': [1, 2], 'count': 2}
    """
    return {"success": True, "result": result, **more}


def failure(error: Exception | str, suggestions: Sequence[str] = ()) -> Envelope:
    """Return the envelope of a failure: what was wrong, what would work, and similar names.

    >>> failure("Tool 'xyz' not found", ["xyz_tool"])
    {'success': False, 'error': "Tool 'xyz' not found", 'suggestions': ['xyz_tool']}
    """
    close = list(suggestions or (error.suggestions if isinstance(error, ToolcribError) else ()))
    answer: Envelope = {"success": False, "error": error_reason(error) if isinstance(error, Exception) else error}
    return {**answer, "suggestions": close} if close else answer


def batch(schemas: Sequence[Any], errors: Sequence[Object]) -> Envelope:
    """Return the envelope of several schemas, some of which may be missing."""
    return {"success": not errors, "schemas": list(schemas), "errors": list(errors), "count": len(schemas)}


def error_reason(error: Exception) -> str:
    """Return an error's message on one line of at most 500 characters.

    The type comes before the message of a `KeyError`, which is only a key, and replaces an empty message.

    >>> error_reason(ValueError("no such city")), error_reason(KeyError("x")), error_reason(ValueError())
    ('no such city', "KeyError: 'x'", 'ValueError')
    """
    return typed_reason(error) if isinstance(error, KeyError) else _one_line(error) or type(error).__name__


def typed_reason(error: Exception) -> str:
    """Like `error_reason`, with the type first for every error but our own, which are whole sentences.

    >>> typed_reason(ValueError("no such city")), typed_reason(ExecutionFailed("It failed."))
    ('ValueError: no such city', 'It failed.')
    """
    text = _one_line(error)
    if isinstance(error, ToolcribError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _one_line(error: Exception) -> str:
    # Our own errors are clean, and may quote what a caller gave.
    return one_line(str(error), _MAX_REASON)


def to_envelope(value: Any, max_size: int = MAX_SIZE) -> Envelope:
    """Return a tool's return value as an envelope.

    A dict with a boolean `success` is kept; anything else is the result. Raises `ExecutionFailed` for a value that is
    not JSON or too large.

    >>> to_envelope({"success": False}), to_envelope(3.0)
    ({'success': False, 'error': 'The tool failed and gave no reason.'}, {'success': True, 'result': 3.0})
    """
    if isinstance(value, ToolResult):
        return _from_tool_result(value, max_size)
    if not isinstance(value, Mapping) or not isinstance(value.get("success"), bool):
        return success(to_json_value(value, max_size))
    answer: Envelope = to_json_value(value, max_size)
    if answer["success"]:
        return {"success": True, "result": answer.pop("result", None), **answer}
    error = answer.pop("error", None) or "The tool failed and gave no reason."
    return {**answer, "success": False, "error": error if isinstance(error, str) else str(error)[:_MAX_REASON]}


def to_json_value(value: Any, max_size: int = MAX_SIZE) -> Any:
    """Convert the value to JSON: dataclasses, models, dates, paths and sets become what they hold.

    Raises `ExecutionFailed` for anything else, and for more than `max_size` characters in all.

    >>> to_json_value({"when": date(2026, 1, 2), "tags": {"a"}, "raw": b"text"})
    {'when': '2026-01-02', 'tags': ['a'], 'raw': 'text'}
    """
    return _JsonConverter(max_size).read(value, 0)


def _from_tool_result(result: ToolResult, max_size: int) -> Envelope:
    texts = [str(block["text"]) for block in result.content if block.get("type") == "text" and "text" in block]
    if result.is_error:
        return failure("\n".join(texts)[:_MAX_REASON] or "The tool failed and gave no reason.")
    if result.structured is not None:
        return success(to_json_value(result.structured, max_size))
    only_text = len(texts) == len(result.content)
    return success(to_json_value("\n".join(texts) if only_text else list(result.content), max_size))


class _JsonConverter:
    """Converts one value to JSON, within a budget of characters."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._left = max_size

    def read(self, value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ExecutionFailed(f"The tool's result is nested more than {_MAX_DEPTH} levels deep.")
        if value is None or (isinstance(value, (bool, int, float)) and not isinstance(value, Enum)):
            self._spend(_VALUE_COST)
            return self._number(value)
        if isinstance(value, str):
            self._spend(len(value) + _VALUE_COST)
            return str(value.value) if isinstance(value, Enum) else value
        if isinstance(value, Mapping):
            return self._object(value, depth + 1)
        if isinstance(value, (list, tuple, set, frozenset)):
            self._spend(len(value))
            return [self.read(part, depth + 1) for part in value]
        return self.read(self._other(value), depth + 1)

    def _number(self, value: Any) -> Any:
        """Return a number that JSON has."""
        if isinstance(value, float) and not isfinite(value):
            raise self._no_json(f"the number {value}")
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise self._no_json(f"a whole number of more than {_MAX_DIGITS:,} digits")
        return value

    def _object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for key, part in value.items():
            text = self._key(key)
            if text in read:
                raise self._no_json(f"a dict with several keys that become {text[:_MAX_KEY]!r} as text")
            read[text] = self.read(part, depth)
        return read

    def _key(self, key: Any) -> str:
        text = str(self._number(key) if isinstance(key, int) else key)
        self._spend(len(text) + _VALUE_COST)
        return text

    def _other(self, value: Any) -> Any:
        """Convert by one step. Raises `ExecutionFailed` if that is impossible."""
        if isinstance(value, (bytes, bytearray)):
            return self._text(bytes(value))
        if isinstance(value, (date, time)):
            return value.isoformat()
        if isinstance(value, (PurePath, UUID)):
            return str(value)
        if isinstance(value, Enum):
            return value.value
        if is_dataclass(value) and not isinstance(value, type):
            return {one.name: getattr(value, one.name) for one in fields(value)}
        if hasattr(value, "model_dump") and not isinstance(value, type):
            return value.model_dump(mode="json")
        raise self._no_json(type(value).__name__)

    def _text(self, value: bytes) -> str:
        self._spend(len(value))
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise self._no_json("bytes that are not text") from None

    def _no_json(self, what: str) -> ExecutionFailed:
        return ExecutionFailed(
            f"The tool returned {what}, which is not a JSON value.", hint="Return text, numbers, lists or dicts."
        )

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ExecutionFailed(
                f"The tool's result has more than {self._max_size:,} characters.",
                hint="Ask for less, or for a part of it.",
            )
