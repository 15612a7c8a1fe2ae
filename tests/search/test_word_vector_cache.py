"""The vectors of the words of queries, cached or not."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from toolcrib.search.features import SemanticModel
from toolcrib.search.vectors import COARSE_COMPONENTS, WordVectorCache, default_table, quantize_unit_vectors

TABLE = default_table()
WEIGHTS = SemanticModel(TABLE).word_weights


def holds(rows: WordVectorCache, words: Sequence[str]) -> bool:
    """Whether these words get the rows of the table."""
    said, vectors = rows.get(words), TABLE.word_vectors(words)
    coarse = quantize_unit_vectors(vectors[:, :COARSE_COMPONENTS])
    pairs = (
        (said.vectors, vectors),
        (said.weights, WEIGHTS(words)),
        (said.coarse.values, coarse.values),
        (said.coarse.scales, coarse.scales),
    )
    return all(np.array_equal(one, other) for one, other in pairs)


def test_cached_and_new_words_have_the_rows_of_the_table() -> None:
    rows = WordVectorCache(TABLE, WEIGHTS)
    for words in (["send", "mail"], ["mail", "the", "xyzzyq", "send"], ["天気"], [], ["mail"]):
        assert holds(rows, words)
        assert holds(rows, words)


def test_more_words_than_fit_into_the_cache_get_their_rows() -> None:
    rows = WordVectorCache(TABLE, WEIGHTS)
    known = [f"weather{number}" for number in range(5_000)]
    for start in range(0, len(known), 150):
        assert holds(rows, known[start : start + 150])
    assert holds(rows, known)


def test_several_threads_can_look_up_the_same_words() -> None:
    rows = WordVectorCache(TABLE, WEIGHTS)
    asked = [[f"mail{number % 700}", f"send{number % 900}", "the"] for number in range(3_000)]
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda words: holds(rows, words), asked))
