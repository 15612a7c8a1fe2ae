"""The files of each known client, read as they are, and where they are on each system."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolcrib.settings.clients import CLIENTS, ClientApp, Places, client_named, existing_files, identify, value_at
from toolcrib.settings.document import parse, syntax_of
from toolcrib.settings.options import Settings
from toolcrib.upstream.options import ServerOptions

Loading = Callable[..., Settings]

FILES = Path(__file__).parent / "clients"
URL = "https://example.com/mcp"
LOCAL = ServerOptions(name="local", command="run", args=("a", "b"), env={"KEY": "v"})
REMOTE = ServerOptions(name="remote", transport="http", url=URL, headers={"X-Key": "k"})


def local(**options: Any) -> ServerOptions:
    return replace(LOCAL, **options)


def remote(**options: Any) -> ServerOptions:
    return replace(REMOTE, **options)


EXPECTED = {
    "claude-desktop": (local(),),
    "claude-code": (local(), remote()),
    "cursor": (local(), remote()),
    "vscode": (local(env={"KEY": "from-input"}), remote()),
    "copilot-cli": (local(allowed_tools=("read",), call_timeout_s=30.0), remote()),
    "codex": (
        local(
            env={"KEY": "v", "PASSED": "p"},
            allowed_tools=("read", "write"),
            denied_tools=("write",),
            start_timeout_s=20.0,
            call_timeout_s=45.0,
        ),
        remote(headers={"X-Key": "k", "Authorization": "Bearer t0ken", "X-Team": "blue"}),
    ),
    "gemini-cli": (
        local(env={"KEY": "v", "TOKEN": "t0ken"}, allowed_tools=("a", "b"), denied_tools=("b",), call_timeout_s=15.0),
        ServerOptions(name="old", transport="sse", url="https://example.com/events"),
        remote(),
    ),
    "antigravity": (local(), remote(denied_tools=("x",))),
    "windsurf": (local(), remote(denied_tools=("x",))),
    "zed": (local(), ServerOptions(name="older", command="run", args=("c",)), remote()),
    "opencode": (local(list_timeout_s=5.0, denied_tools=("delete",)), remote(headers={"X-Key": "t0ken"})),
    "kilo-code": (local(list_timeout_s=10.0), remote()),
    "cline": (local(call_timeout_s=60.0), ServerOptions(name="old", transport="sse", url=URL), remote()),
    "roo-code": (local(call_timeout_s=90.0, denied_tools=("x",)), remote()),
    "goose": (
        local(env={"KEY": "v", "TOKEN": "t0ken"}, call_timeout_s=300.0, allowed_tools=("read",)),
        remote(call_timeout_s=300.0),
    ),
    "kiro": (local(denied_tools=("x",), call_timeout_s=60.0), remote()),
    "amazon-q": (local(call_timeout_s=60.0),),
    "continue": (local(start_timeout_s=20.0), remote()),
    "lm-studio": (local(), remote()),
    "junie": (local(), remote()),
    "librechat": (local(start_timeout_s=10.0, call_timeout_s=60.0), remote()),
    "mcpproxy": (local(denied_tools=("x",)), remote()),
    "1mcp": (local(start_timeout_s=10.0, call_timeout_s=30.0), remote()),
    "my-cool-proxy": (local(allowed_tools=("read",)), remote()),
}
ENVIRON = {"TOKEN": "t0ken", "TEAM": "blue", "PASSED": "p", "API_KEY": "from-input"}


def fixture_of(client: str) -> Path:
    return next(FILES.glob(f"{client}.*"))


def test_every_client_has_a_file_to_test_with() -> None:
    assert {client.id for client in CLIENTS} == set(EXPECTED) == {path.stem for path in FILES.iterdir()}


@pytest.mark.parametrize("client", [client.id for client in CLIENTS])
def test_a_clients_file_is_read_as_it_is(client: str, loading: Loading) -> None:
    row = client_named(client)
    assert row is not None
    (_, place), *_ = Places(platform="linux", home=PurePosixPath("/h"), project=PurePosixPath("/h")).paths(row)
    text = fixture_of(client).read_text(encoding="utf-8")
    settings = loading(text, str(place).removeprefix("/h/"), **ENVIRON)
    assert settings.servers == EXPECTED[client]


@pytest.mark.parametrize("client", [client.id for client in CLIENTS])
def test_the_servers_of_a_file_are_found_under_any_name(client: str, loading: Loading) -> None:
    text = fixture_of(client).read_text(encoding="utf-8")
    settings = loading(text, "settings", **ENVIRON)
    assert {server.name for server in settings.servers} == {server.name for server in EXPECTED[client]}


@pytest.mark.parametrize(
    "client", ["zed", "codex", "goose", "opencode", "continue", "mcpproxy", "my-cool-proxy", "librechat"]
)
def test_a_client_is_recognized_by_what_only_it_writes(client: str) -> None:
    text = fixture_of(client).read_text(encoding="utf-8")
    syntax = syntax_of(text, Path("settings"))
    assert identify(Path("/w/settings"), parse(text, syntax).value, syntax) == client_named(client)


@pytest.mark.parametrize(
    ("place", "client"),
    [
        ("/home/me/.config/Code/User/profiles/1a2b/mcp.json", "vscode"),
        ("/home/me/.aws/amazonq/cli-agents/mine.json", "amazon-q"),
        ("/home/me/project/.kilocode/mcp.json", "kilo-code"),
        ("/home/me/project/.roo/mcp.json", "roo-code"),
    ],
)
def test_a_client_is_recognized_by_the_place_of_its_file(place: str, client: str) -> None:
    assert identify(Path(place), {}, "json") == client_named(client)


WRONG = st.sampled_from(
    [
        *(None, True, -1, "", "*", "${", "${UNSET}", [], {}, [1], {"": ""}),
        *({"command": 5}, {"command": ["x", 1]}, {"url": "http://["}, {"url": "https://a", "headers": {"A": "é"}}),
        *({"command": "x", key: value} for key, value in (("tools", 3), ("timeout", "soon"), ("env", ["A=1", 2]))),
        {"command": "x", "blockedTools": ["a"]},
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([client for client in CLIENTS if len(EXPECTED[client.id]) > 1]), WRONG)
def test_a_wrong_entry_costs_only_itself(loading: Loading, client: ClientApp, wrong: Any) -> None:
    text = fixture_of(client.id).read_text(encoding="utf-8")
    value = parse(text, syntax_of(text, Path("settings"))).value
    table = value_at(value, client.servers)
    table[0 if isinstance(table, list) else "local"] = wrong
    place = client.files[0].path.rpartition("}/")[2].removeprefix("~/")
    servers = loading(json.dumps(value), place, **ENVIRON).servers
    assert EXPECTED[client.id][-1] in servers


def test_a_bare_map_of_servers_is_read(loading: Loading) -> None:
    text = """{"local": {"command": "run", "args": ["a", "b"], "env": {"KEY": "v"}},
      "remote": {"type": "http", "url": "https://example.com/mcp", "headers": {"X-Key": "k"}}}"""
    assert loading(text).servers == (LOCAL, REMOTE)


def test_the_servers_of_the_current_project_come_before_the_users_own(loading: Loading, tmp_path: Path) -> None:
    text = f"""{{"mcpServers": {{"a": {{"command": "users"}}, "b": {{"command": "users"}}}},
      "projects": {{"{tmp_path}": {{"mcpServers": {{"a": {{"command": "projects"}}}}}},
                   "/elsewhere": {{"mcpServers": {{"c": {{"command": "other"}}}}}}}}}}"""
    settings = loading(text, ".claude.json")
    assert {server.name: server.command for server in settings.servers} == {"a": "projects", "b": "users"}


def test_servers_that_a_project_of_claude_code_disables_are_left_out(loading: Loading, tmp_path: Path) -> None:
    text = f"""{{"mcpServers": {{"a": {{"command": "run"}}, "b": {{"command": "run"}}}},
      "projects": {{"{tmp_path}": {{"disabledMcpServers": ["b"]}}, "/elsewhere": {{"disabledMcpServers": ["a"]}}}}}}"""
    settings = loading(text, ".claude.json")
    assert [server.name for server in settings.servers] == ["a"]
    assert "mcpServers.b is left out, as projects." in settings.warnings[0]


def test_a_placeholder_of_librechat_disables_the_server_that_needs_it(loading: Loading) -> None:
    text = """mcpServers:
  mail:
    type: streamable-http
    url: https://example.com/mcp
    headers: {X-User: "{{LIBRECHAT_USER_ID}}"}
  time:
    command: run
"""
    problems = {server.name: server.problem for server in loading(text, "librechat.yaml").servers}
    assert problems == {"mail": "{{LIBRECHAT_USER_ID}} is known to LibreChat only (headers.X-User)", "time": ""}


def test_servers_that_gemini_excludes_are_left_out(loading: Loading) -> None:
    text = """{"mcp": {"allowed": ["a", "b"], "excluded": ["b"]},
      "mcpServers": {"a": {"command": "run"}, "b": {"command": "run"}, "c": {"command": "run"}}}"""
    settings = loading(text, ".gemini/settings.json")
    assert [server.name for server in settings.servers] == ["a"]
    assert "mcpServers.b is left out, as mcp.excluded says" in settings.warnings[0]
    assert "mcpServers.c is left out, as mcp.allowed says" in settings.warnings[1]


@pytest.mark.parametrize(
    ("switches", "allowed", "denied"),
    [
        ('{"git_*": false}', (), ()),
        ('{"git": false}', (), ()),
        ('{"git_push": false, "git_log": true}', None, ("push",)),
        ('{"*_push": false, "g*_pull": false}', None, ("*push", "*pull")),
        ('{"mail_*": false}', None, ()),
    ],
)
def test_tools_that_opencode_turns_off_are_not_offered(
    switches: str, allowed: tuple[str, ...] | None, denied: tuple[str, ...], loading: Loading
) -> None:
    text = f"""{{"mcp": {{"git": {{"type": "local", "command": ["run"]}}}}, "tools": {switches}}}"""
    (server,) = loading(text, "opencode.json").servers
    assert (server.allowed_tools, server.denied_tools) == (allowed, denied)


@pytest.mark.parametrize(
    ("references", "allowed"),
    [('["*"]', None), ('["@git"]', None), ('["fs_read", "@git/log", "@other"]', ("log",)), ('["@builtin"]', ())],
)
def test_an_agent_of_amazon_q_offers_the_tools_that_it_lists(
    references: str, allowed: tuple[str, ...] | None, loading: Loading
) -> None:
    text = f"""{{"mcpServers": {{"git": {{"command": "run"}}}}, "tools": {references}, "allowedTools": ["@git"]}}"""
    (server,) = loading(text, ".aws/amazonq/cli-agents/mine.json").servers
    assert server.allowed_tools == allowed


PLACES = {
    "claude-desktop": (
        "/home/me/.config/Claude/claude_desktop_config.json",
        "/Users/me/Library/Application Support/Claude/claude_desktop_config.json",
        r"C:\Users\me\AppData\Roaming\Claude\claude_desktop_config.json",
    ),
    "claude-code": ("/home/me/.claude.json", "/Users/me/.claude.json", r"C:\Users\me\.claude.json"),
    "vscode": (
        "/home/me/.config/Code/User/mcp.json",
        "/Users/me/Library/Application Support/Code/User/mcp.json",
        r"C:\Users\me\AppData\Roaming\Code\User\mcp.json",
    ),
    "codex": ("/home/me/.codex/config.toml", "/Users/me/.codex/config.toml", r"C:\Users\me\.codex\config.toml"),
    "zed": (
        "/home/me/.config/zed/settings.json",
        "/Users/me/Library/Application Support/Zed/settings.json",
        r"C:\Users\me\AppData\Roaming\Zed\settings.json",
    ),
    "goose": (
        "/home/me/.config/goose/config.yaml",
        "/Users/me/.config/goose/config.yaml",
        r"C:\Users\me\AppData\Roaming\Block\goose\config\config.yaml",
    ),
    "my-cool-proxy": (
        "/home/me/.config/my-cool-proxy/config.json",
        "/Users/me/Library/Preferences/my-cool-proxy/config.json",
        r"C:\Users\me\AppData\Roaming\my-cool-proxy\config.json",
    ),
}


@pytest.mark.parametrize("client", sorted(PLACES))
def test_a_clients_file_is_looked_for_where_its_system_keeps_it(client: str) -> None:
    row = client_named(client)
    assert row is not None
    linux = Places(platform="linux", home=PurePosixPath("/home/me"), project=PurePosixPath("/w"))
    mac = Places(platform="darwin", home=PurePosixPath("/Users/me"), project=PurePosixPath("/w"))
    windows = Places(platform="win32", home=PureWindowsPath(r"C:\Users\me"), project=PureWindowsPath(r"C:\w"))
    assert tuple(str(places.paths(row)[0][1]) for places in (linux, mac, windows)) == PLACES[client]


def test_variables_of_the_environment_move_a_clients_files() -> None:
    environ = {"CODEX_HOME": "/c", "XDG_CONFIG_HOME": "/x"}
    linux = Places(platform="linux", home=PurePosixPath("/home/me"), project=PurePosixPath("/w"), environ=environ)
    first = {client.id: str(linux.paths(client)[0][1]) for client in CLIENTS}
    assert first["codex"] == "/c/config.toml"
    assert first["vscode"] == "/x/Code/User/mcp.json"
    assert first["opencode"] == "/x/opencode/opencode.json"
    windows = Places(
        platform="win32", home=PureWindowsPath("C:/h"), project=PureWindowsPath("C:/w"), environ={"APPDATA": "D:/data"}
    )
    assert windows.paths(CLIENTS[0])[0][1] == PureWindowsPath("D:/data/Claude/claude_desktop_config.json")


def test_existing_files_are_found_in_the_home_and_the_project(tmp_path: Path) -> None:
    wanted = [
        "home/.cursor/mcp.json",
        "home/.config/Code/User/profiles/abc/mcp.json",
        "home/.config/Code/User/profiles/def/mcp.json",
        "work/.vscode/mcp.json",
    ]
    for name in wanted:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    places = Places(platform="linux", home=tmp_path / "home", project=tmp_path / "work")
    found = [(client.id, file.scope, str(path.relative_to(tmp_path))) for client, file, path in existing_files(places)]
    assert found == [
        ("cursor", "user", wanted[0]),
        ("vscode", "profile", wanted[1]),
        ("vscode", "profile", wanted[2]),
        ("vscode", "project", wanted[3]),
    ]
