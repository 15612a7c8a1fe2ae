"""The catalog: what tools exist, under which names.

Immutable. It knows nothing about callers: what one of them may see comes with each question, as a mask. A tool
outside the mask behaves exactly as if it did not exist.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import compress

from toolcrib.catalog.entry import Entry, read
from toolcrib.catalog.lookup import Lookup
from toolcrib.errors import InvalidName, InvalidTool
from toolcrib.model import Tool
from toolcrib.names import Tier
from toolcrib.schema import Schema

Mask = bytes | None
"""One byte a position of the catalog, nonzero = visible to the caller; None = everything is."""


class Catalog:
    """An immutable set of tools, sorted by id. A position is a tool's place in `tools`."""

    __slots__ = ("_digests", "_lookup", "entries", "rejected", "tools")

    def __init__(self, entries: list[Entry], rejected: tuple[tuple[Tool, str], ...]) -> None:
        """Use `Catalog.build`."""
        self.entries = entries
        """What was worked out for each tool, by position."""
        self._digests = [entry.digest for entry in entries]
        self._lookup = Lookup(entries)
        self.tools: tuple[Tool, ...] = tuple(entry.tool for entry in entries)
        self.rejected = rejected
        """The definitions that were set aside, and why, in the order they came."""

    @classmethod
    def build(cls, tools: Iterable[Tool], *, previous: "Catalog | None" = None) -> "Catalog":
        """A catalog of these tools. The first of several with one id stays; broken ones are set aside.

        What was worked out for a tool is taken over from `previous` where the very same object comes again.
        """
        known = {id(entry.tool): entry for entry in previous.entries} if previous else {}
        entries: dict[str, Entry] = {}
        rejected: list[tuple[Tool, str]] = []
        for tool in tools:
            try:
                entry = known.get(id(tool)) or read(tool)
            except (InvalidName, InvalidTool) as error:
                rejected.append((tool, str(error)))
                continue
            if entries.setdefault(entry.id, entry) is not entry:
                rejected.append((tool, "another tool of that name came before it."))
        return cls([entries[id_] for id_ in sorted(entries)], tuple(rejected))

    def __len__(self) -> int:
        """How many tools there are."""
        return len(self.tools)

    def schema(self, position: int) -> Schema:
        """The compiled input schema of a tool."""
        return self.entries[position].schema

    def wire_name(self, position: int) -> str:
        """The wire name of a tool."""
        return self.entries[position].wire

    def by_wire(self, name: str) -> int | None:
        """The position of the tool with exactly that wire name."""
        return self._lookup.exactly(name, Tier.WIRE)

    def by_id(self, id_: str) -> int | None:
        """The position of the tool with exactly that id."""
        return self._lookup.exactly(id_, Tier.ID)

    def find(self, spelling: str, mask: Mask = None, namespace: str | None = None) -> int:
        """The position of the one visible tool that answers to the spelling.

        With a `namespace`, given here or in the spelling, only its tools are looked at. Raises `ToolNotFound`,
        suggesting visible tools, and `AmbiguousName`, naming the visible candidates.
        """
        return self._lookup.find(spelling, mask, namespace)

    def fingerprint(self, mask: Mask = None) -> str:
        """A short hash of the visible tools, ids and definitions; independent of all others."""
        visible = self._digests if mask is None else compress(self._digests, mask)
        return blake2b(b"".join(visible), digest_size=12).hexdigest()

    def definitions(self) -> dict[str, tuple[Tool, bytes]]:
        """Each tool by id, with a digest of its definition."""
        return {entry.id: (entry.tool, entry.digest) for entry in self.entries}

    def __iter__(self) -> Iterator[Tool]:
        """The tools, by id."""
        return iter(self.tools)
