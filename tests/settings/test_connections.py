"""toolcrib becomes a client's only server, and the client's file can be restored."""

import json
import sys
from importlib import metadata
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolcrib.errors import SettingsError
from toolcrib.settings.clients import CLIENTS, ClientApp, ClientFile, Places, client_named
from toolcrib.settings.connections import (
    ConnectedClient,
    ConnectionStore,
    client_file,
    plan_connect,
    plan_disconnect,
    program,
)
from toolcrib.settings.document import parse, syntax_of
from toolcrib.settings.imports import read_servers
from toolcrib.settings.loader import load_settings

FILES = Path(__file__).parent / "clients"
ARGV = ("/opt/my tools/toolcrib", "serve", "--config", "/home/ü/config.json")
ENVIRON = {"TOKEN": "t0ken", "TEAM": "blue", "PASSED": "p", "API_KEY": "from-input"}


CURSOR = next(client for client in CLIENTS if client.id == "cursor")


def connected(store: ConnectionStore, client: ClientApp, path: Path) -> ConnectedClient:
    """Connect the client as the command line does."""
    found = read_servers(path, ENVIRON) if path.exists() else ()
    moved = [server.key for server in found if not server.problem]
    change = plan_connect(client, client.files[0], path, ARGV, moved)
    store.save(client, change)
    change.make()
    (connection,) = store.find(client)
    return connection


def value_of(path: Path) -> Any:
    text = path.read_text(encoding="utf-8-sig")
    return parse(text, syntax_of(text, path)).value


def fixture_text(client: ClientApp) -> str:
    return next(FILES.glob(f"{client.id}.*")).read_text(encoding="utf-8")


@pytest.fixture
def store(tmp_path: Path) -> ConnectionStore:
    return ConnectionStore(tmp_path / "state")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.id)
def test_a_client_is_connected_and_restored_byte_for_byte(
    client: ClientApp, store: ConnectionStore, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(before := fixture_text(client).encode())
    path.chmod(0o640)
    connection = connected(store, client, path)
    # Loaded as a file of the client's, it starts nothing but toolcrib.
    found = [server for server in read_servers(path, ENVIRON) if server.problem != "it is disabled"]
    assert [(server.key, server.problem) for server in found] == [("toolcrib", "it is toolcrib itself")]
    assert path.stat().st_mode & 0o777 == 0o640
    plan_disconnect(connection).make()
    assert path.read_bytes() == before


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.id)
def test_the_entry_that_connect_writes_starts_toolcrib(
    client: ClientApp, store: ConnectionStore, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "file"
    connection = connected(store, client, path)
    (server,) = load_settings(path, environ={}, cwd=tmp_path).servers
    assert (server.command, server.args, server.transport) == (ARGV[0], ARGV[1:], "stdio")
    assert (server.allowed_tools, server.denied_tools, server.problem) == (None, (), "")
    plan_disconnect(connection).make()
    assert not path.exists()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.id)
def test_what_the_client_changed_meanwhile_survives(client: ClientApp, store: ConnectionStore, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(fixture_text(client), encoding="utf-8")
    before = value_of(path)
    connection = connected(store, client, path)
    text = path.read_text(encoding="utf-8")
    match syntax_of(text, path):
        case "json":
            path.write_text(text.replace("{", '{"changedSince": 1,', 1), encoding="utf-8")
        case "toml":
            path.write_text("changedSince = 1\n" + text, encoding="utf-8")
        case _:
            path.write_text(text + "changedSince: 1\n", encoding="utf-8")
    plan_disconnect(connection).make()
    after = value_of(path)
    assert after.pop("changedSince") == 1
    assert _sorted(after) == _sorted(before)


def _sorted(value: Any) -> Any:
    """The value with lists of servers in the order of their names."""
    servers = value.get("mcpServers")
    return (
        {**value, "mcpServers": sorted(servers, key=lambda one: str(one["name"]))}
        if isinstance(servers, list)
        else value
    )


def test_comments_outside_the_moved_entries_survive(store: ConnectionStore, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{\n  // first\n  "a": 1, // second\n  "mcpServers": {"x": {"command": "run"}}, /* third */\n}\n')
    cursor = client_named("cursor")
    assert cursor is not None
    connected(store, cursor, path)
    text = path.read_text()
    assert [word in text for word in ("// first", "// second", "/* third */")] == [True] * 3
    assert list(value_of(path)["mcpServers"]) == ["toolcrib"]


def test_entries_that_were_added_meanwhile_survive(store: ConnectionStore, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "one"}, "b": {"command": "two"}}}')
    cursor = client_named("cursor")
    assert cursor is not None
    connection = connected(store, cursor, path)
    value = value_of(path)
    value["mcpServers"] |= {"b": {"command": "newer"}, "c": {"command": "three"}}
    path.write_text(json.dumps(value))
    plan_disconnect(connection).make()
    assert value_of(path)["mcpServers"] == {
        "a": {"command": "one"},
        "b": {"command": "newer"},
        "c": {"command": "three"},
    }


names = st.from_regex(r"[a-z][a-z0-9 _-]{0,6}", fullmatch=True)
servers = st.dictionaries(
    names, st.fixed_dictionaries({"command": st.sampled_from(["run", "uvx"]), "args": st.lists(names)})
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    servers,
    st.sampled_from([None, 1, 2, 4, "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.text(alphabet="ab\t /*#é", max_size=9),
)
def test_any_file_is_restored_byte_for_byte(
    store: ConnectionStore, tmp_path: Path, table: Any, indent: Any, newline: str, bom: bool, comment: str
) -> None:
    cursor = client_named("cursor")
    assert cursor is not None
    text = f"// {comment}\n" + json.dumps({"x": [1], "mcpServers": table, "y": None}, indent=indent) + "\n"
    before = (b"\xef\xbb\xbf" if bom else b"") + text.replace("\n", newline).encode()
    path = tmp_path / "mcp.json"
    path.write_bytes(before)
    connection = connected(store, cursor, path)
    assert list(value_of(path)["mcpServers"]) == ["toolcrib"]
    plan_disconnect(connection).make()
    assert path.read_bytes() == before


@pytest.mark.parametrize("emptied", ["", " \n", "\ufeff"])
def test_a_file_that_was_emptied_is_restored(emptied: str, store: ConnectionStore, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(before := '{"mcpServers": {"a": {"command": "x"}}} // mine')
    connection = connected(store, CURSOR, path)
    path.write_text(emptied, encoding="utf-8")
    plan_disconnect(connection).make()
    assert path.read_text() == before


@pytest.mark.parametrize("text", ['{"mcpServers": {', '{"mcpServers": "x"}', "[]"])
def test_a_file_that_was_spoilt_is_left_alone(text: str, store: ConnectionStore, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    connection = connected(store, CURSOR, path)
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        plan_disconnect(connection)
    assert caught.value.hint
    assert path.read_text() == text


def test_servers_of_another_form_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": "x"}')
    with pytest.raises(SettingsError, match="does not hold its servers"):
        plan_connect(CURSOR, CURSOR.files[0], path, ARGV, ())


def test_a_file_behind_a_link_is_changed_and_the_link_stays(store: ConnectionStore, tmp_path: Path) -> None:
    (tmp_path / "dotfiles.json").write_text("{}")
    (tmp_path / "mcp.json").symlink_to("dotfiles.json")
    cursor = client_named("cursor")
    assert cursor is not None
    connected(store, cursor, tmp_path / "mcp.json")
    assert (tmp_path / "mcp.json").is_symlink()
    assert "toolcrib" in (tmp_path / "dotfiles.json").read_text()


def test_a_change_that_another_program_has_overtaken_is_not_made(tmp_path: Path) -> None:
    cursor = client_named("cursor")
    assert cursor is not None
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    change = plan_connect(cursor, cursor.files[0], path, ARGV, ())
    path.write_text('{"a": 1}')
    with pytest.raises(SettingsError, match="has just been changed by another program"):
        change.make()
    assert path.read_text() == '{"a": 1}'


def test_what_a_file_held_is_kept_where_only_its_owner_can_read_it(store: ConnectionStore, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "run", "env": {"KEY": "secret"}}}}')
    cursor = client_named("cursor")
    assert cursor is not None
    connection = connected(store, cursor, path)
    assert "secret" not in repr(connection)
    (kept,) = store.folder.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    store.forget(connection)
    assert store.find() == ()


def test_the_first_file_that_exists_is_changed(tmp_path: Path) -> None:
    opencode = client_named("opencode")
    assert opencode is not None
    places = Places(platform="linux", home=PurePosixPath(tmp_path), project=PurePosixPath(tmp_path / "p"))
    folder = tmp_path / ".config" / "opencode"
    assert client_file(opencode, places)[1] == folder / "opencode.json"
    folder.mkdir(parents=True)
    (folder / "opencode.jsonc").write_text("{}")
    assert client_file(opencode, places) == (ClientFile("{xdg}/opencode/opencode.jsonc"), folder / "opencode.jsonc")
    assert client_file(opencode, places, project=True)[1] == tmp_path / "p" / "opencode.json"
    librechat = client_named("librechat")
    assert librechat is not None
    with pytest.raises(SettingsError, match="LibreChat has no such file"):
        client_file(librechat, places)


@pytest.mark.parametrize(
    ("origin", "arguments"),
    [
        (None, ("toolcrib",)),
        ({"url": "file:///src/toolcrib", "dir_info": {}}, ("--from", "file:///src/toolcrib", "toolcrib")),
        (
            {"url": "https://example.com/t.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            ("--from", "git+https://example.com/t.git@abc", "toolcrib"),
        ),
    ],
)
def test_a_toolcrib_that_uvx_runs_is_started_by_uvx_again_and_not_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "uvx").touch()
    monkeypatch.setenv("UV", str(tmp_path / "uv"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "cache" / "archive-v0" / "z7HQX66b"))
    text = json.dumps(origin) if origin else None
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))

    assert program() == (str(tmp_path / "uvx"), *arguments)


def test_a_file_whose_table_of_servers_is_null_is_connected_and_restored(
    store: ConnectionStore, tmp_path: Path
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": null, "theme": "dark"}\n')

    connection = connected(store, CURSOR, path)

    written = value_of(path)
    assert (list(written["mcpServers"]), written["theme"]) == (["toolcrib"], "dark")
    plan_disconnect(connection).make()
    assert path.read_text() == '{"mcpServers": null, "theme": "dark"}\n'
