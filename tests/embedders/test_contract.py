"""The contract of every embedder, whatever its model."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolcrib.embedders.cache import CachedEmbedder
from toolcrib.embedders.models import load
from toolcrib.search.embedder import Embedder

KINDS = ("static", "model2vec", "cached")
TEXTS = ("find the file", "send a mail", "opening issues.", "the last content of a file, and more words to pad it out")
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)

Make = Callable[[], Embedder]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    kind = request.param
    if kind == "static":
        return lambda: load("static")
    folder = request.getfixturevalue("static_folder")
    if kind == "model2vec":
        return lambda: load(f"model2vec:{folder}")
    return lambda: CachedEmbedder(load(f"model2vec:{folder}"), tmp_path)


@pytest.fixture
def embedder(make: Make) -> Iterator[Embedder]:
    made = make()
    yield made
    if isinstance(made, CachedEmbedder):
        made.close()


def test_it_is_an_embedder_with_a_stable_name(make: Make) -> None:
    first, second = make(), make()
    assert isinstance(first, Embedder)
    assert first.name == second.name
    for made in (first, second):
        if isinstance(made, CachedEmbedder):
            made.close()


def test_each_text_gives_a_float_row_of_unit_length(embedder: Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dim)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)


def test_no_texts_give_no_rows(embedder: Embedder) -> None:
    vectors = embedder.embed([])
    assert vectors.shape == (0, embedder.dim)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_a_blank_text_gives_a_row_of_zeros(embedder: Embedder, blank: str) -> None:
    vectors = embedder.embed([TEXTS[0], blank])
    assert vectors[0].any()
    assert not vectors[1].any()


def test_different_texts_give_different_rows(embedder: Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    likeness = vectors @ vectors.T
    assert (likeness[~np.eye(len(TEXTS), dtype=bool)] < 0.999).all()


def test_neither_order_nor_other_texts_change_a_row(embedder: Embedder) -> None:
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    for order in permutations(range(len(TEXTS))):
        together = embedder.embed([TEXTS[place] for place in order])
        np.testing.assert_allclose(together, alone[list(order)], atol=1e-5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(texts=st.lists(ANY_TEXT, max_size=5))
def test_any_text_gives_a_unit_row_or_zeros(embedder: Embedder, texts: list[str]) -> None:
    vectors = embedder.embed(texts)
    lengths = np.linalg.norm(vectors, axis=1)
    assert vectors.shape == (len(texts), embedder.dim)
    assert ((np.abs(lengths - 1) < 1e-5) | (lengths == 0)).all()


def test_a_lone_surrogate_is_accepted(embedder: Embedder) -> None:
    [broken, sound] = embedder.embed(["find \ud800 file", "find ? file"])
    np.testing.assert_allclose(broken, sound, atol=1e-5)


def test_a_very_long_text_is_accepted(embedder: Embedder) -> None:
    vectors = embedder.embed(["find the file " * 100_000, "find" * 100_000])
    assert np.isfinite(vectors).all()


def test_threads_can_share_it(embedder: Embedder) -> None:
    wanted = embedder.embed(TEXTS)
    with ThreadPoolExecutor(8) as threads:
        for vectors in threads.map(embedder.embed, [TEXTS] * 200):
            np.testing.assert_allclose(vectors, wanted, atol=1e-5)
