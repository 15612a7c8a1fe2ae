"""The search engine computes the same as a plain program that goes through every tool and word, one by one.

The engine's arrays are hard to follow, so what they mean is written down here once more, without any of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from tests.properties.test_search_properties import QUERIES, SURE, catalogs, relaxed

from toolcrib.search.analysis import field_texts
from toolcrib.search.index import Index, IndexView, idf
from toolcrib.search.lexical import LexicalMatch, MatchedTerm
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.literals import PARAMETER_KINDS
from toolcrib.search.options import Field
from toolcrib.search.ranking import Ranking, rank
from toolcrib.search.signals import SIGNALS, QueryMeaning
from toolcrib.search.text import STOP_WORDS, ParsedQuery, parse_query, split_words, stem
from toolcrib.types import Tool

EXACT = 1e-6
"""How close the engine's figures are: it keeps the impact of a word in 32 bits."""


def words_of(tool: Tool) -> dict[Field, list[str]]:
    """The words of each field, without stop words where a field has sentences."""
    found = {field: split_words(text) for field, text in field_texts(tool)}
    for field in (Field.DESCRIPTION, Field.PARAMETER_TEXTS):
        found[field] = [word for word in found.get(field, []) if word not in STOP_WORDS]
    return found


def impact(tool: Tool, root: str) -> float:
    """The saturated frequency of a stem in a tool, over all fields."""
    weight = 0.0
    for field, words in words_of(tool).items():
        norm = SURE.fields[field]
        count = sum(stem(word) == root for word in words)
        weight += norm.weight * count / (1 - norm.b + norm.b * len(words) / norm.reference) if count else 0.0
    return weight / (SURE.k1 + weight)


def name_impact(tool: Tool, name: str) -> float:
    weight = SURE.fields[Field.WHOLE_NAME].weight
    own = split_words(tool.name)
    return weight / (SURE.k1 + weight) if len(own) > 1 and "".join(own) == name else 0.0


def frequency(tools: Sequence[Tool], root: str) -> int:
    return sum(impact(tool, root) > 0 for tool in tools)


def lexical_score(tools: Sequence[Tool], tool: Tool, match: LexicalMatch) -> float:
    """BM25F, by the stems that the engine looked for."""
    score = 0.0
    for item in match.terms:
        for each in item.expansions:
            score += each.weight * idf(len(tools), frequency(tools, each.stem)) * impact(tool, each.stem)
    for item in match.names:
        named = [name_impact(other, item.term.surface) > 0 for other in tools]
        score += idf(len(tools), sum(named)) * name_impact(tool, item.term.surface)
    return score


def covered(tool: Tool, item: MatchedTerm) -> float:
    return max((each.coverage for each in item.expansions if impact(tool, each.stem)), default=0.0)


def slot_words(tool: Tool) -> tuple[list[str], list[str]]:
    """The words of the name and of the first sentence, each of these once."""
    sentence = tool.description.lstrip().split(". ")[0]
    told = [word for word in split_words(sentence) if word not in STOP_WORDS]
    return split_words(tool.name)[:10], list(dict.fromkeys(told))[:14]


def likeness(view: IndexView, asked: Mapping[str, tuple[str, ...]], word: str) -> float:
    """How closely some words, each with the stems of its synonyms, ask for a word of a tool."""
    table = view.parts[0].segment.model.table
    best = 0.0
    for one, synonyms in asked.items():
        left, right = (table.word_vectors([text])[0][:64].astype(np.float64) for text in (one, word))
        lengths = float(np.sqrt((left @ left) * (right @ right)))
        cosine = float(left @ right) / lengths if lengths else 0.0
        least = 1.0 if stem(one) == stem(word) else 0.6 if stem(word) in synonyms else 0.0
        best = max(best, (cosine - 0.3) / 0.7, least)
    return min(best, 1.0)


def asked_share(view: IndexView, asked: Mapping[str, tuple[str, ...]], words: Sequence[str]) -> float:
    """The share of some words of a tool that the request asks for, weighted by their rarity."""
    weights = view.parts[0].segment.model.word_weights(words) + np.float32(0.1)
    shares = (weights / weights.sum()).tolist() if words else []
    return float(sum(share * likeness(view, asked, word) for share, word in zip(shares, words, strict=True)))


def phrase_share(meaning: QueryMeaning, tool: Tool) -> float:
    total = sum(weight for _, _, weight in meaning.pairs.values())
    told = [word for word in split_words(tool.description)[:100] if word not in STOP_WORDS]
    own = {
        (stem(first), stem(second))
        for words in (split_words(tool.name)[:10], told)
        for first, second in pairwise(words)
    }
    found = sum(weight for first, second, weight in meaning.pairs.values() if (stem(first), stem(second)) in own)
    return found / total if total else 0.0


def literal_share(query: ParsedQuery, tool: Tool) -> float:
    properties = tool.input_schema["properties"]
    kinds = 1 << 7 if any(each["type"] == "integer" for each in properties.values()) else 0  # a number
    for word in split_words(" ".join(properties)):
        kinds |= PARAMETER_KINDS.get(word, 0)
    return (kinds & query.literals).bit_count() / query.literals.bit_count() if query.literals else 0.0


def expected(view: IndexView, query: ParsedQuery, ranking: Ranking, tool: Tool) -> Iterator[tuple[str, float, float]]:
    """Signals of a tool by name, each with how close the engine's must be: its vectors have eight bits."""
    match, meaning = ranking.match, ranking.meaning
    share = sum(covered(tool, item) for item in match.terms) / match.total_idf if match.total_idf else 0.0
    yield "coverage", share, EXACT
    asked = dict(zip(meaning.words, meaning.synonym_stems, strict=True))
    name, sentence = slot_words(tool)
    yield "name", asked_share(view, asked, name), 0.01
    yield "sentence", asked_share(view, asked, sentence), 0.01
    yield "phrase", phrase_share(meaning, tool), EXACT
    yield "literal", literal_share(query, tool), EXACT
    about = {word: asked[word] for word in (meaning.words[place] for place in meaning.objects)}
    closest = [likeness(view, about, word) for word in name] + [0.7 * likeness(view, about, word) for word in sentence]
    yield "object", max(closest, default=0.0) if about else 0.0, 0.01
    for kind in ("named", "called"):
        names = [item.term.surface for item in match.names if item.term.is_explicit == (kind == "named")]
        yield kind, float(any(name_impact(tool, each) for each in names)), EXACT


@relaxed
@given(catalogs(), QUERIES)
def test_every_signal_of_a_candidate_is_what_a_plain_program_computes(tools: list[Tool], text: str) -> None:
    view, query = Index.build(tools).view(), parse_query(text)
    if not tools or not query.words:
        return
    seen = [tool for tool, shown in zip(tools, view.parts[0].visible.tolist(), strict=True) if shown]
    ranking = rank(view, query, len(tools), [view.parts[0].visible], SURE, Lexicon.default())
    for position, tool in enumerate(tools):
        if tool in seen:
            assert ranking.match.scores[0][position] == pytest.approx(
                lexical_score(seen, tool, ranking.match), rel=EXACT
            )
    signals = ranking.candidates[0].signals
    for row, position in enumerate(ranking.candidates[0].positions.tolist()):
        for name, value, close in expected(view, query, ranking, tools[position]):
            assert signals[row, SIGNALS.index(name)] == pytest.approx(value, abs=close), (name, tools[position])
