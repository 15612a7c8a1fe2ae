"""A model's call of a tool, read from any provider's message: plain JSON, or the objects of its client library."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

_MAX_SHOWN: Final = 120
"""Characters of broken arguments that a problem shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What a model wants to have run."""

    id: str
    """Joins the result to the call; empty where the provider gave none."""
    name: str
    """The name in the request; `Names.tool` leads from it to the tool."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """As the model gave them; `restored` brings them to what the tool takes."""
    problem: str = ""
    """Why the arguments cannot be read; empty where they can."""


def read(source: Any, *keys: str) -> Any:
    """The first of these fields that a JSON object or a library's object has; None without any.

    >>> read({"functionCall": {"name": "a"}}, "function_call", "functionCall")
    {'name': 'a'}
    """
    for key in keys:
        found = source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)
        if found is not None:
            return found
    return None


def listed(source: Any, *keys: str) -> Sequence[Any]:
    """A list as it is, or the one under the first of these fields; empty without any."""
    if isinstance(source, (list, tuple)):
        return source
    found = read(source, *keys)
    return found if isinstance(found, (list, tuple)) else ()


def call(id_: Any, name: Any, arguments: Any) -> ToolCall:
    """A call from its parts; arguments may be an object, or a text that holds one.

    >>> call("1", "add", '{"a": 1}').arguments, call("1", "add", "{").problem
    ({'a': 1}, "The arguments are not JSON: '{'")
    """
    given, problem = _object(arguments)
    return ToolCall(id=str(id_ or ""), name=str(name or ""), arguments=given, problem=problem)


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError`, also for numbers that JSON has not, and `RecursionError`.

    >>> parsed('{"a": NaN}')
    Traceback (most recent call last):
    ValueError: NaN is no JSON number.
    """
    return json.loads(text, parse_constant=_no_number, parse_float=_float)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number.")


def _float(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number("A number out of range")


def _object(arguments: Any) -> tuple[dict[str, Any], str]:
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}, ""
        try:
            arguments = parsed(arguments)
        except (ValueError, RecursionError):
            return {}, f"The arguments are not JSON: {arguments[:_MAX_SHOWN]!r}"
    if arguments is None:
        return {}, ""
    if not isinstance(arguments, Mapping):
        return {}, f"The arguments are not an object: {str(arguments)[:_MAX_SHOWN]}"
    return dict(arguments), ""
