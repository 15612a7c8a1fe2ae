"""The verbs that ask a gateway that already runs (`--gateway URL`), over MCP: through its tool_search and execute_tool.

The gateway is the only server of an app of this process; nothing else is started.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from toolcrib.app import App
from toolcrib.cli.arguments import CallArguments
from toolcrib.cli.options import GATEWAY_NAME
from toolcrib.cli.output import UsageError
from toolcrib.cli.render import check_namespace
from toolcrib.cli.session import run_with, terminal_context
from toolcrib.cli.source import SearchFindings
from toolcrib.errors import ExecutionFailed, NotFound, ServerUnavailable, ToolcribError, ToolNotFound
from toolcrib.gateway.server_states import describe_state
from toolcrib.names import nearest
from toolcrib.schema import example
from toolcrib.search.options import Scorer
from toolcrib.settings.options import Settings
from toolcrib.surfaces.reply import NEAREST_LINE, UNMATCHED_LINE
from toolcrib.surfaces.results import WHOLE_META
from toolcrib.types import Context, Hit, Object, SearchReply, SearchRequest, ServerState, ServerStatus, Tool, ToolResult
from toolcrib.upstream.catalog.listing import EXECUTE_TOOL, SEARCH_TOOL

T = TypeVar("T")

_PAGE: Final = 100
"""Tools asked for at a time."""
_STATES: Final = {str(state): state for state in ServerState}
_NAME_HITS: Final = 10
"""Hits among which a name is looked for."""


class GatewayView:
    """The tools of a gateway that already runs (a `ToolView`)."""

    def __init__(self, settings: Settings) -> None:
        """The only server of the settings is the gateway."""
        self._settings = settings

    def servers(self, show: Callable[[Sequence[ServerStatus]], None]) -> None:
        """Find the servers behind the gateway, as far as its tools and replies name them."""

        async def find(app: App) -> None:
            tools, statuses = await _all_tools(app)
            counts = Counter(tool.namespace for tool in tools)
            since = next(status.since for status in app.fleet.statuses())
            missing = {status.name: status for status in statuses}
            ready = [
                ServerStatus(name=name, state=ServerState.READY, since=since, tools=count)
                for name, count in counts.items()
                if name not in missing
            ]
            show(sorted([*ready, *statuses], key=lambda status: status.name))

        _run(self._settings, find)

    def tools(self, namespace: str | None, show: Callable[[Sequence[Tool], Sequence[ServerStatus]], None]) -> None:
        """Find every tool of the gateway, or those of one namespace."""

        async def find(app: App) -> None:
            tools, statuses = await _all_tools(app)
            if namespace is not None:
                check_namespace(namespace, sorted({tool.namespace for tool in tools} | {one.name for one in statuses}))
            show([tool for tool in tools if namespace in (None, tool.namespace)], statuses)

        _run(self._settings, find)

    def search(self, request: SearchRequest, scorer: Scorer | None, show: Callable[[SearchFindings], None]) -> None:
        """Search the gateway. Raises `UsageError` for a scorer, which is a setting of the gateway."""
        if scorer is not None:
            raise UsageError(
                "--scorer cannot be combined with --gateway.", hint="The gateway's settings name its scorer."
            )
        asked = _search_arguments(request)

        async def find(app: App) -> None:
            show(SearchFindings(reply=_reply(await _search(app, asked)), explained=False))

        _run(self._settings, find)

    def describe(self, name: str, show: Callable[[Tool, Object], None]) -> None:
        """Find a tool of the gateway, and an example of its arguments."""

        async def find(app: App) -> None:
            tool = _tool(await _entry(app, name))
            show(tool, example(tool))

        _run(self._settings, find)

    def call(self, name: str, arguments: CallArguments, show: Callable[[ToolResult], bool], *, approved: bool) -> bool:
        """Call a tool of the gateway, and return what `show` returns."""

        async def run(app: App) -> bool:
            schema = _tool(await _entry(app, name)).input_schema if arguments.words else {}
            given = {"name": name, "arguments": arguments.for_schema(schema)}
            ctx = terminal_context(app, approved=approved)
            ctx = replace(ctx, meta={**ctx.meta, WHOLE_META: True})
            result = await _meta_call(app, ctx, EXECUTE_TOOL, given)
            _raise_error(result)
            return show(result)

        return _run(self._settings, run)


def _search_arguments(request: SearchRequest) -> dict[str, Any]:
    asked: dict[str, Any] = {"query": request.queries[0], "detail": "full" if request.explain else "signature"}
    asked["budget"] = 0
    asked |= {"phrasings": [*request.queries[1:]]} if request.phrasings else {}
    asked |= {"max_results": request.limit} if request.limit is not None else {}
    asked |= {"namespace": next(iter(request.filters.namespaces))} if request.filters.namespaces else {}
    return asked


def _run(settings: Settings, use: Callable[[App], Awaitable[T]]) -> T:
    """Run `use` with an app whose only server is the gateway. Raises `ServerUnavailable` if it cannot be reached."""

    async def with_gateway(app: App) -> T:
        [status] = app.fleet.statuses()
        if status.state is not ServerState.READY:
            raise ServerUnavailable(
                f"The gateway {describe_state(status).rstrip('.')}.",
                hint="Check its address and token; `toolcrib serve --http` starts one.",
            )
        return await use(app)

    return run_with(settings, with_gateway, quiet=True)


# -- the meta-tools ----------------------------------------------------------------------------------------------------


async def _meta_call(app: App, ctx: Context, name: str, arguments: Object) -> ToolResult:
    """Call a meta-tool. Raises `NotFound` if the gateway lists its tools by name only."""
    try:
        return await app.gateway.call(ctx, f"{GATEWAY_NAME}:{name}", arguments)
    except ToolNotFound:
        raise NotFound(
            f"The server at --gateway has no {name}, so it is not a toolcrib with the surface `search`.",
            hint="Use --url instead: it lists and calls the tools of any MCP server.",
        ) from None


async def _search(app: App, asked: Object) -> Mapping[str, Any]:
    """The structured reply to a search. Raises `ExecutionFailed`, or the gateway's own error."""
    result = await _meta_call(app, app.local_context(), SEARCH_TOOL, asked)
    _raise_error(result)
    if result.is_error or not isinstance(result.structured, Mapping):
        said = " ".join(str(block.get("text", "")) for block in result.content)
        raise ExecutionFailed(f"The gateway did not answer the search: {said or 'its reply has no hits'}")
    return result.structured


async def _all_tools(app: App) -> tuple[list[Tool], list[ServerStatus]]:
    """Every tool of the gateway, and its servers that are not ready."""
    asked: dict[str, Any] = {"detail": "full", "max_results": _PAGE, "budget": 0}
    tools: list[Tool] = []
    cursors: set[str] = set()
    while True:
        found = await _search(app, asked)
        tools += map(_tool, _entries(found))
        cursor = str(found.get("cursor") or "")
        if not cursor or cursor in cursors:
            return tools, list(_statuses(found))
        cursors.add(cursor)
        asked["cursor"] = cursor


async def _entry(app: App, name: str) -> Mapping[str, Any]:
    """What a search says of the tool with this name. Raises `ToolNotFound`."""
    found = await _search(app, {"query": name, "max_results": _NAME_HITS, "detail": "full", "budget": 0})
    entries = list(_entries(found))
    wanted = _spelling(name)
    for entry in entries:
        if wanted in {_spelling(entry["name"]), _spelling(entry["name"].partition(":")[2])}:
            return entry
    known = [entry["name"] for entry in entries]
    raise ToolNotFound(f'No tool is called "{name}".', suggestions=nearest(name, known) or known[:3])


def _spelling(name: str) -> str:
    """The name with one separator between namespace and name."""
    return name.casefold().replace("__", ":").replace("/", ":").replace(".", ":")


def _raise_error(result: ToolResult) -> None:
    """Raise the error that a reply of the gateway holds."""
    error = result.structured.get("error") if result.is_error and isinstance(result.structured, Mapping) else None
    if not isinstance(error, Mapping):
        return
    kinds = {kind.code: kind for kind in _error_kinds(ToolcribError)}
    if kind := kinds.get(str(error.get("code"))):
        suggestions = _texts(error.get("suggestions"))
        raise kind(str(error.get("message", "")), hint=str(error.get("hint", "")), suggestions=suggestions)


def _error_kinds(root: type[ToolcribError]) -> Iterator[type[ToolcribError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _error_kinds(kind)


def _entries(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    hits = found.get("hits")
    return (
        hit
        for hit in (hits if isinstance(hits, list) else [])
        if isinstance(hit, Mapping) and isinstance(hit.get("name"), str)
    )


def _statuses(found: Mapping[str, Any]) -> Iterator[ServerStatus]:
    """The servers of a reply that are not ready. What has another form is left out: another program may answer."""
    servers = found.get("servers")
    for server in servers if isinstance(servers, list) else ():
        if not isinstance(server, Mapping):
            continue
        state = str(server.get("state"))
        known = _STATES.get(state, ServerState.FAILED)
        reason = str(server.get("reason") or "")
        yield ServerStatus(name=str(server.get("name")), state=known, since=time.time(), reason=reason)


def _reply(found: Mapping[str, Any]) -> SearchReply:
    hits = tuple(map(_hit, _entries(found)))
    return SearchReply(
        hits=hits,
        unmatched=_texts(found.get("unmatched")),
        nearest=_texts(found.get("nearest")),
        servers=tuple(_statuses(found)),
        note=_note(found),
        total=len(hits),
    )


def _note(found: Mapping[str, Any]) -> str:
    """The note of a reply without the lines that repeat other parts of it, and the cursor, which no verb takes."""
    lines = str(found.get("note") or "").splitlines()
    cursor = found.get("cursor")
    if cursor:
        lines = [line for line in lines if not line.endswith(str(cursor))]
    return "\n".join(line for line in lines if not line.startswith((NEAREST_LINE, UNMATCHED_LINE)))


def _hit(entry: Mapping[str, Any]) -> Hit:
    given = entry.get("score")
    score = float(given) if isinstance(given, (int, float)) else 0.0
    return Hit(
        tool=_tool(entry),
        score=score,
        raw=score,
        signature=str(entry.get("signature") or ""),
        weak=bool(entry.get("weak")),
        fallback=bool(entry.get("fallback")),
        similar=_texts(entry.get("similar")),
    )


def _tool(entry: Mapping[str, Any]) -> Tool:
    namespace, colon, name = str(entry["name"]).partition(":")
    return Tool(
        name=name if colon else namespace,
        namespace=namespace if colon else "",
        title=str(entry.get("title") or "") or None,
        description=str(entry.get("description") or ""),
        input_schema=_object(entry.get("input_schema")) or {"type": "object"},
        annotations=_object(entry.get("annotations")),
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _object(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
