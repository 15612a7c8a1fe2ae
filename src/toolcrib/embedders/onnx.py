"""A transformer in an ONNX file with its `tokenizer.json`: everything is on this machine, nothing is fetched."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from toolcrib.embedders.extras import library, loading
from toolcrib.embedders.rows import embedded, fingerprint
from toolcrib.errors import SettingsError
from toolcrib.search.semantic import Vectors

Pooling = Literal["mean", "cls"]
"""How the vectors of a text's tokens become one: their mean, or the first one, as the model was trained."""

_TEXT_RANK = 2
"""Axes of an output that has one vector a text; one with a vector a token has three."""
_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_QUIET = 3
"""onnxruntime's level of logging that shows errors only."""


class OnnxEmbedder:
    """A sentence model in the layout that exporters write: token ids and a mask in, a vector a token or a text out.

    A model that was quantised dynamically scales its numbers by the whole batch: with it, `batch=1` makes a text's
    vector independent of its neighbours.
    """

    def __init__(
        self,
        model: str | Path,
        tokenizer: str | Path | None = None,
        *,
        pooling: Pooling = "mean",
        max_tokens: int = 256,
        batch: int = 32,
        threads: int = 0,
        provider: str = "CPUExecutionProvider",
    ) -> None:
        """The model's file; its tokenizer is by default the `tokenizer.json` beside it, or one folder above.

        Texts are cut after `max_tokens`. `threads` 0 means one a core. `provider` is onnxruntime's name of a device.
        Raises `MissingExtra` without the libraries, `SettingsError` when a file is missing or cannot be used.
        """
        runtime = library("onnxruntime", extra="onnx")
        tokenizers = library("tokenizers", extra="onnx")
        path = _file(Path(model).expanduser())
        self._batch = batch
        self._pooling = pooling
        with loading(str(model)):
            self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer or _tokenizer_of(path)))
            self._tokenizer.enable_truncation(max_tokens)
            self._tokenizer.no_padding()
            self._unknown = _unknown(self._tokenizer)
            self._session = _session(runtime, path, threads, provider)
            self._inputs = {given.name: _INTEGERS[given.type] for given in self._session.get_inputs()}
            self._output = _output(self._session.get_outputs())
            self.dim, digest = fingerprint(self._encode)
        self.name = f"onnx:{path.name}?pooling={pooling}&max_tokens={max_tokens}#{digest}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text: float32[n, dim], of unit length, or zero where no token of it is in the vocabulary."""
        return embedded(texts, self.dim, self._batch, self._encode)

    def _encode(self, texts: list[str]) -> npt.ArrayLike:
        encodings = self._tokenizer.encode_batch(texts)
        shape = (len(texts), max(1, *(len(encoding.ids) for encoding in encodings)))
        ids, mask, known = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        for row, encoding in enumerate(encodings):
            length = len(encoding.ids)
            ids[row, :length] = encoding.ids
            mask[row, :length] = 1
            known[row, :length] = np.equal(encoding.special_tokens_mask, 0)
        known &= ids != self._unknown
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        given = {name: feed[name].astype(kind, copy=False) for name, kind in self._inputs.items()}
        [output] = self._session.run([self._output], given)
        return self._pooled(output, mask) * known.any(axis=1, keepdims=True)

    def _pooled(self, output: npt.NDArray[Any], mask: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """One vector a text of one vector a token; the padding counts for nothing."""
        if output.ndim == _TEXT_RANK:
            return output
        if self._pooling == "cls":
            return np.asarray(output[:, 0])
        weights = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        return np.asarray(np.einsum("btd,bt->bd", output, weights))


def _file(path: Path) -> Path:
    """The model's file: the path itself, or what is usual in a folder."""
    if not path.is_dir():
        return path
    usual = (path / "model.onnx", path / "onnx" / "model.onnx")
    return next((file for file in usual if file.exists()), usual[0])


def _tokenizer_of(model: Path) -> Path:
    places = (model.parent / "tokenizer.json", model.parent.parent / "tokenizer.json")
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise SettingsError(
            f"There is no tokenizer.json beside {model}.",
            hint="A model comes with its tokenizer: put its tokenizer.json beside it, or name the file.",
        )
    return found


def _session(runtime: Any, path: Path, threads: int, provider: str) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _QUIET
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores have other work than waiting
    session = runtime.InferenceSession(str(path), options, providers=[provider])
    strange = sorted({given.name for given in session.get_inputs()} - _INPUTS)
    if strange:
        raise SettingsError(
            f"The model {path} wants {', '.join(strange)}, which a text does not give.",
            hint=f"A sentence model takes {', '.join(sorted(_INPUTS))}.",
        )
    return session


def _output(outputs: Sequence[Any]) -> str:
    """The name of the output that holds the vectors: those of whole texts, where the model says so, else the first."""
    names = [output.name for output in outputs]
    return "sentence_embedding" if "sentence_embedding" in names else str(names[0])


def _unknown(tokenizer: Any) -> int:
    """The id of the token that stands for what is not in the vocabulary; -1 where there is none."""
    token = getattr(tokenizer.model, "unk_token", None)
    found = None if token is None else tokenizer.token_to_id(token)
    return -1 if found is None else int(found)
