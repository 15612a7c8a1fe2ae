"""Read tools of any kind: objects, dataclasses, dicts, and the definitions of model providers and protocols.

A tool needs a name. A namespace, a description and parameters are used if present, under whatever name its kind gives
them; missing parts raise nothing. A `ToolSet` is such a list, read once, with its catalog and index.
"""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from threading import Lock
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from toolcrib.catalog import Catalog
from toolcrib.errors import AmbiguousName, InvalidTool, ToolcribError, ToolNotFound
from toolcrib.sanitize import MAX_REASON, echo, one_line
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.options import SearchOptions
from toolcrib.search.text import split_words
from toolcrib.types import Object, Rejected, SearchRequest, Tool, Visibility

T = TypeVar("T")

_MAX_SUGGESTIONS: Final = 3
_MIN_SUGGESTED_SCORE: Final = 0.2
"""The minimum score, 0 to 1, for suggesting a tool by what it does."""
_MAX_DESCRIPTION: Final = 8_000
"""Characters read of a description."""
_DOTTED: Final = re.compile(r"[\w-]+(?:\.[\w-]+)+")
_SCHEMAS: Final = (
    "input_schema",
    "inputSchema",
    "parameters",
    "parameters_json_schema",
    "parametersJsonSchema",
    "params_json_schema",
    "argument_schema",
    "args_schema",
)
"""Where the kinds of definitions keep the schema of the arguments."""
_JSON_TYPES: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    dict: "object",
    list: "array",
    tuple: "array",
    set: "array",
}
"""The JSON types of annotations."""
_KEYWORDS: Final = frozenset({"properties", "$ref", "$defs", "anyOf", "oneOf", "allOf", "required", "$schema"})
_MAX_SHOWN: Final = 60


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ParsedTool(Generic[T]):
    """A tool and how it was read."""

    original: T
    tool: Tool
    name: str
    """The tool's own name."""
    namespace: str
    description: str

    @property
    def id(self) -> str:
        """The canonical id."""
        return self.tool.id


def default_name(tool: object) -> str:
    """Return the tool's own name, or an empty string.

    >>> default_name({"type": "function", "function": {"name": "add"}}), default_name({"name": "math.add"})
    ('add', 'math.add')
    """
    return _text(_definition(tool), "name", "__name__")


def _text(tool: object, *names: str) -> str:
    for name in names:
        value = _part(tool, name)
        if isinstance(value, str) and value:
            return str(value)
    return ""


def _definition(tool: object) -> object:
    """Return the part with name and description: the tool itself, or what an OpenAI definition wraps."""
    if type(tool) is dict and "function" not in tool:  # nearly all tools; the fastest check
        return tool
    inner = _part(tool, "function")
    wrapped = _is_mapping(inner) or (_part(tool, "type") == "function" and not callable(inner))
    return inner if inner is not None and wrapped else tool


def _part(tool: object, name: str) -> Any:
    if _is_mapping(tool):
        return tool.get(name)
    return getattr(tool, name, None)


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    kind: Any = type(value)
    claimed: Any = value.__class__  # differs for some proxy objects
    return kind is dict or _maps(kind) or (claimed is not kind and _maps(claimed))


@lru_cache(maxsize=256)
def _maps(kind: type) -> bool:
    """Whether instances of a class are mappings. Cached, since checks against an abstract class are slow."""
    return issubclass(kind, Mapping)


def default_namespace(tool: object) -> str:
    """Return the tool's own namespace, else the part of its name before the last dot or the first colon.

    >>> default_namespace({"name": "math.add"}), default_namespace({"name": "add", "namespace": "sums"})
    ('math', 'sums')
    """
    return _text(tool, "namespace") or namespace_in(default_name(tool), "")


def namespace_in(name: str, given: str) -> str:
    """Return the given namespace, or the one in the name."""
    if given:
        return given
    head, colon, tail = name.partition(":")
    if colon and head and tail:
        return head
    return name.rpartition(".")[0] if _DOTTED.fullmatch(name) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReader(Generic[T]):
    """Reads tools, with the given functions for names."""

    name_of: Callable[[T], str] = default_name
    namespace_of: Callable[[T], str] = default_namespace

    def parse(self, original: T, before: "ParsedTool[T] | None" = None) -> ParsedTool[T]:
        """Read the tool. Returns `before`, the same object, if nothing changed."""
        name: Any = self.name_of(original)
        namespace: Any = self.namespace_of(original)
        if isinstance(name, str) and isinstance(namespace, str):
            namespace = namespace_in(name, namespace)
        tool = read_tool(original, name, namespace)
        if before is not None and before.tool == tool:
            return before
        return ParsedTool(
            original=original,
            tool=tool,
            name=name,
            namespace=namespace,
            description=tool.description if tool is not original else default_description(original),
        )


def _as_used(read: ParsedTool[T], tool: Tool) -> ParsedTool[T]:
    """What was read, with the tool as the catalog uses it: its schema may have been repaired."""
    return read if read.tool is tool else replace(read, tool=tool)


class ToolSet(Generic[T]):
    """A list of tools, read once: found by name in any spelling, and searched with one index. Immutable."""

    def __init__(
        self,
        originals: Sequence[T],
        reader: ToolReader[T],
        options: SearchOptions,
        previous: "ToolSet[T] | None" = None,
    ) -> None:
        """Read the tools. Invalid ones go to `rejected`; what `previous` has read is read again only if it is new."""
        self.originals = tuple(originals)
        """As they were given; kept, so that no other object can take their place in memory."""
        before = {id(one.original): one for one in previous.tools} if previous else {}
        rejected: list[Rejected] = []
        found: list[ParsedTool[T]] = []
        for original in self.originals:
            try:
                found.append(reader.parse(original, before.get(id(original))))
            except Exception as error:  # noqa: BLE001 - a tool of any kind may raise anything; only this one is left out
                rejected.append(Rejected(tool=type(original).__name__, reason=_rejection_reason(error)))
        self.catalog: Catalog = Catalog.build(
            [one.tool for one in found], previous=previous.catalog if previous else None
        )
        taken = {id(entry.source): entry.tool for entry in self.catalog.entries}
        found = [_as_used(one, taken[id(one.tool)]) for one in found if id(one.tool) in taken]
        self.by_id = {one.id: one for one in reversed(found)}
        self.tools: tuple[ParsedTool[T], ...] = tuple(one for one in found if self.by_id.get(one.id) is one)
        """Those that can be found, in the order given."""
        self.listed = tuple(one for one in self.tools if one.tool.visibility is not Visibility.HIDDEN)
        """Those that are shown; the others are found by their exact names only."""
        self.rejected = (*rejected, *(Rejected(tool=tool.id, reason=why) for tool, why in self.catalog.rejected))
        """Those that cannot be used, and why."""
        self._options = options
        self._names = Counter(one.name for one in self.tools)
        self._previous = previous._index if previous else None  # noqa: SLF001 - of the same class
        self._index: Index | None = None
        self._building = Lock()

    def __len__(self) -> int:
        return len(self.tools)

    @property
    def index(self) -> Index:
        """The index, built on first use."""
        with self._building:
            if self._index is None:
                self._index = Index.build(self.catalog.tools, previous=self._previous, options=self._options)
                self._previous = None
            return self._index

    @cached_property
    def vocabulary(self) -> tuple[frozenset[str], frozenset[str]]:
        """The words of the names, and those of the descriptions."""
        names = (word for one in self.tools for word in split_words(one.tool.name))
        texts = (word for one in self.tools for word in split_words(one.tool.description[:_MAX_DESCRIPTION]))
        return frozenset(names), frozenset(texts)

    def has_same_tools(self, originals: Sequence[T]) -> bool:
        """Whether it was made from these very objects."""
        return len(originals) == len(self.originals) and all(
            one is other for one, other in zip(originals, self.originals, strict=True)
        )

    def call_name(self, known: ParsedTool[T]) -> str:
        """Return the name to call a tool by: its own, or `namespace.name` if another tool has the same one."""
        alone = self._names[known.name] == 1 or not known.namespace
        return known.name if alone else f"{known.namespace}.{known.tool.name}"

    def find(self, name: str, mask: bytes | None = None) -> ParsedTool[T]:
        """Return the one tool that matches a name in any spelling.

        `mask` has one byte per tool of the catalog, 0 for tools to ignore. Raises `ToolNotFound`, which suggests names,
        and `AmbiguousName`, which names the candidates.
        """
        try:
            return self.by_id[self.catalog.tools[self.catalog.find(name, mask)].id]
        except AmbiguousName as error:
            raise self._ambiguous(name, error.suggestions) from None
        except ToolNotFound as error:
            raise self._missing(name, error.suggestions, mask) from None

    def id_of(self, name: str) -> str:
        """Return the id of the tool that matches a name, or the name itself if none or several do."""
        if name in self.by_id:
            return name
        try:
            return self.catalog.tools[self.catalog.find(name)].id
        except ToolcribError:
            return name

    def check(self, known: ParsedTool[T], arguments: Object) -> None:
        """Validate arguments against a tool's schema. Raises `InvalidArguments`, which says what would be valid."""
        position = self.catalog.by_id(known.id)
        if position is not None:
            self.catalog.entries[position].schema.check(arguments, self.call_name(known))

    def mask(self, kept: Sequence[ParsedTool[T]]) -> bytes:
        """Return the mask that shows only these."""
        ids = {one.id for one in kept}
        return bytes(tool.id in ids for tool in self.catalog.tools)

    def _ambiguous(self, name: str, ids: Sequence[str]) -> AmbiguousName:
        names = self._called(ids)
        return AmbiguousName(
            f"Tool {echo(name)} is ambiguous: several tools answer to it.",
            hint=f"Use one of: {', '.join(names)}.",
            suggestions=names,
        )

    def _missing(self, name: str, ids: Sequence[str], mask: bytes | None) -> ToolNotFound:
        names = self._called(ids or self._alike(name, mask))
        hint = f"Did you mean: {', '.join(names)}?" if names else "Use search_tools to discover available tools."
        return ToolNotFound(f"Tool {echo(name)} not found.", hint=hint, suggestions=names)

    def _alike(self, name: str, mask: bytes | None) -> list[str]:
        """Return ids of tools that do what the name says, if no name is similar to it."""
        if not len(self) or not name.strip():
            return []
        request = SearchRequest(queries=(name,), limit=_MAX_SUGGESTIONS, detail="summary")
        reply = search(self.index, request, mask=mask, options=SearchOptions())
        return [hit.tool.id for hit in reply.hits if hit.score >= _MIN_SUGGESTED_SCORE]

    def _called(self, ids: Sequence[str]) -> list[str]:
        return [self.call_name(self.by_id[id_]) for id_ in ids]


def _rejection_reason(error: Exception) -> str:
    if isinstance(error, ToolcribError):
        return str(error)
    return one_line(f"it cannot be read: {type(error).__name__}: {error}", MAX_REASON)


@runtime_checkable
class SearchableTool(Protocol):
    """What a tool may look like; any object or mapping with a name will do."""

    name: str
    namespace: str
    description: str | None
    parameters: dict[str, Any] | None


def default_description(tool: object) -> str:
    """Return the tool's description, or an empty string."""
    return _description(tool, _definition(tool))


def read_tool(tool: object, name: Any, namespace: Any) -> Tool:
    """Return the tool under that name and namespace. Raises `InvalidTool` without a name.

    A prefix of the name that repeats the namespace, with a dot or a colon, is removed.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidTool(f"{_shown(tool)} has no name.", hint='Give it a "name", or override get_tool_name.')
    if not isinstance(namespace, str):
        raise InvalidTool(f"{name[:_MAX_SHOWN]}: the namespace is not a string.")
    short = name
    for mark in (".", ":"):
        short = short.removeprefix(f"{namespace}{mark}") if namespace and short == name else short
    short = short or name
    if isinstance(tool, Tool) and tool.key == (namespace, short):
        return tool
    core = _definition(tool)
    return Tool(
        name=short,
        namespace=namespace,
        title=_text(core, "title") or None,
        description=_description(tool, core),
        input_schema=_signature_schema(core) if _is_function(core) else _schema(core),
        annotations=_object(core, "annotations"),
        keywords=_texts(core, "keywords", "search_keywords"),
        tags=_texts(core, "tags"),
        visibility=Visibility.DISCOVERABLE,
    )


def _schema(core: object) -> Object:
    """Return the schema of the arguments, wherever the definition keeps it."""
    for name in _SCHEMAS:
        given = _part(core, name)
        if hasattr(given, "model_json_schema"):
            given = given.model_json_schema()
        if _is_mapping(given):
            return _whole_schema(given)
    return {"type": "object"}


def _signature_schema(function: Any) -> Object:
    """Return the schema of a plain function's parameters: their names, defaults, and types as far as JSON has them."""
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError):  # a built-in without a signature, or a type that is not defined
        return {"type": "object"}
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return {
        "type": "object",
        "properties": {one.name: _parameter_schema(hints.get(one.name), one.default) for one in named},
        "required": [one.name for one in named if one.default is one.empty],
        "additionalProperties": any(one.kind is one.VAR_KEYWORD for one in parameters),
    }


def _parameter_schema(annotation: Any, default: Any) -> dict[str, Any]:
    schema = _type_schema(annotation)
    return {**schema, "default": default} if type(default) in (str, int, float, bool) else schema


def _type_schema(annotation: Any) -> dict[str, Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        texts = [one for one in arguments[1:] if isinstance(one, str)]
        return {**_type_schema(arguments[0]), **({"description": texts[0]} if texts else {})}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [_type_schema(one) for one in arguments]}
    kind = origin or annotation
    name = _JSON_TYPES.get(kind) if isinstance(kind, type) else None
    items = _type_schema(arguments[0]) if name == "array" and arguments else {}
    return ({"type": name} if name else {}) | ({"items": items} if items else {})


def _whole_schema(given: Mapping[str, Any]) -> Object:
    """Return a schema with a type at its root. An object without any schema keyword is taken as parameters by name."""
    is_schema = not given or not _KEYWORDS.isdisjoint(given) or isinstance(given.get("type"), (str, list))
    if is_schema and not (isinstance(given.get("required"), bool) or isinstance(given.get("properties"), str)):
        return {"type": "object", **given}
    properties = {
        str(name): dict(node) if isinstance(node, Mapping) else {"description": str(node)}
        for name, node in given.items()
    }
    return {"type": "object", "properties": properties}


def _description(tool: object, core: object) -> str:
    return _text(core, "description", "__doc__") if _is_function(tool) else _text(core, "description")


def _texts(tool: object, *names: str) -> tuple[str, ...]:
    for name in names:
        value = _part(tool, name)
        if isinstance(value, (list, tuple, set, frozenset)):
            return tuple(str(one) for one in value if isinstance(one, str))
    return ()


def _object(tool: object, name: str) -> Object:
    value = _part(tool, name)
    return dict(value) if _is_mapping(value) else {}


def _is_function(tool: object) -> bool:
    return callable(tool) and hasattr(tool, "__qualname__") and not isinstance(tool, type)


def _shown(tool: object) -> str:
    return f"A tool of type {type(tool).__name__[:_MAX_SHOWN]}"
