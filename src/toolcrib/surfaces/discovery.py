"""What servers and tools there are, step by step, for one caller: as text for a model, and the same as data."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from toolcrib.errors import BackendNotFound, ExecutionFailed, InvalidRequest, ServerUnavailable, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.known import space_of
from toolcrib.gateway.shapes import shape_of
from toolcrib.gateway.shelves import Shelves, awaited, shelves, troubled
from toolcrib.gateway.states import stands
from toolcrib.gateway.values import script_value
from toolcrib.model import JSON, Object, ServerState, ServerStatus, Tool, ToolResult, Visibility
from toolcrib.protocols import Context
from toolcrib.sandbox.names import Language, bindings
from toolcrib.schema import example
from toolcrib.surfaces.entries import brief
from toolcrib.surfaces.progressive_pages import (
    ServerPage,
    details_page,
    placeholder_calls,
    servers_page,
    tools_page,
)
from toolcrib.surfaces.results import text_result
from toolcrib.words import nearest

LANGUAGES: Final[tuple[Language, ...]] = ("lua", "python")

_NAMED: Final = 20
_SHOWN: Final = 80
_ABOUT: Final = 300
_LONGEST: Final = 20_000
"""Characters of a response that are shown."""


class ToolDiscoveryService:
    """Servers, their tools, one tool, one response: four steps, each a result with text and structured content.

    Servers and tools are named by the identifiers that are shown, in either script language, or by their own names.
    Errors rise as in `Gateway`; names that do not exist are answered with those that do.
    """

    def __init__(self, gateway: Gateway, ctx: Context, *, languages: Sequence[Language] = LANGUAGES) -> None:
        """For one caller; `languages` are those that calls are shown in, of which Lua is always one."""
        self._gateway = gateway
        self._ctx = ctx
        self._languages: tuple[Language, ...] = ("lua", *(one for one in languages if one != "lua"))
        gateway.shapes.on = True

    # -- the steps -------------------------------------------------------------------------------------------------

    async def list_servers(self) -> ToolResult:
        """The servers, with what scripts call each; failing ones with the reason."""
        await self._gateway.live.grace()
        shelved, statuses = await self._shelves()
        pages = self._pages(shelved, statuses)
        return text_result(servers_page(pages), structured={"servers": [_server_entry(page) for page in pages]})

    async def list_server_tools(self, server: str) -> ToolResult:
        """The tools of a server, in one line each. Raises `BackendNotFound` and `ServerUnavailable`."""
        shelved, page = await self._server(server)
        shelf = shelved.listed[page.name]
        spelt = self._spelt(shelf)
        tools = [(shelf[name], spelt[name]) for name in sorted(shelf)]
        note = f"Note: {page.name} {stands(page.status)}" if page.status is not None and troubled(page.status) else ""
        return text_result(
            tools_page(page.name, tools, note),
            structured={
                "server": {"name": page.name, **page.identifiers},
                "tools": [_tool_entry(tool, names) for tool, names in tools],
            },
        )

    async def get_tool_details(self, server: str, tool: str) -> ToolResult:
        """How a tool is called. Raises `BackendNotFound`, `ServerUnavailable` and `ToolNotFound`."""
        page, found, names = await self._tool(server, tool)
        calls = placeholder_calls(page.identifiers, names, found.input_schema)
        shape = self._gateway.shapes.of(self._ctx, found)
        entry: dict[str, Any] = {
            "server": {"name": page.name, **page.identifiers},
            **_tool_entry(found, names),
            "description": found.description,
            "input_schema": found.input_schema,
            "example": {"arguments": example(found), **calls},
        }
        if found.output_schema is not None:
            entry["output_schema"] = found.output_schema
        if shape:
            entry["last_response"] = shape
        return text_result(details_page(found, calls, shape), structured=entry)

    async def inspect_tool_response(
        self, server: str, tool: str, sample_args: Any = None, *, allow_side_effects: bool = False
    ) -> ToolResult:
        """What a tool answers: it is really called. Of a response longer than 20,000 characters, the beginning.

        Raises `InvalidRequest` for a tool that may change something, unless that is allowed; and as `Gateway.call`.
        """
        page, found, names = await self._tool(server, tool)
        label = f"{page.identifiers['lua']}.{names['lua']}"
        if not allow_side_effects and (risk := _risk(found)):
            raise InvalidRequest(
                f"{label} was not called: {risk}.",
                hint="Set allowSideEffects to true where that is wanted; tool-details shows what is known of it.",
            )
        try:
            result = await self._gateway.call(self._ctx, found.id, sample_args)
        except ExecutionFailed as error:
            error.hint = f"{error.hint} The tool may have been executed before this error.".strip()
            raise
        if result.is_error or result.kind != "complete":
            return result
        value = script_value(result)
        made = _inspected(label, value)
        more = tuple(block for block in result.content if block.get("type") != "text")
        return ToolResult(content=(*made.content, *more), structured=made.structured, meta=result.meta)

    async def summary(self, server: str | None = None) -> ToolResult:
        """Counts, of one server or of all. Raises `BackendNotFound`."""
        shelved, statuses = await self._shelves()
        pages = self._pages(shelved, statuses)
        chosen = pages if server is None else [(await self._server(server))[1]]
        rows = [_counts(page, shelved.listed.get(page.name, {}).values()) for page in chosen]
        lines = [
            f"- {row['name']}: {row['state']}, {row['tools']} tools, {row['read_only']} read-only, "
            f"{row['destructive']} destructive"
            for row in rows
        ]
        ready = sum(row["state"] == ServerState.READY for row in rows)
        head = f"{len(rows)} servers, {ready} ready, {sum(row['tools'] for row in rows)} tools"
        return text_result("\n".join([head, *lines]), structured={"servers": rows})

    # -- names -----------------------------------------------------------------------------------------------------

    async def _shelves(self) -> tuple[Shelves, tuple[ServerStatus, ...]]:
        statuses = await self._gateway.servers(self._ctx)
        return shelves(await self._gateway.view(self._ctx), statuses), statuses

    def _pages(self, shelved: Shelves, statuses: Iterable[ServerStatus]) -> list[ServerPage]:
        known = {space_of(status): status for status in statuses}
        names = self._spelt(dict.fromkeys(shelved.listed, ()), servers=True)
        return [
            ServerPage(name=name, identifiers=names[name], status=known.get(name), tools=len(shelved.listed[name]))
            for name in sorted(shelved.listed)
        ]

    def _spelt(self, names: Iterable[str], *, servers: bool = False) -> dict[str, dict[str, str]]:
        """What scripts call each of them, by language."""
        found: dict[str, dict[str, str]] = {name: {} for name in names}
        for language in self._languages:
            if servers:
                spelt = {
                    identifier: one.original for identifier, one in bindings(dict.fromkeys(found, ()), language).items()
                }
            else:
                spelt = dict(next(iter(bindings({"x": found}, language).values())).tools)
            for identifier, name in spelt.items():
                found[name][language] = identifier
        return found

    async def _server(self, wanted: str) -> tuple[Shelves, ServerPage]:
        """The server of that identifier or name, once it has had time to connect."""
        shelved, statuses = await self._shelves()
        page = _meant(wanted, self._pages(shelved, statuses))
        if page is not None and page.status is not None and page.status.state is not ServerState.READY:
            await awaited(self._gateway, self._ctx, (page.name,))
            shelved, statuses = await self._shelves()
            page = _meant(wanted, self._pages(shelved, statuses))
        if page is None:
            raise _no_server(wanted, self._pages(shelved, statuses))
        if not page.tools and page.status is not None and page.status.state is not ServerState.READY:
            raise ServerUnavailable(
                f"Server {page.name} {stands(page.status)}.",
                hint="Use another server, or try again once this one is mended.",
                data={"server": page.name, "state": str(page.status.state), "reason": page.status.reason},
            )
        return shelved, page

    async def _tool(self, server: str, wanted: str) -> tuple[ServerPage, Tool, Mapping[str, str]]:
        shelved, page = await self._server(server)
        shelf = shelved.listed[page.name]
        spelt = self._spelt(shelf)
        for name, identifiers in spelt.items():
            if wanted in identifiers.values():
                return page, shelf[name], identifiers
        if wanted in shelf:
            return page, shelf[wanted], spelt[wanted]
        for tool in shelved.hidden:
            if tool.name == wanted and shelved.server_of(tool) == page.name:
                return page, tool, self._spelt((tool.name,))[tool.name]
        raise _no_tool(wanted, page, [names["lua"] for names in spelt.values()])


def _meant(wanted: str, pages: Sequence[ServerPage]) -> ServerPage | None:
    said = wanted.strip()
    spelt = next((page for page in pages if said in page.identifiers.values()), None)
    return spelt or next((page for page in pages if page.name == said), None)


def _no_server(wanted: str, pages: Sequence[ServerPage]) -> BackendNotFound:
    names = [page.identifiers["lua"] for page in pages]
    close = nearest(wanted, names)
    return BackendNotFound(
        f"There is no server {wanted[:_SHOWN]!r}.{_guess(close)}",
        hint=f"Available servers: {_some(names)}.",
        suggestions=close,
    )


def _no_tool(wanted: str, page: ServerPage, names: Sequence[str]) -> ToolNotFound:
    close = nearest(wanted, names)
    return ToolNotFound(
        f"{page.name} has no tool {wanted[:_SHOWN]!r}.{_guess(close)}",
        hint=f"Available tools: {_some(names)}.",
        suggestions=close,
    )


def _guess(close: Sequence[str]) -> str:
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMED]) or "none"
    return shown if len(names) <= _NAMED else f"{shown}, and {len(names) - _NAMED} more"


def _inspected(label: str, value: JSON) -> ToolResult:
    """A response as text and as data; of one that is long its beginning, and its shape in place of the data."""
    shown = json.dumps(value, ensure_ascii=False, indent=2)
    shape = shape_of(value)
    text = f"{label} answered, as a script sees it:\n\n{shown[:_LONGEST]}"
    left = len(shown) - _LONGEST
    if left <= 0:
        return text_result(text, structured={"response": value, "shape": shape})
    more = (
        f"... and {left:,} more characters are left out. Use execute: a script sees the whole response, and can give "
        f"only what is needed of it.\n\nIts shape: {shape}"
    )
    return text_result(f"{text}\n\n{more}", structured={"shape": shape, "left_out": left})


def _risk(tool: Tool) -> str:
    """Why a tool is not called only to look at its response; empty where nothing speaks against it."""
    if tool.annotations.get("destructiveHint") is True:
        return "it says that it may destroy something"
    if tool.annotations.get("readOnlyHint") is False:
        return "it says that it may change something"
    return ""


def _server_entry(page: ServerPage) -> dict[str, Any]:
    status = page.status
    entry: dict[str, Any] = {"name": page.name, **page.identifiers, "tools": page.tools, "state": "ready"}
    if status is None:
        return entry
    info = status.info
    entry |= {"state": str(status.state), "reason": status.reason, "stale": status.stale or None}
    entry |= {"title": info.title, "description": info.description, "version": info.version}
    entry |= {"instructions": info.instructions}
    return {key: value for key, value in entry.items() if value not in ("", None)}


def _tool_entry(tool: Tool, names: Mapping[str, str]) -> dict[str, Any]:
    hints: Object = {key: value for key, value in tool.annotations.items() if isinstance(value, bool)}
    entry: dict[str, Any] = {"name": tool.name, "id": tool.id, **names, "description": brief(tool.description, _ABOUT)}
    return {**entry, "annotations": dict(hints)} if hints else entry


def _counts(page: ServerPage, tools: Iterable[Tool]) -> dict[str, Any]:
    all_of = [tool for tool in tools if tool.visibility is not Visibility.HIDDEN]
    return {
        "name": page.name,
        **page.identifiers,
        "state": str(page.status.state) if page.status is not None else str(ServerState.READY),
        "tools": len(all_of),
        "read_only": sum(tool.annotations.get("readOnlyHint") is True for tool in all_of),
        "destructive": sum(tool.annotations.get("destructiveHint") is True for tool in all_of),
    }
