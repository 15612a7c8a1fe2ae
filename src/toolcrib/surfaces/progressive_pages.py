"""Servers and tools as pages of text for a model. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolcrib.gateway.states import stands
from toolcrib.model import Object, ServerState, ServerStatus, Tool
from toolcrib.sandbox.names import LUA_RESERVED
from toolcrib.schema.describe import literal, parameters, type_text
from toolcrib.schema.refs import properties, resolve
from toolcrib.surfaces.entries import brief

_ABOUT: Final = 300
_INSTRUCTIONS: Final = 1_000
_LINE: Final = 100
_DEPTH: Final = 4
"""How deep parameters in parameters are shown."""
_LONGEST: Final = 4_000
"""Characters of a tool's description."""
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RISKS: Final[Sequence[tuple[str, bool, str]]] = (
    ("destructiveHint", True, "destructive: it may change or delete what is there"),
    ("readOnlyHint", True, "read-only: it changes nothing"),
    ("readOnlyHint", False, "not read-only: it may change something"),
    ("idempotentHint", True, "idempotent: calling it again changes nothing more"),
    ("openWorldHint", True, "open world: it reaches out to others"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPage:
    """A server, and what scripts call it."""

    name: str
    identifiers: Mapping[str, str]
    """By language, Lua first."""
    status: ServerStatus | None
    tools: int


def spelt(identifiers: Mapping[str, str]) -> str:
    """What scripts say, by language; only Lua where all say the same.

    >>> spelt({"lua": "data_server", "python": "data_server"}), spelt({"lua": "_while", "python": "while_"})
    ('Lua: data_server', 'Lua: _while, Python: while_')
    """
    others = {language: name for language, name in identifiers.items() if name != identifiers["lua"]}
    return ", ".join([f"Lua: {identifiers['lua']}", *(f"{key.title()}: {name}" for key, name in others.items())])


def servers_page(servers: Sequence[ServerPage]) -> str:
    """The list of servers."""
    if not servers:
        return "No MCP servers are available."
    return "\n".join(["Available MCP Servers:", *(f"\n{_server(server)}" for server in servers)])


def _server(page: ServerPage) -> str:
    lines = [f"## {brief(page.name, _LINE)} ({spelt(page.identifiers)})"]
    status = page.status
    if status is not None:
        info = status.info
        said = info.instructions.strip()
        line = said if len(said) <= _LINE and "\n" not in said else ""
        about = info.description or (info.title if info.title != page.name else "") or line
        lines.extend([brief(about, _ABOUT)] if about else [])
        lines.extend([f"Version: {info.version}"] if info.version else [])
        lines.extend([f"Instructions: {brief(said, _INSTRUCTIONS)}"] if said and said != about else [])
        if status.state is not ServerState.READY:
            lines.append(f"Not available: it {stands(status)}" if not page.tools else f"Note: it {stands(status)}")
        elif status.stale:
            lines.append("Note: its tools are those of an earlier connection.")
    return "\n".join(lines)


def tools_page(server: str, tools: Sequence[tuple[Tool, Mapping[str, str]]], note: str = "") -> str:
    """The list of a server's tools, each with what scripts call it."""
    if not tools:
        return f"{server} has no tools.{f' {note}' if note else ''}"
    lines = [_tool_line(tool, identifiers) for tool, identifiers in tools]
    return "\n".join([f"Tools for {server}:", "", *lines, *(["", note] if note else [])])


def _tool_line(tool: Tool, identifiers: Mapping[str, str]) -> str:
    mark = " [destructive]" if tool.annotations.get("destructiveHint") is True else ""
    about = brief(tool.description, _LINE)
    return f"- {brief(tool.name, _LINE)} ({spelt(identifiers)}){mark}{f': {about}' if about else ''}"


def details_page(tool: Tool, calls: Mapping[str, str], shape: str, note: str = "") -> str:
    """All there is to say of one tool; `calls` are example calls by language, `shape` its last response."""
    parts = [f"## {brief(tool.name, _LINE)}", _cut(tool.description.strip())]
    if risks := [f"- {words}" for hint, value, words in _RISKS if tool.annotations.get(hint) is value]:
        parts.append("\n".join(["### Annotations", "", *risks]))
    taken = list(schema_lines(tool.input_schema)) or ["This tool takes no parameters."]
    parts.append("\n".join(["### Parameters", "", *taken]))
    parts.extend(
        f"### Example Usage{'' if language == 'lua' else f' ({language.title()})'}\n\n{call}"
        for language, call in calls.items()
    )
    if tool.output_schema is not None:
        given = list(schema_lines(tool.output_schema)) or [type_text(tool.output_schema, tool.output_schema)]
        parts.append("\n".join(["### Output", "", *given]))
    if shape:
        parts.append(f"### Last Response\n\n{shape}")
    return "\n\n".join([part for part in (*parts, note) if part])


def schema_lines(schema: Object) -> Iterator[str]:
    """The parameters of a schema as a nested list.

    >>> print(*schema_lines({"properties": {"to": {"properties": {"id": {"type": "integer"}}}}, "required": ["to"]}))
    - to (object, required)   - id (integer, optional)
    """
    return _lines(schema, schema, 0)


def _lines(schema: Any, root: Object, depth: int) -> Iterator[str]:
    whole = resolve(schema, root)
    own = {**whole, **{key: root[key] for key in ("$defs", "definitions") if key in root and key not in whole}}
    nodes = properties(whole)
    for parameter in parameters(own):
        nested = _nested(nodes.get(parameter.name), root) if depth < _DEPTH else None
        kind = _outer(parameter.type, nested)
        more = f" Default: {literal(parameter.default)}." if parameter.default is not None else ""
        said = " ".join([*parameter.description.split(), *more.split()])
        need = "required" if parameter.required else "optional"
        yield f"{'  ' * depth}- {parameter.name} ({kind}, {need}){f': {said}' if said else ''}"
        if nested is not None:
            yield from _lines(nested[0], root, depth + 1)


def _nested(node: Any, root: Object) -> tuple[Object, str] | None:
    """The object inside a parameter, and how the parameter is called that holds it."""
    if node is None or isinstance(node, bool):
        return None
    whole, brackets = resolve(node, root), ""
    while "items" in whole and isinstance(whole["items"], dict):
        whole, brackets = resolve(whole["items"], root), f"{brackets}[]"
    return (whole, f"object{brackets}") if properties(whole) else None


def _outer(kind: str, nested: tuple[Object, str] | None) -> str:
    if nested is None:
        return kind
    return f"{nested[1]}|null" if kind.endswith("|null") else nested[1]


def placeholder_calls(server: Mapping[str, str], tool: Mapping[str, str], schema: Object) -> dict[str, str]:
    """An example call for each language, with a place for each parameter that is needed, else for the first few.

    >>> schema = {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
    >>> print(placeholder_calls({"lua": "calculator"}, {"lua": "add"}, schema)["lua"])
    local result = calculator.add({
      a = ...,
      b = ...
    }):await()
    """
    known = parameters(schema)
    names = [one.name for one in known if one.required] or [one.name for one in known][:2]
    return {language: _call(language, f"{server[language]}.{tool[language]}", names) for language in server}


def _call(language: str, function: str, names: Iterable[str]) -> str:
    if language == "lua":
        fields = ",\n".join(f"  {lua_key(name)} = ..." for name in names)
        return (
            f"local result = {function}({{\n{fields}\n}}):await()" if fields else f"local result = {function}():await()"
        )
    if all(_PLAIN.fullmatch(name) for name in names):
        return f"result = await {function}({', '.join(f'{name}=...' for name in names)})"
    return f"result = await {function}({{{', '.join(f'{json.dumps(name)}: ...' for name in names)}}})"


def lua_key(name: str) -> str:
    """A field's name in a Lua table.

    >>> lua_key("to"), lua_key("end"), lua_key("x-y")
    ('to', '["end"]', '["x-y"]')
    """
    return name if _PLAIN.fullmatch(name) and name not in LUA_RESERVED else f"[{json.dumps(name, ensure_ascii=False)}]"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
