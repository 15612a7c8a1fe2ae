"""Creating an embedder from one line of a settings file."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.embedders.models import EMBEDDER_KINDS, load
from toolcrib.errors import MissingExtra, NotFound, SettingsError
from toolcrib.search.vectors import Embedder

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
            "There is no embedder ''. Use one of static, fastembed, model2vec, onnx, sentence-transformers, or packag",
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
