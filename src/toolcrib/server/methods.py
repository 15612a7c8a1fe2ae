"""What the gateway answers to each method: tools, tasks, prompts, resources and completion, in the client's version.

A method is a coroutine function from an `Exchange` to its result, as wire JSON; it raises `ToolcribError` and
`RpcError`. Nothing here knows how a request came or where the result goes.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import anyio.lowlevel
from pydantic_core import to_json

from toolcrib.catalog import Page, page
from toolcrib.containment import isolate
from toolcrib.errors import AmbiguousName, NotFound, ToolcribError, UpstreamError
from toolcrib.formats import mcp
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.nested_calls import RunCall, resolve_input_required
from toolcrib.protocol.content import TOOL
from toolcrib.protocol.failures import INTERNAL_ERROR, METHOD_NOT_FOUND, RpcError
from toolcrib.protocol.headers import check_param_headers, read_header_map
from toolcrib.protocol.messages import RawJson
from toolcrib.protocol.serving import ServerSession
from toolcrib.protocol.versions import RELATED_TASK_KEY, has_tasks, is_defined, is_modern
from toolcrib.resources.listing import DocumentCollection, DocumentKind, ListedDocument
from toolcrib.server.context import (
    RequestClient,
    as_server_errors,
    detach,
    to_context,
    with_replica,
)
from toolcrib.server.exchange import Exchange
from toolcrib.surfaces.facade import ListedTool, ToolFacade
from toolcrib.surfaces.reply import error_result
from toolcrib.types import LACKING_SCOPES, PATH_META, Context, Object, ToolResult
from toolcrib.wire import (
    VIA_KEY,
    document_to_wire,
    entry_for_version,
    is_encodable,
    replace_surrogates,
    result_to_wire,
)

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

Method: TypeAlias = Callable[[Exchange], Awaitable[dict[str, Any]]]
"""Answers the requests of one method."""
StartTask: TypeAlias = Callable[[Exchange], Awaitable[dict[str, Any] | None]]
ReportTask: TypeAlias = Callable[[ServerSession | None, dict[str, Any]], None]
"""Sends a session the status of a task."""

LIST_TTL_MS: Final = 5_000
"""How long a client may cache a list. Short, because servers come and go."""
_PAGE_BYTES: Final = 524_288
_RESULT_KEYS: Final[Mapping[DocumentKind, str]] = {
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resourceTemplates",
}
_DOCUMENT_PARTS: Final = {"prompts/get": "messages", "resources/read": "contents"}
BLOCKS_PER_STEP: Final = 200
"""How many parts of a result are checked or encoded before other requests get a turn."""
_MAX_ENTRIES: Final = 65_536
"""How many entries of tools are kept. Each takes as much as on the wire."""


class ToolMethods:
    """`tools/list` and `tools/call`."""

    def __init__(self, facade: ToolFacade, start_task: StartTask) -> None:
        """`start_task` answers a call that is to run as a task; it returns None for any other."""
        self._facade = facade
        self._start_task = start_task
        self._admission = facade.gateway.admission
        self._entries = EntryCache()

    async def list(self, exchange: Exchange) -> dict[str, Any]:
        """One page of `tools/list`, whose entries are encoded already."""
        ctx, version = to_context(exchange), exchange.version
        page = await isolate(partial(self._facade.page, ctx, exchange.params.get("cursor")))
        write = partial(self._entries.encoded, page.items, version)
        result: dict[str, Any] = {"tools": await self._admission.queue.run(ctx.caller, write)}
        if page.cursor:
            result["nextCursor"] = page.cursor
        if is_modern(version):
            ttl = 0 if ctx.show_all or ctx.providers or ctx.overriding else LIST_TTL_MS
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": ttl}
        return result

    async def call(self, exchange: Exchange) -> dict[str, Any]:
        """`tools/call`, for a meta-tool or a tool by its public name."""
        params = exchange.params
        if "task" in params and (task := await self._start_task(exchange)) is not None:
            return task
        name, arguments, ctx = params["name"], params.get("arguments") or {}, to_context(exchange, repeats=True)
        run = self._facade.own_call(ctx, name, arguments)
        if run is None:
            check = (
                partial(_check_headers, exchange.head.headers, arguments)
                if exchange.head.headers and exchange.is_modern
                else None
            )
            run = isolated(partial(self._facade.call, name=name, arguments=arguments, check_headers=check))
        try:
            result = await (run(ctx) if exchange.is_modern else resolve_input_required(ctx, run))
        except ToolcribError as error:
            result = error_as_result(error)
        if result.is_error and ctx.memo and (lacking := ctx.memo.get(LACKING_SCOPES)):
            exchange.ask_for_scopes(lacking)
        if result.request_state is not None:
            result = with_replica(exchange, result)
        if len(result.content) > BLOCKS_PER_STEP:
            return await result_in_steps(result, exchange.version)
        return result_to_wire(result, exchange.version)


def _check_headers(headers: Mapping[str, str], arguments: Object, schema: Object) -> None:
    """Raise `RpcError` if an `Mcp-Param-*` header is not what the arguments say.

    An invalid declaration, which clients ignore too, says nothing.
    """
    try:
        declared = read_header_map(schema)
    except ValueError:
        return
    check_param_headers(headers, declared, arguments)


def isolated(run: RunCall) -> RunCall:
    """The same call in a task of its own, as it may run code of others."""
    return lambda ctx: isolate(partial(run, ctx))


def error_as_result(error: ToolcribError) -> ToolResult:
    """The result that says what a call has ended with. Raises errors that concern the request, and `RpcError`."""
    if isinstance(error, NotFound | AmbiguousName):
        raise error
    if isinstance(error, UpstreamError) and error.rpc_error is not None:
        raise RpcError.of(error.rpc_error) from error
    return error_result(error)


async def result_in_steps(result: ToolResult, version: str) -> dict[str, Any]:
    """The result for a client of the version; other requests are served between the checks of many blocks."""
    content = result.content
    if len(content) <= BLOCKS_PER_STEP:
        return result_to_wire(result, version)
    checked: list[Object] = []
    for start in range(0, len(content), BLOCKS_PER_STEP):
        part = ToolResult(content=content[start : start + BLOCKS_PER_STEP])
        checked += result_to_wire(part, version)["content"]
        await anyio.lowlevel.checkpoint()
    return {**result_to_wire(replace(result, content=()), version), "content": checked}


class TaskMethods:
    """What answers requests about tasks: calls of tools that run as one, and what became of them.

    Version 2025-11-25 has tasks in the protocol. Earlier versions have none, and 2026-07-28 has made them an extension.
    """

    def __init__(self, facade: ToolFacade, report: ReportTask) -> None:
        self._facade = facade
        self._tasks = facade.gateway.tasks
        self._report = report

    def table(self) -> dict[str, Method]:
        """What answers each method."""
        return {
            "tasks/get": self.get,
            "tasks/cancel": self.cancel,
            "tasks/result": self.result,
            "tasks/list": self.list,
        }

    async def start(self, exchange: Exchange) -> dict[str, Any] | None:
        """Answer a call that is to run as a task with the task; None for one that is not.

        A meta-tool runs without one, as for clients that know none.
        """
        asked, name = exchange.params.get("task"), exchange.params["name"]
        if not has_tasks(exchange.version) or not isinstance(asked, Mapping) or exchange.session_id is None:
            return None
        ctx = to_context(exchange)
        if not await isolate(partial(self._facade.offers_tasks, ctx)):
            return None
        if name in self._facade.meta_names and not ctx.show_all:
            return None
        found = await isolate(partial(self._facade.task_tool, ctx, name))
        if found is None:
            raise RpcError(METHOD_NOT_FOUND, "This tool does not run as a task; call it without one.", name)
        ttl_ms, arguments = asked.get("ttl"), exchange.params.get("arguments") or {}

        def report(status: Object) -> None:
            self._report(exchange.session, _sendable(status))

        async def run(round_ctx: Context) -> ToolResult:
            return await self._tasks.start(round_ctx, found, arguments, ttl_ms, report)

        try:
            result = await resolve_input_required(to_context(exchange, repeats=True), isolated(run))
        except ToolcribError as error:
            result = error_as_result(error)
        if result.kind != "task":
            raise RpcError(INTERNAL_ERROR, result.text, result.structured)
        return {"task": _sendable(result.structured)}

    async def get(self, exchange: Exchange) -> dict[str, Any]:
        """`tasks/get`."""
        return _sendable(await _answer_task(exchange, partial(self._tasks.get, task_id=exchange.params["taskId"])))

    async def cancel(self, exchange: Exchange) -> dict[str, Any]:
        """`tasks/cancel`."""
        return _sendable(await _answer_task(exchange, partial(self._tasks.cancel, task_id=exchange.params["taskId"])))

    async def result(self, exchange: Exchange) -> dict[str, Any]:
        """`tasks/result`."""
        task_id = exchange.params["taskId"]
        wire = await result_in_steps(
            await _answer_task(exchange, partial(self._tasks.result, task_id=task_id)), exchange.version
        )
        return {**wire, "_meta": {**wire.get("_meta", {}), RELATED_TASK_KEY: {"taskId": task_id}}}

    async def list(self, exchange: Exchange) -> dict[str, Any]:
        """`tasks/list`."""
        tasks, cursor = await _answer_task(exchange, partial(self._tasks.list, cursor=exchange.params.get("cursor")))
        page: dict[str, Any] = {"tasks": [_sendable(task) for task in tasks]}
        return {**page, "nextCursor": cursor} if cursor else page


async def _answer_task(exchange: Exchange, work: Callable[[Context], Awaitable[_T]]) -> _T:
    return await as_server_errors(partial(work, to_context(exchange)))


def _sendable(task: Object) -> dict[str, Any]:
    wire = dict(task)
    return wire if is_encodable(wire) else dict(replace_surrogates(wire))


class DocumentMethods:
    """Prompts, resources and completion."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._resources = gateway.resources

    def table(self) -> dict[str, Method]:
        """What answers each method."""
        return {
            "prompts/list": partial(self.list, "prompts"),
            "resources/list": partial(self.list, "resources"),
            "resources/templates/list": partial(self.list, "templates"),
            "prompts/get": self.get,
            "resources/read": self.read,
            "completion/complete": self.complete,
        }

    async def list(self, kind: DocumentKind, exchange: Exchange) -> dict[str, Any]:
        """One page of `prompts/list`, `resources/list` or `resources/templates/list`."""
        ctx = to_context(exchange)
        part = await isolate(partial(self._page, ctx, kind, exchange.method, exchange.params.get("cursor")))
        entries = [document.entry for document in part.items]
        if PATH_META in ctx.meta and self._gateway.gateway_id:
            entries = [_with_via(entry, self._gateway.gateway_id) for entry in entries]
        result: dict[str, Any] = {_RESULT_KEYS[kind]: entries}
        if part.cursor:
            result["nextCursor"] = part.cursor
        if exchange.is_modern:
            result |= {"resultType": "complete", "cacheScope": "private", "ttlMs": LIST_TTL_MS}
        return result

    async def _page(self, ctx: Context, kind: DocumentKind, method: str, cursor: str | None) -> Page[ListedDocument]:
        admission = self._gateway.admission
        async with admission.admitted(ctx, method):
            collection = await self._resources.collection(ctx)
            return await admission.queue.run(ctx.caller, partial(_page_of, collection, kind, cursor))

    async def get(self, exchange: Exchange) -> dict[str, Any]:
        """`prompts/get`."""
        params = exchange.params
        run = partial(self._resources.get_prompt, name=params["name"], arguments=params.get("arguments"))
        return await _respond(exchange, partial(resolve_input_required, to_context(exchange, repeats=True), run))

    async def read(self, exchange: Exchange) -> dict[str, Any]:
        """`resources/read`."""
        uri = exchange.params["uri"]
        run = partial(self._resources.read_resource, uri=uri)
        try:
            return await _respond(exchange, partial(resolve_input_required, to_context(exchange, repeats=True), run))
        except RpcError as error:
            if not isinstance(error.__cause__, NotFound):
                raise
            raise RpcError(error.code, error.message, {**error.__cause__.payload(), "uri": uri}) from error

    async def complete(self, exchange: Exchange) -> dict[str, Any]:
        """`completion/complete`."""
        wanted = {key: value for key, value in exchange.params.items() if key != "_meta"}
        return await _respond(exchange, partial(self._resources.complete, to_context(exchange), wanted))

    async def extension(self, exchange: Exchange) -> dict[str, Any]:
        """A method that no version defines: the result of the server that knows it, as it came."""
        ctx = to_context(exchange, repeats=True) if exchange.is_modern else to_context(exchange)
        answers = {"inputResponses": ctx.input_responses, "requestState": ctx.request_state}  # not the server's alone
        params = {key: value for key, value in exchange.params.items() if key != "_meta" and answers.get(key) is None}
        ask = partial(self._resources.extensions.request, ctx, exchange.method, params)
        result = None if is_defined(exchange.method) else await as_server_errors(ask)
        if result is None:
            raise RpcError(METHOD_NOT_FOUND, "Method not found", exchange.method)
        if result.kind != "complete":
            return result_to_wire(with_replica(exchange, result), exchange.version)
        return dict(result.structured)

    async def extension_notified(self, exchange: Exchange) -> None:
        """A notification that no version defines: forward it to the servers that declare its extension."""
        ctx = to_context(exchange)
        params = {key: value for key, value in exchange.params.items() if key != "_meta"}
        async with self._gateway.admission.admitted(ctx, exchange.method):
            await self._resources.extensions.notify(ctx, exchange.method, params)

    async def roots_changed(self, exchange: Exchange) -> None:
        """`notifications/roots/list_changed`: forward it to the servers that the session uses."""
        self._resources.roots_changed(replace(detach(to_context(exchange)), client=RequestClient(exchange)))


def _page_of(collection: DocumentCollection, kind: DocumentKind, cursor: str | None) -> Page[ListedDocument]:
    documents = tuple(collection.listed(kind).values())
    sizes = [document.size for document in documents]
    return page(documents, view_version=collection.digests[kind], cursor=cursor, sizes=sizes, max_size=_PAGE_BYTES)


async def _respond(exchange: Exchange, work: Callable[[], Awaitable[ToolResult]]) -> dict[str, Any]:
    """The result of a server in the client's protocol version. An error of the server keeps its JSON-RPC code."""

    async def respond() -> dict[str, Any]:
        result = with_replica(exchange, await work())
        return await _document_in_steps(exchange.method, result, exchange.version)

    return await as_server_errors(respond)


async def _document_in_steps(method: str, result: ToolResult, version: str) -> dict[str, Any]:
    """The same as `result_in_steps` for a prompt or a resource. Raises `UpstreamError`."""
    key = _DOCUMENT_PARTS.get(method, "")
    parts = result.structured.get(key, ()) if isinstance(result.structured, Mapping) else ()
    if len(parts) <= BLOCKS_PER_STEP:
        return document_to_wire(method, result, version)
    checked: list[Object] = []
    for start in range(0, len(parts), BLOCKS_PER_STEP):
        part = replace(result, structured={key: parts[start : start + BLOCKS_PER_STEP]})
        checked += document_to_wire(method, part, version)[key]
        await anyio.lowlevel.checkpoint()
    rest = document_to_wire(method, replace(result, structured={**result.structured, key: []}), version)
    return {**rest, key: checked}


def _with_via(entry: Object, gateway_id: str) -> Object:
    """An entry for another gateway, with the id of this one, so that this gateway recognizes it if it comes back."""
    meta = entry.get("_meta")
    known = meta if isinstance(meta, Mapping) else {}
    via = known.get(VIA_KEY)
    return {**entry, "_meta": {**known, VIA_KEY: [*(via if isinstance(via, list) else ()), gateway_id]}}


# -- entries of lists of tools -----------------------------------------------------------------------------------------


class EntryCache:
    """Encoded entries of listed tools, by definition and protocol era. Forgets the oldest entries first."""

    def __init__(self, limit: int = _MAX_ENTRIES) -> None:
        self._limit = limit
        self._entries: OrderedDict[tuple[bytes, bool], bytes | None] = OrderedDict()

    def encoded(self, tools: Iterable[ListedTool], version: str) -> RawJson:
        """The list of these tools in the shape of the protocol version, without those that it cannot represent."""
        entries = [entry for entry in (self._get(tool, version) for tool in tools) if entry is not None]
        return RawJson(b"[%b]" % b",".join(entries))

    def _get(self, tool: ListedTool, version: str) -> bytes | None:
        key = (tool.fingerprint, is_modern(version))
        if key not in self._entries:
            self._entries[key] = _encode_entry(tool, version)
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)
        return self._entries[key]


def _encode_entry(tool: ListedTool, version: str) -> bytes | None:
    """An entry as JSON; None for one that a client of the version would not accept, and with it the whole list."""
    entry = entry_for_version(mcp.tool(tool.tool, name=tool.name), version)
    for part in ("annotations", "icons"):
        if part in entry:
            entry[part] = _without_nulls(entry[part])  # which some clients take for values of a wrong type
    if problem := TOOL(entry):
        logger.error("%s cannot be listed: its definition is invalid: %s", tool.tool.id, problem)
        return None
    try:
        return to_json(entry, inf_nan_mode="null", fallback=_plain)
    except ValueError as error:
        logger.error("%s cannot be listed: its definition is invalid: %s", tool.tool.id, error)  # noqa: TRY400 - no bug
        return None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: part for key, part in value.items() if part is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """What is written of a mapping or sequence of another type."""
    return dict(value) if isinstance(value, Mapping) else list(value)
