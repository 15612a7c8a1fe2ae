"""Errors of a look-up: what was not found, and what was perhaps meant. Made of visible tools only."""

import re
from collections.abc import Sequence

from toolcrib.catalog.entry import Entry
from toolcrib.errors import AmbiguousName, ToolNotFound
from toolcrib.names import fold
from toolcrib.words import likeness, nearest

_MAX_SHOWN = 10
"""Names listed in an error."""

_MAX_ECHO = 80
"""Characters of what was asked for that are repeated."""

_SUGGESTIONS = 3

SEARCH = "Search for a tool by what it does."
"""The hint where nothing is like what was asked for."""

_MARK = re.compile(r"[./:]|__")


def ambiguous(text: str, ids: Sequence[str]) -> AmbiguousName:
    """Several tools answer to the text."""
    return AmbiguousName(
        f"{quoted(text)} is ambiguous: {len(ids)} tools answer to it.",
        hint=f"Use one of: {listed(ids)}.",
        suggestions=ids[:_MAX_SHOWN],
    )


def no_namespace(text: str, given: str, others: Sequence[str]) -> ToolNotFound:
    """The text names a namespace in which nothing is visible; `others` are those in which something is."""
    names = [name for name in others if name]
    close = nearest(given[:_MAX_ECHO], names)
    return ToolNotFound(
        f"No tool is called {quoted(text)}: there is no namespace {quoted(given)}.",
        hint=f"Namespaces: {listed(close or names)}." if names else "There are no namespaces.",
    )


class Guesses:
    """The names of a catalog's tools, ready to be compared with what somebody asked for."""

    __slots__ = ("_entries", "_joined", "_names")

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Positions are places in `entries`."""
        self._entries = entries
        self._names = [entry.folded for entry in entries]
        folded = {name: fold(name).replace(".", "") for name in {entry.tool.namespace for entry in entries}}
        self._joined = [folded[entry.tool.namespace] + entry.folded for entry in entries]

    def missing(self, text: str, positions: Sequence[int], scope: Sequence[str] | None, *, bare: bool) -> ToolNotFound:
        """No tool answers to the text.

        `positions` are the visible tools that may be suggested: those of the namespaces in `scope`, or all when
        it is None. `bare` says that the text does not hold the namespace.
        """
        ids = self._close(text[:_MAX_ECHO], positions, scope, bare=bare)
        if ids:
            hint = f"Did you mean {' or '.join(ids)}?"
        elif scope:
            hint = f"It has: {listed([self._entries[position].tool.name for position in positions])}."
        else:
            hint = SEARCH
        where = f" in {listed([quoted(name) for name in scope])}" if scope else ""
        return ToolNotFound(f"No tool is called {quoted(text)}{where}.", hint=hint, suggestions=ids)

    def _close(self, text: str, positions: Sequence[int], scope: Sequence[str] | None, *, bare: bool) -> list[str]:
        """Ids of the tools with names like the text, the likeliest first, ties by id."""
        names = [self._names[position] for position in positions]
        best: dict[int, float] = {}
        if bare or scope is None:
            _keep_best(best, fold(text), names)
            if not bare:
                _keep_best(best, fold(text), [self._joined[position] for position in positions])
        else:
            tails = [text[mark.end() :] for mark in _MARK.finditer(text)]
            for tail in dict.fromkeys([*tails, *(tail.partition(":")[0] for tail in tails)]):
                _keep_best(best, fold(tail), names)
        ids = {place: self._entries[positions[place]].id for place in best}
        return [ids[place] for place in sorted(best, key=lambda place: (-best[place], ids[place]))[:_SUGGESTIONS]]


def _keep_best(best: dict[int, float], asked: str, names: Sequence[str]) -> None:
    for place, score in likeness(asked.replace(".", ""), names).items():
        best[place] = max(score, best.get(place, 0.0))


def listed(texts: Sequence[str]) -> str:
    """The first texts, comma-separated, and how many more there are.

    >>> listed(["a", "b"]), listed([str(n) for n in range(12)])
    ('a, b', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … +2 more')
    """
    more = [f"… +{len(texts) - _MAX_SHOWN} more"] if len(texts) > _MAX_SHOWN else []
    return ", ".join([*texts[:_MAX_SHOWN], *more])


def quoted(text: str) -> str:
    """The text in quotes, cut to 80 characters, without control characters."""
    shown = text if len(text) <= _MAX_ECHO else f"{text[: _MAX_ECHO - 1]}…"
    return '"' + "".join(char if char.isprintable() else "\ufffd" for char in shown) + '"'
