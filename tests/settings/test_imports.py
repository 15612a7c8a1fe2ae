"""Servers of other clients become entries of our own file, and their secrets move out of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import SettingsError
from toolcrib.settings.clients import CLIENTS
from toolcrib.settings.imports import ImportPlan, move_secrets, plan_import, read_servers
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings

FILES = Path(__file__).parent / "clients"
ENVIRON = {"TOKEN": "t0ken", "TEAM": "blue", "PASSED": "p", "API_KEY": "from-input"}


class Home:
    """A user's home folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"HOME": str(folder), **ENVIRON}
        self.config = folder / ".config" / "toolcrib" / "config.json"

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def plan(self, *files: Path, **options: Any) -> ImportPlan:
        found = [server for file in files for server in read_servers(file, self.environ)]
        return plan_import(found, self.config, self.environ, **options)

    def load(self, file: Path) -> Settings:
        return load_settings(file, environ=self.environ, cwd=self.folder)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Home(tmp_path)


@pytest.mark.parametrize("client", [client.id for client in CLIENTS])
def test_an_imported_server_is_the_same_as_in_the_clients_file(client: str, home: Home) -> None:
    text = next(FILES.glob(f"{client}.*")).read_text(encoding="utf-8")
    (tail, *_) = [file.path.rpartition("}/")[2].removeprefix("~/") for file in _row(client).files]
    path = home.file(tail, text)
    plan = home.plan(path)
    plan.write()
    wanted, got = home.load(path), home.load(home.config)
    assert got.servers == wanted.servers
    assert got.warnings == ()


def _row(name: str) -> Any:
    return next(client for client in CLIENTS if client.id == name)


SECRETS = """{"mcpServers": {"mail": {
  "command": "npx",
  "args": ["mail", "--api-key", "S3CRET-a", "--token=S3CRET-b", "--key-file", "/etc/key", "postgres://u:S3CRET-c@h/db",
           "ghp_S3CRETdefghijklmnopqrstuvwxyz0123456", "-e", "GIT_TOKEN=S3CRET-h", "-e", "LEVEL=3",
           "--header", "Authorization: Bearer S3CRET-i", "--header=X-Api-Key:S3CRET-j", "image:3",
           "https://example.com/mcp?api_key=S3CRET%2Bk"],
  "env": {"MAIL_TOKEN": "S3CRET-d", "MODE": "fast", "FROM": "${FROM_KEY}", "PLAIN": "sk-S3CRETabcdefghijkl"}
}, "web": {
  "url": "https://u:S3CRET-e@example.com/mcp/S3CRETa0b1c2d3e4f5g6h7i8j9?api_key=S3CRET%2Bf&page=1",
  "headers": {"Authorization": "Bearer S3CRET-g", "X-Team": "blue"}
}}}"""


def test_no_secret_is_left_in_the_file_or_shown_and_the_servers_get_them(home: Home) -> None:
    path = home.file("clients/mcp.json", SECRETS)
    plan = home.plan(path)
    assert "S3CRET" not in repr(plan)
    plan.write()
    text = home.config.read_text()
    assert "S3CRET" not in text
    assert all(
        word in text
        for word in ("fast", "blue", "image:3", "LEVEL=3", "GIT_TOKEN=${", "/etc/key", "${FROM_KEY}", "page=1")
    )
    env_file = home.config.with_name("secrets.env")
    assert env_file.read_text().count("S3CRET") == 14
    assert [file.stat().st_mode & 0o777 for file in (home.config, env_file)] == [0o600, 0o600]
    home.environ["FROM_KEY"] = "x"
    assert home.load(home.config).servers == home.load(path).servers


def test_secrets_can_move_to_the_keyring(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = pytest.importorskip("keyring")
    kept: dict[tuple[str, str], str] = {}
    monkeypatch.setattr(keyring, "set_password", lambda service, name, value: kept.update({(service, name): value}))
    monkeypatch.setattr(keyring, "get_password", lambda service, name: kept.get((service, name)))
    path = home.file("mcp.json", SECRETS)
    home.plan(path, keyring=True).write()
    assert "S3CRET" not in home.config.read_text()
    assert not home.config.with_name("secrets.env").exists()
    home.environ["FROM_KEY"] = "x"
    assert home.load(home.config).servers == home.load(path).servers


def test_an_import_twice_adds_nothing_and_a_changed_server_gets_another_name(home: Home) -> None:
    path = home.file(".cursor/mcp.json", '{"mcpServers": {"a": {"command": "one"}, "b": {"command": "two"}}}')
    home.plan(path).write()
    assert [server.action for server in home.plan(path).servers] == ["same", "same"]
    home.file(".cursor/mcp.json", '{"mcpServers": {"a": {"command": "other"}, "b": {"command": "two"}}}')
    home.plan(path).write()
    servers = {server.name: server.command for server in home.load(home.config).servers}
    assert servers == {"a": "one", "a-cursor": "other", "b": "two"}


def test_the_same_server_with_another_account_is_another_server(home: Home) -> None:
    text = '{"mcpServers": {"git": {"command": "git-mcp", "env": {"GIT_TOKEN": "%s"}}}}'
    work = home.file(".cursor/mcp.json", text % "of-work")
    private = home.file(".codeium/windsurf/mcp_config.json", text % "of-home")
    home.plan(work).write()
    for files in ((work, private), (private,)):
        home.plan(*files).write()
    tokens = {server.name: server.env["GIT_TOKEN"] for server in home.load(home.config).servers}
    assert tokens == {"git": "of-work", "git-windsurf": "of-home"}
    assert [server.action for server in home.plan(private, work).servers] == ["same", "same"]


def test_a_file_that_cannot_be_written_is_named(home: Home) -> None:
    path = home.file(".cursor/mcp.json", '{"mcpServers": {"a": {"command": "one"}}}')
    home.config = home.file("plain", "") / "config.json"
    with pytest.raises(SettingsError, match=r"plain/config\.json cannot be written"):
        home.plan(path).write()


def test_what_cannot_be_imported_is_left_out_with_the_reason(home: Home) -> None:
    text = """{"mcpServers": {
      "off": {"command": "run", "disabled": true},
      "wrong": {"args": ["a"]},
      "narrow": {"command": "run", "blockedTools": ["a"]},
      "own": {"command": "toolcrib", "args": ["serve", "--config", "x.json"]},
      "list": [],
      "good": {"command": "run"}
    }, "projects": {"/p": {"mcpServers": {"of-project": {"command": "run"}, "off-there": {"command": "run"}},
                           "disabledMcpServers": ["off-there", "good"]}}}"""
    plan = home.plan(home.file(".claude.json", text))
    assert {server.name: server.reason for server in plan.servers if server.action == "skip"} == {
        "off": "it is disabled",
        "wrong": f"{home.folder}/.claude.json:3: mcpServers.wrong needs a command, or a url if it is remote",
        "narrow": '"blockedTools" is not a setting; use allowedTools or deniedTools',
        "own": "it is toolcrib itself",
        "list": "mcpServers.list is not the entry of a server",
        "off-there": 'projects."/p".disabledMcpServers leaves it out',
    }
    assert [server.name for server in plan.added] == ["good", "of-project"]


def test_a_file_of_our_own_keeps_its_comments_and_settings(home: Home) -> None:
    home.config = home.file("toolcrib.toml", '# mine\n[toolcrib]\nprefix = false # why\nenv_file = "s.env"\n')
    path = home.file("mcp.json", '{"mcpServers": {"a b": {"command": "run", "env": {"KEY": "secret"}}}}')
    home.plan(path).write()
    text = home.config.read_text()
    assert text.startswith("# mine\n[toolcrib]\nprefix = false # why\n")
    assert home.load(home.config).servers == home.load(path).servers
    assert home.folder.joinpath("s.env").read_text() == "TOOLCRIB_A_B_KEY='secret'\n"


@pytest.mark.parametrize(
    "text", ["[toolcrib]\nprefix = false\n", "[toolcrib.search]\ngroup = true\n", "toolcrib:\n  prefix: false\n"]
)
def test_a_section_of_our_own_learns_where_the_secrets_are(text: str, home: Home) -> None:
    home.config = home.file("toolcrib", text)
    path = home.file("mcp.json", '{"mcpServers": {"a": {"command": "run", "env": {"KEY": "secret"}}}}')
    home.plan(path).write()
    assert "~/.config/toolcrib/secrets.env" in home.config.read_text()
    assert home.load(home.config).servers == home.load(path).servers


def test_relative_folders_and_files_are_meant_from_the_clients_project(home: Home) -> None:
    home.file("work/.env", "A=1")
    text = """{"mcpServers": {"a": {"command": "${workspaceFolder}/run", "cwd": "src", "envFile": ".env"}}}"""
    path = home.file("work/.cursor/mcp.json", text)
    home.plan(path).write()
    assert home.load(home.config).servers == home.load(path).servers


def test_a_file_that_cannot_be_read_says_why(home: Home) -> None:
    with pytest.raises(SettingsError, match=r"mcp\.json:1:2"):
        read_servers(home.file("mcp.json", "{a}"), home.environ)
    with pytest.raises(SettingsError, match="must hold an object"):
        read_servers(home.file("mcp.json", "[]"), home.environ)


@given(
    st.dictionaries(st.sampled_from(["API_KEY", "MODE", "X-Token"]), st.text(max_size=40)),
    st.lists(st.text(max_size=9)),
)
def test_references_give_back_what_was_moved(env: dict[str, str], args: list[str]) -> None:
    entry = {"command": "run", "env": env, "args": args}
    moved, secrets = move_secrets("it", entry)
    text = json.dumps(moved, ensure_ascii=False)
    for name, value in secrets.items():
        text = text.replace(f"${{{name}}}", json.dumps(value, ensure_ascii=False)[1:-1])
    assert json.loads(text) == entry
