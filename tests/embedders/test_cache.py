"""The vector cache: nothing is embedded twice, even across restarts, whatever happens to its file."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from toolcrib.embedders import cache
from toolcrib.embedders.cache import CachedEmbedder
from toolcrib.embedders.models import unit_rows
from toolcrib.errors import SettingsError
from toolcrib.search.embedder import Embedder
from toolcrib.search.vectors import Vectors


class Counting:
    """An embedder that records its calls. A vector consists of the length and the letters of its text."""

    def __init__(self, name: str = "counting", dim: int = 4) -> None:
        self.name = name
        self.dim = dim
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.asked += texts
        rows = [[len(text), *map(ord, text.ljust(self.dim - 1)[: self.dim - 1])] for text in texts]
        return rounded(np.array(rows, dtype=np.float32))


def rounded(rows: Vectors) -> Vectors:
    """Vectors of unit length whose components have eight bits, which the cache keeps as they are."""
    return unit_rows(np.rint(rows * (127 / np.abs(rows).max(axis=1, keepdims=True))))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vectors.sqlite"


TEXTS = ("find", "send", "find", "", "\ud800")


def test_each_text_is_embedded_once() -> None:
    inner = Counting()
    cached = CachedEmbedder(inner)
    for _ in range(3):
        np.testing.assert_array_equal(cached.embed(TEXTS), Counting().embed(TEXTS))
    assert inner.asked == ["find", "send", "", "\ud800"]


def test_vectors_have_eight_bits_per_component_before_and_after_a_restart(path: Path) -> None:
    class Precise(Counting):
        def embed(self, texts: Sequence[str]) -> Vectors:
            return unit_rows(np.random.default_rng(len(texts)).normal(size=(len(texts), self.dim)))

    with CachedEmbedder(Precise(dim=384), path) as cached:
        first = cached.embed(TEXTS[:2])
    with CachedEmbedder(Counting(dim=384), path) as cached:
        np.testing.assert_array_equal(cached.embed(TEXTS[:2]), first)
    exact = Precise(dim=384).embed(TEXTS[:2])
    assert (np.einsum("ij,ij->i", first, exact) > 0.9999).all()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT DISTINCT length(vector) FROM vectors").fetchall() == [(384,)]


def test_it_has_the_name_of_the_wrapped_embedder() -> None:
    cached = CachedEmbedder(Counting("model", 3))
    assert isinstance(cached, Embedder)
    assert (cached.name, cached.dim) == ("model", 3)


def test_changing_a_returned_vector_does_not_change_the_cache() -> None:
    cached = CachedEmbedder(Counting())
    first = cached.embed(["find"])
    wanted = first.copy()
    first[:] = 9
    cached.embed(["find"])[:] = 9
    np.testing.assert_array_equal(cached.embed(["find"]), wanted)


def test_memory_keeps_the_most_recently_used_vectors() -> None:
    inner = Counting()
    cached = CachedEmbedder(inner, size=2)
    for text in ("a", "b", "a", "c"):
        cached.embed([text])
    cached.embed(["a", "c"])
    assert inner.asked == ["a", "b", "c"]
    cached.embed(["b"])
    assert inner.asked == ["a", "b", "c", "b"]


def test_more_texts_than_fit_still_get_vectors(path: Path) -> None:
    texts = [f"text {number}" for number in range(2_000)]
    with CachedEmbedder(Counting(), path, size=100) as cached:
        np.testing.assert_array_equal(cached.embed(texts), Counting().embed(texts))


def test_nothing_is_embedded_again_after_a_restart(path: Path) -> None:
    texts = [f"tool number {number}" for number in range(2_000)]
    with CachedEmbedder(Counting(), path) as first:
        wanted = first.embed(texts)
    inner = Counting()
    with CachedEmbedder(inner, path) as second:
        np.testing.assert_array_equal(second.embed(texts), wanted)
    assert inner.asked == []


def test_a_killed_process_loses_no_vector_it_received(path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from tests.embedders.test_cache import Counting, TEXTS
from toolcrib.embedders.cache import CachedEmbedder
cached = CachedEmbedder(Counting(), Path(sys.argv[1]))
cached.embed(TEXTS)
os._exit(1)
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, check=False, timeout=60)
    inner = Counting()
    with CachedEmbedder(inner, path) as cached:
        cached.embed(TEXTS)
    assert inner.asked == []


def test_the_file_holds_no_text(path: Path) -> None:
    with CachedEmbedder(Counting(), path) as cached:
        cached.embed(["a secret word"])
    assert b"secret" not in path.read_bytes()


def test_a_folder_gets_one_file_per_embedder(tmp_path: Path) -> None:
    for name in ("onnx:model.onnx#1", "onnx:model.onnx#2"):
        with CachedEmbedder(Counting(name), tmp_path) as cached:
            cached.embed(TEXTS)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert len(names) == 2
    assert all(name.startswith("onnx-model.onnx-") and name.endswith(".sqlite") for name in names)


def test_the_file_of_another_model_is_emptied(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CachedEmbedder(Counting("old", 4), path) as old:
        old.embed(TEXTS)
    inner = Counting("new", 5)
    with CachedEmbedder(inner, path) as new:
        assert new.embed(["find"]).shape == (1, 5)
    assert inner.asked == ["find"]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM vectors").fetchall() == [(1,)]
    assert caplog.messages == []


def test_the_file_keeps_the_most_recently_read_vectors(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on(day: int, *texts: str) -> list[str]:
        monkeypatch.setattr(cache, "_today", lambda: day)
        inner = Counting()
        with CachedEmbedder(inner, path, size=3) as cached:
            for text in texts:
                cached.embed([text])
        return inner.asked

    on(1, "a", "b", "c")
    on(2, "a")
    on(3, "d")
    assert on(4, "a", "c", "d") == []
    assert on(5, "b") == ["b"]


@pytest.mark.parametrize(
    "damage", [b"not a database, but long enough to be looked at" * 40, b"SQLite format 3\0 and then?"]
)
def test_a_damaged_file_is_moved_aside_and_replaced(
    damage: bytes, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(damage)
    for asked in (["find"], []):
        inner = Counting()
        with CachedEmbedder(inner, path) as cached:
            cached.embed(["find"])
        assert inner.asked == asked
    assert path.with_name("vectors.sqlite.damaged").read_bytes() == damage
    [message] = caplog.messages
    assert message.startswith(f"The vector cache {path} is damaged (")


def test_it_survives_damage_to_the_file_in_use(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = [f"tool number {number}" for number in range(500)]
    with CachedEmbedder(Counting(), path) as cached:
        cached.embed(texts)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    inner = Counting()
    with CachedEmbedder(inner, path) as cached:
        np.testing.assert_array_equal(cached.embed(texts), Counting().embed(texts))
    assert set(inner.asked) == set(texts)
    assert any("is damaged" in message for message in caplog.messages)


def test_a_vector_with_changed_bytes_is_computed_again(path: Path) -> None:
    with CachedEmbedder(Counting(), path) as cached:
        wanted = cached.embed(["find", "send"])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE vectors SET vector = zeroblob(16) WHERE rowid = 1")
        db.execute("UPDATE vectors SET vector = zeroblob(3) WHERE rowid = 2")
    inner = Counting()
    with CachedEmbedder(inner, path) as cached:
        np.testing.assert_array_equal(cached.embed(["find", "send"]), wanted)
    assert inner.asked == ["find", "send"]


def test_another_database_is_never_touched(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE accounts (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="is a database, but not a vector cache"):
        CachedEmbedder(Counting(), path)
    assert path.read_bytes() == before


def test_without_a_writable_file_it_works_from_memory_and_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    inner = Counting()
    with CachedEmbedder(inner, tmp_path / "file" / "vectors.sqlite") as cached:
        cached.embed(TEXTS)
        cached.embed(TEXTS)
    assert inner.asked == ["find", "send", "", "\ud800"]
    [message] = caplog.messages
    assert "cannot be opened, so vectors are kept in memory only" in message


def test_it_works_without_a_file_that_another_process_has_locked(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WAIT_S", 0.01)
    with CachedEmbedder(Counting(), path) as cached, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        np.testing.assert_array_equal(cached.embed(TEXTS), Counting().embed(TEXTS))
        other.execute("ROLLBACK")
        cached.embed(["later"])
    [message] = caplog.messages
    assert "cannot be used at the moment, so vectors are computed again: database is locked" in message
    inner = Counting()
    with CachedEmbedder(inner, path) as cached:
        cached.embed(["later"])
    assert inner.asked == []


def test_several_processes_can_create_one_file_at_once(path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tests.embedders.test_cache import Counting
from toolcrib.embedders.cache import CachedEmbedder
with CachedEmbedder(Counting(), Path(sys.argv[1])) as cached:
    for number in range(20):
        cached.embed([f"text {number}", f"own {sys.argv[2]} {number}"])
"""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(path)]
    started = [
        subprocess.Popen([*command, str(number)], cwd=root, stderr=subprocess.PIPE, text=True) for number in range(4)
    ]
    for process in started:
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM vectors").fetchall() == [(100,)]


def test_threads_share_one_file(path: Path) -> None:
    texts = [f"text {number}" for number in range(300)]
    wanted = Counting().embed(texts)
    with CachedEmbedder(Counting(), path, size=100) as cached, ThreadPoolExecutor(8) as threads:
        for vectors in threads.map(cached.embed, [texts] * 16):
            np.testing.assert_array_equal(vectors, wanted)


def test_it_still_works_after_closing(path: Path) -> None:
    cached = CachedEmbedder(Counting(), path)
    wanted = cached.embed(["find"])
    cached.close()
    cached.close()
    np.testing.assert_array_equal(cached.embed(["find", "new"])[:1], wanted)


@pytest.mark.skipif(os.name != "posix", reason="file modes are those of POSIX")
def test_only_this_user_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "vectors.sqlite"
    with CachedEmbedder(Counting(), path) as cached:
        cached.embed(TEXTS)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "vectors.sqlite" in modes
