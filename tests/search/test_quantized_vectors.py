"""Vectors in eight bits: close to the originals, with exact products."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toolcrib.search.vectors import QuantizedRows, quantize, quantize_query


def vectors(rows: int, dim: int) -> st.SearchStrategy[Any]:
    parts = st.floats(-1, 1, width=32).map(lambda part: part if abs(part) > 1e-20 else 0.0)
    return arrays.arrays(np.float32, (rows, dim), elements=parts)


def drawn(rows: int, dim: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


@settings(deadline=None)
@given(vectors(3, 16))
def test_quantization_is_exact_to_half_a_step(given_rows: Any) -> None:
    rows = quantize(given_rows)
    found = rows.dequantize(np.arange(3))
    largest = np.abs(given_rows).max(axis=1, keepdims=True)
    assert rows.values.dtype == np.int8
    assert np.all(np.abs(found - given_rows) <= largest / 127 * 0.5001)
    assert not found[(given_rows == 0).all(axis=1)].any()


def exact(rows: QuantizedRows, place: int, vector: int, asked: Any) -> float:
    """One product, in integers of any size."""
    whole = sum(
        int(a) * int(b) for a, b in zip(rows.values[place].tolist(), asked.values[vector].tolist(), strict=True)
    )
    return float(whole) * float(asked.scales[vector]) * float(rows.scales[place])


@pytest.mark.parametrize("dim", [1, 5, 64, 256, 384, 1024])
@pytest.mark.parametrize("count", [1, 3])
def test_a_product_is_exact_whatever_is_computed_with_it(dim: int, count: int) -> None:
    rows, asked = quantize(drawn(40, dim)), quantize_query(drawn(count, dim, 1))
    together = rows.products(np.arange(40), asked)
    for place in range(40):
        alone = rows.products(np.array([place]), asked)[:, 0]
        few = rows.products(np.array([39, place, 0]), asked)[:, 1]
        assert together[:, place].tolist() == alone.tolist() == few.tolist()
    assert together[:, 7].tolist() == [exact(rows, 7, vector, asked) for vector in range(count)]


def test_the_largest_products_stay_exact() -> None:
    for dim in (1, 64, 256, 384, 1024, 4096):
        ones = np.ones((1, dim), dtype=np.float32)
        rows, asked = quantize(ones), quantize_query(ones)
        assert rows.products(np.array([0]), asked)[0, 0] == exact(rows, 0, 0, asked)
        assert abs(rows.values[0].astype(np.float64) @ asked.values[0]) < 1 << 24


def test_products_are_close_to_those_of_the_original_vectors() -> None:
    left, right = drawn(50, 256), drawn(4, 256, 1)
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    right /= np.linalg.norm(right, axis=1, keepdims=True)
    assert np.allclose(quantize(left).products(np.arange(50), quantize_query(right)), right @ left.T, atol=0.01)


def test_a_vector_of_zeros_has_products_of_zero() -> None:
    rows = quantize(np.zeros((2, 8), dtype=np.float32))
    assert not rows.products(np.arange(2), quantize_query(drawn(3, 8))).any()
    assert not quantize(drawn(2, 8)).products(np.arange(2), quantize_query(np.zeros((1, 8), np.float32))).any()


def test_no_rows_give_no_products() -> None:
    rows = quantize(np.zeros((0, 8), dtype=np.float32))
    assert len(rows) == 0
    assert rows.products(np.zeros(0, np.int32), quantize_query(drawn(3, 8))).shape == (3, 0)


def test_take_copies_rows_and_put_overwrites_them() -> None:
    rows = quantize(drawn(5, 8))
    taken = rows.take(np.array([4, 0]))
    assert taken.dequantize(np.array([0])).tolist() == rows.dequantize(np.array([4])).tolist()
    taken.put(np.array([1]), rows.take(np.array([2])))
    assert taken.dequantize(np.array([1])).tolist() == rows.dequantize(np.array([2])).tolist()
    assert rows.dequantize(np.array([0])).tolist() == quantize(drawn(5, 8)).dequantize(np.array([0])).tolist()
