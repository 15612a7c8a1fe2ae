"""Prompts and resources of all servers, for one caller at a time: listed, got, read, completed, watched.

What the policy denies is treated as if it did not exist. Requests go the way of calls: audit, approval, limits,
breaker and retries hold for them, under the id `namespace:name` of a prompt and `namespace:uri` of a resource.
"""

import contextlib
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import anyio

from toolcrib.errors import (
    ApprovalRequired,
    InvalidRequest,
    NotFound,
    NotStarted,
    ToolcribError,
    UpstreamError,
)
from toolcrib.gateway.addresses import LONGEST, expanded, taken_apart
from toolcrib.gateway.documents import Collection, Collections, Document, Kind, judged, namespace_of, stand_ins
from toolcrib.gateway.live import Live
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.reports import statuses_of
from toolcrib.gateway.road import Road
from toolcrib.gateway.routes import Place, Routes, no_resource
from toolcrib.gateway.sessions import LOCAL
from toolcrib.gateway.view import Found, may_see
from toolcrib.model import Caller, Decision, Object, ServerState, Tool, ToolResult
from toolcrib.protocols import Backend, Context, DocumentSource, DueTo, Policy, Unsubscribe
from toolcrib.schema import Schema

_ANY: Final = Schema({"type": "object"}, "a document")
_NO_COMPLETION: Final = {"completion": {"values": [], "total": 0, "hasMore": False}}
_PREFIX: Final = 2048
"""Characters that an address has beside its server's own URI, at most."""
_SHOWN: Final = 200
"""Characters of a name or URI that an error repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Which kinds of requests some server of the caller's answers, or may answer once it is connected."""

    prompts: bool = False
    resources: bool = False
    completions: bool = False
    watches: bool = False
    says: bool = False
    """Whether there may be messages for a log."""


class Library:
    """What a gateway's servers offer to read."""

    def __init__(self, live: Live, policy: Policy, road: Road, options: GatewayOptions) -> None:
        """Of the servers that `live` knows."""
        self._live = live
        self._policy = policy
        self._road = road
        self._options = options
        self._collections = Collections(live.backends, policy)
        self._routes = Routes(self._collections, policy)
        self._awaited: weakref.WeakSet[object] = weakref.WeakSet()
        self._heard: weakref.WeakSet[object] = weakref.WeakSet()
        self._listeners: dict[object, tuple[Context, Callable[[Object], None]]] = {}
        self._attending = False

    # -- listing ---------------------------------------------------------------------------------------------------

    async def collection(self, ctx: Context) -> Collection:
        """What the caller sees; shortly after a server's start, once that has listed what it offers."""
        await self._waited(ctx)
        return await self._collections.of(ctx.caller)

    async def _waited(self, ctx: Context) -> None:
        await self._live.grace()
        await self._live.ready()
        await self._settled(ctx.caller)

    async def mark(self, ctx: Context, *kinds: Kind) -> str:
        """Stands for the caller's lists of these kinds; without waiting for any server."""
        await self._live.ready()
        marks = await self._collections.marks(ctx.caller)
        return " ".join(marks[kind] for kind in kinds)

    async def offered(self, ctx: Context) -> Offered:
        """What the caller may ask for, as far as it is known by now."""
        await self._live.ready()
        held = self._collections.held()
        sources = [(backend, documents) for backend, documents in held if self._knows(ctx.caller, backend)]
        if not held:
            return Offered()
        seen = await self._collections.of(ctx.caller)
        unknown = any(documents is None for _, documents in sources)
        known = [documents for _, documents in sources if documents is not None]
        has_resources = bool(seen.resources or seen.templates) or any(one.reads for one in known)
        return Offered(
            prompts=unknown or bool(seen.prompts),
            resources=unknown or has_resources,
            completions=unknown or any(one.completes for one in known),
            watches=unknown or any(one.watches for one in known),
            says=bool(sources),
        )

    def _knows(self, caller: Caller, backend: Backend) -> bool:
        """Whether the caller may know of the server, by itself."""
        return may_see(self._policy, caller, Tool(name="", namespace=namespace_of(backend)))

    async def _settled(self, caller: Caller) -> None:
        """Wait, once for each server, until one that is connected has listed what it offers."""
        late = [
            backend.provider
            for backend, documents in self._collections.held()
            if documents is None and backend.provider not in self._awaited and self._knows(caller, backend)
        ]
        with anyio.move_on_after(self._options.start_grace_s), contextlib.suppress(NotStarted):
            while any(_is_listing(provider) for provider in late):
                await self._live.changed()
        for provider in late:
            if _is_ready(provider):
                self._awaited.add(provider)

    # -- asking ----------------------------------------------------------------------------------------------------

    async def get(self, ctx: Context, name: str, arguments: Object | None) -> ToolResult:
        """The answer to `prompts/get`, under the prompt's public name or its id `namespace:name`.

        Raises `NotFound`, `ApprovalRequired` or another `ExecutionFailed`, as calls do.
        """
        _check(name, "name")
        collection = await self.collection(ctx)
        document = _prompt(collection, name)
        if document is None or self._judged(ctx, document)[0] is _HIDE:
            raise self._refused(ctx, name, _no_prompt(name))
        params = {"name": document.name, **({"arguments": dict(arguments)} if arguments is not None else {})}
        result = await self._asked(ctx, document.known_as[0], document.backends, "prompts/get", params)
        if result.kind != "complete":
            return result
        messages = [self._routes.message(ctx, document.namespace, one) for one in result.structured["messages"]]
        return replace(result, structured={**result.structured, "messages": messages})

    async def read(self, ctx: Context, uri: str) -> ToolResult:
        """The answer to `resources/read`, without parts under URIs that the policy hides.

        Raises `NotFound`, `AmbiguousName`, `InvalidRequest` for a URI that is too long, and as `get` does.
        """
        place = await self._placed(ctx, uri)
        _, tool = judged(self._policy, ctx.caller, stand_ins("resources", place.namespace, place.uri))
        result = await self._asked(ctx, tool, place.backends, "resources/read", {"uri": place.uri})
        if result.kind != "complete":
            return result
        contents = [
            self._part(ctx, place, uri, part)
            for part in result.structured["contents"]
            if part.get("uri") == place.uri or not self._is_hidden(ctx, place, part.get("uri"))
        ]
        return replace(result, structured={**result.structured, "contents": contents})

    async def complete(self, ctx: Context, params: Object) -> ToolResult:
        """The answer to `completion/complete`, for a prompt or template that the caller sees; empty where its server
        completes nothing. Values are left out that would make a template's URI one that the policy hides.

        Raises `NotFound`, `InvalidRequest`, or an `ExecutionFailed`.
        """
        ref = params["ref"]
        is_prompt = ref.get("type") == "ref/prompt"
        key = "name" if is_prompt else "uri"
        named = str(ref.get(key))
        _check(named, "ref.name") if is_prompt else _check_uri(named, "ref.uri")
        collection = await self.collection(ctx)
        document = _prompt(collection, named) if is_prompt else collection.templates.get(named)
        decision, tool = self._judged(ctx, document) if document else (_HIDE, None)
        if document is None or tool is None or decision is _HIDE:
            raise self._refused(ctx, named, _no_prompt(named) if is_prompt else no_resource(named))
        able = [one for one in document.backends if _offers(one, "completes")]
        if decision is not Decision.ALLOW or not able:
            return ToolResult(structured=_NO_COMPLETION)
        asked = {**params, "ref": {**ref, key: document.name}}
        result = await self._asked(ctx, tool, able, "completion/complete", asked)
        if is_prompt or result.kind != "complete":
            return result
        return self._without_hidden(ctx, document, params, result)

    def _without_hidden(self, ctx: Context, document: Document, params: Object, result: ToolResult) -> ToolResult:
        """Without the values that lead to a hidden URI, as far as the other values of its template are known."""
        completion = result.structured.get("completion")
        argument = params.get("argument", {}).get("name")
        given = (params.get("context") or {}).get("arguments") or {}
        if not isinstance(completion, Mapping) or not isinstance(completion.get("values"), list):
            return result

        def is_hidden(value: str) -> bool:
            uri = expanded(document.name, {**given, argument: value})
            return uri is not None and self._routes.hides(ctx.caller, document.namespace, uri)

        values = [value for value in completion["values"] if not is_hidden(str(value))]
        if len(values) == len(completion["values"]):
            return result
        left = {**{key: value for key, value in completion.items() if key != "total"}, "values": values}
        return replace(result, structured={**result.structured, "completion": left})

    async def watch(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call back, with the public URI, whenever the resource changed, or one below it that is not hidden.

        Goes the way of calls. Raises as `read` does, and `InvalidRequest` for a server that tells of no changes.
        """
        place = await self._placed(ctx, uri)
        decision, tool = judged(self._policy, ctx.caller, stand_ins("resources", place.namespace, place.uri))
        if decision is not Decision.ALLOW:
            raise self._refused(ctx, tool.id, _unwatched(uri))
        able = [one for one in place.backends if _offers(one, "watches", unknown=True)]
        if not able:
            raise InvalidRequest(f"The server of {uri[:_SHOWN]} does not tell of changes.", hint="Read it again.")
        ends: list[Unsubscribe] = []

        def changed(own: str) -> None:
            if own == place.uri:
                callback(uri)
            elif not self._is_hidden(ctx, place, own):
                callback(self._routes.shown(ctx, place.namespace, own))

        async def begin(source: DocumentSource, ctx: Context, _params: Object) -> ToolResult:
            ends.append(await source.watch(ctx, place.uri, changed))
            return ToolResult(structured={})

        is_watched = False
        try:
            is_watched = (await self._travelled(ctx, tool, able, begin, {"uri": place.uri})).kind == "complete"
        finally:
            for end in () if is_watched else ends:
                end()
        if not is_watched:
            raise _unwatched(uri)
        return ends[-1] if ends else _nothing

    async def _placed(self, ctx: Context, uri: str) -> Place:
        _check_uri(uri, "uri")
        await self._waited(ctx)
        try:
            return self._routes.place(ctx, uri)
        except ToolcribError as error:
            self._road.refused(ctx, uri, error)
            raise

    def _part(self, ctx: Context, place: Place, uri: str, part: Object) -> Object:
        """A part of what was read, under the URI that was asked for where it is all of it."""
        if part.get("uri") == place.uri:
            return {**part, "uri": uri}
        return self._routes.pointing(ctx, place.namespace, part)

    def _is_hidden(self, ctx: Context, place: Place, uri: object) -> bool:
        return isinstance(uri, str) and self._routes.hides(ctx.caller, place.namespace, uri)

    def readdressed(self, ctx: Context, namespace: str, result: ToolResult) -> ToolResult:
        """A tool's result, in which every resource can be read by the URI that it gives."""
        return self._routes.readdressed(ctx, namespace, result)

    def hear(self, ctx: Context, callback: Callable[[Object], None]) -> Unsubscribe:
        """Call back with what servers, of which the caller may know, say for a log, where it is due to him alone."""
        place = object()
        if not self._attending:
            self._attending = True
            self._live.subscribe(self._attend)
        self._listeners[place] = (ctx, callback)
        self._attend()
        return lambda: (self._listeners.pop(place, None), None)[1]

    def _attend(self) -> None:
        """Listen to every server that there is by now."""
        for backend, _ in self._collections.held():
            if backend.provider not in self._heard:
                self._heard.add(backend.provider)
                cast("DocumentSource", backend.provider).hear(partial(self._said, backend))

    def _said(self, backend: Backend, due_to: DueTo | None, message: Object) -> None:
        for ctx, callback in tuple(self._listeners.values()):
            if due_to is not None and _is_his(ctx, due_to) and self._knows(ctx.caller, backend):
                callback(message)

    async def _asked(
        self, ctx: Context, tool: Tool, backends: Sequence[Backend], method: str, params: dict[str, Any]
    ) -> ToolResult:
        """The answer to one request of a server, the way of calls."""

        async def ask(source: DocumentSource, ctx: Context, params: Object) -> ToolResult:
            return await source.ask(ctx, method, params)

        result = await self._travelled(ctx, tool, backends, ask, params)
        if result.kind == "complete" and not isinstance(result.structured, Mapping):
            raise UpstreamError(f"{tool.id[:_SHOWN]} was answered with something else than what {method} gives.")
        return result

    async def _travelled(
        self, ctx: Context, tool: Tool, backends: Sequence[Backend], ask: "_Ask", params: dict[str, Any]
    ) -> ToolResult:
        readers = tuple(replace(one, provider=_Reader(cast("DocumentSource", one.provider), ask)) for one in backends)
        return await self._road.travel(ctx, Found(tool, readers, _ANY, tool.id), params)

    def _judged(self, ctx: Context, document: Document) -> tuple[Decision, Tool]:
        return judged(self._policy, ctx.caller, document.known_as)

    def _refused(self, ctx: Context, name: str, error: ToolcribError) -> ToolcribError:
        self._road.refused(ctx, name, error)
        return error


_HIDE: Final = Decision.HIDE


_Ask = Callable[[DocumentSource, Context, Object], Awaitable[ToolResult]]


class _Reader:
    """A server as something that can be called."""

    def __init__(self, source: DocumentSource, ask: _Ask) -> None:
        self._source = source
        self._ask = ask

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        return ()

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:  # noqa: ARG002 - as above
        return await self._ask(self._source, ctx, arguments)


def _check_uri(uri: str, field: str) -> None:
    """As `_check`, where the server's namespace may stand before its own URI."""
    own = (taken_apart(uri) or ("", uri))[1]
    _check(uri if len(uri) > LONGEST + _PREFIX else own, field)


def _check(text: str, field: str) -> None:
    """Raise `InvalidRequest` for what no server can have, before anything is looked up or kept by it."""
    if len(text) > LONGEST:
        raise InvalidRequest(f"{field} is longer than {LONGEST} characters.", hint="Take it from a list.")


def _offers(backend: Backend, what: str, *, unknown: bool = False) -> bool:
    documents = cast("DocumentSource", backend.provider).documents()
    return unknown if documents is None else bool(getattr(documents, what))


def _unwatched(uri: str) -> ApprovalRequired:
    return ApprovalRequired(f"{uri[:_SHOWN]} cannot be watched: each look at it must be agreed to.")


def _nothing() -> None:
    """Ends what a middleware kept from beginning."""


def _prompt(collection: Collection, name: str) -> Document | None:
    return collection.prompts.get(name) or collection.prompt_ids.get(name)


def _no_prompt(name: str) -> NotFound:
    return NotFound(f'No prompt is called "{name[:_SHOWN]}".', hint="List the prompts.")


def _is_ready(provider: object) -> bool:
    return any(status.state is ServerState.READY for status in statuses_of(cast("Any", provider)))


def _is_listing(provider: object) -> bool:
    return cast("DocumentSource", provider).documents() is None and _is_ready(provider)


def _is_his(ctx: Context, due_to: DueTo) -> bool:
    """Whether what is due to one caller may be told in this context: callers without authentication are known apart
    by their sessions alone.
    """
    caller, session = due_to
    if (caller.tenant, caller.id) != (ctx.caller.tenant, ctx.caller.id):
        return False
    return ctx.caller != LOCAL or (session is not None and session == ctx.session)
