"""A catalog in OpenSearch: requests, answers in the documented form, and searches over a cluster in memory."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.large.cluster import Cluster
from tests.retrieval.loading import cases, tools

from toolcrib import App
from toolcrib.errors import AmbiguousName, MissingExtra, SettingsError, StateUnavailable, ToolNotFound
from toolcrib.gateway.disk_catalog import DiskTools
from toolcrib.large.opensearch import (
    OpenSearchIndex,
    bulk_lines,
    candidate_searches,
    count_body,
    document_id,
    index_body,
    read_candidates,
    refused_items,
)
from toolcrib.search.candidates import CandidateQuery
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.options import SearchOptions
from toolcrib.search.vectors import QueryVectors
from toolcrib.types import Filters, SearchReply, SearchRequest, Tool, Visibility

ANSWERS: dict[str, Any] = json.loads((Path(__file__).parent / "opensearch_answers.json").read_text())

MAIL = Tool(name="send_message", namespace="mail", description="Sends an e-mail.", tags=("communication",))
READ = Tool(name="read_file", namespace="files", description="Reads a file.", annotations={"readOnlyHint": True})
DELETE = Tool(name="deleteFile", namespace="files", description="Deletes a file.")
SECRET = Tool(name="wipe", namespace="files", description="Wipes a file.", visibility=Visibility.HIDDEN)
SMALL = [MAIL, READ, DELETE, SECRET]


def ids(reply: SearchReply) -> list[str]:
    return [hit.tool.id for hit in reply.hits]


def asked(text: str, **more: Any) -> SearchRequest:
    return SearchRequest(queries=(text,), **more)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def index(cluster: Cluster) -> OpenSearchIndex:
    made = OpenSearchIndex(cluster.client(), "tools")
    made.update(SMALL)
    return made


# -- requests ------------------------------------------------------------------------------------------------------


def test_the_index_scores_stems_by_their_weights_and_compares_vectors_of_bytes() -> None:
    body = index_body(256, SearchOptions())
    fields = body["mappings"]["properties"]
    assert body["settings"]["index"]["similarity"]["saturated"] == {
        "type": "scripted",
        "script": {"source": "return query.boost * doc.freq / (doc.freq + 120);"},
    }
    assert fields["stems"] == {
        "type": "text",
        "analyzer": "weighted",
        "index_options": "freqs",
        "norms": False,
        "similarity": "saturated",
    }
    assert fields["meaning"] == {
        "type": "knn_vector",
        "dimension": 256,
        "data_type": "byte",
        "method": {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"},
    }
    assert body["mappings"]["dynamic"] == "strict"


def test_candidates_are_searched_by_weighted_words_and_by_the_meaning_of_each_clause_under_the_same_filters() -> None:
    query = CandidateQuery(
        words={"invoic": 3.5, "bill": 1.2},
        names={"=getinvoice": 6.0},
        stems=frozenset({"invoic", "bill", "=getinvoice"}),
        vectors=QueryVectors(np.array([[254, -127, 0], [0, 0, 0]], np.float32), np.array([1.0, 1.0])),
        filters=Filters(
            namespaces=frozenset({"shop"}),
            tags=frozenset({"money"}),
            read_only=True,
            visibility=frozenset({Visibility.NATIVE}),
        ),
        compared=20,
        wanted=10,
    )
    passing = [
        {"term": {"findable": True}},
        {"terms": {"namespace": ["shop"]}},
        {"term": {"tags": "money"}},
        {"term": {"read_only": True}},
        {"terms": {"visibility": ["native"]}},
    ]
    shown = {"size": 20, "track_total_hits": False, "_source": ["definition", "meaning", "meaning_scale"]}
    by_words = {
        "should": [
            {"term": {"stems": {"value": "invoic", "boost": 3.5}}},
            {"term": {"stems": {"value": "bill", "boost": 1.2}}},
            {"constant_score": {"filter": {"term": {"whole": "=getinvoice"}}, "boost": 6.0}},
        ],
        "minimum_should_match": 1,
        "filter": passing,
    }
    near = {"vector": [127, -64, 0], "k": 20, "filter": {"bool": {"filter": passing}}}
    assert candidate_searches(query) == [
        {**shown, "query": {"bool": by_words}},
        {**shown, "query": {"knn": {"meaning": near}}},
    ]


def test_documents_are_indexed_and_deleted_in_one_request() -> None:
    assert bulk_lines([{"id": "shop:pay"}], ["shop:bill"]) == [
        {"delete": {"_id": document_id("shop:bill")}},
        {"index": {"_id": document_id("shop:pay")}},
        {"id": "shop:pay"},
    ]


def test_the_next_page_of_words_begins_after_the_last_one() -> None:
    body = count_body("words", ANSWERS["words, first page"]["aggregations"]["values"]["after_key"])
    assert body == {
        "size": 0,
        "query": {"term": {"findable": True}},
        "aggs": {
            "values": {
                "composite": {
                    "size": 10_000,
                    "sources": [{"value": {"terms": {"field": "words"}}}],
                    "after": {"value": "invoices invoic"},
                }
            }
        },
    }


# -- answers -------------------------------------------------------------------------------------------------------


def test_tools_found_by_words_and_by_meaning_are_read_once_each() -> None:
    found = read_candidates(ANSWERS["candidates"], 4, by_words=True)
    assert [tool.id for tool in found.tools] == ["shop:get_invoice", "x", "shop:bill"]
    assert found.tools[0].tags == ("money",)
    assert found.lexical.tolist() == [4.5, 1.25, 0.0]
    assert found.meaning.values.tolist() == [[127, -3, 0, 64], [0, 0, 0, 0], [90, 0, 12, 127]]
    assert found.meaning.scales.tolist() == [0.0078125, 1.0, 0.015625]


def test_scores_by_meaning_are_not_taken_for_scores_by_words() -> None:
    found = read_candidates(ANSWERS["candidates"][1:], 4, by_words=False)
    assert found.lexical.tolist() == [0.0, 0.0]


def test_a_document_that_the_cluster_refuses_is_an_error_and_one_that_is_gone_already_is_not() -> None:
    assert refused_items(ANSWERS["bulk, one refused"]) == ["mapper_parsing_exception: failed to parse field [meaning]"]


def test_words_are_read_page_by_page(cluster: Cluster, index: OpenSearchIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids(index.search("delete a file"))
    monkeypatch.setattr("toolcrib.large.opensearch._PAGE", 2)
    cluster.requests.clear()
    index.refresh()
    pages = [body for _, path, body in cluster.requests if path == "/tools/_search"]
    assert len(pages) > 10
    assert ids(index.search("delete a file")) == expected


@pytest.mark.parametrize(
    ("path", "status", "answer", "problem"),
    [
        ("/tools/_msearch", 200, "one search of several failed", "search_phase_execution_exception"),
        ("/tools/_msearch", 404, "no such index", "index_not_found_exception"),
    ],
)
def test_a_search_that_the_cluster_cannot_answer_fails_with_its_reason(
    cluster: Cluster, index: OpenSearchIndex, path: str, status: int, answer: str, problem: str
) -> None:
    cluster.prepared[path] = status, ANSWERS[answer]
    with pytest.raises(StateUnavailable, match=f"index tools in OpenSearch cannot be used: {problem}"):
        index.search("delete a file")


def test_an_update_that_the_cluster_refuses_says_why(cluster: Cluster, index: OpenSearchIndex) -> None:
    cluster.prepared["/tools/_bulk"] = 200, ANSWERS["bulk, one refused"]
    with pytest.raises(StateUnavailable, match="it refused 1 tools, the first one with mapper_parsing_exception"):
        index.update([MAIL])


# -- the catalog ---------------------------------------------------------------------------------------------------


def scores(reply: SearchReply) -> list[tuple[str, float]]:
    return [(hit.tool.id, round(hit.score, 6)) for hit in reply.hits]


@pytest.fixture(scope="module")
def real() -> OpenSearchIndex:
    """The tools of real servers."""
    made = OpenSearchIndex(Cluster().client(), "real")
    made.update(tools())
    return made


@pytest.fixture(scope="module")
def memory() -> Index:
    return Index.build(tools())


def test_searches_of_real_tools_agree_with_the_index_in_memory(real: OpenSearchIndex, memory: Index) -> None:
    requests = [asked(case.query) for case in cases()[::4]]
    pairs = [(search(memory, request), real.search(request)) for request in requests]
    assert sum(scores(one) == scores(other) for one, other in pairs) >= 0.8 * len(pairs)
    assert sum(ids(one)[:1] == ids(other)[:1] for one, other in pairs) >= 0.95 * len(pairs)


@pytest.mark.parametrize("text", ["craete a pull reqest", "erase a row", "Datei löschen", "k8s pods", "zzyzx"])
def test_misspelt_words_synonyms_and_foreign_words_are_found_as_in_memory(
    real: OpenSearchIndex, memory: Index, text: str
) -> None:
    expected, found = search(memory, asked(text)), real.search(asked(text))
    assert (ids(found)[:3], found.unmatched) == (ids(expected)[:3], expected.unmatched)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(namespaces=frozenset({"mail"})), ["mail:send_message"]),
        (Filters(tags=frozenset({"communication"})), ["mail:send_message"]),
        (Filters(read_only=True), ["files:read_file"]),
        (Filters(visibility=frozenset({Visibility.NATIVE})), []),
    ],
)
def test_filters_hold_for_words_meaning_and_lists(
    index: OpenSearchIndex, filters: Filters, expected: Sequence[str]
) -> None:
    assert ids(index.search(asked("read a file or send a message", filters=filters))) == expected
    listed = index.search(asked("", filters=filters))
    assert (ids(listed), listed.total) == (expected, len(expected))


def test_hidden_tools_are_not_found_but_resolved(index: OpenSearchIndex) -> None:
    assert "files:wipe" not in ids(index.search("wipe a file"))
    assert index.resolve("files:wipe") == SECRET
    assert len(index) == 4


def test_names_resolve_in_any_spelling(index: OpenSearchIndex) -> None:
    index.update([Tool(name="send_message", namespace="chat")])
    assert index.resolve("files__delete_file") == DELETE
    assert index.resolve("readFile") == READ
    with pytest.raises(AmbiguousName, match="chat:send_message, mail:send_message"):
        index.resolve("SendMessage")
    with pytest.raises(ToolNotFound, match="No tool is called unknown"):
        index.resolve("unknown")


def test_changed_and_removed_tools_are_found_as_they_are_now(cluster: Cluster, index: OpenSearchIndex) -> None:
    other = OpenSearchIndex(cluster.client(), "tools")
    changed = Tool(name="read_file", namespace="files", description="Frobnicates quuxes.")
    assert index.update([changed], remove=["mail:send_message", "no:such"]) == 3
    assert ids(index.search("frobnicate a quux")) == ["files:read_file"]
    assert index.get("mail:send_message") is None
    other.refresh()
    assert ids(other.search("frobnicate a quux")) == ["files:read_file"]


def test_an_index_of_other_options_is_refused(cluster: Cluster, index: OpenSearchIndex) -> None:
    with pytest.raises(SettingsError, match="was not made by this version with these options"):
        OpenSearchIndex(cluster.client(), "tools", options=SearchOptions(k1=1.7))
    with pytest.raises(SettingsError, match="has the ranking hybrid, not bm25"):
        OpenSearchIndex(cluster.client(), "tools", options=SearchOptions(scorer="bm25"))


async def test_a_gateway_finds_and_calls_tools_of_a_cluster(index: OpenSearchIndex) -> None:
    async def call(ctx: Any, tool: Tool, arguments: Any) -> str:
        return f"{tool.id} of {arguments['path']}"

    app = App()
    app.add_provider(DiskTools(index, call, name="cluster"))
    async with app:
        reply = await app.search("delete a file")
        assert reply.hits[0].tool.id == "files:deleteFile"
        assert (await app.call("files:deleteFile", {"path": "a.txt"})).text == "files:deleteFile of a.txt"


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    client = cluster.client()
    monkeypatch.setitem(sys.modules, "opensearchpy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolcrib\[opensearch\]'"):
        OpenSearchIndex(client, "tools")
