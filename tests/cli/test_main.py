"""The command itself: help, version, exit codes, and what loading it costs."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

from toolcrib._version import VERSION
from toolcrib.cli.output import MEANINGS, ExitCode, exit_code
from toolcrib.errors import (
    ApprovalRequired,
    ConnectionLost,
    InvalidArguments,
    InvalidTool,
    MissingExtra,
    RateLimited,
    SandboxUnavailable,
    ScriptLimit,
    SettingsError,
    ToolcribError,
    ToolNotFound,
    UpstreamError,
)
from toolcrib.settings.env import search_paths

VERBS = ("serve", "servers", "tools", "search", "describe", "call", "eval", "doctor", "demo")


def test_help_names_every_verb_every_place_and_every_exit_code(command: Callable[..., Ran]) -> None:
    shown = command("--help")
    assert shown.code == 0
    for verb in VERBS:
        assert f"  {verb} " in shown.out
    for place in search_paths({"HOME": "/home/me"}, Path("/work")):
        assert "/".join(place.parts[2:] if place.is_relative_to("/work") else place.parts[-2:]) in shown.out
    for code, meaning in MEANINGS.items():
        assert f"{code.value:>3}  {meaning}" in shown.out


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_for_itself_and_each_option(command: Callable[..., Ran], verb: str) -> None:
    shown = command(verb, "--help")
    assert shown.code == 0
    assert "--debug" in shown.out
    assert ("--config" in shown.out) is (verb not in ("eval", "demo"))
    usage, about, *_ = shown.out.split("\n\n")
    assert usage.startswith("Usage:")
    assert about.strip().endswith((".", "server-time"))
    assert not re.search(r"[<{]\w", shown.out.replace("${NAME}", ""))


def test_every_verb_that_the_help_lists_can_be_used(command: Callable[..., Ran]) -> None:
    listed = re.findall(r"^  ([a-z]+)  +[A-Z]", command("--help").out, re.MULTILINE)
    assert set(VERBS) < set(listed)
    assert {verb: command(verb, "--help").code for verb in listed} == dict.fromkeys(listed, 0)


def test_version_is_printed(command: Callable[..., Ran]) -> None:
    assert command("--version") == Ran(0, f"toolcrib {VERSION}\n", "")


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("serch", 'There is no command "serch". Did you mean search or service?'),
        ("severs", 'There is no command "severs". Did you mean servers or serve?'),
        ("zzz", 'There is no command "zzz".'),
    ],
)
def test_an_unknown_verb_is_a_usage_error_with_the_nearest_ones(
    command: Callable[..., Ran], word: str, answer: str
) -> None:
    ran = command(word, "x")
    assert ran.code == ExitCode.USAGE
    assert ran.err.endswith(f"Error: {answer}\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("x"), 3),
        (MissingExtra("x"), 3),
        (InvalidArguments("x"), 2),
        (InvalidTool("x"), 2),
        (SandboxUnavailable("x"), 3),
        (ToolNotFound("x"), 4),
        (ScriptLimit("x"), 5),
        (ApprovalRequired("x"), 7),
        (RateLimited("x"), 7),
        (UpstreamError("x"), 5),
        (ConnectionLost("x"), 6),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: ToolcribError, code: int) -> None:
    assert exit_code(error) == code


def kinds(error: type[ToolcribError]) -> Iterator[type[ToolcribError]]:
    yield error
    for kind in error.__subclasses__():
        yield from kinds(kind)


OUT_OF_REACH = {"error", "not_started", "already_started", "not_authenticated"}
"""What no verb can run into."""


def test_every_kind_of_error_that_a_verb_can_meet_has_an_exit_code_that_says_something() -> None:
    shared = [kind for kind in kinds(ToolcribError) if kind.__module__ == "toolcrib.errors"]
    assert {kind.code for kind in shared if exit_code(kind("x")) is ExitCode.UNEXPECTED} == OUT_OF_REACH


def test_help_loads_nothing_heavy() -> None:
    heavy = ("mcp", "pydantic", "starlette", "httpx2", "anyio", "asyncio", "numpy", "jsonschema_rs", "rich", "tomllib")
    program = f"""
import contextlib, io, sys
from toolcrib.cli.main import app
with contextlib.redirect_stdout(io.StringIO()) as page:
    app(["--help"], standalone_mode=False)
print("audit" in page.getvalue(), [name for name in {heavy!r} if name in sys.modules])
"""
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert loaded.stdout.strip() == "True []"


def test_the_end_of_a_verb_looks_through_no_objects() -> None:
    program = """
import gc, sys
from toolcrib.cli.main import main
sys.argv = ["toolcrib", "--version"]
try:
    main()
except SystemExit:
    print(gc.get_freeze_count() > len(gc.get_objects()))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert ended.stdout.splitlines()[-1] == "True"
