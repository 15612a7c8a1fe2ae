"""Servers that are named on the command line instead of in a file."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import TOOLBOX, Ran

Command = Callable[..., Ran]
SERVER = shlex.join([sys.executable, TOOLBOX])


def test_a_command_is_a_server_for_one_verb(command: Command) -> None:
    assert [line.split()[0] for line in command("tools", "--command", SERVER).out.splitlines()][
        1
    ] == "toolbox_server:greet"
    assert command("call", "greet", "person=Ada", "--command", SERVER) == Ran(0, "Hello, Ada!\n", "")
    assert command("describe", "greet", "--command", SERVER).code == 0
    assert command("search", "hello", "--command", SERVER).out.split()[1] == "toolbox_server:greet"
    assert command("doctor", "--command", SERVER).out.startswith("Settings: the command line\n")


def test_two_servers_of_one_name_get_different_names(command: Command) -> None:
    (first, second) = command("servers", "--command", SERVER, "--command", SERVER, "--json").json["servers"]
    assert (first["name"], second["name"]) == ("toolbox_server", "toolbox_server-2")


def test_a_command_gets_only_the_variables_that_are_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SECRET", "x")
    program = f"import os, sys; assert os.environ.get('TEST_SECRET') == 'x'; exec(open({TOOLBOX!r}).read())"
    server = shlex.join([sys.executable, "-c", program])
    assert command("tools", "--command", server).out == ""
    assert "greet" in command("tools", "--command", server, "--env", "TEST_SECRET").out
    assert "greet" in command("tools", "--command", server, "--env", "TEST_SECRET=x").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--command", "x", "--config", "f.json"], "--config and --command cannot be combined."),
        (["--url", "http://h/mcp", "--gateway", "http://h/mcp"], "--url and --gateway cannot be combined."),
        (["--command", ""], "--command is empty."),
        (["--command", "a 'b"], "--command cannot be read: No closing quotation."),
        (["--command", "x", "--env", "NO_SUCH_VARIABLE"], "environment variable NO_SUCH_VARIABLE is not set"),
        (["--url", "h/mcp"], "h/mcp is not an http or https address."),
        (["--url", "http://h/mcp", "--header", "Bearer"], "--header must be NAME:VALUE."),
        (["--url", "http://h/mcp", "--header", "A: ${NO_SUCH_VARIABLE}"], "variable NO_SUCH_VARIABLE is not set"),
        (["--header", "A: b"], "--header needs --url or --gateway."),
        (["--env", "A=b"], "--env needs --command."),
    ],
)
def test_options_that_cannot_name_a_server_say_why(command: Command, words: list[str], said: str) -> None:
    ran = command("tools", *words)
    assert ran.code == 2
    assert said in ran.err


def test_no_settings_file_is_read_beside_a_command(command: Command, tmp_path: Path) -> None:
    (tmp_path / "toolcrib.json").write_text("{")
    assert command("tools", "--command", SERVER).code == 0
