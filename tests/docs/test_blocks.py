"""Every block of the README and of the tutorial runs unchanged."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.settings.loader import load_settings

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tutorial/first-gateway.md", "docs/index.md")
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.network


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for match in FENCE.finditer((ROOT / page).read_text()):
            if match[1] == language:
                yield page, match[2]


INSTALLS = re.compile(r"pip install|-m venv|^source ")
"""Steps that make the environment which these tests run in."""


def commands() -> Iterator[tuple[str, str, str]]:
    """Each command of a page, with the output that the page shows for it."""
    for page, block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            if not INSTALLS.search(line):
                yield page, line.partition("  #")[0].strip(), output


def pattern(output: str) -> str:
    """A regular expression for an output in which `…` is anything: a part of a line, or several lines."""
    return re.escape(output.strip()).replace("…\\\n", "(?:.*\n)*?").replace("…", ".*").replace("\\ ", " +")


def ran(words: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a reader of the tutorial: a configuration, in a git repository."""
    shutil.copytree(ROOT / "examples" / "first_gateway", tmp_path, dirs_exist_ok=True)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    return tmp_path


def environment() -> dict[str, str]:
    own = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}", "TOOLCRIB_CONFIG": ""}


@pytest.mark.parametrize("name", ["toolcrib.json", "ask.py"])
def test_the_tutorial_shows_its_example_as_it_is(name: str) -> None:
    assert (ROOT / "examples" / "first_gateway" / name).read_text() in (ROOT / PAGES[1]).read_text()


@pytest.mark.parametrize(("page", "block"), [*blocks("json")])
def test_a_json_block_is_a_configuration(page: str, block: str, tmp_path: Path) -> None:
    path = tmp_path / "toolcrib.json"
    path.write_text(block)
    assert json.loads(block)["mcpServers"]
    assert load_settings(path).servers


@pytest.mark.parametrize(("page", "block"), [*blocks("python")])
def test_a_python_block_runs(page: str, block: str, folder: Path) -> None:
    done = ran([sys.executable, "-c", block], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(("page", "command", "output"), [*commands()])
def test_a_command_does_what_the_page_says(page: str, command: str, output: str, folder: Path) -> None:
    if command.startswith("make "):
        assert f"\n{command.split()[1]}:" in (ROOT / "Makefile").read_text()
    elif "serve" in command.split():
        assert_serves(command, folder)
    else:
        done = ran(["bash", "-c", command], folder)
        teaches = "get_curent_time" in command
        assert done.returncode == (4 if teaches else 0), done.stdout + done.stderr
        assert done.stdout or done.stderr
        assert re.search(pattern(output), done.stdout + done.stderr), done.stdout + done.stderr


def assert_serves(command: str, folder: Path) -> None:
    words = command.replace(":8000", ":0").split()
    if "--http" not in words:  # an agent that leaves at once
        done = subprocess.run(words, cwd=folder, env=environment(), input=b"", timeout=120, check=False)
        assert done.returncode == 0
        return
    process = subprocess.Popen(words, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert any("http://127.0.0.1:" in line for line in process.stderr)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=20)
    assert process.returncode == 0
