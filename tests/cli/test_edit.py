"""The verbs `add`, `remove`, `enable` and `disable`."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran, toolbox

from toolcrib.settings.loader import load_settings

Command = Callable[..., Ran]

TOML = """\
# what the team uses
[mcpServers.box]  # tools
command = "run"

[mcpServers.other]
url = "https://example.com/mcp"
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "home" / ".config" / "toolcrib" / "config.json"


def test_the_first_server_that_is_added_can_be_called(command: Command, own: Path) -> None:
    entry = toolbox()
    added = command("add", "box", "--", entry["command"], *entry["args"])
    assert (added.code, added.out) == (0, "Added box to home/.config/toolcrib/config.json.\n")
    assert command("tools", "--json").json["tools"]


def test_a_secret_of_an_added_server_moves_to_a_file_that_only_its_user_can_read(command: Command, own: Path) -> None:
    header = "Authorization: Bearer sk-0123456789abcdefghij"
    added = command("add", "docs", "--url", "https://example.com/mcp", "--header", header)
    assert "Moved 1 secret to home/.config/toolcrib/secrets.env." in added.out
    assert "0123456789abcdefghij" not in own.read_text() + added.out
    (server,) = load_settings(own, environ={}).servers
    assert server.headers == {"Authorization": "Bearer sk-0123456789abcdefghij"}
    assert own.with_name("secrets.env").stat().st_mode & 0o077 == 0


def test_variables_of_an_added_server_are_passed_on_by_name(command: Command, own: Path) -> None:
    assert command("add", "box", "--env", "REGION", "--env", "LEVEL=3", "--", "run", "--fast").code == 0
    (server,) = load_settings(own, environ={"REGION": "eu"}).servers
    assert (server.args, server.env) == (("--fast",), {"REGION": "eu", "LEVEL": "3"})


def test_a_server_is_added_where_the_file_has_its_servers(command: Command, tmp_path: Path) -> None:
    file = tmp_path / ".vscode" / "mcp.json"
    file.parent.mkdir()
    file.write_text('{"servers": {"a": {"command": "run"}}}  // ours')
    assert command("add", "b", "--", "go").code == 0
    assert file.read_text() == '{"servers": {"a": {"command": "run"}, "b": {"command": "go", "args": []}}}  // ours'


@pytest.mark.parametrize("verb", ["remove", "disable"])
def test_a_server_leaves_and_comments_and_other_servers_stay(command: Command, tmp_path: Path, verb: str) -> None:
    file = tmp_path / "toolcrib.toml"
    file.write_text(TOML)
    assert command(verb, "other").code == 0
    assert [server.name for server in load_settings(file).servers] == ["box"]
    assert file.read_text().startswith(TOML[: TOML.index("\n[mcpServers.other]")])


@pytest.mark.parametrize(
    "entry", ['"disabled": true', '"disabled": true, "enabled": false', '"enabled": false', '"isActive": false']
)
def test_a_server_is_enabled_and_disabled_by_the_keys_that_it_has(command: Command, tmp_path: Path, entry: str) -> None:
    file = tmp_path / "toolcrib.json"
    file.write_text(f'{{"mcpServers": {{"a": {{"command": "run", {entry}}}}}}}')
    assert command("disable", "a").out == "a is disabled already.\n"
    assert command("enable", "a").out == "Enabled a in toolcrib.json.\n"
    assert [server.name for server in load_settings(file).servers] == ["a"]
    assert command("enable", "a").out == "a is enabled already.\n"
    assert command("disable", "a").out == "Disabled a in toolcrib.json.\n"
    assert load_settings(file).servers == ()


def test_a_dry_run_shows_the_change_and_writes_nothing(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "toolcrib.toml"
    file.write_text(TOML)
    assert '-url = "https://example.com/mcp"' in command("remove", "other", "--dry-run").out
    assert "+disabled = true" in command("disable", "box", "--dry-run").out
    assert command("add", "new", "--url", "https://example.com", "--dry-run").out == "Would add new to toolcrib.toml.\n"
    assert file.read_text() == TOML


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("remove", "bix"), 3, "toolcrib.toml has no server bix\nIt has box, other."),
        (("add", "box", "--", "run"), 3, "toolcrib.toml has a server box already\nFirst: toolcrib remove box"),
        (("add", "new"), 2, "A server needs either a command or --url."),
        (("add", "new", "--url", "https://example.com", "--", "run"), 2, "either a command or --url"),
        (("add", "a:b", "--", "run"), 2, '"a:b" cannot be the name of a server.'),
        (("add", "new", "--url", "https://example.com", "--header", "x"), 2, "--header must be NAME:VALUE."),
    ],
)
def test_a_change_that_cannot_be_made_says_why(
    command: Command, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    file = tmp_path / "toolcrib.toml"
    file.write_text(TOML)
    refused = command(*words)
    assert (refused.code, said in refused.err) == (code, True), refused.err
    assert file.read_text() == TOML
