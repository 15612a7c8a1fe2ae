"""Blend two tables: rotate the second onto the axes of the first, and mix in a share of it.

    python -m training.blend FIRST.npz SECOND.npz --share 0.35 --out toolvec.npz

Two trainings on different texts make different mistakes; their mean makes fewer. Vocabulary and `idf` are the first's.
"""

import argparse
from pathlib import Path

import numpy as np

from training.pack import read, write
from training.student import Floats


def blended(first: tuple[list[str], Floats], second: tuple[list[str], Floats], share: float) -> Floats:
    """Mix a share of the second table, 0 to 1, into the rows of the pieces that both have."""
    names, table = first
    other = dict(zip(second[0], second[1], strict=True))
    both = np.array([name in other and bool(other[name].any()) for name in names])
    rows = np.stack([other[name] for name, shared in zip(names, both, strict=True) if shared])
    turned = rows @ _turn(rows, table[both])
    turned *= np.linalg.norm(table[both]) / np.linalg.norm(turned)
    mixed = table.copy()
    mixed[both] = (1 - share) * table[both] + share * turned
    return mixed


def _turn(rows: Floats, onto: Floats) -> Floats:
    """Find the rotation that best aligns rows with others. Source: Schönemann, Psychometrika, 1966."""
    left, _, right = np.linalg.svd(_directions(rows).T @ _directions(onto))
    return np.asarray(left @ right, dtype=np.float32)


def _directions(rows: Floats) -> Floats:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9), dtype=np.float32)


def main() -> None:
    """Blend the two tables given on the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.blend")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--share", type=float, default=0.35)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    first = read(given.first)
    with np.load(given.first) as arrays:
        weights = arrays["idf"]
    write(given.out, first[0], blended(first, read(given.second), given.share), weights)


if __name__ == "__main__":
    main()
