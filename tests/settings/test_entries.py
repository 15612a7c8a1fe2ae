"""Server entries as well-known clients write them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.errors import SettingsError
from toolcrib.settings.options import Settings
from toolcrib.upstream.options import ServerOptions

Loading = Callable[..., Settings]

CLAUDE = """{
  "mcpServers": {
    "filesystem": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/srv"]},
    "remote": {"type": "http", "url": "https://example.com/mcp", "headers": {"X-Key": "k"}}
  },
  "globalShortcut": "", "preferences": {"menuBarEnabled": false}
}"""
CURSOR = """{"mcpServers": {
  "local": {"command": "python", "args": ["server.py"], "env": {"PORT": 8080, "KEY": "${env:KEY}", "NONE": null}},
  "remote": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${env:KEY}"}}
}}"""
WINDSURF = """{"mcpServers": {
  "remote": {"serverUrl": "https://example.com/mcp", "headers": {"A": "b"}, "disabledTools": ["x"]}
}}"""
CLINE = """{"mcpServers": {
  "local": {"command": "node", "args": ["a.js"], "disabled": false, "autoApprove": ["x"], "timeout": 60},
  "remote": {"type": "streamableHttp", "url": "https://example.com/mcp", "alwaysAllow": []},
  "old": {"type": "sse", "url": "https://example.com/events"}
}}"""
VSCODE = """{
  // VS Code writes comments, and trailing commas.
  "inputs": [{"type": "promptString", "id": "key", "password": true},],
  "servers": {
    "local": {"type": "stdio", "command": "${workspaceFolder}/run", "args": ["${userHome}"], "envFile": ".env"},
    "remote": {"type": "http", "url": "https://example.com/mcp", "gallery": true},
  },
}"""
CODEX = """
[mcp_servers.local]
command = "run"
args = ["a"]
[mcp_servers.local.env]
KEY = "v"
"""


TIMEOUTS = 'write "timeouts": {"start": 60, "list": 30, "call": 60}, in seconds'


def entry(**fields: Any) -> str:
    return json.dumps({"mcpServers": {"it": fields}}, indent=1)


def by_name(servers: tuple[ServerOptions, ...]) -> dict[str, ServerOptions]:
    return {server.name: server for server in servers}


def test_claudes_file_is_taken_as_it_is(loading: Loading) -> None:
    settings = loading(CLAUDE)
    assert settings.warnings == ()
    assert settings.servers == (
        ServerOptions(
            name="filesystem",
            command="npx",
            args=("-y", "@modelcontextprotocol/server-filesystem", "/srv"),
        ),
        ServerOptions(name="remote", transport="http", url="https://example.com/mcp", headers={"X-Key": "k"}),
    )


def test_cursors_file_is_taken_as_it_is(loading: Loading) -> None:
    settings = loading(CURSOR, KEY="secret")
    assert settings.warnings == ()
    assert settings.servers == (
        ServerOptions(name="local", command="python", args=("server.py",), env={"PORT": "8080", "KEY": "secret"}),
        ServerOptions(
            name="remote",
            transport="http",
            url="https://example.com/mcp",
            headers={"Authorization": "Bearer secret"},
        ),
    )


def test_windsurfs_file_is_taken_and_the_tools_that_it_disables_are_denied(loading: Loading) -> None:
    settings = loading(WINDSURF)
    assert settings.servers == (
        ServerOptions(
            name="remote", transport="http", url="https://example.com/mcp", headers={"A": "b"}, denied_tools=("x",)
        ),
    )
    assert settings.warnings == ()


def test_clines_file_is_taken_and_its_own_keys_are_warned_of(loading: Loading) -> None:
    settings = loading(CLINE)
    assert [(server.name, server.transport) for server in settings.servers] == [
        ("local", "stdio"),
        ("old", "sse"),
        ("remote", "http"),
    ]
    assert settings.warnings == (
        f"mcp.json:2: mcpServers.local.timeout is ignored, as clients disagree on its unit; {TIMEOUTS}",
        "mcp.json:2: mcpServers.local has settings of another client that are ignored: autoApprove",
        "mcp.json:3: mcpServers.remote has settings of another client that are ignored: alwaysAllow",
    )


def test_vs_codes_file_is_taken_with_its_comments_and_variables(loading: Loading, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("export TOKEN='a b' # c\nOTHER=d\n")
    settings = loading(VSCODE, ".vscode/mcp.json")
    assert settings.servers == (
        ServerOptions(
            name="local",
            command=f"{tmp_path}/run",
            args=("/home/me",),
            env={"TOKEN": "a b", "OTHER": "d"},
        ),
        ServerOptions(name="remote", transport="http", url="https://example.com/mcp"),
    )


def test_vs_codes_own_settings_file_holds_its_servers_deeper(loading: Loading) -> None:
    settings = loading('{"editor.fontSize": 12, "mcp": {"servers": {"a": {"command": "run"}}}}', "settings.json")
    assert [server.name for server in settings.servers] == ["a"]


def test_toml_is_taken_in_every_spelling_of_the_section(loading: Loading) -> None:
    wanted = (ServerOptions(name="local", command="run", args=("a",), env={"KEY": "v"}),)
    assert loading(CODEX, "config.toml").servers == wanted
    assert loading(CODEX.replace("mcp_servers", "mcpServers"), "config").servers == wanted


def test_entries_of_a_group_are_accounts_and_those_that_clash_fail_alone(loading: Loading) -> None:
    run: dict[str, Any] = {"command": "run"}
    servers = {
        "hub-work": {**run, "group": "hub"},
        "hub-home": {**run, "group": "hub", "account": "private"},
        "hub-copy": {**run, "group": "hub", "account": "work"},
        "far-a": {**run, "group": "far", "delegateSearch": True},
        "git-a": {**run, "group": "git"},
        "git": run,
    }
    found = by_name(loading(json.dumps({"mcpServers": servers})).servers)
    assert {name: one.account_name for name, one in found.items() if one.group == "hub"} == {
        "hub-work": "work",
        "hub-home": "private",
        "hub-copy": "work",
    }
    assert {name: one.problem for name, one in found.items() if one.problem} == {
        "far-a": "a server with delegateSearch cannot be in a group",
        "git-a": "its group has the name of the server git",
        "hub-work": "its account work is that of the server hub-copy; set another `account`",
    }


def test_our_own_keys_of_an_entry_are_taken_in_both_spellings(loading: Loading, tmp_path: Path) -> None:
    own = {"required": True, "timeouts": {"start": 1, "list": 2.5, "call": 3}, "cwd": "sub", "command": "~/run"}
    wanted = ServerOptions(
        name="it",
        command="/home/me/run",
        cwd=tmp_path / "sub",
        required=True,
        start_timeout_s=1,
        list_timeout_s=2.5,
        call_timeout_s=3,
        allowed_tools=("a", "b"),
    )
    assert loading(entry(**own, allowedTools=["a", "b"])).servers == (wanted,)
    assert loading(entry(**own, allowed_tools=["a", "b"])).servers == (wanted,)


@pytest.mark.parametrize("key", ["prompts", "resources"])
def test_prompts_and_resources_are_offered_unless_switched_off(loading: Loading, key: str) -> None:
    assert getattr(loading(entry(command="run")).servers[0], key) is True
    assert getattr(loading(entry(command="run", **{key: True})).servers[0], key) is True
    assert getattr(loading(entry(command="run", **{key: False})).servers[0], key) is False


@pytest.mark.parametrize("allowed", ["*", ["*"], ["a", "*"]])
def test_a_star_allows_every_tool(loading: Loading, allowed: Any) -> None:
    assert loading(entry(command="run", allowedTools=allowed)).servers[0].allowed_tools is None


@pytest.mark.parametrize(
    ("said", "transport"),
    [
        ("stdio", "stdio"),
        ("http", "http"),
        ("streamable-http", "http"),
        ("streamableHttp", "http"),
        ("streamable_http", "http"),
        ("sse", "sse"),
    ],
)
def test_every_known_spelling_of_a_transport_is_taken(loading: Loading, said: str, transport: str) -> None:
    server = loading(entry(type=said, command="run", url="https://example.com/mcp")).servers[0]
    assert server.transport == transport


def test_a_url_that_ends_like_the_older_transport_is_taken_for_it_with_a_warning(loading: Loading) -> None:
    settings = loading(entry(url="https://example.com/sse?key=1"))
    assert settings.servers[0].transport == "sse"
    assert settings.warnings == (
        'mcp.json:3: mcpServers.it is treated as an SSE server because of its url; add "type": "http" if it is not one',
    )
    assert loading(entry(type="http", url="https://example.com/sse")).servers[0].transport == "http"


def test_a_disabled_server_is_left_out_with_a_warning(loading: Loading) -> None:
    settings = loading('{"mcpServers": {\n "a": {"command": "run", "disabled": true}}}')
    assert settings.servers == ()
    assert settings.warnings == ("mcp.json:2: mcpServers.a is disabled and left out",)


def test_toolcrib_does_not_start_itself_from_the_file_it_is_named_in(loading: Loading) -> None:
    own = {"command": "uvx", "args": ["toolcrib", "serve"]}
    settings = loading(entry(**own))
    assert settings.servers == ()
    assert "starts toolcrib itself and is left out" in settings.warnings[0]
    with_its_own_file = {"command": "toolcrib", "args": ["serve", "--config", "other.json"]}
    assert len(loading(entry(**with_its_own_file)).servers) == 1


def test_a_key_that_is_not_a_namespace_is_mapped_with_a_warning(loading: Loading) -> None:
    settings = loading('{"mcpServers": {\n "io.github:files": {"command": "run"},\n "My Server": {"command": "run"}}}')
    assert [server.name for server in settings.servers] == ["My Server", "io.github-files"]
    (warning,) = settings.warnings
    assert warning.startswith('mcp.json:2: mcpServers."io.github:files" is named "io.github-files" here')


def test_of_two_keys_that_become_one_namespace_the_second_is_left_out_with_a_warning(loading: Loading) -> None:
    settings = loading('{"mcpServers": {\n "a:b": {"command": "run"},\n "a-b": {"command": "other"}}}')
    assert [(server.name, server.command) for server in settings.servers] == [("a-b", "run")]
    assert settings.warnings[-1] == (
        "mcp.json:3: mcpServers.a-b is left out: it has the same name as "
        'mcpServers."a:b" of mcp.json:2; rename one of them'
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"command": "run", "args": "UTC"}, 'mcp.json:5: mcpServers.it.args must be a list of strings, not "UTC"'),
        ({"command": "run", "args": [80]}, 'mcp.json:6: mcpServers.it.args[0] must be a string, not 80 (write "80")'),
        ({"command": [1]}, "mcp.json:4: mcpServers.it.command must be a string, not a list"),
        ({"command": " "}, "mcp.json:4: mcpServers.it.command must not be empty"),
        ({}, "mcp.json:3: mcpServers.it needs a command, or a url if it is remote"),
        (
            {"comand": "run"},
            'mcp.json:3: mcpServers.it needs a command, or a url if it is remote (is "comand" meant to be command?)',
        ),
        ({"type": "http"}, "mcp.json:3: mcpServers.it needs a url"),
        (
            {"type": "grpc", "command": "run"},
            'mcp.json:4: mcpServers.it.type must be stdio, http (also written streamable-http) or sse, not "grpc"',
        ),
        (
            {"command": "run", "url": "https://example.com"},
            'mcp.json:3: mcpServers.it has both a command and a url; add "type": "stdio" or "http", or drop one',
        ),
        ({"url": "example.com"}, "mcp.json:4: mcpServers.it.url must begin with http:// or https://"),
        ({"url": "https://"}, "mcp.json:4: mcpServers.it.url must name a host"),
        ({"url": "http://a:b:c/"}, "mcp.json:4: mcpServers.it.url is not a url"),
        (
            {"url": "https://a", "headers": {"A": ["secret"]}},
            "mcp.json:6: mcpServers.it.headers.A must be a string, not a list",
        ),
        (
            {"url": "https://a", "headers": {"A B": "secret"}},
            'mcp.json:6: mcpServers.it.headers."A B" is not a header name',
        ),
        ({"command": "run", "env": {"A": True}}, "mcp.json:6: mcpServers.it.env.A must be a string, not true or false"),
        ({"command": "run", "disabled": "no"}, 'mcp.json:5: mcpServers.it.disabled must be true or false, not "no"'),
        (
            {"command": "run", "timeouts": {"start": 0}},
            "mcp.json:6: mcpServers.it.timeouts.start must be a number of seconds above 0, not 0",
        ),
        (
            {"command": "run", "timeouts": {"cal": 1}},
            'mcp.json:6: mcpServers.it.timeouts.cal is not a setting; did you mean "call"?',
        ),
        (
            {"command": "run", "allowedTools": ["a"], "allowed_tools": ["b"]},
            'mcp.json:8: mcpServers.it.allowed_tools duplicates "allowedTools"; keep one of them',
        ),
    ],
)
def test_a_wrong_entry_disables_its_server_with_file_line_and_field(
    loading: Loading, fields: dict[str, Any], said: str
) -> None:
    assert loading(entry(**fields)).servers[0].problem == said


def test_the_other_servers_of_a_file_with_wrong_entries_are_used(loading: Loading) -> None:
    settings = loading(
        '{"mcpServers": {\n "a": {},\n "b": [],\n "c": {"command": "run"},\n'
        ' "d": {"url": "https://a/mcp", "required": true, "retries": -1}}}'
    )
    assert {server.name: server.problem for server in settings.servers} == {
        "a": "mcp.json:2: mcpServers.a needs a command, or a url if it is remote",
        "b": "mcp.json:3: mcpServers.b must be an object with command or url, not a list",
        "c": "",
        "d": "mcp.json:5: mcpServers.d.retries must be a whole number of at least 0, not -1",
    }
    last = settings.servers[-1]
    assert (last.transport, last.url, last.required) == ("http", "https://a/mcp", True)


def test_every_problem_of_an_entry_is_named(loading: Loading) -> None:
    problem = loading(entry(command="run", args="UTC", retries=-1)).servers[0].problem
    assert problem == (
        'mcp.json:5: mcpServers.it.args must be a list of strings, not "UTC"; '
        "mcp.json:6: mcpServers.it.retries must be a whole number of at least 0, not -1"
    )


def test_all_problems_of_a_file_are_reported_together_in_the_order_of_its_lines(loading: Loading) -> None:
    with pytest.raises(SettingsError) as caught:
        loading('{"servers": [],\n "toolcrib": {\n "prefix": 1,\n "http": {"port": "a"}}}')
    assert caught.value.message.splitlines() == [
        "mcp.json has 3 problems:",
        "  mcp.json:1: servers must be an object with an entry for each server, not a list",
        "  mcp.json:3: toolcrib.prefix must be true or false, not 1",
        '  mcp.json:4: toolcrib.http.port must be a whole number from 0 to 65535, not "a"',
    ]
    assert [problem["line"] for problem in caught.value.data["problems"]] == [1, 3, 4]


def test_a_misspelt_key_of_an_entry_is_ignored_with_the_closest_spelling(loading: Loading) -> None:
    assert loading(entry(command="run", requierd=True)).warnings == (
        'mcp.json:5: mcpServers.it.requierd is ignored; did you mean "required"?',
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "mcp.json: must hold an object, not a list"),
        ("{}", 'mcp.json has no section "mcpServers".'),
        ('{"mcpServer": {}}', 'mcpServer is ignored; did you mean "mcpServers"?'),
        ('{"servers": []}', "mcp.json:1: servers must be an object with an entry for each server, not a list"),
        ('{"mcpServers": {}, }}', "mcp.json:1:21: unexpected text after the end"),
    ],
)
def test_a_file_that_is_not_a_settings_file_is_refused(loading: Loading, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loading(text)
    assert said in caught.value.message


@pytest.mark.parametrize("key", ["blockedTools", "toolFilter", "tool_allowlist", "hiddenTools"])
def test_a_key_that_limits_the_tools_in_an_unknown_way_disables_its_server(loading: Loading, key: str) -> None:
    (server,) = loading(entry(command="run", **{key: ["x"]})).servers
    assert server.problem == f'"{key}" is not a setting; use allowedTools or deniedTools'


def test_an_empty_list_of_an_unknown_key_disables_its_server_unless_it_denies(loading: Loading) -> None:
    assert loading(entry(command="run", blockedTools=[])).servers[0].problem == ""
    assert loading(entry(command="run", allowTools=[])).servers[0].problem != ""


@pytest.mark.parametrize("key", ["autoApprove", "alwaysAllow", "disabledAutoApproveTools", "autoAllowTools"])
def test_a_key_that_only_approves_calls_does_not_limit_what_is_offered(loading: Loading, key: str) -> None:
    settings = loading(entry(command="run", **{key: ["x"]}))
    assert settings.servers == (ServerOptions(name="it", command="run"),)
    assert settings.warnings == (f"mcp.json:3: mcpServers.it has settings of another client that are ignored: {key}",)


def test_tools_that_are_switched_off_one_by_one_are_denied(loading: Loading) -> None:
    tools = {"a": False, "b": True, "c": {"enabled": False}, "d": {"approval_mode": "approve"}}
    (server,) = loading(entry(command="run", tools=tools)).servers
    assert (server.allowed_tools, server.denied_tools) == (None, ("a", "c"))
    (server,) = loading(entry(command="run", tools="some")).servers
    assert "mcpServers.it.tools limits the tools in a way that toolcrib does not know" in server.problem


def test_a_timeout_of_its_own_wins_over_the_general_one(loading: Loading) -> None:
    text = json.dumps({"mcpServers": {"a": {"command": "run", "timeout": 1000, "requestTimeout": 2000}}})
    assert loading(text, ".config/1mcp/mcp.json").servers[0].call_timeout_s == 2


@pytest.mark.parametrize("key", ["alowedTools", "allowdTools", "allowed_tool"])
def test_a_misspelt_allow_list_disables_its_server_rather_than_offering_everything(loading: Loading, key: str) -> None:
    settings = loading(json.dumps({"mcpServers": {"a": {"command": "run", key: ["x"]}, "b": {"command": "run"}}}))
    problems = {server.name: server.problem for server in settings.servers}
    assert problems == {"a": f'"{key}" is not a setting; did you mean "allowedTools"?', "b": ""}


def test_an_entry_says_how_it_is_found_and_how_often_it_is_tried(loading: Loading) -> None:
    (server,) = loading(
        entry(command="run", namespace="tools", delegateSearch=True, retries=0, retryInterval=2, timeouts={"find": 9})
    ).servers
    assert server == ServerOptions(
        name="it",
        command="run",
        namespace="tools",
        delegate_search=True,
        retries=0,
        retry_interval_s=2,
        find_timeout_s=9,
    )
    assert loading(entry(command="run", show_all=True)).servers[0].show_all


def test_a_search_waits_for_the_server_that_may_search_for_longest(loading: Loading) -> None:
    patient = {"command": "run", "timeouts": {"find": 9}}
    assert loading(entry(**patient, delegate_search=True)).gateway.find_timeout_s == 9
    assert loading(entry(**patient)).gateway.find_timeout_s == 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"namespace": "a:b"},
            "mcpServers.it.namespace must not contain colons or control characters",
        ),
        ({"namespace": ""}, "mcpServers.it.namespace must not be empty"),
        ({"namespace": 1}, "mcpServers.it.namespace must be a string, not 1"),
        ({"retries": -1}, "mcpServers.it.retries must be a whole number of at least 0, not -1"),
        ({"retries": 1.5}, "mcpServers.it.retries must be a whole number of at least 0, not 1.5"),
        ({"retryInterval": 0}, "mcpServers.it.retryInterval must be a number of seconds above 0, not 0"),
        ({"showAll": "yes"}, 'mcpServers.it.showAll must be true or false, not "yes"'),
        ({"delegateSearch": 1}, "mcpServers.it.delegateSearch must be true or false, not 1"),
        ({"showAll": True, "delegateSearch": True}, "mcpServers.it has both show_all, which lists all its tools here"),
        ({"timeouts": {"find": "3"}}, "mcpServers.it.timeouts.find must be a number of seconds above 0"),
    ],
)
def test_a_wrong_setting_of_an_entry_disables_its_server_with_line_and_field(
    loading: Loading, fields: dict[str, Any], said: str
) -> None:
    problem = loading(entry(command="run", **fields)).servers[0].problem
    assert problem.startswith("mcp.json:")
    assert said in problem


def test_protocol_is_a_version_of_mcp_or_as_in_some_clients_the_transport(loading: Loading) -> None:
    [server] = loading(entry(command="run", protocol="2025-11-25")).servers
    assert (server.protocol, server.transport, server.problem) == ("2025-11-25", "stdio", "")
    [server] = loading(entry(url="https://example.com/mcp", protocol="sse")).servers
    assert (server.protocol, server.transport) == ("auto", "sse")
    [server] = loading(entry(command="run", protocol="2031-01-01")).servers
    assert "2031-01-01" in server.problem
