"""The verbs `add`, `remove`, `enable` and `disable`."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

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


def test_the_address_of_an_added_server_may_hold_a_variable(command: Command, own: Path) -> None:
    assert command("add", "docs", "--url", "${DOCS_URL}/mcp").code == 0
    (server,) = load_settings(own, environ={"DOCS_URL": "https://example.com"}).servers
    assert server.url == "https://example.com/mcp"


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
        (("add", "new", "--url", "example.com/mcp"), 2, "--url must begin with http:// or https://."),
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


# -- other clients -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cursor(tmp_path: Path) -> Path:
    """A file of Cursor with a server that works, and a secret."""
    path = tmp_path / "home" / ".cursor" / "mcp.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"mcpServers": {"box": toolbox(env={"KEY": "s3cret"})}}))
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "home" / ".config" / "toolcrib" / "config.json"


def test_the_servers_of_all_clients_are_shown_and_imported(command: Command, cursor: Path, config: Path) -> None:
    shown = command("import", "--dry-run")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[1].split()[:3] == ["add", "box", Path(toolbox()["command"]).name]
    assert "1 server to add to home/.config/toolcrib/config.json." in shown.out
    assert "1 secret to move to home/.config/toolcrib/secrets.env, which only you can read." in shown.out
    assert "s3cret" not in shown.out
    assert not config.exists()
    done = command("import", "--yes")
    assert "Added 1 server to home/.config/toolcrib/config.json." in done.out
    assert [server.env for server in load_settings(config).servers] == [{"KEY": "s3cret"}]
    assert "home/.config/toolcrib/config.json has all of them." in command("import", "--yes").out


def test_an_imported_server_can_be_called(command: Command, cursor: Path) -> None:
    assert command("import", "cursor", "--yes").code == 0
    assert command("tools", "--json").code == 0


def test_nothing_is_written_without_consent(
    command: Command, cursor: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("import").code == 2
    assert command("import", "--json").code == 2
    monkeypatch.setattr(
        "toolcrib.cli.edit.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True), platform="linux")
    )
    refused = command("import", stdin="n\n")
    assert (refused.code, refused.out.splitlines()[-1]) == (7, "Nothing was written.")
    assert not config.exists()
    assert command("import", stdin="y\n").code == 0
    assert config.exists()


def test_a_client_is_connected_and_disconnected(command: Command, cursor: Path, config: Path) -> None:
    before = cursor.read_bytes()
    assert command("connect", "cursor", "--dry-run").code == 0
    assert cursor.read_bytes() == before
    done = command("connect", "cursor", "--yes", "--json")
    assert (done.json["written"], done.json["moved"]) == (True, ["box"])
    (entry,) = json.loads(cursor.read_text())["mcpServers"].values()
    assert entry["args"][-3:] == ["serve", "--config", str(config)]
    again = command("connect", "cursor", "--yes")
    assert (again.code, "Cursor is already connected" in again.err) == (3, True)
    undone = command("disconnect", "cursor", "--yes")
    assert "home/.cursor/mcp.json is restored, with box" in undone.out
    assert cursor.read_bytes() == before
    assert [server.name for server in load_settings(config).servers] == ["box"]
    assert (
        command("disconnect", "cursor", "--yes").err
        == "toolcrib: Cursor is not connected to toolcrib\nNo client is connected.\n"
    )


def test_a_client_with_an_empty_file_is_connected(command: Command, cursor: Path) -> None:
    cursor.write_text("\n")
    assert command("connect", "cursor", "--yes").code == 0
    assert list(json.loads(cursor.read_text())["mcpServers"]) == ["toolcrib"]
    assert command("disconnect", "cursor", "--yes").code == 0
    assert cursor.read_text() == "\n"


def test_a_projects_file_gets_the_settings_of_the_project(command: Command, tmp_path: Path) -> None:
    assert command("connect", "vscode", "--project", "--yes").code == 0
    entry = json.loads((tmp_path / ".vscode" / "mcp.json").read_text())["servers"]["toolcrib"]
    assert entry["args"][-1] == str(tmp_path / "toolcrib.json")
    assert load_settings(tmp_path / "toolcrib.json").servers == ()
    assert command("disconnect", "vscode", "--yes").code == 0
    assert not (tmp_path / ".vscode" / "mcp.json").exists()


def test_a_file_can_be_named_and_a_bad_one_does_not_stop_the_others(
    command: Command, cursor: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("mcpServers:\n  time: {command: uvx, args: [mcp-server-time]}\n")
    (tmp_path / ".mcp.json").write_text("{")
    named = command("import", "mine.yaml", "--config", "own.json", "--yes", "--json")
    assert [server["name"] for server in named.json["servers"]] == ["time"]
    assert named.json["config"] == "own.json"
    found = command("import", "--dry-run", "--json").json
    assert [server["name"] for server in found["servers"]] == ["box"]
    assert ".mcp.json:1:2" in found["problems"][0]


def test_an_unknown_client_is_refused_with_those_that_are_known(command: Command) -> None:
    refused = command("connect", "cursr")
    assert (refused.code, refused.out) == (2, "")
    assert 'There is no client "cursr".' in refused.err
    assert "claude-desktop, claude-code, cursor" in refused.err
    missing = command("import", "zed")
    assert (missing.code, "Zed has no configuration file here" in missing.err) == (3, True)
