"""A tiny model made by the tests: a vocabulary of a few words, eight components, no network."""

from pathlib import Path

import numpy as np
import pytest
from model2vec import StaticModel
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (*SPECIAL, "find", "send", "open", "file", "mail", "issue", "the", "a", "##s", "##ing", "last", "content", ".")
DIM = 8
ROWS = np.random.default_rng(7).normal(size=(len(WORDS), DIM)).astype(np.float32)


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(WordPiece({word: row for row, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


@pytest.fixture(scope="session")
def static_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static model of `model2vec`, saved."""
    folder = tmp_path_factory.mktemp("model2vec")
    StaticModel(ROWS, make_tokenizer()).save_pretrained(folder)
    return folder
