"""Features of each tool for the second stage: as defined, and independent of other tools."""

from typing import Any

import numpy as np
import pytest

from toolcrib.search.features import query_simhash, simhash, stem_key
from toolcrib.search.index import Index
from toolcrib.search.literals import literal_names
from toolcrib.search.segment import Segment
from toolcrib.search.text import split_words, stem
from toolcrib.search.vectors import default_table, quantize, quantize_query
from toolcrib.types import Tool

TABLE = default_table()


def tool(name: str, description: str = "", **more: Any) -> Tool:
    return Tool(name=name, description=description, **more)


def segment(*tools: Tool) -> Segment:
    return Index.build(tools).segments[0]


def unit(found: Any) -> Any:
    return found / (np.linalg.norm(found) or 1.0)


def summed(texts: list[str]) -> Any:
    return unit(TABLE.word_vectors(texts).astype(float).sum(axis=0))


FULL = tool(
    "create_pull_request",
    "Opens a pull request of a branch. The other sentence says more about reviews.",
    namespace="github",
    title="New pull request",
    keywords=("merge",),
    tags=("code",),
    input_schema={"type": "object", "properties": {"branch_name": {"type": "string"}, "url": {"format": "uri"}}},
)
BODY = split_words(
    "create_pull_request github New pull request merge code Opens a pull request of a branch. The other sentence says"
    " more about reviews. branch_name url"
)


def test_the_meaning_vector_points_in_the_direction_of_all_words() -> None:
    row = segment(FULL).features.meaning.dequantize(np.array([0]))[0]
    assert float(row @ summed(BODY)) > 0.999


def test_the_topic_vector_counts_the_name_once_more() -> None:
    row = segment(FULL).features.topic.dequantize(np.array([0]))[0]
    wanted = unit(summed(BODY) + 0.7 * summed(["create", "pull", "request"]))
    assert float(row @ wanted) > 0.999


def test_slots_hold_the_words_of_the_name_and_the_first_sentence() -> None:
    found = segment(FULL)
    vocabulary = [*found.vocabulary.words, ""]
    listed = [vocabulary[number] for number in found.features.slots[0].tolist()]
    assert listed[:10] == ["create", "pull", "request", *[""] * 7]
    assert listed[10:] == ["opens", "pull", "request", "branch", *[""] * 10]


def test_long_names_and_sentences_are_cut() -> None:
    found = segment(
        tool(
            "_".join(f"a{chr(97 + number)}b" for number in range(26)),
            "Twice twice, " + " ".join(f"w{chr(97 + number)}ord" for number in range(26)),
        )
    ).features.slots[0]
    assert (found >= 0).all()
    assert len(set(found[10:].tolist())) == 14


def test_the_shares_of_a_name_and_of_a_sentence_add_up_to_one() -> None:
    shares = segment(FULL, tool("x")).features.shares.astype(float)
    assert shares[0, :10].sum() == pytest.approx(1, abs=1e-3)
    assert shares[0, 10:].sum() == pytest.approx(1, abs=1e-3)
    assert shares[1, 10:].sum() == 0


def test_literals_come_from_names_formats_and_types() -> None:
    kinds = {"when": {"format": "date"}, "size": {"type": "integer"}, "recipient": {}, "text": {"type": "string"}}
    found = segment(tool("act", input_schema={"properties": kinds}), FULL, tool("rest"))
    assert [literal_names(int(bits)) for bits in found.features.literals] == [("email", "date", "number"), ("url",), ()]


def test_the_verb_of_a_name_is_among_its_first_words() -> None:
    names = ("create_issue", "issue_create", "a_b_c_create", "getIssue", "issue")
    verbs = segment(*map(tool, names)).features.verbs.tolist()
    assert verbs[0] == verbs[1] > 0
    assert verbs[2] == verbs[4] == 0
    assert verbs[3] not in (0, verbs[0])


def test_neighbouring_stems_lead_to_the_tools_that_have_them() -> None:
    found = segment(FULL, tool("other", "To request pulls."), tool("pull_requests")).features
    key = np.uint64(stem_key(stem("pull")) << 32 | stem_key(stem("requests")))
    assert found.pair_positions[found.pair_keys == key].tolist() == [0, 2]
    assert (np.diff(found.pair_keys.astype(object)) >= 0).all()


def rows_of(found: Segment, position: int) -> list[Any]:
    features = found.features
    vocabulary = [*found.vocabulary.words, ""]
    return [
        features.meaning.dequantize(np.array([position])).tolist(),
        features.topic.dequantize(np.array([position])).tolist(),
        features.sketch[:, position].tolist(),
        [vocabulary[number] for number in features.slots[position].tolist()],
        features.shares[position].tolist(),
        features.literals[position].tolist(),
        features.verbs[position].tolist(),
        features.pair_keys[features.pair_positions == position].tolist(),
    ]


def test_a_row_depends_on_its_own_tool_alone() -> None:
    rng = np.random.default_rng(5)
    known = split_words("create issue file read pull request weather movie delete send 銀河 xyzzy the of")
    some = [tool("_".join(rng.choice(known, 3)), " ".join(rng.choice(known, number))) for number in range(40)]
    together = segment(*some)
    for position in range(40):
        assert rows_of(together, position) == rows_of(segment(some[position]), 0)


def test_a_tool_without_known_words_has_a_zero_vector() -> None:
    features = segment(tool("銀河", "惑星"), tool("")).features
    assert not features.meaning.values.any()
    assert not features.topic.values.any()


def test_similar_vectors_have_similar_sketches() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(200, 256)).astype(np.float32)
    near = vectors + rng.normal(scale=0.5, size=vectors.shape).astype(np.float32)
    left, right = simhash(quantize(vectors)), query_simhash(quantize_query(near))
    differ = np.bitwise_count(left ^ right).sum(axis=0)
    angles = [float(unit(one) @ unit(other)) for one, other in zip(vectors, near, strict=True)]
    assert np.abs(np.cos(np.pi * differ / 128) - angles).mean() < 0.1
    others = np.bitwise_count(left ^ np.roll(right, 1, axis=1)).sum(axis=0)
    assert differ.max() < others.min()
