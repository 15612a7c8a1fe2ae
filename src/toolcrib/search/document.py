"""A tool as fields of text."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from toolcrib.model import Object, Tool
from toolcrib.search.options import Field

_MAX_TEXT = 8_000
"""Characters of one text that are read."""

_MAX_PARAMETERS = 200
_MAX_DEPTH = 3


def texts(tool: Tool) -> Iterator[tuple[Field, str]]:
    """The texts of a tool, each with its field, each field once; name, namespace and description always come."""
    yield Field.NAME, tool.name[:_MAX_TEXT]
    yield Field.NAMESPACE, tool.namespace[:_MAX_TEXT]
    yield Field.DESCRIPTION, tool.description[:_MAX_TEXT]
    if tool.title:
        yield Field.TITLE, tool.title[:_MAX_TEXT]
    if tool.keywords:
        yield Field.KEYWORDS, " ".join(tool.keywords)[:_MAX_TEXT]
    if tool.tags:
        yield Field.TAGS, " ".join(tool.tags)[:_MAX_TEXT]
    names, descriptions = parameters(tool.input_schema)
    if names:
        yield Field.PARAMETERS, names[:_MAX_TEXT]
    if descriptions:
        yield Field.PARAMETER_TEXTS, descriptions[:_MAX_TEXT]


def parameters(schema: Object) -> tuple[str, str]:
    """The names of the parameters, nested ones too, and their descriptions, each as one text."""
    names: list[str] = []
    descriptions: list[str] = []
    level: list[Any] = [schema]
    for _ in range(_MAX_DEPTH):
        level = [node for parent in level for node in _children(parent, names, descriptions)]
    return " ".join(names), " ".join(descriptions)


def formats(schema: Object) -> Iterator[str]:
    """The formats of the parameters of the top level, and `number` for those that are one."""
    properties = schema.get("properties")
    if not _is_object(properties):
        return
    for child in properties.values():
        if _is_object(child):
            if isinstance(known := child.get("format"), str):
                yield known[:_MAX_FORMAT].casefold()
            if child.get("type") in ("number", "integer"):
                yield "number"


def _is_object(value: Any) -> TypeGuard[Object]:
    """Whether a JSON value is an object; the usual ones are told fast."""
    return type(value) is dict or isinstance(value, Mapping)


def _children(node: Any, names: list[str], descriptions: list[str]) -> Iterator[Any]:
    if not _is_object(node):
        return
    for _ in range(_MAX_DEPTH):
        items = node.get("items")
        if not _is_object(items):
            break
        yield from _properties(node, names, descriptions)
        node = items
    yield from _properties(node, names, descriptions)


def _properties(node: Object, names: list[str], descriptions: list[str]) -> Iterator[Any]:
    properties = node.get("properties")
    if not _is_object(properties):
        return
    for name, child in properties.items():
        if len(names) >= _MAX_PARAMETERS:
            return
        names.append(str(name))
        if _is_object(child):
            if isinstance(description := child.get("description"), str):
                descriptions.append(description)
            yield child


_MAX_FORMAT = 32
