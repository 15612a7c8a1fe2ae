"""The surface `dynamic`: five meta-tools to list, search, describe and call tools, as agent loops know them."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Final

from toolcrib.containment import own_errors_only
from toolcrib.discovery.envelope import Envelope, to_envelope
from toolcrib.discovery.guards import Guard, GuardOptions
from toolcrib.discovery.host_tools import META_TOOLS, MetaTools, ToolPage
from toolcrib.formats.openai import chat_tool
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.sessions import session_key
from toolcrib.gateway.startup import missing_note
from toolcrib.gateway.view import ResolvedTool
from toolcrib.providers.content import json_text
from toolcrib.results.store import ResultStore
from toolcrib.schema.compact import compact
from toolcrib.surfaces.facade import SEARCH_INTRODUCTION, CallerView, MetaToolHandler, PassOn, listed_meta_tool
from toolcrib.surfaces.reply import ReplyRenderer, shorten, similar_names, text_result
from toolcrib.surfaces.results import READ_RESULT, Continuation, ResultBudget
from toolcrib.surfaces.selection import Level, is_worth_naming, shares
from toolcrib.tokens import ESTIMATE, counter
from toolcrib.types import Context, Hit, Object, SearchReply, SearchRequest, Tool, ToolResult

_LIST_CHARS: Final = 200
"""Characters of a description in `list_tools`."""
_SEARCH_CHARS: Final = {True: 500, False: 100}
"""Characters of a description in `search_tools`, for a hit that comes with its schema, and for others."""
_LISTED: Final = tuple(map(listed_meta_tool, META_TOOLS))


class DynamicSurface:
    """Five meta-tools; each answer says whether it succeeded."""

    name = "dynamic"
    introduction = SEARCH_INTRODUCTION
    lists_all = False
    describes_servers = False
    passes_on: Mapping[str, PassOn] = {}
    reads_results = Continuation("call_tool", '{"tool_name":"read_result","arguments":{ARGUMENTS}}')

    def __init__(
        self, gateway: Gateway, guards: GuardOptions | None = None, *, budget: int = 800, tokens: str = ESTIMATE
    ) -> None:
        """`guards` say when to warn a session that it repeats itself.

        `budget` is that of a search, in tokens, 0 for no limit; `tokens` names the counter, as `tokens.counter` does.
        """
        self._gateway = gateway
        self._budget = budget or None
        self._replies = ReplyRenderer(counter(tokens), gateway.definitions)
        self._results = ResultBudget(ResultStore(gateway.state, gateway.options.results), counter(tokens))
        self.handlers: dict[str, MetaToolHandler] = {tool.name: partial(self._run, tool.name) for tool in META_TOOLS}
        self._guards = guards or GuardOptions()
        self._guarded: OrderedDict[str, Guard] = OrderedDict()

    def meta_tools(self, caller: CallerView) -> tuple[Tool, ...]:  # noqa: ARG002 - a Surface
        """All five, always."""
        return _LISTED

    async def _run(self, name: str, ctx: Context, arguments: Object) -> ToolResult:
        """The answer is `{"success": ...}`, as text and as structured content."""
        port = GatewayPort(self._gateway, ctx, self._replies, self._budget, self._results)
        session = await self._gateway.sessions.get(ctx)
        meta = MetaTools(port, guard=self._guard(ctx), turn=lambda: session.turn)
        answer = await meta.run(name, arguments)
        if port.note and answer["success"] is True:
            answer = {**answer, "note": f"{answer.get('note', '')} {port.note}".strip()}
        result = port.result
        if result is not None and result.kind == "input_required":
            return result
        made = text_result(json_text(answer), structured=answer, is_error=answer["success"] is False)
        more = tuple(block for block in result.content if block.get("type") != "text") if result is not None else ()
        return replace(made, content=(*made.content, *more), meta=result.meta if result is not None else {})

    def _guard(self, ctx: Context) -> Guard:
        """Return the guard of a session; the one unused for longest is forgotten first."""
        key = session_key(ctx)
        if key is None:
            return Guard(self._guards)
        guard = self._guarded.setdefault(key, Guard(self._guards))
        self._guarded.move_to_end(key)
        if len(self._guarded) > self._gateway.options.sessions.sessions:
            self._guarded.popitem(last=False)
        return guard


class GatewayPort:
    """Connects the meta-tools to a gateway for one request, with the rights of its context."""

    def __init__(
        self, gateway: Gateway, ctx: Context, replies: ReplyRenderer, budget: int | None, results: ResultBudget
    ) -> None:
        self._gateway = gateway
        self._ctx = ctx
        self._replies = replies
        self._budget = budget
        self._results = results
        self.result: ToolResult | None = None
        """The whole result of the last call."""
        self.note = ""
        """What the last list or search says about servers that are still starting."""
        self._is_admitted = False

    async def list(self, limit: int) -> ToolPage:
        """The first tools, by id."""
        with own_errors_only():
            tools = await self._gateway.tools(self._ctx)
            self.note = missing_note(await self._gateway.servers(self._ctx))
        return ToolPage(entries=[_short_entry(tool, _LIST_CHARS) for tool in tools[:limit]], total=len(tools))

    async def find(self, query: str | Sequence[str], limit: int) -> Sequence[Object]:
        """The best matches first, likely ones with their parameters."""
        request = SearchRequest.of(query, limit=limit, budget=self._budget, group_same=True)
        with own_errors_only():
            reply = await self._gateway.search(self._ctx, request)
            reply = replace(reply, hits=_worth_naming(reply.hits, limit), cursor=None)
            self.note = missing_note(reply.servers)
            render, queue = partial(self._entries, reply, request), self._gateway.admission.queue
            return await self._replies.run(reply.hits, render, economical=True, queue=queue, caller=self._ctx.caller)

    def _entries(self, reply: SearchReply, request: SearchRequest) -> Sequence[Object]:
        levels = self._replies.levels(reply, request, economical=True)
        self._replies.report(reply, request, levels)
        return [self._entry(hit, level) for hit, level in zip(reply.hits, levels, strict=True) if level is not None]

    def _entry(self, hit: Hit, level: Level) -> dict[str, Any]:
        entry = _short_entry(hit.tool, _SEARCH_CHARS[level >= Level.REQUIRED])
        entry |= {"score": round(hit.score, 3), **similar_names(hit)}
        details = self._replies.hits.call_details(hit.tool, level)
        details.pop("example", None)  # it has the form that `execute_tool` takes
        if "input_schema" in details:
            entry["parameters"] = details.pop("input_schema")
        return entry | details

    async def schema(self, name: str) -> Object:
        """The tool as an OpenAI function definition, under a name that `call` accepts."""
        async with self._admitted(name):
            found = await self._find(name)
        if self._gateway.definitions is not None:
            cost = self._replies.hits.definition_cost(found.tool)
            self._gateway.definitions.tools_shown({found.tool.namespace: cost})
        tool = replace(found.tool, input_schema=compact(found.tool.input_schema))
        return chat_tool(tool, name=found.wire_name)

    async def _find(self, name: str) -> ResolvedTool:
        with own_errors_only():
            return await self._gateway.find(self._ctx, name)

    def _admitted(self, name: str) -> AbstractAsyncContextManager[None]:
        """Admit a description; several of one request count once."""
        if self._is_admitted:
            return nullcontext()
        self._is_admitted = True
        return self._gateway.admission.admitted(self._ctx, "describe", name)

    async def call(self, name: str, given: Any, loose: Object) -> Envelope:
        """Call a tool, and wrap its result in an envelope."""
        if name == READ_RESULT:
            return to_envelope(await self._results.read(self._ctx, given if isinstance(given, Mapping) else loose))
        found = await self._find(name)
        result = await self._gateway.run(self._ctx, found, given, loose=loose)
        self.result = await self._results.fit(self._ctx, found.tool, result, DynamicSurface.reads_results)
        if self.result is not result:  # the link goes beside the envelope
            texts = tuple(block for block in self.result.content if block.get("type") == "text")
            return to_envelope(replace(self.result, content=texts))
        return to_envelope(self.result)


def _worth_naming(hits: Sequence[Hit], limit: int) -> tuple[Hit, ...]:
    """The hits without unlikely ones that are there only because others stand for several tools each."""
    counts = accumulate(1 + len(hit.similar) for hit in hits)
    rows = zip(hits, shares(hits), counts, strict=True)
    return tuple(hit for hit, share, count in rows if count <= limit or hit is hits[0] or is_worth_naming(share))


def _short_entry(tool: Tool, limit: int) -> dict[str, Any]:
    return {"name": tool.id, "namespace": tool.namespace, "description": shorten(tool.description, limit)}
