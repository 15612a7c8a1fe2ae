"""Parse tool definitions in the shapes that other libraries use, and validate a tool before it is registered."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from toolcrib.catalog import check_encodable
from toolcrib.checks import checked
from toolcrib.errors import InvalidName, InvalidTool, invalid_field
from toolcrib.names import check_key, nearest
from toolcrib.sanitize import echo
from toolcrib.schema import Schema
from toolcrib.types import Key, Object, Tool, Visibility

_ABSENT: Final = object()
_FIELD_SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "input_schema": ("input_schema", "inputSchema"),
    "output_schema": ("output_schema", "outputSchema"),
    "meta": ("_meta", "meta"),
}
"""Fields with several spellings; the first one present counts."""
_ANNOTATION_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_TEXT_FIELDS: Final = ("name", "namespace", "description")
_OPTIONAL_TEXT_FIELDS: Final = ("title", "version")
_OBJECT_FIELDS: Final = ("input_schema", "annotations", "meta")
_JSON_FIELDS: Final = ("input_schema", "output_schema", "annotations", "icons", "meta")


@checked(error=InvalidTool)
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMetadata:
    """What search needs to know about a tool."""

    name: str
    description: str = ""
    keywords: tuple[str, ...] = ()
    """Searched but never listed."""


def parse_tool(value: object, *, namespace: str = "", visibility: Visibility | None = None) -> Tool:
    """Parse a tool definition.

    Takes a `Tool`, an object with `to_tool()`, a mapping, or an object with attributes such as an SDK's `Tool`. The
    fields are `name`, `description`, `title`, `input_schema` or `inputSchema`, `output_schema` or `outputSchema`,
    `annotations`, `icons`, `keywords`, `tags`, `visibility`, `version`, `meta` or `_meta`, and `namespace`. Only the
    name is required.

    `namespace` and `visibility` are defaults; without a visibility, the tool is discoverable. Raises `InvalidTool`,
    which names the field.

    >>> parse_tool({"name": "add", "inputSchema": {"type": "object"}, "visibility": "native"}).visibility
    <Visibility.NATIVE: 'native'>
    >>> parse_tool({"name": "add", "keywords": "sum"})
    Traceback (most recent call last):
    toolcrib.errors.InvalidTool: The tool "add" cannot be used: its keywords are a string. Give a list of strings.
    """
    tool = _from_builder(value)
    if tool is None:
        return _from_fields(value, namespace, visibility)
    return replace(tool, namespace=namespace) if namespace and not tool.namespace else tool


def parse_tools(values: Iterable[object] | None) -> tuple[Tool, ...]:
    """Parse the list of a provider; None is an empty list. Raises `InvalidTool`."""
    return tuple(value if isinstance(value, Tool) else parse_tool(value) for value in values or ())


def parse_metadata(value: object) -> ToolMetadata:
    """Parse metadata from a `ToolMetadata`, a mapping or an object with its attributes. Raises `InvalidTool`."""
    if isinstance(value, ToolMetadata):
        return value
    fields = _DefinitionReader(value)
    return ToolMetadata(name=fields.name(), description=fields.text("description"), keywords=fields.words("keywords"))


def _from_builder(value: object) -> Tool | None:
    """The tool itself, or what its `to_tool()` returns; None for anything else."""
    if isinstance(value, Tool):
        return value
    build = getattr(value, "to_tool", None)
    if not callable(build) or isinstance(value, type):
        return None
    made = build()
    if not isinstance(made, Tool):
        raise InvalidTool(
            f"{type(value).__name__}.to_tool() returned {_describe_type(made)}.", hint="It must return a Tool."
        )
    return made


def _from_fields(value: object, namespace: str, visibility: Visibility | None) -> Tool:
    fields = _DefinitionReader(value)
    tool = Tool(
        name=fields.name(),
        namespace=fields.text("namespace") or namespace,
        title=fields.text("title") or None,
        description=fields.text("description"),
        input_schema=fields.object("input_schema", {"type": "object"}),
        output_schema=fields.object("output_schema", None),
        annotations=fields.object("annotations", {}),
        icons=fields.objects("icons"),
        keywords=fields.words("keywords"),
        tags=fields.words("tags"),
        visibility=fields.visibility(visibility or Visibility.DISCOVERABLE),
        version=fields.text("version") or None,
        meta=fields.object("meta", {}),
    )
    try:
        check_key(Key(tool.namespace, tool.name))
    except InvalidName as error:
        raise InvalidTool(f"A tool cannot be used: {error.message}", hint=error.hint) from error
    return tool


class _DefinitionReader:
    """Reads the fields of one definition, and checks their types."""

    def __init__(self, value: object) -> None:
        self._get = _getter(value)
        self._label = ""
        if self._get("name") is _ABSENT:
            raise InvalidTool(
                f"A tool definition needs a name; this one is {_describe_type(value)}.", hint="Give it a name."
            )

    def name(self) -> str:
        name = self._get("name")
        if not isinstance(name, str) or not name:
            self._refuse("name", f"is {_describe_type(name)}", "Give a string that is not empty.")
        self._label = f' "{name[:80]}"'
        return name

    def text(self, field: str) -> str:
        value = self._value(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            self._refuse(field, f"is {_describe_type(value)}", "Give a string.")
        return str(value)

    def object(self, field: str, default: Any) -> Any:
        value = _as_json(self._value(field))
        if value is None:
            return default
        if not isinstance(value, Mapping):
            self._refuse(field, f"is {_describe_type(value)}", "Give a JSON object.")
        return value

    def objects(self, field: str) -> tuple[Any, ...]:
        return tuple(_as_json(item) for item in self._items(field, "objects", lambda item: isinstance(item, Mapping)))

    def words(self, field: str) -> tuple[str, ...]:
        return tuple(self._items(field, "strings", lambda item: isinstance(item, str)))

    def visibility(self, default: Visibility) -> Visibility:
        value = self._value("visibility")
        if value is None:
            return default
        try:
            return Visibility(value.lower() if isinstance(value, str) else value)
        except ValueError:
            options = ", ".join(Visibility)
            self._refuse("visibility", f"is {_quoted_or_type(value)}", f"Give one of {options}.")

    def _items(self, field: str, kind: str, fits: Callable[[Any], bool]) -> Sequence[Any]:
        value = self._value(field)
        if value is None:
            return ()
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | frozenset | set):
            self._refuse(field, f"are {_describe_type(value)}", f"Give a list of {kind}.")
        items = sorted(value) if isinstance(value, frozenset | set) else value
        for item in items:
            if not fits(_as_json(item)):
                self._refuse(field, f"contain {_describe_type(item)}", f"Give a list of {kind}.")
        return items

    def _value(self, field: str) -> Any:
        for name in _FIELD_SPELLINGS.get(field, (field,)):
            value = self._get(name)
            if value is not _ABSENT and value is not None:
                return value
        return None

    def _refuse(self, field: str, problem: str, hint: str) -> NoReturn:
        raise InvalidTool(f"The tool{self._label} cannot be used: its {field} {problem}.", hint=hint)


def _getter(value: object) -> Callable[[str], Any]:
    """A function that reads a field of a mapping, of a model by wire name, or of any object by attribute."""
    plain = value if isinstance(value, Mapping) else _model_dump(value)
    if plain is not None:
        return lambda name: plain.get(name, _ABSENT)
    if value is None or isinstance(value, str | bytes | int | float | list | tuple | type):
        return lambda _: _ABSENT
    return lambda name: getattr(value, name, _ABSENT)


def _as_json(value: Any) -> Any:
    """A pydantic model as a JSON object; anything else unchanged."""
    return value if isinstance(value, Mapping) or (dumped := _model_dump(value)) is None else dumped


def _model_dump(value: Any) -> Mapping[str, Any] | None:
    dump = getattr(value, "model_dump", None)
    if not callable(dump) or isinstance(value, type):
        return None
    dumped = dump(mode="json", by_alias=True, exclude_none=True)
    return dumped if isinstance(dumped, Mapping) else None


def _quoted_or_type(value: object) -> str:
    return f'"{value[:40]}"' if isinstance(value, str) else _describe_type(value)


def _describe_type(value: object) -> str:
    """Describe the type of a value, without its content."""
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def validated(tool: Tool) -> Tool:
    """Validate a tool, and return it with its own copy of its wire JSON.

    Raises `InvalidName` or `InvalidTool`. The message and `data["field"]` name the field, the hint says how to fix it.

    >>> validated(Tool(name="add", annotations={"readonly": True}))
    Traceback (most recent call last):
    toolcrib.errors.InvalidTool: add: annotations contain "readonly", unknown to MCP. Did you mean readOnlyHint?
    """
    _check_types(tool)
    check_key(tool.key)
    _check_words(tool)
    _check_annotations(tool)
    copies = {name: _json_copy(tool, name) for name in _JSON_FIELDS}
    own = replace(
        tool, visibility=Visibility(tool.visibility), keywords=tuple(tool.keywords), tags=tuple(tool.tags), **copies
    )
    _check_schema(own.id, "input_schema", own.input_schema)
    _check_output_schema(own)
    check_encodable(own)
    return own


def invalid_words(who: str, field: str, given: object) -> InvalidTool:
    """The error for a value that is not a list of words."""
    if isinstance(given, str):
        return invalid_field(who, field, "must be a list of words, not a string", f"Write {field}=({echo(given)},).")
    return invalid_field(
        who, field, f"must be a tuple or a list of words, not {type(given).__name__}", _words_hint(field)
    )


def _words_hint(field: str) -> str:
    return f'Give a tuple of words: {field}=("mail", "smtp").'


def _check_types(tool: Tool) -> None:
    who = str(tool.name)[:80] or "The tool"
    for field in _TEXT_FIELDS:
        _require(who, field, isinstance(getattr(tool, field), str), "must be a string", "Give a str.")
    for field in _OPTIONAL_TEXT_FIELDS:
        value = getattr(tool, field)
        fits = value is None or (isinstance(value, str) and bool(value.strip()))
        _require(who, field, fits, "must be a string that is not empty", "Give a str, or leave it out.")
    for field in _OBJECT_FIELDS:
        _require(who, field, isinstance(getattr(tool, field), Mapping), "must be a JSON object", "Give a dict.")
    output = tool.output_schema
    _require(
        who, "output_schema", output is None or isinstance(output, Mapping), "must be a JSON object", "Give a dict."
    )
    known = tool.visibility in tuple(Visibility)
    _require(who, "visibility", known, "is unknown", f"Use one of: {', '.join(Visibility)}.")


def _check_words(tool: Tool) -> None:
    for field in ("keywords", "tags"):
        words: Any = getattr(tool, field)
        if not isinstance(words, Sequence) or isinstance(words, (str, bytes)):
            raise invalid_words(tool.id, field, words)
        fits = all(isinstance(word, str) and word.strip() for word in words)
        _require(tool.id, field, fits, "must be non-empty strings", _words_hint(field))


def _check_annotations(tool: Tool) -> None:
    for name, value in tool.annotations.items():
        if name in _ANNOTATION_HINTS:
            _require(
                tool.id, "annotations", isinstance(value, bool), f"contain {name}, which must be true or false", ""
            )
        elif name == "title":
            _require(
                tool.id, "annotations", isinstance(value, str), "contain a title that is not a string", "Give a str."
            )
        else:
            close = nearest(str(name), _ANNOTATION_HINTS)
            hint = f"Did you mean {close[0]}?" if close else f"MCP has: {', '.join(_ANNOTATION_HINTS)}, title."
            raise invalid_field(tool.id, "annotations", f'contain "{name}", unknown to MCP', hint)
    icons: Any = tool.icons
    fits = isinstance(icons, Sequence) and all(isinstance(icon, Mapping) and icon.get("src") for icon in icons)
    _require(tool.id, "icons", fits, "must be objects with a src", 'Give [{"src": "https://..."}].')


def _json_copy(tool: Tool, field: str) -> Any:
    """A deep copy of the field's JSON, which proves that it is JSON."""
    value = getattr(tool, field)
    if not value:
        return value
    try:
        copy = json.loads(json.dumps(value, allow_nan=False, default=_mapping_as_dict))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid_field(tool.id, field, f"cannot be written as JSON: {error}", "Use plain JSON values.") from error
    return tuple(copy) if field == "icons" else copy


def _mapping_as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it contains a value of type {type(value).__name__}")


def _check_output_schema(tool: Tool) -> None:
    if tool.output_schema is None:
        return
    proven: Object = tool.output_schema
    if proven.get("type") != "object":  # a schema of another type is checked as a property
        proven = result_schema(proven)
    _check_schema(tool.id, "output_schema", proven)


def _check_schema(who: str, field: str, schema: Object) -> None:
    try:
        Schema(schema, who)
    except InvalidTool as error:
        message = error.message.replace("the input schema", f"the {field.replace('_', ' ')}")
        message = message.replace("properties.result.", "").replace("properties.result:", "its root:")
        raise InvalidTool(message, hint="Give a JSON Schema, 2020-12.", data={"field": field}) from error


def _require(who: str, field: str, fits: bool, problem: str, hint: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not fits:
        raise invalid_field(who, field, problem, hint)


def result_schema(schema: Object) -> dict[str, Any]:
    """The schema of an object whose property `result` has this schema, for what reads only schemas of objects."""
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return {**shared, "type": "object", "properties": {"result": schema}}
