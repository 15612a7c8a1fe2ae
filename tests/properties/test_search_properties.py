"""The search against a brute-force scorer; and what a caller may not see, which changes nothing for him."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.model import Filters, SearchReply, SearchRequest, Tool, Visibility
from toolcrib.search.engine import listing, search
from toolcrib.search.index import Index
from toolcrib.search.text import STOP_WORDS, stem, words

relaxed = settings(deadline=None)

VOCABULARY = [
    "create",
    "issue",
    "issues",
    "file",
    "files",
    "read",
    "the",
    "of",
    "pull",
    "request",
    "weather",
    "creating",
    "天気",
    "x",
]
TEXTS = st.lists(st.sampled_from(VOCABULARY), max_size=6)
PROSE = TEXTS.map(" ".join)
IDENTIFIERS = st.builds(
    lambda parts, join: join.join(parts) or "t", TEXTS.map(lambda parts: parts[:3]), st.sampled_from(["_", "-", ""])
)


@st.composite
def tools(draw: st.DrawFn) -> Tool:
    parameters = draw(st.dictionaries(IDENTIFIERS, PROSE, max_size=2))
    described = {name: {"type": "string", "description": text} for name, text in parameters.items()}
    return Tool(
        namespace=draw(st.sampled_from(["", "github", "file_server", "a"])),
        name=draw(IDENTIFIERS),
        title=draw(st.none() | PROSE),
        description=draw(PROSE),
        keywords=tuple(draw(TEXTS)[:2]),
        tags=tuple(draw(TEXTS)[:2]),
        visibility=draw(st.sampled_from([*[Visibility.DISCOVERABLE] * 4, Visibility.NATIVE, Visibility.HIDDEN])),
        input_schema={"type": "object", "properties": described},
    )


CATALOGS = st.lists(tools(), max_size=10, unique_by=lambda tool: tool.id)
QUERIES = st.one_of(PROSE, IDENTIFIERS, st.text(max_size=20))


@dataclass(frozen=True)
class Shown:
    """A tool, and whether the caller sees it."""

    tool: Tool
    seen: bool


SHOWN = st.lists(st.builds(Shown, tools(), st.booleans()), max_size=10, unique_by=lambda shown: shown.tool.id)

# weight, b, reference length: written down a second time on purpose.
FIELDS: dict[str, tuple[float, float, float]] = {
    "name": (3.0, 0.3, 3.0),
    "namespace": (1.0, 0.3, 2.0),
    "title": (1.0, 0.3, 3.0),
    "description": (1.0, 0.75, 12.0),
    "keywords": (1.0, 0.3, 4.0),
    "tags": (1.0, 0.3, 2.0),
    "parameters": (0.5, 0.75, 6.0),
    "parameter texts": (0.25, 0.75, 25.0),
}
WHOLE_NAME_WEIGHT = 3.0
K1 = 1.2


def telling(text: str) -> list[str]:
    return [word for word in words(text) if word not in STOP_WORDS]


def field_words(tool: Tool) -> dict[str, list[str]]:
    described = tool.input_schema["properties"]
    return {
        "name": words(tool.name),
        "namespace": words(tool.namespace),
        "title": words(tool.title or ""),
        "description": telling(tool.description),
        "keywords": words(" ".join(tool.keywords)),
        "tags": words(" ".join(tool.tags)),
        "parameters": words(" ".join(described)),
        "parameter texts": telling(" ".join(node["description"] for node in described.values())),
    }


def frequencies(tool: Tool) -> dict[str, float]:
    """The weighted frequency of each stem of a tool; a whole name stands under "=name"."""
    found: dict[str, float] = defaultdict(float)
    for field, texts in field_words(tool).items():
        weight, b, reference = FIELDS[field]
        for word in texts:
            found[stem(word)] += weight / (1 - b + b * len(texts) / reference)
    name = words(tool.name)
    if len(name) > 1:
        found["=" + "".join(name)] += WHOLE_NAME_WEIGHT
    return found


def query_terms(text: str) -> list[str]:
    asked = words(text)
    runs = ["=" + "".join(asked[start:stop]) for start in range(len(asked)) for stop in range(start + 1, start + 7)]
    return sorted({*map(stem, telling(text) or asked), *runs})


def brute_force(seen: Sequence[Tool], text: str) -> dict[str, float]:
    """The score of each tool that has any."""
    found = {tool.id: frequencies(tool) for tool in seen if tool.visibility is not Visibility.HIDDEN}
    scores: dict[str, float] = {}
    for term in query_terms(text):
        having = {id_: words_of[term] for id_, words_of in found.items() if term in words_of}
        rare = log(1 + (len(found) - len(having) + 0.5) / (len(having) + 0.5))
        for id_, frequency in having.items():
            scores[id_] = scores.get(id_, 0.0) + rare * frequency / (K1 + frequency)
    return scores


def ask(index: Index, *queries: str, **more: Any) -> SearchReply:
    return search(index, SearchRequest(queries=queries, limit=100), **more)


def mask_of(index: Index, shown: Sequence[Shown]) -> bytes:
    seen = {one.tool.id for one in shown if one.seen}
    return bytes(tool.id in seen for tool in index.tools)


@settings(deadline=None, max_examples=300)
@given(CATALOGS, QUERIES)
def test_ranking_equals_a_brute_force_scorer(catalog: list[Tool], text: str) -> None:
    expected = brute_force(catalog, text)
    if not words(text):
        return
    reply = ask(Index.build(catalog), text)
    assert {hit.tool.id: hit.raw for hit in reply.hits} == pytest.approx(expected, rel=1e-5)
    assert reply.total == len(expected)
    order = [(-hit.raw, hit.tool.id) for hit in reply.hits]
    assert order == sorted(order)


@relaxed
@given(SHOWN, st.lists(QUERIES, min_size=1, max_size=3))
def test_a_tool_outside_the_mask_changes_nothing_inside_it(shown: list[Shown], queries: list[str]) -> None:
    whole = Index.build([one.tool for one in shown])
    alone = Index.build([one.tool for one in shown if one.seen])
    mask = mask_of(whole, shown)
    assert ask(whole, *queries, mask=mask) == ask(alone, *queries)
    assert listing(whole, mask=mask) == listing(alone)


@relaxed
@given(SHOWN, CATALOGS, QUERIES)
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


@relaxed
@given(SHOWN, CATALOGS, QUERIES)
def test_an_index_made_from_an_earlier_one_is_like_one_made_from_nothing(
    before: list[Shown], added: list[Tool], text: str
) -> None:
    earlier = Index.build([one.tool for one in before])
    kept = [one.tool for one in before if one.seen]
    mixed = kept + [tool for tool in added if tool.id not in {one.id for one in kept}]
    grown = Index.build(mixed[::-1], previous=earlier)
    assert ask(grown, text) == ask(Index.build([replace(tool) for tool in mixed]), text)


@relaxed
@given(CATALOGS, QUERIES, st.integers(1, 5))
def test_a_lower_limit_gives_the_beginning_of_a_longer_answer(catalog: list[Tool], text: str, limit: int) -> None:
    index = Index.build(catalog)
    short = search(index, SearchRequest(queries=(text,), limit=limit))
    assert short.hits == ask(index, text).hits[:limit]
    assert short.total == ask(index, text).total


@relaxed
@given(CATALOGS, st.text())
def test_any_query_is_answered_with_scores_between_0_and_1(catalog: list[Tool], text: str) -> None:
    reply = ask(Index.build(catalog), text)
    assert all(0 <= hit.score <= 1 and hit.raw >= 0 for hit in reply.hits)
    assert [hit.score for hit in reply.hits] == sorted((hit.score for hit in reply.hits), reverse=True)


@relaxed
@given(
    st.lists(st.builds(Tool, name=st.text(min_size=1), namespace=st.text(), description=st.text()), max_size=5),
    st.text(),
)
def test_tools_of_any_text_are_found_without_a_crash(catalog: list[Tool], text: str) -> None:
    reply = ask(Index.build(catalog), text, "".join(tool.name for tool in catalog))
    assert all(hit.tool in catalog for hit in reply.hits)


@relaxed
@given(
    SHOWN, st.sets(st.sampled_from(["github", "a", "nowhere"])), st.sets(st.sampled_from(["issue", "file"])), QUERIES
)
def test_filters_keep_exactly_the_hits_that_pass(
    shown: list[Shown], namespaces: set[str], tags: set[str], text: str
) -> None:
    index = Index.build([one.tool for one in shown])
    filters = Filters(namespaces=frozenset(namespaces), tags=frozenset(tags))
    passing = [
        hit
        for hit in ask(index, text).hits
        if (not namespaces or hit.tool.namespace in namespaces) and tags <= set(hit.tool.tags)
    ]
    assert list(search(index, SearchRequest(queries=(text,), limit=100, filters=filters)).hits) == passing
