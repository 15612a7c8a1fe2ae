"""The words of all tools in a tantivy index: on disk, memory-mapped, and changed in place.

Two fields hold the stems: `strong` for what names and short descriptions say, once for each unit of weight, and `weak`
for what is said in passing, such as in the descriptions of parameters. The constants of tantivy's BM25 cannot be set;
with them, an occurrence then counts about as much as in BM25F with the weights of `toolcrib.search.options`.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolcrib.errors import StateUnavailable, missing_extra
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

_K1: Final = 1.2
"""The constant of tantivy's BM25."""


def load_tantivy() -> ModuleType:
    """Import tantivy. Raises `MissingExtra`."""
    try:
        import tantivy  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise missing_extra("tantivy", "toolcrib[large]", needed_by="A tool index on disk") from error
    return tantivy


class Postings:
    """The index in one folder. Searches may run in any thread; one writes at a time."""

    def __init__(self, folder: Path) -> None:
        """Open the index, or make an empty one. Raises `StateUnavailable` if it is damaged, and `MissingExtra`."""
        self._tantivy = load_tantivy()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._schema = self._made_schema()
        try:
            self._index: Any = self._tantivy.Index(self._schema, str(folder))
            self._searcher: Any = self._index.searcher()
        except (ValueError, OSError) as error:
            raise self._damaged(error) from error
        self._writer: Any = None

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
        """How many tools there are."""
        return int(self._searcher.num_docs)

    def named(self, name: str) -> int:
        """How many tools have this whole name, as in `toolcrib.search.text.WHOLE_NAME`."""
        return int(self._searcher.doc_freq("whole", name))

    # -- writing ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Be the process that writes. Raises `StateUnavailable` if another one is."""
        self._open_writer()

    def write(self, remove: Iterable[int], add: Iterable[tuple[int, Tool, str, Mapping[str, float]]]) -> None:
        """Remove tools by number, and add others: number, tool, whole name, and the weight of each stem.

        Nothing is found before `commit`.
        """
        writer = self._open_writer()
        gone = list(remove)
        if gone:  # a term would be of a signed number, which no document has
            writer.delete_documents_by_query(self._tantivy.Query.term_set_query(self._schema, "row", gone))
        for row, tool, whole, weights in add:
            writer.add_document(self._document(row, tool, whole, weights))

    def commit(self, *, merge: bool = False) -> None:
        """Let searches see what was written; with `merge`, wait until the parts of the index are merged."""
        writer = self._open_writer()
        try:
            writer.commit()
            if merge:
                writer.wait_merging_threads()
                self._writer = None
            self._index.reload()
        except (ValueError, OSError) as error:
            raise self._damaged(error) from error
        self._searcher = self._index.searcher()

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

    def _document(self, row: int, tool: Tool, whole: str, weights: Mapping[str, float]) -> Any:
        document = self._tantivy.Document()
        strong = [stem for stem, weight in weights.items() if weight >= _STRONG for _ in range(round(weight) or 1)]
        document.add_unsigned("row", row)
        document.add_text("strong", " ".join(strong))
        document.add_text("weak", " ".join([stem for stem, weight in weights.items() if weight < _STRONG]))
        if whole:
            document.add_text("whole", whole)
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
        """Find the tools with the highest sum of weights of their words: their numbers and scores, best first."""
        searcher = self._searcher
        clauses = [
            self._term(field, value, boost)
            for field, value, boost in self._weighted_terms(searcher, words, names, count)
        ]
        if not clauses:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        should = self._tantivy.Occur.Should
        query = self._tantivy.Query.boolean_query([(should, clause) for clause in clauses])
        hits = self._hits(searcher, self._filtered(query, filters), count)
        if not hits:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        scores, addresses = zip(*hits, strict=True)
        return self._rows(searcher, [*addresses]), np.array(scores, dtype=np.float32)

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
            (field, stem, weight * share, found, found * rarity > tools)
            for stem, weight in words.items()
            for field, share, rarity in _WORD_FIELDS
            if (found := searcher.doc_freq(field, stem))
        ]
        rare = sum(found for *_, found, is_common in terms if not is_common)
        for field, stem, weight, found, is_common in terms:
            if not is_common or rare < _ENOUGH * count:
                yield field, stem, weight / _idf(tools, found)
        for name, weight in names.items():
            if found := searcher.doc_freq("whole", name):
                yield "whole", name, 2 * weight / _idf(tools, found)

    def passing(self, filters: Filters, limit: int) -> tuple[int, Rows]:
        """Count the tools that pass filters, and list the numbers of up to `limit` of them."""
        searcher = self._searcher
        found = searcher.search(self._filtered(self._tantivy.Query.all_query(), filters), limit, count=True)
        return int(found.count), self._rows(searcher, [address for _, address in found.hits])

    def filtered(self, rows: Sequence[int], filters: Filters) -> Rows:
        """Keep the tools that pass the filters."""
        searcher = self._searcher
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
