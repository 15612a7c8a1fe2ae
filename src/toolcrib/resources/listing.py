"""List the prompts and resources that one caller sees: their public names, and the servers that have them."""

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Final, Literal, cast
from weakref import WeakKeyDictionary

import anyio.lowlevel

from toolcrib.gateway.policy import decide
from toolcrib.gateway.refresh import SingleFlight
from toolcrib.gateway.view import may_see
from toolcrib.names import wire_name
from toolcrib.providers.base import Backend, Documents, ProviderFeature
from toolcrib.resources.uris import (
    PROMPT_TAG,
    RESOURCE_TAG,
    UriTemplate,
    is_app_uri,
    is_reserved_uri,
    normal_forms,
    public_app_uri,
    qualified_uri,
    scheme_of,
)
from toolcrib.types import Action, Caller, Decision, Key, Object, Policy, Tool, Visibility

DocumentKind = Literal["prompts", "resources", "templates"]
DOCUMENT_KINDS: Final[tuple[DocumentKind, ...]] = ("prompts", "resources", "templates")
_TAG_OF_KIND: Final = {"prompts": PROMPT_TAG, "resources": RESOURCE_TAG, "templates": RESOURCE_TAG}
_NAME_FIELD: Final = {"prompts": "name", "resources": "uri", "templates": "uriTemplate"}
_MAX_SCOPES: Final = 4096
_MAX_CACHED_DOCUMENTS: Final = 200_000
"""Documents in all cached collections; the collection used last always stays."""
_YIELD_EVERY: Final = 200
"""Documents processed before other tasks get a turn."""
_MAX_TRIES: Final = 3
_STRICTNESS: Final = {Decision.ALLOW: 0, Decision.APPROVE: 1, Decision.HIDE: 2}
DocumentSources = tuple[tuple[Backend, Documents | None], ...]
"""The servers that may have documents, and their lists; None until a list is known."""


def policy_tool(kind: DocumentKind, namespace: str, name: str) -> Tool:
    """The tool that represents a prompt, or the resource of a URI, for policies, audit and limits."""
    return Tool(
        name=name,
        namespace=namespace,
        annotations={"readOnlyHint": True},
        tags=(_TAG_OF_KIND[kind],),
        visibility=Visibility.HIDDEN,
    )


def policy_tools(kind: DocumentKind, namespace: str, name: str) -> tuple[Tool, ...]:
    """The tools that a policy decides on: for a URI as written, and for others that its server may treat it as."""
    more = () if kind == "prompts" else normal_forms(name)
    return tuple(policy_tool(kind, namespace, one) for one in (name, *more))


def may_see_all(policy: Policy, caller: Caller, tools: Iterable[Tool]) -> bool:
    """Whether the policy lets the caller see all of these tools."""
    return all(may_see(policy, caller, tool) for tool in tools)


def strictest_decision(policy: Policy, caller: Caller, tools: Iterable[Tool]) -> tuple[Decision, Tool]:
    """The strictest of the policy's decisions on calling these tools, and the tool that it applies to."""
    found = [(decide(policy, caller, tool, Action.CALL), tool) for tool in tools]
    return max(found, key=lambda pair: _STRICTNESS.get(pair[0], len(_STRICTNESS)))


@dataclass(frozen=True, slots=True)
class ListedDocument:
    """One prompt, resource or template, as it is listed to a caller."""

    namespace: str
    name: str
    """The server's own name or URI."""
    public_name: str
    entry: Object
    """The wire entry, with the public name."""
    size: int
    """Approximate size in a list, in bytes."""
    digest: bytes
    """Digest of the server's own entry."""
    backends: tuple[Backend, ...]
    """The backends that have it; at least one."""
    policy_tools: tuple[Tool, ...]
    """The tools that a policy decides on."""


@dataclass(frozen=True, slots=True)
class DocumentCollection:
    """All documents that one caller sees."""

    prompts: Mapping[str, ListedDocument]
    """By public name, in listing order, like the other fields."""
    prompt_ids: Mapping[str, ListedDocument]
    """The prompts by `namespace:name`."""
    resources: Mapping[str, ListedDocument]
    templates: Mapping[str, ListedDocument]
    digests: Mapping[DocumentKind, str]
    """A digest of each list, which changes when the list does."""

    def listed(self, kind: DocumentKind) -> Mapping[str, ListedDocument]:
        return cast("Mapping[str, ListedDocument]", getattr(self, kind))

    def __len__(self) -> int:
        return sum(len(self.listed(kind)) for kind in DOCUMENT_KINDS)


@dataclass(frozen=True, slots=True)
class UriPatterns:
    """What the URIs of a server's unlisted resources can look like."""

    documents: Documents
    templates: tuple[tuple[UriTemplate, tuple[Tool, ...]], ...]
    """Each with the tools that a policy decides on."""
    schemes: frozenset[str]
    """The schemes of its resources and templates, in lower case."""


_MergedDocuments = Mapping[DocumentKind, Mapping[Key, ListedDocument]]
_SourceDocuments = Mapping[DocumentKind, tuple[ListedDocument, ...]]


@dataclass(slots=True)
class CollectionCache:
    """One collection per policy scope, built on first use, and again after a server's lists have changed."""

    backends: Callable[[], Sequence[Backend]]
    policy: Policy
    prefix_prompts: bool = True
    """Whether the public name of every prompt has its namespace, and not only where two servers have that prompt."""
    _sources: DocumentSources = ()
    _merged: _MergedDocuments = field(default_factory=dict)
    _collections: OrderedDict[Hashable, DocumentCollection] = field(default_factory=OrderedDict)
    _digests: dict[Hashable, Mapping[DocumentKind, str]] = field(default_factory=dict)
    _cached_documents: int = 0
    _flights: SingleFlight = field(default_factory=SingleFlight)
    _documents_by_provider: WeakKeyDictionary[object, tuple[Documents, _SourceDocuments]] = field(
        default_factory=WeakKeyDictionary
    )
    _patterns_by_provider: WeakKeyDictionary[object, UriPatterns] = field(default_factory=WeakKeyDictionary)

    def sources(self) -> DocumentSources:
        """The servers that may have documents, in order of precedence."""
        return tuple(
            (backend, backend.provider.documents())
            for backend in self.backends()
            if ProviderFeature.DOCUMENTS in backend.provider.features
        )

    def uri_patterns(self, backend: Backend, documents: Documents) -> UriPatterns:
        """The URI patterns of one server, for all callers; computed once per list."""
        known = self._patterns_by_provider.get(backend.provider)
        if known is None or known.documents is not documents:
            namespace = backend_namespace(backend)
            templates = tuple(
                (UriTemplate(name), policy_tools("templates", namespace, name))
                for name in documents.templates
                if not is_reserved_uri(name)
            )
            schemes = frozenset(scheme_of(uri) for uri in (*documents.resources, *documents.templates))
            known = self._patterns_by_provider[backend.provider] = UriPatterns(documents, templates, schemes)
        return known

    async def for_caller(self, caller: Caller) -> DocumentCollection:
        """The caller's collection. O(servers), except for the first request of a scope after a change."""
        scope = self.policy.scope(caller)
        for _ in range(_MAX_TRIES):
            if _same_sources(self.sources(), self._sources) and (made := self._collections.get(scope)) is not None:
                self._collections.move_to_end(scope)
                return made
            await self._flights.run(partial(self._has, scope), partial(self._prepare, caller, scope))
        return await self._make(caller, scope)

    async def digests(self, caller: Caller) -> Mapping[DocumentKind, str]:
        """The digests of the caller's collection. They are cached longer than the collection."""
        if (
            _same_sources(self.sources(), self._sources)
            and (digests := self._digests.get(self.policy.scope(caller))) is not None
        ):
            return digests
        return (await self.for_caller(caller)).digests

    def _has(self, scope: Hashable) -> bool:
        return _same_sources(self.sources(), self._sources) and scope in self._collections

    async def _prepare(self, caller: Caller, scope: Hashable) -> None:
        await self._make(caller, scope)

    async def _make(self, caller: Caller, scope: Hashable) -> DocumentCollection:
        sources = self.sources()
        if not _same_sources(sources, self._sources):
            merged = await _merge_sources(
                [(backend, await self._source_documents(backend, documents)) for backend, documents in sources]
            )
            self._sources, self._merged, self._cached_documents = sources, merged, 0
            self._collections.clear()
            self._digests.clear()
        merged = self._merged
        collection = await self._visible(caller, merged)
        if merged is self._merged:  # it may have changed meanwhile
            self._store(scope, collection)
        return collection

    def _store(self, scope: Hashable, collection: DocumentCollection) -> None:
        before = self._collections.pop(scope, None)
        self._cached_documents += len(collection) - (0 if before is None else len(before))
        self._collections[scope] = collection
        while len(self._collections) > 1 and (
            self._cached_documents > _MAX_CACHED_DOCUMENTS or len(self._collections) > _MAX_SCOPES
        ):
            self._cached_documents -= len(self._collections.popitem(last=False)[1])
        self._digests[scope] = collection.digests
        if len(self._digests) > _MAX_SCOPES:
            self._digests.pop(next(iter(self._digests)))

    async def _source_documents(self, backend: Backend, documents: Documents | None) -> _SourceDocuments:
        """The documents of one server; computed once per list."""
        known = self._documents_by_provider.get(backend.provider)
        if documents is None or (known is not None and known[0] is documents):
            return {} if documents is None or known is None else known[1]
        listed: dict[DocumentKind, tuple[ListedDocument, ...]] = {}
        for kind in DOCUMENT_KINDS:
            found: list[ListedDocument] = []
            for name, entry in cast("Mapping[str, Object]", getattr(documents, kind)).items():
                await _yield_sometimes(len(found))
                found.append(_to_document(kind, backend, name, entry))
            listed[kind] = tuple(found)
        self._documents_by_provider[backend.provider] = (documents, listed)
        return listed

    async def _visible(self, caller: Caller, merged: _MergedDocuments) -> DocumentCollection:
        lists: dict[DocumentKind, dict[str, ListedDocument]] = {}
        for kind in DOCUMENT_KINDS:
            seen: list[ListedDocument] = []
            for place, document in enumerate(merged.get(kind, {}).values()):
                await _yield_sometimes(place)
                if may_see_all(self.policy, caller, document.policy_tools):
                    seen.append(document)
            lists[kind] = await _assign_public_names(kind, seen, prefix=kind == "prompts" and self.prefix_prompts)
        return DocumentCollection(
            prompts=lists["prompts"],
            prompt_ids={f"{one.namespace}:{one.name}": one for one in lists["prompts"].values()},
            resources=lists["resources"],
            templates=lists["templates"],
            digests={kind: _list_digest(documents.values()) for kind, documents in lists.items()},
        )


async def _yield_sometimes(place: int) -> None:
    """Let other tasks run, every few documents."""
    if place % _YIELD_EVERY == 0:
        await anyio.lowlevel.checkpoint()


def backend_namespace(backend: Backend) -> str:
    """The namespace of a server's documents."""
    return cast("str", getattr(backend.provider, "namespace", backend.name))


def _same_sources(old: DocumentSources, new: DocumentSources) -> bool:
    return len(old) == len(new) and all(
        a[0].provider is b[0].provider and a[1] is b[1] for a, b in zip(old, new, strict=True)
    )


def _to_document(kind: DocumentKind, backend: Backend, name: str, entry: Object) -> ListedDocument:
    """A document under the server's own name."""
    text, namespace = json.dumps(entry).encode(), backend_namespace(backend)
    digest = blake2b(text, digest_size=12).digest()
    return ListedDocument(
        namespace, name, name, entry, len(text), digest, (backend,), policy_tools(kind, namespace, name)
    )


async def _merge_sources(sources: Iterable[tuple[Backend, _SourceDocuments]]) -> _MergedDocuments:
    """Merge by kind, namespace and own name; the first server of a namespace that has a document defines it."""
    found: dict[DocumentKind, dict[Key, ListedDocument]] = {kind: {} for kind in DOCUMENT_KINDS}
    for backend, listed in sorted(sources, key=lambda pair: backend_namespace(pair[0])):
        for kind, documents in listed.items():
            for place, document in enumerate(documents):
                await _yield_sometimes(place)
                key = Key(document.namespace, document.name)
                known = found[kind].setdefault(key, document)
                if known is not document and known.entry == document.entry:
                    found[kind][key] = replace(known, backends=(*known.backends, backend))
    return found


async def _assign_public_names(
    kind: DocumentKind, documents: Sequence[ListedDocument], *, prefix: bool
) -> dict[str, ListedDocument]:
    """Documents by public name.

    With `prefix` that is the name with its namespace. Without it, documents get their namespace only where two servers
    have the same name or URI, or where the URI looks qualified or is that of an app.
    """
    counts: dict[str, int] = {}
    for document in documents:
        counts[document.name] = counts.get(document.name, 0) + 1
    listed: dict[str, ListedDocument] = {}
    for place, document in enumerate(documents):
        await _yield_sometimes(place)
        special = kind != "prompts" and (is_reserved_uri(document.name) or is_app_uri(document.name))
        qualified = prefix or counts[document.name] > 1 or special
        public = _qualified_name(kind, document) if qualified else document.name
        listed.setdefault(public, _with_public_name(kind, document, public))
    return dict(sorted(listed.items())) if kind == "prompts" else listed


def _qualified_name(kind: DocumentKind, document: ListedDocument) -> str:
    if kind == "prompts":
        return wire_name(Key(document.namespace, document.name))
    qualify = public_app_uri if is_app_uri(document.name) else qualified_uri
    return qualify(document.namespace, document.name)


def _with_public_name(kind: DocumentKind, document: ListedDocument, public: str) -> ListedDocument:
    if public == document.name:
        return document
    return replace(document, public_name=public, entry={**document.entry, _NAME_FIELD[kind]: public})


def _list_digest(documents: Iterable[ListedDocument]) -> str:
    """A digest of names and entries. Fixed lengths and line ends keep different lists apart."""
    digest = blake2b(digest_size=12)
    for document in documents:
        digest.update(document.digest)
        digest.update(f"{document.public_name!a}\n".encode())
    return digest.hexdigest()
