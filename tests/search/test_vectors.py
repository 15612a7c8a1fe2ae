"""Vectors: the shipped table and golden vectors, tables of other shapes, eight bits, and the cache of query words."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toolcrib.search.features import SemanticModel
from toolcrib.search.vectors import (
    COARSE_COMPONENTS,
    TABLE_SHA256,
    QuantizedRows,
    WordPieceTable,
    WordVectorCache,
    default_table,
    quantize,
    quantize_query,
    quantize_unit_vectors,
)

TEXTS = ["send an email", "deliver a mail message", "delete a calendar event", "What's the weather in Zürich?"]
FIRST = [
    [0.0729, -0.0016, 0.0238, -0.0485],
    [0.0633, 0.0036, 0.0227, -0.0109],
    [0.0421, 0.1159, 0.219, -0.0909],
    [0.0484, -0.0337, -0.135, 0.1085],
]
LIKENESS = [
    [1.0, 0.7416, 0.0896, 0.0384],
    [0.7416, 1.0, 0.0674, 0.0106],
    [0.0896, 0.0674, 1.0, 0.1237],
    [0.0384, 0.0106, 0.1237, 1.0],
]
"""Computed by an independent program that reads the file number by number."""

PIECES = ["find", "file", "##s", "##name", "#"]


def small(bits: int = 8, dim: int = 6, **changed: Any) -> bytes:
    """A table of five pieces, as a file."""
    values = np.random.default_rng(1).integers(-7, 8, (len(PIECES), dim)).astype(np.int8)
    arrays: dict[str, Any] = {
        "meta": np.array([dim, bits]),
        "vocab": np.frombuffer("\n".join(PIECES).encode(), dtype=np.uint8),
        "q": values if bits == 8 else packed(values),
        "s": np.arange(1, len(PIECES) + 1, dtype=np.float16),
    }
    file = BytesIO()
    np.savez(file, **(arrays | changed))
    return file.getvalue()


def packed(values: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Pack two numbers into each byte."""
    return ((values[:, ::2] + 8) | ((values[:, 1::2] + 8) << 4)).astype(np.uint8)


def close(found: Any, wanted: Any, to: float = 1e-6) -> bool:
    return bool(np.allclose(found, wanted, rtol=0, atol=to))


def test_the_shipped_file_has_the_recorded_hash_and_its_notice() -> None:
    folder = files("toolcrib.search") / "data"
    assert sha256((folder / "toolvec.npz").read_bytes()).hexdigest() == TABLE_SHA256
    assert "Apache License 2.0" in (folder / "NOTICE").read_text()


def test_an_index_without_tools_does_not_read_the_table() -> None:
    program = """
import toolcrib.search.vectors as vectors
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.types import Tool
read, vectors.files = vectors.files, None
Index.build(())
table = vectors.default_table()
print(table.dim)
vectors.files = read
print(Index.build([Tool(name="send_mail")]).model.table.knows("mail"), table.word_vectors(["mail"]).shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == (["256", "True (1, 256)"], "")


def test_the_shipped_table_is_read_once() -> None:
    assert WordPieceTable.load() is WordPieceTable.load() is default_table()


def test_texts_get_the_golden_vectors() -> None:
    vectors = WordPieceTable.load().embed(TEXTS)
    assert vectors.shape == (4, 256)
    assert vectors.dtype == np.float32
    assert close(vectors[:, :4], FIRST, 6e-5)
    assert close(vectors @ vectors.T, LIKENESS, 6e-5)


def test_the_vector_of_a_word_is_the_sum_of_its_rows() -> None:
    vectors = WordPieceTable.load().word_vectors(["weather", "kubernetes"])
    assert vectors.dtype == np.float32
    assert close(vectors[:, :4], [[0.0, -0.0953, -0.1907, 0.0953], [-0.063, 0.12, -0.1496, -0.0234]], 6e-5)


def test_a_word_weighs_as_much_as_its_rarest_piece_and_an_unknown_one_as_the_rarest() -> None:
    weights = WordPieceTable.load().word_weights(["get", "weather", "kubernetes", "銀河", ""])
    assert weights.dtype == np.float32
    assert close(weights, [1.6045, 7.2109, 5.957, 12.8984, 12.8984], 6e-5)
    few = WordPieceTable.load(small(idf=np.array([1, 2, 3, 4, 5], dtype=np.float16)))
    assert few.word_weights(["find", "file", "files", "FILENAME", "xyz"]).tolist() == [1, 2, 3, 4, 5]


def test_without_idf_all_words_have_the_same_weight() -> None:
    assert WordPieceTable.load(small()).word_weights(["find", "files", "xyz"]).tolist() == [1, 1, 1]
    assert WordPieceTable.load(small()).word_weights([]).shape == (0,)


def test_words_with_similar_meanings_are_closer_than_others() -> None:
    table = WordPieceTable.load()
    for near, nearer, far in [("movie", "film", "invoice"), ("weather", "forecast", "repository")]:
        vectors = table.embed([near, nearer, far])
        assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_a_word_is_split_into_the_longest_pieces() -> None:
    table = WordPieceTable.load(small())
    assert table.pieces("find") == (0,)
    assert table.pieces("files") == (1, 2)
    assert table.pieces("filename") == (1, 3)
    assert table.pieces("FiLés") == (1, 2)
    assert table.pieces("#") == (4,)


@pytest.mark.parametrize(
    "word", ["", "s", "name", "##s", "file_name", "filex", "xfile", "天気", "fileя", "file" + "s" * 64]
)
def test_a_word_with_an_unknown_part_has_no_pieces(word: str) -> None:
    table = WordPieceTable.load(small())
    assert table.pieces(word) == ()
    assert not table.word_vectors([word]).any()


def test_only_whole_pieces_are_known_words() -> None:
    table = WordPieceTable.load(small())
    assert [word for word in ["find", "files", "FILE", "name", "##s", ""] if table.knows(word)] == ["find", "FILE"]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Find the FILES!", "find files"),
        ("file-name_files", "file name files"),
        ("find (file)", "file; find"),
        ("find fileя", "find"),
        ("find天files", "find files"),
        ("find\nfile", "find file"),
    ],
)
def test_punctuation_case_and_order_do_not_matter(text: str, same: str) -> None:
    vectors = WordPieceTable.load(small()).embed([text, same])
    assert vectors.any()
    assert close(vectors[0], vectors[1])


@pytest.mark.parametrize("text", ["", "   ", "!?", "天気", "погода", "name", "\ud800"])
def test_a_text_without_known_words_has_a_zero_vector(text: str) -> None:
    assert not WordPieceTable.load(small()).embed([text]).any()


def test_no_words_or_texts_give_no_rows() -> None:
    table = WordPieceTable.load(small())
    assert table.word_vectors([]).shape == table.embed([]).shape == (0, 6)


@pytest.mark.parametrize(("bits", "dim"), [(4, 256), (4, 384), (8, 256), (8, 384), (8, 5)])
def test_a_table_can_have_other_dimensions_and_bits(bits: int, dim: int) -> None:
    table = WordPieceTable.load(small(bits, dim))
    wanted = np.random.default_rng(1).integers(-7, 8, (len(PIECES), dim)) * np.arange(1, 6)[:, None]
    assert table.dim == dim
    assert np.array_equal(table.word_vectors(["find", "file", "files"]), [wanted[0], wanted[1], wanted[1] + wanted[2]])
    unit = (wanted[0] + wanted[1]) / np.linalg.norm(wanted[0] + wanted[1])
    assert close(table.embed(["find file"]), unit)


def test_a_text_whose_rows_cancel_out_has_a_zero_vector() -> None:
    table = WordPieceTable(["up", "down"], np.array([[1, 2], [-1, -2]], dtype=np.int8), [1, 1])
    assert not table.embed(["up down"]).any()
    assert table.embed(["up"]).any()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an archive",
        small()[:200],
        small(meta=np.array([7, 8])),
        small(meta=np.array([6])),
        small(bits=4, meta=np.array([6, 8])),
        small(meta=np.array([6, 4])),
        small(meta=np.array([6, 2])),
        small(s=np.ones(4)),
        small(idf=np.ones(4)),
        small(vocab=np.frombuffer(b"one\ntwo", dtype=np.uint8)),
        small(vocab=np.frombuffer(b"\xff", dtype=np.uint8)),
        small(q=np.zeros(6, dtype=np.int8)),
        small(q=np.array([{}], dtype=object)),
    ],
)
def test_an_invalid_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        WordPieceTable.load(data)


WORDS = st.lists(st.sampled_from(["send", "email", "kubernetes", "invoice", "xyzzy", "天気", "", "a1"]), max_size=12)


def rows(vectors: npt.NDArray[np.float32]) -> list[bytes]:
    return [row.tobytes() for row in vectors]


@settings(deadline=None)
@given(WORDS, st.randoms(use_true_random=False))
def test_other_words_and_texts_do_not_change_a_vector(words: list[str], random: Any) -> None:
    table = WordPieceTable.load()
    texts = [f"{word} a file" for word in words]
    order: Sequence[int] = random.sample(range(len(words)), len(words))
    for method, given_texts in ((table.word_vectors, words), (table.embed, texts)):
        alone = [row for text in given_texts for row in rows(method([text]))]
        assert rows(method([given_texts[place] for place in order])) == [alone[place] for place in order]


@settings(deadline=None)
@given(st.lists(st.text(), max_size=4))
def test_any_text_gives_a_unit_or_zero_vector(texts: list[str]) -> None:
    table = WordPieceTable.load()
    vectors = table.embed(texts)
    lengths = np.linalg.norm(vectors, axis=1)
    assert vectors.shape == (len(texts), 256)
    assert np.isfinite(table.word_vectors(texts)).all()
    assert all(abs(length - 1) < 1e-5 or length == 0 for length in lengths.tolist())


# -- vectors in eight bits ---------------------------------------------------------------------------------------------


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


# -- the cache ---------------------------------------------------------------------------------------------------------


TABLE = default_table()
WEIGHTS = SemanticModel(TABLE).word_weights


def holds(rows: WordVectorCache, words: Sequence[str]) -> bool:
    """Whether these words get the rows of the table, the short ones in the order of the telling words."""
    telling = [*range(len(words))][::-2]
    said, vectors = rows.get(words, telling), TABLE.word_vectors(words)
    coarse = quantize_unit_vectors(vectors[:, :COARSE_COMPONENTS])
    pairs = (
        (said.vectors, vectors),
        (said.weights, WEIGHTS(words)[telling]),
        (said.coarse.values, coarse.values[telling]),
        (said.coarse.scales, coarse.scales[telling]),
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
    asked = [[f"mail{number % 1_500}", f"send{number % 1_700}", "the"] for number in range(4_000)]
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda words: holds(rows, words), asked))
