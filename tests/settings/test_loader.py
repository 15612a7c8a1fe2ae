"""The search path of the settings."""

from pathlib import Path

import pytest

from toolcrib.errors import SettingsError
from toolcrib.settings.env import search_paths
from toolcrib.settings.loader import load_settings

SMALL = '{"mcpServers": {"%s": {"command": "run"}}}'


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
