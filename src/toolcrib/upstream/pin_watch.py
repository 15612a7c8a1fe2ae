"""The pins of one connected server: its lists are reviewed, held where that is wanted, and marked by the lint."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import anyio
import anyio.to_thread

from toolcrib.errors import ToolcribError
from toolcrib.providers.base import Documents
from toolcrib.trust.pins import pinned_part, tool_part
from toolcrib.types import Object, Rejected, ServerInfo
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.pins import PinReview, PinStore, lint_part

logger = logging.getLogger(__name__)

_MAX_SHOWN: Final = 5
_LOOK_S: Final = 2.0
"""How often to look whether a held definition was trusted meanwhile, in seconds."""
_LINT_AFTER_S: Final = 10.0
"""How long the lint waits after a list, in seconds: whatever starts then is more urgent."""
_HARD: Final = " (hard)"
"""How the mark of a hard finding ends."""
_PER_STEP: Final = 20
"""Definitions that are checked before other work in threads gets its turn."""


class PinWatch:
    """Reviews the lists of one server against its pins, and notices when a held change is trusted."""

    def __init__(self, store: PinStore | None, options: ServerOptions, on_marks: Callable[[], None]) -> None:
        """`on_marks` is called when `marks` have changed."""
        self._store = store if options.trust != "off" or options.lint == "hold" else None
        self._server = options.name
        self._options = options
        self._on_marks = on_marks
        self.holds = store is not None and "hold" in (options.trust, options.lint)
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

    async def hold(self, entries: Sequence[Any], instructions: str) -> PinReview:
        """Review a list of tools before it is used; return what is held. Raises `ToolcribError`."""
        if self._store is not None:
            found = await self._store.review(
                self._server, entries, instructions, hold_findings=self._options.lint != "off"
            )
            self.review = self._held(found)
        return self.review

    async def hold_documents(self, documents: Documents) -> Documents:
        """Review prompts and templates before they are used; return those to use. Raises `ToolcribError`."""
        if self._store is None or not self.holds:
            return documents
        found = await self._store.review_documents(self._server, documents, hold_findings=self._options.lint != "off")
        self.document_review = self._held(found)
        return self.document_review.held_documents(documents)

    def _held(self, review: PinReview) -> PinReview:
        _log_changes(self._server, review)
        return review if self._options.trust == "hold" else review.only_findings()

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
        marks = tuple(Rejected(tool=name, reason=mark) for name, (_, mark) in self._linted.items() if mark)
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
        return "" if change is None or change.old is None else f"{tool} changed: {change.why_held(self._server)}"


def _mark_of(server: str, part: Object) -> str:
    """The rules that found something in a definition, and where; never the text, which would repeat it."""
    found = lint_part(server, part)
    severe = _HARD if any(one.severity == "hard" for one in found) else ""
    rules = ", ".join(dict.fromkeys(f"{one.rule} in {one.where.partition('.')[0]}" for one in found[:_MAX_SHOWN]))
    return f"{rules}{severe}" if found else ""


def _log_changes(server: str, review: PinReview) -> None:
    """Warn of the changes that were not known before."""
    for name in review.news[:_MAX_SHOWN]:
        logger.warning(
            "the definition of %s:%s changed: %s; `toolcrib diff %s:%s` shows it, `toolcrib trust` accepts it",
            *(server, name, review.changes[name].summary(), server, name),
        )
    if len(review.news) > _MAX_SHOWN:
        logger.warning("and %d more definitions of %s changed", len(review.news) - _MAX_SHOWN, server)
