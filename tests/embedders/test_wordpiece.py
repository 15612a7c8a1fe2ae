"""The tokenizer of MiniLM, compared with the library that models are usually used with."""

from functools import cache
from importlib.resources import files

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.retrieval.loading import cases, tools
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from toolcrib.embedders import wordpiece
from toolcrib.embedders.wordpiece import WordPieceTokenizer

OURS = WordPieceTokenizer.load()


@cache
def theirs() -> Tokenizer:
    path = files("toolcrib.embedders") / "data" / "bert-uncased.txt"
    vocabulary = path.read_text(encoding="utf-8").split("\n")[:-1]
    made = Tokenizer(WordPiece({piece: number for number, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    made.normalizer = BertNormalizer()
    made.pre_tokenizer = BertPreTokenizer()
    marks = [(word, vocabulary.index(word)) for word in ("[CLS]", "[SEP]")]
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    return made


def same(text: str) -> bool:
    wanted: list[int] = theirs().encode(text).ids
    return OURS.encode(text, 10**6) == wanted


def test_real_texts_give_the_numbers_of_the_library() -> None:
    texts = [f"{tool.name} {tool.title} {tool.description}" for tool in tools()]
    texts += [case.query for kind in ("terse", "sentence", "long", "two_needs", "typo") for case in cases(kind)]
    assert len(texts) > 400
    assert [text for text in texts if not same(text)] == []


# Characters on which the Unicode tables of Python and of the library agree, whatever their versions.
LETTERS = st.characters(min_codepoint=1, max_codepoint=0x05FF)
OTHERS = st.sampled_from("\u0000\u000b\u200b\ufffd\u00ad\u3000\u2028\u1e9e\u0130\u03a3東京はカ한국ไทย😀𠀀﷽\u0301\u0aff")


@given(st.text(st.one_of(LETTERS, OTHERS), max_size=40))
@example("naïve Straße ΟΔΟΣ İstanbul don't $5.00 a_b-c")
@example("x" * 101)
@example(" \t\r\n\x0b\x0c")
def test_any_text_gives_the_numbers_of_the_library(text: str) -> None:
    assert same(text)


def test_a_special_token_in_a_text_is_read_as_its_characters() -> None:
    assert OURS.encode("[SEP]", 16) == [101, 1031, 19802, 1033, 102]


@pytest.mark.parametrize("most", [2, 3, 8])
def test_long_texts_are_cut_and_keep_the_last_token(most: int) -> None:
    found = OURS.encode("find the file that was changed last " * 100, most)
    assert len(found) == most
    assert (found[0], found[-1]) == (101, 102)


def test_a_changed_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece, "VOCABULARY_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"bert-uncased\.txt was changed"):
        WordPieceTokenizer.load()
