"""Arguments as models send them: nested, flat, as a JSON string or nested twice, and wrong only in their form.

Only unambiguous forms are accepted, and the schema decides. Anything else raises an error that says what would work.

Repair is for arguments that a schema does not accept, at any depth. This is the whole rule:

- null for an optional property that does not allow null is left out;
- a text for an integer, a number or a boolean becomes the value that it writes as JSON: `"1"`, `"2.5"`, `"true"`;
- a text for a list or an object becomes the one that it writes as JSON.

A text stays a text wherever the schema allows one. What is still wrong afterwards is for the check to report.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from toolcrib.errors import InvalidArguments, InvalidRequest
from toolcrib.names import nearest
from toolcrib.sanitize import echo, listing
from toolcrib.schema.signature import json_type, properties, required, resolve, signature_line
from toolcrib.types import Object

_ENVELOPES: Final = ("arguments", "parameters")
"""Names of the nested form."""
_NAME_KEYS: Final = ("tool_name", "name", "tool")
_MAX_SHOWN: Final = 40
_MAX_TEXT: Final = 10_000_000
"""Characters of arguments that came as one text."""
_MAX_DEPTH: Final = 8
"""Deeper arguments stay as they are."""
_MAX_REPAIRED_TEXT: Final = 100_000
"""Characters of a text that may hold a list or an object."""
_UNIONS: Final = ("anyOf", "oneOf")
_ANY: Final = frozenset({"any"})
_FLAGS: Final = {"True": "true", "False": "false"}


def read_call(arguments: Object) -> tuple[str, Any, dict[str, Any]]:
    """Return the name of the tool to call, the nested arguments, and the other keys.

    Raises `InvalidRequest` if no tool is named.

    >>> read_call({"tool_name": "add", "a": 1})
    ('add', None, {'a': 1})
    >>> read_call({"tool_name": "add", "arguments": {"a": 1}})
    ('add', {'a': 1}, {})
    """
    loose = dict(arguments)
    named = next((key for key in _NAME_KEYS if isinstance(loose.get(key), str)), None)
    name = "" if named is None else loose.pop(named).strip()
    if not name:
        raise InvalidRequest(
            "call_tool needs the name of a tool.",
            hint='Send {"tool_name": "...", "arguments": {...}}; search_tools finds names.',
        )
    for key in _ENVELOPES:
        if key in loose:
            return name, loose.pop(key), loose
    return name, None, loose


def merge_arguments(
    given: Any, loose: Object, schema: Object, *, tool: str, known: Object | None = None
) -> dict[str, Any]:
    """Return the arguments for a tool as one dict.

    `given` is the nested form: an object, a JSON string that holds one, or None. `loose` holds the keys beside it,
    which count if the schema has parameters of those names, or declares none at all. A parameter that is itself called
    `arguments` is reached by the nested form. `known` are the schema's properties, for callers that have them already.
    Raises `InvalidArguments` for anything else.

    >>> merge_arguments('{"a": 1}', {}, {"type": "object"}, tool="t")
    {'a': 1}
    >>> merge_arguments(None, {"a": 1}, {"type": "object", "properties": {"a": {}}}, tool="t")
    {'a': 1}
    >>> merge_arguments({"arguments": {"a": 1}}, {}, {"type": "object", "properties": {"a": {}}}, tool="t")
    {'a': 1}
    >>> merge_arguments("-v", {}, {"type": "object", "properties": {"arguments": {}}}, tool="t")
    {'arguments': '-v'}
    """
    if known is None:
        known = properties(resolve(schema, schema))
    if not loose and type(given) is dict and given.keys() <= known.keys():
        return dict(given)  # the usual form, which can mean nothing else
    own = next((key for key in _ENVELOPES if key in known), None)
    if own is not None and given is not None and _is_flat(given, known):
        return {**loose, own: given}
    nested = _without_envelope(as_object(given, tool), known)
    if not nested and given in (None, ""):
        _check_names(loose, known, schema, tool)
        return dict(loose)
    stray = [key for key in loose if (known and key not in known) or key in nested]
    if stray:
        names = listing(map(echo, sorted(map(str, stray))), 5)
        raise InvalidArguments(
            f"{tool}: {names} cannot be given beside the arguments.",
            hint=f'Put every parameter into "arguments": {{...}}. Valid: {", ".join(list(known)[:20]) or "any"}.',
        )
    return {**loose, **nested}


def _check_names(loose: Object, known: Object, schema: Object, tool: str) -> None:
    """Reject an unknown parameter with a suggestion, if no envelope shows what was meant."""
    strange = next((str(key) for key in loose if key not in known), None)
    if strange is None or not known or schema.get("additionalProperties"):
        return
    close = nearest(strange, known)
    guess = f" Did you mean {' or '.join(close)}?" if close else ""
    raise InvalidArguments(
        f"{tool}: {echo(strange)} is not a parameter.{guess}",
        hint=f"Valid: {signature_line(tool, schema)}",
        suggestions=close,
    )


def as_object(given: Any, tool: str) -> dict[str, Any]:
    """Return an object, a JSON string that holds one, or nothing, as a dict. Raises `InvalidArguments`."""
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        given = _parse_text(given, tool)
    if isinstance(given, Mapping):
        return {str(key): value for key, value in given.items()}
    raise InvalidArguments(
        f"{tool}: arguments must be an object, not {_describe_type(given)}.",
        hint='Send them as {"parameter": value, ...}.',
    )


def _is_flat(given: Any, known: Object) -> bool:
    """Whether a value under `arguments` can only be that of a parameter with that name."""
    if isinstance(given, str) and given.lstrip().startswith("{"):
        return False
    return not isinstance(given, Mapping) or (bool(given) and known.keys().isdisjoint(given))


def _parse_text(text: str, tool: str) -> Any:
    try:
        return parsed(text if len(text) <= _MAX_TEXT else "")
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"{tool}: arguments are a string that is not a JSON object.",
            hint='Send them as an object: {"parameter": value, ...}.',
        ) from error


def _without_envelope(arguments: dict[str, Any], known: Object) -> dict[str, Any]:
    """Remove a second envelope, unless the tool has a parameter of that name."""
    if len(arguments) != 1 or not known:
        return arguments
    key, inner = next(iter(arguments.items()))
    if key not in _ENVELOPES or key in known or not isinstance(inner, Mapping):
        return arguments
    return {str(name): value for name, value in inner.items()}


def _describe_type(value: Any) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), type(value).__name__)


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError`, also for numbers that JSON does not allow, and `RecursionError`.

    >>> parsed('{"a": NaN}')
    Traceback (most recent call last):
    ValueError: NaN is not a JSON number.
    """
    return json.loads(text, parse_constant=_no_number, parse_float=_float)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number.")


def _float(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number("A number out of range")


# -- repair ------------------------------------------------------------------------------------------------------------


def repair(arguments: Object, schema: Object) -> dict[str, Any]:
    """The arguments with what can be repaired unambiguously.

    >>> fields = {"n": {"type": "integer"}, "all": {"type": "boolean"}, "note": {"type": "string"}}
    >>> repair({"n": "1", "all": "true", "note": None}, {"type": "object", "properties": fields})
    {'n': 1, 'all': True}
    """
    return _repair_object(arguments, resolve(schema, schema), schema, _MAX_DEPTH)


def _repair_object(given: Object, schema: Object, root: Object, depth: int) -> dict[str, Any]:
    known, needed = properties(schema), required(schema)
    kept: dict[str, Any] = {}
    for name, value in given.items():
        expected = resolve(known.get(name), root)
        if value is None and name in known and name not in needed and not _allows(expected, root, "null"):
            continue
        kept[name] = _repair_value(value, expected, root, depth - 1)
    return kept


def _repair_value(value: Any, schema: Object, root: Object, depth: int) -> Any:
    if depth == 0 or not schema:
        return value
    if isinstance(value, str):
        return _repair_text(value, schema, root, depth)
    if isinstance(value, Mapping):
        return _repair_object(value, schema, root, depth)
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        inside = resolve(items, root)
        return [_repair_value(item, inside, root, depth - 1) for item in value]
    return value


def _repair_text(text: str, schema: Object, root: Object, depth: int) -> Any:
    """The value that a text writes as JSON, if the schema allows that and no text."""
    if len(text) > _MAX_REPAIRED_TEXT or _allows(schema, root, "string"):
        return text
    try:
        value = parsed(_FLAGS.get(text, text))
    except (ValueError, RecursionError):
        return text
    kind = json_type(value)
    if kind == "string" or not (_allows(schema, root, kind) or (kind == "integer" and _allows(schema, root, "number"))):
        return text
    return _repair_value(value, schema, root, depth - 1) if isinstance(value, (dict, list)) else value


def _allows(schema: Object, root: Object, kind: str) -> bool:
    """Whether a resolved schema allows values of this JSON type. A schema that does not say so allows all."""
    types = _types(schema, root, _MAX_DEPTH)
    return types is _ANY or kind in types


def _types(schema: Object, root: Object, depth: int) -> frozenset[str]:
    """The JSON types that a resolved schema names; `_ANY` if it names none."""
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(map(str, named))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(map(json_type, values))
    for union in _UNIONS:
        if isinstance(parts := schema.get(union), list) and parts and depth:
            each = [_types(resolve(part, root), root, depth - 1) for part in parts]
            return _ANY if any(one is _ANY for one in each) else frozenset().union(*each)
    return _ANY
