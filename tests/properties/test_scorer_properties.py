"""The three reference rankings: one contract for all, and each against a slow reading of its formula."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.names import fold, wire_name
from toolcrib.search.index import Index, IndexView, SegmentView
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import Bm25Options, PointsOptions, ScorerOptions
from toolcrib.search.scorers import bm25, points, tiers
from toolcrib.search.scorers.base import ExplainedTool, ScorerResult
from toolcrib.search.segment import Bools
from toolcrib.search.text import STOP_WORDS, split_words
from toolcrib.types import Tool, Visibility

relaxed = settings(deadline=None, max_examples=50)
all_three = pytest.mark.parametrize("scorer", [tiers, bm25, points], ids=["tiers", "bm25", "points"])

VOCABULARY = [
    *("normal", "noraml", "cdf", "mean", "average", "calculate", "calclate", "matrix", "file", "files", "read", "sqrt"),
    *("the", "of", "save", "write", "wirte", "distribution", "email", "emial", "sendEmail", "天気", "x", "größe"),
]
TEXTS = st.lists(st.sampled_from(VOCABULARY), max_size=6)
PROSE = st.builds(str.join, st.sampled_from([" ", ", "]), TEXTS)
IDENTIFIERS = st.builds(
    lambda parts, join: join.join(parts) or "t", TEXTS.map(lambda parts: parts[:3]), st.sampled_from(["_", "-", ""])
)


@st.composite
def tools(draw: st.DrawFn) -> Tool:
    parameters = draw(st.dictionaries(IDENTIFIERS, PROSE, max_size=2))
    described = {name: {"type": "string", "description": text} for name, text in parameters.items()}
    return Tool(
        namespace=draw(st.sampled_from(["", "stats", "file_server", "read"])),
        name=draw(IDENTIFIERS),
        title=draw(st.none() | PROSE),
        description=draw(PROSE),
        keywords=tuple(draw(TEXTS)[:2]),
        tags=tuple(draw(TEXTS)[:2]),
        visibility=draw(st.sampled_from([*[Visibility.DISCOVERABLE] * 4, Visibility.HIDDEN])),
        input_schema={"type": "object", "properties": described},
    )


CATALOGS = st.lists(tools(), max_size=8, unique_by=lambda tool: tool.id)
QUERIES = st.one_of(PROSE, IDENTIFIERS, st.text(max_size=20))


@dataclass(frozen=True)
class Shown:
    """A tool, and whether the caller sees it."""

    tool: Tool
    seen: bool


SHOWN = st.lists(st.builds(Shown, tools(), st.booleans()), max_size=8, unique_by=lambda shown: shown.tool.id)
Answer = tuple[list[tuple[Any, ...]], int, tuple[str, ...]]


def part_of(catalog: Sequence[Tool], seen: Sequence[bool] | None = None) -> SegmentView:
    (part,) = Index.build(catalog).parts(None if seen is None else bytes(seen))
    return part


def ask(
    scorer: ModuleType,
    text: str,
    *parts: SegmentView,
    limit: int = 100,
    allowed: list[Bools] | None = None,
    boosts: Mapping[str, float] | None = None,
    options: ScorerOptions | None = None,
) -> ScorerResult:
    masks = [part.visible for part in parts] if allowed is None else allowed
    ranked = scorer.rank(IndexView.of(*parts), text, limit, masks, options or ScorerOptions(), boosts)
    assert isinstance(ranked, ScorerResult)
    return ranked


def ids(ranked: ScorerResult, *parts: SegmentView) -> list[str]:
    return [parts[hit.part].segment.ids[hit.position] for hit in ranked.hits]


def content_of(ranked: ScorerResult, *parts: SegmentView) -> Answer:
    """A reply without the positions of its tools."""
    hits = [(id_, *hit[2:]) for id_, hit in zip(ids(ranked, *parts), ranked.hits, strict=True)]
    return hits, ranked.total, ranked.unmatched


# The contract


@all_three
@relaxed
@given(SHOWN, CATALOGS, QUERIES)
def test_a_tool_that_is_not_seen_changes_nothing(
    scorer: ModuleType, shown: list[Shown], extra: list[Tool], text: str
) -> None:
    whole = part_of([one.tool for one in shown], [one.seen for one in shown])
    alone = part_of([one.tool for one in shown if one.seen])
    own = part_of([replace(tool, namespace="own") for tool in extra])
    assert content_of(ask(scorer, text, whole), whole) == content_of(ask(scorer, text, alone), alone)
    assert content_of(ask(scorer, text, whole, own), whole, own) == content_of(
        ask(scorer, text, alone, own), alone, own
    )


@all_three
@relaxed
@given(SHOWN, QUERIES)
def test_two_parts_are_ranked_as_if_they_were_one(scorer: ModuleType, shown: list[Shown], text: str) -> None:
    first, second = (part_of([one.tool for one in shown if one.seen is side]) for side in (True, False))
    both = part_of([one.tool for one in shown])
    assert content_of(ask(scorer, text, first, second), first, second) == content_of(ask(scorer, text, both), both)


@all_three
@relaxed
@given(SHOWN, CATALOGS, QUERIES)
def test_an_index_that_has_changed_is_ranked_like_a_new_one(
    scorer: ModuleType, shown: list[Shown], added: list[Tool], text: str
) -> None:
    before = Index.build([one.tool for one in shown])
    gone = [one.tool.id for one in shown if not one.seen]
    changed = before.updated([replace(tool, namespace="own") for tool in added], gone)
    parts = changed.parts(None)
    alone = part_of(changed.tools)
    assert content_of(ask(scorer, text, *parts), *parts) == content_of(ask(scorer, text, alone), alone)


@all_three
@relaxed
@given(SHOWN, QUERIES)
def test_allowed_tools_narrow_the_hits_and_change_no_score(scorer: ModuleType, shown: list[Shown], text: str) -> None:
    part = part_of([one.tool for one in shown])
    allowed = part.visible & np.array([one.seen for one in shown], dtype=np.bool_)
    narrow = ask(scorer, text, part, allowed=[allowed], options=WITHOUT_FALLBACK)
    wide = ask(scorer, text, part, options=WITHOUT_FALLBACK)
    assert narrow.hits == [hit for hit in wide.hits if allowed[hit.position]]
    assert narrow.total == len(narrow.hits)
    assert narrow.unmatched == wide.unmatched


@all_three
@relaxed
@given(CATALOGS, QUERIES, st.integers(1, 5))
def test_a_lower_limit_gives_the_beginning_of_a_longer_answer(
    scorer: ModuleType, catalog: list[Tool], text: str, limit: int
) -> None:
    part = part_of(catalog)
    short, long = ask(scorer, text, part, limit=limit), ask(scorer, text, part)
    assert (short.hits, short.total, short.unmatched) == (long.hits[:limit], long.total, long.unmatched)


@all_three
@relaxed
@given(
    CATALOGS, st.one_of(QUERIES, st.text()), st.dictionaries(st.sampled_from(["t", "stats:t", "mean"]), st.just(2.5))
)
def test_hits_are_in_order_within_their_bounds_and_add_up(
    scorer: ModuleType, catalog: list[Tool], text: str, boosts: dict[str, float]
) -> None:
    part = part_of(catalog)
    ranked = ask(scorer, text, part, boosts=boosts)
    order = [(-hit.raw, id_) for hit, id_ in zip(ranked.hits, ids(ranked, part), strict=True)]
    assert order == sorted(order)
    assert len(ranked.hits) == ranked.total
    for hit in ranked.hits:
        assert part.visible[hit.position]
        assert hit.raw > 0
        assert 0 < scorer.score(hit.raw) <= 1
        assert sum(line.value * line.weight for line in hit.parts) == pytest.approx(hit.raw)
        assert bool(hit.reasons) != hit.fallback or hit.raw != pytest.approx(0.1)
        assert not set(hit.matched) & set(ranked.unmatched)


FACTORS = st.dictionaries(st.integers(0, 7), st.sampled_from([1.0, 2.0, 4.4466]))


def with_and_without_boosts(
    scorer: ModuleType, catalog: list[Tool], text: str, factors: dict[int, float]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """The boosts by id, and the scores without and with them."""
    part = part_of(catalog)
    boosts = {catalog[place].id: factor for place, factor in factors.items() if place < len(catalog)}
    plain, boosted = (ask(scorer, text, part, boosts=given, options=WITHOUT_FALLBACK) for given in (None, boosts))
    return boosts, by_id(plain, part), by_id(boosted, part)


@relaxed
@given(CATALOGS, QUERIES, FACTORS)
def test_a_boost_multiplies_the_points(catalog: list[Tool], text: str, factors: dict[int, float]) -> None:
    boosts, plain, boosted = with_and_without_boosts(points, catalog, text, factors)
    assert boosted == pytest.approx({id_: raw * boosts.get(id_, 1.0) for id_, raw in plain.items()})


@pytest.mark.parametrize("scorer", [tiers, bm25], ids=["tiers", "bm25"])
@relaxed
@given(CATALOGS, QUERIES, FACTORS)
def test_a_boost_raises_what_was_found_and_changes_nothing_else(
    scorer: ModuleType, catalog: list[Tool], text: str, factors: dict[int, float]
) -> None:
    boosts, plain, boosted = with_and_without_boosts(scorer, catalog, text, factors)
    assert boosted.keys() == plain.keys()
    for id_, raw in plain.items():
        assert boosted[id_] > raw if boosts.get(id_, 1.0) > 1 else boosted[id_] == raw


@all_three
@relaxed
@given(
    st.lists(st.builds(Tool, name=st.text(min_size=1), namespace=st.text(), description=st.text()), max_size=5),
    st.text(),
)
def test_any_text_is_ranked_without_a_crash(scorer: ModuleType, catalog: list[Tool], text: str) -> None:
    part = part_of(catalog)
    for query in (text, "".join(tool.name for tool in catalog), text * 500):
        ranked = ask(scorer, query, part)
        assert all(0 < hit.raw < float("inf") for hit in ranked.hits)
        assert len(ranked.hits) <= ranked.total <= len(catalog)


WITHOUT_FALLBACK = ScorerOptions(points=PointsOptions(fallback=False))


def by_id(ranked: ScorerResult, part: SegmentView) -> dict[str, float]:
    return dict(zip(ids(ranked, part), (hit.raw for hit in ranked.hits), strict=True))


def seen_tools(part: SegmentView) -> list[Tool]:
    return [tool for tool, seen in zip(part.segment.tools, part.visible.tolist(), strict=True) if seen]


# Tiers, by brute force

MARKS = ".,;:!?()[]{}\"'"


def distance(left: str, right: str, *, swaps: bool) -> int:
    """Levenshtein distance, or optimal string alignment with swaps, from the textbook."""
    rows = [[max(i, j) if not i * j else 0 for j in range(len(right) + 1)] for i in range(len(left) + 1)]
    for i in range(1, len(left) + 1):
        for j in range(1, len(right) + 1):
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (left[i - 1] != right[j - 1]))
            swapped = i > 1 and j > 1 and left[i - 2 : i] == right[j - 2 : j][::-1]
            if swaps and swapped:
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[-1][-1]


def alike(left: str, right: str, *, swaps: bool = False) -> float:
    value = 1 - distance(left, right, swaps=swaps) / max(len(left), len(right), 1)
    return value if value > 0.6 else 0.0


def labels(tool: Tool) -> list[str]:
    return [label.lower() for label in (*tool.keywords, *tool.tags, tool.namespace) if label]


def chunks(text: str) -> list[str]:
    return [chunk for chunk in (word.strip(MARKS) for word in text.split()) if chunk]


def listed(word: str, tool: Tool) -> float:
    name, description = tool.name.lower(), tool.description.lower()
    return max(
        0.9 * name.startswith(word),
        0.85 * (word in labels(tool)),
        0.8 * (word in name),
        0.7 * any(word in label for label in labels(tool)),
        0.6 * (word in chunks(description)),
        0.5 * (word in description),
    )


def worth(word: str, tool: Tool, catalog: Sequence[Tool]) -> float:
    if value := listed(word, tool):
        return value
    is_strange = len(word) >= 4 and not any(listed(word, other) for other in catalog)
    return max(
        0.7 * alike(word, tool.name.lower()),
        *(0.6 * alike(word, label) for label in labels(tool)),
        *(0.5 * is_strange * alike(word, token, swaps=True) for token in split_words(tool.name)),
        0.0,
    )


def slow_tiers(catalog: Sequence[Tool], text: str) -> dict[str, float]:
    asked = [chunk.lower() for chunk in chunks(text)]
    found = {}
    for tool in catalog:
        values = [worth(word, tool, catalog) for word in asked]
        met = sum(value > 0 for value in values)
        mean = sum(values) / max(1, len(values))
        found[tool.id] = mean if len(asked) == 1 else mean * (0.9 if met == len(asked) else met / len(asked))
        if text.strip().lower() in {tool.name.lower(), tool.id.lower(), wire_name(tool.key).lower()}:
            found[tool.id] = 1.0
    return {id_: raw for id_, raw in found.items() if raw > 0}


@settings(deadline=None, max_examples=150)
@given(CATALOGS, QUERIES)
def test_tiers_equal_a_slow_reading(catalog: list[Tool], text: str) -> None:
    part = part_of(catalog)
    assert by_id(ask(tiers, text, part), part) == pytest.approx(slow_tiers(seen_tools(part), text))


# BM25F, by brute force


def fields(tool: Tool) -> list[tuple[float, str, list[str]]]:
    described: dict[str, Any] = tool.input_schema["properties"]
    return [
        (3.0, "name", split_words(tool.name)),
        (2.0, "namespace", split_words(tool.namespace)),
        (2.0, "tags", split_words(" ".join(tool.tags))),
        (2.0, "keywords", split_words(" ".join(tool.keywords))),
        (1.0, "title", split_words(tool.title or "")),
        (1.0, "description", telling(tool.description)),
        (1.0, "parameters", split_words(" ".join(described))),
        (1.0, "texts", telling(" ".join(node["description"] for node in described.values()))),
    ]


def telling(text: str) -> list[str]:
    return [word for word in split_words(text) if word not in STOP_WORDS]


def slow_bm25(catalog: Sequence[Tool], text: str) -> dict[str, float]:
    lengths: dict[str, list[int]] = {}
    for tool in catalog:
        for _, name, own in fields(tool):
            if own:
                lengths.setdefault(name, []).append(len(own))
    average = {name: sum(own) / len(own) for name, own in lengths.items()}
    scores: dict[str, float] = {}
    for word in dict.fromkeys(telling(text) or split_words(text)):
        frequency = {}
        for tool in catalog:
            adds = [
                weight * own.count(word) / (1 - 0.75 + 0.75 * len(own) / average[name])
                for weight, name, own in fields(tool)
                if own
            ]
            if sum(adds):
                frequency[tool.id] = sum(adds)
        idf = log(1 + (len(catalog) - len(frequency) + 0.5) / (len(frequency) + 0.5))
        for id_, tf in frequency.items():
            scores[id_] = scores.get(id_, 0.0) + idf * tf / (1.2 + tf)
    return scores


@settings(deadline=None, max_examples=150)
@given(CATALOGS, QUERIES)
def test_bm25_equals_a_slow_reading(catalog: list[Tool], text: str) -> None:
    part = part_of(catalog)
    assert by_id(ask(bm25, text, part), part) == pytest.approx(slow_bm25(seen_tools(part), text))


@relaxed
@given(CATALOGS, QUERIES, st.integers(1, 5))
def test_max_docs_is_the_same_as_a_catalog_of_the_first_tools(catalog: list[Tool], text: str, count: int) -> None:
    whole, first = part_of(catalog), part_of(sorted(catalog, key=lambda tool: tool.id))
    first = part_of(sorted(seen_tools(first), key=lambda tool: tool.id)[:count])
    options = ScorerOptions(bm25=Bm25Options(max_docs=count))
    assert content_of(ask(bm25, text, whole, options=options), whole) == content_of(ask(bm25, text, first), first)


# Points, by brute force

LEXICON = Lexicon.points()
ASKING = {"calculate"}


def name_points(word: str, tool: Tool, *, both_ways: bool) -> float:
    own = split_words(tool.name)
    if word in own:
        return 10.0
    longer = any(token.startswith(word) for token in own if len(word) >= 3)
    shorter = both_ways and any(word.startswith(token) for token in own if len(token) >= 3)
    return 5.0 if longer or shorter else 0.0


def other_points(word: str, tool: Tool) -> float:
    described = telling(tool.description) + split_words(" ".join([tool.title or "", *tool.keywords, *tool.tags]))
    parameters = split_words(" ".join(tool.input_schema["properties"]))
    return 3.0 * (word in described) + 2.0 * (word in split_words(tool.namespace)) + 1.0 * (word in parameters)


def flat(text: str) -> str:
    return fold(text.strip()).replace(".", "").replace(":", "")


def slip(word: str, tool: Tool) -> float:
    values = [
        1 - distance(word, token, swaps=True) / max(len(word), len(token)) for token in split_words(tool.name) or [""]
    ]
    return 10 * max(values) if len(word) >= 4 and word.isalpha() and max(values) > 0.74 else 0.0


def domains_of(tool: Tool) -> set[str]:
    texts = " ".join([tool.description, tool.title or "", *tool.keywords, *tool.tags])
    own = [tool.description, tool.title or "", " ".join(tool.keywords), " ".join(tool.tags)]
    assert texts
    for level in ([tool.name], [tool.namespace], own):
        counts: dict[str, int] = {}
        for text in level:
            for word in set(split_words(text)) - (STOP_WORDS if text == tool.description else set()):
                for domain in LEXICON.domains_of([word]):
                    counts[domain] = counts.get(domain, 0) + 1
        if counts:
            return {domain for domain, count in counts.items() if count == max(counts.values())}
    return set()


def factor(asked: Sequence[str], tool: Tool) -> float:
    subjects = [known for known in (LEXICON.domains_of([word]) for word in asked) if known]
    own = domains_of(tool)
    if not subjects or not own:
        return 1.0
    return 0.5 + 0.5 * sum(bool(own & subject) for subject in subjects) / len(subjects)


def slow_points(catalog: Sequence[Tool], text: str) -> dict[str, float]:
    asked = list(dict.fromkeys(word for word in telling(text) if word not in ASKING)) or list(
        dict.fromkeys(split_words(text))
    )
    if not asked:
        return {}
    named = {tool.id for tool in catalog if flat(text) and flat(text) in {flat(tool.name), flat(tool.id)}}
    if named or any(all(word in split_words(tool.name) for word in asked) for tool in catalog):
        return above_0(
            {t.id: sum(name_points(w, t, both_ways=False) for w in asked) + 10 * (t.id in named) for t in catalog}
        )
    expanded = dict.fromkeys([*asked, *(other for word in asked for other in LEXICON.related(word))])
    real = {t.id: sum(name_points(w, t, both_ways=True) + other_points(w, t) for w in expanded) for t in catalog}
    if any(real.values()):
        unknown = [word for word in asked if not LEXICON.related(word) and not any(knows(t, word) for t in catalog)]
        slips = {t.id: sum(slip(w, t) for w in unknown if not name_points(w, t, both_ways=True)) for t in catalog}
        return above_0({t.id: (real[t.id] + slips[t.id]) * factor(asked, t) for t in catalog})
    return above_0({t.id: max(likeness(text, t), sum(slip(word, t) for word in asked)) for t in catalog})


def knows(tool: Tool, word: str) -> bool:
    begins = any(token.startswith(word) for token in split_words(tool.name))
    return begins or other_points(word, tool) > 0


def likeness(text: str, tool: Tool) -> float:
    query = text.strip().lower()
    by_name = ratio(query, tool.name.lower())
    by_word = max([ratio(query, word) for word in telling(tool.description)], default=0.0)
    return 10 * by_name * (by_name >= 0.5) + 3 * by_word * (by_word >= 0.6)


def ratio(left: str, right: str) -> float:
    """Twice the longest common subsequence over both lengths."""
    row = [0] * (len(right) + 1)
    for char in left:
        before = row
        row = [0]
        for place, other in enumerate(right):
            row.append(before[place] + 1 if char == other else max(row[-1], before[place + 1]))
    return 2 * row[-1] / (len(left) + len(right))


def above_0(scores: dict[str, float]) -> dict[str, float]:
    return {id_: raw for id_, raw in scores.items() if raw > 0}


@settings(deadline=None, max_examples=150)
@given(CATALOGS, QUERIES)
def test_points_equal_a_slow_reading(catalog: list[Tool], text: str) -> None:
    part = part_of(catalog)
    expected = slow_points(seen_tools(part), text)
    assert by_id(ask(points, text, part, options=WITHOUT_FALLBACK), part) == pytest.approx(expected)


@relaxed
@given(CATALOGS, QUERIES)
def test_the_fallback_shows_the_shortest_names_and_only_if_nothing_fits(catalog: list[Tool], text: str) -> None:
    part = part_of(catalog)
    plain, shown = ask(points, text, part, options=WITHOUT_FALLBACK), ask(points, text, part)
    if plain.hits:
        assert shown == plain
    else:
        first = sorted(seen_tools(part), key=lambda tool: (len(tool.name), tool.id))[:10]
        assert ids(shown, part) == sorted(tool.id for tool in first)
        assert all(hit == ExplainedTool(0, hit.position, 0.1, (), (), hit.parts, True) for hit in shown.hits)
