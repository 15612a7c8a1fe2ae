"""Properties for every catalog and query: neither hidden tools nor the way an index grew change anything.

Whole replies are compared with `==`, figures and all: products are exact, so nothing depends on what is scored beside.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deadlines import cpu_deadline

from toolcrib.search.engine import listing, search
from toolcrib.search.index import Index
from toolcrib.search.options import SearchOptions
from toolcrib.state.index_file import load_index, save_index
from toolcrib.types import Filters, Hit, SearchReply, SearchRequest, Tool, Visibility

relaxed = settings(deadline=None, max_examples=40)

_WORDS = """
create issue issues file files read the of pull request weather creating 天気 x movie film delete remove send
email repositry repository number who wether city find url date team message branch invoice convert currency
"""
VOCABULARY = _WORDS.split()
TEXTS = st.lists(st.sampled_from(VOCABULARY), max_size=6)
PROSE = TEXTS.map(" ".join)
IDENTIFIERS = st.builds(
    lambda parts, join: join.join(parts) or "t", TEXTS.map(lambda parts: parts[:3]), st.sampled_from(["_", "-", ""])
)


@st.composite
def tools(draw: st.DrawFn) -> Tool:
    parameters = draw(st.dictionaries(IDENTIFIERS, PROSE, max_size=2))
    types = st.sampled_from(["string", "integer"])
    described = {name: {"type": draw(types), "description": text} for name, text in parameters.items()}
    return Tool(
        namespace=draw(st.sampled_from(["", "github", "file_server", "a"])),
        name=draw(IDENTIFIERS),
        title=draw(st.none() | PROSE),
        description=". ".join(draw(st.lists(PROSE, max_size=2))),
        keywords=tuple(draw(TEXTS)[:2]),
        tags=tuple(draw(TEXTS)[:2]),
        visibility=draw(st.sampled_from([*[Visibility.DISCOVERABLE] * 4, Visibility.NATIVE, Visibility.HIDDEN])),
        input_schema={"type": "object", "properties": described},
    )


def catalogs(size: int = 10) -> st.SearchStrategy[list[Tool]]:
    return st.lists(tools(), max_size=size, unique_by=lambda tool: tool.id)


LONG = st.lists(
    st.sampled_from([*VOCABULARY, "3", "ann@example.org", "create_issue", "readFile", ", and", ";"]), max_size=24
).map(" ".join)
QUERIES = st.one_of(LONG, LONG, PROSE, IDENTIFIERS, st.text(max_size=20))


@dataclass(frozen=True)
class Shown:
    """A tool, and whether the caller sees it."""

    tool: Tool
    seen: bool


SHOWN = st.lists(st.builds(Shown, tools(), st.booleans()), max_size=10, unique_by=lambda shown: shown.tool.id)
SURE = SearchOptions(nothing_below=0.0)


def ask(index: Index, *queries: str, **more: Any) -> SearchReply:
    asked: dict[str, Any] = {"limit": 100, "explain": True}
    asked |= {name: more.pop(name) for name in ("limit", "filters", "group") if name in more}
    given_options = {"options": SURE} | more
    return search(index, SearchRequest(queries=queries, **asked), **given_options)


def mask_of(index: Index, shown: Sequence[Shown]) -> bytes:
    seen = {one.tool.id for one in shown if one.seen}
    return bytes(tool.id in seen for tool in index.tools)


@relaxed
@given(SHOWN, st.lists(QUERIES, min_size=1, max_size=3), st.booleans(), st.sampled_from([SURE, SearchOptions()]))
def test_a_tool_outside_the_mask_changes_nothing_inside_it(
    shown: list[Shown], queries: list[str], group: bool, options: SearchOptions
) -> None:
    whole = Index.build([one.tool for one in shown])
    alone = Index.build([replace(one.tool) for one in shown if one.seen])
    mask = mask_of(whole, shown)
    assert ask(whole, *queries, mask=mask, group=group, options=options) == ask(
        alone, *queries, group=group, options=options
    )
    assert listing(whole, mask=mask) == listing(alone)


@relaxed
@given(SHOWN, catalogs(), QUERIES)
def test_a_hidden_tool_changes_nothing_for_an_overlay_either(shown: list[Shown], extra: list[Tool], text: str) -> None:
    whole = Index.build([one.tool for one in shown])
    alone = Index.build([one.tool for one in shown if one.seen])
    overlay = Index.build([replace(tool, namespace="own") for tool in extra])
    assert ask(whole, text, mask=mask_of(whole, shown), overlay=overlay) == ask(alone, text, overlay=overlay)


@relaxed
@given(SHOWN, QUERIES)
def test_an_overlay_is_scored_as_if_it_were_part_of_the_index(shown: list[Shown], text: str) -> None:
    base = Index.build([one.tool for one in shown if one.seen])
    overlay = Index.build([one.tool for one in shown if not one.seen])
    together = Index.build([one.tool for one in shown])
    assert ask(base, text, overlay=overlay) == ask(together, text)
    assert listing(base, overlay=overlay) == listing(together)


def test_a_tool_scores_alone_as_among_others_however_many_words_are_asked_for() -> None:
    rng = np.random.default_rng(4)
    some = [
        Tool(name=f"t{number}", description=" ".join(VOCABULARY[at] for at in rng.integers(0, len(VOCABULARY), 20)))
        for number in range(40)
    ]
    wanted = ask(Index.build(some), " ".join(VOCABULARY))
    for place, one in enumerate(some):
        rest = Index.build([*some[:place], *some[place + 1 :]])
        assert ask(rest, " ".join(VOCABULARY), overlay=Index.build([one])) == wanted


@relaxed
@given(SHOWN, QUERIES)
def test_a_tool_that_is_marked_hidden_is_as_good_as_gone(shown: list[Shown], text: str) -> None:
    marked = [one.tool if one.seen else replace(one.tool, visibility=Visibility.HIDDEN) for one in shown]
    assert ask(Index.build(marked), text) == ask(Index.build([one.tool for one in shown if one.seen]), text)


@relaxed
@given(catalogs(), QUERIES, st.randoms(use_true_random=False))
def test_the_order_of_the_tools_does_not_show(catalog: list[Tool], text: str, random: Any) -> None:
    mixed = random.sample(catalog, len(catalog))
    assert ask(Index.build(mixed), text, group=True) == ask(Index.build(catalog), text, group=True)


@relaxed
@given(SHOWN, catalogs(), QUERIES)
def test_an_index_made_from_an_earlier_one_is_like_one_made_from_nothing(
    before: list[Shown], added: list[Tool], text: str
) -> None:
    earlier = Index.build([one.tool for one in before])
    kept = [one.tool for one in before if one.seen]
    mixed = kept + [tool for tool in added if tool.id not in {one.id for one in kept}]
    grown = Index.build(mixed[::-1], previous=earlier)
    assert ask(grown, text) == ask(Index.build([replace(tool) for tool in mixed]), text)


@relaxed
@given(SHOWN, catalogs(), QUERIES, st.integers(0, 20))
def test_a_saved_index_is_like_a_built_one_whatever_has_changed_since(
    before: list[Shown], added: list[Tool], text: str, turn: int
) -> None:
    kept = [one.tool for one in before if one.seen]
    mixed = kept[turn:] + kept[:turn] + [tool for tool in added if tool.id not in {one.id for one in kept}]
    with TemporaryDirectory() as folder:
        save_index(Index.build([one.tool for one in before]), f"{folder}/saved")
        loaded = load_index(f"{folder}/saved", mixed)
    built = Index.build([replace(tool) for tool in mixed])
    assert ask(loaded, text, group=True) == ask(built, text, group=True)
    assert ask(loaded.merged(), text) == ask(built, text)
    assert listing(loaded) == listing(built)


Change = Callable[[Index, list[Tool]], tuple[Index, list[Tool]]]
"""An index and what it should hold, both before and after."""


def _adding(more: list[Tool]) -> Change:
    def change(index: Index, held: list[Tool]) -> tuple[Index, list[Tool]]:
        new = [tool for tool in more if tool.id not in {one.id for one in held}]
        return index.updated(add=new), held + new

    return change


def _removing(places: set[int]) -> Change:
    def change(index: Index, held: list[Tool]) -> tuple[Index, list[Tool]]:
        gone = {tool.id for place, tool in enumerate(held) if place in places}
        return index.updated(remove=[*gone, "no:such"]), [tool for tool in held if tool.id not in gone]

    return change


def _replacing(place: int, text: str) -> Change:
    def change(index: Index, held: list[Tool]) -> tuple[Index, list[Tool]]:
        if not held:
            return index, held
        new = replace(held[place % len(held)], description=text)
        return index.updated(add=[new], remove=[new.id]), [one for one in held if one.id != new.id] + [new]

    return change


def _rebuilding(turn: int) -> Change:
    def change(index: Index, held: list[Tool]) -> tuple[Index, list[Tool]]:
        turned = held[turn:] + held[:turn]
        return Index.build(turned, previous=index), turned

    return change


def _merging(index: Index, held: list[Tool]) -> tuple[Index, list[Tool]]:
    return index.merged(), held


CHANGES = st.lists(
    st.one_of(
        st.builds(_adding, catalogs(3)),
        st.builds(_removing, st.sets(st.integers(0, 12), max_size=2)),
        st.builds(_replacing, st.integers(0, 12), PROSE),
        st.builds(_rebuilding, st.integers(0, 5)),
        st.just(_merging),
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=60)
@given(catalogs(14), CHANGES, QUERIES, st.integers(0, 2**20))
def test_whatever_its_history_an_index_is_like_one_made_from_nothing(
    start: list[Tool], changes: list[Change], text: str, bits: int
) -> None:
    index, held = Index.build(start), list(start)
    for change in changes:
        index, held = change(index, held)
        assert [tool.id for tool in index.tools] == [tool.id for tool in held]
        for segment, places in zip(index.segments, index.places, strict=True):
            assert all(index.tools[at] is segment.tools[own] for own, at in enumerate(places.tolist()) if at >= 0)
        assert sorted(np.concatenate([at[at >= 0] for at in index.places]).tolist()) == list(range(len(held)))
    fresh = Index.build([replace(tool) for tool in held])
    mask = bytes(bits >> place & 1 for place in range(len(held)))
    assert ask(index, text) == ask(fresh, text)
    assert ask(index, text, mask=mask) == ask(fresh, text, mask=mask)
    assert ask(index.merged(), text, mask=mask) == ask(fresh, text, mask=mask)
    assert listing(index) == listing(fresh)


def test_a_larger_catalog_is_searched_alike_in_one_segment_in_two_and_behind_a_mask() -> None:
    """Large enough for the sketches and the cut to matter."""
    rng = np.random.default_rng(3)

    def drawn(number: int) -> Tool:
        words = [VOCABULARY[at] for at in rng.integers(0, len(VOCABULARY), 12)]
        return Tool(namespace=f"s{number % 7}", name="_".join(words[:2]) + str(number), description=" ".join(words[2:]))

    held = [drawn(number) for number in range(900)]
    base = Index.build([*held[:850], *(drawn(number) for number in range(1_000, 1_100))])
    grown = base.updated(add=held[850:], remove=[tool.id for tool in base.tools[850:]])
    assert len(grown.segments) == 2
    fresh = Index.build([replace(tool) for tool in held])
    turned = Index.build(held[::-1])
    crowded = Index.build([*(drawn(number) for number in range(2_000, 2_400)), *held])
    mask = bytes(400) + bytes([1]) * 900
    for text in (
        "create an issue",
        "天気",
        "send a message to the team, then convert the currency of an invoice",
        "movie",
    ):
        for limit in (10, 100):
            wanted = ask(fresh, text, limit=limit)
            assert wanted.hits
            assert ask(grown, text, limit=limit) == wanted
            assert ask(crowded, text, limit=limit, mask=mask) == wanted
            assert ask(turned, text, limit=limit) == wanted


@relaxed
@given(catalogs(), QUERIES, st.integers(1, 5))
def test_a_lower_limit_gives_the_beginning_of_a_longer_answer(catalog: list[Tool], text: str, limit: int) -> None:
    index = Index.build(catalog)
    short = ask(index, text, limit=limit)
    assert short.hits == ask(index, text).hits[:limit]
    assert short.total == ask(index, text).total


@relaxed
@given(catalogs(), st.text(st.characters()))
def test_any_query_is_answered_with_scores_between_0_and_1(catalog: list[Tool], text: str) -> None:
    reply = ask(Index.build(catalog), text)
    assert all(0 <= hit.score <= 1 for hit in reply.hits)
    assert [hit.score for hit in reply.hits] == sorted((hit.score for hit in reply.hits), reverse=True)
    assert reply.total >= len(reply.hits)


ANY_TEXT = st.text(st.characters(), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(ANY_TEXT, inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["properties", "items", "type", "format", "description", "enum", "required"]), inner
        )
    ),
    max_leaves=12,
)


@relaxed
@given(
    st.lists(
        st.builds(
            Tool,
            name=ANY_TEXT,
            namespace=ANY_TEXT,
            title=st.none() | ANY_TEXT,
            description=ANY_TEXT,
            keywords=st.lists(ANY_TEXT, max_size=2).map(tuple),
            tags=st.lists(ANY_TEXT, max_size=2).map(tuple),
            input_schema=st.dictionaries(st.just("properties") | ANY_TEXT, JSON, max_size=3),
        ),
        max_size=4,
    ),
    ANY_TEXT,
)
def test_tools_of_any_text_and_schema_are_found_without_a_crash(catalog: list[Tool], text: str) -> None:
    reply = ask(Index.build(catalog), text, "".join(tool.name for tool in catalog), "", group=True)
    assert all(hit.tool in catalog for hit in reply.hits)
    assert all(reason.gain == reason.gain for hit in reply.hits for reason in hit.reasons)


@pytest.fixture(scope="module")
def alike() -> Index:
    return Index.build(
        [Tool(namespace="!" * number, name="list_issues", description="Lists issues.") for number in range(1, 10_001)]
    )


@pytest.mark.parametrize("text", ["list issues", "lits_isues", "issues of a repository", "issu", "天"])
def test_ten_thousand_tools_of_the_same_words_are_searched_in_bounded_time(alike: Index, text: str) -> None:
    with cpu_deadline(5):
        same = ask(alike, text, limit=10)
    assert len(same.hits) in (0, 10)
    assert len({hit.raw for hit in same.hits}) <= 1


def raws(reply: SearchReply) -> dict[str, Hit]:
    return {hit.tool.id: hit for hit in reply.hits}


@relaxed
@given(
    catalogs(),
    PROSE.filter(bool),
    st.dictionaries(st.integers(0, 9), st.sampled_from([0.1, 1.0, 1.5, 20.0, 1e6]), max_size=3),
)
def test_a_boost_raises_its_tool_and_lowers_no_other(catalog: list[Tool], text: str, factors: dict[int, float]) -> None:
    index = Index.build(catalog)
    boosts = {catalog[place].id: factor for place, factor in factors.items() if place < len(catalog)}
    before, after = raws(ask(index, text)), raws(ask(index, text, boosts=boosts | {"no:such": 50.0}))
    assert before.keys() == after.keys()
    for id_, hit in before.items():
        gain = float(np.log(max(boosts.get(id_, 1.0), 1.0)))
        assert after[id_].raw == pytest.approx(hit.raw + gain)
        assert after[id_].score >= hit.score
        assert [(r.word, r.how) for r in after[id_].reasons if r.how == "use"] == ([("", "use")] if gain else [])


@relaxed
@given(SHOWN, QUERIES)
def test_a_boost_of_what_cannot_be_seen_changes_nothing(shown: list[Shown], text: str) -> None:
    index = Index.build([one.tool for one in shown])
    boosts = {one.tool.id: 9.0 for one in shown if not one.seen}
    mask = mask_of(index, shown)
    assert ask(index, text, mask=mask, boosts=boosts) == ask(index, text, mask=mask)


@relaxed
@given(SHOWN, st.sets(st.sampled_from(["github", "a", "nowhere"])), st.sets(st.sampled_from(["issue", "file"])), PROSE)
def test_filters_keep_exactly_the_hits_that_pass_and_their_raw(
    shown: list[Shown], namespaces: set[str], tags: set[str], text: str
) -> None:
    index = Index.build([one.tool for one in shown])
    passing = [
        hit
        for hit in ask(index, text).hits
        if (not namespaces or hit.tool.namespace in namespaces) and tags <= set(hit.tool.tags)
    ]
    narrowed = ask(index, text, filters=Filters(namespaces=frozenset(namespaces), tags=frozenset(tags))).hits
    assert [replace(hit, score=0.0, weak=False) for hit in narrowed] == [
        replace(hit, score=0.0, weak=False) for hit in passing
    ]


@relaxed
@given(catalogs(), st.lists(QUERIES, min_size=1, max_size=4))
def test_several_queries_are_answered_as_each_alone_in_their_places(catalog: list[Tool], queries: list[str]) -> None:
    index = Index.build(catalog)
    together, alone = ask(index, *queries), [ask(index, text) for text in queries]
    expected = [replace(hit, query=place) for place, reply in enumerate(alone) for hit in reply.hits]
    assert list(together.hits) == expected
    assert together.total == sum(reply.total for reply in alone)
    assert together.unmatched == tuple(dict.fromkeys(word for reply in alone for word in reply.unmatched))
