"""The section `toolcrib`."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.app import App
from toolcrib.errors import ExecutionFailed, SettingsError
from toolcrib.gateway.options import GatewayOptions, SessionOptions
from toolcrib.search.options import PastOptions, SearchOptions
from toolcrib.server.options import HttpOptions, Token
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import LocalOptions, Settings
from toolcrib.state.options import StateOptions
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.upstream.options import FleetOptions, LoginOptions

Loading = Callable[..., Settings]

EVERYTHING = """
[toolcrib]
surfaces = ["dynamic", "search"]
meta_only = true
call_many = true
summary = true
always_visible = ["git:git_status"]
prefix = false
digest_tokens = 100
list_page_bytes = 4096
reply_tokens = 2000
structured_replies = false
max_message_bytes = 1048576

[toolcrib.results]
max_bytes = 2048
max_nodes = 3000
max_blocks = 40

[toolcrib.search]
scorer = "bm25"
fallback = "popular"
nothing_below = 0.1
weak_below = 0.4
default_limit = 5
max_limit = 50
page_size = 20
group = true
embedder = "model2vec:some/model"
embedder_cache = "vectors"
index_cache = "indexes"
tokens = "o200k_base"
synonyms = { sprint = ["iteration", "cycle"], ticket = "issue" }

[toolcrib.timeouts]
start = 1
list = 2
call = 3
call_max = 30
find = 7
search_wait = 4
list_wait = 6
call_grace = 5
embed = 0.5

[toolcrib.providers]
list_timeout = 8
cache = 9
request_tools = 10

[toolcrib.local]
max_threads = 11
mask_errors = true

[toolcrib.sessions]
learn = false
sessions = 12
pause = 13

[toolcrib.backoff]
first = 0.5
max = 10

[toolcrib.http]
host = "0.0.0.0"
port = 80
path = "/tools"
tokens = [{ env = "CI_TOKEN", caller = "ci", tenant = "acme", scopes = ["read", "call"] }]
allowed_hosts = ["tools.example.com"]
allowed_origins = ["https://example.com"]
max_body_bytes = 8192
max_body_nodes = 21
max_head_bytes = 2222
max_headers = 23
max_url_bytes = 24
head_timeout = 25
body_timeout = 26
max_connections = 27
max_connections_per_peer = 28
max_sessions = 29
max_sessions_per_caller = 30
max_pending_bytes = 40
max_pending_bytes_per_caller = 41
max_unread_bytes = 42
max_unread_bytes_per_peer = 43
max_streams = 44
max_streams_per_caller = 45
session_idle = 31
keep_alive = 20
drain = 1.5

[toolcrib.state]
path = "kept/state.sqlite"
max_bytes = 2097152

[mcpServers.a]
command = "run"
"""

SECRET = "0123456789abcdef"


def own(**fields: Any) -> str:
    return json.dumps({"toolcrib": fields, "mcpServers": {}}, indent=1)


def test_every_key_sets_its_option(loading: Loading, tmp_path: Path) -> None:
    settings = loading(EVERYTHING, "toolcrib.toml", CI_TOKEN=SECRET)
    server = settings.servers[0]
    assert (server.start_timeout_s, server.list_timeout_s, server.call_timeout_s) == (1, 2, 3)
    assert (server.call_max_timeout_s, server.find_timeout_s, server.max_message_bytes) == (30, 7, 1048576)
    assert (server.max_result_bytes, server.max_result_nodes, server.max_result_blocks) == (2048, 3000, 40)
    assert settings == Settings(
        servers=settings.servers,
        fleet=FleetOptions(backoff_first_s=0.5, backoff_max_s=10, logins=settings.fleet.logins),
        gateway=GatewayOptions(
            search=SearchOptions(
                scorer="bm25",
                fallback="popular",
                nothing_below=0.1,
                weak_below=0.4,
                default_limit=5,
                max_limit=50,
            ),
            page_size=20,
            group=True,
            embedder="model2vec:some/model",
            embedder_cache=tmp_path / "vectors",
            index_cache=tmp_path / "indexes",
            synonyms=(("sprint", ("iteration", "cycle")), ("ticket", ("issue",))),
            search_wait_s=4,
            list_wait_s=6,
            call_grace_s=5,
            embed_timeout_s=0.5,
            find_timeout_s=7,
            list_timeout_s=8,
            provider_cache_s=9,
            request_tools=10,
            sessions=SessionOptions(learn=False, sessions=12, pause_s=13),
        ),
        local=LocalOptions(max_threads=11, mask_errors=True),
        surfaces=SurfaceOptions(
            surfaces=("dynamic", "search"),
            meta_only=True,
            call_many=True,
            summary=True,
            always_visible=("git:git_status",),
            prefix=False,
            digest_tokens=100,
            list_page_bytes=4096,
            reply_tokens=2000,
            structured_replies=False,
            tokens="o200k_base",
        ),
        http=HttpOptions(
            host="0.0.0.0",
            port=80,
            path="/tools",
            tokens=(Token(secret=SECRET, caller="ci", tenant="acme", scopes=frozenset({"read", "call"})),),
            allowed_hosts=("tools.example.com",),
            allowed_origins=("https://example.com",),
            max_body_bytes=8192,
            max_body_nodes=21,
            max_head_bytes=2222,
            max_headers=23,
            max_url_bytes=24,
            head_timeout_s=25,
            body_timeout_s=26,
            max_connections=27,
            max_connections_per_peer=28,
            max_sessions=29,
            max_sessions_per_caller=30,
            max_pending_bytes=40,
            max_pending_bytes_per_caller=41,
            max_unread_bytes=42,
            max_unread_bytes_per_peer=43,
            max_streams=44,
            max_streams_per_caller=45,
            session_idle_s=31,
            keep_alive_s=20,
            drain_s=1.5,
        ),
        state=StateOptions(path=tmp_path / "kept" / "state.sqlite", max_bytes=2097152),
        source=tmp_path / "toolcrib.toml",
    )


def test_without_the_section_every_package_keeps_its_defaults(loading: Loading, tmp_path: Path) -> None:
    settings = loading('{"mcpServers": {}}', XDG_STATE_HOME="/kept")
    state = StateOptions(path=Path("/kept/toolcrib/state.sqlite"))
    fleet = FleetOptions(logins=LoginOptions(key_file=Path("/kept/toolcrib/logins.key")))
    assert settings == Settings(state=state, fleet=fleet, source=tmp_path / "mcp.json")


def test_camel_case_is_the_same(loading: Loading) -> None:
    settings = loading(own(alwaysVisible=["a:b"], search={"defaultLimit": 3}, http={"maxBodyBytes": 2048}))
    assert settings.surfaces.always_visible == ("a:b",)
    assert settings.gateway.search.default_limit == 3
    assert settings.http.max_body_bytes == 2048


def test_a_fallback_of_nothing_is_the_same_as_none(loading: Loading) -> None:
    assert loading(own(search={"fallback": ""})).gateway.search == SearchOptions()


async def test_the_functions_of_an_app_obey_the_settings(loading: Loading) -> None:
    def fail() -> None:
        """Fail."""
        raise ValueError("the password is hunter2")

    said = {}
    for masked in (True, False):
        app = App(loading(own(local={"mask_errors": masked})))
        app.tool(fail)
        with pytest.raises(ExecutionFailed) as caught:
            await app.call("fail")
        said[masked] = "hunter2" in str(caught.value)
    assert said == {True: False, False: True}


@pytest.mark.parametrize("key", ["sprint", "userStory", "k8s", "point of interest"])
def test_a_synonym_keeps_its_spelling(loading: Loading, key: str) -> None:
    assert loading(own(search={"synonyms": {key: ["x"]}})).gateway.synonyms == ((key, ("x",)),)


def test_past_requests_are_remembered_on_demand_only(loading: Loading) -> None:
    def past(value: object) -> object:
        return loading(own(search={"pastRequests": value})).gateway.past_requests

    assert loading(own()).gateway.past_requests is None
    assert past(False) is None
    assert past(True) == PastOptions()
    assert past({"tools": 20, "words": 5}) == PastOptions(tools=20, words=5)


def test_a_cache_may_lie_anywhere(loading: Loading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert loading(own(search={"embedderCache": "/var/v"})).gateway.embedder_cache == Path("/var/v")
    assert loading(own(search={"embedderCache": "~/v"})).gateway.embedder_cache == Path("/home/me/v")
    assert loading(own(search={"embedderCache": "v"})).gateway.embedder_cache == tmp_path / "v"


def test_a_server_may_be_more_patient_than_the_default(loading: Loading) -> None:
    text = json.dumps(
        {
            "toolcrib": {"timeouts": {"start": 1, "call": 2}},
            "mcpServers": {"a": {"command": "run", "timeouts": {"start": 90, "call_max": 900}}},
        }
    )
    server = loading(text).servers[0]
    assert (server.start_timeout_s, server.call_timeout_s, server.call_max_timeout_s) == (90, 2, 900)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"surface": []}, 'mcp.json:3: toolcrib.surface is not a setting; did you mean "surfaces"?'),
        (
            {"zzz": 1},
            "mcp.json:3: toolcrib.zzz is not a setting; the settings here are always_visible, app_tokens, apps, ",
        ),
        ({"http": {"prt": 1}}, 'mcp.json:4: toolcrib.http.prt is not a setting; did you mean "port"?'),
        ({"surfaces": ["serch"]}, 'mcp.json:4: toolcrib.surfaces[0] cannot be "serch"; did you mean "search"?'),
        (
            {"surfaces": ["all"]},
            'toolcrib.surfaces[0] cannot be "all"; use "search", "dynamic", "progressive" or "direct"',
        ),
        ({"surfaces": []}, f"mcp.json:3: toolcrib.surfaces must name one of {', '.join(SURFACES)}"),
        ({"http": {"port": 70000}}, "mcp.json:4: toolcrib.http.port must be a whole number from 0 to 65535, not 70000"),
        ({"http": {"path": "/healthz"}}, "http.path cannot be /healthz, which answers health checks"),
        ({"http": {"path": "mcp"}}, 'mcp.json:4: toolcrib.http.path must begin with "/", not "mcp"'),
        ({"search": {"default_limit": 0}}, "toolcrib.search.default_limit must be a whole number of at least 1, not 0"),
        (
            {"search": {"default_limit": 9, "max_limit": 5}},
            "mcp.json:3: toolcrib.search has a default_limit greater than its max_limit of 5",
        ),
        ({"search": {"scorer": "hybird"}}, 'toolcrib.search.scorer cannot be "hybird"; did you mean "hybrid"?'),
        ({"search": {"scorer": 1}}, 'search.scorer cannot be 1; use "hybrid", "tiers", "bm25" or "points"'),
        ({"search": {"scorer": ["bm25"]}}, 'mcp.json:4: toolcrib.search.scorer cannot be a list; use "hybrid"'),
        ({"search": {"fallback": "popluar"}}, 'toolcrib.search.fallback cannot be "popluar"; did you mean "popular"?'),
        (
            {"search": {"fallback": True}},
            'mcp.json:4: toolcrib.search.fallback cannot be true; use "" or "popular"',
        ),
        ({"search": {"tokens": "o200k-base"}}, 'search.tokens cannot be "o200k-base"; did you mean "o200k_base"?'),
        ({"search": {"nothing_below": 1.5}}, "search.nothing_below must be a number from 0 to 1, not 1.5"),
        ({"search": {"weak_below": True}}, "search.weak_below must be a number from 0 to 1, not true"),
        (
            {"search": {"nothing_below": 0.9}},
            "mcp.json:3: toolcrib.search has nothing_below greater than weak_below (0.45), so no hit could",
        ),
        ({"search": {"embedder": ""}}, "mcp.json:4: toolcrib.search.embedder must not be empty"),
        ({"tokens": "estimate"}, "mcp.json:3: toolcrib.tokens is not a setting; "),
        ({"logins": {"key": "x"}}, "mcp.json:4: toolcrib.logins.key is not a setting; the settings here are callback_"),
        ({"http": {"max_body_bytes": 5}}, "http.max_body_bytes must be a whole number of at least 1024, not 5"),
        ({"http": {"drain": 0}}, "toolcrib.http.drain must be a number of seconds above 0, not 0"),
        ({"calls": {"audit_file": {"path": "logs/"}}}, "audit_file.path names a folder: logs/; name a file in it"),
        ({"search": {"index_cache": 1}}, "search.index_cache must be true, false or the path of a folder, not 1"),
        ({"search": {"describe": "{x}"}}, 'search.describe must name a function as package.module:function, not "{x}"'),
        ({"search": {"embeder": "x"}}, 'toolcrib.search.embeder is not a setting; did you mean "embedder"?'),
        ({"search": {"group": 1}}, "mcp.json:4: toolcrib.search.group must be true or false, not 1"),
        ({"search": {"synonyms": ["a"]}}, "mcp.json:4: toolcrib.search.synonyms must be an object, not a list"),
        ({"search": {"synonyms": {"a": 1}}}, "mcp.json:5: toolcrib.search.synonyms.a must be a list of strings, not 1"),
        ({"search": {"synonyms": {"a": [" "]}}}, "mcp.json:6: toolcrib.search.synonyms.a[0] must not be empty"),
        ({"reply_tokens": -1}, "mcp.json:3: toolcrib.reply_tokens must be a whole number of at least 0, not -1"),
        ({"backoff": {"first": 9, "max": 5}}, "mcp.json:3: toolcrib.backoff has first greater than max (5)"),
        ({"prefix": "no"}, 'mcp.json:3: toolcrib.prefix must be true or false, not "no"'),
        ({"meta_only": 1}, "mcp.json:3: toolcrib.meta_only must be true or false, not 1"),
        (
            {"surfaces": ["direct"], "metaOnly": True},
            "mcp.json:6: toolcrib.metaOnly cannot be combined with the surface direct",
        ),
        ({"timeouts": {"find": 0}}, "mcp.json:4: toolcrib.timeouts.find must be a number of seconds above 0, not 0"),
        ({"timeouts": {"startGrace": 3}}, "timeouts.startGrace is no longer a setting; set search_wait for"),
        ({"providers": {"cache": "1m"}}, 'toolcrib.providers.cache must be a number of seconds above 0, not "1m"'),
        ({"providers": {"request_tools": -1}}, "request_tools must be a whole number of at least 0, not -1"),
        ({"providers": {"timeout": 1}}, 'providers.timeout is not a setting; did you mean "list_timeout"?'),
        ({"local": {"max_threads": 0}}, "mcp.json:4: toolcrib.local.max_threads must be a whole number of at least 1"),
        ({"local": {"mask_error": True}}, 'toolcrib.local.mask_error is not a setting; did you mean "mask_errors"?'),
        ({"sessions": {"learn": "no"}}, 'toolcrib.sessions.learn must be true or false, not "no"'),
        ({"sessions": {"pauze": 1}}, 'toolcrib.sessions.pauze is not a setting; did you mean "pause"?'),
        ({"http": []}, "mcp.json:3: toolcrib.http must be an object, not a list"),
    ],
)
def test_a_wrong_setting_is_refused_with_file_line_and_field(
    loading: Loading, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        loading(own(**fields))
    assert said in caught.value.message


# -- tokens ------------------------------------------------------------------------------------------------------------


def tokens(*entries: Any, **http: Any) -> str:
    return own(http={"tokens": list(entries), **http})


def test_secrets_come_from_variables_files_and_a_file_of_tokens(loading: Loading, tmp_path: Path) -> None:
    (tmp_path / "ci.secret").write_text(f" {SECRET}-file \n")
    listed = [{"token": f"{SECRET}-listed", "caller": "bot", "tenant": "acme", "scopes": ["read"]}]
    (tmp_path / "tokens.json").write_text(json.dumps({"tokens": listed}))
    settings = loading(
        tokens({"env": "A", "caller": "a"}, {"file": "ci.secret", "caller": "ci"}, tokens_file="tokens.json"),
        A=f"{SECRET}-a",
        TOOLCRIB_TOKEN=f"{SECRET}-own",
    )
    assert settings.http.tokens == (
        Token(secret=f"{SECRET}-a", caller="a"),
        Token(secret=f"{SECRET}-file", caller="ci"),
        Token(secret=f"{SECRET}-listed", caller="bot", tenant="acme", scopes=frozenset({"read"})),
        Token(secret=f"{SECRET}-own", caller="token"),
    )
    assert settings.http_problem == ""
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"env": "A", "caller": "a"}, "environment variable A is not set (toolcrib.http.tokens[0].env)"),
        ({"file": "lost", "caller": "a"}, "the file lost does not exist (toolcrib.http.tokens[0].file)"),
        ({"file": "mcp.json/x", "caller": "a"}, "the file mcp.json/x cannot be read (toolcrib.http.tokens[0].file)"),
        ({"file": "blank", "caller": "a"}, "the file blank is empty (toolcrib.http.tokens[0].file)"),
    ],
)
def test_an_unavailable_secret_disables_http_only(
    loading: Loading, tmp_path: Path, entry: dict[str, str], problem: str
) -> None:
    (tmp_path / "blank").write_text(" \n \n")
    settings = loading(tokens(entry))
    assert settings.http_problem == problem
    assert settings.http.tokens == ()


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_a_secret_in_a_file_without_an_end_disables_http_only(loading: Loading, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    one, many = loading(tokens({"file": name, "caller": "a"})), loading(tokens(tokens_file=name))
    assert one.http_problem == f"the file {name} is not a regular file (toolcrib.http.tokens[0].file)"
    assert many.http_problem == f"the file {name} is not a regular file (toolcrib.http.tokens_file)"


def test_two_callers_with_one_secret_forbid_http(loading: Loading) -> None:
    settings = loading(tokens({"env": "A", "caller": "a"}, {"env": "B", "caller": "b"}), A=SECRET, B=SECRET)
    assert settings.http_problem == "two tokens have the same secret, so their callers cannot be distinguished"


GUESSABLE = "a secret of fewer than 16 characters, which can be guessed"


def test_a_weak_secret_is_warned_of_wherever_it_is(loading: Loading, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(json.dumps({"tokens": [{"token": "hunter3", "caller": "b"}]}))
    listed = tokens({"env": "A", "caller": "a"}, tokens_file="tokens.json")
    settings = loading(listed, A="hunter2", TOOLCRIB_TOKEN="abc")
    assert [warning.partition(" ")[2] for warning in settings.warnings[:2]] == [
        f"toolcrib.http.tokens[0] is {GUESSABLE}",
        f"toolcrib.http.tokens_file holds {GUESSABLE}",
    ]
    assert settings.warnings[2:] == (f"TOOLCRIB_TOKEN is {GUESSABLE}",)
    assert len(settings.http.tokens) == 3


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"caller": "a"}, "toolcrib.http.tokens[0] must say where its secret is: env (a variable), file or secret"),
        (
            {"env": "A", "file": "b", "caller": "a"},
            "must say where its secret is: env (a variable), file or secret",
        ),
        ({"env": "A"}, "toolcrib.http.tokens[0] needs caller"),
        (
            {"token": "hunter2", "env": "A", "caller": "a"},
            "toolcrib.http.tokens[0].token must not be written in this file; use env or file to say where",
        ),
        ({"env": "A", "caler": "a"}, 'toolcrib.http.tokens[0].caler is not a setting; did you mean "caller"?'),
        ("hunter2", "toolcrib.http.tokens[0] must be an object, not a string"),
        ({"env": "A", "caller": "a", "scopes": "read"}, 'tokens[0].scopes must be a list of strings, not "read"'),
    ],
)
def test_a_wrong_token_is_refused_and_no_secret_is_shown(loading: Loading, entry: Any, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loading(tokens(entry), A=SECRET)
    assert said in caught.value.message
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "tokens.json:1: must be an object, not a list"),
        ('{"tokens": [{"caller": "a"}]}', "tokens.json:1: tokens[0] needs token"),
        ('{"tokens": [\n{"token": "hunter2"}]}', "tokens.json:2: tokens[0] needs caller"),
        ('{"tokens": [{"token": ["hunter2"], "caller": "a"}]}', "tokens[0].token must be a string, not a list"),
        ('{"tokens": [{"token": "hunter2", "caller": "local"}]}', "tokens.json:1: tokens[0].caller cannot be"),
        ('{"tokens": [{"token": hunter2}]}', "tokens.json:1:23: this is not a JSON value"),
    ],
)
def test_a_wrong_file_of_tokens_is_refused_with_its_own_name(
    loading: Loading, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "tokens.json").write_text(text)
    with pytest.raises(SettingsError) as caught:
        loading(tokens(tokens_file="tokens.json"))
    assert said in caught.value.message
    assert "hunter2" not in str(caught.value)


def test_state_is_kept_below_the_users_state_folder_unless_the_file_says_otherwise(
    loading: Loading, tmp_path: Path
) -> None:
    usual = Path("/home/me/.local/state/toolcrib/state.sqlite")
    if sys.platform == "linux":
        assert loading(own(), XDG_STATE_HOME="not/absolute").state.path == usual
    assert loading(own(), XDG_STATE_HOME="/kept").state.path == Path("/kept/toolcrib/state.sqlite")
    assert loading(own(state={"memory": True})).state.path is None
    assert loading(own(state={"path": "my.sqlite"})).state.path == tmp_path / "my.sqlite"
    assert Settings().state.path is None


def test_state_can_be_kept_in_redis(loading: Loading) -> None:
    assert loading(own(state="redis://db:6379/0")).state.url == "redis://db:6379/0"
    table = {"url": "rediss://${HOST}/0", "password": "${PASS}", "prefix": "gate", "timeout": 0.2}
    state = loading(own(state=table), HOST="db", PASS="hunter2secret").state
    assert (state.url, state.password, state.prefix, state.timeout_s) == ("rediss://db/0", "hunter2secret", "gate", 0.2)
    assert "hunter2secret" not in repr(state)


def test_a_password_of_redis_that_is_not_set_is_a_reason_not_to_serve(loading: Loading) -> None:
    settings = loading(own(state={"url": "redis://db", "password": "${PASS}"}))
    assert "PASS" in settings.http_problem


@pytest.mark.parametrize(
    "state",
    [
        "redis://:hunter2@db/0",
        "redis://ann:hunter2@db/0",
        {"url": "redis://db", "password": "hunter2"},
    ],
)
def test_a_literal_password_of_redis_is_refused_and_not_repeated(loading: Loading, state: Any) -> None:
    with pytest.raises(SettingsError, match="secret, which does not belong in this file") as caught:
        loading(own(state=state))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ("memcached://db", "is not an address of Redis"),
        ({"url": "redis://db", "memory": True}, "has a url, which keeps everything in Redis"),
        ({"url": "redis://db", "timeout": 0}, "must be a number of seconds above 0"),
        ({"path": "my.sqlite", "memory": True}, "has a path, but memory = true"),
        ({"path": "states/"}, "names a folder"),
        ({"maxBytes": 5}, "must be a whole number of at least 1048576"),
    ],
)
def test_an_unusable_place_for_state_is_refused(loading: Loading, state: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        loading(own(state=state))


def test_without_a_home_state_is_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    file = tmp_path / "mcp.json"
    file.write_text(own())
    assert load_settings(file, environ={}).state == StateOptions()
