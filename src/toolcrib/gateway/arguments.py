"""What a model meant by its arguments: nested, flat, as a JSON string, or nested twice.

Only what is unambiguous is accepted; the schema decides. The rest is told back with what would work.
"""

import json
from collections.abc import Mapping
from typing import Any

from toolcrib.errors import InvalidArguments
from toolcrib.model import Object

_ENVELOPE_KEYS = ("arguments", "parameters")
_NAMED = 5


def settle(given: Any, loose: Object, schema: Object, *, tool: str) -> dict[str, Any]:
    """The arguments for a tool, as one dict.

    `given` is the nested form: an object, a JSON string that holds one, or None. `loose` holds what stood beside it;
    it counts where the schema has parameters of those names, or declares none at all and nothing was nested.
    Raises `InvalidArguments` for anything else.

    >>> settle('{"a": 1}', {}, {"type": "object"}, tool="t")
    {'a': 1}
    >>> settle(None, {"a": 1}, {"type": "object", "properties": {"a": {}}}, tool="t")
    {'a': 1}
    >>> settle({"arguments": {"a": 1}}, {}, {"type": "object", "properties": {"a": {}}}, tool="t")
    {'a': 1}
    """
    properties = schema.get("properties") or {}
    arguments = _unwrapped(_as_object(given, tool), properties)
    if not loose:
        return arguments
    stray = [key for key in loose if key not in properties or key in arguments]
    if stray and (properties or arguments):
        raise InvalidArguments(
            f"{tool}: {', '.join(map(repr, sorted(stray)[:_NAMED]))} cannot stand beside the arguments.",
            hint='Put every parameter into "arguments": {...}.',
        )
    return {**loose, **arguments}


def _as_object(given: Any, tool: str) -> dict[str, Any]:
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        given = _parsed(given, tool)
    if isinstance(given, Mapping):
        return dict(given)
    raise InvalidArguments(
        f"{tool}: arguments must be an object, not {_kind(given)}.",
        hint='Send them as {"parameter": value, ...}.',
    )


def _parsed(text: str, tool: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"{tool}: arguments came as a string that holds no JSON object.",
            hint='Send them as an object: {"parameter": value, ...}.',
        ) from error


def _unwrapped(arguments: dict[str, Any], properties: Object) -> dict[str, Any]:
    """One envelope too many is taken off, unless the tool has a parameter of that name."""
    if len(arguments) != 1 or not properties:
        return arguments
    key, inner = next(iter(arguments.items()))
    if key not in _ENVELOPE_KEYS or key in properties or not isinstance(inner, Mapping):
        return arguments
    return dict(inner)


def _kind(value: Any) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), type(value).__name__)
