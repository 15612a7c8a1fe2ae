"""`toolcrib run`: scripts over small real servers."""

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ran, toolbox
from tests.scripting.test_stored import DOUBLE_FILE

Command = Callable[..., Ran]
Settings = Callable[..., Path]


def test_run_prints_the_value_of_a_script(command: Command, settings: Settings, tmp_path: Path) -> None:
    script = tmp_path / "sum.lua"
    script.write_text("return args.a + args.b")
    ran = command("run", script, "--args", '{"a": 1, "b": 2}', "--config", settings(good=toolbox()))
    assert (ran.code, ran.out, ran.err) == (0, "3\n", "")


def test_run_takes_the_language_from_the_name_or_the_option(
    command: Command, settings: Settings, tmp_path: Path
) -> None:
    script = tmp_path / "sum.py"
    script.write_text("sum([1, 2])")
    config = settings(good=toolbox())
    assert command("run", script, "--config", config).out == "3\n"
    assert command("run", "-", "-l", "python", "--config", config, stdin="max(4, 5)").out == "5\n"


def test_run_fails_with_the_line_on_standard_error(command: Command, settings: Settings, tmp_path: Path) -> None:
    script = tmp_path / "bad.lua"
    script.write_text("local x = 1\nerror('broken')")
    ran = command("run", script, "--config", settings(good=toolbox()))
    assert ran.code == 5
    assert "script:2: broken" in ran.err
    assert ran.out == ""


def test_run_as_json_has_the_calls_too(command: Command, settings: Settings, tmp_path: Path) -> None:
    script = tmp_path / "one.lua"
    script.write_text("return { n = 1 }")
    ran = command("run", script, "--json", "--config", settings(good=toolbox()))
    assert ran.json["structuredContent"] == {"n": 1}
    assert ran.json["_meta"] == {"toolcrib/calls": []}


def test_a_dry_run_calls_nothing(command: Command, settings: Settings, tmp_path: Path) -> None:
    script = tmp_path / "dry.lua"
    script.write_text("return good.no_such{}:await()")
    ran = command("run", script, "--dry-run", "--config", settings(good=toolbox()))
    assert ran.code == 5
    assert "line 1: good:no_such (there is no such tool)" in ran.err
    script.write_text('return good.greet{person = "Ada"}:await()')
    assert command("run", script, "--dry-run", "--config", settings(good=toolbox())).code == 0


def test_the_tests_of_a_file_are_run(command: Command, settings: Settings, tmp_path: Path) -> None:
    script = tmp_path / "double.lua"
    script.write_text(DOUBLE_FILE)
    ran = command("run", script, "--test", "--config", settings(good=toolbox()))
    assert ran.code == 5
    assert "passed  four" in ran.out  # its own answers stand in for calc
    assert "FAILED  for real" in ran.out  # there is no calc here
    assert "passed  needs a number" in ran.out


def test_a_file_that_is_not_there_is_wrong_usage(command: Command, settings: Settings) -> None:
    ran = command("run", "nowhere.lua", "--config", settings(good=toolbox()))
    assert ran.code == 2
    assert "nowhere.lua cannot be read" in ran.err


def test_run_takes_a_line_for_the_shell_and_a_mark_of_byte_order(
    command: Command, settings: Settings, tmp_path: Path
) -> None:
    config, text = settings(good=toolbox()), "\ufeff#!/usr/bin/env toolcrib\nreturn args.n"
    script = tmp_path / "n.lua"
    script.write_text(text, "utf-8")
    assert command("run", script, "--args", '{"n": 5}', "--config", config).out == "5\n"
    assert command("run", "-", "--args", '{"n": 5}', "--config", config, stdin=text).out == "5\n"


def test_doctor_reports_scripts_that_do_not_parse_or_call_tools_that_do_not_exist(
    command: Command, settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "broken.lua").write_text("local x = = 1")
    (folder / "wrong.lua").write_text("return good.ad{a = 1}:await()")
    ran = command("doctor", "--config", settings({"scripts": {"folder": str(folder)}}, good=toolbox()))
    assert ran.code == 6
    assert "Problem: skipped a stored script: broken: script:1: unexpected symbol near '='" in ran.out
    assert "Note: script wrong, line 1: there is no tool good:ad" in ran.out
