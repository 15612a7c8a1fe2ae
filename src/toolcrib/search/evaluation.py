"""Evaluate a search: queries whose right tools are known, rankings of ids in, metrics from 0 to 1 out.

It reads no file and no clock, and knows no scorer: a search is a function from a text to ids, best first, so any
engine can be measured with it.
"""

import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Final

DEPTH: Final = 10
"""How many hits of a ranking count."""
SEED: Final = 20261121
"""The seed of the samples and typos of the tracks."""
_NOTICED_DEPTH: Final = 5
"""A right tool counts as lost if it would be among the first so many, and is withheld."""
_NAME_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_TYPO_WORD: Final = re.compile(r"[A-Za-z]{4,}")
_SEPARATOR: Final = re.compile(r"[_\-. /]")
_MAX_NAMESAKES: Final = 5
"""A name that more tools share is not used as a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuery:
    """A query and the tools that answer it."""

    id: str
    text: str
    relevant: frozenset[str] = frozenset()
    """Ids of the right tools; empty if no tool fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The quality of a ranking, or the mean over many; each metric from 0 to 1."""

    recall_1: float = 0.0
    """The share of the right tools that is first."""
    recall_5: float = 0.0
    recall_10: float = 0.0
    mrr_10: float = 0.0
    """One over the rank of the first right tool; 0 if it is not among the first ten."""
    ndcg_10: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """The metrics under their usual names: `recall@1`, ..., `ndcg@10`."""
        return {
            "recall@1": self.recall_1,
            "recall@5": self.recall_5,
            "recall@10": self.recall_10,
            "mrr@10": self.mrr_10,
            "ndcg@10": self.ndcg_10,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """The result of an evaluation."""

    metrics: Metrics
    queries: int
    p50_s: float
    """The median time of a query, in seconds."""
    p95_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """The ids that a search with thresholds shows, best first."""

    shown: tuple[str, ...] = ()
    sure: tuple[str, ...] = ()
    """Those not marked as weak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRates:
    """A share of queries, from 0 to 1, at both thresholds."""

    shown: float
    """For callers that use every hit."""
    sure: float
    """For callers that use only hits not marked as weak."""


def score(ranking: Iterable[str], relevant: frozenset[str]) -> Metrics:
    """Compute the metrics of one ranking. A repeated id counts once, at its first place.

    nDCG has binary gains; its ideal ranking has `min(10, len(relevant))` places. All metrics are 0 if nothing is
    relevant. Source: Järvelin and Kekäläinen, 2002.

    >>> score(["b", "a"], frozenset({"a"})).as_dict()
    {'recall@1': 0.0, 'recall@5': 1.0, 'recall@10': 1.0, 'mrr@10': 0.5, 'ndcg@10': 0.6309297535714575}
    """
    places = [place for place, id_ in enumerate(list(dict.fromkeys(ranking))[:DEPTH]) if id_ in relevant]
    if not places:
        return Metrics()
    ideal = sum(_gain(place) for place in range(min(DEPTH, len(relevant))))
    return Metrics(
        recall_1=_hits_within(1, places) / len(relevant),
        recall_5=_hits_within(5, places) / len(relevant),
        recall_10=len(places) / len(relevant),
        mrr_10=1 / (places[0] + 1),
        ndcg_10=sum(map(_gain, places)) / ideal,
    )


def mean(scores: Sequence[Metrics]) -> Metrics:
    """Compute the mean of each metric; all are 0 for none.

    >>> mean([Metrics(recall_1=1.0), Metrics()]).recall_1
    0.5
    """
    count = max(1, len(scores))
    return Metrics(
        recall_1=sum(each.recall_1 for each in scores) / count,
        recall_5=sum(each.recall_5 for each in scores) / count,
        recall_10=sum(each.recall_10 for each in scores) / count,
        mrr_10=sum(each.mrr_10 for each in scores) / count,
        ndcg_10=sum(each.ndcg_10 for each in scores) / count,
    )


def evaluate(
    search: Callable[[str], Sequence[str]],
    queries: Sequence[LabelledQuery],
    *,
    clock: Callable[[], float] = lambda: 0.0,
) -> EvaluationReport:
    """Search for each query once: the mean of the metrics, and the time per query by the clock."""
    scores: list[Metrics] = []
    times: list[float] = []
    for query in queries:
        begun = clock()
        ranking = search(query.text)
        times.append(clock() - begun)
        scores.append(score(ranking, query.relevant))
    return EvaluationReport(
        metrics=mean(scores), queries=len(queries), p50_s=percentile(times, 0.5), p95_s=percentile(times, 0.95)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that the given share of the values, 0 to 1, does not exceed; 0 for none.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([4.0, 1.0, 3.0, 2.0], 0.95)
    (2.0, 4.0)
    """
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def false_answers(answers: Iterable[ShownAnswer]) -> AnswerRates:
    """The share of unanswerable queries that get a hit; 0 for no queries."""
    got = list(answers)
    return _rates([bool(answer.shown) for answer in got], [bool(answer.sure) for answer in got])


def lost_answers(asked: Iterable[tuple[LabelledQuery, Sequence[str], ShownAnswer]]) -> AnswerRates:
    """The share of queries that lose their right tool to a threshold; 0 for no queries.

    Each query comes with its ranking without thresholds, and its answer with them. It is lost if a right tool is among
    the first five of the ranking, and none is in the answer.
    """
    shown: list[bool] = []
    sure: list[bool] = []
    for query, free, answer in asked:
        found = not query.relevant.isdisjoint(free[:_NOTICED_DEPTH])
        shown.append(found and query.relevant.isdisjoint(answer.shown))
        sure.append(found and query.relevant.isdisjoint(answer.sure))
    return _rates(shown, sure)


def query_tracks(
    name: str, tools: Sequence[tuple[str, str]], queries: Sequence[LabelledQuery], *, most: int = 300
) -> dict[str, tuple[LabelledQuery, ...]]:
    """Make four tracks of queries from a labelled set: its name, its tools as (id, name), and its queries.

    - `main`: the queries, or a sample of `most` of them.
    - `typo`: the same, with one random typo in one word of at least four letters.
    - `ident`: names of tools in the other usual style: camelCase for snake_case and the like, snake_case for
      camelCase. Every tool whose name has these words is right. At most half of `most`.
    - `name_typo`: the words of these names, with one typo.

    The same arguments give the same queries on every machine.
    """
    chance = _random(f"{SEED}-{name}")
    chosen = list(queries) if len(queries) <= most else chance.sample(list(queries), most)
    namesakes = _ids_by_name_words(tools)
    keys = sorted(key for key, ids in namesakes.items() if len(key) > 1 and len(ids) <= _MAX_NAMESAKES)
    if len(keys) > most // 2:
        keys = chance.sample(keys, most // 2)
    names = dict(tools)
    return {
        "main": tuple(chosen),
        "typo": tuple(
            LabelledQuery(id=query.id, text=misspell(query.text, f"{SEED}-{name}-{query.id}"), relevant=query.relevant)
            for query in chosen
        ),
        "ident": tuple(
            LabelledQuery(
                id=" ".join(key), text=_change_style(key, names[namesakes[key][0]]), relevant=frozenset(namesakes[key])
            )
            for key in keys
        ),
        "name_typo": tuple(
            LabelledQuery(
                id=" ".join(key),
                text=misspell(" ".join(key), f"{SEED}-{name}-{key}"),
                relevant=frozenset(namesakes[key]),
            )
            for key in keys
        ),
    }


def misspell(text: str, seed: str) -> str:
    """Put one random typo into a word of at least four letters; a text without one stays as it is.

    >>> misspell("list the files", "a"), misspell("go up", "a")
    ('list the filet', 'go up')
    """
    words = list(_TYPO_WORD.finditer(text))
    if not words:
        return text
    chance = _random(seed)
    word = chance.choice(words)
    return text[: word.start()] + _apply_typo(word.group(), chance) + text[word.end() :]


def _apply_typo(word: str, chance: random.Random) -> str:
    """Replace, omit or insert a letter, or swap two neighbours."""
    place = chance.randrange(len(word))
    kind = chance.choice(["replaced", "left out", "put in", "swapped"])
    letter = chance.choice(ascii_lowercase)
    if kind == "replaced":
        while letter == word[place].lower():
            letter = chance.choice(ascii_lowercase)
        return word[:place] + letter + word[place + 1 :]
    if kind == "put in":
        return word[:place] + letter + word[place:]
    if kind == "swapped":
        place = min(place, len(word) - 2)
        first, second = word[place], word[place + 1]
        if first != second:
            return word[:place] + second + first + word[place + 2 :]
    return word[:place] + word[place + 1 :]


def _ids_by_name_words(tools: Sequence[tuple[str, str]]) -> dict[tuple[str, ...], list[str]]:
    """Map the lower-case words of each name to the ids of the tools with that name."""
    found: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for id_, name in tools:
        found[tuple(_name_words(name))].append(id_)
    return found


def _name_words(name: str) -> Iterator[str]:
    return (word.lower() for word in _NAME_WORD.findall(name))


def _change_style(words: tuple[str, ...], name: str) -> str:
    """Write the words in the style that the name does not have."""
    if _SEPARATOR.search(name):
        return words[0] + "".join(word.capitalize() for word in words[1:])
    return "_".join(words)


def _gain(place: int) -> float:
    return 1 / math.log2(place + 2)


def _hits_within(depth: int, places: Sequence[int]) -> int:
    return sum(place < depth for place in places)


def _rates(shown: Sequence[bool], sure: Sequence[bool]) -> AnswerRates:
    return AnswerRates(shown=sum(shown) / max(1, len(shown)), sure=sum(sure) / max(1, len(sure)))


def _random(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311 - the same sample every time is the point
