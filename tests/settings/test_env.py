"""Variables in server entries."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.settings.env import VariableExpander, VariableSource
from toolcrib.settings.options import Settings

Loading = Callable[..., Settings]


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
