"""The surface `search`: `tool_search` finds tools, `execute_tool` calls them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, get_args

from toolcrib.errors import InvalidRequest, ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.states import stands
from toolcrib.gateway.view import View
from toolcrib.model import (
    Detail,
    Filters,
    Hit,
    Key,
    Object,
    SearchReply,
    SearchRequest,
    ServerStatus,
    Tool,
    ToolResult,
    Visibility,
)
from toolcrib.protocols import Context
from toolcrib.schema import example, signature
from toolcrib.surfaces.budget import fitted
from toolcrib.surfaces.digest import digest
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.surfaces.results import error_result, json_text
from toolcrib.words import nearest

SEARCH: Final = "tool_search"
EXECUTE: Final = "execute_tool"

_DETAILS: Final[tuple[Detail, ...]] = get_args(Detail)

_SHOWN: Final = 40
_NAMED: Final = 10
_KEPT_EXAMPLES: Final = 10_000

_SEARCH_TEXT: Final = (
    "Find tools by what you need, in plain words. Answers with names, descriptions, scores and input schemas; "
    f"call what you found with {EXECUTE}. Leave the query out to list every tool."
)
_EXECUTE_TEXT: Final = f"Call a tool that {SEARCH} found, by its name, with its arguments."

_SEARCH_SCHEMA: Final[Object] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What the tool should do. Empty: list all tools."},
        "max_results": {"type": "integer", "description": "How many to return, 1 to 100 (default 10)."},
        "namespace": {"type": "string", "description": "Search only this server."},
        "detail": {
            "type": "string",
            "enum": list(_DETAILS),
            "description": "How much of each tool to show (default full).",
        },
        "cursor": {"type": "string", "description": "Continue a list where the last answer ended."},
    },
}
_EXECUTE_SCHEMA: Final[Object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": f"The tool's name as {SEARCH} gave it."},
        "arguments": {
            "type": "object",
            "description": "The tool's arguments, as its input schema says.",
            "additionalProperties": True,
        },
    },
    "required": ["name"],
}
_READS: Final[Object] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
_ACTS: Final[Object] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}


class SearchSurface:
    """Two tools instead of thousands."""

    name = "search"

    def __init__(self, gateway: Gateway, options: SurfaceOptions) -> None:
        """A surface over one gateway."""
        self._gateway = gateway
        self._options = options
        self._examples = _Examples()

    def meta_tools(self, view: View, statuses: Sequence[ServerStatus]) -> tuple[Tool, ...]:
        """`tool_search`, whose description holds the digest of servers, and `execute_tool`."""
        servers = digest(view, statuses, tokens=self._options.digest_tokens)
        text = f"{_SEARCH_TEXT}\n\nServers:\n{servers}" if servers else _SEARCH_TEXT
        return (
            _meta_tool(SEARCH, "Search tools", text, _SEARCH_SCHEMA, _READS),
            _meta_tool(EXECUTE, "Execute a tool", _EXECUTE_TEXT, _EXECUTE_SCHEMA, _ACTS),
        )

    async def call(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run either tool; errors come back in band."""
        run = {SEARCH: self._search, EXECUTE: self._execute}.get(name)
        if run is None:
            return None
        try:
            return await run(ctx, arguments)
        except ToolcribError as error:
            return error_result(error)

    async def _search(self, ctx: Context, arguments: Object) -> ToolResult:
        request = self._request(arguments)
        await self._check_namespaces(ctx, request.filters.namespaces)
        reply = await self._gateway.search(ctx, request)
        hits, lowered = fitted(reply.hits, request.budget, lambda hit: json_text(hit_entry(hit, self._examples)))
        note = f"To keep this short, {lowered} of the hits show less; ask for one with detail." if lowered else ""
        notes = " ".join(filter(None, (reply.note, note)))
        return search_result(replace(reply, hits=hits, note=notes), self._examples)

    async def _check_namespaces(self, ctx: Context, names: frozenset[str]) -> None:
        """Teach a namespace that the caller does not have."""
        for name in sorted(names):
            known = await self._gateway.namespaces(ctx)
            if name not in known:
                raise InvalidRequest(
                    f"There is no server called {name[:_SHOWN]!r}.",
                    hint="Leave namespace out to search all.",
                    suggestions=nearest(name, known) or sorted(known)[:_NAMED],
                )

    def _request(self, arguments: Object) -> SearchRequest:
        _check_keys(arguments)
        cursor = arguments.get("cursor")
        return SearchRequest(
            queries=_queries(arguments.get("query")),
            limit=_limit(arguments.get("max_results")),
            filters=Filters(namespaces=_names(arguments.get("namespace"))),
            detail=_detail(arguments.get("detail")),
            budget=self._options.reply_tokens,
            cursor=cursor if isinstance(cursor, str) and cursor else None,
        )

    async def _execute(self, ctx: Context, arguments: Object) -> ToolResult:
        name, given, loose = read_envelope(arguments)
        if name in (SEARCH, EXECUTE):
            inner = await self.call(ctx, name, given if isinstance(given, Mapping) else loose)
            return inner if inner is not None else error_result(InvalidRequest(f"{name} takes an object."))
        return await self._gateway.call(ctx, name, given, loose=loose)


def read_envelope(arguments: Object) -> tuple[str, Any, dict[str, Any]]:
    """The name, the nested arguments and whatever stood beside them.

    >>> read_envelope({"name": "git:log", "arguments": {"n": 1}})
    ('git:log', {'n': 1}, {})
    >>> read_envelope({"tool_name": "git:log", "n": 1})
    ('git:log', None, {'n': 1})
    """
    loose = dict(arguments)
    name = loose.pop("name", None) or loose.pop("tool_name", None)
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequest(
            f"{EXECUTE} needs the name of a tool.",
            hint=f'Send {{"name": "...", "arguments": {{...}}}}; {SEARCH} finds names.',
        )
    for key in ("arguments", "parameters"):
        if key in loose:
            return name.strip(), loose.pop(key), loose
    return name.strip(), None, loose


class _Examples:
    """Example calls, kept for the tools that are found again and again: making one takes longer than a search."""

    def __init__(self) -> None:
        self._kept: dict[Key, tuple[Tool, Object]] = {}

    def of(self, tool: Tool) -> Object:
        """Arguments that fit the tool's schema."""
        kept = self._kept.get(tool.key)
        if kept is not None and kept[0] is tool:
            return kept[1]
        if len(self._kept) >= _KEPT_EXAMPLES:
            self._kept.clear()
        made = example(tool)
        self._kept[tool.key] = (tool, made)
        return made


def search_result(reply: SearchReply, examples: _Examples) -> ToolResult:
    """A reply as a result: a JSON array of hits, a note where one is due, and the same as structured content."""
    hits = [hit_entry(hit, examples) for hit in reply.hits]
    note = _note(reply)
    blocks = [json_text(hits), *([note] if note else [])]
    structured: dict[str, Any] = {
        "hits": hits,
        "unmatched": list(reply.unmatched),
        "servers": [server_entry(status) for status in reply.servers],
        "note": note,
    }
    if reply.nearest:
        structured["nearest"] = list(reply.nearest)
    if reply.cursor:
        structured["cursor"] = reply.cursor
    return ToolResult(content=tuple({"type": "text", "text": block} for block in blocks), structured=structured)


def hit_entry(hit: Hit, examples: _Examples) -> dict[str, Any]:
    """A hit as JSON: name, description, score and input schema first."""
    tool = hit.tool
    entry: dict[str, Any] = {"name": tool.id, "description": tool.description, "score": round(hit.score, 4)}
    if hit.detail == "full":
        entry["input_schema"] = tool.input_schema
        entry["example"] = {"name": tool.id, "arguments": examples.of(tool)}
    elif hit.detail == "signature":
        entry["signature"] = hit.signature or signature(tool)
    if hints := {key: tool.annotations[key] for key in _RISKS if isinstance(tool.annotations.get(key), bool)}:
        entry["annotations"] = hints
    if hit.weak:
        entry["weak"] = True
    return entry


_RISKS: Final = ("readOnlyHint", "destructiveHint")


def server_entry(status: ServerStatus) -> dict[str, Any]:
    """A troubled server as JSON."""
    entry = {"name": status.name, "state": str(status.state), "reason": status.reason}
    return {**entry, "stale": True} if status.stale else entry


def _note(reply: SearchReply) -> str:
    lines = [reply.note] if reply.note else []
    if not reply.hits:
        lines = [reply.note or "There is no tool to list."]
        if reply.nearest:
            lines.append("Nearest names: " + ", ".join(reply.nearest))
    if reply.unmatched:
        lines.append("Words that match nothing: " + ", ".join(reply.unmatched))
    for status in reply.servers:
        kept = "; its last known tools are listed" if status.stale else ""
        lines.append(f"Server {status.name} {stands(status)}{kept}")
    if reply.cursor:
        lines.append(f"{reply.total} in all; continue with cursor {reply.cursor}")
    return "\n".join(lines)


def _meta_tool(name: str, title: str, text: str, schema: Object, hints: Object) -> Tool:
    annotations = {"title": title, **hints}
    return Tool(
        name=name,
        title=title,
        description=text,
        input_schema=schema,
        annotations=annotations,
        visibility=Visibility.NATIVE,
    )


def _queries(query: Any) -> tuple[str, ...]:
    if isinstance(query, list):
        return tuple(str(part) for part in query) or ("",)
    return (query,) if isinstance(query, str) else ("" if query is None else str(query),)


def _detail(detail: Any) -> Detail:
    if detail in (None, ""):
        return "full"
    for known in _DETAILS:
        if detail == known:
            return known
    raise InvalidRequest(f"detail must be one of {', '.join(_DETAILS)}, not {str(detail)!r:.40}.")


def _limit(limit: Any) -> int | None:
    try:
        return None if limit is None or isinstance(limit, bool) else int(float(limit))
    except (TypeError, ValueError, OverflowError):
        return None


def _names(names: Any) -> frozenset[str]:
    wanted = [names] if isinstance(names, str) else [] if names is None else names
    if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
        raise InvalidRequest(f"namespace must be the name of a server, not {str(names)[:_SHOWN]!r}.")
    return frozenset(name for name in wanted if name)


def _check_keys(arguments: Object) -> None:
    """Teach a parameter that does not exist: a query under another name would list everything."""
    known = _SEARCH_SCHEMA["properties"]
    for key in arguments:
        if key not in known:
            raise InvalidRequest(
                f"{SEARCH} has no parameter {key[:_SHOWN]!r}.",
                hint=f"Valid: {', '.join(known)}.",
                suggestions=nearest(key, known),
            )
