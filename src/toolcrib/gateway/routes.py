"""Where the URI of a resource leads, and by which URI a client should know a resource."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from toolcrib.errors import AmbiguousName, NotFound
from toolcrib.gateway.addresses import Told, addressed, is_of_the_web, taken_apart
from toolcrib.gateway.documents import Collection, Collections, namespace_of, stand_in
from toolcrib.gateway.sessions import session_key
from toolcrib.gateway.view import may_see
from toolcrib.model import Action, Caller, Decision, Object, ToolResult
from toolcrib.protocols import Backend, Context, Policy

_SHOWN: Final = 200
"""Characters of a URI that an error repeats."""
_SUGGESTED: Final = 5
_POINTING: Final = ("resource_link", "resource")
"""Content blocks that hold the URI of a resource."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a resource is to be had."""

    namespace: str
    uri: str
    """The server's own."""
    backends: tuple[Backend, ...]


class Routes:
    """Of the resources of a gateway's servers."""

    def __init__(self, collections: Collections, policy: Policy) -> None:
        """What no list holds is known from what sessions were told, from now on."""
        self._collections = collections
        self._policy = policy
        self._told = Told()

    def place(self, ctx: Context, collection: Collection, uri: str) -> Place:
        """Where a URI leads. Raises `NotFound` or `AmbiguousName`."""
        listed = collection.resources.get(uri)
        if listed is not None:
            places = [Place(listed.namespace, listed.name, listed.backends)]
        else:
            apart = taken_apart(uri)
            places = self._places(ctx, collection, uri)
            if apart is not None and not places:
                places = [one for one in self._readers(ctx.caller, apart[1]) if one.namespace == apart[0]]
        places = [one for one in places if self._may_read(ctx.caller, one)]
        if len(places) == 1:
            return places[0]
        if not places:
            readers = [one for one in self._readers(ctx.caller, uri) if self._may_read(ctx.caller, one)]
            raise no_resource(uri, () if taken_apart(uri) is not None else [one.namespace for one in readers])
        known = tuple(addressed(one.namespace, uri) for one in places)
        raise AmbiguousName(f"Several servers may have {uri[:_SHOWN]}.", hint="Name one of them.", suggestions=known)

    def _places(self, ctx: Context, collection: Collection, uri: str) -> list[Place]:
        """Where a URI that a server gave leads: by list, else by who told of it, else by template, else to the one
        server there is.
        """
        owners = collection.owners.get(uri, ())
        if owners:
            return [Place(one.namespace, uri, one.backends) for one in owners]
        readers = self._readers(ctx.caller, uri)
        teller = self._told.get(session_key(ctx), uri)
        if teller is not None and (found := [one for one in readers if one.namespace == teller]):
            return found
        matched = {one.namespace for template, one in collection.patterns if template.fits(uri)}
        if matched and (found := [one for one in readers if one.namespace in matched]):
            return found
        return readers if len(readers) == 1 and taken_apart(uri) is None else []

    def _readers(self, caller: Caller, uri: str) -> list[Place]:
        """The servers which have resources, and of which the caller may see one of that URI."""
        found: dict[str, tuple[Backend, ...]] = {}
        for backend, documents in self._collections.held():
            if documents is not None and documents.reads:
                found[namespace_of(backend)] = (*found.get(namespace_of(backend), ()), backend)
        places = (Place(namespace, uri, backends) for namespace, backends in sorted(found.items()))
        return [one for one in places if may_see(self._policy, caller, stand_in("resources", one.namespace, uri))]

    def _may_read(self, caller: Caller, place: Place) -> bool:
        tool = stand_in("resources", place.namespace, place.uri)
        return self._policy.decide(caller, tool, Action.CALL) is not Decision.HIDE

    def readdressed(self, ctx: Context, namespace: str, result: ToolResult) -> ToolResult:
        """A tool's result, in which every resource can be read by the URI that it gives."""
        if not any(block.get("type") in _POINTING for block in result.content):
            return result
        collection = self._collections.of(ctx.caller)
        content = tuple(self._block(ctx, collection, namespace, block) for block in result.content)
        return result if content == result.content else replace(result, content=content)

    def message(self, ctx: Context, collection: Collection, namespace: str, message: Any) -> Any:
        """A message of a prompt, likewise."""
        block = message.get("content")
        if not isinstance(block, dict):
            return message
        return {**message, "content": self._block(ctx, collection, namespace, block)}

    def _block(self, ctx: Context, collection: Collection, namespace: str, block: Any) -> Any:
        kind = block.get("type")
        if kind == "resource_link":
            return self.pointing(ctx, collection, namespace, block)
        inside = block.get("resource")
        if kind == "resource" and isinstance(inside, dict):
            return {**block, "resource": self.pointing(ctx, collection, namespace, inside)}
        return block

    def pointing(self, ctx: Context, collection: Collection, namespace: str, part: Object) -> Object:
        """A part of an answer that holds a URI, with the one by which its reader should know it."""
        uri = part.get("uri")
        if not isinstance(uri, str):
            return part
        shown = self.shown(ctx, collection, namespace, uri)
        return part if shown == uri else {**part, "uri": shown}

    def shown(self, ctx: Context, collection: Collection, namespace: str, uri: str) -> str:
        """A URI that a server gave: as it is where it leads back there, and otherwise with the server's namespace."""
        readers = self._readers(ctx.caller, uri)
        if not any(one.namespace == namespace for one in readers):
            return uri  # nobody could read it there in any case
        if [one.namespace for one in self._places(ctx, collection, uri)] == [namespace]:
            return uri
        session = session_key(ctx)
        free = uri not in collection.owners and session is not None and self._told.get(session, uri) is None
        if free and self._told.keep(session, uri, namespace):
            return uri
        return uri if is_of_the_web(uri) else addressed(namespace, uri)


def no_resource(uri: str, namespaces: Sequence[str] = ()) -> NotFound:
    """There is none that the caller could know by that URI; servers of these namespaces may have it all the same."""
    hint = "List the resources, or write toolcrib://<server>/<uri>." if namespaces else "List the resources."
    known = tuple(addressed(namespace, uri[:_SHOWN]) for namespace in namespaces[:_SUGGESTED])
    return NotFound(f'No resource is known by the URI "{uri[:_SHOWN]}".', hint=hint, suggestions=known)
