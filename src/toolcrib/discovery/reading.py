"""Any tool as a `Tool`: objects, dataclasses, dicts, and the definitions of model providers and protocols.

What is asked of a tool is a name; a namespace, a description and parameters count where it has them, under whatever
name its kind gives them. Nothing here raises for what is missing.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Protocol, TypeGuard, runtime_checkable

from toolcrib.errors import InvalidTool
from toolcrib.model import Object, Tool, Visibility


@runtime_checkable
class SearchableTool(Protocol):
    """What a tool may look like; any object or mapping with a name will do."""

    name: str
    namespace: str
    description: str | None
    parameters: dict[str, Any] | None


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

_KEYWORDS: Final = frozenset({"properties", "$ref", "$defs", "anyOf", "oneOf", "allOf", "required", "$schema"})
_DOTTED: Final = re.compile(r"[\w-]+(?:\.[\w-]+)+")
_SHOWN: Final = 60


def own_name(tool: object) -> str:
    """The name that a tool gives itself; empty where it has none.

    >>> own_name({"type": "function", "function": {"name": "add"}}), own_name({"name": "math.add"})
    ('add', 'math.add')
    """
    return _text(_core(tool), "name", "__name__")


def own_namespace(tool: object) -> str:
    """The namespace of a tool: its own, else what stands before the last dot, or the first colon, of its name.

    >>> own_namespace({"name": "math.add"}), own_namespace({"name": "add", "namespace": "sums"})
    ('math', 'sums')
    """
    return _text(tool, "namespace") or namespace_in(own_name(tool), "")


def namespace_in(name: str, given: str) -> str:
    """The given namespace, or the one in the name."""
    if given:
        return given
    head, colon, tail = name.partition(":")
    if colon and head and tail:
        return head
    return name.rpartition(".")[0] if _DOTTED.fullmatch(name) else ""


def own_description(tool: object) -> str:
    """The description of a tool, empty where it has none."""
    return _description(tool, _core(tool))


def read(tool: object, name: Any, namespace: Any) -> Tool:
    """The tool under that name and namespace. Raises `InvalidTool` for one without a name.

    A name that begins with its namespace and a dot, or a colon, is the rest of it.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidTool(f"{_shown(tool)} has no name.", hint='Give it a "name", or override get_tool_name.')
    if not isinstance(namespace, str):
        raise InvalidTool(f"{name[:_SHOWN]}: the namespace is not a text.")
    short = name
    for mark in (".", ":"):
        short = short.removeprefix(f"{namespace}{mark}") if namespace and short == name else short
    short = short or name
    if isinstance(tool, Tool) and tool.key == (namespace, short):
        return tool
    core = _core(tool)
    return Tool(
        name=short,
        namespace=namespace,
        title=_text(core, "title") or None,
        description=_description(tool, core),
        input_schema=_schema(core),
        annotations=_object(core, "annotations"),
        keywords=_texts(core, "keywords", "search_keywords"),
        tags=_texts(core, "tags"),
        visibility=Visibility.DISCOVERABLE,
    )


def _schema(core: object) -> Object:
    """The schema of the arguments, from whatever stands for it."""
    for name in _SCHEMAS:
        given = _part(core, name)
        if hasattr(given, "model_json_schema"):
            given = given.model_json_schema()
        if _is_mapping(given):
            return _whole(given)
    return {"type": "object"}


def _whole(given: Mapping[str, Any]) -> Object:
    """A schema with a type at its root. What has no word of a schema is taken as parameters by their names."""
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


def _core(tool: object) -> object:
    """What holds name and description: the tool, or what an OpenAI definition wraps."""
    if type(tool) is dict and "function" not in tool:  # nearly all tools, and nothing else is as quick
        return tool
    inner = _part(tool, "function")
    wrapped = _is_mapping(inner) or (_part(tool, "type") == "function" and not callable(inner))
    return inner if inner is not None and wrapped else tool


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    kind: Any = type(value)
    claimed: Any = value.__class__  # another one for some kinds of proxies
    return kind is dict or _maps(kind) or (claimed is not kind and _maps(claimed))


@lru_cache(maxsize=256)
def _maps(kind: type) -> bool:
    """Whether the objects of a class are mappings, which is slow to ask of an abstract class."""
    return issubclass(kind, Mapping)


def _part(tool: object, name: str) -> Any:
    if _is_mapping(tool):
        return tool.get(name)
    return getattr(tool, name, None)


def _text(tool: object, *names: str) -> str:
    for name in names:
        value = _part(tool, name)
        if isinstance(value, str) and value:
            return str(value)
    return ""


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
    return f"A tool of type {type(tool).__name__[:_SHOWN]}"
