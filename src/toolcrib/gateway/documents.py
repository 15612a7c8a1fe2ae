"""What one caller sees of the prompts and resources of all servers: under which names, and who has each."""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, Literal, cast

from toolcrib.gateway.addresses import Template, addressed
from toolcrib.gateway.view import may_see
from toolcrib.model import Caller, Key, Object, Tool, Visibility
from toolcrib.names import wire_name
from toolcrib.protocols import Backend, Documents, DocumentSource, Policy
from toolcrib.providers.keyed import offers

Kind = Literal["prompts", "resources", "templates"]
KINDS: Final[tuple[Kind, ...]] = ("prompts", "resources", "templates")
PROMPT_TAG: Final = "mcp:prompt"
RESOURCE_TAG: Final = "mcp:resource"
"""Tags under which policies know prompts and resources, which they decide on as on tools."""
_TAGS: Final = {"prompts": PROMPT_TAG, "resources": RESOURCE_TAG, "templates": RESOURCE_TAG}
_NAMED_BY: Final = {"prompts": "name", "resources": "uri", "templates": "uriTemplate"}
_MAX_SCOPES: Final = 4096

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
    backends: tuple[Backend, ...]
    """Who has it; one or more."""


@dataclass(frozen=True, slots=True)
class Collection:
    """All documents that one caller sees."""

    prompts: Mapping[str, Document]
    """By public name, in the order in which they are listed; so are the others."""
    prompt_ids: Mapping[str, Document]
    """The same by `namespace:name`."""
    resources: Mapping[str, Document]
    templates: Mapping[str, Document]
    owners: Mapping[str, tuple[Document, ...]]
    """Resources by their servers' own URIs."""
    patterns: tuple[tuple[Template, Document], ...]
    marks: Mapping[Kind, str]
    """Stands for each list: while it is the same, so is the list."""

    def listed(self, kind: Kind) -> Mapping[str, Document]:
        """The documents of that kind."""
        return cast("Mapping[str, Document]", getattr(self, kind))


@dataclass(slots=True)
class Collections:
    """The collections of all scopes, each made when it is first asked for, and again when a server's lists changed."""

    backends: Callable[[], Sequence[Backend]]
    policy: Policy
    _held: Held = ()
    _gathered: Mapping[Kind, Mapping[Key, Document]] = field(default_factory=dict)
    _made: dict[Hashable, Collection] = field(default_factory=dict)

    def held(self) -> Held:
        """The servers that may have documents, in the order in which they take precedence."""
        return tuple(
            (backend, cast("DocumentSource", backend.provider).documents())
            for backend in self.backends()
            if offers(type(backend.provider), DocumentSource)
        )

    def of(self, caller: Caller) -> Collection:
        """What the caller sees. O(servers), but for the first of a scope after a change."""
        held = self.held()
        if not _same(held, self._held):
            self._held, self._gathered, self._made = held, _gather(held), {}
        scope = self.policy.scope(caller)
        made = self._made.get(scope)
        if made is None:
            if len(self._made) >= _MAX_SCOPES:
                self._made.pop(next(iter(self._made)))
            made = self._made[scope] = self._make(caller)
        return made

    def _make(self, caller: Caller) -> Collection:
        seen = {
            kind: [
                document
                for document in self._gathered.get(kind, {}).values()
                if may_see(self.policy, caller, stand_in(kind, document.namespace, document.name))
            ]
            for kind in KINDS
        }
        lists = {kind: _published(kind, documents) for kind, documents in seen.items()}
        owners: dict[str, tuple[Document, ...]] = {}
        for document in lists["resources"].values():
            owners[document.name] = (*owners.get(document.name, ()), document)
        return Collection(
            prompts=lists["prompts"],
            prompt_ids={f"{one.namespace}:{one.name}": one for one in lists["prompts"].values()},
            resources=lists["resources"],
            templates=lists["templates"],
            owners=owners,
            patterns=tuple((Template(document.name), document) for document in lists["templates"].values()),
            marks={kind: _mark(documents.values()) for kind, documents in lists.items()},
        )


def namespace_of(backend: Backend) -> str:
    """The namespace of what a server offers."""
    return cast("str", getattr(backend.provider, "namespace", backend.name))


def _same(old: Held, new: Held) -> bool:
    return len(old) == len(new) and all(
        a[0].provider is b[0].provider and a[1] is b[1] for a, b in zip(old, new, strict=True)
    )


def _gather(held: Held) -> Mapping[Kind, Mapping[Key, Document]]:
    """By kind, namespace and own name: the first server of a namespace that offers it defines it."""
    found: dict[Kind, dict[Key, Document]] = {kind: {} for kind in KINDS}
    for backend, documents in sorted(held, key=lambda pair: namespace_of(pair[0])):
        for kind in KINDS if documents is not None else ():
            for name, entry in getattr(documents, kind).items():
                key = Key(namespace_of(backend), name)
                known = found[kind].get(key)
                if known is None:
                    size = len(json.dumps(entry))
                    found[kind][key] = Document(key.namespace, name, name, entry, size, (backend,))
                elif known.entry == entry:
                    found[kind][key] = replace(known, backends=(*known.backends, backend))
    return found


def _published(kind: Kind, documents: Sequence[Document]) -> dict[str, Document]:
    """Under their public names: prompts with their namespace, resources with it where two servers have one URI."""
    counts: dict[str, int] = {}
    for document in documents:
        counts[document.name] = counts.get(document.name, 0) + 1
    listed: dict[str, Document] = {}
    for document in documents:
        if kind == "prompts":
            public = wire_name(Key(document.namespace, document.name))
        elif counts[document.name] > 1:
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
    text: list[Any] = [document.entry for document in documents]
    return blake2b(json.dumps(text).encode(), digest_size=12).hexdigest()
