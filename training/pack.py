"""Pack the table: rotate to the principal axes of the documents, quantize to four bits, count document frequencies."""

import itertools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]  # scipy ships no types

from training.student import Floats, unit

_BITS = 4
_STEPS = np.linspace(0.53, 1.43, 19)
_BLOCKS = (0, 32, 64)
_SEED = 11


def rotate(table: Floats, documents: sparse.csr_matrix) -> Floats:
    """Rotate the table so that its first 32 and 64 dimensions carry most of the documents' variance.

    Cosines stay as they are. Inside the blocks 0..31, 32..63 and the rest the axes are turned at random, which spreads
    the variance evenly: with the bare principal axes the first values of a row would be clipped at four bits.
    """
    vectors, _ = unit(np.asarray(documents @ table, dtype=np.float32))
    centred = (vectors - vectors.mean(axis=0)).astype(np.float64)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1].copy()
    rng = np.random.default_rng(_SEED)
    edges = (*_BLOCKS, table.shape[1])
    for begin, end in itertools.pairwise(edges):
        turn, _ = np.linalg.qr(rng.standard_normal((end - begin, end - begin)))
        axes[:, begin:end] = axes[:, begin:end] @ turn
    return np.asarray(table @ axes, dtype=np.float32)


def quantise(table: Floats) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Quantize to values in -8..7 and one scale per row, the one with the smallest squared error.

    No scale is finer than about half the row's root mean square: finer ones gain nothing that can be measured (2 % of
    the squared length is lost), and the uneven values they avoid let deflate take a sixth off the file.
    """
    rms = np.sqrt((table**2).mean(axis=1, keepdims=True))
    values = np.zeros(table.shape, dtype=np.int8)
    scales = np.zeros(len(table), dtype=np.float16)
    error = np.full(len(table), np.inf)
    for share in _STEPS:
        scale = (rms * share).astype(np.float16)
        wide = np.where(scale > 0, scale, 1).astype(np.float32)
        tried = np.clip(np.rint(table / wide), -8, 7)
        now = ((tried * wide - table) ** 2).sum(axis=1)
        better = now < error
        error[better], scales[better] = now[better], scale[better, 0]
        values[better] = tried[better]
    return values, scales


def piece_weights(documents: sparse.csr_matrix) -> NDArray[np.float16]:
    """Compute ln(1 + (N - df + .5) / (df + .5)) of every piece over the documents."""
    count = documents.shape[0]
    frequency = np.asarray((documents > 0).sum(axis=0)).ravel()
    return np.asarray(np.log1p((count - frequency + 0.5) / (frequency + 0.5)), dtype=np.float16)


def write(path: Path, names: list[str], table: Floats, weights: NDArray[np.float16]) -> None:
    """Write the table: `meta`, `vocab`, `q` (low nibble first, value + 8), `s` and `idf`."""
    values, scales = quantise(table)
    shifted = (values + 8).astype(np.uint8)
    np.savez_compressed(
        path,
        meta=np.array([table.shape[1], _BITS]),
        vocab=np.frombuffer("\n".join(names).encode(), dtype=np.uint8),
        q=shifted[:, 0::2] | (shifted[:, 1::2] << 4),
        s=scales,
        idf=weights,
    )


def read(path: Path) -> tuple[list[str], Floats]:
    """Read a file of this format: the names of the pieces, and the table as float32."""
    with np.load(path) as arrays:
        packed, scales = arrays["q"], arrays["s"].astype(np.float32)
        names = bytes(arrays["vocab"]).decode().split("\n")
    table = np.empty((len(packed), packed.shape[1] * 2), dtype=np.float32)
    table[:, 0::2] = (packed & 15).astype(np.float32) - 8
    table[:, 1::2] = (packed >> 4).astype(np.float32) - 8
    return names, table * scales[:, None]
