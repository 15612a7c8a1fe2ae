"""Evaluate the table on held-out services: cosine alone, BM25 alone, and both together."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.corpus import split_words
from training.holdout import Query, Tool
from training.pieces import Pieces
from training.student import Floats, unit

_MEANING = 1.3
_K1 = 1.2
_FIELDS = ((3.0, 0.3), (1.0, 0.3), (1.0, 0.75), (0.5, 0.75), (0.25, 0.75))
_CUTOFF = 10
_CLAUSE = re.compile(r"(?<=[.!?;])\s+|,\s+|\s+\b(?:and|then|also)\b\s+", re.IGNORECASE)
_MAX_PARAMS = 12
_MAX_TEXT = 400


@dataclass(frozen=True, slots=True)
class Figures:
    """Recall at one, recall at five and nDCG at ten, from 0 to 1."""

    first: float
    five: float
    ndcg: float

    def __str__(self) -> str:
        return f"{100 * self.first:.1f} / {100 * self.five:.1f} / {100 * self.ndcg:.1f}"


def judge(scores: Floats, right: Sequence[int]) -> Figures:
    """Compute the metrics of a score matrix float32[requests, tools]; ties go to the earlier tool."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :_CUTOFF]
    first = five = ndcg = 0.0
    for row, tool in zip(order.tolist(), right, strict=True):
        if tool in row:
            rank = row.index(tool)
            first += rank == 0
            five += rank < 5  # noqa: PLR2004 - recall at five
            ndcg += 1 / math.log2(rank + 2)
    return Figures(first / len(right), five / len(right), ndcg / len(right))


def clauses(text: str) -> list[str]:
    """Split a request at sentence ends, commas and conjunctions; a single word is not a clause."""
    found = [part.strip() for part in _CLAUSE.split(text)]
    return [part for part in found if len(part.split()) > 1] or [text]


def _words(text: str) -> list[str]:
    return [word[:-1] if word.endswith("s") and len(word) > 3 else word for word in split_words(text)]  # noqa: PLR2004


def bm25f(tools: Sequence[Tool], requests: Sequence[str]) -> Floats:
    """BM25F over name, namespace, description, parameter names and descriptions (Robertson and Zaragoza, 2009)."""
    fields = [
        [(t.name, t.namespace, t.description, " ".join(p for p, _ in t.params), " ".join(d for _, d in t.params))[k]
         for t in tools]
        for k in range(len(_FIELDS))
    ]  # fmt: skip
    weight: dict[str, dict[int, float]] = {}
    for texts, (boost, slope) in zip(fields, _FIELDS, strict=True):
        counts = [Counter(_words(text)) for text in texts]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / max(1, sum(1 for x in lengths if x))
        for i, count in enumerate(counts):
            for word, n in count.items():
                by_tool = weight.setdefault(word, {})
                by_tool[i] = by_tool.get(i, 0.0) + n * boost / (1 - slope + slope * lengths[i] / mean)
    out = np.zeros((len(requests), len(tools)), dtype=np.float32)
    for j, text in enumerate(requests):
        for word in set(_words(text)):
            by_tool = weight.get(word, {})
            idf = math.log1p((len(tools) - len(by_tool) + 0.5) / (len(by_tool) + 0.5))
            for i, tf in by_tool.items():
                out[j, i] += idf * tf * (_K1 + 1) / (_K1 + tf)
    return out


def embed(pieces: Pieces, table: Floats, texts: Sequence[str]) -> Floats:
    """Embed texts: unit vectors float32[len(texts), d], or zero if no word can be split into pieces."""
    return unit(np.asarray(pieces.bags(texts) @ table, dtype=np.float32))[0]


def meaning(pieces: Pieces, table: Floats, tools: Sequence[Tool], requests: Sequence[str]) -> Floats:
    """Compute the largest cosine of a request's clauses with every tool."""
    texts = [_text(tool) for tool in tools]
    vectors = embed(pieces, table, texts)
    rows = [(embed(pieces, table, clauses(text)) @ vectors.T).max(axis=0) for text in requests]
    return np.asarray(rows, dtype=np.float32)


def _text(tool: Tool) -> str:
    params = " ".join(word for name, _ in tool.params[:_MAX_PARAMS] for word in split_words(name))
    name = " ".join(split_words(tool.namespace) + split_words(tool.name))
    return f"{name}: {tool.description[:_MAX_TEXT]} ({params})"


def report(pieces: Pieces, table: Floats, tools: Sequence[Tool], queries: Sequence[Query]) -> dict[str, Figures]:
    """Compute the metrics of words alone, the table alone, and `words / max(words) + 1.3 table`."""
    number = {tool.id: i for i, tool in enumerate(tools)}
    right = [number[query.relevant] for query in queries]
    requests = [query.text for query in queries]
    lexical, semantic = bm25f(tools, requests), meaning(pieces, table, tools, requests)
    top = lexical.max(axis=1, keepdims=True)
    both = lexical / np.where(top > 0, top, 1) + np.float32(_MEANING) * semantic
    return {"words": judge(lexical, right), "table": judge(semantic, right), "both": judge(both, right)}
