"""A tool index on disk, for more tools than fit in memory: definitions in SQLite, words in tantivy.

In memory are the words with their statistics, and sixteen bytes for each tool: the sketch of its meaning, so that tools
are found by meaning too. A search reads the records of some hundred candidates, and the definitions of its hits.
"""

import shutil
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from toolcrib._version import VERSION
from toolcrib.checks import Count, checked
from toolcrib.errors import AmbiguousName, SettingsError, StateUnavailable, ToolNotFound
from toolcrib.large.dictionary import Dictionary, WordSegments
from toolcrib.large.postings import Entry, Postings, load_tantivy
from toolcrib.large.records import (
    AnalyzedSlice,
    Record,
    analysis_mark,
    analyze,
    cosines,
    count_words,
    join_records,
    weights_of,
)
from toolcrib.large.store import StoredTool, ToolStore, add_tools, note_done, remove_tools, set_meta, write_words
from toolcrib.search.candidates import CandidateQuery, search_candidates
from toolcrib.search.features import SemanticModel, default_semantic_model, query_simhash
from toolcrib.search.index import IndexView
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.search.ranking import estimate_cosines
from toolcrib.search.segment import Segment
from toolcrib.search.text import ParsedQuery
from toolcrib.search.vectors import QueryVectors
from toolcrib.types import Filters, SearchReply, SearchRequest, Tool

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
FORMAT: Final = 2
"""The version of the files."""
_SLICE: Final = 4_000
"""Tools that are analysed and written at once."""
_MERGED: Final = 20_000
"""After more changes than these, the parts of the search index are merged."""
_BY_WORDS: Final = 500
"""Tools that are compared by words and the estimate of their meaning."""
_CHUNK: Final = 65_536
"""Sketches that are compared at once, so that they stay in the processor's cache."""
_SAMPLE: Final = 16_384
"""Sketches that are counted by how much they differ from the query's."""
_MAX_PASSING: Final = 5_000
"""If at most so many tools pass the filters, the meaning of each is compared."""
_MAX_CANDIDATES_SPELT: Final = 5
"""Ids that the error for an ambiguous name lists."""


@checked(shallow=True, methods=("update", "replace", "search"))
class DiskIndex:
    """A searchable catalog in a folder. Searches may run in any thread, also while tools change; one writes at a time.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, DiskIndex(folder) as index:
    ...     index.update([Tool(name="add", namespace="math", description="Adds numbers."), Tool(name="send_mail")])
    ...     [hit.tool.id for hit in index.search("sum of two numbers").hits]
    2
    ['math:add']
    """

    def __init__(
        self, folder: str | Path, *, options: SearchOptions | None = None, lexicon: Lexicon | None = None
    ) -> None:
        """Open the index in a folder, or make it. What tools are ranked by must be as it was when it was made.

        Raises `MissingExtra` without tantivy, `SettingsError` for another ranking than `hybrid` or other options than
        those of the index, and `StateUnavailable` if the files are damaged. Only the search index, which is in the
        folder `words`, is repaired by itself.
        """
        load_tantivy()
        self._folder = Path(folder)
        self._options = options or SearchOptions()
        self._model = default_semantic_model()
        self._lexicon = lexicon
        if self._options.scorer != "hybrid":
            raise SettingsError(
                f"An index on disk has the ranking hybrid, not {self._options.scorer}.",
                hint="Remove search.scorer, or use the engine memory.",
            )
        self._lock = threading.RLock()
        self._store = ToolStore(self._folder / "tools.db")
        self._check_meta()
        self._dictionary = self._load_dictionary()
        self._words = WordSegments(self._dictionary, self._model, self._options)
        self._next_row = self._store.last_row() + 1
        self._sketches, self._alive = self._load_sketches()
        self._postings = self._open_postings()
        self._finish_pending()
        self._view = self._words.view(self._dictionary.size, self._postings.named)

    # -- opening ---------------------------------------------------------------------------------------------------

    def _check_meta(self) -> None:
        made = {"format": str(FORMAT), "analysis": analysis_mark(self._options)}
        known = self._store.meta()
        if not known.keys() & made.keys():
            with self._store.transaction() as writer:
                set_meta(writer, {**made, "version": VERSION, "findable": 0})
        elif {key: known.get(key) for key in made} != made:
            raise SettingsError(
                f"The index in {self._folder} was made by toolcrib {known.get('version', '?')} with other options.",
                hint="Delete the folder and build the index again.",
            )

    def _load_dictionary(self) -> Dictionary:
        count = int(self._store.meta().get("findable", 0))
        return Dictionary.load(self._model.table.dim, self._store.words(), self._store.stems(), count)

    def _load_sketches(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        rows, data = self._store.sketches()
        size = max(1024, self._next_row)
        found = np.frombuffer(data, dtype="<u8").reshape(-1, 2)
        sketches = np.zeros((2, size), dtype=np.uint64)
        alive = np.zeros(size, dtype=np.bool_)
        if rows:
            sketches[:, rows], alive[rows] = found.T, True
        return sketches, alive

    def _open_postings(self) -> Postings:
        """Open the search index; one that is damaged or incomplete is made again."""
        folder = self._folder / "words"
        try:
            postings = Postings(folder)
            waiting = len(self._store.pending())
            if abs(postings.count - self._dictionary.size) <= waiting:
                return postings
            postings.close()
        except StateUnavailable:
            pass
        shutil.rmtree(folder, ignore_errors=True)
        postings = Postings(folder)
        row = -1
        while rows := self._store.rows_after(row, _SLICE):
            self._write_postings(postings, rows)
            row = rows[-1]
        postings.commit(merge=True)
        return postings

    def _finish_pending(self) -> None:
        """Let the search index take up what it had not when it was closed."""
        rows = self._store.pending()
        for start in range(0, len(rows), _SLICE):
            self._write_postings(self._postings, rows[start : start + _SLICE])
        self._commit(rows)

    def _write_postings(self, postings: Postings, rows: Sequence[int]) -> None:
        records = self._store.records(rows)
        tools = self._store.tools([record.id for record in records.values()])
        dim = self._model.table.dim
        postings.write(
            rows,
            (
                Entry(row, tools[one.id], one.whole_name, weights_of(one, self._dictionary, dim))
                for row, one in records.items()
                if self._alive[row]
            ),
        )

    def close(self) -> None:
        """Close the files; calling it twice is harmless."""
        with self._lock:
            self._postings.close()
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many tools there are, with hidden ones."""
        return self._store.count()

    # -- changing --------------------------------------------------------------------------------------------------

    def update(self, add: Iterable[Tool] = (), remove: Iterable[str] = (), *, processes: Count = 1) -> int:
        """Remove tools by id, and add others; a new tool replaces one with the same id. Returns how many changed.

        Tools are read one slice at a time, so an iterator may give any number of them. A tool that is known with the
        same definition is only read; of several with one id, the last one stays. Raises `ValueError` for a tool that
        is not JSON; what was read before its slice stays. With more than one of the `processes`, all but the first
        4,000 tools are analysed in processes of their own, which import the main module as `multiprocessing` does.
        """
        with self._writing():
            gone = self._store.rows_by_id(remove)
            rows = self._remove([*gone.values()])
            changed = len(gone)
            for fresh, analyzed in self._analyzed(iter(add), processes):
                written = self._write(fresh, analyzed)
                changed += len(fresh)
                rows += written
            self._commit(rows)
        return changed

    def replace(self, tools: Iterable[Tool], *, processes: Count = 1) -> int:
        """Make these all the tools there are. Returns how many changed; as `update` for the rest."""
        with self._writing():
            seen: set[bytes] = set()
            changed = self.update(_noting_ids(tools, seen), processes=processes)
            gone = [id_ for id_ in self._store.ids() if _id_mark(id_) not in seen]
            return changed + self.update(remove=gone)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Be the only one who writes. Raises `StateUnavailable` if another process is, or has changed the tools."""
        with self._lock:
            self._postings.prepare()
            if self._store.last_row() + 1 != self._next_row:
                raise StateUnavailable(
                    f"Another process has changed the tools in {self._folder}.", hint="Open the index again."
                )
            yield

    def _analyzed(self, tools: Iterator[Tool], processes: int) -> Iterator[tuple[Sequence[StoredTool], AnalyzedSlice]]:
        """Yield slices of the tools that are new or changed, analysed."""
        work = partial(analyze, model=self._model, options=self._options)
        first = [*islice(tools, _SLICE)]
        if fresh := self._fresh(first):
            yield fresh, work([one.tool for one in fresh])
        if processes == 1 or len(first) < _SLICE:
            while some := [*islice(tools, _SLICE)]:
                if fresh := self._fresh(some):
                    yield fresh, work([one.tool for one in fresh])
            return
        work = partial(_analyze, options=self._options)
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            waiting: deque[tuple[Sequence[StoredTool], Future[AnalyzedSlice]]] = deque()
            while some := [*islice(tools, _SLICE)]:
                if fresh := self._fresh(some):
                    waiting.append((fresh, pool.submit(work, [one.tool for one in fresh])))
                if len(waiting) > processes:
                    done, found = waiting.popleft()
                    yield done, found.result()
            for done, found in waiting:
                yield done, found.result()

    def _fresh(self, tools: Sequence[Tool]) -> list[StoredTool]:
        """Those of the tools that are not stored as they are; of several with one id, the last."""
        given = {tool.id: StoredTool.of(tool) for tool in tools}
        known = self._store.digests(given)
        return [one for id_, one in given.items() if known.get(id_) != one.digest]

    def _remove(self, rows: Sequence[int]) -> list[int]:
        """Remove tools by number; the search index forgets them on commit."""
        if not rows:
            return []
        findable = [record for row, record in self._store.records(rows).items() if self._alive[row]]
        self._count(findable, gone=True)
        self._alive[list(rows)] = False
        with self._store.transaction() as writer:
            remove_tools(writer, rows)
            self._write_words(writer)
        self._postings.write(rows, ())
        return list(rows)

    def _write(self, fresh: Sequence[StoredTool], found: AnalyzedSlice) -> list[int]:
        """Write tools under new numbers: these, and those of the tools that they replace."""
        gone = self._remove([*self._store.rows_by_id([one.tool.id for one in fresh]).values()])
        analyzed = found.numbered(self._dictionary)
        first = self._next_row
        rows = range(first, first + len(fresh))
        self._reserve(rows.stop)
        findable = np.array([one.is_findable for one in fresh], dtype=np.bool_)
        self._count([one.record for one, shown in zip(analyzed, findable, strict=True) if shown])
        self._sketches[:, first : rows.stop] = found.rows["sketch"].T
        sketches = [sketch.tobytes() for sketch in found.rows["sketch"]]
        with self._store.transaction() as writer:
            add_tools(writer, first, fresh, [one.record for one in analyzed], sketches)
            self._write_words(writer)
        self._next_row = rows.stop
        entries = zip(rows, fresh, analyzed, strict=True)
        self._postings.write(
            (),
            (
                Entry(row, one.tool, words.record.whole_name, words.weights)
                for row, one, words in entries
                if one.is_findable
            ),
        )
        self._alive[first : rows.stop] = findable
        return [*gone, *rows]

    def _count(self, records: Sequence[Record], *, gone: bool = False) -> None:
        if records:
            found = count_words(records, self._dictionary, self._model.table.dim)
            self._dictionary.count(found, len(records), gone=gone)

    def _write_words(self, writer: Any) -> None:
        write_words(writer, *self._dictionary.take_changes())
        set_meta(writer, {"findable": self._dictionary.size})

    def _reserve(self, size: int) -> None:
        room = len(self._alive)
        if size > room:
            more = max(size, 2 * room) - room
            self._alive = np.concatenate([self._alive, np.zeros(more, dtype=np.bool_)])
            self._sketches = np.concatenate([self._sketches, np.zeros((2, more), dtype=np.uint64)], axis=1)

    def _commit(self, rows: Sequence[int]) -> None:
        """Let searches see the changes to these tools."""
        if not rows:
            return
        if self._postings.commit(merge=len(rows) > _MERGED):
            with self._store.transaction() as writer:
                note_done(writer)
        self._words.refresh()
        self._view = self._words.view(self._dictionary.size, self._postings.named)

    # -- reading ---------------------------------------------------------------------------------------------------

    def search(
        self,
        request: str | SearchRequest,
        *,
        options: SearchOptions | None = None,
        boosts: Mapping[str, float] | None = None,
    ) -> SearchReply:
        """Search as `toolcrib.search.candidates.search_candidates` does."""
        asked = SearchRequest(queries=(request,)) if isinstance(request, str) else request
        return search_candidates(self, asked, options=options, lexicon=self._lexicon, boosts=boosts)

    def get(self, id_: str) -> Tool | None:
        """Return the tool with an id, or None."""
        return self._store.tools([id_]).get(id_)

    def resolve(self, name: str) -> Tool:
        """Return the tool with a name in any spelling: its id, its wire name, or a bare name that only it has.

        Raises `ToolNotFound`, and `AmbiguousName` with the candidates if several tools match.
        """
        exact = self.get(name)
        if exact is not None:
            return exact
        found = self._store.spelt(name, _MAX_CANDIDATES_SPELT)
        if not found:
            raise ToolNotFound(f"No tool is called {name}.")
        if len(found) > 1:
            ids = [tool.id for tool in found]
            raise AmbiguousName(f"{name} may be {', '.join(ids)}.", hint="Use one of these names.", suggestions=ids)
        return found[0]

    def ids(self) -> Iterator[str]:
        """Yield all ids in alphabetical order."""
        return self._store.ids()

    # -- the engine ------------------------------------------------------------------------------------------------

    @property
    def options(self) -> SearchOptions:
        """The options of the ranking."""
        return self._options

    @property
    def model(self) -> SemanticModel:
        """The source of vectors: the table in the package."""
        return self._model

    def dictionary(self, queries: Sequence[ParsedQuery], lexicon: Lexicon) -> IndexView:  # noqa: ARG002 - has all words
        """All words with their statistics, whatever is searched for."""
        return self._view

    def find(self, queries: Sequence[CandidateQuery]) -> Segment:
        """Find the tools that fit best by words and meaning: by an estimate of that first, then by the cosine."""
        found = {one.id: one for query in queries for one in self._best(query)}
        stems = queries[0].stems.union(*[query.stems for query in queries])
        return join_records([*found.values()], self._dictionary, stems, model=self._model, options=self._options)

    def _best(self, query: CandidateQuery) -> Sequence[Record]:
        wanted = _wanted_sketch(query.vectors)
        rows, scores = self._postings.best(query.words, query.names, query.filters, max(_BY_WORDS, query.compared))
        if not self._alive[rows].all():
            rows, scores = rows[self._alive[rows]], scores[self._alive[rows]]
        known = {*rows.tolist()}
        near = [row for row in self._nearest(query, wanted).tolist() if row not in known]
        rows = np.concatenate([rows, np.array(near, dtype=np.int64)])
        # The score of a tool that is not among the best by words is unknown: 0 to the least of theirs.
        unknown = scores.min(initial=np.inf) / 2 if len(scores) >= _BY_WORDS else 0.0
        lexical = np.full(len(rows), unknown, dtype=np.float32)
        lexical[: len(scores)] = scores
        lexical /= max(float(lexical.max(initial=0.0)), _TINY)
        share = np.float32(self._options.semantic_share)
        best = _highest(lexical + share * estimate_cosines(self._sketches[:, rows], wanted), query.compared)
        lexical_by_row = dict(zip(rows[best].tolist(), lexical[best].tolist(), strict=True))
        records = self._store.records([*lexical_by_row])
        found = [*records.values()]
        bases = share * cosines(found, query.vectors, self._model.table.dim)
        bases += [lexical_by_row[row] for row in records]
        return [found[place] for place in _highest(bases, query.wanted).tolist()]

    def _nearest(self, query: CandidateQuery, wanted: npt.NDArray[np.uint64]) -> Rows:
        """The tools whose sketches are nearest to the query's, among those that pass the filters."""
        if not wanted.size:
            return np.zeros(0, dtype=np.int64)
        if query.filters == _NO_FILTERS:
            return _nearest_rows(self._sketches, self._alive, wanted, query.compared)
        count, rows = self._postings.passing(query.filters, _MAX_PASSING)
        if count <= _MAX_PASSING:
            rows = rows[self._alive[rows]]
            near = _nearest_rows(self._sketches[:, rows], np.ones(len(rows), np.bool_), wanted, query.compared)
            return rows[near]
        near = _nearest_rows(self._sketches, self._alive, wanted, _MAX_PASSING)
        return self._postings.filtered(near.tolist(), query.filters)[: query.compared]

    def first_by_id(self, filters: Filters, limit: int) -> tuple[int, Sequence[Tool]]:
        """Count the tools that pass the filters, and list the first ones by id."""
        if filters == _NO_FILTERS:
            return self._dictionary.size, self._store.listed(None, limit)
        count, rows = self._postings.passing(filters, max(1, self._dictionary.size))
        return count, self._store.listed(rows.tolist(), limit)

    def definitions(self, ids: Iterable[str]) -> Mapping[str, Tool]:
        """The tools with these ids, by id."""
        return self._store.tools(ids)


_NO_FILTERS: Final = Filters()
_TINY: Final = 1e-9
"""Less than any score."""


def _highest(values: npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.intp]:
    """The places of the `count` highest values, in any order."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.argpartition(values, len(values) - count)[len(values) - count :]


def _wanted_sketch(vectors: QueryVectors) -> npt.NDArray[np.uint64]:
    """The sketches of the clauses whose meaning is known: uint64[2, clauses]."""
    return query_simhash(vectors)[:, vectors.values.any(axis=1)]


def _nearest_rows(
    sketches: npt.NDArray[np.uint64], alive: npt.NDArray[np.bool_], wanted: npt.NDArray[np.uint64], count: int
) -> Rows:
    """The places of the `count` sketches with the fewest bits that differ from those of one of the clauses."""
    differ = _differing_bits(sketches, wanted)
    differ[~alive[: len(differ)]] = _NEVER
    found = _lowest(differ, count)
    if len(found) > count:
        found = found[np.argsort(differ[found], kind="stable")[:count]]
    return found.astype(np.int64)


def _differing_bits(sketches: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """How many bits of each sketch differ from those of the nearest clause."""
    found = np.empty(sketches.shape[1], dtype=np.uint8)
    for start in range(0, len(found), _CHUNK):
        first, second = sketches[:, start : start + _CHUNK]
        least = found[start : start + _CHUNK]
        least.fill(_NEVER)
        for wanted_first, wanted_second in wanted.T:
            differ = np.bitwise_count(first ^ wanted_first)
            differ += np.bitwise_count(second ^ wanted_second)
            np.minimum(least, differ, out=least)
    return found


def _lowest(values: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.intp]:
    """The places of the lowest values: of `count` or more, and of none that is `_NEVER`."""
    counts = np.bincount(values[:: max(1, len(values) // _SAMPLE)], minlength=256)  # a sample says where to cut
    edge = int(np.searchsorted(counts.cumsum(), count * counts.sum() / max(1, len(values))))
    found = np.flatnonzero(values <= min(edge, _NEVER - 1))
    while len(found) < count and edge < _BITS:
        edge += 2
        found = np.flatnonzero(values <= min(edge, _NEVER - 1))
    return found


_BITS: Final = 128
_NEVER: Final = 255
"""The difference of a tool that is gone."""


def _analyze(tools: Sequence[Tool], options: SearchOptions) -> AnalyzedSlice:
    """Analyse tools in another process."""
    return analyze(tools, model=default_semantic_model(), options=options)


def _noting_ids(tools: Iterable[Tool], seen: set[bytes]) -> Iterator[Tool]:
    for tool in tools:
        seen.add(_id_mark(tool.id))
        yield tool


def _id_mark(id_: str) -> bytes:
    """Eight bytes for an id, since a set of a million ids would take more room than the index."""
    return blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest()
