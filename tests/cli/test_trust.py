"""`toolcrib trust` and `toolcrib diff`: what changed in the definitions of a server, and accepting it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.conftest import Ran, toolbox
from tests.upstream.test_stored_definitions import CHANGES, EVIL, SILENT, pin_good, store

from toolcrib.cli.cached import parameter_words, tool_names
from toolcrib.settings.loader import load_settings
from toolcrib.state.sqlite import SqliteStore
from toolcrib.upstream.catalog.pins import PinStore

Command = Callable[..., Ran]


@pytest.fixture
def changed(settings: Callable[..., Path], tmp_path: Path) -> Path:
    """Settings whose state file knows a server of which one tool changed."""
    path = tmp_path / "state.sqlite"

    async def fill() -> None:
        async with SqliteStore(path) as store:
            pins = PinStore(store)
            await pins.review("wiki", [{"name": "find", "description": "Finds pages."}, {"name": "get"}])
            await pins.review("wiki", [{"name": "find", "description": "Finds anything."}, {"name": "get"}])

    anyio.run(fill)
    return settings({"state": {"path": str(path)}}, box=toolbox())


def test_diff_shows_what_changed(command: Command, changed: Path) -> None:
    out = command("diff", "wiki", "--config", changed).out
    assert "wiki:find" in out
    assert "its description changed" in out
    assert "-description: Finds pages." in out
    assert "+description: Finds anything." in out
    assert "get" not in out


def test_trust_accepts_it_and_then_nothing_differs(command: Command, changed: Path) -> None:
    assert command("trust", "wiki", "find", "--config", changed).out.strip() == "trusted: wiki:find"
    assert "Nothing differs" in command("diff", "wiki:find", "--config", changed).out
    assert "Nothing differs" in command("trust", "wiki", "--config", changed).out


def test_diff_since_a_day_shows_every_version(command: Command, changed: Path) -> None:
    found = command("diff", "wiki:find", "--since", "2020-01-01", "--json", "--config", changed).json
    assert [one["summary"] for one in found] == ["it was listed for the first time", "its description changed"]
    assert command("diff", "wiki", "--since", "2999-01-01", "--config", changed).out.strip() == "Nothing changed."


def test_a_server_or_tool_that_is_not_known_is_named_with_a_suggestion(command: Command, changed: Path) -> None:
    ran = command("diff", "wikis", "--config", changed)
    assert ran.code == 4
    assert "wiki" in ran.err
    assert command("trust", "wiki", "fund", "--config", changed).code == 4
    assert command("diff", "wiki", "--since", "yesterday", "--config", changed).code == 2


LOOKS = (
    ("search", "find pages", "--json"),
    ("search", EVIL, "--json"),
    ("tools", "--json"),
    ("tools",),
    ("describe", "wiki:find", "--json"),
    ("servers", "--json"),
)


@pytest.mark.parametrize("change", CHANGES)
def test_no_verb_shows_a_stored_change(command: Command, settings: Callable[..., Path], change: str) -> None:
    file = settings(wiki={"command": sys.executable, "args": ["-c", SILENT], "trust": "hold"})
    loaded = load_settings(file)

    async def fill() -> None:
        assert loaded.state.path is not None
        loaded.state.path.parent.mkdir(parents=True, exist_ok=True)
        async with SqliteStore(loaded.state.path) as state:
            await pin_good(state)
            await store(state, loaded.servers[0], CHANGES[change])

    anyio.run(fill)
    for words in LOOKS:
        ran = command(*words, "-c", file)
        shown: Any = json.loads(ran.out) if "--json" in words else ran.out
        if words[0] == "servers":
            shown = [{**row, "rejected": ()} for row in shown["servers"]]
        if EVIL in words:  # the reply repeats the words of the query
            shown = shown["hits"]
        assert EVIL not in json.dumps(shown), words
    assert list(tool_names(file)) == [("wiki:find", "Finds pages.")]
    assert [word for word, _ in parameter_words(file, "wiki:find", "")] == ["q="]
