"""Shared by the tests of the command line: settings files over small real servers, and ways to run the command."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from toolcrib.cli.main import app

TOOLBOX = str(Path(__file__).with_name("toolbox_server.py"))


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def toolbox(*left_out: str, **fields: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [TOOLBOX, *left_out], **fields}


def broken(**fields: Any) -> dict[str, Any]:
    """An entry whose server exits at once."""
    program = "import sys; sys.exit('no licence key found')"
    return {"command": sys.executable, "args": ["-c", program], **fields}


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Path]:
    """Writes a settings file with these servers; `toolcrib` is our own section."""

    def write(toolcrib: Mapping[str, Any] | None = None, **servers: Any) -> Path:
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers, "toolcrib": toolcrib or {}}))
        return file

    return write


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Runs the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable in ("TOOLCRIB_CONFIG", "TOOLCRIB_TOKEN", "TOOLCRIB_DEBUG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)

    def run(*words: str | Path, stdin: str | None = None) -> Ran:
        result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run
