"""Route the URI of a resource to its server, and rewrite URIs in results so that clients can read them."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from toolcrib.errors import AmbiguousName, NotFound
from toolcrib.gateway.sessions import session_key
from toolcrib.middleware.fingerprint import canonical_json
from toolcrib.providers.base import Backend, Documents
from toolcrib.resources.listing import CollectionCache, backend_namespace, may_see_all, policy_tools, strictest_decision
from toolcrib.resources.uris import (
    MAX_URI_LENGTH,
    is_app_uri,
    is_reserved_uri,
    is_web_uri,
    public_app_uri,
    qualified_uri,
    scheme_of,
    split_app_uri,
    split_qualified_uri,
)
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import Caller, Context, Decision, Object, Policy, ToolResult

URI_BLOCKS: Final = ("resource_link", "resource")
"""Content blocks that contain the URI of a resource."""
_MAX_SHOWN: Final = 200
"""Characters of a URI that an error repeats."""
_MAX_SUGGESTED: Final = 5
_MAX_SESSIONS: Final = 500
_MAX_SESSION_URIS: Final = 500
_MAX_REMEMBERED_URI: Final = 500
"""Remembered sessions, URIs per session, and characters per URI."""
_CODEC: Final[StateCodec[dict[str, str]]] = StateCodec(dict, dict)
_MAX_SUBSCRIBED_SESSIONS: Final = 10_000
_SUBSCRIBED_S: Final = 24 * 3600.0
"""How long the subscriptions of a session are kept whose process died, in seconds."""
_SUBSCRIBED: Final[StateCodec[tuple[str, ...]]] = StateCodec(list, tuple)


@dataclass(frozen=True, slots=True)
class ResourceLocation:
    """The servers that have a resource."""

    namespace: str
    uri: str
    """The server's own URI."""
    backends: tuple[Backend, ...]


class UriRouter:
    """Routes URIs to servers, and gives clients URIs that lead back to the server they came from."""

    def __init__(self, collections: CollectionCache, policy: Policy, state: StateStore) -> None:
        self._collections = collections
        self._policy = policy
        self._session_uris = SessionUris(state)

    @asynccontextmanager
    async def session(self, ctx: Context) -> AsyncIterator[None]:
        """Inside the block, the URIs that this session was given are known; new ones are saved at its end."""
        key = session_key(ctx)
        await self._session_uris.load(key)
        yield
        await self._session_uris.save(key)

    async def forget_session(self, ctx: Context) -> None:
        """Forget the URIs that this session was given."""
        await self._session_uris.forget(session_key(ctx))

    def locate(self, ctx: Context, uri: str) -> ResourceLocation:
        """Find the server of a URI. Raises `NotFound` or `AmbiguousName`."""
        if is_reserved_uri(uri):
            namespace, own = split_qualified_uri(uri) or ("", "")
            # No other source counts: a server must not be able to redirect a qualified URI.
            found = [one for one in self._owners_or_readers(ctx.caller, own) if one.namespace == namespace]
        else:
            found = self._app_locations(ctx.caller, uri) or self._candidates(ctx, uri)
        locations = [one for one in found if not self.is_hidden(ctx.caller, one.namespace, one.uri)]
        if len(locations) == 1:
            return locations[0]
        if not locations:
            known = [] if is_reserved_uri(uri) else self._readable_locations(ctx.caller, uri)
            raise resource_not_found(
                uri, [one.namespace for one in known if not self.is_hidden(ctx.caller, one.namespace, uri)]
            )
        names = tuple(qualified_uri(one.namespace, uri) for one in locations)
        raise AmbiguousName(
            f"Several servers may have {uri[:_MAX_SHOWN]}.", hint="Name one of them.", suggestions=names
        )

    def _app_locations(self, caller: Caller, uri: str) -> list[ResourceLocation]:
        """The server in whose namespace the address of an app is, if it is one."""
        if (parts := split_app_uri(uri)) is None:
            return []
        namespace, own = parts
        return [one for one in self._owners_or_readers(caller, own) if one.namespace == namespace]

    def is_hidden(self, caller: Caller, namespace: str, uri: str) -> bool:
        """Whether the policy hides a server's resource from the caller, under any spelling of its URI."""
        if len(uri) > MAX_URI_LENGTH:
            return True
        return strictest_decision(self._policy, caller, policy_tools("resources", namespace, uri))[0] is Decision.HIDE

    def _candidates(self, ctx: Context, uri: str) -> list[ResourceLocation]:
        """The possible locations of an unqualified URI: those that are known, else the one server that may have it."""
        return self._known_locations(ctx, uri) or self._likely_locations(ctx.caller, uri)

    def _known_locations(self, ctx: Context, uri: str) -> list[ResourceLocation]:
        """Where the URI is known to lead.

        The first rule that matches decides: a list contains the URI, a server gave it to this session, or a template
        matches it.
        """
        if owners := self._listed_locations(ctx.caller, uri):
            return owners
        readers = self._readable_locations(ctx.caller, uri)
        source = self._session_uris.get(session_key(ctx), uri)
        if source is not None and (found := [one for one in readers if one.namespace == source]):
            return found
        matched = self._namespaces_by_template(ctx.caller, uri)
        return [one for one in readers if one.namespace in matched]

    def _likely_locations(self, caller: Caller, uri: str) -> list[ResourceLocation]:
        """The one server that lists URIs of this scheme or, where none does, the only server with resources.

        Servers that the caller cannot see count too: the URI may belong to one of them.
        """
        sources = self._readable_sources()
        scheme = scheme_of(uri)
        using = {
            backend_namespace(backend)
            for backend, documents in sources
            if scheme in self._collections.uri_patterns(backend, documents).schemes
        }
        able = using or {backend_namespace(backend) for backend, _ in sources}
        return [one for one in self._readable_locations(caller, uri) if able == {one.namespace}]

    def _owners_or_readers(self, caller: Caller, uri: str) -> list[ResourceLocation]:
        """The servers that list the URI, and in other namespaces all servers with resources."""
        owners = {one.namespace: one for one in self._listed_locations(caller, uri)}
        return [owners.get(one.namespace, one) for one in self._readable_locations(caller, uri)]

    def _readable_sources(self) -> list[tuple[Backend, Documents]]:
        return [
            (backend, documents)
            for backend, documents in self._collections.sources()
            if documents is not None and documents.reads
        ]

    def _listed_locations(self, caller: Caller, uri: str) -> list[ResourceLocation]:
        """The servers that list the URI; the first server of a namespace defines the resource."""
        found: dict[str, tuple[Object, list[Backend]]] = {}
        for backend, documents in self._readable_sources():
            entry = documents.resources.get(uri)
            if entry is not None:
                first, backends = found.setdefault(backend_namespace(backend), (entry, []))
                if entry == first:
                    backends.append(backend)
        locations = (
            ResourceLocation(namespace, uri, tuple(backends)) for namespace, (_, backends) in sorted(found.items())
        )
        return [one for one in locations if self._may_see(caller, one.namespace, uri)]

    def _namespaces_by_template(self, caller: Caller, uri: str) -> frozenset[str]:
        """The namespaces that have a template which matches the URI and which the caller may see."""
        return frozenset(
            backend_namespace(backend)
            for backend, documents in self._readable_sources()
            if any(
                template.matches(uri) and may_see_all(self._policy, caller, tools)
                for template, tools in self._collections.uri_patterns(backend, documents).templates
            )
        )

    def _readable_locations(self, caller: Caller, uri: str) -> list[ResourceLocation]:
        """The servers with resources for which the policy allows that URI."""
        found: dict[str, tuple[Backend, ...]] = {}
        for backend, _ in self._readable_sources():
            found[backend_namespace(backend)] = (*found.get(backend_namespace(backend), ()), backend)
        locations = (ResourceLocation(namespace, uri, backends) for namespace, backends in sorted(found.items()))
        return [one for one in locations if self._may_see(caller, one.namespace, uri)]

    def _may_see(self, caller: Caller, namespace: str, uri: str) -> bool:
        return len(uri) <= MAX_URI_LENGTH and may_see_all(
            self._policy, caller, policy_tools("resources", namespace, uri)
        )

    async def rewrite_result(self, ctx: Context, namespace: str, result: ToolResult) -> ToolResult:
        """A tool's result with URIs by which clients can read the resources in it."""
        async with self.session(ctx):
            content = tuple(self._rewrite_block(ctx, namespace, block) for block in result.content)
        return result if content == result.content else replace(result, content=content)

    def rewrite_message(self, ctx: Context, namespace: str, message: Any) -> Any:
        """A prompt's message with URIs by which clients can read the resources in it."""
        block = message.get("content")
        if not isinstance(block, dict):
            return message
        return {**message, "content": self._rewrite_block(ctx, namespace, block)}

    def _rewrite_block(self, ctx: Context, namespace: str, block: Any) -> Any:
        kind = block.get("type")
        if kind == "resource_link":
            return self.rewrite_uri(ctx, namespace, block)
        inside = block.get("resource")
        if kind == "resource" and isinstance(inside, dict):
            return {**block, "resource": self.rewrite_uri(ctx, namespace, inside)}
        return block

    def rewrite_uri(self, ctx: Context, namespace: str, part: Object) -> Object:
        """Replace the `uri` of a part of a result with the public one."""
        uri = part.get("uri")
        if not isinstance(uri, str):
            return part
        shown = self.public_uri(ctx, namespace, uri)
        return part if shown == uri else {**part, "uri": shown}

    def public_uri(self, ctx: Context, namespace: str, uri: str) -> str:
        """The URI for clients: unchanged if it leads back to the server it came from, otherwise qualified."""
        if is_reserved_uri(uri) and any(
            backend_namespace(backend) == namespace for backend, _ in self._collections.sources()
        ):
            return qualified_uri(namespace, uri)
        if is_app_uri(uri):
            return public_app_uri(namespace, uri)
        if not any(one.namespace == namespace for one in self._readable_locations(ctx.caller, uri)):
            return uri  # the server has no such resource for this caller, so qualifying it would not help
        locations = self._candidates(ctx, uri)
        if [one.namespace for one in locations] == [namespace]:
            return uri
        session = session_key(ctx)
        is_known = bool(self._known_locations(ctx, uri))
        if not is_known and session is not None and self._session_uris.remember(session, uri, namespace):
            return uri
        return uri if is_web_uri(uri) else qualified_uri(namespace, uri)


def resource_not_found(uri: str, namespaces: Sequence[str] = ()) -> NotFound:
    """The error for an unknown URI. The servers of these namespaces might still have it, so it suggests them."""
    hint = "List the resources, or write toolcrib://<server>/<uri>." if namespaces else "List the resources."
    known = tuple(qualified_uri(namespace, uri[:_MAX_SHOWN]) for namespace in namespaces[:_MAX_SUGGESTED])
    return NotFound(f'No resource is known by the URI "{uri[:_MAX_SHOWN]}".', hint=hint, suggestions=known)


class SessionUris:
    """Which server gave a session a URI that no list contains; in the state store, for all processes.

    Rewriting is synchronous, so this process has a copy for the sessions that it serves. `load` and `save` keep the
    copy and the store in step. The least recently used sessions are dropped.
    """

    def __init__(self, state: StateStore) -> None:
        self._table = state.table("session uris", _CODEC, max_entries=_MAX_SESSIONS, batched=True)
        self._sessions: OrderedDict[str, OrderedDict[str, str]] = OrderedDict()
        self._unsaved: dict[str, dict[str, str]] = {}

    async def load(self, session: str | None) -> None:
        """Learn what other processes saved for the session."""
        saved = None if session is None else await self._table.get(session)
        if session is None or not saved:
            return
        known = self._uris(session)
        for uri in saved.keys() - known.keys():
            known[uri] = saved[uri]
        _drop_oldest(known)

    async def save(self, session: str | None) -> None:
        """Save what was remembered for the session since the last time."""
        unsaved = None if session is None else self._unsaved.pop(session, None)
        if session is not None and unsaved:
            await self._table.update(session, lambda saved: (_merged(saved, unsaved), None))

    def remember(self, session: str, uri: str, namespace: str) -> bool:
        """Remember the server that gave the session this URI; False if the URI is too long."""
        if len(uri) > _MAX_REMEMBERED_URI:
            return False
        for known in (self._uris(session), self._unsaved.setdefault(session, {})):
            known.pop(uri, None)
            known[uri] = namespace
            _drop_oldest(known)
        return True

    def get(self, session: str | None, uri: str) -> str | None:
        """The namespace of the server that gave the session this URI, if it is remembered."""
        known = None if session is None else self._sessions.get(session)
        return None if known is None else known.get(uri)

    async def forget(self, session: str | None) -> None:
        """Forget a session that has ended."""
        if session is not None:
            self._sessions.pop(session, None)
            self._unsaved.pop(session, None)
            await self._table.delete(session)

    def _uris(self, session: str) -> OrderedDict[str, str]:
        known = self._sessions.setdefault(session, OrderedDict())
        self._sessions.move_to_end(session)
        if len(self._sessions) > _MAX_SESSIONS:
            dropped, _ = self._sessions.popitem(last=False)
            self._unsaved.pop(dropped, None)
        return known


class SubscribedUris:
    """The resources that each session over HTTP watches; in the state store, as processes take sessions over."""

    def __init__(self, state: StateStore) -> None:
        self._table = state.table("subscriptions", _SUBSCRIBED, max_entries=_MAX_SUBSCRIBED_SESSIONS)

    async def get(self, caller: Caller, session: str | None) -> tuple[str, ...]:
        """The URIs that the session watches, as far as that is known."""
        saved = None if session is None else await self._table.get(_caller_session(caller, session))
        return saved or ()

    async def add(self, caller: Caller, session: str | None, uri: str) -> None:
        """Note that the session watches a resource. A connection that is no session is not noted: it cannot move."""

        def added(saved: tuple[str, ...] | None) -> tuple[tuple[str, ...], None]:
            return tuple(dict.fromkeys((*(saved or ()), uri))), None

        if session is not None:
            await self._table.update(_caller_session(caller, session), added, ttl_s=_SUBSCRIBED_S)

    async def discard(self, caller: Caller, session: str | None, uri: str) -> None:
        """Note that the session no longer watches a resource."""

        def without(saved: tuple[str, ...] | None) -> tuple[tuple[str, ...] | None, None]:
            return tuple(one for one in saved or () if one != uri) or None, None

        if session is not None:
            await self._table.update(_caller_session(caller, session), without, ttl_s=_SUBSCRIBED_S)

    async def forget(self, caller: Caller, session: str | None) -> None:
        """Forget a session that has ended."""
        if session is not None:
            await self._table.delete(_caller_session(caller, session))


def _caller_session(caller: Caller, session: str) -> str:
    """The key of a session, which belongs to one caller: another caller's use of its id gives nothing away."""
    return canonical_json([*caller.key, session]) or ""


def _merged(saved: dict[str, str] | None, unsaved: dict[str, str]) -> dict[str, str]:
    """What to save: if two processes remember different servers for a URI, the first one stays."""
    uris = {**(saved or {}), **{uri: one for uri, one in unsaved.items() if uri not in (saved or {})}}
    _drop_oldest(uris)
    return uris


def _drop_oldest(uris: dict[str, str]) -> None:
    while len(uris) > _MAX_SESSION_URIS:
        del uris[next(iter(uris))]
