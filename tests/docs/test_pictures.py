"""The terminal picture is what its script draws from the recording, and the recording is of commands that exist."""

import shlex
import xml.etree.ElementTree as ET
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from click import Context

from toolcrib.cli.main import app

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = spec_from_file_location("terminal_picture", ROOT / "scripts" / "terminal_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_in_the_repository_is_drawn_from_the_recording(script: ModuleType) -> None:
    assert script.draw(script.load()) == script.PICTURE.read_text(encoding="utf-8")


def test_the_picture_shows_every_line_of_the_recording_within_its_width(script: ModuleType) -> None:
    picture = ET.fromstring(script.PICTURE.read_text(encoding="utf-8"))  # noqa: S314 - our own file
    shown = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}text")][1:]
    recorded = [line for step in script.load() for line in (f"$ {step.command}", *step.output.splitlines())]
    assert [line.rstrip("…") for line in shown] == [
        line[: script.COLUMNS - 1] if len(line) > script.COLUMNS else line for line in recorded
    ]
    assert max(map(len, shown)) <= script.COLUMNS


def test_the_recorded_commands_exist(script: ModuleType) -> None:
    verbs = app.list_commands(Context(app))
    for step in script.load():
        program, verb, *_ = shlex.split(step.command)
        assert (program, verb in verbs) == ("toolcrib", True), step.command
