"""What every adapter does around its model: only texts that say something go in, only unit or zero rows come out."""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from toolcrib.search.semantic import Vectors

Encode = Callable[[list[str]], npt.ArrayLike]
"""A model: n texts to [n, dim], of any length and any kind of float."""

_PROBE = "Find the file that was changed last, and send its content by e-mail."
_MAX_CHARS = 50_000
"""A longer text is cut before it is split into tokens: no model reads further, and a tokenizer's time is bounded."""
_STEPS = 100
"""How finely a component of a fingerprint is seen."""


def embedded(texts: Sequence[str], dim: int, batch: int, encode: Encode) -> Vectors:
    """What the model makes of the texts, at most `batch` of them at a time: float32[n, dim], unit or zero rows.

    Blank texts are zero rows without asking the model. Texts of one length go together, since a model pads each to
    the longest of its batch.
    """
    vectors = np.zeros((len(texts), dim), dtype=np.float32)
    places = sorted((place for place, text in enumerate(texts) if text.strip()), key=lambda place: len(texts[place]))
    for start in range(0, len(places), batch):
        some = places[start : start + batch]
        vectors[some] = unit(encode([clean(texts[place]) for place in some]))
    return vectors


def unit(rows: npt.ArrayLike) -> Vectors:
    """Rows scaled to unit length: float32[n, dim]. A row of zeros, or one that is not finite, is zero.

    >>> unit([[3, 4], [0, 0], [float("nan"), 1]]).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0], [0.0, 0.0]]
    """
    array = np.array(rows, dtype=np.float64)
    array[~np.isfinite(array).all(axis=1)] = 0
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array))
    scaled: Vectors = (array / np.where(lengths > 0, lengths, 1)[:, None]).astype(np.float32)
    return scaled


def clean(text: str) -> str:
    r"""The text as any library takes it: not too long; half a surrogate pair, which JSON may hold, becomes "?".

    >>> clean("a\ud800b")
    'a?b'
    """
    text = text[:_MAX_CHARS]
    return text if text.isascii() else text.encode(errors="replace").decode()


def fingerprint(encode: Encode) -> tuple[int, str]:
    """The components of a model's vectors, and eight characters that change when its vectors do.

    A model is known by what it answers: a path or a name stays when the file behind it is replaced.
    """
    vector = unit(encode([_PROBE]))
    rounded = np.rint(vector * _STEPS).astype(np.int16)  # processors differ in the last digits
    return vector.shape[1], blake2b(rounded.tobytes(), digest_size=4).hexdigest()
