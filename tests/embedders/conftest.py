"""Tiny models made by the tests: a vocabulary of a few words, eight components, no network."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from model2vec import StaticModel
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (*SPECIAL, "find", "send", "open", "file", "mail", "issue", "the", "a", "##s", "##ing", "last", "content", ".")
DIM = 8
ROWS = np.random.default_rng(7).normal(size=(len(WORDS), DIM)).astype(np.float32)
FASTEMBED_MODEL = "toolcrib-tests/tiny"


def make_tokenizer(*, special: bool) -> Tokenizer:
    tokenizer = Tokenizer(WordPiece({word: row for row, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    if special:
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
        )
    return tokenizer


def make_onnx(path: Path, *, inputs: Mapping[str, int] | None = None, output: str = "last_hidden_state") -> Path:
    """Make a model whose output is the row of each token; if it is `sentence_embedding`, that of the second token."""
    inputs = inputs or {"input_ids": TensorProto.INT64, "attention_mask": TensorProto.INT64}
    per_token = output == "last_hidden_state"
    nodes = [helper.make_node("Gather", ["rows", "input_ids"], [output if per_token else "tokens"])]
    if not per_token:
        nodes.append(helper.make_node("Gather", ["tokens", "second"], [output], axis=1))
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, kind, ["texts", "tokens"]) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["texts", *(["tokens"] if per_token else []), DIM])],
        [numpy_helper.from_array(ROWS, "rows"), numpy_helper.from_array(np.array(1), "second")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.fixture(scope="session")
def onnx_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the layout of exporters: the model, its tokenizer, and the small files beside them."""
    folder = tmp_path_factory.mktemp("onnx")
    make_onnx(folder / "model.onnx")
    make_tokenizer(special=True).save(str(folder / "tokenizer.json"))
    around = {
        "config.json": {"pad_token_id": 0},
        "tokenizer_config.json": {"pad_token": "[PAD]", "model_max_length": 64},
        "special_tokens_map.json": {"pad_token": "[PAD]", "unk_token": "[UNK]"},
    }
    for name, content in around.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def fastembed_model(onnx_folder: Path) -> str:
    """The name under which `fastembed` knows the model of `onnx_folder`."""
    if FASTEMBED_MODEL not in {model["model"] for model in TextEmbedding.list_supported_models()}:
        TextEmbedding.add_custom_model(
            model=FASTEMBED_MODEL,
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(hf=FASTEMBED_MODEL),
            dim=DIM,
            model_file="model.onnx",
        )
    return FASTEMBED_MODEL


@pytest.fixture(scope="session")
def static_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static model of `model2vec`, saved."""
    folder = tmp_path_factory.mktemp("model2vec")
    StaticModel(ROWS, make_tokenizer(special=False)).save_pretrained(folder)
    return folder


class FakeSentenceTransformer:
    """The part of the library's interface that toolcrib uses, as in version 6.2."""

    def __init__(self, model: str, device: str | None = None) -> None:
        if model == "missing":
            raise OSError("missing is not a local folder and is not a valid model identifier")
        self.device = device
        self.max_seq_length = 256
        self._tokenizer = make_tokenizer(special=True)

    def encode(self, texts: list[str], *, batch_size: int, show_progress_bar: bool, convert_to_numpy: bool) -> Any:
        assert (show_progress_bar, convert_to_numpy) == (False, True)
        return np.stack([ROWS[self._tokenizer.encode(text).ids].mean(axis=0) for text in texts])


@pytest.fixture
def sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A double of the library, which needs PyTorch and is too heavy to install for every test run."""
    module = ModuleType("sentence_transformers")
    vars(module).update(vars(SimpleNamespace(SentenceTransformer=FakeSentenceTransformer)))
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    return module
