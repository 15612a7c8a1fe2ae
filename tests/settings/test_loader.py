"""The search path of the settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.errors import SettingsError
from toolcrib.settings.env import search_paths
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings

SMALL = '{"mcpServers": {"%s": {"command": "run"}}}'
Loaded = Callable[..., Settings]


def test_a_section_in_other_capitals_is_named_as_it_should_be(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpservers": {"a": {"command": "run"}}}')
    with pytest.raises(SettingsError, match='did you mean "mcpServers"'):
        load_settings(tmp_path / "mcp.json", environ={})


def test_the_folder_comes_before_the_user_and_the_variable_before_all() -> None:
    assert [str(place) for place in search_paths({"HOME": "/home/me"}, Path("/desk"))] == [
        "/desk/toolcrib.toml",
        "/desk/toolcrib.json",
        "/desk/.mcp.json",
        "/desk/.vscode/mcp.json",
        "/desk/.cursor/mcp.json",
        "/home/me/.config/toolcrib/config.toml",
        "/home/me/.config/toolcrib/config.json",
    ]
    assert search_paths({"TOOLCRIB_CONFIG": "mine.json"}, Path("/desk")) == (Path("/desk/mine.json"),)
    assert search_paths({"XDG_CONFIG_HOME": "/etc/xdg"}, Path("/desk"))[-1] == Path("/etc/xdg/toolcrib/config.json")


def test_the_first_place_that_exists_is_used(tmp_path: Path) -> None:
    for name in (".cursor/mcp.json", ".vscode/mcp.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(SMALL % name.split("/")[0].strip("."))
    settings = load_settings(environ={"HOME": "/nowhere"}, cwd=tmp_path)
    assert [server.name for server in settings.servers] == ["vscode"]
    assert settings.source == tmp_path / ".vscode/mcp.json"


def test_no_file_anywhere_names_the_places_and_shows_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={"HOME": str(tmp_path / "home")}, cwd=tmp_path)
    said = str(caught.value)
    for place in search_paths({"HOME": str(tmp_path / "home")}, tmp_path):
        assert place.name in said
    assert (
        '{"mcpServers": {"time": {"command": "uvx", "args": ["--with", "mcp==2.3.0", "mcp-server-time==2026.10.19"]}}}'
        in said
    )


def test_a_variable_that_names_no_file_is_an_error_and_no_other_place_is_tried(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text(SMALL % "time")
    with pytest.raises(SettingsError, match=r"no file .*lost\.json\. It is named by the variable TOOLCRIB_CONFIG"):
        load_settings(environ={"TOOLCRIB_CONFIG": "lost.json"}, cwd=tmp_path)
    with pytest.raises(SettingsError, match=r"There is no file lost\.json"):
        load_settings(Path("lost.json"), environ={}, cwd=tmp_path)


def test_folders_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(Path(), environ={}, cwd=tmp_path)
    (tmp_path / "mcp.json").write_bytes(b'{"a": \n"\xff"}')
    with pytest.raises(SettingsError, match=r"mcp\.json:2: not UTF-8 text"):
        load_settings(Path("mcp.json"), environ={}, cwd=tmp_path)


# -- keywords ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """Loads settings that name a file of keywords with this text."""

    def load(text: str, name: str = "keywords.toml", **more: str) -> Settings:
        (tmp_path / name).write_text(text)
        extra = "".join(f'{key} = "{value}"\n' for key, value in more.items())
        (tmp_path / "toolcrib.toml").write_text(f'[toolcrib.search]\nkeywords = "{name}"\n{extra}')
        return load_settings(tmp_path / "toolcrib.toml")

    return load


def test_phrases_are_listed_by_the_id_of_a_tool_or_below_its_server(loaded: Loaded) -> None:
    settings = loaded(
        '"git:log" = ["what  changed", "history"]\n"a:b" = "one"\n[pager]\nlist-shifts = ["who is on call"]\n'
    )
    assert settings.gateway.keywords == {
        "git:log": ("what changed", "history"),
        "a:b": ("one",),
        "pager:list-shifts": ("who is on call",),
    }
    assert settings.warnings == ()


def test_the_file_may_be_json(loaded: Loaded) -> None:
    settings = loaded('{"git": {"log": ["history"]}, "a:b": "one"}', "words.json")
    assert settings.gateway.keywords == {"git:log": ("history",), "a:b": ("one",)}


@pytest.mark.parametrize(
    ("entry", "warning"),
    [
        ('"git:x" = 3', 'keywords.toml:2: git:x is left out: it must be a list of phrases, not a number'),
        ('"git:x" = ["a", 3]', "keywords.toml:2: git:x is left out: it must be a list of phrases, but has a number"),
        ('"git:x" = ["a", " "]', "keywords.toml:2: git:x is left out: it has an empty phrase"),
        (f'"git:x" = ["{"x" * 201}"]', "keywords.toml:2: git:x is left out: it has a phrase of 201 characters"),
        (f'"git:x" = {["x"] * 21}', "keywords.toml:2: git:x is left out: it has 21 phrases; at most 20 are used"),
        ("[git]\nx = 3", "keywords.toml:3: git.x is left out: it must be a list of phrases, not a number"),
        ('log = ["a"]', 'keywords.toml:2: log is left out: it must name a tool as "server:tool"'),
    ],
)  # fmt: skip
def test_a_bad_entry_costs_only_itself_and_is_named_with_its_line(loaded: Loaded, entry: str, warning: str) -> None:
    settings = loaded(f'"git:log" = ["history"]\n{entry}\n')
    assert settings.gateway.keywords == {"git:log": ("history",)}
    (said,) = settings.warnings
    assert said.replace('"git:x"', "git:x").startswith(warning)


@pytest.mark.parametrize("text", ["[1, 2]", "{", "= ="])
def test_a_file_that_cannot_be_used_costs_only_the_keywords(loaded: Loaded, text: str) -> None:
    settings = loaded(text, "words.json")
    assert settings.gateway.keywords == {}
    (said,) = settings.warnings
    assert "search.keywords cannot be used, so no keywords are added: words.json" in said


def test_a_missing_file_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "toolcrib.toml").write_text('[toolcrib.search]\nkeywords = "none.toml"\n')
    (said,) = load_settings(tmp_path / "toolcrib.toml").warnings
    assert "toolcrib.toml:2: toolcrib.search.keywords cannot be used" in said
    assert "none.toml" in said


def test_a_change_of_the_file_is_a_change_of_the_settings(loaded: Loaded, tmp_path: Path) -> None:
    assert tmp_path / "keywords.toml" in loaded('"git:log" = ["history"]').files


@pytest.mark.parametrize("name", ["words", "words:", ":f", "a b:f", "words:f()"])
def test_a_hook_must_be_a_name(loaded: Loaded, name: Any) -> None:
    with pytest.raises(SettingsError, match=r"must name a function as package\.module:function"):
        loaded("", describe=name)


def test_a_hook_is_loaded_later(loaded: Loaded) -> None:
    assert loaded("", describe="no.such_module:f").gateway.describe == "no.such_module:f"
