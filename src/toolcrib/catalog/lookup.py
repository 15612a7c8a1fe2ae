"""Finding a tool by any of its spellings: one table, made once; no spelling is taken apart to find its tool.

What stands before a colon, or before a `.`, `/` or `__` when a visible namespace is called so, is a namespace
given explicitly: it only ever narrows what was found in the table, so that no spelling leaves it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from toolcrib.catalog.entry import Entry
from toolcrib.catalog.misses import Guesses, ambiguous, no_namespace
from toolcrib.names import Tier, fold

_MAX_SPELLING = 512
"""Longer texts are no spelling of anything."""

_MAX_MARKS = 16
"""How many places of a text may be the end of a namespace."""

_MARK = re.compile(r"[./]|__")

_TIERS = len(Tier)


class Lookup:
    """The table of spellings of a catalog's entries.

    A value of the table is one code, or several: `position * 5 + tier`.
    """

    __slots__ = ("_by_fold", "_entries", "_guesses", "_namespaces", "_table")

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Positions are places in `entries`, which are sorted by id."""
        self._entries = entries
        self._table = _table(entries)
        self._guesses: Guesses | None = None
        self._namespaces: dict[str, list[int]] = {}
        for position, entry in enumerate(entries):
            if entry.listed:
                self._namespaces.setdefault(entry.tool.namespace, []).append(position)
        self._by_fold: dict[str, list[str]] = {}
        for namespace in self._namespaces:
            self._by_fold.setdefault(fold(namespace), []).append(namespace)

    def exactly(self, text: str, tier: Tier) -> int | None:
        """The position of the tool whose id, or wire name, is exactly that text."""
        for code in self._codes(text):
            position, found = divmod(code, _TIERS)
            if found == tier or (tier is Tier.WIRE and self._entries[position].wire == text):
                return position
        return None

    def find(self, text: str, mask: bytes | None, namespace: str | None) -> int:
        """See `Catalog.find`."""
        if namespace is not None:
            return self._find_within(text, mask, namespace)
        best = self._best(text, mask, None)
        if len(best) == 1:
            return best[0]
        scope = self._scope(text, mask)
        return self._one(best or self._folded(text, mask, scope), text, mask, scope)

    def _find_within(self, text: str, mask: bytes | None, namespace: str) -> int:
        scope = self._visible(namespace, mask)
        names = scope or (namespace,)
        for name in names:
            position = self.exactly(f"{name}:{text}" if name else text, Tier.ID)
            if position is not None and _sees(mask, position):
                return position
        found = self._best(text, mask, names) or self._folded(text, mask, scope)
        return self._one(found, text, mask, scope, namespace)

    def _best(self, text: str, mask: bytes | None, namespaces: Sequence[str] | None) -> list[int]:
        """The visible tools whose exact spelling this is, of the best tier that has any."""
        tiers: dict[int, list[int]] = {}
        for position, tier in self._decoded(text):
            inside = namespaces is None or self._namespace(position) in namespaces
            if inside and tier != Tier.FOLDED and _sees(mask, position):
                tiers.setdefault(tier, []).append(position)
        best = min(tiers, default=None)
        if best is None:
            return []
        if best == Tier.BARE and namespaces is None and (scope := self._scope(text, mask)) is not None:
            return [position for position in tiers[best] if self._namespace(position) in scope]
        return tiers[best]

    def _folded(self, text: str, mask: bytes | None, scope: Sequence[str] | None) -> list[int]:
        """The visible tools of the scope with a spelling that differs in case and separators only."""
        if len(text) > _MAX_SPELLING:
            return []
        head, colon, tail = text.partition(":")
        folded = f"{fold(head)}.{fold(tail)}" if colon else fold(text)
        found = {
            position
            for position, _ in self._decoded(folded)
            if self._entries[position].listed and _sees(mask, position)
        }
        return sorted(p for p in found if scope is None or self._namespace(p) in scope)

    def _scope(self, text: str, mask: bytes | None) -> tuple[str, ...] | None:
        """The visible namespaces that the text may name explicitly; None when it names none."""
        if ":" in text:
            return self._visible(text.partition(":")[0], mask)
        named = dict.fromkeys(n for head in _heads(text) for n in self._visible(head, mask))
        return tuple(named) or None

    def _visible(self, namespace: str, mask: bytes | None) -> tuple[str, ...]:
        """The namespace of that name, else those that differ in case and separators, where anything is visible."""
        if self._shows(namespace, mask):
            return (namespace,)
        if len(namespace) > _MAX_SPELLING:
            return ()
        return tuple(n for n in self._by_fold.get(fold(namespace), ()) if self._shows(n, mask))

    def _shows(self, namespace: str, mask: bytes | None) -> bool:
        positions = self._namespaces.get(namespace, ())
        return bool(positions) if mask is None else any(mask[position] for position in positions)

    def _one(
        self,
        found: list[int],
        text: str,
        mask: bytes | None,
        scope: tuple[str, ...] | None,
        namespace: str | None = None,
    ) -> int:
        if len(found) == 1:
            return found[0]
        if found:
            raise ambiguous(text, [self._entries[position].id for position in found])
        if scope == ():
            given = text.partition(":")[0] if namespace is None else namespace
            raise no_namespace(text, given, [name for name in self._namespaces if self._shows(name, mask)])
        if self._guesses is None:
            self._guesses = Guesses(self._entries)
        names = self._namespaces if scope is None else scope
        positions = [p for name in names for p in self._namespaces[name]]
        visible = positions if mask is None else [p for p in positions if mask[p]]
        raise self._guesses.missing(text, visible, scope, bare=namespace is not None)

    def _decoded(self, text: str) -> Iterator[tuple[int, int]]:
        return (divmod(code, _TIERS) for code in self._codes(text))

    def _codes(self, text: str) -> Iterable[int]:
        codes = self._table.get(text, ())
        return (codes,) if isinstance(codes, int) else codes

    def _namespace(self, position: int) -> str:
        return self._entries[position].tool.namespace


def _table(entries: Sequence[Entry]) -> dict[str, int | list[int]]:
    table: dict[str, int | list[int]] = {}
    for position, entry in enumerate(entries):
        base = position * _TIERS
        for text, tier in entry.spellings.items():
            code = base + tier
            there = table.setdefault(text, code)
            if there == code:
                continue
            if isinstance(there, list):
                there.append(code)
            else:
                table[text] = [there, code]
    return table


def _sees(mask: bytes | None, position: int) -> bool:
    return mask is None or mask[position] != 0


def _heads(text: str) -> list[str]:
    """What stands before each place where a namespace may end."""
    marks = _MARK.finditer(text[:_MAX_SPELLING])
    return [text[: mark.start()] for mark, _ in zip(marks, range(_MAX_MARKS), strict=False) if mark.start()]
