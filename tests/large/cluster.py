"""A cluster in memory that answers what `OpenSearchIndex` asks, in the form that the documentation of OpenSearch shows.

It checks that fields, analyzers and similarities are those of the index that was created. It knows no other queries.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np
from opensearchpy import Connection, OpenSearch

Json = dict[str, Any]


class Cluster:
    """Indices by name, and the requests that came."""

    def __init__(self) -> None:
        self.indices: dict[str, Json] = {}
        self.documents: dict[str, dict[str, Json]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        """Method, path and body."""
        self.prepared: dict[str, tuple[int, Json]] = {}
        """Answers to give instead, by path."""

    def client(self) -> OpenSearch:
        """A client of opensearch-py that reaches this cluster without a network."""
        return OpenSearch([{"host": "cluster"}], connection_class=_Direct, cluster=self, max_retries=0)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Json]:
        """Answer a request with a status and JSON."""
        self.requests.append((method, path, body))
        if path in self.prepared:
            return self.prepared[path]
        name, _, action = path.strip("/").partition("/")
        if not action:
            return self._manage(method, name, body)
        if name not in self.documents:
            return 404, error("index_not_found_exception", f"no such index [{name}]")
        return 200, getattr(self, action)(name, body)

    def _manage(self, method: str, name: str, body: Any) -> tuple[int, Json]:
        if method == "HEAD":
            return (200 if name in self.indices else 404), {}
        if name in self.indices:
            return 400, error("resource_already_exists_exception", f"index [{name}] already exists")
        self.indices[name], self.documents[name] = body, {}
        return 200, {"acknowledged": True, "shards_acknowledged": True, "index": name}

    def _mapping(self, name: str, body: Any) -> Json:
        return {name: {"mappings": self.indices[name]["mappings"]}}

    def _refresh(self, name: str, body: Any) -> Json:
        return {"_shards": SHARDS}

    def _bulk(self, name: str, body: list[Json]) -> Json:
        items, lines = [], iter(body)
        known = self.indices[name]["mappings"]["properties"].keys()
        for line in lines:
            ((verb, about),) = line.items()
            result = {"_index": name, "_id": about["_id"], "status": 200}
            if verb == "index":
                document = next(lines)
                assert document.keys() <= known, "the mapping is strict"
                created = about["_id"] not in self.documents[name]
                self.documents[name][about["_id"]] = document
                result["result"] = "created" if created else "updated"
            else:
                gone = self.documents[name].pop(about["_id"], None)
                result |= {"result": "deleted"} if gone else {"result": "not_found", "status": 404}
            items.append({verb: result})
        return {"took": 30, "errors": False, "items": items}

    def _count(self, name: str, body: Json) -> Json:
        return {"count": len(self._matching(name, body["query"])), "_shards": SHARDS}

    def _mget(self, name: str, body: Json) -> Json:
        found = [(id_, self.documents[name].get(id_)) for id_ in body["ids"]]
        docs = [{"_index": name, "_id": id_, "found": doc is not None} for id_, doc in found]
        return {"docs": [one | ({"_source": doc} if doc else {}) for one, (_, doc) in zip(docs, found, strict=True)]}

    def _msearch(self, name: str, body: list[Json]) -> Json:
        return {"took": 3, "responses": [{**self._search(name, search), "status": 200} for search in body[1::2]]}

    def _search(self, name: str, body: Json) -> Json:
        if "aggs" in body:
            return {**envelope([], 0), "aggregations": {"values": self._page(name, body)}}
        scores = self._matching(name, body["query"])
        hits = sorted(scores, key=lambda id_: -scores[id_])
        if "sort" in body:
            hits.sort(key=lambda id_: self.documents[name][id_]["id"])
        documents = self.documents[name]
        shown = [
            {
                "_index": name,
                "_id": id_,
                "_score": None if "sort" in body else scores[id_],
                "_source": {field: documents[id_][field] for field in body["_source"] if field in documents[id_]},
            }
            for id_ in hits[: body["size"]]
        ]
        return envelope(shown, len(scores))

    def _page(self, name: str, body: Json) -> Json:
        pages = body["aggs"]["values"]["composite"]
        ((source, terms),) = pages["sources"][0].items()
        documents = [self.documents[name][id_] for id_ in self._matching(name, body["query"])]
        counts = Counter(value for one in documents for value in set(_values(one, terms["terms"]["field"])))
        after = pages.get("after", {}).get(source, "")
        shown = sorted(value for value in counts if value > after)[: pages["size"]]
        buckets = [{"key": {source: value}, "doc_count": counts[value]} for value in shown]
        return {"buckets": buckets} | ({"after_key": buckets[-1]["key"]} if buckets else {})

    def _matching(self, name: str, query: Json) -> dict[str, float]:
        """The documents that match, with their scores."""
        ((kind, about),) = query.items()
        compound = getattr(self, f"_{kind}", None)
        if compound is not None:
            found: dict[str, float] = compound(name, about)
            return found
        documents = self.documents[name]
        ((field, wanted),) = about.items()
        if kind == "terms":
            return {id_: 1.0 for id_, one in documents.items() if set(_values(one, field)) & set(wanted)}
        if field == "stems":
            return self._scored(name, wanted["value"], wanted["boost"])
        return {id_: 1.0 for id_, one in documents.items() if wanted in _values(one, field)}

    def _match_all(self, name: str, about: Json) -> dict[str, float]:
        return dict.fromkeys(self.documents[name], 1.0)

    def _constant_score(self, name: str, about: Json) -> dict[str, float]:
        return dict.fromkeys(self._matching(name, about["filter"]), float(about["boost"]))

    def _bool(self, name: str, about: Json) -> dict[str, float]:
        found: dict[str, float] = dict.fromkeys(self.documents[name], 0.0)
        if "should" in about:
            found = {}
            for clause in about["should"]:
                for id_, score in self._matching(name, clause).items():
                    found[id_] = found.get(id_, 0.0) + score
        passing = [self._matching(name, clause).keys() for clause in about.get("filter", ())]
        return {id_: score for id_, score in found.items() if all(id_ in one for one in passing)}

    def _scored(self, name: str, stem: str, boost: float) -> dict[str, float]:
        """What the scripted similarity computes from the term frequencies."""
        source = self.indices[name]["settings"]["index"]["similarity"]["saturated"]["script"]["source"]
        match = re.fullmatch(r"return query\.boost \* doc\.freq / \(doc\.freq \+ ([\d.]+)\);", source)
        assert match is not None
        found = {}
        for id_, one in self.documents[name].items():
            for text, _, frequency in (word.rpartition("|") for word in one["stems"].split()):
                if text == stem:
                    found[id_] = boost * int(frequency) / (int(frequency) + float(match[1]))
        return found

    def _knn(self, name: str, fields: Json) -> dict[str, float]:
        about = fields["meaning"]
        allowed = self._matching(name, about["filter"])
        wanted = np.array(about["vector"], dtype=np.float64)
        assert wanted.any()
        assert np.abs(wanted).max() <= 127
        found = {}
        for id_ in allowed:
            row = np.array(self.documents[name][id_].get("meaning", []), dtype=np.float64)
            if row.size:
                cosine = row @ wanted / np.linalg.norm(row) / np.linalg.norm(wanted)
                found[id_] = float((1 + cosine) / 2)
        return dict(sorted(found.items(), key=lambda item: -item[1])[: about["k"]])


class _Direct(Connection):
    """Hands requests to a cluster instead of sending them."""

    def __init__(self, cluster: Cluster, **more: Any) -> None:
        super().__init__(**more)
        self._cluster = cluster

    def perform_request(  # as the base class has it
        self,
        method: str,
        url: str,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        timeout: float | None = None,
        ignore: Collection[int] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        status, found = self._cluster.answer(method, unquote(url), _decoded(body))
        raw = json.dumps(found)
        if not 200 <= status < 300 and status not in ignore:
            self._raise_error(status, raw, "application/json")
        return status, {"content-type": "application/json"}, raw


def _decoded(body: Any) -> Any:
    """JSON, or the list of JSON lines of a bulk request or several searches."""
    if body is None:
        return None
    text = body.decode() if isinstance(body, bytes) else body
    lines = [json.loads(line) for line in text.splitlines()]
    return lines if text.endswith("\n") else lines[0]


def _values(document: Json, field: str) -> Iterator[Any]:
    found = document.get(field, [])
    yield from found if isinstance(found, list) else [found]


SHARDS = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}


def envelope(hits: list[Json], total: int) -> Json:
    """The answer to a search."""
    best = max((hit["_score"] or 0.0 for hit in hits), default=None)
    found = {"total": {"value": total, "relation": "eq"}, "max_score": best, "hits": hits}
    return {"took": 2, "timed_out": False, "_shards": SHARDS, "hits": found}


def error(kind: str, reason: str) -> Json:
    """The answer to a request that failed."""
    cause = {"type": kind, "reason": reason}
    return {"error": {"root_cause": [cause], **cause}, "status": 400}
