"""Pins of each server's definitions in the state store: which version is trusted, and every version there was.

The first list of a server is the baseline. Whatever differs from it later is recorded; what follows is up to the
setting `trust` of the server. Another process, such as `toolcrib trust`, may change a pin at any time.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from toolcrib.errors import InvalidArguments, ToolcribError
from toolcrib.schema import Schema
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.trust.lint import Finding, lint_tool
from toolcrib.trust.pins import INSTRUCTIONS, describe_change, find_renamed, pin, pinned_part
from toolcrib.types import JSON, Object, Rejected, Tool
from toolcrib.upstream.options import ServerOptions

logger = logging.getLogger(__name__)

TRUST_META: Final = "toolcrib/trust"
"""The key in the `_meta` of a result that says why an earlier definition of its tool is in use."""
_MAX_SHOWN: Final = 5
_LOOK_S: Final = 2.0
"""How often to look whether a held definition was trusted meanwhile, in seconds."""
_PLAIN: Final[StateCodec[dict[str, Any]]] = StateCodec(dict, dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedChange:
    """A part of a server that differs from its pin."""

    part: str
    """The name of the tool, or `instructions`."""
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

    def why_held(self, server: str) -> str:
        """Why the current version is not in use, and what to do."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.since))
        kept = "the trusted version stays in use" if self.old is not None else "it is held"
        look = f"`toolcrib diff {server}:{self.part}` shows it, `toolcrib trust` accepts it"
        return f"{self.summary()} (since {day}), so {kept}; {look}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinReview:
    """What a list of definitions looks like beside its pins."""

    changes: Mapping[str, PinnedChange] = field(default_factory=dict)
    """By part."""
    news: tuple[str, ...] = ()
    """The parts whose change was not known before."""

    def held_entries(self, entries: Sequence[Any]) -> list[Any]:
        """The definitions in use where changes are held: trusted versions, and nothing that was never trusted."""
        kept = [(entry, self.changes.get(_name(entry))) for entry in entries]
        return [entry if change is None else change.old for entry, change in kept if change is None or change.old]

    def rejections(self, server: str) -> tuple[Rejected, ...]:
        """The versions that are held, with the reasons."""
        return tuple(
            Rejected(tool=name, reason=change.why_held(server), held=True)
            for name, change in self.changes.items()
            if change.new is not None and name != INSTRUCTIONS
        )

    def explain(self, tool: str, arguments: Object) -> str:
        """What changed, if the arguments fit the trusted version of a tool and so not the current one; else empty."""
        change = self.changes.get(tool)
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
        self._versions = state.table("versions of definitions", _PLAIN, durable=True)
        self._clock = clock

    async def review(
        self, server: str, entries: Sequence[Any], instructions: str = "", *, hold_findings: bool = False
    ) -> PinReview:
        """Compare a server's definitions with their pins, and record what is new.

        With `hold_findings`, a first list is no baseline for definitions with hard findings of the lint.
        """
        digest_all = partial(_digests, server, entries, instructions, hold_findings=hold_findings)
        parts, digests, findings = await anyio.to_thread.run_sync(digest_all)
        now = self._clock()

        def record(row: dict[str, Any] | None) -> tuple[dict[str, Any], tuple[list[str], int]]:
            known: dict[str, Any] = {} if row is None else dict(row["parts"])
            count = 0 if row is None else row["batches"]
            news = [name for name, digest in digests.items() if known.get(name, {}).get("now") != digest]
            lost = [name for name, one in known.items() if name not in digests and one["now"] is not None]
            for name in news:
                trusted = digests[name] if row is None and name not in findings else known.get(name, {}).get("pin")
                known[name] = {"pin": trusted, "now": digests[name], "since": now}
            for name in lost:
                known[name] = {**known[name], "now": None, "since": now}
            changed = bool(news or lost)
            return {"parts": known, "batches": count + changed}, ([*news, *lost], count)

        news, number = await self._pins.update(server, record)
        if news:
            versions = {name: parts[name] for name in news if name in parts}
            await self._versions.set(f"{server}\n{number:08d}", {"at": now, "versions": versions})
        return await self._review(server, parts, findings, news if number else [])

    async def _review(
        self, server: str, parts: Mapping[str, JSON], findings: Mapping[str, tuple[Finding, ...]], news: Sequence[str]
    ) -> PinReview:
        row = await self._pins.get(server)
        differing = {} if row is None else {name: one for name, one in row["parts"].items() if one["pin"] != one["now"]}
        if not differing:
            return PinReview()
        by_digest = await self._known_versions(server)
        old = {name: by_digest.get(one["pin"]) for name, one in differing.items()}
        gone = {name: old[name] for name in differing if name not in parts and old[name] is not None}
        renamed = find_renamed(gone, {name: parts[name] for name in differing if name in parts and old[name] is None})
        changes = {
            name: PinnedChange(
                part=name,
                old=old[name],
                new=parts.get(name),
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

        def change(row: dict[str, Any] | None) -> tuple[dict[str, Any] | None, list[str]]:
            if row is None:
                return None, []
            wanted = [name for name, one in row["parts"].items() if part in (None, name) and one["pin"] != one["now"]]
            trusted = {name: {**row["parts"][name], "pin": row["parts"][name]["now"]} for name in wanted}
            rest = {name: one for name, one in {**row["parts"], **trusted}.items() if one["now"] or one["pin"]}
            return {**row, "parts": rest}, wanted

        return await self._pins.update(server, change)

    async def servers(self) -> dict[str, tuple[str, ...]]:
        """The servers with pins, each with its parts."""
        return {server: tuple(row["parts"]) for server, row in (await self._pins.items()).items()}

    async def changes(self, server: str) -> PinReview:
        """What currently differs from the pins of a server, from what was recorded."""
        row = await self._pins.get(server)
        by_digest = await self._known_versions(server) if row is not None else {}
        current = {} if row is None else {name: by_digest.get(one["now"]) for name, one in row["parts"].items()}
        parts = {name: part for name, part in current.items() if part is not None}
        return await self._review(server, parts, {}, [])

    async def history(self, server: str) -> list[tuple[float, dict[str, JSON]]]:
        """The versions of a server's parts as they were recorded, the oldest first."""
        found = {key: row for key, row in (await self._versions.items()).items() if key.startswith(f"{server}\n")}
        return [(row["at"], row["versions"]) for _, row in sorted(found.items())]

    async def pins(self, server: str) -> dict[str, str | None]:
        """The trusted digest of each part; to notice a change by another process."""
        row = await self._pins.get(server)
        return {} if row is None else {name: one["pin"] for name, one in row["parts"].items()}

    async def _known_versions(self, server: str) -> dict[str | None, JSON]:
        history = await self.history(server)
        return {pin(part): part for _, versions in history for part in versions.values()}


def _digests(
    server: str, entries: Sequence[Any], instructions: str, *, hold_findings: bool
) -> tuple[dict[str, JSON], dict[str, str], dict[str, tuple[Finding, ...]]]:
    """The parts of a list by name, their digests, and the hard findings in them."""
    parts: dict[str, JSON] = {_name(entry): pinned_part(entry) for entry in entries if _name(entry)}
    if instructions:
        parts[INSTRUCTIONS] = instructions
    findings = {name: _hard_findings(server, part) for name, part in parts.items()} if hold_findings else {}
    return (
        parts,
        {name: pin(part) for name, part in parts.items()},
        {k: found for k, found in findings.items() if found},
    )


def _hard_findings(server: str, part: JSON) -> tuple[Finding, ...]:
    if not isinstance(part, Mapping):
        return ()
    schema = part.get("inputSchema")
    tool = Tool(name=str(part["name"]), namespace=server, input_schema=schema if isinstance(schema, Mapping) else {})
    return tuple(one for one in lint_tool(tool, part) if one.severity == "hard")


def _name(entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) else ""


def log_changes(server: str, review: PinReview) -> None:
    """Warn of the changes that were not known before."""
    for name in review.news[:_MAX_SHOWN]:
        logger.warning(
            "the definition of %s:%s changed: %s; `toolcrib diff %s:%s` shows it, `toolcrib trust` accepts it",
            *(server, name, review.changes[name].summary(), server, name),
        )
    if len(review.news) > _MAX_SHOWN:
        logger.warning("and %d more definitions of %s changed", len(review.news) - _MAX_SHOWN, server)


class PinWatch:
    """The pins of one connected server: reviews its lists, and notices when a held change is trusted."""

    def __init__(self, store: PinStore | None, options: ServerOptions) -> None:
        self._store = store if options.trust != "off" else None
        self._server = options.name
        self.holds = options.trust == "hold" and store is not None
        """Whether changed definitions stay out of use."""
        self.review = PinReview()
        """What differs from the pins."""
        self._listed: tuple[Sequence[Any], str] | None = None
        self._changed = anyio.Event()

    async def hold(self, entries: Sequence[Any], instructions: str) -> PinReview:
        """Review a list before it is used."""
        if self._store is not None:
            self.review = await self._store.review(self._server, entries, instructions, hold_findings=True)
            log_changes(self._server, self.review)
        return self.review

    def listed(self, entries: Sequence[Any], instructions: str) -> None:
        """Have a list reviewed that is in use already."""
        if self._store is not None and not self.holds:
            self._listed = (entries, instructions)
            self._changed.set()

    async def run(self, list_again: Callable[[], None]) -> None:
        """Review lists; call `list_again` when a held change was trusted."""
        while self._store is not None:
            if self.holds:
                await self._wait_trusted(self._store)
                list_again()
                continue
            await self._changed.wait()
            self._changed = anyio.Event()
            if self._listed is not None:
                entries, instructions = self._listed
                self._listed = None
                await self._warn(self._store, entries, instructions)

    async def _warn(self, store: PinStore, entries: Sequence[Any], instructions: str) -> None:
        try:
            self.review = await store.review(self._server, entries, instructions)
        except ToolcribError as error:
            logger.warning("the definitions of %s cannot be compared with their pins: %s", self._server, error)
            return
        log_changes(self._server, self.review)

    async def _wait_trusted(self, store: PinStore) -> None:
        before = await store.pins(self._server)
        while True:
            await anyio.sleep(_LOOK_S)
            if self.review.changes and await store.pins(self._server) != before:
                return

    def note(self, tool: str) -> str:
        """Why an earlier version of the tool is in use; empty if none is."""
        change = self.review.changes.get(tool) if self.holds else None
        return "" if change is None or change.old is None else f"{tool} changed: {change.why_held(self._server)}"
