"""Adapters of embedder models: options, the line of the settings that makes one, and errors if something is missing."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from model2vec import StaticModel
from onnx import TensorProto
from tests.embedders.conftest import DIM, ROWS, WORDS, make_onnx, make_tokenizer

from toolcrib.embedders.models import (
    EMBEDDER_KINDS,
    FastEmbed,
    Model2Vec,
    OnnxEmbedder,
    SentenceTransformers,
    StaticEmbedder,
    load,
)
from toolcrib.errors import MissingExtra, NotFound, SettingsError
from toolcrib.search.vectors import Embedder


def rows(*words: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return ROWS[[WORDS.index(word) for word in words]]


def direction(vector: np.ndarray[tuple[int], np.dtype[np.float32]]) -> list[float]:
    return list((vector / np.linalg.norm(vector)).tolist())


@pytest.mark.parametrize(
    ("make", "library", "extra"),
    [
        (lambda: Model2Vec("any"), "model2vec", "model2vec"),
        (lambda: FastEmbed("any"), "fastembed", "fastembed"),
        (lambda: OnnxEmbedder("any"), "onnxruntime", "onnx"),
        (lambda: OnnxEmbedder("any"), "tokenizers", "onnx"),
        (lambda: SentenceTransformers("any"), "sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_missing_library_names_the_command_that_installs_it(
    make: Callable[[], Embedder], library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra) as caught:
        make()
    assert str(caught.value) == f"The library '{library}' is not installed. Run: pip install 'toolcrib[{extra}]'"


def test_importing_the_adapters_imports_no_library() -> None:
    code = """
import sys, toolcrib.embedders.models
print({"model2vec", "fastembed", "onnxruntime", "tokenizers", "torch"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"


class TestOnnx:
    def test_the_mean_counts_every_token_and_no_padding(self, onnx_folder: Path) -> None:
        vectors = OnnxEmbedder(onnx_folder).embed(["find file", "find the last content of a file"])
        assert vectors[0].tolist() == pytest.approx(direction(rows("[CLS]", "find", "file", "[SEP]").mean(axis=0)))

    def test_cls_pooling_takes_the_first_token(self, onnx_folder: Path) -> None:
        [vector] = OnnxEmbedder(onnx_folder, pooling="cls").embed(["find file"])
        assert vector.tolist() == pytest.approx(direction(rows("[CLS]")[0]))

    def test_a_sentence_embedding_is_used_unchanged(self, tmp_path: Path, onnx_folder: Path) -> None:
        model = make_onnx(tmp_path / "model.onnx", output="sentence_embedding")
        [vector] = OnnxEmbedder(model, onnx_folder / "tokenizer.json").embed(["find file"])
        assert vector.tolist() == pytest.approx(direction(rows("find")[0]))

    def test_long_texts_are_cut_after_max_tokens(self, onnx_folder: Path) -> None:
        [vector] = OnnxEmbedder(onnx_folder, max_tokens=4).embed(["find file mail issue"])
        assert vector.tolist() == pytest.approx(direction(rows("[CLS]", "find", "file", "[SEP]").mean(axis=0)))

    def test_a_text_of_unknown_words_gives_a_row_of_zeros(self, onnx_folder: Path) -> None:
        assert not OnnxEmbedder(onnx_folder).embed(["天気", "xylophone quartz"]).any()

    def test_small_batches_give_the_same_rows(self, onnx_folder: Path) -> None:
        texts = ["find the file", "", "mail", "send a mail to the last issue", "open"]
        whole = OnnxEmbedder(onnx_folder).embed(texts)
        np.testing.assert_allclose(OnnxEmbedder(onnx_folder, batch=2, threads=1).embed(texts), whole, atol=1e-6)

    def test_a_folder_in_the_layout_of_the_hub_works(self, tmp_path: Path) -> None:
        (tmp_path / "onnx").mkdir()
        inputs = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), TensorProto.INT32)
        make_onnx(tmp_path / "onnx" / "model.onnx", inputs=inputs)
        make_tokenizer(special=True).save(str(tmp_path / "tokenizer.json"))
        assert OnnxEmbedder(tmp_path).embed(["find"]).shape == (1, DIM)

    def test_its_name_changes_with_the_model_behind_the_path(self, tmp_path: Path, onnx_folder: Path) -> None:
        model = make_onnx(tmp_path / "model.onnx", output="sentence_embedding")
        names = {OnnxEmbedder(path, onnx_folder / "tokenizer.json").name for path in (model, onnx_folder)}
        assert len(names) == 2
        assert OnnxEmbedder(onnx_folder, max_tokens=9).name not in names

    def test_a_missing_tokenizer_error_says_where_it_was_expected(self, tmp_path: Path) -> None:
        model = make_onnx(tmp_path / "model.onnx")
        with pytest.raises(SettingsError, match=r"no tokenizer\.json next to .*model\.onnx"):
            OnnxEmbedder(model)

    def test_a_model_with_inputs_other_than_text_is_refused(self, tmp_path: Path, onnx_folder: Path) -> None:
        inputs = {"input_ids": TensorProto.INT64, "pixel_values": TensorProto.INT64}
        model = make_onnx(tmp_path / "model.onnx", inputs=inputs)
        with pytest.raises(SettingsError, match="cannot provide: pixel_values"):
            OnnxEmbedder(model, onnx_folder / "tokenizer.json")

    @pytest.mark.parametrize("content", [b"", b"no model at all"])
    def test_a_broken_model_is_named(self, content: bytes, tmp_path: Path, onnx_folder: Path) -> None:
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(content)
        with pytest.raises(SettingsError, match=r"broken\.onnx' cannot be used: "):
            OnnxEmbedder(broken, onnx_folder / "tokenizer.json")

    def test_a_missing_model_is_named(self, onnx_folder: Path) -> None:
        with pytest.raises(SettingsError, match=r"nowhere\.onnx' cannot be used: .*a local path does not"):
            OnnxEmbedder("nowhere.onnx", onnx_folder / "tokenizer.json")


class TestModel2Vec:
    def test_words_are_averaged(self, static_folder: Path) -> None:
        [vector] = Model2Vec(static_folder).embed(["find file"])
        assert vector.tolist() == pytest.approx(direction(rows("find", "file").mean(axis=0)), abs=1e-5)

    def test_a_text_of_unknown_words_gives_a_row_of_zeros(self, static_folder: Path) -> None:
        assert not Model2Vec(static_folder).embed(["天気"]).any()

    def test_its_name_changes_with_the_model_behind_the_path(self, tmp_path: Path) -> None:
        names = set()
        for rows_then in (ROWS, ROWS[::-1].copy()):
            StaticModel(rows_then, make_tokenizer(special=False)).save_pretrained(tmp_path)
            names.add(Model2Vec(tmp_path).name)
        assert len(names) == 2

    def test_a_folder_without_a_model_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="cannot be used"):
            Model2Vec(tmp_path)


class TestFastEmbed:
    def test_it_gives_the_same_vectors_as_the_onnx_adapter(self, fastembed_model: str, onnx_folder: Path) -> None:
        texts = ["find the file", "send a mail"]
        fast = FastEmbed(fastembed_model, path=onnx_folder, threads=1).embed(texts)
        np.testing.assert_allclose(fast, OnnxEmbedder(onnx_folder).embed(texts), atol=1e-6)

    def test_an_unknown_model_is_named_in_the_error(self) -> None:
        with pytest.raises(SettingsError, match="'no/such-model' cannot be used"):
            FastEmbed("no/such-model")


class TestSentenceTransformers:
    def test_device_and_length_reach_the_library(self, sentence_transformers: ModuleType) -> None:
        embedder = SentenceTransformers("tiny", device="cpu", max_tokens=128)
        assert embedder.name.startswith("sentence-transformers:tiny?max_tokens=128#")

    def test_a_missing_model_is_named(self, sentence_transformers: ModuleType) -> None:
        with pytest.raises(SettingsError, match="'missing' cannot be used: OSError"):
            SentenceTransformers("missing")

    @pytest.mark.filterwarnings("default")  # the library's own
    def test_a_real_model_of_the_library_gives_unit_rows(self, tmp_path: Path) -> None:
        reason = "needs `pip install 'toolcrib[sentence-transformers]'`, which brings PyTorch"
        pytest.importorskip("sentence_transformers", reason=reason)
        transformers = pytest.importorskip("transformers", reason=reason)
        modules = pytest.importorskip("sentence_transformers.models", reason=reason)
        tokenizer = make_tokenizer(special=True)
        wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
        config = transformers.BertConfig(
            vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        )
        transformers.BertModel(config).eval().save_pretrained(tmp_path / "bert")
        wrapped.save_pretrained(tmp_path / "bert")
        bert = modules.Transformer(str(tmp_path / "bert"))
        whole = sys.modules["sentence_transformers"].SentenceTransformer(modules=[bert, modules.Pooling(32)])
        whole.save(str(tmp_path / "model"))
        embedder = SentenceTransformers(tmp_path / "model", device="cpu", max_tokens=16)
        vectors = embedder.embed(["find the file", "", "send a mail", "find the file", "\ud800"])
        assert vectors.shape == (5, 32)
        assert vectors.dtype == np.float32
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 1, 1, 1], abs=1e-5)
        np.testing.assert_allclose(vectors[0], vectors[3], atol=1e-5)


def test_the_static_embedder_is_the_table_of_the_package() -> None:
    embedder = StaticEmbedder()
    mail, message, apple = embedder.embed(["send an email", "deliver a mail message", "red apple"])
    assert mail @ message > 0.5 > mail @ apple
    assert not embedder.embed(["天気"]).any()


# -- loading -----------------------------------------------------------------------------------------------------------


OWN = '''
"""Custom embedders."""

import numpy as np

from toolcrib.errors import NotFound


class Ones:
    name = "ones"
    dim = 4

    def embed(self, texts):
        return np.full((len(texts), 4), 0.5, dtype=np.float32)


class Long(Ones):
    def embed(self, texts):
        return super().embed(texts) * 2


class Wide(Ones):
    def embed(self, texts):
        return super().embed(texts).astype(np.float64)


class Nameless:
    dim = 4


def broken():
    raise RuntimeError("no licence\\nsecond line")


def careful():
    raise NotFound("No weights.", hint="Fetch them.")


SETTING = 4
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with custom embedders, in a package."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text("")
    (tmp_path / "theirs" / "models.py").write_text(OWN)
    (tmp_path / "theirs" / "unimportable.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(tmp_path)
    yield "theirs.models"
    for name in [name for name in sys.modules if name.partition(".")[0] == "theirs"]:
        del sys.modules[name]


def fault(spec: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(spec)
    return str(caught.value)


def test_static_is_the_built_in_table() -> None:
    assert load(" static ").name.startswith("static#")


def test_a_model_may_be_a_path_with_options(onnx_folder: Path) -> None:
    embedder = load(f"onnx:{onnx_folder / 'model.onnx'}?pooling=cls&max_tokens=16&threads=1&batch=4")
    assert embedder.name.startswith("onnx:model.onnx?pooling=cls&max_tokens=16#")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("onxx:model.onnx", "There is no embedder 'onxx'. Did you mean 'onnx'?"),
        ("fast-embed:BAAI/bge-small-en-v1.5", "There is no embedder 'fast-embed'. Did you mean 'fastembed'?"),
        ("sentence_transformers:all-MiniLM-L6-v2", "no embedder 'sentence_transformers'. Did you mean 'sentence-tr"),
        ("statics", "There is no embedder 'statics'. Did you mean 'static'?"),
        ("static:table", "There is no embedder 'static'. Did you mean 'static'?"),
        (
            "",
            "There is no embedder ''. Use one of static, minilm, fastembed, model2vec, onnx, sentence-transformers, ",
        ),
        ("no.such.module:make", "There is no embedder 'no.such.module'. Use one of static, "),
        ("..:make", "There is no embedder '..'."),
        ("onnx:", "The embedder 'onnx' needs a model. Write \"onnx:\" and its name or path."),
        ("onnx:?threads=2", "The embedder 'onnx' needs a model."),
        ("onnx:m?thread=2", "There is no option 'thread'. Did you mean 'threads'?"),
        ("onnx:m?threads=two", "The option 'threads' must be a number, not 'two'."),
        ("onnx:m?pooling=max", "The option 'pooling' must be one of mean, cls, not 'max'."),
        ("model2vec:m?zzz", "There is no option 'zzz'. The options are: batch."),
    ],
)
def test_an_invalid_embedder_setting_gives_an_error_with_suggestions(spec: str, said: str) -> None:
    assert said in fault(spec)


@pytest.mark.parametrize("kind", EMBEDDER_KINDS)
def test_every_kind_names_what_to_install(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("fastembed", "model2vec", "onnxruntime", "sentence_transformers"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'toolcrib\[{kind}\]'"):
        load(f"{kind}:model")


class TestOwn:
    def test_a_custom_factory_is_called(self, own: str) -> None:
        embedder = load(f"{own}:Ones")
        assert isinstance(embedder, Embedder)
        assert embedder.name == "ones"

    @pytest.mark.parametrize(
        ("factory", "said"),
        [
            ("Long", "theirs.models:Long must return rows of unit length or zero. Divide each row by its length."),
            ("Wide", "theirs.models:Wide must return float32 of shape (2, 4) for two texts."),
            ("Nameless", "theirs.models:Nameless returns Nameless, which lacks `name`, `dim` or `embed`."),
            (
                "broken",
                "'theirs.models:broken' cannot be used: RuntimeError: no licence. The error comes from theirs.models",
            ),
            ("SETTING", "cannot be used: TypeError: 'int' object is not callable"),
            ("missing", "cannot be used: AttributeError: module 'theirs.models' has no attribute 'missing'"),
        ],
    )
    def test_an_embedder_that_breaks_the_contract_is_refused(self, own: str, factory: str, said: str) -> None:
        assert said in fault(f"{own}:{factory}")

    def test_a_module_that_cannot_be_imported_is_named(self, own: str) -> None:
        assert "'theirs.unimportable:make' cannot be used: ModuleNotFoundError: No module named 'no_such_library'" in (
            fault("theirs.unimportable:make")
        )

    def test_a_toolcrib_error_of_the_factory_is_not_wrapped(self, own: str) -> None:
        with pytest.raises(NotFound, match="No weights"):
            load(f"{own}:careful")
