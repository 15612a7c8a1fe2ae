"""Pins of each server's definitions in the state store: which version is trusted, and every version there was.

The first list of a server is the baseline, of its tools and instructions as of its prompts and resource templates.
Whatever differs from it later is recorded; what follows is up to the setting `trust` of the server: the lists of a
connected server are reviewed, held where that is wanted, and marked by the lint. Lists that were stored are compared
before they are used, whatever wrote them, and nothing is recorded then. Another process, such as `toolcrib trust`, may
change a pin at any time. Trusted versions are never dropped for space; others may be.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from toolcrib.errors import InvalidArguments, ToolcribError
from toolcrib.formats.mcp import tool as list_entry
from toolcrib.providers.base import Documents
from toolcrib.schema import Schema
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.trust.pins import (
    INSTRUCTIONS,
    PROMPT,
    TEMPLATE,
    describe_change,
    find_renamed,
    is_document,
    pin,
    pinned_document,
    pinned_part,
    tool_part,
)
from toolcrib.trust.rules import Finding
from toolcrib.types import JSON, Object, Rejected, ServerInfo, Tool
from toolcrib.upstream.options import ServerOptions

logger = logging.getLogger(__name__)

TRUST_META: Final = "toolcrib/trust"
"""The key in the `_meta` of a result that says why an earlier definition of its tool is in use."""
_MAX_SHOWN: Final = 5
_MAX_VERSIONS: Final = 10_000
_MAX_VERSION_BYTES: Final = 64 * 1024 * 1024
"""Lists with changes that are kept of all servers; the oldest are dropped first."""
_PLAIN: Final[StateCodec[dict[str, Any]]] = StateCodec(dict, dict)
_MAX_NAMED: Final = 5
_LOOK_S: Final = 2.0
"""How often to look whether a held definition was trusted meanwhile, in seconds."""
_LINT_AFTER_S: Final = 10.0
"""How long the lint waits after a list, in seconds: whatever starts then is more urgent."""
_HARD: Final = " (hard)"
"""How the mark of a hard finding ends."""
_PER_STEP: Final = 20
"""Definitions that are checked before other work in threads gets its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedChange:
    """A part of a server that differs from its pin."""

    part: str
    """The name of the tool, `instructions`, or `prompt:` and `template:` with a name or URI template."""
    old: JSON
    """The trusted version; None for a part that is new or was never trusted."""
    new: JSON
    """The current version; None for a part that is gone."""
    since: float
    """When it changed, in seconds since the epoch."""
    renamed_from: str = ""
    findings: tuple[Finding, ...] = ()
    """Hard findings of the lint in the current version."""

    def summary(self) -> str:
        """What changed, in a line."""
        if self.renamed_from:
            return f"it is {self.renamed_from} under another name"
        if self.findings:
            return "; ".join(f"it {one.why} ({one.where})" for one in self.findings[:2])
        if self.old is None:
            return "it is new"
        return "it is gone" if self.new is None else "; ".join(describe_change(self.old, self.new)[:_MAX_SHOWN])

    def held_by(self, server: str) -> Rejected:
        """Why the current version is not in use, and what to do."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.since))
        kept = "the trusted version stays in use" if self.old is not None else "it is held"
        return Rejected(
            tool=self.part,
            reason=f"{self.summary()} (since {day}), so {kept}",
            state="held",
            since=self.since,
            todo=f"`toolcrib diff {server}:{self.part}` shows it, `toolcrib trust` accepts it",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PinReview:
    """What a list of definitions looks like beside its pins."""

    changes: Mapping[str, PinnedChange] = field(default_factory=dict)
    """By part."""
    news: tuple[str, ...] = ()
    """The parts whose change was not known before."""

    def only_findings(self) -> "PinReview":
        """The changes with hard findings of the lint."""
        found = {name: change for name, change in self.changes.items() if change.findings}
        return PinReview(changes=found, news=tuple(name for name in self.news if name in found))

    def held_entries(self, entries: Sequence[Any]) -> list[Any]:
        """The tools in use where changes are held: trusted versions, and nothing that was never trusted."""
        kept = [(entry, self.changes.get(tool_part(_name(entry)))) for entry in _first_of_each(entries)]
        return [entry if change is None else change.old for entry, change in kept if change is None or change.old]

    def held_documents(self, documents: Documents) -> Documents:
        """The prompts and templates in use where changes are held; the fields that no model reads stay current."""

        def held(kind: str, entries: Mapping[str, Object]) -> dict[str, Object]:
            kept: dict[str, Object] = {}
            for name, entry in entries.items():
                change = self.changes.get(kind + name)
                if change is None:
                    kept[name] = entry
                elif isinstance(change.old, Mapping):
                    own = {key: value for key, value in entry.items() if key not in pinned_document(entry)}
                    kept[name] = {**own, **change.old}
            return kept

        return replace(
            documents, prompts=held(PROMPT, documents.prompts), templates=held(TEMPLATE, documents.templates)
        )

    def held_instructions(self, instructions: str) -> str:
        """The instructions in use where changes are held."""
        change = self.changes.get(INSTRUCTIONS)
        return instructions if change is None else str(change.old or "")

    def rejections(self, server: str) -> tuple[Rejected, ...]:
        """The versions that are held, with the reasons."""
        return tuple(change.held_by(server) for change in self.changes.values() if change.new is not None)

    def explain(self, tool: str, arguments: Object) -> str:
        """What changed, if the arguments fit the trusted version of a tool and so not the current one; else empty."""
        change = self.changes.get(tool_part(tool))
        if change is None or not isinstance(change.old, Mapping) or not isinstance(change.new, Mapping):
            return ""
        try:
            Schema(change.old.get("inputSchema") or {"type": "object"}, tool).check(dict(arguments))
        except (InvalidArguments, ToolcribError):
            return ""
        day = time.strftime("%Y-%m-%d", time.gmtime(change.since))
        return f"The arguments fit an earlier version of the tool. Since {day}: {change.summary()}."


class PinStore:
    """The pins and the versions of all servers' definitions."""

    def __init__(self, state: StateStore, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` counts seconds since the epoch."""
        self._pins = state.table("pins", _PLAIN, durable=True, keep=True)
        self._trusted = state.table("trusted definitions", _PLAIN, durable=True, keep=True)
        self._versions = state.table(
            "versions of definitions", _PLAIN, max_entries=_MAX_VERSIONS, max_size=_MAX_VERSION_BYTES, durable=True
        )
        self._clock = clock

    async def review(
        self, server: str, entries: Sequence[Any], instructions: str = "", *, hold_findings: bool = False
    ) -> PinReview:
        """Compare a server's tools and instructions with their pins, and record what is new.

        With `hold_findings`, a first list is no baseline for definitions with hard findings of the lint.
        """
        return await self._compare(
            server, _tool_parts(entries, instructions), documents=False, hold_findings=hold_findings
        )

    async def review_documents(self, server: str, documents: Documents, *, hold_findings: bool = False) -> PinReview:
        """The same for its prompts and resource templates. Resources are not pinned: their lists are data."""
        return await self._compare(server, _document_parts(documents), documents=True, hold_findings=hold_findings)

    async def check(
        self, server: str, entries: Sequence[Any], instructions: str = "", *, hold_findings: bool = False
    ) -> PinReview:
        """Compare tools and instructions as `review` does, and record nothing.

        For a list that is not what the server lists now: one that was stored, or a part of one. What the server is
        known to list is among the changes too.
        """
        return await self._check(
            server, _tool_parts(entries, instructions), documents=False, hold_findings=hold_findings
        )

    async def check_documents(self, server: str, documents: Documents, *, hold_findings: bool = False) -> PinReview:
        """The same for prompts and resource templates."""
        return await self._check(server, _document_parts(documents), documents=True, hold_findings=hold_findings)

    async def _check(
        self, server: str, parts: Mapping[str, JSON], *, documents: bool, hold_findings: bool
    ) -> PinReview:
        row = await self._pins.get(server)
        known: Mapping[str, Any] = {} if row is None else row["parts"]
        look = partial(_digests, server, parts, known if hold_findings else None)
        digests, findings = await anyio.to_thread.run_sync(look)
        first, now = _is_first(row, documents=documents), self._clock()
        differing = _differing(
            {name: one for name, one in known.items() if one["now"] is not None}, documents=documents
        )
        for name, digest in digests.items():
            one = known.get(name, {"pin": None, "now": None})
            trusted = digest if first and name not in findings else one["pin"]
            if digest not in (trusted, one["now"]):
                differing[name] = {"pin": trusted, "now": digest, "since": now}
        current = {name: parts[name] for name, one in differing.items() if digests.get(name) == one["now"]}
        return await self._review(server, differing, current, findings)

    async def _compare(
        self, server: str, parts: Mapping[str, JSON], *, documents: bool, hold_findings: bool
    ) -> PinReview:
        """Record what is new in these parts: versions first, so that a pin never names one that is not kept."""
        row = await self._pins.get(server)
        known = {} if row is None else row["parts"]
        look = partial(_digests, server, parts, known if hold_findings else None)
        digests, findings = await anyio.to_thread.run_sync(look)
        now = self._clock()
        first = _is_first(row, documents=documents)
        fresh = {name: parts[name] for name, digest in digests.items() if known.get(name, {}).get("now") != digest}
        if fresh:
            version = {"at": now, "versions": fresh}
            await self._versions.set(f"{server}\n{now:020.6f}", version, size=len(json.dumps(fresh)))
        if first:
            baseline = {digest: parts[name] for name, digest in digests.items() if name not in findings}
            await self._keep_trusted(server, baseline)

        def record(row: dict[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
            known: dict[str, Any] = {} if row is None else dict(row["parts"])
            news = [name for name, digest in digests.items() if known.get(name, {}).get("now") != digest]
            lost = [
                name
                for name, one in known.items()
                if is_document(name) is documents and name not in digests and one["now"] is not None
            ]
            baseline = _is_first(row, documents=documents)
            for name in news:
                trusted = digests[name] if baseline and name not in findings else known.get(name, {}).get("pin")
                known[name] = {"pin": trusted, "now": digests[name], "since": now}
            for name in lost:
                known[name] = {**known[name], "now": None, "since": now}
            seen = {**(row or {}), "parts": known}
            seen["documents" if documents else "tools"] = True
            return seen, [*news, *lost]

        news = await self._pins.update(server, record)
        row = await self._pins.get(server)
        differing = _differing({} if row is None else row["parts"], documents=documents)
        return await self._review(server, differing, parts, findings, [] if first else news)

    async def _keep_trusted(self, server: str, versions: Mapping[str, JSON]) -> None:
        """Keep the text of trusted versions, by digest."""
        if versions:
            await self._trusted.update(
                server, lambda kept: ({**(kept or {}), **versions}, None), size=len(json.dumps(versions))
            )

    async def _review(
        self,
        server: str,
        differing: Mapping[str, Mapping[str, Any]],
        current: Mapping[str, JSON],
        findings: Mapping[str, tuple[Finding, ...]],
        news: Sequence[str] = (),
    ) -> PinReview:
        """What changed in parts whose pins differ. Versions that are not in `current` are read from the store."""
        if not differing:
            return PinReview()
        by_digest = await self._known_versions(server)
        old = {name: by_digest.get(one["pin"]) for name, one in differing.items()}
        new = {name: current.get(name, by_digest.get(one["now"])) for name, one in differing.items()}
        gone = {name: part for name, part in old.items() if new[name] is None and part is not None}
        added = {name: part for name, part in new.items() if part is not None and old[name] is None}
        renamed = await anyio.to_thread.run_sync(find_renamed, gone, added)
        changes = {
            name: PinnedChange(
                part=name,
                old=old[name],
                new=new[name],
                since=one["since"],
                renamed_from=renamed.get(name, ""),
                findings=findings.get(name, ()),
            )
            for name, one in differing.items()
            if name not in renamed.values() and not (one["now"] is None and one["pin"] is None)
        }
        return PinReview(changes=changes, news=tuple(name for name in news if name in changes))

    async def trust(self, server: str, part: str | None = None) -> list[str]:
        """Trust the current version of a part, or of all; return the parts whose pin changed."""
        row = await self._pins.get(server)
        if row is None:
            return []
        known = await self._known_versions(server)
        current = {one["now"] for name, one in row["parts"].items() if part in (None, name)}
        await self._keep_trusted(server, {digest: known[digest] for digest in current if digest in known})

        def change(row: dict[str, Any] | None) -> tuple[dict[str, Any] | None, tuple[list[str], set[str]]]:
            if row is None:
                return None, ([], set())
            wanted = [
                name
                for name, one in row["parts"].items()
                if part in (None, name) and one["pin"] != one["now"] and one["now"] in {*current, None}
            ]
            trusted = {name: {**row["parts"][name], "pin": row["parts"][name]["now"]} for name in wanted}
            rest = {name: one for name, one in {**row["parts"], **trusted}.items() if one["now"] or one["pin"]}
            return {**row, "parts": rest}, (wanted, {one["pin"] for one in rest.values() if one["pin"]})

        wanted, pinned = await self._pins.update(server, change)
        await self._trusted.update(
            server, lambda kept: ({digest: one for digest, one in (kept or {}).items() if digest in pinned}, None)
        )
        return wanted

    async def servers(self) -> dict[str, tuple[str, ...]]:
        """The servers with pins, each with its parts."""
        return {server: tuple(row["parts"]) for server, row in (await self._pins.items()).items()}

    async def changes(self, server: str) -> PinReview:
        """What currently differs from the pins of a server, from what was recorded."""
        row = await self._pins.get(server)
        return await self._review(server, _differing({} if row is None else row["parts"]), {}, {})

    async def history(self, server: str) -> list[tuple[float, dict[str, JSON]]]:
        """The versions of a server's parts as they were recorded, the oldest first."""
        found = {key: row for key, row in (await self._versions.items()).items() if key.startswith(f"{server}\n")}
        return sorted(((row["at"], row["versions"]) for row in found.values()), key=lambda one: one[0])

    async def pins(self, server: str) -> dict[str, str | None]:
        """The trusted digest of each part; to notice a change by another process."""
        row = await self._pins.get(server)
        return {} if row is None else {name: one["pin"] for name, one in row["parts"].items()}

    async def _known_versions(self, server: str) -> dict[str | None, JSON]:
        history = await self.history(server)
        trusted: Mapping[str, JSON] = await self._trusted.get(server) or {}
        found: dict[str | None, JSON] = {pin(part): part for _, versions in history for part in versions.values()}
        return found | dict(trusted)


def _tool_parts(entries: Sequence[Any], instructions: str) -> dict[str, JSON]:
    named = [(_name(entry), entry) for entry in _first_of_each(entries)]
    parts: dict[str, JSON] = {tool_part(name): pinned_part(entry) for name, entry in named if name}
    return {**parts, INSTRUCTIONS: instructions} if instructions else parts


def _first_of_each(entries: Sequence[Any]) -> list[Any]:
    """The entries without those whose name was there before: what is compared is what may be used."""
    found: dict[str | int, Any] = {}
    for place, entry in enumerate(entries):
        found.setdefault(_name(entry) or place, entry)
    return list(found.values())


def _document_parts(documents: Documents) -> dict[str, JSON]:
    return {
        kind + name: pinned_document(entry)
        for kind, found in ((PROMPT, documents.prompts), (TEMPLATE, documents.templates))
        for name, entry in found.items()
    }


def _differing(parts: Mapping[str, Any], *, documents: bool | None = None) -> dict[str, Any]:
    """The parts whose current version is not the trusted one: of documents, of the rest, or with None of everything."""
    return {
        name: one for name, one in parts.items() if one["pin"] != one["now"] and documents in (None, is_document(name))
    }


def _is_first(row: Mapping[str, Any] | None, *, documents: bool) -> bool:
    """Whether parts of this kind were never listed. Rows of earlier versions know tools only, and do not say so."""
    return row is None or not row.get("documents" if documents else "tools", not documents and bool(row["parts"]))


def _digests(
    server: str, parts: Mapping[str, JSON], known: Mapping[str, Any] | None
) -> tuple[dict[str, str], dict[str, tuple[Finding, ...]]]:
    """The digests of parts, and the hard findings in those whose pin in `known` is another; with None, no findings."""
    digests = {name: pin(part) for name, part in parts.items()}
    findings = {
        name: _hard_findings(server, part)
        for name, part in parts.items()
        if known is not None and known.get(name, {}).get("pin") != digests[name]
    }
    return digests, {name: found for name, found in findings.items() if found}


def _hard_findings(server: str, part: JSON) -> tuple[Finding, ...]:
    return tuple(one for one in _lint_part(server, part) if one.severity == "hard")


def _lint_part(server: str, part: JSON) -> tuple[Finding, ...]:
    """The findings of the lint in a part as it is pinned."""
    from toolcrib.trust.lint import lint_tool

    if not isinstance(part, Mapping):
        return tuple(lint_tool(Tool(name=INSTRUCTIONS, namespace=server, description=str(part))))
    schema = part.get("inputSchema")
    try:
        tool = Tool(
            name=str(part.get("name") or "?"),
            namespace=server,
            input_schema=schema if isinstance(schema, Mapping) else {"properties": _fields(part.get("arguments"))},
        )
    except ToolcribError:  # a name that no tool may have, of a template
        tool = Tool(name="?", namespace=server)
    return tuple(lint_tool(tool, part))


def _fields(arguments: JSON) -> dict[str, JSON]:
    """The arguments of a prompt as properties of a schema."""
    found = arguments if isinstance(arguments, list) else []
    return {str(one.get("name")): one for one in found if isinstance(one, Mapping)}


def _name(entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) else ""


def may_hold(options: ServerOptions) -> bool:
    """Whether definitions of the server may stay out of use."""
    return "hold" in (options.trust, options.lint)


def _held_of(options: ServerOptions, review: PinReview) -> PinReview:
    """The changes that stay out of use by the options."""
    return review if options.trust == "hold" else review.only_findings()


async def check_stored(
    store: PinStore, options: ServerOptions, entries: Sequence[Any], instructions: str, documents: Documents | None
) -> tuple[PinReview, PinReview]:
    """What is held in stored tools and instructions, and in stored documents. Raises `ToolcribError`."""
    hard = options.lint != "off"
    tools = await store.check(options.name, entries, instructions, hold_findings=hard)
    others = await store.check_documents(options.name, documents or Documents(), hold_findings=hard)
    return _held_of(options, tools), _held_of(options, others)


# -- the pins of one connected server ----------------------------------------------------------------------------------


class PinWatch:
    """Reviews the lists of one server against its pins, and notices when a held change is trusted."""

    def __init__(self, store: PinStore | None, options: ServerOptions, on_marks: Callable[[], None]) -> None:
        """`on_marks` is called when `marks` have changed."""
        self._store = store if options.trust != "off" or options.lint == "hold" else None
        self._server = options.name
        self._options = options
        self._on_marks = on_marks
        self.holds = store is not None and may_hold(options)
        """Whether definitions may stay out of use."""
        self.review = PinReview()
        """What differs from the pins, of tools and instructions."""
        self.document_review = PinReview()
        """The same of prompts and resource templates."""
        self.marks: tuple[Rejected, ...] = ()
        """Tools in use in which the lint found something, with the rules."""
        self._linted: dict[str, tuple[Object, str]] = {}
        """Each tool's definition and its mark; empty for none."""
        self._listed: tuple[Sequence[Any], str] | None = None
        self._documents: Documents | None = None
        self._changed = anyio.Event()

    async def hold(self, entries: Sequence[Any], instructions: str, *, complete: bool) -> PinReview:
        """Review a list of tools before it is used; return what is held. Raises `ToolcribError`.

        Of a list that is not `complete`, nothing is recorded: it says nothing about the tools that it lacks.
        """
        if self._store is not None:
            compare = self._store.review if complete else self._store.check
            found = await compare(self._server, entries, instructions, hold_findings=self._options.lint != "off")
            self.review = self._held(found)
        return self.review

    async def hold_documents(self, documents: Documents) -> Documents:
        """Review prompts and templates before they are used; return those to use. Raises `ToolcribError`."""
        if self._store is None or not self.holds:
            return documents
        found = await self._store.review_documents(self._server, documents, hold_findings=self._options.lint != "off")
        self.document_review = self._held(found)
        return self.document_review.held_documents(documents)

    async def held_findings(self, tools: Sequence[Tool]) -> frozenset[str]:
        """The names of tools that were found, never listed, and are held for hard findings of the lint.

        They have no pins, since a server that is searched does not say which tools it has.
        """
        if not tools or not self.holds or self._options.lint == "off":
            return frozenset()

        def lint() -> frozenset[str]:
            return frozenset(tool.name for tool in tools if _hard_findings(self._server, list_entry(tool)))

        held = await anyio.to_thread.run_sync(lint)
        if held:
            logger.warning(
                "%s: the lint has hard findings in %s, so they are held", self._server, sorted(held)[:_MAX_NAMED]
            )
        return held

    def _held(self, review: PinReview) -> PinReview:
        _log_changes(self._server, review)
        return _held_of(self._options, review)

    def listed(self, entries: Sequence[Any], instructions: str) -> None:
        """Have a list reviewed and marked that is in use already."""
        self._listed = (entries, instructions)
        self._changed.set()

    def documents_listed(self, documents: Documents) -> None:
        """The same for prompts and templates."""
        if self._store is not None and not self.holds:
            self._documents = documents
            self._changed.set()

    def in_use(self, info: ServerInfo) -> ServerInfo:
        """What the server says about itself, with the trusted instructions where changes are held."""
        if not self.holds:
            return info
        return replace(info, instructions=self.review.held_instructions(info.instructions))

    def rejections(self) -> tuple[Rejected, ...]:
        """The prompts and templates that are held, with the reasons."""
        return self.document_review.rejections(self._server) if self.holds else ()

    async def run(self, list_again: Callable[[], None]) -> None:
        """Review and mark lists; call `list_again` when a held change was trusted."""
        async with anyio.create_task_group() as group:
            if self.holds:
                group.start_soon(self._look_for_trust, list_again)
            await self._review_lists()

    async def _look_for_trust(self, list_again: Callable[[], None]) -> None:
        while self._store is not None:
            await self._wait_trusted(self._store)
            list_again()

    async def _review_lists(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            listed, self._listed = self._listed, None
            documents, self._documents = self._documents, None
            if self._store is not None and not self.holds:
                await self._warn(self._store, listed, documents)
            if listed is not None and self._options.lint != "off":
                with anyio.move_on_after(_LINT_AFTER_S):
                    await self._changed.wait()  # a newer list is there: that one is marked instead
                if self._listed is None:
                    await self._mark(listed[0])

    async def _warn(
        self, store: PinStore, listed: tuple[Sequence[Any], str] | None, documents: Documents | None
    ) -> None:
        try:
            if listed is not None:
                self.review = await store.review(self._server, *listed)
                _log_changes(self._server, self.review)
            if documents is not None:
                self.document_review = await store.review_documents(self._server, documents)
                _log_changes(self._server, self.document_review)
        except ToolcribError as error:
            logger.warning("the definitions of %s cannot be compared with their pins: %s", self._server, error)

    async def _mark(self, entries: Sequence[Any]) -> None:
        """Check the tools whose definitions were not checked before."""
        parts = {str(one["name"]): pinned_part(one) for one in entries if isinstance(one, dict) and "name" in one}
        todo = [name for name, part in parts.items() if self._linted.get(name, (None, ""))[0] != part]
        self._linted = {name: known for name, known in self._linted.items() if name in parts}

        def lint(names: Sequence[str]) -> dict[str, tuple[Object, str]]:
            return {name: (parts[name], _mark_of(self._server, parts[name])) for name in names}

        for start in range(0, len(todo), _PER_STEP):
            self._linted |= await anyio.to_thread.run_sync(lint, todo[start : start + _PER_STEP])
        found = {name: mark for name, (_, mark) in self._linted.items() if mark}
        known = {(one.tool, one.reason): one for one in self.marks}
        marks = tuple(
            known.get((name, mark)) or Rejected(tool=name, reason=mark, state="suspect", since=time.time())
            for name, mark in found.items()
        )
        if marks != self.marks:
            severe = [one.tool for one in marks if one.reason.endswith(_HARD) and one not in self.marks]
            if severe:
                logger.warning(
                    "%s: the lint has hard findings in %s; `toolcrib lint` shows them",
                    self._server,
                    ", ".join(severe)[:200],
                )
            self.marks = marks
            self._on_marks()

    async def _wait_trusted(self, store: PinStore) -> None:
        before = await store.pins(self._server)
        while True:
            await anyio.sleep(_LOOK_S)
            if (self.review.changes or self.document_review.changes) and await store.pins(self._server) != before:
                return

    def note(self, tool: str) -> str:
        """Why an earlier version of the tool is in use; empty if none is."""
        change = self.review.changes.get(tool_part(tool)) if self.holds else None
        return "" if change is None or change.old is None else f"{tool} changed: {change.held_by(self._server).text}"


def _mark_of(server: str, part: Object) -> str:
    """The rules that found something in a definition, and where; never the text, which would repeat it."""
    found = _lint_part(server, part)
    severe = _HARD if any(one.severity == "hard" for one in found) else ""
    rules = ", ".join(dict.fromkeys(f"{one.rule} in {one.where.partition('.')[0]}" for one in found[:_MAX_NAMED]))
    return f"{rules}{severe}" if found else ""


def _log_changes(server: str, review: PinReview) -> None:
    """Warn of the changes that were not known before."""
    for name in review.news[:_MAX_NAMED]:
        logger.warning(
            "the definition of %s:%s changed: %s; `toolcrib diff %s:%s` shows it, `toolcrib trust` accepts it",
            *(server, name, review.changes[name].summary(), server, name),
        )
    if len(review.news) > _MAX_NAMED:
        logger.warning("and %d more definitions of %s changed", len(review.news) - _MAX_NAMED, server)
