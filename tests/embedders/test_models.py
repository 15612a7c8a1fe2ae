"""Adapters of embedder models: options, the line of the settings that makes one, and errors if something is missing."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from model2vec import StaticModel
from tests.embedders.conftest import ROWS, WORDS, make_tokenizer

from toolcrib.embedders.models import Model2Vec, StaticEmbedder, load
from toolcrib.errors import MissingExtra, NotFound, SettingsError
from toolcrib.search.embedder import Embedder


def rows(*words: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return ROWS[[WORDS.index(word) for word in words]]


def direction(vector: np.ndarray[tuple[int], np.dtype[np.float32]]) -> list[float]:
    return list((vector / np.linalg.norm(vector)).tolist())


def test_a_missing_library_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model2vec", None)
    with pytest.raises(MissingExtra) as caught:
        load("model2vec:any")
    assert str(caught.value) == "The library 'model2vec' is not installed. Run: pip install 'toolcrib[model2vec]'"


def test_importing_the_adapters_imports_no_library() -> None:
    code = """
import sys, toolcrib.embedders.models
print({"model2vec", "onnxruntime", "tokenizers"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"


class TestModel2Vec:
    def test_words_are_averaged(self, static_folder: Path) -> None:
        [vector] = Model2Vec(static_folder).embed(["find file"])
        assert vector.tolist() == pytest.approx(direction(rows("find", "file").mean(axis=0)), abs=1e-5)

    def test_a_text_of_unknown_words_gives_a_row_of_zeros(self, static_folder: Path) -> None:
        assert not Model2Vec(static_folder).embed(["天気"]).any()

    def test_its_name_changes_with_the_model_behind_the_path(self, tmp_path: Path) -> None:
        names = set()
        for rows_then in (ROWS, ROWS[::-1].copy()):
            StaticModel(rows_then, make_tokenizer()).save_pretrained(tmp_path)
            names.add(Model2Vec(tmp_path).name)
        assert len(names) == 2

    def test_a_folder_without_a_model_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="cannot be used"):
            Model2Vec(tmp_path)


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


def test_a_model_may_be_a_path_with_options(static_folder: Path) -> None:
    embedder = load(f"model2vec:{static_folder}?batch=4")
    assert embedder.name.startswith(f"model2vec:{static_folder}#")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("model-2-vec:model", "There is no embedder 'model-2-vec'. Did you mean 'model2vec'?"),
        ("statics", "There is no embedder 'statics'. Did you mean 'static'?"),
        ("static:table", "There is no embedder 'static'. Did you mean 'static'?"),
        ("", "There is no embedder ''. Use one of static, minilm, model2vec, or package.module:factory."),
        ("no.such.module:make", "There is no embedder 'no.such.module'. Use one of static, "),
        ("..:make", "There is no embedder '..'."),
        (
            "model2vec:",
            "The embedder 'model2vec' needs a model. Write \"model2vec:\" and its name or the path of its folder.",
        ),
        ("model2vec:?batch=2", "The embedder 'model2vec' needs a model."),
        ("model2vec:m?batsh=2", "There is no option 'batsh'. Did you mean 'batch'?"),
        ("minilm?threads=two", "The option 'threads' must be a number, not 'two'."),
        ("model2vec:m?zzz", "There is no option 'zzz'. The options are: batch."),
    ],
)
def test_an_invalid_embedder_setting_gives_an_error_with_suggestions(spec: str, said: str) -> None:
    assert said in fault(spec)


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
