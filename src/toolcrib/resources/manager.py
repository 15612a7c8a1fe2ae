"""Prompts and resources of all servers, for one caller at a time: list, get, read, complete, subscribe.

What the policy denies looks as if it did not exist. Requests go through the call pipeline, so audit, approval, limits,
breaker and retries apply to them, under the id `namespace:name` of a prompt and `namespace:uri` of a resource.
"""

import contextlib
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import anyio

from toolcrib.errors import ApprovalRequired, InvalidRequest, NotFound, NotStarted, ToolcribError, UpstreamError
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import may_see_some
from toolcrib.gateway.provider_state import provider_statuses
from toolcrib.gateway.refresh import CatalogRefresher
from toolcrib.gateway.view import ResolvedTool
from toolcrib.middleware.pipeline import CallPipeline
from toolcrib.protocol.versions import is_defined
from toolcrib.providers.base import Backend, LogAudience, Provider, do_nothing
from toolcrib.resources.extensions import Ask, ExtensionRequests
from toolcrib.resources.listing import (
    CollectionCache,
    DocumentCollection,
    DocumentKind,
    ListedDocument,
    backend_namespace,
    policy_tools,
    strictest_decision,
)
from toolcrib.resources.router import ResourceLocation, SubscribedUris, UriRouter, resource_not_found
from toolcrib.resources.uris import MAX_URI_LENGTH, expand_template, split_qualified_uri
from toolcrib.schema import Schema
from toolcrib.state.base import StateStore
from toolcrib.types import Caller, Context, Decision, Object, Policy, ServerState, Tool, ToolResult, Unsubscribe

_ANY_SCHEMA: Final = Schema({"type": "object"}, "a document")
ResourceReader = Callable[[Context, str], Awaitable[ToolResult | None]]
_EMPTY_COMPLETION: Final = {"completion": {"values": [], "total": 0, "hasMore": False}}
_MAX_PREFIX: Final = 2048
"""The longest namespace prefix of a qualified URI, in characters."""
_MAX_SHOWN: Final = 200
"""Characters of a name or URI that an error repeats."""
_HIDE: Final = Decision.HIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCapabilities:
    """The kinds of requests that a server of the caller's supports, or may support once it is connected."""

    prompts: bool = False
    resources: bool = False
    completions: bool = False
    subscriptions: bool = False
    logging: bool = False
    """Whether there may be log messages."""
    extensions: Object = field(default_factory=dict)
    """What servers declare of extensions of the protocol, by name."""


class ResourceManager:
    """The prompts and resources of a gateway's servers."""

    def __init__(
        self,
        refresher: CatalogRefresher,
        policy: Policy,
        pipeline: CallPipeline,
        options: GatewayOptions,
        state: StateStore,
        wait_for_start: Callable[[Context], Awaitable[None]],
    ) -> None:
        """`wait_for_start` waits for servers that are still starting, before a list."""
        self._refresher = refresher
        self._policy = policy
        self._pipeline = pipeline
        self._options = options
        self._wait_for_start = wait_for_start
        self._collections = CollectionCache(refresher.backends, policy)
        self._router = UriRouter(self._collections, policy, state)
        self.subscribed_uris = SubscribedUris(state)
        self._listed: weakref.WeakSet[object] = weakref.WeakSet()
        self._attached: weakref.WeakSet[object] = weakref.WeakSet()
        self._listeners: dict[object, tuple[Context, Object, Callable[[str, Object], None]]] = {}
        self._follows_sources = False
        self.extensions = ExtensionRequests(
            refresher.backends, policy, self._router, self._call_pipeline, self._may_see_server
        )
        """The methods that only an extension of the protocol defines."""
        self.own_reader: ResourceReader | None = None
        """Reads the gateway's own resources; None for a URI that is not one of them."""

    def use_own_prompt_names(self) -> None:
        """List prompts under their servers' own names, except where two servers have the same one."""
        self._collections.prefix_prompts = False

    # -- listing ---------------------------------------------------------------------------------------------------

    async def collection(self, ctx: Context) -> DocumentCollection:
        """What the caller sees. Shortly after the start, waits for servers that have not listed their documents yet."""
        await self._wait_for_lists(ctx)
        return await self._collections.for_caller(ctx.caller)

    async def _wait_for_lists(self, ctx: Context) -> None:
        await self._wait_for_start(ctx)
        await self._refresher.wait_ready()
        await self._wait_for_listing(ctx.caller)

    async def digest(self, ctx: Context, *kinds: DocumentKind) -> str:
        """A digest of the caller's lists of these kinds, without waiting for any server."""
        await self._refresher.wait_ready()
        digests = await self._collections.digests(ctx.caller)
        return " ".join(digests[kind] for kind in kinds)

    async def capabilities(self, ctx: Context) -> DocumentCapabilities:
        """What the caller can ask for, as far as it is known now."""
        await self._refresher.wait_ready()
        all_sources = self._collections.sources()
        if not all_sources:
            return DocumentCapabilities()
        sources = [pair for pair in all_sources if self._may_see_server(ctx.caller, pair[0])]
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
            extensions=self.extensions.declared(ctx.caller),
        )

    def _may_see_server(self, caller: Caller, backend: Backend) -> bool:
        """Whether the caller may know that the server exists."""
        return may_see_some(self._policy, caller, backend_namespace(backend))

    async def _wait_for_listing(self, caller: Caller) -> None:
        """Wait for connected servers to list their documents; once per server."""
        late = [
            backend.provider
            for backend, documents in self._collections.sources()
            if documents is None and backend.provider not in self._listed and self._may_see_server(caller, backend)
        ]
        with anyio.move_on_after(self._options.list_wait_s), contextlib.suppress(NotStarted):
            while any(_is_still_listing(provider) for provider in late):
                await self._refresher.wait_changed()
        for provider in late:
            if _has_ready_server(provider):
                self._listed.add(provider)

    # -- requests --------------------------------------------------------------------------------------------------

    async def get_prompt(self, ctx: Context, name: str, arguments: Object | None) -> ToolResult:
        """Answer `prompts/get` for a prompt's public name, or its id `namespace:name`.

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
        async with self._router.session(ctx):
            messages = [
                self._router.rewrite_message(ctx, document.namespace, one) for one in result.structured["messages"]
            ]
        return replace(result, structured={**result.structured, "messages": messages})

    async def read_resource(self, ctx: Context, uri: str) -> ToolResult:
        """Answer `resources/read`, without the parts whose URIs the policy hides.

        Raises as `get_prompt` does, and `AmbiguousName`, or `InvalidRequest` for a URI that is too long.
        """
        if self.own_reader is not None and (own := await self.own_reader(ctx, uri)) is not None:
            return own
        location = await self._locate(ctx, uri)
        _, tool = strictest_decision(
            self._policy, ctx.caller, policy_tools("resources", location.namespace, location.uri)
        )
        result = await self._request(ctx, tool, location.backends, "resources/read", {"uri": location.uri})
        if result.kind != "complete":
            return result
        async with self._router.session(ctx):
            contents = [
                self._rewrite_part(ctx, location, uri, part)
                for part in result.structured["contents"]
                if part.get("uri") == location.uri or not self._is_hidden(ctx, location, part.get("uri"))
            ]
        return replace(result, structured={**result.structured, "contents": contents})

    async def complete(self, ctx: Context, params: Object) -> ToolResult:
        """Answer `completion/complete` for a prompt or template that the caller sees.

        The answer is empty if the server completes nothing. Values that would complete a template to a hidden URI are
        left out.

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
        """Drop values that lead to a hidden URI, as far as the template's other values are known."""
        completion = result.structured.get("completion")
        argument = params.get("argument", {}).get("name")
        given = (params.get("context") or {}).get("arguments") or {}
        if not isinstance(completion, Mapping) or not isinstance(completion.get("values"), list):
            return result

        def is_hidden(value: str) -> bool:
            uri = expand_template(document.name, {**given, argument: value})
            return uri is not None and self._router.is_hidden(ctx.caller, document.namespace, uri)

        values = [value for value in completion["values"] if not is_hidden(str(value))]
        if len(values) == len(completion["values"]):
            return result
        left = {**{key: value for key, value in completion.items() if key != "total"}, "values": values}
        return replace(result, structured={**result.structured, "completion": left})

    async def subscribe(self, ctx: Context, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call back, with the public URI, when the resource changes, or one below it that is not hidden.

        Goes through the call pipeline. Raises as `read_resource` does, and `InvalidRequest` if the server does not
        report changes.
        """
        location = await self._locate(ctx, uri)
        decision, tool = strictest_decision(
            self._policy, ctx.caller, policy_tools("resources", location.namespace, location.uri)
        )
        if decision is not Decision.ALLOW:
            raise self._audited(ctx, tool.id, _needs_approval(uri))
        # A server that does not declare it may still do it: servers on the SDK before 2.0 cannot declare it.
        able = [one for one in location.backends if _supports(one, "watches", unknown=True)] or [
            one for one in location.backends if _supports(one, "reads")
        ]
        if not able:
            raise InvalidRequest(f"The server of {uri[:_MAX_SHOWN]} does not report changes.", hint="Read it again.")
        ends: list[Unsubscribe] = []

        def changed(own: str) -> None:
            if self._is_hidden(ctx, location, own):
                return
            if own == location.uri:
                callback(uri)
            else:
                callback(self._router.public_uri(ctx, location.namespace, own))

        async def begin(source: Provider, ctx: Context, _params: Object) -> ToolResult:
            ends.append(await source.watch_resource(ctx, location.uri, changed))
            return ToolResult(structured={})

        is_watched = False
        try:
            is_watched = (await self._call_pipeline(ctx, tool, able, begin, {"uri": location.uri})).kind == "complete"
        finally:
            for end in () if is_watched else ends:
                end()
        if not is_watched:
            raise _needs_approval(uri)
        return ends[-1] if ends else do_nothing  # a middleware may answer without asking

    async def end_session(self, ctx: Context, *, forget: bool = True) -> None:
        """Inform the servers that the session of this context has ended here, and forget its URIs."""
        for backend in self._refresher.backends():
            backend.provider.end_session(ctx)
        if not forget:
            return
        await self._router.forget_session(ctx)
        await self.subscribed_uris.forget(ctx.caller, ctx.session)

    def roots_changed(self, ctx: Context) -> None:
        """Tell the servers that the client of this context's session has other roots now."""
        for backend in self._refresher.backends():
            backend.provider.roots_changed(ctx)

    async def _locate(self, ctx: Context, uri: str) -> ResourceLocation:
        _check_uri(uri, "uri")
        await self._wait_for_lists(ctx)
        try:
            async with self._router.session(ctx):
                return self._router.locate(ctx, uri)
        except ToolcribError as error:
            self._pipeline.audit_refused(ctx, uri, error)
            raise

    def _rewrite_part(self, ctx: Context, location: ResourceLocation, uri: str, part: Object) -> Object:
        """A part of a read resource, under a public URI; the resource itself keeps the URI that the client used."""
        if part.get("uri") == location.uri:
            return {**part, "uri": uri}
        return self._router.rewrite_uri(ctx, location.namespace, part)

    def _is_hidden(self, ctx: Context, location: ResourceLocation, uri: object) -> bool:
        return isinstance(uri, str) and self._router.is_hidden(ctx.caller, location.namespace, uri)

    async def rewrite_uris(self, ctx: Context, namespace: str, result: ToolResult) -> ToolResult:
        """A tool's result, which has `URI_BLOCKS`, with URIs by which the caller can read the resources in it."""
        return await self._router.rewrite_result(ctx, namespace, result)

    def subscribe_notifications(
        self, ctx: Context, extensions: Object, callback: Callable[[str, Object], None]
    ) -> Unsubscribe:
        """Call back with what servers send for this caller alone, from servers that the caller may see: the method and
        params of log messages, and of notifications of these extensions.
        """
        key = object()
        if not self._follows_sources:
            self._follows_sources = True
            self._refresher.subscribe(self._attach_listeners)
        self._listeners[key] = (ctx, extensions, callback)
        self._attach_listeners()
        return lambda: (self._listeners.pop(key, None), None)[1]

    def _attach_listeners(self) -> None:
        """Listen to servers that were added since the last time."""
        for backend, _ in self._collections.sources():
            if backend.provider not in self._attached:
                self._attached.add(backend.provider)
                backend.provider.subscribe_notifications(partial(self._forward, backend))

    def _forward(self, backend: Backend, audience: LogAudience | None, method: str, params: Object) -> None:
        for ctx, extensions, callback in tuple(self._listeners.values()):
            if audience is None or not _is_addressee(ctx, audience) or not self._may_see_server(ctx.caller, backend):
                continue
            if is_defined(method) or self.extensions.may_pass(ctx.caller, extensions, backend, method, params):
                callback(method, params)

    async def _request(
        self, ctx: Context, tool: Tool, backends: Sequence[Backend], method: str, params: dict[str, Any]
    ) -> ToolResult:
        """Send one request to a server, through the call pipeline."""

        async def ask(source: Provider, ctx: Context, params: Object) -> ToolResult:
            return await source.request_document(ctx, method, params)

        result = await self._call_pipeline(ctx, tool, backends, ask, params)
        if result.kind == "complete" and not isinstance(result.structured, Mapping):
            raise UpstreamError(f"{tool.id[:_MAX_SHOWN]} gave an invalid answer to {method}.")
        return result

    async def _call_pipeline(
        self, ctx: Context, tool: Tool, backends: Sequence[Backend], ask: Ask, params: dict[str, Any]
    ) -> ToolResult:
        providers = tuple(replace(one, provider=_RequestProvider(one.provider, ask)) for one in backends)
        return await self._pipeline.call(ctx, ResolvedTool(tool, providers, _ANY_SCHEMA, tool.id), params)

    def _decide(self, ctx: Context, document: ListedDocument) -> tuple[Decision, Tool]:
        return strictest_decision(self._policy, ctx.caller, document.policy_tools)

    def _audited(self, ctx: Context, name: str, error: ToolcribError) -> ToolcribError:
        self._pipeline.audit_refused(ctx, name, error)
        return error


class _RequestProvider(Provider):
    """A provider whose one call is a request to a document source, so that the call pipeline applies."""

    def __init__(self, source: Provider, ask: Ask) -> None:
        self._source = source
        self._ask = ask

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        return ()

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:  # noqa: ARG002 - as above
        return await self._ask(self._source, ctx, arguments)


def _check_uri(uri: str, field: str) -> None:
    """Like `_check_length`, but a namespace prefix does not count."""
    own = (split_qualified_uri(uri) or ("", uri))[1]
    _check_length(uri if len(uri) > MAX_URI_LENGTH + _MAX_PREFIX else own, field)


def _check_length(text: str, field: str) -> None:
    """Raise `InvalidRequest` for a text that is too long, before it is used as a key."""
    if len(text) > MAX_URI_LENGTH:
        raise InvalidRequest(f"{field} is longer than {MAX_URI_LENGTH} characters.", hint="Take it from a list.")


def _supports(backend: Backend, what: str, *, unknown: bool = False) -> bool:
    documents = backend.provider.documents()
    return unknown if documents is None else bool(getattr(documents, what))


def _needs_approval(uri: str) -> ApprovalRequired:
    return ApprovalRequired(f"{uri[:_MAX_SHOWN]} cannot be watched: reading it needs approval each time.")


def _find_prompt(collection: DocumentCollection, name: str) -> ListedDocument | None:
    return collection.prompts.get(name) or collection.prompt_ids.get(name)


def _prompt_not_found(name: str) -> NotFound:
    return NotFound(f'No prompt is called "{name[:_MAX_SHOWN]}".', hint="List the prompts.")


def _has_ready_server(provider: Provider) -> bool:
    return any(status.state is ServerState.READY for status in provider_statuses(provider))


def _is_still_listing(provider: Provider) -> bool:
    return provider.documents() is None and _has_ready_server(provider)


def _is_addressee(ctx: Context, audience: LogAudience) -> bool:
    """Whether the message is for this context. Callers without authentication differ only in their sessions."""
    caller, session = audience
    if caller.key != ctx.caller.key:
        return False
    return not ctx.caller.is_local or (session is not None and session == ctx.session)
