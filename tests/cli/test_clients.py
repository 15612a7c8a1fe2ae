"""The verbs `import`, `connect` and `disconnect`."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.conftest import Ran, toolbox

from toolcrib.settings.loader import load_settings

Command = Callable[..., Ran]


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
        "toolcrib.cli.clients.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True), platform="linux")
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
