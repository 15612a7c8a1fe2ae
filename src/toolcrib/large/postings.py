"""The words of all tools in a tantivy index: on disk, memory-mapped, and changed in place.

Two fields hold the stems: `strong` for what names and short descriptions say, once for each unit of weight, and `weak`
for what is said in passing, such as in the descriptions of parameters. The constants of tantivy's BM25 cannot be set;
with them, an occurrence then counts about as much as in BM25F with the weights of `toolcrib.search.options`.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from math import log
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.errors import StateUnavailable, missing_extra
from toolcrib.private_files import make_private_folder
from toolcrib.search.segment import Facets
from toolcrib.types import Filters, Tool

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
_STRONG: Final = 0.6
"""From this weight on, a stem is in the field `strong`."""
_WEAK: Final = 0.45
"""What an occurrence in the field `weak` counts, relative to one in `strong`."""
_WORD_FIELDS: Final = (("strong", 1.0, 10), ("weak", _WEAK, 50))
"""What an occurrence in each field counts, and in one of how many tools a common stem is."""
_ENOUGH: Final = 4
"""Common stems are left out if the others have so many times as many occurrences as tools are wanted."""
_HEAP_BYTES: Final = 100_000_000
"""Memory of the writer while many tools are added."""
_NAME_SHARE: Final = 2.0
"""What a whole name counts, relative to a word."""
_MAX_WAITING: Final = 128
"""After more changes than these, tantivy gets them."""
_K1: Final = 1.2
"""The constant of tantivy's BM25."""


def load_tantivy() -> ModuleType:
    """Import tantivy. Raises `MissingExtra`."""
    try:
        import tantivy
    except ModuleNotFoundError as error:
        raise missing_extra("tantivy", "toolcrib[large]", needed_by="A tool index on disk") from error
    return tantivy


class Entry(NamedTuple):
    """What the index holds of one tool."""

    row: int
    """The number of the tool."""
    tool: Tool
    whole_name: str
    """As in `toolcrib.search.text.WHOLE_NAME`; empty if the name is one word."""
    weights: Mapping[str, float]
    """The weight of each stem, as in BM25F before saturation."""


@dataclass(frozen=True, slots=True)
class _Changes:
    """A few changes in memory. To take up one, tantivy waits for the disk as long as for a thousand."""

    added: Mapping[int, Entry] = field(default_factory=dict)
    """By number."""
    removed: frozenset[int] = frozenset()
    """The numbers of tools that are gone, but still in the index."""

    def __len__(self) -> int:
        return len(self.added) + len(self.removed)

    def followed_by(self, remove: Iterable[int], add: Iterable[Entry]) -> "_Changes":
        """These changes and more."""
        gone = frozenset(remove)
        added = {row: entry for row, entry in self.added.items() if row not in gone}
        return _Changes({**added, **{entry.row: entry for entry in add}}, self.removed | (gone - self.added.keys()))

    def passing(self, filters: Filters) -> list[Entry]:
        """The tools that pass the filters."""
        entries = [*self.added.values()]
        passes = Facets([entry.tool for entry in entries]).matching(filters).tolist() if entries else []
        return [*compress(entries, passes)]

    def scores(
        self, words: Mapping[str, float], names: Mapping[str, float], filters: Filters
    ) -> Iterator[tuple[int, float]]:
        """The number and score of each tool with one of the words or names, on the scale of the index."""
        for entry in self.passing(filters):
            found = [(weight, entry.weights[stem]) for stem, weight in words.items() if stem in entry.weights]
            score = sum(weight * own / (own + _K1) for weight, own in found)
            score += _NAME_SHARE * names.get(entry.whole_name, 0.0) / (1 + _K1)
            if score:
                yield entry.row, score


class Postings:
    """The index in one folder. Searches may run in any thread; one writes at a time."""

    def __init__(self, folder: Path) -> None:
        """Open the index, or make an empty one. Raises `StateUnavailable` if it is damaged, and `MissingExtra`."""
        self._tantivy = load_tantivy()
        self._folder = folder
        self._schema = self._made_schema()
        try:
            make_private_folder(folder)
            self._index: Any = self._tantivy.Index(self._schema, str(folder))
            self._searcher: Any = self._index.searcher()
        except (ValueError, OSError) as error:
            raise self._damaged(error) from error
        self._writer: Any = None
        self._waiting = _Changes()
        """Changes that tantivy has yet to get."""
        self._seen = _Changes()
        """Those of them that searches see."""
        self._is_behind = False
        """Whether tantivy has changes that it has yet to commit."""

    def _damaged(self, error: Exception) -> StateUnavailable:
        return StateUnavailable(
            f"The search index in {self._folder} cannot be used: {error}.",
            hint="Delete that folder: it is made again from the tools beside it.",
        )

    def _made_schema(self) -> Any:
        builder = self._tantivy.SchemaBuilder()
        for name in ("strong", "weak"):
            builder.add_text_field(name, tokenizer_name="whitespace", index_option="freq")
        for name in ("whole", "namespace", "tags", "read_only", "visibility"):
            builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
        builder.add_unsigned_field("row", indexed=True, fast=True)
        return builder.build()

    @property
    def count(self) -> int:
        """How many tools there are on disk."""
        return int(self._searcher.num_docs)

    def named(self, name: str) -> int:
        """How many tools have this whole name, as in `toolcrib.search.text.WHOLE_NAME`."""
        recent = sum(entry.whole_name == name for entry in self._seen.added.values())
        return int(self._searcher.doc_freq("whole", name)) + recent

    # -- writing ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Be the process that writes. Raises `StateUnavailable` if another one is."""
        self._open_writer()

    def write(self, remove: Iterable[int], add: Iterable[Entry]) -> None:
        """Remove tools by number, and add others. Searches see no change before `commit`."""
        self._waiting = self._waiting.followed_by(remove, add)
        if len(self._waiting) > _MAX_WAITING:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give tantivy the changes that wait."""
        writer, changes = self._open_writer(), self._waiting
        if changes.removed:  # a term would be of a signed number, which no document has
            query = self._tantivy.Query.term_set_query(self._schema, "row", [*changes.removed])
            writer.delete_documents_by_query(query)
        for entry in changes.added.values():
            writer.add_document(self._document(entry))
        self._waiting, self._is_behind = _Changes(), True

    def commit(self, *, merge: bool = False) -> bool:
        """Let searches see what was written. Returns whether all of it is on disk: a few changes stay in memory.

        With `merge`, write everything to disk, and wait until the parts of the index are merged.
        """
        if self._is_behind or merge:
            self._pass_on()
            self._commit(merge=merge)
        self._seen = self._waiting  # last, so that a search that reads it first misses nothing
        return not self._waiting

    def _commit(self, *, merge: bool) -> None:
        writer = self._open_writer()
        try:
            writer.commit()
            if merge:
                writer.wait_merging_threads()
                self._writer = None  # tantivy ends a writer that has waited
            self._index.reload()  # by itself, tantivy shows a commit to searches only after a while
        except (ValueError, OSError) as error:
            raise self._damaged(error) from error
        self._searcher, self._is_behind = self._index.searcher(), False

    def close(self) -> None:
        """Finish merging, and let other processes write."""
        if self._writer is not None:
            with contextlib.suppress(ValueError):
                self._writer.wait_merging_threads()
            self._writer = None

    def _open_writer(self) -> Any:
        if self._writer is None:
            try:
                self._writer = self._index.writer(heap_size=_HEAP_BYTES, num_threads=1)
            except ValueError as error:
                raise StateUnavailable(
                    f"The search index in {self._folder} is in use by another process.",
                    hint="Give each process a folder of its own, or stop the other one.",
                ) from error
        return self._writer

    def _document(self, entry: Entry) -> Any:
        document, tool, weights = self._tantivy.Document(), entry.tool, entry.weights
        strong = [stem for stem, weight in weights.items() if weight >= _STRONG for _ in range(round(weight) or 1)]
        document.add_unsigned("row", entry.row)
        document.add_text("strong", " ".join(strong))
        document.add_text("weak", " ".join([stem for stem, weight in weights.items() if weight < _STRONG]))
        if entry.whole_name:
            document.add_text("whole", entry.whole_name)
        document.add_text("namespace", tool.namespace)
        document.add_text("read_only", _read_only(tool.annotations.get("readOnlyHint") is True))
        document.add_text("visibility", str(tool.visibility))
        for tag in tool.tags:
            document.add_text("tags", tag)
        return document

    # -- searching -------------------------------------------------------------------------------------------------

    def best(
        self, words: Mapping[str, float], names: Mapping[str, float], filters: Filters, count: int
    ) -> tuple[Rows, Floats]:
        """Find the tools with the highest sum of weights of their words, and the last changes: numbers and scores."""
        seen, searcher = self._seen, self._searcher
        clauses = [
            self._term(kind, value, boost) for kind, value, boost in self._weighted_terms(searcher, words, names, count)
        ]
        hits: list[Any] = []
        if clauses:
            should = self._tantivy.Occur.Should
            query = self._tantivy.Query.boolean_query([(should, clause) for clause in clauses])
            hits = self._hits(searcher, self._filtered(query, filters), count)
        rows = self._rows(searcher, [address for _, address in hits])
        scores = np.array([score for score, _ in hits], dtype=np.float32)
        if not seen.added:
            return rows, scores
        recent = dict(seen.scores(words, names, filters))
        other = ~np.isin(rows, [*seen.added])
        return (
            np.concatenate([rows[other], np.array([*recent], dtype=np.int64)]),
            np.concatenate([scores[other], np.array([*recent.values()], dtype=np.float32)]),
        )

    @staticmethod
    def _weighted_terms(
        searcher: Any, words: Mapping[str, float], names: Mapping[str, float], count: int
    ) -> Iterator[tuple[str, str, float]]:
        """Field, value and boost of each term to look for.

        Every tool with one of the terms is scored, so the common ones take most of the time, and say least. They are
        left out if there are several times as many tools as wanted without them.
        """
        tools = searcher.num_docs
        terms = [
            (kind, stem, weight * share, found, found * rarity > tools)
            for stem, weight in words.items()
            for kind, share, rarity in _WORD_FIELDS
            if (found := searcher.doc_freq(kind, stem))
        ]
        rare = sum(found for *_, found, is_common in terms if not is_common)
        for kind, stem, weight, found, is_common in terms:
            if not is_common or rare < _ENOUGH * count:
                yield kind, stem, weight / _idf(tools, found)
        for name, weight in names.items():
            if found := searcher.doc_freq("whole", name):
                yield "whole", name, _NAME_SHARE * weight / _idf(tools, found)

    def passing(self, filters: Filters, limit: int) -> tuple[int, Rows]:
        """Count the tools that pass filters, and list the numbers of up to `limit` of them."""
        seen, searcher = self._seen, self._searcher
        query = self._filtered(self._tantivy.Query.all_query(), filters)
        found = searcher.search(query, limit + len(seen.removed), count=True)
        rows = self._rows(searcher, [address for _, address in found.hits])
        if not len(seen):
            return int(found.count), rows
        stale = self._stored_among(searcher, [*seen.removed], filters)
        recent = np.array([entry.row for entry in seen.passing(filters)], dtype=np.int64)
        count = int(found.count) - len(stale) + len(recent)
        return count, np.concatenate([recent, rows[~np.isin(rows, stale)]])[:limit]

    def filtered(self, rows: Sequence[int], filters: Filters) -> Rows:
        """Keep the tools that pass the filters."""
        seen = self._seen
        recent = np.array([entry.row for entry in seen.passing(filters)], dtype=np.int64)
        stored = self._stored_among(self._searcher, [row for row in rows if row not in seen.added], filters)
        return np.concatenate([stored, recent[np.isin(recent, rows)]])

    def _stored_among(self, searcher: Any, rows: Sequence[int], filters: Filters) -> Rows:
        query = self._tantivy.Query.term_set_query(self._schema, "row", list(rows))
        found = searcher.search(self._filtered(query, filters), max(1, len(rows)), count=False)
        return self._rows(searcher, [address for _, address in found.hits])

    def _term(self, field: str, value: str, boost: float) -> Any:
        query = self._tantivy.Query
        option = "freq" if field in {"strong", "weak"} else "basic"
        return query.boost_query(query.term_query(self._schema, field, value, option), boost)

    def _hits(self, searcher: Any, query: Any, count: int) -> list[Any]:
        try:
            found: list[Any] = searcher.search(query, count, count=False).hits
        except (ValueError, OSError) as error:
            raise self._damaged(error) from error
        return found

    @staticmethod
    def _rows(searcher: Any, addresses: list[Any]) -> Rows:
        return np.array(searcher.fast_field_values("row", addresses) if addresses else [], dtype=np.int64)

    def _filtered(self, query: Any, filters: Filters) -> Any:
        must = [self._any("namespace", filters.namespaces)] if filters.namespaces else []
        must += [self._any("tags", [tag]) for tag in filters.tags]
        if filters.read_only is not None:
            must.append(self._any("read_only", [_read_only(filters.read_only)]))
        if filters.visibility:
            must.append(self._any("visibility", map(str, filters.visibility)))
        if not must:
            return query
        query_type, occur = self._tantivy.Query, self._tantivy.Occur.Must
        clauses = [(occur, query_type.const_score_query(one, 0.0)) for one in must]
        return query_type.boolean_query([(occur, query), *clauses])

    def _any(self, field: str, values: Iterable[str]) -> Any:
        return self._tantivy.Query.term_set_query(self._schema, field, list(values))


def _read_only(value: bool) -> str:  # noqa: FBT001 - one value of a tool
    return "yes" if value else "no"


def _idf(tools: int, found: int) -> float:
    """What tantivy multiplies a term by."""
    return log(1 + (tools - found + 0.5) / (found + 0.5)) * (1 + _K1)
