"""The surface `search`: `tool_search` finds tools; `execute_tool`, `read_tool` and `call_many` call them.

Includes parsing their arguments, with the variations that models send.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args

import anyio

from toolcrib.errors import InvalidRequest, ToolcribError
from toolcrib.formats.tool_list import HOW_TO_QUERY, PHRASINGS
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.nested_calls import RunCall, nested_context, report_call_ended
from toolcrib.gateway.view import ResolvedTool, View
from toolcrib.names import nearest, nearest_names
from toolcrib.providers.content import json_text, script_value
from toolcrib.sanitize import echo
from toolcrib.surfaces.digest import full_names
from toolcrib.surfaces.facade import (
    READ_ONLY_HINTS,
    SEARCH_INTRODUCTION,
    SIDE_EFFECT_HINTS,
    CallerView,
    MetaToolHandler,
    PassOn,
    meta_tool,
)
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.surfaces.reply import ReplyRenderer
from toolcrib.surfaces.results import READ_RESULT, Continuation, ResultBudget
from toolcrib.tokens import counter
from toolcrib.types import Context, Detail, Filters, Object, SearchRequest, Tool, ToolResult, Visibility, is_read_only

SEARCH: Final = "tool_search"
EXECUTE: Final = "execute_tool"
READ: Final = "read_tool"
CALL_MANY: Final = "call_many"
_WRAPPED: Final = (SEARCH, EXECUTE, READ, READ_RESULT)

MAX_BUDGET: Final = 20_000
"""The highest budget that a search may request, in tokens."""
MAX_REPLY_CHARS: Final = 5 * MAX_BUDGET
"""The length of the longest reply of a search, in characters."""
MAX_CALLS: Final = 50
"""Calls in one `call_many` request."""
MAX_CONCURRENT: Final = 8
"""Calls of one request that run at the same time."""

_DETAILS: Final[tuple[Detail, ...]] = get_args(Detail)
_LIMIT_NAMES: Final = frozenset({"limit", "top_k", "k"})
_FLAGS: Final = {"true": True, "false": False}

_SEARCH_TEXT: Final = (
    f"Find tools by what you need. {HOW_TO_QUERY} Likely ones come with their input schema: call them with {EXECUTE}. "
    "Search for the name of another to see its schema. Leave the query out to list every tool."
)
_EXECUTE_TEXT: Final = f"Call a tool that {SEARCH} found, by its name, with its arguments."
_READ_TEXT: Final = (
    f"Call a tool that {SEARCH} found and that only reads (readOnlyHint), by its name, with its arguments. "
    f"All other tools need {EXECUTE}."
)
_READ_HINTS: Final[Object] = {"readOnlyHint": True, "openWorldHint": True}
CALL_MANY_TEXT: Final = (
    f"Call several tools that {SEARCH} found, at the same time. Returns results in the order of the calls; a call that "
    "fails does not affect the others. Make calls that need each other's results one after the other."
)
SEARCH_SCHEMA: Final[Object] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Verb, object, service. Empty: list all tools."},
        "phrasings": PHRASINGS,
        "needs": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Several needs in place of the query, each answered by itself.",
        },
        "max_results": {"type": "integer", "description": "1 to 100 (default 10; of a list, 100)."},
        "namespace": {"type": "string", "description": "Only this server."},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Only tools with all of these."},
        "read_only": {"type": "boolean", "description": "Only tools that change nothing."},
        "group": {"type": "boolean", "description": "Put near-duplicates under the best."},
        "detail": {"type": "string", "enum": list(_DETAILS), "description": "How much to show (default full)."},
        "budget": {"type": "integer", "description": "Tokens the answer may cost."},
        "cursor": {"type": "string", "description": "Continue where a list or search ended."},
    },
}
EXECUTE_SCHEMA: Final[Object] = {
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
CALL_MANY_SCHEMA: Final[Object] = {
    "type": "object",
    "properties": {
        "calls": {
            "type": "array",
            "maxItems": MAX_CALLS,
            "description": "The calls.",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "The tool's name."},
                    "arguments": {"type": "object", "additionalProperties": True},
                },
                "required": ["name"],
            },
        }
    },
    "required": ["calls"],
}


class SearchSurface:
    """Two to four meta-tools instead of thousands of tools."""

    name = "search"
    introduction = SEARCH_INTRODUCTION
    lists_all = False
    describes_servers = True
    reads_results = Continuation(EXECUTE)

    def __init__(self, gateway: Gateway, options: SurfaceOptions) -> None:
        """Raises as `tokens.counter` does for the counter that the options name."""
        self._gateway = gateway
        self._options = options
        self._replies = ReplyRenderer(counter(options.tokens), gateway.definitions)
        self._results = ResultBudget.of(gateway, options)
        self.handlers: dict[str, MetaToolHandler] = {
            SEARCH: self._search,
            EXECUTE: self._execute,
            READ_RESULT: self._results.read,
        }
        if options.read_tool:
            self.handlers[READ] = self._read
        if options.call_many:
            self.handlers[CALL_MANY] = partial(call_many, gateway, self._results)
        self.passes_on: Mapping[str, PassOn] = {EXECUTE: self._pass_on}

    def meta_tools(self, caller: CallerView) -> tuple[Tool, ...]:
        """`tool_search` with a digest of the servers, `execute_tool`, and `read_tool` and `call_many` by the options.

        `read_tool` is listed where the caller has tools that say that they only read.

        None if all tools are listed by name anyway.
        """
        if not (self._options.meta_only or caller.statuses or caller.may_find_more or _has_discoverable(caller.view)):
            return ()
        text = f"{_SEARCH_TEXT}\n\nServers:\n{caller.digest}" if caller.digest else _SEARCH_TEXT
        tools = [
            meta_tool(SEARCH, "Search tools", text, SEARCH_SCHEMA, READ_ONLY_HINTS, max_chars=MAX_REPLY_CHARS),
            meta_tool(EXECUTE, "Execute a tool", _EXECUTE_TEXT, EXECUTE_SCHEMA, SIDE_EFFECT_HINTS),
        ]
        if READ in self.handlers and _has_read_only(caller.view):
            tools.append(meta_tool(READ, "Call a read-only tool", _READ_TEXT, EXECUTE_SCHEMA, _READ_HINTS))
        if CALL_MANY in self.handlers:
            title = "Call several tools"
            tools.append(meta_tool(CALL_MANY, title, CALL_MANY_TEXT, CALL_MANY_SCHEMA, SIDE_EFFECT_HINTS))
        return tuple(tools)

    async def _search(self, ctx: Context, arguments: Object) -> ToolResult:
        request = parse_search(arguments, budget=self._options.reply_tokens, group=self._gateway.options.group)
        if request.filters.namespaces or request.filters.tags:
            request = replace(request, filters=await self._known_filters(ctx, request.filters))
        reply = await self._gateway.search(ctx, request)
        economical = not _asks_for_more(arguments)
        if economical and any(hit.score for hit in reply.hits):
            reply = replace(reply, cursor=None)  # it costs tokens, and few searches are continued
        render = partial(self._replies.render, reply, request, economical=economical)
        queue = self._gateway.admission.queue
        result = await self._replies.run(reply.hits, render, economical=economical, queue=queue, caller=ctx.caller)
        return result if self._options.structured_replies or not economical else replace(result, structured=None)

    async def _known_filters(self, ctx: Context, filters: Filters) -> Filters:
        """The filters with the namespaces of servers in place of the short names by which a digest lists them.

        Raises `InvalidRequest` for a namespace or tag that the caller does not have.
        """
        if filters.namespaces:
            known = await self._gateway.namespaces(ctx)
            unknown = filters.namespaces.difference(known)
            filters = replace(filters, namespaces=(filters.namespaces - unknown) | full_names(unknown, known))
            _check_names("server called", filters.namespaces, known, "namespace")
        if filters.tags:
            _check_names("tool with the tag", filters.tags, await self._gateway.tags(ctx), "tags")
        return filters

    async def _execute(self, ctx: Context, arguments: Object) -> ToolResult:
        name, given, loose = parse_execute(arguments)
        if name in _WRAPPED and name in self.handlers:  # models sometimes wrap a meta-tool in execute_tool
            return await self.handlers[name](ctx, given if isinstance(given, Mapping) else loose)
        return await self._run(ctx, await self._gateway.find(ctx, name), given, loose)

    def _pass_on(self, ctx: Context, arguments: Object) -> RunCall | None:
        """What runs a call of a tool of remote servers that `execute_tool` names by its id or wire name."""
        name = arguments.get("name")
        view = self._gateway.settled_view(ctx) if isinstance(name, str) else None
        found = None if view is None or name in _WRAPPED else view.find_exact(str(name))
        if found is None or not found.runs_elsewhere:
            return None
        _, given, loose = parse_execute(arguments)
        return lambda own: self._run(own, found, given, loose)

    async def _read(self, ctx: Context, arguments: Object) -> ToolResult:
        name, given, loose = parse_execute(arguments, READ)
        if name == READ_RESULT:
            return await self._results.read(ctx, given if isinstance(given, Mapping) else loose)
        found = await self._gateway.find(ctx, name)
        if not is_read_only(found.tool):
            raise InvalidRequest(
                f"{found.tool.id} does not say that it only reads, so {READ} did not run it.",
                hint=f"Call it with {EXECUTE}.",
            )
        return await self._run(ctx, found, given, loose)

    async def _run(self, ctx: Context, found: ResolvedTool, given: Any, loose: Object) -> ToolResult:
        result = await self._gateway.run(ctx, found, given, loose=loose)
        listed = READ if READ in self.handlers and is_read_only(found.tool) else EXECUTE
        return await self._results.fit(ctx, found.tool, result, Continuation(listed))


def _has_read_only(view: View) -> bool:
    """Whether some tool of the view says that it only reads."""
    if view.base is None:
        return view.memoized("read-only", lambda one: any(map(is_read_only, one.tools())))
    return _has_read_only(view.base) or any(map(is_read_only, view.overlay_tools()))


def _has_discoverable(view: View) -> bool:
    """Whether some tool of the view can only be found by searching."""
    if view.base is None:
        return view.memoized("discoverable", lambda one: _any_discoverable(one.tools()))
    return _has_discoverable(view.base) or _any_discoverable(view.overlay_tools())


def _any_discoverable(tools: Iterable[Tool]) -> bool:
    return any(tool.visibility is Visibility.DISCOVERABLE for tool in tools)


def _check_names(what: str, wanted: Collection[str], known: Collection[str], argument: str) -> None:
    for name in sorted(wanted):
        if name not in known:
            raise InvalidRequest(
                f"There is no {what} {echo(name)}.",
                hint=f"Leave {argument} out to search all.",
                suggestions=nearest_names(name, known),
            )


# -- arguments -------------------------------------------------------------------------------------------------------


def parse_search(arguments: Object, *, budget: int, group: bool) -> SearchRequest:
    """Parse the arguments of `tool_search`.

    `budget` (in tokens, 0 for none) and `group` are the defaults from the settings. Numbers out of range are clamped.
    Raises `InvalidRequest` for invalid arguments.

    >>> parse_search({"query": "send mail", "tags": "work"}, budget=800, group=False).filters.tags
    frozenset({'work'})
    """
    arguments = _known_arguments(arguments)
    cursor = arguments.get("cursor")
    grouped = _parse_flag(arguments, "group")
    return SearchRequest(
        **_parse_queries(arguments),
        limit=_integer(arguments.get("max_results")),
        filters=Filters(
            namespaces=_string_set(arguments.get("namespace"), "namespace must be the name of a server"),
            tags=_string_set(arguments.get("tags"), "tags must be a string or a list of strings"),
            # models send false to mean that it does not matter
            read_only=_parse_flag(arguments, "read_only") or None,
        ),
        detail=_parse_detail(arguments.get("detail")),
        budget=_parse_budget(_integer(arguments.get("budget")), budget),
        group=group if grouped is None else grouped,
        group_same=grouped is None and not _asks_for_more(arguments),
        cursor=cursor if isinstance(cursor, str) and cursor else None,
    )


def _asks_for_more(arguments: Object) -> bool:
    """Whether a search says how much of its hits to show, or goes on with one that did."""
    if arguments.get("cursor"):
        return True
    return arguments.get("detail") not in (None, "") or _integer(arguments.get("budget")) is not None


def parse_execute(arguments: Object, meta_tool: str = EXECUTE) -> tuple[str, Any, dict[str, Any]]:
    """Parse the arguments of `execute_tool`: the name, the nested arguments, and the remaining top-level keys.

    `meta_tool` is the name for errors.

    >>> parse_execute({"name": "git:log", "arguments": {"n": 1}})
    ('git:log', {'n': 1}, {})
    >>> parse_execute({"tool_name": "git:log", "n": 1})
    ('git:log', None, {'n': 1})
    """
    loose = dict(arguments)
    name = loose.pop("name", None) or loose.pop("tool_name", None)
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequest(
            f"{meta_tool} needs the name of a tool.",
            hint=f'Send {{"name": "...", "arguments": {{...}}}}; {SEARCH} finds names.',
        )
    for key in ("arguments", "parameters"):
        if key in loose:
            return name.strip(), loose.pop(key), loose
    return name.strip(), None, loose


def _known_arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments without unknown ones, which are errors only where there is no query.

    A query under another name would list every tool; beside a query, what a model adds from another search tool is
    harmless. Its usual names of a limit are read.

    >>> _known_arguments({"query": "send mail", "limit": 3, "fuzzy": True})
    {'query': 'send mail', 'max_results': 3}
    """
    known = SEARCH_SCHEMA["properties"]
    given = dict(arguments)
    for alias in _LIMIT_NAMES.intersection(given):
        given.setdefault("max_results", given[alias])
    unknown = [key for key in arguments if key not in known]
    if unknown and not any(map(arguments.get, _ASKING)):
        named = unknown[0]
        raise InvalidRequest(
            f"{SEARCH} has no parameter {echo(named)}.",
            hint=f"Valid: {', '.join(known)}.",
            suggestions=nearest(named, known),
        )
    return {key: value for key, value in given.items() if key in known}


_ASKING: Final = ("query", "phrasings", "needs")
"""The parameters that say what is needed."""


def _parse_queries(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The queries of a request, and whether they are phrasings of one need.

    A list of queries is read as phrasings. Raises `InvalidRequest` for phrasings of several needs.

    >>> _parse_queries({"query": "send mail", "phrasings": ["write to Ann"]})
    {'queries': ('send mail', 'write to Ann'), 'phrasings': True}
    >>> _parse_queries({"needs": ["send mail", "list issues"]})
    {'queries': ('send mail', 'list issues'), 'phrasings': False}
    """
    query, phrasings, needs = (_texts(arguments.get(name)) for name in _ASKING)
    if needs and (phrasings or len(query) > 1):
        raise InvalidRequest(
            "phrasings and needs exclude each other.", hint="Give one need in several words, or several needs."
        )
    queries = (*query, *phrasings, *needs) or ("",)
    return {"queries": queries, "phrasings": not needs and len(queries) > 1}


def _texts(given: Any) -> tuple[str, ...]:
    """The texts that say something, of one or of a list."""
    texts = given if isinstance(given, list) else [given]
    return tuple(text for text in ("" if one is None else str(one) for one in texts) if text.strip())


def _parse_detail(detail: Any) -> Detail:
    if detail in (None, ""):
        return "full"
    for known in _DETAILS:
        if detail == known:
            return known
    raise InvalidRequest(f"detail must be one of {', '.join(_DETAILS)}, not {str(detail)!r:.40}.")


def _parse_budget(asked: int | None, usual: int) -> int | None:
    """The requested budget up to the maximum, else the default. A request for 0 gets the maximum."""
    if asked is None:
        return usual or None
    return min(asked, MAX_BUDGET) if asked > 0 else MAX_BUDGET


def _integer(number: Any) -> int | None:
    try:
        return None if number is None or isinstance(number, bool) else int(float(number))
    except (TypeError, ValueError, OverflowError):
        return None


def _parse_flag(arguments: Mapping[str, Any], name: str) -> bool | None:
    value = arguments.get(name)
    if value is None or isinstance(value, bool):
        return value
    flag = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else None
    if flag is None:
        raise InvalidRequest(f"{name} must be true or false, not {echo(value)}.")
    return flag


def _string_set(given: Any, problem: str) -> frozenset[str]:
    wanted = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(wanted, list) or not all(isinstance(text, str) for text in wanted):
        raise InvalidRequest(f"{problem}, not {echo(given)}.")
    return frozenset(text for text in wanted if text)


# -- call_many -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How one call of several ended."""

    name: str
    tool: Tool | None = None
    result: ToolResult | None = None
    error: ToolcribError | None = None

    def entry(self) -> dict[str, Any]:
        """The outcome as JSON."""
        try:
            if self.error is None and self.result is not None:
                return {"name": self.name, "ok": True, "result": _result_value(self.result)}
            error = self.error
        except ToolcribError as failed:
            error = failed
        return {"name": self.name, "ok": False, "error": error.payload() if error is not None else {}}


async def call_many(gateway: Gateway, budget: ResultBudget, ctx: Context, arguments: Object) -> ToolResult:
    """Run several calls concurrently, and return their results in order.

    Each is `{"name", "ok": true, "result"}` or `{"name", "ok": false, "error"}`. The whole result is an error only if
    every call failed. Raises `InvalidRequest` unless there are 1 to 50 calls.
    """
    calls = _parse_calls(arguments)
    outcomes = [_Outcome(name="") for _ in calls]
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT)
    inner = nested_context(ctx, len(calls))

    async def one(place: int, call: Any) -> None:
        async with limiter:
            outcomes[place] = await _call_one(gateway, inner, call)
            await report_call_ended(inner)

    async with anyio.create_task_group() as group:
        for place, call in enumerate(calls):
            group.start_soon(one, place, call)
    outcomes = await _fitted(budget, ctx, outcomes)
    results = [outcome.entry() for outcome in outcomes]
    blocks = (block for one in outcomes if one.result is not None for block in one.result.content)
    return ToolResult(
        content=(
            {"type": "text", "text": json_text(results)},
            *(block for block in blocks if block.get("type") != "text"),
        ),
        structured={"results": results},
        is_error=not any(answer["ok"] for answer in results),
    )


def _parse_calls(arguments: Object) -> list[Any]:
    calls = arguments.get("calls")
    if not isinstance(calls, list) or not 0 < len(calls) <= MAX_CALLS:
        raise InvalidRequest(
            f"{CALL_MANY} needs calls, a list of 1 to {MAX_CALLS}.",
            hint='Send {"calls": [{"name": "...", "arguments": {...}}, ...]}.',
        )
    return calls


async def _fitted(budget: ResultBudget, ctx: Context, outcomes: list[_Outcome]) -> list[_Outcome]:
    """The outcomes, with results that fit the budget together."""
    done = [(one.tool, one.result) for one in outcomes if one.tool is not None and one.result is not None]
    fitted = iter(await budget.fit_all(ctx, done, Continuation(EXECUTE)))
    return [one if one.result is None else replace(one, result=next(fitted)) for one in outcomes]


async def _call_one(gateway: Gateway, ctx: Context, call: Any) -> _Outcome:
    name = ""
    try:
        if not isinstance(call, Mapping):
            raise InvalidRequest("Each call must be an object with the name of a tool and its arguments.")
        name, given, loose = parse_execute(call)
        found = await gateway.find(ctx, name)
        return _Outcome(name=name, tool=found.tool, result=await gateway.run(ctx, found, given, loose=loose))
    except ToolcribError as error:
        return _Outcome(name=name, error=error)


def _result_value(result: ToolResult) -> Any:
    value = script_value(result)
    if result.structured is None and isinstance(value, dict) and "content" in value:
        return [block for block in value["content"] if block.get("type") == "text"]
    return value
