"""From one line of a settings file to an embedder."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from toolcrib.embedders.extras import loading
from toolcrib.embedders.fastembed import FastEmbed
from toolcrib.embedders.model2vec import Model2Vec
from toolcrib.embedders.onnx import OnnxEmbedder
from toolcrib.embedders.sentence_transformers import SentenceTransformers
from toolcrib.embedders.spec import options
from toolcrib.embedders.static import Static
from toolcrib.errors import SettingsError
from toolcrib.search.semantic import Embedder
from toolcrib.words import nearest

BUILT_IN: Final = "static"
KINDS: Final[Mapping[str, Callable[..., Embedder]]] = {
    "fastembed": FastEmbed,
    "model2vec": Model2Vec,
    "onnx": OnnxEmbedder,
    "sentence-transformers": SentenceTransformers,
}
"""What stands before the colon, and what is made of the rest."""

_TOLERANCE: Final = 1e-3


def load(spec: str) -> Embedder:
    """The embedder that a setting names: `static`, `kind:model`, or `package.module:factory` for one of your own.

    Kinds are those of `KINDS`; a model is a name on its library's hub, or a path. Options of the kind may follow, as in
    `onnx:model.onnx?pooling=cls&threads=2`. A factory takes nothing and returns an `Embedder`. Raises `SettingsError`
    for anything else or for a model that cannot be loaded, and `MissingExtra` when the kind's library is not installed.

    >>> load("static").embed(["Find a file."]).any()
    np.True_
    >>> load("model2vek:minishlab/potion-base-8M")
    Traceback (most recent call last):
    toolcrib.errors.SettingsError: There is no embedder 'model2vek'. Did you mean 'model2vec'?
    """
    kind, _, rest = spec.strip().partition(":")
    if kind == BUILT_IN and not rest:
        return Static()
    if kind in KINDS:
        model, _, query = rest.partition("?")
        if not model:
            raise SettingsError(f"The embedder {kind!r} needs a model.", hint=f'Write "{kind}:" and its name or path.')
        return KINDS[kind](model, **options(KINDS[kind], query))
    if rest.isidentifier() and _exists(kind):
        return _own(kind, rest)
    raise _unknown(kind)


def _unknown(kind: str) -> SettingsError:
    known = (BUILT_IN, *KINDS)
    near = nearest(kind, known, limit=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}, and package.module:factory."
    return SettingsError(f"There is no embedder {kind!r}.", hint=hint, suggestions=near)


def _exists(module: str) -> bool:
    """Whether there is a module of that name; the packages around it are imported on the way."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _own(module: str, factory: str) -> Embedder:
    what = f"{module}:{factory}"
    with loading(what, hint=f"It was raised by {module}, which is not part of toolcrib."):
        make: Any = getattr(import_module(module), factory)
        return checked(make(), what)


def checked(embedder: Any, what: str) -> Embedder:
    """The embedder, if it keeps the promise of the seam on two texts; else `SettingsError`."""
    if not isinstance(embedder, Embedder):
        raise SettingsError(f"{what} gives {type(embedder).__name__}, which lacks `name`, `dim` or `embed`.")
    vectors: Any = embedder.embed(["Find a file.", ""])
    shape = (2, embedder.dim)
    if not isinstance(vectors, np.ndarray) or vectors.shape != shape or vectors.dtype != np.float32:
        raise SettingsError(f"{what} must give float32 of shape {shape} for two texts.")
    lengths = np.linalg.norm(vectors, axis=1)
    if not np.all((np.abs(lengths - 1) < _TOLERANCE) | (lengths == 0)):
        raise SettingsError(f"{what} must give rows of unit length, or zero.", hint="Divide each by its length.")
    return embedder
