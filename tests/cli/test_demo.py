"""The demo: what it needs, and, where the package index can be reached, all of it."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolcrib.cli import demo
from toolcrib.cli.demo import PINS, demo_token_counter, demo_workspace, find_uvx
from toolcrib.errors import MissingExtra
from toolcrib.settings.loader import load_settings


def test_without_uvx_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*args: object, **kwargs: object) -> None:
        return None

    monkeypatch.setattr(shutil, "which", nothing)
    with pytest.raises(MissingExtra, match="pip install uv"):
        find_uvx()


def test_uvx_beside_this_python_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("beside", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "uvx").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    assert find_uvx() == str(tmp_path / "beside" / "uvx")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    assert find_uvx() == str(tmp_path / "path" / "uvx")


def test_the_scene_is_an_ordinary_settings_file_with_every_server_pinned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "find_uvx", lambda: "/bin/uvx")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter2@proxy:1")
    monkeypatch.chdir(tmp_path)
    with demo_workspace() as scene:
        assert "hunter2" not in scene.settings.read_text()
        settings = load_settings(scene.settings)
        assert settings.warnings == ()
        assert {server.name for server in settings.servers} == {
            name for name in PINS if name != "git" or shutil.which("git")
        }
        for server in settings.servers:
            assert not server.problem
            assert server.env["HTTPS_PROXY"] == "http://me:hunter2@proxy:1"
            assert {pin for pin in PINS[server.name] if pin not in server.args} == set()
        assert scene.repository != tmp_path
        kept = scene.kept
    assert not scene.settings.exists()
    assert [server.name for server in load_settings(kept).servers] == ["calculator", "math", "time"]
    assert "hunter2" not in kept.read_text()


def test_the_repository_around_the_current_folder_is_used_when_it_has_commits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which("git") is None:
        pytest.skip("the repository is made with git, which is not installed")
    monkeypatch.setattr(demo, "find_uvx", lambda: "/bin/uvx")
    with demo_workspace() as scene:
        repository = tmp_path / "mine"
        shutil.copytree(scene.repository, repository) if scene.repository.name == "workshop" else _commit(repository)
        (repository / "deeper").mkdir()
        monkeypatch.chdir(repository / "deeper")
    with demo_workspace() as scene:
        assert scene.repository == repository


def _commit(repository: Path) -> None:
    repository.mkdir()
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), (*who, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *words], cwd=repository, check=True, timeout=20)


def test_tokens_are_counted_exactly_or_the_estimate_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo_token_counter().label == "o200k_base"
    monkeypatch.setitem(sys.modules, "toktok", None)
    assert demo_token_counter().label == "estimate"


@pytest.mark.network
def test_the_demo_runs_to_its_end_on_real_servers() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "toolcrib", "demo"], capture_output=True, text=True, timeout=400, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    last = shlex.split(ran.stdout.split("Try these servers yourself: ")[1])
    assert Path(last[-1]).is_file()
    assert Path(last[0]).name == "toolcrib"
    assert '"example"' not in ran.stdout
    for said in (
        "663 tools",
        "3 tools, through toolcrib",
        "Asia/Tokyo",
        "80.0",
        "time:get_current_time?",
    ):
        assert said in ran.stdout
