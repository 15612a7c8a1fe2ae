"""What one caller sees of the prompts and resources of all servers: under which names, and who has each."""

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Final, Literal, cast
from weakref import WeakKeyDictionary

import anyio.lowlevel

from toolcrib.gateway.addresses import RESOURCE_TAG, Template, addressed, is_reserved, normal_forms, scheme_of
from toolcrib.gateway.flights import Flights
from toolcrib.gateway.view import may_see
from toolcrib.model import Action, Caller, Decision, Key, Object, Tool, Visibility
from toolcrib.names import wire_name
from toolcrib.protocols import Backend, Documents, DocumentSource, Policy
from toolcrib.providers.keyed import offers

Kind = Literal["prompts", "resources", "templates"]
KINDS: Final[tuple[Kind, ...]] = ("prompts", "resources", "templates")
PROMPT_TAG: Final = "mcp:prompt"
"""The tag under which policies know prompts, which they decide on as on tools."""
_TAGS: Final = {"prompts": PROMPT_TAG, "resources": RESOURCE_TAG, "templates": RESOURCE_TAG}
_NAMED_BY: Final = {"prompts": "name", "resources": "uri", "templates": "uriTemplate"}
_MAX_SCOPES: Final = 4096
_MAX_KEPT: Final = 200_000
"""Documents in all collections that are kept; the one asked for last is kept in any case."""
_STRIDE: Final = 200
"""Documents looked at before others get a turn."""
_TRIES: Final = 3
_STRICTNESS: Final = {Decision.ALLOW: 0, Decision.APPROVE: 1, Decision.HIDE: 2}

Held = tuple[tuple[Backend, Documents | None], ...]
"""The servers that may have documents, with what each offers."""


def stand_in(kind: Kind, namespace: str, name: str) -> Tool:
    """The tool as which policies, audit and limits know a prompt, or a resource by its URI."""
    return Tool(
        name=name,
        namespace=namespace,
        annotations={"readOnlyHint": True},
        tags=(_TAGS[kind],),
        visibility=Visibility.HIDDEN,
    )


def stand_ins(kind: Kind, namespace: str, name: str) -> tuple[Tool, ...]:
    """The tools that a policy is asked about: a URI as it is written, and as what its server may take it for."""
    more = () if kind == "prompts" else normal_forms(name)
    return tuple(stand_in(kind, namespace, one) for one in (name, *more))


def is_seen(policy: Policy, caller: Caller, tools: Iterable[Tool]) -> bool:
    """Whether the policy lets the caller see all of them."""
    return all(may_see(policy, caller, tool) for tool in tools)


def judged(policy: Policy, caller: Caller, tools: Iterable[Tool]) -> tuple[Decision, Tool]:
    """What the policy says of calling the one of which it says the strictest, and which one that is."""
    found = [(policy.decide(caller, tool, Action.CALL), tool) for tool in tools]
    return max(found, key=lambda pair: _STRICTNESS.get(pair[0], len(_STRICTNESS)))


def is_document(tool: Tool) -> bool:
    """Whether the tool stands for a prompt or a resource."""
    return PROMPT_TAG in tool.tags or RESOURCE_TAG in tool.tags


@dataclass(frozen=True, slots=True)
class Document:
    """One prompt, resource or template, as a caller is listed it."""

    namespace: str
    name: str
    """Its server's own name or URI."""
    public: str
    entry: Object
    """With the public name."""
    size: int
    """About how many bytes it takes in a list."""
    digest: bytes
    """Stands for the server's own entry."""
    backends: tuple[Backend, ...]
    """Who has it; one or more."""
    known_as: tuple[Tool, ...]
    """The tools that a policy is asked about."""


@dataclass(frozen=True, slots=True)
class Collection:
    """All documents that one caller sees."""

    prompts: Mapping[str, Document]
    """By public name, in the order in which they are listed; so are the others."""
    prompt_ids: Mapping[str, Document]
    """The same by `namespace:name`."""
    resources: Mapping[str, Document]
    templates: Mapping[str, Document]
    marks: Mapping[Kind, str]
    """Stands for each list: while it is the same, so is the list."""

    def listed(self, kind: Kind) -> Mapping[str, Document]:
        """The documents of that kind."""
        return cast("Mapping[str, Document]", getattr(self, kind))

    def __len__(self) -> int:
        """How many there are of all kinds."""
        return sum(len(self.listed(kind)) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class Signs:
    """By what the URIs of a server's resources are known, beside its list."""

    documents: Documents
    templates: tuple[tuple[Template, tuple[Tool, ...]], ...]
    """With the tools that a policy is asked about."""
    schemes: frozenset[str]
    """With which its resources and templates begin, in lower case."""


_Gathered = Mapping[Kind, Mapping[Key, Document]]
_Shelf = Mapping[Kind, tuple[Document, ...]]


@dataclass(slots=True)
class Collections:
    """The collections of all scopes, each made when it is first asked for, and again when a server's lists changed."""

    backends: Callable[[], Sequence[Backend]]
    policy: Policy
    _held: Held = ()
    _gathered: _Gathered = field(default_factory=dict)
    _made: OrderedDict[Hashable, Collection] = field(default_factory=OrderedDict)
    _marks: dict[Hashable, Mapping[Kind, str]] = field(default_factory=dict)
    _kept: int = 0
    _flights: Flights = field(default_factory=Flights)
    _shelves: WeakKeyDictionary[object, tuple[Documents, _Shelf]] = field(default_factory=WeakKeyDictionary)
    _signs: WeakKeyDictionary[object, Signs] = field(default_factory=WeakKeyDictionary)

    def held(self) -> Held:
        """The servers that may have documents, in the order in which they take precedence."""
        return tuple(
            (backend, cast("DocumentSource", backend.provider).documents())
            for backend in self.backends()
            if offers(type(backend.provider), DocumentSource)
        )

    def signs(self, backend: Backend, documents: Documents) -> Signs:
        """Of one server, whoever asks; worked out once for each of its lists."""
        known = self._signs.get(backend.provider)
        if known is None or known.documents is not documents:
            namespace = namespace_of(backend)
            templates = tuple(
                (Template(name), stand_ins("templates", namespace, name))
                for name in documents.templates
                if not is_reserved(name)
            )
            schemes = frozenset(scheme_of(uri) for uri in (*documents.resources, *documents.templates))
            known = self._signs[backend.provider] = Signs(documents, templates, schemes)
        return known

    async def of(self, caller: Caller) -> Collection:
        """What the caller sees. O(servers), but for the first of a scope after a change."""
        scope = self.policy.scope(caller)
        for _ in range(_TRIES):
            if _same(self.held(), self._held) and (made := self._made.get(scope)) is not None:
                self._made.move_to_end(scope)
                return made
            await self._flights.join(lambda: 0, partial(self._prepare, caller, scope))
        return await self._make(caller, scope)

    async def marks(self, caller: Caller) -> Mapping[Kind, str]:
        """Those of the caller's collection, which are kept longer than it is."""
        if _same(self.held(), self._held) and (marks := self._marks.get(self.policy.scope(caller))) is not None:
            return marks
        return (await self.of(caller)).marks

    async def _prepare(self, caller: Caller, scope: Hashable) -> None:
        await self._make(caller, scope)

    async def _make(self, caller: Caller, scope: Hashable) -> Collection:
        held = self.held()
        if not _same(held, self._held):
            gathered = await _gather([(backend, await self._shelf(backend, documents)) for backend, documents in held])
            self._held, self._gathered, self._kept = held, gathered, 0
            self._made.clear()
            self._marks.clear()
        gathered = self._gathered
        collection = await self._seen(caller, gathered)
        if gathered is self._gathered:
            self._keep(scope, collection)
        return collection

    def _keep(self, scope: Hashable, collection: Collection) -> None:
        before = self._made.pop(scope, None)
        self._kept += len(collection) - (0 if before is None else len(before))
        self._made[scope] = collection
        while len(self._made) > 1 and (self._kept > _MAX_KEPT or len(self._made) > _MAX_SCOPES):
            self._kept -= len(self._made.popitem(last=False)[1])
        self._marks[scope] = collection.marks
        if len(self._marks) > _MAX_SCOPES:
            self._marks.pop(next(iter(self._marks)))

    async def _shelf(self, backend: Backend, documents: Documents | None) -> _Shelf:
        """What one server offers; worked out once for each of its lists."""
        known = self._shelves.get(backend.provider)
        if documents is None or (known is not None and known[0] is documents):
            return {} if documents is None or known is None else known[1]
        shelf: dict[Kind, tuple[Document, ...]] = {}
        for kind in KINDS:
            found: list[Document] = []
            for name, entry in cast("Mapping[str, Object]", getattr(documents, kind)).items():
                await _turn(len(found))
                found.append(_document(kind, backend, name, entry))
            shelf[kind] = tuple(found)
        self._shelves[backend.provider] = (documents, shelf)
        return shelf

    async def _seen(self, caller: Caller, gathered: _Gathered) -> Collection:
        lists: dict[Kind, dict[str, Document]] = {}
        for kind in KINDS:
            seen: list[Document] = []
            for place, document in enumerate(gathered.get(kind, {}).values()):
                await _turn(place)
                if is_seen(self.policy, caller, document.known_as):
                    seen.append(document)
            lists[kind] = await _published(kind, seen)
        return Collection(
            prompts=lists["prompts"],
            prompt_ids={f"{one.namespace}:{one.name}": one for one in lists["prompts"].values()},
            resources=lists["resources"],
            templates=lists["templates"],
            marks={kind: _mark(documents.values()) for kind, documents in lists.items()},
        )


async def _turn(place: int) -> None:
    """Give others theirs, now and then."""
    if place % _STRIDE == 0:
        await anyio.lowlevel.checkpoint()


def namespace_of(backend: Backend) -> str:
    """The namespace of what a server offers."""
    return cast("str", getattr(backend.provider, "namespace", backend.name))


def _same(old: Held, new: Held) -> bool:
    return len(old) == len(new) and all(
        a[0].provider is b[0].provider and a[1] is b[1] for a, b in zip(old, new, strict=True)
    )


def _document(kind: Kind, backend: Backend, name: str, entry: Object) -> Document:
    """As its server has it."""
    text, namespace = json.dumps(entry).encode(), namespace_of(backend)
    digest = blake2b(text, digest_size=12).digest()
    return Document(namespace, name, name, entry, len(text), digest, (backend,), stand_ins(kind, namespace, name))


async def _gather(shelves: Iterable[tuple[Backend, _Shelf]]) -> _Gathered:
    """By kind, namespace and own name: the first server of a namespace that offers it defines it."""
    found: dict[Kind, dict[Key, Document]] = {kind: {} for kind in KINDS}
    for backend, shelf in sorted(shelves, key=lambda pair: namespace_of(pair[0])):
        for kind, documents in shelf.items():
            for place, document in enumerate(documents):
                await _turn(place)
                key = Key(document.namespace, document.name)
                known = found[kind].setdefault(key, document)
                if known is not document and known.entry == document.entry:
                    found[kind][key] = replace(known, backends=(*known.backends, backend))
    return found


async def _published(kind: Kind, documents: Sequence[Document]) -> dict[str, Document]:
    """Under their public names: prompts with their namespace, resources with it where two servers have one URI, or
    where it would pass for one with a namespace.
    """
    counts: dict[str, int] = {}
    for document in documents:
        counts[document.name] = counts.get(document.name, 0) + 1
    listed: dict[str, Document] = {}
    for place, document in enumerate(documents):
        await _turn(place)
        if kind == "prompts":
            public = wire_name(Key(document.namespace, document.name))
        elif counts[document.name] > 1 or is_reserved(document.name):
            public = addressed(document.namespace, document.name)
        else:
            public = document.name
        listed.setdefault(public, _renamed(kind, document, public))
    return dict(sorted(listed.items())) if kind == "prompts" else listed


def _renamed(kind: Kind, document: Document, public: str) -> Document:
    if public == document.name:
        return document
    return replace(document, public=public, entry={**document.entry, _NAMED_BY[kind]: public})


def _mark(documents: Iterable[Document]) -> str:
    """Digests are of one length, and public names are whole lines, so that no two lists give one text."""
    mark = blake2b(digest_size=12)
    for document in documents:
        mark.update(document.digest)
        mark.update(f"{document.public!a}\n".encode())
    return mark.hexdigest()
