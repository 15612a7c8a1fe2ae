"""Create an embedder from one line of a settings file."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Final, get_args
from urllib.parse import parse_qsl

import numpy as np

from toolcrib.embedders.models import (
    FastEmbed,
    Model2Vec,
    OnnxEmbedder,
    SentenceTransformers,
    StaticEmbedder,
    model_errors,
)
from toolcrib.errors import SettingsError
from toolcrib.names import nearest
from toolcrib.search.vectors import Embedder

BUILT_IN_EMBEDDER: Final = "static"

EMBEDDER_KINDS: Final[Mapping[str, Callable[..., Embedder]]] = {
    "fastembed": FastEmbed,
    "model2vec": Model2Vec,
    "onnx": OnnxEmbedder,
    "sentence-transformers": SentenceTransformers,
}
"""The text before the colon, and the class to create."""

_LENGTH_TOLERANCE: Final = 1e-3


def load(spec: str) -> Embedder:
    """Create the embedder that a setting names: `static`, `kind:model`, or `package.module:factory` for your own.

    The kinds are those of `EMBEDDER_KINDS`; a model is a name on the hub of its library, or a path. Options may follow,
    as in `onnx:model.onnx?pooling=cls&threads=2`. A factory takes no arguments and returns an `Embedder`. Raises
    `SettingsError` for anything else and for a model that cannot be loaded, and `MissingExtra` if the library is not
    installed.

    >>> load("static").embed(["Find a file."]).any()
    np.True_
    >>> load("model2vek:minishlab/potion-base-8M")
    Traceback (most recent call last):
    toolcrib.errors.SettingsError: There is no embedder 'model2vek'. Did you mean 'model2vec'?
    """
    kind, _, rest = spec.strip().partition(":")
    if kind == BUILT_IN_EMBEDDER and not rest:
        return StaticEmbedder()
    if kind in EMBEDDER_KINDS:
        model, _, query = rest.partition("?")
        if not model:
            raise SettingsError(f"The embedder {kind!r} needs a model.", hint=f'Write "{kind}:" and its name or path.')
        return EMBEDDER_KINDS[kind](model, **parse_options(EMBEDDER_KINDS[kind], query))
    if rest.isidentifier() and _module_exists(kind):
        return _load_factory(kind, rest)
    raise _unknown_embedder(kind)


def _unknown_embedder(kind: str) -> SettingsError:
    known = (BUILT_IN_EMBEDDER, *EMBEDDER_KINDS)
    near = nearest(kind, known, limit=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Use one of {', '.join(known)}, or package.module:factory."
    return SettingsError(f"There is no embedder {kind!r}.", hint=hint, suggestions=near)


def _module_exists(module: str) -> bool:
    """Whether a module exists. Imports its parent packages."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _load_factory(module: str, factory: str) -> Embedder:
    what = f"{module}:{factory}"
    with model_errors(what, hint=f"The error comes from {module}, which is not part of toolcrib."):
        make: Any = getattr(import_module(module), factory)
        return check_embedder(make(), what)


def check_embedder(embedder: Any, what: str) -> Embedder:
    """Try an embedder on two texts. Raises `SettingsError` if it breaks the contract of `Embedder`."""
    if not isinstance(embedder, Embedder):
        raise SettingsError(f"{what} returns {type(embedder).__name__}, which lacks `name`, `dim` or `embed`.")
    vectors: Any = embedder.embed(["Find a file.", ""])
    shape = (2, embedder.dim)
    if not isinstance(vectors, np.ndarray) or vectors.shape != shape or vectors.dtype != np.float32:
        raise SettingsError(f"{what} must return float32 of shape {shape} for two texts.")
    lengths = np.linalg.norm(vectors, axis=1)
    if not np.all((np.abs(lengths - 1) < _LENGTH_TOLERANCE) | (lengths == 0)):
        raise SettingsError(f"{what} must return rows of unit length or zero.", hint="Divide each row by its length.")
    return embedder


_PARSERS: Final[dict[type, Callable[[str], Any]]] = {int: int, str: str, Path: Path}


def parse_options(adapter: Callable[..., Any], query: str) -> dict[str, Any]:
    """Parse a query string into keyword arguments. Raises `SettingsError` for an unknown option or an invalid value.

    >>> def adapter(model: str, *, threads: int | None = None) -> None: ...
    >>> parse_options(adapter, "threads=2")
    {'threads': 2}
    >>> parse_options(adapter, "thread=2")
    Traceback (most recent call last):
    toolcrib.errors.SettingsError: There is no option 'thread'. Did you mean 'threads'?
    """
    kinds = _option_kinds(adapter)
    return {name: _parse_value(name, text, kinds) for name, text in parse_qsl(query, keep_blank_values=True)}


def _option_kinds(adapter: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Map each option to its possible types, or its possible words."""
    named = [given for given in signature(adapter).parameters.values() if given.kind is Parameter.KEYWORD_ONLY]
    return {given.name: get_args(given.annotation) or (given.annotation,) for given in named}


def _parse_value(name: str, text: str, kinds: dict[str, tuple[Any, ...]]) -> Any:
    if name not in kinds:
        near = nearest(name, kinds, limit=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(kinds)}."
        raise SettingsError(f"There is no option {name!r}.", hint=hint, suggestions=near)
    first = kinds[name][0]
    if isinstance(first, str):
        if text not in kinds[name]:
            raise SettingsError(f"The option {name!r} must be one of {', '.join(kinds[name])}, not {text!r}.")
        return text
    try:
        return _PARSERS[first](text)
    except ValueError as error:
        raise SettingsError(f"The option {name!r} must be a number, not {text!r}.") from error
