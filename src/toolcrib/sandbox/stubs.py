"""Tools' input schemas as Python stubs, so that a script can be checked before it makes a call.

Types are as wide as what a value may come from: a sequence rather than a list, a union where the schema has one, `Any`
for whatever has no plain Python type. A stub never refuses what the schema would take.
"""

import keyword
from collections.abc import Mapping
from typing import Final

from toolcrib.model import JSON, Object

HEADER: Final = "from collections.abc import Mapping, Sequence\nfrom typing import Any, Literal\n"
_PLAIN: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_DEPTH: Final = 4


def module_stub(tools: Mapping[str, str], schemas: Mapping[str, Object]) -> str:
    """The stub of a server's module. `tools` maps identifiers to tools' names, `schemas` those names to schemas.

    >>> schema = {"properties": {"a": {"type": "number"}, "tags": {"type": "array"}}, "required": ["a"],
    ...           "additionalProperties": False}
    >>> print(module_stub({"add": "add"}, {"add": schema}).splitlines()[-1])
    async def add(*, a: float, tags: Sequence[Any] = ...) -> Any: ...
    """
    functions = [f"async def {name}({_parameters(schemas.get(tool))}) -> Any: ..." for name, tool in tools.items()]
    return HEADER + "\n".join(functions) + "\n"


def _parameters(schema: Object | None) -> str:
    properties = schema.get("properties") if schema else None
    if schema is None or not isinstance(properties, dict) or not all(map(_is_name, properties)):
        return "**arguments: Any"
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    parts = [
        f"{name}: {python_type(item)}{'' if name in needed else ' = ...'}"
        for name, item in sorted(properties.items(), key=lambda pair: pair[0] not in needed)
    ]
    if schema.get("additionalProperties") is not False or needed - set(properties):
        parts.append("**more: Any")
    star = ["*"] if properties else []
    return ", ".join([*star, *parts])


def python_type(schema: JSON, depth: int = 0) -> str:
    """A type that takes all that the schema takes.

    >>> python_type({"type": "array", "items": {"enum": ["a", 1]}}), python_type({"type": ["string", "null"]})
    ("Sequence[Literal['a', 1]]", 'str | None')
    """
    if not isinstance(schema, dict) or depth > _DEPTH:
        return "Any"
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return _literal(values)
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            return _union([python_type(item, depth + 1) for item in schema[union]])
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return _union([python_type({**schema, "type": kind}, depth) for kind in kinds])
    return _one_type(kinds, schema, depth)


def _one_type(kind: JSON, schema: Object, depth: int) -> str:
    if kind == "array":
        return f"Sequence[{python_type(schema.get('items'), depth + 1)}]"
    if kind == "object":
        return "Mapping[str, Any]"
    return _PLAIN.get(kind, "Any") if isinstance(kind, str) else "Any"


def _union(types: list[str]) -> str:
    return "Any" if "Any" in types or not types else " | ".join(dict.fromkeys(types))


def _literal(values: list[JSON]) -> str:
    if not all(value is None or isinstance(value, str | bool | int) for value in values):
        return "Any"
    return f"Literal[{', '.join(ascii(value) for value in values)}]"


def _is_name(name: object) -> bool:
    return (
        isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and name not in ("self", "more")
    )
