"""Step-by-step discovery of servers and tools for one caller, as text for a model and the same as data."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from toolcrib.checks import checked
from toolcrib.errors import BackendNotFound, ExecutionFailed, InvalidRequest, ServerUnavailable, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.server_states import describe_state, has_problem, namespace_of
from toolcrib.names import nearest_names
from toolcrib.providers.content import script_value
from toolcrib.sandbox.languages import DEFAULT_LANGUAGE, LANGUAGES, script_names
from toolcrib.sanitize import echo, listing
from toolcrib.schema import example
from toolcrib.schema.compact import compact
from toolcrib.schema.shape import shape_of
from toolcrib.schema.signature import literal, parameters, properties, resolve, type_text
from toolcrib.scripting.tools import ToolsByServer, tools_by_server, wait_for_servers
from toolcrib.surfaces.digest import DigestWriter
from toolcrib.surfaces.reply import shorten, text_result
from toolcrib.tokens import estimate_tokens
from toolcrib.types import JSON, Context, Object, ServerState, ServerStatus, Tool, ToolResult, Visibility

_SERVER_CHARS: Final = 300
_INSTRUCTIONS_CHARS: Final = 1_000
_LINE_CHARS: Final = 100
_MAX_DEPTH: Final = 4
"""Levels of nested parameters that are shown."""
_MAX_DESCRIPTION_CHARS: Final = 4_000
"""Characters of a tool's description on its page."""
_MAX_RESPONSE_CHARS: Final = 20_000
"""Characters of a response that are shown."""
_ANNOTATION_TEXTS: Final[Sequence[tuple[str, bool, str]]] = (
    ("destructiveHint", True, "destructive: it may change or delete existing data"),
    ("readOnlyHint", True, "read-only: it changes nothing"),
    ("readOnlyHint", False, "not read-only: it may change something"),
    ("idempotentHint", True, "idempotent: calling it again changes nothing more"),
    ("openWorldHint", True, "open world: it interacts with external systems"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPage:
    """A server with its identifiers in scripts."""

    name: str
    identifiers: Mapping[str, str]
    """By language, the default one first."""
    status: ServerStatus | None
    tools: int
    words: Sequence[str] = ()
    """What its tools are about; only where it says nothing about itself."""


@checked(methods=("list_server_tools", "get_tool_details", "inspect_tool_response", "summary"))
class ToolDiscoveryService:
    """Browse servers, their tools, one tool, and one response. Each step returns text and structured content.

    Servers and tools are given by their identifiers in any script language, or by their own names. Raises errors as
    `Gateway` does; errors for unknown names list the existing ones. Each step but a call counts as a search, and may
    raise `RateLimited`.
    """

    def __init__(
        self,
        gateway: Gateway,
        ctx: Context,
        *,
        languages: Sequence[str] = tuple(LANGUAGES),
        digests: DigestWriter | None = None,
    ) -> None:
        """Example calls are in `languages`, and always in the default language.

        `digests` describes servers that say nothing about themselves.
        """
        self._digests = digests
        self._gateway = gateway
        self._ctx = ctx
        self._languages = tuple(dict.fromkeys((DEFAULT_LANGUAGE, *languages)))
        gateway.result_shapes.enabled = True

    # -- the steps -------------------------------------------------------------------------------------------------

    async def list_servers(self) -> ToolResult:
        """The servers and their identifiers; failed ones with the reason."""
        async with self._gateway.admission.admitted(self._ctx, "list"):
            return await self._list_servers()

    async def _list_servers(self) -> ToolResult:
        await self._gateway.first_search.wait(self._ctx)
        grouped, statuses = await self._tools_by_server()
        pages = await self._described(self._pages(grouped, statuses), statuses)
        return text_result(servers_page(pages), structured={"servers": [_server_entry(page) for page in pages]})

    async def list_server_tools(self, server: str) -> ToolResult:
        """The tools of a server, one line each. Raises `BackendNotFound` and `ServerUnavailable`."""
        async with self._gateway.admission.admitted(self._ctx, "list"):
            grouped, page = await self._server(server)
        tools_by_name = grouped.listed[page.name]
        identifiers_by_tool = self._identifiers(tools_by_name)
        tools = [(tools_by_name[name], identifiers_by_tool[name]) for name in sorted(tools_by_name)]
        note = (
            f"Note: {page.name} {describe_state(page.status)}"
            if page.status is not None and has_problem(page.status)
            else ""
        )
        text = tools_page(page.name, tools, note)
        self._report_shown(tools_by_name.values(), text)
        return text_result(
            text,
            structured={
                "server": {"name": page.name, **page.identifiers},
                "tools": [_tool_entry(tool, names) for tool, names in tools],
            },
        )

    async def get_tool_details(self, server: str, tool: str) -> ToolResult:
        """How to call a tool. Raises `BackendNotFound`, `ServerUnavailable` and `ToolNotFound`."""
        async with self._gateway.admission.admitted(self._ctx, "describe", f"{server}:{tool}"):
            page, found, names = await self._tool(server, tool)
        calls = placeholder_calls(page.identifiers, names, found.input_schema)
        shape = await self._gateway.result_shapes.get(self._ctx, found)
        entry: dict[str, Any] = {
            "server": {"name": page.name, **page.identifiers},
            **_tool_entry(found, names),
            "description": found.description,
            "input_schema": compact(found.input_schema),
            "example": {"arguments": example(found), **calls},
        }
        if found.output_schema is not None:
            entry["output_schema"] = found.output_schema
        if shape:
            entry["last_response"] = shape
        text = details_page(found, calls, shape)
        self._report_shown((found,), text)
        return text_result(text, structured=entry)

    async def inspect_tool_response(
        self, server: str, tool: str, sample_args: Any = None, *, allow_side_effects: bool = False
    ) -> ToolResult:
        """Call a tool, and return its response: the beginning if that is longer than 20,000 characters.

        Raises `InvalidRequest` for a tool that may change something, unless that is allowed, and as `Gateway.call`.
        """
        page, found, names = await self._tool(server, tool)
        label = f"{_default_identifier(page.identifiers)}.{_default_identifier(names)}"
        if not allow_side_effects and (risk := _side_effect(found)):
            raise InvalidRequest(
                f"{label} was not called: {risk}.",
                hint="Set allowSideEffects to true to call it anyway; tool-details shows what is known about it.",
            )
        try:
            result = await self._gateway.call(self._ctx, found.id, sample_args)
        except ExecutionFailed as error:
            error.hint = f"{error.hint} The tool may have been executed before this error.".strip()
            raise
        if result.is_error or result.kind != "complete":
            return result
        value = script_value(result)
        made = _response_result(label, value)
        more = tuple(block for block in result.content if block.get("type") != "text")
        return ToolResult(content=(*made.content, *more), structured=made.structured, meta=result.meta)

    async def summary(self, server: str | None = None) -> ToolResult:
        """Tool counts of one server or of all. Raises `BackendNotFound`."""
        async with self._gateway.admission.admitted(self._ctx, "list"):
            grouped, statuses = await self._tools_by_server()
        pages = self._pages(grouped, statuses)
        chosen = pages if server is None else [(await self._server(server))[1]]
        rows = [_server_counts(page, grouped.listed.get(page.name, {}).values()) for page in chosen]
        lines = [
            f"- {row['name']}: {row['state']}, {row['tools']} tools, {row['read_only']} read-only, "
            f"{row['destructive']} destructive"
            for row in rows
        ]
        ready = sum(row["state"] == ServerState.READY for row in rows)
        head = f"{len(rows)} servers, {ready} ready, {sum(row['tools'] for row in rows)} tools"
        return text_result("\n".join([head, *lines]), structured={"servers": rows})

    async def _described(self, pages: Sequence[ServerPage], statuses: Sequence[ServerStatus]) -> Sequence[ServerPage]:
        """The pages, with words for servers that say nothing about themselves."""
        silent = {page.name for page in pages if page.tools and not _says_something(page)}
        if self._digests is None or not silent:
            return pages
        words = await self._digests.words(await self._gateway.view(self._ctx), statuses)
        return [replace(page, words=words.get(page.name, ())) if page.name in silent else page for page in pages]

    def _report_shown(self, tools: Collection[Tool], text: str) -> None:
        """Report a text about tools of one server."""
        if self._gateway.definitions is not None and tools:
            self._gateway.definitions.tools_shown({next(iter(tools)).namespace: estimate_tokens(text)})

    # -- names -----------------------------------------------------------------------------------------------------

    async def _tools_by_server(self) -> tuple[ToolsByServer, tuple[ServerStatus, ...]]:
        statuses = await self._gateway.servers(self._ctx)
        return tools_by_server(await self._gateway.view(self._ctx), statuses), statuses

    def _pages(self, grouped: ToolsByServer, statuses: Iterable[ServerStatus]) -> list[ServerPage]:
        known = {namespace_of(status): status for status in statuses}
        names = self._identifiers(dict.fromkeys(grouped.listed, ()), servers=True)
        return [
            ServerPage(name=name, identifiers=names[name], status=known.get(name), tools=len(grouped.listed[name]))
            for name in sorted(grouped.listed)
        ]

    def _identifiers(self, names: Iterable[str], *, servers: bool = False) -> dict[str, dict[str, str]]:
        """The identifiers of servers or tools in scripts: by name, then by language."""
        found: dict[str, dict[str, str]] = {name: {} for name in names}
        for language in self._languages:
            if servers:
                originals = {
                    identifier: one.original
                    for identifier, one in script_names(dict.fromkeys(found, ()), LANGUAGES[language]).items()
                }
            else:
                originals = dict(next(iter(script_names({"x": found}, LANGUAGES[language]).values())).tools)
            for identifier, name in originals.items():
                found[name][language] = identifier
        return found

    async def _server(self, wanted: str) -> tuple[ToolsByServer, ServerPage]:
        """Find a server by identifier or name, and give it time to connect."""
        grouped, statuses = await self._tools_by_server()
        page = _find_server(wanted, self._pages(grouped, statuses))
        if page is not None and page.status is not None and page.status.state is not ServerState.READY:
            await wait_for_servers(self._gateway, self._ctx, (page.name,))
            grouped, statuses = await self._tools_by_server()
            page = _find_server(wanted, self._pages(grouped, statuses))
        if page is None:
            raise _no_server(wanted, self._pages(grouped, statuses))
        if not page.tools and page.status is not None and page.status.state is not ServerState.READY:
            raise ServerUnavailable(
                f"Server {page.name} {describe_state(page.status)}.",
                hint="Use another server, or try again later.",
                data={"server": page.name, "state": str(page.status.state), "reason": page.status.reason},
            )
        return grouped, page

    async def _tool(self, server: str, wanted: str) -> tuple[ServerPage, Tool, Mapping[str, str]]:
        grouped, page = await self._server(server)
        tools_by_name = grouped.listed[page.name]
        identifiers_by_tool = self._identifiers(tools_by_name)
        for name, identifiers in identifiers_by_tool.items():
            if wanted in identifiers.values():
                return page, tools_by_name[name], identifiers
        if wanted in tools_by_name:
            return page, tools_by_name[wanted], identifiers_by_tool[wanted]
        for tool in grouped.hidden:
            if tool.name == wanted and grouped.server_of(tool) == page.name:
                return page, tool, self._identifiers((tool.name,))[tool.name]
        raise _no_tool(wanted, page, [_default_identifier(names) for names in identifiers_by_tool.values()])


def _default_identifier(identifiers: Mapping[str, str]) -> str:
    """The identifier in the default language."""
    return identifiers[DEFAULT_LANGUAGE]


def _find_server(wanted: str, pages: Sequence[ServerPage]) -> ServerPage | None:
    name = wanted.strip()
    by_identifier = next((page for page in pages if name in page.identifiers.values()), None)
    return by_identifier or next((page for page in pages if page.name == name), None)


def _no_server(wanted: str, pages: Sequence[ServerPage]) -> BackendNotFound:
    names = [_default_identifier(page.identifiers) for page in pages]
    close = nearest_names(wanted, names)
    return BackendNotFound(
        f"There is no server {echo(wanted)}.{_did_you_mean(close)}",
        hint=f"Available servers: {listing(sorted(names), 20) or 'none'}.",
        suggestions=close,
    )


def _no_tool(wanted: str, page: ServerPage, names: Sequence[str]) -> ToolNotFound:
    close = nearest_names(wanted, names)
    return ToolNotFound(
        f"{page.name} has no tool {echo(wanted)}.{_did_you_mean(close)}",
        hint=f"Available tools: {listing(sorted(names), 20) or 'none'}.",
        suggestions=close,
    )


def _did_you_mean(close: Sequence[str]) -> str:
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _response_result(label: str, value: JSON) -> ToolResult:
    """A response as text and data; for a long one, its beginning and its shape instead of the data."""
    shown = json.dumps(value, ensure_ascii=False, indent=2)
    shape = shape_of(value)
    text = f"Response of {label}, as a script sees it:\n\n{shown[:_MAX_RESPONSE_CHARS]}"
    left = len(shown) - _MAX_RESPONSE_CHARS
    if left <= 0:
        return text_result(text, structured={"response": value, "shape": shape})
    more = (
        f"... and {left:,} more characters. Use execute: a script sees the whole response, and can return only what is "
        f"needed.\n\nIts shape: {shape}"
    )
    return text_result(f"{text}\n\n{more}", structured={"shape": shape, "left_out": left})


def _side_effect(tool: Tool) -> str:
    """Why a tool should not be called just to see its response; empty if nothing is known against it."""
    if tool.annotations.get("destructiveHint") is True:
        return "it declares that it may destroy something"
    if tool.annotations.get("readOnlyHint") is False:
        return "it declares that it may change something"
    return ""


def _server_entry(page: ServerPage) -> dict[str, Any]:
    status = page.status
    entry: dict[str, Any] = {"name": page.name, **page.identifiers, "tools": page.tools, "state": "ready"}
    if page.words:
        entry["words"] = list(page.words)
    if status is None:
        return entry
    info = status.info
    entry |= {"state": str(status.state), "reason": status.reason, "stale": status.stale or None}
    entry |= {"title": info.title, "description": info.description, "version": info.version}
    entry |= {"instructions": info.instructions}
    return {key: value for key, value in entry.items() if value not in ("", None)}


def _tool_entry(tool: Tool, names: Mapping[str, str]) -> dict[str, Any]:
    hints: Object = {key: value for key, value in tool.annotations.items() if isinstance(value, bool)}
    entry: dict[str, Any] = {
        "name": tool.name,
        "id": tool.id,
        **names,
        "description": shorten(tool.description, _LINE_CHARS),
    }
    return {**entry, "annotations": dict(hints)} if hints else entry


def _server_counts(page: ServerPage, tools: Iterable[Tool]) -> dict[str, Any]:
    counted = [tool for tool in tools if tool.visibility is not Visibility.HIDDEN]
    return {
        "name": page.name,
        **page.identifiers,
        "state": str(page.status.state) if page.status is not None else str(ServerState.READY),
        "tools": len(counted),
        "read_only": sum(tool.annotations.get("readOnlyHint") is True for tool in counted),
        "destructive": sum(tool.annotations.get("destructiveHint") is True for tool in counted),
    }


# -- pages of text ---------------------------------------------------------------------------------------------------


def identifier_text(identifiers: Mapping[str, str]) -> str:
    """The identifiers by language; only the default one if all are the same.

    >>> identifier_text({"lua": "data_server", "python": "data_server"})
    'Lua: data_server'
    >>> identifier_text({"lua": "_while", "python": "while_"})
    'Lua: _while, Python: while_'
    """
    default = _default_identifier(identifiers)
    shown = {key: name for key, name in identifiers.items() if key == DEFAULT_LANGUAGE or name != default}
    return ", ".join(f"{LANGUAGES[key].title}: {name}" for key, name in shown.items())


def servers_page(servers: Sequence[ServerPage]) -> str:
    if not servers:
        return "No MCP servers are available."
    return "\n".join(["Available MCP Servers:", *(f"\n{_server_text(server)}" for server in servers)])


def _says_something(page: ServerPage) -> bool:
    """Whether the server describes itself."""
    if page.status is None:
        return False
    info = page.status.info
    return bool(info.description or info.instructions or info.title not in ("", page.name))


def _server_text(page: ServerPage) -> str:
    lines = [f"## {shorten(page.name, _LINE_CHARS)} ({identifier_text(page.identifiers)})"]
    lines.extend([f"About: {', '.join(page.words)}"] if page.words else [])
    status = page.status
    if status is not None:
        info = status.info
        instructions = info.instructions.strip()
        line = instructions if len(instructions) <= _LINE_CHARS and "\n" not in instructions else ""
        about = info.description or (info.title if info.title != page.name else "") or line
        lines.extend([shorten(about, _SERVER_CHARS)] if about else [])
        lines.extend([f"Version: {info.version}"] if info.version else [])
        if instructions and instructions != about:
            lines.append(f"Instructions: {shorten(instructions, _INSTRUCTIONS_CHARS)}")
        if has_problem(status):
            lines.append(f"{'Note' if page.tools else 'Not available'}: it {describe_state(status)}")
    return "\n".join(lines)


def tools_page(server: str, tools: Sequence[tuple[Tool, Mapping[str, str]]], note: str = "") -> str:
    """The tools of a server, each with its identifiers."""
    if not tools:
        return f"{server} has no tools.{f' {note}' if note else ''}"
    lines = [_tool_line(tool, identifiers) for tool, identifiers in tools]
    return "\n".join([f"Tools for {server}:", "", *lines, *(["", note] if note else [])])


def _tool_line(tool: Tool, identifiers: Mapping[str, str]) -> str:
    mark = " [destructive]" if tool.annotations.get("destructiveHint") is True else ""
    about = shorten(tool.description, _LINE_CHARS)
    return f"- {shorten(tool.name, _LINE_CHARS)} ({identifier_text(identifiers)}){mark}{f': {about}' if about else ''}"


def details_page(tool: Tool, calls: Mapping[str, str], shape: str, note: str = "") -> str:
    """Everything known about a tool. `calls` are example calls by language, `shape` is that of its last response."""
    parts = [f"## {shorten(tool.name, _LINE_CHARS)}", _truncate(tool.description.strip())]
    if risks := [f"- {text}" for hint, value, text in _ANNOTATION_TEXTS if tool.annotations.get(hint) is value]:
        parts.append("\n".join(["### Annotations", "", *risks]))
    taken = list(schema_lines(tool.input_schema)) or ["This tool takes no parameters."]
    parts.append("\n".join(["### Parameters", "", *taken]))
    parts.extend(
        f"### Example Usage{'' if language == DEFAULT_LANGUAGE else f' ({LANGUAGES[language].title})'}\n\n{call}"
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
    return _schema_lines(schema, schema, 0)


def _schema_lines(schema: Any, root: Object, depth: int) -> Iterator[str]:
    whole = resolve(schema, root)
    own = {**whole, **{key: root[key] for key in ("$defs", "definitions") if key in root and key not in whole}}
    nodes = properties(whole)
    for parameter in parameters(own):
        nested = _nested_object(nodes.get(parameter.name), root) if depth < _MAX_DEPTH else None
        kind = _outer_type(parameter.type, nested)
        more = f" Default: {literal(parameter.default)}." if parameter.default is not None else ""
        text = " ".join([*parameter.description.split(), *more.split()])
        need = "required" if parameter.required else "optional"
        yield f"{'  ' * depth}- {parameter.name} ({kind}, {need}){f': {text}' if text else ''}"
        if nested is not None:
            yield from _schema_lines(nested[0], root, depth + 1)


def _nested_object(node: Any, root: Object) -> tuple[Object, str] | None:
    """The object schema inside a parameter, and the parameter's type in words; None if it holds no object."""
    if node is None or isinstance(node, bool):
        return None
    whole, brackets = resolve(node, root), ""
    while "items" in whole and isinstance(whole["items"], dict):
        whole, brackets = resolve(whole["items"], root), f"{brackets}[]"
    return (whole, f"object{brackets}") if properties(whole) else None


def _outer_type(kind: str, nested: tuple[Object, str] | None) -> str:
    if nested is None:
        return kind
    return f"{nested[1]}|null" if kind.endswith("|null") else nested[1]


def placeholder_calls(server: Mapping[str, str], tool: Mapping[str, str], schema: Object) -> dict[str, str]:
    """An example call per language, with placeholders for the required parameters, or else for the first two.

    >>> schema = {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
    >>> print(placeholder_calls({"lua": "calculator"}, {"lua": "add"}, schema)["lua"])
    local result = calculator.add({
      a = ...,
      b = ...
    }):await()
    """
    known = parameters(schema)
    names = [one.name for one in known if one.required] or [one.name for one in known][:2]
    return {
        language: LANGUAGES[language].example_call(f"{server[language]}.{tool[language]}", names) for language in server
    }


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_DESCRIPTION_CHARS else f"{text[: _MAX_DESCRIPTION_CHARS - 1]}…"
