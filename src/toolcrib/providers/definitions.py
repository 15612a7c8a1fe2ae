"""Reading tool definitions in the shapes in which other people write them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from toolcrib.errors import InvalidName, InvalidTool
from toolcrib.model import Key, Tool, Visibility
from toolcrib.names import check_key

_ABSENT: Final = object()
_SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "input_schema": ("input_schema", "inputSchema"),
    "output_schema": ("output_schema", "outputSchema"),
    "meta": ("_meta", "meta"),
}
"""Fields that are written in several ways; the first one that is there counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMetadata:
    """What a search has to know of a tool."""

    name: str
    description: str = ""
    keywords: tuple[str, ...] = ()
    """Searched, never listed."""


def tool_from(value: object, *, namespace: str = "", visibility: Visibility | None = None) -> Tool:
    """The tool that a definition describes.

    Takes a `Tool`, an object with `to_tool()`, a mapping, or an object with such attributes, an SDK's `Tool` among
    them: `name`, `description`, `title`, `input_schema` or `inputSchema`, `output_schema` or `outputSchema`,
    `annotations`, `icons`, `keywords`, `tags`, `visibility`, `version`, `meta` or `_meta`, `namespace`. All but the
    name may be left out.

    `namespace` and `visibility` are for what does not say; without a visibility, it is discoverable. Raises
    `InvalidTool` that names the field.

    >>> tool_from({"name": "add", "inputSchema": {"type": "object"}, "visibility": "native"}).visibility
    <Visibility.NATIVE: 'native'>
    >>> tool_from({"name": "add", "keywords": "sum"})
    Traceback (most recent call last):
    toolcrib.errors.InvalidTool: The tool "add" cannot be used: its keywords are a text. Give a list of texts.
    """
    tool = _built(value)
    if tool is None:
        return _read(value, namespace, visibility)
    return replace(tool, namespace=namespace) if namespace and not tool.namespace else tool


def tools_from(values: Iterable[object] | None) -> tuple[Tool, ...]:
    """What a provider listed, as tools; None is an empty list. Raises `InvalidTool`."""
    return tuple(value if isinstance(value, Tool) else tool_from(value) for value in values or ())


def metadata_from(value: object) -> ToolMetadata:
    """The metadata that a `ToolMetadata`, a mapping or an object with such attributes holds. Raises `InvalidTool`."""
    if isinstance(value, ToolMetadata):
        return value
    fields = _Fields(value)
    return ToolMetadata(name=fields.name(), description=fields.text("description"), keywords=fields.words("keywords"))


def _built(value: object) -> Tool | None:
    """The tool itself, or what a builder makes of itself; None for anything else."""
    if isinstance(value, Tool):
        return value
    build = getattr(value, "to_tool", None)
    if not callable(build) or isinstance(value, type):
        return None
    made = build()
    if not isinstance(made, Tool):
        raise InvalidTool(f"{type(value).__name__}.to_tool() gave {_kind(made)}.", hint="It must give a Tool.")
    return made


def _read(value: object, namespace: str, visibility: Visibility | None) -> Tool:
    fields = _Fields(value)
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


class _Fields:
    """The fields of one definition, each checked as it is read."""

    def __init__(self, value: object) -> None:
        self._get = _getter(value)
        self._label = ""
        if self._get("name") is _ABSENT:
            raise InvalidTool(f"What was given as a tool is {_kind(value)}, without a name.", hint="Give a name.")

    def name(self) -> str:
        name = self._get("name")
        if not isinstance(name, str) or not name:
            self._refuse("name", f"is {_kind(name)}", "Give a text that is not empty.")
        self._label = f' "{name[:80]}"'
        return name

    def text(self, field: str) -> str:
        value = self._value(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            self._refuse(field, f"is {_kind(value)}", "Give a text.")
        return str(value)

    def object(self, field: str, default: Any) -> Any:
        value = _plain(self._value(field))
        if value is None:
            return default
        if not isinstance(value, Mapping):
            self._refuse(field, f"is {_kind(value)}", "Give a JSON object.")
        return value

    def objects(self, field: str) -> tuple[Any, ...]:
        return tuple(_plain(item) for item in self._items(field, "objects", lambda item: isinstance(item, Mapping)))

    def words(self, field: str) -> tuple[str, ...]:
        return tuple(self._items(field, "texts", lambda item: isinstance(item, str)))

    def visibility(self, default: Visibility) -> Visibility:
        value = self._value("visibility")
        if value is None:
            return default
        try:
            return Visibility(value.lower() if isinstance(value, str) else value)
        except ValueError:
            options = ", ".join(Visibility)
            self._refuse("visibility", f"is {_shown(value)}", f"Give one of {options}.")

    def _items(self, field: str, kind: str, fits: Callable[[Any], bool]) -> Sequence[Any]:
        value = self._value(field)
        if value is None:
            return ()
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | frozenset | set):
            self._refuse(field, f"are {_kind(value)}", f"Give a list of {kind}.")
        items = sorted(value) if isinstance(value, frozenset | set) else value
        for item in items:
            if not fits(_plain(item)):
                self._refuse(field, f"hold {_kind(item)}", f"Give a list of {kind}.")
        return items

    def _value(self, field: str) -> Any:
        for name in _SPELLINGS.get(field, (field,)):
            value = self._get(name)
            if value is not _ABSENT and value is not None:
                return value
        return None

    def _refuse(self, field: str, problem: str, hint: str) -> NoReturn:
        raise InvalidTool(f"The tool{self._label} cannot be used: its {field} {problem}.", hint=hint)


def _getter(value: object) -> Callable[[str], Any]:
    """Reads a field of a mapping, of a model by its wire names, or of any object by its attributes."""
    plain = value if isinstance(value, Mapping) else _dumped(value)
    if plain is not None:
        return lambda name: plain.get(name, _ABSENT)
    if value is None or isinstance(value, str | bytes | int | float | list | tuple | type):
        return lambda _: _ABSENT
    return lambda name: getattr(value, name, _ABSENT)


def _plain(value: Any) -> Any:
    """A model as the JSON object that it stands for; anything else as it is."""
    return value if isinstance(value, Mapping) or (dumped := _dumped(value)) is None else dumped


def _dumped(value: Any) -> Mapping[str, Any] | None:
    dump = getattr(value, "model_dump", None)
    if not callable(dump) or isinstance(value, type):
        return None
    dumped = dump(mode="json", by_alias=True, exclude_none=True)
    return dumped if isinstance(dumped, Mapping) else None


def _shown(value: object) -> str:
    return f'"{value[:40]}"' if isinstance(value, str) else _kind(value)


def _kind(value: object) -> str:
    """What a value is, in words, without its content."""
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    return "nothing" if value is None else f"of the type {type(value).__name__}"


__all__ = ["ToolMetadata", "metadata_from", "tool_from", "tools_from"]
