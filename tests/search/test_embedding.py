"""An embedder in the search: one signal beside the others and more candidates, on one scale for every model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.search.embedding import ComputedVectors, CosineScale, tool_text, unknown_rows
from toolcrib.search.engine import request_texts, search
from toolcrib.search.features import SemanticModel
from toolcrib.search.index import Index
from toolcrib.search.options import SearchOptions
from toolcrib.search.vectors import Floats, QuantizedRows, default_table
from toolcrib.types import Filters, SearchReply, SearchRequest, Tool, Visibility

SHOW_ALL = SearchOptions(nothing_below=0.0, short_below=0.0)


class Shifted:
    """The static table as an embedder, with cosines `high + (1 - high) * cosine`, and words of its own."""

    def __init__(self, high: float = 0.0, secret: Mapping[str, str] | None = None) -> None:
        self.name = f"shifted {high}"
        self.dim = 257
        self.asked: list[str] = []
        self._high = high
        self._secret = secret or {}

    def embed(self, texts: Sequence[str]) -> Floats:
        self.asked += texts
        plain = default_table().embed([self._secret.get(text, text) for text in texts])
        known = plain.any(axis=1, keepdims=True)
        shift = np.full((len(texts), 1), self._high**0.5)
        return np.where(known, np.hstack([shift, (1 - self._high) ** 0.5 * plain]), 0).astype(np.float32)


def tool(full: str, description: str = "", **more: Any) -> Tool:
    namespace, _, name = full.rpartition(":")
    return Tool(name=name, namespace=namespace, description=description, **more)


TOOLS = [
    tool("mail:send", "Sends an email to somebody."),
    tool("files:read", "Reads a file from the disk."),
    tool("weather:forecast", "Tells the weather of a city."),
    tool("calendar:add", "Adds a meeting to the calendar."),
]
SECRET = {"zorblax": "weather forecast of a city"}


def model(embedder: Any, tools: Any = None) -> SemanticModel:
    return SemanticModel(default_table(), embedder, tools)


def ask(index: Index, query: str, **more: Any) -> SearchReply:
    return search(index, SearchRequest(queries=(query,), explain=True), options=SHOW_ALL, **more)


def ids(reply: SearchReply) -> list[str]:
    return [hit.tool.id for hit in reply.hits]


def raws(reply: SearchReply) -> dict[str, float]:
    return {hit.tool.id: hit.raw for hit in reply.hits}


def test_a_tool_that_only_the_embedder_finds_is_a_candidate_and_comes_first() -> None:
    assert "weather:forecast" not in ids(ask(Index.build(TOOLS), "zorblax"))
    assert ids(ask(Index.build(TOOLS, model=model(Shifted(secret=SECRET))), "zorblax"))[0] == "weather:forecast"


def test_the_cosine_is_a_part_of_the_score_and_the_reasons_add_up() -> None:
    [hit, *_] = ask(Index.build(TOOLS, model=model(Shifted())), "weather of a city").hits
    parts = {part.name: part.value * part.weight for part in hit.parts}
    assert parts["embedding"] > 1
    assert sum(parts.values()) == pytest.approx(hit.raw)
    assert sum(reason.gain for reason in hit.reasons) == pytest.approx(hit.raw)


def test_without_an_embedder_it_is_no_part_of_the_score() -> None:
    [hit, *_] = ask(Index.build(TOOLS), "weather of a city").hits
    assert "embedding" not in {part.name for part in hit.parts}


@pytest.mark.parametrize("high", [0.5, 0.7])
def test_a_model_whose_cosines_are_all_high_ranks_as_one_whose_cosines_are_low(high: float) -> None:
    low_index, high_index = (Index.build(TOOLS, model=model(Shifted(value))) for value in (0.0, high))
    for query in ("weather of a city", "email somebody", "add an appointment"):
        assert raws(ask(high_index, query)) == pytest.approx(raws(ask(low_index, query)), abs=0.1)


def test_the_scale_is_measured_from_examples() -> None:
    plain, high = CosineScale.of(Shifted()), CosineScale.of(Shifted(0.5))
    assert high.unrelated == pytest.approx(0.5 + 0.5 * plain.unrelated, abs=0.01)
    assert high.factor == pytest.approx(2 * plain.factor, rel=0.02)


class Known:
    """The vectors of some tools only."""

    def __init__(self, embedder: Shifted, words: Sequence[str]) -> None:
        self.words = words
        self.version = 0
        self.dim = embedder.dim
        self._all = ComputedVectors(embedder)
        self.scale = self._all.scale

    def rows(self, texts: Sequence[str]) -> QuantizedRows:
        rows, none = self._all.rows(texts), unknown_rows(1, self.dim)
        for place, text in enumerate(texts):
            if not any(word in text for word in self.words):
                rows.put(np.array([place]), none)
        return rows


def test_a_tool_without_a_vector_has_neither_an_advantage_nor_a_disadvantage() -> None:
    embedder = Shifted()
    twins = [tool("a:weather", "Tells the weather of a city."), tool("b:weather", "Tells the weather of a city.")]
    whole = raws(ask(Index.build(twins, model=model(embedder)), "weather of a city"))
    some = raws(ask(Index.build(twins, model=model(embedder, Known(embedder, ["(a)"]))), "weather of a city"))
    assert some["a:weather"] == whole["a:weather"]
    assert some["b:weather"] == pytest.approx(whole["b:weather"], abs=3)
    assert list(some) == ["a:weather", "b:weather"] or some["b:weather"] > some["a:weather"]


def test_vectors_that_come_later_are_added_to_the_index() -> None:
    embedder = Shifted(secret=SECRET)
    known = Known(embedder, ["mail"])
    index = Index.build(TOOLS, model=model(embedder, known))
    assert index.view().lacks_vectors()
    assert index.with_vectors() is index
    known.words = ["mail", "weather"]
    better = index.with_vectors()
    assert ids(ask(better, "zorblax"))[0] == "weather:forecast"
    known.words = [""]
    assert not better.with_vectors().view().lacks_vectors()


def test_an_index_gets_another_embedder_without_being_built_again() -> None:
    index = Index.build(TOOLS)
    better = index.with_vectors(model(Shifted(secret=SECRET)))
    assert ids(ask(better, "zorblax"))[0] == "weather:forecast"
    assert [a.vocabulary is b.vocabulary for a, b in zip(index.segments, better.segments, strict=True)] == [True]
    assert ids(ask(better.with_vectors(SemanticModel(default_table())), "zorblax")) == []


def test_tools_that_are_added_get_vectors_and_the_others_keep_theirs() -> None:
    embedder = Shifted(secret=SECRET)
    index = Index.build(TOOLS[:2], model=model(embedder))
    asked = len(embedder.asked)
    index = Index.build([*index.tools, *TOOLS[2:]], previous=index)
    assert embedder.asked[asked:] == [tool_text(each) for each in TOOLS[2:]]
    assert ids(ask(index, "zorblax"))[0] == "weather:forecast"


def test_an_index_that_begins_empty_keeps_its_embedder() -> None:
    empty = Index.build([], model=model(Shifted(secret=SECRET)))
    assert ids(ask(Index.build(TOOLS, previous=empty), "zorblax"))[0] == "weather:forecast"


def test_vectors_can_be_given_for_the_texts_of_a_request() -> None:
    embedder = Shifted()
    index = Index.build(TOOLS, model=model(embedder))
    request = SearchRequest(queries=("wether of a city", "send an email", ""))
    texts = request_texts(index, request)
    assert texts == ("weather of a city", "send an email")
    wanted = search(index, request, options=SHOW_ALL)
    before = len(embedder.asked)
    given = dict(zip(texts, Shifted().embed(texts), strict=True))
    by_hand = search(index, request, options=SHOW_ALL, embedded=given)
    assert len(embedder.asked) == before
    assert by_hand == wanted


STORY = (
    "We moved to Oslo in spring, and the dog did not like the boat at all. My sister, who runs a bakery, sends her "
    "love and a cake. The summer was fine, by the way, and everybody slept in the garden, as usual. "
)


def test_the_part_of_a_long_request_that_asks_for_something_is_embedded_too() -> None:
    ask_for = "Please add a meeting to the calendar."
    index = Index.build(TOOLS, model=model(Shifted()))
    request = SearchRequest(queries=(STORY + ask_for,), explain=True)
    texts = request_texts(index, request)
    assert texts == (STORY + ask_for, ask_for)
    given = dict(zip(texts, Shifted().embed(texts), strict=True))
    long = search(index, request, options=SHOW_ALL, embedded=given)
    assert long.hits[0].tool.id == "calendar:add"
    assert long.hits[0].raw == ask(index, ask_for).hits[0].raw
    del given[ask_for]
    assert search(index, request, options=SHOW_ALL, embedded=given).hits[0].raw < long.hits[0].raw


def weight_of_embedding(query: str) -> float:
    index = Index.build(TOOLS, model=model(Shifted(secret=SECRET)))
    [hit, *_] = ask(index, query).hits
    return next(part.weight for part in hit.parts if part.name == "embedding")


def test_the_embedder_counts_more_the_less_of_a_request_the_tools_cover() -> None:
    options = SearchOptions()
    least, most = options.embedding_weights.embedding, options.embedding_weights.embedding + options.uncovered_embedding
    assert weight_of_embedding("forecast the weather of a city") == least
    assert weight_of_embedding("zorblax") == most
    assert least < weight_of_embedding("forecast xylophones, bassoons and oboes") < most


def test_a_filter_changes_no_weight() -> None:
    index = Index.build(TOOLS, model=model(Shifted()))
    request = SearchRequest(queries=("forecast xylophones, bassoons",), explain=True)
    every = search(index, request, options=SHOW_ALL).hits
    mail = search(index, replace(request, filters=Filters(namespaces=frozenset({"mail"}))), options=SHOW_ALL).hits
    raw = {hit.tool.id: hit.raw for hit in every}
    assert [hit.raw for hit in mail] == [raw[hit.tool.id] for hit in mail if hit.tool.id in raw]


def test_a_request_without_a_vector_is_answered_as_without_an_embedder() -> None:
    index = Index.build(TOOLS, model=model(Shifted()))
    assert ask(index, "weather of a city", embedded={}) == ask(Index.build(TOOLS), "weather of a city")
    assert request_texts(Index.build(TOOLS), SearchRequest(queries=("weather",))) == ()


WORDS = st.sampled_from(
    ["send", "email", "read", "file", "weather", "city", "calendar", "meeting", "zorblax", "disk", "invoice"]
)
PHRASES = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)


@given(shown=st.lists(PHRASES, min_size=1, max_size=6), hidden=st.lists(PHRASES, max_size=6), query=PHRASES)
def test_a_hidden_tool_changes_nothing(shown: list[str], hidden: list[str], query: str) -> None:
    seen = [tool(f"s:tool_{number}", text) for number, text in enumerate(shown)]
    unseen = [tool(f"h:tool_{number}", text) for number, text in enumerate(hidden)]
    secret = [replace(each, visibility=Visibility.HIDDEN) for each in unseen]
    with_embedder = model(Shifted(secret=SECRET))
    wanted = ask(Index.build(seen, model=with_embedder), query)
    assert ask(Index.build([*secret, *seen], model=with_embedder), query) == wanted
    masked = Index.build([*unseen, *seen], model=with_embedder)
    assert ask(masked, query, mask=bytes(len(unseen)) + b"\x01" * len(seen)) == wanted


@pytest.mark.parametrize("count", [100, 6_000])
def test_the_nearest_of_many_tools_are_found(count: int) -> None:
    many = [tool(f"s{number}:thing_{number}", f"Widget number {number}.") for number in range(count)]
    index = Index.build([*many, *TOOLS], model=model(Shifted(secret=SECRET)))
    assert ids(ask(index, "zorblax"))[0] == "weather:forecast"


def test_the_text_of_a_tool_has_its_words_and_is_bounded() -> None:
    properties: dict[str, Any] = {f"userName{number}": {} for number in range(20)}
    long = tool("myServer:createIssue", "x" * 2_000, input_schema={"type": "object", "properties": properties})
    text = tool_text(long)
    assert text.startswith("create issue (my server): xxx")
    assert text.count("x") == 600
    assert text.endswith("user name 10, user name 11)")
    assert tool_text(tool("plain")) == "plain: "
