"""The surface `search`: `tool_search` finds tools, `execute_tool` calls them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from toolcrib.errors import InvalidRequest, ToolcribError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.view import View
from toolcrib.model import Filters, Object, ServerStatus, Tool, ToolResult, Visibility
from toolcrib.protocols import Context
from toolcrib.surfaces.arguments import EXECUTE, EXECUTE_SCHEMA, SEARCH, SEARCH_SCHEMA, read_envelope, read_request
from toolcrib.surfaces.digest import digest
from toolcrib.surfaces.many import CALL_MANY, CALL_MANY_SCHEMA, CALL_MANY_TEXT, call_many
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.surfaces.reply import Replies
from toolcrib.surfaces.results import error_result
from toolcrib.tokens import counter
from toolcrib.words import nearest

_SHOWN: Final = 40
_NAMED: Final = 10

_SEARCH_TEXT: Final = (
    "Find tools by what you need, in plain words. Answers with names, descriptions, scores and input schemas; "
    f"call what you found with {EXECUTE}. Leave the query out to list every tool."
)
_EXECUTE_TEXT: Final = f"Call a tool that {SEARCH} found, by its name, with its arguments."

_READS: Final[Object] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
_ACTS: Final[Object] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}


class SearchSurface:
    """Two tools instead of thousands."""

    name = "search"

    def __init__(self, gateway: Gateway, options: SurfaceOptions) -> None:
        """A surface over one gateway. Raises as `tokens.counter` does for the counter that the options name."""
        self._gateway = gateway
        self._options = options
        self._replies = Replies(counter(options.tokens))
        self.names: tuple[str, ...] = (SEARCH, EXECUTE, CALL_MANY) if options.call_many else (SEARCH, EXECUTE)

    def meta_tools(self, view: View, statuses: Sequence[ServerStatus], *, searched: bool) -> tuple[Tool, ...]:
        """`tool_search`, whose description holds the digest of servers, `execute_tool`, and `call_many` where it is on.

        None where all there is is listed by name anyway.
        """
        if not (self._options.meta_only or statuses or searched or _discoverable(view)):
            return ()
        servers = digest(view, statuses, tokens=self._options.digest_tokens)
        text = f"{_SEARCH_TEXT}\n\nServers:\n{servers}" if servers else _SEARCH_TEXT
        tools = (
            _meta_tool(SEARCH, "Search tools", text, SEARCH_SCHEMA, _READS),
            _meta_tool(EXECUTE, "Execute a tool", _EXECUTE_TEXT, EXECUTE_SCHEMA, _ACTS),
        )
        many = _meta_tool(CALL_MANY, "Call several tools", CALL_MANY_TEXT, CALL_MANY_SCHEMA, _ACTS)
        return (*tools, many) if self._options.call_many else tools

    async def call(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run one of its tools; errors come back in band."""
        run = {SEARCH: self._search, EXECUTE: self._execute, CALL_MANY: self._call_many}.get(name)
        if run is None or name not in self.names:
            return None
        try:
            return await run(ctx, arguments)
        except ToolcribError as error:
            return error_result(error)

    async def _search(self, ctx: Context, arguments: Object) -> ToolResult:
        request = read_request(arguments, budget=self._options.reply_tokens, group=self._gateway.options.group)
        await self._check(ctx, request.filters)
        return self._replies.result(await self._gateway.search(ctx, request), request)

    async def _check(self, ctx: Context, filters: Filters) -> None:
        """Teach a namespace or a tag that the caller does not have."""
        if filters.namespaces:
            _check_names("server called", filters.namespaces, await self._gateway.namespaces(ctx), "namespace")
        if filters.tags:
            _check_names("tool with the tag", filters.tags, await self._gateway.tags(ctx), "tags")

    async def _call_many(self, ctx: Context, arguments: Object) -> ToolResult:
        return await call_many(self._gateway, ctx, arguments)

    async def _execute(self, ctx: Context, arguments: Object) -> ToolResult:
        name, given, loose = read_envelope(arguments)
        if name in (SEARCH, EXECUTE):
            inner = await self.call(ctx, name, given if isinstance(given, Mapping) else loose)
            return inner if inner is not None else error_result(InvalidRequest(f"{name} takes an object."))
        return await self._gateway.call(ctx, name, given, loose=loose)


def _discoverable(view: View) -> bool:
    """Whether some tool of the view is found by searching only."""
    if view.base is None:
        return view.remembered("discoverable", lambda one: _any_discoverable(one.tools()))
    return _discoverable(view.base) or _any_discoverable(view.added())


def _any_discoverable(tools: Iterable[Tool]) -> bool:
    return any(tool.visibility is Visibility.DISCOVERABLE for tool in tools)


def _check_names(what: str, wanted: Collection[str], known: Collection[str], argument: str) -> None:
    for name in sorted(wanted):
        if name not in known:
            raise InvalidRequest(
                f"There is no {what} {name[:_SHOWN]!r}.",
                hint=f"Leave {argument} out to search all.",
                suggestions=nearest(name, known) or sorted(known)[:_NAMED],
            )


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
