"""Where the URI of a resource leads, and by which URI a client should know a resource."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from toolcrib.errors import AmbiguousName, NotFound
from toolcrib.gateway.addresses import LONGEST, Told, addressed, is_of_the_web, is_reserved, scheme_of, taken_apart
from toolcrib.gateway.documents import Collections, is_seen, judged, namespace_of, stand_ins
from toolcrib.gateway.sessions import session_key
from toolcrib.model import Caller, Decision, Object, ToolResult
from toolcrib.protocols import Backend, Context, Documents, Policy

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

    def place(self, ctx: Context, uri: str) -> Place:
        """Where a URI leads. Raises `NotFound` or `AmbiguousName`."""
        if is_reserved(uri):
            namespace, own = taken_apart(uri) or ("", "")
            # Only this: what a server says of such a URI must not lead elsewhere.
            found = [one for one in self._of_list_or_readers(ctx.caller, own) if one.namespace == namespace]
        else:
            found = self._places(ctx, uri)
        places = [one for one in found if not self.hides(ctx.caller, one.namespace, one.uri)]
        if len(places) == 1:
            return places[0]
        if not places:
            known = [] if is_reserved(uri) else self._readers(ctx.caller, uri)
            raise no_resource(uri, [one.namespace for one in known if not self.hides(ctx.caller, one.namespace, uri)])
        names = tuple(addressed(one.namespace, uri) for one in places)
        raise AmbiguousName(f"Several servers may have {uri[:_SHOWN]}.", hint="Name one of them.", suggestions=names)

    def hides(self, caller: Caller, namespace: str, uri: str) -> bool:
        """Whether the policy keeps a server's resource from the caller, by any way to write its URI."""
        if len(uri) > LONGEST:
            return True
        return judged(self._policy, caller, stand_ins("resources", namespace, uri))[0] is Decision.HIDE

    def _places(self, ctx: Context, uri: str) -> list[Place]:
        """Where a URI that a server gave leads: by list, else by who told of it, else by template, else to the one
        server there is, if it has such URIs.
        """
        if owners := self._owners(ctx.caller, uri):
            return owners
        readers = self._readers(ctx.caller, uri)
        teller = self._told.get(session_key(ctx), uri)
        if teller is not None and (found := [one for one in readers if one.namespace == teller]):
            return found
        matched = self._matched(ctx.caller, uri)
        if found := [one for one in readers if one.namespace in matched]:
            return found
        return readers if len(readers) == 1 and self._is_usual(readers[0]) else []

    def _of_list_or_readers(self, caller: Caller, uri: str) -> list[Place]:
        """Those that list it, and of the other namespaces all that have resources."""
        owners = {one.namespace: one for one in self._owners(caller, uri)}
        return [owners.get(one.namespace, one) for one in self._readers(caller, uri)]

    def _reading(self) -> list[tuple[Backend, Documents]]:
        return [(backend, held) for backend, held in self._collections.held() if held is not None and held.reads]

    def _owners(self, caller: Caller, uri: str) -> list[Place]:
        """Those that list it; the first server of a namespace says what it is."""
        found: dict[str, tuple[Object, list[Backend]]] = {}
        for backend, documents in self._reading():
            entry = documents.resources.get(uri)
            if entry is not None:
                first, backends = found.setdefault(namespace_of(backend), (entry, []))
                if entry == first:
                    backends.append(backend)
        places = (Place(namespace, uri, tuple(backends)) for namespace, (_, backends) in sorted(found.items()))
        return [one for one in places if self._sees(caller, one.namespace, uri)]

    def _matched(self, caller: Caller, uri: str) -> frozenset[str]:
        """The namespaces of the templates which it fits, of those that the caller sees."""
        return frozenset(
            namespace_of(backend)
            for backend, documents in self._reading()
            if any(
                template.fits(uri) and is_seen(self._policy, caller, tools)
                for template, tools in self._collections.signs(backend, documents).templates
            )
        )

    def _is_usual(self, place: Place) -> bool:
        """Whether the server has shown URIs of the same scheme: any other may be meant for one that cannot be seen."""
        documents = {backend.provider: held for backend, held in self._reading()}
        return any(
            scheme_of(place.uri) in self._collections.signs(one, documents[one.provider]).schemes
            for one in place.backends
        )

    def _readers(self, caller: Caller, uri: str) -> list[Place]:
        """The servers which have resources, and of which the caller may see one of that URI."""
        found: dict[str, tuple[Backend, ...]] = {}
        for backend, _ in self._reading():
            found[namespace_of(backend)] = (*found.get(namespace_of(backend), ()), backend)
        places = (Place(namespace, uri, backends) for namespace, backends in sorted(found.items()))
        return [one for one in places if self._sees(caller, one.namespace, uri)]

    def _sees(self, caller: Caller, namespace: str, uri: str) -> bool:
        return len(uri) <= LONGEST and is_seen(self._policy, caller, stand_ins("resources", namespace, uri))

    def readdressed(self, ctx: Context, namespace: str, result: ToolResult) -> ToolResult:
        """A tool's result, in which every resource can be read by the URI that it gives."""
        if not any(block.get("type") in _POINTING for block in result.content):
            return result
        content = tuple(self._block(ctx, namespace, block) for block in result.content)
        return result if content == result.content else replace(result, content=content)

    def message(self, ctx: Context, namespace: str, message: Any) -> Any:
        """A message of a prompt, likewise."""
        block = message.get("content")
        if not isinstance(block, dict):
            return message
        return {**message, "content": self._block(ctx, namespace, block)}

    def _block(self, ctx: Context, namespace: str, block: Any) -> Any:
        kind = block.get("type")
        if kind == "resource_link":
            return self.pointing(ctx, namespace, block)
        inside = block.get("resource")
        if kind == "resource" and isinstance(inside, dict):
            return {**block, "resource": self.pointing(ctx, namespace, inside)}
        return block

    def pointing(self, ctx: Context, namespace: str, part: Object) -> Object:
        """A part of an answer that holds a URI, with the one by which its reader should know it."""
        uri = part.get("uri")
        if not isinstance(uri, str):
            return part
        shown = self.shown(ctx, namespace, uri)
        return part if shown == uri else {**part, "uri": shown}

    def shown(self, ctx: Context, namespace: str, uri: str) -> str:
        """A URI that a server gave: as it is where it leads back there, and otherwise with the server's namespace."""
        if is_reserved(uri) and any(namespace_of(backend) == namespace for backend, _ in self._collections.held()):
            return addressed(namespace, uri)
        if not any(one.namespace == namespace for one in self._readers(ctx.caller, uri)):
            return uri  # nobody could read it there in any case
        places = self._places(ctx, uri)
        if [one.namespace for one in places] == [namespace]:
            return uri
        session = session_key(ctx)
        if not places and session is not None and self._told.keep(session, uri, namespace):
            return uri
        return uri if is_of_the_web(uri) else addressed(namespace, uri)


def no_resource(uri: str, namespaces: Sequence[str] = ()) -> NotFound:
    """There is none that the caller could know by that URI; servers of these namespaces may have it all the same."""
    hint = "List the resources, or write toolcrib://<server>/<uri>." if namespaces else "List the resources."
    known = tuple(addressed(namespace, uri[:_SHOWN]) for namespace in namespaces[:_SUGGESTED])
    return NotFound(f'No resource is known by the URI "{uri[:_SHOWN]}".', hint=hint, suggestions=known)
