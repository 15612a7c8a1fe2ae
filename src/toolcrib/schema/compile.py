"""A schema to a validator, without ever reaching out of the process; a broken schema to a reason."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from toolcrib.errors import InvalidTool
from toolcrib.model import Object
from toolcrib.schema.describe import literal

_BACKTRACK_LIMIT = 100_000
"""Steps a regular expression may go back, so that a hostile pattern cannot stall a call: about 10 ms."""

_MAX_REASON = 240
"""Characters of a reason."""

_DRAFT_07 = "http://json-schema.org/draft-07/schema#"

_OPTIONS = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT)

_LOOSE_DASH = re.compile(r"(\\[wWdDsS])-(?!\])|(?<!\[)-(\\[wWdDsS])")


def compiled(schema: Object, who: str) -> jsonschema_rs.Validator:
    """The validator of an input schema: 2020-12, or what its `$schema` says. Raises `InvalidTool`.

    References to other documents are refused, not followed. `format` is not enforced: it is the server's to
    judge. A regular expression that JavaScript takes and our engine does not is left to the server too. A list
    under `items`, without a `$schema`, shows that draft-07 was meant.
    """
    if not isinstance(schema, dict):
        raise InvalidTool(f"{who}: the input schema is not an object.")
    if schema.get("type") != "object":
        raise InvalidTool(f'{who}: the input schema must say "type": "object" at its root.')
    refused: list[str] = []
    try:
        return _validator(schema, refused)
    except jsonschema_rs.ValidationError as error:
        other = _other_reading(schema, error)
        if other is not None:
            return compiled(other, who)
        raise InvalidTool(f"{who}: {_reason(schema, error, refused)}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidTool(f"{who}: the input schema cannot be read: {_line(str(error))}.") from error


def _validator(schema: dict[str, Any], refused: list[str]) -> jsonschema_rs.Validator:
    def refuse(uri: str) -> Any:
        refused.append(uri)
        raise LookupError(uri)

    return jsonschema_rs.validator_for(
        schema, retriever=refuse, validate_formats=False, mask="it", pattern_options=_OPTIONS
    )


def _other_reading(schema: dict[str, Any], error: jsonschema_rs.ValidationError) -> dict[str, Any] | None:
    """The schema as its author may have meant it, where that can be told; None otherwise."""
    path = error.instance_path
    if path and path[-1] == "items" and "$schema" not in schema and isinstance(error.instance, list):
        return {"$schema": _DRAFT_07, **schema}
    if error.kind.name == "format":
        mended: dict[str, Any] = _mended(schema)
        return mended if mended != schema else None
    return None


def _reason(schema: dict[str, Any], error: jsonschema_rs.ValidationError, refused: list[str]) -> str:
    dialect = schema.get("$schema")
    if refused and refused[0] != dialect:
        return f"the input schema refers to another document, {literal(refused[0], 100)}, and those are not fetched"
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        if refused or "meta-schema" in error.message:
            return f"the input schema is written in an unknown dialect, {literal(dialect, 100)}"
        return f"the input schema refers to something it does not hold: {_line(error.message)}"
    path = ".".join(str(part)[:40] for part in error.instance_path[:12])
    value = literal(error.instance, 40)
    return f"the input schema is broken at {path or 'its root'}: {value} is not allowed there"


def _line(text: str) -> str:
    return " ".join(text[:_MAX_REASON].split()).rstrip(".")


def _mended(node: Any) -> Any:
    """The schema with the patterns that our engine cannot read mended or left out, unless nobody could read them."""
    if isinstance(node, list):
        return [_mended(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    mended = {key: _mended(value) for key, value in node.items()}
    pattern = node.get("pattern")
    if isinstance(pattern, str) and (readable := _readable(pattern)) != pattern:
        mended.pop("pattern")
        if readable:
            mended["pattern"] = readable
    if isinstance(named := mended.get("patternProperties"), Mapping):
        readable_keys = {key: _readable(str(key)) for key in named}
        mended["patternProperties"] = {readable_keys[key]: value for key, value in named.items() if readable_keys[key]}
    return mended


def _readable(pattern: str) -> str:
    """The pattern as our engine reads it; "" when only it cannot; itself when nobody can."""
    for text in (pattern, _LOOSE_DASH.sub(r"\1\\-\2", pattern)):
        try:
            _validator({"pattern": text}, [])
        except ValueError:
            continue
        return text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            return pattern
    return ""
