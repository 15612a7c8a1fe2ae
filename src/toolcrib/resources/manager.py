"""Prompts and resources of all servers, for one caller at a time: list, get, read, complete, subscribe.

What the policy denies looks as if it did not exist. Requests go through the call pipeline, so audit, approval, limits,
breaker and retries apply to them, under the id `namespace:name` of a prompt and `namespace:uri` of a resource.
"""

import contextlib
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import anyio

from toolcrib.errors import ApprovalRequired, InvalidRequest, NotFound, NotStarted, ToolcribError, UpstreamError
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.provider_state import provider_statuses
from toolcrib.gateway.refresh import CatalogRefresher
from toolcrib.gateway.sessions import LOCAL
from toolcrib.gateway.view import ResolvedTool, may_see
from toolcrib.middleware.pipeline import CallPipeline
from toolcrib.resources.listing import (
    CollectionCache,
    DocumentCollection,
    DocumentKind,
    ListedDocument,
    backend_namespace,
    policy_tools,
    strictest_decision,
)
from toolcrib.resources.router import ResourceLocation, UriRouter, resource_not_found
from toolcrib.resources.uris import MAX_URI_LENGTH, expand_template, split_qualified_uri
from toolcrib.schema import Schema
from toolcrib.types import (
    Backend,
    Caller,
    Context,
    Decision,
    DocumentSource,
    LogAudience,
    Object,
    Policy,
    ServerState,
    Tool,
    ToolResult,
    Unsubscribe,
)

_ANY_SCHEMA: Final = Schema({"type": "object"}, "a document")


_EMPTY_COMPLETION: Final = {"completion": {"values": [], "total": 0, "hasMore": False}}


_MAX_PREFIX: Final = 2048
"""Characters that an address has beside its server's own URI, at most."""


_MAX_SHOWN: Final = 200
"""Characters of a name or URI that an error repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCapabilities:
    """Which kinds of requests some server of the caller's answers, or may answer once it is connected."""

    prompts: bool = False
    resources: bool = False
    completions: bool = False
    subscriptions: bool = False
    logging: bool = False
    """Whether there may be messages for a log."""


class ResourceManager:
    """What a gateway's servers offer to read."""

    def __init__(self, live: CatalogRefresher, policy: Policy, road: CallPipeline, options: GatewayOptions) -> None:
        """Of the servers that `live` knows."""
        self._refresher = live
        self._policy = policy
        self._pipeline = road
        self._options = options
        self._collections = CollectionCache(live.backends, policy)
        self._routes = UriRouter(self._collections, policy)
        self._listed: weakref.WeakSet[object] = weakref.WeakSet()
        self._attached: weakref.WeakSet[object] = weakref.WeakSet()
        self._listeners: dict[object, tuple[Context, Callable[[Object], None]]] = {}
        self._follows_sources = False

    # -- listing ---------------------------------------------------------------------------------------------------

    async def collection(self, ctx: Context) -> DocumentCollection:
        """What the caller sees; shortly after a server's start, once that has listed what it offers."""
        await self._wait_for_lists(ctx)
        return await self._collections.for_caller(ctx.caller)

    async def _wait_for_lists(self, ctx: Context) -> None:
        await self._refresher.wait_startup()
        await self._refresher.wait_ready()
        await self._wait_for_listing(ctx.caller)

    async def digest(self, ctx: Context, *kinds: DocumentKind) -> str:
        """Stands for the caller's lists of these kinds; without waiting for any server."""
        await self._refresher.wait_ready()
        marks = await self._collections.digests(ctx.caller)
        return " ".join(marks[kind] for kind in kinds)

    async def capabilities(self, ctx: Context) -> DocumentCapabilities:
        """What the caller may ask for, as far as it is known by now."""
        await self._refresher.wait_ready()
        held = self._collections.sources()
        sources = [(backend, documents) for backend, documents in held if self._may_see_server(ctx.caller, backend)]
        if not held:
            return DocumentCapabilities()
        seen = await self._collections.for_caller(ctx.caller)
        unknown = any(documents is None for _, documents in sources)
        known = [documents for _, documents in sources if documents is not None]
        has_resources = bool(seen.resources or seen.templates) or any(one.reads for one in known)
        return DocumentCapabilities(
            prompts=unknown or bool(seen.prompts),
            resources=unknown or has_resources,
            completions=unknown or any(one.completes for one in known),
            subscriptions=unknown or any(one.watches for one in known),
            logging=bool(sources),
        )

    def _may_see_server(self, caller: Caller, backend: Backend) -> bool:
        """Whether the caller may know of the server, by itself."""
        return may_see(self._policy, caller, Tool(name="", namespace=backend_namespace(backend)))

    async def _wait_for_listing(self, caller: Caller) -> None:
        """Wait, once for each server, until one that is connected has listed what it offers."""
        late = [
            backend.provider
            for backend, documents in self._collections.sources()
            if documents is None and backend.provider not in self._listed and self._may_see_server(caller, backend)
        ]
        with anyio.move_on_after(self._options.start_grace_s), contextlib.suppress(NotStarted):
            while any(_is_still_listing(provider) for provider in late):
                await self._refresher.wait_changed()
        for provider in late:
            if _has_ready_server(provider):
                self._listed.add(provider)

    # -- asking ----------------------------------------------------------------------------------------------------

    async def get_prompt(self, ctx: Context, name: str, arguments: Object | None) -> ToolResult:
        """The answer to `prompts/get`, under the prompt's public name or its id `namespace:name`.

        Raises `NotFound`, `ApprovalRequired` or another `ExecutionFailed`, as calls do.
        """
        _check_length(name, "name")
        collection = await self.collection(ctx)
        document = _find_prompt(collection, name)
        if document is None or self._decide(ctx, document)[0] is _HIDE:
            raise self._audited(ctx, name, _prompt_not_found(name))
        params = {"name": document.name, **({"arguments": dict(arguments)} if arguments is not None else {})}
        result = await self._request(ctx, document.policy_tools[0], document.backends, "prompts/get", params)
        if result.kind != "complete":
            return result
        messages = [self._routes.rewrite_message(ctx, document.namespace, one) for one in result.structured["messages"]]
        return replace(result, structured={**result.structured, "messages": messages})

    async def read_resource(self, ctx: Context, uri: str) -> ToolResult:
        """The answer to `resources/read`, without parts under URIs that the policy hides.

        Raises `NotFound`, `AmbiguousName`, `InvalidRequest` for a URI that is too long, and as `get` does.
        """
        place = await self._locate(ctx, uri)
        _, tool = strictest_decision(self._policy, ctx.caller, policy_tools("resources", place.namespace, place.uri))
        result = await self._request(ctx, tool, place.backends, "resources/read", {"uri": place.uri})
        if result.kind != "complete":
            return result
        contents = [
            self._rewrite_part(ctx, place, uri, part)
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
        _check_length(named, "ref.name") if is_prompt else _check_uri(named, "ref.uri")
        collection = await self.collection(ctx)
        document = _find_prompt(collection, named) if is_prompt else collection.templates.get(named)
        decision, tool = self._decide(ctx, document) if document else (_HIDE, None)
        if document is None or tool is None or decision is _HIDE:
            raise self._audited(ctx, named, _prompt_not_found(named) if is_prompt else resource_not_found(named))
        able = [one for one in document.backends if _supports(one, "completes")]
        if decision is not Decision.ALLOW or not able:
            return ToolResult(structured=_EMPTY_COMPLETION)
        asked = {**params, "ref": {**ref, key: document.name}}
        result = await self._request(ctx, tool, able, "completion/complete", asked)
        if is_prompt or result.kind != "complete":
            return result
        return self._without_hidden(ctx, document, params, result)

    def _without_hidden(self, ctx: Context, document: ListedDocument, params: Object, result: ToolResult) -> ToolResult:
        """Without the values that lead to a hidden URI, as far as the other values of its template are known."""
        completion = result.structured.get("completion")
        argument = params.get("argument", {}).get("name")
        given = (params.get("context") or {}).get("arguments") or {}
        if not isinstance(completion, Mapping) or not isinstance(completion.get("values"), list):
            return result

        def is_hidden(value: str) -> bool:
            uri = expand_template(document.name, {**given, argument: value})
            return uri is not None and self._routes.is_hidden(ctx.caller, document.namespace, uri)

        values = [value for value in completion["values"] if not is_hidden(str(value))]
        if len(values) == len(completion["values"]):
            return result
        left = {**{key: value for key, value in completion.items() if key != "total"}, "values": values}
        return replace(result, structured={**result.structured, "completion": left})

    async def subscribe(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call back, with the public URI, whenever the resource changed, or one below it that is not hidden.

        Goes the way of calls. Raises as `read` does, and `InvalidRequest` for a server that tells of no changes.
        """
        place = await self._locate(ctx, uri)
        decision, tool = strictest_decision(
            self._policy, ctx.caller, policy_tools("resources", place.namespace, place.uri)
        )
        if decision is not Decision.ALLOW:
            raise self._audited(ctx, tool.id, _needs_approval(uri))
        able = [one for one in place.backends if _supports(one, "watches", unknown=True)]
        if not able:
            raise InvalidRequest(f"The server of {uri[:_MAX_SHOWN]} does not tell of changes.", hint="Read it again.")
        ends: list[Unsubscribe] = []

        def changed(own: str) -> None:
            if own == place.uri:
                callback(uri)
            elif not self._is_hidden(ctx, place, own):
                callback(self._routes.public_uri(ctx, place.namespace, own))

        async def begin(source: DocumentSource, ctx: Context, _params: Object) -> ToolResult:
            ends.append(await source.watch(ctx, place.uri, changed))
            return ToolResult(structured={})

        is_watched = False
        try:
            is_watched = (await self._call_pipeline(ctx, tool, able, begin, {"uri": place.uri})).kind == "complete"
        finally:
            for end in () if is_watched else ends:
                end()
        if not is_watched:
            raise _needs_approval(uri)
        return ends[-1] if ends else _do_nothing

    async def _locate(self, ctx: Context, uri: str) -> ResourceLocation:
        _check_uri(uri, "uri")
        await self._wait_for_lists(ctx)
        try:
            return self._routes.locate(ctx, uri)
        except ToolcribError as error:
            self._pipeline.audit_refused(ctx, uri, error)
            raise

    def _rewrite_part(self, ctx: Context, place: ResourceLocation, uri: str, part: Object) -> Object:
        """A part of what was read, under the URI that was asked for where it is all of it."""
        if part.get("uri") == place.uri:
            return {**part, "uri": uri}
        return self._routes.rewrite_uri(ctx, place.namespace, part)

    def _is_hidden(self, ctx: Context, place: ResourceLocation, uri: object) -> bool:
        return isinstance(uri, str) and self._routes.is_hidden(ctx.caller, place.namespace, uri)

    def rewrite_uris(self, ctx: Context, namespace: str, result: ToolResult) -> ToolResult:
        """A tool's result, in which every resource can be read by the URI that it gives."""
        return self._routes.rewrite_result(ctx, namespace, result)

    def subscribe_logs(self, ctx: Context, callback: Callable[[Object], None]) -> Unsubscribe:
        """Call back with what servers, of which the caller may know, say for a log, where it is due to him alone."""
        place = object()
        if not self._follows_sources:
            self._follows_sources = True
            self._refresher.subscribe(self._attach_log_listeners)
        self._listeners[place] = (ctx, callback)
        self._attach_log_listeners()
        return lambda: (self._listeners.pop(place, None), None)[1]

    def _attach_log_listeners(self) -> None:
        """Listen to every server that there is by now."""
        for backend, _ in self._collections.sources():
            if backend.provider not in self._attached:
                self._attached.add(backend.provider)
                cast("DocumentSource", backend.provider).hear(partial(self._forward_log, backend))

    def _forward_log(self, backend: Backend, due_to: LogAudience | None, message: Object) -> None:
        for ctx, callback in tuple(self._listeners.values()):
            if due_to is not None and _is_addressee(ctx, due_to) and self._may_see_server(ctx.caller, backend):
                callback(message)

    async def _request(
        self, ctx: Context, tool: Tool, backends: Sequence[Backend], method: str, params: dict[str, Any]
    ) -> ToolResult:
        """The answer to one request of a server, the way of calls."""

        async def ask(source: DocumentSource, ctx: Context, params: Object) -> ToolResult:
            return await source.ask(ctx, method, params)

        result = await self._call_pipeline(ctx, tool, backends, ask, params)
        if result.kind == "complete" and not isinstance(result.structured, Mapping):
            raise UpstreamError(f"{tool.id[:_MAX_SHOWN]} was answered with something else than what {method} gives.")
        return result

    async def _call_pipeline(
        self, ctx: Context, tool: Tool, backends: Sequence[Backend], ask: "_DocumentRequest", params: dict[str, Any]
    ) -> ToolResult:
        readers = tuple(
            replace(one, provider=_RequestProvider(cast("DocumentSource", one.provider), ask)) for one in backends
        )
        return await self._pipeline.call(ctx, ResolvedTool(tool, readers, _ANY_SCHEMA, tool.id), params)

    def _decide(self, ctx: Context, document: ListedDocument) -> tuple[Decision, Tool]:
        return strictest_decision(self._policy, ctx.caller, document.policy_tools)

    def _audited(self, ctx: Context, name: str, error: ToolcribError) -> ToolcribError:
        self._pipeline.audit_refused(ctx, name, error)
        return error


_HIDE: Final = Decision.HIDE


_DocumentRequest = Callable[[DocumentSource, Context, Object], Awaitable[ToolResult]]


class _RequestProvider:
    """A server as something that can be called."""

    def __init__(self, source: DocumentSource, ask: _DocumentRequest) -> None:
        self._source = source
        self._ask = ask

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        return ()

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:  # noqa: ARG002 - as above
        return await self._ask(self._source, ctx, arguments)


def _check_uri(uri: str, field: str) -> None:
    """As `_check`, where the server's namespace may stand before its own URI."""
    own = (split_qualified_uri(uri) or ("", uri))[1]
    _check_length(uri if len(uri) > MAX_URI_LENGTH + _MAX_PREFIX else own, field)


def _check_length(text: str, field: str) -> None:
    """Raise `InvalidRequest` for what no server can have, before anything is looked up or kept by it."""
    if len(text) > MAX_URI_LENGTH:
        raise InvalidRequest(f"{field} is longer than {MAX_URI_LENGTH} characters.", hint="Take it from a list.")


def _supports(backend: Backend, what: str, *, unknown: bool = False) -> bool:
    documents = cast("DocumentSource", backend.provider).documents()
    return unknown if documents is None else bool(getattr(documents, what))


def _needs_approval(uri: str) -> ApprovalRequired:
    return ApprovalRequired(f"{uri[:_MAX_SHOWN]} cannot be watched: each look at it must be agreed to.")


def _do_nothing() -> None:
    """Ends what a middleware kept from beginning."""


def _find_prompt(collection: DocumentCollection, name: str) -> ListedDocument | None:
    return collection.prompts.get(name) or collection.prompt_ids.get(name)


def _prompt_not_found(name: str) -> NotFound:
    return NotFound(f'No prompt is called "{name[:_MAX_SHOWN]}".', hint="List the prompts.")


def _has_ready_server(provider: object) -> bool:
    return any(status.state is ServerState.READY for status in provider_statuses(cast("Any", provider)))


def _is_still_listing(provider: object) -> bool:
    return cast("DocumentSource", provider).documents() is None and _has_ready_server(provider)


def _is_addressee(ctx: Context, due_to: LogAudience) -> bool:
    """Whether what is due to one caller may be told in this context: callers without authentication are known apart
    by their sessions alone.
    """
    caller, session = due_to
    if (caller.tenant, caller.id) != (ctx.caller.tenant, ctx.caller.id):
        return False
    return ctx.caller != LOCAL or (session is not None and session == ctx.session)
