"""Whether a tool's definition can be used; asked before it is taken, so that nothing is ever half registered."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from toolcrib.catalog.entry import check_text
from toolcrib.errors import InvalidTool
from toolcrib.model import Object, Tool, Visibility
from toolcrib.names import check_key
from toolcrib.schema import Schema
from toolcrib.words import nearest

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_TEXTS: Final = ("name", "namespace", "description")
_MAYBE_TEXTS: Final = ("title", "version")
_OBJECTS: Final = ("input_schema", "annotations", "meta")
_JSON: Final = ("input_schema", "output_schema", "annotations", "icons", "meta")


def sound(tool: Tool) -> Tool:
    """The tool, with wire JSON of its own that nobody else can change.

    Raises `InvalidName` or `InvalidTool`: the field is in the message and in `data["field"]`, the remedy is the hint.

    >>> sound(Tool(name="add", annotations={"readonly": True}))
    Traceback (most recent call last):
    toolcrib.errors.InvalidTool: add: annotations hold "readonly", which MCP does not know. Did you mean readOnlyHint?
    """
    _check_kinds(tool)
    check_key(tool.key)
    _check_words(tool)
    _check_annotations(tool)
    copies = {name: _copied(tool, name) for name in _JSON}
    own = replace(
        tool,
        visibility=Visibility(tool.visibility),
        keywords=tuple(tool.keywords),
        tags=tuple(tool.tags),
        **copies,
    )
    _prove(own.id, "input_schema", own.input_schema)
    _check_output(own)
    check_text(own)
    return own


def refused(who: str, field: str, problem: str, hint: str) -> InvalidTool:
    """A definition that cannot be used because of one of its fields."""
    return InvalidTool(f"{who}: {field} {problem}.", hint=hint, data={"field": field})


def no_words(who: str, field: str, given: object) -> InvalidTool:
    """A definition with something else where several words belong."""
    if isinstance(given, str):
        return refused(who, field, "must be several words, not one text", f"Write {field}=({given[:80]!r},).")
    return refused(who, field, f"must be a tuple or a list of words, not {type(given).__name__}", _words_like(field))


def _words_like(field: str) -> str:
    return f'Give a tuple of words: {field}=("mail", "smtp").'


def _check_kinds(tool: Tool) -> None:
    who = str(tool.name)[:80] or "The tool"
    for field in _TEXTS:
        _expect(who, field, isinstance(getattr(tool, field), str), "must be text", "Give a str.")
    for field in _MAYBE_TEXTS:
        value = getattr(tool, field)
        fits = value is None or (isinstance(value, str) and bool(value.strip()))
        _expect(who, field, fits, "must be text that is not empty", "Give a str, or leave it out.")
    for field in _OBJECTS:
        _expect(who, field, isinstance(getattr(tool, field), Mapping), "must be a JSON object", "Give a dict.")
    output = tool.output_schema
    _expect(
        who, "output_schema", output is None or isinstance(output, Mapping), "must be a JSON object", "Give a dict."
    )
    known = tool.visibility in tuple(Visibility)
    _expect(who, "visibility", known, "is unknown", f"Use one of: {', '.join(Visibility)}.")


def _check_words(tool: Tool) -> None:
    for field in ("keywords", "tags"):
        words: Any = getattr(tool, field)
        if not isinstance(words, Sequence) or isinstance(words, (str, bytes)):
            raise no_words(tool.id, field, words)
        fits = all(isinstance(word, str) and word.strip() for word in words)
        _expect(tool.id, field, fits, "must be words that are not empty", _words_like(field))


def _check_annotations(tool: Tool) -> None:
    for name, value in tool.annotations.items():
        if name in _HINTS:
            _expect(tool.id, "annotations", isinstance(value, bool), f"hold {name}, which must be true or false", "")
        elif name == "title":
            _expect(tool.id, "annotations", isinstance(value, str), "hold a title that is no text", "Give a str.")
        else:
            close = nearest(str(name), _HINTS)
            hint = f"Did you mean {close[0]}?" if close else f"MCP has: {', '.join(_HINTS)}, title."
            raise refused(tool.id, "annotations", f'hold "{name}", which MCP does not know', hint)
    icons: Any = tool.icons
    fits = isinstance(icons, Sequence) and all(isinstance(icon, Mapping) and icon.get("src") for icon in icons)
    _expect(tool.id, "icons", fits, "must be objects with a src", 'Give [{"src": "https://..."}].')


def _copied(tool: Tool, field: str) -> Any:
    """The field's JSON, written and read again."""
    value = getattr(tool, field)
    if not value:
        return value
    try:
        copy = json.loads(json.dumps(value, allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise refused(tool.id, field, f"cannot be written as JSON: {error}", "Use plain JSON values.") from error
    return tuple(copy) if field == "icons" else copy


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds a value of type {type(value).__name__}")


def _check_output(tool: Tool) -> None:
    if tool.output_schema is None:
        return
    proven: Object = tool.output_schema
    if proven.get("type") != "object":  # it may be of any type, and is proven as part of an object
        shared = {name: proven[name] for name in ("$defs", "definitions") if name in proven}
        proven = {**shared, "type": "object", "properties": {"result": proven}}
    _prove(tool.id, "output_schema", proven)


def _prove(who: str, field: str, schema: Object) -> None:
    try:
        Schema(schema, who)
    except InvalidTool as error:
        message = error.message.replace("the input schema", f"the {field.replace('_', ' ')}")
        message = message.replace("properties.result.", "").replace("properties.result:", "its root:")
        raise InvalidTool(message, hint="Give a JSON Schema, 2020-12.", data={"field": field}) from error


def _expect(who: str, field: str, fits: bool, problem: str, hint: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not fits:
        raise refused(who, field, problem, hint)
