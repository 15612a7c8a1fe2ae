"""Changes of the index: what is kept, what is rebuilt, and the positions of tools."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from toolcrib.search.engine import search
from toolcrib.search.features import SemanticModel, default_semantic_model
from toolcrib.search.index import Index
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.search.vectors import WordPieceTable
from toolcrib.types import SearchRequest, Tool


def tool(number: int, **more: Any) -> Tool:
    return Tool(
        namespace="s", name=f"do_t{number}", description=f"Does the thing called w{chr(97 + number % 26)}.", **more
    )


TOOLS = [tool(number) for number in range(100)]
INDEX = Index.build(TOOLS)


def ids(index: Index) -> list[str]:
    return [one.id for one in index.tools]


def found(index: Index, text: str) -> list[str]:
    return [hit.tool.id for hit in search(index, SearchRequest(queries=(text,))).hits]


def test_a_small_change_keeps_the_base_and_adds_a_small_segment() -> None:
    grown = INDEX.updated(add=[tool(200)], remove=["s:do_t3"])
    assert grown.segments[0] is INDEX.segments[0]
    assert [len(segment) for segment in grown.segments] == [100, 1]
    assert ids(grown) == [one.id for one in TOOLS if one.name != "do_t3"] + ["s:do_t200"]
    assert found(grown, "do_t200")[0] == "s:do_t200"
    assert "s:do_t3" not in found(grown, "do_t3")
    assert ids(INDEX) == [one.id for one in TOOLS]


def test_a_tool_can_be_replaced_by_one_with_the_same_id() -> None:
    new = replace(TOOLS[5], description="Rings a bell.")
    grown = INDEX.updated(add=[new], remove=[new.id])
    assert len(grown) == 100
    assert search(grown, SearchRequest(queries=("ring the bell",))).hits[0].tool is new


def test_removing_an_unknown_id_does_nothing() -> None:
    assert ids(INDEX.updated(remove=["no:such"])) == ids(INDEX)


def test_undoing_a_change_removes_the_small_segment() -> None:
    assert len(INDEX.updated(add=[tool(300)]).updated(remove=["s:do_t300"]).segments) == 1


def test_large_changes_merge_all_segments() -> None:
    assert len(INDEX.updated(remove=ids(INDEX)[:19]).segments[0]) == 100
    assert len(INDEX.updated(remove=ids(INDEX)[:21]).segments[0]) == 79
    assert len(INDEX.updated(add=[tool(number) for number in range(200, 264)]).segments) == 2
    assert len(INDEX.updated(add=[tool(number) for number in range(200, 265)]).segments) == 1


def test_merging_keeps_the_positions_of_tools() -> None:
    grown = INDEX.updated(add=[tool(200)], remove=["s:do_t3"])
    merged = grown.merged()
    assert [len(segment) for segment in merged.segments] == [100]
    assert ids(merged) == ids(grown)
    assert merged.merged() is merged
    assert INDEX.merged() is INDEX


def test_masks_follow_the_positions_of_tools_after_any_change() -> None:
    grown = INDEX.updated(remove=["s:do_t0", "s:do_t50"], add=[tool(200), tool(201)])
    for place, one in enumerate(grown.tools):
        mask = bytes(place == at for at in range(len(grown)))
        seen = [part.segment.tools[at] for part in grown.parts(mask) for at in np.flatnonzero(part.visible).tolist()]
        assert seen == [one]


def test_a_mask_of_the_old_length_is_an_error_after_a_change() -> None:
    with pytest.raises(ValueError, match="the mask has 100 bytes for 99 tools"):
        INDEX.updated(remove=["s:do_t0"]).parts(bytes(100))


def test_a_rebuild_keeps_signatures() -> None:
    index = Index.build(TOOLS)
    hit = search(index, SearchRequest(queries=("do_t7",))).hits[0]
    again = search(index.updated(remove=ids(index)[50:]), SearchRequest(queries=("do_t7",))).hits[0]
    assert again.signature is hit.signature


def test_other_options_or_another_model_rebuild_from_scratch() -> None:
    assert Index.build(TOOLS, previous=INDEX, options=SearchOptions(k1=2.0)).segments[0] is not INDEX.segments[0]
    other = SemanticModel(WordPieceTable(["thing"], np.array([[1, 2]], dtype=np.int8), [1.0]))
    small = Index.build(TOOLS, previous=INDEX, model=other)
    assert small.model is other
    assert small.segments[0].features.meaning.values.shape == (100, 2)
    assert Index.build(TOOLS[:50], previous=small).model is other
    assert INDEX.model is default_semantic_model()


def test_the_same_object_can_occur_twice() -> None:
    twice = Index.build([TOOLS[0], TOOLS[0], TOOLS[1]])
    assert len(Index.build([TOOLS[0], TOOLS[1], TOOLS[0]], previous=twice)) == 3
    assert len(Index.build([TOOLS[0]], previous=twice)) == 1


def test_an_empty_index_grows_and_shrinks() -> None:
    index = Index.build([]).updated(add=TOOLS[:2])
    assert ids(index) == ["s:do_t0", "s:do_t1"]
    assert found(index, "do_t1")[0] == "s:do_t1"
    empty = index.updated(remove=ids(index))
    assert len(empty) == 0
    assert found(empty, "do_t1") == []
    assert found(empty.merged(), "do_t1") == []


def test_the_cache_of_one_view_does_not_affect_another() -> None:
    index = Index.build(TOOLS)
    texts = ("wa thing", "do t3", "thing called wb wz", "thinng caled")
    request = SearchRequest(queries=texts, limit=5)
    masks = [None, *(bytes(number % step == 0 for number in range(100)) for step in range(2, 10))]
    overlays = [None, Index.build([tool(300), tool(301, title="Wa thing")])]
    views = [(mask, overlay) for mask in masks for overlay in overlays]
    fresh = [search(Index.build(TOOLS), request, mask=mask, overlay=overlay) for mask, overlay in views]
    for _ in range(2):
        assert [search(index, request, mask=mask, overlay=overlay) for mask, overlay in views] == fresh


def test_the_cache_of_expansions_depends_on_lexicon_and_options() -> None:
    index = Index.build([Tool(name="grow_thing", description="Grows it."), Tool(name="cut_thing")])
    request = SearchRequest(queries=("enlarge zzz",))
    lexicon = Lexicon.default().with_pairs([("zzz", ["cut"])])
    weak = SearchOptions(synonym_weight=0.1)
    for _ in range(2):
        assert "zzz" in search(index, request).unmatched
        assert "zzz" not in search(index, request, lexicon=lexicon).unmatched
        assert search(index, request, lexicon=lexicon, options=weak) == search(
            Index.build(index.tools), request, lexicon=lexicon, options=weak
        )
