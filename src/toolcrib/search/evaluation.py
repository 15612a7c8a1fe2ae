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
"""How much of a ranking is looked at, in hits."""

SEED: Final = 20261121
"""What the samples and the typos of the tracks follow from."""

_NOTICED_DEPTH: Final = 5
"""A right tool counts as lost when it would have stood among so many, and was withheld."""

_NAME_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")

_TYPO_WORD: Final = re.compile(r"[A-Za-z]{4,}")

_SEPARATOR: Final = re.compile(r"[_\-. /]")

_MAX_NAMESAKES: Final = 5
"""A name that more tools share than this asks for none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuery:
    """A query and the tools that answer it."""

    id: str
    text: str
    relevant: frozenset[str] = frozenset()
    """Ids of the right tools; empty where no tool fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """How well a ranking, or the mean of many, serves its query; each figure from 0 to 1."""

    recall_1: float = 0.0
    """The share of the right tools that stand first."""
    recall_5: float = 0.0
    recall_10: float = 0.0
    mrr_10: float = 0.0
    """One over the place of the first right tool; 0 past the tenth."""
    ndcg_10: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """The figures under the names that papers use: `recall@1`, ..., `ndcg@10`."""
        return {
            "recall@1": self.recall_1,
            "recall@5": self.recall_5,
            "recall@10": self.recall_10,
            "mrr@10": self.mrr_10,
            "ndcg@10": self.ndcg_10,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """What an evaluation gave."""

    metrics: Metrics
    queries: int
    p50_s: float
    """What half of the queries took at most, in seconds of the clock."""
    p95_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """What a search that may withhold showed: ids, best first."""

    shown: tuple[str, ...] = ()
    sure: tuple[str, ...] = ()
    """Those of them that are not marked as weak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRates:
    """A share of queries, from 0 to 1, at both marks."""

    shown: float
    """For callers who take whatever is shown."""
    sure: float
    """For callers who take only hits that are not marked as weak."""


def score(ranking: Iterable[str], relevant: frozenset[str]) -> Metrics:
    """The figures of one ranking. An id that comes again counts once, at its first place.

    nDCG has binary gains, and its ideal is over `min(10, len(relevant))` places. All figures are 0 where nothing is
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
    """The mean of each figure; all 0 for none.

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
    """The mean over the queries, each asked once, and how long the answers took by the clock, in seconds."""
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
    """The smallest value that the share, 0 to 1, of the values do not exceed; 0 for none.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([4.0, 1.0, 3.0, 2.0], 0.95)
    (2.0, 4.0)
    """
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def false_answers(answers: Iterable[ShownAnswer]) -> AnswerRates:
    """How many queries that no tool fits were answered all the same; 0 for no queries."""
    got = list(answers)
    return _rates([bool(answer.shown) for answer in got], [bool(answer.sure) for answer in got])


def lost_answers(asked: Iterable[tuple[LabelledQuery, Sequence[str], ShownAnswer]]) -> AnswerRates:
    """How many queries lost a right tool to the marks; 0 for no queries.

    Each comes with the ranking of the same search without marks, and with its answer. It is lost when a right tool is
    among the first five of that ranking, and none is in the answer.
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
    """Four ways to ask the same set: what it is called, its tools as (id, name), its queries.

    - `main`: the set's queries, a sample of `most` where there are more.
    - `typo`: the same, with one random typo in one word of at least four letters.
    - `ident`: the names of tools in the other usual spelling: camelCase for snake_case and its like, snake_case for
      camelCase. What the same words name is right. At most half as many as `most`.
    - `name_typo`: the words of those names, with one typo.

    The same arguments give the same queries, on any machine.
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
    """The text with one random typo in one word of at least four letters; unchanged where there is none.

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
    """The word with a letter replaced, left out, put in, or changing places with the next."""
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
    """The words of each name, in lower case, and the ids of the tools whose names have just these."""
    found: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for id_, name in tools:
        found[tuple(_name_words(name))].append(id_)
    return found


def _name_words(name: str) -> Iterator[str]:
    return (word.lower() for word in _NAME_WORD.findall(name))


def _change_style(words: tuple[str, ...], name: str) -> str:
    """The words in the spelling that the name does not have."""
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
