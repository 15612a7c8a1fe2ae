"""The catalog: which tools exist, under which names.

Immutable. It knows nothing about callers: each lookup comes with a mask of what the caller may see, and a tool
outside the mask behaves exactly as if it did not exist.

A spelling is looked up in one table, never parsed. Text before a colon, or before a `.`, `/` or `__` when a visible
namespace has that name, is an explicit namespace: it only narrows what the table gives, so no spelling leaves it.

A list is paged by cursors that carry the version of the caller's view, so a stale cursor is refused.
"""

import binascii
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import compress
from typing import Any, Generic, TypeVar

from toolcrib.errors import AmbiguousName, InvalidName, InvalidTool, StaleCursor, ToolNotFound
from toolcrib.names import Tier, check_key, exact_spellings, fold, nearest, similarities, spellings, wire_name
from toolcrib.sanitize import MAX_ECHO, MAX_LISTED, listing, quote, visible
from toolcrib.schema import Schema
from toolcrib.schema.repair import ReadDefinition, is_plain, read_schema, with_visible_texts
from toolcrib.types import Rejected, Tool, Visibility

Mask = bytes | None
"""One byte per position of the catalog, nonzero if the caller may see the tool; None means all are visible."""


@dataclass(frozen=True, slots=True, eq=False)
class CatalogEntry:
    """A tool, with everything that is computed once from its definition."""

    tool: Tool
    """As it is used and shown: with an input schema that is valid, and texts that people can see."""
    source: Tool
    """The tool as it was given: the same object, unless something in it had to change."""
    remark: Rejected | None
    """What an operator should know of its definition."""
    id: str
    wire: str
    digest: bytes
    """16 bytes; equal for equal definitions."""
    schema: Schema
    spellings: dict[str, Tier]
    folded: str
    """The folded name, without the namespace."""
    listed: bool
    """False for a tool that is only found by its exact name, and never suggested."""


class Catalog:
    """An immutable set of tools, sorted by id. A position is an index into `tools`."""

    __slots__ = ("_digests", "_ids", "_lookup", "entries", "marked", "rejected", "tools")

    def __init__(self, entries: list[CatalogEntry], rejected: tuple[tuple[Tool, str], ...]) -> None:
        """Call `Catalog.build` instead."""
        self.entries = entries
        """The entry of each tool, by position."""
        self._digests = [entry.digest for entry in entries]
        self._ids = {entry.id: position for position, entry in enumerate(entries)}
        self._lookup = NameLookup(entries, self._ids)
        self.tools: tuple[Tool, ...] = tuple(entry.tool for entry in entries)
        self.rejected = rejected
        """The rejected definitions with the reason, in their original order."""
        self.marked: tuple[tuple[Tool, Rejected], ...] = tuple(
            (entry.tool, entry.remark) for entry in entries if entry.remark is not None
        )
        """The tools whose schema was repaired, or is not checked here."""

    @classmethod
    def build(cls, tools: Iterable[Tool], *, previous: "Catalog | None" = None) -> "Catalog":
        """Build a catalog. Of several tools with one id the first is kept; the others and invalid tools are rejected.

        Entries of tool objects that `previous` holds are reused.
        """
        known = {id(entry.source): entry for entry in previous.entries} if previous else {}
        entries: dict[str, CatalogEntry] = {}
        rejected: list[tuple[Tool, str]] = []
        for tool in tools:
            try:
                entry = known.get(id(tool)) or build_entry(tool)
            except (InvalidName, InvalidTool) as error:
                rejected.append((tool, str(error)))
                continue
            if entries.setdefault(entry.id, entry) is not entry:
                rejected.append((tool, "another tool has the same name and came first."))
        return cls([entries[id_] for id_ in sorted(entries)], tuple(rejected))

    def __len__(self) -> int:
        return len(self.tools)

    def by_wire(self, name: str) -> int | None:
        """The position of the tool with exactly that wire name."""
        return self._lookup.find_wire(name)

    def by_id(self, id_: str) -> int | None:
        """The position of the tool with exactly that id."""
        return self._ids.get(id_)

    def find(self, spelling: str, mask: Mask = None, namespace: str | None = None) -> int:
        """The position of the one visible tool with that spelling.

        A `namespace`, given here or in the spelling, restricts the lookup to its tools. Raises `ToolNotFound` with
        suggestions, or `AmbiguousName` with the candidates, both only from visible tools.
        """
        position = self._ids.get(spelling) if namespace is None else None
        if position is not None and (mask is None or mask[position]):
            return position  # no other spelling is as close as the id
        return self._lookup.find(spelling, mask, namespace)

    def fingerprint(self, mask: Mask = None) -> str:
        """A short hash of the ids and definitions of the visible tools; other tools do not change it."""
        visible = self._digests if mask is None else compress(self._digests, mask)
        return blake2b(b"".join(visible), digest_size=12).hexdigest()

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)


def build_entry(tool: Tool) -> CatalogEntry:
    """Build the entry of a tool. Raises `InvalidName` or `InvalidTool`."""
    check_key(tool.key)
    if visible(tool.name) != tool.name:
        raise InvalidName(f"{visible(tool.id)!r} cannot be a tool: its name holds characters that cannot be seen.")
    listed = tool.visibility is not Visibility.HIDDEN
    source, read = tool, read_schema(tool.input_schema, tool.id)
    if read.schema is not source.input_schema:
        tool = replace(source, input_schema=read.schema)
    encoded = _encoded(tool)
    if not is_plain(encoded) and (clean := _with_visible_texts(tool)) != tool:
        tool, encoded = clean, _encoded(clean)
    return CatalogEntry(
        tool=tool,
        source=source,
        remark=ReadDefinition(None, read).remark(tool.name),
        id=tool.id,
        wire=wire_name(tool.key),
        digest=blake2b(encoded, digest_size=16).digest(),
        schema=read.check,
        spellings=spellings(tool.key, tool.version) if listed else exact_spellings(tool.key),
        folded=fold(tool.name).replace(".", ""),
        listed=listed,
    )


def check_encodable(tool: Tool) -> None:
    """Check that a definition can be encoded as JSON and UTF-8. Raises `InvalidTool`."""
    _encoded(tool)


def _with_visible_texts(tool: Tool) -> Tool:
    """The tool with descriptions and titles without what people cannot see."""
    return replace(
        tool,
        title=None if tool.title is None else visible(tool.title),
        description=visible(tool.description),
        input_schema=with_visible_texts(tool.input_schema),
        output_schema=with_visible_texts(tool.output_schema),
        annotations=with_visible_texts(tool.annotations),
    )


def _encoded(tool: Tool) -> bytes:
    parts: tuple[Any, ...] = (
        tool.namespace, tool.name, tool.title, tool.description, tool.input_schema, tool.output_schema,
        tool.annotations, list(tool.icons), tool.keywords, tool.tags, tool.visibility, tool.version, tool.meta,
    )  # fmt: skip
    if tool.execution or tool.extra:
        parts = (*parts, tool.execution, list(tool.extra.items()))
    try:
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTool(f"{tool.id}: the definition is not JSON: {str(error)[:200]}.") from error
    if "\\ud" in text:  # a surrogate pair, which is valid, or a lone surrogate, which is not
        _check_unicode(text, tool.id)
    return text.encode()


def _check_unicode(text: str, name: str) -> None:
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        near = ascii(error.object[max(0, error.start - 20) : error.end])[1:-1]
        raise InvalidTool(
            f"{name}: the definition contains a lone surrogate, near {near}.",
            hint='Replace it where the text comes from: text.encode(errors="replace").decode().',
        ) from None


_MAX_SPELLING = 512
"""Longer texts are never a spelling."""


_MAX_MARKS = 16
"""How many separators in a text are tried as the end of a namespace."""


_NAMESPACE_END = re.compile(r"[./]|__")


_TIER_COUNT = len(Tier)


class NameLookup:
    """The table of all spellings of a catalog's entries.

    A value of the table is one code, or several: `position * 5 + tier`.
    """

    __slots__ = ("_by_fold", "_entries", "_guesses", "_ids", "_namespaces", "_table")

    def __init__(self, entries: Sequence[CatalogEntry], ids: Mapping[str, int]) -> None:
        """A position is an index into `entries`, which are sorted by id; `ids` has the position of each."""
        self._entries = entries
        self._ids = ids
        self._table = _spelling_table(entries)
        self._guesses: NameSuggestions | None = None
        self._namespaces: dict[str, list[int]] = {}
        for position, entry in enumerate(entries):
            if entry.listed:
                self._namespaces.setdefault(entry.tool.namespace, []).append(position)
        self._by_fold: dict[str, list[str]] = {}
        for namespace in self._namespaces:
            self._by_fold.setdefault(fold(namespace), []).append(namespace)

    def find_wire(self, text: str) -> int | None:
        """The position of the tool whose wire name is exactly this text."""
        return next((position for position, _ in self._decoded(text) if self._entries[position].wire == text), None)

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
            position = self._ids.get(f"{name}:{text}" if name else text)
            if position is not None and _is_visible(mask, position):
                return position
        found = self._best(text, mask, names) or self._folded(text, mask, scope)
        return self._one(found, text, mask, scope, namespace)

    def _best(self, text: str, mask: bytes | None, namespaces: Sequence[str] | None) -> list[int]:
        """The visible tools with exactly this spelling, of the best tier that has any."""
        tiers: dict[int, list[int]] = {}
        for position, tier in self._decoded(text):
            inside = namespaces is None or self._namespace(position) in namespaces
            if inside and tier != Tier.FOLDED and _is_visible(mask, position):
                tiers.setdefault(tier, []).append(position)
        best = min(tiers, default=None)
        if best is None:
            return []
        if best == Tier.BARE and namespaces is None and (scope := self._scope(text, mask)) is not None:
            return [position for position in tiers[best] if self._namespace(position) in scope]
        return tiers[best]

    def _folded(self, text: str, mask: bytes | None, scope: Sequence[str] | None) -> list[int]:
        """The visible tools of the scope with a spelling that differs only in case and separators."""
        if len(text) > _MAX_SPELLING:
            return []
        head, colon, tail = text.partition(":")
        folded = f"{fold(head)}.{fold(tail)}" if colon else fold(text)
        found = {
            position
            for position, _ in self._decoded(folded)
            if self._entries[position].listed and _is_visible(mask, position)
        }
        return sorted(p for p in found if scope is None or self._namespace(p) in scope)

    def _scope(self, text: str, mask: bytes | None) -> tuple[str, ...] | None:
        """The visible namespaces that the text may name explicitly; None if it names none."""
        if ":" in text:
            return self._visible(text.partition(":")[0], mask)
        named = dict.fromkeys(n for head in _possible_namespaces(text) for n in self._visible(head, mask))
        return tuple(named) or None

    def _visible(self, namespace: str, mask: bytes | None) -> tuple[str, ...]:
        """The visible namespace of that name, else the visible ones that differ only in case and separators."""
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
            raise ambiguous_name(text, [self._entries[position].id for position in found])
        if scope == ():
            given = text.partition(":")[0] if namespace is None else namespace
            raise unknown_namespace(text, given, [name for name in self._namespaces if self._shows(name, mask)])
        if self._guesses is None:
            self._guesses = NameSuggestions(self._entries)
        names = self._namespaces if scope is None else scope
        positions = [p for name in names for p in self._namespaces[name]]
        visible = positions if mask is None else [p for p in positions if mask[p]]
        raise self._guesses.not_found(text, visible, scope, bare=namespace is not None)

    def _decoded(self, text: str) -> Iterator[tuple[int, int]]:
        return (divmod(code, _TIER_COUNT) for code in self._codes(text))

    def _codes(self, text: str) -> Iterable[int]:
        codes = self._table.get(text, ())
        return (codes,) if isinstance(codes, int) else codes

    def _namespace(self, position: int) -> str:
        return self._entries[position].tool.namespace


def _spelling_table(entries: Sequence[CatalogEntry]) -> dict[str, int | list[int]]:
    table: dict[str, int | list[int]] = {}
    for position, entry in enumerate(entries):
        base = position * _TIER_COUNT
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


def _is_visible(mask: bytes | None, position: int) -> bool:
    return mask is None or mask[position] != 0


def _possible_namespaces(text: str) -> list[str]:
    """The text before each possible end of a namespace."""
    marks = _NAMESPACE_END.finditer(text[:_MAX_SPELLING])
    return [text[: mark.start()] for mark, _ in zip(marks, range(_MAX_MARKS), strict=False) if mark.start()]


_SUGGESTIONS = 3


SEARCH_HINT = "Search for a tool by what it does."
"""The hint if no name is similar to the requested one."""


_NAME_SEPARATOR = re.compile(r"[./:]|__")


def ambiguous_name(text: str, ids: Sequence[str]) -> AmbiguousName:
    """Make the error for a spelling that several tools have."""
    return AmbiguousName(
        f"{quote(text)} is ambiguous: {len(ids)} tools match it.",
        hint=f"Use one of: {listing(ids)}.",
        suggestions=ids[:MAX_LISTED],
    )


def unknown_namespace(text: str, given: str, others: Sequence[str]) -> ToolNotFound:
    """Make the error for an unknown namespace; `others` are the visible ones."""
    names = [name for name in others if name]
    close = nearest(given[:MAX_ECHO], names)
    return ToolNotFound(
        f"No tool is called {quote(text)}: there is no namespace {quote(given)}.",
        hint=f"Namespaces: {listing(close or names)}." if names else "There are no namespaces.",
    )


class NameSuggestions:
    """Suggests names of tools that are similar to an unknown one."""

    __slots__ = ("_entries", "_joined", "_names")

    def __init__(self, entries: Sequence[CatalogEntry]) -> None:
        """A position is an index into `entries`."""
        self._entries = entries
        self._names = [entry.folded for entry in entries]
        folded = {name: fold(name).replace(".", "") for name in {entry.tool.namespace for entry in entries}}
        self._joined = [folded[entry.tool.namespace] + entry.folded for entry in entries]

    def not_found(
        self, text: str, positions: Sequence[int], scope: Sequence[str] | None, *, bare: bool
    ) -> ToolNotFound:
        """Make the error for an unknown name.

        `positions` are the visible tools that may be suggested: those of the namespaces in `scope`, or all if it is
        None. `bare` says that the text does not contain the namespace.
        """
        ids = self._close(text[:MAX_ECHO], positions, scope, bare=bare)
        if ids:
            hint = f"Did you mean {' or '.join(ids)}?"
        elif scope:
            hint = f"It has: {listing([self._entries[position].tool.name for position in positions])}."
        else:
            hint = SEARCH_HINT
        where = f" in {listing([quote(name) for name in scope])}" if scope else ""
        return ToolNotFound(f"No tool is called {quote(text)}{where}.", hint=hint, suggestions=ids)

    def _close(self, text: str, positions: Sequence[int], scope: Sequence[str] | None, *, bare: bool) -> list[str]:
        """The ids of tools with similar names, the most similar first; ties go by id."""
        names = [self._names[position] for position in positions]
        best: dict[int, float] = {}
        if bare or scope is None:
            _keep_best(best, fold(text), names)
            if not bare:
                _keep_best(best, fold(text), [self._joined[position] for position in positions])
        else:
            tails = [text[mark.end() :] for mark in _NAME_SEPARATOR.finditer(text)]
            for tail in dict.fromkeys([*tails, *(tail.partition(":")[0] for tail in tails)]):
                _keep_best(best, fold(tail), names)
        ids = {place: self._entries[positions[place]].id for place in best}
        return [ids[place] for place in sorted(best, key=lambda place: (-best[place], ids[place]))[:_SUGGESTIONS]]


def _keep_best(best: dict[int, float], asked: str, names: Sequence[str]) -> None:
    for place, score in similarities(asked.replace(".", ""), names).items():
        best[place] = max(score, best.get(place, 0.0))


Item = TypeVar("Item")
_MAX_CURSOR = 512
"""Longer cursors, in characters, are invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Item]):
    """One page of a list of items."""

    items: tuple[Item, ...]
    cursor: str | None
    """The start of the next page; None on the last page."""


def encode_cursor(view_version: str, offset: int) -> str:
    """Encode an opaque cursor. The offset counts the visible items from 0.

    >>> decode_cursor(encode_cursor("v1", 40), "v1")
    40
    """
    return urlsafe_b64encode(f"{offset}.{view_version}".encode()).decode().rstrip("=")


def decode_cursor(text: str, view_version: str) -> int:
    """Decode the offset of a cursor. Raises `StaleCursor` if it is invalid or of another view version."""
    offset, version = _decode(text)
    if version != view_version:
        raise StaleCursor("The list has changed since this cursor was created.", hint="Start again without a cursor.")
    return offset


def page(
    items: Sequence[Item],
    *,
    view_version: str,
    cursor: str | None = None,
    limit: int | None = None,
    sizes: Sequence[int] | None = None,
    max_size: int | None = None,
) -> Page[Item]:
    """Return the page at the cursor: at most `limit` items, with a total size of at most `max_size`.

    `sizes` has the size of each item, in any unit. A page always has at least one item, even one larger than
    `max_size`, unless there are no more. Raises `StaleCursor`.

    >>> first = page("abc", view_version="v1", limit=2)
    >>> first.items, page("abc", view_version="v1", limit=2, cursor=first.cursor).items
    (('a', 'b'), ('c',))
    """
    start = decode_cursor(cursor, view_version) if cursor is not None else 0
    if start > len(items):
        raise _invalid_cursor()
    stop = len(items) if limit is None else min(len(items), start + max(1, limit))
    if sizes is not None and max_size is not None:
        stop = _last_fitting(sizes, start, stop, max_size)
    return Page(
        items=tuple(items[start:stop]),
        cursor=encode_cursor(view_version, stop) if stop < len(items) else None,
    )


def _last_fitting(sizes: Sequence[int], start: int, stop: int, max_size: int) -> int:
    room = max_size
    for place in range(start, stop):
        room -= sizes[place]
        if room < 0 and place > start:
            return place
    return stop


def _decode(text: str) -> tuple[int, str]:
    if len(text) > _MAX_CURSOR or not text.isascii():
        raise _invalid_cursor()
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _invalid_cursor() from error
    offset, dot, version = raw.partition(".")
    if not dot or not offset.isdecimal() or not offset.isascii():
        raise _invalid_cursor()
    return int(offset), version


def _invalid_cursor() -> StaleCursor:
    return StaleCursor("The cursor is not valid for this list.", hint="Start again without a cursor.")
