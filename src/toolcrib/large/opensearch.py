"""A catalog in OpenSearch, for more tools than one machine holds. Experimental: it has never met a real cluster.

The cluster finds candidates by words and by meaning; the ranking is that of `toolcrib.search.candidates`. In memory are
the words of the catalog with their statistics, which are counted by the cluster. No state is kept beside the index, so
any number of processes may search and change it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice, pairwise
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolcrib.checks import checked
from toolcrib.errors import AmbiguousName, SettingsError, StateUnavailable, ToolNotFound, missing_extra
from toolcrib.large.dictionary import Dictionary, WordSegments
from toolcrib.large.records import AnalyzedSlice, analysis_mark, analyze
from toolcrib.large.store import decode_tool, encode_tool, spelling
from toolcrib.search.candidates import CandidateQuery, search_candidates
from toolcrib.search.features import SemanticModel, default_semantic_model
from toolcrib.search.index import IndexView
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.search.segment import Segment
from toolcrib.search.text import ParsedQuery
from toolcrib.search.vectors import QuantizedRows, QueryVectors
from toolcrib.types import Filters, SearchReply, SearchRequest, Tool, Visibility

FORMAT: Final = 1
"""The version of the documents."""

_SLICE: Final = 500
"""Tools in one bulk request."""

_PAGE: Final = 10_000
"""Words in one answer."""

_MAX_CANDIDATES_SPELT: Final = 5
"""Ids that the error for an ambiguous name lists."""

_STEPS: Final = 100
"""A stem of weight 1 is indexed with this term frequency, which is a whole number."""

_LEVELS: Final = 127
"""The largest component of a vector of bytes."""

_TINY: Final = 1e-9
"""Less than any score."""

_FINDABLE: Final = {"term": {"findable": True}}


def load_opensearch() -> ModuleType:
    """Import opensearch-py. Raises `MissingExtra`."""
    try:
        import opensearchpy  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise missing_extra("opensearch-py", "toolcrib[opensearch]", needed_by="A catalog in OpenSearch") from error
    return opensearchpy


# -- requests ------------------------------------------------------------------------------------------------------


def index_body(dim: int, options: SearchOptions) -> dict[str, Any]:
    """Settings and mappings of the index, for vectors with `dim` components.

    The frequency of a stem is its weight in BM25F. The similarity saturates it as the ranking does, and leaves rarity
    to the boosts of the query, so that scores do not depend on the shard.
    """
    saturate = f"query.boost * doc.freq / (doc.freq + {_STEPS * options.k1:g})"
    keyword, number = {"type": "keyword"}, {"type": "float", "index": False}
    method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
    return {
        "settings": {
            "index": {
                "knn": True,
                "similarity": {"saturated": {"type": "scripted", "script": {"source": f"return {saturate};"}}},
            },
            "analysis": {
                "filter": {"weights": {"type": "delimited_term_freq", "delimiter": "|"}},
                "analyzer": {"weighted": {"type": "custom", "tokenizer": "whitespace", "filter": ["weights"]}},
            },
        },
        "mappings": {
            "dynamic": "strict",
            "_meta": {"toolcrib": {"format": FORMAT, "analysis": analysis_mark(options)}},
            "properties": {
                **dict.fromkeys(("id", "folded", "bare", "namespace", "tags", "visibility"), keyword),
                **dict.fromkeys(("whole", "words", "roots", "begins"), keyword),
                "read_only": {"type": "boolean"},
                "findable": {"type": "boolean"},
                "stems": {
                    "type": "text",
                    "analyzer": "weighted",
                    "index_options": "freqs",
                    "norms": False,
                    "similarity": "saturated",
                },
                "meaning": {"type": "knn_vector", "dimension": dim, "data_type": "byte", "method": method},
                "meaning_scale": number,
                "definition": {"type": "object", "enabled": False},
            },
        },
    }


def documents(tools: Sequence[Tool], found: AnalyzedSlice) -> Iterator[dict[str, Any]]:
    """Yield the document of each analysed tool."""
    for place, (tool, bounds) in enumerate(zip(tools, pairwise(found.bounds), strict=True)):
        row = found.rows[place]
        numbers = sorted({number for number in found.words["word"][slice(*bounds)].tolist() if number >= 0})
        first, second = row["slots"][:2].tolist()
        document = {
            "id": tool.id,
            "folded": spelling(tool.id),
            "bare": spelling(tool.name),
            "namespace": tool.namespace,
            "tags": list(tool.tags),
            "visibility": str(tool.visibility),
            "read_only": tool.annotations.get("readOnlyHint") is True,
            "findable": tool.visibility is not Visibility.HIDDEN,
            "stems": " ".join([f"{stem}|{_frequency(weight)}" for stem, weight in found.weights[place].items()]),
            "words": [f"{found.texts[number]} {found.stems[number]}" for number in numbers],
            "roots": sorted({found.stems[number] for number in numbers}),
            "definition": encode_tool(tool).decode(),
        }
        if found.whole_names[place]:
            document["whole"] = found.whole_names[place]
        if second >= 0:
            document["begins"] = found.texts[first]
        if row["meaning"].any():  # a vector of zeros has no direction, and is refused
            document |= {"meaning": row["meaning"].tolist(), "meaning_scale": float(row["meaning_scale"])}
        yield document


def _frequency(weight: float) -> int:
    return max(1, round(weight * _STEPS))


def bulk_lines(add: Iterable[dict[str, Any]], remove: Iterable[str]) -> list[dict[str, Any]]:
    """The lines of a bulk request that indexes documents and deletes tools by id."""
    lines: list[dict[str, Any]] = [{"delete": {"_id": document_id(id_)}} for id_ in remove]
    for document in add:
        lines += [{"index": {"_id": document_id(document["id"])}}, document]
    return lines


def document_id(id_: str) -> str:
    """The id of a document, which has at most 512 bytes.

    >>> document_id("math:add")
    'b725b63c3c286586ee4aa936320688ae'
    """
    return blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def filter_clauses(filters: Filters) -> list[dict[str, Any]]:
    """What a tool must match to pass the filters.

    >>> filter_clauses(Filters(namespaces=frozenset({"files"})))
    [{'term': {'findable': True}}, {'terms': {'namespace': ['files']}}]
    """
    clauses: list[dict[str, Any]] = [_FINDABLE]
    if filters.namespaces:
        clauses.append({"terms": {"namespace": list(filters.namespaces)}})
    clauses += [{"term": {"tags": tag}} for tag in filters.tags]
    if filters.read_only is not None:
        clauses.append({"term": {"read_only": filters.read_only}})
    if filters.visibility:
        clauses.append({"terms": {"visibility": [str(one) for one in filters.visibility]}})
    return clauses


def candidate_searches(query: CandidateQuery) -> list[dict[str, Any]]:
    """The searches for candidates: one by words, then one by meaning for each clause."""
    passing = filter_clauses(query.filters)
    words = [_term("stems", stem, weight) for stem, weight in query.words.items()]
    names = [
        {"constant_score": {"filter": {"term": {"whole": name}}, "boost": weight}}
        for name, weight in query.names.items()
    ]
    source = {"size": query.compared, "track_total_hits": False, "_source": ["definition", "meaning", "meaning_scale"]}
    found = []
    if words or names:
        lexical = {"should": words + names, "minimum_should_match": 1, "filter": passing}
        found.append({**source, "query": {"bool": lexical}})
    for vector in _byte_vectors(query.vectors):
        near = {"vector": vector, "k": query.compared, "filter": {"bool": {"filter": passing}}}
        found.append({**source, "query": {"knn": {"meaning": near}}})
    return found


def _term(field: str, value: str, boost: float) -> dict[str, Any]:
    return {"term": {field: {"value": value, "boost": boost}}}


def _byte_vectors(vectors: QueryVectors) -> list[list[int]]:
    """The vectors of the clauses whose meaning is known, in whole numbers from -127 to 127."""
    values = vectors.values[vectors.values.any(axis=1)]
    largest = np.abs(values).max(axis=1, initial=1, keepdims=True)
    found: list[list[int]] = np.rint(values / largest * _LEVELS).astype(int).tolist()
    return found


def count_body(field: str, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """A page of the values of a field, with the number of tools that have each."""
    pages: dict[str, Any] = {"size": _PAGE, "sources": [{"value": {"terms": {"field": field}}}]}
    if after is not None:
        pages["after"] = dict(after)
    return {"size": 0, "query": _FINDABLE, "aggs": {"values": {"composite": pages}}}


# -- answers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundTools:
    """Tools that a search for candidates found, each once."""

    tools: Sequence[Tool]
    lexical: npt.NDArray[np.float64]
    """Scores by words; 0 for tools that were found by meaning."""
    meaning: QuantizedRows


def read_candidates(answers: Sequence[Mapping[str, Any]], dim: int, *, by_words: bool) -> FoundTools:
    """Read the answers to `candidate_searches`; `by_words` says whether the first one was by words."""
    hits: dict[str, Mapping[str, Any]] = {}
    scores: dict[str, float] = {}
    for number, answer in enumerate(answers):
        for hit in answer["hits"]["hits"]:
            hits.setdefault(hit["_id"], hit["_source"])
            if by_words and number == 0:
                scores[hit["_id"]] = float(hit["_score"])
    values = np.array([one.get("meaning") or [0] * dim for one in hits.values()], dtype=np.int8).reshape(-1, dim)
    scales = np.array([one.get("meaning_scale") or 1.0 for one in hits.values()], dtype=np.float32)
    lexical = np.array([scores.get(id_, 0.0) for id_ in hits], dtype=np.float64)
    return FoundTools(_definitions(hits.values()), lexical, QuantizedRows(values, scales))


def read_definitions(answer: Mapping[str, Any]) -> list[Tool]:
    """Read the tools of a search."""
    return _definitions(hit["_source"] for hit in answer["hits"]["hits"])


def _definitions(sources: Iterable[Mapping[str, Any]]) -> list[Tool]:
    return [decode_tool(source["definition"].encode()) for source in sources]


def refused_items(answer: Mapping[str, Any]) -> list[str]:
    """The errors of a bulk request; a document to delete that does not exist is none."""
    if not answer["errors"]:
        return []
    results = [result for item in answer["items"] for result in item.values()]
    return [f"{result['error']['type']}: {result['error']['reason']}" for result in results if "error" in result]


# -- the catalog ---------------------------------------------------------------------------------------------------


@checked(shallow=True, methods=("update", "search"))
class OpenSearchIndex:
    """A searchable catalog in an index of OpenSearch. Every method may be called from any thread.

    Experimental: its requests and answers follow the documentation of OpenSearch 2.10 and later, and have not been
    tried with a cluster.
    """

    def __init__(
        self, client: Any, name: str, *, options: SearchOptions | None = None, lexicon: Lexicon | None = None
    ) -> None:
        """Use the index with a name, or make it, and read its words. `client` is an `opensearchpy.OpenSearch`.

        Raises `MissingExtra`, `SettingsError` for another ranking than `hybrid` or other options than those of the
        index, and `StateUnavailable` if the cluster does not answer or refuses.
        """
        self._errors: type[Exception] = load_opensearch().exceptions.OpenSearchException
        self._client = client
        self._name = name
        self._options = options or SearchOptions()
        self._model = default_semantic_model()
        self._lexicon = lexicon
        if self._options.scorer != "hybrid":
            raise SettingsError(f"A catalog in OpenSearch has the ranking hybrid, not {self._options.scorer}.")
        self._check_index()
        self.refresh()

    def _check_index(self) -> None:
        if not self._ask(self._client.indices.exists, index=self._name):
            body = index_body(self._model.table.dim, self._options)
            self._ask(self._client.indices.create, index=self._name, body=body)
        wanted = {"format": FORMAT, "analysis": analysis_mark(self._options)}
        for index in self._ask(self._client.indices.get_mapping, index=self._name).values():
            if index["mappings"].get("_meta", {}).get("toolcrib") != wanted:
                raise SettingsError(
                    f"The index {self._name} in OpenSearch was not made by this version with these options.",
                    hint="Use another name, or delete the index and build it again.",
                )

    def _ask(self, method: Callable[..., Any], **request: Any) -> Any:
        """Send a request. Raises `StateUnavailable`."""
        try:
            return method(**request)
        except self._errors as error:
            problem = getattr(error, "error", "") or type(error).__name__
            raise self._unavailable(str(problem)) from error

    def _unavailable(self, problem: str) -> StateUnavailable:
        return StateUnavailable(
            f"The index {self._name} in OpenSearch cannot be used: {problem}.",
            hint="Check that the cluster runs, and what its log says.",
        )

    # -- changing ----------------------------------------------------------------------------------------------------

    def update(self, add: Iterable[Tool] = (), remove: Iterable[str] = ()) -> int:
        """Remove tools by id, and add others; a new tool replaces one with the same id. Returns how many were sent.

        Searches of this object find the change when it returns. It reads the words of the catalog again, so give it
        many tools at once. Raises `StateUnavailable` if the cluster refuses a tool; those before its slice of 500 stay.
        """
        gone = list(remove)
        sent = len(gone)
        self._send(bulk_lines((), gone))
        tools = iter(add)
        while some := [*islice(tools, _SLICE)]:
            found = analyze(some, model=self._model, options=self._options)
            self._send(bulk_lines(documents(some, found), ()))
            sent += len(some)
        if sent:
            self._ask(self._client.indices.refresh, index=self._name)
            self.refresh()
        return sent

    def _send(self, lines: Sequence[Mapping[str, Any]]) -> None:
        if lines:
            refused = refused_items(self._ask(self._client.bulk, index=self._name, body=lines))
            if refused:
                raise self._unavailable(f"it refused {len(refused)} tools, the first one with {refused[0]}")

    def refresh(self) -> None:
        """Read the words and their statistics from the cluster, as other processes may have changed them."""
        begins = dict(self._counts("begins"))
        rows = []
        for text, uses in self._counts("words"):
            word, _, stem = text.partition(" ")
            rows.append((word, stem, uses, begins.get(word, 0), b"", 1.0))
        dictionary = Dictionary.load(0, rows, dict(self._counts("roots")), self._count(_FINDABLE))
        segments = WordSegments(dictionary, self._model, self._options)
        names: dict[str, int] = {}
        self._view = segments.view(dictionary.size, lambda name: self._named(name, names))

    def _counts(self, field: str) -> Iterator[tuple[str, int]]:
        """The values of a field in alphabetical order, and how many tools have each."""
        after: Mapping[str, Any] | None = None
        while True:
            answer = self._ask(self._client.search, index=self._name, body=count_body(field, after))
            page = answer["aggregations"]["values"]
            yield from ((bucket["key"]["value"], bucket["doc_count"]) for bucket in page["buckets"])
            after = page.get("after_key")
            if after is None or len(page["buckets"]) < _PAGE:
                return

    def _count(self, query: Mapping[str, Any]) -> int:
        return int(self._ask(self._client.count, index=self._name, body={"query": query})["count"])

    def _named(self, name: str, known: dict[str, int]) -> int:
        """How many tools have a whole name; `known` are those that were counted since the words were read."""
        if name not in known:
            found = self._count({"bool": {"filter": [_FINDABLE, {"term": {"whole": name}}]}})
            if len(known) < _PAGE:
                known[name] = found
            return found
        return known[name]

    # -- reading -----------------------------------------------------------------------------------------------------

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

    def __len__(self) -> int:
        """How many tools there are, with hidden ones."""
        return self._count({"match_all": {}})

    def get(self, id_: str) -> Tool | None:
        """Return the tool with an id, or None."""
        return self.definitions([id_]).get(id_)

    def resolve(self, name: str) -> Tool:
        """Return the tool with a name in any spelling: its id, its wire name, or a bare name that only it has.

        Raises `ToolNotFound`, and `AmbiguousName` with the candidates if several tools match.
        """
        exact = self.get(name)
        if exact is not None:
            return exact
        found = self._spelt("folded", name) or self._spelt("bare", name)
        if not found:
            raise ToolNotFound(f"No tool is called {name}.")
        if len(found) > 1:
            ids = [tool.id for tool in found]
            raise AmbiguousName(f"{name} may be {', '.join(ids)}.", hint="Use one of these names.", suggestions=ids)
        return found[0]

    def _spelt(self, field: str, name: str) -> list[Tool]:
        return self._listed({"term": {field: spelling(name)}}, _MAX_CANDIDATES_SPELT)[1]

    def _listed(self, query: Mapping[str, Any], limit: int) -> tuple[int, list[Tool]]:
        """Count the tools that match, and return the first ones by id."""
        body = {"size": limit, "query": query, "sort": [{"id": "asc"}], "track_total_hits": True}
        answer = self._ask(self._client.search, index=self._name, body={**body, "_source": ["definition"]})
        return int(answer["hits"]["total"]["value"]), read_definitions(answer)

    # -- the engine --------------------------------------------------------------------------------------------------

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
        """Find the tools that fit best by words and meaning, in one request for each query."""
        tools = {tool.id: tool for query in queries for tool in self._best(query)}
        return Segment.build([*tools.values()], model=self._model, options=self._options)

    def _best(self, query: CandidateQuery) -> Sequence[Tool]:
        searches = candidate_searches(query)
        answers = self._searched(searches) if searches else []
        found = read_candidates(answers, self._model.table.dim, by_words=bool(query.words or query.names))
        if not found.tools:
            return ()
        places = np.arange(len(found.tools))
        bases = found.lexical / max(float(found.lexical.max()), _TINY)
        bases += self._options.semantic_share * found.meaning.products(places, query.vectors).max(axis=0)
        best = np.argsort(-bases, kind="stable")[: query.wanted].tolist()
        return [found.tools[place] for place in best]

    def _searched(self, searches: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Run several searches in one request. Raises `StateUnavailable` if one of them fails."""
        lines: list[Mapping[str, Any]] = [*chain.from_iterable(({}, body) for body in searches)]
        answers: list[Mapping[str, Any]] = self._ask(self._client.msearch, index=self._name, body=lines)["responses"]
        for answer in answers:
            if "error" in answer:
                raise self._unavailable(str(answer["error"]["type"]))
        return answers

    def first_by_id(self, filters: Filters, limit: int) -> tuple[int, Sequence[Tool]]:
        """Count the tools that pass the filters, and list the first ones by id."""
        return self._listed({"bool": {"filter": filter_clauses(filters)}}, limit)

    def definitions(self, ids: Iterable[str]) -> Mapping[str, Tool]:
        """The tools with these ids, by id."""
        wanted = [document_id(id_) for id_ in ids]
        if not wanted:
            return {}
        request = {"index": self._name, "body": {"ids": wanted}, "_source": ["definition"]}
        answer = self._ask(self._client.mget, **request)
        tools = _definitions(one["_source"] for one in answer["docs"] if one.get("found"))
        return {tool.id: tool for tool in tools}
