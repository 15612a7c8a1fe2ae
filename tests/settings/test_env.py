"""Variables in server entries, and secrets outside of the settings."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import SettingsError
from toolcrib.settings.env import VariableExpander, VariableSource
from toolcrib.settings.options import Settings

Loading = Callable[..., Settings]
SECRET = "correct horse battery staple"


def filled(text: str, **environ: str) -> tuple[str, list[str]]:
    expansion = VariableExpander(VariableSource(environ=environ, workspace=Path("/desk/place")))
    return expansion.fill(text, "args[0]"), expansion.missing


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${A}", "one"),
        ("${env:A}", "one"),
        ("<${A}${A}>", "<oneone>"),
        ("${B:-two}", "two"),
        ("${env:B:-two}", "two"),
        ("${A:-two}", "one"),
        ("${EMPTY:-two}", "two"),
        ("${EMPTY}", ""),
        ("${B:-${A}}", "one"),
        ("${B:-${C:-x}y}z", "xyz"),
        ("${A:-${MISSING}}", "one"),
        ("${B:-}", ""),
        ("${B:-a:-b}", "a:-b"),
        ("$A $$ ${", "$A $$ ${"),
        ("${#list} ${1} ${A B}", "${#list} ${1} ${A B}"),
        ("${workspaceFolder}/${workspaceFolderBasename}", "/desk/place/place"),
        ("a${/}b${pathSeparator}c", "a/b/c"),
        ("${userHome}", "/home/me"),
    ],
)
def test_variables_are_filled_in_and_all_else_is_left_alone(text: str, result: str) -> None:
    assert filled(text, A="one", EMPTY="", HOME="/home/me") == (result, [])


def test_a_value_is_never_searched_for_variables_again() -> None:
    assert filled("${A}", A="${HOME}", HOME="/home/me") == ("${HOME}", [])
    assert filled("${B:-${A}}", A="${HOME}}", HOME="/home/me") == ("${HOME}}", [])


@given(st.text(alphabet="${}:-AB_/ envinput#"))
def test_any_text_is_filled_in_without_failing(text: str) -> None:
    result, _ = filled(text, A="one")
    assert result == text or "${" in text


def test_a_missing_variable_disables_its_server_alone_and_names_the_field(loading: Loading) -> None:
    servers = {
        "a": {"url": "https://${HOST}/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
        "b": {"command": "${CMD}", "args": ["x", "${ARG}"], "env": {"K": "${KEY}", "L": "${KEY}"}},
        "c": {"command": "run"},
    }
    settings = loading(json.dumps({"mcpServers": servers}), TOKEN="secret")
    assert {server.name: server.problem for server in settings.servers} == {
        "a": "environment variable HOST is not set (url)",
        "b": (
            "environment variable CMD is not set (command); environment variable ARG is not set (args[1]); "
            "environment variable KEY is not set (env.K); environment variable KEY is not set (env.L)"
        ),
        "c": "",
    }


def test_an_editors_input_counts_as_missing_and_says_what_to_write(loading: Loading) -> None:
    settings = loading('{"servers": {"a": {"command": "run", "env": {"K": "${input:key}"}}}}')
    assert settings.servers[0].problem == (
        'input "key" is asked for by the editor only; set the environment variable KEY (env.K)'
    )


def test_an_input_is_the_variable_of_its_name_or_its_default(loading: Loading) -> None:
    text = """{"inputs": [{"id": "api-key", "type": "promptString"}, {"id": "mode", "default": "fast"}],
      "servers": {"a": {"command": "run", "env": {"K": "${input:api-key}", "M": "${input:mode}"}}}}"""
    assert loading(text, API_KEY="secret").servers[0].env == {"K": "secret", "M": "fast"}


def test_variables_are_filled_in_as_other_clients_write_them(loading: Loading) -> None:
    text = """{"mcpServers": {"a": {"command": "run",
      "env": {"A": "{env:X}!", "B": "${{ secrets.X }}", "C": "$X {{X}}"}}}}"""
    assert loading(text, X="x").servers[0].env == {"A": "x!", "B": "x", "C": "$X {{X}}"}


def test_an_env_file_that_never_ends_is_refused(loading: Loading) -> None:
    (server,) = loading('{"mcpServers": {"a": {"command": "run", "envFile": "/dev/zero"}}}').servers
    assert server.problem == "the file /dev/zero is not a regular file (envFile)"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"url": "${URL}"}, "url must begin with http:// or https://, once its variables are filled in"),
        (
            {"url": "https://a", "headers": {"A": "${LINES}"}},
            "headers.A holds a character that no header can have",
        ),
        ({"command": "${EMPTY}"}, "environment variable EMPTY is empty (command)"),
        (
            {"command": " ${env:EMPTY} ${OTHER:-}"},
            "environment variable EMPTY is empty (command); environment variable OTHER is empty (command)",
        ),
        ({"command": "run", "envFile": "${NAME}.env"}, "the file x.env does not exist (envFile)"),
    ],
)
def test_what_only_a_value_makes_wrong_fails_the_server_and_never_shows_the_value(
    loading: Loading, fields: dict[str, Any], problem: str
) -> None:
    settings = loading(
        json.dumps({"mcpServers": {"a": fields}}), URL="hunter2", LINES="hunter2\nX: y", NAME="x", EMPTY=""
    )
    assert settings.servers[0].problem == problem
    assert "hunter2" not in repr(settings)


def test_variables_of_the_env_file_fill_in_for_those_of_the_environment(loading: Loading, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.env"
    secrets.write_text("A='from file'\nB=from file\n")
    secrets.chmod(0o600)
    text = """{"toolcrib": {"env_file": "secrets.env"},
      "mcpServers": {"a": {"command": "run", "env": {"A": "${A}", "B": "${B}"}}}}"""
    settings = loading(text, B="from environment")
    assert (settings.servers[0].env, settings.warnings) == ({"A": "from file", "B": "from environment"}, ())
    secrets.chmod(0o644)
    assert "toolcrib.env_file can be read by other users of this machine" in loading(text).warnings[0]
    secrets.unlink()
    settings = loading(text)
    assert "toolcrib.env_file cannot be read" in settings.warnings[0]
    assert "environment variable A is not set" in settings.servers[0].problem


def test_a_secret_of_the_keyring_is_filled_in(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {("toolcrib", "MAIL"): "secret"}
    keyring = SimpleNamespace(get_password=lambda service, name: kept.get((service, name)), __spec__=object())
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    text = """{"mcpServers": {"a": {"command": "run", "env": {"A": "${keyring:MAIL}"}},
      "b": {"command": "run", "env": {"A": "${keyring:OTHER}"}}}}"""
    first, second = loading(text).servers
    assert first.env == {"A": "secret"}
    assert second.problem == "the keyring has no secret OTHER (env.A)"


# -- secrets in the keyring, in files, and in what programs print ------------------------------------------------------


def printing(text: str) -> str:
    """A command that prints a text."""
    return shlex.join([sys.executable, "-c", f"print({text!r})"])


def settings_of(loading: Loading, reference: str, **secrets: Any) -> Settings:
    """Settings in which a server and a token refer to the same secret."""
    own = {"secrets": secrets, "http": {"tokens": [{"secret": reference, "caller": "ann"}]}}
    return loading(
        json.dumps({"mcpServers": {"a": {"command": "run", "env": {"A": reference}}}, "toolcrib": own}),
        PATH="/usr/bin",
    )


def assert_read(settings: Settings) -> None:
    (server,), (token,) = settings.servers, settings.http.tokens
    assert (server.env, server.problem) == ({"A": SECRET}, "")
    assert (token.secret, token.caller) == (SECRET, "ann")
    assert [one.problem for one in settings.secrets] == ["", ""]
    assert {one.where for one in settings.secrets} == {"a.env.A", "toolcrib.http.tokens[0].secret"}
    assert SECRET not in repr(settings.secrets)
    assert settings.http_problem == ""


def assert_missing(settings: Settings, reason: str) -> None:
    (server,) = settings.servers
    assert reason in server.problem
    assert reason in settings.http_problem
    assert all(reason in one.problem for one in settings.secrets)
    assert settings.http.tokens == ()


def test_a_secret_of_a_service_in_the_keyring(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {("github", "ann"): SECRET}
    keyring = SimpleNamespace(get_password=lambda service, name: kept.get((service, name)), __spec__=object())
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    assert_read(settings_of(loading, "${keyring:github/ann}"))
    assert_missing(settings_of(loading, "${keyring:github/bob}"), "the keyring has no secret github/bob")


def test_a_secret_in_a_file_beside_the_settings(loading: Loading, tmp_path: Path) -> None:
    (tmp_path / "mail.key").write_text(f"{SECRET}\n")
    settings = settings_of(loading, "${file:mail.key}")
    assert_read(settings)
    assert tmp_path / "mail.key" in settings.files  # so that a change of it is noticed


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "the file mail.key does not exist"),
        (b"", "the file mail.key is empty"),
        (b"\xff\xfe", "the file mail.key cannot be read as text"),
        (b"x" * 70_000, "the file mail.key is longer than 65,536 bytes"),
    ],
)
def test_a_file_without_a_usable_secret(loading: Loading, tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "mail.key").write_bytes(content)
    assert_missing(settings_of(loading, "${file:mail.key}"), reason)


def test_a_secret_that_a_program_prints(loading: Loading) -> None:
    assert_read(settings_of(loading, f"${{cmd:{printing(SECRET)}}}", commands=True))


def test_a_program_runs_once_for_all_that_refer_to_it(loading: Loading, tmp_path: Path) -> None:
    program = f"open('runs', 'a').write('x'); print({SECRET!r})"
    assert_read(settings_of(loading, f"${{cmd:{shlex.join([sys.executable, '-c', program])}}}", commands=True))
    assert (tmp_path / "runs").read_text() == "x"


def test_no_program_runs_unless_the_settings_allow_it(loading: Loading, tmp_path: Path) -> None:
    program = shlex.join([sys.executable, "-c", "open('ran', 'w')"])
    assert_missing(settings_of(loading, f"${{cmd:{program}}}"), "is not run; set commands = true")
    assert not (tmp_path / "ran").exists()


def test_a_program_gets_no_shell(loading: Loading, tmp_path: Path) -> None:
    settings = settings_of(loading, f"${{cmd:{printing(SECRET)} ; touch ran && $(touch ran)}}", commands=True)
    assert settings.http.tokens[0].secret == SECRET
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; print('hush'); sys.exit(3)", "failed with exit code 3"),
        ("import time; print('hush', flush=True); time.sleep(60)", "took longer than 0.5 s"),
        (
            "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])",
            "took longer than 0.5 s",
        ),
        ("pass", "is empty"),
        ("print('hush' * 50000)", "longer than 65,536 bytes"),
    ],
)
def test_a_program_that_gives_no_secret(loading: Loading, program: str, reason: str) -> None:
    command = shlex.join([sys.executable, "-c", program])
    settings = settings_of(loading, f"${{cmd:{command}}}", commands=True, timeout=0.5 if "0.5" in reason else 10)
    assert_missing(settings, reason)
    assert "hush" not in f"{settings.secrets} {settings.http_problem} {settings.servers[0].problem}"


def test_a_program_that_does_not_exist(loading: Loading) -> None:
    assert_missing(settings_of(loading, "${cmd:/nonexistent/op read x}", commands=True), "the command op cannot be run")


def test_the_arguments_of_a_program_are_not_shown(loading: Loading) -> None:
    settings = settings_of(loading, f"${{cmd:{printing(SECRET)}}}", commands=True)
    assert {one.source for one in settings.secrets} == {f"the command {Path(sys.executable).name}"}


@pytest.mark.parametrize("literal", [SECRET, f"Bearer {SECRET}", "${file:a}${file:b}", "x${TOKEN}"])
def test_a_literal_secret_is_refused_and_not_shown(loading: Loading, literal: str) -> None:
    with pytest.raises(SettingsError, match="does not belong in this file") as refused:
        settings_of(loading, literal)
    assert SECRET not in str(refused.value)


def test_a_default_replaces_a_secret_that_is_not_there(loading: Loading) -> None:
    text = '{"mcpServers": {"a": {"command": "run", "env": {"A": "${file:missing:-none}"}}}}'
    (server,) = loading(text).servers
    assert (server.env, server.problem) == ({"A": "none"}, "")


def test_variables_of_headers_and_credentials_count_among_the_secrets(loading: Loading) -> None:
    auth = {"issuer": "https://login.example", "client_id": "me", "client_secret": "${THERE}"}
    servers = {
        "a": {"url": "https://a.example", "headers": {"X-Key": "${MISSING}", "X-Mode": "${MODE:-plain}"}},
        "b": {"url": "https://b.example", "auth": auth},
    }
    found = loading(json.dumps({"mcpServers": servers}), THERE="a secret of the right length").secrets
    assert [(secret.where, secret.source, bool(secret.problem)) for secret in found] == [
        ("a.headers.X-Key", "the variable MISSING", True),
        ("b.auth.client_secret", "the variable THERE", False),
    ]
    assert "right length" not in repr(found)
